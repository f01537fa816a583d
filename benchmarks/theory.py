"""Every closed form against the flow, against an independent route, and in its limits.

    python benchmarks/theory.py [--quick]

For each solution that `theory.solve` knows, the largest distance of its end-to-end matrix from
`gradient_flow` at rtol 1e-10 (`Solution.error`) and from a route that shares nothing with either:
matrix exponentials in 60 digits, the textbook's hyperbolic functions in 60 digits, quadrature. The
modes' half times and times of inflection against the flow's located events. Then the limits: t = 0
and inf, s, d -> 0, a0 -> s/d, lambda -> 0 and +-inf, equal singular values, depths 2 and inf. All
errors are relative. Writes `theory.json` and the table `theory.md` to `benchmarks/results/`.
"""

import functools
from collections.abc import Callable
from typing import Any

import _common
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
from scipy.integrate import solve_ivp

import flowlin as fl
from flowlin import theory

KEY = jax.random.key(0)
INF = float("inf")
TIMES = np.array([0.0, 0.3, 1.0, 3.0, 8.0, 12.0])


def orthogonal(size: int, seed: int) -> np.ndarray:
    """A random orthogonal matrix."""
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def white(s_yx: np.ndarray, variance: float) -> fl.Task:
    """A task with the moments Sigma_x = variance I and the given Sigma_yx."""
    inputs = s_yx.shape[1]
    draw = np.random.default_rng(5).normal(size=(3 * inputs, inputs))
    x = np.sqrt(3 * inputs * variance) * np.linalg.qr(draw)[0]
    return fl.Task(x, x @ s_yx.T / variance)


def apart(found: Any, expected: Any) -> float:
    """Largest Frobenius distance over the largest norm; of scalars the largest relative error."""
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    if found.ndim < 3:
        return float(np.max(np.abs(found - expected) / np.maximum(np.abs(expected), 1e-300)))
    distance = np.linalg.norm(found - expected, axis=(1, 2))
    return float(np.max(distance) / np.max(np.linalg.norm(expected, axis=(1, 2))))


# --- problems --------------------------------------------------------------------------------


def problems() -> dict[str, tuple[Any, fl.Task, str, str, Callable[..., Any]]]:
    """Network, task, assumptions, source and independent route of every solution."""
    rng = np.random.default_rng(0)
    tree = fl.tasks.hierarchy()
    modes = theory.modes(tree, 1.0)
    product = (modes.u * np.linspace(1e-2, 3e-2, 9)) @ modes.v.T
    plain = theory.modes(tree)
    w1, w2 = 0.3 * rng.normal(size=(2, plain.s.shape[0]))
    aligned = fl.LinearNetwork((w1[:, None] * plain.v.T, plain.u * w2))
    s_yx = rng.normal(size=(3, 4)) / 3
    task = white(s_yx, 1.3)
    anything = fl.Task(rng.normal(size=(7, 5)), rng.normal(size=(7, 2)))
    shallow = fl.LinearNetwork((rng.normal(size=(2, 5)),))

    def balanced(of: fl.Task, hidden: Any, **options: Any) -> Any:
        return fl.LinearNetwork.balanced(of, hidden, key=KEY, **options)

    small = 0.05 * rng.normal(size=(3, 4))
    return {
        "single layer": (shallow, anything, "none", "linear regression", by_exponential),
        "Riccati": (
            balanced(task, 5, bias=False, product=small),
            task, "white inputs, balanced", "Fukumizu 1998; Braun et al. 2022", by_riccati,
        ),
        "Riccati, lambda = 0.6": (
            balanced(task, 3, bias=False, product=small, balance=0.6),
            task, "white inputs, lambda-balanced", "Domine et al. 2024", by_riccati,
        ),
        "modes": (
            balanced(tree, 16, product=product),
            tree, "aligned, modes decouple", "Saxe et al. 2014; lead paper, Eq. 7", by_hyperbolic,
        ),
        "modes, unbalanced": (
            aligned, tree, "aligned, modes decouple; any imbalance and sign",
            "Saxe et al. 2014, supplement", by_hyperbolic,
        ),
        **{
            f"deep modes, L = {depth}": (
                balanced(tree, (10,) * (depth - 1), product=product),
                tree, "balanced, aligned, modes decouple",
                "Saxe et al. 2014; Arora et al. 2018", by_quadrature,
            )
            for depth in (3, 4)
        },
    }  # fmt: skip


