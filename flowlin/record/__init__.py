"""The record of what happened: events, gates, linearization."""
