"""M Fig. 9 (W Fig. 5): biases on both layers, on the hierarchy task and on XOR.

Gradient flow with exact walks, 64 hidden units, variance 2e-4, c = 1, mean and standard error over
seeds. Whether the readout's bias is multiplied by c is not said; at c = 1 it makes no difference.

    python examples/paper/m_fig9.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import interval
from _paper import Row, Study, fl
from _tree import PAPER, Setting, delay, gap, many, thin
from m_fig2 import CLOSE, matched, stages
from matplotlib.figure import Figure

STAGE = 0.52  # share of the initial loss that is left when the mean target is learned


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: number of seeds, tasks, the runs'."""

    seeds: int
    setting: Setting = PAPER
    tasks: tuple[str, ...] = ("tree", "xor")


SIZES = {"quick": Size(2, tasks=("tree",)), "default": Size(20), "full": Size(20)}


@dataclasses.dataclass
class Data:
    """Runs by (task, kind, biases on both layers)."""

    size: Size
    runs: dict[tuple[str, str, bool], list[fl.Trajectory]]


def compute(size: Size) -> Data:
    """The runs, and on the tree those with a hidden bias alone."""
    keys = [(task, kind, True) for task in size.tasks for kind in ("linear", "relu")]
    keys += [("tree", kind, False) for kind in ("linear", "relu")]
    return Data(
        size,
        {(t, k, both): many(t, k, 1.0, size.seeds, size.setting, both) for t, k, both in keys},
    )


def _pairs(data: Data, task: str, both: bool = True) -> list[tuple[fl.Trajectory, fl.Trajectory]]:
    return list(zip(data.runs[task, "relu", both], data.runs[task, "linear", both], strict=True))


def numbers(data: Data) -> dict[str, Any]:
    """Thinned curves of seed 0, gaps and delays."""
    found: dict[str, Any] = {"t": thin(data.size.setting.ts)}
    for (task, kind, both), flows in data.runs.items():
        name = "both layers" if both else "hidden layer"
        found[f"loss, {task}, {kind}, bias on {name}"] = thin(flows[0].losses)
    for task in data.size.tasks:
        rows = [(gap(a, b), *delay(a, b)) for a, b in _pairs(data, task)]
        found[f"gap, delay, gap left by seed, {task}"] = np.array(rows)
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on both panels."""
    both, hidden = (
        np.array([delay(a, b) for a, b in _pairs(data, "tree", flag)]) for flag in (True, False)
    )
    first, second = (
        np.array([delay(a, b, within) for a, b in _pairs(data, "tree")])
        for within in ((STAGE, np.inf), (0.0, STAGE))
    )
    number = [[stages(flow) for flow in data.runs["tree", kind, True]] for kind in
              ("relu", "linear")]  # fmt: skip
    rows = [
        Row(
            "With biases on both layers ReLU networks learn the hierarchy in stages",
            "M Fig. 9A, App. C.3",
            f"separate drops of the loss: ReLU {np.mean(number[0]):.2g}, linear "
            f"{np.mean(number[1]):.2g} ({len(both)} seeds)",
            "holds" if number[0] == number[1] and min(number[0]) > 1 else "does not hold",
        ),
        Row(
            "The dynamics of both are the same but for a small time shift",
            "M Fig. 9A, W Fig. 5",
            f"after a shift of {interval(both[:, 0])} the losses differ by at most "
            f"{interval(both[:, 1])} of the initial one (with a hidden bias alone "
            f"{interval(hidden[:, 0])} and {interval(hidden[:, 1])}); while the linear loss "
            f"is above {STAGE:g} of its start after {interval(first[:, 0])} by "
            f"{interval(first[:, 1])}, below it after {interval(second[:, 0])} by "
            f"{interval(second[:, 1])}",
            "holds"
            if both[:, 1].mean() <= CLOSE
            else "holds under a condition: every stage has a shift of its own"
            if max(first[:, 1].mean(), second[:, 1].mean()) <= CLOSE
            else "does not hold",
        ),
    ]
    if "xor" in data.size.tasks:
        early = np.array([matched(*pair) for pair in _pairs(data, "xor")])
        rows.append(
            Row(
                "Early dynamics are also aligned on XOR",
                "M Fig. 9B",
                f"before the linear plateau, after the best shift, the losses differ by at most "
                f"{interval(early[:, 0])} of the initial one; the ReLU network goes below the "
                f"plateau at {np.median(early[:, 1]):.2g} times its beginning (median)",
                "holds"
                if early[:, 0].mean() <= CLOSE and np.median(early[:, 1]) >= 1
                else "does not hold",
            )
        )
    return rows


def draw(data: Data) -> Figure:
    """Loss curves of both tasks."""
    figure, axes = plt.subplots(1, len(data.size.tasks), figsize=(4.4 * len(data.size.tasks), 3.3),
                                squeeze=False)  # fmt: skip
    titles = {"tree": "A. hierarchy, biases on both layers", "xor": "B. XOR, biases on both layers"}
    for ax, task in zip(axes[0], data.size.tasks, strict=True):
        curves = {name: data.runs[task, name.lower(), True] for name in ("linear", "ReLU")}
        fl.plot.losses(curves, ax)
        ax.set(title=titles[task], xlim=(0, 40), ylim=(0, None))
    return figure


STUDY = Study("m_fig9", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
