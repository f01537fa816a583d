"""What every picture needs: Axes, arrays of the right shape, the label of the time axis."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes

from flowlin._tools.checks import array as numbers
from flowlin.runs.trajectory import Trajectory

Data = Array | np.ndarray | Sequence[Any]

TIME = r"flow time $t$ (units of $\tau$)"


def axes(ax: Axes | None, **subplot: Any) -> Axes:
    """The given Axes, or those of a new figure."""
    if ax is not None:
        return ax
    return plt.figure(layout="constrained").add_subplot(**subplot)


def array(name: str, value: Data, shape: str) -> np.ndarray:
    """`value` as an array with as many axes as `shape`, such as "T P 2", names.

    A number in `shape` must be met; so must equal letters, if `value` has them twice.

    **Raises:** `ValueError` for what holds no numbers, is empty, or has another shape.
    """
    found, wanted = np.asarray(numbers(name, value)), shape.split()
    fits = found.ndim == len(wanted) and all(
        not want.isdigit() or int(want) == size
        for want, size in zip(wanted, found.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"`{name}` must have shape ({', '.join(wanted)}), got {found.shape}; reshape it."
        )
    if not found.size:
        raise ValueError(f"`{name}` is empty: its shape is {found.shape}.")
    return found


def time_label(run: Trajectory) -> str:
    """Label of the time axis; a run with another tau than 1 has its unit of time."""
    if run.tau.ndim:  # one per layer
        return r"flow time $t$"
    tau = float(run.tau)
    return TIME if tau == 1 else rf"flow time $t$ ($\tau$ = {tau:g})"


def legend(ax: Axes, **place: Any) -> None:
    """A legend, if anything has a label."""
    if ax.get_legend_handles_labels()[1]:
        ax.legend(framealpha=0.85, edgecolor="none", fontsize="small", **place).set_zorder(6)


def band(ax: Axes, x: Data, rows: np.ndarray, **look: Any) -> None:
    """Mean of rows (R, N) over x (N,), with a band of one standard error; NaNs are left out."""
    kept = np.ma.masked_invalid(rows)
    mean = kept.mean(axis=0)
    (line,) = ax.plot(np.asarray(x), mean.filled(np.nan), **look)
    if len(rows) > 1:
        error = kept.std(axis=0, ddof=1) / np.sqrt(np.maximum(kept.count(axis=0), 1))
        low, high = (mean - error).filled(np.nan), (mean + error).filled(np.nan)
        ax.fill_between(np.asarray(x), low, high, color=line.get_color(), alpha=0.2, linewidth=0)
