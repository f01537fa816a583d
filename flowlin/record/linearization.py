"""The linearization time t*, and the activity of a hidden layer as step functions of time."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int

from flowlin._tools.arguments import boolean, checked
from flowlin._tools.arrays import is_traced
from flowlin._tools.files import saveable
from flowlin._tools.numerics import jit_by_array
from flowlin._tools.printing import Summary, concrete_array, format_count, format_number, print_by
from flowlin._tools.warn import warn_user
from flowlin.record.event_log import EventLog
from flowlin.record.event_log_summary import mask_of_determined, number_with_error


def linearization_time_summary(found: Any) -> Summary:
    """Summarise t*, its fraction, and how long it lasts."""
    return Summary("LinearizationTime", _t_star_rows(found), inline=True)


def linearization_summary(found: Any) -> Summary:
    """Summarise t* in both conventions."""
    rows = [
        (name, *(cell for _, cell in _t_star_rows(getattr(found, name)))) for name in CONVENTIONS
    ]
    return Summary(f"Linearization of {format_count(found.open_counts.units, 'unit')}", rows)


CONVENTIONS = ("open", "closed")


def _t_star_rows(found: Any) -> list[tuple[str, ...]]:
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
        at = jnp.clip(jnp.searchsorted(self.time, t, side="right") - 1, 0)
        on, off = self.on[at] / self.units, self.off[at] / self.units
        return Activity(on, 1 - on - off, off)


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
        return counts.activity(jnp.asarray(t))


class LinearizationWarning(UserWarning):
    """The maximum at which t* is read off lasts until the run ends: t* may move if it goes on."""


def linearization_time(
    counts: UnitCounts, end: Array, determined_until: ArrayLike = math.inf
) -> LinearizationTime:
    """Find the first time of the maximal always-on count before `end`."""
    real = jnp.isfinite(counts.time)
    on = jnp.where(real, counts.on, -1)
    best = jnp.argmax(on)  # the first of equals
    changed = real & (jnp.arange(on.shape[0]) > best) & (on != on[best])
    after = jnp.where(jnp.any(changed), counts.time[jnp.argmax(changed)], end)
    time, half = counts.time[best], counts.uncertainty[best]
    bracket = jnp.stack([jnp.maximum(time - half, 0.0), jnp.minimum(time + half, end)])
    # The barrier hides that the number is constant: XLA would multiply by its inverse, and 3 of 5
    # units would not be 0.6.
    units = lax.optimization_barrier(jnp.asarray(counts.units, time.dtype))
    fraction = on[best].astype(units.dtype) / units
    until = jnp.asarray(determined_until, time.dtype)
    return LinearizationTime(time, fraction, bracket, after - time, until)


def linearization_of_counts(counts: tuple[UnitCounts, UnitCounts], end: Array) -> Linearization:
    """Return t* in both conventions from the (open, closed) counts of a run until `end`."""
    return _warn_if_lasting(_both_conventions(counts, end, math.inf), end)


def linearization_of_log(
    log: EventLog, layer: int, samples: int, quantile: float, end: Array, settled: bool
) -> Linearization:
    """Return t* in both conventions from a log of gates, or of unit switches at a quantile.

    Nothing moves it any more where the run has `settled`.

    **Raises:** `ValueError` if the run logged neither.
    """
    names = [(c.name, c.prefix) for c in log.channels]
    if ("gate", (layer,)) in names:
        channel, k = names.index(("gate", (layer,))), math.floor(quantile * samples)
        log, until = _without_undetermined(log, [channel])
        found = _both_from_gates(_pad_log(log), channel, k, end, until)
        return found if settled else _warn_if_lasting(found, end)
    wanted = [(unit_channel(n, quantile), (layer,)) for n in ("always_on", "always_off")]
    if wanted[0] not in names:
        raise ValueError(
            f"the run recorded no gates of layer {layer} at quantile {quantile:g}: it has too "
            "many (unit, sample) pairs to log each. Pass "
            f"`events=(fl.UnitSwitches({quantile:g}),)` to it."
        )
    bottom, top = (names.index(w) for w in wanted)
    log, until = _without_undetermined(log, [bottom, top])
    found = _both_from_units(_pad_log(log), bottom, top, end, until)
    return found if settled else _warn_if_lasting(found, end)


def _without_undetermined(log: EventLog, channels: list[int]) -> tuple[EventLog, Array]:
    """Return the log without events that are not determined, and when these channels' first is."""
    determined = log.is_determined
    if not is_traced(determined) and np.all(np.asarray(determined)):
        return log, jnp.full((), jnp.inf, log.time.dtype)
    mine = jnp.isin(log.channel, jnp.asarray(channels, log.channel.dtype))
    first = jnp.min(jnp.where(mine & ~determined, log.time, jnp.inf), initial=jnp.inf)
    return log.where(determined), first


