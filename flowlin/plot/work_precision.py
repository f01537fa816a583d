"""Pictures of work against precision."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes

from flowlin._tools.arguments import argument_error, checked, string
from flowlin.plot.style import (
    CYCLE,
    DASHES,
    MARKERS,
    Data,
    array_of_shape,
    axes_or_new,
    dictionary_of,
    draw_legend,
    override_look,
)


@checked(
    contenders=dictionary_of("{name: (work, error)}"),
    unit=string,
    error=string,
    looks=dictionary_of("of keywords"),
)
def work_precision(
    contenders: Mapping[str, tuple[Data, Data]],
    ax: Axes | None = None,
    *,
    unit: str = "evaluations of the field",
    error: str = "relative error",
    looks: Mapping[str, Mapping[str, Any]] | None = None,
) -> Axes:
    """Draw error against work of several methods, on logarithmic scales; lower left is better.

    **Arguments:**

    - `contenders`: by name, (work, error), both (N,).
    - `ax`: None makes a new one.
    - `unit`: what work is: evaluations, seconds.
    - `error`: what the error is.
    - `looks`: by name, keywords of `Axes.plot` instead of a line style and marker by order.

    **Returns:** the Axes.

    **Raises:** `ValueError` for no contenders, or different numbers of works and errors.
    """
    ax = axes_or_new(ax)
    for n, (name, pair) in enumerate(contenders.items()):
        work, errors = _work_and_error(name, pair)
        x = array_of_shape(f"contenders[{name!r}][0]", work, "N")
        y = array_of_shape(f"contenders[{name!r}][1]", errors, f"{len(x)}")
        how: dict[str, Any] = {
            "color": CYCLE[n % len(CYCLE)],
            "linestyle": DASHES[n % len(DASHES)],
            "marker": MARKERS[n % len(MARKERS)],
        }
        ax.loglog(x, y, label=name, **override_look(how, (looks or {}).get(name, {})))
    ax.grid(True, which="major", color="0.92", linewidth=0.6)
    ax.set(xlabel=unit, ylabel=error)
    draw_legend(ax)
    return ax


def _work_and_error(name: object, given: object) -> tuple[Data, Data]:
    """Accept a pair, work and error of a contender."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise argument_error(f"contenders[{name!r}]", "a pair, (work, error)", given)
    return given[0], given[1]
