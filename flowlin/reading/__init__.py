"""An exact ReLU run read as gated linear networks with switching times."""