def moments(network: Any, task: fl.Task) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Layers, Sigma_yx and Sigma_x, with the bias as the first input."""
    x, y = np.asarray(task.x), np.asarray(task.y)
    weights = [np.asarray(w) for w in network.weights]
    if network.biases[0] is not None:
        weights[0] = np.column_stack([network.biases[0], weights[0]])
        x = np.column_stack([np.full(len(x), float(network.bias_strength)), x])
    return weights, y.T @ x / len(x), x.T @ x / len(x)


# --- independent routes: error of a solution's products at TIMES -----------------------------


def exponential(matrix: np.ndarray, t: float) -> np.ndarray:
    """exp(matrix t) in 60 digits, as an array of mpmath's numbers."""
    found = mp.expm(mp.matrix(matrix.tolist()) * t)
    return np.array(found.tolist())


def by_exponential(network: Any, task: fl.Task, solution: Any) -> float:
    """d/dt [W^T; I] = [[-Sx, Sxy], [0, 0]] [W^T; I]."""
    (w0,), s_yx, s_x = moments(network, task)
    inputs, outputs = s_yx.shape[1], s_yx.shape[0]
    field = np.block([[-s_x, s_yx.T], [np.zeros((outputs, inputs + outputs))]])
    start = np.concatenate([w0.T, np.eye(outputs)])
    with mp.workdps(60):
        found = [(exponential(field, t) @ start)[:inputs].T for t in TIMES]
    return apart(solution.product(TIMES), np.array(found, float))


def by_riccati(network: Any, task: fl.Task, solution: Any) -> float:
    """The linear system behind the Riccati equation of Q Q^T, in 60 digits."""
    (w1, w2), s_yx, s_x = moments(network, task)
    variance, inputs, n = np.trace(s_x) / len(s_x), len(s_x), sum(s_yx.shape)
    balance = np.trace(w2.T @ w2 - w1 @ w1.T) / len(w1)
    f = np.zeros((n, n))
    f[inputs:, :inputs], f[:inputs, inputs:] = s_yx, s_yx.T
    f += np.diag(np.where(np.arange(n) < inputs, -1, 1)) * variance * balance / 2
    field = np.block([[f, np.zeros((n, n))], [variance * np.eye(n), -f]])  # G = X Z^-1
    q = np.concatenate([w1.T, w2])
    found = []
    with mp.workdps(60):
        start = np.concatenate([q @ q.T, np.eye(n)])
        for t in TIMES:
            x, z = np.split(exponential(field, t) @ start, 2)
            gram = mp.matrix(x.tolist()) * mp.inverse(mp.matrix(z.tolist()))
            found.append(np.array(gram.tolist(), float)[inputs:, :inputs])
    return apart(solution.product(TIMES), found)


def numbers(network: Any, task: fl.Task) -> list[tuple[float, ...]]:
    """s, d, a0 and imbalance of the modes of an aligned network."""
    weights, s_yx, s_x = moments(network, task)
    modes = theory.modes(task, network)
    u, v = np.asarray(modes.u), np.asarray(modes.v)
    p, q = weights[-1].T @ u, weights[0] @ v
    whole = functools.reduce(lambda product, w: w @ product, weights)
    s, d = np.sum(u * (s_yx @ v), axis=0), np.sum(v * (s_x @ v), axis=0)
    gap = np.sum(p**2, axis=0) - np.sum(q**2, axis=0)
    rows = np.stack([s, np.where(d > 1e-12, d, 0), np.sum(u * (whole @ v), axis=0), gap])
    return [tuple(row) for row in rows.T.tolist()]


