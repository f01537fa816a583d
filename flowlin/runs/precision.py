"""What digits a run can have."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flowlin._tools.arrays import ENABLE_X64
from flowlin._tools.warning import warn

_told = False


class PrecisionWarning(UserWarning):
    """JAX is set to float32: runs have fewer digits than they could."""


def tell_digits(dtype: DTypeLike) -> None:
    """Warn, once per process, of a run in float32 where JAX is not set to float64."""
    global _told
    if _told or dtype == jnp.float64 or jax.config.read("jax_enable_x64"):
        return
    _told = True
    warn(
        "JAX is set to float32: expect three or four digits of weights, losses and event times, "
        "and less of what happens after the loss is down to rounding. For eight and more set it to "
        f"float64 before any array is made: {ENABLE_X64}",
        PrecisionWarning,
    )
