"""Similarity of representations: Gram matrices, centred kernel alignment."""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import boolean, checked
from flowlin._tools.arrays import with_axes
from flowlin.measures.along import centre_samples, require_representation


@checked(hidden=None)
def gram(hidden: ArrayLike) -> Float[Array, "... P P"]:
    """Return the similarity matrix H H^T of all pairs of samples' representations.

    **Arguments:** `hidden` (..., P, H).

    **Returns:** (..., P, P), symmetric.
    """
    hidden = require_representation("hidden", hidden)
    return hidden @ hidden.mT


@checked(debiased=boolean)
def linear_cka(a: ArrayLike, b: ArrayLike, *, debiased: bool = False) -> Float[Array, "..."]:
    r"""Return the centred kernel alignment of two representations of the same samples.

    $$\mathrm{CKA} = \frac{\mathrm{HSIC}(A, B)}{\sqrt{\mathrm{HSIC}(A, A)\, \mathrm{HSIC}(B, B)}}$$

    (Kornblith et al. 2019), in [0, 1], with linear kernels: rotations and the scale of either do
    not change it. The default takes the biased $\mathrm{HSIC} \propto \|\tilde A^T \tilde B\|_F^2$
    of centred features. That is positive even for independent ones, towards 1 for few samples in
    many dimensions; `debiased` uses the unbiased estimator (Song et al. 2012), which for centred
    features with squared row norms $\alpha_i, \beta_i$ is

    $$\mathrm{HSIC} \propto \|\tilde A^T \tilde B\|_F^2 - \frac{P}{P - 2} \sum_i \alpha_i \beta_i
      + \frac{\sum_i \alpha_i \sum_i \beta_i}{(P - 1)(P - 2)},$$

    with mean zero for independent features and values in [-1, 1].

    **Arguments:**

    - `a`, `b`: (..., P, H) and (..., P, H'); leading axes broadcast.
      Where one is constant: nan.
    - `debiased`: whether to use the unbiased estimator; needs P >= 4.

    **Returns:** (...), one number per pair of representations.

    **Raises:** `ValueError` for different numbers of samples, or too few of them.
    """
    a, b = (
        centre_samples(require_representation("a", a)),
        centre_samples(require_representation("b", b)),
    )
    samples = a.shape[-2]
    if b.shape[-2] != samples:
        raise ValueError(
            f"`a` has {samples} samples and `b` has {b.shape[-2]}; compare representations of the "
            "same samples, one per row."
        )
    if debiased and samples < 4:
        raise ValueError(f"the unbiased estimator needs at least 4 samples, got {samples}.")
    axes = max(a.ndim, b.ndim)
    x, y = (with_axes(m, axes - m.ndim) for m in (a, b))
    # CKA does not change with the scales of x and y: without them fourth powers do not overflow.
    scales = [lax.stop_gradient(jnp.max(jnp.abs(m), axis=(-2, -1), keepdims=True)) for m in (x, y)]
    x, y = x / scales[0], y / scales[1]
    hsic = partial(_hsic, debiased=debiased)
    return hsic(x, y) / jnp.sqrt(hsic(x, x) * hsic(y, y))


def _hsic(a: Array, b: Array, debiased: bool) -> Array:
    """Return the HSIC of centred features, up to a factor."""
    total = jnp.sum((a.mT @ b) ** 2, axis=(-2, -1))
    if not debiased:
        return total
    p = a.shape[-2]
    alpha, beta = jnp.sum(a**2, axis=-1), jnp.sum(b**2, axis=-1)
    both = jnp.sum(alpha, axis=-1) * jnp.sum(beta, axis=-1) / ((p - 1) * (p - 2))
    return total - p / (p - 2) * jnp.sum(alpha * beta, axis=-1) + both
