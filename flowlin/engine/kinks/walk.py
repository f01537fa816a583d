"""The exact walk as a diffrax solver."""

import functools
from collections.abc import Callable
from typing import Any, cast

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree
from numpy.polynomial import chebyshev

from flowlin._tools.arrays import Parameters, copied, with_axes
from flowlin._tools.numerics import rounding_in, while_loop
from flowlin._tools.series import bracketed_root
from flowlin.engine.allowed import AbstractAllowed
from flowlin.engine.kinks.deep_flow import DeepFlow
from flowlin.engine.kinks.deep_switching import NetworkRule
from flowlin.engine.kinks.one_layer import GatedFlow, UnitRule
from flowlin.engine.kinks.sides import FINE, SLIDING, AbstractRule, Piece
from flowlin.engine.signals import UNDECIDED
from flowlin.engine.solvers.wrapped import (
    AbstractCounting,
    Explicit,
    Forwarding,
    Report,
    evaluations,
)
from flowlin.networks.kinds import ReLUNetwork
from flowlin.record.event_log import Buffer
from flowlin.training.problem import Problem

# ---- One piece of an exact walk: a Runge-Kutta step at fixed sides, cut at its first event.

CHECKS = 6  # least number of points per step, both ends included, through which margins are put
GRID = np.linspace(0.0, 1.0, 11)  # where signs and turns are looked at


def walk_piece(
    flow: Any,
    solver: Explicit,
    terms: Any,
    t: Array,
    t1: Array,
    y: Parameters,
    frozen: Any,
    inner: PyTree,
    made_jump: Any,
) -> Piece:
    """One step of `solver` from t towards t1 with frozen sides, ended by the first event in it.

    `flow` is a `GatedFlow` or a `DeepFlow`.

    The event is found on the dense output. The state there is that of a second step which ends
    at it (the dense output has fewer digits), moved onto the kink by one Newton correction along
    the flow; the correction also carries the derivative of the event's time.
    """

    # The first stage, which the steps tried from here share.
    velocity = solver.first(terms, t, y, frozen, inner, made_jump)

    def step(end):
        return solver.step_from(velocity, terms, t, end, y, frozen)

    y1, error, dense, last = step(t1)
    path = solver.interpolation_cls(t0=t, t1=t1, **dense)
    points = _points(CHECKS)
    margins = _along(flow.margins, flow, frozen, path, t, t1, points)
    tolerance = flow.tolerances(y, frozen)
    slack = _slack(margins[0], tolerance)
    curve = _Curve.through(points, margins + slack[None])
    # As many points as make z exact, a polynomial of the dense output; it costs little.
    count = cast(int, solver.order(terms)) * flow.degree + 1
    if count > CHECKS:
        z = _along(flow.distances, flow, frozen, path, t, t1, _points(count))
        curve = curve.finer(_points(count), z + slack[:1], frozen.codes != SLIDING)
    found, before, after = curve.first_fall()

    def to_event():
        low, high, first, tied = _first_event(curve, before, after, slack <= 0, tolerance)
        length = lax.stop_gradient(t1 - t)
        target = lax.stop_gradient(t) + high * length
        ye, error_e, dense_e, last_e = step(target)
        there = flow(None, ye, frozen) if inner is None else last_e
        shift, ye, spread = _correct(flow, frozen, ye, there, error_e, first, slack, high * length)
        fired = jnp.any(first | tied, axis=0)
        return target + shift, ye, dense_e, last_e, fired, (high - low) * length + spread

    def to_end():
        none = jnp.zeros(frozen.codes.shape, bool)
        return t1 + jnp.zeros_like(t), y1, dense, last, none, jnp.zeros_like(t)

    end, y1, dense, last, fired, uncertainty = lax.cond(found, to_event, to_end)
    y1, moved = flow.settle(y1, frozen)
    return Piece(
        start=t,
        end=end,
        y1=y1,
        error=cast(Parameters, error),
        dense=dense,
        inner=solver.state(inner, last),
        fired=fired,
        jump=jnp.any(fired) | moved,
        uncertainty=lax.stop_gradient(uncertainty),
    )


