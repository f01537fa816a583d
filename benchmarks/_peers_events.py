"""Contenders for the hitting times of modes."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from _peers_problems import Problem, cost, field, strengths
from _peers_solvers import STAGES, Contender, Counted, Unfinished, cvode
from _peers_torch import hits_by_torchdiffeq, torchdiffeq
from scipy.integrate import solve_ivp

import flowlin as fl


def levels(problem: Problem) -> np.ndarray:
    """The strengths to be hit."""
    return 0.5 * np.asarray(problem.modes.full_strength)


def first_of_each(times: Any, components: Any, count: int) -> np.ndarray:
    """The first time of every component; inf where there is none."""
    found = np.full(count, np.inf)
    np.minimum.at(found, np.asarray(components), np.asarray(times))
    return found


def by_flowlin(problem: Problem, jitted: bool) -> Contender:
    """`fl.ModeHits`: all hits in one run, as a user calls it, or under `jax.jit`."""
    count = len(problem.known)

    def flow(network, rtol, **options):
        options |= {"events": (problem.hits,), "rtol": rtol}
        return fl.gradient_flow(network, problem.task, problem.t1, **options)

    compiled: dict[float, Any] = {}

    def compiled_for(rtol):
        # `gradient_flow` wants to see the tolerance, so that every one is a compilation; the log
        # is as long as `max_events` says.
        def solve(network):
            found = flow(network, rtol, max_events=4 * count)
            return found.events, found.stats["num_steps"]

        return compiled.setdefault(rtol, jax.jit(solve))

    def run(rtol):
        if jitted:
            log, steps = compiled_for(rtol)(problem.network)
        else:
            found = flow(problem.network, rtol)
            log, steps = found.events, found.stats["num_steps"]
        stages = STAGES["Dopri8" if rtol <= 1e-6 else "Tsit5"]
        return np.asarray(log.first("mode")), 1 + stages * int(steps)

    return Contender(run)


def by_diffrax(problem: Problem, solver: Any) -> Contender:
    """`diffrax.Event` ends the run at the next hit, and the run goes on from there.

    One condition, the smallest gap of the modes that are left: with one condition per mode, hits
    within one step are found in the wrong order, and those passed over are never found.
    """
    velocity, strength, level = field(problem), strengths(problem), jnp.asarray(levels(problem))
    stages, count = STAGES[type(solver).__name__], len(problem.known)
    limit = max(64, int(problem.cap / cost(problem) / stages))

    def gap(y, done):
        return jnp.where(done, jnp.inf, level - strength(y))

    @jax.jit
    def leg(rtol, t, y, done):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: velocity(y)),  # pyright: ignore
            solver, t, problem.t1, None, y, max_steps=limit, throw=False,
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol / 100),
            event=diffrax.Event(
                lambda t, y, args, **_: jnp.min(gap(y, done)),
                optx.Newton(rtol=rtol / 100, atol=rtol / 100),
            ),
        )  # fmt: skip
        assert solution.ts is not None
        assert solution.ys is not None
        t, y = solution.ts[-1], solution.ys[-1]
        hit = jnp.argmin(jnp.abs(gap(y, done)))
        return t, y, hit, solution.event_mask, solution.stats["num_steps"]

    def run(rtol):
        times, done, t, y, steps = np.full(count, np.inf), np.zeros(count, bool), 0.0, None, 0
        y = problem.start
        while not done.all():
            t, y, hit, happened, more = leg(rtol, t, y, done)
            steps += int(more)
            if not happened:
                break
            times[int(hit)], done[int(hit)] = float(t), True
        return times, 1 + stages * steps

    return Contender(run)


def gaps(problem: Problem):
    """Level minus strength for NumPy: of all modes, and of one."""
    u, v, level = np.asarray(problem.modes.u), np.asarray(problem.modes.v), levels(problem)
    w1, w2 = (np.shape(w) for w in problem.network.weights)
    cut = w1[0] * w1[1]

    def every(y):
        first, second = y[:cut].reshape(w1), y[cut:].reshape(w2)
        return level - np.sum(u * (second @ (first @ v)), axis=0)

    def one(k):
        def gap(t, y):
            first, second = y[:cut].reshape(w1), y[cut:].reshape(w2)
            return level[k] - (u[:, k] @ second) @ (first @ v[:, k])

        return gap

    return every, one


def by_scipy(problem: Problem, method: str) -> Contender:
    """The events of `solve_ivp`, all in one run."""
    compiled, (_, one) = jax.jit(field(problem)), gaps(problem)
    events = [one(k) for k in range(len(problem.known))]

    def run(rtol):
        counted = Counted(compiled, problem.cap)
        options: Any = {"method": method, "rtol": rtol, "atol": rtol / 100, "t_eval": [problem.t1]}
        found = solve_ivp(counted, (0.0, problem.t1), problem.start, events=events, **options)
        times = [hits[0] if len(hits) else np.inf for hits in found.t_events]
        return np.array(times), counted.count

    return Contender(run)


def by_cvode(problem: Problem, method: str) -> Contender:
    """The root finding of CVODE, all in one run; GMRES for its Newton iterations."""
    compiled, (every, _) = jax.jit(field(problem)), gaps(problem)
    count = len(problem.known)

    def run(rtol):
        counted = Counted(compiled, problem.cap)

        def rhs(t, y, yp):
            yp[:] = counted(t, y)

        def roots(t, y, found):
            found[:] = every(y)

        roots.terminal = [False] * count  # pyright: ignore
        roots.direction = [0] * count  # pyright: ignore
        solver = cvode.CVODE(
            rhs, method=method, linsolver="gmres", krylov_dim=20, rtol=rtol, atol=rtol / 100,
            eventsfn=roots, num_events=count, max_num_steps=10**9,
        )  # fmt: skip
        found = solver.solve(np.array([0.0, problem.t1 / 2, problem.t1]), problem.start)
        if found.t_events is None:
            raise Unfinished(counted.count)
        rows, components = np.nonzero(np.asarray(found.i_events))
        times = first_of_each(np.asarray(found.t_events)[rows], components, count)
        return times, counted.count

    return Contender(run)


def by_descent(problem: Problem) -> Contender:
    """Plain descent; a mode is hit at the first step that finds it at its level."""
    velocity, strength, level = field(problem), strengths(problem), jnp.asarray(levels(problem))

    @jax.jit
    def loop(y, rate, steps):
        def step(k, carry):
            y, times = carry
            y = y + rate * velocity(y)
            hit = (strength(y) >= level) & jnp.isinf(times)
            return y, jnp.where(hit, (k + 1) * rate, times)

        return jax.lax.fori_loop(0, steps, step, (y, jnp.full(level.shape, jnp.inf)))[1]

    def run(rate):
        steps = round(problem.t1 / rate)
        return np.asarray(loop(problem.start, problem.t1 / steps, steps)), steps

    return Contender(run, descends=True)


def contenders(problem: Problem, quick: bool = False) -> dict[str, Contender]:
    """All of them on one problem."""
    found = {"flowlin": by_flowlin(problem, False)}
    if not quick:
        found["flowlin under jit"] = by_flowlin(problem, True)
    for name in () if quick else ("Tsit5", "Dopri8"):
        found[f"diffrax {name}, restarted"] = by_diffrax(problem, getattr(diffrax, name)())
    for method in ("RK45", "DOP853", "LSODA"):
        found[f"scipy {method}"] = by_scipy(problem, method)
    absent = Contender(None, "not installed")
    for method in ("BDF", "Adams"):
        found[f"CVODE {method}"] = absent if cvode is None else by_cvode(problem, method)
    for method in ("dopri5", "dopri8"):
        name = f"torchdiffeq {method}"
        if torchdiffeq is None:
            found[name] = absent
        else:
            found[name] = Contender(hits_by_torchdiffeq(problem, method))
    found["descent, JAX"] = by_descent(problem)
    return found
