"""Initial weights of a gated graph: i.i.d. normal."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from flowlin._tools.checks import not_negative, refuse, require_memory, shown, whole
from flowlin.network import graph_parts
from flowlin.network.graph_parts import EDGES, Edge, Variances
from flowlin.tasks.task import Task


def drawn(
    task: Task,
    nodes: Any,
    edges: Any,
    variance: Variances,
    bias: Any,
    key: PRNGKeyArray,
) -> tuple[dict[Edge, Array], dict[str, Array]]:
    """Weights and biases i.i.d. normal; arguments as in `GatedGraph.init`."""
    sizes = _sizes(nodes)
    pairs = _edges(edges, sizes)
    biased = _biased(bias, pairs, sizes)
    variances = _variances(variance, pairs)
    size = sum(sizes[a] * sizes[b] for a, b in pairs)
    require_memory("nodes", sizes, 2 * size * task.x.dtype.itemsize, "Take fewer units")
    weights, biases, dtype = {}, {}, task.x.dtype
    for edge, edge_key in zip(pairs, jax.random.split(key, len(pairs)), strict=True):
        w_key, b_key = jax.random.split(edge_key)
        scale, shape = jnp.sqrt(jnp.asarray(variances[edge], dtype)), (sizes[edge[1]],)
        weights[edge] = scale * jax.random.normal(w_key, (*shape, sizes[edge[0]]), dtype)
        if edge[1] in biased and edge[1] not in biases:
            biases[edge[1]] = scale * jax.random.normal(b_key, shape, dtype)
    return weights, biases


def _sizes(nodes: Any) -> dict[str, int]:
    """The width of every node."""
    given = graph_parts.mapping("nodes", nodes, "a width by each node")
    odd = [node for node in given if not isinstance(node, str) or not node]
    if odd or not given:
        wanted = "a dictionary of widths by the nodes' names"
        raise refuse("nodes", wanted, odd[0] if odd else nodes)
    return {node: whole(1)(f"nodes[{node!r}]", size) for node, size in given.items()}


def _edges(edges: Any, sizes: Mapping[str, int]) -> list[Edge]:
    """Pairs of known nodes, each once, that go in no circle and leave no node alone."""
    if isinstance(edges, (str, bytes)) or not hasattr(edges, "__iter__"):
        raise refuse("edges", f"a list of {EDGES}", edges)
    pairs = [graph_parts.edge(f"edges[{k}]", pair) for k, pair in enumerate(edges)]
    if not pairs:
        raise ValueError(f"`edges` is empty; give {EDGES}.")
    for k, pair in enumerate(pairs):
        unknown = [node for node in pair if node not in sizes]
        if unknown:
            raise ValueError(
                f"`edges[{k}]` = {pair} has node {unknown[0]!r}, which is none of `nodes`, "
                f"{list(sizes)}."
            )
        if pair in pairs[:k]:
            raise ValueError(f"`edges[{k}]` = {pair} is there twice.")
    graph_parts.ordered(tuple(pairs))
    alone = [node for node in sizes if not any(node in pair for pair in pairs)]
    if alone:
        raise ValueError(
            f"`nodes` has {alone[0]!r}, which no edge leads to or from: there is no path through "
            "it. Leave it out, or give it edges."
        )
    return pairs


def _biased(bias: Any, pairs: list[Edge], sizes: Mapping[str, int]) -> set[str]:
    """The nodes that have a bias."""
    if isinstance(bias, (bool, np.bool_)):
        first, last = graph_parts.ends(pairs)
        return set(sizes) - set(first) - set(last) if bias else set()
    if isinstance(bias, (str, bytes)) or not hasattr(bias, "__iter__"):
        raise refuse("bias", "True, False or a list of nodes", bias)
    for node in bias:
        if not any(node == target for _, target in pairs):
            raise ValueError(
                f"`bias` names {shown(node)}, which no edge goes into; name nodes that have edges "
                "into them."
            )
    return set(bias)


def _variances(variance: Variances, pairs: list[Edge]) -> dict[Edge, Any]:
    """The variance of every edge."""
    if not isinstance(variance, Mapping):
        return dict.fromkeys(pairs, not_negative("variance", variance))
    if set(variance) != set(pairs):
        raise ValueError(
            f"`variance` must be a number, or have one by each edge, {pairs}; got {list(variance)}."
        )
    return {edge: not_negative(f"variance[{edge}]", variance[edge]) for edge in pairs}