def _first_event(curve, before, after, inside, tolerance) -> tuple[Array, Array, Array, Array]:
    """Where the first margin ends, as a bracket in fractions of the step, and whose it is.

    Who fires is read off the dense output: after the second step a dead pair, which waits at its
    tolerance for ever, could be lowest. Ties are pairs that began `inside` and are at their kinks.
    """
    low, high = lax.stop_gradient(curve.first_root(before, after))
    there = curve(high)
    first = (jnp.argmin(there) == jnp.arange(there.size)).reshape(there.shape)
    return low, high, first, inside & (there <= tolerance[None])


def _points(count: int) -> np.ndarray:
    """Chebyshev points in a step, as fractions, both ends included."""
    return (1 - np.cos(np.pi * np.linspace(0, 1, count))) / 2


def _along(function, flow, frozen, path, t, t1, points) -> Float[Array, "n *some H P"]:
    """A function of parameters and sides at fractions of a step, blind to derivatives."""
    function, frozen, path, t, t1 = lax.stop_gradient((function, frozen, path, t, t1))
    times = t + (t1 - t) * jnp.asarray(points, t.dtype)

    def there(at):
        return function(path.evaluate(at), frozen)

    return jax.vmap(there)(times) if flow.at_once else lax.map(there, times)


def _coefficients(points: np.ndarray, values: Float[Array, "n *some"]) -> Float[Array, "n *some"]:
    """Chebyshev's, of the polynomials through values at `points`."""
    inverse = np.linalg.inv(chebyshev.chebvander(2 * points - 1, points.size - 1))
    return jnp.tensordot(jnp.asarray(inverse, values.dtype), values, 1)


def _basis(at: Float[Array, "*some"], count: int) -> Float[Array, "*some n"]:
    """The first Chebyshev polynomials, T_k(cos a) = cos(k a), at fractions of the step."""
    cosine = jnp.clip(2 * at - 1, -1.0, 1.0)
    angle = jnp.arctan2(jnp.sqrt((1 - cosine) * (1 + cosine)), cosine)  # quicker to compile
    degrees = with_axes(np.arange(count, dtype=angle.dtype), angle.ndim)
    return jnp.cos(degrees * angle[..., None])


