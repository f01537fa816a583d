"""Verdicts on the claims about effective weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
from _effective import Geometry
from _judge import half_width, interval, sign
from _paper import Row

SPACES = ("logits", "backbone")
MIXED = (4, 7, 9)


def over(runs: list[Any], space: str, k: int, number: Callable[[Geometry], Any]) -> np.ndarray:
    """A number of the k-th saved network of every seed."""
    return np.array([number(run[space][k]) for run in runs])


def ratio(g: Geometry) -> float:
    """Distance within classes over that between."""
    return g.within / g.between


def near(g: Geometry) -> np.ndarray:
    """Share of a sample's neighbours that are of its own class, by class (10,)."""
    return g.neighbours.diagonal()


def mixing(g: Geometry) -> float:
    """Share of the neighbours of a 4, 7 or 9 that are another of these."""
    others = [g.neighbours[a, b] for a in MIXED for b in MIXED if a != b]
    return float(np.sum(others) / len(MIXED))


def rows(data: Any) -> list[Row]:
    """All of them."""
    return [
        *_exact_rows(data),
        *[row for space in SPACES for row in _class_rows(data, space)],
        *[_pattern_row(data, space) for space in SPACES],
        _unmixing_row(data),
        *_one_rows(data),
        _gates_row(data),
        _flow_row(data),
    ]


def _exact_rows(data: Any) -> list[Row]:
    def text(kind: str) -> str:
        errors, offsets = np.array(data.exact[kind]).T
        return f"{kind} {errors.max():.1e} (|b_eff| / |f| {offsets.mean():.2g})"

    def exact(*kinds: str) -> bool:
        return max(error for kind in kinds for error, _ in data.exact[kind]) < 1e-12

    bent = ", ".join(f"{kind} {interval(values, 2)}" for kind, values in data.bent.items())
    words = "largest error in shares of the largest output, trained networks, 100 test images: "
    return [
        Row(
            "Without biases f(x) = W_eff(x) x, with them f(x) = W_eff(x) x + b_eff(x)",
            "L Eqs. 3-4, Sec. 6",
            f"{words}{text('no bias')}, {text('bias')}; the gate that Eq. 4 puts on the "
            "output is left out, erratum B.18",
            "holds under a condition: without a gate on the output"
            if exact("no bias", "bias") else "does not hold",
        ),
        Row(
            "Residual connections allow for effective weights, by an added identity",
            "L Sec. 6",
            f"{words}{text('residual ReLU')}",
            "holds" if exact("residual ReLU") else "does not hold",
        ),
        Row(
            "Norms and smooth activations allow for no exact effective weight; the Jacobian "
            "approximates",
            "L Sec. 6",
            f"{words}{text('GELU')}, {text('ReLU and norm')}: the Jacobian's map is exact at the "
            "sample itself, with an offset although there is no bias. A tenth of |x| away it is "
            f"off, in shares of the change of f, by {bent}",
            "holds under a condition: W_eff x alone; with b_eff it is exact at the sample"
            if exact("GELU", "ReLU and norm") else "holds",
        ),
    ]  # fmt: skip


