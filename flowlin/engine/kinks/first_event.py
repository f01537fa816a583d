"""The first event that a step at fixed sides passes, found on its dense output."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flowlin._tools.arrays import Parameters
from flowlin.engine.kinks.margin_curve import (
    STEP_GRID,
    MarginCurve,
    chebyshev_points,
    turns_on_grid,
)
from flowlin.engine.kinks.sides import SLIDING, Approach

# Tolerances by which a drive may be off after convergence; a hundred steps' errors add up.
CONVERGED = 100.0
# Of its scale at most, for a pair that slides: a larger drive moves weights, however loose `rtol`.
LARGEST_ERROR = 1e-5
FEWEST_POINTS = 6  # points per step at least, both ends included, that margins are interpolated at
# Margins (n, 2, H, P) at some states, and the bounds (n, H, P) of u there.
Margins = tuple[Array, Array]


class FirstEvent(eqx.Module):
    """The first event that a step passes; without one, nothing fires and all of the step is taken.

    - `passed`: whether there is one.
    - `low`, `high`: fractions of the step that bracket it.
    - `margin`: whose margin ends, one of all; `slack` was added to it, and it falls by `slope` per
      step.
    - `fired`: the pair of that margin, and those at their kinks with it.
    - `scale`: by what a margin that ends there may be off.
    - `undecided`: whether a slide is held by so small a drive that its end would not be seen.
    - `approach`: as in `Piece`.
    """

    passed: Bool[Array, ""]
    low: Float[Array, ""]
    high: Float[Array, ""]
    margin: Bool[Array, "2 H P"]
    slack: Float[Array, ""]
    slope: Float[Array, ""]
    fired: Bool[Array, "H P"]
    scale: Float[Array, ""]
    undecided: Bool[Array, ""]
    approach: Approach

    @staticmethod
    def none_so_far(approach: Approach) -> "FirstEvent":
        """Return that of a step before it is taken."""
        pairs = jnp.zeros(approach.nears.shape, bool)
        zero, no = jnp.zeros((), approach.margin.dtype), jnp.asarray(False)
        none = jnp.stack([pairs, pairs])
        return FirstEvent(no, zero, zero, none, zero, zero, pairs, zero, no, approach)


def find_first_event(
    flow: Any,
    frozen: Any,
    path: Any,
    ends: tuple[Array, Array],
    values: Margins,
    y: Parameters,
    before: Approach,
    rtol: ArrayLike,
    error_at_rest: ArrayLike,
    order: Any,
) -> FirstEvent:
    """Find the first event on the dense output `path` of a step between the times `ends`.

    `values` are those at `FEWEST_POINTS` Chebyshev points of the step, `y` is the state at its
    start, `before` how pairs neared their kinks up to there, `error_at_rest` what a state at rest
    may err by, relative to its size, and `order` that of the solver.
    """
    tolerance = flow.margin_tolerances(y, frozen)
    slack, stays = _slack(values[0], tolerance, _drive_errors(flow, frozen, y, error_at_rest))
    curve = _margin_curve(flow, frozen, path, ends, values[0] + slack[None], slack, order)
    grid = curve.on_grid()
    passed, *bracket = curve.first_fall(*grid)

    def locate():
        low, high, margin, tied = _first_margin_event(curve, bracket, slack <= 0, tolerance)
        return low, high, margin, jnp.any(margin | tied, axis=0), curve.slope_of(margin, high)

    def without_event():
        whole, none = jnp.ones((), slack.dtype), jnp.zeros(slack.shape, bool)
        return whole, whole, none, none[0], -whole

    low, high, margin, fired, slope = lax.cond(passed, locate, without_event)
    # A kink that repels anywhere in the step counts: its drive may change sign before the turn.
    scales, may_graze = _error_scales(flow, frozen, y, jnp.min(values[1], axis=0), rtol)
    event = FirstEvent(
        passed=passed,
        low=low,
        high=high,
        margin=margin,
        slack=jnp.sum(jnp.where(margin, slack, 0.0)),
        slope=slope,
        fired=fired,
        scale=jnp.max(jnp.where(fired, rtol * scales, 0.0)),
        undecided=jnp.any(stays & (frozen.codes == SLIDING)[None]),
        approach=_approach_after(before, grid, high, may_graze, tolerance, fired),
    )
    return lax.stop_gradient(event)


def margins_at_states(
    flow: Any, frozen: Any, state_at: Callable[[Array], Parameters], count: Int[Array, ""]
) -> Margins:
    """Evaluate margins and bounds at `count` of `FEWEST_POINTS` states, zero beyond.

    `state_at` takes the number of one. Two at a time: a loop, in which they are compiled once
    whatever their number; one at a time where the flow does not batch them.
    """
    at_once = np.arange(2 if flow.batches_margins else 1)

    def values_of(number: Array) -> Margins:
        return flow.margins_and_bounds(state_at(number), frozen)

    def with_next(k: Array, found: Margins) -> Margins:
        numbers = k * at_once.size + at_once.astype(k.dtype)
        own = jax.vmap(values_of)(numbers)
        return jax.tree.map(lambda all_, a: all_.at[numbers].set(a), found, own)

    pairs, dtype = frozen.codes.shape, flow.task.x.dtype
    zeros = (
        jnp.zeros((FEWEST_POINTS, 2, *pairs), dtype),
        jnp.zeros((FEWEST_POINTS, *pairs), dtype),
    )
    return lax.fori_loop(0, count // at_once.size, with_next, zeros)


def times_along(t: Array, t1: Array, points: np.ndarray) -> Float[Array, " n"]:
    """Return the times at fractions of a step."""
    return t + (t1 - t) * jnp.asarray(points, t.dtype)


def _error_scales(
    flow: Any, frozen: Any, y: Parameters, bounds: Array, rtol: ArrayLike
) -> tuple[Float[Array, "H P"], Float[Array, "H P"]]:
    """Return what errors of u and z are relative to, and the same where a kink repels, else 0.

    A kink repels where its bound of u lies below zero by more than an error of `rtol`, somewhere in
    the step.
    """
    drives = flow.drive_scales(y)
    scales = jnp.where(frozen.has_drive_margin, drives, flow.pair_scales(y))
    repels = bounds < -(rtol * drives)
    return scales, jnp.where(repels & ~frozen.has_drive_margin, scales, 0.0)


def _margin_curve(
    flow: Any,
    frozen: Any,
    path: Any,
    ends: tuple[Array, Array],
    margins: Array,
    slack: Array,
    order: Any,
) -> MarginCurve:
    """Interpolate the margins along a step, to which their `slack` (2, H, P) was added."""
    curve = MarginCurve.through_points(chebyshev_points(FEWEST_POINTS), margins)
    # As many points as make z exact, a polynomial of the dense output; it costs little.
    count = order * flow.degree + 1
    if count > FEWEST_POINTS:
        points = chebyshev_points(count)
        z = _distances_along(flow, frozen, path, *ends, points)
        curve = curve.with_finer_first(points, z + slack[:1], frozen.codes != SLIDING)
    return curve


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


def _distances_along(flow, frozen, path, t, t1, points) -> Float[Array, "n H P"]:
    """Return pairs' distances from their kinks at fractions of a step, without derivatives."""
    flow, frozen, path, t, t1 = lax.stop_gradient((flow, frozen, path, t, t1))

    def distances_at(time):
        return flow.side_distances(path.evaluate(time), frozen)

    times = times_along(t, t1, points)
    return jax.vmap(distances_at)(times) if flow.batches_margins else lax.map(distances_at, times)


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
    turns, p = turns_on_grid(value, slope)
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


