"""A diffrax solver that records events while another solver integrates.

diffrax rolls a solver's state back when a step is rejected, so a log kept there holds accepted
steps only. The recorder changes neither steps nor error estimates.
"""

from collections.abc import Callable
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from flowlin._tools.arrays import Parameters, as_parameters, replace_fields
from flowlin._tools.numerics import while_loop
from flowlin._tools.series import bracket_root
from flowlin.engine.kinks.averaged import AveragedGates
from flowlin.engine.signals import EVENT
from flowlin.engine.solvers.wrapped import Explicit, Wrapped, is_explicit
from flowlin.events.crossings import StepCrossings, promise_of_watch
from flowlin.events.path import StepPath, dense_degree
from flowlin.events.search import Brackets
from flowlin.events.watch import AbstractWatched, Observer, OrderStatistic
from flowlin.record.buffer import EventBuffer
from flowlin.record.channel import CERTIFIED, Channel
from flowlin.record.event_log import EventLog, Unresolved

ROUNDS = 3  # the dense output's root, and two steps of Newton's method after the second step
NEARBY = 1e-2  # of the step: Newton's method goes no further, as near a flat root it would
NOISE_FACTOR = 4.0  # times the step's error: a value smaller than this all step long is noise


def event_log(
    log: EventBuffer | None,
    observer: Observer,
    end: Array,
    doubts: Unresolved | None = None,
    interpolation_cls: object = None,
) -> EventLog:
    """Return the log sorted by time, by channels, without what happened after `end`.

    `interpolation_cls` is that of the solver; None of a descent, whose every step is looked at.
    """
    channels: list[Channel] = []
    maps, initial, promises = [], [], {}
    values = observer(observer.network.parameters) if observer.watches else jnp.zeros(0)
    start = 0
    for watch in observer.watches:
        if watch.channel not in channels:
            channels.append(watch.channel)
            initial.append(jnp.full(watch.channel.size, -1))
        k, size = channels.index(watch.channel), watch.channel.size
        promises[k] = CERTIFIED
        if interpolation_cls is not None:
            degree = dense_degree(interpolation_cls)
            promises[k] = promise_of_watch(watch, observer.network, degree)
        maps.append(jnp.arange(size) + sum(c.size for c in channels[:k]))
        above = values[start : start + size] > 0
        initial[k] = jnp.where(above, jnp.maximum(initial[k], watch.above), initial[k])
        start += size
    if log is None:
        none, index = jnp.zeros(0, end.dtype), jnp.zeros(0, int)
        return EventLog(
            time=none,
            uncertainty=none,
            component=index,
            old=index,
            new=index,
            count=jnp.zeros((), int),
            initial=index,
            channels=(),
            unresolved=Unresolved.empty(end.dtype),
        )
    below = jnp.concatenate([jnp.full(w.channel.size, w.below) for w in observer.watches])
    above = jnp.concatenate([jnp.full(w.channel.size, w.above) for w in observer.watches])
    time, count = log.times_until(end)
    order = jnp.argsort(time)
    watched, rising = log.component[order], log.new[order] > 0
    below, above = below[watched], above[watched]
    new = jnp.where(rising, above, below)
    old = jnp.where(time[order] > 0, jnp.where(rising, below, above), new)
    unresolved = Unresolved.empty(time.dtype)
    if doubts is not None:
        named = jnp.concatenate(maps)[doubts.component]
        unresolved = eqx.tree_at(lambda u: u.component, doubts, named)
    return EventLog(
        time=time[order],
        uncertainty=log.uncertainty[order],
        component=jnp.concatenate(maps)[watched],
        old=old,
        new=new,
        count=count,
        initial=jnp.concatenate(initial),
        channels=tuple(replace_fields(c, promise=promises[k]) for k, c in enumerate(channels)),
        unresolved=unresolved,
    )


class RecorderState(eqx.Module):
    """State of a recorder, which diffrax rolls back when a step is rejected."""

    inner: PyTree
    values: Float[Array, " C"]  # watched values at the start of the next step
    speed: Float[Array, " C"]  # how fast they changed in the last one
    log: EventBuffer  # its sides are signs; see `event_log`
    stop_time: Float[Array, ""]  # time of the first terminating event, else inf
    unresolved: Unresolved
    stop_state: Parameters | None  # the state at the terminating event; None if none can happen


