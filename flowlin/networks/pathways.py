"""Pathways through a gated graph, from a source along edges to a sink, and their correlations."""

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from flowlin._tools.arrays import sample_correlation
from flowlin._tools.printing import Summary, concrete_array, print_by
from flowlin.networks.graph_parts import CONSTANT_SOURCE, Columns, Edge, topological_order
from flowlin.tasks.task import Task, weights_by_sample

MOST_PATHWAYS = 10_000  # of pathways that are listed


@runtime_checkable
class GraphLike(Protocol):
    """A graph, as far as its pathways and its print know it; see `AbstractGraph`."""

    weights: dict[Edge, Array]
    biases: dict[str, Array]
    bias_strength: Array
    node_gates: dict[str, Array]
    edge_gates: dict[Edge, Array]
    sources: Columns
    sinks: Columns

    @property
    def order(self) -> tuple[str, ...]:
        """Return the nodes, in topological order."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """Return the floating-point precision of the parameters."""
        ...

    @property
    def gated_samples(self) -> int | None:
        """Return the number of samples that the gates are for."""
        ...

    def gate(self, name: str | Edge) -> Array | None:
        """Return the gate of a node or an edge."""
        ...


def _pathway_summary(pathway: "Pathway") -> Summary:
    """Summarise a pathway: its nodes, and where it is open."""
    rows = [("nodes", " -> ".join(pathway.nodes))]
    gate = concrete_array(pathway.gate, 1)
    if gate is not None:
        on = np.count_nonzero(gate)
        of = "always open" if on == len(gate) else f"open for {on:,} of {len(gate):,} samples"
        rows.append(("gate", of))
    return Summary("Pathway", rows, inline=True)


@print_by(_pathway_summary)
class Pathway(eqx.Module):
    """A way through a gated graph. Two with the same edges are equal, whatever their gates.

    - `edges`: pairs of nodes, in order; that of a bias begins with ("bias", node).
    - `gate`: (P,), the product of the gates along it, of its nodes and edges, source and sink
      included; (1,) in a graph without gates.
    """

    edges: tuple[Edge, ...] = eqx.field(static=True)
    gate: Float[Array, " P"]

    @property
    def source(self) -> str:
        """The node where it begins; "bias" is the constant one."""
        return self.edges[0][0]

    @property
    def target(self) -> str:
        """The sink where it ends."""
        return self.edges[-1][1]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its nodes, from source to sink."""
        return (self.source, *(target for _, target in self.edges))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pathway) and self.edges == other.edges

    def __hash__(self) -> int:
        return hash(self.edges)


def edges_with_constant(network: GraphLike) -> tuple[Edge, ...]:
    """Return a graph's edges, with those from the constant source to nodes with a bias."""
    return (*network.weights, *((CONSTANT_SOURCE, node) for node in network.biases))


def pathway_sources(network: GraphLike) -> tuple[str, ...]:
    """Return the nodes where pathways begin."""
    sources = tuple(node for node, _, _ in network.sources)
    return (*sources, CONSTANT_SOURCE) if network.biases else sources


def count_pathways(network: GraphLike) -> int:
    """Count the pathways of a graph, without listing them."""
    edges = edges_with_constant(network)
    ways = {node: 1 for node, _, _ in network.sinks}
    for node in reversed(topological_order(edges)):
        out = [target for source, target in edges if source == node]
        if out:
            ways[node] = sum(ways[target] for target in out)
    return sum(ways[node] for node in pathway_sources(network))


def all_pathways(network: GraphLike) -> tuple[Pathway, ...]:
    """List all pathways of a graph, source by source.

    **Raises:** `ValueError` for more than are listed.
    """
    number = count_pathways(network)
    if number > MOST_PATHWAYS:
        raise ValueError(
            f"`network` has {number:,} pathways, and no more than {MOST_PATHWAYS:,} are listed; "
            "its flow does not need the list."
        )
    edges = edges_with_constant(network)
    return tuple(
        Pathway(way, gate_along(network, way))
        for start in pathway_sources(network)
        for way in _paths_to_sinks(start, edges)
    )


def _paths_to_sinks(node: str, edges: tuple[Edge, ...]) -> Iterator[tuple[Edge, ...]]:
    """Walk through all ways from a node to sinks."""
    out = [edge for edge in edges if edge[0] == node]
    if not out:
        yield ()
    for edge in out:
        for rest in _paths_to_sinks(edge[1], edges):
            yield (edge, *rest)


def gate_along(network: GraphLike, way: tuple[Edge, ...]) -> Array:
    """Multiply the gates along a way, (P,); (1,) in a graph without any."""
    names = [way[0][0], *(name for edge in way for name in (edge, edge[1]))]
    found = jnp.ones(network.gated_samples or 1, network.dtype)
    for name in names:
        gate = network.gate(name)
        found = found if gate is None else found * gate
    return found


