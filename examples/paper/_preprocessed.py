"""The early phase with both preprocessings, for Figs. 7 and 8: runs, numbers, verdicts, picture."""

import dataclasses
from typing import Any

import numpy as np
from _images import LINEAR, Early, Setting, early, first_mode, gaps, load, partings
from _images_show import curves, draw_early
from _judge import interval
from _paper import Row
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

PIXEL, GLOBAL = "mean per pixel subtracted", "one mean and deviation"
HOW = {PIXEL: False, GLOBAL: True}
HALF_WIDTH = "the linear network has half the width"
CLOSE = 0.05  # seeds' mean of the early gap, in shares of 1/2


@dataclasses.dataclass(frozen=True)
class Data:
    """Everything that is shown; keys of phases are (preprocessing, "bias" or "no bias")."""

    size: Setting
    phases: dict[tuple[str, str], Early]
    modes: dict[str, dict[float, dict[str, Any]]]


def compute(size: Setting) -> Data:
    """The early phases, and the modes of all images."""
    phases, modes = {}, {}
    cs = {"bias": size.bias_strength, "no bias": 0.0}
    for how, standardise in HOW.items():
        task = load(size, size.samples, standardise)
        for label, c in cs.items():
            phases[how, label] = early(task, size, c)
        whole = load(size, size.statistics, standardise)
        modes[how] = {c: first_mode(whole, c) for c in cs.values()}
    return Data(size, phases, modes)


def numbers(data: Data) -> dict[str, Any]:
    """Curves and modes."""
    return {
        "early": {", ".join(key): curves(phase) for key, phase in data.phases.items()},
        "modes by c": {
            how: {f"{c:g}": found for c, found in by_c.items()} for how, by_c in data.modes.items()
        },
    }


def by_width(fits: dict[str, bool]) -> str:
    """The verdict: it fits the linear network of the same width, that of half of it, or neither."""
    same, half = LINEAR
    if fits[same]:
        return "holds"
    return f"holds under a condition: {HALF_WIDTH}" if fits[half] else "does not hold"


def aligned(data: Data, how: str, label: str, claim: str, source: str, wanted: bool = True) -> Row:
    """Whether losses are close early (`wanted`), or not, with linear networks of both widths."""
    phase = data.phases[how, label]
    fits = {k: (np.mean(gaps(phase, k)) < CLOSE) == wanted for k in LINEAR}
    found = "; ".join(
        f"{k}: {interval(gaps(phase, k))}, 5 % apart from t = {interval(partings(phase, k))} on"
        for k in LINEAR
    )
    return Row(
        claim,
        source,
        "mean gap (share of 1/2) until the linear network is 90 % down, of at most t = "
        f"{data.size.early:g}: {found}; criterion: {'below' if wanted else 'at least'} "
        f"{CLOSE:g}",
        by_width(fits),
    )


def sooner(data: Data, how: str, claim: str, source: str, wanted: bool = True) -> Row:
    """Whether every seed's losses part sooner without bias than with it (`wanted`), or not."""
    apart = {(k, p): partings(data.phases[how, p], k) for k in LINEAR for p in ("bias", "no bias")}
    fits = {k: bool(np.all(apart[k, "no bias"] < apart[k, "bias"])) == wanted for k in LINEAR}
    found = "; ".join(
        f"{k}: {interval(apart[k, 'no bias'])} without, {interval(apart[k, 'bias'])} with bias"
        for k in LINEAR
    )
    return Row(
        claim,
        source,
        f"flow time until losses are 5 % of 1/2 apart (at most {data.size.early:g}), {found}; "
        f"criterion: {'sooner' if wanted else 'not sooner'} without bias for every seed",
        by_width(fits),
    )


def constants(data: Data, claim: str, source: str) -> Row:
    """Whether the inputs themselves hold a bias mode."""
    found, centred = data.modes[GLOBAL][0.0], data.modes[PIXEL][0.0]
    first = found["bias mode rank"] == 1 and found["overlap"] > 0.99

    def listed(s: Any) -> str:
        return ", ".join(f"{v:.3f}" for v in s[:4])

    return Row(
        claim,
        source,
        f"at c = 0, {data.size.statistics or 'all'} images: S = {listed(found['strengths'])}; the "
        f"mean input overlaps most with mode {found['bias mode rank']}, by {found['overlap']:.4f}; "
        f"{PIXEL}: S = {listed(centred['strengths'])}; criterion: first, overlap above .99",
        "holds" if first else "does not hold",
    )


def draw(data: Data) -> Figure:
    """Losses: a row per preprocessing, with bias and without."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), sharex=True, sharey=True)
    for ax, ((how, label), phase) in zip(axes.ravel(), data.phases.items(), strict=True):
        draw_early(phase, ax, f"{how}, {label}")
    for ax in axes.ravel()[1:]:
        ax.get_legend().remove()
    for ax in axes[0]:
        ax.set_xlabel("")
    size = data.size
    number = f"{size.samples:,}" if size.samples else "all"
    figure.suptitle(
        f"{size.data.upper()}, {number} images, H = {size.hidden[0]}, {size.seeds} seeds "
        f"(markers: descent, lines: flow, {size.flow_seeds} seed)"
    )
    return figure
