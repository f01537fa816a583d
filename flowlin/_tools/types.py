"""Types that several rooms speak of. `Any` is for what is checked at the door, or handed on."""

import os
from collections.abc import Callable

from jaxtyping import Array, PyTree

Weights = tuple[Array, ...]
Biases = tuple[Array | None, ...]
# (Weights, Biases) of flowlin's networks, a tree of arrays of others; None for what does not move.
Parameters = PyTree
Activation = Callable[[int, Array], Array]  # of a layer, for its preactivations (P, H)
PathLike = str | os.PathLike[str]
Product = Callable[[Array, Array], Array]  # of h (P, N) and W (M, N): h W^T
