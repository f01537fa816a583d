"""Find crossings of order statistics of hidden units, most of which a bound excludes.

A preactivation of the first layer is linear in the unit's weights w and c b. Along a step these
are $\\sum_k C_k T_k(s)$ with vectors C_k, so that it is never farther from what it is at the end
than (Cauchy-Schwarz)

$$|z(s) - z(1)| \\le 2 |\\tilde x| \\sum_{k>0} |C_k|, \\quad \\tilde x = [x, 1],$$

a number per sample times a number per unit. One large product, at the end, thus counts for most
units how many preactivations keep their sign. The polynomials of the others are made a few units
at a time.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flowlin._tools.arrays import Parameters, first_true_indices
from flowlin._tools.series import (
    certify_monotone,
    chebyshev_nodes,
    deviation_bound,
    fit_matrix,
    restrict_series,
)
from flowlin.events.path import StepPath
from flowlin.events.search import Brackets, Directions, StepPart, deepest_level
from flowlin.networks.network_kinds import AbstractNetwork

# ---- Crossings of one unit's order statistic: of its number of positive polynomials.

MAX_UNIT_PARTS = 4096  # of a step, for one unit; after so many the rest is unresolved


def certain_signs(first: Array, stray: Array) -> tuple[Array, Array]:
    """Tell where polynomials are certainly positive, and where certainly negative, on [-1, 1].

    `stray` is how far they stray from their `first` coefficients.
    """
    stray = stray + 8 * jnp.finfo(stray.dtype).eps * (jnp.abs(first) + stray)
    return first > stray, first < -stray


class UnitPolynomials(eqx.Module):
    """The polynomials of one unit: the unit is positive while more than `most` of them are.

    - `coefficients`: (n, Q), on the step.
    - `error`: (Q,), below which a value is not known to differ from zero.
    - `above`, `above_end`: whether positive at the step's start and end.
    """

    coefficients: Float[Array, "n Q"]
    error: Float[Array, " Q"]
    threshold: ArrayLike
    above: Bool[Array, ""]
    above_end: Bool[Array, ""]


class _CountSearch(eqx.Module):
    """State of the search of one unit: the next part of the step, and the unit's side before it."""

    part: StepPart
    above: Bool[Array, ""]
    part_count: Int[Array, ""]
    brackets: Brackets


def crossings_of_count(
    polynomials: UnitPolynomials,
    component: Array,
    up: Array,
    down: Array,
    t0: Array,
    length: Array,
    brackets: Brackets,
) -> Brackets:
    """Add the crossings of one unit's order statistic, in a step from t0 of this length.

    A part is done if the bounds of the count are on one side of the threshold, or if all
    polynomials that may cross in it do so in the same direction, the count being monotone then;
    or if none of these leaves its error.
    """
    dtype = polynomials.coefficients.dtype

    def search_part(count: _CountSearch) -> _CountSearch:
        low, high = count.part.part_ends(dtype)
        c = restrict_series(polynomials.coefficients, low, high)
        sure = _needs_no_halving(c, polynomials)
        parts = count.part_count + 1
        last = (count.part.level >= deepest_level(dtype)) | (parts >= MAX_UNIT_PARTS)
        above = jnp.sum(jnp.sum(c, axis=0) > 0) > polynomials.threshold
        above = jnp.where(high >= 1, polynomials.above_end, above)
        counts = (sure | last) & (above != count.above) & jnp.where(above, up, down)
        times = t0 + low * length, t0 + high * length
        found = count.brackets.append(counts[None], *times, component, above)
        found = found.append_unresolved(
            (~sure & (parts >= MAX_UNIT_PARTS))[None], *times, component
        )
        side = jnp.where(sure | last, above, count.above)
        return _CountSearch(count.part.next_part(~(sure | last)), side, parts, found)

    start = _CountSearch(
        StepPart.whole_step(), polynomials.above, jnp.zeros((), jnp.int32), brackets
    )
    return lax.while_loop(lambda count: count.part.is_inside, search_part, start).brackets


