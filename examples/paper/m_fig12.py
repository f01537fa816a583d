r"""M Fig. 12: positions of the kinks over time.

Hierarchy task, gradient flow with exact walks, 64 hidden units, variance 2e-4, c = 1. The kink of
unit j is at $k_j = -c\, b_j / \|w_j\|$ (Eq. 12 without its missing c); its picture is of seed 0.

    python examples/paper/m_fig12.py [--quick | --full]
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _judge import interval
from _paper import Row, Study, fl
from _tree import PAPER, SHARES, Setting, many, task_of, thin
from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: number of seeds, the runs', and c at which Eq. 12 is checked."""

    seeds: int
    setting: Setting = PAPER
    other_c: float = 3.0


SIZES = {"quick": Size(3), "default": Size(50), "full": Size(50)}


@dataclasses.dataclass
class Data:
    """Runs, their kinks (seeds, T, H), live units (seeds, H), errors of Eq. 12.

    `rates` are its errors with the factor c and without.
    """

    size: Size
    flows: list[fl.Trajectory]
    kinks: np.ndarray
    live: np.ndarray
    rates: tuple[float, float]


def compute(size: Size) -> Data:
    """The runs."""
    flows = many("tree", "relu", 1.0, size.seeds, size.setting)
    kinks = np.array([fl.measures.along(flow, fl.measures.kink_positions) for flow in flows])
    live = np.array([~np.all(flow.events.gates(0.0) < 0, axis=0) for flow in flows])
    return Data(size, flows, kinks, live, _rates(size, flows[0]))


def _rates(size: Size, flow: fl.Trajectory) -> tuple[float, float]:
    """Relative error of Eq. 12 with c and without against a difference of the start's kinks."""
    task = task_of("tree")
    first = jax.tree.map(lambda a: a[0], flow.networks)
    network = fl.ReLUNetwork(first.weights, first.biases, size.other_c)
    step = 1e-5
    weights, biases = fl.measures.velocity(network, task)

    def moved(h: float) -> Any:
        shift = partial(jax.tree.map, lambda a, v: a + h * v)
        return fl.measures.kink_positions(
            network.with_parameters(
                (shift(network.weights, weights), shift(network.biases, biases))
            )
        )

    difference = (moved(step) - moved(-step)) / (2 * step)
    with_c = fl.measures.kink_rates(network, task)
    size_of = jnp.linalg.norm
    errors = [size_of(rate - difference) / size_of(difference)
              for rate in (with_c, with_c / size.other_c)]  # fmt: skip
    return float(errors[0]), float(errors[1])


def below(data: Data, level: float = 0.0) -> np.ndarray:
    """Share of the units with a kink below a level, (seeds, T)."""
    return np.mean(data.kinks < level, axis=2)


def numbers(data: Data) -> dict[str, Any]:
    """Quantiles of the kinks over time, and the share of negative ones."""
    ts = data.size.setting.ts
    quantiles = np.quantile(data.kinks, [0.05, 0.25, 0.5, 0.75, 0.95], axis=(0, 2)).T
    return {
        "t": thin(ts),
        "kinks, quantiles .05, .25, .5, .75, .95": thin(quantiles),
        "share below 0": thin(below(data).mean(axis=0)),
        "share below -1": thin(below(data, -1.0).mean(axis=0)),
        "relative error of Eq. 12 at other c, with and without c": data.rates,
    }


def judge(data: Data) -> list[Row]:
    """Verdicts on the caption and Sec. 5.3."""
    ts = data.size.setting.ts
    bias = np.array([flow.events.first("mode")[SHARES.index(0.9), 0] for flow in data.flows])
    k = np.searchsorted(ts, bias)
    seeds = np.arange(len(k))
    share, far = below(data), below(data, -1.0)
    mean = share.mean(axis=0)
    most = f"from t = {ts[np.argmax(mean > 0.75)]:.3g} on" if mean.max() > 0.75 else "never"
    early, start = share[seeds, k], share[:, 0]
    fell = np.mean(data.kinks[seeds, k] < data.kinks[:, 0], axis=1)
    live = np.array(
        [np.mean(row[j][on] < 0) for row, j, on in zip(data.kinks, k, data.live, strict=True)]
    )
    lowest = np.median(data.kinks[seeds, k], axis=1)
    return [
        Row(
            "The vast majority of kinks rapidly grow negative early in learning",
            "M Fig. 12, Sec. 5.3",
            f"when the bias mode has 90 % of its strength (t = {interval(bias)}) "
            f"{interval(early)} of the kinks are below 0 (start {interval(start)}), "
            f"{interval(far[seeds, k])} below -1, median {interval(lowest)}; fallen "
            f"{interval(fell)}; of the units that were not dead {interval(live)} are below 0; "
            f"three quarters of all are {most}",
            "holds"
            if early.mean() > 0.75
            else "holds under a condition: of the units that are not dead at the start"
            if live.mean() > 0.75
            else "does not hold",
        ),
        Row(
            "Kinks stay negative later",
            "M Fig. 12",
            f"share below 0 at t = {data.size.setting.t1:g}: {interval(share[:, -1])}, below -1: "
            f"{interval(far[:, -1])}",
            "holds" if share[:, -1].mean() >= early.mean() else "does not hold",
        ),
        Row(
            "The kink is at -b/|w| and moves by Eq. 12",
            "M Eq. 12, erratum B.5",
            f"relative error against differences at c = {data.size.other_c:g}: with the factor c "
            f"{data.rates[0]:.1e}, as printed {data.rates[1]:.2g}",
            "holds under a condition: c = 1, or with the factor c"
            if data.rates[0] < 1e-6 < data.rates[1]
            else "does not hold",
        ),
    ]


def draw(data: Data) -> Figure:
    """Kinks of seed 0, and the share of negative ones over all seeds."""
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.4))
    ts = data.size.setting.ts
    fl.plot.kinks(ts, data.kinks[0], axes[0], linestyle="-")
    axes[0].set(title="kinks of seed 0", xlim=(0, 30), ylim=(-4, 2.5))
    for level, dash in ((0.0, "-"), (-1.0, "--")):
        rows = below(data, level)
        mean, low, high = rows.mean(axis=0), *np.quantile(rows, [0.025, 0.975], axis=0)
        axes[1].plot(ts, mean, color=fl.plot.COLOURS["relu"], linestyle=dash,
                     label=f"below {level:g}")  # fmt: skip
        axes[1].fill_between(ts, low, high, color=fl.plot.COLOURS["relu"], alpha=0.15, linewidth=0)
    axes[1].set(
        title="share of kinks (mean, 95 % of the seeds)", ylabel="fraction of hidden units",
        xlabel="flow time $t$ (units of $\\tau$)", xlim=(0, 30), ylim=(0, 1),
    )  # fmt: skip
    axes[1].legend(fontsize="small", frameon=False)
    return figure


STUDY = Study("m_fig12", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
