"""Kinks that samples of a module share, always or for as long as layers below send the same."""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree


def group_by_value(
    values: Float[Array, " n"], sizes: Float[Array, " n"], before: Int[Array, " n"]
) -> Int[Array, " n"]:
    """Number groups of equal values within the groups that there were before.

    Equal are values within 64 ulps of their `sizes`; what is NaN is equal to nothing.
    """
    rounding = 64 * jnp.finfo(values.dtype).eps * sizes
    order = jnp.lexsort((values, before))
    same = jnp.diff(values[order]) <= rounding[order][1:]
    apart = ~same | (jnp.diff(before[order]) != 0)
    number = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(apart)])
    return jnp.zeros_like(before).at[order].set(number)


def first_with_same_values(
    values_of: Callable[[PyTree], Array], parameters: PyTree, sizes: Sequence[int]
) -> tuple[Int[Array, " n"], Bool[Array, " n"]]:
    """Return for each value of some parameters the first one that is the same whatever they are.

    It is told at parameters between which there is no relation, and at zero, which leaves the
    constants: as 1 - w x and 2 - w x are told apart where x is large.

    **Arguments:** `values_of` returns rows of values, in parts of these `sizes`, whose rounding
    is their own; `parameters` have the shapes.

    **Returns:** numbers of the flattened values, and which of these are always zero.
    """
    ends = np.cumsum(sizes)[:-1].tolist()

    def split_groups(group: Array, draw: PyTree) -> tuple[Array, Array]:
        rows = values_of(draw)
        scales = [jnp.full_like(one, jnp.max(one)) for one in jnp.split(jnp.abs(rows), ends)]
        values = jnp.ravel(rows)
        return group_by_value(values, jnp.ravel(jnp.concatenate(scales)), group), values == 0

    draws, count = independent_numbers(parameters), jax.eval_shape(values_of, parameters).size
    group, zero = lax.scan(split_groups, jnp.zeros(count, int), draws)
    first = jax.ops.segment_min(jnp.arange(count), group, count)
    return first[group], jnp.all(zero, axis=0)


def independent_numbers(tree: PyTree) -> PyTree:
    """Return zeros, and three times numbers without a relation to each other, for a tree's arrays.

    In arrays with an axis in front. The numbers are the cosines and sines of 1, 2, 3, ..., and the
    cosines of these times the root of 2: no sum of integer multiples of either is zero, by the
    theorem of Lindemann and Weierstrass. In float32 two values of one draw may be near by chance.
    """
    leaves, structure = jax.tree.flatten(tree)
    ends = np.cumsum([leaf.size for leaf in leaves])
    angle = 1 + jnp.arange(ends[-1], dtype=leaves[0].dtype)
    draws = jnp.cos(angle), jnp.sin(angle), jnp.cos(math.sqrt(2) * angle)
    numbers = jnp.stack([jnp.zeros_like(angle), *draws])
    parts = jnp.split(numbers, ends[:-1].tolist(), axis=1)
    shaped = [p.reshape(4, *a.shape).astype(a.dtype) for p, a in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def mean_of_sharers(
    first: Int[Array, " n"] | None, is_leader: Bool[Array, "H P"], values: Float[Array, "H P"]
) -> Float[Array, "H P"]:
    """Return the mean of leaders' values among those with the same `first` pair; others' zero.

    Their z is one number, and the flow fixes the sum of their u alone. The local loss gives that
    sum the range from zero to minus the sum of their C, whatever the signs of these. Without a
    `first` none shares, and the values come back.
    """
    if first is None:
        return values
    counts = jnp.ravel(is_leader).astype(values.dtype)
    both = jnp.stack([jnp.ravel(values) * counts, counts], axis=1)
    total, count = jax.ops.segment_sum(both, first, counts.size)[first].T
    return (total * counts / jnp.maximum(count, 1.0)).reshape(values.shape)
