"""Errata of ReLU networks: the early law, t*, representations, effective weights."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _errata import Finding, Size, off
from _paper import fl
from _tree import Case, linearization, runs, task_of


def early_law(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.8: Eq. 11 against the velocity of a flow, and the early phase that keeps W2(0)."""
    task, found = task_of("tree"), []
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
        readouts = (grown, t * grown, np.asarray(w2) + t * grown, np.asarray(early.weights[1]))
        found.append([off(law(readout), velocity) for readout in readouts])
    eq11, timed, kept, exact = np.mean(found, axis=0)
    return [
        Finding("8 Eq. 11", "Early on dW1/dt = eps^2 (H Y^T Y . sigma') X^T, the growth of W2 put "
                "in the place of W2", "M Eq. 11, Eq. 24; erratum B.8",
                f"velocity of W1 at t = {t:.2g} in the flow of {size.seeds} networks on the "
                f"hierarchy; with the time t that is missing {timed:.2g}, with W2(0) too (right "
                f"form), with W2 of the exact early phase {exact:.2g}; right up to .1",
                float(eq11), float(kept), enough=0.1,
                correction="with W2(0) + eps t Y H^T in the place of W2; leaving W2(0) out is the "
                "larger error of the two"),
    ]  # fmt: skip


def _flows(size: Size) -> list[fl.Trajectory]:
    return runs([Case("tree", "relu", 1.0, seed) for seed in range(size.seeds)], size.setting)


def growth(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.8: whether biases grow where no target is negative, and what tells the units apart."""
    task, falls, fates = task_of("tree"), [], []
    for flow in _flows(size):
        first = jax.tree.map(lambda a: a[0], flow.networks)
        b = np.asarray(flow.networks.biases[0])[: size.early + 1]
        live = np.asarray(fl.measures.hidden(first, task)).any(axis=0)
        fall = np.any(np.diff(b, axis=0) < -1e-12, axis=0)
        # Both the unit's weights and its readout are on the growing side of the top pair.
        early = fl.theory.early_phase(first, task)
        side = np.asarray(early.component) > 0
        pulled = np.asarray(first.weights[1]).T @ np.asarray(task.y).T > 0
        off_there = np.asarray(fl.measures.hidden(first, task)).T <= 0
        pulled = np.all(pulled | off_there, axis=1)
        falls.append([np.mean(fall[live]), np.mean(fall[live & side & pulled])])
        fates.append([side[live].mean(), pulled[live].mean()])
    (every, some), (positive, driven) = np.mean(falls, axis=0), np.mean(fates, axis=0)
    t = float(size.setting.ts[size.early])
    return [
        Finding("8 growth", "If no target is negative the bias terms can only grow monotonically",
                "M Sec. 5.3, erratum B.8",
                f"share of the live units whose bias falls before t = {t:.2g} ({size.seeds} seeds, "
                f"no tolerance); the component along the top pair of M_j is positive at t = 0 in "
                f"{positive:.0%} of them, a^T y_i for all samples that they are on for in "
                f"{driven:.0%}",
                float(every), None,
                ("readout weights of positive sign, as stated below Eq. 12: a^T y_i > 0 at the "
                 "start for all samples that the unit is on for", float(some)), formula=False),
    ]  # fmt: skip


def linearization_times(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.13: t* needs the whole run; a detector that goes along stops at the first fall."""
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
        Finding("13 t*", "Whether t* can be found while training", "M Sec. 5.4, erratum B.13",
                f"the first fall of f_on comes at t = {early.mean():.3g}, t* is {star.mean():.3g} "
                f"({size.seeds} seeds, open gates); t* for runs up to 2, 5, 10, "
                f"{size.setting.t1:g}: {', '.join(f'{v:.3g}' for v in times)}; f_on is a step "
                f"function and stays at its maximum for {np.mean(lasts):.2g}",
                float(np.mean(np.abs(early / star - 1))), formula=False,
                control="no, the maximum is over the whole run"),
    ]  # fmt: skip


