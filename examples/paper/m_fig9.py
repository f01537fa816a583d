"""M Fig. 9 (W Fig. 5): biases on both layers, on the hierarchy task and on XOR.

Gradient flow with exact walks, 64 hidden units, variance 2e-4, c = 1. Whether the readout's bias is
multiplied by c is not said; at c = 1 it makes no difference. At the paper's variance the four
levels of the tree overlap in the loss of linear networks too, so stages are counted at the variance
2e-8 as well, where these have all four. Networks without any bias are the control.

    python examples/paper/m_fig9.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import LOSSES, TIMES, both, interval, more, same, usual, verdict
from _paper import WITHOUT, Row, Study, fl
from _tree import PAPER, SHARES, Setting, delay, drops, many, thin
from matplotlib.figure import Figure

STAGE = 0.52  # share of the initial loss that is left when the mean target is learned
LEVELS = ([1], [2, 3], [4, 5, 6, 7])  # modes of the tree with one singular value, below the root
SMALL = Setting(variance=2e-8, t1=120.0)
BIASES = {"both": (1.0, True), "none": (0.0, False)}
LOOKS = {"both": {"linestyle": "-"}, "none": WITHOUT}


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: number of seeds, tasks, the runs', those of the runs from smaller weights."""

    seeds: int
    setting: Setting = PAPER
    tasks: tuple[str, ...] = ("tree", "xor")
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


def shifted(data: Data, task: str, bias: str, within: tuple[float, float]) -> np.ndarray:
    """Shift of the ReLU network's loss and the gap to the linear one's left by it, (seeds, 2)."""
    pairs = zip(data.runs[task, "relu", bias], data.runs[task, "linear", bias], strict=True)
    return np.array([delay(relu, linear, within) for relu, linear in pairs])


def plateau(data: Data, bias: str) -> float:
    """Share of the initial loss at which the linear network has made 95 % of its fall on XOR."""
    ends = [flow.losses[-1] / flow.losses[0] for flow in data.runs["xor", "linear", bias]]
    return float(0.95 * np.max(ends) + 0.05)


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
    rows = [_stages(data), _dynamics(data)]
    return rows + ([_early(data)] if "xor" in data.size.tasks else [])


def _stages(data: Data) -> Row:
    counts = {key: np.array([drops(flow) for flow in flows]) for key, flows in data.runs.items()}

    def text(task: str) -> str:
        return ", ".join(
            f"{name} {', '.join(str(v) for v in np.unique(counts[task, kind, bias]))}"
            for name, kind, bias in (
                ("linear", "linear", "both"), ("ReLU", "relu", "both"), ("no bias", "relu", "none")
            )
        )  # fmt: skip

    alike = [
        usual((counts[task, "relu", "both"] == counts[task, "linear", "both"])
              & (counts[task, "relu", "both"] > 1))
        for task in ("tree", "small tree")
    ]  # fmt: skip
    return Row(
        "With biases on both layers ReLU networks display stage-like learning",
        "M Fig. 9A, App. C.3, W Fig. 5",
        f"separate drops of the loss: {text('tree')}; at the variance {data.size.small.variance:g} "
        f"{text('small tree')} ({data.size.seeds} seeds, the tree has four levels); criterion: "
        "more than one, and as many as the linear network, in most seeds at either variance",
        verdict(both(*alike)),
    )


def factors(data: Data, bias: str) -> np.ndarray:
    """Half-times, ReLU over linear, of the tree's levels below the root, (seeds, levels)."""
    half = SHARES.index(0.5)
    relu, linear = (
        np.array([flow.events.first("mode")[half] for flow in data.runs["tree", kind, bias]])
        for kind in ("relu", "linear")
    )
    columns = [relu[:, level].mean(axis=1) / linear[:, level].mean(axis=1) for level in LEVELS]
    return np.stack(columns, axis=1)


def _dynamics(data: Data) -> Row:
    whole, first = (
        shifted(data, "tree", "both", within) for within in ((0.0, np.inf), (STAGE, np.inf))
    )
    none = shifted(data, "tree", "none", (0.0, np.inf))[:, 1]
    late, bare = factors(data, "both"), factors(data, "none")
    uneven, without = (v.max(axis=1) / v.min(axis=1) - 1 for v in (late, bare))
    even = both(same(first[:, 1], LOSSES, 2), same(uneven, TIMES, 2), more(without, uneven))
    return Row(
        "The dynamics of both are preserved with the exception of a small time shift",
        "M Fig. 9A, App. C.3, W Fig. 5",
        f"after a shift of {interval(whole[:, 0])} the losses differ by at most "
        f"{interval(whole[:, 1])} of the initial one (without bias {interval(none)}; there early "
        f"modes are late and late ones early); while the linear loss is above {STAGE:g} of its "
        f"start after {interval(first[:, 0])} by {interval(first[:, 1])}; half-times of the levels "
        f"below the root, ReLU over linear, {_means(late)} (without bias {_means(bare)}), largest "
        f"over smallest less one {interval(uneven)} (without {interval(without)}); criterion: "
        f"{LOSSES}; {TIMES}",
        verdict(
            same(whole[:, 1], LOSSES),
            ("a factor of time in place of a shift: the mean target, which the readout's bias "
             "learns, is not late, all other modes are by nearly the same factor, unlike without "
             "bias", even),
        ),
    )  # fmt: skip


def _means(values: np.ndarray) -> str:
    return " ".join(f"{v:.2f}" for v in values.mean(axis=0))


def _early(data: Data) -> Row:
    bias, none = (shifted(data, "xor", name, (plateau(data, name), np.inf)) for name in BIASES)
    later = np.mean([flow.losses[-1] / flow.losses[0] for flow in data.runs["xor", "relu", "both"]])
    return Row(
        "Early dynamics are also aligned on XOR",
        "M Fig. 9B, App. C.3",
        "until the linear network has made 95 % of its fall the losses differ by at most "
        f"{interval(bias[:, 1])} of the initial one after a shift of {interval(bias[:, 0])} "
        f"(without bias {interval(none[:, 1])}); later the ReLU network goes on to {later:.1g} of "
        f"it; criterion: {LOSSES}, less than without bias",
        verdict(both(same(bias[:, 1], LOSSES), more(none[:, 1], bias[:, 1]))),
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
