"""Steps of descent, the one loop over them, and what is watched on the way."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Int, PRNGKeyArray, PyTree

from flowlin._tools.arrays import Parameters, copied
from flowlin._tools.numerics import jit_by_array
from flowlin.engine.observables import Observables
from flowlin.engine.recorder import event_log
from flowlin.events.watch import Observer, unnamed
from flowlin.networks.base import AbstractModel
from flowlin.networks.kinds import ReLUNetwork
from flowlin.record.buffer import Buffer
from flowlin.record.event_log import EventLog, Unresolved
from flowlin.record.results import RESULTS
from flowlin.tasks.task import Task
from flowlin.training.objective import AbstractObjective, FullData, decayed
from flowlin.training.problem import Problem

# ---- Gates of a descent over windows of steps: which pairs slide, read off steps that flicker.

FLICKER = 2  # switches within a window from which on a pair counts as sliding


class Window(NamedTuple):
    """Steps over which gates are counted, and the quantile of samples at which units count."""

    quantile: float
    steps: int


class Gates(eqx.Module):
    r"""The gates of every hidden layer, and how often each switched since its window began.

    Where the flow slides along a kink, off drives the preactivation up and on drives it down, and
    a pair is on for a share g of the time (Filippov's rule). A step of descent overshoots the kink,
    by at most the step times that drive, and the next ones come back: the pair is on in a share g
    of the steps and switches $2 \min(g, 1 - g)$ times a step, while a pair that crosses its kink
    for good switches once. So within a window of w steps a pair that switches twice or more slides,
    but for those with $w \min(g, 1 - g) < 1$ and those that cross twice by themselves. With a step
    $\epsilon$ both errors vanish as $w \to \infty$ and $w \epsilon \to 0$, as with
    $w \propto \epsilon^{-1/2}$.

    - `on`: (P, H) per layer, after the last step.
    - `switches`: (P, H) per layer.
    """

    on: tuple[Bool[Array, "P H"], ...]
    switches: tuple[Int[Array, "P H"], ...]

    @staticmethod
    def of(network: AbstractModel, task: Task) -> "Gates":
        """Start to count at a network's gates."""
        on = gates(network, task)
        return Gates(on, tuple(jnp.zeros(g.shape, jnp.int32) for g in on))

    def after(self, on: tuple[Array, ...], begins: Array) -> "Gates":
        """Count one more step, to the pairs `on`; `begins` tells whether a window began with it."""
        pairs = zip(self.on, on, self.switches, strict=True)
        switches = tuple(
            jnp.where(begins, 0, n) + (new != old).astype(n.dtype) for old, new, n in pairs
        )
        return Gates(on, switches)

    def counts(self, quantile: float) -> tuple[tuple[Array, Array], ...]:
        """Return (on, off) units, per layer with sliding pairs first as off, then as on."""
        found = []
        for on, switches in zip(self.on, self.switches, strict=True):
            slides = switches >= FLICKER
            samples = on.shape[0]
            k = math.floor(quantile * samples)
            for side in (on & ~slides, on | slides):
                number = jnp.sum(side, axis=0)
                found.append((jnp.sum(number >= samples - k), jnp.sum(number <= k)))
        return tuple(found)


def gates(network: AbstractModel, task: Task) -> tuple[Bool[Array, "P H"], ...]:
    """Return which pairs are on, (P, H) per layer."""
    assert isinstance(network, ReLUNetwork)
    return tuple(z > 0 for z in jax.tree.leaves(network.preactivations(task.x)))


Found = TypeVar("Found")
Seen = TypeVar("Seen")

Counts = tuple[tuple[Array, Array], ...]  # (on, off) units, per quantile and layer


class Look(eqx.Module):
    """Everything watched as a descent goes: values for events, and counts of linear units."""

    observer: Observer
    counters: tuple[Observer, ...] = ()  # order statistics, per quantile: see `UnitSwitches`
    quantiles: tuple[float, ...] = eqx.field(static=True, default=())
    windows: tuple[Window, ...] = eqx.field(static=True, default=())

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of steps of the windows, each once."""
        return tuple(sorted({window.steps for window in self.windows}))

    def all_counts(self, state: "State") -> Counts:
        """Return `counts`, then those of every window, each per layer open and closed."""
        gates = dict(zip(self.lengths, state.gates, strict=True))
        found = [gates[window.steps].counts(window.quantile) for window in self.windows]
        return (*self.counts(state.parameters), *itertools.chain(*found))

    def counts(self, parameters: Parameters) -> Counts:
        """Return the numbers of (on, off) units, per quantile and layer."""
        found = []
        for counter in self.counters:
            network = counter.network.with_parameters(parameters)
            for bottom, top in zip(counter.watches[::2], counter.watches[1::2], strict=True):
                found.append(
                    (
                        jnp.sum(bottom.function(network) > 0),
                        jnp.sum(top.function(network) <= 0),
                    )
                )
        return tuple(found)


class State(eqx.Module):
    """State of a descent, carried from step to step."""

    parameters: PyTree  # `Parameters`; () within a `Continuation`, which has them itself
    optimiser: PyTree
    values: Array
    log: Buffer
    doubts: Unresolved
    end: Array  # time of the first terminating event, else inf
    step: Array
    looked: Array  # the step at which values were last compared
    finite: Array  # whether the loss was finite at all rows
    order: Array  # the epoch's order of the samples, for mini-batches
    gates: tuple[Gates, ...] = ()  # one for each length of windows


class Stops(eqx.Module):
    """The steps at which a descent stops for a row, from the step where it stands.

    - `at`: (R + 1,), ascending; the first is where it stands.
    - `looks`: (R,), whether a row is saved there; else the run only pauses.
    - `count`: the number of stops; other entries only fill the array.
    - `longest`: the most steps from one stop to the next, for loops of fixed length, which alone
      have derivatives in reverse; None for loops of any length.
    - `even`: whether all stretches are as long.
    """

    at: Int[Array | np.ndarray, " R_and_1"]
    looks: Bool[Array | np.ndarray, " R"]
    count: Int[Array | np.ndarray, ""] | int
    longest: int | None = eqx.field(static=True, default=None)
    even: bool = eqx.field(static=True, default=False)

    def steps(self, row: PyTree, one: Callable[[Any, Found], Found], found: Found) -> Found:
        """Apply `found = one(k, found)` for all steps k from one stop to the next."""
        at = jnp.asarray(self.at)
        first, last = at[row], at[row + 1]
        if self.longest is None:
            return lax.fori_loop(first, last, one, found)

        def one_or_none(k: ArrayLike, found: Found) -> Found:
            step = first + k
            if self.even:
                return one(step, found)
            return lax.cond(step < last, lambda: one(step, found), lambda: found)

        return lax.fori_loop(0, self.longest, one_or_none, found)


class Rows(NamedTuple):
    """Rows of a stretch of descent.

    - `ts`, `losses`, `observed`: at the stops, (R, ...).
    - `counts`: at the stops of mini-batches, else where the run stood and after every step.
    """

    ts: Array
    losses: Array
    observed: PyTree
    counts: Counts


class Descent(eqx.Module):
    """Everything that defines a step of descent, and what is watched."""

    problem: Problem
    objective: AbstractObjective
    look: Look
    observe: Observables
    learning_rate: Array
    clock: Array  # flow time per step
    optimiser: optax.GradientTransformation | None = eqx.field(static=True)  # None: plain
    interpolate: bool = eqx.field(static=True)
    batch_size: int | None = eqx.field(static=True)
    key: PRNGKeyArray | None

    @property
    def unnamed(self) -> "Descent":
        """The same without names of events and observables, which are not compiled then."""
        observer = self.look.observer
        observer = copied(observer, watches=unnamed(observer.watches))
        return copied(self, look=copied(self.look, observer=observer), observe=self.observe.unnamed)

    @property
    def network(self) -> AbstractModel:
        """The network before the first step."""
        return self.problem.network

    @property
    def task(self) -> Task:
        """The task that it is trained on."""
        return self.problem.task

    def start(self, capacity: int) -> State:
        """Return the state before the first step."""
        parameters = self.problem.parameters
        values = self.values(parameters)
        empty = Buffer.empty(capacity, self.clock.dtype)
        log, end = self.look.observer.started(empty, values)
        return State(
            parameters=parameters,
            optimiser=() if self.optimiser is None else self.optimiser.init(parameters),
            values=values,
            log=log,
            doubts=Unresolved.none(self.clock.dtype),
            end=end,
            step=jnp.zeros((), jnp.int32),
            looked=jnp.zeros((), jnp.int32),
            finite=jnp.ones((), bool),
            order=jnp.arange(self.task.samples),
            gates=tuple(Gates.of(self.network, self.task) for _ in self.look.lengths),
        )

    def time(self, steps: ArrayLike) -> Array:
        """Return the flow time of so many steps."""
        return jnp.asarray(steps).astype(self.clock.dtype) * self.clock

    def values(self, parameters: Parameters) -> Array:
        """Return the watched values (C,)."""
        if not self.look.observer.watches:
            return jnp.zeros(0, self.network.dtype)
        return self.look.observer(parameters)

    def update(self, state: State) -> State:
        """Take one step, without a look at events."""
        network, order = self.network, state.order
        goal = self.objective
        if self.batch_size is not None:
            order, chosen = self._batch(state)
            batch = FullData(self.task.take(chosen), self.problem.loss)
            goal = decayed(batch, self.problem.decay)
            gates = jax.tree.map(lambda gate: gate[chosen], network.sample_gates)
            network = network.with_sample_gates(gates)
        optimiser, before = state.optimiser, cast(Any, state.parameters)
        gradient = cast(Any, goal.gradient(network, before))
        if self.optimiser is None:
            updates = jax.tree.map(lambda g: -self.learning_rate * g, gradient)
        else:
            descended = functools.partial(goal.descended, network)
            updates, optimiser = updated(self.optimiser, gradient, optimiser, before, descended)
        parameters: PyTree = optax.apply_updates(before, updates)
        return copied(
            state, parameters=parameters, optimiser=optimiser, step=state.step + 1, order=order
        )

    def _batch(self, state: State) -> tuple[Array, Array]:
        """Return the epoch's order of the samples, and the samples of the step's batch."""
        assert self.key is not None
        assert self.batch_size is not None
        batches = self.task.samples // self.batch_size
        place = state.step % batches
        key = jax.random.fold_in(self.key, state.step // batches)
        order = lax.cond(
            place == 0,
            lambda: jax.random.permutation(key, self.task.samples),
            lambda: state.order,
        )
        return order, lax.dynamic_slice(order, (place * self.batch_size,), (self.batch_size,))

    def record(self, state: State, since: ArrayLike) -> State:
        """Log the crossings of the last `since` steps; what is NaN crosses nothing."""
        values = self.values(state.parameters)
        log, doubts, first = state.log, state.doubts, state.end
        if values.shape[0]:
            above, before = values > 0, state.values > 0
            lost = jnp.isnan(values) | jnp.isnan(state.values)
            up, down = self.look.observer.directions
            crossed = ((above & ~before & up) | (~above & before & down)) & ~lost
            end, grain = self.time(state.step), self.time(since)
            doubts = lax.cond(
                jnp.any(lost),
                lambda: doubts.put(lost, end - grain, end, jnp.arange(lost.size)),
                lambda: doubts,
            )
            time = jnp.broadcast_to(end, values.shape)
            if self.interpolate:
                gap = jnp.where(crossed, values - state.values, 1.0)
                time = end - grain * jnp.where(crossed, values / gap, 0.0)
            new = jnp.where(above, 1, -1)
            old = jnp.where(crossed, -new, new)
            log = log.append(time, grain, jnp.arange(new.size), old, new)
            stops = jnp.any(crossed & self.look.observer.terminating)
            first = jnp.where(stops, jnp.minimum(first, end), first)
        return copied(state, values=values, log=log, doubts=doubts, end=first, looked=state.step)

    def watch(self, state: State) -> State:
        """Count the gates of the step just taken."""
        if not self.look.lengths:
            return state
        on = gates(self.network.with_parameters(state.parameters), self.task)
        pairs = zip(self.look.lengths, state.gates, strict=True)
        seen = tuple(g.after(on, (state.step - 1) % steps == 0) for steps, g in pairs)
        return copied(state, gates=seen)

    def unless_ended(self, state: State, new: State) -> State:
        """Return the new state, or the old one for a run that has ended: it stands still."""
        if not any(watch.terminate for watch in self.look.observer.watches):
            return new
        done = jnp.isfinite(state.end)
        return jax.tree.map(lambda a, b: jnp.where(done, a, b), state, new)

    def through(
        self,
        state: State,
        stops: Stops,
        found: tuple[Found, Seen],
        each: Callable[[Found, State, Any, Any], Found],
        at_stop: Callable[[Seen, State, Any], Seen],
    ) -> tuple[State, tuple[Found, Seen]]:
        """Take all steps up to the last stop.

        The first part of `found` becomes `each(part, state, step, stop)` after every step, the
        second `at_stop(part, state, stop)` at every stop where a row is saved.
        """

        def block(k: ArrayLike, carry: tuple[State, tuple[Found, Seen]]) -> Any:
            def one(step: ArrayLike, carry: tuple[State, Found]) -> tuple[State, Found]:
                state, found = carry
                new = self.update(state)
                if self.batch_size is None:
                    new = self.watch(self.record(new, 1))
                return self.unless_ended(state, new), each(found, new, step, k)

            state, (found, seen) = carry
            state, found = stops.steps(k, one, (state, found))

            def look(state: State, seen: Seen) -> tuple[State, Seen]:
                if self.batch_size is not None:
                    looked = self.record(state, state.step - state.looked)
                    state = self.unless_ended(state, looked)
                return state, at_stop(seen, state, k)

            # A row may cost as much as many steps, so a mere pause saves none.
            looks = jnp.asarray(stops.looks)[k]
            state, seen = lax.cond(looks, look, lambda *same: same, state, seen)
            return state, (found, seen)

        return lax.fori_loop(0, stops.count, block, (state, found))

    def row(self, state: State) -> Rows:
        """Return the row at one stop."""
        network = self.network.with_parameters(state.parameters)
        value = self.objective.value(network)
        seen = self.observe(network, state.parameters, self.task)
        counts = () if self.batch_size is None else self.look.counts(state.parameters)
        return Rows(self.time(state.step), value, seen, counts)

    def advance(self, state: State, stops: Stops, room: int) -> tuple[State, Rows]:
        """Take all steps up to the last stop, `room` at most, and return their rows.

        A run stands still once a terminating event came.
        """
        rows, every = stops.looks.shape[0], self.batch_size is None
        before = jnp.asarray(stops.at)[0] - 1

        def counted(counts: Counts, state: State, step: ArrayLike, stop: ArrayLike) -> Counts:
            del stop
            return written(counts, step - before, self.look.all_counts(state))

        def at_stop(found: Rows, state: State, stop: ArrayLike) -> Rows:
            return written(found, stop, self.row(state))

        here = self.look.all_counts(state) if every else ()
        counts = written(_empty(here, room + 1), 0, here)
        empty = _empty(eqx.filter_eval_shape(self.row, state), rows)
        each = counted if every else lambda counts, *_: counts
        state, (counts, found) = self.through(state, stops, (counts, empty), each, at_stop)
        found = found._replace(counts=counts) if every else found
        seen = (jnp.arange(rows, dtype=jnp.int32) < stops.count) & jnp.asarray(stops.looks)
        finite = state.finite & jnp.all(jnp.isfinite(found.losses) | ~seen)
        return copied(state, finite=finite), found

    def outcome(self, state: State) -> "Outcome":
        """Return the end, the result and the events of a run that stands at this state."""
        end = self.time(state.step)
        result: Any = RESULTS.successful
        for happened, outcome in (
            (jnp.isfinite(state.end), RESULTS.event_occurred),
            (state.log.overflowed, RESULTS.event_overflow),
            (~state.finite, RESULTS.not_finite),
        ):
            result = RESULTS.where(happened, outcome, result)  # pyright: ignore
        log = state.log if self.look.observer.watches else None
        return Outcome(end, result, event_log(log, self.look.observer, end, state.doubts))


def updated(
    optimiser: optax.GradientTransformation,
    gradient: Any,
    state: Any,
    parameters: Any,
    descended: Callable[[Any], Array],
) -> tuple[Any, Any]:
    """Return updates and the new state of an optimiser, which may ask for the descended value.

    Where it does not ask, the compiled program computes no value.
    """
    extra = {"value": descended(parameters), "grad": gradient, "value_fn": descended}
    asked = optax.with_extra_args_support(optimiser)
    with jax.numpy_dtype_promotion("standard"):  # optax counts steps in int32, and mixes them in
        return asked.update(gradient, state, parameters, **extra)


class Outcome(NamedTuple):
    """The end of a descent: the time reached, its result, and its events."""

    end: Array
    result: Any
    events: EventLog


def written(rows: PyTree, place: ArrayLike, row: PyTree) -> Any:
    """Write one row in its place; a scatter would cost more than a small step."""
    return jax.tree.map(
        lambda a, b: lax.dynamic_update_index_in_dim(a, jnp.asarray(b, a.dtype), place, 0),
        rows,
        row,
    )


def _empty(shapes: Any, rows: int) -> Any:
    """Return room for so many rows of this shape."""
    return jax.tree.map(lambda a: jnp.zeros((rows, *a.shape), a.dtype), shapes)


advanced = jit_by_array(Descent.advance)
row = jit_by_array(Descent.row)
outcome = jit_by_array(Descent.outcome)
