"""Activity of a hidden layer, and the sides of its (unit, sample) pairs."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from flowlin._tools.arguments import checked, finite
from flowlin.plot.style import (
    COLOURS,
    axes_or_new,
    draw_legend,
    indices,
    is_descent,
    some_of,
    time_label,
)
from flowlin.record.linearization import Activity, LinearizationTime, UnitCounts
from flowlin.record.trajectory import Trajectory

_PART_LINES = {"always_on": (None, 2.0), "gating": ("0.6", 1.4), "off": ("black", 1.0)}
_SIDE_COLOURS = {-1: ("off", "white"), 0: ("sliding", "#E69F00"), 1: ("on", "#404040")}


@checked(parts=some_of(Activity._fields), conventions=some_of(("open", "closed")))
def activity(
    flow: Trajectory,
    ax: Axes | None = None,
    *,
    quantile: float = 0.0,
    layer: int = 0,
    parts: Sequence[str] = Activity._fields,
    conventions: Sequence[str] = ("open", "closed"),
    label: str | None = None,
    colour: str | None = None,
) -> Axes:
    """Draw the fractions of a hidden layer's units that are always on, gating and off, with t*.

    Exact steps at the logged times. Open (a sliding pair counts as off) solid, closed (as on)
    dashed. A triangle on a thin line marks t* and the maximum of the always-on fraction, upwards
    open, downwards closed.

    **Arguments:**

    - `flow`: a run of a ReLU network.
    - `ax`: None makes a new one.
    - `quantile`, `layer`: as for `flow.linearization`.
    - `parts`: which of `always_on`, `gating`, `off`.
    - `conventions`: `open`, `closed` or both; runs of descent know no difference.
    - `label`: the run's name in the legend, which then has entries for t* alone; None names the
      parts as well.
    - `colour`: of the always-on fraction; None is that of ReLU networks, or of descent.

    **Returns:** the Axes.

    **Raises:** `ValueError` for another part or convention, and those of `flow.linearization`.
    """
    ax, found = axes_or_new(ax), flow.linearization(quantile, layer=layer)
    kind, scale = ("descent", 0.35) if is_descent(flow) else ("relu", 1.0)  # descent flickers
    colour = colour or COLOURS[kind]
    for convention in conventions:
        counts: UnitCounts = getattr(found, f"{convention}_counts")
        named = label is None and convention == conventions[0]
        for part in parts:
            shade, width = _PART_LINES[part]
            ax.step(
                *_fraction_steps(counts, part, float(flow.end)), where="post",
                color=shade or colour, linestyle="-" if convention == "open" else "--",
                linewidth=scale * width,
                label=part.replace("_", " ") if named else None,
            )  # fmt: skip
        if "always_on" in parts:
            name = ("" if label is None else f"{label}: ") + "$t^*$"
            name += f" ({convention})" if len(conventions) > 1 else ""
            _mark_t_star(ax, getattr(found, convention), convention == "open", name, colour)
    ax.set(xlabel=time_label(flow), ylabel="fraction of hidden units")
    ax.set_ylim(0, 1.35 * ax.dataLim.y1 or 1.0)  # with room for the legend
    draw_legend(ax, **({"loc": "upper center", "ncols": 2} if label is None else {}))
    return ax


def _fraction_steps(counts: UnitCounts, part: str, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the times at which a fraction changes, and its values from then on; the end last."""
    time = np.asarray(counts.time)
    time = time[np.isfinite(time)]
    value = np.asarray(getattr(counts.activity(jnp.asarray(time)), part))
    kept = np.flatnonzero(np.diff(value, prepend=np.nan) != 0)
    return np.append(time[kept], end), np.append(value[kept], value[-1])


def _mark_t_star(ax: Axes, found: LinearizationTime, up: bool, label: str, colour: str) -> None:
    """Draw a line from the time axis to a triangle at (t*, fraction)."""
    time, top = float(found.time), float(found.fraction)
    ax.plot(
        [time, time], [0.0, top], color=colour, linewidth=0.8, zorder=4,
        linestyle="-" if up else "--", markevery=[1], markersize=8, marker="^" if up else "v",
        markeredgecolor="black", label=f"{label} = {time:.4g}",
    )  # fmt: skip


