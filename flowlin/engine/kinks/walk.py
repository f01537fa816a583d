"""The exact walk as a diffrax solver."""

import functools
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from flowlin._tools.arrays import Parameters, replace_fields
from flowlin._tools.numerics import while_loop
from flowlin.engine.kinks.deep_flow import DeepFlow
from flowlin.engine.kinks.deep_switching import DeepSwitching
from flowlin.engine.kinks.kink_places import pair_count, walks_through_loss
from flowlin.engine.kinks.module_flow import ModuleFlow
from flowlin.engine.kinks.one_layer import OneLayerFlow
from flowlin.engine.kinks.one_layer_switching import OneLayerSwitching
from flowlin.engine.kinks.sides import RESOLVED, AbstractSwitching, Approach, Piece
from flowlin.engine.kinks.walk_piece import step_to_event
from flowlin.engine.signals import UNDECIDED
from flowlin.engine.solvers.error_scale import AbstractErrorScale
from flowlin.engine.solvers.rkc import RKC
from flowlin.engine.solvers.wrapped import (
    AbstractCounting,
    Explicit,
    Forwarding,
    Report,
    Wrapped,
    evaluations,
)
from flowlin.networks.modules import ForeignModel
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.record.buffer import EventBuffer
from flowlin.training.problem import Problem


def choose_switching(
    problem: Problem, slots: int, loop_kind: str, starts_at_kink: bool
) -> AbstractSwitching:
    """Choose the rule, and with it the flow, by the kind of a network and its hidden layers."""
    network = problem.network
    what = problem.task, problem.loss, problem.time_constants, problem.decay
    pairs = pair_count(problem)
    # Few slide at once, unless many start at their kinks, and each size of a slide's equations
    # is compiled at every place where they are solved: of small walks only one (`map_used_slots`).
    few = pairs <= 10 * slots and not starts_at_kink
    room = min(slots if few else 4 * slots, pairs)
    if isinstance(network, ForeignModel) or walks_through_loss(problem):
        return DeepSwitching(ModuleFlow(network, *what), room, starts_at_kink)
    assert isinstance(network, ReLUNetwork)
    if len(network.hidden) == 1:
        flow = OneLayerFlow(network, *what, revives=problem.rest_integrals > 0)
        return OneLayerSwitching(flow, slots, loop_kind, starts_at_kink)
    return DeepSwitching(DeepFlow(network, *what), room, starts_at_kink)


class StepPieces(eqx.Module):
    """The pieces of one step, stacked; starts beyond the last are inf.

    Fields are untyped, since inside a loop Equinox wraps the buffers' leaves.
    """

    starts: Any
    ends: Any
    infos: PyTree

    def with_piece(self, k: Array, piece: Piece) -> "StepPieces":
        """Return the pieces with `piece` as number k."""
        return StepPieces(
            self.starts.at[k].set(piece.start),
            self.ends.at[k].set(piece.end),
            # In this order, since the buffers' leaves may be wrapped.
            jax.tree.map(lambda one, all_: all_.at[k].set(one), piece.dense, self.infos),
        )


class PiecewiseInterpolation(diffrax.AbstractLocalInterpolation):
    """Dense output of a step of several pieces."""

    t0: ArrayLike
    t1: ArrayLike
    pieces: StepPieces
    inner: Callable[..., diffrax.AbstractLocalInterpolation] = eqx.field(static=True)

    def evaluate(self, t0, t1=None, left=True):
        """Return the state at t0, or the increment from t0 to t1."""
        if t1 is not None:
            return jax.tree.map(jnp.subtract, self.evaluate(t1), self.evaluate(t0))
        # By counting, and without looking for negative indices: the first costs a search two
        # hundred operations, the second one three per array.
        k = jnp.maximum(jnp.sum(self.pieces.starts <= t0) - 1, 0)
        options = {"mode": "promise_in_bounds", "wrap_negative_indices": False}
        one = jax.tree.map(lambda a: a.at[k].get(**options), self.pieces)
        return self.inner(t0=one.starts, t1=one.ends, **one.infos).evaluate(t0, left=left)


@functools.cache
def _interpolation_over_pieces(inner):
    """Return the interpolation over pieces; cached, since diffrax compares by identity."""
    return functools.partial(PiecewiseInterpolation, inner=inner)


class WalkState(AbstractCounting):
    """State of a walk, which diffrax rolls back when a step is rejected."""

    inner: PyTree
    sides: PyTree
    log: EventBuffer
    initial_sides: Int[Array, "H P"]  # the first sides
    jump: Bool[Array, ""]  # whether the velocity jumped at the very end of the last step
    failure_time: Float[Array, ""]  # time of an event that could not be decided, else inf
    evaluations: Int[Array, ""]  # of the velocity, up to here
    undecided_since: Float[Array, ""]  # from when on a slide is `Piece.undecided`, or inf
    approach: Approach

    def report(self, ts: Array) -> Report:
        """Return the evaluations so far, the grazing margin, and what slides and sides report."""
        del ts
        never = jnp.full_like(self.failure_time, jnp.inf)
        own = {"accepted_evaluations": self.evaluations, "converged": never}
        own |= {"grazing_margin": self.approach.margin, "slides_decayed": self.undecided_since}
        return {**own, **self.sides.report}, {}


