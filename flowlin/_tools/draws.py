"""Normal draws that need few programs: arrays of all small shapes come out of the same ones."""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from flowlin._tools.arrays import is_traced
from flowlin._tools.numerics import jit_by_array

Shape = tuple[int, ...]
SIZES = 2**8, 2**12, 2**16  # numbers that are drawn for an array, of which it takes the first


def draw_normals(
    key: PRNGKeyArray, splits: Shape, shapes: Sequence[Shape], variances: Array | np.ndarray
) -> list[Array]:
    r"""Draw arrays of mean zero, each of its own key and variance.

    The keys are `jax.random.split(key, splits[0])`, each of them split by `splits[1]`, and so on,
    and the arrays $\sqrt{v_k}$ `jax.random.normal(key_k, shapes[k])` to the bit.

    A program for every set of shapes takes half a second to compile. With JAX's counters (Threefry,
    partitionable) the k-th number and the k-th key depend on no size: of a key that is known, small
    arrays are the beginnings of vectors of `SIZES`.
    """
    largest = max(map(math.prod, shapes), default=0)
    if largest > SIZES[-1] or is_traced((variances, lax.full((), 0))) or not _is_counted(key):
        return _draw_each(key, jnp.asarray(variances), splits, tuple(shapes))
    size = next(size for size in SIZES if largest <= size)
    padded = tuple(1 << (split - 1).bit_length() for split in splits)
    rows = np.asarray(_draw_vectors(key, padded, size, variances.dtype))
    rows = rows[tuple(map(slice, splits))].reshape(len(shapes), size)
    scales = np.sqrt(np.asarray(variances))
    return [
        jax.device_put(scale * row[: math.prod(shape)].reshape(shape))
        for shape, scale, row in zip(shapes, scales, rows, strict=True)
    ]


def _is_counted(key: PRNGKeyArray) -> bool:
    """Tell whether a key is known, of JAX's default kind, and bound to no device."""
    if is_traced(key) or getattr(key, "committed", False):
        return False
    counted = getattr(jax.config, "jax_threefry_partitionable", False)
    return counted and jax.random.key_impl(key) == "threefry2x32"


@functools.partial(jax.jit, static_argnames=("splits", "size", "dtype"))
def _draw_vectors(
    key: PRNGKeyArray, splits: Shape, size: int, dtype: DTypeLike
) -> Float[Array, "..."]:
    """Draw standard normal vectors (*splits, size), one of each key."""

    def draw_below(key: PRNGKeyArray, splits: Shape) -> Array:
        if not splits:
            return jax.random.normal(key, (size,), dtype)
        keys = jax.random.split(key, splits[0])
        return jax.vmap(lambda one: draw_below(one, splits[1:]))(keys)

    return draw_below(key, splits)


@jit_by_array
def _draw_each(
    key: PRNGKeyArray, variances: Array, splits: Shape, shapes: Sequence[Shape]
) -> list[Array]:
    """Draw the arrays in one program: one by one, each shape would be compiled alone."""

    def draw_array(key: PRNGKeyArray, variance: Array, shape: Shape) -> Array:
        # Scaled after the draw, to the bit: else the compiler would merge two factors.
        standard = lax.optimization_barrier(jax.random.normal(key, shape, variance.dtype))
        return jnp.sqrt(variance) * standard

    return [
        draw_array(one, variance, shape)
        for one, variance, shape in zip(_split_keys(key, splits), variances, shapes, strict=True)
    ]


def _split_keys(key: PRNGKeyArray, splits: Shape) -> list[PRNGKeyArray]:
    """List the keys that a key is split into, again and again."""
    if not splits:
        return [key]
    return [k for one in jax.random.split(key, splits[0]) for k in _split_keys(one, splits[1:])]
