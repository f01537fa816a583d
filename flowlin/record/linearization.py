"""The linearization time t*, and the activity of a hidden layer as step functions of time."""

import functools
import math
import operator
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from flowlin._tools.arguments import boolean, checked
from flowlin._tools.arrays import AnyArray, as_dtype, is_traced
from flowlin._tools.files import saveable
from flowlin._tools.printing import Summary, concrete_array, format_count, format_number, print_by
from flowlin._tools.warn import warn_user
from flowlin.record.event_log import EventLog
from flowlin.record.event_log_summary import number_with_error
from flowlin.record.touches import mask_of_touches


def linearization_time_summary(found: "LinearizationTime") -> Summary:
    """Summarise t*, its fraction, and how long it lasts."""
    return Summary("LinearizationTime", _t_star_rows(found), inline=True)


def linearization_summary(found: "Linearization") -> Summary:
    """Summarise t* in both conventions."""
    rows = [
        (name, *(cell for _, cell in _t_star_rows(getattr(found, name)))) for name in CONVENTIONS
    ]
    return Summary(f"Linearization of {format_count(found.open_counts.units, 'unit')}", rows)


CONVENTIONS = ("open", "closed")


def _t_star_rows(found: "LinearizationTime") -> list[tuple[str, ...]]:
    """Format t* = time ± half its bracket, the fraction, how long it lasts."""
    time, bracket = concrete_array(found.time, 0), concrete_array(found.bracket, 1)
    when = format_number(found.time)
    if time is not None and bracket is not None:
        when = number_with_error(float(time), float(np.max(np.abs(bracket - time))))
    rows = [
        ("time", f"t* = {when}"),
        ("fraction", f"fraction {format_number(found.fraction)}"),
        ("lasts", f"lasts {format_number(found.lasts)}"),
    ]
    until = concrete_array(found.determined_until, 0)
    if until is not None and np.isfinite(until):
        rows[2] = ("lasts", f"not determined after t = {format_number(until)}")
    return rows


def unit_channel(name: str, quantile: float) -> str:
    """Return the channel name of unit switches, which tells quantiles apart."""
    return name if quantile == 0 else f"{name}({quantile:g})"


@saveable()
class Activity(NamedTuple):
    """Fractions of a hidden layer's units; they sum to one."""

    always_on: Array
    gating: Array
    off: Array


@saveable()
class UnitCounts(eqx.Module):
    """Numbers of always-on and always-off units, constant from each time to the next.

    - `time`, `uncertainty`: (K + 1,), the first at t = 0; padded with inf under `jit`.
    - `on`, `off`: (K + 1,), counts from that time on.
    - `units`: H.
    """

    time: Float[Array, " K"]
    uncertainty: Float[Array, " K"]
    on: Int[Array, " K"]
    off: Int[Array, " K"]
    units: int = eqx.field(static=True)

    def activity(self, t: Array) -> Activity:
        """Return the fractions at times t of any shape, right-continuous."""
        if is_traced((self, t)):
            at = jnp.clip(jnp.searchsorted(self.time, t, side="right") - 1, 0)
            on, off = self.on[at] / self.units, self.off[at] / self.units
            return Activity(on, 1 - on - off, off)
        # By NumPy, which compiles nothing.
        at = np.maximum(np.searchsorted(np.asarray(self.time), np.asarray(t), side="right") - 1, 0)
        units = np.asarray(self.units, jnp.result_type(float))
        counts = (np.asarray(a)[at].astype(units.dtype) for a in (self.on, self.off))
        on, off = (count / units for count in counts)
        return Activity(*map(jax.device_put, (on, 1 - on - off, off)))


@print_by(linearization_time_summary)
@saveable(determined_until=math.inf)
class LinearizationTime(eqx.Module):
    """t* in one convention.

    - `time`: first time at which the always-on fraction is at its maximum over the run.
    - `fraction`: that maximum.
    - `bracket`: (earliest, latest) time that the event's uncertainty allows; for a discrete run,
      the step before and the step itself.
    - `lasts`: how long the maximum then holds, up to the next change of the fraction.
    - `determined_until`: the first time of a gate's event that is not determined, inf if all are;
      such events have no say in t*, and what the flow does later may move it.
    """

    time: Float[Array, ""]
    fraction: Float[Array, ""]
    bracket: Float[Array, "2"]
    lasts: Float[Array, ""]
    determined_until: Float[Array, ""] | float = math.inf


@print_by(linearization_summary)
@saveable()
class Linearization(eqx.Module):
    """The linearization time of a hidden layer and the activity that it is read from.

    t* = inf{t : f_on(t) = max_s f_on(s)} (lead paper Sec. 5.4; the infimum since f_on has plateaus,
    errata E13). The maximum is over the run, so t* is not causal and depends on the horizon while
    the fraction still rises, of which a `fl.LinearizationWarning` tells. `open` counts a pair at
    its kink as off, `closed` as on.
    """

    open: LinearizationTime
    closed: LinearizationTime
    open_counts: UnitCounts
    closed_counts: UnitCounts

    @checked(closed=boolean)
    def activity(self, t: ArrayLike, closed: bool = False) -> Activity:
        """Return the always-on, gating and off fractions at times t, exact step functions."""
        counts = self.closed_counts if closed else self.open_counts
        return counts.activity(as_dtype(t, counts.time.dtype))