def explained(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.15: shares of variance, centred or not."""
    s, c = np.array([1.0, 1, 0, 0]), np.array([1.0, 0, 0, 1])
    both = np.stack([s, c], axis=1)

    def raw(h: np.ndarray, f: np.ndarray) -> float:
        f = f.reshape(4, -1)
        return 1 - np.sum((h - f @ np.linalg.pinv(f) @ h) ** 2) / np.sum(h**2)

    def gap(share: Callable[..., Any]) -> float:
        draws = [rng.random((4, 16)) for _ in range(size.draws)]
        return max(abs(float(share(h, both) - share(h, s) - share(h, c))) for h in draws)

    exact = fl.measures.variance_explained
    return [
        Finding("15 R^2", "Whether the R^2 of the two features add up to that of both",
                "M App. D, erratum B.15",
                f"{size.draws} random representations of the four inputs, X~ and Y~ (undefined in "
                "the text) the raw ones; both centred", gap(raw), gap(exact), formula=False,
                control="yes, if X~ and Y~ are centred"),
    ]  # fmt: skip


def labels(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.15, B.16: labels and figures as App. E lists them."""
    printed, s, c = np.repeat(np.eye(2), 2, axis=0), [1.0, 1, 0, 0], [1.0, 0, 0, 1]
    share = fl.measures.variance_explained
    xor, corners = task_of("xor"), np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])

    def wrong(order: list[int]) -> float:
        """Distance of the labels, in an order of the points 00, 01, 10, 11, from XOR's."""
        return off(printed[np.argsort(order)], np.asarray(xor.y))

    def fits(wanted: np.ndarray) -> list[float]:
        return [float(share(np.array(f)[:, None], wanted)) for f in (s, c)]

    two, four = fits(printed), fits(np.asarray(fl.tasks.parallel().y))
    affine = float(share(printed, corners))
    tree, cube = task_of("tree").inputs, task_of("offset xor 0.5").inputs
    return [
        Finding("15 XOR", "Labels [1,0], [1,0], [0,1], [0,1] are XOR's",
                "M App. E, for Figs. 2D, 5, 9B, 11; erratum B.15",
                "in the order 00, 01, 10, 11 of the points an affine map of the inputs explains "
                f"{affine:.0%} of them", wrong([0, 1, 2, 3]), None,
                ("points in the order 00, 11, 01, 10, which is not stated", wrong([0, 3, 1, 2])),
                formula=False),
        Finding("15 Fig. 6", "Labels [1,0], [1,0], [0,1], [0,1] are those of Fig. 6's two tasks",
                "M App. E, erratum B.15",
                f"share of the simple and the complex label that they hold: {two[0]:.2g}, "
                f"{two[1]:.2g}; with four outputs {four[0]:.2g}, {four[1]:.2g}",
                1 - min(two), 1 - min(four), formula=False,
                correction="four outputs, both labels one-hot"),
        Finding("16 App. E", 'Its "Figure 2-5" are trained on the hierarchical task',
                "M App. E, erratum B.16",
                f"the cube of Fig. 5C has {cube} inputs, the hierarchical task {tree}",
                abs(cube - tree) / tree, 0.0, formula=False,
                correction='2-4; its "Figure 6 & 11" are 5 and 11, its "Figure 7" is 6'),
    ]  # fmt: skip


def effective_weights(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.18: the gate of the output layer, and a sample at a kink."""
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
        Finding("18 head", "The output (pre-softmax) is (D_L W_L) ... (D_1 W_1) x",
                "L Eqs. 3-4, erratum B.18", "random network of three layers, 20 inputs; right "
                "form: no gate on the output layer", off(map_of(printed), outputs),
                off(map_of(right), outputs), ("the last hidden layer in place of the output",
                                              off(map_of(features), h)),
                correction="W_L D_(L-1) W_(L-1) ... D_1 W_1 x; what is printed is the last hidden "
                "layer, of which the maps are taken"),
        Finding("18 kink", "W_eff(x) is the network's local transformation at every x",
                "L Eqs. 1-4, erratum B.18", "slope towards the active side of an input at a kink, "
                "where D is set-valued; right form: towards the other side alone",
                off(told, slopes[0]),
                off(told, slopes[1]),
                ("x at no kink, as are almost all", off(right[0] @ weights[0][0], away / 2e-6)),
                formula=False),
    ]  # fmt: skip


def tied(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.19: ReLU minus a bias in one hidden layer."""
    x, w1, w2, b = rng.normal(size=(20, 5)), *(rng.normal(size=s) for s in ((8, 5), (3, 8))), 0.3
    h = np.maximum(x @ w1.T, 0)
    return [
        Finding("19 readout", "ReLU(.) - b in one hidden layer", "B, erratum B.19",
                "against a bias of the readout, -b W2 1, random weights, 20 inputs",
                off(h @ w2.T - b * w2.sum(axis=1), (h - b) @ w2.T), formula=False,
                control="it is a bias of the readout, no new parameter"),
    ]  # fmt: skip
