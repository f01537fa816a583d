"""A walk that has settled: what is left of it is followed at sides that no longer change."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from flowlin._tools.arrays import replace_fields
from flowlin._tools.numerics import jit_by_array
from flowlin.engine.allowed import ErrorPerUnit
from flowlin.engine.integrate import FlowRun
from flowlin.engine.kinks.walk import HeldWalk
from flowlin.engine.method import SETTLED
from flowlin.engine.run import AbstractRun, Limits
from flowlin.engine.solvers.rkc import MOST_STAGES, RKC
from flowlin.engine.step_control import REST_STEPS, inner_state, with_inner_state
from flowlin.record.origin import RunState
from flowlin.record.results import SUCCESSES, result_is
from flowlin.record.trajectory import Trajectory
from flowlin.runs.run import AbstractPause, run_segment

HELD_STEPS = 64  # steps at most in which it comes to its end there
FEWEST_STEPS, STEP_SHARE = 64, 4  # steps to the next try: a quarter of those taken, or so many


def pause_at_rest(run: FlowRun) -> FlowRun:
    """Return a run that pauses where it rests, if it is a walk whose solver may be exchanged.

    A flow whose tau is a function of time may rest now and move on later, and so may one whose
    dead units revive.
    """
    moves_later = run.problem.schedule is not None or run.problem.rest_integrals
    free = run.reference.exchangeable and not moves_later
    pauses = run.method.kinks.walks and free and np.isfinite(run.horizon)
    return replace_fields(run, pauses_at_rest=True) if pauses else run


class SettledCheck(AbstractPause):
    r"""Ends a walk at once where what is left of it is less than its own error.

    After convergence a walk's velocity is the error that its steps make: an explicit method goes on
    at its longest stable step for ever, and pairs at their kinks switch to and fro by errors alone.
    None of these switches is determined. A walk is tried without them after 16 steps in a row none
    of which moves it by more than it may err: its flow is followed at the sides as they are, by
    `RKC`, whose steps may be a thousand times as long, to the end of the run. If until there no
    number moves by more than 10 tolerances of its hidden unit, this is the rest of the run, and
    `flow.stats["converged"]` the time from which on it was taken. Else it is dropped, and the walk
    goes on, and is tried again after a quarter as many steps more.

    Where a unit rests so near a kink that drives it away that errors decide about it, a later
    change is not seen. The walk would show one, at a time that its tolerance decides.
    """

    def step_budget(self, accepted: int) -> int | None:
        """Return None: the run pauses by itself."""
        return None

    def on_pause(
        self, run: AbstractRun, flow: Trajectory, limits: Limits
    ) -> tuple[AbstractRun, Trajectory]:
        """Follow a walk at rest at held sides, and keep that if it stays at rest."""
        assert isinstance(run, FlowRun)
        at = flow.continuation
        assert at is not None
        if int(at.controller.at_rest) < REST_STEPS:
            return run, flow
        method = replace_fields(run.method, solver=RKC(MOST_STAGES))
        held = replace_fields(run, method=method, pauses_at_rest=False)
        _, rest = run_segment(held, flow, _state_at_held_sides(held, at), HELD_STEPS, limits)
        end = rest.continuation
        assert end is not None
        if result_is(rest.result, *SUCCESSES) and float(_largest_move(run, at, end)) <= SETTLED:
            converged = {"converged": at.t}
            # The walk can go on from here, its inner solver anew.
            end = replace_fields(end, solver=_walk_state(end.solver, at.solver))
            return run, replace_fields(rest, continuation=end, counts=rest.counts | converged)
        taken = int(at.counts["num_accepted_steps"])
        waits = REST_STEPS - max(FEWEST_STEPS, taken // STEP_SHARE)
        waits = jnp.asarray(waits, at.controller.at_rest.dtype)
        waiting = replace_fields(at.controller, at_rest=waits)
        tried = {"evaluations": rest.counts["evaluations"]}  # the work of the try counts
        at = replace_fields(at, controller=waiting, counts=at.counts | tried)
        return run, replace_fields(flow, continuation=at, counts=flow.counts | tried)

    def on_end(self, run: AbstractRun, flow: Trajectory) -> Trajectory:
        """Return it as it is."""
        return flow

    def on_interrupt(self, run: AbstractRun, flow: Trajectory | None) -> None:
        """Do nothing."""


@jit_by_array
def _state_at_held_sides(held: FlowRun, at: RunState) -> RunState:
    """Return the state of a walk as the run at held sides goes on from it."""
    problem, method = held.problem_and_method
    field, solver = method.equation(problem, held.capacity)
    assert isinstance(solver, HeldWalk)
    walk = solver.take_over(field, at.t, at.parameters, inner_state(at.solver))
    spent = walk.evaluations - inner_state(at.solver).evaluations
    counts = at.counts | {"evaluations": at.counts["evaluations"] + spent}
    return replace_fields(at, solver=with_inner_state(at.solver, walk), counts=counts)


def _walk_state(state: PyTree, before: PyTree) -> PyTree:
    """Return a solver's state at held sides as that of a walk, by its state `before`."""
    anew = jnp.ones((), bool)  # the inner solver's known velocity is of another state
    walk = replace_fields(inner_state(state), inner=inner_state(before).inner, jump=anew)
    return with_inner_state(state, walk)


@jit_by_array
def _largest_move(run: FlowRun, start: RunState, end: RunState) -> Array:
    """Return by how many tolerances of its hidden unit a number moved most."""
    problem, method = run.problem_and_method
    scale = method.error_scale(problem)
    a, b = start.parameters, end.parameters
    unit = scale.size_scale(a) if isinstance(scale, ErrorPerUnit) else scale(a, b)
    moves = jax.tree.map(lambda a, b, s: jnp.max(jnp.abs(b - a) / s), a, b, unit)
    return jnp.max(jnp.stack(jax.tree.leaves(moves)))
