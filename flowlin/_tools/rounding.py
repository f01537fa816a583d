"""What an exact walk takes for rounding, per precision of its numbers."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike


class Rounding(NamedTuple):
    """Sizes, all relative, below which a difference says nothing.

    In float64 there is room for generous multiples of eps. In float32 there is little: a pair
    within rounding of its kink is taken to be there, which is an error of the run, so its z and u
    are smaller multiples (`benchmarks/precision.py`; float64's multiples of eps made weights
    off by ten to a hundred times as much). The rest are some tens to a thousand of its eps.
    """

    z: float  # |z| over |w| |x|
    u: float  # u of a sliding pair, over its C
    snap: float  # u over its bound: this close to an end of its range it is at that end
    slack: float  # of the conditions on u and the velocity of z in the choice of modes
    cut: float  # eigenvalues of sliding pairs' Gram matrix, over the largest
    root: float  # of an event's time, over the step


EPS = 2.0**-52
FLOAT64 = Rounding(z=512 * EPS, u=5e4 * EPS, snap=1e-9, slack=1e3 * EPS, cut=1e-10, root=1e-12)
FLOAT32 = Rounding(z=7.6e-6, u=6e-5, snap=1e-5, slack=1.2e-4, cut=1e-6, root=5e-7)


def rounding_in(dtype: DTypeLike) -> Rounding:
    """Of walks in float64, or in anything less."""
    return FLOAT64 if dtype == jnp.float64 else FLOAT32
