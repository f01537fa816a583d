"""Steps of descent, the one loop over them, and what is watched on the way."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Int, PRNGKeyArray, PyTree

from flowlin._tools.arrays import Parameters, replace_fields
from flowlin._tools.numerics import jit_by_array
from flowlin.engine.observables import Observables
from flowlin.engine.recorder import event_log
from flowlin.events.watch import Observer, watches_without_names
from flowlin.networks.base import AbstractModel
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.record.buffer import EventBuffer
from flowlin.record.event_log import EventLog, Unresolved
from flowlin.record.results import RESULTS
from flowlin.tasks.task import Task
from flowlin.training.objective import AbstractObjective, FullData, with_decay
from flowlin.training.problem import Problem

# ---- Gates of a descent over windows of steps: which pairs slide, read off steps that flicker.

FLICKER_SWITCHES = 2  # switches within a window from which on a pair counts as sliding


class Window(NamedTuple):
    """Steps over which gates are counted, and the quantile of samples at which units count."""

    quantile: float
    steps: int


class WindowGates(eqx.Module):
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
    def from_network(network: AbstractModel, task: Task) -> "WindowGates":
        """Start to count at a network's gates."""
        on = pairs_on(network, task)
        return WindowGates(on, tuple(jnp.zeros(g.shape, jnp.int32) for g in on))

    def after_step(self, on: tuple[Array, ...], begins: Array) -> "WindowGates":
        """Count one more step, to the pairs `on`; `begins` tells whether a window began with it."""
        pairs = zip(self.on, on, self.switches, strict=True)
        switches = tuple(
            jnp.where(begins, 0, n) + (new != old).astype(n.dtype) for old, new, n in pairs
        )
        return WindowGates(on, switches)

    def unit_counts(self, quantile: float) -> tuple[tuple[Array, Array], ...]:
        """Return (on, off) units, per layer with sliding pairs first as off, then as on."""
        found = []
        for on, switches in zip(self.on, self.switches, strict=True):
            slides = switches >= FLICKER_SWITCHES
            samples = on.shape[0]
            k = math.floor(quantile * samples)
            for side in (on & ~slides, on | slides):
                number = jnp.sum(side, axis=0)
                found.append((jnp.sum(number >= samples - k), jnp.sum(number <= k)))
        return tuple(found)


def pairs_on(network: AbstractModel, task: Task) -> tuple[Bool[Array, "P H"], ...]:
    """Return which pairs are on, (P, H) per layer."""
    assert isinstance(network, ReLUNetwork)
    return tuple(z > 0 for z in jax.tree.leaves(network.preactivations(task.x)))


AfterSteps = TypeVar("AfterSteps")
AtStops = TypeVar("AtStops")

LinearUnitCounts = tuple[tuple[Array, Array], ...]  # (on, off) units, per quantile and layer


class DescentObserver(eqx.Module):
    """Everything watched as a descent goes: values for events, and counts of linear units."""

    observer: Observer
    counters: tuple[Observer, ...] = ()  # order statistics, per quantile: see `UnitSwitches`
    quantiles: tuple[float, ...] = eqx.field(static=True, default=())
    windows: tuple[Window, ...] = eqx.field(static=True, default=())

    @property
    def window_lengths(self) -> tuple[int, ...]:
        """The numbers of steps of the windows, each once."""
        return tuple(sorted({window.steps for window in self.windows}))

    def all_unit_counts(self, state: "DescentState") -> LinearUnitCounts:
        """Return `counts`, then those of every window, each per layer open and closed."""
        gates = dict(zip(self.window_lengths, state.gates, strict=True))
        found = [gates[window.steps].unit_counts(window.quantile) for window in self.windows]
        return (*self.linear_unit_counts(state.parameters), *itertools.chain(*found))

    def linear_unit_counts(self, parameters: Parameters) -> LinearUnitCounts:
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


class DescentState(eqx.Module):
    """State of a descent, carried from step to step."""

    parameters: PyTree  # `Parameters`; () within a `RunState`, which has them itself
    optimiser: PyTree
    values: Array
    log: EventBuffer
    unresolved: Unresolved
    stop_time: Array  # time of the first terminating event, else inf
    step: Array
    last_look: Array  # the step at which values were last compared
    is_finite: Array  # whether the loss was finite at all rows
    sample_order: Array  # the epoch's order of the samples, for mini-batches
    gates: tuple[WindowGates, ...] = ()  # one for each length of windows


