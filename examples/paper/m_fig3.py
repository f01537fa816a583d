"""M Fig. 3: norms, biases, activity and early outputs on the hierarchy task.

Gradient flow with exact walks through the kinks, 64 hidden units, variance 2e-4, c = 1. A to D show
seed 0; the verdicts are over all seeds (activity over more of them than the paper's one).

Left open by the text: how a unit counts that slides on a kink (open: as off, closed: as on; both
are given), and which norms are compared (that of the bias vector with that of the whole W_1, as the
caption says, and with its share per input).

    python examples/paper/m_fig3.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import interval
from _paper import Row, Study, fl
from _tree import (
    PAPER,
    Case,
    Setting,
    linearization,
    many,
    modes_of,
    start,
    task_of,
    thin,
)
from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: seeds of ReLU and linear runs, and the rate of the one descent (0: none)."""

    seeds: int
    linear_seeds: int
    setting: Setting = PAPER
    learning_rate: float = 2e-4


SIZES = {
    "quick": Size(3, 2, learning_rate=0.0),
    "default": Size(100, 20),
    "full": Size(100, 20),
}


@dataclasses.dataclass
class Data:
    """Runs, and t* of a descent at the paper's rate with its fraction."""

    size: Size
    relu: list[fl.Trajectory]
    linear: list[fl.Trajectory]
    descent: fl.Trajectory | None


def compute(size: Size) -> Data:
    """The runs."""
    relu = many("tree", "relu", 1.0, size.seeds, size.setting)
    linear = many("tree", "linear", 1.0, size.linear_seeds, size.setting)
    descent = None
    if size.learning_rate:
        task = task_of("tree")
        network = start(Case("tree", "relu", 1.0, 0), size.setting)
        rate = size.learning_rate * task.samples
        descent = fl.gradient_descent(network, task, rate, t1=size.setting.t1)
    return Data(size, relu, linear, descent)


def growth(flow: fl.Trajectory) -> dict[str, np.ndarray]:
    """Norms over time: bias, W_1, W_1 per input (root of the number of inputs less)."""
    norms = fl.measures.along(flow, fl.measures.norms)
    inputs = flow.final.weights[0].shape[1]
    return {
        "bias": np.asarray(norms.biases[0]),
        "weights": np.asarray(norms.weights[0]),
        "column": np.asarray(norms.weights[0]) / np.sqrt(inputs),
    }


def ahead(flow: fl.Trajectory) -> np.ndarray:
    """How the bias leads: [half-rise of bias, of W_1; ratio of gains then; share of time ahead].

    The gains |b| - |b(0)| over |W_1| - |W_1(0)| are compared when the bias has risen by half of its
    largest gain. The share is that of the time until then in which |b| > |W_1|.
    """
    grown = growth(flow)
    ts = np.asarray(flow.ts)
    gains = {k: v - v[0] for k, v in grown.items()}
    half = [ts[np.argmax(gains[k] >= 0.5 * gains[k].max())] for k in ("bias", "weights")]
    k = int(np.searchsorted(ts, half[0]))
    return np.array([*half, gains["bias"][k] / gains["weights"][k], grown["bias"][k] /
                     grown["weights"][k]])  # fmt: skip


def off_mean(flow: fl.Trajectory) -> np.ndarray:
    """Distance of the outputs from the mean target, over its norm, root mean square, (T,)."""
    task = task_of("tree")
    outputs = np.asarray(fl.measures.along(flow, lambda n, t: n.outputs(t.x)))
    mean = np.asarray(task.y).mean(axis=0)
    return np.sqrt(np.mean(np.sum((outputs - mean) ** 2, -1), -1)) / np.linalg.norm(mean)


