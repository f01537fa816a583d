"""Discrete runs, step by step: in one program, or in segments where they are long."""

import dataclasses
import math
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from flowlin._tools.arrays import is_traced
from flowlin._tools.bar import tqdm_bar
from flowlin._tools.result import RESULTS, hand_back
from flowlin._tools.types import Parameters
from flowlin.events.recorder import Observer, event_log
from flowlin.field.objective import AbstractObjective, FullData
from flowlin.log.buffer import Buffer
from flowlin.log.linear_phase import counts_from_steps
from flowlin.loss import Loss
from flowlin.network.model import AbstractModel, moving
from flowlin.runs.interrupts import SECONDS, seconds
from flowlin.runs.run import Observables
from flowlin.runs.trajectory import Reference, Trajectory, finished
from flowlin.tasks.task import Task


class Look(eqx.Module):
    """What is looked at as the run goes: watched values, and counts of linear units."""

    observer: Observer
    counters: tuple[Observer, ...]  # order statistics, per quantile: see `UnitSwitches`

    def counts(self, parameters: Parameters) -> tuple[tuple[Array, Array], ...]:
        """(on, off) unit counts, per quantile and layer."""
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
    """Carried from step to step."""

    parameters: Parameters
    optimiser: Any
    values: Array
    log: Buffer
    end: Array  # time of the first terminating event, else inf
    step: Array
    order: Array  # the epoch's order of the samples, for mini-batches


