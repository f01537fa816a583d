"""Distances between samples' representations, and within classes against between them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import argument_error, checked
from flowlin._tools.numerics import safe_sqrt
from flowlin.measures.along import require_representation


@checked(hidden=None)
def distances(hidden: ArrayLike) -> Float[Array, "... P P"]:
    """Return the Euclidean distances of all pairs of samples' representations.

    From differences, so that close representations far from the origin keep their digits.

    **Arguments:** `hidden` (..., P, H).

    **Returns:** (..., P, P), symmetric, zero on the diagonal.
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

    **Returns:** (...), one ratio per representation.

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
