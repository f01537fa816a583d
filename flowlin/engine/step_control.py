"""A step size controller that can pause a run between two steps and go on as if it had not."""

from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from flowlin._tools.numerics import previous_float
from flowlin.engine.kinks.averaged import EVALUATIONS_PER_STEP, AveragedGates
from flowlin.engine.method import Method
from flowlin.engine.recorder import RecorderState
from flowlin.engine.signals import PAUSED
from flowlin.engine.solvers.wrapped import (
    AbstractCounting,
    AbstractReporting,
    Report,
    Wrapped,
    evaluations,
    is_explicit,
)
from flowlin.record.origin import RunState
from flowlin.training.problem import Problem

SHORTEST_ROUNDINGS = 16  # roundings of the time: a shorter step would hardly move it


def shortest_step(t: Any) -> Array:
    """Return the step at time t that hardly moves on: shorter ones are lost in rounding."""
    return SHORTEST_ROUNDINGS * jnp.finfo(jnp.result_type(t)).eps * jnp.abs(t)


class CountedError(eqx.Module):
    """The error of a step, and how many evaluations of the vector field the step took.

    diffrax rolls the solver's state back when a step is rejected, and what it counts with it; the
    state of the controller, which is handed every step's error, goes on. The number is a float
    since diffrax looks for NaN in all that an error holds.
    """

    error: PyTree
    evaluations: Float[Array, ""]


class PausingState(eqx.Module):
    """State of a `PausingController` controller.

    - `inner`: the wrapped controller's state.
    - `attempts`, `accepted`: steps since the last pause.
    - `spent`: evaluations in these steps, where the solver counts them.
    - `ahead`: where the next step would end if the run did not end before.
    """

    inner: PyTree
    attempts: Int[Array, ""]
    accepted: Int[Array, ""]
    spent_evaluations: Int[Array, ""]
    next_end: Float[Array, ""]

    @staticmethod
    def after_pause(inner: PyTree, ahead: Array) -> "PausingState":
        """Return the state right after a pause."""
        none = jnp.zeros((), jnp.int32)
        return PausingState(inner, none, none, none, ahead)

    def reset_counts(self) -> "PausingState":
        """Return the same state with all counts at zero."""
        return PausingState.after_pause(self.inner, self.next_end)


class PausingController(diffrax.AbstractAdaptiveStepSizeController[PausingState, None]):
    """A controller that wraps another one, changes no decision, and stops after so many steps.

    It stops, too, where there is no next step: where rounding or a NaN has left none.

    A pause is not a step boundary of its own: the steps of a run that was paused and went on are
    those of one that was not, to the last bit.

    **Arguments:**

    - `controller`: decides about steps.
    - `t1`: where the run ends.
    - `budget`, `attempts`: accepted and tried steps after which it pauses.
    - `paused`: the state to go on from, which is also the `controller_state` of the solve.
    """

    controller: diffrax.AbstractAdaptiveStepSizeController
    t1: Float[Array, ""]
    accepted_budget: Int[Array, ""]
    tried_budget: Int[Array, ""]
    resume_state: PausingState

    @property
    def rtol(self):  # pyright: ignore
        """The wrapped controller's `rtol`."""
        return self.controller.rtol

    @property
    def atol(self):  # pyright: ignore
        """The wrapped controller's `atol`."""
        return self.controller.atol

    @property
    def norm(self):  # pyright: ignore
        """The wrapped controller's norm."""
        return self.controller.norm

    def wrap(self, direction):
        """Wrap the inner controller for a direction of time."""
        return eqx.tree_at(lambda p: p.controller, self, self.controller.wrap(direction))

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        """Return the end of the step that was due at the last pause, and the state from then."""
        # diffrax takes the last step to the very end from 100 roundings before it on; where a
        # solve starts it does not, so that is done here.
        floor = previous_float(self.t1, 100)
        ahead = self.resume_state.next_end
        return jnp.where(ahead > floor, self.t1, ahead), self.resume_state

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, state):  # pyright: ignore
        """Return the wrapped controller's decision, and stop the run where it is to pause."""
        spent = state.spent_evaluations
        if isinstance(y_error, CountedError):
            spent = spent + y_error.evaluations.astype(spent.dtype)
            y_error = y_error.error
        keep, t_next, ahead, jumped, inner, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, state.inner
        )
        attempts = state.attempts + 1
        accepted = state.accepted + jnp.where(keep, 1, 0).astype(jnp.int32)
        tired = (keep & (accepted >= self.accepted_budget)) | (attempts >= self.tried_budget)
        # A step without a length (its error was NaN) would be tried for ever.
        stuck = ~(ahead - t_next > shortest_step(t_next)) & (result == diffrax.RESULTS.successful)
        result = diffrax.RESULTS.where(stuck, diffrax.RESULTS.dt_min_reached, result)
        fine = result == diffrax.RESULTS.successful
        result = diffrax.RESULTS.where((t_next < self.t1) & tired & fine, PAUSED, result)
        return (
            keep,
            t_next,
            ahead,
            jumped,
            PausingState(inner, attempts, accepted, spent, jnp.asarray(ahead)),
            result,
        )