class _WalkProgress(eqx.Module):
    """State within one step: the time, the parameters, and the pieces so far."""

    t: Array
    y: Parameters
    state: WalkState
    error: Parameters
    allowed: Parameters  # the error from the step's start to y that the controller allows
    pieces: StepPieces
    count: Int[Array, ""]

    @property
    def error_norm(self) -> Array:
        """The controller's norm of the error; a step is accepted below one."""
        ratios = jax.tree.map(jnp.divide, lax.stop_gradient(self.error), self.allowed)
        flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(ratios)])
        return jnp.sqrt(jnp.mean(flat**2))


class ExactWalk(Forwarding[WalkState]):
    """Wraps a Runge-Kutta solver and walks through the kinks of a ReLU flow.

    Each step is a chain of up to `pieces` steps of the inner solver, cut at the events between
    them. The error reported is the largest of the steps **tried**, each of which aims at the
    step's end: pieces are as short as the events are dense, and their own errors would tell the
    controller to take steps that are too long for the flow in between. It is raised where that
    is needed for the next step to end within its pieces; `allowed` is the scale by which the
    controller judges it.
    """

    solver: Explicit
    switching: AbstractSwitching
    error_scale: AbstractErrorScale
    capacity: int = eqx.field(static=True)  # of the gate log
    pieces: int = eqx.field(static=True, default=8)
    loop_kind: str = eqx.field(
        static=True, default="lax"
    )  # kind of loops, see `flowlin._tools.numerics`

    @property
    def flow(self) -> Any:
        """The vector field at given sides."""
        return self.switching.flow

    @property
    def interpolation_cls(self):  # pyright: ignore
        """The interpolation over several pieces."""
        return _interpolation_over_pieces(self.solver.interpolation_cls)

    def init(self, terms, t0, t1, y0, args) -> WalkState:
        """Return the sides at the start, and an empty log."""
        del args
        sides = self.switching.start_sides(y0)
        inner = self.solver.init(terms, t0, t1, y0, self.flow.fix_sides(sides))
        log = EventBuffer.empty(self.capacity, jnp.result_type(t0), with_shift=True)
        log = self.switching.log_start(y0, t0, log)
        never = jnp.asarray(jnp.inf, log.time.dtype)
        return WalkState(
            inner=inner,
            sides=sides,
            log=log,
            initial_sides=sides.codes.astype(jnp.int8),
            jump=jnp.asarray(False),
            failure_time=never,
            evaluations=jnp.ones((), int),
            undecided_since=never,
            approach=Approach.none_so_far(sides.codes, self.flow.task.x.dtype),
        )

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """Walk from t0 to t1."""
        del args
        # Under its own jit, which caches the trace: diffrax traces a step three times.
        return self._walk_step(terms, jnp.asarray(t0), jnp.asarray(t1), y0, solver_state, made_jump)

    @eqx.filter_jit
    def _walk_step(self, terms, t0, t1, y0, solver_state, made_jump):
        """Take one step: a chain of pieces, until t1 or until there is no point in going on."""
        state = replace_fields(solver_state, jump=solver_state.jump | made_jump)
        rtol, error_at_rest = self.error_scale.rtol, self.error_scale.relative_error(y0)
        start = _WalkProgress(
            t=t0,
            y=y0,
            state=state,
            error=jax.tree.map(jnp.zeros_like, y0),
            allowed=jax.tree.map(jnp.ones_like, y0),
            pieces=self._empty_pieces(terms, t0, t1, y0, state),
            count=jnp.zeros((), int),
        )

        @jax.jit  # derivatives in reverse trace it many times
        def walk_one_piece(walk: _WalkProgress) -> _WalkProgress:
            frozen = self.flow.fix_sides(walk.state.sides)
            piece = step_to_event(
                self.flow, self.solver, terms, walk.t, t1, walk.y, frozen,
                walk.state.inner, walk.state.jump, walk.state.approach, rtol, error_at_rest,
            )  # fmt: skip
            return self._advance_past(walk, piece, y0)

        def goes_on(walk: _WalkProgress) -> Array:
            # A chain that the controller will reject for its error need not be walked on.
            hopeless = walk.error_norm > 1.1
            trouble = jnp.any(walk.state.sides.failure != RESOLVED)
            return (walk.t < t1) & (walk.count < self.pieces) & ~hopeless & ~trouble

        walk = while_loop(
            goes_on,
            walk_one_piece,
            start,
            kind=self.loop_kind,  # pyright: ignore
            max_steps=self.pieces,
            buffers=lambda w: w.pieces,
        )
        trouble = jnp.any(walk.state.sides.failure != RESOLVED)
        error = self._next_step_error(walk, self.error_order(terms), t0, t1)
        result = diffrax.RESULTS.where(trouble, UNDECIDED, diffrax.RESULTS.successful)
        return walk.y, error, {"pieces": walk.pieces}, walk.state, result

    def _advance_past(self, walk: _WalkProgress, piece: Piece, y0: Parameters) -> _WalkProgress:
        """Move the walk past a piece, to the sides that hold after the event at its end."""
        sides, log = self.switching.switch_sides(piece, walk.state.sides, walk.state.log)
        end = jnp.where(jnp.any(sides.failure != RESOLVED), piece.end, walk.state.failure_time)
        # A piece cut at an event takes a second step, and the next one a first stage.
        steps = jnp.where(jnp.any(piece.fired), 2, 1)
        spent = (
            walk.state.evaluations
            + steps * evaluations(self.solver.solver)
            + piece.jump.astype(int)
        )
        since = jnp.minimum(walk.state.undecided_since, piece.start)
        state = replace_fields(
            walk.state,
            inner=piece.inner,
            sides=sides,
            log=log,
            jump=piece.jump,
            failure_time=end,
            evaluations=spent,
            undecided_since=jnp.where(piece.undecided, since, jnp.inf),
            approach=piece.approach,
        )
        return _WalkProgress(
            t=piece.end,
            y=piece.y1,
            state=state,
            error=jax.tree.map(lambda a, b: jnp.maximum(a, jnp.abs(b)), walk.error, piece.error),
            allowed=self.error_scale(y0, piece.y1),
            pieces=walk.pieces.with_piece(walk.count, piece),
            count=walk.count + 1,
        )

    def _next_step_error(self, walk: _WalkProgress, order, t0: Array, t1: Array) -> Parameters:
        """Raise the error so that the next step takes about half of the pieces.

        The controller multiplies a step by 0.9 norm^(-1/order). A chain that ended early is thus
        tried again at half of the length that it reached: a chain that fails costs all its pieces,
        a step more costs one.
        """
        reached = (walk.t - t0) / (t1 - t0)
        growth = 0.5 * reached * self.pieces / jnp.maximum(walk.count, 1).astype(reached.dtype)
        norm = (0.9 / growth) ** order
        # A finished chain is accepted whatever comes next, an unfinished one rejected.
        unfinished = (walk.t < t1) & jnp.all(walk.state.sides.failure == RESOLVED)
        norm = jnp.where(unfinished, jnp.maximum(norm, 1.2), jnp.minimum(norm, 0.9))
        norm = lax.stop_gradient(norm)
        return jax.tree.map(lambda e, s: jnp.maximum(e, norm * s), walk.error, walk.allowed)

    def _empty_pieces(self, terms, t0, t1, y0, state: WalkState) -> StepPieces:
        """Return room for the pieces of a step."""
        frozen = self.flow.fix_sides(state.sides)
        _, _, dense, _, _ = eqx.filter_eval_shape(
            self.solver.step, terms, t0, t1, y0, frozen, state.inner, state.jump
        )
        infos = jax.tree.map(lambda a: jnp.zeros((self.pieces, *a.shape), a.dtype), dense)
        far = jnp.full(self.pieces, jnp.inf, t0.dtype)
        return StepPieces(far, far, infos)


