"""Activity of a hidden layer over time."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from flowlin._tools.arguments import checked
from flowlin.plot.style import COLOURS, axes_or_new, draw_legend, is_descent, some_of, time_label
from flowlin.record.linearization import Activity, LinearizationTime, UnitCounts
from flowlin.record.trajectory import Trajectory

_PART_LINES = {"always_on": (None, 2.0), "gating": ("0.6", 1.4), "off": ("black", 1.0)}


@checked(parts=some_of(Activity._fields), conventions=some_of(("open", "closed")))
def activity(
    flow: Trajectory,
    ax: Axes | None = None,
    *,
    quantile: float = 0.0,
    layer: int | str = 0,
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
