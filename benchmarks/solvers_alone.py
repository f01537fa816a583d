"""The stiff solvers on equations that are no flows: work against error, in plain diffrax.

    python benchmarks/solvers_alone.py [--quick]

Writes `solvers_alone.json` and the table `solvers_alone.md` to `benchmarks/results/`: per problem
and method, the run that takes least time with a relative error no larger than 1e-3, 1e-5, 1e-7,
over one tolerance a decade; its attempted steps, and its seconds over those of diffrax's
Kvaerno5. Seconds are medians of runs that take turns in one process, without compilation. SciPy's
methods and SUNDIALS' CVODE ask for the same compiled field from Python, 20 to 100 microseconds a
call, so that on small problems their steps say more than their seconds. CVODE, BDF with a dense
Jacobian by differences, takes part where `scikit-sundae` is installed. LSODA and CVODE do not tell
attempted steps; what stands there are accepted ones.

- *heat*: 100 points of a bar with cold ends, from a lump; known by the matrix exponential.
- *Robertson*: three species to t = 1e4; known by SciPy's Radau at 1e-11.
- *neural ODE*: 16 unknowns whose decay takes rates from 1 to 1,000, coupled by a tanh network, to
  t = 5; known by Radau, too.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import _common
import diffrax
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from _peers_torch import optional
from scipy.integrate import solve_ivp
from scipy.linalg import expm

import flowlin as fl

cvode = optional("sksundae.cvode")

TARGETS = (1e-3, 1e-5, 1e-7)
TOLERANCES = tuple(10.0**-k for k in range(2, 11))
REPEATS = 3
MOST = 20_000  # steps


class Problem(NamedTuple):
    """y' = field(y) from `start`, which is `known` at t1; `atol` per `rtol`, to suit the small."""

    name: str
    field: Callable[[Any], Any]
    start: np.ndarray
    t1: float
    known: np.ndarray
    small: float
    symmetric: bool = False


def heat(size: int) -> Problem:
    """A bar with cold ends."""
    x = np.arange(1, size + 1) / (size + 1)
    bar = (np.eye(size, k=1) + np.eye(size, k=-1) - 2 * np.eye(size)) * (size + 1) ** 2
    lump = np.exp(-50 * (x - 0.3) ** 2)
    return Problem("heat", lambda y: bar @ y, lump, 0.1, expm(0.1 * bar) @ lump, 1e-2, True)


def robertson(t1: float) -> Problem:
    """The reaction of Robertson (1966)."""

    def field(y):
        slow, fast, back = 0.04 * y[0], 3e7 * y[1] ** 2, 1e4 * y[1] * y[2]
        return jnp.stack([back - slow, slow - back - fast, fast])

    return known_by_radau("Robertson", field, np.array([1.0, 0.0, 0.0]), t1, 1e-4)


def neural(size: int) -> Problem:
    """A network and stiff decay."""
    rng, rates = np.random.default_rng(0), np.geomspace(1.0, 1e3, size)
    inner, outer = rng.normal(size=(2, size, size)) / np.sqrt(size)

    def field(y):
        return 3 * (outer @ jnp.tanh(3 * inner @ y)) - rates * y

    return known_by_radau("neural ODE", field, rng.normal(size=size), 5.0, 1e-2)


def known_by_radau(name: str, field: Any, start: np.ndarray, t1: float, small: float) -> Problem:
    """A problem, solved to eleven digits."""
    compiled = jax.jit(field)
    options: Any = {"method": "Radau", "rtol": 1e-11, "atol": 1e-11 * small}
    found = solve_ivp(lambda t, y: np.asarray(compiled(y)), (0.0, t1), start, **options)
    return Problem(name, field, start, t1, found.y[:, -1], small)


Run = Callable[[float], tuple[np.ndarray, int] | None]


def by_diffrax(problem: Problem, solver: Callable[[Any, Any], Any]) -> Run:
    """A solver of diffrax or of this library, made from its tolerances."""

    @jax.jit
    def solve(rtol):
        atol = rtol * problem.small
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: problem.field(y)),  # pyright: ignore
            solver(rtol, atol), 0.0, problem.t1, None, jnp.asarray(problem.start),
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol), max_steps=MOST,
            throw=False,
        )  # fmt: skip

    def run(rtol):
        found = solve(rtol)
        if found.ys is None or not bool(found.result == diffrax.RESULTS.successful):
            return None
        return np.asarray(found.ys[0]), int(found.stats["num_steps"])

    return run


