"""The choice between a standard solver and one for stiff flows, by measurement during a run."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from flowlin._tools.arrays import replace_fields
from flowlin._tools.numerics import jit_by_array
from flowlin.engine.integrate import FlowRun
from flowlin.engine.kinks.averaged import AbstractAveraging
from flowlin.engine.run import AbstractRun, Limits, is_paused
from flowlin.engine.solvers.recycled_bdf import RecycledBDF
from flowlin.engine.solvers.rkc import RKC, direction, spectral_radius
from flowlin.engine.step_control import evaluations_per_step
from flowlin.networks.modules import has_known_kinks
from flowlin.record.origin import RunState
from flowlin.record.results import SUCCESSES, result_is
from flowlin.record.trajectory import Trajectory
from flowlin.runs.run import AbstractPause, run_segment

# Accepted steps before the first look; the next ones come at twice as many each. Runs of averaged
# gates take few steps, unless they are stiff or switches bound them, as they do where rtol is fine.
FIRST_LOOK, FIRST_AVERAGED, FIRST_FINE = 32, 128, 4096
# Steps ahead, of the length that is due, from which on a look is worth its programs, which take
# seconds to compile: fewer where an evaluation is dear, so that their work, parameters x samples
# each, comes to some seconds, too.
FEWEST_AHEAD, MOST_AHEAD, WORK_AHEAD = 32, 256, 2**30
NEXT_IF_SHORT = 256  # accepted steps before the next look, where the end was near at one
STIFF = 2.0  # step due x spectral radius, from which on stability may bound the steps
LOOSE_RTOL = 1e-3  # from which rtol on steps of averaged gates are rarely bounded by switches
# Accepted steps: so many to find step size and order, and so many that count.
WARM, TRIAL = {RKC: 16, RecycledBDF: 48}, 16
SHORT_TRIAL = 8  # both, after averaged gates
TOO_SHORT = "the default; the run was too short to measure stiffness"
NEEDED_GAIN = 1.5  # how many times as far per evaluation the other one must come
RADIUS_ITERATIONS = 100  # of the power iteration


class StiffnessCheck(AbstractPause):
    r"""Lets a run go on with a solver for stiff flows where that gets further per evaluation.

    The Jacobian of a gradient flow is minus a Hessian, so an explicit method's steps are bounded
    by about 3 over its spectral radius, the sharpness, which grows along the run. After 32 accepted
    steps, 64, 128 and so on the radius is measured, and where the step due exceeds 2 / radius the
    other one is tried: `RecycledBDF` for 64 steps where the flow is smooth and rtol fine, else
    `RKC` for 32. Not where 256 such steps, or fewer of large tasks, would be the end: the next look
    is then after 256. There is no way back: the sharpness of a flow that has become stiff rarely
    falls.

    Averaged gates are looked at after 128 steps, and both go on for 16, of which those of averaged
    gates are kept where `RKC` gains too little. Their steps are bounded by 2 over the radius. Kinks
    cost RKC an order, but with some ten stages a step little else, so that at loose tolerances
    stiffness counts for more: `benchmarks/averaged_stiff.py`.
    Below an rtol of 1e-3 the first look is after 4096: what it is for there is a flow that has
    converged, has no more switches, and goes on for long.
    """

    def __init__(self, run: FlowRun):
        self.switched = run.has_switched_solver
        self.averaged = isinstance(run.method.solver, AbstractAveraging)
        fine = float(run.method.controller.rtol) < LOOSE_RTOL
        averaged = FIRST_FINE if fine else FIRST_AVERAGED
        self.first = averaged if self.averaged else FIRST_LOOK

    def step_budget(self, accepted: int) -> int | None:
        """Steps to the next look."""
        return None if self.switched else max(self.first, 1 << accepted.bit_length()) - accepted

    def on_pause(
        self, run: AbstractRun, flow: Trajectory, limits: Limits
    ) -> tuple[AbstractRun, Trajectory]:
        """Measure, and try the other solver if the run may be stiff."""
        assert isinstance(run, FlowRun)
        at = _state_of(flow)
        accepted = int(at.counts["num_accepted_steps"])
        if self.switched or accepted < self.first or accepted & (accepted - 1):
            return run, flow
        step = float(at.controller.next_end) - float(at.t)
        if not self.averaged and float(run.t1) - float(at.t) < _steps_ahead(run) * step:
            self.first = NEXT_IF_SHORT  # a pause costs milliseconds, as many as a short run
            return run, flow
        found, spent = _jacobian_radius(run, at)
        flow, radius = _add_evaluations(flow, spent), float(found)
        at = _state_of(flow)
        because = f"step x spectral radius = {step * radius:.2g} at t = {float(at.t):.4g}"
        run = run.with_choice(solver_because=because)
        if step * radius < (1.0 if self.averaged else STIFF):
            return run, flow
        stiff = run.with_stiff_solver()
        start = _restart_with(stiff, at, flow.counts["accepted_evaluations"])
        kind = type(stiff.method.solver)
        warm, trial = (SHORT_TRIAL, SHORT_TRIAL) if self.averaged else (WARM[kind], TRIAL)
        stiff, tried = run_segment(stiff, flow, start, warm, limits)
        before = flow
        if is_paused(tried, limits):
            before = tried
            stiff, tried = run_segment(stiff, before, _state_of(before), trial, limits)
        standard = run.method.solver
        each = evaluations_per_step(standard)
        assert each is not None
        own, stayed = step / each, flow
        if self.averaged:  # the step due may be one that will be rejected
            run, stayed = run_segment(run, flow, at, TRIAL, limits)
            own = _time_per_evaluation(flow, stayed)
        gain = _time_per_evaluation(before, tried) / own
        name = type(standard).__name__
        because += f", where {kind.__name__} came {gain:.2g} times as far per evaluation as {name}"
        failed = not (is_paused(tried, limits) or result_is(tried.result, *SUCCESSES))
        if gain < NEEDED_GAIN or failed:
            return run.with_choice(solver_because=because), _add_evaluations(
                stayed, _evaluations_between(flow, tried)
            )
        self.switched = True
        chosen = f"{name}, then {kind.__name__}"
        stiff = stiff.with_choice(solver=chosen, solver_because=because)
        return stiff, _add_evaluations(tried, _evaluations_between(flow, stayed))

    def on_end(self, run: AbstractRun, flow: Trajectory) -> Trajectory:
        """As it is."""
        return flow

    def on_interrupt(self, run: AbstractRun, flow: Trajectory | None) -> None:
        """Nothing to do."""


def _steps_ahead(run: FlowRun) -> int:
    """Return how many steps there must be to the end for a look to be worth it."""
    problem = run.problem
    numbers = sum(leaf.size for leaf in jax.tree.leaves(problem.parameters))
    return min(MOST_AHEAD, max(FEWEST_AHEAD, WORK_AHEAD // (numbers * problem.task.samples)))


def _state_of(flow: Trajectory) -> RunState:
    assert flow.continuation is not None
    return flow.continuation


@jit_by_array
def _restart_with(run: FlowRun, at: RunState, spent: Array) -> RunState:
    """Where a run goes on with another solver, after so many evaluations; its log goes along."""
    fresh = run.initial_state(at.t, at.parameters)
    inner = fresh.solver.inner if run.watches else fresh.solver
    whole = inner.evaluations + spent.astype(inner.evaluations.dtype)
    solver = replace_fields(inner, evaluations=whole)
    if run.watches:
        solver = replace_fields(at.solver, inner=solver)
    counts = at.counts | {"evaluations": at.counts["evaluations"] + fresh.counts["evaluations"]}
    return replace_fields(fresh, solver=solver, counts=counts)


def _add_evaluations(flow: Trajectory, spent: ArrayLike) -> Trajectory:
    """The same run after so many evaluations more."""

    def with_more(counts: dict[str, PyTree]) -> dict[str, PyTree]:
        before = counts["evaluations"]
        return counts | {"evaluations": before + jnp.asarray(spent, jnp.asarray(before).dtype)}

    at = _state_of(flow)
    at = replace_fields(at, counts=with_more(at.counts))
    return replace_fields(flow, counts=with_more(flow.counts), continuation=at)


def _evaluations_between(before: Trajectory, after: Trajectory) -> int:
    """Evaluations between two pauses."""
    return int(after.counts["evaluations"]) - int(before.counts["evaluations"])


def _time_per_evaluation(before: Trajectory, after: Trajectory) -> float:
    """Time advanced per evaluation between two pauses."""
    return float(_state_of(after).t - _state_of(before).t) / _evaluations_between(before, after)


@jit_by_array
def _jacobian_radius(run: FlowRun, at: RunState) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Spectral radius of the field's Jacobian, from scratch, and how many evaluations it took.

    The Jacobian of a ReLU network is that of its gates as they stand, by derivatives. Differences
    would cross the kinks of the pairs that slide, where the field jumps: their quotient is then
    the jump over the increment, of any size, and a step further nothing.
    """
    problem, method = run.problem_and_method
    velocity = functools.partial(method.vector_field(problem), at.t, args=None)
    y, start = at.parameters, jnp.zeros((), run.network.dtype)
    if has_known_kinks(run.network):
        _, product = jax.linearize(velocity, y)
        nothing = jax.tree.map(jnp.zeros_like, y)
        found = spectral_radius(
            product, nothing, nothing, direction(y), start, RADIUS_ITERATIONS, "lax"
        )
        return found[1], 2 * found[2] + 1
    found = spectral_radius(velocity, y, velocity(y), direction(y), start, RADIUS_ITERATIONS, "lax")
    return found[1], found[2] + 1
