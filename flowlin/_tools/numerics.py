"""Numerics that any room may need: inverses, elementary functions with their limits."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.rounding import rounding_in


def decayed(rate: Array, t: Array) -> Array:
    """(1 - exp(-rate t)) / rate, its limit t at rate = 0, and 1 / rate at t = inf.

    The quotient's value has no cancellation, but its derivative with respect to the rate does:
    for small rate t a series stands in.
    """
    forever, still = jnp.isinf(t), rate == 0
    finite = jnp.where(forever, 0.0, t)
    x = rate * finite
    tiny = jnp.abs(x) < 1e-3
    z = jnp.where(tiny, x, 0.0)  # so that the series' derivatives cannot overflow
    series = finite * (1 - z / 2 * (1 - z / 3 * (1 - z / 4 * (1 - z / 5))))
    safe = jnp.where(still | (tiny & ~forever), 1.0, rate)
    exact = jnp.where(forever, 1.0, -jnp.expm1(-safe * finite)) / safe
    return jnp.where(forever, jnp.where(still, jnp.inf, exact), jnp.where(tiny, series, exact))


def log_growth(rate: Array, q: Array) -> Array:
    """log(1 + rate q) / rate, the inverse of expm1(rate t) / rate, and its limit q at rate = 0."""
    x = rate * q
    tiny = jnp.abs(x) < 1e-5
    small = jnp.where(tiny, x, 0.0)
    series = q * (1 - small / 2 + small**2 / 3 - small**3 / 4)
    exact = jnp.log1p(jnp.where(tiny, 0.0, x)) / jnp.where(tiny, 1.0, rate)
    return jnp.where(tiny, series, exact)


def root(square: Array) -> Array:
    """Square root whose derivative at zero is zero: for even functions of the root."""
    info = jnp.finfo(square.dtype)
    zero = square <= info.tiny / info.eps**2
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, square)))


def hypot(x: Array, y: Array) -> Array:
    """sqrt(x^2 + y^2) without overflow or underflow; its derivative at the origin is zero."""
    scale = lax.stop_gradient(jnp.maximum(jnp.abs(x), jnp.abs(y)))
    scale = jnp.where(scale > 0, scale, 1.0)
    return scale * root((x / scale) ** 2 + (y / scale) ** 2)


def quotient(numerator: Array, denominator: Array, otherwise: ArrayLike) -> Array:
    """Numerator over denominator, and `otherwise` (without a derivative) over zero."""
    zero = denominator == 0
    return jnp.where(zero, otherwise, numerator / jnp.where(zero, 1.0, denominator))


def pseudo_inverse(gram: Float[Array, "m m"]) -> Float[Array, "m m"]:
    r"""Moore-Penrose inverse of a positive semi-definite matrix, constant to derivatives.

    Eigenvalues that may be rounding of the largest's are dropped.
    """
    values, vectors = jnp.linalg.eigh(lax.stop_gradient(gram))
    cut = rounding_in(gram.dtype).cut
    keep = values > cut * jnp.maximum(values[-1], jnp.finfo(gram.dtype).tiny)
    return (vectors * jnp.where(keep, 1 / jnp.where(keep, values, 1.0), 0.0)) @ vectors.T


def arrays(*values: ArrayLike) -> tuple[Array, ...]:
    """The values as arrays of JAX's default float."""
    return tuple(jnp.asarray(value, dtype=jnp.result_type(float)) for value in values)


def in_units(t: Array, tau: Array) -> Array:
    """t / tau, inf (without a derivative) at t = inf."""
    forever = jnp.isinf(t)
    return jnp.where(forever, jnp.inf, jnp.where(forever, 0.0, t) / tau)


def earlier(t: Float[Array, ""], roundings: int) -> Float[Array, ""]:
    """The float so many before t > 0: of positive floats, the bits count up."""
    t = lax.stop_gradient(t)
    bits = jnp.dtype(f"int{8 * t.dtype.itemsize}")
    whole = lax.bitcast_convert_type(t, bits)
    return lax.bitcast_convert_type(whole - jnp.asarray(roundings, bits), t.dtype)