def fractions(flows: list[fl.Trajectory]) -> dict[str, np.ndarray]:
    """Per seed: always-on fraction at 0 and the end, t* and its fraction, off at 0 and end.

    And when a majority is first always on (inf: never).
    """
    rows: dict[str, list] = {}
    for flow in flows:
        line = linearization(flow)
        for name, at, closed in (("open", line.open, False), ("closed", line.closed, True)):
            first, last = (line.activity(t, closed=closed) for t in (0.0, float(flow.end)))
            counts = line.closed_counts if closed else line.open_counts
            most = np.asarray(counts.on) > counts.units / 2
            rows.setdefault(f"{name} majority", []).append(
                float(np.min(np.asarray(counts.time), where=most, initial=np.inf))
            )
            for key, value in (
                ("t*", at.time), ("fraction", at.fraction), ("start", first.always_on),
                ("end", last.always_on), ("off start", first.off), ("off end", last.off),
                ("gating at t*", line.activity(at.time, closed=closed).gating),
            ):  # fmt: skip
                rows.setdefault(f"{name} {key}", []).append(float(value))
    return {key: np.array(values) for key, values in rows.items()}


def bias_paths(flow: fl.Trajectory) -> np.ndarray:
    """All biases over time, (T, H)."""
    return np.asarray(flow.networks.biases[0])


