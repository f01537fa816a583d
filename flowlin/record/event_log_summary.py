"""The lines that a log of events prints."""

from typing import Any, NamedTuple

import numpy as np

from flowlin._tools.printing import (
    Summary,
    concrete_array,
    format_count,
    format_number,
    format_range,
    shorten_text,
)
from flowlin.record.branch_reason import REASONS

MOST_ROWS = 8  # of a table


MOST_EVENTS = 5  # of a log, listed one by one


def event_names(log: Any) -> np.ndarray:
    """Return the name of what crossed, per event."""
    names = np.array([channel.name for channel in log.channels], dtype=object)
    place = np.searchsorted(log.offsets[1:], np.asarray(log.component), side="right")
    return names[np.minimum(place, len(names) - 1)]


def channel_sizes(log: Any) -> dict[str, int]:
    """Count components by the name of what is watched; branches only where there is one."""
    sizes: dict[str, int] = {}
    for channel in log.channels:
        sizes[channel.name] = sizes.get(channel.name, 0) + channel.size
    time = concrete_array(log.time, 1)
    if time is not None and "branch" not in event_names(log)[np.isfinite(time)]:
        sizes.pop("branch", None)  # which every walk watches for
    return sizes


class FirstBranch(NamedTuple):
    """The first branch: its time, reason and pair; and how many branches have each reason.

    Files of older versions have no reasons, and those of 0.2.0 no places.
    """

    time: float
    reason: str
    pair: str
    counts: dict[str, int]


def first_branch(log: Any) -> FirstBranch | None:
    """Return what is known of the first branch; None without any, or under `jit`."""
    if concrete_array(log.time, 1) is None:
        return None
    times = np.where(event_names(log) == "branch", np.asarray(log.time), np.inf)
    found = np.flatnonzero(np.isfinite(times))
    if not len(found):
        return None
    first, new = int(np.argmin(times)), np.asarray(log.new)
    reasons = [REASONS.get(int(new[k]), "") for k in found]
    return FirstBranch(
        time=float(times[first]),
        reason=REASONS.get(int(new[first]), ""),
        pair=_pair_name(log, int(np.asarray(log.component)[first])),
        counts={reason: reasons.count(reason) for reason in dict.fromkeys(reasons)},
    )


def _pair_name(log: Any, k: int) -> str:
    """Name the pair of a component in words, or by its index where its place is not known."""
    place = int(np.searchsorted(log.offsets[1:], k, side="right"))
    channel = log.channels[place]
    if channel.units_at is None or len(channel.shape) != 2:
        return _component_name(log, k)
    unit, sample = np.unravel_index(k - log.offsets[place], channel.shape)
    return channel.units_at.pair_name(int(unit), int(sample))


def number_with_error(value: float, uncertainty: float) -> str:
    """Format a number, and how far it may be off."""
    return f"{value:.6g} ± {uncertainty:.1g}" if uncertainty else f"{value:.6g}"


def mask_of_determined(log: Any) -> np.ndarray:
    """Return which events are determined, (K,), by NumPy, which compiles nothing."""
    component, time = np.asarray(log.component), np.asarray(log.time)
    first = np.full(log.offsets[-1], np.inf, time.dtype)
    np.minimum.at(first, component, np.where(np.isfinite(log.uncertainty), np.inf, time))
    return time < first[component]


def say_whose_error(log: Any) -> str:
    """Say of what the ± of a log's events is an error."""
    return "± of the run" if log.confirmed else "± of their steps"


def event_log_summary(log: Any) -> Summary:
    """Summarise events by name: how many, of how many components, when; and the first of them."""
    time = concrete_array(log.time, 1)
    sizes = list(channel_sizes(log).items())
    if time is None:
        rows = [(shorten_text(name), "of " + format_count(n, "component")) for name, n in sizes]
        return Summary(f"EventLog: times {format_number(log.time)}", rows[:MOST_ROWS])
    kept = np.isfinite(time)
    count, found = int(np.sum(kept)), event_names(log)[kept] if sizes else np.array([])
    title = f"EventLog: {format_count(count, 'event')}, {say_whose_error(log)}"
    if int(log.count) > count:
        title += f", the first found of {format_number(log.count)}"
    rows = []
    for name, size in sizes[:MOST_ROWS]:
        mine = time[kept][found == name]
        when = f"t = {format_range(mine)}" if len(mine) else ""
        rows.append(
            (shorten_text(name), f"{len(mine):,}", "of " + format_count(size, "component"), when)
        )
    rows += [("...", "", "", "")] * (len(sizes) > MOST_ROWS)
    return Summary(title, rows + _event_rows(log, min(count, MOST_EVENTS), count > MOST_EVENTS))


def _event_rows(log: Any, count: int, more: bool) -> list[tuple[str, ...]]:
    """List the first events one by one: what crossed, when, from which side to which, or why."""
    columns = (log.component, log.time, log.uncertainty, log.old, log.new)
    kept, rows = [np.asarray(column)[:count].tolist() for column in columns], []
    for k, time, off, old, new in zip(*kept, strict=True):
        rows.append(
            (
                _component_name(log, k),
                f"t = {number_with_error(time, off)}",
                REASONS.get(new, f"{old:+d} -> {new:+d}"),
            )
        )
    return rows + [("...", "", "")] * more


def _component_name(log: Any, k: int) -> str:
    """Format name and index of a component, as `EventLog.name` and `EventLog.index` have them."""
    place = int(np.searchsorted(log.offsets[1:], k, side="right"))
    channel, local = log.channels[place], k - log.offsets[place]
    inner = np.unravel_index(local, channel.shape) if channel.shape else ()
    index = ", ".join(str(int(i)) for i in (*channel.prefix, *inner))
    return shorten_text(channel.name) + (f"[{index}]" if index else "")