def source_columns(network: GraphLike, source: str, x: Array) -> Array:
    """Return the columns of x (P, N_in) that a source takes; ones (P, 1) for the constant one."""
    if source == CONSTANT_SOURCE:
        return jnp.ones((len(x), 1), x.dtype)
    start, stop = columns_of_node(network.sources, source)
    return x[:, start:stop]


def columns_of_node(columns: Columns, node: str) -> tuple[int, int]:
    """Return the first column of a source or a sink, and the one after its last."""
    return next((start, stop) for name, start, stop in columns if name == node)


class PathwayStatistics(eqx.Module):
    r"""Correlations of a task by pathways: all that a gated graph's squared error sees of it.

    - `pathways`: of the graph.
    - `yx`: by pathway p, $\langle g_p\, y x_p^T \rangle$, (N_sink, N_source).
    - `x`: by two of them, `x[j, p]`, $\langle g_j x_j x_p^T g_p \rangle$, (N_source(j),
      N_source(p)).
    """

    pathways: tuple[Pathway, ...]
    blocks: tuple[Float[Array, "_ _"], ...]
    gram: Float[Array, "N N"]

    @property
    def yx(self) -> dict[Pathway, Array]:
        """Correlations of outputs and inputs by pathway."""
        return dict(zip(self.pathways, self.blocks, strict=True))

    @property
    def x(self) -> "PathwayBlocks":
        """Correlations of inputs by two pathways."""
        widths = [block.shape[-1] for block in self.blocks]
        stops = np.cumsum(widths).tolist()
        places = [slice(b - n, b) for n, b in zip(widths, stops, strict=True)]
        return PathwayBlocks(dict(zip(self.pathways, places, strict=True)), self.gram)

    @property
    def commutator(self) -> Float[Array, ""]:
        r"""The distance of the correlations from sharing singular vectors at each end.

        The largest $\|[A, B]\|_F / (\|A\| \|B\|)$ of any two of the $\Sigma_{yx}^T \Sigma_{yx}$ and
        $\Sigma_x$ of pathways from one source, and of the $\Sigma_{yx} \Sigma_{yx}^T$ of pathways
        into one sink. A race of modes is exact only where it is zero up to rounding.
        """
        ends: dict[tuple[str, bool], list[Array]] = {}
        for p, s in self.yx.items():
            ends.setdefault((p.source, True), []).extend([s.T @ s, self.x[p, p]])
            ends.setdefault((p.target, False), []).append(s @ s.T)
        zero = jnp.zeros((), self.gram.dtype)
        return jnp.max(jnp.stack([zero, *map(_largest_commutator, ends.values())]))


class PathwayBlocks(Mapping):
    """Blocks of a symmetric matrix by pairs of pathways, cut out when they are asked for."""

    def __init__(self, places: dict[Pathway, slice], gram: Array):
        self.places, self.gram = places, gram

    def __getitem__(self, pair: tuple[Pathway, Pathway]) -> Array:
        rows, columns = (self.places[p] for p in pair)
        sizes = rows.stop - rows.start, columns.stop - columns.start
        # One program for all blocks of a shape; a slice would be one for every place.
        return lax.dynamic_slice(self.gram, (rows.start, columns.start), sizes)

    def __iter__(self) -> Iterator[tuple[Pathway, Pathway]]:
        return ((j, p) for j in self.places for p in self.places)

    def __len__(self) -> int:
        return len(self.places) ** 2


def _largest_commutator(matrices: list[Array]) -> Array:
    """Return the largest commutator of any two symmetric matrices, over their norms."""
    found = jnp.stack(matrices)
    sizes = jnp.linalg.norm(found, axis=(1, 2))

    def with_all(one: Array) -> Array:
        products = jnp.einsum("ij,mjk->mik", one, found)
        return jnp.linalg.norm(products - jnp.swapaxes(products, 1, 2), axis=(1, 2))

    sizes = sizes[:, None] * sizes[None]
    off = jnp.stack([with_all(one) for one in found])
    return jnp.max(jnp.where(sizes > 0, off / jnp.where(sizes > 0, sizes, 1.0), 0.0))


@jax.jit
def pathway_correlations(network: GraphLike, task: Task) -> PathwayStatistics:
    """Compute the statistics of a task by the pathways of a graph."""
    pathways = all_pathways(network)
    x = jnp.asarray(task.x, network.dtype)
    y = jnp.asarray(task.y, network.dtype)
    rows = [p.gate[:, None] * source_columns(network, p.source, x) for p in pathways]
    ends = [columns_of_node(network.sinks, p.target) for p in pathways]
    weights = weights_by_sample(task, "pathways' statistics are")
    blocks = [
        sample_correlation(y[:, start:stop], row, weights)
        for row, (start, stop) in zip(rows, ends, strict=True)
    ]
    stacked = jnp.concatenate(rows, axis=1)
    return PathwayStatistics(pathways, tuple(blocks), sample_correlation(stacked, stacked, weights))
