"""One piece of an exact walk: a Runge-Kutta step at fixed sides, cut at its first event."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PyTree
from numpy.polynomial import chebyshev

from flowlin._tools.arrays import Parameters, replace_fields, with_axes
from flowlin._tools.numerics import dtype_rounding
from flowlin._tools.series import bracket_root
from flowlin.engine.kinks.sides import SLIDING, Approach, Piece
from flowlin.engine.solvers.wrapped import Explicit

# Tolerances by which a drive may be off after convergence; a hundred steps' errors add up.
CONVERGED = 100.0
FEWEST_POINTS = 6  # points per step at least, both ends included, that margins are interpolated at
STEP_GRID = np.linspace(0.0, 1.0, 11)  # fractions of a step at which signs and slopes are compared


class _FirstEvent(eqx.Module):
    """The first event that a step passes; without one, nothing fires and all of the step is taken.

    - `passed`: whether there is one.
    - `low`, `high`: fractions of the step that bracket it.
    - `margin`: whose margin ends, (2, H, P), one of all; `slack` was added to it, and it falls by
      `slope` per step.
    - `fired`: the pair of that margin, and those at their kinks with it.
    - `scale`: by what a margin that ends there may be off.
    - `approach`: as in `Piece`.
    - `error`: of the step that passes it.
    """

    passed: Bool[Array, ""]
    low: Float[Array, ""]
    high: Float[Array, ""]
    margin: Bool[Array, "2 H P"]
    slack: Float[Array, ""]
    slope: Float[Array, ""]
    fired: Bool[Array, "H P"]
    scale: Float[Array, ""]
    approach: Approach
    error: Parameters


def step_to_event(
    flow: Any,
    solver: Explicit,
    terms: Any,
    t: Array,
    t1: Array,
    y: Parameters,
    frozen: Any,
    inner: PyTree,
    made_jump: Any,
    before: Approach,
    rtol: Any,
) -> Piece:
    """Take one step of `solver` from t towards t1 at frozen sides, and end it at its first event.

    `flow` is a `OneLayerFlow` or a `DeepFlow`, `before` how pairs neared their kinks up to t.

    The event is found on the dense output. The state there is that of a second step which ends
    at it (the dense output has fewer digits), moved onto the kink by one Newton correction along
    the flow, with the slope of the dense output: it is small, and so is what that slope is off by.
    The correction also carries the derivative of the event's time, with the slope of the flow.
    """
    velocity, outdated = solver.first_stage(terms, t, y, frozen, inner, made_jump)
    length = lax.stop_gradient(t1 - t)

    def time_of(event: _FirstEvent) -> Array:
        return lax.stop_gradient(t) + event.high * length

    # Both are traced once, here for their shapes.
    @jax.jit
    def step_until(velocity: Parameters, outdated: Any, end: Array) -> Any:
        return solver.step_from(velocity, outdated, terms, t, end, y, frozen)

    @jax.jit
    def find_event(dense: PyTree, error: Parameters) -> _FirstEvent:
        path = solver.interpolation_cls(t0=t, t1=t1, **dense)
        order = solver.order(terms)
        return _first_event(flow, frozen, path, (t, t1), y, error, before, rtol, order)

    def try_step(tried: Any, is_first: Array) -> tuple[Any, None]:
        def take_step() -> Any:
            (velocity, _), event = tried
            unknown = None if outdated is None else outdated & is_first
            found = step_until(velocity, unknown, jnp.where(is_first, t1, time_of(event)))
            (_, error, dense, _) = found[1]
            return found, lax.cond(is_first, lambda: find_event(dense, error), lambda: event)

        return lax.cond(is_first | tried[1].passed, take_step, lambda: tried), None

    def empty(velocity: Parameters) -> Any:
        found = step_until(velocity, outdated, t1)
        return found, find_event(found[1][2], found[1][1])

    # A loop, in which the step to t1 and the one to the event are compiled once.
    (_, found), event = jax.tree.map(
        lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(empty, velocity)
    )
    tried = (velocity, found), event
    ((_, found), event), _ = lax.scan(try_step, tried, jnp.asarray([True, False]))
    y1, error, dense, last = found

    def onto_kink():
        end = time_of(event)
        there = terms.vf(end, y1, frozen) if inner is None else last
        late, moved, spread, per_error = _move_onto_kink(
            flow, frozen, y1, there, error, event, length
        )
        spreads = (event.high - event.low) * length + spread, per_error.astype(t.dtype)
        return end + late, moved, *spreads

    def to_end():
        zero = jnp.zeros_like(t)
        return t1 + zero, y1, zero, zero

    end, y1, uncertainty, per_error = lax.cond(event.passed, onto_kink, to_end)
    y1, moved = flow.project_to_kinks(y1, frozen)
    return Piece(
        start=t,
        end=end,
        y1=y1,
        error=event.error,
        dense=dense,
        inner=solver.state(inner, last),
        fired=event.fired,
        jump=jnp.any(event.fired) | moved,
        uncertainty=lax.stop_gradient(uncertainty),
        shift=lax.stop_gradient(per_error * event.scale.astype(t.dtype)),
        approach=event.approach,
    )


def _first_event(
    flow: Any,
    frozen: Any,
    path: Any,
    ends: tuple[Array, Array],
    y: Parameters,
    error: Parameters,
    before: Approach,
    rtol: Any,
    order: Any,
) -> _FirstEvent:
    """Find the first event on the dense output `path` of a step between the times `ends`."""
    tolerance = flow.margin_tolerances(y, frozen)
    both = jnp.stack([tolerance, _drive_tolerance(flow, frozen, y, tolerance, rtol)])
    curve, slack, bounds = _margin_curve(flow, frozen, path, ends, both, order)
    grid = curve.on_grid()
    passed, *bracket = curve.first_fall(*grid)

    def locate():
        low, high, margin, tied = _first_margin_event(curve, bracket, slack <= 0, tolerance)
        return low, high, margin, jnp.any(margin | tied, axis=0), curve.slope_of(margin, high)

    def without_event():
        whole, none = jnp.ones((), slack.dtype), jnp.zeros(slack.shape, bool)
        return whole, whole, none, none[0], -whole

    low, high, margin, fired, slope = lax.cond(passed, locate, without_event)
    scales, may_graze = _error_scales(flow, frozen, y, bounds, rtol)
    approach = _approach_after(before, grid, high, may_graze, tolerance, fired)
    event = _FirstEvent(
        passed=passed,
        low=low,
        high=high,
        margin=margin,
        slack=jnp.sum(jnp.where(margin, slack, 0.0)),
        slope=slope,
        fired=fired,
        scale=jnp.max(jnp.where(fired, rtol * scales, 0.0)),
        approach=approach,
        error=jax.tree.map(jnp.zeros_like, error),
    )
    return replace_fields(lax.stop_gradient(event), error=error)


def _error_scales(
    flow: Any, frozen: Any, y: Parameters, bounds: Array, rtol: Any
) -> tuple[Float[Array, "H P"], Float[Array, "H P"]]:
    """Return what errors of u and z are relative to, and the same where a kink repels, else 0.

    A kink repels where its bound of u lies below zero by more than an error of `rtol`, somewhere in
    the step.
    """
    drives = flow.drive_scales(y)
    scales = jnp.where(frozen.has_drive_margin, drives, flow.pair_scales(y))
    repels = bounds < -rtol * drives
    return scales, jnp.where(repels & ~frozen.has_drive_margin, scales, 0.0)


def _drive_tolerance(
    flow: Any, frozen: Any, y: Parameters, tolerance: Array, rtol: Any
) -> Float[Array, "H P"]:
    """Return the second margins that may be rounding, or errors where a dead unit rests.

    A kink that is about to turn from attracting it to repelling it has to turn by more than an
    error: after convergence C is one, of either sign.
    """
    error = CONVERGED * rtol * flow.drive_scales(y)
    return jnp.where(frozen.rests, jnp.maximum(tolerance, error), tolerance)


def _margin_curve(
    flow: Any, frozen: Any, path: Any, ends: tuple[Array, Array], tolerances: Array, order: Any
) -> tuple["_MarginCurve", Array, Array]:
    """Interpolate the margins along a step; `tolerances` (2, H, P) are those of both.

    **Returns:** the curve, the slack that was added to each margin, and the least bounds of u.
    """
    points = _chebyshev_points(FEWEST_POINTS)
    margins, bounds = _values_along(flow.margins_and_bounds, flow, frozen, path, *ends, points)
    slack = _event_tolerance(margins[0], tolerances)
    curve = _MarginCurve.through_points(points, margins + slack[None])
    # As many points as make z exact, a polynomial of the dense output; it costs little.
    count = order * flow.degree + 1
    if count > FEWEST_POINTS:
        points = _chebyshev_points(count)
        z = _values_along(flow.side_distances, flow, frozen, path, *ends, points)
        curve = curve.with_finer_first(points, z + slack[:1], frozen.codes != SLIDING)
    # A kink that repels anywhere in the step counts: its drive may change sign before the turn.
    return curve, slack, jnp.min(bounds, axis=0)


def _first_margin_event(curve, bracket, inside, tolerance) -> tuple[Array, Array, Array, Array]:
    """Bracket the time at which the first margin ends, in fractions of the step, and say whose.

    The pair that fires is read off the dense output: after the second step a dead pair, which waits
    at its tolerance for ever, could be lowest. Ties are pairs that began `inside` and are at their
    kinks.
    """
    low, high = lax.stop_gradient(curve.first_root(*bracket))
    there = curve(high)
    first = (jnp.argmin(there) == jnp.arange(there.size)).reshape(there.shape)
    return low, high, first, inside & (there <= tolerance[None])


def _chebyshev_points(count: int) -> np.ndarray:
    """Return Chebyshev points in a step, as fractions, both ends included."""
    return (1 - np.cos(np.pi * np.linspace(0, 1, count))) / 2


def _values_along(function, flow, frozen, path, t, t1, points) -> Any:
    """Evaluate a function of parameters and sides at fractions of a step, without derivatives."""
    function, frozen, path, t, t1 = lax.stop_gradient((function, frozen, path, t, t1))
    times = t + (t1 - t) * jnp.asarray(points, t.dtype)

    def value_at(at):
        return function(path.evaluate(at), frozen)

    return jax.vmap(value_at)(times) if flow.batches_margins else lax.map(value_at, times)


def _series_coefficients(
    points: np.ndarray, values: Float[Array, "n *some"]
) -> Float[Array, "n *some"]:
    """Return Chebyshev coefficients of the polynomials through values at `points`."""
    inverse = np.linalg.inv(chebyshev.chebvander(2 * points - 1, points.size - 1))
    return jnp.tensordot(jnp.asarray(inverse, values.dtype), values, 1)


def _chebyshev_basis(at: Float[Array, "*some"], count: int) -> Float[Array, "*some n"]:
    """Evaluate the first Chebyshev polynomials, T_k(cos a) = cos(k a), at fractions of the step."""
    cosine = jnp.clip(2 * at - 1, -1.0, 1.0)
    angle = jnp.arctan2(jnp.sqrt((1 - cosine) * (1 + cosine)), cosine)  # quicker to compile
    degrees = with_axes(np.arange(count, dtype=angle.dtype), angle.ndim)
    return jnp.cos(degrees * angle[..., None])


class _MarginCurve(eqx.Module):
    """Margins along a step as Chebyshev series in s = 2 (t - t0) / (t1 - t0) - 1.

    Powers of s would lose all digits for networks of many layers, whose z are of high degree.
    """

    coefficients: Float[Array, "n 2 H P"]

    @staticmethod
    def through_points(points: np.ndarray, values: Float[Array, "n 2 H P"]) -> "_MarginCurve":
        """Return the polynomials through values at Chebyshev points."""
        return _MarginCurve(_series_coefficients(points, values))

    def with_finer_first(
        self, points: np.ndarray, values: Float[Array, "n H P"], where: Bool[Array, "H P"]
    ) -> "_MarginCurve":
        """Replace the first of two margins, at pairs `where`, by those through more values."""
        fine = _series_coefficients(points, values)
        more = [(0, points.size - self.coefficients.shape[0]), (0, 0), (0, 0), (0, 0)]
        first, second = jnp.pad(self.coefficients, more).swapaxes(0, 1)
        return _MarginCurve(jnp.stack([jnp.where(where[None], fine, first), second], axis=1))

    def __call__(self, at: Array) -> Float[Array, "2 H P"]:
        """Return all margins at a fraction of the step."""
        return jnp.tensordot(_chebyshev_basis(at, self.coefficients.shape[0]), self.coefficients, 1)

    def slope_of(self, which: Bool[Array, "2 H P"], at: Array) -> Float[Array, ""]:
        """Return by how much the margin of one pair changes per step, at a fraction of it."""
        series = jnp.sum(jnp.where(which[None], self.coefficients, 0.0), axis=(1, 2, 3))
        rates = chebyshev.chebder(np.eye(series.size), scl=2)  # with respect to the fraction
        basis = _chebyshev_basis(at.astype(series.dtype), series.size - 1)
        return basis @ (jnp.asarray(rates, series.dtype) @ series)

    def on_grid(self) -> tuple[Float[Array, "g n"], Float[Array, "g n"]]:
        """Return all margins and their slopes, flat, at the fractions of `STEP_GRID`."""
        flat = self.coefficients.reshape(self.coefficients.shape[0], -1)
        all_, s = np.eye(flat.shape[0]), 2 * STEP_GRID - 1
        rates = chebyshev.chebder(all_, scl=2)  # with respect to the fraction
        on_grid = (chebyshev.chebval(s, series).T for series in (all_, rates))
        value, slope = (jnp.asarray(m, flat.dtype) @ flat for m in on_grid)
        return value, slope

    def first_fall(self, value: Array, slope: Array) -> tuple[Array, Array, Array]:
        """Tell whether any margin falls to zero, and at which fractions before and after.

        Margins are evaluated `on_grid`, and where one turns between two of its points, at the
        bottom of the dip: a pair that grazes its kink and misses it by a hair goes another way
        than one that meets it.
        """
        flat = self.coefficients.reshape(self.coefficients.shape[0], -1)
        below = value[1:] <= 0
        turns, part = _turns_on_grid(value, slope)
        width = jnp.asarray(np.diff(STEP_GRID)[:, None])
        start, fall, share = (a.astype(width.dtype) for a in (value[:-1], slope[:-1], part))
        dips = turns & (start + fall * width * share / 2 <= 0)
        grid = jnp.asarray(STEP_GRID, flat.dtype)

        falls, fall = jnp.any(below), jnp.argmax(jnp.any(below, axis=1))
        dip = jnp.argmax(jnp.any(dips, axis=1))
        who = jnp.argmax(dips[dip])
        bottom = grid[dip] + (grid[dip + 1] - grid[dip]) * part[dip, who]
        dipped = jnp.any(dips) & (_chebyshev_basis(bottom, flat.shape[0]) @ flat[:, who] <= 0)
        dipped = dipped & (~falls | (dip <= fall))
        before = jnp.where(dipped, grid[dip], grid[fall])
        return falls | dipped, before, jnp.where(dipped, bottom, grid[fall + 1])

    def first_root(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Bracket the first root of any margin, all positive at `low` and one not at `high`.

        One polynomial at a time, the lowest at the end of what is left: much cheaper than to
        evaluate all of them in every step of the root find. Another one may have been first, before
        the bracket found. Every round but the last leaves one root less before it, so there are no
        more rounds than roots, and none where the bracket is down to rounding.
        """
        flat = self.coefficients.reshape(self.coefficients.shape[0], -1)
        tolerance = dtype_rounding(flat.dtype).root

        def narrow_bracket(state):
            low, end, _, _, rounds = state
            known = _chebyshev_basis(jnp.stack([low, end]), flat.shape[0]) @ flat
            lowest = jnp.argmin(known[1])
            own = flat[:, lowest]

            def lowest_margin(at):
                return _chebyshev_basis(at, own.size) @ own

            known = known[:, lowest]
            before, after = bracket_root(lowest_margin, low, end, False, tolerance, known)
            again = (jnp.min(self(before)) <= 0) & (before > low) & (before < end)
            return low, before, after, again, rounds + 1

        def is_unfinished(state):
            return state[3] & (state[4] < flat.size)

        start = low, high, high, jnp.asarray(True), jnp.zeros((), int)
        _, low, high, *_ = lax.while_loop(is_unfinished, narrow_bracket, start)
        return low, high


