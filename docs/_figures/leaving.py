r"""Two units that leave a silent layer together: how the loss changes with what they send.

    python docs/_figures/leaving.py

Both are at their kinks and send $y_1, y_2 \ge 0$ to a unit above with $z = y_1 - y_2$. To first
order the loss changes by $\ell(y) = -y_1 + y_2 / 2 + 1.6 \max(z, 0)$: what both send by themselves,
and what the unit above makes of it. Writes `docs/_static/leaving.png`.
"""

import pathlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

import flowlin as fl

OUT = pathlib.Path(__file__).resolve().parents[1] / "_static" / "leaving.png"


def change_of_loss(y1: np.ndarray, y2: np.ndarray) -> np.ndarray:
    """The loss relative to that of the silent layer."""
    return -y1 + 0.5 * y2 + 1.6 * np.maximum(y1 - y2, 0)


def main() -> None:
    """Draw and save."""
    y1, y2 = np.meshgrid(np.linspace(0, 1, 201), np.linspace(0, 1, 201))
    with fl.plot.style():
        figure, ax = plt.subplots(figsize=(5.6, 3.9), layout="constrained")
        levels = np.linspace(-0.6, 0.6, 13)
        found = ax.contourf(y1, y2, change_of_loss(y1, y2), levels, cmap="RdBu_r")
        figure.colorbar(found, label="change of the loss", ticks=(-0.5, 0, 0.5))
        arrow = {"arrowstyle": "-|>", "lw": 2.4, "shrinkA": 0, "shrinkB": 0}
        for end in ((0.72, 0), (0, 0.72), (0.72, 0.72)):
            ax.annotate("", end, (0, 0), arrowprops=arrow, annotation_clip=False)
        for place, text in (((0.37, 0.06), "unit 1 alone: it rises"),
                            ((0.03, 0.8), "unit 2 alone: it rises"),
                            ((0.4, 0.31), "both, with z = 0\nabove: it falls")):  # fmt: skip
            ax.annotate(text, place, fontsize=10)
        ax.plot([0, 1], [0, 1], color="black", linestyle=":")
        ax.set(xlabel="what unit 1 sends, $y_1$", ylabel="what unit 2 sends, $y_2$")
        ax.set(xlim=(0, 1), ylim=(0, 1), xticks=[0], yticks=[0])
        figure.savefig(OUT, dpi=150)
    print(OUT)


if __name__ == "__main__":
    main()