def _drive_errors(flow: Any, frozen: Any, y: Parameters, error: ArrayLike) -> Float[Array, "2 H P"]:
    """Return the margins that may be errors of a drive, as after convergence; zero for others.

    Those of a sample whose drives are small from the start are as small.
    """
    scales, own = flow.drive_scales(y), flow.zero_output_errors[:1]
    parts = own / jnp.maximum(jnp.max(own), jnp.finfo(own.dtype).tiny)
    of_slides = jnp.minimum(CONVERGED * error, LARGEST_ERROR) * scales * parts
    of_slides = jnp.where(frozen.codes == SLIDING, of_slides, jnp.zeros_like(scales))
    return jnp.stack([of_slides, jnp.where(frozen.rests, CONVERGED * error * scales, of_slides)])


def _slack(
    margins: Float[Array, "n 2 H P"], rounding: Array, errors: Float[Array, "2 H P"]
) -> tuple[Float[Array, "2 H P"], Bool[Array, "2 H P"]]:
    """Return how far below zero each margin may fall in a step without an event, and which stay.

    Nothing, but for pairs within `rounding` of their kinks at its start (they have just switched,
    or belong to a dead unit): those have to leave by more than that. A margin that begins within an
    error of zero and never falls as far below decides nothing: after convergence it is an error, of
    either sign.
    """
    start, rounding = margins[0], rounding[None]
    slack = jnp.where(start < rounding, rounding - jnp.minimum(start, 0.0), 0.0)
    stays = (start < errors) & (jnp.min(margins, axis=0) > -errors)
    return jnp.where(stays, 2 * errors, slack), stays
