"""Gradient descent: the discrete run, with the same results as the continuous one."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from flowlin._tools.arguments import (
    MOST_STEPS,
    WORDS,
    checked,
    instance,
    known,
    positive,
    positive_at_run_time,
    refuse,
    require_memory,
)
from flowlin._tools.arrays import (
    Numbers,
    PathLike,
    copied,
    end_to_end,
    first_rows,
    in_dtype,
    is_traced,
    require_numbers,
)
from flowlin._tools.printing import Progress, bar_or_lines
from flowlin.engine.descend import (
    Descent,
    Look,
    Outcome,
    Rows,
    State,
    Stops,
    Window,
    advanced,
    outcome,
    row,
    updated,
)
from flowlin.engine.kinks.policies import IGNORED
from flowlin.engine.observables import Observables, Observe
from flowlin.events.events import AbstractEvent, UnitSwitches, user_watches
from flowlin.events.watch import Observer, named
from flowlin.networks.base import AbstractModel, trained
from flowlin.networks.kinds import ReLUNetwork
from flowlin.networks.modules import model
from flowlin.record.linearization import UnitCounts
from flowlin.record.results import RESULTS, is_one_of
from flowlin.record.trajectory import Continuation, Reference, Trajectory, WindowCounts, finished
from flowlin.runs.checkpoint import driven_from
from flowlin.runs.progress import by_clock
from flowlin.runs.run import ROOM, AbstractRun, Effort, Limits, driven, started
from flowlin.runs.run_options import (
    chosen_decay,
    chosen_times,
    first_capacity,
    require_extendable,
    require_room,
)
from flowlin.tasks.task import Task
from flowlin.training.losses import AnyLoss, SquaredError
from flowlin.training.objective import AbstractObjective, dot
from flowlin.training.problem import Problem
from flowlin.training.rules import objective

# ---- A run of descent: how far it goes, what is saved, and what comes of that.

STEPS = 2**12  # of which the counts of units come back from one program
FEWEST, MOST = 2**8, 2**10  # rows that do; the fewest where they are small
SMALL = 2**14  # bytes of a row


class Choice(NamedTuple):
    """What `flow.stats` says of it."""

    solver: str

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """Names and what stands under them."""
        return tuple(self._asdict().items())


class Plan(NamedTuple):
    """How far a run goes, and at which steps it is saved.

    - `steps`: the last one.
    - `every`: how many from one saved step to the next; the first and the last are saved too.
    - `at`: (T,), the saved ones, where they were asked for.

    A run is looked at where it is saved, at its start and at its end.
    """

    steps: int
    every: int
    at: Int[np.ndarray, " T"] | None

    @property
    def rows(self) -> int:
        """How often the run is looked at."""
        return 2 + (self.steps // self.every if self.at is None else len(self.at))

    def looks(self, after: int, most: int) -> Int[np.ndarray, " R"]:
        """The next steps that are looked at, at most so many."""
        if self.at is None:
            found = (after // self.every + 1 + np.arange(most)) * self.every
        else:
            found = np.union1d(0, self.at)
            found = found[np.searchsorted(found, after, side="right") :]
        return np.append(found[found < self.steps], self.steps)[:most]

    def since(self, steps: Int[np.ndarray, " R"]) -> Int[np.ndarray, " R"]:
        """How many steps each of the looks comes after the one before it."""
        if self.at is None:
            return np.full(len(steps), self.every)
        found = np.union1d([0, self.steps], self.at)
        place = np.searchsorted(found, steps)
        return found[place] - found[np.maximum(place - 1, 0)]

    def saved(self, steps: Int[np.ndarray, " R"]) -> Bool[np.ndarray, " R"]:
        """Which of the looks are saved."""
        return np.ones(len(steps), bool) if self.at is None else np.isin(steps, self.at)


class _Part(NamedTuple):
    """Arrays of a trajectory, of NumPy or JAX: what is saved, and (on, off) counts of units."""

    ts: Any
    losses: Any
    observed: Any
    looked: Any
    grain: Any
    counts: Any
    steps: np.ndarray  # of the counts


class DescentRun(AbstractRun):
    """A descent that can be driven.

    - `descent`: what is compiled.
    - `plan`: how far it goes; None in what is compiled.
    - `rows`: room for so many in one program.
    """

    descent: Descent
    plan: Plan | None
    rows: int = eqx.field(static=True)
    capacity: int = eqx.field(static=True)
    reference: Reference = eqx.field(static=True)

    @staticmethod
    def of(descent: Descent, plan: Plan, capacity: int, reference: Reference) -> "DescentRun":
        """A run of this descent; small rows share the programs of all lengths."""
        size = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(descent.network.parameters))
        small = descent.observe.functions is None and size <= SMALL
        rows = max(FEWEST if small else 1, min(plan.rows, MOST))
        kind = "descent" if descent.batch_size is None else "stochastic descent"
        return DescentRun(
            descent=descent,
            plan=plan,
            rows=1 << (rows - 1).bit_length(),
            capacity=capacity,
            reference=reference.told(choice=Choice(kind)),
        )

    @property
    def problem(self) -> Problem:
        """What it approximates the flow of."""
        return self.descent.problem

    @property
    def network(self) -> AbstractModel:
        """The network at t = 0."""
        return self.descent.network

    @property
    def parameters(self) -> Any:
        """What moves, at t = 0."""
        return self.descent.problem.parameters

    @property
    def task(self) -> Task:
        """What it is trained on."""
        return self.descent.task

    @property
    def objective(self) -> AbstractObjective:
        """What it descends."""
        return self.descent.objective

    @property
    def observables(self) -> Observables:
        """The user's."""
        return self.descent.observe

    @property
    def horizon(self) -> float:
        """The time of its last step."""
        assert self.plan is not None
        return self.plan.steps * float(self.descent.clock)

    @property
    def anonymous(self) -> "DescentRun":
        """The same run without its length, its reference, and names of events and observables."""
        nobody = Reference(None, self.descent.problem.loss)
        return copied(self, descent=self.descent.unnamed, plan=None, rows=0, reference=nobody)

    @property
    def effort(self) -> Effort:
        """What a step costs."""
        return Effort(self.descent.batch_size or self.task.samples, 2e-5)

    @property
    def switched(self) -> bool:
        """Never: there is one way to go down."""
        return False

    def resumed(self, capacity: int, switched: bool) -> "DescentRun":
        """The run as it was when it was written to a file."""
        if switched:
            raise ValueError("a descent has no other solver to go over to")
        return self.with_capacity(capacity)

    def arguments(self) -> dict[str, Any]:
        """By name what it was asked for; functions count by what they are called."""
        descent, plan = self.descent, self.plan
        assert plan is not None
        look, problem = descent.look, descent.problem
        watched = [(w.channel, w.direction, w.terminate) for w in look.observer.watches]
        counted = (watched, look.quantiles, *look.windows)
        key = descent.key
        return {
            "network": (self.network.kind, self.network),
            "task": self.task,
            "loss": repr(problem.loss),
            "tau": problem.tau,
            "weight_decay": problem.decay,
            "trainable": repr(problem.trained),
            "learning_rate": descent.learning_rate,
            "optimiser": _nature(descent),
            "batch_size": repr(descent.batch_size),
            "key": None if key is None else _numbers(key),
            "events": (repr(counted), eqx.filter(look, eqx.is_array)),
            "interpolate": repr(descent.interpolate),
            "observe": repr(sorted(self.observables.functions or ["networks"])),
            "steps": repr(plan.steps),
            "save_every": repr(plan.every),
            "ts": plan.at,
        }

    def begin(self) -> Continuation:
        """Where it stands before its first step."""
        state = self.descent.start(self.capacity)
        end = jnp.zeros_like(self.descent.clock)
        return _continuation(state, end, self.descent.objective.value(self.network))

    def ahead(
        self, start: Continuation | None, first: bool, budget: int, limits: Limits
    ) -> Trajectory:
        """The next steps, at most `budget`, with those rows that an earlier part has not saved."""
        del limits
        assert self.plan is not None
        start = started(self.anonymous) if start is None else start
        state = copied(start.solver, parameters=start.parameters)
        at, parts, loss = int(start.counts["num_steps"]), [], start.loss
        descent = self.descent.unnamed
        after, goal, ended = -1 if first else at, min(at + budget, self.plan.steps), False
        while after < goal and not ended:
            stops = self._stops(at, after, goal)
            state, rows = advanced(descent, state, jax.device_put(stops), self._room)
            ended = bool(np.isfinite(np.asarray(state.end)))
            parts.append(self._kept(stops, rows, int(state.step), ended, after < 0))
            at = after = int(stops.at[-1])
            if np.any(stops.looks):  # else it stays that of the last look
                loss = jax.device_put(np.asarray(rows.losses)[int(np.sum(stops.looks)) - 1])
        flow = self._trajectory(end_to_end(*parts), state, outcome(descent, state))
        paused = goal < self.plan.steps and not ended
        if paused and not is_one_of(flow.result, RESULTS.event_overflow):
            flow = copied(flow, result=RESULTS.max_steps_reached)
        return copied(flow, continuation=_continuation(state, flow.end, loss))

    def traced(self) -> Trajectory:
        """The whole run in loops of fixed length, under `jit`, `vmap` and derivatives."""
        plan = self.plan
        assert plan is not None
        looks, every = plan.looks(-1, plan.rows), self.descent.batch_size is None
        gaps = np.diff(looks)
        stops = Stops(
            at=jnp.asarray(looks, jnp.int32),
            looks=jnp.ones(len(gaps), bool),
            count=len(gaps),
            longest=int(np.max(gaps)),
            even=bool(np.all(gaps == gaps[0])),
        )
        start, descent = started(self.anonymous), self.descent.unnamed
        state = copied(start.solver, parameters=start.parameters)
        first = row(descent, state)
        state, rows = advanced(descent, state, stops, plan.steps)
        found, clock = outcome(descent, state), descent.clock

        def joined(first: Any, rows: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rows)

        saved = joined(first[:3], rows[:3])
        looked = clock * jnp.arange(plan.steps + 1, dtype=clock.dtype) if every else saved[0]
        # Rows after a terminating event repeat its state, which is saved once, as the last row.
        asked, ends = plan.saved(looks), any(w.terminate for w in descent.look.observer.watches)
        chosen = asked | ends & (looks == plan.steps)
        ts, losses, observed = jax.tree.map(lambda a: a[chosen], saved)
        kept = jnp.concatenate([jnp.ones(1, bool), ts[1:] > ts[:-1]])
        kept = kept & (asked[chosen] | (found.result == RESULTS.event_occurred))
        since = self._since(np.arange(plan.steps + 1) if every else looks)
        part = _Part(
            ts=jnp.where(kept, ts, jnp.inf),
            losses=losses,
            observed=observed,
            looked=jnp.where(looked <= found.end, looked, jnp.inf),
            grain=clock * since.astype(clock.dtype),
            counts=rows.counts if every else joined(first.counts, rows.counts),
            steps=np.arange(plan.steps + 1) if every else looks,
        )
        return self._trajectory(part, state, found)

    @property
    def _room(self) -> int:
        """For the counts of so many steps."""
        every_step = self.descent.batch_size is None and self.descent.look.counters
        return STEPS if every_step else 0

    def _stops(self, at: int, after: int, goal: int) -> Stops:
        """The next stops, as many as one program has room for, up to a step or the next pause."""
        assert self.plan is not None
        last = min(goal, at + self._room) if self._room else goal
        looks = self.plan.looks(after, self.rows)
        looks = looks[looks <= last]
        pauses = len(looks) < self.rows and (not len(looks) or looks[-1] < last)
        stops = np.append(looks, last) if pauses else looks
        filled = np.full(self.rows + 1, stops[-1], np.int32)
        filled[: len(stops) + 1] = [at, *stops]
        return Stops(
            at=filled,
            looks=np.arange(self.rows) < len(looks),
            count=np.asarray(len(stops), np.int32),
        )

    def _kept(self, stops: Stops, rows: Rows, end: int, ended: bool, first: bool) -> _Part:
        """What a trajectory keeps of some rows, of a run that is at the step `end`, or ended it."""
        assert self.plan is not None
        count, at = int(stops.count), np.asarray(stops.at)
        before, steps = at[:count], at[1 : count + 1]
        # Rows after a terminating event repeat its state.
        looked = np.asarray(stops.looks)[:count] & ((before < end) | (steps == 0))
        saved = looked & ((self.plan.saved(steps) & (steps <= end)) | (ended & (steps >= end)))
        ts, losses, observed = _rows(rows[:3], saved)
        if self.descent.batch_size is None:
            own = np.arange(int(at[0]) + (not first), end + 1)
            times = own.astype(ts.dtype) * np.asarray(self.descent.clock)
            counts = _rows(rows.counts, np.arange(end - at[0] + 1) >= (not first))
        else:
            own = steps[looked]
            times, counts = _rows((rows.ts, rows.counts), looked)
        grain = self._since(own).astype(ts.dtype) * np.asarray(self.descent.clock)
        return _Part(ts, losses, observed, times, grain, counts, own)

    def _since(self, steps: Int[np.ndarray, " R"]) -> Int[np.ndarray, " R"]:
        """How many steps each of the looks comes after the one before it."""
        assert self.plan is not None
        if self.descent.batch_size is None:  # every step is looked at
            return np.ones(len(steps), int)
        return self.plan.since(steps)

    def _window_counts(self, part: _Part, counts: Any) -> WindowCounts:
        """Open and closed counts of every window, which stand for it from its start on.

        A unit that is linear in a window became so in it or in the one before.
        """
        hidden, clock, found = self.network.hidden, self.descent.clock, {}
        pairs = iter(counts)
        for quantile, length in self.descent.look.windows:
            ends = np.flatnonzero((part.steps > 0) & (part.steps % length == 0))
            width = jnp.full(len(ends), length, clock.dtype) * clock
            for layer, units in enumerate(hidden):
                both = [next(pairs), next(pairs)]
                found[layer, quantile, length] = tuple(
                    UnitCounts(part.looked[ends] - width, width, on[ends], off[ends], units)
                    for on, off in both
                )
        return found

    def _trajectory(self, part: _Part, state: State, found: Outcome) -> Trajectory:
        """The trajectory of a run that stands there."""
        look, hidden = self.descent.look, self.network.hidden
        keys = [(layer, q) for q in look.quantiles for layer in range(len(hidden))]
        networks = self.observables.functions is None
        counts = {"num_steps": state.step}
        if look.observer.watches:
            counts["unresolved_crossings"] = state.doubts.count
        return Trajectory(
            ts=part.ts,
            losses=part.losses,
            observed={} if networks else self.observables.named(part.observed),
            events=named(found.events, look.observer.watches),
            model=self.network.with_parameters(state.parameters),
            end=found.end,
            result=found.result,
            saved=part.observed if networks else None,
            counts=counts,
            labels=self.reference.choice.labels,
            dense=None,
            step_counts={
                (layer, q): UnitCounts(part.looked, part.grain, on, off, hidden[layer])
                for (layer, q), (on, off) in zip(keys, part.counts, strict=False)
            },
            window_counts=self._window_counts(part, part.counts[len(keys) :]),
            samples=self.task.samples,
            tau=self.descent.problem.tau,
            discrete=True,
            reference=self.reference,
            continuation=None,
        )


