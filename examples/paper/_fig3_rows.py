"""The verdicts on M Fig. 3."""

from typing import Any

import numpy as np
from _judge import MAPS, SHARES, both, interval, more, same, share, usual, verdict
from _paper import Row, fl
from _tree import linearization, task_of

# How units at their kink count: the text leaves it open.
ON, OFF = "units at their kink count as on", "units at their kink count as off"
STEPS, AVERAGES = "the largest single step of descent counts", "averages over a unit of time count"


def off_mean(flow: fl.Trajectory) -> np.ndarray:
    """Distance of the outputs from the mean target, over its norm, root mean square, (T,)."""
    task = task_of("tree")
    outputs = np.asarray(fl.measures.along(flow, lambda n, t: n.outputs(t.x)))
    mean = np.asarray(task.y).mean(axis=0)
    return np.sqrt(np.mean(np.sum((outputs - mean) ** 2, -1), -1)) / np.linalg.norm(mean)


def biases(flow: fl.Trajectory) -> np.ndarray:
    """All biases over time, (T, H)."""
    return np.asarray(flow.networks.biases[0])


def judge(data: Any) -> list[Row]:
    """Panel by panel."""
    return [
        _norm_row(data),
        *_bias_rows(data),
        _most_row(data),
        _few_row(data),
        _drift_row(data),
        _dead_row(data),
        _time_row(data),
        _output_row(data),
    ]


def _norm_row(data: Any) -> Row:
    found, texts = [], []
    for name, lead in data.lead.items():
        start, end, gains, norms, outputs = lead.T
        found += [more(end, start, 2), *(more(ratio, 1, 2) for ratio in (gains, norms, outputs))]
        texts.append(
            f"{name}: half of the rise of |b| at {interval(start)}, of |W_1| at {interval(end)}; "
            f"until then |b| has gained {interval(gains)} times what |W_1| has and is "
            f"{interval(norms)} times as large, and the outputs of the biases alone are "
            f"{interval(outputs)} times what W_1 adds to them"
        )
    return Row(
        "In the beginning biases grow faster than weights and dominate the function, in ReLU and "
        "linear networks",
        "M Fig. 3A",
        f"{'; '.join(texts)}. Criterion: earlier, and all three ratios above 1",
        verdict(both(*found)),
        "In the beginning of training network biases grow faster than weights and dominate the "
        "network function.",
    )


def _bias_rows(data: Any) -> list[Row]:
    ts = data.size.setting.ts
    below = {}
    for name, flows in (("ReLU", data.relu), ("linear", data.others["linear", 1.0])):
        paths = np.stack([biases(flow) for flow in flows])  # (seeds, T, H)
        scale = np.abs(paths).max(axis=(1, 2))[:, None, None]
        below[name] = np.max(np.mean(paths < -0.05 * scale, axis=2), axis=1)
    paths = np.stack([biases(flow) for flow in data.relu])
    speed = np.abs(np.diff(paths, axis=1)).mean(axis=2) / np.diff(ts)
    peak = ts[speed.argmax(axis=1)]
    return [
        Row(
            "Biases are generally positive or around zero",
            "M Fig. 3B",
            f"share of the units with b_j below -5 % of the largest |b|, where it is largest in "
            f"time: {interval(below['ReLU'])} (none: {SHARES}); in linear networks "
            f"{interval(below['linear'])}",
            verdict(same(below["ReLU"], SHARES)),
            "Biases are generally positive or around zero",
        ),
        Row(
            "Biases grow fastest early in learning",
            "M Fig. 3B",
            f"mean |db/dt| is largest at t = {interval(peak)}; the second singular value is half "
            f"learned at {interval(data.second)}. Criterion: before that, in most seeds and on "
            "average",
            verdict(both(usual(peak < data.second), more(data.second, peak))),
            "grow fastest early in learning",
        ),
    ]