def _class_rows(data: Any, space: str) -> list[Row]:
    """Convergence, divergence, and whether it is by class."""
    runs, wrong = data.runs["no bias"], data.runs["shuffled labels"]

    def change(name: str, relative: bool) -> tuple[str, np.ndarray]:
        ends = [
            over(runs, space, k, lambda g: getattr(g, name) / (g.norm if relative else 1))
            for k in (0, -1)
        ]
        return f"{interval(ends[0])} to {interval(ends[1])}", ends[1] - ends[0]

    def row(claim: str, name: str, wanted: int) -> Row:
        (plain, grows), (scaled, by_norm) = change(name, False), change(name, True)
        return Row(
            f"{claim} ({space})",
            "L Sec. 1, 4.1",
            f"mean distance of W_eff {name} classes over its norm, start to end of training: "
            f"{scaled}; not divided by the norm {plain}",
            "holds" if sign(grows) == wanted == sign(by_norm)
            else "holds under a condition: relative to the norm of W_eff"
            if sign(by_norm) == wanted
            else "holds under a condition: as W_eff grows, not relative to its norm"
            if sign(grows) == wanted
            else "does not hold",
        )  # fmt: skip

    first, last = (over(runs, space, k, ratio) for k in (0, -1))
    other = over(wrong, space, -1, ratio)
    biased = [over(data.runs["bias"], space, k, ratio) for k in (0, -1)]
    controls = [over(runs, what, -1, ratio) for what in ("activations", "inputs")]
    falls = sign(last - first) < 0
    by_class = last.mean() + half_width(last) < other.mean() - half_width(other)
    return [
        row("Effective weights of one class converge", "within", -1),
        row("Effective weights of different classes diverge", "between", 1),
        Row(
            f"Training organises effective weights by class ({space})",
            "L Sec. 4.1",
            f"distance within over between classes, start {interval(first)}, end {interval(last)}, "
            f"trained on shuffled labels {interval(other)}; with biases {interval(biased[0])} to "
            f"{interval(biased[1])}; for comparison at the end: activations of the last hidden "
            f"layer {interval(controls[0])}, raw inputs {controls[1].mean():.3g}; test error "
            f"{interval(data.errors['no bias'][:, -1])}",
            "holds" if falls and by_class
            else "holds under a condition: not told apart from shuffled labels by these seeds"
            if falls
            else "does not hold",
        ),
    ]  # fmt: skip


def _pattern_row(data: Any, space: str) -> Row:
    """0 and 6 apart, 4, 7 and 9 mixed before training."""
    found = over(data.runs["no bias"], space, 0, near)
    inputs = data.runs["no bias"][0]["inputs"][0]
    raw = [near(inputs)[list(some)].mean() for some in ((0, 6), MIXED, (1, 2, 3, 5, 8))]
    easy, hard = found[:, [0, 6]].mean(axis=1), found[:, list(MIXED)].mean(axis=1)
    rest = found[:, [1, 2, 3, 5, 8]].mean(axis=1)
    together = over(data.runs["no bias"], space, 0, mixing)
    apart, mixed = sign(easy - rest) > 0, sign(rest - hard) > 0
    return Row(
        f"Before training 0 and 6 are apart, 4, 7 and 9 intermingle ({space})",
        "L Sec. 4.1",
        f"share of the ten nearest that are of the same class, at the start: 0 and 6 "
        f"{interval(easy)}, 4, 7, 9 {interval(hard)}, the others {interval(rest)}; neighbours of "
        f"4, 7, 9 that are another of the three {interval(together)}; of raw inputs "
        f"{raw[0]:.3g}, {raw[1]:.3g}, {raw[2]:.3g}, {mixing(inputs):.3g}",
        "holds" if apart and mixed
        else "holds under a condition: 0 and 6 alone" if apart
        else "holds under a condition: 4, 7 and 9 alone" if mixed
        else "does not hold",
    )  # fmt: skip


def _unmixing_row(data: Any) -> Row:
    runs = data.runs["no bias"]
    parts, verdicts = [], []
    for space in SPACES:
        first, last = (over(runs, space, k, mixing) for k in (0, -1))
        own = over(runs, space, -1, near)
        three = own[:, list(MIXED)].mean(axis=1)
        others = own[:, [0, 1, 2, 3, 5, 6, 8]].mean(axis=1)
        parts.append(
            f"{space} {interval(first)} to {interval(last)} (own class {interval(three)}, of the "
            f"other digits {interval(others)})"
        )
        verdicts.append(sign(last - first) < 0 and three.mean() > 0.5)
    return Row(
        "After training 4, 7 and 9 are largely separable",
        "L Sec. 4.1",
        "share of the ten nearest of a 4, 7 or 9 that are another of the three, start to end: "
        + "; ".join(parts),
        "holds" if all(verdicts)
        else "holds under a condition: logits" if verdicts[0]
        else "does not hold",
    )  # fmt: skip