def hyperbolic(*mode: float) -> float:
    """Strength by hyperbolic functions, in 60 digits, of (t, s, d, a0, imbalance)."""
    with mp.workdps(60):
        t, s, d, a0, imbalance = map(mp.mpf, mode)
        norm = mp.sqrt(imbalance**2 + 4 * a0**2) / 2
        plus, minus = (norm + a0) / 2, (norm - a0) / 2
        rate = mp.sqrt(s**2 + 4 * d**2 * plus * minus)
        sinh, cosh = (mp.sinh(rate * t) / rate if rate else t), mp.cosh(rate * t)
        x = (cosh + (s + 2 * d * minus) * sinh) / (cosh + (2 * d * plus - s) * sinh)
        return float(plus * x - minus / x)


def by_hyperbolic(network: Any, task: fl.Task, solution: Any) -> float:
    """Every mode by `hyperbolic`."""
    modes = theory.modes(task, network)
    a = [[hyperbolic(t, *mode) for mode in numbers(network, task)] for t in TIMES]
    expected = np.einsum("ok,tk,ik->toi", modes.u, a, modes.v)
    return apart(solution.product(TIMES), expected)


def duration(a0: float, rho: float, s: float, d: float, speed: Callable[[Any], Any]) -> float:
    """Time from a0 to rho by quadrature in log a, in 25 digits."""
    with mp.workdps(25):

        def slowness(y):
            a = mp.exp(y)
            return a / (speed(a) * (mp.mpf(s) - mp.mpf(d) * a))

        ends = mp.linspace(mp.log(mp.mpf(a0)), mp.log(mp.mpf(rho)), 6)
        took: Any = mp.quad(slowness, ends)
        return float(took)


def by_quadrature(network: Any, task: fl.Task, solution: Any) -> float:
    """Time at which the solution's strengths should be there, over the time."""
    depth = len(network.weights)
    modes = theory.modes(task, network)
    worst = 0.0
    for t in TIMES[1:]:
        a = np.asarray(jnp.sum(modes.u * (solution.product(t) @ modes.v), axis=0))
        for (s, d, a0, _), now in zip(numbers(network, task), a, strict=True):
            if s > 1e-9 and s - d * now > 1e-4 * s:  # later the time is lost to rounding
                took = duration(a0, now, s, d, lambda a: depth * a ** (2 - mp.mpf(2) / depth))
                worst = max(worst, abs(took / t - 1))
    return worst


# --- tables ----------------------------------------------------------------------------------


def solutions(quick: bool) -> list[dict[str, Any]]:
    """Every solution against the flow and its independent route; times against events."""
    found = []
    for name, (network, task, assumes, source, route) in problems().items():
        if quick and name not in ("single layer", "Riccati"):
            continue
        solution = theory.solve(network, task)
        events = timed(network, task) if solution.name in ("modes", "deep modes") else {}
        flow = fl.gradient_flow(
            network, task, TIMES[-1], ts=TIMES, rtol=1e-10,
            events=[event for event, _ in events.values()],
        )  # fmt: skip
        entry = {
            "solution": name,
            "as": solution.name,
            "exact": solution.exact,
            "assumes": assumes,
            "source": source,
            "route": route.__name__.replace("by_", ""),
            "flow": float(np.max(solution.error(flow))),
            "independent": route(network, task, solution),
        }
        for kind, (_, expected) in events.items():
            hits, expected = np.asarray(flow.events.first(kind)), np.asarray(expected)
            due, hit = (expected > 0) & (expected < TIMES[-1]), np.isfinite(hits)
            number = int(np.sum(hit))
            entry[f"{kind}s"] = number if np.all(due == hit) else f"{number} of {np.sum(due)}"
            entry[f"{kind} error"] = float(np.max(np.abs(hits / expected - 1)[due & hit]))
        found.append(entry)
        print(entry, flush=True)
    return found


