"""Maxima of several numbers, written by a rectifier of one: max(a, b) = b + max(a - b, 0).

The rectifier is a function of z that stands for max(z, 0). It is called at one place with kinks
after another.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike

Rectifier = Callable[[Array], Array]


def fill_shape(value: Any, shape: tuple[int, ...]) -> Array:
    """Return a number as an array of a shape, and an array as it is."""
    return value if np.shape(value) == shape else jnp.broadcast_to(value, shape)


def larger(rectify: Rectifier, a: Array, b: Array, sign: int) -> Array:
    """Return max(a, b) for a `sign` of 1, min(a, b) for -1."""
    return b + rectify(a - b) if sign > 0 else b - rectify(b - a)


def clamp(rectify: Rectifier, low: ArrayLike, x: Array, high: ArrayLike) -> Array:
    """Return x within the bounds."""
    lowest, highest = fill_shape(low, x.shape), fill_shape(high, x.shape)
    return larger(rectify, larger(rectify, x, lowest, 1), highest, -1)


def _largest_of_arrays(rectify: Rectifier, values: list[Array], sign: int) -> Array:
    """Return the largest of arrays entry by entry, by pairs and round by round."""
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        rest = values[len(values) // 2 * 2 :]
        values = [*(larger(rectify, a, b, sign) for a, b in pairs), *rest]
    return values[0]


def reduce_by_pairs(rectify: Rectifier, x: Array, axes: tuple[int, ...], sign: int) -> Array:
    """Return the largest value along axes; each round halves them, in one site."""
    kept = [k for k in range(x.ndim) if k not in axes]
    x = jnp.transpose(x, (*axes, *kept))
    x = x.reshape(math.prod(x.shape[: len(axes)]), *x.shape[len(axes) :])
    while len(x) > 1:
        half, rest = len(x) // 2, x[len(x) // 2 * 2 :]
        x = jnp.concatenate([larger(rectify, x[:half], x[half : 2 * half], sign), rest])
    return x[0]


def pool(rectify: Rectifier, x: Array, params: dict[str, Any], sign: int) -> Array:
    """Return the largest value of each window, without padding."""
    sizes, strides, gaps = (
        params[f"window_{name}"] for name in ("dimensions", "strides", "dilation")
    )
    spans = [(size - 1) * gap + 1 for size, gap in zip(sizes, gaps, strict=True)]
    counts = [
        (n - span) // stride + 1 for n, span, stride in zip(x.shape, spans, strides, strict=True)
    ]
    values = []
    for offset in itertools.product(*map(range, sizes)):
        start = [o * gap for o, gap in zip(offset, gaps, strict=True)]
        ends = [
            s + (count - 1) * stride + 1
            for s, count, stride in zip(start, counts, strides, strict=True)
        ]
        values.append(lax.slice(x, start, ends, strides))
    return _largest_of_arrays(rectify, values, sign)
