"""The largest learning rates at which descent stays near to the flow, measured by descent."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from flowlin._tools.arguments import (
    LARGEST_STEP_LIMIT,
    argument_error,
    checked,
    positive,
    static_value,
)
from flowlin._tools.arrays import Numbers, Parameters, replace_fields
from flowlin._tools.numerics import as_tree
from flowlin._tools.printing import print_by, tqdm_bar
from flowlin.engine.descend import Descent, DescentObserver, DescentState, RowSchedule, write_row
from flowlin.engine.kinks.kink_policies import AbstractKinks
from flowlin.engine.recorder import event_log
from flowlin.engine.solvers.rkc import direction, spectral_radius
from flowlin.events.event import AbstractEvent
from flowlin.events.switches import UnitSwitches
from flowlin.events.user_events import as_events
from flowlin.networks.base import AbstractModel
from flowlin.networks.modules import any_module, as_model
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.record.event_log import EventLog
from flowlin.record.trajectory import Trajectory
from flowlin.runs.compare import run_distances
from flowlin.runs.gradient_descent import StepRule, WatchOptions, descent_of
from flowlin.runs.gradient_flow import gradient_flow
from flowlin.runs.rate_summary import accuracy_summary, rate_certificate_summary
from flowlin.runs.run_options import decay_of
from flowlin.tasks.task import Task
from flowlin.training.function_loss import AnyLoss, as_loss
from flowlin.training.problem import Problem
from flowlin.training.squared_error import SquaredError

# ---- The distance of descent at one rate from the flow.

COMPARISON_ROWS = 128  # times in [0, t1] at which the two runs are compared
SHARPNESS_ITERATIONS = 100  # of the power iteration, at each of the times
EDGE_SHARE = 0.95  # a rate of at least this share of the edge of stability is called the edge
QUANTITIES = ("parameters", "function", "loss", "events")


@print_by(accuracy_summary)
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


class _RateErrors(NamedTuple):
    """Errors of one descent; `events` and `chattering` are nan where nothing can be compared."""

    parameters: float
    function: float
    loss: float
    events: float
    chattering: float


def _errors_at_rate(
    run: Descent, flow: Trajectory, t1: float, tau: float, within: float, steps: int
) -> _RateErrors:
    """Measure one descent of `steps` steps over [0, t1], and some more for late events."""
    watches, clock = run.observers.observer.watches, t1 / steps
    stops = (np.arange(COMPARISON_ROWS + 1) * steps) // COMPARISON_ROWS
    beyond = steps + (math.ceil(within * steps) + 1 if watches else 0)
    rate, step = (jnp.asarray(value, run.clock.dtype) for value in (clock / tau, clock))
    run = replace_fields(run, learning_rate=rate, clock=step)
    sliding = _slide_masks(flow.events, clock * stops)
    # Descent may cross a level more often than the flow; where even this log overflows, the error
    # of the events counts as inf.
    room = 1024 + 4 * len(flow.events) if watches else 0
    ends = jnp.asarray([*stops[1:], beyond])
    assert flow.dense is not None
    off, (log, widest) = _descend_beside_flow(run, flow.dense, flow.model, ends, sliding, room)
    found = [float(np.max(np.where(np.isnan(e), np.inf, np.abs(e)))) for e in off]
    late = math.nan
    if watches:
        names = {watch.channel.name for watch in watches}
        late = _largest_time_error(
            _event_times(flow.events, names), _event_times(log.without_padding(), names), t1
        )
        late = late if int(log.count) <= room else math.inf
    initial = float(flow.losses[0])
    chatters = any(np.any(mask) for mask in sliding)
    wide = float(widest) if np.isfinite(widest) else math.inf
    return _RateErrors(
        parameters=found[0],
        function=found[1],
        loss=found[2] / initial,
        events=late,
        chattering=wide if chatters else math.nan,
    )


@eqx.filter_jit
def _descend_beside_flow(
    run: Descent,
    dense: diffrax.DenseInterpolation,
    final: AbstractModel,
    ends: Int[Array, " rows_and_1"],
    sliding: tuple[Bool[Array, "rows_and_1 P H"], ...],
    room: int,
) -> tuple[tuple[Array, Array, Array], tuple[EventLog, Array]]:
    """Descend to all ends; return distances from the flow at all but the last, events, chatter."""

    def chatter_width(parameters: Parameters, masks: PyTree) -> Array:
        network = run.network.with_parameters(parameters)
        assert isinstance(network, AbstractNetwork)
        layers = zip(network.preactivations(run.task.x), masks, strict=True)
        found = [jnp.max(jnp.where(mask, jnp.abs(z), 0.0)) for z, mask in layers]
        return functools.reduce(jnp.maximum, found)

    def widest_so_far(widest: Array, state: DescentState, step: Array, stop: Array) -> Array:
        del step
        if not sliding:
            return widest
        masks = jax.tree.map(lambda a: a[stop], sliding)
        return jnp.maximum(widest, chatter_width(state.parameters, masks))

    def write_parameters(found: Parameters, state: DescentState, stop: Array) -> Parameters:
        return write_row(found, stop, state.parameters)

    rows = len(ends)
    stops = RowSchedule(
        jnp.concatenate([jnp.zeros(1, ends.dtype), ends]), jnp.ones(rows, bool), rows
    )
    empty = jax.tree.map(lambda a: jnp.zeros((rows, *a.shape), a.dtype), run.network.parameters)
    start = jnp.zeros((), run.network.dtype), empty
    state, (widest, found) = run.run_steps(
        run.initial_state(room), stops, start, widest_so_far, write_parameters
    )
    parameters = jax.tree.map(lambda a: a[:-1], found)  # what comes after t1 is for the events
    times = jnp.minimum(ends[:-1].astype(run.clock.dtype) * run.clock, dense.t1)
    first = jax.vmap(lambda t: final.with_parameters(dense.evaluate(t)))(times)
    second = jax.vmap(run.network.with_parameters)(parameters)
    events = state.log if run.observers.observer.watches else None
    log = event_log(events, run.observers.observer, jnp.asarray(jnp.inf, run.clock.dtype))
    return run_distances(first, second, run.task, run.problem.loss), (log, widest)


@eqx.filter_jit
def _initial_sharpness(run: Descent) -> Array:
    """Return the spectral radius of the Hessian at the start, gates fixed; a lower bound."""
    return _next_radius(run, run.network.parameters, _first_radius(run))[1]


@eqx.filter_jit
def _largest_sharpness(run: Descent, flow: Trajectory, t1: Array) -> Array:
    """Return the largest spectral radius of the Hessian at 129 times in [0, t1], gates fixed.

    A lower bound, from products with the Hessian: these do not see the kinks nearby.
    """
    dense = flow.dense
    assert dense is not None

    def next_row(carry: tuple[PyTree, Array], t: Array) -> tuple[tuple[PyTree, Array], Array]:
        found = _next_radius(run, dense.evaluate(t), carry)
        return found, found[1]

    times = t1 * jnp.linspace(0, 1, COMPARISON_ROWS + 1, dtype=run.network.dtype)
    return jnp.max(lax.scan(next_row, _first_radius(run), times)[1])


def _first_radius(run: Descent) -> tuple[PyTree, Array]:
    """Return what a power iteration begins with: a direction, and no radius known."""
    return direction(run.network.parameters), jnp.zeros((), run.network.dtype)


def _next_radius(
    run: Descent, parameters: PyTree, last: tuple[PyTree, Array]
) -> tuple[PyTree, Array]:
    """Return the Hessian's leading direction and spectral radius there, from those nearby."""
    product = run.objective.hessian_product(run.network, as_tree(parameters))
    nothing = jax.tree.map(jnp.zeros_like, last[0])
    return spectral_radius(product, nothing, nothing, *last, SHARPNESS_ITERATIONS, "lax")[:2]