def timed(network: Any, task: fl.Task) -> dict[str, tuple[Any, Any]]:
    """Events at the modes' half strength and inflection, and the times that theory gives."""
    modes, depth = theory.modes(task, network), len(network.weights)
    _, _, a0, gap = (jnp.array(z) for z in zip(*numbers(network, task), strict=True))
    mode = theory.Mode(modes.s, modes.d, a0, depth, gap if depth == 2 else 0.0)
    upper = mode.inflection_levels[1]
    level = jnp.where(jnp.isfinite(upper), upper, 1e9)

    def hits(levels: Any, name: str) -> Any:
        return fl.Crossing(modes.observable(network, task), levels, "up", name=name)

    halves = jnp.where(modes.d > 0, modes.full_strength / 2, 1e9)
    return {
        "half time": (hits(halves, "half time"), mode.half_time),
        "inflection": (hits(level, "inflection"), mode.inflection_times[1]),
    }


SPEEDS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "balanced": (theory.mode_strength, lambda a: 2 * abs(a)),
    "lambda = 0.4": (
        lambda t, s, d, a: theory.Mode(s, d, a, imbalance=0.4).strength(t),
        lambda a: np.sqrt(0.16 + 4 * a**2),
    ),
    "deep, L = 1": (lambda t, s, d, a: theory.Mode(s, d, a, 1).strength(t), lambda a: 1.0),
    "deep, L = 3": (
        lambda t, s, d, a: theory.Mode(s, d, a, 3).strength(t),
        lambda a: 3 * abs(a) ** (4 / 3),
    ),
    "deep, L = inf": (lambda t, s, d, a: theory.Mode(s, d, a, INF).strength(t), lambda a: a**2),
}


def integrated(t: float, s: float, d: float, a0: float, speed: Callable[[Any], Any]) -> float:
    """A mode's strength by DOP853."""
    run = solve_ivp(
        lambda _, a: speed(a) * (s - d * a), (0, t), [a0], "DOP853", rtol=1e-13, atol=1e-15
    )
    return run.y[0, -1]


def limits(quick: bool) -> list[dict[str, Any]]:
    """Every form in its limits, against what it should be there."""
    t, s, d, a0 = 0.9, 0.8, 0.5, 0.1
    found = []

    def add(form: str, limit: str, against: str, value: Any, expected: Any) -> None:
        entry = {"form": form, "limit": limit, "against": against}
        found.append({**entry, "error": apart(value, expected)})
        print(found[-1], flush=True)

    for name, (form, speed) in SPEEDS.items():
        if quick and "L = " in name:
            continue
        compiled = jax.jit(form)
        add(name, "t = 0", "a0", compiled(0.0, s, d, a0), a0)
        add(name, "t = inf", "s / d", compiled(INF, s, d, a0), s / d)
        add(name, "a0 = s/d", "s / d", compiled(t, s, d, s / d), s / d)
        for limit, mode in (
            ("s = 0", (0.0, d, a0)),
            ("s = 1e-12", (1e-12, d, a0)),
            ("d = 0", (s, 0.0, a0)),
            ("d = 1e-12", (s, 1e-12, a0)),
            ("a0 = (1 - 1e-9) s/d", (s, d, (1 - 1e-9) * s / d)),
        ):
            add(name, limit, "DOP853", compiled(t, *mode), integrated(t, *mode, speed))
    balanced = theory.mode_strength(t, s, d, a0)

    def form(t: float, gap: float) -> Any:
        return theory.Mode(s, d, a0, imbalance=gap).strength(t)

    for gap in (1e-9, -1e-9):
        add("unbalanced", f"lambda = {gap:g}", "balanced", form(t, gap), balanced)
    slow = s / d + (a0 - s / d) * np.exp(-d * t)
    for gap in (1e9, -1e9):
        faster = form(t / 1e9, gap)
        add("unbalanced", f"lambda = {gap:g}", "single layer", faster, slow)
    if not quick:

        @jax.jit  # where the depth is not known, that of two layers is one of many
        def deep(t: float, depth: float) -> Any:
            return theory.Mode(s, d, a0, depth).strength(t)

        add("deep", "L = 2", "balanced", deep(t, 2.0), balanced)
        add("deep", "L = 2 + 1e-12", "balanced", deep(t, 2 + 1e-12), balanced)
        add("deep", "L = 1e12", "L = inf", deep(t / 1e12, 1e12), deep(t, INF))
        matrix_limits(add)
    return found


