"""Margins of pairs along a step, as polynomials in time, and their first roots."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float
from numpy.polynomial import chebyshev

from flowlin._tools.arrays import with_axes
from flowlin._tools.numerics import dtype_rounding
from flowlin._tools.series import bracket_root

STEP_GRID = np.linspace(0.0, 1.0, 11)  # fractions of a step at which signs and slopes are compared


def chebyshev_points(count: int) -> np.ndarray:
    """Return Chebyshev points in a step, as fractions, both ends included."""
    return (1 - np.cos(np.pi * np.linspace(0, 1, count))) / 2


class MarginCurve(eqx.Module):
    """Margins along a step as Chebyshev series in s = 2 (t - t0) / (t1 - t0) - 1.

    Powers of s would lose all digits for networks of many layers, whose z are of high degree.
    """

    coefficients: Float[Array, "n 2 H P"]

    @staticmethod
    def through_points(points: np.ndarray, values: Float[Array, "n 2 H P"]) -> "MarginCurve":
        """Return the polynomials through values at Chebyshev points."""
        return MarginCurve(_series_coefficients(points, values))

    def with_finer_first(
        self, points: np.ndarray, values: Float[Array, "n H P"], where: Bool[Array, "H P"]
    ) -> "MarginCurve":
        """Replace the first of two margins, at pairs `where`, by those through more values."""
        fine = _series_coefficients(points, values)
        more = [(0, points.size - self.coefficients.shape[0]), (0, 0), (0, 0), (0, 0)]
        first, second = jnp.pad(self.coefficients, more).swapaxes(0, 1)
        return MarginCurve(jnp.stack([jnp.where(where[None], fine, first), second], axis=1))

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
        turns, part = turns_on_grid(value, slope)
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


def turns_on_grid(value: Array, slope: Array) -> tuple[Array, Array]:
    """Tell between which points of the grid a margin turns above zero, and where in between."""
    turns = (value[:-1] > 0) & (value[1:] > 0) & (slope[:-1] < 0) & (slope[1:] > 0)
    part = jnp.where(turns, slope[:-1] / jnp.where(turns, slope[:-1] - slope[1:], 1.0), 0.0)
    return turns, part


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