def _edge_of_stability(
    sharpness: float, t1: float, tau: float, max_steps: int
) -> tuple[float, int]:
    """Return the rate 2 / sharpness and its number of steps to t1; raise if there are too many."""
    edge = 2 / sharpness if sharpness > 0 else math.inf
    if t1 / tau > max_steps * edge:
        raise ValueError(
            f"`max_steps` = {max_steps} is too small: at the edge of stability, eps = {edge:.3g}, "
            f"descent to `t1` takes {t1 / (tau * edge):.3g} steps."
        )
    return edge, max(1, math.ceil(t1 / (tau * edge)))


def _event_times(log: EventLog, names: set[str]) -> dict[tuple, list[float]]:
    """Return ascending times of the events of these names, by component and direction."""
    found: dict[tuple, list[float]] = {}
    for name in sorted(names):
        mine = log.select(name)
        times, sides = np.asarray(mine.time), np.asarray(mine.new)
        for time, index, side in zip(times, mine.index, sides, strict=True):
            found.setdefault((name, index, int(side)), []).append(float(time))
    return found


def _largest_time_error(
    flow: dict[tuple, list[float]], descent: dict[tuple, list[float]], t1: float
) -> float:
    """Return the largest relative time error; inf if an event has no partner, nan of no events."""
    off: list[float] = []
    for key in flow.keys() | descent.keys():
        ours, theirs = flow.get(key, []), descent.get(key, [])
        due = max(sum(t <= t1 for t in ours), sum(t <= t1 for t in theirs))
        if min(len(ours), len(theirs)) < due:
            return math.inf
        off += [abs(b - a) / a for a, b in zip(ours[:due], theirs[:due], strict=True)]
    return max(off, default=math.nan)