class Descent(eqx.Module):
    """Everything that defines a run."""

    network: AbstractModel
    trained: tuple[bool, ...] | None = eqx.field(static=True)  # see `flowlin.field.problem`
    task: Task
    objective: AbstractObjective
    loss: Loss
    look: Look
    observe: Observables
    learning_rate: Array
    tau: Array
    clock: Array  # flow time per step
    optimiser: optax.GradientTransformation | None = eqx.field(static=True)  # None: plain
    interpolate: bool = eqx.field(static=True)
    save_every: int = eqx.field(static=True)
    batch_size: int | None = eqx.field(static=True)
    key: PRNGKeyArray | None

    def start(self, max_events: int) -> State:
        """The state before the first step."""
        parameters: Any = moving(self.network.parameters, self.trained)
        values = self.values(parameters)
        empty = Buffer.empty(max_events, self.clock.dtype)
        log, end = self.look.observer.started(empty, values)
        return State(
            parameters=parameters,
            optimiser=() if self.optimiser is None else self.optimiser.init(parameters),
            values=values,
            log=log,
            end=end,
            step=jnp.zeros((), jnp.int32),
            order=jnp.arange(self.task.samples),
        )

    def values(self, parameters: Parameters) -> Array:
        """Watched values."""
        if not self.look.observer.watches:
            return jnp.zeros(0, self.network.dtype)
        return self.look.observer(parameters)

    def update(self, state: State) -> State:
        """One step, nothing looked at."""
        network, order = self.network, state.order
        if self.batch_size is None:
            gradient = self.objective.gradient(network, state.parameters)
        else:
            batches = self.task.samples // self.batch_size
            place = state.step % batches
            assert self.key is not None
            key = jax.random.fold_in(self.key, state.step // batches)
            order = lax.cond(
                place == 0,
                lambda: jax.random.permutation(key, self.task.samples),
                lambda: order,
            )
            chosen = lax.dynamic_slice(order, (place * self.batch_size,), (self.batch_size,))
            batch = FullData(self.task.take(chosen), self.loss)
            gradient = batch.gradient(network, state.parameters)
        optimiser, before = state.optimiser, cast(Any, state.parameters)
        gradient = cast(Any, gradient)
        if self.optimiser is None:
            updates = jax.tree.map(lambda g: -self.learning_rate * g, gradient)
        else:
            updates, optimiser = self.optimiser.update(gradient, optimiser, before)
        parameters: Any = optax.apply_updates(before, updates)
        return dataclasses.replace(
            state, parameters=parameters, optimiser=optimiser, step=state.step + 1, order=order
        )

    def record(self, state: State, since: Any) -> tuple[State, Any]:
        """Log the crossings since the last look; return the unit counts."""
        values = self.values(state.parameters)
        log, first = state.log, state.end
        if values.shape[0]:
            above, before = values > 0, state.values > 0
            up, down = self.look.observer.directions
            crossed = (above & ~before & up) | (~above & before & down)
            end = state.step * self.clock
            time = jnp.broadcast_to(end, values.shape)
            if self.interpolate:
                gap = jnp.where(crossed, values - state.values, 1.0)
                time = end - since * self.clock * jnp.where(crossed, values / gap, 0.0)
            new = jnp.where(above, 1, -1)
            old = jnp.where(crossed, -new, new)
            log = log.append(time, since * self.clock, jnp.arange(new.size), old, new)
            stops = jnp.any(crossed & self.look.observer.terminating)
            first = jnp.where(stops, jnp.minimum(first, end), first)
        state = dataclasses.replace(state, values=values, log=log, end=first)
        return state, self.look.counts(state.parameters)

    def advance(self, state: State, steps: int) -> tuple[State, Any]:
        """`steps` steps up to the next saved row; stands still once a terminating event came."""

        def one(state, _):
            new = self.update(state)
            counts: Any = ()
            if self.batch_size is None:
                new, counts = self.record(new, 1)
            return _choose(jnp.isfinite(state.end), state, new), counts

        before = state
        state, counts = lax.scan(one, state, length=steps)
        if self.batch_size is not None:
            state, row = self.record(state, steps)
            state = _choose(jnp.isfinite(before.end), before, state)
            counts = jax.tree.map(lambda a: a[None], row)
        network = self.network.with_parameters(state.parameters)
        observed = self.observe(network, state.parameters, self.task)
        saved = (self.objective.value(network), observed)
        return state, ((state.step * self.clock, *saved), counts)

    def opened(self, max_events: int) -> tuple[State, Any]:
        """The state before the first step, and its row."""
        network, start = self.network, self.start(max_events)
        first = (jnp.zeros_like(self.clock), self.objective.value(network))
        observed = self.observe(network, start.parameters, self.task)
        row = ((*first, observed), self.look.counts(start.parameters))
        return start, jax.tree.map(lambda a: jnp.asarray(a)[None], row)

    def blocks(self, state: State, count: int) -> tuple[State, Any]:
        """So many times `save_every` steps, and the row after each of them."""

        def block(state, _):
            return self.advance(state, self.save_every)

        state, (rows, counts) = lax.scan(block, state, length=count)
        # Counts within a block are per step: lay the blocks end to end.
        return state, (rows, jax.tree.map(lambda a: a.reshape(-1), counts))

    def rest(self, state: State, steps: int) -> tuple[State, Any]:
        """The steps that do not fill a block, and the row after them."""
        state, (row, counts) = self.advance(state, steps)
        return state, (jax.tree.map(lambda a: jnp.asarray(a)[None], row), counts)

    @eqx.filter_jit
    def solve(self, steps: int, max_events: int) -> tuple[State, Any]:
        """The whole run."""
        state, first = self.opened(max_events)
        state, body = self.blocks(state, steps // self.save_every)
        parts = [first, body]
        if steps % self.save_every:
            state, last = self.rest(state, steps % self.save_every)
            parts.append(last)
        return state, _joined(parts)


_opened = eqx.filter_jit(Descent.opened)
_blocks = eqx.filter_jit(Descent.blocks)
_rest = eqx.filter_jit(Descent.rest)


def _joined(parts: list[Any]) -> Any:
    """Rows of several parts of a run, end to end."""
    return jax.tree.map(lambda *a: jnp.concatenate(a), *parts)


class _Segments:
    """A run in segments of about two seconds: its state and its rows so far."""

    def __init__(self, run: Descent, max_events: int):
        self.run = run
        self.state, first = _opened(run, max_events)
        self.parts = [first]

    def __call__(self, steps: int, together: int, bar: Any) -> None:
        """All steps, so many blocks of them together."""
        size = self.run.save_every
        for _ in range(steps // size // together):
            self._take(_blocks(self.run, self.state, together), bar)
        if steps % size:
            self._take(_rest(self.run, self.state, steps % size), bar)

    def _take(self, found: tuple[State, Any], bar: Any) -> None:
        jax.block_until_ready(found)
        self.parts, self.state = [*self.parts, found[1]], found[0]
        if bar is not None:
            bar.update(int(self.state.step) - bar.n)


def _choose(done: Array, old: State, new: State) -> State:
    """The old state once the run has ended."""
    return jax.tree.map(lambda a, b: jnp.where(done, a, b), old, new)


def stepped(
    run: Descent, steps: int, max_events: int, progress: bool, quantiles, reference: Reference
) -> Trajectory:
    """The run in one go, or where it is long, and outside of `jit`, in segments."""
    watches = run.look.observer.watches
    max_events = max_events if watches else 0
    blocks = steps // run.save_every
    seen = run.batch_size or run.task.samples
    block = seconds(run.network, seen, 2e-5) * run.save_every
    together = math.ceil((0.5 if progress else SECONDS) / block)
    if is_traced(run) or (blocks <= together and not progress):
        state, rows = run.solve(steps, max_events)
        return _assembled(run, state, rows, watches, quantiles, reference)
    bar = tqdm_bar(steps, unit="step") if progress else None
    together = max(k for k in range(1, min(together, blocks) + 1) if blocks % k == 0)
    segments = _Segments(run, max_events)

    def so_far() -> Trajectory:
        rows = _joined(segments.parts)
        return _assembled(run, segments.state, rows, watches, quantiles, reference)

    try:
        segments(steps, together, bar)
    except (KeyboardInterrupt, Exception) as error:
        broken_off = dataclasses.replace(so_far(), result=RESULTS.interrupted)
        hand_back(error, finished(broken_off, False, lambda _: ""))
        raise
    finally:
        if bar is not None:
            bar.close()
    return so_far()


def _assembled(run: Descent, state: State, rows, watches, quantiles, reference) -> Trajectory:
    """The trajectory of a finished run."""
    (ts, losses, observed), counts = rows
    end = state.step * run.clock
    # Rows after a terminating event repeat its state.
    kept = jnp.concatenate([jnp.ones(1, bool), ts[1:] > ts[:-1]])
    finite = jnp.isfinite(losses) | ~kept
    ended, overflow = jnp.isfinite(state.end), state.log.overflowed
    result: Any = RESULTS.successful
    for happened, outcome in (
        (ended, RESULTS.event_occurred),
        (overflow, RESULTS.event_overflow),
        (~jnp.all(finite), RESULTS.not_finite),
    ):
        result = RESULTS.where(happened, outcome, result)  # pyright: ignore
    every = run.batch_size is None  # whether every step was looked at
    grain = run.clock * (1 if every else run.save_every)
    units = run.network.hidden
    layers = len(units)
    looked = ts
    if every and counts:
        looked = run.clock * jnp.arange(counts[0][0].shape[0])
    step_counts = {
        (layer, quantile): counts_from_steps(
            looked, counts[i * layers + layer], grain, units[layer], end
        )
        for i, quantile in enumerate(quantiles)
        for layer in range(layers)
    }
    networks = run.observe.functions is None
    return Trajectory(
        ts=jnp.where(kept, ts, jnp.inf),
        losses=losses,
        observed={} if networks else observed,
        events=event_log(state.log if watches else None, run.look.observer, end),
        model=run.network.with_parameters(state.parameters),
        end=end,
        result=result,
        saved=observed if networks else None,
        counts={"num_steps": state.step},
        labels=(("solver", "descent" if run.batch_size is None else "stochastic descent"),),
        dense=None,
        step_counts=step_counts,
        samples=run.task.samples,
        tau=run.tau,
        discrete=True,
        reference=reference,
        continuation=None,
    )
