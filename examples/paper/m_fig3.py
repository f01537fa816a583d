"""M Fig. 3: norms, biases, activity and early outputs on the hierarchy task.

Gradient flow with exact walks through the kinks, 64 hidden units, variance 2e-4, c = 1. A to D show
seed 0; the verdicts are over all seeds. "Early" is before the second singular value is half
learned, at t = 10.

The paper counts units with z > 0 on all samples in descent at its rate; that count is judged. A
unit that slides along a kink in the flow is stepped across it and back by descent, so that its
count flickers between the flow's open one (sliding counts as off) and closed one (as on), which
stand beside it. Left open by the text: which norms are compared (that of the bias vector with that
of the whole W_1, as the caption says).

    python examples/paper/m_fig3.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import MAPS, SHARES, apart, both, interval, more, same, share, usual, verdict
from _paper import WITHOUT, Row, Study, fl
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

    @property
    def second(self) -> np.ndarray:
        """When the second singular value is half learned, of as many seeds as descents."""
        number = len(self.descents)
        return pace(self.relu[:number], self.relu[:number], "tree", 1.0).relu[:, 1]


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
    """How the bias leads: [half-rise of bias, of W_1; ratio of gains then; ratio of norms].

    The gains |b| - |b(0)| over |W_1| - |W_1(0)| are compared when the bias has risen by half of its
    largest gain, and so are the norms.
    """
    grown = growth(flow)
    ts = np.asarray(flow.ts)
    gains = {k: v - v[0] for k, v in grown.items()}
    half = [ts[np.argmax(gains[k] >= 0.5 * gains[k].max())] for k in ("bias", "weights")]
    k = int(np.searchsorted(ts, half[0]))
    ratios = [of["bias"][k] / of["weights"][k] for of in (gains, grown)]
    return np.array([*half, *ratios])


def off_mean(flow: fl.Trajectory) -> np.ndarray:
    """Distance of the outputs from the mean target, over its norm, root mean square, (T,)."""
    task = task_of("tree")
    outputs = np.asarray(fl.measures.along(flow, lambda n, t: n.outputs(t.x)))
    mean = np.asarray(task.y).mean(axis=0)
    return np.sqrt(np.mean(np.sum((outputs - mean) ** 2, -1), -1)) / np.linalg.norm(mean)


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


def biases(flow: fl.Trajectory) -> np.ndarray:
    """All biases over time, (T, H)."""
    return np.asarray(flow.networks.biases[0])


def numbers(data: Data) -> dict[str, Any]:
    """Thinned curves of seed 0, and the fractions of all seeds."""
    found: dict[str, Any] = {"t": thin(data.size.setting.ts)}
    for name, flow in (("relu", data.relu[0]), ("linear", data.others["linear", 1.0][0])):
        found |= {f"norm {k}, {name}": thin(v) for k, v in growth(flow).items()}
        found[f"distance from mean target, {name}"] = thin(off_mean(flow))
    for name, flows in (("flow", data.relu), ("descent", data.descents)):
        counted = fractions(flows)
        for key, v in counted.items():
            five = np.quantile(v, [0, 0.25, 0.5, 0.75, 1], method="nearest")  # some are inf
            found[f"{name}, {key} (quantiles 0, .25, .5, .75, 1)"] = five
        keys = [f"{a} {b}" for a in ("open", "closed") for b in ("t*", "fraction")]
        found[f"{name}, first ten seeds: {', '.join(keys)}"] = np.stack(
            [counted[k][:10] for k in keys], 1
        )
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts, panel by panel."""
    flow, descent = fractions(data.relu), fractions(data.descents)
    return [
        _norm_row(data),
        *_bias_rows(data),
        _most_row(data, flow, descent),
        _drift_row(data, flow),
        _dead_row(data, flow),
        _time_row(flow, descent),
        _output_row(data),
    ]


