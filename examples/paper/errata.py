r"""Errata of the papers: each formula as printed and in its right form, against a reference.

What the scripts of the figures do not look at already: Eqs. 1, 2, 6, 8-11, 17-22, 25, t* and
Apps. D and E of the lead paper, the effective weights' Eq. 3 (L), ReLU minus a bias (B), and rates
and fixed points (C). References are finite differences of the loss, counting, least squares,
Runge-Kutta solutions and flows of the hierarchy task; every error is relative to what the formula
stands for, and one that is undefined counts as 1. A printed form that is right under a condition
is computed under it too.

    python examples/paper/errata.py [--quick | --full]
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
from _paper import Row, Study, fl, initial
from _tree import PAPER, Case, Setting, linearization, modes_of, runs, task_of
from matplotlib.figure import Figure
from scipy.integrate import solve_ivp

EXACT = 1e-6  # relative error up to which a formula is right, unless it is an approximation


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: random draws, seeds of flows, time at which early laws are looked at, runs'."""

    draws: int = 100
    seeds: int = 3
    early: int = 26  # index into the saved times
    setting: Setting = PAPER


SIZES = {"quick": Size(), "default": Size(), "full": Size()}


@dataclasses.dataclass(frozen=True)
class Finding:
    """A printed form's error and the right form's, and where the printed form is right too.

    - `erratum`: number in the list of errata, and a word for the figure.
    - `claim`, `source`, `measured`: as in `Row`; the errors are added to `measured`.
    - `printed`, `right`: errors; `right` is None where nothing is put in the claim's place.
    - `condition`: what makes the printed form right, and its error then.
    - `enough`: error up to which a form counts as right.
    """

    erratum: str
    claim: str
    source: str
    measured: str
    printed: float
    right: float | None = None
    condition: tuple[str, float] | None = None
    enough: float = EXACT

    @property
    def row(self) -> Row:
        """The verdict."""
        text = f"error as printed {self.printed:.2g}"
        text += "" if self.right is None else f", right form {self.right:.2g}"
        verdict = "does not hold"
        if self.printed <= self.enough:
            verdict = "holds"
        elif self.condition is not None:
            text += f"; printed form with {self.condition[0]}: {self.condition[1]:.2g}"
            if self.condition[1] <= self.enough:
                verdict = f"holds under a condition: {self.condition[0]}"
        return Row(self.claim, self.source, f"{self.measured}: {text}", verdict)


def off(found: Any, reference: Any) -> float:
    """Relative distance of two arrays; 1 where it is undefined."""
    found, reference = np.asarray(found), np.asarray(reference)
    value = np.linalg.norm(found - reference) / np.linalg.norm(reference)
    return float(value) if np.isfinite(value) else 1.0