def numbers(data: Data) -> dict[str, Any]:
    """Thinned curves of seed 0, and the fractions of all seeds."""
    found: dict[str, Any] = {"t": thin(data.size.setting.ts)}
    for name, flow in (("relu", data.relu[0]), ("linear", data.linear[0])):
        found |= {f"norm {k}, {name}": thin(v) for k, v in growth(flow).items()}
        found[f"distance from mean target, {name}"] = thin(off_mean(flow))
    counted = fractions(data.relu)
    for key, v in counted.items():
        five = np.quantile(v, [0, 0.25, 0.5, 0.75, 1], method="nearest")  # of which some are inf
        found[f"{key} (quantiles 0, .25, .5, .75, 1)"] = five
    names = [f"{a} {b}" for a in ("open", "closed") for b in ("t*", "fraction")]
    found[f"first ten seeds: {', '.join(names)}"] = np.stack([counted[k][:10] for k in names], 1)
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts, panel by panel."""
    return [*_norm_rows(data), *_bias_rows(data), *_activity_rows(data), *_output_rows(data)]


def _norm_rows(data: Data) -> list[Row]:
    rows = []
    for name, flows in (("ReLU", data.relu), ("linear", data.linear)):
        lead = np.array([ahead(flow) for flow in flows])
        first = np.mean(lead[:, 0] < lead[:, 1])
        faster = np.mean(lead[:, 2] > 1)
        rows.append(
            Row(
                f"{name}: in the beginning biases grow faster than weights and dominate",
                "M Fig. 3A",
                f"half of the rise of |b| at {interval(lead[:, 0])}, of |W_1| at "
                f"{interval(lead[:, 1])}; until then |b| has gained {interval(lead[:, 2])} times "
                f"what |W_1| has (more in {faster:.0%} of the seeds) and is {interval(lead[:, 3])} "
                "times as large",
                "holds" if min(first, faster) > 0.95 and lead[:, 3].mean() > 1 else "does not hold",
            )
        )
    return rows


def _bias_rows(data: Data) -> list[Row]:
    paths = np.stack([bias_paths(flow) for flow in data.relu])  # (seeds, T, H)
    scale = np.abs(paths).max(axis=(1, 2))[:, None]
    late = [np.searchsorted(data.size.setting.ts, linearization(flow).open.time)
            for flow in data.relu]  # fmt: skip
    at = np.stack([path[k] for path, k in zip(paths, late, strict=True)])
    share = {name: np.mean(values > -0.05 * scale, axis=1)
             for name, values in (("t*", at), ("end", paths[:, -1]))}  # fmt: skip
    lowest = paths.min(axis=(1, 2)) / scale[:, 0]
    speed = np.abs(np.diff(paths, axis=1)).mean(axis=2) / np.diff(data.size.setting.ts)
    peak = data.size.setting.ts[speed.argmax(axis=1)]
    gone = np.array(
        [np.sum(np.abs(np.diff(p, axis=0))[:k]) for p, k in zip(paths, late, strict=True)]
    )
    gone /= np.abs(np.diff(paths, axis=1)).sum(axis=(1, 2))
    return [
        Row(
            "Biases are generally positive or around zero",
            "M Fig. 3B",
            f"share of the units with b_j above -5 % of the largest |b|: at t* "
            f"{interval(share['t*'])}, at the end {interval(share['end'])}; the lowest is "
            f"{interval(lowest)} of the largest",
            "holds" if min(v.mean() for v in share.values()) > 0.9 else "does not hold",
        ),
        Row(
            "Biases grow fastest early in learning",
            "M Fig. 3B",
            f"mean |db/dt| is largest at t = {interval(peak)}; up to the open t* the biases have "
            f"gone {interval(gone)} of the way they ever go",
            "holds" if np.mean(peak < data.size.setting.ts[late]) > 0.95 else "does not hold",
        ),
    ]


def _activity_rows(data: Data) -> list[Row]:
    counted = fractions(data.relu)
    rows = [row for name in ("open", "closed") for row in _share_rows(data, counted, name)]
    rows.append(_dead_row(data, counted))
    if data.descent is not None:
        rows.append(_descent_row(data.descent, counted))
    return rows


def _share_rows(data: Data, counted: dict[str, np.ndarray], name: str) -> list[Row]:
    seeds, fraction = len(data.relu), counted[f"{name} fraction"]
    most = int(np.sum(fraction > 0.5))
    half = 1.96 * np.sqrt(most / seeds * (1 - most / seeds) / seeds)
    some = counted[f"{name} majority"]
    some = some[np.isfinite(some)]
    mean = np.mean([flow.losses for flow in data.relu], axis=0)
    come = interval(some) if len(some) else "never"
    at = np.median(some) if len(some) else np.nan
    left = np.interp(at, data.size.setting.ts, mean / mean[0])
    falls = np.mean(counted[f"{name} end"] < fraction)
    falls_open = np.mean(counted["open end"] < counted["open fraction"])
    return [
        Row(
            f"Early in training most units are driven to be always active (sliding: {name})",
            "M Fig. 3C, Sec. 5.3",
            f"more than half always on at t* in {most} of {seeds} seeds ({most / seeds:.2f} ± "
            f"{half:.2f}); largest fraction {interval(fraction)}, at t* = "
            f"{interval(counted[f'{name} t*'])}; still gating there "
            f"{interval(counted[f'{name} gating at t*'])}; where there is one, a majority "
            f"comes at t = {come}, with {left:.0%} of the loss left",
            _majority(most / seeds, left, np.mean(counted["closed fraction"] > 0.5)),
        ),
        Row(
            f"Later, units slowly drift back to the non-linear regime (sliding: {name})",
            "M Fig. 3C",
            f"always on at the end (t = {data.size.setting.t1:g}) "
            f"{interval(counted[f'{name} end'])}, less than at t* in {falls:.0%} of the seeds",
            "holds"
            if falls > 0.95
            else "holds under a condition: sliding units count as off"
            if falls_open > 0.95
            else "does not hold",
        ),
    ]


def _dead_row(data: Data, counted: dict[str, np.ndarray]) -> Row:
    theory = 1 / (task_of("tree").samples + 1)
    on, off = counted["open start"], counted["open off start"]
    units = len(data.relu) * data.size.setting.hidden
    error = np.sqrt(theory * (1 - theory) / units)
    dead = [np.all(flow.events.gates(0.0) < 0, axis=0) for flow in data.relu]
    last = [np.all(flow.events.gates(np.inf) < 0, axis=0) for flow in data.relu]
    stay = all(np.all(b[a]) for a, b in zip(dead, last, strict=True))
    more = counted["open off end"].mean() / off.mean()
    others = f"others die later, {more:.2g} times as many are off at the end"
    return Row(
        "Dead neurons are those off for all samples at the start; they stay inactive",
        "M Sec. 5, erratum B.9",
        f"off at the start {interval(off)}, always on {interval(on)}, expected both 1/(P+1) = "
        f"{theory:.3f} ± {1.96 * error:.2g}; all of them stay off: {stay}; off at the end "
        f"{interval(counted['open off end'])}",
        "does not hold"
        if not stay
        else f"holds under a condition: {others}"
        if more > 1.1
        else "holds",
    )


def _descent_row(descent: fl.Trajectory, counted: dict[str, np.ndarray]) -> Row:
    steps = linearization(descent).open
    stars = [counted[f"{name} t*"][0] for name in ("open", "closed")]
    shares = [counted[f"{name} fraction"][0] for name in ("open", "closed")]
    off = min(abs(float(steps.time) / star - 1) for star in stars)
    return Row(
        "t* is read off a discrete run",
        "M Sec. 5.4, erratum B.13",
        f"descent at 2e-4 (seed 0) reports t* = {float(steps.time):.4g} (fraction "
        f"{float(steps.fraction):.3f}); the flow's is {stars[0]:.4g} ({shares[0]:.3f}) open and "
        f"{stars[1]:.4g} ({shares[1]:.3f}) closed",
        "holds" if off < 0.01 else "does not hold",
    )


def _majority(share: float, left: float, closed: Any) -> str:
    """Verdict: share of the seeds with a majority, loss left then, the share counted closed."""
    if share > 0.95:
        early = left > 0.4
        return "holds" if early else f"holds under a condition: late, with {left:.0%} of the loss"
    if closed > 0.95:
        return "holds under a condition: sliding units count as on"
    return "does not hold"


def _output_rows(data: Data) -> list[Row]:
    ts = data.size.setting.ts
    found = {}
    for name, flows in (("relu", data.relu), ("linear", data.linear)):
        curves = np.array([off_mean(flow) for flow in flows])
        found[name] = curves.min(axis=1), ts[curves.argmin(axis=1)]
    modes = modes_of("tree", 1.0)
    a0 = [
        fl.theory.balanced_strength(start(Case("tree", "linear", 1.0, k), data.size.setting), modes)
        for k in range(len(data.linear))
    ]
    full = float(modes.full_strength[0])
    theory = np.array(
        [float(fl.theory.hitting_time(0.95 * full, modes.s[0], modes.d[0], a[0])) for a in a0]
    )
    closest = {k: v[0].mean() for k, v in found.items()}
    text = "; ".join(
        f"{k}: distance over |ybar| down to {interval(v[0])} at t = {interval(v[1])}"
        for k, v in found.items()
    )
    return [
        Row(
            "Early network functions equal the average output ybar for all inputs, in both kinds",
            "M Fig. 3D",
            f"{text}; the bias mode reaches 95 % of its strength at t = {interval(theory)} by Eq. "
            "13",
            "holds" if max(closest.values()) < 0.1 else "does not hold",
        )
    ]


def draw(data: Data) -> Figure:
    """Panels A to D, of seed 0."""
    figure, axes = plt.subplots(2, 2, figsize=(9.0, 6.6))
    ts = data.size.setting.ts
    for name, flow in (("linear", data.linear[0]), ("relu", data.relu[0])):
        how = fl.plot.look(name)
        label = {"linear": "linear", "relu": "ReLU"}[name]
        grown = growth(flow)
        axes[0, 0].plot(ts, grown["bias"], label=rf"{label}, $\|b\|$", **how)
        axes[0, 0].plot(
            ts, grown["weights"], label=rf"{label}, $\|W_1\|_F$", **how | {"alpha": 0.4}
        )
        axes[1, 1].plot(ts, off_mean(flow), label=label, **how)
    axes[0, 0].set(ylabel="norm", title="A. norms of biases and weights")
    axes[0, 1].plot(ts, bias_paths(data.relu[0]), color=fl.plot.COLOURS["relu"], linestyle="-",
                    linewidth=0.7, alpha=0.6)  # fmt: skip
    axes[0, 1].axhline(0, color="black", linestyle="--", linewidth=1)
    axes[0, 1].set(ylabel="bias $b_j$", title="B. biases of the ReLU network")
    fl.plot.activity(data.relu[0], axes[1, 0])
    axes[1, 0].set(title="C. fractions of units", ylim=(0, 1.25))
    axes[1, 0].legend(fontsize="small", frameon=False, ncols=2, loc="upper right")
    axes[1, 1].set(
        ylabel=r"distance from $\bar y$ / $\|\bar y\|$", title=r"D. outputs near the mean target",
        xlim=(0, 15), ylim=(0, None),
    )  # fmt: skip
    for ax in axes.flat:
        ax.set_xlabel("flow time $t$ (units of $\\tau$)")
    for ax in (axes[0, 0], axes[1, 1]):
        ax.legend(fontsize="small", frameon=False)
    return figure


STUDY = Study("m_fig3", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
