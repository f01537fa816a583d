"""What a flow follows: problem, objective, statistics."""
