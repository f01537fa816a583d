"""Similarity of representations: Gram and distance matrices, CKA, variance explained."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.checks import checked, flag, floating, refuse
from flowlin._tools.numerics import root
from flowlin.measures._input import centred, rows


@checked(hidden=None)
def gram(hidden: ArrayLike) -> Float[Array, "... P P"]:
    """Similarity matrix H H^T, the inner products of all pairs of samples' representations.

    **Arguments:** `hidden` (..., P, H).
    """
    hidden = rows("hidden", hidden)
    return hidden @ hidden.mT


@checked(hidden=None)
def distances(hidden: ArrayLike) -> Float[Array, "... P P"]:
    """Euclidean distances of all pairs of samples' representations.

    From differences, so that close representations far from the origin keep their digits.

    **Arguments:** `hidden` (..., P, H).
    """
    return _distances(rows("hidden", hidden))


@partial(jnp.vectorize, signature="(p,h)->(p,p)")
def _distances(hidden: Array) -> Array:
    return lax.map(lambda one: root(jnp.sum((hidden - one) ** 2, axis=1)), hidden)


@checked(hidden=None)
def distance_ratio(hidden: ArrayLike, classes: ArrayLike) -> Float[Array, "..."]:
    """Mean distance within classes over mean distance between them.

    Falls as the representations of a class come together and those of different classes part, as
    Ye (2025) reads off t-SNE, which keeps no distances. For effective weights pass
    `effective_map(...).matrix` with its last two axes made one.

    **Arguments:**

    - `hidden`: (..., P, H).
    - `classes`: (P,), labels. Without two samples of a class, or without two classes: nan.

    **Raises:** `ValueError` for a wrong number of labels.
    """
    hidden, classes = rows("hidden", hidden), _labels(classes)
    samples = hidden.shape[-2]
    if classes.shape != (samples,):
        raise ValueError(f"`classes` must have shape ({samples},), got {classes.shape}.")
    same = classes[:, None] == classes
    within = same & ~jnp.eye(samples, dtype=bool)
    apart = distances(hidden)
    means = [jnp.sum(apart * m, axis=(-2, -1)) / jnp.sum(m) for m in (within, ~same)]
    return means[0] / means[1]


def _labels(classes: ArrayLike) -> Array:
    """Labels as an array of numbers or truth values."""
    if not isinstance(classes, jax.Array):
        classes = np.asarray(classes)
        if classes.dtype.kind not in "biuf":
            raise refuse("classes", "numbers, one per sample", classes, "number the labels")
    return jnp.asarray(classes)


@checked(debiased=flag)
def linear_cka(a: ArrayLike, b: ArrayLike, *, debiased: bool = False) -> Float[Array, "..."]:
    r"""Centred kernel alignment of two representations of the same samples, with linear kernels.

    $$\mathrm{CKA} = \frac{\mathrm{HSIC}(A, B)}{\sqrt{\mathrm{HSIC}(A, A)\, \mathrm{HSIC}(B, B)}}$$

    (Kornblith et al. 2019), in [0, 1], invariant to rotations and to the scale of either. By
    default with the biased $\mathrm{HSIC} \propto \|\tilde A^T \tilde B\|_F^2$ of centred
    features. That is positive even for independent ones, towards 1 for few samples in many
    dimensions; `debiased` uses the unbiased estimator (Song et al. 2012), which for centred
    features with squared row norms $\alpha_i, \beta_i$ is

    $$\mathrm{HSIC} \propto \|\tilde A^T \tilde B\|_F^2 - \frac{P}{P - 2} \sum_i \alpha_i \beta_i
      + \frac{\sum_i \alpha_i \sum_i \beta_i}{(P - 1)(P - 2)},$$

    with mean zero for independent features and values in [-1, 1].

    **Arguments:**

    - `a`, `b`: (..., P, H) and (..., P, H'); leading axes broadcast.
      Where one is constant: nan.
    - `debiased`: whether to use the unbiased estimator; needs P >= 4.

    **Raises:** `ValueError` for different numbers of samples, or too few of them.
    """
    a, b = centred(rows("a", a)), centred(rows("b", b))
    samples = a.shape[-2]
    if b.shape[-2] != samples:
        raise ValueError(
            f"`a` has {samples} samples and `b` has {b.shape[-2]}; compare representations of the "
            "same samples, one per row."
        )
    if debiased and samples < 4:
        raise ValueError(f"the unbiased estimator needs at least 4 samples, got {samples}.")
    # The ratio knows no scale; without one nothing overflows.
    scales = [lax.stop_gradient(jnp.max(jnp.abs(m), axis=(-2, -1), keepdims=True)) for m in (a, b)]
    a, b = a / scales[0], b / scales[1]
    hsic = partial(_hsic, debiased=debiased)
    return hsic(a, b) / jnp.sqrt(hsic(a, a) * hsic(b, b))


def _hsic(a: Array, b: Array, debiased: bool) -> Array:
    """HSIC of centred features up to a factor."""
    total = jnp.sum((a.mT @ b) ** 2, axis=(-2, -1))
    if not debiased:
        return total
    p = a.shape[-2]
    alpha, beta = jnp.sum(a**2, axis=-1), jnp.sum(b**2, axis=-1)
    both = jnp.sum(alpha, axis=-1) * jnp.sum(beta, axis=-1) / ((p - 1) * (p - 2))
    return total - p / (p - 2) * jnp.sum(alpha * beta, axis=-1) + both


@checked(hidden=None)
def variance_explained(hidden: ArrayLike, features: ArrayLike) -> Float[Array, "..."]:
    r"""Share of a representation's variance that a linear regression on features explains.

    $$R^2 = 1 - \frac{\|\tilde H - \tilde X \hat W\|_F^2}{\|\tilde H\|_F^2}, \qquad
      \hat W = \arg\min_W \|\tilde H - \tilde X W\|_F,$$

    with H and X centred over samples (lead paper App. D and Fig. 6D, after Lampinen et al.
    2024; its X~ and Y~ are the centred features and the centred hidden representation, and
    W-hat is the minimiser, not the minimum). In [0, 1]. For features that are orthogonal once
    centred the shares add up: $R^2_{both} = R^2_s + R^2_c$. Collinear features count once.

    **Arguments:**

    - `hidden`: (..., P, H). A constant one has no variance: nan.
    - `features`: (P, q), or (P,) for a single one.

    **Raises:** `ValueError` for different numbers of samples.
    """
    hidden, features = centred(rows("hidden", hidden)), floating("features", features)
    features = features[:, None] if features.ndim == 1 else features
    if features.ndim != 2 or features.shape[0] != hidden.shape[-2] or not features.size:
        raise ValueError(
            f"`features` must have one row for each of the {hidden.shape[-2]} samples of `hidden`, "
            f"(P, q) or (P,), got shape {features.shape}."
        )
    u, s, _ = jnp.linalg.svd(centred(features), full_matrices=False)
    size = jnp.sqrt(jnp.sum(features**2))  # a constant feature centres to rounding of its size
    kept = s > max(features.shape) * jnp.finfo(s.dtype).eps * size
    explained = jnp.sum(((u * kept).T @ hidden) ** 2, axis=(-2, -1))
    return explained / jnp.sum(hidden**2, axis=(-2, -1))