def _turns_on_grid(value: Array, slope: Array) -> tuple[Array, Array]:
    """Tell between which points of the grid a margin turns above zero, and where in between."""
    turns = (value[:-1] > 0) & (value[1:] > 0) & (slope[:-1] < 0) & (slope[1:] > 0)
    part = jnp.where(turns, slope[:-1] / jnp.where(turns, slope[:-1] - slope[1:], 1.0), 0.0)
    return turns, part


def _approach_after(
    before: Approach,
    grid: tuple[Array, Array],
    reached: Array,
    scales: Float[Array, "H P"],
    rounding: Float[Array, "H P"],
    fired: Bool[Array, "H P"],
) -> Approach:
    r"""Return how near pairs came to their kinks, after a step as far as it `reached`.

    A margin m turns back where its slope goes from negative to positive: between two points of the
    grid, a distance w apart with values m, slopes m' and the turn at the share p by the secant, it
    is there, for a cubic,

    $$m_0 + w \left(\frac{p\, m'_0}{2} + k\, p^2 \left(\frac p3 - \frac12\right)\right), \quad
      k = 3 (m'_0 + m'_1) - 6\, \frac{m_1 - m_0}{w}$$

    (the slope is linear plus k p (p - 1)). Or at an event of another pair, which makes velocities
    jump: a pair that neared its kink before the step and leaves it at its start.

    Margins count by `scales`, zero for pairs that do not count. They, and what they move by in a
    step, are beyond `rounding`: by that z of a dead unit moves, or of one that just left its kink.
    Pairs that `fired` at its end are past their kinks.
    """
    value, slope = (a[:, : scales.size] for a in grid)
    turns, p = _turns_on_grid(value, slope)
    least = rounding.ravel()
    turns = turns & (slope[:-1] < -least[None]) & (slope[1:] > least[None])
    grid_points = jnp.asarray(STEP_GRID, value.dtype)
    w = jnp.asarray(np.diff(STEP_GRID)[:, None], value.dtype)
    k = 3 * (slope[:-1] + slope[1:]) - 6 * (value[1:] - value[:-1]) / w
    bottom = value[:-1] + w * p * (slope[:-1] / 2 + k * p * (p / 3 - 0.5))
    turns = turns & (grid_points[:-1, None] + w * p <= reached)
    jumps = before.nears.ravel() & (slope[0] > least)
    nearest = jnp.minimum(
        jnp.min(jnp.where(turns, bottom, jnp.inf), axis=0), jnp.where(jumps, value[0], jnp.inf)
    )
    size = scales.ravel()
    counts = (size > 0) & (nearest > 10 * least)
    relative = jnp.where(counts, nearest / jnp.where(counts, size, 1.0), jnp.inf)
    margin = jnp.minimum(before.margin, jnp.min(relative))
    # The slope at the end, as linear between two points as the secant has it.
    ends = jnp.clip(1 - jnp.abs(reached - grid_points) * (STEP_GRID.size - 1), 0.0, 1.0)
    nears = (ends @ slope < -least).reshape(scales.shape) & ~fired
    return Approach(margin.astype(before.margin.dtype), nears)


