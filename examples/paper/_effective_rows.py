"""Verdicts on the claims about effective weights.

L takes the maps "from the MLP backbone" (Sec. 3.2), whose rows decide; those to the logits stand
beside.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from _effective import Geometry, Split
from _judge import MAPS, SHARES, both, interval, more, same, share, usual, verdict
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

    def exact(errors: Any) -> bool:
        return bool(np.max(errors) < 1e-12)

    def tangent(kind: str) -> bool:
        """Whether the Jacobian alone is a map without an offset."""
        return exact([offset for _, offset in data.exact[kind]])

    bent = {kind: interval(values, 2) for kind, values in data.bent.items()}
    products = {kind: f"{np.max(values):.1e}" for kind, values in data.products.items()}
    near = same(data.bent["GELU"], MAPS)
    words = "largest error in shares of the largest output, trained networks, 100 test images: "
    product = "M(x) x, M the product of weights and of what"
    return [
        Row(
            "With biases the network is f(x) = W_eff(x) x + b_eff(x)",
            "L Sec. 6",
            f"{words}{text('bias')}, for comparison {text('no bias')}; the gate that Eq. 4 puts on "
            "the output is left out, erratum E18",
            verdict(exact([error for error, _ in data.exact["bias"]])),
            "Extending the framework to include bias terms is a direct next step, which would "
            "transform our equivalent linear model into a more general affine one: f(x) = "
            "W_eff(x)x + b_eff(x).",
        ),
        Row(
            "Residual connections allow for effective weights, by an added identity",
            "L Sec. 6",
            f"{words}{text('residual ReLU')}, {product} the gates multiply by and the identity "
            f"{products['residual ReLU']}",
            verdict(exact(data.products["residual ReLU"])),
            "incorporating residual connections, which can be viewed as adding an identity matrix "
            "to a block’s effective weight—would allow our method to analyze how networks like "
            "ResNets learn",
        ),
        Row(
            "Norms allow for no exact effective weight",
            "L Sec. 6",
            f"{words}{product} the gates multiply by, the mean taken away and the deviation of the "
            f"sample divided by {products['ReLU and norm']}; the Jacobian's map "
            f"{text('ReLU and norm')}, which needs an offset although there is no bias",
            verdict(
                not exact(data.products["ReLU and norm"]),
                ("the Jacobian's map needs an offset, other than with ReLU",
                 not tangent("ReLU and norm")),
            ),
            "Their output for a single neuron depends on the statistics of a larger set of values, "
            "breaking the simple algebraic structure required for an exact effective weight "
            "calculation.",
        ),
        Row(
            "For smooth activations there may be no exact effective weight, but the Jacobian's as "
            "a local approximation",
            "L Sec. 6",
            f"{words}{product} the activations multiply by, GELU(z) / z, {products['GELU']}; the "
            f"Jacobian's map {text('GELU')}; a tenth of |x| away it is off, in shares of the "
            f"change of f, by {bent['GELU']} (plain ReLU {bent['plain ReLU']}, residual "
            f"{bent['residual ReLU']}, norm {bent['ReLU and norm']}); criterion for the latter: "
            f"{MAPS}",
            verdict(both(not exact(data.products["GELU"]), near),
                    ("the Jacobian's map is a local approximation; there is an exact one besides",
                     near)),
            "While it may not be possible to derive an exact effective weight for these smooth, "
            "non-linear functions, it might be feasible to compute a local linear approximation, "
            "such as by using the Jacobian",
        ),
    ]  # fmt: skip


METRICS = {"distances relative to the norm of W_eff": True, "distances as they are": False}


def _class_rows(data: Any) -> list[Row]:
    """Convergence, divergence, both, and whether it is by class."""
    runs = data.runs["no bias"]

    def ends(space: str, name: str, relative: bool) -> list[np.ndarray]:
        return [
            over(runs, space, k, lambda g: getattr(g, name) / (g.norm if relative else 1))
            for k in (0, -1)
        ]

    def text(name: str) -> str:
        parts = []
        for space in SPACES:
            scaled, plain = (
                " to ".join(interval(v) for v in ends(space, name, relative))
                for relative in (True, False)
            )
            parts.append(f"{space} {scaled}, not divided by the norm {plain}")
        return (
            f"mean distance of W_eff {name} classes over its norm, start to end of training: "
            + ("; ".join(parts))
        )

    def moved(name: str, wanted: int) -> dict[str, bool | None]:
        """By metric, in the backbone."""
        found = {}
        for words, relative in METRICS.items():
            first, last = ends("backbone", name, relative)
            found[words] = more(wanted * (last - first), of=2)
        return found

    converge, diverge = moved("within", -1), moved("between", 1)
    first, last = (over(runs, "backbone", k, ratio) for k in (0, -1))
    criterion = "criterion: backbone, paired; which distance is meant is not said"
    return [
        Row(
            "Effective weights of one class converge",
            "L Sec. 1, hypothesis 1",
            f"{text('within')}; {criterion}",
            verdict(converge),
            "For two samples, x_i and x_j, belonging to the same class, their corresponding "
            "effective weights, ... will become more similar as the network learns to generalize.",
        ),
        Row(
            "Effective weights of different classes diverge",
            "L Sec. 1, hypothesis 2",
            f"{text('between')}; {criterion}",
            verdict(diverge),
            "For samples belonging to different classes, their effective weights will diverge",
        ),
        Row(
            "Effective weights of one class converge while those of different classes diverge",
            "L Abstract",
            f"of the two rows before, both in one metric: within classes they come closer in terms "
            f"of {listed(converge)}, between classes they part in terms of {listed(diverge)}; "
            f"distance within over between classes {interval(first)} to {interval(last)}",
            verdict({k: both(converge[k], diverge[k]) for k in METRICS},
                    ("within classes they come closer relative to those of different classes",
                     more(first, last))),
            "the effective weights corresponding to samples from the same class converge, while "
            "those from different classes diverge.",
        ),
        _organised_row(data),
    ]  # fmt: skip


def listed(found: dict[str, bool | None]) -> str:
    """What holds, in words."""
    return " and ".join(words for words, holds in found.items() if holds) or "neither"


def _organised_row(data: Any) -> Row:
    runs, wrong, texts = data.runs["no bias"], data.runs["shuffled labels"], []
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
    return Row(
        "Training organises effective weights by class",
        "L Sec. 4.1",
        f"distance within over between classes, {'; '.join(texts)}; for comparison at the end: "
        f"activations of the last hidden layer {interval(controls[0])}, raw inputs "
        f"{controls[1].mean():.3g}; test error {interval(data.errors['no bias'][:, -1])}; "
        "criterion: backbone, falls, and to less than with shuffled labels, paired",
        verdict(both(falls, by_class),
                ("not told apart from shuffled labels by these seeds", falls)),
        "The primary transformation is the significant increase in inter-class separation and "
        "intra-class cohesion.",
    )  # fmt: skip


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
    apart, fewer = more(easy, rest, 2), more(rest, hard, 2)
    # Of the neighbours of another class, two in nine would be of the other two digits by chance.
    mutual = more(together, (1 - hard) * 2 / 9, 2)
    readings = {
        "intermingled: the rest of their neighbours are of the three beyond chance": mutual,
        "intermingled: less often than other digits among their own class": fewer,
    }
    return Row(
        "Before training 0 and 6 are apart, 4, 7 and 9 intermingle",
        "L Sec. 4.1",
        f"share of the ten nearest that are of the same class, at the start, {'; '.join(texts)}; "
        f"of raw inputs {raw[0]:.3g}, {raw[1]:.3g}, {raw[2]:.3g}, {mixing(inputs):.3g}; criterion: "
        "backbone, paired; 0 and 6 more than the others; 4, 7, 9 either less than the others, or "
        "next to each other more than by chance",
        verdict({words: both(apart, holds) for words, holds in readings.items()},
                ("0 and 6 alone", apart)),
        "Some visually distinct classes, such as '0' and '6', already show a degree of separation "
        "from other classes. Conversely, a large group of visually similar classes, most notably "
        "'4', '7', and '9', are heavily intermingled in a dense, central cloud.",
    )  # fmt: skip


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
        "For instance, the clusters for '4', '7', and '9' are now largely separable.",
    )


FLAT = 2.0  # a foot so many times as wide as the stem is a bar


def _clusters(splits: list[Split]) -> tuple[str, bool | None]:
    """Whether there are two clusters in most networks, beyond those of normal samples."""
    found = np.array([s.silhouette for s in splits])
    null = np.array([s.null.max() for s in splits])
    middle = np.array([s.null.mean() for s in splits])
    text = (
        f"silhouette of two clusters {interval(found)}, of normal samples with the same "
        f"covariance {interval(middle)}, more than all {len(splits[0].null)} of them in "
        f"{share(found > null)} seeds; criterion: in most"
    )
    return text, usual(found > null)


def _one_rows(data: Any) -> list[Row]:
    """Sub-clusters of the class 1: before, after, and what they are."""
    (before, there), (after, still) = (
        _clusters(data.untrained),
        _clusters([last for _, last in data.ones]),
    )
    kept = np.array([related(a.labels, b.labels) for a, b in data.ones])
    first, last = np.transpose(data.near)
    raw = f"raw inputs {data.raw.silhouette:.3g} (normal {data.raw.null.mean():.3g})"
    near = more(1, last, 2)
    return [
        Row(
            "Before training the class 1 is broken into distinct sub-clusters",
            "L Sec. 4.1",
            f"backbone maps of {len(data.slant)} ones: {before}; {raw}",
            verdict(there),
            "classes with high internal variance, such as the digit '1', are partitioned into "
            "distinct sub-clusters.",
        ),
        Row(
            "The sub-clusters of 1 persist after training",
            "L Sec. 4.2",
            f"{after}; correlation of the two splits, before and after {interval(kept)}, above .5",
            verdict(both(still, more(kept, 0.5)), ("others than before", still)),
            "their continued existence shows it has retained specialized handling for their visual "
            "differences.",
        ),
        Row(
            "After training the sub-clusters of 1 have come near each other",
            "L Sec. 4.2",
            "mean distance of the two clusters' backbone maps over that of ones from other digits, "
            f"start {interval(first)}, end {interval(last)}; criterion: less than 1, and less than "
            "at the start, paired",
            verdict(both(near, more(first, last, 2)), ("nearer than other digits", near)),
            "The final proximity of the sub-clusters shows that the network has learned their "
            "shared identity",
        ),
        _style_row(data, there),
    ]


def related(labels: np.ndarray, of: np.ndarray) -> float:
    """Correlation without its sign; 0 where nothing varies."""
    return abs(np.corrcoef(labels, of)[0, 1]) if np.ptp(of.astype(float)) > 0 else 0.0


def _style_row(data: Any, there: bool | None) -> Row:
    """What the sub-clusters are, if they are there."""
    labels = [s.labels for s in data.untrained]
    flat = data.foot >= FLAT
    angle, bar = (np.array([related(one, of) for one in labels]) for of in (data.slant, flat))
    small = np.array([min(one.mean(), 1 - one.mean()) for one in labels])
    told = both(more(bar, angle, 2), same(small - flat.mean(), SHARES, 2))
    return Row(
        "They are two styles, a vertical stroke and one with a flat bottom bar",
        "L Sec. 4.1, which says plausible",
        f"the smaller cluster has {interval(small)} of the ones, a foot at least {FLAT:g} times as "
        f"wide as the stem {flat.sum()} of {len(flat)}; correlation of the split before training "
        f"with that {interval(bar)}, with the slant {interval(angle)}; criterion: shares {SHARES}, "
        "and correlated more with the bar than with the slant, paired; undecided where the "
        "clusters themselves are",
        verdict(told if there else None),
        "A plausible source for this particular split can be found within the dataset itself: ... "
        "A primary distinction can be made between a simple vertical stroke, and another common "
        "variant that is distinguished by the presence of a flat bottom bar.",
    )


def _gates_row(data: Any) -> Row:
    runs = data.runs["no bias"]
    first, last = (over(runs, "backbone", k, ratio) for k in (0, -1))
    gates, weights = (np.array([ratio(m[k]) for m in data.mixed]) for k in ("gates", "weights"))
    lower = {
        "than at the start": more(first[: len(gates)], gates, 2),
        "than by the weights alone": more(weights, gates, 2),
    }
    return Row(
        "Whether gates or weights make the maps class-specific",
        "L Sec. 5",
        f"backbone, distance within over between classes: start {interval(first)}, end "
        f"{interval(last)}; gates of the end with weights of the start {interval(gates)}, weights "
        f"of the end with gates of the start {interval(weights)}; paired",
        "measured: by the gates alone lower "
        + ", ".join(f"{what} {WORDS[v]}" for what, v in lower.items()),
        kind="control",
    )


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
        "measured: " + ", ".join(f"{n} {WORDS[f]}" for n, f in zip(SPACES, falls, strict=True)),
        kind="control",
    )  # fmt: skip
