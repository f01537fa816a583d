"""M Fig. 3: norms, biases, activity and early outputs on the hierarchy task. See: biases rise
before weights (A) and mostly stay positive (B). The always-on fraction has its maximum early where
sliding counts as off, late where it counts as on (C). Outputs pass the mean target (D).

Gradient flow with exact walks through the kinks, 64 hidden units, variance 2e-4, c = 1. A to D show
seed 0; the verdicts are over all seeds. "Early" is before the second singular value is half
learned, at t = 10.

A unit that slides along a kink in the flow is stepped across it and back by descent at the paper's
rate, so that descent's count of units with z > 0 on all samples flickers. How such units count is
left open by the text; judged are the flow with sliding units on (closed) and off (open), single
steps of descent, and averages of these over a unit of time.

    python examples/paper/m_fig3.py [--quick | --full]
"""

import dataclasses
from functools import cached_property
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
from _fig3_rows import AVERAGES, OFF, ON, biases, judge, off_mean
from _paper import WITHOUT, Study, fl
from _tree import (
    PAPER,
    Case,
    Setting,
    linearization,
    many,
    pace,
    start,
    task_of,
    thin,
)
from matplotlib.axes import Axes
from matplotlib.figure import Figure

UNIT = 1.0  # of time, over which the flickering count of descent is averaged


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: seeds of ReLU flows, of other flows and of descent (rate 0: none)."""

    seeds: int
    others: int
    setting: Setting = PAPER
    descents: int = 20
    learning_rate: float = 2e-4


SIZES = {
    "quick": Size(3, 2, descents=2),
    "default": Size(100, 20),
    "full": Size(100, 20),
}


@dataclasses.dataclass
class Data:
    """Flows, the linear ones and those without bias as `others`, and descents."""

    size: Size
    relu: list[fl.Trajectory]
    others: dict[tuple[str, float], list[fl.Trajectory]]
    descents: list[fl.Trajectory]

    @cached_property
    def second(self) -> np.ndarray:
        """When the second singular value is half learned, (seeds,)."""
        return pace(self.relu, self.relu, "tree", 1.0).relu[:, 1]

    @cached_property
    def left(self) -> np.ndarray:
        """Share of the loss that is left in the ReLU flows, mean over seeds, (T,)."""
        losses = np.mean([flow.losses for flow in self.relu], axis=0)
        return losses / losses[0]

    @cached_property
    def flow(self) -> dict[str, np.ndarray]:
        """Fractions of the ReLU flows."""
        return fractions(self.relu)

    @cached_property
    def descent(self) -> dict[str, np.ndarray]:
        """Fractions of the descents."""
        return fractions(self.descents)

    @cached_property
    def lead(self) -> dict[str, np.ndarray]:
        """How biases lead in both kinds of network with bias."""
        kinds = {"ReLU": self.relu, "linear": self.others["linear", 1.0]}
        return {name: np.array([ahead(flow) for flow in flows]) for name, flows in kinds.items()}

    @cached_property
    def curves(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Times, and the always-on fractions at them by way of counting, (seeds, T)."""
        ts = np.append(np.linspace(0, 40, 161), self.size.setting.t1 - UNIT)
        lines = [linearization(flow) for flow in self.relu]
        sliding = {
            words: np.array([line.activity(ts, closed=words == ON).always_on for line in lines])
            for words in (ON, OFF)
        }
        return ts, {AVERAGES: np.array([averaged(flow, ts) for flow in self.descents])} | sliding


def compute(size: Size) -> Data:
    """The runs."""
    relu = many("tree", "relu", 1.0, size.seeds, size.setting)
    keys = [("linear", 1.0), ("relu", 0.0), ("linear", 0.0)]
    others = {key: many("tree", *key, size.others, size.setting) for key in keys}
    task = task_of("tree")
    # Half the mean at P times the rate is half the sum at the rate, and counts flow time.
    how: dict[str, Any] = {
        "learning_rate": size.learning_rate * task.samples,
        "t1": size.setting.t1,
    }
    descents = [
        fl.gradient_descent(start(Case("tree", "relu", 1.0, seed), size.setting), task, **how)
        for seed in range(size.descents)
    ]
    return Data(size, relu, others, descents)


def growth(flow: fl.Trajectory) -> dict[str, np.ndarray]:
    """Norms over time: bias, W_1."""
    norms = fl.measures.along(flow, fl.measures.norms)
    return {"bias": np.asarray(norms.biases[0]), "weights": np.asarray(norms.weights[0])}


def ahead(flow: fl.Trajectory) -> np.ndarray:
    """How the bias leads: [half-rise of bias, of W_1; ratios then of gains, norms, outputs].

    The gains |b| - |b(0)| over |W_1| - |W_1(0)| are compared when the bias has risen by half of its
    largest gain, and so are the norms, and the outputs that the biases alone would give with what
    W_1 adds to these.
    """
    grown = growth(flow)
    ts = np.asarray(flow.ts)
    gains = {k: v - v[0] for k, v in grown.items()}
    half = [ts[np.argmax(gains[k] >= 0.5 * gains[k].max())] for k in ("bias", "weights")]
    k = int(np.searchsorted(ts, half[0]))
    ratios = [of["bias"][k] / of["weights"][k] for of in (gains, grown)]
    then = jax.tree.map(lambda a: a[k], flow.networks)
    return np.array([*half, *ratios, from_biases(then)])


def from_biases(network: Any) -> float:
    """Norm of the outputs without W_1 over that of what W_1 adds to them."""
    (first, *rest), x = network.weights, task_of("tree").x
    bare = network.with_parameters(((0 * first, *rest), network.biases))
    alone, whole = (np.asarray(one.outputs(x)) for one in (bare, network))
    return float(np.linalg.norm(alone) / np.linalg.norm(whole - alone))


