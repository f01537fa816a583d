"""JAX, SciPy and SUNDIALS contenders, and flowlin itself: final parameters of a flow."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import _common
import diffrax
import jax
import numpy as np
from _peers_problems import Problem, cost, field
from _peers_torch import Unfinished, by_torchdiffeq, descent, optional, torch, torchdiffeq
from scipy.integrate import solve_ivp

import flowlin as fl

cvode = optional("sksundae.cvode")

STAGES = {"Bosh3": 3, "Tsit5": 6, "Dopri8": 13}  # evaluations per attempted step
DENSE = 2_000  # parameters up to which diffrax factorises the Jacobian
LSODA = 6_000  # parameters up to which LSODA may hold a dense Jacobian
DENSE_NOTE = "too large for a dense Jacobian"

Run = Callable[[float], tuple[np.ndarray, int | None]]


class Contender(NamedTuple):
    """A method; `run` is None where `note` says why it cannot take part."""

    run: Run | None
    note: str = ""
    descends: bool = False  # its knob is a rate, not a tolerance
    iterates_of: str | None = None  # the contender whose knobs it takes over


class Counted:
    """A jitted field for NumPy; counts, and stops after a number of seconds."""

    def __init__(self, compiled: Callable[[Any], Any], limit: float):
        self.compiled, self.limit = compiled, limit
        self.count, self.begin = 0, time.perf_counter()

    def __call__(self, t, y):
        self.count += 1
        if self.count % 64 == 0 and time.perf_counter() - self.begin > self.limit:
            raise Unfinished(self.count)
        return np.asarray(self.compiled(y))


def by_flowlin(problem: Problem, **options: Any) -> Contender:
    """`fl.gradient_flow`, called as a user calls it."""
    network, task, t1 = problem.network, problem.task, problem.t1

    def run(rtol):
        flow = fl.gradient_flow(network, task, t1, rtol=rtol, **options)
        return _common.flat(flow.final), int(flow.stats["evaluations"])

    return Contender(run)


def by_diffrax(problem: Problem, solver: Any, step_seconds: float) -> Contender:
    """A diffrax solver on the plain field."""
    velocity = field(problem)
    stages, limit = STAGES.get(type(solver).__name__), max(16, int(problem.cap / step_seconds))

    @jax.jit
    def solve(y, rtol):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: velocity(y)),  # pyright: ignore
            solver, 0.0, problem.t1, None, y, max_steps=limit, throw=False,
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol / 100),
        )  # fmt: skip

    def run(rtol):
        solution = solve(problem.start, rtol)
        steps = int(solution.stats["num_steps"])
        count = None if stages is None else 1 + stages * steps
        if not bool(solution.result == diffrax.RESULTS.successful):
            raise Unfinished(count)
        assert solution.ys is not None
        return np.asarray(solution.ys[0]), count

    return Contender(run)


def by_scipy(problem: Problem, method: str) -> Contender:
    """A method of `solve_ivp` on the jitted field."""
    if method == "LSODA" and len(problem.start) > LSODA:
        return Contender(None, DENSE_NOTE)
    compiled = jax.jit(field(problem))

    def run(rtol):
        counted = Counted(compiled, problem.cap)
        options: Any = {"method": method, "rtol": rtol, "atol": rtol / 100, "t_eval": [problem.t1]}
        found = solve_ivp(counted, (0.0, problem.t1), problem.start, **options)
        if not found.success:
            raise Unfinished(counted.count)
        return found.y[:, -1], counted.count

    return Contender(run)


def by_cvode(problem: Problem) -> Contender:
    """CVODE, BDF with matrix-free GMRES, on the jitted field."""
    compiled = jax.jit(field(problem))

    def run(rtol):
        counted = Counted(compiled, problem.cap)

        def rhs(t, y, yp):
            yp[:] = counted(t, y)

        solver = cvode.CVODE(
            rhs, method="BDF", linsolver="gmres", krylov_dim=20, rtol=rtol, atol=rtol / 100,
            max_num_steps=10**9,
        )  # fmt: skip
        # Three times: with two it would keep every step.
        found = solver.solve(np.array([0.0, problem.t1 / 2, problem.t1]), problem.start)
        if not found.success:
            raise Unfinished(counted.count)
        return np.asarray(found.y[-1]), counted.count

    return Contender(run)


def by_descent(problem: Problem) -> Contender:
    """Plain full-batch descent in one jitted loop."""
    velocity = field(problem)

    @jax.jit
    def loop(y, rate, steps):
        return jax.lax.fori_loop(0, steps, lambda _, y: y + rate * velocity(y), y)

    def run(rate):
        steps = round(problem.t1 / rate)
        return np.asarray(loop(problem.start, problem.t1 / steps, steps)), steps

    return Contender(run, descends=True)


def ours(problem: Problem) -> dict[str, Contender]:
    """flowlin's ways to solve the problem."""
    if isinstance(problem.network, fl.LinearNetwork):
        return {
            "flowlin": by_flowlin(problem),
            "flowlin RecycledBDF": by_flowlin(problem, solver=fl.RecycledBDF()),
            "flowlin RKC": by_flowlin(problem, solver=fl.RKC()),
        }
    averaged = by_flowlin(problem, kinks=fl.AveragedKinks())
    if problem.name == "relu tree":
        exact = by_flowlin(problem, kinks=fl.ExactKinks())
        return {"flowlin ExactKinks": exact, "flowlin AveragedKinks": averaged}
    return {
        "flowlin AveragedKinks": averaged,
        "flowlin IgnoreKinks": by_flowlin(problem, kinks=fl.IgnoreKinks()),
    }


def contenders(problem: Problem, quick: bool = False) -> dict[str, Contender]:
    """All of them on one problem."""
    size, one = len(problem.start), cost(problem)
    found = ours(problem)
    if quick:
        found.pop("flowlin RecycledBDF")
        found.pop("flowlin RKC")
    names = ("Tsit5",) if quick else ("Bosh3", "Tsit5", "Dopri8")
    if isinstance(problem.network, fl.LinearNetwork):
        names = tuple(name for name in names if name != "Bosh3")
    for name in names:
        step = STAGES[name] * one
        found[f"diffrax {name}"] = by_diffrax(problem, getattr(diffrax, name)(), step)
    if size > DENSE:
        found["diffrax Kvaerno5"] = Contender(None, f"{DENSE_NOTE} ({size:,} parameters)")
    elif not quick:
        # A Jacobian and its factorisation per step, at 10 GFlop/s.
        step = size * one + size**3 * 1e-10
        found["diffrax Kvaerno5"] = by_diffrax(problem, diffrax.Kvaerno5(), step)
    for method in ("RK45", "DOP853", "LSODA"):
        found[f"scipy {method}"] = by_scipy(problem, method)
    absent = Contender(None, "not installed")
    found["CVODE BDF, GMRES"] = absent if cvode is None else by_cvode(problem)
    ready = torchdiffeq is not None
    found["torchdiffeq dopri5"] = Contender(by_torchdiffeq(problem, "dopri5")) if ready else absent
    found["descent, JAX"] = by_descent(problem)
    found["descent, PyTorch"] = absent
    if torch is not None:
        found["descent, PyTorch"] = Contender(
            descent(problem), descends=True, iterates_of="descent, JAX"
        )
    return found
