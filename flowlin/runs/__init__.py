"""Runs: flow, descent, sweep, and what they return."""
