"""Pictures of gated graphs: pathways' strengths over time, and where the pathways lie."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm

from flowlin._tools.arguments import checked, index_from_zero, integer_from
from flowlin._tools.arrays import Numbers
from flowlin.networks.graph import AbstractGraph
from flowlin.plot.style import (
    CYCLE,
    DASHES,
    axes_or_new,
    draw_legend,
    indices,
    require_axes,
    time_label,
)
from flowlin.record.trajectory import Trajectory
from flowlin.theory.race import Race, strengths_along
from flowlin.theory.rectified import Rectified

MOST_DRAWN = 6  # pathways that are drawn unless others are asked for


@checked(mode=index_from_zero, shown=indices, graph=require_axes)
def pathways(
    flow: Trajectory,
    race: Race,
    ax: Axes | None = None,
    *,
    mode: int = 0,
    shown: Sequence[int] | None = None,
    graph: Axes | None = None,
) -> Axes:
    """Draw strengths of pathways over time in one mode, with the graph on which they race.

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
    strengths = _pathway_strengths(flow, race, mode)
    which = _pathways_to_draw(shown, strengths)
    if ax is None and graph is None:
        figure = plt.figure(figsize=(8.0, 3.4), layout="constrained")
        ax, graph = figure.subplots(1, 2, width_ratios=(3, 2))
    ax = axes_or_new(ax)
    full = np.asarray(race.lone_strengths)[:, mode]
    for n, k in enumerate(which):
        how = _look_by_order(n)
        ax.plot(flow.ts, strengths[:, k], label=" → ".join(race.pathways[k].nodes), **how)
        ax.axhline(full[k], color=how["color"], linewidth=0.6, alpha=0.6, zorder=0)
        _mark_pathway_hits(ax, flow, (int(k), mode), strengths[:, k], how["color"])
    ax.set(xlabel=time_label(flow), ylabel=f"pathway strength $B_p$, mode {mode}")
    draw_legend(ax)
    if graph is not None:
        _draw_graph(graph, race, which, np.abs(strengths[-1]))
    return ax


def _pathway_strengths(flow: Trajectory, race: Race, mode: int) -> np.ndarray:
    """Return the strengths of all pathways in a mode at the saved times, (T, n)."""
    modes = race.s.shape[1]
    if mode >= modes:
        raise ValueError(f"`mode` must be one of 0 ... {modes - 1}, got {mode}.")
    if not isinstance(flow.model, AbstractGraph):
        raise ValueError(f"`flow` must be a run of the race's graph, got one of {flow.model!r}.")
    return np.asarray(strengths_along(race, flow.networks))[:, :, mode]


def _pathways_to_draw(shown: Sequence[int] | None, strengths: np.ndarray) -> list[int]:
    """Return the numbers of the pathways to draw."""
    count = strengths.shape[1]
    if shown is None:
        return sorted(np.argsort(-np.abs(strengths[-1]), kind="stable")[:MOST_DRAWN].tolist())
    if not shown or not set(shown) <= set(range(count)):
        raise ValueError(f"`shown` must be some of the pathways 0 ... {count - 1}, got {shown}.")
    return list(shown)


def _look_by_order(n: int) -> dict[str, Any]:
    """Return colour and line style of the n-th pathway that is drawn."""
    return {"color": CYCLE[n % len(CYCLE)], "linestyle": DASHES[n % len(DASHES)]}


def _mark_pathway_hits(
    ax: Axes, flow: Trajectory, which: tuple[int, int], row: np.ndarray, colour: str
) -> None:
    """Draw markers where the pathway hits its level in the mode."""
    log = flow.events.select("race") if "race" in set(flow.events.name) else None
    if log is not None:
        times = [t for t, at in zip(np.asarray(log.time), log.index, strict=True) if at == which]
        heights = np.interp(times, np.asarray(flow.ts), row)
        ax.plot(times, heights, "o", color=colour, markerfacecolor="white", zorder=4)


def _node_places(network: AbstractGraph) -> dict[str, tuple[float, float]]:
    """Place nodes to the right of all that they take from, evenly spread upwards."""
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


def _draw_graph(ax: Axes, race: Race, which: Sequence[int], strengths: np.ndarray) -> None:
    """Draw nodes, edges, and the pathways as lines side by side through them."""
    places = _node_places(race.network)
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
        ax.plot(
            line[:, 0],
            line[:, 1] + beside,
            linewidth=width,
            alpha=0.75,
            zorder=2,
            **_look_by_order(n),
        )
    _write_node_names(ax, places)
    ax.set(xlim=(-0.2, 1.2), ylim=(min(rows) - 0.6, max(rows) + 0.6))
    ax.axis("off")


def _write_node_names(ax: Axes, places: Mapping[str, tuple[float, float]]) -> None:
    """Write the nodes' names, in boxes."""
    box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "0.4"}
    for node, (x, y) in places.items():
        ax.text(x, y, node, ha="center", va="center", fontsize="small", bbox=box, zorder=3)


# ---- A ReLU run read as gated linear networks: its pathways, and how long one gating lasts.


@checked(most=integer_from(1))
def lifetimes(rectified: Rectified, ax: Axes | None = None, *, most: int = 20) -> Axes:
    """Draw when each pathway of a ReLU run lives, and its share of the loss's fall.

    One bar per pathway from its start to its end, the largest share on top, darker for a larger
    share; beside it the samples on which its units are on (filled), slide (a ring) or off (a dot).

    **Arguments:**

    - `rectified`: what `fl.rectified` returns, of a network with one hidden layer.
    - `ax`: None makes a new one.
    - `most`: so many pathways at most, those with the largest shares.

    **Returns:** the Axes.

    **Raises:** `ValueError` for several hidden layers.
    """
    ax, shown = axes_or_new(ax), rectified.pathways[:most]
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
        yticklabels=[_list_units(one.units) for one in shown],
    )  # fmt: skip
    ax.annotate("samples: ● on ◐ sliding · off; share", (1.01, 1.0), xycoords="axes fraction",
                va="bottom", fontsize=7)  # fmt: skip
    ax.tick_params(axis="y", labelsize=7)
    return ax


def _list_units(units: tuple[int, ...], most: int = 4) -> str:
    """List the units of a pathway, the first ones where there are many."""
    named = ", ".join(map(str, units[:most]))
    return named if len(units) <= most else f"{named}, ... ({len(units)})"


@checked(times=None)
def overlap(rectified: Rectified, ax: Axes | None = None, *, times: Numbers | None = None) -> Axes:
    """Draw the share of (unit, sample) pairs that have one side at both of two times.

    Within a block of share 1 a single gated linear network describes the whole run.

    **Arguments:**

    - `rectified`: what `fl.rectified` returns.
    - `ax`: None makes a new one.
    - `times`: (T,), increasing, in [0, end]; None takes 121 of equal distance.

    **Returns:** the Axes.

    **Raises:** `ValueError` for times outside the run.
    """
    ax = axes_or_new(ax)
    at = np.linspace(0, rectified.times[-1], 121) if times is None else np.asarray(times, float)
    mesh = ax.pcolormesh(at, at, rectified.overlap(at), vmax=1, rasterized=True)
    bar = ax.get_figure().colorbar(mesh, ax=ax)  # pyright: ignore
    bar.set_label("pairs on the same side")
    ax.set(xlabel="time $t$", ylabel="time $t$", aspect="equal")
    return ax