def slope(value: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """Gradient by central differences of fourth order."""
    found = np.empty_like(at)
    for index in np.ndindex(at.shape):
        shift = np.zeros_like(at)
        shift[index] = step
        near, far = (value(at + k * shift) - value(at - k * shift) for k in (1, 2))
        found[index] = (8 * near - far) / (12 * step)
    return found


def compute(size: Size) -> list[Finding]:
    """All errata."""
    rng = np.random.default_rng(0)
    parts: list[Callable[[Size, np.random.Generator], Sequence[Finding]]] = [
        rank, rules, modes_rule, clocks, augmentation, zero_modes, early_law, growth, gating,
        linearization_times, explained, effective_weights, tied, rates,
    ]  # fmt: skip
    return [finding for part in parts for finding in part(size, rng)]


def rank(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.1: sign and extremes of the effective rank, and the Gram matrix."""

    def printed(a: np.ndarray) -> float:
        s = np.linalg.svd(a, compute_uv=False)
        s = s[s > 1e-12 * s[0]] / s.sum()
        return -np.exp(-np.sum(s * np.log(s)))

    right = fl.measures.effective_rank
    equal = [np.diag([1.0] * k + [0.0] * (8 - k)) for k in range(1, 9)]
    count = np.arange(1, 9)
    values = np.array([[printed(a) for a in equal], [float(right(a)) for a in equal]])
    draws = [np.diag(rng.random(8)) for _ in range(size.draws)]
    wrong = [
        np.mean([f(a) > f(np.eye(8)) for a in draws]) for f in (printed, lambda a: float(right(a)))
    ]
    task = task_of("tree")
    hidden = np.asarray(fl.measures.hidden(initial(task, 0), task))
    of_hidden, of_gram = float(right(hidden)), float(right(hidden.T @ hidden))
    s = np.linalg.svd(hidden, compute_uv=False)
    return [
        Finding("1 sign", "The effective rank is rho = -exp(-sum s log s)", "M Eq. 1, erratum B.1",
                "matrices with 1 to 8 equal singular values, whose rank is their number; printed "
                f"from {values[0].min():.3g} to {values[0].max():.3g}",
                off(values[0], count), off(values[1], count)),
        Finding("1 maximum", "It is maximal when all singular values are equal",
                "M Eq. 1, erratum B.1",
                f"share of {size.draws} random spectra that exceed the equal one", *wrong),
        Finding("1 Gram", "The effective rank of H^T H is that of the representations H",
                "M Sec. 3, erratum B.1",
                f"initial network on the hierarchy: H {of_hidden:.3g}, H^T H {of_gram:.3g}, which "
                "is that of the squared singular values",
                off(of_gram, of_hidden), off(printed(np.diag(s**2)), -of_gram)),
    ]  # fmt: skip


def rules(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.2: learning rules of linear networks, all widths equal, else some are not defined."""
    n, p = 4, 6
    x, y = rng.normal(size=(n, p)), rng.normal(size=(n, p))
    u, s, vt = np.linalg.svd(rng.normal(size=(n, n)))
    modes = np.diag(s), np.diag(rng.uniform(0.5, 2, n))
    full = y @ x.T / p, x @ x.T / p
    w1, w2 = rng.normal(size=(2, n, n))
    found = []
    for equation, scale, (s_yx, s_x) in (("17", p, full), ("18", 1, full), ("20", 1, modes)):

        def loss(a: np.ndarray, b: np.ndarray, s_yx=s_yx, s_x=s_x) -> float:
            w = b @ a  # mean half squared error up to a constant
            return 0.5 * np.trace(w @ s_x @ w.T) - np.trace(w @ s_yx.T)

        def first(a, b, transposed, scale=scale, s_yx=s_yx, s_x=s_x):
            if transposed:
                return scale * b.T @ (s_yx - b @ a @ s_x)
            return scale * b @ s_yx - b @ a @ s_x

        def second(a, b, transposed, scale=scale, s_yx=s_yx, s_x=s_x):
            return scale * (s_yx - b @ a @ s_x) @ (a.T if transposed else a)

        def errors(rule, a, b, which, scale=scale, loss=loss):
            value = (lambda v: loss(v, b)) if which == 1 else (lambda v: loss(a, v))
            reference = -scale * slope(value, a if which == 1 else b)
            return [off(rule(a, b, transposed), reference) for transposed in (False, True)]

        special = (w1 + w1.T, w2 + w2.T) if equation != "20" else tuple(map(np.diag, (w1[0], w2[0])))
        name = "symmetric weights" if equation != "20" else "diagonal weights"
        for which, rule in ((1, first), (2, second)):
            found.append(
                Finding(
                    f"2 Eq. {equation}, W{which}",
                    f"The rule of W{which} is as in Eq. {equation}, without transposes"
                    + (", P on the first term alone" if (equation, which) == ("17", 1) else ""),
                    f"M Eq. {equation}, erratum B.2",
                    "against differences of the loss, random weights",
                    *errors(rule, w1, w2, which),
                    condition=(name, errors(rule, *special, which)[0]),
                )
            )
    del u, vt
    return found


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
                f"half the summed squared error, measured {half_sum:.5g} steps", tau / half_sum - 1,
                abs(clock[conventions.HALF_SUM] / half_sum - 1)),
        Finding("4 Eq. 22", "tau = 1/(N eps)", "M Eq. 22, erratum B.4",
                f"measured {half_sum:.5g} steps; N the hidden size, {hidden}, as in Sec. 5",
                abs(1 / (hidden * rate) / half_sum - 1),
                abs(clock[conventions.HALF_SUM] / half_sum - 1),
                ("N the number of samples", abs(tau / half_sum - 1))),
        Finding("4 other losses", "tau = 1/(P eps) steps whatever is called the loss",
                "M App. B, erratum B.4", f"steps by loss: {text}",
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
        relu = lambda z: np.maximum(z, 0)  # noqa: E731
        linear = (x @ w1.T + c * b) @ w2.T

        def loss(bias):
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

    at, one, none = errors(3.0), errors(1.0), errors(0.0)
    text = "initial network on the hierarchy, c = 3"
    return [
        Finding("5 Eq. 2", "The hidden layer is sigma(W~1 x~ + b)", "M Eq. 2, App. C.3; erratum B.5",
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
        early = fl.theory.early_phase(first, task, t1=t).network(t)
        shift = np.asarray(now.weights[0]) - np.asarray(first.weights[0])
        moved = np.asarray(early.weights[0]) - np.asarray(first.weights[0])
        forms = (law(grown), law(t * grown), law(np.asarray(w2) + t * grown))
        found.append([*(off(form, velocity) for form in forms), off(moved, shift)])
    eq11, timed, kept, exact = np.mean(found, axis=0)
    text = f"velocity of W1 at t = {t:.2g} in the flow of {size.seeds} networks on the hierarchy"
    return [
        Finding("8 Eq. 11", "Early on dW1/dt = eps^2 (H Y^T Y . sigma') X^T",
                "M Eq. 11, Eq. 24; erratum B.8",
                f"{text}; with the factor t that is missing {timed:.2g}, with W2(0) too {kept:.2g};"
                " right form: exact early phase, shift of W1 up to then",
                float(eq11), float(exact), enough=0.1),
        Finding("8 W2(0)", "W2(0) can be left out of the early law",
                "M Eq. 11, Eq. 24; erratum B.8", f"{text}, with the factor t; right form: kept",
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
        chosen = live & (fate != 0)
        fates.append((np.mean(ended[chosen] != fate[chosen]), np.mean(fate[live] > 0)))
    wrong, positive = np.mean(fates, axis=0)
    t = float(size.setting.ts[size.early])
    return [
        Finding("8 growth", "With element-wise positive outputs the biases can only grow",
                "M Sec. 5.3, erratum B.8",
                f"share of the live units whose bias falls before t = {t:.2g} ({size.seeds} seeds); "
                "right form: share of them that the sign of their component along the top pair of "
                f"M_j at t = 0 does not sort into on ({positive:.0%}) and off at t*",
                float(np.mean(falls)), float(wrong), enough=0.1),
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
    live = np.asarray(fl.measures.hidden(network, task)).any(axis=0)
    augmented = np.c_[b, w1]
    gated = w2 * live @ augmented
    frozen = fl.LinearNetwork((w1 * live[:, None], w2), (b * live, None))
    matrix, offset = map(np.asarray, frozen.affine())
    return [
        Finding("12 Eq. 25", "A trained network's map is U sqrt(S) R^T R sqrt(S) V^T",
                "M Eq. 25, erratum B.12", "against least squares; right form: A = S/D in place of S",
                printed, right, ("whitened inputs (D = 1)", errors(white=True)[0])),
        Finding("12 gates", "Y-hat_relu = W2 W1, with G on the right-hand side alone",
                "M Eq. 25, erratum B.12",
                f"initial network on the hierarchy, {np.mean(~live):.0%} of the units dead, against "
                "the network without them; right form: W2 G W1",
                off(w2 @ augmented, np.c_[offset, matrix]), off(gated, np.c_[offset, matrix])),
    ]  # fmt: skip


def linearization_times(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.13: t* needs the whole run; a detector that goes along stops at the first fall."""
    starts, starred, lasts, horizons = [], [], [], []
    for flow in _flows(size):
        line = linearization(flow)
        counts = line.open_counts
        time, on = np.asarray(counts.time), np.asarray(counts.on)
        time, on = time[np.isfinite(time)], on[np.isfinite(time)]
        fall = np.flatnonzero(np.diff(on) < 0)
        starts.append(time[fall[0] + 1] if len(fall) else size.setting.t1)
        starred.append(float(line.open.time))
        lasts.append(float(line.open.lasts))
        cut = [time[: np.searchsorted(time, end)] for end in (2.0, 5.0, 10.0, size.setting.t1)]
        horizons.append([times[np.argmax(on[: len(times)])] for times in cut])
    early, star = np.array(starts), np.array(starred)
    times = np.mean(horizons, axis=0)
    return [
        Finding("13 t*", "t* = arg min{t : f_on(t) = max_s f_on(s)} can be found while training",
                "M Sec. 5.4, erratum B.13",
                f"the first fall of f_on comes at t = {early.mean():.3g}, t* is {star.mean():.3g} "
                f"({size.seeds} seeds, open gates); t* for runs up to 2, 5, 10, "
                f"{size.setting.t1:g}: {', '.join(f'{v:.3g}' for v in times)}; f_on is a step "
                f"function and stays at its maximum for {np.mean(lasts):.2g}",
                float(np.mean(np.abs(early / star - 1))), off(np.array(horizons)[:, -1], star)),
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
    fits = [float(fl.measures.variance_explained(f, labels)) for f in (s, c)]
    full = [float(fl.measures.variance_explained(f, np.asarray(task.y))) for f in (s, c)]
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
    outputs = np.asarray(network.outputs(x))
    printed = (outputs > 0)[:, :, None] * right

    def map_of(matrices: np.ndarray) -> np.ndarray:
        return np.einsum("pij,pj->pi", matrices, x)

    h = np.maximum(np.maximum(x @ weights[0].T, 0) @ weights[1].T, 0)
    kink = x[0] - weights[0][0] * (weights[0][0] @ x[0]) / (weights[0][0] @ weights[0][0])
    side = 1e-6 * weights[0][0]
    value = lambda at: np.asarray(network.outputs(at[None]))[0]  # noqa: E731
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
                "where D is set-valued; right form: towards the other side", off(told, slopes[0]),
                off(told, slopes[1]),
                ("x at no kink", off(right[0] @ weights[0][0], away / 2e-6))),
    ]  # fmt: skip


def tied(size: Size, rng: np.random.Generator) -> list[Finding]:
    """B.19: ReLU minus a bias in one hidden layer, and the mean that it takes away."""
    x, w1, w2, b = rng.normal(size=(20, 5)), *(rng.normal(size=s) for s in ((8, 5), (3, 8))), 0.3
    h = np.maximum(x @ w1.T, 0)
    variances = rng.uniform(0.1, 2, size.draws)
    z, weight = np.polynomial.hermite_e.hermegauss(2)
    del z, weight
    grid = np.linspace(0, 12, 200_001)
    density = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    half = np.trapezoid(grid * density, grid)
    mean = np.sqrt(variances) * half
    return [
        Finding("19 readout", "ReLU(.) - b in a hidden layer is a bias of the readout, -b W2 1",
                "B, erratum B.19", "one hidden layer, random weights, 20 inputs",
                off(h @ w2.T - b * w2.sum(axis=1), (h - b) @ w2.T)),
        Finding("19 b", "A bias of .2 to .3 makes up for ReLU's positive mean, for any input",
                "B, erratum B.19",
                f"E ReLU(N(0, v)) by quadrature for {size.draws} v from .1 to 2; b = .25 against "
                "it; right form: sqrt(v/2pi)", off(np.full_like(mean, 0.25), mean),
                off(np.sqrt(variances / (2 * np.pi)), mean),
                ("v = .39", abs(0.25 / (np.sqrt(0.39) * half) - 1)), enough=1e-2),
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
                off(end(1.0, 0.5), end(2.0, 0.5)), off(2.0 / 0.5, end(2.0, 0.5))),
    ]  # fmt: skip


def numbers(data: list[Finding]) -> dict[str, Any]:
    """Both errors by erratum."""
    return {one.erratum: [one.printed, one.right] for one in data}


def judge(data: list[Finding]) -> list[Row]:
    """One verdict per erratum."""
    return [one.row for one in data]


def draw(data: list[Finding]) -> Figure:
    """Errors of the printed and of the right form."""
    figure, ax = plt.subplots(figsize=(8.0, 7.6))
    where, least = np.arange(len(data)), 1e-17
    for field, look in (("printed", "relu"), ("right", "linear")):
        values = [getattr(one, field) for one in data]
        shown = [np.nan if v is None else max(abs(v), least) for v in values]
        ax.plot(shown, where, linestyle="none", marker="o" if field == "printed" else "s",
                color=fl.plot.COLOURS[look],
                label="as printed" if field == "printed" else "right form")  # fmt: skip
    ax.set_yticks(where, [one.erratum for one in data])
    ax.set(xscale="log", xlabel="relative error (0 shown at 1e-17)", ylim=(len(data) - 0.5, -0.5),
           title="Errata by number")  # fmt: skip
    ax.grid(axis="y", linewidth=0.4)
    ax.legend(frameon=False, loc="lower center")
    return figure


STUDY = Study("errata", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
