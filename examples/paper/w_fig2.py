"""W Fig. 2A: similarity (CKA) of linear and ReLU networks' representations on the hierarchy task.

Gradient flow with exact walks from the same initial weights, 64 hidden units, variance 2e-4, c = 1
and no bias; linear CKA (the text says Centered Kernel Alignment and cites Kornblith et al. 2019),
biased and debiased, which matters at 8 items in 64 dimensions. Also between independent
initialisations, since the text does not say that the weights are shared. Mean and 95 % of the
seeds.

    python examples/paper/w_fig2.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import interval
from _paper import Row, Study, fl
from _tree import Size, many, thin
from matplotlib.figure import Figure

KEYS = [(c, shared) for c in (1.0, 0.0) for shared in (True, False)]


SIZES = {"quick": Size(2), "default": Size(20), "full": Size(20)}


@dataclasses.dataclass
class Data:
    """CKA by (c, same initial weights, debiased): (seeds, T)."""

    size: Size
    cka: dict[tuple[float, bool, bool], np.ndarray]


def compute(size: Size) -> Data:
    """The runs and their similarity at every saved time."""
    cka = {}
    for c in (1.0, 0.0):
        linear, relu = (
            [fl.measures.along(flow, fl.measures.hidden)
             for flow in many("tree", kind, c, size.seeds, size.setting)]
            for kind in ("linear", "relu")
        )  # fmt: skip
        for shared in (True, False):
            others = relu if shared else relu[1:] + relu[:1]
            for debiased in (False, True):
                cka[c, shared, debiased] = np.array(
                    [fl.measures.linear_cka(a, b, debiased=debiased)
                     for a, b in zip(linear, others, strict=True)]
                )  # fmt: skip
    return Data(size, cka)


def numbers(data: Data) -> dict[str, Any]:
    """Thinned mean curves."""
    found: dict[str, Any] = {"t": thin(data.size.setting.ts)}
    for (c, shared, debiased), rows in data.cka.items():
        found[_name(c, shared, debiased)] = thin(rows.mean(axis=0))
    return found


def _name(c: float, shared: bool, debiased: bool) -> str:
    return (
        f"CKA, {'with' if c else 'without'} bias, {'the same' if shared else 'other'} initial "
        f"weights, {'debiased' if debiased else 'biased'}"
    )


def lowest(rows: np.ndarray, ts: np.ndarray, until: float) -> np.ndarray:
    """Smallest CKA of every seed up to a time."""
    return rows[:, ts <= until].min(axis=1)


def judge(data: Data) -> list[Row]:
    """Verdicts for both estimators and kinds of start."""
    rows, ts = [], data.size.setting.ts
    for shared in (True, False):
        for debiased in (False, True):
            bias, bare = (data.cka[c, shared, debiased] for c in (1.0, 0.0))
            mean, mean0 = (np.trapezoid(v, ts, axis=1) / ts[-1] for v in (bias, bare))
            early, early0 = (np.trapezoid(v[:, ts <= 30], ts[ts <= 30]) / ts[ts <= 30][-1]
                             for v in (bias, bare))  # fmt: skip
            text = (
                f"{'the same' if shared else 'other'} initial weights, "
                f"{'debiased' if debiased else 'biased'}"
            )
            rows.append(
                Row(
                    f"CKA of linear and ReLU networks is high with bias ({text})",
                    "W Fig. 2A",
                    f"mean over the run {interval(mean)}, up to t = 30 {interval(early)}; smallest "
                    f"{interval(bias.min(axis=1))}, at the end {interval(bias[:, -1])}",
                    "holds" if early.mean() > 0.9 else "does not hold",
                )
            )
            more = np.mean(early > early0)
            rows.append(
                Row(
                    f"It is lower without bias ({text})",
                    "W Fig. 2A",
                    f"without bias: mean over the run {interval(mean0)}, up to t = 30 "
                    f"{interval(early0)}; smallest {interval(bare.min(axis=1))}, at the end "
                    f"{interval(bare[:, -1])}; lower than with bias (up to t = 30) in {more:.0%} "
                    "of the seeds",
                    "holds" if more > 0.95 else "does not hold",
                )
            )
    return rows


def draw(data: Data) -> Figure:
    """CKA over time with and without bias."""
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.4), sharey=True)
    ts = data.size.setting.ts
    looks = {
        (True, False): {"color": "#0072B2", "linestyle": "-"},
        (True, True): {"color": "#0072B2", "linestyle": "--"},
        (False, False): {"color": "#E69F00", "linestyle": "-"},
        (False, True): {"color": "#E69F00", "linestyle": "--"},
    }
    for ax, c in zip(axes, (1.0, 0.0), strict=True):
        for (shared, debiased), how in looks.items():
            rows = data.cka[c, shared, debiased]
            label = f"{'same' if shared else 'other'} weights, {'de' * debiased}biased"
            ax.plot(ts, rows.mean(axis=0), label=label, **how)
            low, high = np.quantile(rows, [0.025, 0.975], axis=0)
            ax.fill_between(ts, low, high, color=how["color"], alpha=0.12, linewidth=0)
        ax.set(
            title=f"{'with' if c else 'without'} bias", xlabel="flow time $t$ (units of $\\tau$)",
            ylim=(-0.2, 1.05),
        )  # fmt: skip
    axes[0].set_ylabel("CKA(linear, ReLU)")
    axes[0].legend(fontsize="small", frameon=False, loc="lower right")
    return figure


STUDY = Study("w_fig2", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