def _warn_if_lasting(found: Linearization, end: Array) -> Linearization:
    """Warn where the maximum still holds when the run ends; return t* unchanged."""
    if is_traced(found):
        return found
    for label, t_star in (("open", found.open), ("closed", found.closed)):
        time, lasts, until = (
            float(t_star.time), float(t_star.lasts), float(t_star.determined_until)
        )  # fmt: skip
        if until < float(end):
            warn_user(
                f"the {label} t* = {time:.6g} is the maximum among events that are determined, and "
                f"from t = {until:.6g} on some are not: whether a later t* follows is not known at "
                "this `rtol`, and after convergence at none.",
                LinearizationWarning,
            )
        elif time > 0 and time + lasts >= float(end):
            warn_user(
                f"the {label} always-on fraction is still at its maximum "
                f"{float(t_star.fraction):.3g} when the run ends at t = {float(end):.6g}; t* "
                "may move if the run goes on, so increase `t1` (or `steps`).",
                LinearizationWarning,
            )
    return found


def _pad_log(log: EventLog) -> EventLog:
    """Pad a log to a power of two, so that few lengths are ever compiled."""
    k = log.time.shape[0]
    room = max(64, 1 << (k - 1).bit_length()) - k if k else 64

    def pad_column(column: Array, value: float = 0) -> Array:
        if is_traced(column):
            return jnp.pad(column, (0, room), constant_values=value)
        # By NumPy, which compiles nothing.
        return jax.device_put(np.pad(column, (0, room), constant_values=value))

    time = pad_column(log.time, math.inf)
    return eqx.tree_at(lambda log: log.time, log.map_columns(pad_column, log.count), time)


@jit_by_array
def _both_conventions(
    counts: tuple[UnitCounts, UnitCounts], end: Array, until: ArrayLike
) -> Linearization:
    """Return t* in both conventions from their counts, in one program."""
    opened, closed = (linearization_time(c, end, until) for c in counts)
    return Linearization(opened, closed, *counts)


@jit_by_array
def _both_from_gates(
    log: EventLog, channel: int, k: int, end: Array, until: Array
) -> Linearization:
    """Return t* from gates, where a unit with at most k samples off counts as linear."""
    return _both_conventions(
        (_count_gates(log, channel, k, 1), _count_gates(log, channel, k, 0)), end, until
    )


@jit_by_array
def _both_from_units(
    log: EventLog, bottom: int, top: int, end: Array, until: Array
) -> Linearization:
    """Return t* from switches of units: `bottom` always on, `top` always off."""
    counts = _count_units(log, bottom, top, 1), _count_units(log, bottom, top, 0)
    return _both_conventions(counts, end, until)