def _needs_no_halving(c: Float[Array, "n Q"], polynomials: UnitPolynomials) -> Array:
    """Tell whether a part of the step needs no halving, from its coefficients c."""
    up, down = certain_signs(c[0], deviation_bound(c))
    open_ = ~up & ~down
    decided = (jnp.sum(up) > polynomials.threshold) | (jnp.sum(~down) <= polynomials.threshold)
    rises, falls = certify_monotone(c, jnp.zeros_like(polynomials.error))
    one_way = jnp.all(rises | ~open_) | jnp.all(falls | ~open_)
    small = jnp.all(~open_ | (jnp.abs(c[0]) + deviation_bound(c) <= polynomials.error))
    return decided | one_way | small | ~jnp.all(jnp.isfinite(c))


UNIT_BATCH = 32  # units whose polynomials are made together

PositiveCounts = tuple[Int[Array, " U"], Int[Array, " U"]]  # positive throughout, and somewhere
IncomingWeights = tuple[Float[Array, "... N"], Float[Array, "..."] | None]  # w and c b, by unit


class FirstLayerUnits(eqx.Module):
    """The first layer's units along one step, whose preactivations are polynomials in time.

    - `path`: its dense output, a polynomial of this `degree`; `error`: of its end, or None.
    - `x`, `network`: inputs (P, N), and the network whose parameters move along the path.
    - `ends`: (U, P), preactivations at the step's end.
    """

    path: StepPath
    degree: int = eqx.field(static=True)
    error: Parameters | None
    x: Float[Array, "P N"]
    network: AbstractNetwork
    end_preactivations: Float[Array, "U P"]

    def unit_weights(self, parameters: Parameters, units: Array | slice) -> IncomingWeights:
        """Return weights w (..., N) and biases c b (...) of chosen units."""
        network = self.network.with_parameters(parameters)
        w, b = network.weights[0], network.biases[0]
        return w[units], None if b is None else network.bias_strength * b[units]

    def weight_coefficients(self, units: Array | slice) -> IncomingWeights:
        """Fit Chebyshev coefficients, n first, to chosen units' weights and c b along the step."""
        dtype, count = self.end_preactivations.dtype, self.degree + 1
        fractions = jnp.asarray((1 + chebyshev_nodes(count)) / 2, dtype)
        times = self.path.t0 + (self.path.t1 - self.path.t0) * fractions
        values = jax.vmap(self.path.map_affine(lambda p: self.unit_weights(p, units)))(times)
        fit = jnp.asarray(fit_matrix(count, self.degree), dtype)
        return jax.tree.map(lambda v: jnp.tensordot(fit, v, 1).astype(dtype), values)

    def positive_counts(self) -> PositiveCounts:
        """Count each unit's preactivations that are positive all step long, and somewhere in it."""
        w, b = self.weight_coefficients(slice(None))
        samples = jnp.sqrt(1 + jnp.sum(self.x**2, axis=1))
        sizes = jnp.sqrt(jnp.sum(w**2, axis=2) + (0.0 if b is None else b**2))
        rounding = 8 * jnp.finfo(sizes.dtype).eps * jnp.sum(sizes, axis=0)
        stray = (2 * jnp.sum(sizes[1:], axis=0) + rounding)[:, None] * samples[None]
        return counts_from_signs(self.end_preactivations > stray, self.end_preactivations < -stray)

    def preactivation_coefficients(self, units: Int[Array, " B"]) -> Float[Array, "n B P"]:
        """Return the Chebyshev coefficients of chosen units' preactivations."""
        w, b = self.weight_coefficients(units)
        later = w[1:] @ self.x.T + (0.0 if b is None else b[1:, :, None])
        # At the end T_k(1) = 1: the coefficients add up to the value there, which is exact.
        first = self.end_preactivations[units] - jnp.sum(later, axis=0)
        return jnp.concatenate([first[None], later]).astype(self.end_preactivations.dtype)

    def error_effect(self, unit: Array) -> Float[Array, " P"]:
        """Return how far the step's error moves a unit's preactivations."""
        if self.error is None:
            return jnp.zeros(len(self.x), self.end_preactivations.dtype)
        moved, rest = (
            self.unit_weights(e, unit) for e in (self.error, _zero_parameters(self.error))
        )
        w, b = jax.tree.map(jnp.subtract, moved, rest)
        return jnp.abs(self.x @ w + (0.0 if b is None else b)).astype(self.end_preactivations.dtype)


