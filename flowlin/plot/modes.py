"""Mode strengths over time, and when they reach a level."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from flowlin._tools.arguments import boolean, checked
from flowlin._tools.arguments import real_array as numbers
from flowlin.measures.modes import Modes
from flowlin.plot.style import (
    MARKERS,
    Data,
    array_of_shape,
    axes_or_new,
    draw_legend,
    indices,
    kind_of,
    look,
    shades,
    time_label,
)
from flowlin.record.trajectory import Trajectory


@checked(rho=numbers, closed=None, share=boolean, shown=indices)
def modes(
    flow: Trajectory,
    modes: Modes,
    ax: Axes | None = None,
    *,
    rho: Data | float | None = None,
    closed: Data | None = None,
    share: bool = False,
    shown: Sequence[int] | None = None,
    label: str | None = None,
) -> Axes:
    """Draw mode strengths over time, with full strengths (thin lines) and hits (markers).

    The modes are shades of the network kind's colour, dark to light, so that several networks fit
    on one Axes, each with its own `label`.

    **Arguments:**

    - `flow`: a run that recorded `observe={"modes": modes}`, or saved
      its networks.
    - `modes`: K modes.
    - `ax`: None makes a new one.
    - `rho`: the level of the run's `fl.ModeHits(modes, rho)`, a number or (K,): marks the hitting
      times in its log.
    - `closed`: (T, K), a closed form at `flow.ts`, dotted.
    - `share`: draw a d/s, the share of the full strength s/d.
    - `shown`: which modes, of 0 ... K - 1; None is the first five that the data drive, of equal
      ones the first.
    - `label`: one name for all curves; None names every mode.

    **Returns:** the Axes.

    **Raises:** `ValueError` if the run has neither strengths nor networks, for another shape, if
    hitting times are asked for that were not watched, or for modes that do not exist.
    """
    full = np.asarray(modes.full_strength)
    pairs = zip(modes.names, modes.groups, strict=True)
    names = {k: name for name, group in pairs for k in group}
    driven = [group[0] for group in modes.groups if full[group[0]] > 0]
    which = list(driven[:5] if shown is None else shown)
    if not which or not set(which) <= set(range(len(full))):
        raise ValueError(f"`shown` must be some of the modes 0 ... {len(full) - 1}, got {which}.")
    ax = axes_or_new(ax)
    ts, scale = np.asarray(flow.ts), np.where(full > 0, full, np.nan) if share else np.ones(1)
    strengths = _strengths_over_time(flow, modes) / scale
    how = look(kind_of(flow.final))
    for n, (k, colour) in enumerate(zip(which, shades(how["color"], len(which)), strict=True)):
        name = f"mode{'s' * ('-' in names[k])} {names[k]}" if label is None else label
        how["color"] = colour
        ax.plot(ts, strengths[:, k], **how, label=None if n and label is not None else name)
        ax.axhline(1.0 if share else float(full[k]), color="0.75", linewidth=0.7, zorder=0)
    if closed is not None:
        theory = array_of_shape("closed", closed, f"{len(ts)} {len(full)}") / scale
        for n, k in enumerate(which):
            ax.plot(ts, theory[:, k], **look("theory"), label=None if n else "closed form")
    if rho is not None:
        _mark_hits(ax, flow, _level_per_mode(rho, len(full)) / scale, which)
    of = r"mode strength $a_\alpha d_\alpha / s_\alpha$" if share else r"mode strength $a_\alpha$"
    ax.set(xlabel=time_label(flow), ylabel=of)
    draw_legend(ax)
    return ax


def _level_per_mode(rho: Data | float, number: int) -> np.ndarray:
    """Return one level for every mode, (K,)."""
    levels = np.asarray(rho)
    if levels.shape not in ((), (1,), (number,)):
        raise ValueError(
            f"`rho` must be a number or have shape ({number},), one per mode, got {levels.shape}."
        )
    return np.broadcast_to(levels, (number,))


def _strengths_over_time(flow: Trajectory, modes: Modes) -> np.ndarray:
    """Return mode strengths at the saved times, (T, K)."""
    if "modes" in flow.observed:
        return array_of_shape("flow.observed['modes']", flow.observed["modes"], f"T {len(modes.s)}")
    if flow.saved is None or flow.reference.task is None:
        raise ValueError("the run holds no mode strengths; pass `observe={'modes': modes}` to it.")
    return np.asarray(flow.along(modes))


def _mark_hits(ax: Axes, flow: Trajectory, level: np.ndarray, shown: Sequence[int]) -> None:
    """Draw a marker at every logged hit of a shown mode."""
    log = flow.events.select("mode")
    times, which = np.asarray(log.time), np.array([k for (k,) in log.index], int)
    how = look(kind_of(flow.final))
    for n, (k, colour) in enumerate(zip(shown, shades(how["color"], len(shown)), strict=True)):
        at = times[which == k]
        ax.plot(
            at, np.full(at.shape, level[k]), linestyle="none", marker=MARKERS[n % len(MARKERS)],
            color=colour, markerfacecolor="white", markersize=6, zorder=4,
        )  # fmt: skip
