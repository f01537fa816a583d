"""The three kinds of kinks: what a pair's preactivation does there.

    python docs/_figures/kinks.py

On either side of z = 0 the velocity dz/dt is drawn as constant, as it is in the limit of a close
look. Writes `docs/_static/kinks.png`.
"""

import pathlib
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

import flowlin as fl

OUT = pathlib.Path(__file__).resolve().parents[1] / "_static" / "kinks.png"
TIMES = np.linspace(0, 2, 9)
HEIGHT = 1.0  # of z that is shown


class Kind(NamedTuple):
    """A kind of kink: dz/dt below and above it, and paths as lists of points (t, z)."""

    title: str
    below: float
    above: float
    paths: tuple[tuple[tuple[float, float], ...], ...]


KINDS = (
    Kind("crossing: one direction", 0.9, 0.5, (((0, -0.9), (1, 0), (2, 0.5)),)),
    Kind(
        "sliding (C < 0): both push back",
        0.7,
        -0.7,
        (((0, -0.7), (1, 0), (2, 0)), ((0, 0.35), (0.5, 0), (1, 0))),
    ),
    Kind(
        "repelling (C > 0): both push away",
        -0.6,
        0.6,
        (((0, 0.05), (1.5, 0.95)), ((0, -0.05), (1.5, -0.95))),
    ),
)


def draw(ax: plt.Axes, kind: Kind) -> None:
    """Velocities as arrows, paths as lines."""
    for side, rate in ((-1, kind.below), (1, kind.above)):
        t, z = np.meshgrid(TIMES, side * HEIGHT * np.array([0.25, 0.55, 0.85]))
        ax.quiver(
            t, z, np.ones_like(t), np.full_like(t, rate), angles="xy", color="0.72", width=0.006,
            scale_units="xy", scale=6,
        )  # fmt: skip
    for path in kind.paths:
        t, z = zip(*path, strict=True)
        ax.plot(t, z, color=fl.plot.COLOURS["relu"], lw=2)
    ax.axhline(0, color="black", lw=0.8, zorder=0)
    ax.set(
        title=kind.title, xlabel="time", xlim=(-0.05, 2.2), ylim=(-HEIGHT, HEIGHT), xticks=[],
        yticks=[0],
    )  # fmt: skip


def main() -> None:
    """Draw and save."""
    with fl.plot.style():
        figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), sharey=True, layout="constrained")
        for ax, kind in zip(axes, KINDS, strict=True):
            draw(ax, kind)
        axes[0].set_ylabel("preactivation $z$\noff (below)     on (above)")
        OUT.parent.mkdir(exist_ok=True)
        figure.savefig(OUT, dpi=150)
    print(OUT)


if __name__ == "__main__":
    main()
