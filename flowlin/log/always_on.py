"""t* by NumPy, for printing: nothing is compiled, and nothing warns.

The numbers are those of `flowlin.log.linear_phase`.
"""

from typing import Any, NamedTuple

import numpy as np


class Counts(NamedTuple):
    """Always-on units of a hidden layer: `on` (K + 1,) from each `time` on, the first at t = 0."""

    time: np.ndarray
    uncertainty: np.ndarray
    on: np.ndarray
    units: int


class Maximum(NamedTuple):
    """t*: where the count is first at its maximum, and whether it still is when the run ends."""

    time: float
    uncertainty: float
    fraction: float
    lasting: bool


def maximum(counts: Counts) -> Maximum:
    """t* of the counts of a run."""
    best = int(np.argmax(counts.on))  # the first of equals
    time, fraction = float(counts.time[best]), float(counts.on[best] / counts.units)
    lasting = time > 0 and bool(np.all(counts.on[best:] == counts.on[best]))
    return Maximum(time, float(counts.uncertainty[best]), fraction, lasting)


def stepped(counts: Any) -> Counts:
    """Those that a discrete run counted."""
    kept = np.isfinite(np.asarray(counts.time))
    columns = (counts.time, counts.uncertainty, counts.on)
    time, uncertainty, on = (np.asarray(column)[kept] for column in columns)
    return Counts(time, uncertainty, on, counts.units)


def logged(log: Any, channel: int, lowest: int) -> Counts:
    """Those of a channel of gates (H, P), or of always-on units (H,).

    On is what has a side of at least `lowest`: 1 open, 0 closed.
    """
    shape, start = log.channels[channel].shape, log.offsets[channel]
    stop = log.offsets[channel + 1]
    component = np.asarray(log.component)
    mine = (component >= start) & (component < stop)
    columns = (log.time, log.uncertainty, log.component, log.old, log.new)
    time, uncertainty, component, old, new = (np.asarray(column)[mine] for column in columns)
    units, samples = (*shape, 1)[:2]
    unit = (component - start) // samples
    change = (new >= lowest).astype(int) - (old >= lowest)
    initial = np.asarray(log.initial)[start:stop].reshape(units, samples) >= lowest
    number = _within(unit, change) + initial.sum(axis=1)[unit]  # of the unit's samples, afterwards
    gained = (number == samples).astype(int) - (number - change == samples)
    first = int(np.sum(initial.all(axis=1)))
    on = np.concatenate([[first], first + np.cumsum(gained)])
    return Counts(np.r_[0.0, time], np.r_[0.0, uncertainty], on, units)


def _within(group: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Running sums of the changes, one for each group."""
    order = np.argsort(group, kind="stable")
    group, change = group[order], change[order]
    total = np.cumsum(change)
    begins = np.searchsorted(group, group)
    found = np.empty_like(total)
    found[order] = total - (total - change)[begins]
    return found
