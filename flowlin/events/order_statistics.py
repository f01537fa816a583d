"""Find crossings of order statistics of hidden units, most of which a bound excludes.

A preactivation of the first layer is linear in the unit's weights w and c b. Along a step these
are $\\sum_k C_k T_k(s)$ with vectors C_k, so that it is never farther from what it is at the end
than (Cauchy-Schwarz)

$$|z(s) - z(1)| \\le 2 |\\tilde x| \\sum_{k>0} |C_k|, \\quad \\tilde x = [x, 1],$$

a number per sample times a number per unit. One large product, at the end, thus counts for most
units how many preactivations keep their sign. The polynomials of the others are made a few units
at a time.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from flowlin._tools.arrays import Parameters, places
from flowlin._tools.series import fitting, magnitude, monotone, nodes, restricted
from flowlin.events.path import Path
from flowlin.events.search import Brackets, Directions, Part, deepest
from flowlin.networks.kinds import AbstractNetwork

# ---- Crossings of one unit's order statistic: of its number of positive polynomials.

PARTS = 4096  # of a step, for one unit; after so many the rest is unresolved


def certain(first: Any, stray: Any) -> tuple[Array, Array]:
    """Tell where polynomials are certainly positive, and where certainly negative, on [-1, 1].

    `stray` is how far they stray from their `first` coefficients.
    """
    stray = stray + 8 * jnp.finfo(stray.dtype).eps * (jnp.abs(first) + stray)
    return first > stray, first < -stray


class Row(eqx.Module):
    """The polynomials of one unit: the unit is positive while more than `most` of them are.

    - `coefficients`: (n, Q), on the step.
    - `error`: (Q,), below which a value is not known to differ from zero.
    - `above`, `above_end`: whether positive at the step's start and end.
    """

    coefficients: Float[Array, "n Q"]
    error: Float[Array, " Q"]
    most: Any
    above: Bool[Array, ""]
    above_end: Bool[Array, ""]


class _Count(eqx.Module):
    """State of the search of one unit: the next part of the step, and the unit's side before it."""

    part: Part
    above: Bool[Array, ""]
    parts: Int[Array, ""]
    found: Brackets


def crossed(
    row: Row, component: Array, up: Array, down: Array, t0: Array, length: Array, found: Brackets
) -> Brackets:
    """Add the crossings of one unit's order statistic, in a step from t0 of this length.

    A part is done if the bounds of the count are on one side of the threshold, or if all
    polynomials that may cross in it do so in the same direction, the count being monotone then;
    or if none of these leaves its error.
    """
    dtype = row.coefficients.dtype

    def look(count: _Count) -> _Count:
        low, high = count.part.ends(dtype)
        c = restricted(row.coefficients, low, high)
        sure = _decided(c, row)
        parts = count.parts + 1
        last = (count.part.level >= deepest(dtype)) | (parts >= PARTS)
        above = jnp.sum(jnp.sum(c, axis=0) > 0) > row.most
        above = jnp.where(high >= 1, row.above_end, above)
        counts = (sure | last) & (above != count.above) & jnp.where(above, up, down)
        times = t0 + low * length, t0 + high * length
        found = count.found.put(counts[None], *times, component, above)
        found = found.doubted((~sure & (parts >= PARTS))[None], *times, component)
        side = jnp.where(sure | last, above, count.above)
        return _Count(count.part.following(~(sure | last)), side, parts, found)

    start = _Count(Part.whole(), row.above, jnp.zeros((), jnp.int32), found)
    return lax.while_loop(lambda count: count.part.is_inside, look, start).found


def _decided(c: Float[Array, "n Q"], row: Row) -> Array:
    """Tell whether a part of the step needs no halving, from its coefficients c."""
    up, down = certain(c[0], magnitude(c))
    open_ = ~up & ~down
    decided = (jnp.sum(up) > row.most) | (jnp.sum(~down) <= row.most)
    rises, falls = monotone(c, jnp.zeros_like(row.error))
    one_way = jnp.all(rises | ~open_) | jnp.all(falls | ~open_)
    small = jnp.all(~open_ | (jnp.abs(c[0]) + magnitude(c) <= row.error))
    return decided | one_way | small | ~jnp.all(jnp.isfinite(c))


BATCH = 32  # units whose polynomials are made together

Counts = tuple[Int[Array, " U"], Int[Array, " U"]]  # positive throughout, and somewhere
Incoming = tuple[Float[Array, "... N"], Float[Array, "..."] | None]  # w and c b, by unit


