"""The verdicts on M Fig. 2 (W Fig. 1 and 2B)."""

import dataclasses
from typing import Any

import numpy as np
from _judge import (
    EXACT,
    LOSSES,
    SHARES,
    TIMES,
    apart,
    both,
    interval,
    more,
    same,
    share,
    usual,
    verdict,
)
from _paper import Row, fl
from _separation import KINDS, splits
from _tree import delay, drops, gap, in_step, loss_stretch, out_of_step


def judge(data: Any) -> list[Row]:
    """Panels B, D, E."""
    descent = [_descent_row(data)] if data.size.descents else []
    return [
        _track_row(data),
        _speed_row(data),
        _diverge_row(data),
        _stage_row(data),
        *_exact_rows(data),
        *descent,
        *_xor_rows(data),
        _label_row(),
        *_separation_rows(data),
    ]


def _track_row(data: Any) -> Row:
    number, found, texts = len(data.trees), {}, []
    for task, words in data.trees.items():
        biased = data.pace(task, 1.0)
        slight = more(TIMES.apart, biased.common - 1, number)
        found[words] = both(in_step(biased, number), slight)
        gaps = [(gap(*pair), *delay(*pair)) for pair in data.pairs(task, 1.0)]
        most, shift, left = np.transpose(gaps)
        texts.append(
            f"{words}: {biased.text}; the ratios differ by {interval(biased.uneven)}, without bias "
            f"by {interval(data.pace(task, 0.0).uneven)}; their common factor is "
            f"{interval(biased.common)}; the losses differ by at most {interval(most)} of L(0), "
            f"after a shift of {interval(shift)} by {interval(left)}"
        )
    return Row(
        "ReLU networks with bias closely track the linear ones",
        "M Sec. 4, Fig. 2B; W Sec. 2",
        f"half times of the singular values over those of the linear network: {'. '.join(texts)}. "
        f"Criterion: the ratios are the same ({TIMES}) and their common factor is below "
        f"{1 + TIMES.apart:g}",
        verdict(found),
        "ReLU networks with bias terms closely track the dynamics of their linear counterparts",
    )


def _speed_row(data: Any) -> Row:
    number, found, texts = len(data.trees), {}, []
    for task, words in data.trees.items():
        biased = data.pace(task, 1.0)
        found[words] = both(
            same(biased.after_factor, TIMES, number), more(biased.common, 1.0, number)
        )
        pairs = data.pairs(task, 1.0)
        factor, left = np.transpose([loss_stretch(*pair) for pair in pairs])
        _, shifted = np.transpose([delay(*pair) for pair in pairs])
        texts.append(
            f"{words}: one factor of time, {interval(biased.common)}, leaves the half times "
            f"{interval(biased.after_factor)} apart, one shift of time would leave "
            f"{interval(biased.after_shift)}; a factor of {interval(factor)} leaves the losses "
            f"{interval(left)} of L(0) apart, a shift {interval(shifted)}"
        )
    return Row(
        "The dynamics are the same at another speed: one factor of time brings them together",
        "W Sec. 2, said of images; here on the hierarchy",
        f"{'. '.join(texts)}. Criterion: the factor is above 1, and what it leaves of the half "
        f"times is nothing ({TIMES})",
        verdict(found),
        "dynamics between linear and ReLU networks are preserved albeit under different learning "
        "speeds",
    )


def _diverge_row(data: Any) -> Row:
    number, found, texts = len(data.trees), {}, []
    for task, words in data.trees.items():
        biased, bare = data.pace(task, 1.0), data.pace(task, 0.0)
        found[words] = out_of_step(bare, biased, number)
        texts.append(f"{words}: {bare.text}, the ratios differ by {interval(bare.uneven)}, with "
                     f"bias by {interval(biased.uneven)}")  # fmt: skip
    small = data.pace("tree", 0.0, small=True)
    return Row(
        "Without bias the connection breaks down and the dynamics diverge",
        "M Sec. 4, Fig. 2B; W Sec. 2",
        f"half times of the singular values over those of the linear network, both without bias: "
        f"{'; '.join(texts)}. Criterion: the ratios differ by more than {TIMES.same:g}, and by "
        f"more than with bias. Beside it, from variance {data.size.small.variance:g}: "
        f"{small.text}, they differ by {interval(small.uneven)}, with bias by "
        f"{interval(data.pace('tree', 1.0, small=True).uneven)}",
        verdict(found),
        "when removing bias terms the connection breaks down and dynamics between linear and "
        "non-linear models diverge",
    )


