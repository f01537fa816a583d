"""Sides of the pairs of all layers, and the equations of those that slide, in slots."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PyTree, Shaped

FEW = 16  # pairs that slide at once


class LayerSides(eqx.Module):
    """The side of every pair of all layers, and the leaders that slide, in m slots.

    - `codes`: OFF, SLIDING or ON; the units of all layers, first layer first.
    - `slots`: positions of the sliding leaders in the flattened codes; H P in empty slots.
    - `trouble`: what went wrong, FINE as long as nothing did.
    - `certificate`: the upper bound of C (`DeepFlow.reach`) of the pair that left at the run's
      first branch, NaN without one.
    """

    codes: Int[Array, "H P"]
    slots: Int[Array, " m"]
    trouble: Int[Array, ""]
    certificate: Float[Array, ""]

    @property
    def report(self) -> dict[str, Array]:
        """What a run's `stats` say of them."""
        return {"branch_certificate": self.certificate}


class DeepFrozen(eqx.Module):
    """What a vector field needs of the sides, constant along a piece."""

    codes: Int[Array, "H P"]
    gates: Float[Array, "H P"]
    slots: Int[Array, " m"]


def take(pairs: Shaped[Array, "H P"], slots: Int[Array, " m"]) -> Shaped[Array, " m"]:
    """The slots' entries, zero in empty slots."""
    there = pairs.ravel().at[slots].get(mode="clip", wrap_negative_indices=False)
    return jnp.where(slots < pairs.size, there, jnp.zeros((), pairs.dtype))


def columns(matrix: Shaped[Array, "n P"], which: Int[Array, " m"]) -> Shaped[Array, "n m"]:
    """These columns, all of which there are."""
    return matrix.at[:, which].get(mode="promise_in_bounds", wrap_negative_indices=False)


def put(
    values: Float[Array, " m"], slots: Int[Array, " m"], shape: tuple[int, ...]
) -> Float[Array, "H P"]:
    """Zero but for the slots' entries."""
    flat = jnp.zeros(math.prod(shape), values.dtype).at[slots]
    return flat.set(values, mode="drop", wrap_negative_indices=False).reshape(shape)


def of_used(function: Any, slots: Int[Array, " m"], empty: int) -> PyTree:
    """A function of the slots, of as few of them as hold all in use; results padded with zeros.

    Slots in use come first, the others are `empty`. Mostly few pairs slide, and what their Gram
    matrix costs grows with the cube of its size: `FEW`, four times as many, and so on.
    """
    most, counts = slots.size, [slots.size]
    while (few := FEW * 4 ** (len(counts) - 1)) < most:
        counts.insert(-1, few)

    def first(count: int) -> Any:
        def found():
            pad = (0, most - count)
            return jax.tree.map(lambda a: jnp.pad(a, pad), function(slots[:count]))

        return found

    more = sum((slots[count] < empty).astype(int) for count in counts[:-1])
    return lax.switch(more, [first(count) for count in counts])


def solve(gram: Float[Array, "m m"], q: Float[Array, " m"]) -> Float[Array, " m"]:
    """Solution of gram u = q, for q in its range; zero in empty slots.

    A little is added to the diagonal, so that dependent gradients do no harm; what that changes
    of gram u is of the size of rounding.
    """
    eps = jnp.finfo(gram.dtype).eps
    diagonal = jnp.diagonal(gram)
    ridge = jnp.where(diagonal > 0, 100 * eps * jnp.max(diagonal), 1.0)
    factor = jax.scipy.linalg.cho_factor(gram + jnp.diag(lax.stop_gradient(ridge)), lower=True)
    return jax.scipy.linalg.cho_solve(factor, q)