class RowSchedule(eqx.Module):
    """The steps at which a descent stops for a row, from the step where it stands.

    - `at`: (R + 1,), ascending; the first is where it stands.
    - `looks`: (R,), whether a row is saved there; else the run only pauses.
    - `count`: the number of stops; other entries only fill the array.
    - `longest`: the most steps from one stop to the next, for loops of fixed length, which alone
      have derivatives in reverse; None for loops of any length.
    - `is_even`: whether all stretches are as long.
    """

    stop_steps: Int[Array | np.ndarray, " R_and_1"]
    saves_row: Bool[Array | np.ndarray, " R"]
    stop_count: Int[Array | np.ndarray, ""] | int
    longest_stretch: int | None = eqx.field(static=True, default=None)
    is_even: bool = eqx.field(static=True, default=False)

    def loop_to_next(
        self, row: PyTree, take_step: Callable[[PyTree, AfterSteps], AfterSteps], carry: AfterSteps
    ) -> AfterSteps:
        """Apply `found = one(k, found)` for all steps k from one stop to the next."""
        at = jnp.asarray(self.stop_steps)
        first, last = at[row], at[row + 1]
        if self.longest_stretch is None:
            return lax.fori_loop(first, last, take_step, carry)

        def step_or_skip(k: ArrayLike, found: AfterSteps) -> AfterSteps:
            step = first + k
            if self.is_even:
                return take_step(step, found)
            return lax.cond(step < last, lambda: take_step(step, found), lambda: found)

        return lax.fori_loop(0, self.longest_stretch, step_or_skip, carry)


class Rows(NamedTuple):
    """Rows of a stretch of descent.

    - `ts`, `losses`, `observed`: at the stops, (R, ...).
    - `counts`: at the stops of mini-batches, else where the run stood and after every step.
    """

    ts: Array
    losses: Array
    observed: PyTree
    counts: LinearUnitCounts


