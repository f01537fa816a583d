"""A function on a cube."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from flowlin._tools.arguments import checked, index_from_zero
from flowlin.plot.style import Data, array_of_shape, axes_or_new
from flowlin.plot.style import low_and_high as is_limits


@checked(values=None, grid=None, axis=index_from_zero, at=index_from_zero, limits=is_limits)
def cube(
    values: Data,
    grid: Data,
    ax: Axes | None = None,
    *,
    axis: int | None = None,
    at: int | None = None,
    label: str = "output",
    limits: tuple[float, float] | None = None,
) -> Axes:
    """Draw a function of three inputs on a cube: a mean or a slice along one, or all points.

    The lead paper's Fig. 5C averages over one coordinate. The black line is where a mean or slice
    is zero.

    **Arguments:**

    - `values`: (n, n, n), the function at `grid[i], grid[j], grid[k]`.
    - `grid`: (n,), the same along all three inputs.
    - `ax`: None makes a new one.
    - `axis`: the input that is averaged over, or cut; None draws all points in three dimensions,
      on an Axes with `projection="3d"`.
    - `at`: index into `grid` of the cut; None averages.
    - `label`: of the colour bar.
    - `limits`: of the colours, so that several pictures share them; None is the values' range.

    **Returns:** the Axes.

    **Raises:** `ValueError` for other shapes, an axis or index that does not exist, or flat Axes
    for points in space.
    """
    edge = array_of_shape("grid", grid, "n")
    n = len(edge)
    block = array_of_shape("values", values, f"{n} {n} {n}")
    if axis not in (None, 0, 1, 2):
        raise ValueError(f"`axis` must be 0, 1, 2 or None, got {axis}.")
    if at is not None and (axis is None or not 0 <= at < n):
        raise ValueError(f"`at` = {at} needs an `axis`, and must lie in 0 ... {n - 1}.")
    if axis is None:
        return _draw_points(block, edge, ax, label, limits)
    ax = axes_or_new(ax)
    face = block.mean(axis) if at is None else block.take(at, axis)
    low, high = limits or (None, None)
    shown = ax.pcolormesh(edge, edge, face.T, shading="nearest", cmap="cividis", vmin=low,
                          vmax=high, rasterized=True)  # fmt: skip
    if face.min() < 0 < face.max():
        ax.contour(edge, edge, face.T, levels=[0.0], colors="black", linewidths=1.2)
    x, y = (k for k in range(3) if k != axis)
    how = f"mean over $x_{axis + 1}$" if at is None else f"$x_{axis + 1}$ = {edge[at]:.3g}"
    ax.set(xlabel=f"input $x_{x + 1}$", ylabel=f"input $x_{y + 1}$", title=how, aspect="equal")
    ax.figure.colorbar(shown, ax=ax, label=label)
    return ax


def _draw_points(block: np.ndarray, edge: np.ndarray, ax: Any, label: str, limits: Any) -> Axes:
    """Draw all points of the cube."""
    ax = axes_or_new(ax, projection="3d")
    if ax.name != "3d":
        raise ValueError("`ax` must have `projection='3d'`, or give `axis` for a flat picture.")
    low, high = limits or (None, None)
    x, y, z = np.meshgrid(edge, edge, edge, indexing="ij")
    shown: Any = ax
    found = shown.scatter(x.ravel(), y.ravel(), z.ravel(), c=block.ravel(), cmap="cividis",
                          vmin=low, vmax=high, s=14, alpha=0.8, linewidths=0)  # fmt: skip
    ax.set(xlabel="input $x_1$", ylabel="input $x_2$", zlabel="input $x_3$")
    ticks = edge[[0, len(edge) // 2, -1]]
    shown.set(xticks=ticks, yticks=ticks, zticks=ticks)
    ax.figure.colorbar(found, ax=ax, label=label, shrink=0.7, pad=0.12)
    return ax
