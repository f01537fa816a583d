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

from flowlin._tools.arrays import Parameters, copied
from flowlin._tools.numerics import while_loop
from flowlin.engine.kinks.deep_flow import DeepFlow
from flowlin.engine.kinks.deep_switching import NetworkRule
from flowlin.engine.kinks.one_layer import GatedFlow, UnitRule
from flowlin.engine.kinks.sides import FINE, AbstractRule, Piece
from flowlin.engine.kinks.walk_piece import walk_piece
from flowlin.engine.signals import UNDECIDED
from flowlin.engine.solvers.allowed_error import AbstractAllowed
from flowlin.engine.solvers.wrapped import (
    AbstractCounting,
    Explicit,
    Forwarding,
    Report,
    evaluations,
)
from flowlin.networks.kinds import ReLUNetwork
from flowlin.record.buffer import Buffer
from flowlin.training.problem import Problem


def rule_for(problem: Problem, slots: int, loop: str) -> AbstractRule:
    """The rule, and with it the flow, for a network's number of hidden layers."""
    network = problem.network
    assert isinstance(network, ReLUNetwork)
    what = network, problem.task, problem.loss, problem.constants, problem.decay
    if len(network.hidden) == 1:
        return UnitRule(GatedFlow(*what), slots, loop)
    pairs = sum(network.hidden) * problem.task.samples
    return NetworkRule(DeepFlow(*what), min(4 * slots, pairs))


class Pieces(eqx.Module):
    """The pieces of one step, stacked; starts beyond the last are inf.

    Untyped, since inside a loop equinox wraps the buffers' leaves.
    """

    starts: Any
    ends: Any
    infos: PyTree

    def put(self, k: Array, piece: Piece) -> "Pieces":
        """With `piece` as number k."""
        return Pieces(
            self.starts.at[k].set(piece.start),
            self.ends.at[k].set(piece.end),
            # In this order, since the buffers' leaves may be wrapped.
            jax.tree.map(lambda one, all_: all_.at[k].set(one), piece.dense, self.infos),
        )


class PiecewiseInterpolation(diffrax.AbstractLocalInterpolation):
    """Dense output of a step of several pieces."""

    t0: ArrayLike
    t1: ArrayLike
    pieces: Pieces
    inner: Callable[..., diffrax.AbstractLocalInterpolation] = eqx.field(static=True)

    def evaluate(self, t0, t1=None, left=True):
        """The state at t0, or the increment from t0 to t1."""
        if t1 is not None:
            return jax.tree.map(jnp.subtract, self.evaluate(t1), self.evaluate(t0))
        # By counting, and without looking for negative indices: the first costs a search two
        # hundred operations, the second one three per array.
        k = jnp.maximum(jnp.sum(self.pieces.starts <= t0) - 1, 0)
        options = {"mode": "promise_in_bounds", "wrap_negative_indices": False}
        one = jax.tree.map(lambda a: a.at[k].get(**options), self.pieces)
        return self.inner(t0=one.starts, t1=one.ends, **one.infos).evaluate(t0, left=left)


@functools.cache
def _interpolation(inner):
    """The interpolation over pieces of `inner`; cached, since diffrax compares by identity."""
    return functools.partial(PiecewiseInterpolation, inner=inner)


class WalkState(AbstractCounting):
    """Carried from step to step, and rolled back by diffrax when a step is rejected."""

    inner: PyTree
    sides: PyTree
    log: Buffer
    initial: Int[Array, "H P"]  # the first sides
    jump: Bool[Array, ""]  # whether the velocity jumped at the very end of the last step
    end: Float[Array, ""]  # time of an event that could not be decided, else inf
    evaluations: Int[Array, ""]  # of the velocity, up to here

    def report(self, ts: Array, tau: Array) -> Report:
        """What the rule says of its sides."""
        del ts, tau
        return {"accepted_evaluations": self.evaluations, **self.sides.report}, {}


class _Walk(eqx.Module):
    """Where a step has got to."""

    t: Array
    y: Parameters
    state: WalkState
    error: Parameters
    pieces: Pieces
    count: Int[Array, ""]