class LinearizationWarning(UserWarning):
    """The maximum at which t* is read off lasts until the run ends: t* may move if it goes on."""


def linearization_time(
    counts: UnitCounts, end: Array, determined_until: ArrayLike = math.inf
) -> LinearizationTime:
    """Find the first time of the maximal always-on count before `end`."""
    xp = _array_module((counts, end, determined_until))
    times, halves, on = (xp.asarray(a) for a in (counts.time, counts.uncertainty, counts.on))
    end, units = xp.asarray(end), xp.asarray(counts.units, times.dtype)
    if xp is jnp:
        # The barrier hides that the number is constant: XLA would multiply by its inverse, and 3 of
        # 5 units would not be 0.6.
        units = lax.optimization_barrier(units)
    real = xp.isfinite(times)
    on = xp.where(real, on, -1)
    best = xp.argmax(on)  # the first of equals
    changed = real & (xp.arange(on.shape[0]) > best) & (on != on[best])
    after = xp.where(xp.any(changed), times[xp.argmax(changed)], end)
    time, half = times[best], halves[best]
    bracket = xp.stack([xp.maximum(time - half, 0.0), xp.minimum(time + half, end)])
    fraction, until = on[best].astype(units.dtype) / units, xp.asarray(determined_until, time.dtype)
    found = (time, fraction, bracket, after - time, until)
    return LinearizationTime(*(as_dtype(a, time.dtype) for a in found))


def lasts_until(found: LinearizationTime, end: ArrayLike) -> bool:
    """Tell whether a maximum later than t = 0 still holds at the end of a run."""
    time = np.asarray(found.time)
    return bool(time > 0 and time + np.asarray(found.lasts) >= np.asarray(end))


def linearization_of_counts(counts: tuple[UnitCounts, UnitCounts], end: Array) -> Linearization:
    """Return t* in both conventions from the (open, closed) counts of a run until `end`."""
    return _warn_if_lasting(_both_conventions(counts, end), end)


def end_of_certainty(log: EventLog, counts: dict[str, Array]) -> ArrayLike:
    """Return until when a run's log has all events: once confirmed, until a slide has decayed."""
    return counts.get("slides_decayed", math.inf) if log.confirmed else math.inf


def linearization_of_log(
    log: EventLog,
    layer: int,
    samples: int,
    quantile: float,
    end: Array,
    settled: bool,
    certain_until: ArrayLike,
) -> Linearization:
    """Return t* in both conventions from a log of gates, or of unit switches at a quantile.

    Nothing moves it any more where the run has `settled`, and nothing is warned of. The log has
    all events up to `certain_until`.

    **Raises:** `ValueError` if the run logged neither.
    """
    names = [(c.name, c.prefix) for c in log.channels]
    if ("gate", (layer,)) in names:
        channel, k = names.index(("gate", (layer,))), math.floor(quantile * samples)
        log, until = _without_undetermined(log, [channel])
        counts = [_count_gates(log, channel, k, lowest) for lowest in (1, 0)]
    else:
        wanted = [(unit_channel(n, quantile), (layer,)) for n in ("always_on", "always_off")]
        if wanted[0] not in names:
            raise ValueError(
                f"the run recorded no gates of layer {layer} at quantile {quantile:g}: it has too "
                "many (unit, sample) pairs to log each. Pass "
                f"`events=(fl.UnitSwitches({quantile:g}),)` to it."
            )
        bottom, top = (names.index(w) for w in wanted)
        log, until = _without_undetermined(log, [bottom, top])
        counts = [_count_units(log, bottom, top, lowest) for lowest in (1, 0)]
    xp = _array_module((until, certain_until))
    until = xp.minimum(xp.asarray(until), xp.asarray(certain_until))
    found = _both_conventions((counts[0], counts[1]), end, until)
    return found if settled else _warn_if_lasting(found, end)


def _without_undetermined(log: EventLog, channels: list[int]) -> tuple[EventLog, Array]:
    """Return the log without events that are not determined, and when these channels' first is.

    It is without touches, too; after one the sides are known again.
    """
    if _array_module(log) is np and np.any(touches := mask_of_touches(log)):
        log = log.where(jnp.asarray(~touches))
    determined, xp = log.is_determined, _array_module(log)
    if xp is np and np.all(np.asarray(determined)):
        return log, as_dtype(np.inf, log.time.dtype)
    component, ends = xp.asarray(log.component), [log.offsets[k : k + 2] for k in channels]
    mine = functools.reduce(operator.or_, [(component >= a) & (component < b) for a, b in ends])
    doubtful = mine & ~xp.asarray(determined)
    first = xp.min(xp.where(doubtful, xp.asarray(log.time), xp.inf), initial=xp.inf)
    return log.where(determined), as_dtype(first, log.time.dtype)


