"""Types that several rooms speak of.

`Any` is left to what checks look at, to what is handed on, and to a user's own modules.
"""

import os
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

Weights = tuple[Array, ...]
Biases = tuple[Array | None, ...]
# (Weights, Biases) of flowlin's networks, a tree of arrays of others; None for what does not move.
Parameters = PyTree
Activation = Callable[[int, Array], Array]  # of a layer, for its preactivations (P, H)
# One, an array of them, or lists: by layer, by time, or a matrix row by row.
Numbers = ArrayLike | Sequence[ArrayLike] | Sequence[Sequence[ArrayLike]]
PathLike = str | os.PathLike[str]
Real = int | float | Array | np.ndarray  # numbers that may be traced
Product = Callable[[Array, Array], Array]  # of h (P, N) and W (M, N): h W^T
