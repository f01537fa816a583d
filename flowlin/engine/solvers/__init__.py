"""Solvers, and wrappings of solvers."""
