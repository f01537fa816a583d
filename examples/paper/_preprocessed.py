"""Losses with both preprocessings, for Figs. 7 and 8: runs, numbers, picture."""

import dataclasses
from typing import Any

from _images import Early, Setting, early, first_mode, load
from _images_distances import Distances, distances, draw_distances
from _images_show import curves, draw_early, error_words, flow_entries, phase_again
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

PIXEL, GLOBAL = "mean per pixel subtracted", "one mean and deviation"
HOW = {PIXEL: False, GLOBAL: True}
BIAS = {"bias": "with bias", "no bias": "without bias"}


@dataclasses.dataclass(frozen=True)
class Data:
    """Everything that is shown: phases by preprocessing and "bias" or "no bias"; modes by c;
    descent's distance from the flow, with bias."""

    size: Setting
    phases: dict[str, dict[str, Early]]
    modes: dict[str, dict[float, dict[str, Any]]]
    distances: dict[str, Distances]


def compute(size: Setting) -> Data:
    """The runs, those on the batch's mean only with one mean and deviation; modes of all images."""
    phases, modes, apart = {}, {}, {}
    cs = {"bias": size.bias_strength, "no bias": 0.0}
    for how, standardise in HOW.items():
        setting = size if standardise else dataclasses.replace(size, mean_seeds=0)
        whole = load(size, size.statistics, standardise)
        modes[how] = {c: first_mode(whole, c) for c in cs.values()}
        task = whole if size.samples == size.statistics else load(size, size.samples, standardise)
        phases[how] = {label: early(task, setting, c, standardise) for label, c in cs.items()}
        file = phases[how]["bias"].files[0]
        apart[how] = distances(task, setting, size.bias_strength, standardise, file)
    return Data(size, phases, modes, apart)


def numbers(data: Data) -> dict[str, Any]:
    """Curves and modes."""
    every = [phase for phases in data.phases.values() for phase in phases.values()]
    return {
        "flow relu": [entry for phase in every for entry in flow_entries(phase)],
        "distance of descent from the flow": {
            how: found.numbers for how, found in data.distances.items()
        },
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


def again(record: dict[str, Any], size: Setting) -> Data:
    """What is drawn, of the committed record of a size."""
    found, cs = record["numbers"], {"bias": size.bias_strength, "no bias": 0.0}
    phases = {
        how: {
            label: phase_again(found["losses"][how][label], size, c, standardise)
            for label, c in cs.items()
        }
        for how, standardise in HOW.items()
    }
    modes = {
        how: {float(c): row for c, row in rows.items()} for how, rows in found["modes by c"].items()
    }
    apart = found["distance of descent from the flow"]
    return Data(size, phases, modes, {how: Distances.of(row) for how, row in apart.items()})


def draw(data: Data) -> Figure:
    """A row per preprocessing: losses with bias and without."""
    figure, axes = plt.subplots(2, 2, figsize=(9.4, 7.4))
    for row, (how, phases) in zip(axes, data.phases.items(), strict=True):
        row[1].sharey(row[0])
        for ax, (label, phase) in zip(row, phases.items(), strict=True):
            draw_early(phase, ax, f"{how}, {BIAS[label]}", label == "bias")
        row[1].set_ylabel("")
    for ax in axes[0]:
        ax.set_xlabel("")
    axes[0, 0].legend(frameon=False, fontsize="small")
    size = data.size
    words = error_words([phase for phases in data.phases.values() for phase in phases.values()])
    figure.suptitle(
        f"{images(size)}, H = {size.hidden[0]}, {size.seeds} seeds:\n"
        f"descent (markers) and flow (lines{words})"
    )
    return figure


def images(size: Setting) -> str:
    """The data in words."""
    name = {"mnist": "MNIST", "cifar10": "CIFAR-10, grey"}[size.data]
    return f"{name}, {size.samples or {'mnist': 60_000, 'cifar10': 50_000}[size.data]:,} images"


def draw_descent(data: Data) -> Figure:
    """Descent's distance from the flow, with bias, by preprocessing."""
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 4.4))
    for ax, (how, found) in zip(axes, data.distances.items(), strict=True):
        draw_distances(found, ax, how)
    axes[1].set_ylabel("")
    figure.suptitle(f"{images(data.size)}, with bias: descent's distance from the flow")
    return figure
