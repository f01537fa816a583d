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
    """Panels A to E, the same from small weights, and the half times."""
    shown, axes = plt.subplots(4, 3, figsize=(10.5, 12.0))
    axes[0, 0].imshow(task_of("tree").y, cmap="Greys", aspect="auto")
    axes[0, 0].set(xlabel="feature (root, branches, leaves)", ylabel="item", title="A. hierarchy",
                   xticks=range(0, 15, 2))  # fmt: skip
    _tasks(data, axes)
    _half_times(data, axes[1, 0])
    for ax, (kind, c) in zip(axes[3], KINDS, strict=True):
        hidden = fl.measures.along(data.runs["tree", kind, c][0], fl.measures.hidden)
        points = np.asarray(fl.measures.mds(hidden).points)
        labels = [f"item {k}" for k in range(points.shape[1])] if kind == "linear" else None
        fl.plot.representations(points, ax, labels=labels)
        ax.set(title=f"E. {'linear' if kind == 'linear' else 'ReLU'}, {TITLES[c]}")
    # The items' key in the first panel only, which has room for it.
    handles, labels = axes[3, 0].get_legend_handles_labels()
    axes[3, 0].get_legend().remove()
    shown.legend(handles, labels, loc="outside lower center", ncols=8, frameon=False)
    return shown


def _tasks(data: Any, axes: Any) -> None:
    """Losses on the tree from both variances and on XOR, and XOR itself."""
    for n, c in enumerate((1.0, 0.0), start=1):
        title = TITLES[c]
        _losses(data.runs, "tree", c, axes[0, n])
        if c:
            look = fl.plot.look("theory")
            axes[0, n].plot(
                data.size.setting.ts, data.exact["tree", "isolated"][0], label="exact", **look
            )
        axes[0, n].set(title=f"B. {title}", xlim=(0, 40))
        _losses(data.small, "tree", c, axes[1, n])
        small = data.size.small.variance
        axes[1, n].set(title=f"as B from variance {small:g}, {title}", xlim=(0, 80))
        _losses(data.runs, "xor", c, axes[2, n])
        axes[2, n].set(title=f"D. XOR, {title}", xlim=(0, 40), ylim=(0, 0.52))
        for row in (0, 1):
            axes[row, n].set_ylim(0, 2.1)
        for row in (0, 1, 2):
            axes[row, n].legend(fontsize="small", frameon=False)
    task = task_of("xor")
    x, first = np.asarray(task.x), np.asarray(task.y[:, 0]) > 0
    for chosen, marker in ((first, "o"), (~first, "^")):
        axes[2, 0].plot(*x[chosen].T, linestyle="none", marker=marker, markersize=10,
                        color="black")  # fmt: skip
    axes[2, 0].set(
        title="C. XOR", xlabel="$x_1$", ylabel="$x_2$", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6),
        aspect="equal",
    )  # fmt: skip


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
        title="as B: when the stages come", ylim=(0.7, 1.75), xticks=range(1, 5),
    )  # fmt: skip
    ax.legend(fontsize="small", frameon=False, loc="upper right")
