"""Errata of linear networks: ranks, learning rules, clocks, the bias, modes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from _errata import Finding, Size, off, slope
from _paper import fl, initial
from _tree import modes_of, task_of
from scipy.integrate import solve_ivp


def rank(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.1: sign and extremes of the effective rank, and the Gram matrix."""

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
    alike = np.linalg.qr(hidden)[0]
    return [
        Finding("1 sign", "The effective rank is rho = -exp(-sum s log s)", "M Eq. 1, erratum B.1",
                "matrices with 1 to 8 equal singular values, whose rank is their number; printed "
                f"from {values[0].min():.3g} to {values[0].max():.3g}",
                off(values[0], count), off(values[1], count)),
        Finding("1 maximum", "It is maximal when all singular values are equal",
                "M Eq. 1, erratum B.1",
                f"share of {size.draws} random spectra that exceed the equal one",
                wrong[0], wrong[1]),
        Finding("1 Gram", "rho(H^T H) is the effective rank of the representations H",
                "M Sec. 3, caption of Fig. 1B; erratum B.1",
                f"initial network on the hierarchy: H {of_hidden:.3g}, H^T H {of_gram:.3g}, which "
                "is that of the squared singular values",
                off(of_gram, of_hidden), None,
                ("equal singular values", off(right(alike.T @ alike), right(alike)))),
    ]  # fmt: skip


def rules(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.2: learning rules of linear networks, all widths equal, else some are not defined."""
    n, p = 4, 6
    x, y = rng.normal(size=(n, p)), rng.normal(size=(n, p))
    w1, w2 = rng.normal(size=(2, n, n))
    data = y @ x.T / p, x @ x.T / p
    modes = np.diag(rng.uniform(0.5, 2, n)), np.diag(rng.uniform(0.5, 2, n))
    symmetric = "symmetric weights", (w1 + w1.T, w2 + w2.T)
    diagonal = "diagonal weights", (np.diag(w1[0]), np.diag(w2[0]))
    return [
        *_rules_of("17", p, data, (w1, w2), symmetric),
        *_rules_of("18", 1, data, (w1, w2), symmetric),
        *_rules_of("20", 1, modes, (w1, w2), diagonal),
    ]


def _rules_of(equation: str, scale: int, data: Any, weights: Any, special: Any) -> list[Finding]:
    """Both rules of an equation, for a loss of so many times the mean half squared error."""
    s_yx, s_x = data

    def loss(a: np.ndarray, b: np.ndarray) -> float:
        w = b @ a  # up to a constant
        return scale * (0.5 * np.trace(w @ s_x @ w.T) - np.trace(w @ s_yx.T))

    def errors(a: np.ndarray, b: np.ndarray) -> list[tuple[float, float]]:
        first, second = -slope(lambda m: loss(m, b), a), -slope(lambda m: loss(a, m), b)
        error = scale * (s_yx - b @ a @ s_x)
        printed = scale * b @ s_yx - b @ a @ s_x, error @ a
        right = b.T @ error, error @ a.T
        return [(off(printed[k], value), off(right[k], value)) for k, value in
                enumerate((first, second))]  # fmt: skip

    name, values = special
    return [
        Finding(
            f"2 Eq. {equation}, W{k + 1}",
            f"The rule of W{k + 1} is as in Eq. {equation}, without transposes"
            + (", P on the first term alone" if (equation, k) == ("17", 0) else ""),
            f"M Eq. {equation}, erratum B.2",
            "against differences of the loss, random weights",
            *found,
            condition=(name, there[0]),
        )
        for k, (found, there) in enumerate(zip(errors(*weights), errors(*values), strict=True))
    ]


def modes_rule(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.3: the rule of a mode's strength against the slope of Eq. 22, its solution."""
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
                "M Eq. 21, erratum B.3", f"against the slope of Eq. 22, {size.draws} draws",
                printed, right, ("d = 1", errors(np.ones(size.draws))[0])),
    ]  # fmt: skip


