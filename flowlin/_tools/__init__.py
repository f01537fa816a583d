"""Helpers that every room uses."""
