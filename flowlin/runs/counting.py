"""How many evaluations of the vector field a run takes, those of rejected steps included."""

from typing import Any

import diffrax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, PyTree

from flowlin.events.recorder import RecorderState
from flowlin.solvers.averaged import EVALUATIONS, AveragedGates
from flowlin.solvers.explicit import evaluations, is_explicit
from flowlin.solvers.pausing import Costly
from flowlin.solvers.states import AbstractCounting, AbstractReporting, Report
from flowlin.solvers.wrapped import Wrapped

FIRST_STEP = 2  # for choosing its length


class Counting(Wrapped[Any]):
    """Hands over with the error of each step how many evaluations it took.

    For solvers whose steps differ in that; they count in their state.
    """

    solver: diffrax.AbstractSolver

    def init(self, terms, t0, t1, y0, args) -> Any:
        """Forwarded."""
        return self.solver.init(terms, t0, t1, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """Forwarded, but for the error."""
        y1, error, dense, state, result = self.solver.step(
            terms, t0, t1, y0, args, solver_state, made_jump
        )
        spent = counted(state) - counted(solver_state)
        return y1, Costly(error, lax.stop_gradient(spent.astype(float))), dense, state, result


def inner(state: PyTree) -> Any:
    """The state of the solver itself."""
    return state.inner if isinstance(state, RecorderState) else state


def counts(state: PyTree) -> bool:
    """Whether a solver's state counts evaluations."""
    return isinstance(inner(state), AbstractCounting)


def counted(state: PyTree) -> Int[Array, ""]:
    """Evaluations in accepted steps, where the state counts them."""
    return inner(state).evaluations


def begun(solver: diffrax.AbstractSolver, state: PyTree) -> dict[str, Array]:
    """`evaluations` before the first step; nothing where those of a step are not known."""
    if counts(state):
        return {"evaluations": jnp.asarray(FIRST_STEP + counted(state), int)}
    if per_step(solver) is None:
        return {}
    # A method whose last stage is the next step's first one begins without it.
    tableau: Any = getattr(solver, "tableau", None)
    first = 1 if tableau is None else tableau.fsal
    return {"evaluations": jnp.asarray(FIRST_STEP + first, int)}


def gone(before: dict[str, Array], solver: Any, solution: diffrax.Solution) -> dict[str, Array]:
    """`evaluations` after a solve that began with so many `before`."""
    if "evaluations" not in before:
        return {}
    if counts(solution.solver_state):
        spent = solution.controller_state.spent  # pyright: ignore
    else:
        spent = per_step(solver) * solution.stats["num_steps"]
    return {"evaluations": before["evaluations"] + jnp.asarray(spent).astype(int)}


def per_step(solver: diffrax.AbstractSolver) -> int | None:
    """Evaluations per tried step, where that is a number; None where it is not known."""
    if isinstance(solver, AveragedGates):
        return EVALUATIONS
    return evaluations(solver) if is_explicit(solver) else None


def reported(
    solver: diffrax.AbstractSolver, state: PyTree, accepted: Array, ts: Array, tau: Array
) -> Report:
    """Counts and observables (T, ...) of a solve by `solver`, which ended in this state."""
    each = per_step(solver)
    known = {} if each is None else {"accepted_evaluations": 1 + each * accepted}
    if not isinstance(state, AbstractReporting):
        return known, {}
    numbers, observed = state.report(ts, tau)
    return known | numbers, observed
