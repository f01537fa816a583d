"""One piece of an exact walk: a Runge-Kutta step at fixed sides, cut at its first event."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arrays import Parameters
from flowlin.engine.kinks.first_event import (
    FEWEST_POINTS,
    FirstEvent,
    Margins,
    find_first_event,
    margins_at_states,
    times_along,
)
from flowlin.engine.kinks.margin_curve import chebyshev_points
from flowlin.engine.kinks.sides import Approach, Piece
from flowlin.engine.solvers.wrapped import Explicit


def step_to_event(
    flow: Any,
    solver: Explicit,
    terms: PyTree,
    t: Array,
    t1: Array,
    y: Parameters,
    frozen: Any,
    inner: PyTree,
    made_jump: ArrayLike,
    before: Approach,
    rtol: ArrayLike,
    error_at_rest: ArrayLike,
) -> Piece:
    """Take one step of `solver` from t towards t1 at frozen sides, and end it at its first event.

    `flow` is a `OneLayerFlow` or a `DeepFlow`, `before` how pairs neared their kinks up to t, and
    `error_at_rest` what a state at rest may err by, relative to its size.

    The event is found on the dense output. The state there is that of a second step which ends
    at it (the dense output has fewer digits), moved onto the kink by one Newton correction along
    the flow, with the slope of the dense output: it is small, and so is what that slope is off by.
    The correction also carries the derivative of the event's time, with the slope of the flow.
    """
    velocity, outdated = solver.first_stage(terms, t, y, frozen, inner, made_jump)
    start = _PieceStart(
        flow, solver, terms, t, t1, y, frozen, before, rtol, error_at_rest, outdated
    )
    step = start.step_to_event(velocity)
    event = step.event

    def onto_kink():
        end = start.time_of(event)
        there = terms.vf(end, step.y1, frozen) if inner is None else step.last
        late, y1, spread, per_error = _move_onto_kink(flow, frozen, step, there, start.length)
        spreads = (event.high - event.low) * start.length + spread, per_error.astype(t.dtype)
        return end + late, y1, *spreads

    def to_end():
        zero = jnp.zeros_like(t)
        return t1 + zero, step.y1, zero, zero

    end, y1, uncertainty, per_error = lax.cond(event.passed, onto_kink, to_end)
    y1, moved = flow.project_to_kinks(y1, frozen)
    return Piece(
        start=t,
        end=end,
        y1=y1,
        error=step.error_to_t1,
        dense=step.dense,
        inner=solver.state(inner, step.last),
        fired=event.fired,
        jump=jnp.any(event.fired) | moved,
        uncertainty=lax.stop_gradient(uncertainty),
        shift=lax.stop_gradient(per_error * event.scale.astype(t.dtype)),
        undecided=event.undecided,
        approach=event.approach,
    )


class _TriedStep(eqx.Module):
    """A step from a point: the one to t1, then the one to the first event that it passes.

    - `velocity`: at its start; `last`: that of its last stage.
    - `y1`, `error`, `dense`: its end, error and dense output.
    - `event`: on the step to t1, whose error is `error_to_t1`.
    - `at_end`: the event's margin at the end of the step to it, and off that by the step's error.
    """

    velocity: Parameters
    y1: Parameters
    error: Parameters
    dense: PyTree
    last: Parameters
    event: FirstEvent
    error_to_t1: Parameters
    at_end: Float[Array, " 2"]


class _PieceStart(eqx.Module):
    """The start of a piece, from which its steps are tried; see `step_to_event`.

    - `outdated`: as `Explicit.first_stage` returns it.
    """

    flow: Any
    solver: Explicit
    terms: PyTree
    t: Array
    t1: Array
    y: Parameters
    frozen: Any
    before: Approach
    rtol: ArrayLike
    error_at_rest: ArrayLike
    outdated: Array | None

    @property
    def length(self) -> Array:
        """The time to t1."""
        return lax.stop_gradient(self.t1 - self.t)

    def time_of(self, event: FirstEvent) -> Array:
        """Return the time of an event, by the dense output of the step to t1."""
        return lax.stop_gradient(self.t) + event.high * self.length

    def step_to_event(self, velocity: Parameters) -> _TriedStep:
        """Step to t1, or where that passes an event, to this one.

        The two steps are turns of a loop, so that their stages, and margins, are compiled once.
        `velocity` is the one at the start, unless that is outdated.
        """

        def try_step(step: _TriedStep, is_first: Array) -> tuple[_TriedStep, None]:
            due = is_first | step.event.passed
            return lax.cond(due, lambda: self._next_step(step, is_first), lambda: step), None

        found = self.solver.step_not_taken(velocity, self.terms, self.t, self.t1, self.y)
        none, zeros = FirstEvent.none_so_far(self.before), jnp.zeros(2, self.before.margin.dtype)
        start = _TriedStep(velocity, *found, none, found[1], zeros)
        return lax.scan(try_step, start, jnp.asarray([True, False]))[0]

    def _next_step(self, step: _TriedStep, is_first: Array) -> _TriedStep:
        """Take the step to t1, or after it the one to its event."""
        ends, event = (self.t, self.t1), step.event
        unknown = None if self.outdated is None else self.outdated & is_first
        end = jnp.where(is_first, self.t1, self.time_of(event))
        velocity, (y1, error, dense, last) = self.solver.step_from(
            step.velocity, unknown, self.terms, self.t, end, self.y, self.frozen
        )
        path = self.solver.interpolation_cls(t0=self.t, t1=self.t1, **dense)
        margins = _margins_of_step(self.flow, self.frozen, path, ends, y1, error, is_first)

        def first_event() -> tuple[FirstEvent, Parameters, Array]:
            order = self.solver.order(self.terms)
            what = self.flow, self.frozen, path, ends, margins, self.y, self.before
            event = find_first_event(*what, self.rtol, self.error_at_rest, order)
            return event, error, step.at_end

        def at_end() -> tuple[FirstEvent, Parameters, Array]:
            own = jnp.where(event.margin[None], margins[0][:2], 0.0)
            return event, step.error_to_t1, jnp.sum(own, axis=(1, 2, 3)) + event.slack

        event, error_to_t1, own = lax.cond(is_first, first_event, at_end)
        return _TriedStep(velocity, y1, error, dense, last, event, error_to_t1, own)


def _margins_of_step(
    flow: Any, frozen: Any, path: Any, ends: tuple[Array, Array], y1, error, along: Array
) -> Margins:
    """Return margins `along` a step, or else at its end and off that by its error.

    Without derivatives.
    """
    flow, frozen, path, ends, y1, error = lax.stop_gradient((flow, frozen, path, ends, y1, error))
    times = times_along(*ends, chebyshev_points(FEWEST_POINTS))

    def state_at(number: Array) -> Parameters:
        return lax.cond(
            along,
            lambda: path.evaluate(times[number]),
            lambda: jax.tree.map(lambda a, e: a + number.astype(a.dtype) * e, y1, error),
        )

    return margins_at_states(flow, frozen, state_at, jnp.where(along, FEWEST_POINTS, 2))


def _move_onto_kink(
    flow: Any, frozen: Any, step: _TriedStep, velocity: Parameters, length: Array
) -> tuple[Array, Parameters, Array, Array]:
    """Take Newton's step along the flow onto the kink of an event's pair, by its margin's slope.

    `velocity` is that at the end of the step to the event, `length` that of the step to t1.

    **Returns:** the change of time, the state there, the uncertainty of the time, and by how much
    an error of one in the margin moves it.
    """
    event, (value, beside) = step.event, step.at_end
    slope = event.slope / length.astype(event.slope.dtype)
    slope = jnp.where(slope < 0, slope, -jnp.inf)
    # Clipped, since at a tangential event the slope is near zero and Newton's step far too long.
    most = 1e-2 * (event.high * length)
    shift = jnp.clip(-value / slope, -most, most)
    what = flow, frozen, event.margin, event.slack, step.y1
    shift = shift + _no_delay(*what, lax.stop_gradient(velocity))
    y = jax.tree.map(lambda a, v: a + shift * v, step.y1, velocity)
    # A drive that had to pass zero by more than its error has passed it some time before.
    waited = jnp.where(jnp.any(event.margin & frozen.has_drive_margin[None]), event.slack, 0.0)
    return shift, y, (jnp.abs(beside - value) + waited) / jnp.abs(slope), jnp.abs(1 / slope)


def _first_margin(flow, frozen, first, slack, y) -> Array:
    """Return the margin of the pair `first`, with its slack."""
    return jnp.sum(jnp.where(first, flow.margins(y, frozen), 0.0)) + slack


@eqx.filter_custom_jvp
def _no_delay(flow, frozen, first, slack, y, velocity) -> Array:
    r"""Return zero, with the derivative of the time t at which a margin m ends, -dm / (dm/dt).

    Derivatives of margins are dear to compile, and a run that nobody differentiates has none.
    """
    del flow, frozen, first, y, velocity
    return jnp.zeros((), slack.dtype)


@_no_delay.def_jvp
def _derivative_of_time(primals, tangents) -> tuple[Array, Array]:
    flow, frozen, first, slack, y, velocity = primals
    along = jax.jvp(lambda at: _first_margin(flow, frozen, first, slack, at), (y,), (velocity,))
    slope = lax.stop_gradient(jnp.where(along[1] < 0, along[1], -jnp.inf))
    value, change = eqx.filter_jvp(_first_margin, primals[:-1], tangents[:-1])
    return jnp.zeros_like(value), -change / slope
