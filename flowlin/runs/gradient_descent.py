"""Gradient descent: the discrete run, with the same results as the continuous one."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
import optax
from jaxtyping import PRNGKeyArray, PyTree

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    LARGEST_STEP_LIMIT,
    argument_error,
    checked,
    instance_of,
    positive,
    positive_at_run_time,
    static_value,
)
from flowlin._tools.arrays import (
    Numbers,
    PathLike,
    Scalar,
    as_dtype,
    is_traced,
    replace_fields,
    require_no_nan,
)
from flowlin._tools.memory import require_memory
from flowlin._tools.printing import Progress, progress_option
from flowlin.engine.descend import Descent, DescentObserver, Window
from flowlin.engine.kinks.kink_policies import IGNORED
from flowlin.engine.observables import Observables, Observe
from flowlin.engine.run import UNLIMITED_STEPS, Limits
from flowlin.events.event import AbstractEvent
from flowlin.events.switches import UnitSwitches
from flowlin.events.user_events import as_events, user_watches
from flowlin.events.watch import Observer
from flowlin.networks.fit import require_fit
from flowlin.networks.modules import any_module, as_model, as_module
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.networks.trainable import trainable_flags
from flowlin.record.origin import Origin
from flowlin.record.results import RESULTS, result_is
from flowlin.record.trajectory import Trajectory, trim_and_raise
from flowlin.runs.checkpoint import outset_from_file
from flowlin.runs.descent_run import DescentPlan, DescentRun
from flowlin.runs.progress import clock_pauses
from flowlin.runs.run import Outset, drive_run
from flowlin.runs.run_options import (
    decay_of,
    initial_capacity,
    require_extendable,
    require_saved_memory,
    validate_times,
)
from flowlin.tasks.task import Task
from flowlin.training.function_loss import AnyLoss, as_loss
from flowlin.training.problem import Problem
from flowlin.training.rules import choose_objective
from flowlin.training.squared_error import SquaredError


@checked(network=any_module, t1=static_value(positive), progress=progress_option)
def gradient_descent(
    network: eqx.Module,
    task: Task,
    learning_rate: float,
    steps: int | None = None,
    *,
    t1: float | None = None,
    trainable: PyTree = None,
    loss: AnyLoss = SquaredError(),
    tau: float = 1.0,
    weight_decay: Numbers | None = None,
    optimiser: optax.GradientTransformation | None = None,
    events: AbstractEvent | Sequence[AbstractEvent] = (),
    interpolate: bool = False,
    observe: Observe | None = None,
    ts: Numbers | None = None,
    save_every: int | None = None,
    max_events: int = 2**16,
    progress: Progress = False,
    checkpoint: PathLike | None = None,
    throw: bool = True,
) -> Trajectory:
    r"""Run full-batch gradient descent, $w_{k+1} = w_k - \epsilon \nabla L(w_k)$.

    Same results as `gradient_flow`; step k is at time t = k eps tau. Timings are step-grained: an
    event's time is that of the first step on the other side, its uncertainty one step; t* is the
    first step of the maximal always-on count, counted at **every** step (on a sliding pair descent
    flickers, so this count is neither the open nor the closed one).

    **Arguments:** as for `gradient_flow`, and

    - `learning_rate`: eps.
    - `steps`: number of steps; or in its place
    - `t1`: final time. Where it is no whole number of steps eps tau the run ends at the one
      nearest to it, and takes at least one.
    - `weight_decay`: as there; an `optimiser` is given the gradient with it.
    - `optimiser`: any optax optimiser in place of plain descent; it brings its own rate, and
      `learning_rate` then only sets the unit of time. One that asks for `value`, `grad` or
      `value_fn` (L-BFGS, line searches, Polyak's steps, `reduce_on_plateau`) is given those of
      what is descended: with weight decay, and for mini-batches of the step's batch.
    - `interpolate`: whether an event's time is where the straight line between the watched values
      of two steps crosses the level, instead of the later step. Steps know nothing finer; but
      these times converge to those of the modified flow (`fl.gradient_flow(modified_rate=)`) as
      eps^2. Their uncertainty stays the step.
    - `save_every`: steps between saved rows; None saves about 200. The last step is saved too.
    - `ts`: times to save in place of that, ascending in [0, t1]: the step nearest to each is
      saved, and stands at its own time.

    Ctrl-C is heard about every other second and carries what was computed as `error.trajectory`.

    **Returns:** a `Trajectory`, which can be extended. `flow.events` holds the given events; gates
    are not logged one by one. Always-on and always-off units are counted for ReLU networks, at
    quantile 0 and at that of every `UnitSwitches` in `events`.

    **Raises:** `ValueError` for bad input; `fl.RunError` when the loss becomes NaN or infinite
    or there are more than `max_events` events.
    """
    own, loss, events = as_model("network", network), as_loss(loss), as_events(events)
    return _run_descent(
        _descent_problem(own, task, loss, tau, weight_decay, trainable),
        StepRule(learning_rate, learning_rate * tau, optimiser),
        WatchOptions(events, interpolate, observe),
        _RunLength(steps, t1, ts, save_every),
        _RunOptions(max_events, progress, checkpoint, throw),
    )


@checked(network=any_module, t1=static_value(positive), progress=progress_option)
def stochastic_gradient_descent(
    network: eqx.Module,
    task: Task,
    learning_rate: float,
    steps: int | None = None,
    *,
    t1: float | None = None,
    trainable: PyTree = None,
    batch_size: int,
    key: PRNGKeyArray,
    loss: AnyLoss = SquaredError(),
    tau: float = 1.0,
    weight_decay: Numbers | None = None,
    optimiser: optax.GradientTransformation | None = None,
    events: AbstractEvent | Sequence[AbstractEvent] = (),
    interpolate: bool = False,
    observe: Observe | None = None,
    ts: Numbers | None = None,
    save_every: int | None = None,
    max_events: int = 2**16,
    progress: Progress = False,
    checkpoint: PathLike | None = None,
    throw: bool = True,
) -> Trajectory:
    """Run mini-batch gradient descent; every epoch is a fresh random order of the samples.

    Batches are drawn without replacement; where the batch size does not divide P, an epoch's last,
    incomplete batch is left out. The loss's reduction is over the batch: `SquaredError()` averages
    over it, `SquaredError("sum")` sums (the lead paper leaves this open; see `fl.StepClock` for
    the two time units).

    **Arguments:** as for `gradient_descent`, and `batch_size` and a `key` of `jax.random`. Losses,
    events and unit counts are of the whole task; since that costs more than a step, events and
    counts are computed at saved steps only, and their times are no finer than these.

    **Returns:** `Trajectory`, as of `gradient_descent`.

    **Raises:** as `gradient_descent`; `ValueError` for a batch size not in [1, P].
    """
    if batch_size > task.samples:
        raise ValueError(
            f"`batch_size` must lie between 1 and the number of samples {task.samples}, got "
            f"{batch_size}."
        )
    own, loss, events = as_model("network", network), as_loss(loss), as_events(events)
    return _run_descent(
        _descent_problem(own, task, loss, tau, weight_decay, trainable),
        StepRule(learning_rate, learning_rate * tau, optimiser, batch_size, key),
        WatchOptions(events, interpolate, observe),
        _RunLength(steps, t1, ts, save_every),
        _RunOptions(max_events, progress, checkpoint, throw),
    )


def _descent_problem(network, task, loss, tau, weight_decay, trainable) -> Problem:
    """Make the problem of a descent from the user's arguments."""
    decay, moves = decay_of(network, weight_decay), trainable_flags(network, trainable)
    return Problem(network, task, loss, as_dtype(tau, network.dtype), decay, moves)


class StepRule(NamedTuple):
    """A step of descent, as in `gradient_descent`; `clock` is the flow time that it takes."""

    learning_rate: Scalar
    clock: Scalar
    optimiser: optax.GradientTransformation | None = None
    batch_size: int | None = None
    key: PRNGKeyArray | None = None


class WatchOptions(NamedTuple):
    """The events and observables of a run, as in `gradient_descent`."""

    events: Sequence[AbstractEvent] = ()
    interpolate: bool = False
    observe: Observe | None = None


class _RunLength(NamedTuple):
    """The end of a run and the times to save, as in `gradient_descent`."""

    steps: int | None
    t1: float | None
    ts: Numbers | None
    save_every: int | None


class _RunOptions(NamedTuple):
    """The limits, progress and file of a run, as in `gradient_descent`."""

    max_events: int
    progress: Progress
    checkpoint: PathLike | None
    throw: bool


def _run_descent(
    problem: Problem,
    rule: StepRule,
    watched: WatchOptions,
    length: _RunLength,
    options: _RunOptions,
) -> Trajectory:
    """Run a descent, full-batch or stochastic, and return its trajectory."""
    network, task = problem.network, problem.task
    require_fit(network, task)
    require_no_nan("network", as_module(network))
    plan = _descent_plan(length, rule)
    task = task if task.x.dtype == network.dtype else task.astype(network.dtype)
    # A name is no part of what is compiled.
    problem = replace_fields(problem, task=replace_fields(task, name=""))
    descent = descent_of(problem, rule, watched)
    _require_row_memory(descent, plan, by_times=length.ts is not None)
    reference = Origin(task, problem.loss, extended=extend_descent)
    watches = descent.observers.observer.watches
    capacity = initial_capacity(watches, options.max_events) if watches else 0
    run = DescentRun.of(descent, plan, capacity, reference)
    flow = (_trace_descent if is_traced(descent) else _drive_descent)(run, options)
    return trim_and_raise(flow, options.throw, lambda f: _descent_failure(f, options.max_events))


def _descent_plan(length: _RunLength, rule: StepRule) -> DescentPlan:
    """Return the last step and the saved ones; `ValueError` for arguments that contradict."""
    steps, t1, ts, save_every = length
    if (steps is None) == (t1 is None):
        got = "neither" if steps is None else "both"
        raise ValueError(f"give one of `steps` and `t1`, which say where the run ends; got {got}.")
    if ts is not None and save_every is not None:
        raise ValueError("`ts` and `save_every` both say what is saved; leave one out.")
    timed = t1 is not None or ts is not None
    if timed and is_traced(rule.clock):
        name = "learning_rate" if is_traced(rule.learning_rate) else "tau"
        raise argument_error(
            name, "known where `t1` or `ts` is given", rule.clock, "give `steps` alone"
        )
    clock = float(rule.clock) if timed else 0.0
    if steps is None:
        steps = _steps_to(t1, clock)
    if ts is not None:
        return DescentPlan(steps, steps, _steps_at(ts, t1, steps, clock, 0))
    if save_every is None:
        save_every = math.ceil(steps / 200)
    if save_every > steps:
        raise ValueError(
            f"`save_every` must lie between 1 and `steps` = {steps}, got {save_every}."
        )
    return DescentPlan(steps, save_every, None)


def _steps_to(t1: Any, clock: float) -> int:
    """Return the number of steps that ends nearest to a time, at least one."""
    steps = float(t1) / clock if clock else math.inf
    if steps > LARGEST_STEP_LIMIT:
        raise ValueError(
            f"`t1` = {float(t1):g} takes {steps:.3g} steps of {clock:g} each, more than the "
            f"{LARGEST_STEP_LIMIT} that are counted; lower it, or raise `learning_rate`."
        )
    return max(1, round(steps))


def _steps_at(ts: Numbers, t1: Scalar | None, steps: int, clock: float, first: int) -> np.ndarray:
    """Return the steps (T,) nearest to the times to save, from the step `first` on."""
    if is_traced(ts):
        raise argument_error("ts", "known when the program is made", ts, "do not trace it")
    last = max(steps * clock, 0.0 if t1 is None else float(t1))
    found = np.minimum(np.round(validate_times(last, ts) / clock).astype(int), steps)
    if found[0] < first or np.any(np.diff(found) == 0):
        raise ValueError(
            f"`ts` must fall on steps that are not saved yet, each {clock:g} long; leave out times "
            "that lie nearer."
        )
    return found


def _require_row_memory(descent: Descent, plan: DescentPlan, by_times: bool) -> None:
    """Raise `ValueError` where the saved rows, or the counts of every step, are too many."""
    rows = (
        math.ceil(plan.steps / plan.save_every)
        if plan.saved_steps is None
        else len(plan.saved_steps)
    )
    if descent.observe.functions is None:
        name, value = "save_every", f"{plan.save_every}, {rows} rows,"
        if by_times:
            name, value = "ts", f"{rows} times"
        require_saved_memory(
            descent.network, rows, name, value, "Save fewer rows, or use `observe`"
        )
    if descent.batch_size is None:
        counts = 2 * len(descent.observers.quantiles) * len(descent.network.hidden) * plan.steps
        require_memory("steps", plan.steps, 16 * counts, "Take fewer")


def descent_of(problem: Problem, rule: StepRule, watched: WatchOptions) -> Descent:
    """Make the descent of a problem from its step and from what is watched and observed."""
    network, task, dtype = problem.network, problem.task, problem.network.dtype
    goal = choose_objective(network, task, problem.loss, decay=problem.decay)
    switches = [e for e in watched.events if isinstance(e, UnitSwitches)]
    quantiles = {e.quantile for e in switches if e.window is None}
    windows = {Window(e.quantile, e.window) for e in switches if e.window is not None}
    counted = sorted({0.0} | quantiles) if isinstance(network, ReLUNetwork) else []
    refused = [e for e in switches if e.window is not None and rule.batch_size is not None]
    others = [e for e in watched.events if not isinstance(e, UnitSwitches)] + refused

    def observer_of(events: Sequence[AbstractEvent]) -> Observer:
        return Observer(tuple(user_watches(events, problem, goal, IGNORED)), network)

    counters = tuple(observer_of([UnitSwitches(q)]) for q in counted)
    return Descent(
        problem=problem,
        objective=goal,
        observers=DescentObserver(
            observer_of(others), counters, tuple(counted), tuple(sorted(windows)) if counted else ()
        ),
        observe=Observables.from_user(watched.observe, network, task),
        learning_rate=as_dtype(rule.learning_rate, dtype),
        clock=as_dtype(rule.clock, dtype),
        optimiser=rule.optimiser,
        interpolate=watched.interpolate,
        batch_size=rule.batch_size,
        key=rule.key,
    )


def _trace_descent(run: DescentRun, options: _RunOptions) -> Trajectory:
    """Run a descent under `jit`, `vmap` or a derivative, without pauses."""
    if options.checkpoint is not None:
        raise ValueError("`checkpoint` is for runs outside of `jit` and `vmap`; leave it out.")
    return run.with_capacity(_run_limits(run, options.max_events).events).trace_whole_run()


def _run_limits(run: DescentRun, max_events: int) -> Limits:
    """Return where a descent gives up: at `max_events`, if it watches any, never for its steps."""
    return Limits(UNLIMITED_STEPS, max_events if run.descent.observers.observer.watches else 0)


def _drive_descent(run: DescentRun, options: _RunOptions) -> Trajectory:
    """Run a descent outside of `jit` and `vmap`, with pauses."""
    pauses = functools.partial(clock_pauses, progress=options.progress)
    limits = _run_limits(run, options.max_events)
    return drive_run(outset_from_file(options.checkpoint, run, limits, pauses), limits)


def extend_descent(
    flow: Trajectory,
    t1: float,
    ts: Numbers | None,
    max_steps: int,
    max_events: int,
    progress: Progress,
    throw,
) -> Trajectory:
    """Continue a descent to a later time, as `Trajectory.extend` says."""
    del max_steps  # `t1` says how many
    t1 = positive_at_run_time("t1", t1)
    run, at, ts = require_extendable(flow, t1, ts)
    taken, clock = int(at.counts["num_steps"]), float(run.descent.clock)
    steps = max(_steps_to(t1, clock), taken + 1)
    plan = run.plan._replace(steps=steps)
    if ts is not None:
        plan = plan._replace(
            saved_steps=np.append(taken, _steps_at(ts, t1, steps, clock, taken + 1))
        )
    elif plan.saved_steps is not None:
        plan = plan._replace(saved_steps=np.array([taken, steps]))
    run = replace_fields(run, plan=plan)
    limits = _run_limits(run, max_events)
    outset = Outset(run, clock_pauses(run, progress, float(at.t)), at, flow)
    longer = drive_run(outset, limits)
    return trim_and_raise(longer, throw, lambda f: _descent_failure(f, max_events))


def _descent_failure(descent: Trajectory, max_events: int) -> str:
    """Return in words what went wrong and what to do about it."""
    if result_is(descent.result, RESULTS.event_overflow):
        return (
            f"{int(descent.events.count)} events happened and `max_events` = {max_events}. "
            "Increase it, or watch fewer components."
        )
    bad = ~np.isfinite(np.asarray(descent.losses))
    first = float(descent.ts[np.argmax(bad)] if np.any(bad) else descent.end)
    return f"the loss is NaN or infinite from t = {first:.6g} on; lower `learning_rate`."


CHECKS_BY_NAME["optimiser"] = instance_of(
    optax.GradientTransformation, "an optax optimiser", "pass one such as optax.adam(1e-3)"
)
