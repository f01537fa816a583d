"""The picture of M Fig. 2."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import half_widths
from _paper import WITHOUT, fl
from _separation import KINDS
from _tree import task_of
from matplotlib.axes import Axes
from matplotlib.figure import Figure

TITLES = {1.0: "with bias", 0.0: "without bias"}
TIME = "flow time $t$ (units of $\\tau$)"


def figure(data: Any) -> Figure:
    """Panels B and D: losses on the tree and on XOR."""
    shown, axes = plt.subplots(2, 2, figsize=(9.4, 7.2))
    for row, task, title in zip(axes, ("tree", "xor"), ("B. tree", "D. XOR"), strict=True):
        for ax, c in zip(row, TITLES, strict=True):
            _losses(data.runs, task, c, ax)
            ax.set(title=f"{title}, {TITLES[c]}", xlim=(0, 40))
    for ax in axes[0]:
        ax.set_ylim(0, 2.1)
    for ax in axes[1]:
        ax.set_ylim(0, 0.52)
    look = fl.plot.look("theory")
    exact = data.exact["tree", "isolated"][0]
    axes[0, 0].plot(data.size.setting.ts, exact, label="exact", **look)
    for ax in axes.flat:
        ax.legend(fontsize="small", frameon=False)
    return shown


def stages(data: Any) -> Figure:
    """Half times of the singular values, and losses from small weights, where they come apart."""
    shown, axes = plt.subplots(1, 3, figsize=(10.4, 4.0))
    _half_times(data, axes[0])
    small = data.size.small.variance
    for ax, c in zip(axes[1:], TITLES, strict=True):
        _losses(data.small, "tree", c, ax)
        ax.set(title=f"tree, variance {small:g}, {TITLES[c]}", xlim=(0, 80), ylim=(0, 2.1))
        ax.legend(fontsize="small", frameon=False)
    return shown


def separation(data: Any) -> Figure:
    """Panels A and E: the tree, and how the items part."""
    shown, axes = plt.subplots(2, 2, figsize=(8.8, 8.0))
    axes[0, 0].imshow(task_of("tree").y, cmap="Greys", aspect="auto")
    axes[0, 0].set(xlabel="feature (root, branches, leaves)", ylabel="item", title="A. hierarchy",
                   xticks=range(0, 15, 2))  # fmt: skip
    for ax, (kind, c) in zip(axes.flat[1:], KINDS, strict=True):
        hidden = fl.measures.along(data.runs["tree", kind, c][0], fl.measures.hidden)
        points = np.asarray(fl.measures.mds(hidden).points)
        labels = [f"item {k}" for k in range(points.shape[1])] if kind == "linear" else None
        fl.plot.representations(points, ax, labels=labels)
        ax.set(title=f"E. {'linear' if kind == 'linear' else 'ReLU'}, {TITLES[c]}")
    handles, labels = axes[0, 1].get_legend_handles_labels()
    axes[0, 1].get_legend().remove()
    shown.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return shown


def _losses(runs: dict[Any, Any], task: str, c: float, ax: Axes) -> None:
    """Mean losses of both kinds; without bias dashed, with hollow markers."""
    for kind, name in (("linear", "linear"), ("relu", "ReLU")):
        flows = runs[task, kind, c]
        mean = np.mean([np.asarray(flow.losses) for flow in flows], axis=0)
        how: dict[str, Any] = {"color": fl.plot.COLOURS[kind], "linestyle": "-", "linewidth": 1.8}
        if not c:
            marks = {"marker": "os"[kind == "linear"], "markersize": 4, "markevery": 12}
            how |= WITHOUT | marks
        ax.plot(flows[0].ts, mean, label=name, **how)
    ax.set(xlabel=TIME, ylabel="loss $L$")


def _half_times(data: Any, ax: Axes) -> None:
    """Half times of the singular values over those of the linear network."""
    colour = fl.plot.COLOURS["relu"]
    for small, marker, size in ((False, "o", data.size.setting), (True, "s", data.size.small)):
        for c in (1.0, 0.0):
            ratios = data.pace("tree", c, small).ratios
            how: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": "-"}
            how |= {} if c else WITHOUT
            label = f"{TITLES[c]}, $\\sigma^2$ = {size.variance:g}"
            where = np.arange(1, ratios.shape[1] + 1)
            ax.errorbar(where, ratios.mean(axis=0), half_widths(ratios), label=label, **how)
    ax.axhline(1, color="0.6", linewidth=0.8, linestyle="-")
    ax.set(
        xlabel="singular value of the tree, largest first", ylabel="half time, ReLU over linear",
        title="tree: when the stages come", ylim=(0.7, 1.75), xticks=range(1, 5),
    )  # fmt: skip
    ax.legend(fontsize="small", frameon=False, loc="upper right")
