"""Verdicts on the claims about effective weights.

L takes the maps "from the MLP backbone" (Sec. 3.2), whose rows decide; those to the logits stand
beside.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from _effective import Geometry
from _judge import both, interval, more, share, usual, verdict
from _paper import Row

SPACES = ("logits", "backbone")
MIXED = (4, 7, 9)
WORDS = {True: "yes", False: "no", None: "undecided"}


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
        *_class_rows(data),
        _pattern_row(data),
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
            verdict(exact("no bias", "bias")),
        ),
        Row(
            "Residual connections allow for effective weights, by an added identity",
            "L Sec. 6",
            f"{words}{text('residual ReLU')}",
            verdict(exact("residual ReLU")),
        ),
        Row(
            "Norms and smooth activations allow for no exact effective weight; the Jacobian "
            "approximates",
            "L Sec. 6",
            f"{words}{text('GELU')}, {text('ReLU and norm')}: the Jacobian's map is exact at the "
            "sample itself, with an offset although there is no bias. A tenth of |x| away it is "
            f"off, in shares of the change of f, by {bent}",
            verdict(not exact("GELU", "ReLU and norm"),
                    ("W_eff x alone; with b_eff it is exact at the sample", True)),
        ),
    ]  # fmt: skip


def _class_rows(data: Any) -> list[Row]:
    """Convergence, divergence, and whether it is by class."""
    runs, wrong = data.runs["no bias"], data.runs["shuffled labels"]

    def ends(space: str, name: str, relative: bool) -> list[np.ndarray]:
        return [
            over(runs, space, k, lambda g: getattr(g, name) / (g.norm if relative else 1))
            for k in (0, -1)
        ]

    def row(claim: str, name: str, wanted: int) -> Row:
        texts = []
        for space in SPACES:
            scaled, plain = (
                " to ".join(interval(v) for v in ends(space, name, relative))
                for relative in (True, False)
            )
            texts.append(f"{space} {scaled}, not divided by the norm {plain}")
        scaled, plain = (
            more(wanted * (last - first), of=2)
            for first, last in (ends("backbone", name, relative) for relative in (True, False))
        )
        return Row(
            claim,
            "L Sec. 1, 4.1",
            f"mean distance of W_eff {name} classes over its norm, start to end of training: "
            f"{'; '.join(texts)}; criterion: backbone, with the norm and without, paired",
            verdict(both(scaled, plain), ("relative to the norm of W_eff", scaled),
                    ("as W_eff grows, not relative to its norm", plain)),
        )  # fmt: skip

    texts = []
    for space in SPACES:
        first, last = (over(runs, space, k, ratio) for k in (0, -1))
        other = over(wrong, space, -1, ratio)
        biased = [over(data.runs["bias"], space, k, ratio) for k in (0, -1)]
        texts.append(
            f"{space} start {interval(first)}, end {interval(last)}, trained on shuffled labels "
            f"{interval(other)}, with biases {interval(biased[0])} to {interval(biased[1])}"
        )
    controls = [over(runs, what, -1, ratio) for what in ("activations", "inputs")]
    # `SPACES` ends with the backbone, whose numbers these are.
    falls, by_class = more(first, last, 2), more(other, last[: len(other)], 2)
    return [
        row("Effective weights of one class converge", "within", -1),
        row("Effective weights of different classes diverge", "between", 1),
        Row(
            "Training organises effective weights by class",
            "L Sec. 4.1",
            f"distance within over between classes, {'; '.join(texts)}; for comparison at the end: "
            f"activations of the last hidden layer {interval(controls[0])}, raw inputs "
            f"{controls[1].mean():.3g}; test error {interval(data.errors['no bias'][:, -1])}; "
            "criterion: backbone, falls, and to less than with shuffled labels, paired",
            verdict(both(falls, by_class),
                    ("not told apart from shuffled labels by these seeds", falls)),
        ),
    ]  # fmt: skip


def _pattern_row(data: Any) -> Row:
    """0 and 6 apart, 4, 7 and 9 mixed before training."""
    inputs, rest_of, texts = data.runs["no bias"][0]["inputs"][0], (1, 2, 3, 5, 8), []
    raw = [near(inputs)[list(some)].mean() for some in ((0, 6), MIXED, rest_of)]
    for space in SPACES:
        found = over(data.runs["no bias"], space, 0, near)
        easy, hard, rest = (found[:, list(k)].mean(axis=1) for k in ((0, 6), MIXED, rest_of))
        together = over(data.runs["no bias"], space, 0, mixing)
        texts.append(
            f"{space}: 0 and 6 {interval(easy)}, 4, 7, 9 {interval(hard)}, the others "
            f"{interval(rest)}, neighbours of 4, 7, 9 that are another of the three "
            f"{interval(together)}"
        )
    apart, mixed = more(easy, rest, 2), more(rest, hard, 2)
    return Row(
        "Before training 0 and 6 are apart, 4, 7 and 9 intermingle",
        "L Sec. 4.1",
        f"share of the ten nearest that are of the same class, at the start, {'; '.join(texts)}; "
        f"of raw inputs {raw[0]:.3g}, {raw[1]:.3g}, {raw[2]:.3g}, {mixing(inputs):.3g}; criterion: "
        "backbone, 0 and 6 more than the others, 4, 7, 9 less, paired",
        verdict(both(apart, mixed), ("0 and 6 alone", apart), ("4, 7 and 9 alone", mixed)),
    )


def _unmixing_row(data: Any) -> Row:
    runs, parts, found = data.runs["no bias"], [], []
    for space in SPACES:
        first, last = (over(runs, space, k, mixing) for k in (0, -1))
        own = over(runs, space, -1, near)
        three = own[:, list(MIXED)].mean(axis=1)
        others = own[:, [0, 1, 2, 3, 5, 6, 8]].mean(axis=1)
        parts.append(
            f"{space} {interval(first)} to {interval(last)} (own class {interval(three)}, of the "
            f"other digits {interval(others)})"
        )
        found.append(both(more(first, last, 2), more(three, 0.5, 2)))
    return Row(
        "After training 4, 7 and 9 are largely separable",
        "L Sec. 4.1",
        "share of the ten nearest of a 4, 7 or 9 that are another of the three, start to end: "
        + "; ".join(parts)
        + "; criterion: backbone, falls, and most are of the own class",
        verdict(found[SPACES.index("backbone")]),
    )


def _one_rows(data: Any) -> list[Row]:
    """Sub-clusters of the class 1: before, after, and what they are."""
    slant, foot = data.slant, data.foot

    def clusters(which: int) -> tuple[str, bool | None]:
        splits = [pair[which] for pair in data.ones]
        found = np.array([s.silhouette for s in splits])
        null = np.array([s.null.max() for s in splits])
        middle = np.array([s.null.mean() for s in splits])
        beyond = found > null
        text = (
            f"silhouette of two clusters {interval(found)}, of normal samples with the same "
            f"covariance {interval(middle)}, more than all {data.size.draws} of them in "
            f"{share(beyond)} seeds; criterion: in most"
        )
        return text, usual(beyond)

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
            verdict(there),
        ),
        Row(
            "The sub-clusters of 1 persist after training",
            "L Sec. 4.2",
            f"{after}; correlation of the two splits, before and after {interval(kept)}, above .5",
            verdict(both(still, more(kept, 0.5)), ("others than before", still)),
        ),
        Row(
            "They are two styles, a vertical stroke and a flat bottom bar (said to be plausible)",
            "L Sec. 4.1",
            f"correlation of the split before training with the slant {interval(angle)}, with the "
            f"width of the foot over that of the stem {interval(bar)}; criterion: more with the "
            "latter, paired",
            verdict(more(bar, angle)),
        ),
    ]  # fmt: skip


def _gates_row(data: Any) -> Row:
    runs = data.runs["no bias"]
    first, last = (over(runs, "backbone", k, ratio) for k in (0, -1))
    gates, weights = (np.array([ratio(m[k]) for m in data.mixed]) for k in ("gates", "weights"))
    start = first[: len(gates)]
    return Row(
        "What is learned is which gates open: class-specific linear operators",
        "L Sec. 5",
        f"backbone, distance within over between classes: start {interval(first)}, end "
        f"{interval(last)}; gates of the end with weights of the start {interval(gates)}, weights "
        f"of the end with gates of the start {interval(weights)}; criterion: gates alone lower "
        "than the start, and than weights alone, paired",
        verdict(both(more(start, gates, 2), more(weights, gates, 2)),
                ("together with the weights", more(start, gates, 2))),
    )  # fmt: skip


def _flow_row(data: Any) -> Row:
    parts, falls = [], []
    for space in SPACES:
        first, last = (over(data.flows, space, k, ratio) for k in (0, -1))
        parts.append(f"{space} {interval(first)} to {interval(last)}")
        falls.append(more(first, last, 2))
    size = data.size
    return Row(
        "Whether gradient flow organises effective weights by class",
        "L Sec. 4.1",
        f"distance within over between classes, {size.flow_samples} training images, three layers "
        f"of {size.flow_hidden} units, flow time {size.flow_time:g}, {np.mean(data.switches):.0f} "
        f"switches of gates per run, training error {interval(data.flow_errors)} at the end: "
        f"{'; '.join(parts)}",
        "control: " + ", ".join(f"{n} {WORDS[f]}" for n, f in zip(SPACES, falls, strict=True)),
    )  # fmt: skip
