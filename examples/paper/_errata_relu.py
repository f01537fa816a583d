"""Errata of ReLU networks: the early law, t*, representations, effective weights."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _errata import EXACT, Finding, Size, off
from _judge import interval, share
from _paper import fl
from _tree import Case, linearization, runs, task_of

RATE = 2e-4  # of the paper's descent, on half the summed squared error


def early_law(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E8: Eq. 11 against the velocity of W1, after a step of descent and in a flow."""
    task, found, steps = task_of("tree"), [], []
    x, y = np.asarray(task.x), np.asarray(task.y)
    t = float(size.setting.ts[size.early])
    for flow in _flows(size):
        first, now = (jax.tree.map(lambda a, k=k: a[k], flow.networks) for k in (0, size.early))
        (h, w2), p = (np.asarray(fl.measures.hidden(first, task)), first.weights[1]), len(x)
        gates = np.asarray(fl.measures.hidden(now, task)) > 0
        (velocity, _), _ = fl.measures.velocity(now, task)

        def law(readout, gates=gates, p=p):
            return ((y @ readout) * gates).T @ x / p

        grown = y.T @ h / p  # W2 - W2(0) over t, in units of tau
        early = fl.theory.early_phase(first, task).network(t)
        w2 = np.asarray(w2)
        readouts = (t * grown, w2, w2 + t * grown, np.asarray(early.weights[1]))
        found.append([off(law(readout), velocity) for readout in readouts])
        steps.append([*_after_a_step(first, task, 1.0), _after_a_step(first, task, 0.0)[0]])
    grows, stays, kept, exact = np.transpose(found)
    printed, mended, from_zero = np.transpose(steps)
    return [
        Finding("8 Eq. 11", "Early on dW1/dt = eps^2 (H Y^T Y . sigma') X^T, the growth of W2 put "
                "in the place of W2", "M Eq. 11, Eq. 24; erratum E8",
                f"relative error of the velocity of W1, networks of the hierarchy task: after the "
                f"first step of descent at {RATE:g} Eq. 11 {interval(printed, 2)}, with W2(0) "
                f"added to the growth {interval(mended, 2)}, where W2(0) = 0 Eq. 11 "
                f"{interval(from_zero, 2)}; in the flow at t = {t:.2g} with the growth until then "
                f"{interval(grows, 2)}, with W2(0) alone {interval(stays, 2)}, with both "
                f"{interval(kept, 2)}, with W2 of the exact early phase {interval(exact, 2)}; "
                "right up to .1",
                float(printed.mean()), float(max(mended.mean(), kept.mean())),
                ("if the readout starts at zero; else W2(0), which is left out, is the leading "
                 "term", float(from_zero.mean())),
                enough=0.1, formula=False,
                quote="Substituting this small update to W^2 into the updates for W^1 and b, we "
                "obtain: ... W'^1_0 ~ epsilon^2 (H Y^T Y . sigma'(Z)) X^T"),
    ]  # fmt: skip


def _flows(size: Size) -> list[fl.Trajectory]:
    return runs([Case("tree", "relu", 1.0, seed) for seed in range(size.seeds)], size.setting)


def _after_a_step(network: fl.ReLUNetwork, task: fl.Task, readout: float) -> tuple[float, float]:
    """Errors of W1's velocity after a step: Eq. 11, and with the initial readout, so many times
    the network's, added to its growth."""
    x, y = np.asarray(task.x), np.asarray(task.y)
    (w1, w2), b = map(np.asarray, network.weights), np.asarray(network.biases[0])
    w2 = readout * w2

    def moved(w1: Any, b: Any, w2: Any) -> tuple[Any, Any, Any]:
        h = np.maximum(x @ w1.T + b, 0)
        error = y - h @ w2.T
        back = (error @ w2) * (h > 0)
        return back.T @ x, back.sum(axis=0), error.T @ h

    h = np.maximum(x @ w1.T + b, 0)
    after = (a + RATE * v for a, v in zip((w1, b, w2), moved(w1, b, w2), strict=True))
    velocity, grown = moved(*after)[0], RATE * y.T @ h
    laws = (((y @ m) * (h > 0)).T @ x for m in (grown, w2 + grown))
    one, other = (off(law, velocity) for law in laws)
    return one, other


