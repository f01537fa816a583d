"""A bracketing root find that is cheap, robust and blind to derivatives."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


def bracketed_root(
    f: Callable[[Array], Array], low: Any, high: Any, f_low: Any, f_high: Any, tolerance: Any
) -> tuple[Array, Array]:
    """Bracket of a sign change of `f` no wider than `tolerance`, by the ITP method.

    Interpolate, truncate, project (Oliveira and Takahashi, ACM Trans. Math. Softw. 2021): the
    secant point, pulled towards the midpoint so that the worst case is bisection's. A sign is
    that of `f > 0`, so `f` may be zero at an end.

    **Returns:** `(low, high)` with the sign change between them.
    """
    width = jnp.maximum(high - low, tolerance)
    steps = jnp.ceil(jnp.log2(width / tolerance)) + 1
    upward = f_high > 0

    def body(state):
        low, high, f_low, f_high, k = state
        middle = (low + high) / 2
        # kappa_1 = 0.2 / width, kappa_2 = 2, n_0 = 1 of the paper.
        # At least half the tolerance: an end that is the root itself would be hit for ever.
        truncation = jnp.maximum(0.2 * (high - low) ** 2 / width, 0.5 * tolerance)
        projection = 0.5 * tolerance * 2.0 ** (steps - k) - (high - low) / 2
        slope = f_high - f_low
        secant = jnp.where(
            slope == 0, middle, (f_high * low - f_low * high) / jnp.where(slope == 0, 1.0, slope)
        )
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

    f_low, f_high = jnp.asarray(f_low), jnp.asarray(f_high)
    low, high = jnp.asarray(low), jnp.asarray(high)
    low, high, *_ = lax.while_loop(unfinished, body, (low, high, f_low, f_high, jnp.zeros(())))
    return low, high
