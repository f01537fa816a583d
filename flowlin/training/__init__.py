"""The problem of a run: losses, objectives, statistics, time constants, vector field."""