def _continuation(state: State, end: Array, loss: Array) -> Continuation:
    return Continuation(
        t=end,
        parameters=state.parameters,
        solver=copied(state, parameters=()),
        controller=(),
        counts={name: state.step for name in ("num_steps", "num_accepted_steps")},
        loss=loss,
    )


def _rows(tree: Any, kept: Bool[np.ndarray, " R"]) -> Any:
    """Those rows of every array."""
    return jax.tree.map(lambda a: a[kept], first_rows(tree, len(kept)))


def _numbers(key: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(key))


def _nature(descent: Descent) -> Any:
    """What an optimiser does in three steps: it is made of functions that do not tell.

    Down from the parameters, half the sum of whose squares has them as its gradient.
    """
    optimiser, parameters = descent.optimiser, descent.network.parameters
    if optimiser is None:
        return None

    def half_square(parameters: Any) -> Any:
        return dot(parameters, parameters) / 2

    @eqx.filter_jit
    def tried(parameters: Any) -> Any:
        state, found = optimiser.init(parameters), []
        for _ in range(3):  # the first one does not show how rates decay
            updates, state = updated(optimiser, parameters, state, parameters, half_square)
            found.append(updates)
        return found, state

    found = tried(parameters)
    numbers = [a for a in jax.tree.leaves(found) if eqx.is_array(a)]
    numbers = [_numbers(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a for a in numbers]
    return str(jax.tree.structure(found)), numbers


@checked(network=model, t1=known(positive), progress=bar_or_lines)
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
    r"""Full-batch gradient descent, $w_{k+1} = w_k - \epsilon \nabla L(w_k)$.

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
    return _run(
        _problem(network, task, loss, tau, weight_decay, trainable),
        Rule(learning_rate, learning_rate * tau, optimiser),
        Watched(cast(tuple, events), interpolate, observe),
        _Length(steps, t1, ts, save_every),
        _Options(max_events, progress, checkpoint, throw),
    )


@checked(network=model, t1=known(positive), progress=bar_or_lines)
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
    """Mini-batch gradient descent; every epoch is a fresh random order of the samples.

    Batches are drawn without replacement; where the batch size does not divide P, an epoch's last,
    incomplete batch is left out. The loss's reduction is over the batch: `SquaredError()` averages
    over it, `SquaredError("sum")` sums (the lead paper leaves this open; see `fl.StepClock` for
    the two time units).

    **Arguments:** as for `gradient_descent`, and `batch_size` and a `key` of `jax.random`. Losses,
    events and unit counts are of the whole task; since that costs more than a step, events and
    counts are looked at at saved steps only, which is then their grain.

    **Raises:** as `gradient_descent`; `ValueError` for a batch size not in [1, P].
    """
    if batch_size > task.samples:
        raise ValueError(
            f"`batch_size` must lie between 1 and the number of samples {task.samples}, got "
            f"{batch_size}."
        )
    return _run(
        _problem(network, task, loss, tau, weight_decay, trainable),
        Rule(learning_rate, learning_rate * tau, optimiser, batch_size, key),
        Watched(cast(tuple, events), interpolate, observe),
        _Length(steps, t1, ts, save_every),
        _Options(max_events, progress, checkpoint, throw),
    )


def _problem(network, task, loss, tau, weight_decay, trainable) -> Problem:
    decay, moves = chosen_decay(network, weight_decay), trained(network, trainable)
    return Problem(network, task, loss, in_dtype(tau, network.dtype), decay, moves)


class Rule(NamedTuple):
    """What a step is; see `gradient_descent`. `clock` is the flow time that it takes."""

    learning_rate: Any
    clock: Any
    optimiser: optax.GradientTransformation | None = None
    batch_size: int | None = None
    key: PRNGKeyArray | None = None


class Watched(NamedTuple):
    """What is looked at on the way; see `gradient_descent`."""

    events: Sequence[AbstractEvent] = ()
    interpolate: bool = False
    observe: Observe | None = None


class _Length(NamedTuple):
    """How far a run goes and what is saved; see `gradient_descent`."""

    steps: int | None
    t1: float | None
    ts: Any
    save_every: int | None


class _Options(NamedTuple):
    """How it is run; see `gradient_descent`."""

    max_events: int
    progress: Progress
    checkpoint: PathLike | None
    throw: bool


def _run(
    problem: Problem, rule: Rule, watched: Watched, length: _Length, options: _Options
) -> Trajectory:
    """The run that both public functions ask for."""
    network, task = problem.network, problem.task
    network.require_fit(task)
    require_numbers("network", network.module)
    plan = _plan(length, rule)
    task = task if task.x.dtype == network.dtype else task.astype(network.dtype)
    # A name is no part of what is compiled.
    problem = copied(problem, task=copied(task, name=""))
    descent = described(problem, rule, watched)
    _require_memory(descent, plan, by_times=length.ts is not None)
    reference = Reference(task, problem.loss, extended=extended)
    watches = descent.look.observer.watches
    capacity = first_capacity(watches, options.max_events) if watches else 0
    run = DescentRun.of(descent, plan, capacity, reference)
    flow = (_traced if is_traced(descent) else _driven)(run, options)
    return finished(flow, options.throw, lambda f: _failure(f, options.max_events))


def _plan(length: _Length, rule: Rule) -> Plan:
    """The last step, and the saved ones."""
    steps, t1, ts, save_every = length
    if (steps is None) == (t1 is None):
        got = "neither" if steps is None else "both"
        raise ValueError(f"give one of `steps` and `t1`, which say where the run ends; got {got}.")
    if ts is not None and save_every is not None:
        raise ValueError("`ts` and `save_every` both say what is saved; leave one out.")
    timed = t1 is not None or ts is not None
    if timed and is_traced(rule.clock):
        name = "learning_rate" if is_traced(rule.learning_rate) else "tau"
        raise refuse(name, "known where `t1` or `ts` is given", rule.clock, "give `steps` alone")
    clock = float(rule.clock) if timed else 0.0
    if steps is None:
        steps = _steps_to(t1, clock)
    if ts is not None:
        return Plan(steps, steps, _steps_at(ts, t1, steps, clock, 0))
    if save_every is None:
        save_every = math.ceil(steps / 200)
    if save_every > steps:
        raise ValueError(
            f"`save_every` must lie between 1 and `steps` = {steps}, got {save_every}."
        )
    return Plan(steps, save_every, None)


def _steps_to(t1: Any, clock: float) -> int:
    """The number of steps that ends nearest to a time, at least one."""
    steps = float(t1) / clock if clock else math.inf
    if steps > MOST_STEPS:
        raise ValueError(
            f"`t1` = {float(t1):g} takes {steps:.3g} steps of {clock:g} each, more than the "
            f"{MOST_STEPS} that are counted; lower it, or raise `learning_rate`."
        )
    return max(1, round(steps))


def _steps_at(ts: Any, t1: Any, steps: int, clock: float, first: int) -> np.ndarray:
    """The steps nearest to the times to save, from the step `first` on."""
    if is_traced(ts):
        raise refuse("ts", "known when the program is made", ts, "do not trace it")
    last = max(steps * clock, 0.0 if t1 is None else float(t1))
    found = np.minimum(np.round(chosen_times(last, ts) / clock).astype(int), steps)
    if found[0] < first or np.any(np.diff(found) == 0):
        raise ValueError(
            f"`ts` must fall on steps that are not saved yet, each {clock:g} long; leave out times "
            "that lie nearer."
        )
    return found


def _require_memory(descent: Descent, plan: Plan, by_times: bool) -> None:
    """Raise `ValueError` where the saved rows, or the counts of every step, are too many."""
    rows = math.ceil(plan.steps / plan.every) if plan.at is None else len(plan.at)
    if descent.observe.functions is None:
        name, value = "save_every", f"{plan.every}, {rows} rows,"
        if by_times:
            name, value = "ts", f"{rows} times"
        require_room(descent.network, rows, name, value, "Save fewer rows, or use `observe`")
    if descent.batch_size is None:
        counts = 2 * len(descent.look.quantiles) * len(descent.network.hidden) * plan.steps
        require_memory("steps", plan.steps, 16 * counts, "Take fewer")


def described(problem: Problem, rule: Rule, watched: Watched) -> Descent:
    """The descent of a problem: what a step is and what is looked at."""
    network, task, dtype = problem.network, problem.task, problem.network.dtype
    goal = objective(network, task, problem.loss, decay=problem.decay)
    switches = [e for e in watched.events if isinstance(e, UnitSwitches)]
    quantiles = {e.quantile for e in switches if e.window is None}
    windows = {Window(e.quantile, e.window) for e in switches if e.window is not None}
    counted = sorted({0.0} | quantiles) if isinstance(network, ReLUNetwork) else []
    refused = [e for e in switches if e.window is not None and rule.batch_size is not None]
    others = [e for e in watched.events if not isinstance(e, UnitSwitches)] + refused

    def observer(events: Sequence[AbstractEvent]) -> Observer:
        return Observer(tuple(user_watches(events, problem, goal, IGNORED)), network)

    counters = tuple(observer([UnitSwitches(q)]) for q in counted)
    return Descent(
        problem=problem,
        objective=goal,
        look=Look(
            observer(others), counters, tuple(counted), tuple(sorted(windows)) if counted else ()
        ),
        observe=Observables.of(watched.observe, network, task),
        learning_rate=in_dtype(rule.learning_rate, dtype),
        clock=in_dtype(rule.clock, dtype),
        optimiser=rule.optimiser,
        interpolate=watched.interpolate,
        batch_size=rule.batch_size,
        key=rule.key,
    )


def _traced(run: DescentRun, options: _Options) -> Trajectory:
    """A run under `jit`, `vmap` or a derivative."""
    if options.checkpoint is not None:
        raise ValueError("`checkpoint` is for runs outside of `jit` and `vmap`; leave it out.")
    return run.with_capacity(_limits(run, options.max_events).events).traced()


def _limits(run: DescentRun, max_events: int) -> Limits:
    """Where it gives up: never for its steps, and where nothing is watched there is no log."""
    return Limits(ROOM, max_events if run.descent.look.observer.watches else 0)


def _driven(run: DescentRun, options: _Options) -> Trajectory:
    """A run outside of them, which can pause."""
    pauses = functools.partial(by_clock, progress=options.progress)
    return driven_from(options.checkpoint, run, _limits(run, options.max_events), pauses)


def extended(
    flow: Trajectory, t1: float, ts: Any, max_steps: int, max_events: int, progress: Progress, throw
) -> Trajectory:
    """See `Trajectory.extend`."""
    del max_steps  # `t1` says how many
    t1 = positive_at_run_time("t1", t1)
    run, at, ts = require_extendable(flow, t1, ts)
    taken, clock = int(at.counts["num_steps"]), float(run.descent.clock)
    steps = max(_steps_to(t1, clock), taken + 1)
    plan = run.plan._replace(steps=steps)
    if ts is not None:
        plan = plan._replace(at=np.append(taken, _steps_at(ts, t1, steps, clock, taken + 1)))
    elif plan.at is not None:
        plan = plan._replace(at=np.array([taken, steps]))
    run = copied(run, plan=plan)
    limits = _limits(run, max_events)
    longer = driven(run, limits, by_clock(run, progress, float(at.t)), at, flow)
    return finished(longer, throw, lambda f: _failure(f, max_events))


def _failure(descent: Trajectory, max_events: int) -> str:
    """What went wrong and what to do about it."""
    if is_one_of(descent.result, RESULTS.event_overflow):
        return (
            f"{int(descent.events.count)} events happened and `max_events` = {max_events}. "
            "Increase it, or watch fewer components."
        )
    bad = ~np.isfinite(np.asarray(descent.losses))
    first = float(descent.ts[np.argmax(bad)] if np.any(bad) else descent.end)
    return f"the loss is NaN or infinite from t = {first:.6g} on; lower `learning_rate`."


WORDS["optimiser"] = instance(
    optax.GradientTransformation, "an optax optimiser", "pass one such as optax.adam(1e-3)"
)