class Units(eqx.Module):
    """The first layer's units along one step, whose preactivations are polynomials in time.

    - `path`: its dense output, a polynomial of this `degree`; `error`: of its end, or None.
    - `x`, `network`: inputs (P, N), and the network whose parameters move along the path.
    - `ends`: (U, P), preactivations at the step's end.
    """

    path: Path
    degree: int = eqx.field(static=True)
    error: Parameters | None
    x: Float[Array, "P N"]
    network: AbstractNetwork
    ends: Float[Array, "U P"]

    def incoming(self, parameters: Parameters, chosen: Any) -> Incoming:
        """Return weights w (..., N) and biases c b (...) of chosen units."""
        network = self.network.with_parameters(parameters)
        w, b = network.weights[0], network.biases[0]
        return w[chosen], None if b is None else network.bias_strength * b[chosen]

    def coefficients(self, chosen: Any) -> Incoming:
        """Fit Chebyshev coefficients, n first, to chosen units' weights and c b along the step."""
        dtype, count = self.ends.dtype, self.degree + 1
        fractions = jnp.asarray((1 + nodes(count)) / 2, dtype)
        times = self.path.t0 + (self.path.t1 - self.path.t0) * fractions
        values = jax.vmap(self.path.image(lambda p: self.incoming(p, chosen)))(times)
        fit = jnp.asarray(fitting(count, self.degree), dtype)
        return jax.tree.map(lambda v: jnp.tensordot(fit, v, 1).astype(dtype), values)

    def counts(self) -> Counts:
        """Count each unit's preactivations that are positive all step long, and somewhere in it."""
        w, b = self.coefficients(slice(None))
        samples = jnp.sqrt(1 + jnp.sum(self.x**2, axis=1))
        sizes = jnp.sqrt(jnp.sum(w**2, axis=2) + (0.0 if b is None else b**2))
        rounding = 8 * jnp.finfo(sizes.dtype).eps * jnp.sum(sizes, axis=0)
        stray = (2 * jnp.sum(sizes[1:], axis=0) + rounding)[:, None] * samples[None]
        return counted(self.ends > stray, self.ends < -stray)

    def rows(self, chosen: Int[Array, " B"]) -> Float[Array, "n B P"]:
        """Return the Chebyshev coefficients of chosen units' preactivations."""
        w, b = self.coefficients(chosen)
        later = w[1:] @ self.x.T + (0.0 if b is None else b[1:, :, None])
        # At the end T_k(1) = 1: the coefficients add up to the value there, which is exact.
        first = self.ends[chosen] - jnp.sum(later, axis=0)
        return jnp.concatenate([first[None], later]).astype(self.ends.dtype)

    def moved(self, unit: Array) -> Float[Array, " P"]:
        """Return how far the step's error moves a unit's preactivations."""
        if self.error is None:
            return jnp.zeros(len(self.x), self.ends.dtype)
        moved, rest = (self.incoming(e, unit) for e in (self.error, _nothing(self.error)))
        w, b = jax.tree.map(jnp.subtract, moved, rest)
        return jnp.abs(self.x @ w + (0.0 if b is None else b)).astype(self.ends.dtype)


def _nothing(error: Parameters) -> Parameters:
    """Return parameters of zeros."""
    return jax.tree.map(jnp.zeros_like, error)


def counted(up: Bool[Array, "U P"], down: Bool[Array, "U P"]) -> Counts:
    """Count positive preactivations, from those certainly positive and certainly negative."""
    return jnp.sum(up, axis=1), up.shape[1] - jnp.sum(down, axis=1)


class Statistics(eqx.Module):
    """Order statistics of the same units, T of each unit.

    - `most`: (T, 1), each is positive while more than so many of the unit's preactivations are.
    - `number`: (T, U), which component of all each is.
    - `above`, `above_end`: (T, U), whether positive at the step's start and end.
    """

    most: np.ndarray
    number: Int[Array, "T U"]
    above: Bool[Array, "T U"]
    above_end: Bool[Array, "T U"]

    def undecided(self, counts: Counts) -> Bool[Array, "T U"]:
        """Tell which order statistics may cross zero in the step."""
        sure, possible = (count[None] for count in counts)
        return ~((sure > self.most) | (possible <= self.most)) | (self.above != self.above_end)

    def of(self, units: Int[Array, " B"]) -> "Statistics":
        """Return the order statistics of some units alone."""
        sides = self.above[:, units], self.above_end[:, units]
        return Statistics(self.most, self.number[:, units], *sides)


def crossings(
    statistics: Statistics, units: Units, directions: Directions, found: Brackets
) -> Brackets:
    """Add the crossings of all order statistics, `BATCH` units at a time."""
    todo = statistics.undecided(units.counts())
    size = min(BATCH, todo.shape[1])

    def batch(carry):
        todo, found = carry
        left = jnp.any(todo, axis=0)
        chosen = places(left, size, 0)
        real = jnp.arange(size) < jnp.sum(left)
        rows, mine = units.rows(chosen), statistics.of(chosen)
        up, down = certain(rows[0], magnitude(rows))
        unclear = mine.undecided(counted(up, down)) & todo[:, chosen] & real[None]
        found = _one_by_one(mine, units, chosen, rows, directions, unclear, found)
        return todo.at[:, chosen].set(False), found

    return lax.while_loop(lambda carry: jnp.any(carry[0]), batch, (todo, found))[1]


def _one_by_one(
    statistics: Statistics,
    units: Units,
    chosen: Int[Array, " B"],
    rows: Float[Array, "n B P"],
    directions: Directions,
    todo: Bool[Array, "T B"],
    found: Brackets,
) -> Brackets:
    """Add the crossings of the order statistics of chosen units, one after the other."""
    t0, length = units.path.t0, units.path.t1 - units.path.t0

    def one(carry):
        todo, found = carry
        which, k = jnp.unravel_index(jnp.argmax(todo), todo.shape)
        row = Row(
            lax.dynamic_index_in_dim(rows, k, 1, keepdims=False),
            units.moved(chosen[k]),
            jnp.asarray(statistics.most)[which, 0],
            statistics.above[which, k],
            statistics.above_end[which, k],
        )
        number = statistics.number[which, k]
        up, down = directions.up[number], directions.down[number]
        found = crossed(row, number, up, down, t0, length, found)
        return todo.at[which, k].set(False), found

    return lax.while_loop(lambda carry: jnp.any(carry[0]), one, (todo, found))[1]