def _norm_row(data: Data) -> Row:
    found, texts = [], []
    for name, flows in (("ReLU", data.relu), ("linear", data.others["linear", 1.0])):
        lead = np.array([ahead(flow) for flow in flows])
        found += [more(lead[:, 1], lead[:, 0], 2), more(lead[:, 2], 1, 2), more(lead[:, 3], 1, 2)]
        texts.append(
            f"{name}: half of the rise of |b| at {interval(lead[:, 0])}, of |W_1| at "
            f"{interval(lead[:, 1])}; until then |b| has gained {interval(lead[:, 2])} times what "
            f"|W_1| has and is {interval(lead[:, 3])} times as large"
        )
    return Row(
        "In the beginning biases grow faster than weights and dominate, in ReLU and linear "
        "networks",
        "M Fig. 3A",
        "; ".join(texts),
        verdict(both(*found)),
    )


def _bias_rows(data: Data) -> list[Row]:
    ts = data.size.setting.ts
    below = {}
    for name, flows in (("ReLU", data.relu), ("linear", data.others["linear", 1.0])):
        paths = np.stack([biases(flow) for flow in flows])  # (seeds, T, H)
        scale = np.abs(paths).max(axis=(1, 2))[:, None, None]
        below[name] = np.max(np.mean(paths < -0.05 * scale, axis=2), axis=1)
    paths = np.stack([biases(flow) for flow in data.relu])
    speed = np.abs(np.diff(paths, axis=1)).mean(axis=2) / np.diff(ts)
    peak = ts[speed.argmax(axis=1)]
    second = pace(data.relu, data.relu, "tree", 1.0).relu[:, 1]
    return [
        Row(
            "Biases are generally positive or around zero",
            "M Fig. 3B",
            f"share of the units with b_j below -5 % of the largest |b|, where it is largest in "
            f"time: {interval(below['ReLU'])} ({SHARES}), in linear networks "
            f"{interval(below['linear'])}",
            verdict(both(same(below["ReLU"], SHARES), apart(below["linear"], SHARES))),
        ),
        Row(
            "Biases grow fastest early in learning",
            "M Fig. 3B",
            f"mean |db/dt| is largest at t = {interval(peak)}; the second singular value is half "
            f"learned at {interval(second)}",
            verdict(both(usual(peak < second), more(second, peak))),
        ),
    ]


def _most_row(data: Data, flow: dict[str, Any], descent: dict[str, Any]) -> Row:
    most, early = descent["open fraction"] > 0.5, descent["open majority"] < data.second
    ts = np.linspace(0, 20, 81)
    smooth = np.array([averaged(d, ts) for d in data.descents])
    first = descent["open majority"]
    losses = np.mean([f.losses for f in data.relu], axis=0)
    left = np.interp(np.median(first), data.size.setting.ts, losses / losses[0])
    text = "; ".join(
        f"{name} in {share(flow[f'{name} fraction'] > 0.5)}, largest fraction "
        f"{interval(flow[f'{name} fraction'])} at t = {interval(flow[f'{name} t*'])}"
        for name in ("open", "closed")
    )
    return Row(
        "Early in training most units are driven to be always active",
        "M Fig. 3C, Sec. 5.3",
        f"units with z > 0 on all samples in descent at {data.size.learning_rate:g}, as the paper "
        f"counts: more than half in {share(most)}, for the first time at t = "
        f"{np.median(first):.3g} (median, {left:.0%} of the loss left), before the second singular "
        f"value is half learned (t = {data.second.mean():.3g}) in {share(early)}; largest fraction "
        f"{interval(descent['open fraction'])}, averaged over a unit of time "
        f"{interval(smooth.max(axis=1))}, at the start {interval(descent['open start'])}; in the "
        f"flow, a majority with sliding units {text}",
        verdict(both(usual(most), usual(early))),
    )


