"""Networks: forward pass, kinds, initial weights."""
