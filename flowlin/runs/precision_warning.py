"""The digits that a run in float32 can have."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flowlin._tools.arrays import ENABLE_X64
from flowlin._tools.warn import warn_user

_has_warned = False


class PrecisionWarning(UserWarning):
    """A run has fewer digits than it could: it is in float32, or rounding hides modes."""


def warn_precision(network: DTypeLike, task: DTypeLike, given_rtol: bool) -> None:
    """Warn, once per process, of a run in float32 that may not be meant.

    It warns where JAX is set to float32. Where it is set to float64, it warns of a network in
    float32 on a task in float64, which may have been made before; not if a tolerance was `asked`
    for.
    """
    global _has_warned
    if _has_warned or network == jnp.float64:
        return
    wide = jax.config.read("jax_enable_x64")
    if wide and (task == network or given_rtol):
        return
    _has_warned = True
    warn_user(
        LATE_ADVICE if wide else f"JAX is set to float32: {FLOAT32_DIGITS} {EARLY_ADVICE}",
        PrecisionWarning,
    )


FLOAT32_DIGITS = (
    "expect three or four digits of weights, losses and event times, and less of what happens "
    "after the loss is down to rounding."
)
EARLY_ADVICE = f"For eight and more set it to float64 before any array is made: {ENABLE_X64}"
LATE_ADVICE = (
    f"`network` is of float32 and `task` of float64, so the run is in float32: {FLOAT32_DIGITS} A "
    "network that was made before JAX was set to float64 is made again, or cast, as in "
    "`network.astype('float64')`; where float32 is meant, cast the task or give `rtol`."
)