def _drift_row(data: Data, flow: dict[str, Any]) -> Row:
    falls = {name: flow[f"{name} fraction"] - flow[f"{name} end"] for name in ("open", "closed")}
    ts = np.append(np.linspace(0, 20, 81), data.size.setting.t1 - UNIT)
    smooth = np.array([averaged(d, ts) for d in data.descents])
    peak = int(smooth[:, :-1].mean(axis=0).argmax())  # one time for all seeds
    fall = smooth[:, peak] - smooth[:, -1]
    return Row(
        "Later, when much is learned, units slowly drift back to the non-linear regime",
        "M Fig. 3C",
        f"always-on fraction of descent, averaged over a unit of time: where its mean over seeds "
        f"is largest (t = {ts[peak]:.3g}) {interval(smooth[:, peak])}, at t = {ts[-1]:g} "
        f"{interval(smooth[:, -1])}, a fall of {interval(fall)}; of the flow from its largest to "
        f"the last: open {interval(falls['open'])}, closed {interval(falls['closed'])}",
        verdict(both(more(fall), more(falls["open"]))),
    )


def _dead_row(data: Data, flow: dict[str, Any]) -> Row:
    theory = 1 / (task_of("tree").samples + 1)
    dead = [np.all(f.events.gates(0.0) < 0, axis=0) for f in data.relu]
    last = [np.all(f.events.gates(np.inf) < 0, axis=0) for f in data.relu]
    stay = [bool(np.all(b[a])) for a, b in zip(dead, last, strict=True)]
    return Row(
        "Dead units, off for all samples at the start, stay inactive",
        "M Sec. 5, Fig. 10 right; erratum B.9",
        f"all of them stay off in {share(stay)}; off at the start "
        f"{interval(flow['open off start'])}, always on {interval(flow['open start'])}, expected "
        f"both 1/(P+1) = {theory:.3f}; others die later: off at the end "
        f"{interval(flow['open off end'])}",
        verdict(all(stay)),
    )


def _time_row(flow: dict[str, Any], descent: dict[str, Any]) -> Row:
    number = len(descent["open t*"])
    off = {name: descent["open t*"] - flow[f"{name} t*"][:number] for name in ("open", "closed")}
    differ = both(*(usual(np.abs(v) > 0.1 * descent["open t*"]) for v in off.values()))
    held = "descent's t* is neither the flow's open nor its closed one"
    return Row(
        "t* is read off a discrete run",
        "M Sec. 5.4, erratum B.13",
        f"t* of descent {interval(descent['open t*'])}, of the same seeds' flow open "
        f"{interval(flow['open t*'][:number])}, closed {interval(flow['closed t*'][:number])}; "
        f"seed 0: {descent['open t*'][0]:.4g} (fraction {descent['open fraction'][0]:.3f}), "
        f"{flow['open t*'][0]:.4g} ({flow['open fraction'][0]:.3f}), "
        f"{flow['closed t*'][0]:.4g} ({flow['closed fraction'][0]:.3f})",
        f"control: {held}" if differ else "undecided",
    )


def _output_row(data: Data) -> Row:
    ts = data.size.setting.ts
    found, texts = {}, []
    for key, flows in ((("relu", 1.0), data.relu[: data.size.others]), *data.others.items()):
        curves = np.array([off_mean(flow) for flow in flows])
        found[key] = curves.min(axis=1)
        name = f"{'ReLU' if key[0] == 'relu' else 'linear'}{'' if key[1] else ' without bias'}"
        when = ts[curves.argmin(axis=1)].mean()
        texts.append(f"{name} {interval(found[key])} at t = {when:.3g}")
    good = [same(found[kind, 1.0], MAPS, 2) for kind in ("relu", "linear")]
    bare = [more(found[kind, 0.0], found[kind, 1.0], 2) for kind in ("relu", "linear")]
    return Row(
        "Early network functions equal the average output ybar for all inputs, in both kinds",
        "M Fig. 3D, Sec. 5.2",
        f"least distance of the outputs from ybar over |ybar| ({MAPS}): {'; '.join(texts)}",
        verdict(both(*good, *bare)),
    )


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
    ax.legend(fontsize="x-small", ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16),
              frameon=False)  # fmt: skip


STUDY = Study("m_fig3", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