class _SearchedStep(NamedTuple):
    """A step, the crossings that were bracketed in it, and the watched values (C,) at its end."""

    step: StepCrossings
    brackets: Brackets
    end_values: Array


class _LocatedRoot(NamedTuple):
    """A crossing as far as it is located.

    - `value`: of the watched function at the time before the last round.
    - `rough`: the time by the dense output.
    - `offset`: how far the state there is from the dense output; None where that is all.
    """

    time: Array
    uncertainty: Array
    value: Array
    rough: Array
    offset: Parameters | None


class Recorder(Wrapped[RecorderState]):
    """Wraps a solver and logs the sign changes of watched values.

    After each step of the inner solver its dense output is searched for all of them (see
    `flowlin.events.crossings`). Each is bracketed then, and one Newton step finishes it, which also
    carries the derivative: d t = -d g / (dg/dt). At a terminating event the state there is kept
    and diffrax stops after the step.

    The dense output has fewer digits than the step. With `takes_second_step`, for explicit
    Runge-Kutta methods, each event is finished by a step of the method that ends there: see
    `_locate_crossing`. All other solvers' events are those of their dense output.
    """

    solver: diffrax.AbstractSolver
    observer: Observer
    capacity: int = eqx.field(static=True)
    loop_kind: str = eqx.field(
        static=True
    )  # kind of the loop over events, see `flowlin._tools.numerics`
    to_parameters: Callable[[Parameters], Parameters] | None = None  # from states to parameters
    takes_second_step: bool = eqx.field(static=True, default=False)

    def init(self, terms, t0, t1, y0, args) -> RecorderState:
        """Return the inner state, the watched values at the start, and a log of events there."""
        values = self.observer(as_parameters(self.to_parameters, y0))
        dtype = jnp.result_type(t0, values)
        log, end = EventBuffer.empty(self.capacity, dtype), jnp.asarray(jnp.inf, dtype)
        if any(watch.from_start for watch in self.observer.watches):
            log, end = self.observer.log_initial_events(log, values)
        return RecorderState(
            inner=self.solver.init(terms, t0, t1, y0, args),
            values=values,
            speed=jnp.full_like(values, jnp.inf),
            log=log,
            stop_time=end,
            unresolved=Unresolved.empty(dtype),
            stop_state=y0 if any(watch.terminate for watch in self.observer.watches) else None,
        )

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """Take one step of the inner solver, then log the events in it."""
        # Under its own jit, which caches the trace: diffrax traces a step three times.
        t0, t1 = jnp.asarray(t0), jnp.asarray(t1)
        return self._record_step(terms, t0, t1, y0, args, solver_state, made_jump)

    @eqx.filter_jit
    def _record_step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """Search the step's dense output for crossings, log them, and stop at a terminating one."""
        y1, error, dense, inner, result = self.solver.step(
            terms, t0, t1, y0, args, solver_state.inner, made_jump
        )
        known = None
        if isinstance(self.solver, AveragedGates):
            known = self.solver.quantities_along(t0, t1, solver_state.inner, inner)
        path = StepPath(self.solver.interpolation_cls, t0, t1, dense, y0, self.to_parameters, known)
        reached, off = (
            None if y is None else as_parameters(self.to_parameters, y) for y in (y1, error)
        )
        before = solver_state.values
        step = StepCrossings(self.observer, path, reached, off, before, solver_state.speed)
        found = Brackets.empty(solver_state.values.shape[0], solver_state.unresolved)
        found, values = step.find_crossings(found)
        log_and_end = solver_state.log, solver_state.stop_time
        state_by_step = self._second_step(terms, t0, t1, y0, args, dense)
        searched = _SearchedStep(step, found, values)
        log, end, path = self._log_crossings(searched, log_and_end, state_by_step)

        stopped = None
        if solver_state.stop_state is not None:
            # y1 itself stays the step's own: the controller judges the step by it.
            ends = jnp.isfinite(end)
            stopped = lax.cond(ends, lambda: path.state_at(end), lambda: y1)
            fine = result == diffrax.RESULTS.successful
            result = diffrax.RESULTS.where(ends & fine, EVENT, result)
        state = RecorderState(
            inner=inner,
            values=values,
            speed=lax.stop_gradient(jnp.abs(values - before) / (t1 - t0)).astype(values.dtype),
            log=log,
            stop_time=end,
            unresolved=found.finish(t0, t1),
            stop_state=stopped,
        )
        return y1, error, dense, state, result

    def _second_step(self, terms, t0, t1, y0, args, dense) -> Callable[[Array], Parameters] | None:
        """Return the state at a time in the step as a step that ends there; None without one."""
        solver = self.solver
        if not (self.takes_second_step and is_explicit(solver)):
            return None

        def state_by_step(end: Array) -> Parameters:
            # The first stage is the same.
            velocity = jax.tree.map(lambda k: k[0] / (t1 - t0).astype(k.dtype), dense["k"])
            return Explicit(solver).step_from(velocity, None, terms, t0, end, y0, args)[1][0]

        return state_by_step

    def _log_crossings(
        self,
        searched: _SearchedStep,
        log_and_end: tuple[EventBuffer, Array],
        state_by_step: Callable[[Array], Parameters] | None,
    ) -> tuple[EventBuffer, Array, StepPath]:
        """Log every crossing that was bracketed; `state_by_step` as for `_locate_crossing`.

        **Returns:** the log, the time of the first terminating event, else inf, and the path
        through the state there.
        """
        step, brackets, terminating = searched.step, searched.brackets, self.observer.ends_run
        ends = any(watch.terminate for watch in self.observer.watches)
        none = jax.tree.map(jnp.zeros_like, step.path.start) if ends and state_by_step else None

        def log_one(carry):
            k, log, end, offset = carry
            found = self._locate_crossing(searched, k, state_by_step)
            component, rising = brackets.marks[k]
            side = jnp.where(rising > 0, 1, -1)[None]
            log = log.append(found.time, found.uncertainty, component[None], -side, side)
            first = terminating[component] & (found.time < end)
            if offset is not None:
                offset = jax.tree.map(lambda a, b: jnp.where(first, a, b), found.offset, offset)
            return k + 1, log, jnp.where(first, found.time, end), offset

        _, log, end, offset = while_loop(
            lambda carry: carry[0] < jnp.minimum(brackets.count, brackets.capacity),
            log_one,
            (jnp.zeros((), jnp.int32), *log_and_end, none),
            kind=self.loop_kind,  # pyright: ignore
            max_steps=brackets.capacity,
        )
        return log, end, step.path.with_offset(offset)

    def _locate_crossing(
        self,
        searched: _SearchedStep,
        k: Array,
        state_by_step: Callable[[Array], Parameters] | None,
    ) -> "_LocatedRoot":
        """Locate crossing number k on the dense output, then on what a second step says.

        `state_by_step` returns the state at a time to the order of the method; None where the dense
        output has the last word. The second step ends at the dense output's root. Its state moves
        the path, and Newton's method twice finds the root on the moved one. In a loop, so that
        the watched functions are compiled once.
        """
        path, low = searched.step.path, searched.brackets.spans[k, 0]
        start = jax.tree.map(jnp.zeros_like, None if state_by_step is None else path.start)
        found = _LocatedRoot(low, jnp.zeros_like(low), jnp.zeros_like(low), low, start)
        if state_by_step is None:
            return self._improve_crossing(path, searched, k, found, jnp.zeros((), int))

        def improve_once(found: _LocatedRoot, number: Array) -> tuple[_LocatedRoot, None]:
            def second_step() -> Parameters:
                there = found.time.astype(jnp.result_type(path.t0))
                return jax.tree.map(jnp.subtract, state_by_step(there), path.state_at(there))

            offset = lax.cond(number == 1, second_step, lambda: found.offset)
            moved = path.with_offset(offset)
            at_offset = found._replace(offset=offset)
            return self._improve_crossing(moved, searched, k, at_offset, number), None

        return lax.scan(improve_once, found, jnp.arange(ROUNDS))[0]

    def _improve_crossing(
        self,
        path: StepPath,
        searched: _SearchedStep,
        k: Array,
        found: "_LocatedRoot",
        number: Array,
    ) -> "_LocatedRoot":
        """Locate crossing number k on a path: in its bracket in round 0, else near what was found.

        Derivatives are those of the last round.
        """
        (step, brackets, end_values), error = searched, searched.step.error
        still, network = lax.stop_gradient(path), self.observer.network
        low, high, spread, *at_bracket = brackets.spans[k]
        at_bracket = at_bracket[0].astype(network.dtype), at_bracket[1].astype(network.dtype)
        component, rising = brackets.marks[k]
        seen = lax.stop_gradient(jnp.stack([step.start_values, end_values])[:, component])
        length = (still.t1 - still.t0).astype(low.dtype)
        rounding = 16 * jnp.finfo(low.dtype).eps
        tolerance = 1e-12 * length + 4 * jnp.finfo(low.dtype).eps * jnp.abs(high)
        first, before, rough = number == 0, *lax.stop_gradient((found.time, found.rough))
        near = [jnp.clip(rough + side * NEARBY * length, low, high) for side in (-1, 1)]
        since, until = jnp.where(first, low, before), jnp.where(first, high, before)

        def find_root(watched: AbstractWatched, k: Array) -> tuple[Array, Array, Array]:
            value = _cast_values(network.dtype, watched.function_of_time(network, still, k))
            # Of order statistics only the sign of what is watched is their own.
            apart = isinstance(watched, OrderStatistic)
            at_ends = lax.map(value, jnp.stack([still.t0, still.t1])) if apart else seen
            bracket = bracket_root(value, since, until, rising > 0, tolerance, at_bracket)
            middle = lax.stop_gradient((bracket[0] + bracket[1]) / 2)
            moving = _cast_values(network.dtype, watched.function_of_time(network, path, k))
            g, slope = jax.jvp(moving, (middle,), (jnp.ones_like(middle),))
            g0 = lax.stop_gradient(g)
            slope = lax.stop_gradient(jnp.where((slope == 0) | (spread > 0), jnp.inf, slope))
            allowed = [jnp.where(first, a, b) for a, b in zip(bracket, near, strict=True)]
            newton = jnp.clip(middle - g0 / slope, *allowed)
            # Where Newton's step led no nearer to the root, the function is none to take one of.
            lost = (number == ROUNDS - 1) & (jnp.abs(g0) > jnp.abs(found.value) / 2)
            time = lax.stop_gradient(jnp.where(lost, rough, newton)) - (g - g0) / slope
            shift = jnp.zeros_like(time)
            if error is not None:
                # The error is that of the step's end; its effect there stands for all of the step.
                there = lax.stop_gradient(jax.tree.map(jnp.add, step.end_parameters, error))
                later = watched.component(network.with_parameters(there), k).astype(g.dtype)
                off = jnp.abs(later - at_ends[1])
                # A value that is within its error all step long may cross at any time.
                noise = jnp.max(jnp.abs(at_ends)) <= NOISE_FACTOR * (
                    off + rounding * watched.level_scale
                )
                # At a flat root the quotient says nothing, but that the root is in this step.
                most = length.astype(off.dtype)
                shift = jnp.where(noise, jnp.inf, jnp.minimum(off / jnp.abs(slope), most))
            width = bracket[1] - bracket[0]
            return time, jnp.maximum(width + shift, spread), g0

        time, uncertainty, value = self.observer.select_watch(component, find_root)
        moved = jnp.maximum(found.uncertainty, jnp.abs(time - rough))
        uncertainty = lax.stop_gradient(jnp.where(first, uncertainty, moved))
        return _LocatedRoot(time, uncertainty, value, jnp.where(first, time, rough), found.offset)


def _cast_values(dtype: DTypeLike, function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return the function with its values in the run's precision, whatever the user's is."""
    return lambda t: function(t).astype(dtype)