def _zero_parameters(error: Parameters) -> Parameters:
    """Return parameters of zeros."""
    return jax.tree.map(jnp.zeros_like, error)


def counts_from_signs(up: Bool[Array, "U P"], down: Bool[Array, "U P"]) -> PositiveCounts:
    """Count positive preactivations, from those certainly positive and certainly negative."""
    return jnp.sum(up, axis=1), up.shape[1] - jnp.sum(down, axis=1)


class OrderStatistics(eqx.Module):
    """Order statistics of the same units, T of each unit.

    - `most`: (T, 1), each is positive while more than so many of the unit's preactivations are.
    - `number`: (T, U), which component of all each is.
    - `above`, `above_end`: (T, U), whether positive at the step's start and end.
    """

    threshold: np.ndarray
    component: Int[Array, "T U"]
    above: Bool[Array, "T U"]
    above_end: Bool[Array, "T U"]

    def may_cross(self, counts: PositiveCounts) -> Bool[Array, "T U"]:
        """Tell which order statistics may cross zero in the step."""
        sure, possible = (count[None] for count in counts)
        return ~((sure > self.threshold) | (possible <= self.threshold)) | (
            self.above != self.above_end
        )

    def of_units(self, units: Int[Array, " B"]) -> "OrderStatistics":
        """Return the order statistics of some units alone."""
        sides = self.above[:, units], self.above_end[:, units]
        return OrderStatistics(self.threshold, self.component[:, units], *sides)


def order_statistic_crossings(
    statistics: OrderStatistics, units: FirstLayerUnits, directions: Directions, brackets: Brackets
) -> Brackets:
    """Add the crossings of all order statistics, `UNIT_BATCH` units at a time."""
    todo = statistics.may_cross(units.positive_counts())
    size = min(UNIT_BATCH, todo.shape[1])

    def search_batch(carry):
        todo, found = carry
        left = jnp.any(todo, axis=0)
        chosen = first_true_indices(left, size, 0)
        real = jnp.arange(size) < jnp.sum(left)
        rows, mine = units.preactivation_coefficients(chosen), statistics.of_units(chosen)
        up, down = certain_signs(rows[0], deviation_bound(rows))
        unclear = mine.may_cross(counts_from_signs(up, down)) & todo[:, chosen] & real[None]
        found = _search_each(mine, units, chosen, rows, directions, unclear, found)
        return todo.at[:, chosen].set(False), found

    return lax.while_loop(lambda carry: jnp.any(carry[0]), search_batch, (todo, brackets))[1]


def _search_each(
    statistics: OrderStatistics,
    units: FirstLayerUnits,
    chosen: Int[Array, " B"],
    rows: Float[Array, "n B P"],
    directions: Directions,
    todo: Bool[Array, "T B"],
    brackets: Brackets,
) -> Brackets:
    """Add the crossings of the order statistics of chosen units, one after the other."""
    t0, length = units.path.t0, units.path.t1 - units.path.t0

    def search_one(carry):
        todo, found = carry
        which, k = jnp.unravel_index(jnp.argmax(todo), todo.shape)
        row = UnitPolynomials(
            lax.dynamic_index_in_dim(rows, k, 1, keepdims=False),
            units.error_effect(chosen[k]),
            jnp.asarray(statistics.threshold)[which, 0],
            statistics.above[which, k],
            statistics.above_end[which, k],
        )
        number = statistics.component[which, k]
        up, down = directions.up[number], directions.down[number]
        found = crossings_of_count(row, number, up, down, t0, length, found)
        return todo.at[which, k].set(False), found

    return lax.while_loop(lambda carry: jnp.any(carry[0]), search_one, (todo, brackets))[1]
