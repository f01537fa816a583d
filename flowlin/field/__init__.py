"""What a flow follows: objective, statistics, treatment of kinks."""
