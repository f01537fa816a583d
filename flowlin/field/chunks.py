"""Sums over the samples of a task, in chunks, so that memory does not grow with the samples."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

Sums = TypeVar("Sums")

# Bytes per array of one chunk, and rows at least, by `benchmarks/evaluation.py --chunks`: a CPU
# keeps a chunk's arrays in its cache. Accelerators want large products; theirs is not measured.
BYTES, BYTES_ELSEWHERE, ROWS = {"cpu": 2**21}, 2**28, 512


def pieces(samples: int, width: int, itemsize: int) -> int:
    """Number of chunks for arrays (samples, width); 1 is a single pass."""
    room = BYTES.get(jax.default_backend(), BYTES_ELSEWHERE)
    return max(1, samples // max(ROWS, room // (width * itemsize)))


def summed(function: Callable[[PyTree], Sums], rows: PyTree, width: int, shards: int = 1) -> Sums:
    """`function` of the rows, a tree of sums over samples, with the samples taken in chunks.

    Reverse mode recomputes every chunk instead of keeping its arrays.

    **Arguments:**

    - `function`: of a tree such as `rows` with fewer samples; additive over samples.
    - `rows`: tree of arrays with a leading axis of samples, (P, ...).
    - `width`: numbers per sample that `function` holds at once.
    - `shards`: number of devices among which the samples are split, a divisor of P. Each adds up
      its own rows, and what they have is added once at the end.
    """
    first = jax.tree.leaves(rows)[0]
    own = first.shape[0] // shards
    number = pieces(own, width, first.dtype.itemsize)
    if number == 1:
        return function(rows)
    length = own // number
    blocks = jax.tree.map(lambda a: a.reshape(shards, own, *a.shape[1:]), rows)

    def chunk(start: int | Array, size: int) -> PyTree:
        cut = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size, axis=1), blocks)
        return jax.vmap(function)(cut)

    # The cut is inside: reverse mode would keep every chunk's rows, a copy of the task.
    chunk = jax.checkpoint(chunk, static_argnums=1)

    def body(total: PyTree, k: Array) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, chunk(k * length, length)), None

    zero = jax.tree.map(
        lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(lambda: chunk(0, length))
    )
    total, _ = lax.scan(body, zero, jnp.arange(number))
    rest = own - number * length  # fewer rows than there are chunks
    if rest:
        total = jax.tree.map(jnp.add, total, chunk(number * length, rest))
    return jax.tree.map(lambda a: jnp.sum(a, axis=0), total)
