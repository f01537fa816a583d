r"""M Fig. 12: positions of the kinks over time. See: most kinks move below zero early and stay
there.

Hierarchy task, gradient flow with exact walks, 64 hidden units, variance 2e-4, c = 1. The kink of
unit j is at $k_j = -c\, b_j / \|w_j\|$ (Eq. 12 without its missing c); its picture is of seed 0.
"Early" is before the second singular value is half learned. Units that are off for all samples have
positive kinks; the caption does not leave them out, so they count, and shares without them stand
beside. "Strongly negative" is below -1: the inputs have norm 1, so that a unit with such a kink is
on for them whatever its direction. The control is the linear network of the same weights, whose
biases grow as fast, in both directions.

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


SIZES = {"quick": Size(3), "default": Size(200), "full": Size(200)}


@dataclasses.dataclass
class Data:
    """Runs, their kinks and units that are not off (seeds, T, H), the linear networks' kinks.

    - `along`: units whose readout points along the mean target, (seeds, T, H).
    - `rates`: errors of Eq. 12 by c, with the factor c and without.
    """

    size: Size
    flows: list[fl.Trajectory]
    kinks: np.ndarray
    live: np.ndarray
    along: np.ndarray
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
    mean = np.asarray(task_of("tree").y).mean(axis=0)
    along = np.array([mean @ np.asarray(flow.networks.weights[1]) > 0 for flow in flows])
    rates = {c: _rates(c, flows[0]) for c in (1.0, size.other_c)}
    return Data(size, flows, kinks, live, along, others, rates)


def _live(flow: fl.Trajectory) -> np.ndarray:
    """Which units are not off for all samples, (T, H)."""
    gates = np.stack([np.asarray(flow.events.sides(t)) for t in np.asarray(flow.ts)])
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


def below(data: Data, level: float = 0.0, some: np.ndarray | None = None) -> np.ndarray:
    """Share of the units with a kink below a level, or of some of them, (seeds, T)."""
    some = np.ones_like(data.live) if some is None else some
    return np.sum((data.kinks < level) & some, axis=2) / np.sum(some, axis=2)


def numbers(data: Data) -> dict[str, Any]:
    """Quantiles of the kinks over time, and the share of negative ones."""
    ts = data.size.setting.ts
    quantiles = np.quantile(data.kinks, [0.05, 0.25, 0.5, 0.75, 0.95], axis=(0, 2)).T
    return {
        "t": thin(ts),
        "kinks, quantiles .05, .25, .5, .75, .95": thin(quantiles),
        "share of units that are not off": thin(data.live.mean(axis=(0, 2))),
        "of these, below 0": thin(below(data, 0.0, data.live).mean(axis=0)),
        "of these, below -1": thin(below(data, -1.0, data.live).mean(axis=0)),
        "of all, below 0": thin(below(data).mean(axis=0)),
        "of all, below -1": thin(below(data, -1.0).mean(axis=0)),
        "linear network, below 0": thin((data.linear < 0).mean(axis=(0, 2))),
        "relative error of Eq. 12 with and without c, by c": {
            f"{c:g}": pair for c, pair in data.rates.items()
        },
    }


def judge(data: Data) -> list[Row]:
    """Verdicts on the caption and Sec. 5.3."""
    return [_fall_row(data), _strong_row(data), _rate_row(data)]


def _second(data: Data) -> np.ndarray:
    """When the second singular value is half learned, (seeds,)."""
    return pace(data.flows, data.flows, "tree", 1.0).relu[:, 1]


def _fall_row(data: Data) -> Row:
    ts, second, seeds = data.size.setting.ts, _second(data), np.arange(len(data.flows))
    bias = np.array([flow.events.first("mode")[LEVELS.index(0.9), 0] for flow in data.flows])
    first, then = (np.searchsorted(ts, times) for times in (bias, second))
    units, live = below(data), below(data, 0.0, data.live)
    linear = np.mean(data.linear < 0, axis=2)[seeds, then]
    late, late_live = units[seeds, then], live[seeds, then]
    return Row(
        claim="The vast majority of kinks rapidly grow negative early in learning",
        quote="The vast majority of kink values rapidly grow negative early in learning.",
        source="M Fig. 12, Sec. 5.3",
        measured=f"kinks below 0, of all units: at the start {interval(units[:, 0])}, when the "
        f"bias mode has 90 % of its strength (t = {interval(bias)}) "
        f"{interval(units[seeds, first])}, when the second singular value is half learned (t = "
        f"{interval(second)}) {interval(late)} (linear network {interval(linear)}), at the end "
        f"{interval(units[:, -1])}; of the units that are not off for all samples "
        f"{interval(live[:, 0])}, {interval(live[seeds, first])}, {interval(late_live)} and "
        f"{interval(live[:, -1])}. Criterion, when the second singular value is half learned: all "
        f"but a share, {SHARES}, and more than in the linear network",
        verdict=verdict(
            both(same(1 - late, SHARES), more(late, linear)),
            ("of the units that are not off", both(same(1 - late_live, SHARES),
                                                   more(late_live, linear))),
        ),
    )  # fmt: skip


def _strong_row(data: Data) -> Row:
    ts, second = data.size.setting.ts, _second(data)
    early = ts <= second.min()
    kinds = {
        "all units": None,
        "units that are not off": data.live,
        "units whose readout points along the mean target": data.along,
    }
    found, texts = {}, []
    for name, some in kinds.items():
        rows = below(data, -1.0, some)
        at = int(np.argmax(np.where(early, rows.mean(axis=0), -1)))  # one time for all seeds
        found[f"of {name}"] = more(rows[:, at], 0.5)
        texts.append(f"{name} {interval(rows[:, at])} at t = {ts[at]:.3g}")
    half = np.median(data.kinks, axis=(0, 2))[early].min()
    return Row(
        claim="As biases increase kinks rapidly become strongly negative",
        quote="the kink therefore rapidly become strongly negative as the bias increases (see Fig. "
        "12), meaning that for inputs centered around 0 a larger portion of the data enters the "
        "linear part",
        source="M Sec. 5.3, Fig. 12",
        measured="largest share of kinks below -1, where a unit is on for all inputs of norm 1 "
        "whatever its direction, before the second singular value is half learned: "
        f"{', '.join(texts)}; the median of all kinks goes to {half:.2g} until then. Criterion: "
        "below -1 in more than half; the sentence is about units with positive readouts",
        verdict=verdict(found),
    )


def _rate_row(data: Data) -> Row:
    (right, _), (scaled, printed) = (data.rates[c] for c in (1.0, data.size.other_c))
    return Row(
        claim="The kink is at -b/|w| and moves by Eq. 12",
        quote="Its distance from the origin in the direction of the weight vector ... is given by "
        "... For a given node i, this evolves according to the total differential",
        source="M Eq. 12, Sec. 5.3, erratum E5",
        measured=f"relative error of Eq. 12 against differences: z = W x + b, c = 1, {right:.1e}; "
        f"with the bias c b of Sec. 5.1 at c = {data.size.other_c:g}, as printed {printed:.2g}, "
        f"with a factor c {scaled:.1e}",
        verdict=verdict({
            "z = W x + b, as Sec. 5.3 writes": right < 1e-6,
            "inputs with a constant c, as Sec. 5.1 writes": max(printed, right) < 1e-6,
        }),
    )  # fmt: skip


def draw(data: Data) -> Figure:
    """Kinks of seed 0, and the share of negative ones over all seeds."""
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.6))
    ts, colour = data.size.setting.ts, fl.plot.COLOURS["relu"]
    fl.plot.kinks(ts, data.kinks[0], axes[0], linestyle="-")
    axes[0].set(title="kinks of seed 0", xlim=(0, 30), ylim=(-4, 2.5))
    linear = np.mean(data.linear < 0, axis=2)
    for rows, label, look in (
        (below(data), "all units, below 0", {"color": colour, "linestyle": "-"}),
        (below(data, 0.0, data.live), "not off, below 0", {"color": colour, "linestyle": "-."}),
        (below(data, -1.0), "all units, below -1", {"color": colour, "linestyle": ":"}),
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