def _most_row(data: Any) -> Row:
    flow, descent, ts = data.flow, data.descent, data.curves[0]
    second = data.second[: len(data.descents)]
    smooth = data.curves[1][AVERAGES]
    averages = np.max(smooth, axis=1, where=ts < second[:, None], initial=0)
    held = [np.mean(np.asarray(linearization(one).activity(np.linspace(0, end, 2001)).always_on)
                    > 0.5) for one, end in zip(data.descents, second, strict=True)]  # fmt: skip
    by_reading = {
        ON: flow["closed majority"] < data.second,
        STEPS: descent["open majority"] < second,
        AVERAGES: averages > 0.5,
        OFF: flow["open majority"] < data.second,
    }
    largest = {
        ON: (flow["closed fraction"], flow["closed t*"]),
        STEPS: (descent["open fraction"], descent["open t*"]),
        AVERAGES: (smooth.max(axis=1), ts[smooth.argmax(axis=1)]),
        OFF: (flow["open fraction"], flow["open t*"]),
    }
    text = "; ".join(
        f"if {words}, in {share(early)}, the largest fraction of the run being "
        f"{interval(largest[words][0])} at t = {interval(largest[words][1])}"
        for words, early in by_reading.items()
    )
    first = descent["open majority"]
    left = np.interp(np.median(first), data.size.setting.ts, data.left)
    number = len(by_reading)
    return Row(
        "Early in training most units are driven to be always active",
        "M Fig. 3C, Sec. 5, Sec. 5.3",
        f"more than half of the units on for all samples before the second singular value is half "
        f"learned (t = {data.second.mean():.3g}): {text}. In descent at "
        f"{data.size.learning_rate:g} it is so in {interval(held)} of the steps before then, for "
        f"the first time at t = {np.median(first):.3g} (median, {left:.0%} of the loss left); at "
        f"the start {interval(descent['open start'])} are on. Criterion: in most seeds, {number} "
        "comparisons",
        verdict({words: usual(early, of=number) for words, early in by_reading.items()}),
        "We can see that early in training most units are driven to be always active.",
    )


def _few_row(data: Any) -> Row:
    rest = {
        ON: 1 - data.flow["closed fraction"],
        STEPS: 1 - data.descent["open fraction"],
        OFF: 1 - data.flow["open fraction"],
    }
    dead = data.flow["open off end"] - data.flow["open off start"]
    found = {words: same(values, SHARES, len(rest)) for words, values in rest.items()}
    part = ("the subset that becomes dead is small", same(dead, SHARES))
    text = "; ".join(f"if {words}, {interval(values)}" for words, values in rest.items())
    return Row(
        "Only a small subset of the units becomes dead or stays non-linear",
        "M Sec. 5.3",
        f"share of units that are not on for all samples when most are (t*): {text}. Units that "
        f"become dead later than at the start: {interval(dead)} at the end, with those that were "
        f"dead at the start {interval(data.flow['open off end'])}. Criterion, small: {SHARES}",
        verdict(found, part),
        "Apart from a small subset of neurons that become dead neurons ... or stay in the "
        "nonlinear regime, the majority of neurons therefore rapidly enter a linear regime",
    )


def _drift_row(data: Any) -> Row:
    ts, curves = data.curves
    left = np.interp(ts, data.size.setting.ts, data.left)
    found, texts = {}, []
    for words, curve in curves.items():
        top = int(curve.mean(axis=0)[:-1].argmax())  # one time for all seeds
        late = max(top, int(np.argmax(left < 0.5)))
        fall = curve[:, late] - curve[:, -1]
        rise = (curve[:, top] - curve[:, 0]) / ts[top]
        slow = more(rise, fall / (ts[-1] - ts[late]), len(curves))
        found[words] = both(more(fall, 0, len(curves)), slow)
        texts.append(
            f"if {words}, {interval(curve[:, top])} at t = {ts[top]:.3g}, where their mean is "
            f"largest ({left[top]:.0%} of the loss left), {interval(curve[:, late])} at t = "
            f"{ts[late]:.3g} and {interval(curve[:, -1])} at {ts[-1]:g}, a fall of "
            f"{interval(fall)}"
        )
    return Row(
        "Later, when much is learned, units slowly drift back to the non-linear regime",
        "M Fig. 3C",
        f"always-on fraction: {'; '.join(texts)}. Criterion: from the largest on, or from where "
        f"half of the loss is gone, it falls to the end, at a lower mean rate than it rose",
        verdict(found),
        "With further training, when much variance is already learned, neurons slowly drift back "
        "towards the non-linear regime.",
    )