def fractions(flows: list[fl.Trajectory]) -> dict[str, np.ndarray]:
    """By seed and convention: t* and its fraction, always on and off at the start and the end.

    And when a majority is first always on (inf: never).
    """
    rows: dict[str, list] = {}
    for flow in flows:
        line = linearization(flow)
        for name, at, closed in (("open", line.open, False), ("closed", line.closed, True)):
            first, last = (line.activity(t, closed=closed) for t in (0.0, float(flow.end)))
            counts = line.closed_counts if closed else line.open_counts
            most = np.asarray(counts.on) > counts.units / 2
            for key, value in (
                ("t*", at.time), ("fraction", at.fraction), ("start", first.always_on),
                ("end", last.always_on), ("off start", first.off), ("off end", last.off),
                ("majority", np.min(np.asarray(counts.time), where=most, initial=np.inf)),
            ):  # fmt: skip
                rows.setdefault(f"{name} {key}", []).append(float(value))
    return {key: np.array(values) for key, values in rows.items()}


def averaged(flow: fl.Trajectory, ts: Any) -> np.ndarray:
    """The always-on fraction around times, averaged over a unit of time, (T,)."""
    line = linearization(flow)
    near = np.clip(np.asarray(ts)[:, None] + np.linspace(-0.5, 0.5, 101) * UNIT, 0, flow.end)
    return np.asarray(line.activity(near.ravel()).always_on).reshape(near.shape).mean(axis=1)


def numbers(data: Data) -> dict[str, Any]:
    """Thinned curves of seed 0, and the fractions of all seeds."""
    found: dict[str, Any] = {"t": thin(data.size.setting.ts)}
    for name, flow in (("relu", data.relu[0]), ("linear", data.others["linear", 1.0][0])):
        found |= {f"norm {k}, {name}": thin(v) for k, v in growth(flow).items()}
        found[f"distance from mean target, {name}"] = thin(off_mean(flow))
    for name, counted in (("flow", data.flow), ("descent", data.descent)):
        for key, v in counted.items():
            five = np.quantile(v, [0, 0.25, 0.5, 0.75, 1], method="nearest")  # some are inf
            found[f"{name}, {key} (quantiles 0, .25, .5, .75, 1)"] = five
        keys = [f"{a} {b}" for a in ("open", "closed") for b in ("t*", "fraction")]
        found[f"{name}, first ten seeds: {', '.join(keys)}"] = np.stack(
            [counted[k][:10] for k in keys], 1
        )
    return found


def draw(data: Data) -> Figure:
    """Panels A to D, of seed 0."""
    figure, axes = plt.subplots(2, 2, figsize=(9.0, 7.0))
    ts, relu, linear = data.size.setting.ts, data.relu[0], data.others["linear", 1.0][0]
    for name, flow in (("linear", linear), ("ReLU", relu)):
        colour, grown = fl.plot.COLOURS[name.lower()], growth(flow)
        axes[0, 0].plot(ts, grown["bias"], label=rf"{name}, $\|b\|$", color=colour, linestyle="-")
        axes[0, 0].plot(ts, grown["weights"], label=rf"{name}, $\|W_1\|_F$", color=colour,
                        linestyle=":")  # fmt: skip
    axes[0, 0].set(ylabel="norm", title="A. norms of biases and weights", xlim=(0, 40))
    axes[0, 1].plot(ts, biases(relu), color=fl.plot.COLOURS["relu"], linestyle="-",
                    linewidth=0.7, alpha=0.6)  # fmt: skip
    axes[0, 1].axhline(0, color="black", linestyle="--", linewidth=1)
    axes[0, 1].set(ylabel="bias $b_j$", title="B. biases of the ReLU network", xlim=(0, 40))
    _activity(data, axes[1, 0])
    for (name, c), flow in ((("relu", 1.0), relu), *((k, v[0]) for k, v in data.others.items())):
        how: dict[str, Any] = {"color": fl.plot.COLOURS[name], "linestyle": "-"}
        how |= {} if c else WITHOUT | {"marker": "o", "markersize": 4, "markevery": 10}
        label = f"{'ReLU' if name == 'relu' else 'linear'}{'' if c else ', no bias'}"
        axes[1, 1].plot(ts, off_mean(flow), label=label, **how)
    axes[1, 1].set(
        ylabel=r"distance from $\bar y$ / $\|\bar y\|$", title=r"D. outputs near the mean target",
        xlim=(0, 15), ylim=(0, 1.5),
    )  # fmt: skip
    for ax in axes.flat:
        ax.set_xlabel("flow time $t$ (units of $\\tau$)")
    for ax in (axes[0, 0], axes[1, 1]):
        ax.legend(fontsize="small", frameon=False, ncols=2)
    axes[0, 0].set_ylim(top=1.25 * axes[0, 0].get_ylim()[1])
    return figure


def _activity(data: Data, ax: Axes) -> None:
    """Panel C: seed 0's fractions in the flow, and the always-on fraction of its descent."""
    fl.plot.activity(data.relu[0], ax)
    ts = np.linspace(0, data.size.setting.t1, 241)
    for flow in data.descents[:1]:
        how: dict[str, Any] = fl.plot.look("descent") | {"linewidth": 1.6}
        ax.plot(ts, averaged(flow, ts), label="always on, descent", zorder=5, **how)
    ax.set(title="C. fractions of units (solid: open, dashed: closed)", ylim=(0, 1.0))
    ax.legend(fontsize="small", ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16),
              frameon=False)  # fmt: skip


STUDY = Study("m_fig3", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