def growth(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E8: what grows where no target is negative: biases and weights, readouts."""
    task, falls, signs, fates = task_of("tree"), [], [], []
    for flow in _flows(size):
        first = jax.tree.map(lambda a: a[0], flow.networks)
        b, (w1, w2) = (
            jax.tree.map(lambda a: np.asarray(a)[: size.early + 1], part)
            for part in (flow.networks.biases[0], flow.networks.weights)
        )
        on = np.asarray(fl.measures.hidden(first, task)).T > 0  # of inputs as of weights: X = I
        live = on.any(axis=1)
        fall, weights_fall = (np.any(np.diff(a, axis=0) < -1e-12, axis=0) for a in (b, w1))
        # Both the unit's weights and its readout are on the growing side of the top pair.
        side = np.asarray(fl.theory.early_phase(first, task).component) > 0
        pulled = np.all((w2[0].T @ np.asarray(task.y).T > 0) | ~on, axis=1)
        some = fall[live & side & pulled]
        falls.append([fall[live].mean(), weights_fall[on].mean(), some.mean() if some.size else 0])
        (_, driven), _ = fl.measures.velocity(first, task)
        moves = (np.asarray(driven)[:, live], (w2[-1] - w2[0])[:, live])
        signs.append([off(np.maximum(v, 0), v) for v in moves])
        fates.append([side[live].mean(), pulled[live].mean()])
    (biases, weights, some), (at_once, until) = np.transpose(falls), np.transpose(signs)
    positive, driven = np.mean(fates, axis=0)
    t = float(size.setting.ts[size.early])
    return [
        Finding("8 growth", "If no target is negative the bias terms can only grow, and with X = "
                "I_P the first weights too", "M Sec. 5.3, erratum E8",
                f"until t = {t:.2g}, on the hierarchy: the bias falls at some time in "
                f"{interval(biases, 2)} of the live units, the weight in {interval(weights, 2)} "
                f"of the (unit, item) pairs that are on at the start; a^T y_i is positive for all "
                f"samples that the unit is on for in {driven:.0%} of the live units, the component "
                f"along the top pair of M_j in {positive:.0%}; of the units with both the bias "
                f"falls in at most {some.max():.0%} of a seed's; criterion: in none, no tolerance",
                float(max(biases.mean(), weights.mean())), None,
                ("biases where a^T y_i > 0 at the start for all samples that the unit is on for",
                 float(some.max())), formula=False,
                quote="if the outputs are element-wise positive definite (as is common in many "
                "tasks, including classification) then the bias term can only grow monotonically "
                "and in the case of X = I_P for our experiments, so too will W^1"),
        Finding("8 readouts", "If no target is negative the readout weights are driven in the "
                "positive direction at the start", "M Sec. 5.3, Eq. 8",
                f"negative part of the readouts' velocity, live units of the hierarchy, relative "
                f"norm: at the start {interval(at_once, 2)}; of their change until t = {t:.2g} "
                f"{interval(until, 2)}; criterion: at the start at most .1",
                float(at_once.mean()), enough=0.1, formula=False,
                quote="Given the positivity of ReLU hidden layer, if the outputs are element-wise "
                "positive, its weights are driven in the positive direction at initialization."),
    ]  # fmt: skip


def linearization_times(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E13: t* needs the whole run; a detector that goes along stops at the first fall."""
    firsts, starred, lasts, horizons = [], [], [], []
    for flow in _flows(size):
        line = linearization(flow)
        counts = line.open_counts
        time, on = np.asarray(counts.time), np.asarray(counts.on)
        time, on = time[np.isfinite(time)], on[np.isfinite(time)]
        fall = np.flatnonzero(np.diff(on) < 0)
        firsts.append(time[fall[0] + 1] if len(fall) else size.setting.t1)
        starred.append(float(line.open.time))
        lasts.append(float(line.open.lasts))
        cut = [time[: np.searchsorted(time, end)] for end in (2.0, 5.0, 10.0, size.setting.t1)]
        horizons.append([times[np.argmax(on[: len(times)])] for times in cut])
    early, star = np.array(firsts), np.array(starred)
    times = np.mean(horizons, axis=0)
    return [
        Finding("13 t*", "Whether t* can be found while training", "M Sec. 5.4, erratum E13",
                f"the first fall of f_on comes at t = {early.mean():.3g}, t* is {star.mean():.3g} "
                f"({size.seeds} seeds, open gates); t* for runs up to 2, 5, 10, "
                f"{size.setting.t1:g}: {', '.join(f'{v:.3g}' for v in times)}; f_on is a step "
                f"function and stays at its maximum for {np.mean(lasts):.2g}",
                float(np.mean(np.abs(early / star - 1))), formula=False, kind="control",
                found=f"not by the first fall of f_on, which comes before t* in "
                f"{share(early < star)}: the maximum is over the whole run"),
    ]  # fmt: skip


def explained(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E15: shares of variance, centred or not."""
    s, c = np.array([1.0, 1, 0, 0]), np.array([1.0, 0, 0, 1])
    both = np.stack([s, c], axis=1)

    def raw(h: np.ndarray, f: np.ndarray) -> float:
        f = f.reshape(4, -1)
        return 1 - np.sum((h - f @ np.linalg.pinv(f) @ h) ** 2) / np.sum(h**2)

    def gap(part: Callable[..., Any]) -> float:
        draws = [rng.random((4, 16)) for _ in range(size.draws)]
        return max(abs(float(part(h, both) - part(h, s) - part(h, c))) for h in draws)

    apart, centred = gap(raw), gap(fl.measures.variance_explained)
    words = {True: "yes", False: "no"}
    return [
        Finding("15 R^2", "Whether the R^2 of the two features add up to that of both",
                "M App. D, erratum E15",
                f"{size.draws} random representations of the four inputs, with X~ and Y~, which "
                f"the text does not define, as they are: off by up to {apart:.2g}; both centred "
                f"{centred:.1g}", apart, centred, formula=False, kind="control",
                found=f"centred {words[centred < EXACT]}, else {words[apart < EXACT]}"),
    ]  # fmt: skip


def labels(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E15, E16: labels and figures as App. E lists them."""
    printed, s, c = np.repeat(np.eye(2), 2, axis=0), [1.0, 1, 0, 0], [1.0, 0, 0, 1]

    def fits(wanted: Any) -> np.ndarray:
        """Share of the simple and of the complex label that these outputs hold."""
        share_of = fl.measures.variance_explained
        return np.array([share_of(np.array(f)[:, None], np.asarray(wanted)) for f in (s, c)])

    orders = [fits(printed[list(order)]) for order in itertools.permutations(range(4))]
    as_listed = fits(printed)
    codes = {"two outputs, one per task": np.stack([s, c], axis=1),
             "four, one-hot for each": fl.tasks.parallel().y}  # fmt: skip
    others = "; ".join(f"{name} {in_words(fits(y))}" for name, y in codes.items())
    tree, cube = task_of("tree").inputs, task_of("offset xor 0.5").inputs
    return [
        Finding("15 Fig. 6", "Labels [1,0], [1,0], [0,1], [0,1] are those of Fig. 6's two tasks",
                "M App. E, erratum E15",
                "share of the simple and the complex label of App. D that they hold: in this order "
                f"{in_words(as_listed)}, both in none of the 24 orders (at best "
                f"{max(one.min() for one in orders):.2g}); for comparison {others}",
                1 - float(max(one.min() for one in orders)), formula=False,
                condition=("they are those of one of the two; which code holds both is not said, "
                           "and more than one does", 1 - float(as_listed.max())),
                quote="The networks are trained on inputs depicted in Fig. 6A. Labels are "
                "represented as one-hot, i.e. [1, 0], [1, 0], [0, 1], [0, 1]."),
        Finding("16 App. E", 'Its "Figure 2-5" are trained on the hierarchical task',
                "M App. E, erratum E16",
                f"the cube of Fig. 5C has {cube} inputs, the hierarchical task {tree}",
                abs(cube - tree) / tree, 0.0, formula=False,
                correction='2-4; its "Figure 6 & 11" are 5 and 11, its "Figure 7" is 6',
                quote="Figure 2-5. & Appendix Figure 9, 10 & 12. All networks are trained on the "
                "hierarchical task depicted in Fig. 2A."),
    ]  # fmt: skip


def in_words(shares: np.ndarray) -> str:
    """Two numbers in words."""
    return " and ".join(f"{abs(v):.2g}" for v in shares)


def effective_weights(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E18: the gate of the output layer, and a sample at a kink."""
    x = rng.normal(size=(20, 5))
    weights = [rng.normal(size=shape) for shape in ((16, 5), (12, 16), (3, 12))]
    network = fl.ReLUNetwork(tuple(weights))
    right, features = (np.asarray(fl.measures.effective_map(network, x, layer=k).matrix)
                       for k in (None, 1))  # fmt: skip
    outputs = np.asarray(network.outputs(jnp.asarray(x)))
    printed = (outputs > 0)[:, :, None] * right

    def map_of(matrices: np.ndarray) -> np.ndarray:
        return np.einsum("pij,pj->pi", matrices, x)

    h = np.maximum(np.maximum(x @ weights[0].T, 0) @ weights[1].T, 0)
    kink = x[0] - weights[0][0] * (weights[0][0] @ x[0]) / (weights[0][0] @ weights[0][0])
    side = 1e-6 * weights[0][0]

    def value(at: np.ndarray) -> np.ndarray:
        return np.asarray(network(jnp.asarray(at)))

    slopes = [(value(kink + sign * side) - value(kink)) / (sign * 1e-6) for sign in (1, -1)]
    told = np.asarray(fl.measures.effective_map(network, kink[None]).matrix)[0] @ weights[0][0]
    away = value(x[0] + side) - value(x[0] - side)
    return [
        Finding("18 head", "The output is f(x) = (D_L W_L) ... (D_1 W_1) x",
                "L Eqs. 3-4, erratum E18",
                "random network of three layers, 20 inputs; all layers rectified, as in Sec. 2.1 "
                f"and the backbone of Sec. 3.1, {off(map_of(features), h):.1g}; with a linear last "
                "layer, as the logits of Sec. 3.1 have, as printed "
                f"{off(map_of(printed), outputs):.2g}, without D_L "
                f"{off(map_of(right), outputs):.1g}",
                off(map_of(printed), outputs), off(map_of(right), outputs),
                ("the output is that of Sec. 2.1, whose layers are all rectified, and of the "
                 "backbone; the logits have no D_L", off(map_of(features), h)),
                left_open=True, formula=False,
                quote="we can express the network’s final output (pre-softmax), f(x), as a single "
                "linear transformation of the input x: ... f(x) = (D_L(x) W_L) ... (D_2(x) W_2) "
                "(D_1(x) W_1) x"),
        Finding("18 kink", "Whether W_eff(x) is a slope where x is at a unit's kink",
                "L Eq. 1, which puts D = 0 there; erratum E18",
                "relative distance from the slope of the outputs across the kink: towards the "
                f"active side {off(told, slopes[0]):.2g}, towards the other "
                f"{off(told, slopes[1]):.1g}; of an input at no kink "
                f"{off(right[0] @ weights[0][0], away / 2e-6):.1g}",
                off(told, slopes[0]), off(told, slopes[1]), formula=False, kind="control",
                found="of the side where the unit is off alone"
                if off(told, slopes[1]) < EXACT < off(told, slopes[0])
                else "not of one side alone"),
    ]  # fmt: skip


def tied(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E19: ReLU minus a bias in one hidden layer."""
    x, w1, w2, b = rng.normal(size=(20, 5)), *(rng.normal(size=s) for s in ((8, 5), (3, 8))), 0.3
    h = np.maximum(x @ w1.T, 0)
    error = off((h - b) @ w2.T, h @ w2.T - b * w2.sum(axis=1))
    return [
        Finding("19 readout", "In one hidden layer ReLU(.) - b is a bias of the readout, -b W2 1",
                "B, erratum E19", "random weights, 20 inputs: relative difference of the outputs "
                f"{error:.1g}", error, formula=False, kind="theorem"),
    ]  # fmt: skip
