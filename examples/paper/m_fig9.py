"""M Fig. 9 (W Fig. 5): biases on both layers, on the hierarchy task and on XOR. See: solid lines,
with biases on both layers, stay close until the linear task is learned; dashed ones, without, part
before.

Gradient flow with exact walks, 64 hidden units, variance 2e-4, c = 1. Whether the readout's bias is
multiplied by c is not said; at c = 1 it makes no difference. At the paper's variance the four
levels of the tree overlap in the loss of linear networks too, so stages are counted at the variance
2e-8 as well, where these have all four. Networks without any bias are the control. The text does
not say how XOR's inputs are coded: -1/+1 (drawn) and 0/1 are judged.

    python examples/paper/m_fig9.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import LOSSES, TIMES, both, interval, more, same, usual, verdict
from _paper import WITHOUT, Row, Study, fl
from _tree import PAPER, SHARES, Setting, delay, drops, loss_stretch, many, thin
from matplotlib.figure import Figure

STAGE = 0.52  # share of the initial loss that is left when the mean target is learned
LEVELS = ([1], [2, 3], [4, 5, 6, 7])  # modes of the tree with one singular value, below the root
SMALL = Setting(variance=2e-8, t1=120.0)
BIASES = {"both": (1.0, True), "none": (0.0, False)}
CODES = {"xor": "inputs -1/+1", "xor 0/1": "inputs 0/1"}
LOOKS = {"both": {"linestyle": "-"}, "none": WITHOUT}


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: number of seeds, tasks, the runs', those of the runs from smaller weights."""

    seeds: int
    setting: Setting = PAPER
    tasks: tuple[str, ...] = ("tree", *CODES)
    small: Setting = SMALL


SIZES = {"quick": Size(2, tasks=("tree",)), "default": Size(20), "full": Size(20)}


@dataclasses.dataclass
class Data:
    """Runs by (task, kind, biases); "small tree" is the tree from smaller weights."""

    size: Size
    runs: dict[tuple[str, str, str], list[fl.Trajectory]]


def compute(size: Size) -> Data:
    """The runs of linear and ReLU networks with both biases and with none."""
    tasks = {task: (task, size.setting) for task in size.tasks} | {
        "small tree": ("tree", size.small)
    }
    return Data(
        size,
        {
            (name, kind, bias): many(task, kind, c, size.seeds, setting, two)
            for name, (task, setting) in tasks.items()
            for kind in ("linear", "relu")
            for bias, (c, two) in BIASES.items()
        },
    )


def pairs(data: Data, task: str, bias: str) -> list[tuple[fl.Trajectory, fl.Trajectory]]:
    """ReLU and linear runs of the same seeds."""
    return list(zip(data.runs[task, "relu", bias], data.runs[task, "linear", bias], strict=True))


def shifted(data: Data, task: str, bias: str, within: tuple[float, float]) -> np.ndarray:
    """Shift of the ReLU network's loss and the gap to the linear one's left by it, (seeds, 2)."""
    return np.array([delay(*pair, within) for pair in pairs(data, task, bias)])


def plateau(data: Data, task: str, bias: str) -> float:
    """Share of the initial loss at which the linear network has made 95 % of its fall on XOR."""
    ends = [flow.losses[-1] / flow.losses[0] for flow in data.runs[task, "linear", bias]]
    return float(0.05 + 0.95 * np.max(ends))


def numbers(data: Data) -> dict[str, Any]:
    """Thinned curves of seed 0, drops, shifts and gaps."""
    found: dict[str, Any] = {"t": thin(data.size.setting.ts)}
    for key, flows in data.runs.items():
        found[f"loss, {', '.join(key)}"] = thin(flows[0].losses)
        if "tree" in key[0]:
            found[f"drops by seed, {', '.join(key)}"] = [drops(flow) for flow in flows]
    for task in data.size.tasks:
        for bias in BIASES:
            found[f"shift, gap by seed, {task}, {bias}"] = shifted(data, task, bias, (0, np.inf))
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on both panels."""
    early = [_early(data)] if "xor" in data.size.tasks else []
    return [_stages(data), *_dynamics(data), *early]


def _stages(data: Data) -> Row:
    counts = {key: np.array([drops(flow) for flow in flows]) for key, flows in data.runs.items()}

    def text(task: str) -> str:
        return ", ".join(
            f"{name} {' or '.join(str(v) for v in np.unique(counts[task, kind, bias]))}"
            for name, kind, bias in (
                ("linear", "linear", "both"), ("ReLU", "relu", "both"),
                ("ReLU without bias", "relu", "none"),
            )
        )  # fmt: skip

    relu, linear = (counts["tree", kind, "both"] for kind in ("relu", "linear"))
    return Row(
        claim="With biases on both layers ReLU networks learn the tree in stages",
        quote="Stage-like learning in ReLU networks that have bias terms on both layers on the "
        "hierarchical learning task in Fig. 2A.",
        source="M Fig. 9A, App. C.3; W Fig. 5A, App. B",
        measured=f"separate drops of the loss at the paper's variance: {text('tree')} (in all "
        f"{data.size.seeds} seeds together; the tree has four levels, which overlap here); from "
        f"variance {data.size.small.variance:g}: {text('small tree')}; criterion, at the paper's "
        "variance: more than one drop, and as many as the linear network, in most seeds",
        verdict=verdict(usual((relu == linear) & (relu > 1))),
    )


def halves(data: Data, bias: str) -> tuple[np.ndarray, np.ndarray]:
    """Half-times of the tree's levels below the root, ReLU and linear, (seeds, levels) each."""
    half = SHARES.index(0.5)
    times = (
        np.array([flow.events.first("mode")[half] for flow in data.runs["tree", kind, bias]])
        for kind in ("relu", "linear")
    )
    relu, linear = (
        np.stack([rows[:, level].mean(axis=1) for level in LEVELS], axis=1) for rows in times
    )
    return relu, linear


