"""Kinks of units over time."""

from typing import Any

from matplotlib.axes import Axes

from flowlin._tools.arguments import checked
from flowlin.plot.style import TIME_LABEL, Data, array_of_shape, axes_or_new, look, override_look


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
