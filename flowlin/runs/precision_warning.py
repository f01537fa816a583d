"""Warnings of runs that have fewer digits than they could: in float32, or of large inputs."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from flowlin._tools.arrays import ENABLE_X64, rms_size
from flowlin._tools.warn import warn_user
from flowlin.engine.integrate import FlowRun
from flowlin.networks.layered import AbstractLayered

UNEVEN = 1e3  # times weights, from which on their unit is too coarse; size of inputs, likewise

_has_warned = False


class PrecisionWarning(UserWarning):
    """A run has fewer digits than it could.

    It is in float32, rounding hides modes, or weights are tiny beside their units.
    """


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


def warn_uneven(run: FlowRun) -> None:
    """Warn (`PrecisionWarning`) of weights that are tiny beside their units since inputs are large.

    The error of a step counts against the unit (`flowlin.engine.allowed`), and is then coarser than
    `rtol` by that factor: as where inputs are 1e8 and the weights on them 1e-8, beside a readout of
    order one. Weights that merely start so small grow out of it. The run is not traced.
    """
    network, method = run.problem.network, run.method
    if not method.error_by_unit or run.in_modes is not None:
        return
    if not isinstance(network, AbstractLayered):
        return  # where an array is a unit
    owners = [owner for owner, _ in network.facts.owners]
    arrays = [np.ravel(np.asarray(a, float)) for a in jax.tree.leaves(network.parameters)]
    unit = [a for a, owner in zip(arrays, owners, strict=True) if owner == owners[0]]
    inputs, own, size = map(rms_size, (run.problem.task.x, arrays[0], np.concatenate(unit)))
    if inputs > UNEVEN and 0 < own * UNEVEN < size:
        rtol = float(method.controller.rtol)
        warn_user(
            f"`weights[0]` has numbers of {own:.0e}, on inputs of {inputs:.0e}, in units of size "
            f"{size:.0e}, against which the error of a step counts: it may be "
            f"{rtol * size / own:.0e} of them. Pass `atol={rtol * own:.0e}`, with which each "
            "number counts by itself.",
            PrecisionWarning,
        )
