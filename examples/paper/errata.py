r"""Errata of the papers: each formula as printed and in its right form, against a reference.

What the scripts of the figures do not look at already: Eqs. 1, 2, 6, 8-11, 17-22, 25, t* and
Apps. D and E of the lead paper, the effective weights' Eq. 3 (L), ReLU minus a bias (B), and rates
and fixed points (C). References are finite differences of the loss, counting, least squares,
Runge-Kutta solutions and flows of the hierarchy task; every error is relative to what the formula
stands for, and one that is undefined counts as 1. A printed form that is right under a condition
is computed under it too.

    python examples/paper/errata.py [--quick | --full]
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _errata import Finding, Size
from _errata_linear import (
    augmentation,
    clocks,
    gating,
    modes_rule,
    rank,
    rates,
    rules,
    zero_modes,
)
from _errata_relu import (
    early_law,
    effective_weights,
    explained,
    growth,
    linearization_times,
    tied,
)
from _paper import Row, Study, fl
from matplotlib.figure import Figure

SIZES = {"quick": Size(), "default": Size(), "full": Size()}
PARTS = (
    rank, rules, modes_rule, clocks, augmentation, zero_modes, early_law, growth, gating,
    linearization_times, explained, effective_weights, tied, rates,
)  # fmt: skip


def compute(size: Size) -> list[Finding]:
    """All errata, by number."""
    rng = np.random.default_rng(0)
    return [finding for part in PARTS for finding in part(size, rng)]


def numbers(data: list[Finding]) -> dict[str, Any]:
    """Both errors by erratum."""
    return {one.erratum: [one.printed, one.right] for one in data}


def judge(data: list[Finding]) -> list[Row]:
    """One verdict per erratum."""
    return [one.row for one in data]


def draw(data: list[Finding]) -> Figure:
    """Errors of the printed and of the right form."""
    figure, ax = plt.subplots(figsize=(8.0, 7.6))
    where, least = np.arange(len(data)), 1e-17
    looks = {
        "as printed": ([one.printed for one in data], "relu", "o", 8),
        "right form": ([one.right for one in data], "linear", "s", 5),
    }
    for label, (values, look, marker, size) in looks.items():
        shown = [np.nan if value is None else max(value, least) for value in values]
        ax.plot(shown, where, linestyle="none", marker=marker, markersize=size,
                markerfacecolor="none", color=fl.plot.COLOURS[look], label=label)  # fmt: skip
    ax.set_yticks(where, [one.erratum for one in data])
    ax.set(xscale="log", xlabel="relative error (0 shown at 1e-17)", ylim=(len(data) - 0.5, -0.5))
    ax.grid(axis="y", linewidth=0.4)
    ax.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    return figure


STUDY = Study("errata", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