def _stage_row(data: Any) -> Row:
    def counts(runs: Any, task: str, kind: str, c: float) -> np.ndarray:
        return np.array([drops(flow) for flow in runs[task, kind, c]])

    def text(runs: Any, task: str) -> str:
        return "; ".join(
            f"{'with' if c else 'without'} bias ReLU {counts(runs, task, 'relu', c).mean():.3g}, "
            f"linear {counts(runs, task, 'linear', c).mean():.3g}"
            for c in (1.0, 0.0)
        )

    number, found, texts, alike = len(data.trees), {}, [], []
    for task, words in data.trees.items():
        relu, linear = (counts(data.runs, task, kind, 1.0) for kind in ("relu", "linear"))
        found[words] = both(usual(relu == linear, of=number), usual(relu > 1, of=number))
        texts.append(f"{words}: {text(data.runs, task)}")
        alike.append(f"{share((relu == linear) & (relu > 1))}")
    return Row(
        "With bias both kinds of network learn in stages",
        "M Fig. 2B; W Fig. 1B",
        f"separate drops of the loss (peaks of -dL/dt twice as high as the valleys beside them), "
        f"mean of {data.size.seeds} seeds: {'. '.join(texts)}. Criterion: in most seeds as many "
        f"as in the linear network, and more than one; so it is in {' and '.join(alike)}. Beside "
        f"it, from variance {data.size.small.variance:g}, where the four singular values do not "
        f"overlap: {text(data.small, 'tree')}",
        verdict(found),
        "Both network types are functionally similar when equipped with bias terms and display "
        "stage-like learning.",
    )


def _exact_rows(data: Any) -> list[Row]:
    """Closed forms against linear and against ReLU runs; every reading of the tree has to pass."""
    number = len(data.trees)
    far: dict[str, dict[str, list[float]]] = {}
    late: dict[str, np.ndarray] = {}  # by task (shift, left, factor, left, left mode by mode)
    for task in data.trees:
        pairs = data.pairs(task, 1.0)
        closed = {
            name: [dataclasses.replace(linear, losses=losses)
                   for (_, linear), losses in zip(pairs, found, strict=True)]
            for (of, name), found in data.exact.items() if of == task
        }  # fmt: skip
        far[task] = {
            name: [gap(flow, linear) for flow, (_, linear) in zip(flows, pairs, strict=True)]
            for name, flows in closed.items()
        }
        relu = [relu for relu, _ in pairs]
        late[task] = np.transpose([
            (*delay(flow, one), *loss_stretch(flow, one), gap(flow, modewise))
            for flow, one, modewise in zip(relu, closed["singular"], closed["delayed"], strict=True)
        ])  # fmt: skip
    return [_closed_row(data, far, number), _match_row(data, late, number)]


def _closed_row(data: Any, far: dict[str, dict[str, list[float]]], number: int) -> Row:
    found = {words: same(far[task]["singular"], LOSSES, number)
             for task, words in data.trees.items()}  # fmt: skip
    balanced = both(*(same(one["balanced"], LOSSES, number) for one in far.values()))
    text = ". ".join(
        f"{words}: from the singular values at the start, as App. B says, "
        f"{interval(far[task]['singular'], 2)}; from the balanced part of the initial strengths "
        f"{interval(far[task]['balanced'], 2)}; isolated modes of any imbalance "
        f"{interval(far[task]['isolated'], 2)}"
        for task, words in data.trees.items()
    )
    part = ("a_0 is the balanced part of the initial strengths", balanced)
    return Row(
        "Eq. 7, a_0 being the singular values at the start, gives the linear networks' learning",
        "M App. B, Eqs. 7, 22, 23; W App. A; erratum E14",
        f"largest difference of the losses of Eq. 7 and of the linear runs ({LOSSES}): {text}. The "
        f"diagonal of U^T W_2 W_1 V itself is negative for {np.mean(data.negative):.2g} of the "
        "tree's 8 modes, where Eq. 7 has no use",
        verdict(found, part),
        "a_0 are the singular values at initialization ... gives full evolution of network weights "
        "for deep linear networks",
    )


