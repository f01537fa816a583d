r"""A warning where rounding may have rewritten modes that a run watched.

Let A be the size of a mode in the weights, its strength to the power 1/L with L layers. When
another mode has been learnt, weights are of size one, and their velocity has a rounding of about
$\epsilon$. That of the mode is $\dot A = s A^{L-1}$ (Saxe et al. 2014, Eq. 14): below
$10^3 \epsilon$ it is lost in rounding, and the time of its hit with it.

How large it was when the first mode was learnt, at $t_1$, follows from its size at t = 0 and at
its own hit: ln A is linear in time with two layers, and $A^{2-L}$ with more.
"""

import jax
import numpy as np
from jax.typing import DTypeLike

from flowlin._tools.arrays import Real, is_traced
from flowlin._tools.warn import warn_user
from flowlin.engine.integrate import FlowRun
from flowlin.events.watch import ModeStrengthDifference
from flowlin.networks.layered import AbstractLayered
from flowlin.record.results import SUCCESSES, result_is
from flowlin.record.trajectory import Trajectory
from flowlin.runs.precision_warning import PrecisionWarning

LOST_ROUNDINGS = 1e3  # a velocity below so many roundings is lost in them
NEVER = 1e300  # the time of a hit that did not happen


def warn_hidden(run: FlowRun, flow: Trajectory) -> None:
    """Warn (`PrecisionWarning`) of modes that were rounded away before their hits.

    Modes without a hit count in runs that failed, which may have failed over them. There is no
    warning under `jit` and `vmap`, nor in the coordinates of the modes, where rounding hides none.
    """
    watches = [watch for watch in run.watches if isinstance(watch.function, ModeStrengthDifference)]
    if not watches or run.in_modes is not None or is_traced((run, flow)):
        return
    network = run.network
    layers = len(network.weights) if isinstance(network, AbstractLayered) else 2
    numbers = np.concatenate([np.ravel(a) for a in jax.tree.leaves(network.parameters)])
    largest = float(np.max(np.abs(numbers)))  # squares of small weights would be 0
    start = largest and largest * float(np.sqrt(np.mean((numbers / largest) ** 2)))
    for watch in watches:
        assert isinstance(watch.function, ModeStrengthDifference)
        times = np.asarray(flow.events.first(watch.channel.name), float)
        levels = np.broadcast_to(np.asarray(watch.function.level, float), times.shape)
        times = np.where(levels > 0, times, np.nan)
        if not result_is(flow.result, *SUCCESSES):
            times = np.where(np.isinf(times), NEVER, times)
        _warn_of_modes(watch.channel.name, times, levels, start, layers, network.dtype)


def _warn_of_modes(
    name: str, times: np.ndarray, levels: np.ndarray, start: float, layers: int, dtype: DTypeLike
) -> None:
    """Warn of the modes of one event by its times (..., K) at `levels`; nan for those left out."""
    late = np.isfinite(times) & (times > 0)
    if layers < 2 or start <= 0 or not np.any(late):
        return
    learnt = np.unravel_index(np.argmin(np.where(late, times, np.inf)), times.shape)
    sizes = np.where(late, levels, 1.0) ** (1 / layers)
    share = times[learnt] / np.where(late, times, np.inf)
    ratio = mode_size_between(start, sizes, share, layers) / sizes[learnt]
    lost = (
        late & (share < 1) & (ratio ** (layers - 1) < LOST_ROUNDINGS * float(np.finfo(dtype).eps))
    )
    modes = sorted(set(np.nonzero(lost)[-1].tolist()))
    if not modes:
        return
    wider = "Start from larger weights" + ("" if dtype == np.float64 else ", or take float64")
    warn_user(
        f"event {name!r}: mode{'s' * (len(modes) > 1)} {', '.join(map(str, modes))} had about "
        f"{np.min(ratio[lost]):.1g} of the size of mode {learnt[-1]} in the weights when that was "
        f"learnt, at t = {times[learnt]:.6g}. Of so little {np.dtype(dtype).name} keeps few digits "
        f"or none with {layers} layers, so their times may be off. {wider}.",
        PrecisionWarning,
    )


def mode_size_between(start: float, end: Real, share: Real, layers: int) -> Real:
    """Return the size of a mode at a share of the time from its `start` to its `end` at the hit."""
    if layers == 2:
        return start ** (1 - share) * end**share
    power = 2 - layers
    with np.errstate(over="ignore"):  # then it is 0
        return ((1 - share) * np.float64(start) ** power + share * end**power) ** (1 / power)
