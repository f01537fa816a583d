r"""M Fig. 12: positions of the kinks over time.

Hierarchy task, gradient flow with exact walks, 64 hidden units, variance 2e-4, c = 1. The kink of
unit j is at $k_j = -c\, b_j / \|w_j\|$ (Eq. 12 without its missing c); its picture is of seed 0.
Sec. 5.3 exempts units that become dead, so that those are counted which are not off at the time.
"Early" is before the second singular value is half learned. The control is the linear network of
the same weights, whose biases grow as fast, in both directions.

    python examples/paper/m_fig12.py [--quick | --full]
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _judge import SHARES, both, interval, more, same, verdict
from _paper import Row, Study, fl
from _tree import PAPER, Setting, many, pace, task_of, thin
from _tree import SHARES as LEVELS
from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: number of seeds, the runs', and the other c at which Eq. 12 is checked."""

    seeds: int
    setting: Setting = PAPER
    other_c: float = 3.0


SIZES = {"quick": Size(3), "default": Size(50), "full": Size(50)}


@dataclasses.dataclass
class Data:
    """Runs, their kinks and units that are not off (seeds, T, H), the linear networks' kinks.

    `rates` are errors of Eq. 12 by c, with the factor c and without.
    """

    size: Size
    flows: list[fl.Trajectory]
    kinks: np.ndarray
    live: np.ndarray
    linear: np.ndarray
    rates: dict[float, tuple[float, float]]


def compute(size: Size) -> Data:
    """The runs."""
    flows = many("tree", "relu", 1.0, size.seeds, size.setting)
    linear = many("tree", "linear", 1.0, size.seeds, size.setting)
    kinks, others = (
        np.array([fl.measures.along(flow, fl.measures.kink_positions) for flow in kind])
        for kind in (flows, linear)
    )
    live = np.array([_live(flow) for flow in flows])
    rates = {c: _rates(c, flows[0]) for c in (1.0, size.other_c)}
    return Data(size, flows, kinks, live, others, rates)


def _live(flow: fl.Trajectory) -> np.ndarray:
    """Which units are not off for all samples, (T, H)."""
    gates = np.stack([np.asarray(flow.events.gates(t)) for t in np.asarray(flow.ts)])
    return ~np.all(gates < 0, axis=1)


def _rates(c: float, flow: fl.Trajectory) -> tuple[float, float]:
    """Relative error of Eq. 12 with c and without against a difference of the start's kinks."""
    task = task_of("tree")
    first = jax.tree.map(lambda a: a[0], flow.networks)
    network = fl.ReLUNetwork(first.weights, first.biases, c)
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
              for rate in (with_c, with_c / c)]  # fmt: skip
    return float(errors[0]), float(errors[1])


def below(data: Data, level: float = 0.0) -> np.ndarray:
    """Share of the units that are not off with a kink below a level, (seeds, T)."""
    return np.sum((data.kinks < level) & data.live, axis=2) / np.sum(data.live, axis=2)


def numbers(data: Data) -> dict[str, Any]:
    """Quantiles of the kinks over time, and the share of negative ones."""
    ts = data.size.setting.ts
    quantiles = np.quantile(data.kinks, [0.05, 0.25, 0.5, 0.75, 0.95], axis=(0, 2)).T
    return {
        "t": thin(ts),
        "kinks, quantiles .05, .25, .5, .75, .95": thin(quantiles),
        "share of units that are not off": thin(data.live.mean(axis=(0, 2))),
        "of these, below 0": thin(below(data).mean(axis=0)),
        "of these, below -1": thin(below(data, -1.0).mean(axis=0)),
        "of all, below 0": thin((data.kinks < 0).mean(axis=(0, 2))),
        "linear network, below 0": thin((data.linear < 0).mean(axis=(0, 2))),
        "relative error of Eq. 12 with and without c, by c": {
            f"{c:g}": pair for c, pair in data.rates.items()
        },
    }


def judge(data: Data) -> list[Row]:
    """Verdicts on the caption and Sec. 5.3."""
    return [_fall_row(data), _rate_row(data)]


def _fall_row(data: Data) -> Row:
    ts = data.size.setting.ts
    bias = np.array([flow.events.first("mode")[LEVELS.index(0.9), 0] for flow in data.flows])
    second = pace(data.flows, data.flows, "tree", 1.0).relu[:, 1]
    seeds, share = np.arange(len(bias)), below(data)
    first, then = (np.searchsorted(ts, times) for times in (bias, second))
    all_units, linear = (np.mean(kinks < 0, axis=2) for kinks in (data.kinks, data.linear))
    late = share[seeds, then]
    return Row(
        "The vast majority of kinks rapidly grow negative early in learning",
        "M Fig. 12, Sec. 5.3",
        f"of the units that are not off, kinks below 0: at the start {interval(share[:, 0])}, when "
        f"the bias mode has 90 % of its strength (t = {interval(bias)}) "
        f"{interval(share[seeds, first])}, when the second singular value is half learned (t = "
        f"{interval(second)}) {interval(late)} (judged: all but a share, {SHARES}), at the end "
        f"{interval(share[:, -1])}; below -1 at the first "
        f"{interval(below(data, -1.0)[seeds, first])}; of all units "
        f"{interval(all_units[seeds, first])} and {interval(all_units[seeds, then])}; linear "
        f"network {interval(linear[seeds, then])}",
        verdict(both(same(1 - late, SHARES), more(late, linear[seeds, then]))),
    )


def _rate_row(data: Data) -> Row:
    (right, _), (scaled, printed) = (data.rates[c] for c in (1.0, data.size.other_c))
    plain = "c = 1, as in z = W x + b of Sec. 5.3; a factor c otherwise"
    return Row(
        "The kink is at -b/|w| and moves by Eq. 12",
        "M Eq. 12, erratum B.5",
        f"relative error against differences at c = 1 {right:.1e}; at c = {data.size.other_c:g} as "
        f"printed {printed:.2g}, with the factor c {scaled:.1e}",
        verdict(
            max(right, printed) < 1e-6,
            (plain, max(right, scaled) < 1e-6),
        ),
    )


def draw(data: Data) -> Figure:
    """Kinks of seed 0, and the share of negative ones over all seeds."""
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.6))
    ts, colour = data.size.setting.ts, fl.plot.COLOURS["relu"]
    fl.plot.kinks(ts, data.kinks[0], axes[0], linestyle="-")
    axes[0].set(title="kinks of seed 0", xlim=(0, 30), ylim=(-4, 2.5))
    all_units, linear = (np.mean(kinks < 0, axis=2) for kinks in (data.kinks, data.linear))
    for rows, label, look in (
        (below(data), "not off, below 0", {"color": colour, "linestyle": "-"}),
        (all_units, "all units, below 0", {"color": colour, "linestyle": "-."}),
        (below(data, -1.0), "not off, below -1", {"color": colour, "linestyle": ":"}),
        (linear, "linear, below 0", {"color": fl.plot.COLOURS["linear"], "linestyle": "-"}),
    ):  # fmt: skip
        low, high = np.quantile(rows, [0.025, 0.975], axis=0)
        axes[1].plot(ts, rows.mean(axis=0), label=label, **look)
        axes[1].fill_between(ts, low, high, color=look["color"], alpha=0.12, linewidth=0)
    axes[1].set(
        title="share of kinks (mean, 95 % of the seeds)", ylabel="fraction of units",
        xlabel="flow time $t$ (units of $\\tau$)", xlim=(0, 30), ylim=(0, 1),
    )  # fmt: skip
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=4,
                  fontsize="small", frameon=False)  # fmt: skip
    return figure


STUDY = Study("m_fig12", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
