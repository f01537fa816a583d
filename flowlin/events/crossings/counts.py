"""Crossings of order statistics: of how many polynomials of a row are positive."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from flowlin.events.crossings.brackets import Brackets
from flowlin.events.crossings.dyadic import Part, deepest
from flowlin.events.crossings.expansion import magnitude, monotone, restricted

PARTS = 4096  # looked at in a step and for one row at most


def certain(first: Any, stray: Any) -> tuple[Array, Array]:
    """Whether polynomials are certainly positive, and certainly negative, on [-1, 1].

    `stray` is how far they stray from their `first` coefficients.
    """
    stray = stray + 8 * jnp.finfo(stray.dtype).eps * (jnp.abs(first) + stray)
    return first > stray, first < -stray


class Row(eqx.Module):
    """One row: positive while more than `most` of its polynomials are.

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
    """How far the search has come; the side there."""

    part: Part
    above: Bool[Array, ""]
    parts: Int[Array, ""]
    found: Brackets


def crossed(
    row: Row, component: Array, up: Array, down: Array, t0: Array, length: Array, found: Brackets
) -> Brackets:
    """With the crossings of a row, in a step from t0 of this length.

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
    """Whether a part needs no halving."""
    up, down = certain(c[0], magnitude(c))
    open_ = ~up & ~down
    decided = (jnp.sum(up) > row.most) | (jnp.sum(~down) <= row.most)
    rises, falls = monotone(c, jnp.zeros_like(row.error))
    one_way = jnp.all(rises | ~open_) | jnp.all(falls | ~open_)
    small = jnp.all(~open_ | (jnp.abs(c[0]) + magnitude(c) <= row.error))
    return decided | one_way | small | ~jnp.all(jnp.isfinite(c))
