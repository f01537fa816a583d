"""The linearization time t*, and the activity of a hidden layer as step functions of time."""

import math
import warnings
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from flowlin._arrays import is_traced
from flowlin.eventlog import EventLog
from flowlin.events import unit_channel


class Activity(NamedTuple):
    """Fractions of a hidden layer's units; they sum to one."""

    always_on: Array
    gating: Array
    off: Array


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
        """Fractions at times t of any shape, right-continuous."""
        at = jnp.clip(jnp.searchsorted(self.time, t, side="right") - 1, 0)
        on, off = self.on[at] / self.units, self.off[at] / self.units
        return Activity(on, 1 - on - off, off)


class LinearizationTime(eqx.Module):
    """t* in one convention.

    - `time`: first time at which the always-on fraction is at its maximum over the run.
    - `fraction`: that maximum.
    - `bracket`: (earliest, latest) time that the event's uncertainty allows; for a discrete run,
      the step before and the step itself.
    - `lasts`: how long the maximum then holds, up to the next change of the fraction.
    """

    time: Float[Array, ""]
    fraction: Float[Array, ""]
    bracket: Float[Array, "2"]
    lasts: Float[Array, ""]


class Linearization(eqx.Module):
    """The linearization time of a hidden layer and the activity that it is read from.

    t* = inf{t : f_on(t) = max_s f_on(s)} (lead paper Sec. 5.4, with the infimum of errata B.13).
    The maximum is over the run, so t* is not causal and depends on the horizon while the
    fraction still rises. `open` counts a pair at its kink as off, `closed` as on.
    """

    open: LinearizationTime
    closed: LinearizationTime
    open_counts: UnitCounts
    closed_counts: UnitCounts

    def activity(self, t: Array | float, closed: bool = False) -> Activity:
        """Always-on, gating and off fractions at times t, exact step functions."""
        counts = self.closed_counts if closed else self.open_counts
        return counts.activity(jnp.asarray(t))


def linearization_time(counts: UnitCounts, end: Array) -> LinearizationTime:
    """First time of the maximal always-on count before `end`."""
    real = jnp.isfinite(counts.time)
    on = jnp.where(real, counts.on, -1)
    best = jnp.argmax(on)  # the first of equals
    changed = real & (jnp.arange(on.shape[0]) > best) & (on != on[best])
    after = jnp.where(jnp.any(changed), counts.time[jnp.argmax(changed)], end)
    time, half = counts.time[best], counts.uncertainty[best]
    bracket = jnp.stack([jnp.maximum(time - half, 0.0), jnp.minimum(time + half, end)])
    return LinearizationTime(time, on[best] / counts.units, bracket, after - time)


def linearization(
    counts: tuple[UnitCounts, UnitCounts], end: Array, *, stacklevel: int = 3
) -> Linearization:
    """t* in both conventions from the (open, closed) counts of a run that ended at `end`."""
    opened, closed = (linearization_time(c, end) for c in counts)
    if not is_traced((opened, closed)):
        for label, t_star in (("open", opened), ("closed", closed)):
            still = t_star.time + t_star.lasts >= end
            if bool(still & (t_star.time > 0)):
                warnings.warn(
                    f"the {label} always-on fraction is still at its maximum "
                    f"{float(t_star.fraction):.3g} when the run ends at t = {float(end):.6g}; t* "
                    "may move if the run goes on, so increase `t1` (or `steps`).",
                    stacklevel=stacklevel,
                )
    return Linearization(opened, closed, *counts)