def _slide_masks(log: EventLog, times: Float[np.ndarray, " T"]) -> tuple[Array, ...]:
    """Tell per hidden layer which pairs slide from each time to the next, (T, P, H) of bool.

    None slides from the last time on. Empty where no gates are logged or none slides.
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


RATE_FACTOR = 4  # between two rates while the largest one is bracketed


@print_by(rate_certificate_summary)
@dataclasses.dataclass(frozen=True)
class RateCertificate:
    r"""The learning rates at which descent stays within a share of the flow.

    - `rates`: (R,), learning rates tried, ascending.
    - `steps`: (R,), the whole numbers of steps in which they reach t1.
    - `within`, `t1`: the limit and the final time, as asked for.
    - `edge`: 2 over the largest spectral radius of the loss's Hessian along the flow, where
      descent becomes unstable. The largest rate tried is the largest up to it that takes whole
      steps, t1 / (tau n) with the smallest such n: for few steps it may lie far below.
    - `parameters`, `function`: `Accuracy` of the largest relative distances in [0, t1] that
      `fl.compare` finds, each relative to the flow's own norm at that time.
    - `loss`: of the largest difference of the losses over the flow's loss at t = 0.
    - `events`: of the largest relative difference of an event's time; None where no event happens
      in [0, t1], neither in the flow nor in any descent.
    - `chattering`: of the largest |z| of a (unit, sample) pair that slides along the flow, in units
      of the preactivation; its `rate` is nan, since nothing limits it, and its `slope` is over all
      rates. None if no pair slides.
    """

    rates: Float[np.ndarray, " R"]
    steps: Int[np.ndarray, " R"]
    within: float
    t1: float
    edge: float
    parameters: Accuracy
    function: Accuracy
    loss: Accuracy
    events: Accuracy | None
    chattering: Accuracy | None

    def table(self) -> list[dict[str, Any]]:
        """Return a dictionary per quantity: name, largest rate, slope, what limits the rate."""
        rows = []
        for name in QUANTITIES:
            accuracy: Accuracy | None = getattr(self, name)
            if accuracy is None:
                continue
            limit = f"{100 * self.within:g} % of the flow"
            if accuracy.rate == self.rates[-1]:
                limit = f"largest rate tried, {self.steps[-1]} step(s) to t1"
                if accuracy.rate >= EDGE_SHARE * self.edge:
                    limit = f"stability edge {self.edge:.3g}"
            elif math.isnan(accuracy.rate):
                limit = f"no rate from {self.rates[0]:.3g} on is within {limit}"
            row = {"quantity": name, "rate": accuracy.rate, "slope": accuracy.slope}
            rows.append({**row, "limit": limit})
        return rows


def _within_argument(name: str, value: Any) -> float:
    """Check that an argument is a relative error in (0, 0.5)."""
    value = static_value(positive)(name, value)
    if value >= 0.5:
        raise argument_error(name, "a relative error below 0.5", value)
    return value


@checked(
    network=any_module,
    t1=static_value(positive),
    within=_within_argument,
    precision=static_value(positive),
    tau=static_value(positive),
)
def largest_learning_rate(
    network: eqx.Module,
    task: Task,
    t1: float,
    within: float = 0.01,
    *,
    loss: AnyLoss = SquaredError(),
    tau: float = 1.0,
    weight_decay: Numbers | None = None,
    events: AbstractEvent | Sequence[AbstractEvent] = (),
    kinks: AbstractKinks | None = None,
    solver: diffrax.AbstractSolver | None = None,
    rtol: float | None = None,
    precision: float = 0.05,
    max_steps: int | None = 2**18,
    progress: bool = False,
) -> RateCertificate:
    r"""Find the largest learning rates at which descent stays within a share of the flow.

    It measures over [0, t1], and extrapolates nothing: descent is run at every rate that counts.
    From the edge of stability on the rate falls by factors of four until all errors are within the
    limit, and once more by two; then each quantity's largest rate is bisected in log eps.
    Parameters, function and loss are compared at 128 times; events at their own times, descent's
    interpolated between steps. Where a ReLU flow slides on its kinks descent chatters about them,
    and the width of that is measured at every step, over the pairs that slide from one of the 128
    times to the next.

    **Arguments:**

    - `network`, `task`, `t1`, `loss`, `tau`, `weight_decay`, `kinks`, `solver`, `rtol`: of the
      flow, as for `gradient_flow`; it is kept with `dense=True`. Steps of rate eps take eps tau.
    - `within`: the limit, a relative error in (0, 0.5).
    - `events`: whose times count; `Crossing`, `ModeHits`, `LossBelow`. Those of the flow until t1
      must happen in descent, and the other way round, in the same order for each component. They
      cannot end a run, nor happen at t = 0.
    - `precision`: relative width of the bracket of each rate at which bisection ends.
    - `max_steps`: of one descent; smaller rates than t1 / (tau max_steps) are not tried.
    - `progress`: a tqdm bar over the descents.

    **Returns:** a `RateCertificate`, with one `Accuracy` per quantity. A quantity that no rate
    tried keeps within the limit has `rate` nan.

    **Raises:** `ValueError` for bad input, or a flow that rests; `fl.RunError` where it fails.
    """
    network, loss, events = as_model("network", network), as_loss(loss), as_events(events)
    max_steps = LARGEST_STEP_LIMIT if max_steps is None else max_steps
    if any(isinstance(event, UnitSwitches) for event in events):
        raise ValueError(
            "`events` holds UnitSwitches; descent flickers on sliding pairs, so that its units' "
            "switches do not converge. Pass events of observables."
        )
    own = task.astype(network.dtype), loss, jnp.asarray(tau, network.dtype)
    decay = decay_of(network, weight_decay)
    rule, watched = StepRule(learning_rate=1.0, clock=tau), WatchOptions(events, interpolate=True)
    run = descent_of(Problem(network, *own, decay), rule, watched)
    if any(watch.terminate for watch in run.observers.observer.watches):
        raise ValueError("`events` must not end the run; pass them with `terminate=False`.")
    run = replace_fields(run, observers=DescentObserver(run.observers.observer))
    # A flow too long for `max_steps` is told before it is computed, where its start shows it.
    _edge_of_stability(float(_initial_sharpness(run)), t1, tau, max_steps)
    flow = gradient_flow(
        network, task, t1 * (1 + 2 * within) if events else t1, loss=loss, tau=tau,
        weight_decay=weight_decay, events=events, kinks=kinks, solver=solver, rtol=rtol, dense=True,
    )  # fmt: skip
    _require_motion(network, flow, run)
    sharpness = float(_largest_sharpness(run, flow, jnp.asarray(t1, run.network.dtype)))
    edge, first = _edge_of_stability(sharpness, t1, tau, max_steps)
    bar = tqdm_bar(None, unit="run") if progress else None

    def count_and_measure(steps: int) -> "_RateErrors":
        if bar is not None:
            bar.set_postfix_str(f"eps = {t1 / (tau * steps):.3g}")
            bar.update()
        return _errors_at_rate(run, flow, t1, tau, within, steps)

    found = _bisect_rates(count_and_measure, first, max_steps, within, precision)
    if bar is not None:
        bar.close()
    return _make_certificate(found, t1, tau, within, edge)


def _require_motion(network: AbstractModel, flow: Trajectory, run: Descent) -> None:
    """Raise `ValueError` where there is nothing that errors could be relative to."""
    if bool(eqx.tree_equal(network.parameters, flow.model.parameters)):
        raise ValueError(
            "`network` does not move on this `task` until `t1`: where the gradient of its loss "
            "vanishes, descent of any rate rests as well. Start from other parameters."
        )
    names = {watch.channel.name for watch in run.observers.observer.watches}
    for (name, index, _), times in _event_times(flow.events, names).items():
        if times[0] <= 0:
            raise ValueError(
                f"`events`: {name!r} {index} happens at t = 0, where no difference of times is "
                "relative to anything. Leave it out, or shift its level."
            )


def _bisect_rates(
    errors_after: Callable[[int], _RateErrors],
    first: int,
    last: int,
    within: float,
    precision: float,
) -> dict[int, _RateErrors]:
    """Return errors by number of steps: bracket by factors, then bisect for each quantity."""
    steps, found = first, {first: errors_after(first)}

    def exceeds_limit(errors: _RateErrors, quantity: str) -> bool:
        return getattr(errors, quantity) > within  # nan, where there is nothing, does not

    while any(exceeds_limit(found[steps], q) for q in QUANTITIES) and steps < last:
        steps = min(RATE_FACTOR * steps, last)
        found[steps] = errors_after(steps)
    if 2 * steps <= last:
        found[2 * steps] = errors_after(2 * steps)
    for quantity in QUANTITIES:
        while True:
            failing = [n for n, errors in found.items() if exceeds_limit(errors, quantity)]
            low = max(failing, default=0)
            high = min((n for n in found if n > low), default=None)
            if low == 0 or high is None or high <= max(low + 1, low * (1 + precision)):
                break
            middle = min(max(round(math.sqrt(low * high)), low + 1), high - 1)
            found[middle] = errors_after(middle)
    return found


def _make_certificate(
    found: dict[int, _RateErrors], t1: float, tau: float, within: float, edge: float
) -> RateCertificate:
    """Make the certificate of the errors that descents have, by number of steps."""
    numbers = sorted(found, reverse=True)
    rates = t1 / (tau * np.array(numbers))

    def quantity_accuracy(quantity: str) -> Accuracy | None:
        errors = np.array([getattr(found[n], quantity) for n in numbers])
        if np.all(np.isnan(errors)):
            return None
        limited = quantity in QUANTITIES
        if limited:
            errors = np.where(np.isnan(errors), 0.0, errors)  # no event in the flow or in descent
        passed = np.cumprod(errors <= within) > 0 if limited else np.zeros(len(errors), bool)
        rate = float(rates[passed][-1]) if np.any(passed) else math.nan
        near = rates <= (2 * rate if np.any(passed) else rates[: 3 if limited else None][-1])
        near &= np.isfinite(errors) & (errors > 0)
        slope = math.nan
        if np.sum(near) > 1:
            slope = float(np.polyfit(np.log(rates[near]), np.log(errors[near]), 1)[0])
        return Accuracy(rate, errors, slope)

    parameters, function, loss = (quantity_accuracy(q) for q in QUANTITIES[:3])
    assert parameters is not None
    assert function is not None
    assert loss is not None
    return RateCertificate(
        rates=rates,
        steps=np.array(numbers),
        within=within,
        t1=t1,
        edge=edge,
        parameters=parameters,
        function=function,
        loss=loss,
        events=quantity_accuracy("events"),
        chattering=quantity_accuracy("chattering"),
    )
