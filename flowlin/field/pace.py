"""Time constants: one for all parameters, one per array, or none for what does not move."""

import jax
from jaxtyping import Array, PyTree

from flowlin.network.model import AbstractModel


def is_none(node: PyTree) -> bool:
    """Whether it stands for what does not move."""
    return node is None


def spread(tau: PyTree, parameters: PyTree) -> PyTree:
    """The time constant of every array, for a prefix `tau` of the tree; None where it rests."""

    def each(one: Array | None, part: PyTree) -> PyTree:
        return jax.tree.map(lambda _: one, part)

    return jax.tree.map(each, tau, parameters, is_leaf=is_none)


def layer_moves(tau: PyTree, network: AbstractModel) -> list[tuple[bool, bool]]:
    """Whether the weights and the bias of each layer of a network move; a missing bias does not."""
    weights, biases = spread(tau, network.parameters)
    return [(w is not None, b is not None) for w, b in zip(weights, biases, strict=True)]


def paced(force: PyTree, tau: PyTree) -> PyTree:
    """The velocity that a force gives, force / tau; None for what rests."""

    def each(one: Array | None, part: PyTree) -> PyTree:
        return None if one is None else jax.tree.map(lambda f: f / one, part)

    return jax.tree.map(each, tau, force, is_leaf=is_none)
