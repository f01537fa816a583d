"""Multidimensional scaling of representations over training."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from flowlin._tools.arguments import checked, integer_from
from flowlin._tools.files import saveable
from flowlin.measures.along import centre_samples, require_representation


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