@checked(t=finite)
def sides(flow: Trajectory, t: float, ax: Axes | None = None, *, layer: int = 0) -> Axes:
    """Draw the side of every (unit, sample) pair at one time: on, off, or sliding on its kink.

    **Arguments:**

    - `flow`: a run that logged its gates.
    - `t`: a time in [0, end].
    - `ax`: None makes a new one.
    - `layer`: which hidden layer, 0 the first.

    **Returns:** the Axes, hidden units along x and samples along y, the first on top.

    **Raises:** `ValueError` for a time outside the run, or a run that did not log its gates.
    """
    if not 0 <= t <= float(flow.end):
        raise ValueError(f"`t` = {t} lies outside the run, [0, {float(flow.end)}].")
    ax = axes_or_new(ax)
    modes = np.asarray(flow.events.sides(t, layer))
    samples, units = modes.shape
    _draw_sides(ax, np.arange(units + 1) - 0.5, np.arange(samples + 1) - 0.5, modes)
    ax.invert_yaxis()
    ax.set(xlabel="hidden unit", ylabel="sample")
    ax.set_title(f"$t$ = {t:.4g}", loc="left")
    return ax


@checked(units=indices)
def side_history(
    flow: Trajectory,
    ax: Axes | None = None,
    *,
    units: Sequence[int] | None = None,
    layer: int = 0,
) -> Axes:
    """Draw the sides of (unit, sample) pairs over time, one row per pair, exact at logged times.

    **Arguments:**

    - `flow`: a run that logged its gates.
    - `ax`: None makes a new one.
    - `units`: which hidden units, from the top; None is all.
    - `layer`: which hidden layer, 0 the first.

    **Returns:** the Axes, time along x, and P rows, one per sample, for every unit along y.

    **Raises:** `ValueError` for units that do not exist, or a run that did not log its gates.
    """
    (number, samples), now, steps = _side_changes(flow, layer)
    chosen = np.arange(number) if units is None else np.asarray(units)
    if chosen.size == 0 or chosen.max() >= number:
        raise ValueError(f"`units` must be some of 0 ... {number - 1}, got {units}.")
    rows = (chosen[:, None] * samples + np.arange(samples)).ravel()
    now, times, columns = now.copy(), [0.0], [now[rows]]
    for time, pair, mode in zip(*steps, strict=True):
        now[pair] = mode
        if pair in rows:
            times.append(float(time))
            columns.append(now[rows])
    ax = axes_or_new(ax)
    edges = np.arange(rows.size + 1) / samples - 0.5
    _draw_sides(ax, np.array([*times, float(flow.end)]), edges, np.stack(columns, axis=1))
    for edge in edges[samples:-1:samples]:
        ax.axhline(edge, color="0.5", linewidth=0.4)
    ax.invert_yaxis()
    named = np.arange(0, len(chosen), 1 + (len(chosen) - 1) // 16)
    ax.set_yticks(named, [str(k) for k in chosen[named]])
    ax.set(xlabel=time_label(flow), ylabel=f"hidden unit ({samples} samples each)")
    return ax


def _side_changes(flow: Trajectory, layer: int) -> tuple[tuple[int, int], np.ndarray, Any]:
    """Return (units, samples) of a layer, its pairs' sides at 0, and changes: time, pair, side."""
    log = flow.events
    k = log.gate_channel(layer)
    start, stop = log.offsets[k], log.offsets[k + 1]
    shape = log.channels[k].shape
    pair = np.asarray(log.component)
    mine = (pair >= start) & (pair < stop) & np.isfinite(np.asarray(log.time))
    steps = np.asarray(log.time)[mine], pair[mine] - start, np.asarray(log.new)[mine]
    return (shape[0], shape[1]), np.asarray(log.initial)[start:stop], steps


def _draw_sides(ax: Axes, x: np.ndarray, y: np.ndarray, modes: np.ndarray) -> None:
    """Draw cells between edges x and y, with a legend above."""
    colours = ListedColormap([colour for _, colour in _SIDE_COLOURS.values()])
    ax.pcolormesh(x, y, modes, cmap=colours, vmin=-1.5, vmax=1.5)
    handles = [
        Patch(facecolor=colour, edgecolor="black", linewidth=0.5, label=name)
        for name, colour in _SIDE_COLOURS.values()
    ]
    ax.legend(handles=handles, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0),
              frameon=False, handlelength=1.2, borderaxespad=0.2)  # fmt: skip
