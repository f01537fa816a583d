"""A ReLU network at given gates as a gated graph of groups of units."""

import jax.numpy as jnp
from jaxtyping import Array

from flowlin.network.graph import GatedGraph
from flowlin.network.kinds import ReLUNetwork

Groups = tuple[tuple[tuple[int, ...], ...], ...]


def graph_of(network: ReLUNetwork, gates: tuple[Array, ...], groups: Groups) -> GatedGraph:
    """The graph whose nodes are the groups of every hidden layer, "layer.group", and "in", "out".

    `gates` (P, H) per hidden layer; a group's are those of its first unit. Every group has an
    edge from each node of the layer below and to each of the layer above, with a block of the
    layer's weights.
    """
    hidden = [[(f"{layer}.{k}", units) for k, units in enumerate(own)]
              for layer, own in enumerate(groups)]  # fmt: skip
    every = slice(None)
    layers = [[("in", every)], *hidden, [("out", every)]]
    weights, biases, node_gates = {}, {}, {}
    for layer, w in enumerate(network.weights):
        b = network.biases[layer]
        for target, rows in layers[layer + 1]:
            rows = rows if rows is every else jnp.asarray(rows)
            if b is not None:
                biases[target] = b[rows]
            for source, columns in layers[layer]:
                columns = columns if columns is every else jnp.asarray(columns)
                weights[source, target] = w[rows][:, columns]
    for own, gate in zip(hidden, gates, strict=True):
        node_gates |= {name: gate[:, units[0]] for name, units in own}
    return GatedGraph(
        weights=weights, biases=biases, bias_strength=network.bias_strength, node_gates=node_gates
    )
