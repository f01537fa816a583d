"""The early phase of ReLU networks."""
