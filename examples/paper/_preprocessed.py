"""Losses with both preprocessings, for Figs. 7 and 8: runs, numbers, picture."""

import dataclasses
from typing import Any

from _images import Early, Setting, early, first_mode, load
from _images_show import curves, draw_early
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

PIXEL, GLOBAL = "mean per pixel subtracted", "one mean and deviation"
HOW = {PIXEL: False, GLOBAL: True}
BIAS = {"bias": "with bias", "no bias": "without bias"}


@dataclasses.dataclass(frozen=True)
class Data:
    """Everything that is shown: phases by preprocessing and "bias" or "no bias"; modes by c."""

    size: Setting
    phases: dict[str, dict[str, Early]]
    modes: dict[str, dict[float, dict[str, Any]]]


def compute(size: Setting) -> Data:
    """The runs, those on the batch's mean only with one mean and deviation; modes of all images."""
    phases, modes = {}, {}
    cs = {"bias": size.bias_strength, "no bias": 0.0}
    for how, standardise in HOW.items():
        setting = size if standardise else dataclasses.replace(size, mean_seeds=0)
        whole = load(size, size.statistics, standardise)
        modes[how] = {c: first_mode(whole, c) for c in cs.values()}
        task = whole if size.samples == size.statistics else load(size, size.samples, standardise)
        phases[how] = {label: early(task, setting, c, standardise) for label, c in cs.items()}
    return Data(size, phases, modes)


def numbers(data: Data) -> dict[str, Any]:
    """Curves and modes."""
    return {
        "losses": {
            how: {label: curves(phase) for label, phase in phases.items()}
            for how, phases in data.phases.items()
        },
        "modes by c": {
            how: {f"{c:g}": found for c, found in by_c.items()} for how, by_c in data.modes.items()
        },
    }


def modes_at_0(data: Data, how: str) -> str:
    """Whether the inputs themselves hold a bias mode, in words."""
    found = data.modes[how][0.0]
    strengths = ", ".join(f"{s:.3f}" for s in found["strengths"][:4])
    return (
        f"{how}, c = 0, {data.size.statistics or 'all'} images: S = {strengths}, and the mean "
        f"input overlaps most with mode {found['bias mode rank']}, by {found['overlap']:.4f}"
    )


def draw(data: Data) -> Figure:
    """Losses: a row per preprocessing, with bias and without."""
    figure, axes = plt.subplots(2, 2, figsize=(8.6, 6.6), sharey="row")
    for row, (how, phases) in zip(axes, data.phases.items(), strict=True):
        for ax, (label, phase) in zip(row, phases.items(), strict=True):
            draw_early(phase, ax, f"{how}, {BIAS[label]}", label == "bias")
        row[1].set_ylabel("")
    for ax in axes[0]:
        ax.set_xlabel("")
    axes[0, 0].legend(frameon=False, fontsize="small")
    size = data.size
    name = {"mnist": "MNIST", "cifar10": "CIFAR-10, grey"}[size.data]
    number = size.samples or {"mnist": 60_000, "cifar10": 50_000}[size.data]
    figure.suptitle(
        f"{name}, {number:,} images, H = {size.hidden[0]}, {size.seeds} seeds: "
        "descent (markers) and flow (lines)"
    )
    return figure
