"""How far descent at one rate is from the flow."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from flowlin._tools.copies import copied
from flowlin._tools.flat import as_tree
from flowlin._tools.show import shown
from flowlin._tools.types import Parameters
from flowlin.agreement import summary
from flowlin.agreement.comparison import distances
from flowlin.events.recorder import event_log
from flowlin.log.eventlog import EventLog
from flowlin.network.kinds import AbstractNetwork
from flowlin.network.model import AbstractModel
from flowlin.runs.stepping import Descent, State, Stops, written
from flowlin.runs.trajectory import Trajectory
from flowlin.solvers.radius import direction, spectral_radius

ROWS = 128  # times in [0, t1] at which the two runs are compared
ITERATIONS = 100  # of the power iteration, at each of the times
NEAR = 0.95  # share of the edge of stability from which on a rate is at the edge
QUANTITIES = ("parameters", "function", "loss", "events")


@shown(summary.accuracy)
@dataclasses.dataclass(frozen=True)
class Accuracy:
    """One quantity's errors at the rates of a `RateCertificate`.

    - `rate`: the largest rate tried whose error is within the limit, as are those of all smaller
      rates tried; nan if there is none.
    - `errors`: (R,), inf where descent diverged or an event is missing.
    - `slope`: of log error against log rate, by least squares over the rates tried up to twice
      `rate` (without one, over the three smallest); nan where they do not define one.
    """

    rate: float
    errors: Float[np.ndarray, " R"]
    slope: float


class _Errors(NamedTuple):
    """What one descent found; `events` and `chattering` nan where there is nothing to compare."""

    parameters: float
    function: float
    loss: float
    events: float
    chattering: float


def _measured(
    run: Descent, flow: Trajectory, t1: float, tau: float, within: float, steps: int
) -> _Errors:
    """One descent of so many steps over [0, t1], and some more for the events due there."""
    watches, clock = run.look.observer.watches, t1 / steps
    stops = (np.arange(ROWS + 1) * steps) // ROWS
    beyond = steps + (math.ceil(within * steps) + 1 if watches else 0)
    rate, step = (jnp.asarray(value, run.clock.dtype) for value in (clock / tau, clock))
    run = copied(run, learning_rate=rate, clock=step)
    sliding = _sliding(flow.events, clock * stops)
    room = 1024 + 4 * len(flow.events) if watches else 0
    ends = jnp.asarray([*stops[1:], beyond])
    assert flow.dense is not None
    off, (log, widest) = _descended(run, flow.dense, flow.model, ends, sliding, room)
    found = [float(np.max(np.where(np.isnan(e), np.inf, np.abs(e)))) for e in off]
    late = math.nan
    if watches:
        names = {watch.channel.name for watch in watches}
        late = _lateness(_times(flow.events, names), _times(log.trimmed(), names), t1)
        late = late if int(log.count) <= room else math.inf
    initial = float(flow.losses[0])
    chatters = any(np.any(mask) for mask in sliding)
    wide = float(widest) if np.isfinite(widest) else math.inf
    return _Errors(
        parameters=found[0],
        function=found[1],
        loss=found[2] / initial,
        events=late,
        chattering=wide if chatters else math.nan,
    )


@eqx.filter_jit
def _descended(
    run: Descent,
    dense: diffrax.DenseInterpolation,
    final: AbstractModel,
    ends: Int[Array, " rows_and_1"],
    sliding: tuple[Bool[Array, "rows_and_1 P H"], ...],
    room: int,
) -> tuple[tuple[Array, Array, Array], tuple[EventLog, Array]]:
    """Distances of descent from the flow at all ends but the last, its events and its chatter."""

    def width(parameters: Parameters, masks: PyTree) -> Array:
        network = run.network.with_parameters(parameters)
        assert isinstance(network, AbstractNetwork)
        layers = zip(network.preactivations(run.task.x), masks, strict=True)
        found = [jnp.max(jnp.where(mask, jnp.abs(z), 0.0)) for z, mask in layers]
        return functools.reduce(jnp.maximum, found)

    def each(widest: Array, state: State, step: Array, stop: Array) -> Array:
        del step
        if not sliding:
            return widest
        masks = jax.tree.map(lambda a: a[stop], sliding)
        return jnp.maximum(widest, width(state.parameters, masks))

    def at_stop(found: Parameters, state: State, stop: Array) -> Parameters:
        return written(found, stop, state.parameters)

    rows = len(ends)
    stops = Stops(jnp.concatenate([jnp.zeros(1, ends.dtype), ends]), jnp.ones(rows, bool), rows)
    empty = jax.tree.map(lambda a: jnp.zeros((rows, *a.shape), a.dtype), run.network.parameters)
    start = jnp.zeros((), run.network.dtype), empty
    state, (widest, found) = run.through(run.start(room), stops, start, each, at_stop)
    parameters = jax.tree.map(lambda a: a[:-1], found)  # what comes after t1 is for the events
    times = jnp.minimum(ends[:-1] * run.clock, dense.t1)
    first = jax.vmap(lambda t: final.with_parameters(dense.evaluate(t)))(times)
    second = jax.vmap(run.network.with_parameters)(parameters)
    events = state.log if run.look.observer.watches else None
    log = event_log(events, run.look.observer, jnp.asarray(jnp.inf, run.clock.dtype))
    return distances(first, second, run.task, run.problem.loss), (log, widest)


@eqx.filter_jit
def _sharpness(run: Descent, flow: Trajectory, t1: float) -> Array:
    """Largest spectral radius of the Hessian at the rows' times, gates as they are.

    As a lower bound; by products with the Hessian, which know nothing of the kinks nearby.
    """
    dense = flow.dense
    assert dense is not None

    def gradient(parameters: Parameters) -> Parameters:
        return run.objective.gradient(run.network, parameters)

    def radius(carry: Any, t: Array) -> tuple[Any, Array]:
        _, product = jax.linearize(gradient, as_tree(dense.evaluate(t)))
        nothing = jax.tree.map(jnp.zeros_like, carry[0])
        vector, old = carry
        found = spectral_radius(product, nothing, nothing, vector, old, ITERATIONS, "lax")
        return found[:2], found[1]

    dtype = run.network.dtype
    start = direction(run.network.parameters), jnp.zeros((), dtype)
    return jnp.max(lax.scan(radius, start, t1 * jnp.linspace(0, 1, ROWS + 1, dtype=dtype))[1])


def _times(log: EventLog, names: set[str]) -> dict[tuple, list[float]]:
    """Times of the events of these names, ascending, by component and direction."""
    found: dict[tuple, list[float]] = {}
    for name in sorted(names):
        mine = log.select(name)
        for time, index, side in zip(
            np.asarray(mine.time), mine.index, np.asarray(mine.new), strict=True
        ):
            found.setdefault((name, index, int(side)), []).append(float(time))
    return found


def _lateness(
    flow: dict[tuple, list[float]], descent: dict[tuple, list[float]], t1: float
) -> float:
    """Largest relative difference of times; inf if one before t1 has no partner, nan of none."""
    off: list[float] = []
    for key in flow.keys() | descent.keys():
        ours, theirs = flow.get(key, []), descent.get(key, [])
        due = max(sum(t <= t1 for t in ours), sum(t <= t1 for t in theirs))
        if min(len(ours), len(theirs)) < due:
            return math.inf
        pairs = zip(ours[:due], theirs[:due], strict=True)
        off += [abs(b - a) / a for a, b in pairs]
    return max(off, default=math.nan)


def _sliding(log: EventLog, times: Float[np.ndarray, " T"]) -> tuple[Array, ...]:
    """Per hidden layer, which pairs slide from each time to the next, (T, P, H); last, none.

    Empty where no gates are logged or none slides.
    """
    gates = [k for k, channel in enumerate(log.channels) if channel.name == "gate"]
    if not gates or not np.any(np.asarray(log.new) == 0):
        return ()
    time, component, new = (np.asarray(a) for a in (log.time, log.component, log.new))
    sides, row = np.array(log.initial), 0
    slides = np.zeros((len(times), len(sides)), bool)
    for k in range(len(times) - 1):
        while row < len(time) and time[row] <= times[k]:
            sides[component[row]] = new[row]
            row += 1
        slides[k] = sides == 0
        slides[k, component[row : np.searchsorted(time, times[k + 1], side="right")]] = False
    parts = []
    for k in gates:
        units, samples = log.channels[k].shape
        part = slides[:, log.offsets[k] : log.offsets[k + 1]]
        parts.append(jnp.asarray(part.reshape(-1, units, samples).transpose(0, 2, 1)))
    return tuple(parts)
