"""The engine: arrays in, arrays out; the only room that compiles a run."""
