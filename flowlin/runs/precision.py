"""What digits a run can have."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flowlin._tools.arrays import ENABLE_X64
from flowlin._tools.warning import warn

_told = False


class PrecisionWarning(UserWarning):
    """A run is in float32 and has fewer digits than it could."""


def tell_digits(network: DTypeLike, task: DTypeLike, asked: bool) -> None:
    """Warn, once per process, of a run in float32 that may not be meant.

    That is, where JAX is not set to float64; and where it is, of a network in float32 on a task in
    float64, as one is that was made before, unless a tolerance was `asked` for.
    """
    global _told
    if _told or network == jnp.float64:
        return
    wide = jax.config.read("jax_enable_x64")
    if wide and (task == network or asked):
        return
    _told = True
    warn(LATE if wide else f"JAX is set to float32: {DIGITS} {EARLY}", PrecisionWarning)


DIGITS = (
    "expect three or four digits of weights, losses and event times, and less of what happens "
    "after the loss is down to rounding."
)
EARLY = f"For eight and more set it to float64 before any array is made: {ENABLE_X64}"
LATE = (
    f"`network` is of float32 and `task` of float64, so the run is in float32: {DIGITS} A network "
    "that was made before JAX was set to float64 is made again, or cast, as in "
    "`network.astype('float64')`; where float32 is meant, cast the task or give `rtol`."
)
