r"""Errata of the papers: each formula as printed and in its right form, against a reference. See:
formulas as printed (crosses) are off by the order of one, corrected ones (dots) lie left of the
dotted line.

What the scripts of the figures do not look at already: Eqs. 1, 2, 4, 6, 8-11, 17-22, 25, t* and
Apps. D and E of the lead paper, the effective weights' Eq. 3 (L), and ReLU minus a bias (B). What
fixed points and time courses depend on (E19) is in c_1_svd.py. References are finite differences
of the loss, counting, least squares, Runge-Kutta solutions and flows of the hierarchy task; every
error is relative to what the formula stands for, and one that is undefined counts as 1. What is
wrong as printed and right by the one correction that there is is a misprint; a printed form that
is right under a condition is computed under it too. Rows that no paper claims are controls.

    python examples/paper/errata.py [--quick | --full]
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _errata import EXACT, Finding, Size
from _errata_linear import (
    augmentation,
    clocks,
    diagonal,
    gating,
    modes_rule,
    rank,
    rules,
    zero_modes,
)
from _errata_relu import (
    early_law,
    effective_weights,
    explained,
    growth,
    labels,
    linearization_times,
    tied,
)
from _paper import Row, Study
from matplotlib.figure import Figure

SIZES = {"quick": Size(seeds=3), "default": Size(), "full": Size()}
PARTS = (
    rank, rules, modes_rule, clocks, augmentation, diagonal, zero_modes, early_law, growth, gating,
    linearization_times, explained, labels, effective_weights, tied,
)  # fmt: skip


def compute(size: Size) -> list[Finding]:
    """All errata, by number."""
    rng = np.random.default_rng(0)
    return [finding for part in PARTS for finding in part(size, rng)]


def numbers(data: list[Finding]) -> dict[str, Any]:
    """Both errors by erratum."""
    return {one.erratum: [one.printed, one.right] for one in data}


def judge(data: list[Finding]) -> list[Row]:
    """One row per erratum."""
    return [one.row for one in data]


def draw(data: list[Finding]) -> Figure:
    """Errors of the formulas as printed and corrected, with the corrections."""
    shown = [one for one in data if one.formula and one.correction]
    figure, ax = plt.subplots(figsize=(8.0, 0.62 * len(shown) + 1.2), layout="constrained")
    red, least = "#D55E00", 1e-17
    for where, one in enumerate(shown):
        ends = max(one.right or 0.0, least), one.printed
        ax.plot(ends, (where, where), color="0.75", linestyle="-", linewidth=1, zorder=1)
        ax.plot(ends[1], where, "x", markersize=8, color=red, zorder=2)
        ax.plot(ends[0], where, "o", markersize=7, color="black", zorder=2)
        number, _, equation = one.erratum.partition(" ")
        ax.annotate(f"B.{number}, {equation}: {one.correction}", (1.3e-17, where - 0.22),
                    va="bottom", fontsize="small", parse_math=False)  # fmt: skip
    marks = (("x", red, "as printed"), ("o", "black", "corrected, as the line says"))
    for marker, colour, label in marks:
        ax.plot([], [], marker, color=colour, label=label)
    ax.axvline(EXACT, color="0.5", linestyle=":", linewidth=1)
    ax.set(xscale="log", xlim=(least / 2, 20), ylim=(len(shown) - 0.5, -0.8), yticks=[],
           xlabel="relative error (0 shown at 1e-17; dotted: right up to here)")  # fmt: skip
    ax.grid(visible=False)
    figure.legend(frameon=False, ncols=2, loc="outside upper center")
    return figure


STUDY = Study("errata", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