def _match_row(data: Any, late: dict[str, np.ndarray], number: int) -> Row:
    slight = [more(TIMES.apart, data.pace(task, 1.0).common - 1, number) for task in late]
    found = {
        words: both(*slight, *(same(one[place], LOSSES, number) for one in late.values()))
        for words, place in (
            ("a shift of each mode, as in Sec. 5", 4), ("one shift of the whole curve", 1),
        )
    }  # fmt: skip
    stretch = both(*(same(one[3], LOSSES, number) for one in late.values()))
    text = ". ".join(
        f"{words}: after one shift of {interval(late[task][0])} by {interval(late[task][1])}; "
        f"after a shift of each mode to where the ReLU network has it half learned by "
        f"{interval(late[task][4])}; after a stretch of time by {interval(late[task][2])} by "
        f"{interval(late[task][3])}"
        for task, words in data.trees.items()
    )
    part = ("time is stretched rather than shifted", stretch)
    return Row(
        "But for a slight shift of time, exact solutions of linear networks match biased ReLU "
        "networks almost perfectly",
        "M Sec. 4, Fig. 2B; W Sec. 2",
        f"losses of ReLU networks differ from those of Eq. 7 from the singular values at the start "
        f"({LOSSES}): {text}. Slight: half times are later than those of linear networks by less "
        f"than {TIMES.apart:g} of them",
        verdict(found, part),
        "exact solutions developed for linear networks provide an almost perfect match (although "
        "with a slight time shift)",
    )


def _descent_row(data: Any) -> Row:
    off = {
        key: [np.max(np.abs(np.interp(d.ts, f.ts, f.losses) - np.asarray(d.losses))) / f.losses[0]
              for d, f in zip(descents, data.runs[key], strict=False)]
        for key, descents in data.descents.items()
    }  # fmt: skip
    text = "; ".join(f"{kind}, c = {c:g}: {interval(v, 2)}" for (_, kind, c), v in off.items())
    return Row(
        f"A learning rate of {data.size.learning_rate:g} is gradient flow",
        "M App. B, App. E; W Sec. 2",
        f"largest difference of the losses of descent and flow ({LOSSES}; the flow is interpolated "
        f"between {data.size.setting.points} times): {text}",
        verdict(both(*(same(v, LOSSES, len(off)) for v in off.values()))),
        "As we are training with a small learning rate ... we can take a continuous time limit of "
        "this equation",
    )


# XOR


def matched(late: fl.Trajectory, early: fl.Trajectory) -> tuple[float, float, float]:
    """(gap, exit, unshifted): difference before the linear plateau, when the ReLU loss leaves it.

    The plateau begins when the linear loss has made 95 % of its drop; up to there the largest
    difference after the best shift, over the initial loss, and without a shift. `exit` is when the
    ReLU loss is `LOSSES.same` below the linear network's last, in units of the plateau's beginning.
    """
    ts, a, b = (np.asarray(v) for v in (early.ts, late.losses, early.losses))
    plateau = np.flatnonzero(b <= b[-1] + 0.05 * (b[0] - b[-1]))[0]
    window = ts[: plateau + 1]
    shifts = np.linspace(0, window[-1], 401)
    gaps = [np.max(np.abs(np.interp(window + s, ts, a) - b[: plateau + 1])) for s in shifts]
    below = np.flatnonzero(a < b[-1] - LOSSES.same * b[0])
    out = ts[below[0]] / window[-1] if len(below) else np.inf
    return float(min(gaps) / b[0]), float(out), float(gaps[0] / b[0])


def _xor_rows(data: Any) -> list[Row]:
    number, texts, good, exactly, shifted = len(data.xors), [], {}, {}, []
    for task, words in data.xors.items():
        left, leaves, plain = np.transpose([matched(*pair) for pair in data.pairs(task, 1.0)])
        good[words] = both(same(left, LOSSES, number), usual(leaves >= 1, of=number))
        exactly[words] = same(plain, EXACT, number)
        shifted.append((f"after a shift of time, {words}", same(left, EXACT, number)))
        texts.append(
            f"{words}: by at most {interval(left)} after the best shift of time, without a shift "
            f"by {interval(plain)}; the ReLU network goes below the plateau at "
            f"{np.median(leaves):.2g} times its beginning (median), not before it in "
            f"{share(leaves >= 1)}"
        )
    text = f"until the linear network's plateau the losses differ, {'. '.join(texts)}"
    return [
        Row(
            "On XOR biased ReLU and linear networks match in early training",
            "M Sec. 4, Fig. 2D; W Fig. 1D",
            f"{text}. Criterion: after a shift {LOSSES}, and not below before the plateau",
            verdict(good),
            "even for non-linear problems bias-ReLU and bias-linear network dynamics are matched "
            "in early training",
        ),
        Row(
            "On XOR the early match is exact",
            "W Sec. 2",
            f"{text}. Criterion: without a shift, of which the text does not speak there, {EXACT}",
            verdict(exactly, *shifted),
            "even for non-linear problems bias-ReLU and bias-linear network dynamics are exactly "
            "matched in early training",
        ),
        _bare_xor_row(data),
    ]


