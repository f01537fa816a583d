"""A step size controller that can pause a run between two steps and go on as if it had not."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from flowlin._tools.arrays import replace_fields
from flowlin._tools.numerics import finite_or, previous_float
from flowlin.engine.kinks.averaged import AbstractAveraging
from flowlin.engine.method import Method
from flowlin.engine.recorder import RecorderState
from flowlin.engine.signals import PAUSED
from flowlin.engine.solvers.error_scale import AbstractErrorScale
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

REST_STEPS = 16  # steps in a row at rest after which a run pauses
REST_FACTOR = 5.0  # errors allowed to a step by which one at rest moves at most: noise, not flow
MANY_STEPS = 256  # steps to come of a run that pauses at rest; fewer are taken as they are
SHORTEST_ROUNDINGS = 16  # roundings of the time: a shorter step would hardly move it


def shortest_step(t: ArrayLike) -> Array:
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
    - `next_end`: where the next step would end if the run did not end before.
    - `at_rest`: accepted steps in a row that moved nothing beyond their error; pauses keep it.
    """

    inner: PyTree
    attempts: Int[Array, ""]
    accepted: Int[Array, ""]
    spent_evaluations: Int[Array, ""]
    next_end: Float[Array, ""]
    at_rest: Int[Array, ""]

    @staticmethod
    def after_pause(inner: PyTree, ahead: Array, at_rest: ArrayLike = 0) -> "PausingState":
        """Return the state right after a pause."""
        none = jnp.zeros((), jnp.int32)
        return PausingState(inner, none, none, none, ahead, jnp.asarray(at_rest, jnp.int32))

    def reset_counts(self) -> "PausingState":
        """Return the same state, what is counted from the last pause on at zero."""
        return PausingState.after_pause(self.inner, self.next_end, self.at_rest)


class PausingController(diffrax.AbstractAdaptiveStepSizeController[PausingState, None]):
    """A controller that wraps another one, changes no decision, and stops after so many steps.

    It stops, too, where there is no next step: where rounding or a NaN has left none.

    A pause is not a step boundary of its own: the steps of a run that was paused and went on are
    those of one that was not, to the last bit.

    **Arguments:**

    - `controller`: decides about steps.
    - `t1`: where the run ends.
    - `accepted_budget`, `tried_budget`: steps after which it pauses.
    - `resume_state`: the state to go on from, which is also the `controller_state` of the solve.
    - `error_scale`: if it is given, it pauses too after `REST_STEPS` accepted steps in a row none
      of which moves anything by more than some times this scale, where many more are to come.
    """

    controller: diffrax.AbstractAdaptiveStepSizeController
    t1: Float[Array, ""]
    accepted_budget: Int[Array, ""]
    tried_budget: Int[Array, ""]
    resume_state: PausingState
    error_scale: AbstractErrorScale | None = None

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
        at_rest = state.at_rest
        if self.error_scale is not None:
            rests = self._is_at_rest(y0, y1_candidate)
            at_rest = jnp.where(keep, jnp.where(rests, at_rest + 1, 0), at_rest)
            many = MANY_STEPS * (ahead - t_next) < self.t1 - t_next
            tired = tired | (keep & many & (at_rest >= REST_STEPS))
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
            PausingState(inner, attempts, accepted, spent, jnp.asarray(ahead), at_rest),
            result,
        )

    def _is_at_rest(self, y0: PyTree, y1: PyTree) -> Array:
        """Tell whether a step moves nothing by more than the noise of its error."""
        assert self.error_scale is not None
        scale = self.error_scale(y0, finite_or(y0, y1))  # as the controller has it: compiled once
        moves = jax.tree.map(lambda a, b, s: (b - a) / s, y0, y1, scale)
        return jnp.asarray(self.norm(moves)) <= REST_FACTOR


# ---- Counts of a run's evaluations of the vector field, those of rejected steps included.

FIRST_STEP_EVALUATIONS = 2  # evaluations by which diffrax chooses the first step's length


class CountingSolver(Wrapped[PyTree]):
    """A solver whose steps hand over, with their error, how many evaluations they took.

    It serves solvers whose steps take different numbers, and which count them in their state.
    """

    solver: diffrax.AbstractSolver

    def init(self, terms, t0, t1, y0, args) -> PyTree:
        """Return the inner solver's state."""
        return self.solver.init(terms, t0, t1, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """Take the inner solver's step, and put its evaluations beside its error."""
        y1, error, dense, state, result = self.solver.step(
            terms, t0, t1, y0, args, solver_state, made_jump
        )
        spent = evaluation_count(state) - evaluation_count(solver_state)
        return y1, CountedError(error, lax.stop_gradient(spent.astype(float))), dense, state, result


def inner_state(state: PyTree) -> PyTree:
    """Return the solver's own state, without a recorder's around it."""
    return state.inner if isinstance(state, RecorderState) else state


def with_inner_state(state: PyTree, inner: PyTree) -> PyTree:
    """Return a solver's state with another one of its own in it."""
    return replace_fields(state, inner=inner) if isinstance(state, RecorderState) else inner


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
    tableau = getattr(solver, "tableau", None)
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
    if isinstance(solver, AbstractAveraging):
        return solver.evaluations
    return evaluations(solver) if is_explicit(solver) else None


def solver_report(
    solver: diffrax.AbstractSolver, state: PyTree, accepted: Array, ts: Array, problem: Problem
) -> Report:
    """Return counts and observables (T, ...) of a solve by `solver` that ended in this state.

    Among them is `tau` where it depends on time.
    """
    each = evaluations_per_step(solver)
    known = {} if each is None else {"accepted_evaluations": 1 + each * accepted}
    scheduled = {} if problem.schedule is None else {"tau": problem.schedule.at_rows(ts)}
    if not isinstance(state, AbstractReporting):
        return known, scheduled
    numbers, observed = state.report(ts)
    return known | numbers, scheduled | observed
