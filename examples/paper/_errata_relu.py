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
    text = f"velocity of W1 at t = {t:.2g} in the flow of {size.seeds} networks on the hierarchy"
    return [
        Finding("8 Eq. 11", "Early on dW1/dt = eps^2 (H Y^T Y . sigma') X^T",
                "M Eq. 11, Eq. 24; erratum B.8",
                f"{text}; with the factor t that is missing {timed:.2g}, with W2(0) too {kept:.2g};"
                " right form: W2 of the exact early phase",
                float(eq11), float(exact), enough=0.1),
        Finding("8 W2(0)", "W2(0) can be left out of the early law",
                "M Eq. 11, Eq. 24; erratum B.8",
                f"{text}, with the factor t; right form: W2(0) kept",
                float(timed), float(kept), enough=0.1),
    ]  # fmt: skip


def _flows(size: Size) -> list[fl.Trajectory]:
    return runs([Case("tree", "relu", 1.0, seed) for seed in range(size.seeds)], size.setting)


def growth(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.8: whether biases grow where all targets are positive, and what tells the units apart."""
    task, falls, fates = task_of("tree"), [], []
    for flow in _flows(size):
        first = jax.tree.map(lambda a: a[0], flow.networks)
        b = np.asarray(flow.networks.biases[0])[: size.early + 1]
        live = np.asarray(fl.measures.hidden(first, task)).any(axis=0)
        falls.append(np.mean(np.any(np.diff(b, axis=0) < -1e-12, axis=0)[live]))
        early = fl.theory.early_phase(first, task)
        fate = np.asarray(early.fate)
        star = linearization(flow).closed.time
        gates = flow.events.gates(float(star))
        ended = np.where((gates >= 0).all(axis=0), 1, np.where((gates < 0).all(axis=0), -1, 0))
        chosen = live & (fate != 0) & (ended != 0)
        wrong = np.mean(ended[chosen] != fate[chosen])
        fates.append((wrong, np.mean(np.asarray(early.component)[live] > 0), np.mean(chosen[live])))
    wrong, positive, some = np.mean(fates, axis=0)
    t = float(size.setting.ts[size.early])
    return [
        Finding("8 growth", "With element-wise positive outputs the biases can only grow",
                "M Sec. 5.3, erratum B.8",
                f"share of the live units whose bias falls before t = {t:.2g} ({size.seeds} seeds)"
                "; right form: the component along the top pair of M_j at t = 0, positive in "
                f"{positive:.0%} of them, tells on from off; of the {some:.0%} that it decides on "
                "and that are on or off for all samples at t*, the share where it is wrong",
                float(np.mean(falls)), float(wrong), enough=0.1),
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
        Finding("13 t*", "t* = arg min{t : f_on(t) = max_s f_on(s)} can be found while training",
                "M Sec. 5.4, erratum B.13",
                f"the first fall of f_on comes at t = {early.mean():.3g}, t* is {star.mean():.3g} "
                f"({size.seeds} seeds, open gates); t* for runs up to 2, 5, 10, "
                f"{size.setting.t1:g}: {', '.join(f'{v:.3g}' for v in times)}; f_on is a step "
                f"function and stays at its maximum for {np.mean(lasts):.2g}",
                float(np.mean(np.abs(early / star - 1))), None),
    ]  # fmt: skip


def explained(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.15: shares of variance, centred or not, and the labels that App. E prints."""
    s, c = np.array([1.0, 1, 0, 0]), np.array([1.0, 0, 0, 1])
    both = np.stack([s, c], axis=1)

    def raw(h: np.ndarray, f: np.ndarray) -> float:
        f = f.reshape(4, -1)
        return 1 - np.sum((h - f @ np.linalg.pinv(f) @ h) ** 2) / np.sum(h**2)

    def gap(share: Callable[..., Any]) -> float:
        draws = [rng.random((4, 16)) for _ in range(size.draws)]
        return max(abs(float(share(h, both) - share(h, s) - share(h, c))) for h in draws)

    labels = np.repeat(np.eye(2), 2, axis=0)
    task = fl.tasks.parallel()
    fits = [float(fl.measures.variance_explained(f[:, None], labels)) for f in (s, c)]
    full = [float(fl.measures.variance_explained(f[:, None], np.asarray(task.y))) for f in (s, c)]
    exact = fl.measures.variance_explained
    return [
        Finding("15 R^2", "R^2 of both features is the sum of the two R^2",
                "M App. D, Fig. 6D; erratum B.15",
                f"{size.draws} random representations of the four inputs, X~ and Y~ (undefined in "
                "the text) the raw ones; right form: both centred", gap(raw), gap(exact),
                ("X~ and Y~ centred", gap(exact))),
        Finding("15 Fig. 6", "The labels of Fig. 6's two tasks are [1,0], [1,0], [0,1], [0,1]",
                "M App. E, erratum B.15",
                f"share of the simple and the complex label that they hold: {fits[0]:.2g}, "
                f"{fits[1]:.2g}; right form: four outputs, {full[0]:.2g}, {full[1]:.2g}",
                1 - min(fits), 1 - min(full)),
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
                                              off(map_of(features), h))),
        Finding("18 kink", "W_eff(x) is the network's local transformation at every x",
                "L Eqs. 1-4, erratum B.18", "slope towards the active side of an input at a kink, "
                "where D is set-valued; right form: towards the other side alone",
                off(told, slopes[0]),
                off(told, slopes[1]),
                ("x at no kink", off(right[0] @ weights[0][0], away / 2e-6))),
    ]  # fmt: skip


def tied(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.19: ReLU minus a bias in one hidden layer, and the mean that it takes away."""
    x, w1, w2, b = rng.normal(size=(20, 5)), *(rng.normal(size=s) for s in ((8, 5), (3, 8))), 0.3
    h = np.maximum(x @ w1.T, 0)
    variances = rng.uniform(0.1, 2, size.draws)
    grid = np.linspace(0, 12, 200_001)
    density = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    half = np.trapezoid(grid * density, grid)
    mean = np.sqrt(variances) * half
    return [
        Finding("19 readout", "ReLU(.) - b in a hidden layer is a bias of the readout, -b W2 1",
                "B, erratum B.19", "one hidden layer, random weights, 20 inputs",
                off(h @ w2.T - b * w2.sum(axis=1), (h - b) @ w2.T)),
        Finding("19 b", "A bias of -.2 to -.3 after ReLU takes away its shift to the positive side",
                "B, erratum B.19",
                f"E ReLU(N(0, v)) by quadrature for {size.draws} v from .1 to 2; b = .25 against "
                "it; right form: sqrt(v/2pi)", off(np.full_like(mean, 0.25), mean),
                off(np.sqrt(variances / (2 * np.pi)), mean),
                ("v = .39", abs(0.25 / (np.sqrt(0.39) * half) - 1)), enough=1e-2),
    ]  # fmt: skip
