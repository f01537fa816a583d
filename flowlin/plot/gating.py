"""A ReLU run read as gated linear networks: its pathways, and how long one gating lasts."""

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm

from flowlin._tools.checks import checked, whole
from flowlin._tools.types import Numbers
from flowlin.plot.frame import axes
from flowlin.reading.relu_run import Rectified


@checked(most=whole(1))
def lifetimes(rectified: Rectified, ax: Axes | None = None, *, most: int = 20) -> Axes:
    """When each pathway of a ReLU run lives, and how much of the loss's fall it carries.

    One bar per pathway from its start to its end, the largest share on top, darker for a larger
    share; beside it the samples on which its units are on (filled), slide (a ring) or off (a dot).

    **Arguments:**

    - `rectified`: what `fl.rectified` returns, of a network with one hidden layer.
    - `ax`: None makes a new one.
    - `most`: so many pathways at most, those with the largest shares.

    **Returns:** the Axes.

    **Raises:** `ValueError` for several hidden layers.
    """
    ax, shown = axes(ax), rectified.pathways[:most]
    largest = max((one.share for one in shown), default=1.0) or 1.0
    shade = PowerNorm(0.5, 0, largest)
    for row, one in enumerate(shown):
        colour = colormaps["cividis_r"](shade(one.share))
        ax.barh(row, one.lifetime, left=one.start, color=colour, edgecolor="black", linewidth=0.4)
        marks = "".join({1: "●", 0: "◐", -1: "·"}[int(side)] for side in one.sides)
        ax.annotate(
            f"{marks}  {100 * one.share:.1f} %", (1.01, row), xycoords=("axes fraction", "data"),
            va="center", fontsize=7, fontfamily="DejaVu Sans Mono",
        )  # fmt: skip
    ax.set(
        xlabel="time $t$", ylabel="units of the pathway", xlim=(0, float(rectified.times[-1])),
        ylim=(len(shown) - 0.4, -0.6), yticks=range(len(shown)),
        yticklabels=[_units(one.units) for one in shown],
    )  # fmt: skip
    ax.annotate("samples: ● on ◐ sliding · off; share", (1.01, 1.0), xycoords="axes fraction",
                va="bottom", fontsize=7)  # fmt: skip
    ax.tick_params(axis="y", labelsize=7)
    return ax


def _units(units: tuple[int, ...], most: int = 4) -> str:
    """The units of a pathway, the first ones where there are many."""
    named = ", ".join(map(str, units[:most]))
    return named if len(units) <= most else f"{named}, ... ({len(units)})"


@checked(times=None)
def overlap(rectified: Rectified, ax: Axes | None = None, *, times: Numbers | None = None) -> Axes:
    """The share of (unit, sample) pairs that have one side at both of two times.

    Where a block is one, a single gated linear network is the whole run there.

    **Arguments:**

    - `rectified`: what `fl.rectified` returns.
    - `ax`: None makes a new one.
    - `times`: (T,), increasing, in [0, end]; None takes 121 of equal distance.

    **Returns:** the Axes.

    **Raises:** `ValueError` for times outside the run.
    """
    ax = axes(ax)
    at = np.linspace(0, rectified.times[-1], 121) if times is None else np.asarray(times, float)
    mesh = ax.pcolormesh(at, at, rectified.overlap(at), vmax=1, rasterized=True)
    bar = ax.get_figure().colorbar(mesh, ax=ax)  # pyright: ignore
    bar.set_label("pairs on the same side")
    ax.set(xlabel="time $t$", ylabel="time $t$", aspect="equal")
    return ax