class ExactWalk(Forwarding[WalkState]):
    """Wraps a Runge-Kutta solver and walks through the kinks of a ReLU flow.

    Each step is a chain of up to `pieces` steps of the inner solver, cut at the events between
    them. The error reported is the largest of the steps **tried**, each of which aims at the
    step's end: pieces are as short as the events are dense, and their own errors would tell the
    controller to take steps that are too long for the flow in between. It is raised where that
    is needed for the next step to end within its pieces; `allowed` says what the controller makes
    of it.
    """

    solver: Explicit
    rule: AbstractRule
    allowed: AbstractAllowed
    capacity: int = eqx.field(static=True)  # of the gate log
    pieces: int = eqx.field(static=True, default=8)
    loop: str = eqx.field(
        static=True, default="lax"
    )  # kind of loops, see `flowlin._tools.numerics`

    @property
    def interpolation_cls(self):  # pyright: ignore
        """Over several pieces."""
        return _interpolation(self.solver.interpolation_cls)

    def init(self, terms, t0, t1, y0, args) -> WalkState:
        """Sides at the start, and an empty log."""
        del args
        sides = self.rule.start(y0)
        inner = self.solver.init(terms, t0, t1, y0, self.rule.flow.freeze(sides))
        log = Buffer.empty(self.capacity, jnp.result_type(t0))
        never = jnp.asarray(jnp.inf, log.time.dtype)
        return WalkState(
            inner=inner,
            sides=sides,
            log=log,
            initial=sides.codes.astype(jnp.int8),
            jump=jnp.asarray(False),
            end=never,
            evaluations=jnp.ones((), int),
        )

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """Walk from t0 to t1."""
        del args
        # Compiled by itself, as far as tracing goes: diffrax traces a step three times.
        return self._walked(terms, jnp.asarray(t0), jnp.asarray(t1), y0, solver_state, made_jump)

    @eqx.filter_jit
    def _walked(self, terms, t0, t1, y0, solver_state, made_jump):
        state = copied(solver_state, jump=solver_state.jump | made_jump)
        start = _Walk(
            t=t0,
            y=y0,
            state=state,
            error=jax.tree.map(jnp.zeros_like, y0),
            pieces=self._no_pieces(terms, t0, t1, y0, state),
            count=jnp.zeros((), int),
        )

        @jax.jit  # derivatives in reverse trace it many times
        def body(walk: _Walk) -> _Walk:
            frozen = self.rule.flow.freeze(walk.state.sides)
            piece = walk_piece(
                self.rule.flow, self.solver, terms, walk.t, t1, walk.y, frozen,
                walk.state.inner, walk.state.jump,
            )  # fmt: skip
            return self._past(walk, piece)

        def goes_on(walk: _Walk) -> Array:
            # A chain that the controller will reject for its error need not be walked on.
            hopeless = self._norm(walk.error, y0, walk.y) > 1.1
            trouble = jnp.any(walk.state.sides.trouble != FINE)
            return (walk.t < t1) & (walk.count < self.pieces) & ~hopeless & ~trouble

        walk = while_loop(
            goes_on,
            body,
            start,
            kind=self.loop,  # pyright: ignore
            max_steps=self.pieces,
            buffers=lambda w: w.pieces,
        )
        trouble = jnp.any(walk.state.sides.trouble != FINE)
        error = self._raised(walk, self.error_order(terms), t0, t1, y0)
        result = diffrax.RESULTS.where(trouble, UNDECIDED, diffrax.RESULTS.successful)
        return walk.y, error, {"pieces": walk.pieces}, walk.state, result

    def _past(self, walk: _Walk, piece: Piece) -> _Walk:
        """The walk past a piece, with the sides that hold after the event at its end."""
        sides, log = self.rule.switch(piece, walk.state.sides, walk.state.log)
        end = jnp.where(jnp.any(sides.trouble != FINE), piece.end, walk.state.end)
        # A piece cut at an event takes a second step, and the next one a first stage.
        steps = jnp.where(jnp.any(piece.fired), 2, 1)
        spent = (
            walk.state.evaluations
            + steps * evaluations(self.solver.solver)
            + piece.jump.astype(int)
        )
        state = copied(
            walk.state,
            inner=piece.inner,
            sides=sides,
            log=log,
            jump=piece.jump,
            end=end,
            evaluations=spent,
        )
        return _Walk(
            t=piece.end,
            y=piece.y1,
            state=state,
            error=jax.tree.map(lambda a, b: jnp.maximum(a, jnp.abs(b)), walk.error, piece.error),
            pieces=walk.pieces.put(walk.count, piece),
            count=walk.count + 1,
        )

    def _norm(self, error: Parameters, y0: Parameters, y1: Parameters) -> Array:
        """The controller's norm of an error; a step is accepted below one."""
        ratios = jax.tree.map(jnp.divide, lax.stop_gradient(error), self.allowed(y0, y1))
        flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(ratios)])
        return jnp.sqrt(jnp.mean(flat**2))

    def _raised(self, walk: _Walk, order, t0: Array, t1: Array, y0: Parameters) -> Parameters:
        """The error, raised so that the next step takes about half of the pieces.

        The controller multiplies a step by 0.9 norm^(-1/order). A chain that ended early is thus
        tried again at half of the length that it reached: a chain that fails costs all its pieces,
        a step more costs one.
        """
        reached = (walk.t - t0) / (t1 - t0)
        growth = 0.5 * reached * self.pieces / jnp.maximum(walk.count, 1).astype(reached.dtype)
        norm = (0.9 / growth) ** order
        # A finished chain is accepted whatever comes next, an unfinished one rejected.
        unfinished = (walk.t < t1) & jnp.all(walk.state.sides.trouble == FINE)
        norm = jnp.where(unfinished, jnp.maximum(norm, 1.2), jnp.minimum(norm, 0.9))
        norm = lax.stop_gradient(norm)
        return jax.tree.map(
            lambda e, s: jnp.maximum(e, norm * s), walk.error, self.allowed(y0, walk.y)
        )

    def _no_pieces(self, terms, t0, t1, y0, state: WalkState) -> Pieces:
        """Room for the pieces of a step."""
        frozen = self.rule.flow.freeze(state.sides)
        _, _, dense, _, _ = eqx.filter_eval_shape(
            self.solver.step, terms, t0, t1, y0, frozen, state.inner, state.jump
        )
        infos = jax.tree.map(lambda a: jnp.zeros((self.pieces, *a.shape), a.dtype), dense)
        far = jnp.full(self.pieces, jnp.inf, t0.dtype)
        return Pieces(far, far, infos)
