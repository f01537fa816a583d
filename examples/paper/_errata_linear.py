"""Errata of linear networks: ranks, learning rules, clocks, the bias, modes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from _errata import EXACT, Finding, Size, off, slope
from _paper import fl, initial
from _tree import task_of
from scipy.integrate import solve_ivp


def rank(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E1: sign and extremes of the effective rank, and the Gram matrix."""

    def printed(a: np.ndarray) -> float:
        s = np.linalg.svd(a, compute_uv=False)
        s = s[s > 1e-12 * s[0]] / s.sum()
        return float(-np.exp(-np.sum(s * np.log(s))))

    right = fl.measures.effective_rank
    equal = [np.diag([1.0] * k + [0.0] * (8 - k)) for k in range(1, 9)]
    count = np.arange(1, 9)
    values = np.array([[printed(a) for a in equal], [float(right(a)) for a in equal]])
    draws = [np.diag(rng.random(8)) for _ in range(size.draws)]
    wrong = [
        float(np.mean([f(a) > f(np.eye(8)) for a in draws]))
        for f in (printed, lambda a: float(right(a)))
    ]
    task = task_of("tree")
    hidden = np.asarray(fl.measures.hidden(initial(task, 0), task))
    of_hidden, of_gram = float(right(hidden)), float(right(hidden.T @ hidden))
    less = "smaller" if of_gram < of_hidden else "not smaller"
    return [
        Finding("1 Eq. 1", "The effective rank is rho = -exp(-sum s log s), maximal when all "
                "singular values are equal", "M Eq. 1, erratum E1",
                "matrices with 1 to 8 equal singular values, whose rank is their number; printed "
                f"from {values[0].min():.3g} to {values[0].max():.3g}; of {size.draws} random "
                f"spectra {wrong[0]:.0%} exceed the equal one, {wrong[1]:.0%} without the sign",
                off(values[0], count), off(values[1], count),
                correction="without the minus sign before exp",
                quote="the effective rank of a matrix is defined as: ... rho(A) = -exp(-sum_i "
                "s_i log(s_i)) ... The measure is maximized when all singular values are equal"),
        Finding("1 Gram", "Whether the effective rank of H^T H is that of H",
                "M Sec. 3, caption of Fig. 1; erratum E1",
                f"initial network on the hierarchy: H {of_hidden:.3g}, H^T H {of_gram:.3g}",
                off(of_gram, of_hidden), formula=False, kind="control",
                found=f"no, it is that of the squared singular values, and {less}"),
    ]  # fmt: skip


