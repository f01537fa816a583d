"""Flow against descent: distances, rates, clocks."""
