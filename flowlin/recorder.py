"""A diffrax solver that records events while another solver integrates.

diffrax rolls a solver's state back when a step is rejected, so a log kept there holds accepted
steps only. The recorder changes neither steps nor error estimates.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from flowlin.eventlog import Channel, EventLog
from flowlin.network import AbstractNetwork, Parameters
from flowlin.path import Path
from flowlin.roots import bracketed_root
from flowlin.watched import AbstractWatched, Watch
from flowlin.wrapped import Wrapped

Found = TypeVar("Found")

CHECKS = 4  # points per step at which signs are compared, against double crossings within a step

# What a step returns to make diffrax stop at a terminating event. diffrax overwrites a step's
# `event_occurred` by the controller's `successful`, so it takes a failure; this one can come from
# nowhere else here, and `log.end` tells it apart.
STOP = diffrax.RESULTS.max_steps_rejected


class Log(eqx.Module):
    """Events found so far; slots beyond `count` hold time = inf."""

    time: Float[Array, " K"]
    uncertainty: Float[Array, " K"]
    component: Int[Array, " K"]
    rising: Bool[Array, " K"]
    count: Int[Array, ""]
    end: Float[Array, ""]  # time of the first terminating event, else inf

    @staticmethod
    def empty(capacity: int, dtype: Any) -> "Log":
        """A log with room for `capacity` events."""
        return Log(
            jnp.full(capacity, jnp.inf, dtype),
            jnp.zeros(capacity, dtype),
            jnp.zeros(capacity, jnp.int32),
            jnp.zeros(capacity, bool),
            jnp.zeros((), jnp.int32),
            jnp.asarray(jnp.inf, dtype),
        )

    def grown(self, capacity: int) -> "Log":
        """The same log with more room; after an overflow what did not fit is missing."""
        more = Log.empty(capacity - self.time.shape[0], self.time.dtype)
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]) if a.ndim else a, self, more)

    def append(self, time, uncertainty, component, rising, stops) -> "Log":
        """One event more; beyond the capacity it is counted and dropped."""
        k = self.count
        return Log(
            self.time.at[k].set(time, mode="drop"),
            self.uncertainty.at[k].set(uncertainty, mode="drop"),
            self.component.at[k].set(component.astype(jnp.int32), mode="drop"),
            self.rising.at[k].set(rising, mode="drop"),
            k + 1,
            jnp.where(stops, jnp.minimum(self.end, time), self.end),
        )


class Observer(eqx.Module):
    """All watched values of a state, laid end to end: shape (C,)."""

    watches: tuple[Watch, ...]
    network: AbstractNetwork

    def __call__(self, parameters: Parameters) -> Float[Array, " C"]:
        """The values at these parameters."""
        network = self.network.with_parameters(parameters)
        values = [jnp.ravel(watch.function(network)) for watch in self.watches]
        return jnp.concatenate(values).astype(network.dtype)

    def inside(self, parameters: Parameters, before: Float[Array, " C"]) -> Float[Array, " C"]:
        """The values inside a step; those of monotone watches are left as `before` it."""
        network, start, values = self.network.with_parameters(parameters), 0, []
        for watch in self.watches:
            end = start + watch.channel.size
            old = before[start:end]
            values.append(old if watch.monotone else jnp.ravel(watch.function(network)))
            start = end
        return jnp.concatenate(values).astype(network.dtype)

    def switch(self, k: Array, found: Callable[[AbstractWatched, Array], Found]) -> Found:
        """`found` of the watched function that value k belongs to, and of its component."""
        starts = np.cumsum([0] + [watch.channel.size for watch in self.watches])
        which = jnp.searchsorted(jnp.asarray(starts[1:]), k, side="right")
        branches = [
            lambda local, watch=watch, start=start: found(watch.function, local - start)
            for watch, start in zip(self.watches, starts[:-1].tolist(), strict=True)
        ]
        return lax.switch(which, branches, k)

    @property
    def directions(self) -> tuple[Array, Array]:
        """Per component: whether rising, and whether falling, counts."""
        up = [jnp.full(w.channel.size, w.direction != "down") for w in self.watches]
        down = [jnp.full(w.channel.size, w.direction != "up") for w in self.watches]
        return jnp.concatenate(up), jnp.concatenate(down)

    @property
    def monotone(self) -> Bool[Array, " C"]:
        """Per component: whether only the ends of a step are looked at."""
        return jnp.concatenate([jnp.full(w.channel.size, w.monotone) for w in self.watches])

    @property
    def terminating(self) -> Bool[Array, " C"]:
        """Per component: whether its event ends the run."""
        return jnp.concatenate([jnp.full(w.channel.size, w.terminate) for w in self.watches])


def event_log(log: Log | None, observer: Observer, end: Array) -> EventLog:
    """The log sorted by time and in terms of channels, without what happened after `end`."""
    channels: list[Channel] = []
    maps, initial = [], []
    values = observer(observer.network.parameters) if observer.watches else jnp.zeros(0)
    start = 0
    for watch in observer.watches:
        if watch.channel not in channels:
            channels.append(watch.channel)
            initial.append(jnp.full(watch.channel.size, -1))
        k, size = channels.index(watch.channel), watch.channel.size
        maps.append(jnp.arange(size) + sum(c.size for c in channels[:k]))
        above = values[start : start + size] > 0
        initial[k] = jnp.where(above, jnp.maximum(initial[k], watch.above), initial[k])
        start += size
    if log is None:
        none, index = jnp.zeros(0, end.dtype), jnp.zeros(0, int)
        return EventLog(none, none, index, index, index, jnp.zeros((), int), index, ())
    below = jnp.concatenate([jnp.full(w.channel.size, w.below) for w in observer.watches])
    above = jnp.concatenate([jnp.full(w.channel.size, w.above) for w in observer.watches])
    time = jnp.where(log.time <= end, log.time, jnp.inf)
    late = jnp.sum(jnp.isfinite(log.time)) - jnp.sum(jnp.isfinite(time))
    order = jnp.argsort(time)
    watched, rising = log.component[order], log.rising[order]
    below, above = below[watched], above[watched]
    return EventLog(
        time[order],
        log.uncertainty[order],
        jnp.concatenate(maps)[watched],
        jnp.where(rising, below, above),
        jnp.where(rising, above, below),
        log.count - late,
        jnp.concatenate(initial),
        tuple(channels),
    )


class RecorderState(eqx.Module):
    """Carried from step to step, and rolled back by diffrax when a step is rejected."""

    inner: Any
    values: Float[Array, " C"]  # watched values at the start of the next step
    log: Log
    stopped: Parameters | None  # the state at the terminating event; None if none can happen


class Recorder(Wrapped[RecorderState]):
    """Wraps a solver and logs the sign changes of watched values.

    After each step of the inner solver the watched values are compared at `CHECKS` points of its
    dense output; every sign change is bracketed there, and one Newton step finishes it, which
    also carries the derivative: d t = -d g / (dg/dt). At a terminating event the state there is
    kept and diffrax stops after the step.
    """

    solver: diffrax.AbstractSolver
    observer: Observer
    capacity: int = eqx.field(static=True)
    loop: str = eqx.field(static=True)  # kind of the loop over events, see `equinox.internal`

    def init(self, terms, t0, t1, y0, args) -> RecorderState:
        """Inner state, watched values at the start, empty log."""
        values = self.observer(y0)
        return RecorderState(
            self.solver.init(terms, t0, t1, y0, args),
            values,
            Log.empty(self.capacity, jnp.result_type(t0, values)),
            y0 if any(watch.terminate for watch in self.observer.watches) else None,
        )

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step of the inner solver, then the events in it."""
        y1, error, dense, inner, result = self.solver.step(
            terms, t0, t1, y0, args, solver_state.inner, made_jump
        )
        path = Path(self.solver.interpolation_cls, t0, t1, dense, y0)
        end_values = self.observer(y1)
        times = t0 + (t1 - t0) * jnp.arange(CHECKS + 1) / CHECKS
        before = solver_state.values
        inside = lax.map(lambda t: self.observer.inside(path(t), before), times[1:-1])
        table = jnp.concatenate([before[None], inside, end_values[None]])
        log = self._record(path, error, times, table, solver_state.log)

        stopped = None
        if solver_state.stopped is not None:
            # y1 itself stays the step's own: the controller judges the step by it.
            ends = jnp.isfinite(log.end)
            stopped = lax.cond(ends, lambda: path(log.end), lambda: y1)
            fine = result == diffrax.RESULTS.successful
            result = diffrax.RESULTS.where(ends & fine, STOP, result)
        return y1, error, dense, RecorderState(inner, end_values, log, stopped), result

    def _record(self, path, error, times, table, log: Log) -> Log:
        """Append every crossing between neighbouring rows of `table`."""
        above = lax.stop_gradient(table) > 0
        up, down = self.observer.directions
        rising = ~above[:-1] & above[1:] & up
        crossed = (rising | (above[:-1] & ~above[1:] & down)).ravel()
        components = table.shape[1]
        terminating = self.observer.terminating

        def body(carry):
            left, log = carry
            flat = jnp.argmax(left)
            row, component = flat // components, flat % components
            upward = rising[row, component]
            time, uncertainty = self._locate(path, error, times, row, component, upward)
            log = log.append(time, uncertainty, component, upward, terminating[component])
            return left.at[flat].set(False), log

        _, log = eqxi.while_loop(
            lambda carry: jnp.any(carry[0]),
            body,
            (crossed, log),
            kind=self.loop,  # pyright: ignore
            max_steps=crossed.shape[0],
        )
        return log

    def _locate(self, path, error, times, row, component, upward) -> tuple[Array, Array]:
        """Time of one crossing and its uncertainty, for `component` between rows row, row + 1."""

        still = lax.stop_gradient(path)
        low = jnp.where(self.observer.monotone[component], times[0], times[row])
        tolerance = 1e-12 * (times[-1] - times[0])
        tolerance += 4 * jnp.finfo(times.dtype).eps * jnp.abs(times[row + 1])

        def find(watched: AbstractWatched, k: Array) -> tuple[Array, Array]:
            network = self.observer.network
            value = _in(network.dtype, watched.along(network, still, k))
            bracket = bracketed_root(value, low, times[row + 1], upward, tolerance)
            middle = lax.stop_gradient((bracket[0] + bracket[1]) / 2)
            g0, slope = jax.jvp(value, (middle,), (jnp.ones_like(middle),))
            slope = lax.stop_gradient(jnp.where(slope == 0, jnp.inf, slope))
            newton = lax.stop_gradient(jnp.clip(middle - g0 / slope, *bracket))
            g = _in(network.dtype, watched.along(network, path, k))(middle)
            time = newton - (g - lax.stop_gradient(g)) / slope
            shift = jnp.zeros_like(time)
            if error is not None:
                off = jax.tree.map(jnp.add, still(middle), lax.stop_gradient(error))
                there = watched.component(network.with_parameters(off), k).astype(g.dtype)
                shift = jnp.abs((there - g0) / slope)
            return time, lax.stop_gradient(bracket[1] - bracket[0] + shift)

        return self.observer.switch(component, find)


def _in(dtype: Any, function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The function with its values in the run's precision, whatever the user's is."""
    return lambda t: function(t).astype(dtype)