def by_scipy(problem: Problem, method: str) -> Run:
    """A method of `solve_ivp`."""
    compiled = jax.jit(problem.field)

    def run(rtol):
        options: Any = {"method": method, "rtol": rtol, "atol": rtol * problem.small}
        span = 0.0, problem.t1
        found = solve_ivp(lambda t, y: np.asarray(compiled(y)), span, problem.start, **options)
        return (found.y[:, -1], len(found.t) - 1) if found.success else None

    return run


def by_cvode(problem: Problem) -> Run:
    """CVODE with a dense Jacobian."""
    compiled = jax.jit(problem.field)

    def rhs(t, y, yp):
        yp[:] = compiled(y)

    def run(rtol):
        solver = cvode.CVODE(
            rhs, method="BDF", rtol=rtol, atol=rtol * problem.small, max_num_steps=10**9
        )
        found = solver.solve(np.array([0.0, problem.t1]), problem.start)
        return (np.asarray(found.y[-1]), len(found.t) - 1) if found.success else None

    return run


def methods(problem: Problem) -> dict[str, Run]:
    """All that take part."""

    def dense(rtol, atol):
        return fl.RecycledBDF(rtol=rtol, atol=atol, linear_solver=lx.LU())

    found = {"diffrax Kvaerno5": by_diffrax(problem, lambda *_: diffrax.Kvaerno5())}
    if problem.symmetric:
        own = by_diffrax(problem, lambda rtol, atol: fl.RecycledBDF(rtol=rtol, atol=atol))
        found["RecycledBDF"] = own
    found["RecycledBDF, LU"] = by_diffrax(problem, dense)
    found["RKC"] = by_diffrax(problem, lambda *_: fl.RKC())
    found |= {f"SciPy {name}": by_scipy(problem, name) for name in ("BDF", "LSODA")}
    return found | ({"CVODE": by_cvode(problem)} if cvode else {})


def measured(problem: Problem, repeats: int) -> list[dict]:
    """One row per method and tolerance that came to an end."""
    rows = []
    runs = methods(problem)
    size = np.linalg.norm(problem.known)
    for rtol in TOLERANCES:
        came = {}
        for name, run in runs.items():
            if (found := run(rtol)) is not None:
                error = float(np.linalg.norm(found[0] - problem.known) / size)
                came[name] = {"rtol": rtol, "error": error, "steps": found[1]}
        again = {name: functools.partial(runs[name], rtol) for name in came}
        seconds = _common.alternated(again, repeats, budget=3)
        for name, row in came.items():
            known = {"problem": problem.name, "method": name}
            rows.append(known | row | {"seconds": seconds[name]})
            print(rows[-1], flush=True)
    return rows


def best(rows: list[dict], problem: str, method: str, target: float) -> dict | None:
    """The fastest run that meets a target."""
    fine = [
        row
        for row in rows
        if (row["problem"], row["method"]) == (problem, method) and row["error"] <= target
    ]
    return min(fine, key=lambda row: row["seconds"], default=None)


def table(rows: list[dict]) -> str:
    """Steps and relative seconds by target."""
    lines = []
    for problem, method in dict.fromkeys((row["problem"], row["method"]) for row in rows):
        cells = []
        for target in TARGETS:
            own = best(rows, problem, method, target)
            other = best(rows, problem, "diffrax Kvaerno5", target)
            if own is None or other is None:
                cells.append("-")
                continue
            cells.append(f"{own['steps']:,}, {own['seconds'] / other['seconds']:.2g}x")
        lines.append((problem, method, *cells))
    head = ("problem", "method", *(f"{target:.0e}" for target in TARGETS))
    title = "Steps, and seconds over Kvaerno5's, at no larger an error.\n\n"
    return title + _common.markdown_table(head, lines)


def main() -> None:
    """Every problem, method and tolerance."""
    quick = _common.parser(__doc__).parse_args().quick
    if quick:
        print(table(measured(robertson(40.0), 1)))
        return
    rows: list[dict] = []
    for problem in (heat(100), robertson(1e4), neural(16)):
        rows += measured(problem, REPEATS)
        _common.save("solvers_alone", rows, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