# ---- Counts of a run's evaluations of the vector field, those of rejected steps included.

FIRST_STEP_EVALUATIONS = 2  # evaluations by which diffrax chooses the first step's length


class CountingSolver(Wrapped[Any]):
    """A solver whose steps hand over, with their error, how many evaluations they took.

    It serves solvers whose steps take different numbers, and which count them in their state.
    """

    solver: diffrax.AbstractSolver

    def init(self, terms, t0, t1, y0, args) -> Any:
        """Return the inner solver's state."""
        return self.solver.init(terms, t0, t1, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """Take the inner solver's step, and put its evaluations beside its error."""
        y1, error, dense, state, result = self.solver.step(
            terms, t0, t1, y0, args, solver_state, made_jump
        )
        spent = evaluation_count(state) - evaluation_count(solver_state)
        return y1, CountedError(error, lax.stop_gradient(spent.astype(float))), dense, state, result


def inner_state(state: PyTree) -> Any:
    """Return the solver's own state, without a recorder's around it."""
    return state.inner if isinstance(state, RecorderState) else state


def counts_evaluations(state: PyTree) -> bool:
    """Tell whether a solver's state counts evaluations."""
    return isinstance(inner_state(state), AbstractCounting)


def evaluation_count(state: PyTree) -> Int[Array, ""]:
    """Return the evaluations in accepted steps that a state has counted."""
    return inner_state(state).evaluations


def evaluations_before(solver: diffrax.AbstractSolver, state: PyTree) -> dict[str, Array]:
    """Return `evaluations` before the first step; nothing where those of a step are not known."""
    if counts_evaluations(state):
        return {"evaluations": jnp.asarray(FIRST_STEP_EVALUATIONS + evaluation_count(state), int)}
    if evaluations_per_step(solver) is None:
        return {}
    # With "first same as last", each step counts one stage less; the first one takes it, too.
    tableau: Any = getattr(solver, "tableau", None)
    first = 1 if tableau is None else tableau.fsal
    return {"evaluations": jnp.asarray(FIRST_STEP_EVALUATIONS + first, int)}


def evaluations_after(
    start: RunState, method: Method, problem: Problem, solution: diffrax.Solution
) -> dict[str, Array]:
    """Return `evaluations` after a solve that began at `start`."""
    before, state = start.counts, solution.solver_state
    if "evaluations" not in before:
        return {}
    if counts_evaluations(state):
        spent = solution.controller_state.spent_evaluations  # pyright: ignore
    else:
        spent = evaluations_per_step(method.solver) * solution.stats["num_steps"]
    if isinstance(state, RecorderState) and method.takes_second_step(problem):
        # Each event in an accepted step took one that ends there, without its first stage.
        spent = spent + (method.solver.tableau.num_stages - 1) * (  # pyright: ignore
            state.log.count - start.solver.log.count
        )
    return {"evaluations": before["evaluations"] + jnp.asarray(spent).astype(int)}


def evaluations_per_step(solver: diffrax.AbstractSolver) -> int | None:
    """Return the evaluations of each tried step; None where their number is not known."""
    if isinstance(solver, AveragedGates):
        return EVALUATIONS_PER_STEP
    return evaluations(solver) if is_explicit(solver) else None


def solver_report(
    solver: diffrax.AbstractSolver, state: PyTree, accepted: Array, ts: Array, tau: Array
) -> Report:
    """Return counts and observables (T, ...) of a solve by `solver` that ended in this state."""
    each = evaluations_per_step(solver)
    known = {} if each is None else {"accepted_evaluations": 1 + each * accepted}
    if not isinstance(state, AbstractReporting):
        return known, {}
    numbers, observed = state.report(ts, tau)
    return known | numbers, observed