def _event_tolerance(margins: Array, tolerance: Array) -> Array:
    """Return how far below zero each margin has to fall to count, by the margins at the start.

    Zero, but for pairs within rounding of their kinks (they have just switched, or belong to a
    dead unit): those have to leave by more than rounding.
    """
    return jnp.where(margins < tolerance, tolerance - jnp.minimum(margins, 0.0), 0.0)


def _move_onto_kink(
    flow, frozen, y, velocity, error, event: _FirstEvent, length: Array
) -> tuple[Array, Parameters, Array, Array]:
    """Take Newton's step along the flow onto the kink of an event's pair, by its margin's slope.

    `length` is that of the step on which the event was found.

    **Returns:** the change of time, the state there, the uncertainty of the time, and by how much
    an error of one in the margin moves it.
    """
    what = flow, frozen, event.margin, event.slack
    known, still, error = lax.stop_gradient((what, y, error))
    beside = jax.tree.map(lambda a, e: jnp.stack([a, a + e]), still, error)
    # One at a time: batches of Cholesky factors may wait for each other (`batches_margins`).
    value, moved = lax.map(lambda at: _first_margin(*known, at), beside)
    slope = event.slope / length.astype(event.slope.dtype)
    slope = jnp.where(slope < 0, slope, -jnp.inf)
    # Clipped, since at a tangential event the slope is near zero and Newton's step far too long.
    most = 1e-2 * (event.high * length)
    shift = jnp.clip(-value / slope, -most, most)
    shift = shift + _no_delay(*what, y, lax.stop_gradient(velocity))
    y = jax.tree.map(lambda a, v: a + shift * v, y, velocity)
    # A kink that had to turn by more than its error has turned some time before.
    waited = jnp.where(jnp.any(event.margin & frozen.rests[None]), event.slack, 0.0)
    return shift, y, (jnp.abs(moved - value) + waited) / jnp.abs(slope), jnp.abs(1 / slope)


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
