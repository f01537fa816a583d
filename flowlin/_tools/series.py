"""A bracketing root find, and Chebyshev series that certify how many roots there are."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float
from numpy.polynomial import chebyshev


def bracket_root(
    f: Callable[[Array], Array],
    low: Array,
    high: Array,
    upward: ArrayLike,
    tolerance: ArrayLike,
    end_values: Array | tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Shrink a bracket of a sign change of `f` to a width of `tolerance`, by the ITP method.

    Interpolate, truncate, project (Oliveira and Takahashi, ACM Trans. Math. Softw. 2021): the
    secant point, pulled towards the midpoint so that the worst case is bisection's. `upward` says
    whether `f` goes from at most zero to above it; where rounding at an end says otherwise, the
    bracket shrinks to that end. `known` are the values at `low` and `high`, where the caller has
    them.

    **Returns:** `(low, high)` with the sign change between them.
    """
    width = jnp.maximum(high - low, tolerance)
    steps = jnp.ceil(jnp.log2(width / tolerance)) + 1

    def shrink_bracket(state):
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

    def is_too_wide(state):
        low, high, _, _, k = state
        return (high - low > tolerance) & (k < steps + 2)

    at_low, at_high = (f(low), f(high)) if end_values is None else end_values
    start = (low, high, at_low, at_high, jnp.zeros((), low.dtype))
    low, high, *_ = lax.while_loop(is_too_wide, shrink_bracket, start)
    return low, high


# ---- Chebyshev expansions on an interval, and what they certify about roots.
#
# With $f(x) = \sum_k c_k T_k(x) + e(x)$ on [-1, 1], $|T_k| \le 1$ and $|e| \le \epsilon$:
#
# - $|c_0| > \sum_{k>0} |c_k| + \epsilon$: f has no root;
# - the same of the derivative's coefficients $d_k$: f is monotone, so its signs at the ends tell
#   of its only root.
#
# An interval for which neither holds is halved. On halves of width h a simple root is decided once
# $c_2 / c_1 \sim h$ is small, and what has no root once h is small against its distance to zero.


@functools.cache
def chebyshev_nodes(count: int) -> np.ndarray:
    """Return the Chebyshev-Lobatto points in [-1, 1], (count,), ascending, both ends included."""
    return -np.cos(np.pi * np.arange(count) / (count - 1))


@functools.cache
def fit_matrix(count: int, degree: int, first: int = 0) -> np.ndarray:
    """Return the matrix from values at `nodes(count)[first:]` to coefficients (degree + 1)."""
    return np.linalg.pinv(chebyshev.chebvander(chebyshev_nodes(count)[first:], degree))


@functools.cache
def derivative_matrix(degree: int) -> np.ndarray:
    """Return the matrix (degree, degree + 1) from a polynomial's coefficients to its slope's."""
    return chebyshev.chebder(np.eye(degree + 1))


def restrict_series(coefficients: Float[Array, "n ..."], low: Array, high: Array) -> Array:
    """Return coefficients (n, ...) of the same polynomials on the part [low, high] of [0, 1]."""
    count = coefficients.shape[0]
    return jnp.tensordot(
        jnp.asarray(fit_matrix(count, count - 1), coefficients.dtype),
        values_on_part(coefficients, low, high, count),
        1,
    )


def values_on_part(coefficients: Array, low: Array, high: Array, count: int) -> Array:
    """Evaluate polynomials at the nodes of the part [low, high] of [0, 1]: values (count, ...)."""
    at = jnp.asarray(1 + chebyshev_nodes(count))
    x = 2 * (low.astype(at.dtype) + (high - low).astype(at.dtype) * at / 2) - 1
    angle = jnp.arccos(jnp.clip(x, -1, 1))[:, None]
    basis = jnp.cos(np.arange(coefficients.shape[0], dtype=angle.dtype)[None] * angle)
    return jnp.tensordot(basis.astype(coefficients.dtype), coefficients, 1)


def deviation_bound(coefficients: Float[Array, "n ..."]) -> Array:
    """Add up |c_k| but for the first: a bound on how far a polynomial strays from c_0."""
    return jnp.sum(jnp.abs(coefficients[1:]), axis=0)


def certify_monotone(coefficients: Float[Array, "n ..."], error: Array) -> tuple[Array, Array]:
    """Tell whether all functions within `error` of the polynomials rise, and whether they all fall.

    The error's derivative is bounded as that of a polynomial of the same degree would be by
    Markov's inequality.
    """
    degree = coefficients.shape[0] - 1
    d = jnp.tensordot(jnp.asarray(derivative_matrix(degree), coefficients.dtype), coefficients, 1)
    spread = deviation_bound(d) + degree**2 * error
    return d[0] > spread, d[0] < -spread


def certify_roots(
    values: Float[Array, "n C"], factor: float
) -> tuple[Bool[Array, " C"], Bool[Array, " C"], Bool[Array, " C"]]:
    """Certify, from their values at the nodes, which functions have no root, and which at most one.

    What is beyond the interpolating polynomial is taken to be less than `factor` times the
    largest of the upper half of the coefficients: 0 for what is a polynomial. That is safe where
    these decay, or stand still as they do at a kink; a function that swings many times between
    two nodes has coefficients that are all alike, and passes for another one only if the whole
    upper half of them happens to be small. What is infinite on one side has no root; NaN tells
    nothing.

    **Returns:** `clear` (no root), `single` (monotone), and `rough`: the values look like noise.
    """
    count = values.shape[0]
    c = jnp.tensordot(jnp.asarray(fit_matrix(count, count - 1), values.dtype), values, 1)
    size = jnp.max(jnp.abs(values), axis=0)
    upper = jnp.max(jnp.abs(c[count // 2 + 1 :]), axis=0, initial=0.0)
    error = factor * upper + 8 * jnp.finfo(values.dtype).eps * size
    clear = jnp.abs(c[0]) > deviation_bound(c) + error
    clear = clear | jnp.all(values == jnp.inf, axis=0) | jnp.all(values == -jnp.inf, axis=0)
    rises, falls = certify_monotone(c, error)
    return clear, rises | falls, upper > 0.15 * size
