"""Sides of a hidden layer's (unit, sample) pairs, at a time and over time."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from flowlin._tools.arguments import checked, finite
from flowlin.plot.style import axes_or_new, indices, time_label
from flowlin.record.trajectory import Trajectory

_SIDE_COLOURS = {-1: ("off", "white"), 0: ("sliding", "#E69F00"), 1: ("on", "#404040")}


@checked(t=finite)
def sides(flow: Trajectory, t: float, ax: Axes | None = None, *, layer: int | str = 0) -> Axes:
    """Draw the side of every (unit, sample) pair at one time: on, off, or sliding on its kink.

    **Arguments:**

    - `flow`: a run that logged its gates.
    - `t`: a time in [0, end].
    - `ax`: None makes a new one.
    - `layer`: which hidden layer, 0 the first, or its part of the model.

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
    layer: int | str = 0,
) -> Axes:
    """Draw the sides of (unit, sample) pairs over time, one row per pair, exact at logged times.

    **Arguments:**

    - `flow`: a run that logged its gates.
    - `ax`: None makes a new one.
    - `units`: which hidden units, from the top; None is all.
    - `layer`: which hidden layer, 0 the first, or its part of the model.

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


def _side_changes(
    flow: Trajectory, layer: int | str
) -> tuple[tuple[int, int], np.ndarray, tuple[np.ndarray, ...]]:
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