class Descent(eqx.Module):
    """Everything that defines a step of descent, and what is watched."""

    problem: Problem
    objective: AbstractObjective
    observers: DescentObserver
    observe: Observables
    learning_rate: Array
    clock: Array  # flow time per step
    optimiser: optax.GradientTransformation | None = eqx.field(static=True)  # None: plain
    interpolate: bool = eqx.field(static=True)
    batch_size: int | None = eqx.field(static=True)
    key: PRNGKeyArray | None

    @property
    def without_names(self) -> "Descent":
        """The same without names of events and observables, which are not compiled then."""
        observer = self.observers.observer
        observer = replace_fields(observer, watches=watches_without_names(observer.watches))
        return replace_fields(
            self,
            observers=replace_fields(self.observers, observer=observer),
            observe=self.observe.without_names,
        )

    @property
    def network(self) -> AbstractModel:
        """The network before the first step."""
        return self.problem.network

    @property
    def task(self) -> Task:
        """The task that it is trained on."""
        return self.problem.task

    def initial_state(self, capacity: int) -> DescentState:
        """Return the state before the first step."""
        parameters = self.problem.parameters
        values = self.observer_values(parameters)
        empty = EventBuffer.empty(capacity, self.clock.dtype)
        log, end = self.observers.observer.log_initial_events(empty, values)
        return DescentState(
            parameters=parameters,
            optimiser=() if self.optimiser is None else self.optimiser.init(parameters),
            values=values,
            log=log,
            unresolved=Unresolved.empty(self.clock.dtype),
            stop_time=end,
            step=jnp.zeros((), jnp.int32),
            last_look=jnp.zeros((), jnp.int32),
            is_finite=jnp.ones((), bool),
            sample_order=jnp.arange(self.task.samples),
            gates=tuple(
                WindowGates.from_network(self.network, self.task)
                for _ in self.observers.window_lengths
            ),
        )

    def flow_time(self, steps: ArrayLike) -> Array:
        """Return the flow time of so many steps."""
        return jnp.asarray(steps).astype(self.clock.dtype) * self.clock

    def observer_values(self, parameters: Parameters) -> Array:
        """Return the watched values (C,)."""
        if not self.observers.observer.watches:
            return jnp.zeros(0, self.network.dtype)
        return self.observers.observer(parameters)

    def take_step(self, state: DescentState) -> DescentState:
        """Take one step, without a look at events."""
        network, order = self.network, state.sample_order
        goal = self.objective
        if self.batch_size is not None:
            order, chosen = self._next_batch(state)
            batch = FullData(self.task.take(chosen), self.problem.loss)
            goal = with_decay(batch, self.problem.decay)
            gates = jax.tree.map(lambda gate: gate[chosen], network.sample_gates)
            network = network.with_sample_gates(gates)
        optimiser, before = state.optimiser, state.parameters
        gradient = goal.gradient(network, before)
        if self.optimiser is None:
            updates = jax.tree.map(lambda g: -self.learning_rate * g, gradient)
        else:
            descended = functools.partial(goal.objective_value, network)
            updates, optimiser = optimiser_update(
                self.optimiser, gradient, optimiser, before, descended
            )
        parameters: PyTree = optax.apply_updates(before, updates)
        return replace_fields(
            state,
            parameters=parameters,
            optimiser=optimiser,
            step=state.step + 1,
            sample_order=order,
        )

    def _next_batch(self, state: DescentState) -> tuple[Array, Array]:
        """Return the epoch's order of the samples, and the samples of the step's batch."""
        assert self.key is not None
        assert self.batch_size is not None
        batches = self.task.samples // self.batch_size
        place = state.step % batches
        key = jax.random.fold_in(self.key, state.step // batches)
        order = lax.cond(
            place == 0,
            lambda: jax.random.permutation(key, self.task.samples),
            lambda: state.sample_order,
        )
        return order, lax.dynamic_slice(order, (place * self.batch_size,), (self.batch_size,))

    def record_crossings(self, state: DescentState, since: ArrayLike) -> DescentState:
        """Log the crossings of the last `since` steps; what is NaN crosses nothing."""
        values = self.observer_values(state.parameters)
        log, doubts, first = state.log, state.unresolved, state.stop_time
        if values.shape[0]:
            above, before = values > 0, state.values > 0
            lost = jnp.isnan(values) | jnp.isnan(state.values)
            up, down = self.observers.observer.direction_flags
            crossed = ((above & ~before & up) | (~above & before & down)) & ~lost
            end, grain = self.flow_time(state.step), self.flow_time(since)
            doubts = lax.cond(
                jnp.any(lost),
                lambda: doubts.append(lost, end - grain, end, jnp.arange(lost.size)),
                lambda: doubts,
            )
            time = jnp.broadcast_to(end, values.shape)
            if self.interpolate:
                gap = jnp.where(crossed, values - state.values, 1.0)
                time = end - grain * jnp.where(crossed, values / gap, 0.0)
            new = jnp.where(above, 1, -1)
            old = jnp.where(crossed, -new, new)
            log = log.append(time, grain, jnp.arange(new.size), old, new)
            stops = jnp.any(crossed & self.observers.observer.ends_run)
            first = jnp.where(stops, jnp.minimum(first, end), first)
        return replace_fields(
            state, values=values, log=log, unresolved=doubts, stop_time=first, last_look=state.step
        )

    def update_gates(self, state: DescentState) -> DescentState:
        """Count the gates of the step just taken."""
        if not self.observers.window_lengths:
            return state
        on = pairs_on(self.network.with_parameters(state.parameters), self.task)
        pairs = zip(self.observers.window_lengths, state.gates, strict=True)
        seen = tuple(g.after_step(on, (state.step - 1) % steps == 0) for steps, g in pairs)
        return replace_fields(state, gates=seen)

    def freeze_if_ended(self, state: DescentState, new: DescentState) -> DescentState:
        """Return the new state, or the old one for a run that has ended: it stands still."""
        if not any(watch.terminate for watch in self.observers.observer.watches):
            return new
        done = jnp.isfinite(state.stop_time)
        return jax.tree.map(lambda a, b: jnp.where(done, a, b), state, new)

    def run_steps(
        self,
        state: DescentState,
        stops: RowSchedule,
        results: tuple[AfterSteps, AtStops],
        each: Callable[[AfterSteps, DescentState, PyTree, PyTree], AfterSteps],
        at_stop: Callable[[AtStops, DescentState, PyTree], AtStops],
    ) -> tuple[DescentState, tuple[AfterSteps, AtStops]]:
        """Take all steps up to the last stop.

        The first part of `found` becomes `each(part, state, step, stop)` after every step, the
        second `at_stop(part, state, stop)` at every stop where a row is saved.
        """

        def run_block(
            k: ArrayLike, carry: tuple[DescentState, tuple[AfterSteps, AtStops]]
        ) -> PyTree:
            def step_once(
                step: ArrayLike, carry: tuple[DescentState, AfterSteps]
            ) -> tuple[DescentState, AfterSteps]:
                state, found = carry
                new = self.take_step(state)
                if self.batch_size is None:
                    new = self.update_gates(self.record_crossings(new, 1))
                return self.freeze_if_ended(state, new), each(found, new, step, k)

            state, (found, seen) = carry
            state, found = stops.loop_to_next(k, step_once, (state, found))

            def save_row(state: DescentState, seen: AtStops) -> tuple[DescentState, AtStops]:
                if self.batch_size is not None:
                    looked = self.record_crossings(state, state.step - state.last_look)
                    state = self.freeze_if_ended(state, looked)
                return state, at_stop(seen, state, k)

            # A row may cost as much as many steps, so a mere pause saves none.
            looks = jnp.asarray(stops.saves_row)[k]
            state, seen = lax.cond(looks, save_row, lambda *same: same, state, seen)
            return state, (found, seen)

        return lax.fori_loop(0, stops.stop_count, run_block, (state, results))

    def current_row(self, state: DescentState) -> Rows:
        """Return the row at one stop."""
        network = self.network.with_parameters(state.parameters)
        value = self.objective.loss_value(network)
        seen = self.observe(network, state.parameters, self.task)
        counts = (
            () if self.batch_size is None else self.observers.linear_unit_counts(state.parameters)
        )
        return Rows(self.flow_time(state.step), value, seen, counts)

    def advance_to_stop(
        self, state: DescentState, stops: RowSchedule, room: int
    ) -> tuple[DescentState, Rows]:
        """Take all steps up to the last stop, `room` at most, and return their rows.

        A run stands still once a terminating event came.
        """
        rows, every = stops.saves_row.shape[0], self.batch_size is None
        before = jnp.asarray(stops.stop_steps)[0] - 1

        def write_counts(
            counts: LinearUnitCounts, state: DescentState, step: ArrayLike, stop: ArrayLike
        ) -> LinearUnitCounts:
            del stop
            return write_row(counts, step - before, self.observers.all_unit_counts(state))

        def write_stop(found: Rows, state: DescentState, stop: ArrayLike) -> Rows:
            return write_row(found, stop, self.current_row(state))

        here = self.observers.all_unit_counts(state) if every else ()
        counts = write_row(_empty_rows(here, room + 1), 0, here)
        empty = _empty_rows(eqx.filter_eval_shape(self.current_row, state), rows)
        each = write_counts if every else lambda counts, *_: counts
        state, (counts, found) = self.run_steps(state, stops, (counts, empty), each, write_stop)
        found = found._replace(counts=counts) if every else found
        seen = (jnp.arange(rows, dtype=jnp.int32) < stops.stop_count) & jnp.asarray(stops.saves_row)
        finite = state.is_finite & jnp.all(jnp.isfinite(found.losses) | ~seen)
        return replace_fields(state, is_finite=finite), found

    def run_outcome(self, state: DescentState) -> "DescentOutcome":
        """Return the end, the result and the events of a run that stands at this state."""
        end = self.flow_time(state.step)
        result: PyTree = RESULTS.successful
        for happened, outcome in (
            (jnp.isfinite(state.stop_time), RESULTS.event_occurred),
            (state.log.has_overflowed, RESULTS.event_overflow),
            (~state.is_finite, RESULTS.not_finite),
        ):
            result = RESULTS.where(happened, outcome, result)  # pyright: ignore
        log = state.log if self.observers.observer.watches else None
        return DescentOutcome(
            end, result, event_log(log, self.observers.observer, end, state.unresolved)
        )


def optimiser_update(
    optimiser: optax.GradientTransformation,
    gradient: PyTree,
    state: PyTree,
    parameters: PyTree,
    descended_value: Callable[[PyTree], Array],
) -> tuple[PyTree, PyTree]:
    """Return updates and the new state of an optimiser, which may ask for the descended value.

    Where it does not ask, the compiled program computes no value.
    """
    extra = {"value": descended_value(parameters), "grad": gradient, "value_fn": descended_value}
    asked = optax.with_extra_args_support(optimiser)
    with jax.numpy_dtype_promotion("standard"):  # optax counts steps in int32, and mixes them in
        return asked.update(gradient, state, parameters, **extra)


class DescentOutcome(NamedTuple):
    """The end of a descent: the time reached, its result, and its events."""

    end: Array
    result: PyTree
    events: EventLog


def write_row(rows: PyTree, place: ArrayLike, row: PyTree) -> PyTree:
    """Write one row in its place; a scatter would cost more than a small step."""
    return jax.tree.map(
        lambda a, b: lax.dynamic_update_index_in_dim(a, jnp.asarray(b, a.dtype), place, 0),
        rows,
        row,
    )


def _empty_rows(shapes: object, rows: int) -> PyTree:
    """Return room for so many rows of this shape."""
    return jax.tree.map(lambda a: jnp.zeros((rows, *a.shape), a.dtype), shapes)


jit_advance = jit_by_array(Descent.advance_to_stop)
jit_row = jit_by_array(Descent.current_row)
jit_outcome = jit_by_array(Descent.run_outcome)
