"""Panels of C's sixth part: pathways that explain runs, contexts they are in, offset XOR."""

from typing import Any

import numpy as np
from _judge import SHARES, half_widths
from matplotlib.axes import Axes


def draw_explained(ax: Axes, runs: dict[str, Any]) -> None:
    """Share of the loss's fall that the largest pathways carry, a line for each run."""
    for (name, some), colour in zip(runs.items(), ("C0", "C1"), strict=True):
        for k, one in enumerate(some):
            sums = np.r_[0, np.cumsum(one.shares)]
            ax.plot(sums, color=colour, linestyle="-", linewidth=1.0,
                    label=name if k == 0 else None)  # fmt: skip
    ax.axhline(0.99, color="0.5", linewidth=0.8)
    ax.set(xlabel="pathways, largest first", ylabel="share of the loss's fall", xscale="symlog",
           xlim=(0, None), ylim=(0, 1.03), title="pathways that explain a run")  # fmt: skip
    ax.legend(loc="lower right", fontsize="small")


def draw_contexts(ax: Axes, found: dict[int, list[np.ndarray]]) -> None:
    """By the number of contexts: shares (seeds, contexts + 1), and those of shuffled samples."""
    wide = 0.8 / len(found)
    for k, (count, (shares, shuffled)) in enumerate(found.items()):
        at = np.arange(count + 1) + (k - (len(found) - 1) / 2) * wide
        spread = half_widths(shares) if len(shares) > 1 else None
        ax.bar(at, shares.mean(axis=0), 0.9 * wide, yerr=spread, label=f"{count} contexts")
        ax.plot(at, shuffled.mean(axis=0), "k_", markersize=9,
                label="samples shuffled" if k == 0 else None)  # fmt: skip
    ax.set(xlabel="contexts in which a pathway's units are on", ylabel="share of the loss's fall",
           xticks=range(max(found) + 1), ylim=(0, 1),
           title="contextual tasks (bars: 95 %)")  # fmt: skip
    ax.legend(loc="upper right", ncols=2, fontsize="small")


def draw_offset(
    ax: Axes, curved: dict[str, dict[float, list[float]]], looks: dict[str, tuple[str, str, str]]
) -> None:
    """By the kind and the offset: curved shares of the outputs, by seed; colour, marker, line."""
    for kind, values in curved.items():
        colour, mark, dash = looks.get(kind, ("C2", "D", ":"))
        for delta, some in values.items():
            ax.plot([delta] * len(some), some, mark, color=colour, alpha=0.5, markersize=4)
        means = [np.mean(some) for some in values.values()]
        ax.plot(list(values), means, color=colour, linestyle=dash, label=kind)
    ax.axhline(SHARES.same, color="0.5", linewidth=0.8)
    ax.set(xlabel=r"offset $\Delta$", ylabel="curved share of the outputs", ylim=(-0.03, 1.35),
           title="offset XOR: from non-linear to linear")  # fmt: skip
    ax.legend(loc="upper right", fontsize="small")
