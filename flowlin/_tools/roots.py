"""A bracketing root find that is cheap, robust and blind to derivatives."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike


def bracketed_root(
    f: Callable[[Array], Array],
    low: Array,
    high: Array,
    upward: ArrayLike,
    tolerance: ArrayLike,
    known: Array | tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Bracket of a sign change of `f` no wider than `tolerance`, by the ITP method.

    Interpolate, truncate, project (Oliveira and Takahashi, ACM Trans. Math. Softw. 2021): the
    secant point, pulled towards the midpoint so that the worst case is bisection's. `upward` says
    whether `f` goes from at most zero to above it; where rounding at an end says otherwise, the
    bracket shrinks to that end. `known` are the values at `low` and `high`, where the caller has
    them.

    **Returns:** `(low, high)` with the sign change between them.
    """
    width = jnp.maximum(high - low, tolerance)
    steps = jnp.ceil(jnp.log2(width / tolerance)) + 1

    def body(state):
        low, high, f_low, f_high, k = state
        middle = (low + high) / 2
        # kappa_1 = 0.2 / width, kappa_2 = 2, n_0 = 1 of the paper.
        # At least half the tolerance: an end that is the root itself would be hit for ever.
        truncation = jnp.maximum(0.2 * (high - low) ** 2 / width, 0.5 * tolerance)
        projection = 0.5 * tolerance * 2.0 ** (steps - k) - (high - low) / 2
        slope = f_high - f_low
        flat = slope == 0
        secant = (f_high * low - f_low * high) / jnp.where(flat, 1.0, slope)
        secant = jnp.where(flat, middle, jnp.clip(secant, low, high))
        towards = jnp.sign(middle - secant)
        shifted = jnp.where(
            truncation <= jnp.abs(middle - secant), secant + towards * truncation, middle
        )
        projection = jnp.maximum(projection, 0.0)
        point = jnp.where(
            jnp.abs(shifted - middle) <= projection, shifted, middle - towards * projection
        )
        value = f(point)
        above = (value > 0) == upward
        return (
            jnp.where(above, low, point),
            jnp.where(above, point, high),
            jnp.where(above, f_low, value),
            jnp.where(above, value, f_high),
            k + 1,
        )

    def unfinished(state):
        low, high, _, _, k = state
        return (high - low > tolerance) & (k < steps + 2)

    at_low, at_high = (f(low), f(high)) if known is None else known
    start = (low, high, at_low, at_high, jnp.zeros((), low.dtype))
    low, high, *_ = lax.while_loop(unfinished, body, start)
    return low, high
