"""Representations that move in a plane."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from flowlin._tools.arguments import checked
from flowlin.plot.style import CYCLE, MARKERS, Data, array_of_shape, axes_or_new, draw_legend, texts
from flowlin.plot.style import colours as is_colours


@checked(points=None, labels=texts, colours=is_colours)
def representations(
    points: Data,
    ax: Axes | None = None,
    *,
    labels: Sequence[str] | None = None,
    colours: Sequence[str] | None = None,
) -> Axes:
    """Draw paths of the samples' hidden representations in the plane, from start to end.

    A hollow marker is the start, a full one the end; for the state at a time, cut `points` there.

    **Arguments:**

    - `points`: (T, P, 2), positions over time, from multidimensional scaling, say.
    - `ax`: None makes a new one.
    - `labels`: P names, for the legend.
    - `colours`: P colours; None is one per sample.

    **Returns:** the Axes, both directions to the same scale.

    **Raises:** `ValueError` for another shape or number of labels or colours.
    """
    paths, ax = array_of_shape("points", points, "T P 2"), axes_or_new(ax)
    number = paths.shape[1]
    for name, given in (("labels", labels), ("colours", colours)):
        if given is not None and len(given) != number:
            raise ValueError(
                f"`{name}` must have {number} entries, one per sample, got {len(given)}."
            )
    many = matplotlib.colormaps["cividis"](np.linspace(0, 0.95, number))
    default = CYCLE[:number] if number <= len(CYCLE) else many
    for k, colour in enumerate(default if colours is None else colours):
        x, y = paths[:, k].T
        how: dict[str, Any] = {"color": colour, "marker": MARKERS[k % len(MARKERS)]}
        ax.plot(x, y, color=colour, linewidth=1.0, alpha=0.8)
        ax.plot(x[:1], y[:1], **how, markerfacecolor="white", markersize=5, linestyle="none")
        name = None if labels is None else labels[k]
        ax.plot(x[-1:], y[-1:], **how, markersize=7, linestyle="none", label=name)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set(xlabel="dimension 1", ylabel="dimension 2")
    draw_legend(ax)
    return ax