def clocks(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.4: steps per unit of time, read off single steps of descent, each on its own loss."""
    task = task_of("tree")
    x, y = np.asarray(task.x), np.asarray(task.y)
    (p, k), batch, rate, hidden = y.shape, 4, 1e-3, 64
    w = 0.1 * rng.normal(size=(k, x.shape[1]))
    rows = np.arange(p).reshape(-1, batch)

    def squares(m: np.ndarray, some: np.ndarray) -> float:
        return float(np.sum((y[some] - x[some] @ m.T) ** 2))

    def step(value: Callable[[np.ndarray], float]) -> np.ndarray:
        return -rate * slope(value, w)

    every = np.arange(p)
    flow = -slope(lambda m: 0.5 * squares(m, every) / p, w)
    conventions = fl.Convention
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
    return [
        Finding("4 Eq. 18", "tau = 1/(P eps) steps", "M App. B Eq. 18, App. E, erratum B.4",
                f"half the summed squared error, measured {half_sum:.5g} steps",
                abs(tau / half_sum - 1), abs(clock[conventions.HALF_SUM] / half_sum - 1)),
        Finding("4 Eq. 22", "tau = 1/(N eps)", "M Eq. 22, erratum B.4",
                f"measured {half_sum:.5g} steps; N the hidden size, {hidden}, as in Sec. 5",
                abs(1 / (hidden * rate) / half_sum - 1),
                abs(clock[conventions.HALF_SUM] / half_sum - 1),
                ("N the number of samples", abs(tau / half_sum - 1))),
        Finding("4 other losses", "tau is the same on images, whose loss may be a sum or a mean",
                "M App. B, App. E; erratum B.4", f"steps by loss: {text}",
                max(abs(tau / n - 1) for n in measured.values()), right,
                ("half the sum over all samples", abs(tau / half_sum - 1))),
        Finding("4 mini-batch", "In mini-batch training t gives the units of learning in epochs",
                "M App. B, erratum B.4",
                f"half the sum over {batch} of {p} samples, {p // batch} steps an epoch",
                abs(tau / (batch_sum * batch / p) - 1),
                abs(clock[conventions.BATCH_HALF_SUM] / batch_sum - 1)),
    ]  # fmt: skip


def augmentation(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.5: the bias counted twice, the tilde dropped, the factor c of the bias's velocity."""
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
            "effective": off(rate, c * moved),
            "right effective": off(c**2 * rate, c * moved),
            "outputs": off(relu(z) @ w2.T, target),
            "right linear": off(np.c_[np.full(len(x), c), x] @ np.c_[b, w1].T @ w2.T, linear),
        }

    at, one = errors(3.0), errors(1.0)
    text = "initial network on the hierarchy, c = 3"
    return [
        Finding("5 Eq. 2", "The hidden layer is sigma(W~1 x~ + b)",
                "M Eq. 2, App. C.3; erratum B.5",
                f"{text}; outputs against sigma(W~1 x~), the definition below it",
                at["double"], at["outputs"]),
        Finding("5 Eq. 6", "The network is W2 W~1 x, without the tilde on x",
                "M Eq. 6, Eq. 15; erratum B.5", f"{text}, linear; x filled up with a zero",
                at["tilde"], at["right linear"]),
        Finding("5 Eq. 10", "The bias flows as in Eq. 10, without a factor c",
                "M Eq. 10, erratum B.5", f"{text}; against differences of the loss",
                at["rate"], at["right rate"], ("c = 1", one["rate"]), enough=1e-4),
        Finding("5 c b", "The effective bias c b flows as b does in Eq. 10, not at c^2 the rate",
                "M Eq. 10, erratum B.5", f"{text}; against differences of the loss",
                at["effective"], at["right effective"], ("c = 1", one["effective"]), enough=1e-4),
    ]  # fmt: skip


def zero_modes(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.7: Eq. 7 where s = 0, against a Runge-Kutta solution of the mode."""
    t, a0 = np.linspace(0, 5, 11), 0.3

    def errors(s: float, d: float) -> tuple[float, float]:
        run = solve_ivp(lambda _, a: 2 * a * (s - d * a), (0, 5), [a0], t_eval=t,
                        rtol=1e-10, atol=1e-12)  # fmt: skip
        with np.errstate(all="ignore"):
            s_, d_ = np.float64(s), np.float64(d)
            printed = s_ / d_ / (1 - (1 - s_ / (d_ * a0)) * np.exp(-2 * s_ * t))
        return off(printed, run.y[0]), off(fl.theory.mode_strength(t, s, d, a0), run.y[0])

    driven = ("s > 0", errors(0.5, 1.0)[0])
    text = f"a0 = {a0}, t up to 5, against Runge-Kutta"
    return [
        Finding("7 s = d = 0", "Eq. 7 holds for every mode, those without data too",
                "M Eq. 7, erratum B.7", f"s = d = 0, a constant; {text}", *errors(0.0, 0.0),
                condition=driven),
        Finding("7 s = 0", "Eq. 7 holds for every mode, those without targets too",
                "M Eq. 7, erratum B.7", f"s = 0, d = 1: a0/(1 + 2 a0 d t); {text}",
                *errors(0.0, 1.0), condition=driven),
    ]  # fmt: skip


def gating(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.12: the maps of Eq. 25 against least squares, and the gates that it leaves out."""

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
    return [
        Finding("12 Eq. 25", "A trained network's map is U sqrt(S) R^T R sqrt(S) V^T",
                "M Eq. 25, erratum B.12",
                "against least squares; right form: A = S/D in place of S",
                printed, right, ("whitened inputs (D = 1)", errors(white=True)[0])),
        Finding("12 gates", "Y-hat_relu = W2 W1, with G on the right-hand side alone",
                "M Eq. 25, erratum B.12",
                f"initial network on the hierarchy, {1 - np.mean(live):.0%} of the units dead, "
                "against the network without them; right form: W2 G W1",
                off(w2 @ augmented, np.c_[offset, matrix]), off(gated, np.c_[offset, matrix])),
    ]  # fmt: skip


def rates(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.19: what fixed points and rates of modes depend on, from Runge-Kutta solutions."""

    def end(s: float, d: float) -> float:
        run = solve_ivp(lambda _, a: 2 * a * (s - d * a), (0, 60), [1e-3], rtol=1e-10, atol=1e-12)
        return float(run.y[0, -1])

    modes = modes_of("tree", 1.0)
    return [
        Finding("19 fixed point", "The fixed point depends on Sigma_x, the time course on Sigma_yx",
                "C, erratum B.19",
                "fixed point of a mode when s doubles and d stays; right form: s/d (on the "
                f"hierarchy {', '.join(f'{v:.3g}' for v in np.asarray(modes.full_strength)[:3])})",
                off(end(1.0, 0.5), end(2.0, 0.5)), off(2.0 / 0.5, end(2.0, 0.5)),
                ("Sigma_yx given", off(end(1.0, 0.5) / 2, end(1.0, 1.0)))),
    ]  # fmt: skip