def _dynamics(data: Data) -> list[Row]:
    whole, first = (
        shifted(data, "tree", "both", within) for within in ((0.0, np.inf), (STAGE, np.inf))
    )
    none = shifted(data, "tree", "none", (0.0, np.inf))[:, 1]
    stretch = np.array([loss_stretch(*pair) for pair in pairs(data, "tree", "both")])
    relu, linear = halves(data, "both")
    late, bare = relu / linear, np.divide(*halves(data, "none"))
    uneven, without = (v.max(axis=1) / v.min(axis=1) - 1 for v in (late, bare))
    even = both(same(stretch[:, 1], LOSSES, 2), same(uneven, TIMES, 2), more(without, uneven))
    slight = both(even, more(1 + TIMES.apart, stretch[:, 0]))
    shift = same(whole[:, 1], LOSSES)
    beyond = both(more(whole[:, 1], LOSSES.same),
                  more(whole[:, 1], stretch[:, 1]))  # fmt: skip
    text = (
        f"after the best shift of time, {interval(whole[:, 0])}, the losses differ by at most "
        f"{interval(whole[:, 1])} of the initial one; after the best factor of time, "
        f"{interval(stretch[:, 0])}, by {interval(stretch[:, 1])}"
    )
    return [
        Row(
            claim="With biases on both layers the ReLU network is the linear one, shifted in time",
            quote="Dynamics of linear and ReLU networks are preserved with the exception of a "
            "small time shift.",
            source="M Fig. 9A",
            measured=f"{text}. While the readout's bias learns the mean target (linear loss above "
            f"{STAGE:g} of its start) the best shift is {interval(first[:, 0])}; the levels below "
            f"the root are half learned later by {_means(relu - linear)}. Without bias the best "
            f"shift leaves {interval(none)}, where the levels' times are {_means(bare)} times the "
            f"linear ones. Criterion: {LOSSES}; between these it does not hold where the shift "
            "leaves more than the first and more than a factor of time does",
            verdict=verdict(
                False if shift is None and beyond else shift,
                ("dynamics are preserved under a factor of time", even),
            ),
        ),
        Row(
            claim="With biases on both layers the ReLU network is the linear one, slightly slower",
            quote="Dynamics appear preserved but under slightly different time constants.",
            source="W Fig. 5A",
            measured=f"{text}; half-times of the tree's levels below its root, ReLU over linear, "
            f"{_means(late)} (without bias {_means(bare)}), the largest over the smallest less one "
            f"{interval(uneven)} (without {interval(without)}); criterion: after the factor "
            f"{LOSSES}; half-times' factors {TIMES}, and more alike than without bias; slightly: a "
            f"factor below {1 + TIMES.apart:g}",
            verdict=verdict(slight),
        ),
    ]


def _means(values: np.ndarray) -> str:
    return " ".join(f"{v:.2f}" for v in values.mean(axis=0))


def _early(data: Data) -> Row:
    found, texts = {}, []
    for task, code in CODES.items():
        bias, none = (
            shifted(data, task, name, (plateau(data, task, name), np.inf)) for name in BIASES
        )
        ends = [flow.losses[-1] / flow.losses[0] for flow in data.runs[task, "relu", "both"]]
        found[code] = same(bias[:, 1], LOSSES)
        texts.append(
            f"{code}: by at most {interval(bias[:, 1])} after a shift of {interval(bias[:, 0])} "
            f"(without bias {interval(none[:, 1])}); later the ReLU network goes on to "
            f"{np.mean(ends):.1g} of the initial loss"
        )
    return Row(
        claim="With biases on both layers early dynamics are aligned on XOR too",
        quote="Early dynamics are also aligned on the non-linear problem from Fig. 2C.",
        source="M Fig. 9B, App. C.3; W Fig. 5B",
        measured="difference of the losses, over the initial one, until the linear network has "
        f"made 95 % of its fall. {'. '.join(texts)}. Criterion: {LOSSES}",
        verdict=verdict(found),
    )


def draw(data: Data) -> Figure:
    """Losses of every task with biases on both layers and with none."""
    titles = {
        "tree": f"A  hierarchy, variance {data.size.setting.variance:g}",
        "small tree": f"A  hierarchy, variance {data.size.small.variance:g}",
        "xor": "B  XOR",
    }
    shown = [name for name in titles if (name, "relu", "both") in data.runs]
    figure, axes = plt.subplots(1, len(shown), figsize=(3.7 * len(shown), 3.3))
    for ax, name in zip(axes, shown, strict=True):
        for bias, how in LOOKS.items():
            for label, kind in (("linear", "linear"), ("ReLU", "relu")):
                flows = data.runs[name, kind, bias]
                mean = np.mean([flow.losses for flow in flows], axis=0)
                with_ = "both layers" if bias == "both" else "no bias"
                colour = fl.plot.COLOURS[kind]
                ax.plot(flows[0].ts, mean, color=colour, **how, label=f"{label}, {with_}")
        end = 90 if name == "small tree" else 40
        ax.set(title=titles[name], xlim=(0, end), ylim=(0, None),
               xlabel="flow time $t$ (units of $\\tau$)")  # fmt: skip
    axes[0].set_ylabel("loss $L$ (mean over seeds)")
    axes[0].legend(frameon=False)
    return figure


STUDY = Study("m_fig9", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
