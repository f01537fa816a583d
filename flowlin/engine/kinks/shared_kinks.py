"""Kinks that samples of a module share, always or for as long as layers below send the same."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree


class SharedKinks(NamedTuple):
    """Pairs at their kinks, as samples share these for now."""

    pairs: Bool[Array, "H P"]  # with all that share a kink with one of them
    is_leader: Bool[Array, "H P"]  # the first pair at each kink
    split: Callable[[Array], Array] | None  # values among those that share; None: by each pass


def first_with_same_values(
    values_of: Callable[[PyTree], Array], parameters: PyTree, sizes: Sequence[int]
) -> tuple[Int[Array, " n"], Bool[Array, " n"]]:
    """Return for each value of some parameters the first one that is the same whatever they are.

    It is told at parameters between which there is no relation, and at zero, which leaves the
    constants: as 1 - w x and 2 - w x are told apart where x is large. The same are values within 64
    ulps of the largest of their part, in all draws; what is NaN is the same as nothing.

    One sort brings the same ones side by side. Where in float32 others come between them by chance,
    they count as different.

    **Arguments:** `values_of` returns rows of values, in parts of these `sizes`; `parameters` have
    the shapes.

    **Returns:** numbers of the flattened values, and which of these are always zero.
    """
    rows = jax.vmap(values_of)(independent_numbers(parameters))
    values = rows.reshape(len(rows), -1)
    part = np.repeat(np.arange(len(sizes)), np.multiply(sizes, rows.shape[2]))
    # Of a slice of each part, a maximum takes three times as long to compile.
    largest = jax.ops.segment_max(jnp.abs(values).T, part, len(sizes), indices_are_sorted=True)
    order = jnp.argsort(values[1])
    rounding = 64 * jnp.finfo(values.dtype).eps * largest[part].T[:, order[1:]]
    same = jnp.all(jnp.abs(jnp.diff(values[:, order])) <= rounding, axis=0)
    number = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(~same)])
    group = jnp.zeros_like(number).at[order].set(number)
    first = jax.ops.segment_min(jnp.arange(group.size), group, group.size)
    return first[group], jnp.all(values == 0, axis=0)


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
