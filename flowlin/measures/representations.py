"""Similarity of representations: Gram and distance matrices, CKA, variance explained."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import argument_error, boolean, checked, float_array, integer_from
from flowlin._tools.arrays import with_axes
from flowlin._tools.files import saveable
from flowlin._tools.numerics import safe_sqrt
from flowlin.measures.along import centre_samples, require_representation


@checked(hidden=None)
def gram(hidden: ArrayLike) -> Float[Array, "... P P"]:
    """Return the similarity matrix H H^T of all pairs of samples' representations.

    **Arguments:** `hidden` (..., P, H).
    """
    hidden = require_representation("hidden", hidden)
    return hidden @ hidden.mT


@checked(hidden=None)
def distances(hidden: ArrayLike) -> Float[Array, "... P P"]:
    """Return the Euclidean distances of all pairs of samples' representations.

    From differences, so that close representations far from the origin keep their digits.

    **Arguments:** `hidden` (..., P, H).
    """
    return _pair_distances(require_representation("hidden", hidden))


@partial(jnp.vectorize, signature="(p,h)->(p,p)")
def _pair_distances(hidden: Array) -> Array:
    """Return the distances (P, P), row by row, so that memory holds P H numbers at a time."""
    return lax.map(lambda one: safe_sqrt(jnp.sum((hidden - one[None]) ** 2, axis=1)), hidden)


@checked(hidden=None)
def distance_ratio(hidden: ArrayLike, classes: ArrayLike) -> Float[Array, "..."]:
    """Return the mean distance within classes over the mean distance between them.

    Falls as the representations of a class come together and those of different classes part, as
    Ye (2025) reads off t-SNE, which keeps no distances. For effective weights pass
    `effective_map(...).matrix` with its last two axes made one.

    **Arguments:**

    - `hidden`: (..., P, H).
    - `classes`: (P,), labels. Without two samples of a class, or without two classes: nan.

    **Raises:** `ValueError` for a wrong number of labels.
    """
    hidden, classes = require_representation("hidden", hidden), _class_labels(classes)
    samples = hidden.shape[-2]
    if classes.shape != (samples,):
        raise ValueError(f"`classes` must have shape ({samples},), got {classes.shape}.")
    same = classes[:, None] == classes[None]
    within = same & ~jnp.eye(samples, dtype=bool)
    apart = distances(hidden)

    def mean_distance(pairs: Array) -> Array:
        share = jnp.broadcast_to(pairs, apart.shape).astype(apart.dtype)
        return jnp.sum(apart * share, axis=(-2, -1)) / jnp.sum(pairs).astype(apart.dtype)

    return mean_distance(within) / mean_distance(~same)


def _class_labels(classes: ArrayLike) -> Array:
    """Return labels as an array of numbers or truth values."""
    if not isinstance(classes, jax.Array):
        classes = np.asarray(classes)
        if classes.dtype.kind not in "biuf":
            raise argument_error("classes", "numbers, one per sample", classes, "number the labels")
    return jnp.asarray(classes)


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


@checked(hidden=None)
def variance_explained(hidden: ArrayLike, features: ArrayLike) -> Float[Array, "..."]:
    r"""Return the share of a representation's variance that a regression on features explains.

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
    hidden, features = (
        centre_samples(require_representation("hidden", hidden)),
        float_array("features", features),
    )
    features = features[:, None] if features.ndim == 1 else features
    if features.ndim != 2 or features.shape[0] != hidden.shape[-2] or not features.size:
        raise ValueError(
            f"`features` must have one row for each of the {hidden.shape[-2]} samples of `hidden`, "
            f"(P, q) or (P,), got shape {features.shape}."
        )
    u, s, _ = jnp.linalg.svd(centre_samples(features), full_matrices=False)
    # Singular values are cut relative to the features before they are centred: a constant feature,
    # centred, is the rounding of its own size and explains nothing.
    size = jnp.sqrt(jnp.sum(features**2))
    kept = s > max(features.shape) * jnp.finfo(s.dtype).eps * size
    explained = jnp.sum(((u * kept.astype(u.dtype)[None]).T @ hidden) ** 2, axis=(-2, -1))
    return explained / jnp.sum(hidden**2, axis=(-2, -1))


# ---- Multidimensional scaling of representations over training.


