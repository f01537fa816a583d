"""Effective ranks of matrices and of representations."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import checked
from flowlin.measures.along import require_representation


@checked
def spectral_entropy(matrix: ArrayLike) -> Float[Array, "..."]:
    r"""Return the entropy of the singular values, $-\sum_i \bar s_i \log \bar s_i$.

    $\bar s_i = s_i/\sum s_j$ are the shares. This is the effective rank of Huh et al. (2023), in
    [0, log rank]; that of Roy and Vetterli (2007) is its exponential, `effective_rank`. Values
    below rounding, max(m, n) eps s_max, count as zero and 0 log 0 = 0. The derivative is zero in
    the directions of those values: there the entropy has an infinite slope.

    **Arguments:** `matrix` (..., m, n). An all-zero one has no entropy: nan.

    **Returns:** (...), one entropy per matrix, in nats.
    """
    return _entropy_of_shares(_clean_singular_values("matrix", matrix))


@checked
def effective_rank(matrix: ArrayLike) -> Float[Array, "..."]:
    r"""Return the effective rank $\rho(A) = \exp(-\sum_i \bar s_i \log \bar s_i)$, in [1, rank A].

    The number of equal singular values that have the entropy of those of A (Roy and Vetterli 2007;
    Eq. 1 of the lead paper, printed with the wrong sign). See `spectral_entropy`.

    **Arguments:** `matrix` (..., m, n). An all-zero one has no effective rank: nan.

    **Returns:** (...), one rank per matrix.
    """
    return jnp.exp(spectral_entropy(matrix))


@checked
def effective_rank_of_gram(hidden: ArrayLike) -> Float[Array, "..."]:
    r"""Return the effective rank of the Gram matrix $H^T H$ (or $H H^T$), in [1, rank H].

    The lead paper's Figs. 1B and 6C show it. The Gram matrix has the singular values s_i^2 of H,
    so this is smaller than `effective_rank(hidden)`; it is taken from H, which keeps the digits,
    and is differentiable even where H is not of full rank.

    **Arguments:** `hidden` (..., P, H), a representation. An all-zero one has none: nan.

    **Returns:** (...), one rank per representation.
    """
    return jnp.exp(_entropy_of_shares(_clean_singular_values("hidden", hidden) ** 2))


def _clean_singular_values(name: str, matrix: ArrayLike) -> Array:
    """Return the singular values of matrices, with zeros in place of rounding."""
    matrix = require_representation(name, matrix)
    s = jnp.linalg.svd(matrix, compute_uv=False)
    rounding = max(matrix.shape[-2:]) * jnp.finfo(s.dtype).eps
    return jnp.where(s > rounding * s[..., :1], s, 0.0)


def _entropy_of_shares(values: Array) -> Array:
    """Return the entropy of non-negative values (..., K), normalised; nan if none is positive."""
    some, total = values > 0, jnp.sum(values, axis=-1, keepdims=True)
    share = jnp.where(some, values, 1.0) / jnp.where(total > 0, total, 1.0)
    terms = jnp.where(some, share * jnp.log(share), 0.0)
    return jnp.where(total[..., 0] > 0, -jnp.sum(terms, axis=-1), jnp.nan)
