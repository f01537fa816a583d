"""Curves over time: losses, mode strengths, kinks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from flowlin._tools.arguments import argument_error, boolean, checked
from flowlin._tools.arguments import real_array as numbers
from flowlin.measures.modes import Modes
from flowlin.plot.style import (
    MARKERS,
    TIME_LABEL,
    Data,
    array_of_shape,
    axes_or_new,
    dictionary_of,
    draw_band,
    draw_legend,
    indices,
    is_descent,
    kind_of,
    look,
    override_look,
    shades,
    time_label,
)
from flowlin.record.sweep import Sweep
from flowlin.record.trajectory import Trajectory


def _runs_argument(name: str, value: Any) -> Any:
    """Check for one run, a sweep, or a dictionary of some."""
    if isinstance(value, (Trajectory, Sweep)):
        return value
    if isinstance(value, Mapping):
        return dictionary_of("{label: trajectory}")(name, value)
    raise argument_error(name, "a trajectory, a sweep, or a dictionary {label: trajectory}", value)


@checked(runs=_runs_argument)
def losses(
    runs: Trajectory | Sweep | Mapping[str, Trajectory | Sweep | Sequence[Trajectory]],
    ax: Axes | None = None,
) -> Axes:
    """Draw the loss over time of runs: flows as lines, descent as hollow markers.

    Colour and line style tell the kind of network, shade and marker the runs of one kind. Several
    runs under one label, a `Sweep` over seeds, say, become their mean with a band of one standard
    error.

    **Arguments:**

    - `runs`: one trajectory or sweep; or by label a trajectory, or several with the same saved
      times and tau. One without a label is labelled by its network.
    - `ax`: None makes a new one.

    **Returns:** the Axes.

    **Raises:** `ValueError` for no runs, or several under one label with different times or tau.
    """
    ax, drawn = axes_or_new(ax), Counter()
    labels = set()
    alone = None if isinstance(runs, Mapping) else _runs_under_label("", runs)
    by_label = {type(alone[0].final).__name__: alone} if alone else runs
    assert isinstance(by_label, Mapping)
    for label, given in by_label.items():
        members = _runs_under_label(label, given)
        first = members[0]
        if any(not np.array_equal(m.ts, first.ts) for m in members):
            raise ValueError(
                f"the runs of {label!r} have different saved times; give all the same `ts`."
            )
        if len(clocks := {time_label(m) for m in members if m.reference.run is not None}) > 1:
            raise ValueError(
                f"the runs of {label!r} have different `tau` ({'; '.join(sorted(clocks))}), so "
                "that equal times are not equal; give each tau a label of its own."
            )
        kind, discrete = kind_of(first.final), is_descent(first)
        how = look(kind, drawn[kind, discrete], points=discrete)
        drawn[kind, discrete] += 1
        rows = np.stack([np.asarray(m.losses) for m in members])
        draw_band(ax, first.ts, rows, label=label, markevery=_marker_stride(first.ts), **how)
        labels.add(time_label(first))
    ax.set(xlabel=labels.pop() if len(labels) == 1 else TIME_LABEL, ylabel=r"loss $L$")
    draw_legend(ax)
    return ax


def _runs_under_label(label: Any, given: Any) -> list[Trajectory]:
    """Return the trajectories under a label."""
    if isinstance(given, Trajectory):
        return [given]
    members = list(given) if isinstance(given, (Sweep, list, tuple)) else []
    if not members or not all(isinstance(member, Trajectory) for member in members):
        raise argument_error(f"runs[{label!r}]", "a trajectory, several of them, or a sweep", given)
    return members


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


@checked(ts=None, positions=None)
def kinks(ts: Data, positions: Data, ax: Axes | None = None, **look_: Any) -> Axes:
    r"""Draw kink positions $k_j = -c\, b_j / \|w_j\|$ over time, one line per hidden unit.

    A unit's kink is a hyperplane of inputs; its position is its signed distance from the origin
    along the unit's weights (lead paper Eq. 12 and Fig. 12, with the factor c that is missing
    there). On inputs around the origin a unit with a far negative kink is always on.

    **Arguments:**

    - `ts`: (T,), times.
    - `positions`: (T, H).
    - `ax`: None makes a new one.
    - `look_`: keywords of `Axes.plot`, instead of thin lines in the colour of ReLU networks.

    **Returns:** the Axes.

    **Raises:** `ValueError` for other shapes.
    """
    times = array_of_shape("ts", ts, "T")
    rows, ax = array_of_shape("positions", positions, f"{len(times)} H"), axes_or_new(ax)
    how = override_look({**look("relu"), "linewidth": 0.8, "alpha": 0.6}, look_)
    ax.plot(times, rows, **how)
    ax.axhline(0.0, color="black", linestyle="--", linewidth=1.0, zorder=3)
    ax.set(xlabel=TIME_LABEL, ylabel=r"kink position $k_j$ (units of $x$)")
    return ax


def _marker_stride(ts: Data) -> int:
    """Return the stride that leaves about 25 markers along a curve."""
    return max(1, len(ts) // 25)
