"""Pictures of sweeps over one and two parameters."""

import math
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from flowlin._tools.arguments import checked, number_where, string
from flowlin._tools.arguments import real_array as numbers
from flowlin.plot.style import (
    Data,
    array_of_shape,
    axes_or_new,
    draw_band,
    draw_legend,
    override_look,
    tuple_of,
)


@checked(
    x=None, y=None, values=None, names=tuple_of(3, string, "three names, of x, y and values"),
    level=number_where("finite", math.isfinite),
)  # fmt: skip
def sweep_map(
    x: Data,
    y: Data,
    values: Data,
    ax: Axes | None = None,
    *,
    names: tuple[str, str, str],
    level: float | None = None,
) -> Axes:
    """Draw a quantity over two swept parameters, as cells labelled with the parameters.

    Cells have one size. With a `level` it is a phase diagram: every row of cells has a point where
    the quantity, from the left, passes this value first, between neighbouring cells in proportion.
    Of several repetitions cells show the mean of those that did not fail, and the points have bars:
    the 95 % interval over repetitions, by drawing them anew 400 times.

    **Arguments:**

    - `x`, `y`: (M,) and (N,), the parameters' values, in any spacing.
    - `values`: (N, M), one row per `y`, or (N, M, R) of R repetitions; NaN, for runs that failed,
      is left out, and hatched where nothing else is known.
    - `ax`: None makes a new one.
    - `names`: of x, y and the quantity, with their units.
    - `level`: where the boundary is; None draws none.

    **Returns:** the Axes; the boundary's points are a line with the label "boundary".

    **Raises:** `ValueError` for other shapes.
    """
    xs, ys, ax = array_of_shape("x", x, "M"), array_of_shape("y", y, "N"), axes_or_new(ax)
    several = np.ndim(numbers("values", values)) == 3
    runs = array_of_shape("values", values, f"{len(ys)} {len(xs)}" + several * " R")
    runs = runs if several else runs[..., None]
    cells = np.ma.masked_invalid(runs).mean(axis=-1)
    shown = ax.pcolormesh(
        np.arange(len(xs) + 1) - 0.5, np.arange(len(ys) + 1) - 0.5, cells,
        cmap=matplotlib.colormaps["cividis"],
    )  # fmt: skip
    ax.patch.set(hatch="///", edgecolor="0.6", facecolor="white")
    ax.set_xticks(np.arange(len(xs)), [f"{v:.4g}" for v in xs])
    ax.set_yticks(np.arange(len(ys)), [f"{v:.4g}" for v in ys])
    ax.set(xlabel=names[0], ylabel=names[1])
    ax.figure.colorbar(shown, ax=ax, label=names[2])
    if level is not None:
        _draw_boundary(ax, runs, level)
    return ax


def _draw_boundary(ax: Axes, runs: np.ndarray, level: float) -> None:
    """Mark where rows of cells (N, M, R) pass a level, in cells from the left, with intervals."""
    rng, repetitions = np.random.default_rng(0), runs.shape[-1]
    places, rows = np.array([_first_passage(row, level) for row in runs]), np.arange(len(runs))
    ax.plot(places, rows, "o-", color="white", markersize=4, linewidth=1, label="boundary")
    if repetitions == 1:
        return
    again = rng.integers(repetitions, size=(400, repetitions))
    draws = np.array([[_first_passage(row[:, which], level) for row in runs] for which in again])
    for n in np.flatnonzero(np.isfinite(places)):
        low, high = np.nanquantile([places[n], *draws[:, n]], (0.025, 0.975))
        ax.plot([low, high], [n, n], color="white", linewidth=1, marker="|", markersize=6)


def _first_passage(row: np.ndarray, level: float) -> float:
    """Return where the mean of a row of cells (M, R) passes a level first; NaN if it does not."""
    off = np.ma.masked_invalid(row).mean(axis=1) - level
    off = np.ma.filled(off, np.nan)
    (found,) = np.nonzero(off[:-1] * off[1:] <= 0)
    if not found.size:
        return float("nan")
    k = int(found[0])
    return k + (float(off[k] / (off[k] - off[k + 1])) if off[k] != off[k + 1] else 0.0)


@checked(x=None, values=None, names=tuple_of(2, string, "two names, of x and values"))
def sweep_line(
    x: Data,
    values: Data,
    ax: Axes | None = None,
    *,
    names: tuple[str, str],
    label: str | None = None,
    **look: Any,
) -> Axes:
    """Draw a quantity over one swept parameter: mean, a band of one standard error, every run.

    **Arguments:**

    - `x`: (M,), the parameter's values.
    - `values`: (R, M), one row per repetition; NaN, for runs that failed, is left out.
    - `ax`: None makes a new one.
    - `names`: of the parameter and the quantity, with their units.
    - `label`: in the legend.
    - `look`: keywords of `Axes.plot`, such as `**fl.plot.look("relu")`.

    **Returns:** the Axes.

    **Raises:** `ValueError` for other shapes.
    """
    xs, ax = array_of_shape("x", x, "M"), axes_or_new(ax)
    rows = array_of_shape("values", values, f"R {len(xs)}")
    draw_band(ax, xs, rows, label=label, **override_look({"marker": "o", "markersize": 4.0}, look))
    colour = ax.lines[-1].get_color()
    if len(rows) > 1:
        ax.plot(np.tile(xs, len(rows)), rows.ravel(), ".", color=colour, alpha=0.5, markersize=4)
    ax.set(xlabel=names[0], ylabel=names[1])
    draw_legend(ax)
    return ax
