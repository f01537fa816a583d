"""Pictures of gated graphs: pathways' strengths over time, and where the pathways lie."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from flowlin._tools.checks import checked, index
from flowlin.network.graph_forward import AbstractGraph
from flowlin.plot._words import axes_given, indices
from flowlin.plot.frame import axes, legend, time_label
from flowlin.plot.looks import CYCLE, DASHES
from flowlin.runs.trajectory import Trajectory
from flowlin.theory.reduction import Race, strengths_along

MOST = 6  # pathways that are drawn unless others are asked for


@checked(mode=index, shown=indices, graph=axes_given)
def pathways(
    flow: Trajectory,
    race: Race,
    ax: Axes | None = None,
    *,
    mode: int = 0,
    shown: Sequence[int] | None = None,
    graph: Axes | None = None,
) -> Axes:
    """Strengths of pathways over time in one mode, with the graph on which they race.

    A thin line is what a pathway would end at alone, a marker a hit of `race.hits` in the run's
    log. In the graph every pathway is a line through its nodes, as wide as it is strong at the end.

    **Arguments:**

    - `flow`: a run of the race's network, or of `race.flow`, with saved networks.
    - `race`: from `theory.race(network, task)`.
    - `ax`: None makes a new figure, with Axes for the graph as well.
    - `mode`: which mode.
    - `shown`: which of `race.pathways`; None is the six that are strongest at the end.
    - `graph`: Axes for the graph beside given `ax`; None leaves it out there.

    **Returns:** the Axes.

    **Raises:** `ValueError` for a mode or pathways that there are not, and a run of another graph.
    """
    strengths = _strengths(flow, race, mode)
    which = _which(shown, strengths)
    if ax is None and graph is None:
        figure = plt.figure(figsize=(8.0, 3.4), layout="constrained")
        ax, graph = figure.subplots(1, 2, width_ratios=(3, 2))
    ax = axes(ax)
    full = np.asarray(race.alone)[:, mode]
    for n, k in enumerate(which):
        how = _look(n)
        ax.plot(flow.ts, strengths[:, k], label=" → ".join(race.pathways[k].nodes), **how)
        ax.axhline(full[k], color=how["color"], linewidth=0.6, alpha=0.6, zorder=0)
        _mark(ax, flow, (int(k), mode), strengths[:, k], how["color"])
    ax.set(xlabel=time_label(flow), ylabel=f"pathway strength $B_p$, mode {mode}")
    legend(ax)
    if graph is not None:
        _draw(graph, race, which, np.abs(strengths[-1]))
    return ax


def _strengths(flow: Trajectory, race: Race, mode: int) -> np.ndarray:
    """Strengths of all pathways at the saved times, (T, n)."""
    modes = race.s.shape[1]
    if mode >= modes:
        raise ValueError(f"`mode` must be one of 0 ... {modes - 1}, got {mode}.")
    if not isinstance(flow.model, AbstractGraph):
        raise ValueError(f"`flow` must be a run of the race's graph, got one of {flow.model!r}.")
    return np.asarray(strengths_along(race, flow.networks))[:, :, mode]


def _which(shown: Sequence[int] | None, strengths: np.ndarray) -> list[int]:
    """The numbers of the pathways to draw."""
    count = strengths.shape[1]
    if shown is None:
        return sorted(np.argsort(-np.abs(strengths[-1]), kind="stable")[:MOST].tolist())
    if not shown or not set(shown) <= set(range(count)):
        raise ValueError(f"`shown` must be some of the pathways 0 ... {count - 1}, got {shown}.")
    return list(shown)


def _look(n: int) -> dict[str, Any]:
    return {"color": CYCLE[n % len(CYCLE)], "linestyle": DASHES[n % len(DASHES)]}


def _mark(ax: Axes, flow: Trajectory, which: tuple[int, int], row: np.ndarray, colour: str) -> None:
    """Markers where the pathway hits its level in the mode."""
    log = flow.events.select("race") if "race" in set(flow.events.name) else None
    if log is not None:
        times = [t for t, at in zip(np.asarray(log.time), log.index, strict=True) if at == which]
        heights = np.interp(times, np.asarray(flow.ts), row)
        ax.plot(times, heights, "o", color=colour, markerfacecolor="white", zorder=4)


def _places(network: AbstractGraph) -> dict[str, tuple[float, float]]:
    """Where nodes stand: to the right of all that they take from, evenly spread upwards."""
    depth: dict[str, int] = {}
    for node in network.order:
        depth[node] = max((depth[a] + 1 for a, b in network.edges if b == node), default=0)
    last = max(depth.values())
    for node, _, _ in network.sinks:
        depth[node] = last
    columns = {d: [node for node in network.order if depth[node] == d] for d in range(last + 1)}
    return {
        node: (d / last, (len(column) - 1) / 2 - k)
        for d, column in columns.items()
        for k, node in enumerate(sorted(column))
    }


def _draw(ax: Axes, race: Race, which: Sequence[int], strengths: np.ndarray) -> None:
    """Nodes, edges, and the pathways as lines side by side through them."""
    places = _places(race.network)
    for a, b in race.network.edges:
        ax.plot(
            *zip(places[a], places[b], strict=True),
            color="0.8",
            linestyle="-",
            linewidth=1,
            zorder=1,
        )
    rows = [y for _, y in places.values()]
    height = max(rows) - min(rows) + 1.0
    largest = max(strengths[k] for k in which) or 1.0
    for n, k in enumerate(which):
        beside = 0.03 * height * (n - (len(which) - 1) / 2)
        line = np.array([places[node] for node in race.pathways[k].nodes])
        width = 0.6 + 4.0 * strengths[k] / largest
        ax.plot(line[:, 0], line[:, 1] + beside, linewidth=width, alpha=0.75, zorder=2, **_look(n))
    _name(ax, places)
    ax.set(xlim=(-0.2, 1.2), ylim=(min(rows) - 0.6, max(rows) + 0.6))
    ax.axis("off")


def _name(ax: Axes, places: Mapping[str, tuple[float, float]]) -> None:
    """The nodes' names, in boxes."""
    box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "0.4"}
    for node, (x, y) in places.items():
        ax.text(x, y, node, ha="center", va="center", fontsize="small", bbox=box, zorder=3)