def _warn_if_lasting(found: Linearization, end: Array) -> Linearization:
    """Warn where the maximum still holds when the run ends; return t* unchanged."""
    if is_traced(found):
        return found
    for label, t_star in (("open", found.open), ("closed", found.closed)):
        time, until = float(t_star.time), float(t_star.determined_until)
        if until < float(end):
            warn_user(
                f"the {label} t* = {time:.6g} is the maximum among events that are determined, and "
                f"from t = {until:.6g} on some are not: whether a later t* follows is not known at "
                "this `rtol`, and after convergence at none.",
                LinearizationWarning,
            )
        elif lasts_until(t_star, end):
            warn_user(
                f"the {label} always-on fraction is still at its maximum "
                f"{float(t_star.fraction):.3g} when the run ends at t = {float(end):.6g}; t* "
                "may move if the run goes on, so increase `t1` (or `steps`).",
                LinearizationWarning,
            )
    return found


def _both_conventions(
    counts: tuple[UnitCounts, UnitCounts], end: Array, until: ArrayLike = math.inf
) -> Linearization:
    """Return t* in both conventions from their counts."""
    opened, closed = (linearization_time(c, end, until) for c in counts)
    return Linearization(opened, closed, *counts)


# ---- Counts of units along a log: by NumPy, which compiles nothing, where its numbers are known.


def _array_module(arrays: PyTree) -> ModuleType:
    """Return `jax.numpy` for arrays that JAX traces, else NumPy."""
    return jnp if is_traced(arrays) else np


def _count_gates(log: EventLog, channel: int, k: int, lowest: int) -> UnitCounts:
    """Count units from gates, on where the side is at least `lowest` (1 open, 0 closed).

    A unit is linear with at most k samples off, and off with at most k on.
    """
    xp = _array_module(log)
    units, samples = log.channels[channel].shape
    start, stop = log.offsets[channel : channel + 2]
    component = xp.asarray(log.component)
    mine = (component >= start) & (component < stop)
    change = xp.where(mine, _change_per_event(log, lowest), 0)
    # Events of other channels make one more group.
    unit = xp.where(mine, (component - start) // samples, units)
    initial = xp.asarray(log.initial)[start:stop].reshape(units, samples) >= lowest
    first = xp.append(xp.sum(initial, axis=1, dtype=int), 0)
    # Samples of the event's unit that are on after the event.
    number = first[unit] + _cumulative_sums_in_groups(unit, change)

    def count_units_where(holds: Callable[[AnyArray], AnyArray]) -> AnyArray:
        moved = holds(number).astype(int) - holds(number - change).astype(int)
        moved = xp.cumsum(xp.where(mine, moved, 0))
        return xp.append(xp.zeros(1, moved.dtype), moved) + xp.sum(holds(first[:-1]), dtype=int)

    on = count_units_where(lambda number: number >= samples - k)
    off = count_units_where(lambda number: number <= k)
    return _unit_counts(log, on, off, units)


def _count_units(log: EventLog, bottom: int, top: int, lowest: int) -> UnitCounts:
    """Count units from their switches: every event moves one unit in or out.

    `bottom` and `top` are the channels of units that are always on and always off.
    """
    xp = _array_module(log)
    (units,) = log.channels[bottom].shape
    component, change = xp.asarray(log.component), _change_per_event(log, lowest)

    def count_units_of(which: int) -> AnyArray:
        start, stop = log.offsets[which : which + 2]
        mine = (component >= start) & (component < stop)
        first = xp.sum(xp.asarray(log.initial)[start:stop] >= lowest, dtype=int)
        moved = xp.cumsum(xp.where(mine, change, 0))
        return xp.append(xp.zeros(1, moved.dtype), moved) + first

    return _unit_counts(log, count_units_of(bottom), units - count_units_of(top), units)


def _change_per_event(log: EventLog, lowest: int) -> AnyArray:
    """Return +1 where a component comes on, -1 where it goes off, else 0, in the padding too."""
    xp = _array_module(log)
    old, new = xp.asarray(log.old), xp.asarray(log.new)
    change = (new >= lowest).astype(int) - (old >= lowest).astype(int)
    return xp.where(xp.isfinite(xp.asarray(log.time)), change, 0)


def _cumulative_sums_in_groups(group: AnyArray, change: AnyArray) -> AnyArray:
    """Return cumulative sums of the changes, one for each group."""
    xp = _array_module((group, change))
    order = xp.argsort(group, stable=True)
    group, change = group[order], change[order]
    total = xp.cumsum(change)
    begins = xp.searchsorted(group, group)
    found = total - (total - change)[begins]
    return found[xp.argsort(order)]


def _unit_counts(log: EventLog, on: AnyArray, off: AnyArray, units: int) -> UnitCounts:
    """Put counts at t = 0 and after every event together with their times."""
    xp = _array_module(log)
    zero = xp.zeros(1, log.time.dtype)
    times, halves = (xp.append(zero, xp.asarray(a)) for a in (log.time, log.uncertainty))
    to_array = jnp.asarray if xp is jnp else jax.device_put
    return UnitCounts(*(to_array(a) for a in (times, halves, on, off)), units=units)
