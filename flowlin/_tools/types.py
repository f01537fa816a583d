"""Types that several rooms speak of. `Any` is for what is checked at the door, or handed on."""

import os
from collections.abc import Callable

from jaxtyping import Array

Weights = tuple[Array, ...]
Biases = tuple[Array | None, ...]
Parameters = tuple[Weights, Biases]
Activation = Callable[[int, Array], Array]  # of a layer, for its preactivations (P, H)
PathLike = str | os.PathLike[str]
