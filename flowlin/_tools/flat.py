"""Parameters end to end in one vector, as the state of a solver: less to compile than a tree."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, PyTree

from flowlin._tools.types import Parameters


class Flat(eqx.Module):
    """A tree of arrays of one precision, end to end.

    What is added up, scaled or compared number by number does so as one array; whoever wants
    the arrays asks for `whole`. Like any tree it may have leading axes, for stacked states.

    - `vector`: all numbers, in the order of the tree's leaves.
    - `shapes`, `structure`: the tree's.
    """

    vector: Inexact[Array, "*T N"]
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    structure: Any = eqx.field(static=True)

    @staticmethod
    def of(tree: PyTree) -> "Flat":
        """Of a tree of arrays of one precision."""
        leaves, structure = jax.tree.flatten(tree)
        vector = jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])
        return Flat(vector, tuple(leaf.shape for leaf in leaves), structure)

    @property
    def whole(self) -> PyTree:
        """The tree."""
        leaves, start, stacked = [], 0, self.vector.shape[:-1]
        for shape in self.shapes:
            end = start + math.prod(shape)
            leaves.append(self.vector[..., start:end].reshape(*stacked, *shape))
            start = end
        return jax.tree.unflatten(self.structure, leaves)


def as_tree(parameters: Parameters | Flat) -> Parameters:
    """Parameters as a tree, whichever way they come."""
    return parameters.whole if isinstance(parameters, Flat) else parameters


def like(parameters: Parameters | Flat, tree: Parameters) -> Parameters | Flat:
    """A tree the way the parameters came."""
    return Flat.of(tree) if isinstance(parameters, Flat) else tree