def _dead_row(data: Any) -> Row:
    theory, flow = 1 / (task_of("tree").samples + 1), data.flow
    dead = [np.all(f.events.sides(0.0) < 0, axis=0) for f in data.relu]
    last = [np.all(f.events.sides(np.inf) < 0, axis=0) for f in data.relu]
    stay = [bool(np.all(b[a])) for a, b in zip(dead, last, strict=True)]
    return Row(
        "Dead units, off for all samples at the start, stay inactive",
        "M Sec. 5; erratum E9",
        f"all of them stay off in {share(stay)}; off at the start "
        f"{interval(flow['open off start'])}, always on {interval(flow['open start'])}, expected "
        f"both 1/(P+1) = {theory:.3f}; others die later: off at the end "
        f"{interval(flow['open off end'])}. Criterion: in all seeds",
        verdict(all(stay)),
        "Dead neurons are the neurons which are gated-off by the ReLU activation for all data "
        "points at initialisation and consequently will remain inactive for the duration of "
        "training",
    )


def _time_row(data: Any) -> Row:
    flow, descent = data.flow, data.descent
    number, words = len(descent["open t*"]), "the flow's {} one"
    near = {
        name: usual(
            np.abs(descent["open t*"] - flow[f"{name} t*"][:number]) <= 0.1 * descent["open t*"],
            of=2,
        )
        for name in ("open", "closed")
    }
    which = " and its ".join(name for name, found in near.items() if found)
    none = "neither the open nor the closed one of the flow"
    found = words.format(which) if which else "undecided" if None in near.values() else none
    return Row(
        "Whether t* of descent is the flow's",
        "beside M Sec. 5.4; erratum E13",
        f"t* of descent {interval(descent['open t*'])}, of the same seeds' flow open "
        f"{interval(flow['open t*'][:number])}, closed {interval(flow['closed t*'][:number])}; "
        f"seed 0: {descent['open t*'][0]:.4g} (fraction {descent['open fraction'][0]:.3f}), "
        f"{flow['open t*'][0]:.4g} ({flow['open fraction'][0]:.3f}), "
        f"{flow['closed t*'][0]:.4g} ({flow['closed fraction'][0]:.3f}). Criterion: within a tenth "
        "in most seeds",
        f"measured: {found}",
        kind="control",
    )


def _output_row(data: Any) -> Row:
    ts = data.size.setting.ts
    early = ts < data.second.mean()
    found, texts = {}, []
    for key, flows in ((("relu", 1.0), data.relu[: data.size.others]), *data.others.items()):
        curves = np.array([off_mean(flow) for flow in flows])[:, early]
        found[key] = curves.min(axis=1)
        name = f"{'ReLU' if key[0] == 'relu' else 'linear'}{'' if key[1] else ' without bias'}"
        when = ts[curves.argmin(axis=1)].mean()
        texts.append(f"{name} {interval(found[key])} at t = {when:.3g}")
    good = [same(found[kind, 1.0], MAPS, 2) for kind in ("relu", "linear")]
    bare = [more(found[kind, 0.0], found[kind, 1.0], 2) for kind in ("relu", "linear")]
    return Row(
        "Early network functions equal the average output ybar for all inputs, in both kinds",
        "M Fig. 3D, Sec. 5.2",
        f"least distance of the outputs from ybar over |ybar|, root mean square over inputs, "
        f"before the second singular value is half learned ({MAPS}): {'; '.join(texts)}. "
        "Criterion: none with bias, and less than without",
        verdict(both(*good, *bare)),
        "The bias-driven network functions of linear and ReLU networks in early training are "
        "equivalent to average output statistics",
    )