def diagonal(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E6: when U and V of Eq. 4 exist, and how many columns V has."""

    def errors(task: fl.Task) -> tuple[float, float, float]:
        """Commutator, and errors of V D V^T, V completed and with the modes' columns alone."""
        x = np.c_[np.ones(task.samples), task.x]
        s_x, s_yx = x.T @ x / task.samples, np.asarray(task.y).T @ x / task.samples
        square = s_yx.T @ s_yx
        twist = np.linalg.norm(square @ s_x - s_x @ square)
        v = np.asarray(fl.theory.modes(task, 1.0).v)
        rest = np.linalg.svd(v)[0][:, v.shape[1] :]
        full = np.hstack([v, rest @ np.linalg.eigh(rest.T @ s_x @ rest)[1]])
        first, second = (off(w * np.einsum("ka,kl,la->a", w, s_x, w) @ w.T, s_x) for w in (full, v))
        return float(twist / (np.linalg.norm(square) * np.linalg.norm(s_x))), first, second

    tree, xor = task_of("tree"), task_of("xor")
    cut = fl.Task(tree.x[:-1, :-1], tree.y[:-1])
    at = {"tree": errors(tree), "XOR": errors(xor), "tree without its last item": errors(cut)}
    found = "; ".join(f"{name} {v[0]:.1g}, {v[1]:.1g}" for name, v in at.items())
    return [
        Finding("6 Eq. 4", "Sigma_yx = U S V^T and Sigma_x = V D V^T hold exactly in the paper's "
                "experiments with one-hot inputs or labels", "M Eq. 4, erratum E6",
                "commutator of Sigma_yx^T Sigma_yx and Sigma_x, which has to vanish, and error of "
                f"V D V^T, c = 1: {found}. V needs as many columns as there are inputs: with those "
                f"of Sigma_yx's modes alone the error is {at['XOR'][2]:.2g} on XOR",
                max(at["tree"][1], at["XOR"][1]), formula=False,
                quote="We work under the standard simultaneous-diagonalization condition of Saxe "
                "et al. (2014), which holds exactly in our one-hot experiments"),
    ]  # fmt: skip


def rules(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E2: learning rules of linear networks, all widths equal, else some are not defined."""
    n, p = 4, 6
    x, y = rng.normal(size=(n, p)), rng.normal(size=(n, p))
    weights = rng.normal(size=(2, n, n))
    data = y @ x.T / p, x @ x.T / p
    modes = np.diag(rng.uniform(0.5, 2, n)), np.diag(rng.uniform(0.5, 2, n))
    apart = np.diag(weights[0, 0]), np.diag(weights[1, 0])
    forms = {
        "17": _rules_of(p, data, weights),
        "18": _rules_of(1, data, weights),
        "20": _rules_of(1, modes, weights),
        "20, diagonal weights": _rules_of(1, modes, apart),
    }
    text = "; ".join(
        f"Eq. {name}: {first[0]:.2g}, {second[0]:.2g}" for name, (first, second) in forms.items()
    )
    every = np.array([forms[name] for name in ("17", "18", "20")])
    return [
        Finding("2 Eqs. 17-20", "Delta W1 = eps P W2 Sigma_yx - W2 W1 Sigma_x, Delta W2 = eps P "
                "(Sigma_yx - W2 W1 Sigma_x) W1, and so in the coordinates of the modes",
                "M Eqs. 17, 18, 20; erratum E2",
                "against differences of the loss, random weights, errors of the rules of W1 and W2 "
                f"as printed: {text}; the smallest and the largest of the right form",
                float(every[..., 0].min()), float(every[..., 1].max()),
                correction="eps P W2^T (Sigma_yx - W2 W1 Sigma_x) and eps P (Sigma_yx - W2 W1 "
                "Sigma_x) W1^T",
                quote="Considering the quadratic loss from the setup section this implies updates "
                "of ... Delta W^1 = epsilon P W^2 Sigma^yx - W^2 W^1 Sigma^x; Delta W^2 = epsilon "
                "P (Sigma^yx - W^2 W^1 Sigma^x) W^1"),
    ]  # fmt: skip


def _rules_of(scale: int, data: Any, weights: Any) -> list[tuple[float, float]]:
    """Errors of both rules, printed and right, for so many times the mean half squared error."""
    (s_yx, s_x), (w1, w2) = data, weights

    def loss(a: np.ndarray, b: np.ndarray) -> float:
        w = b @ a  # up to a constant
        return scale * (0.5 * np.trace(w @ s_x @ w.T) - np.trace(w @ s_yx.T))

    wanted = -slope(lambda m: loss(m, w2), w1), -slope(lambda m: loss(w1, m), w2)
    error = scale * (s_yx - w2 @ w1 @ s_x)
    printed = scale * w2 @ s_yx - w2 @ w1 @ s_x, error @ w1
    right = w2.T @ error, error @ w1.T
    return [(off(p, w), off(r, w)) for p, r, w in zip(printed, right, wanted, strict=True)]


def modes_rule(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E3: the rule of a mode's strength against the slope of Eq. 22, its solution."""
    s, a0 = rng.uniform(0.5, 2, size.draws), rng.uniform(0.01, 0.2, size.draws)
    t = rng.uniform(0, 3, size.draws)

    def errors(d: np.ndarray) -> tuple[float, float]:
        def eq22(time):
            return s / d / (1 - (1 - s / (d * a0)) * np.exp(-2 * s * time))

        h = 1e-3
        rate = (8 * (eq22(t + h) - eq22(t - h)) - eq22(t + 2 * h) + eq22(t - 2 * h)) / (12 * h)
        w = eq22(t)
        return off(2 * w * (s - w), rate), off(2 * w * (s - d * w), rate)

    printed, right = errors(rng.uniform(0.2, 0.8, size.draws))
    return [
        Finding("3 Eq. 21", "tau dw/dt = 2 w (s - w), with Eq. 22 as its solution",
                "M Eq. 21, erratum E3", f"against the slope of Eq. 22, {size.draws} draws",
                printed, right, ("d = 1", errors(np.ones(size.draws))[0]),
                correction="tau dw/dt = 2 w (s - d w)",
                quote="We can then track the general strength of a particular mode of the dataset "
                "that is being learned via a scalar ... tau d/dt omega_alpha = 2 omega_alpha "
                "(s_alpha - omega_alpha) ... Integrating this equation and rearranging terms"),
    ]  # fmt: skip


def clocks(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E4: steps per unit of time, read off single steps of descent, each on its own loss."""
    task = task_of("tree")
    x, y = np.asarray(task.x), np.asarray(task.y)
    (p, k), batch, rate = y.shape, 4, 1e-3
    w = 0.1 * rng.normal(size=(k, x.shape[1]))
    rows = np.arange(p).reshape(-1, batch)

    def squares(m: np.ndarray, some: np.ndarray) -> float:
        return float(np.sum((y[some] - x[some] @ m.T) ** 2))

    def step(value: Callable[[np.ndarray], float]) -> np.ndarray:
        return -rate * slope(value, w)

    every = np.arange(p)
    flow = -slope(lambda m: 0.5 * squares(m, every) / p, w)
    conventions = fl.LossConvention
    steps = {
        conventions.HALF_SUM: step(lambda m: 0.5 * squares(m, every)),
        conventions.HALF_MEAN: step(lambda m: 0.5 * squares(m, every) / p),
        conventions.MEAN: step(lambda m: squares(m, every) / p),
        conventions.TORCH_MEAN: step(lambda m: squares(m, every) / (p * k)),
        conventions.BATCH_HALF_SUM: np.mean(
            [step(lambda m, some=some: 0.5 * squares(m, some)) for some in rows], axis=0
        ),
    }
    # Time that a step takes: its length along the flow's velocity.
    measured = {c: float(np.sum(flow**2) / np.sum(flow * moved)) for c, moved in steps.items()}
    sizes = {"samples": p, "outputs": k, "batch_size": batch}
    clock = {c: fl.StepClock(rate, c, **sizes).steps_per_time for c in steps}
    right = max(abs(clock[c] / measured[c] - 1) for c in steps)
    text = ", ".join(f"{c.name.lower()} {n:.5g}" for c, n in measured.items())
    half_sum, batch_sum = (measured[c] for c in (conventions.HALF_SUM, conventions.BATCH_HALF_SUM))
    tau = 1 / (p * rate)
    same = [c.name.lower() for c, n in measured.items() if abs(tau / n - 1) < EXACT]
    return [
        Finding("4 tau", "tau is 1/(P eps) steps, and t is in epochs",
                "M App. B after Eq. 18, Eq. 22; W App. A; erratum E4",
                f"half the summed squared error: {half_sum:.5g} steps measured with all {p} "
                f"samples in a step, {batch_sum:.5g} with {batch} in each of the {p // batch} "
                "steps of an epoch; Eq. 22 and W write N, the number of samples there, for P",
                max(abs(tau / half_sum - 1), abs(tau / (batch_sum * batch / p) - 1)),
                max(abs(clock[c] / measured[c] - 1)
                    for c in (conventions.HALF_SUM, conventions.BATCH_HALF_SUM)),
                quote="Here tau = 1/(P epsilon) is the learning time constant and t give the "
                "units of learning in terms of epochs."),
        Finding("4 losses", "tau for other losses and batches", "M App. B, App. E; erratum E4",
                f"steps by loss: {text}; the clock of this library is off by {right:.1g}",
                max(abs(tau / n - 1) for n in measured.values()), right, formula=False,
                kind="control", found=f"1/(P eps) steps for {' and '.join(same)} alone"),
    ]  # fmt: skip


def augmentation(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E5: the bias counted twice, the tilde dropped, the factor c of the bias's velocity."""
    task = task_of("tree")

    def errors(c: float) -> dict[str, float]:
        network = initial(task, 0, bias_strength=c)
        (w1, w2), b = map(np.asarray, network.weights), np.asarray(network.biases[0])
        x, y = np.asarray(task.x), np.asarray(task.y)
        z, target = x @ w1.T + c * b, np.asarray(network.outputs(task.x))
        linear = (x @ w1.T + c * b) @ w2.T

        def relu(z: np.ndarray) -> np.ndarray:
            return np.maximum(z, 0)

        def loss(bias: np.ndarray) -> float:
            return 0.5 * np.sum((y - relu(x @ w1.T + c * bias) @ w2.T) ** 2)

        rate = (((y - target) @ w2) * (z > 0)).sum(axis=0)
        moved = -slope(loss, b, 1e-6)
        return {
            "double": off(relu(z + b) @ w2.T, target),
            "tilde": off(x @ w1.T @ w2.T, linear),
            "rate": off(rate, moved),
            "right rate": off(c * rate, moved),
            "right effective": off(c**2 * rate, c * moved),
            "outputs": off(relu(z) @ w2.T, target),
            "right linear": off(np.c_[np.full(len(x), c), x] @ np.c_[b, w1].T @ w2.T, linear),
        }

    at, one = errors(3.0), errors(1.0)
    text = "initial network on the hierarchy, c = 3"
    return [
        Finding("5 Eq. 2", "The ReLU network is W2 sigma(W~1 x + b)",
                "M Eq. 2, App. C.3; W Sec. 2, App. B; erratum E5",
                f"{text}; W~1 x read as W~1 x~, else it is undefined; outputs against sigma(W~1 "
                "x~), the definition below it", at["double"], at["outputs"],
                correction="W1 without the tilde; or W~1 x~ without b, as the text says below it",
                quote="We consider two layer linear networks and ReLU networks, ... y^_i^(ReLU) = "
                "W^2 sigma(W~^1 x_i + b)"),
        Finding("5 Eqs. 6, 15", "The network is W2 W~1 x, without the tilde on x",
                "M Eq. 6, Eq. 15; erratum E5", f"{text}, linear; x filled up with a zero",
                at["tilde"], at["right linear"], correction="x~ in place of x",
                quote="by writing the network mapping in terms of the dataset singular vectors ... "
                "y^_i^(lin) = W^2(t) (W^1(t) x_i + b(t)) = W^2(t) W~^1(t) x_i = U A(t) V^T x_i"),
        Finding("5 Eq. 10", "The bias flows as in Eq. 10", "M Eq. 10, erratum E5",
                f"{text}; against differences of the loss; with the factor c that is missing; c b "
                f"itself flows with c^2 ({at['right effective']:.1g})",
                at["rate"], at["right rate"],
                ("c = 1, the default of Sec. 5.1, for which z = W1 x + b of Sec. 5.3 stands",
                 one["rate"]), left_open=True, enough=1e-4,
                quote="Writing z_i = W^1 x_i + b, ... then full-batch gradient flow gives ... "
                "b' = epsilon ([W^2T (Y - W^2 H)] . sigma'(Z)) 1"),
    ]  # fmt: skip


def zero_modes(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E7: Eq. 7 where s = 0, against a Runge-Kutta solution of the mode."""
    t, a0 = np.linspace(0, 5, 11), 0.3

    def errors(s: float, d: float) -> tuple[float, float]:
        run = solve_ivp(lambda _, a: 2 * a * (s - d * a), (0, 5), [a0], t_eval=t,
                        rtol=1e-10, atol=1e-12)  # fmt: skip
        with np.errstate(all="ignore"):
            s_, d_ = np.float64(s), np.float64(d)
            printed = s_ / d_ / (1 - (1 - s_ / (d_ * a0)) * np.exp(-2 * s_ * t))
        return off(printed, run.y[0]), off(fl.theory.mode_strength(t, s, d, a0), run.y[0])

    zero, still = errors(0.0, 1.0), errors(0.0, 0.0)
    return [
        Finding("7 Eq. 7", "a(t) of Eq. 7 is the strength of every mode",
                "M Eq. 7, Eq. 22; erratum E7",
                f"s = 0, d = 1 and s = d = 0, as modes of the completed V have; a0 = {a0}, t up to "
                "5, against Runge-Kutta; right form: a0/(1 + 2 a0 d t)",
                max(zero[0], still[0]), max(zero[1], still[1]),
                ("s > 0", errors(0.5, 1.0)[0]),
                quote="whose diagonal entries evolve as ... a_alpha(t) = (s_alpha / d_alpha) / (1 "
                "- (1 - s_alpha / (d_alpha a_0)) exp(-2 s_alpha t / tau))"),
    ]  # fmt: skip


def gating(size: Size, rng: np.random.Generator) -> list[Finding]:
    """E12: the maps of Eq. 25 against least squares, and the gates that it leaves out."""

    def errors(white: bool) -> tuple[float, float]:
        x, y = rng.normal(size=(6, 20)), rng.normal(size=(4, 20))
        if white:
            x = np.sqrt(20) * np.linalg.qr(x.T)[0].T
        else:  # variances that commute with the correlation
            q, half = np.linalg.qr(x.T)[0].T, np.diag(rng.uniform(0.5, 2, 6))
            x, y = np.sqrt(20) * half @ q, np.eye(4, 6) @ np.diag(rng.uniform(1, 2, 6)) @ q
        u, s, vt = np.linalg.svd(y @ x.T / 20, full_matrices=False)
        d = np.einsum("ki,ij,kj->k", vt, x @ x.T / 20, vt)
        solved = y @ np.linalg.pinv(x)
        return off(u * s @ vt, solved), off(u * (s / d) @ vt, solved)

    printed, right = errors(white=False)
    task = task_of("tree")
    network = initial(task, 0)
    (w1, w2), b = map(np.asarray, network.weights), np.asarray(network.biases[0])
    live = np.any(np.asarray(fl.measures.hidden(network, task)) > 0, axis=0)
    augmented = np.c_[b, w1]
    gated = w2 * live @ augmented
    frozen = fl.LinearNetwork((w1 * np.expand_dims(live, 1), w2), (b * live, None))
    matrix, offset = map(np.asarray, frozen.affine())
    bare, mended = (off(w, np.c_[offset, matrix]) for w in (w2 @ augmented, gated))
    return [
        Finding("12 Eq. 25", "The maps are U sqrt(S) R^T R sqrt(S) V^T, and W2 W1 with gates",
                "M Eq. 25, erratum E12",
                f"S, against least squares {printed:.2g}, with A = S/D {right:.2g} (whitened "
                f"inputs, D = 1: S {errors(white=True)[0]:.1g}); gates, initial network on the "
                f"hierarchy against the one without its dead units ({1 - np.mean(live):.0%}): W2 "
                f"W1 {bare:.2g}, W2 G W1 {mended:.2g}; the larger ones",
                max(printed, bare), max(right, mended),
                correction="sqrt(A), A = S/D, in place of sqrt(S), and W2 G W1, both as in the "
                "next displays",
                quote="To begin we define two network mappings: ... Y^_linear = W_2 W_1 = U "
                "sqrt(S) R^T R sqrt(S) V^T; Y^_relu = W_2 W_1 = U sqrt(S) R~^T G R~ sqrt(S) V^T"),
    ]  # fmt: skip