class _Curve(eqx.Module):
    """Margins along a step as Chebyshev series in s = 2 (t - t0) / (t1 - t0) - 1.

    Powers of s would lose all digits for networks of many layers, whose z are of high degree.
    """

    coefficients: Float[Array, "n 2 H P"]

    @staticmethod
    def through(points: np.ndarray, values: Float[Array, "n 2 H P"]) -> "_Curve":
        """The polynomials through values at Chebyshev points."""
        return _Curve(_coefficients(points, values))

    def finer(
        self, points: np.ndarray, values: Float[Array, "n H P"], where: Bool[Array, "H P"]
    ) -> "_Curve":
        """With the first of two replaced, where so said, by those through more values."""
        fine = _coefficients(points, values)
        more = [(0, points.size - self.coefficients.shape[0]), (0, 0), (0, 0), (0, 0)]
        first, second = jnp.pad(self.coefficients, more).swapaxes(0, 1)
        return _Curve(jnp.stack([jnp.where(where[None], fine, first), second], axis=1))

    def __call__(self, at: Array) -> Float[Array, "2 H P"]:
        """All of them, at a fraction of the step."""
        return jnp.tensordot(_basis(at, self.coefficients.shape[0]), self.coefficients, 1)

    def first_fall(self) -> tuple[Array, Array, Array]:
        """Whether any of them falls to zero, and fractions of the step before and after it does.

        Looked at on a grid, and where one turns between two of its points, at the bottom of the
        dip: a pair that grazes its kink and misses it by a hair goes another way than one that
        meets it.
        """
        flat = self.coefficients.reshape(self.coefficients.shape[0], -1)
        all_, s = np.eye(flat.shape[0]), 2 * GRID - 1
        rates = chebyshev.chebder(all_, scl=2)  # with respect to the fraction
        on_grid = (chebyshev.chebval(s, series).T for series in (all_, rates))
        value, slope = (jnp.asarray(m, flat.dtype) @ flat for m in on_grid)
        below = value[1:] <= 0
        turns = (value[:-1] > 0) & ~below & (slope[:-1] < 0) & (slope[1:] > 0)
        part = jnp.where(turns, slope[:-1] / jnp.where(turns, slope[:-1] - slope[1:], 1.0), 0.0)
        width = jnp.asarray(np.diff(GRID)[:, None])
        start, fall, share = (a.astype(width.dtype) for a in (value[:-1], slope[:-1], part))
        dips = turns & (start + fall * width * share / 2 <= 0)
        grid = jnp.asarray(GRID, flat.dtype)

        falls, fall = jnp.any(below), jnp.argmax(jnp.any(below, axis=1))
        dip = jnp.argmax(jnp.any(dips, axis=1))
        who = jnp.argmax(dips[dip])
        bottom = grid[dip] + (grid[dip + 1] - grid[dip]) * part[dip, who]
        dipped = jnp.any(dips) & (_basis(bottom, flat.shape[0]) @ flat[:, who] <= 0)
        dipped = dipped & (~falls | (dip <= fall))
        before = jnp.where(dipped, grid[dip], grid[fall])
        return falls | dipped, before, jnp.where(dipped, bottom, grid[fall + 1])

    def first_root(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Bracket of the first root of any, all positive at `low` and one not at `high`.

        One polynomial at a time, the lowest at the end of what is left: much cheaper than looking
        at all of them in every step of the root find. Somebody else may have been first, before
        the bracket found. Every round but the last leaves one root less before it, so there are no
        more rounds than roots, and none where the bracket is down to rounding.
        """
        flat = self.coefficients.reshape(self.coefficients.shape[0], -1)
        tolerance = rounding_in(flat.dtype).root

        def body(state):
            low, end, _, _, rounds = state
            known = _basis(jnp.stack([low, end]), flat.shape[0]) @ flat
            lowest = jnp.argmin(known[1])
            own = flat[:, lowest]

            def value(at):
                return _basis(at, own.size) @ own

            known = known[:, lowest]
            before, after = bracketed_root(value, low, end, False, tolerance, known)
            again = (jnp.min(self(before)) <= 0) & (before > low) & (before < end)
            return low, before, after, again, rounds + 1

        def unfinished(state):
            return state[3] & (state[4] < flat.size)

        start = low, high, high, jnp.asarray(True), jnp.zeros((), int)
        _, low, high, *_ = lax.while_loop(unfinished, body, start)
        return low, high


def _slack(margins: Array, tolerance: Array) -> Array:
    """How far below zero each margin has to fall to count, from the margins at the start.

    Zero, but for pairs within rounding of their kinks (they have just switched, or belong to a
    dead unit): those have to leave by more than rounding.
    """
    tolerance = tolerance[None]
    return jnp.where(margins < tolerance, tolerance - jnp.minimum(margins, 0.0), 0.0)


def _correct(
    flow, frozen, y, velocity, error, first, slack, length
) -> tuple[Array, Parameters, Array]:
    """Newton's step along the flow onto the kink of the pair `first`.

    **Returns:** the change of time, the state there, and the uncertainty of the time.
    """

    slides = jnp.any(jnp.any(first, axis=0) & (frozen.codes == SLIDING))

    def margin(y):
        # Of a pair on a side, |z|, without solving for those that slide.
        return lax.cond(
            slides,
            lambda y: jnp.sum(jnp.where(first, flow.margins(y, frozen) + slack, 0.0)),
            lambda y: jnp.sum(jnp.where(first[0], flow.distances(y, frozen) + slack[0], 0.0)),
            y,
        )

    def along(way):
        return jax.jvp(margin, (y,), (way,))

    ways = jax.tree.map(lambda *both: jnp.stack(both), velocity, lax.stop_gradient(error))
    value, (slope, off) = jax.vmap(along, out_axes=(None, 0))(ways)
    slope = lax.stop_gradient(jnp.where(slope < 0, slope, -jnp.inf))
    fixed = lax.stop_gradient(value)
    # A tangential event could send Newton far off.
    shift = jnp.clip(-fixed / slope, -1e-2 * length, 1e-2 * length) - (value - fixed) / slope
    y = jax.tree.map(lambda a, v: a + shift * v, y, velocity)
    return shift, y, jnp.abs(off / slope)


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