def matrix_limits(add: Callable[..., None]) -> None:
    """Limits of the solutions for whole matrices."""
    u, v = orthogonal(3, 0), orthogonal(4, 1)
    rng = np.random.default_rng(2)
    kinds = {
        "distinct s": [0.9, 0.5, 0.3], "equal s": [0.7, 0.7, 0.7], "one s = 0": [0.9, 0.5, 0.0],
        "all s = 0": [0.0, 0.0, 0.0],
    }  # fmt: skip
    for name, s in kinds.items():
        task = white((u * np.array(s)) @ v[:, :3].T, 0.8)
        for balance in (0.0, 0.5):
            form = f"Riccati, lambda = {balance:g}"
            network = fl.LinearNetwork.balanced(
                task,
                3,
                bias=False,
                balance=balance,
                key=KEY,
                product=0.05 * rng.normal(size=(3, 4)),
            )
            solution = theory.solve(network, task)
            (w1, w2), s_yx, _ = moments(network, task)
            add(form, f"{name}", "60 digits", by_riccati(network, task, solution) + 1.0, 1.0)
            start, end = solution.product(jnp.array([0.0]))[0], solution.product(jnp.array([INF]))
            add(form, f"{name}, t = 0", "the start", start[None], (w2 @ w1)[None])
            if name in ("distinct s", "equal s"):
                add(form, f"{name}, t = inf", "least squares", end, s_yx[None] / 0.8)
            if balance == 0:
                for tiny in (1e-12, -1e-12):
                    near = theory.balanced_product(TIMES, w1, w2, s_yx, variance=0.8, balance=tiny)
                    add(
                        form,
                        f"{name}, lambda -> {tiny:g}",
                        "balanced",
                        near,
                        solution.product(TIMES),
                    )


def tables(rows: list[dict], ends: list[dict]) -> str:
    """Both tables as Markdown."""

    def number(entry: dict, key: str) -> str:
        return f"{entry[key]:.0e}" if key in entry else "-"

    first = _common.markdown_table(
        (
            "solution", "assumes (beside a linear network)", "source", "flow at rtol 1e-10",
            "independent route", "half times (modes): flow", "inflections (modes): flow",
        ),
        [
            (
                r["solution"] if r["exact"] else f"{r['solution']} (approximation)",
                r["assumes"], r["source"], number(r, "flow"),
                f"{number(r, 'independent')} ({r['route']})",
                f"{number(r, 'half time error')} ({r.get('half times', 0)})",
                f"{number(r, 'inflection error')} ({r.get('inflections', 0)})",
            )
            for r in rows
        ],
    )  # fmt: skip
    second = _common.markdown_table(
        ("form", "limit", "against", "error"),
        [(r["form"], r["limit"], r["against"], f"{r['error']:.0e}") for r in ends],
    )
    return f"Largest relative errors.\n\n{first}\n\nLimits:\n\n{second}"


def main() -> None:
    """Compute both tables."""
    quick = _common.parser(__doc__).parse_args().quick
    rows, ends = solutions(quick), limits(quick)
    text = tables(rows, ends)
    print(text)
    if not quick:
        _common.save("theory", [*rows, *ends], text)


if __name__ == "__main__":
    main()