@saveable()
class Embedding(NamedTuple):
    """Points in few dimensions.

    - `points`: (..., P, K), K coordinates per sample (and time).
    - `share`: (K,), the share of the variance of all points that each coordinate carries.
    """

    points: Array
    share: Array


@checked(hidden=None, dimensions=integer_from(1))
def mds(hidden: ArrayLike, dimensions: int = 2) -> Embedding:
    r"""Embed a representation over training by multidimensional scaling, all times jointly.

    The points of all samples at all times are embedded together: their coordinates are the
    eigenvectors of the doubly centred matrix of squared distances, scaled by the roots of its
    eigenvalues (Torgerson 1952). For Euclidean distances these are the principal components of
    the stacked points, and so they are computed. One projection serves all times. Distances in
    the picture are then distances in the hidden layer at any time, and movement in it is movement
    there; times embedded one by one and rotated onto each other (Procrustes) would show neither,
    and where eigenvalues are equal (siblings in a tree) would not even be determined.

    Signs: along each coordinate, the first sample of the last time that is at least half as far out
    as the farthest one is on the positive side.

    **Arguments:**

    - `hidden`: (..., P, H), usually (T, P, H) from `along(flow, hidden)`.
    - `dimensions`: K, at most H.

    **Returns:** `Embedding`. Points that all coincide have no shares: nan.

    **Raises:** `ValueError` for K out of range.
    """
    hidden = require_representation("hidden", hidden)
    width = hidden.shape[-1]
    if dimensions > width:
        raise ValueError(f"`dimensions` must lie between 1 and H = {width}, got {dimensions}.")
    stacked = hidden.reshape(-1, width)
    off = centre_samples(stacked)
    values, vectors = jnp.linalg.eigh(off.T @ off)
    values, vectors = values[::-1][:dimensions], vectors[:, ::-1][:, :dimensions]
    points = off @ vectors
    last = points[-hidden.shape[-2] :]
    far = jnp.abs(last) >= 0.5 * jnp.max(jnp.abs(last), axis=0, keepdims=True)
    first = jnp.take_along_axis(last, jnp.argmax(far, axis=0)[None], axis=0)
    points = points * jnp.where(first < 0, -1.0, 1.0)
    share = jnp.maximum(values, 0.0) / jnp.sum(off**2)
    return Embedding(points.reshape(*hidden.shape[:-1], dimensions), share)


# ---- Effective ranks of matrices and representations.


@checked
def spectral_entropy(matrix: ArrayLike) -> Float[Array, "..."]:
    r"""Return the entropy of the singular values, $-\sum_i \bar s_i \log \bar s_i$.

    $\bar s_i = s_i/\sum s_j$ are the shares. This is the effective rank of Huh et al. (2023), in
    [0, log rank]; that of Roy and Vetterli (2007) is its exponential, `effective_rank`. Values
    below rounding, max(m, n) eps s_max, count as zero and 0 log 0 = 0. The derivative is zero in
    the directions of those values: there the entropy has an infinite slope.

    **Arguments:** `matrix` (..., m, n). An all-zero one has no entropy: nan.
    """
    return _entropy_of_shares(_clean_singular_values("matrix", matrix))


@checked
def effective_rank(matrix: ArrayLike) -> Float[Array, "..."]:
    r"""Return the effective rank $\rho(A) = \exp(-\sum_i \bar s_i \log \bar s_i)$, in [1, rank A].

    The number of equal singular values that have the entropy of those of A (Roy and Vetterli 2007;
    Eq. 1 of the lead paper, printed with the wrong sign). See `spectral_entropy`.

    **Arguments:** `matrix` (..., m, n). An all-zero one has no effective rank: nan.
    """
    return jnp.exp(spectral_entropy(matrix))


@checked
def effective_rank_of_gram(hidden: ArrayLike) -> Float[Array, "..."]:
    r"""Return the effective rank of the Gram matrix $H^T H$ (or $H H^T$), in [1, rank H].

    The lead paper's Figs. 1B and 6C show it. The Gram matrix has the singular values s_i^2 of H,
    so this is smaller than `effective_rank(hidden)`; it is taken from H, which keeps the digits,
    and is differentiable even where H is not of full rank.

    **Arguments:** `hidden` (..., P, H), a representation. An all-zero one has none: nan.
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