class HeldWalk(Wrapped[WalkState]):
    """Wraps a solver for stiff flows, which follows a walk's flow at sides that no longer change.

    A walk that has settled goes on with it, see `flowlin.runs.settled`: its sides, their log and
    all that it has counted ride along.
    """

    solver: RKC
    flow: Any  # `OneLayerFlow`, `DeepFlow` or `ModuleFlow`

    def init(self, terms, t0, t1, y0, args) -> WalkState:
        """Refuse to start: sides are found by a walk."""
        raise TypeError("A `HeldWalk` goes on from a walk's state; see `take_over`.")

    def take_over(self, field: Any, t: Array, y: Parameters, walk: WalkState) -> WalkState:
        """Return the state to go on from where a walk has come to."""
        sides = self.flow.fix_sides(walk.sides)
        inner = self.solver.init(diffrax.ODETerm(field), t, t, y, sides)
        spent = walk.evaluations + inner.evaluations.astype(walk.evaluations.dtype)
        return replace_fields(walk, inner=inner, evaluations=spent)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """Take the inner solver's step at the sides as they are."""
        del args
        sides = self.flow.fix_sides(solver_state.sides)
        y1, error, dense, inner, result = self.solver.step(
            terms, t0, t1, y0, sides, solver_state.inner, made_jump
        )
        spent = (inner.evaluations - solver_state.inner.evaluations).astype(
            solver_state.evaluations.dtype
        )
        state = replace_fields(
            solver_state, inner=inner, evaluations=solver_state.evaluations + spent
        )
        return y1, error, dense, state, result