def counts_from_log(
    log: EventLog, layer: int, samples: int, quantile: float
) -> tuple[UnitCounts, UnitCounts]:
    """Open and closed counts from a log of gates, or of unit switches at this quantile.

    **Raises:** `ValueError` if the run logged neither.
    """
    gates = _channels(log, "gate", layer)
    if gates:
        k = math.floor(quantile * samples)
        pairs = [_count_gates(_padded(log), channel, k) for channel in gates]
    else:
        bottom = _channels(log, unit_channel("always_on", quantile), layer)
        top = _channels(log, unit_channel("always_off", quantile), layer)
        if not bottom:
            raise ValueError(
                f"the run recorded no gates of layer {layer} at quantile {quantile:g}: it has too "
                "many (unit, sample) pairs to log each. Pass "
                f"`events=(fl.UnitSwitches({quantile:g}),)` to it."
            )
        pairs = [_count_units(_padded(log), b, t) for b, t in zip(bottom, top, strict=True)]
    # The upper level of a smoothed kink is the open convention, the lower the closed one.
    return pairs[-1], pairs[0]


def _channels(log: EventLog, name: str, layer: int) -> list[int]:
    return [
        i for i, c in enumerate(log.channels) if c.name == name and c.prefix == (layer,)
    ]


def _padded(log: EventLog) -> EventLog:
    """Padded to a power of two, so that few lengths are ever compiled."""
    k = log.time.shape[0]
    room = max(64, 1 << (k - 1).bit_length()) - k if k else 64
    return EventLog(
        jnp.pad(log.time, (0, room), constant_values=jnp.inf),
        *(jnp.pad(a, (0, room)) for a in (log.uncertainty, log.component, log.rising)),
        log.count,
        log.initial,
        log.channels,
    )


@eqx.filter_jit
def _count_gates(log: EventLog, channel: int, k: int) -> UnitCounts:
    """Counts from gates: linear with at most k samples off, off with at most k on."""
    units, samples = log.channels[channel].shape
    start = log.offsets[channel]
    initial = log.initial[start : start + units * samples].reshape(units, samples)
    number = jnp.sum(initial, axis=1)

    def step(number, event):
        component, rising, time = event
        local = component - start
        mine = (local >= 0) & (local < units * samples) & jnp.isfinite(time)
        unit = jnp.clip(local // samples, 0, units - 1)
        number = number.at[unit].add(jnp.where(mine, jnp.where(rising, 1, -1), 0))
        return number, (jnp.sum(number >= samples - k), jnp.sum(number <= k))

    _, (on, off) = lax.scan(step, number, (log.component, log.rising, log.time))
    first = (jnp.sum(number >= samples - k), jnp.sum(number <= k))
    return _unit_counts(log, first, (on, off), units)


@eqx.filter_jit
def _count_units(log: EventLog, bottom: int, top: int) -> UnitCounts:
    """Counts from unit switches: every event moves one unit in or out."""
    (units,) = log.channels[bottom].shape
    channel = jnp.where(jnp.isfinite(log.time), log.channel, -1)
    sign = jnp.where(log.rising, 1, -1)
    sides = [log.initial[log.offsets[c] : log.offsets[c] + units] for c in (bottom, top)]
    first = (jnp.sum(sides[0]), units - jnp.sum(sides[1]))
    on = first[0] + jnp.cumsum(jnp.where(channel == bottom, sign, 0))
    off = first[1] - jnp.cumsum(jnp.where(channel == top, sign, 0))
    return _unit_counts(log, first, (on, off), units)


def _unit_counts(log: EventLog, first, rest, units: int) -> UnitCounts:
    joined = [
        jnp.concatenate([jnp.atleast_1d(a), b]) for a, b in zip(first, rest, strict=True)
    ]
    zero = jnp.zeros(1, log.time.dtype)
    return UnitCounts(
        jnp.concatenate([zero, log.time]),
        jnp.concatenate([zero, log.uncertainty]),
        *joined,
        units=units,
    )


def counts_from_steps(
    time: Array, on: Array, off: Array, grain: Array, units: int, end: Array
) -> UnitCounts:
    """Counts of a discrete run, looked at every `grain`; those after its end do not count."""
    time = jnp.where(time <= end, time, jnp.inf)
    return UnitCounts(time, jnp.full(time.shape, grain), on, off, units)