def _one_rows(data: Any) -> list[Row]:
    """Sub-clusters of the class 1: before, after, and what they are."""
    slant, foot = data.slant, data.foot

    def clusters(which: int) -> tuple[str, float]:
        splits = [pair[which] for pair in data.ones]
        found = np.array([s.silhouette for s in splits])
        null = np.array([s.null.max() for s in splits])
        middle = np.array([s.null.mean() for s in splits])
        beyond = np.mean(found > null)
        text = (
            f"silhouette of two clusters {interval(found)}, of normal samples with the same "
            f"covariance {interval(middle)}, more than all {data.size.draws} of them in "
            f"{beyond:.0%} of the seeds"
        )
        return text, float(beyond)

    def relation(which: int, of: np.ndarray) -> np.ndarray:
        return np.array([abs(np.corrcoef(pair[which].labels, of)[0, 1]) for pair in data.ones])

    raw = f"raw inputs {data.raw.silhouette:.3g} (normal {data.raw.null.mean():.3g})"
    kept = np.array([abs(np.corrcoef(a.labels, b.labels)[0, 1]) for a, b in data.ones])
    (before, there), (after, still) = clusters(0), clusters(1)
    angle, bar = relation(0, slant), relation(0, foot)
    return [
        Row(
            "Before training the class 1 is broken into distinct sub-clusters",
            "L Sec. 4.1",
            f"backbone maps of {len(slant)} ones: {before}; {raw}",
            "holds" if there > 0.9
            else f"holds under a condition: in {there:.0%} of the networks" if there >= 0.5
            else "does not hold",
        ),
        Row(
            "The sub-clusters of 1 persist after training",
            "L Sec. 4.2",
            f"{after}; correlation of the two splits, before and after {interval(kept)}",
            "holds" if still > 0.9 and kept.mean() > 0.5
            else "holds under a condition: others than before" if still > 0.9
            else "does not hold",
        ),
        Row(
            "They are two styles, a vertical stroke and a flat bottom bar",
            "L Sec. 4.1",
            f"correlation of the split before training with the slant {interval(angle)}, with the "
            f"width of the foot over that of the stem {interval(bar)}",
            "holds" if sign(bar - angle) > 0 else "does not hold",
        ),
    ]  # fmt: skip


def _gates_row(data: Any) -> Row:
    runs = data.runs["no bias"]
    first, last = (over(runs, "backbone", k, ratio) for k in (0, -1))
    gates, weights = (np.array([ratio(m[k]) for m in data.mixed]) for k in ("gates", "weights"))
    return Row(
        "What is learned is which gates open: class-specific linear operators",
        "L Sec. 5",
        f"backbone, distance within over between classes: start {interval(first)}, end "
        f"{interval(last)}; gates of the end with weights of the start {interval(gates)}, weights "
        f"of the end with gates of the start {interval(weights)}",
        "holds" if sign(gates - first) < 0 and sign(weights - gates) > 0
        else "holds under a condition: together with the weights"
        if sign(gates - first) < 0 or sign(weights - last) > 0
        else "does not hold",
    )  # fmt: skip


def _flow_row(data: Any) -> Row:
    parts, falls = [], []
    for space in SPACES:
        first, last = (over(data.flows, space, k, ratio) for k in (0, -1))
        parts.append(f"{space} {interval(first)} to {interval(last)}")
        falls.append(sign(last - first) < 0)
    size = data.size
    return Row(
        "The same along gradient flow",
        "L Sec. 4.1",
        f"distance within over between classes, {size.flow_samples} training images, three layers "
        f"of {size.flow_hidden} units, flow time {size.flow_time:g}, {np.mean(data.switches):.0f} "
        f"switches of gates per run, training error {interval(data.flow_errors)} at the end: "
        f"{'; '.join(parts)}",
        "holds" if all(falls)
        else "holds under a condition: logits" if falls[0]
        else "does not hold",
    )  # fmt: skip
