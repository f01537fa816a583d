"""Losses of runs over time."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from flowlin._tools.arguments import argument_error, checked
from flowlin.plot.style import (
    TIME_LABEL,
    Data,
    axes_or_new,
    dictionary_of,
    draw_band,
    draw_legend,
    is_descent,
    kind_of,
    look,
    time_label,
)
from flowlin.record.sweep import Sweep
from flowlin.record.trajectory import Trajectory


def _runs_argument(name: str, value: object) -> object:
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


def _runs_under_label(label: object, given: object) -> list[Trajectory]:
    """Return the trajectories under a label."""
    if isinstance(given, Trajectory):
        return [given]
    members = list(given) if isinstance(given, (Sweep, list, tuple)) else []
    if not members or not all(isinstance(member, Trajectory) for member in members):
        raise argument_error(f"runs[{label!r}]", "a trajectory, several of them, or a sweep", given)
    return members


def _marker_stride(ts: Data) -> int:
    """Return the stride that leaves about 25 markers along a curve."""
    return max(1, len(ts) // 25)
