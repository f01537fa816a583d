"""The mathematics of gates: sides of a kink, sliding, Filippov's rule."""