def _bare_xor_row(data: Any) -> Row:
    number, texts, found = len(data.xors), [], {}
    for task, words in data.xors.items():
        pairs = data.pairs(task, 0.0)
        learnt = np.mean([1 - linear.losses[-1] / linear.losses[0] for _, linear in pairs])
        far = np.array([matched(*p)[0] if learnt > 0.01 else gap(*p) for p in pairs])
        biased = np.array([matched(*p)[0] for p in data.pairs(task, 1.0)])
        found[words] = apart(far, LOSSES, number)
        texts.append(f"{words}: the linear network removes {learnt:.0%} of the loss; difference "
                     f"{'before its plateau' if learnt > 0.01 else 'of the whole curves'} "
                     f"{interval(far)}, with bias {interval(biased)}")  # fmt: skip
    return Row(
        "On XOR the match breaks down without bias",
        "M Sec. 4, Fig. 2D; W Sec. 2",
        f"{'; '.join(texts)} ({LOSSES})",
        verdict(found),
        "As before, the correspondence breaks down when bias terms are ablated.",
    )


def floor(labels: np.ndarray, x: np.ndarray) -> float:
    """Least half squared error of an affine map."""
    x = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    errors = labels - x @ np.linalg.lstsq(x, labels, rcond=None)[0]
    return float(0.5 * np.mean(np.sum(errors**2, axis=1)))


def _label_row() -> Row:
    listed, points = np.repeat(np.eye(2), 2, axis=0), np.array([[0, 0], [0, 1], [1, 0], [1, 1.0]])
    xor = np.array([[1.0, 0], [0, 1], [0, 1], [1, 0]])
    orders = {"00, 01, 10, 11": [0, 1, 2, 3], "00, 11, 01, 10": [0, 3, 1, 2]}
    floors = {words: floor(listed, points[order]) for words, order in orders.items()}
    right = {f"the points in the order {words}": bool(np.all(listed == xor[order]))
             for words, order in orders.items()}  # fmt: skip
    text = "; ".join(f"{value:.2g} in the order {words}" for words, value in floors.items())
    return Row(
        "[1,0], [1,0], [0,1], [0,1] are XOR's labels",
        "M App. E, for Figs. 2D, 5, 9B and 11; erratum E15",
        f"the order of the points is not stated; least loss of an affine map of the inputs, 0 for "
        f"a linear problem and 0.25 for XOR: {text}",
        verdict(right),
        "For the XOR problem labels are represented in a one-hot fashion. I.e. ... [1, 0], [1, 0], "
        "[0, 1], [0, 1]",
    )


# Representations


def _separation_rows(data: Any) -> list[Row]:
    linear, biased, bare = (
        np.array([splits(flow) for flow in data.runs["tree", kind, c]]) for kind, c in KINDS
    )
    ordered = (biased[:, 2] < biased[:, 1]) & (biased[:, 1] < biased[:, 0])
    late, late0 = biased[:, 0] / biased[:, 2], bare[:, 0] / bare[:, 2]
    off = np.abs(biased[:, 3] - linear[:, 3])
    return [
        Row(
            "With bias, ReLU representations emerge in the tree's order, siblings together, in "
            "excellent agreement with linear networks",
            "M Sec. 4, Fig. 2E; W Sec. 2, Fig. 2B",
            f"distances half grown across the root at {biased[:, 2].mean():.3g}, cousins "
            f"{biased[:, 1].mean():.3g}, siblings {biased[:, 0].mean():.3g} (linear: "
            f"{', '.join(f'{v:.3g}' for v in linear[:, 2::-1].mean(axis=0))}), in this order in "
            f"{share(ordered)}; siblings then have {interval(biased[:, 3])} of their final "
            f"distance, linear {interval(linear[:, 3])}, {interval(off)} apart seed by seed "
            f"({SHARES}), without bias {interval(bare[:, 3])}",
            verdict(both(usual(ordered), same(off, SHARES))),
            "Hidden representations evolve in an orderly fashion in bias-ReLU networks that show "
            "excellent agreement with linear models. The representations for different classes "
            "with shared hierarchical features co-evolve",
        ),
        Row(
            "Without bias, classes separate almost from the very beginning",
            "M Sec. 4, Fig. 2E; W Sec. 2, Fig. 2B",
            f"siblings' distance is half grown {interval(late0)} times as late as the root's (not "
            f"apart: less than {1 + TIMES.apart:g}), with bias {interval(late)}; when the root has "
            f"split, siblings have {interval(bare[:, 3])} of their final distance, with bias "
            f"{interval(biased[:, 3])}",
            verdict(both(more(1 + TIMES.apart, late0), more(bare[:, 3], biased[:, 3]))),
            "representations in bias-free ReLU networks evolve in a less structured manner, with "
            "the representations for the different input classes separating almost from the very "
            "beginning of learning",
        ),
    ]
