r"""Pairs without inputs: what is above a layer that sends nothing for a sample, without biases.

Where all units of a layer are off or at their kinks for a sample, z of the layers above is zero,
whatever their weights, and stays so: such a pair neither moves nor slides. Its gate is what it
becomes when units below rise from their kinks. Units that rise together give it the sign of
$\sum_j W_{ij} \dot z_j$ (`push`), one that rises by itself the sign of its weight, so each unit
at its kink has its own C (`alone`): the loss near such a point is a piecewise-linear function of
the rising units, and C its slope along one of them. A function that is lowest between two of them,
where a pair above would slide with both on, has no sides here: the choice is then undecided.

Arrays are lists of one (H_l, P) per hidden layer.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin.field.gates.sides import SLIDING
from flowlin.network.kinds import ReLUNetwork

Layers = list[Array]


def pairs(network: ReLUNetwork, codes: Layers) -> Layers:
    """Which they are, at these sides."""
    empty = jnp.zeros(codes[0].shape[1], bool)
    found = []
    for k, own in enumerate(codes):
        fed = network.biases[k] is not None or k == 0
        empty = jnp.zeros_like(empty) if fed else empty
        found.append(jnp.broadcast_to(empty, own.shape))
        empty = (empty | jnp.all(own <= SLIDING, axis=0)) & (network.slope == 0)
    return found


def push(weights: Any, unfed: Layers, rising: Layers) -> Layers:
    """See `DeepFlow.push`."""
    below, found = None, []
    for w, unfed_, up in zip(weights, unfed, rising, strict=False):
        own = jnp.zeros_like(up) if below is None else w @ below
        found.append(jnp.where(unfed_, own, 0.0))
        below = jnp.where(unfed_, jnp.maximum(found[-1], 0.0), up)
    return found


def alone(
    weights: Any, biases: Any, c: Layers, gates: Layers, error: Float[Array, "N_out P"]
) -> Layers:
    """C, of units in a layer that sends nothing for a sample as if each rose by itself.

    What a unit then feeds is the same for all samples but for its size.
    """
    found = list(c)
    for k, gate in enumerate(gates[:-1]):
        if any(b is not None for b in biases[k + 1 :]):
            continue
        sent = weights[k + 1]
        for w in weights[k + 2 :]:
            sent = w @ jnp.maximum(sent, 0.0)
        found[k] = jnp.where(jnp.all(gate == 0, axis=0), sent.T @ error, c[k])
    return found


def any_in_layer(pairs: Layers) -> Layers:
    """Whether any pair of the same layer and sample is one of these."""
    return [jnp.broadcast_to(jnp.any(own, axis=0), own.shape) for own in pairs]


def any_above(pairs: Layers) -> Layers:
    """Whether any pair of the same sample in a higher layer is one of these."""
    found, above = [], jnp.zeros(pairs[0].shape[1], bool)
    for own in reversed(pairs):
        found = [jnp.broadcast_to(above, own.shape), *found]
        above = above | jnp.any(own, axis=0)
    return found


def rank(pairs: Layers) -> Layers:
    """Of each of these pairs among those of the same layer and sample, from 0."""
    return [jnp.cumsum(own, axis=0) - 1 for own in pairs]
