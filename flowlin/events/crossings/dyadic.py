"""Walking through the parts of [0, 1] from left to right, each halved as often as it has to be."""

import math

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Int


def deepest(dtype: DTypeLike) -> int:
    """How often an interval is halved at most: down to about eps^0.6."""
    return min(int(-0.6 * math.log2(jnp.finfo(dtype).eps)), 30)


class Part(eqx.Module):
    """The part [index, index + 1] / 2^level of [0, 1]; beyond 1 once all have been passed."""

    index: Int[Array, ""]
    level: Int[Array, ""]

    @staticmethod
    def whole() -> "Part":
        """All of it."""
        return Part(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def ends(self, dtype: DTypeLike) -> tuple[Array, Array]:
        """Where it begins and ends."""
        # Not `exp2`, which rounds: neighbours have to meet.
        width = 1 / jnp.left_shift(1, self.level).astype(dtype)
        index = self.index.astype(dtype)
        return index * width, (index + 1) * width

    @property
    def is_inside(self) -> Array:
        """Whether it is still a part of [0, 1]."""
        return (self.index >> self.level) == 0

    def following(self, split: Array) -> "Part":
        """Its left half if it is to be split, else the largest part that begins where it ends.

        That one is the right half of the smallest part before it that was split.
        """
        after = self.index + 1
        zeros = lax.population_count((after & -after) - 1)
        return Part(
            jnp.where(split, 2 * self.index, after >> jnp.minimum(zeros, self.level)),
            jnp.where(split, self.level + 1, jnp.maximum(self.level - zeros, 0)),
        )