def _count_gates(log: EventLog, channel: int, k: int, lowest: int) -> UnitCounts:
    """Count units from gates, on where the side is at least `lowest` (1 open, 0 closed).

    A unit is linear with at most k samples off, and off with at most k on.
    """
    units, samples = log.channels[channel].shape
    start = log.offsets[channel]
    initial = log.initial[start : start + units * samples].reshape(units, samples)
    number = jnp.sum(initial >= lowest, axis=1)

    def count_event(number, event):
        component, change = event
        local = component - start
        mine = (local >= 0) & (local < units * samples)
        unit = jnp.clip(local // samples, 0, units - 1)
        number = number.at[unit].add(jnp.where(mine, change, 0))
        return number, (jnp.sum(number >= samples - k), jnp.sum(number <= k))

    _, (on, off) = lax.scan(count_event, number, (log.component, _change_per_event(log, lowest)))
    first = (jnp.sum(number >= samples - k), jnp.sum(number <= k))
    return _unit_counts(log, first, (on, off), units)


def _count_units(log: EventLog, bottom: int, top: int, lowest: int) -> UnitCounts:
    """Count units from their switches: every event moves one unit in or out."""
    (units,) = log.channels[bottom].shape
    on, off = [
        log.initial[log.offsets[c] : log.offsets[c] + units] >= lowest for c in (bottom, top)
    ]
    first = (jnp.sum(on), units - jnp.sum(off))
    change = _change_per_event(log, lowest)
    rest = (
        first[0] + jnp.cumsum(jnp.where(log.channel == bottom, change, 0)),
        first[1] - jnp.cumsum(jnp.where(log.channel == top, change, 0)),
    )
    return _unit_counts(log, first, rest, units)


def _change_per_event(log: EventLog, lowest: int) -> Array:
    """Return +1 where a component comes on, -1 where it goes off, else 0, in the padding too."""
    change = (log.new >= lowest).astype(int) - (log.old >= lowest).astype(int)
    return jnp.where(jnp.isfinite(log.time), change, 0)


def _unit_counts(log: EventLog, first, rest, units: int) -> UnitCounts:
    """Join counts at t = 0 with those after every event."""
    joined = [jnp.concatenate([jnp.atleast_1d(a), b]) for a, b in zip(first, rest, strict=True)]
    zero = jnp.zeros(1, log.time.dtype)
    return UnitCounts(
        jnp.concatenate([zero, log.time]),
        jnp.concatenate([zero, log.uncertainty]),
        *joined,
        units=units,
    )


# ---- t* by NumPy, for printing: nothing is compiled, and nothing warns.
#
# The numbers are those of `Linearization` above.


class AlwaysOnCounts(NamedTuple):
    """Always-on units of a hidden layer: `on` (K + 1,) from each `time` on, the first at t = 0."""

    time: np.ndarray
    uncertainty: np.ndarray
    on: np.ndarray
    units: int
    determined_until: float = np.inf


class CountMaximum(NamedTuple):
    """t*: where the count is first at its maximum, and whether it still is when the run ends."""

    time: float
    uncertainty: float
    fraction: float
    lasting: bool
    determined_until: float


def first_maximum(counts: AlwaysOnCounts) -> CountMaximum:
    """Return t* of the counts of a run."""
    best = int(np.argmax(counts.on))  # the first of equals
    time, fraction = float(counts.time[best]), float(counts.on[best] / counts.units)
    lasting = time > 0 and bool(np.all(counts.on[best:] == counts.on[best]))
    off = float(counts.uncertainty[best])
    return CountMaximum(time, off, fraction, lasting, counts.determined_until)


def counts_of_steps(counts: Any) -> AlwaysOnCounts:
    """Return the counts of a discrete run, step by step, without padding."""
    kept = np.isfinite(np.asarray(counts.time))
    columns = (counts.time, counts.uncertainty, counts.on)
    time, uncertainty, on = (np.asarray(column)[kept] for column in columns)
    return AlwaysOnCounts(time, uncertainty, on, counts.units)


def counts_of_channel(log: Any, channel: int, lowest: int) -> AlwaysOnCounts:
    """Return the counts of a channel of gates (H, P), or of always-on units (H,).

    A pair is on where its side is at least `lowest`: 1 open, 0 closed.
    """
    shape, start = log.channels[channel].shape, log.offsets[channel]
    stop = log.offsets[channel + 1]
    component, determined = np.asarray(log.component), mask_of_determined(log)
    mine = (component >= start) & (component < stop)
    until = float(np.min(np.asarray(log.time)[mine & ~determined], initial=np.inf))
    mine &= determined
    columns = (log.time, log.uncertainty, log.component, log.old, log.new)
    time, uncertainty, component, old, new = (np.asarray(column)[mine] for column in columns)
    units, samples = (*shape, 1)[:2]
    unit = (component - start) // samples
    change = (new >= lowest).astype(int) - (old >= lowest)
    initial = np.asarray(log.initial)[start:stop].reshape(units, samples) >= lowest
    # Samples of the event's unit that are on after the event.
    number = _sums_in_groups(unit, change) + initial.sum(axis=1)[unit]
    gained = (number == samples).astype(int) - (number - change == samples)
    first = int(np.sum(initial.all(axis=1)))
    on = np.concatenate([[first], first + np.cumsum(gained)])
    return AlwaysOnCounts(np.r_[0.0, time], np.r_[0.0, uncertainty], on, units, until)


def _sums_in_groups(group: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Return running sums of the changes, one for each group."""
    order = np.argsort(group, kind="stable")
    group, change = group[order], change[order]
    total = np.cumsum(change)
    begins = np.searchsorted(group, group)
    found = np.empty_like(total)
    found[order] = total - (total - change)[begins]
    return found
