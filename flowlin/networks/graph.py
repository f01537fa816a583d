"""What flows along the edges of an acyclic graph: the forward pass in the order of the nodes."""

import abc
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from equinox import AbstractVar
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.checks import array, checked, instance, refuse, require_single
from flowlin._tools.copies import copied
from flowlin._tools.types import Parameters, Product
from flowlin.network import graph_parts
from flowlin.network.forward_pass import product as plain
from flowlin.network.graph_parts import Columns, Edge
from flowlin.network.own import AbstractOwn
from flowlin.network.pathways import Pathway, edges_of
from flowlin.tasks.task import Task

G = TypeVar("G", bound="AbstractGraph")


class AbstractGraph(AbstractOwn):
    r"""What flows along the edges of an acyclic graph, with gates on nodes and edges.

    $h_v = g_v (\sum_{e \to v} g_e W_e h_{s(e)} + c\, b_v)$; a source has columns of x in the place
    of the bracket, and the sinks' h are the columns of y. Dictionaries are in the order of their
    names, as JAX keeps them.
    """

    weights: AbstractVar[dict[Edge, Array]]
    biases: AbstractVar[dict[str, Array]]
    bias_strength: AbstractVar[Array]
    node_gates: AbstractVar[dict[str, Array]]
    edge_gates: AbstractVar[dict[Edge, Array]]
    sources: AbstractVar[Columns]
    sinks: AbstractVar[Columns]

    @abc.abstractmethod
    def _through(self, h: Float[Array, "P N_from"], w: Array, product: Product) -> Array:
        """What an edge with these weights makes of an activation, by a `product` of h and W."""

    @abc.abstractmethod
    def _product(self, pathway: Pathway) -> Array:
        """The product of the weights along a pathway of its own."""

    @checked(pathway=None)
    def product(self, pathway: Pathway) -> Array:
        """The product of the weights along a pathway, (N_sink, N_source); of a stack one each.

        In the runs of a race, whose weights are mode strengths, (K,).

        **Raises:** `ValueError` for a pathway that is not one of its own.
        """
        wanted = "one of `network.pathways`"
        pathway = instance(Pathway, wanted)("pathway", pathway)
        if not set(pathway.edges) <= set(edges_of(self)):
            wrong = f"`pathway` must be {wanted}, got {pathway}, which takes other edges."
            raise ValueError(wrong)
        return self._product(pathway)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Its edges, (from, to)."""
        return tuple(self.weights)

    @property
    def order(self) -> tuple[str, ...]:
        """Its nodes, each after all those that it takes from."""
        return graph_parts.ordered(self.edges)

    @property
    def gated_samples(self) -> int | None:
        """The number of samples that its gates are for; None without gates."""
        gates = self.sample_gates
        return gates[0].shape[-1] if gates else None

    def gate(self, name: str | Edge) -> Array | None:
        """The gate (P,) of a node or an edge; None where it has none and is one."""
        found = self.node_gates if isinstance(name, str) else self.edge_gates
        return found.get(name)  # pyright: ignore

    @checked(x=array)
    def activations(self, x: Float[Array, "P N_in"]) -> dict[str, Float[Array, "P N"]]:
        """Activations h of all nodes.

        **Raises:** `ValueError` for other inputs, or another number of samples than the gates'.
        """
        self._require_inputs(x, 2)
        return self._activations(x, plain)

    def _activations(self, x: Array, product: Product) -> dict[str, Array]:
        """Activations, with h W^T by a `product` of h and W."""
        self._require_rows(x)
        found = {node: self._gated(node, x[:, a:b]) for node, a, b in self.sources}
        for node in self.order:
            if node not in found:
                found[node] = self._gated(node, self._into(node, found, product))
        return found

    def _into(self, node: str, found: Mapping[str, Array], product: Product) -> Array:
        """The bracket of a node that edges go into."""
        total: Any = 0.0
        for edge, w in self.weights.items():
            if edge[1] == node:
                total = total + self._gated(edge, self._through(found[edge[0]], w, product))
        return total + self.bias_strength * self.biases[node] if node in self.biases else total

    def _gated(self, name: str | Edge, h: Array) -> Array:
        gate = self.gate(name)
        return h if gate is None else gate[:, None] * h

    def _require_rows(self, x: Array) -> None:
        """Raise `ValueError` for gates of other samples than these."""
        rows = self.gated_samples
        if rows is not None and rows != x.shape[0]:
            raise ValueError(
                f"the gates are for {rows} samples and the inputs have {x.shape[0]}; per-sample "
                "gates go with the samples they were made for. For one sample call "
                "`network(x, gates)` with that sample's gates."
            )

    def _require_inputs(self, x: Array, axes: int) -> None:
        """Raise `ValueError` unless it takes these inputs: many (P, N_in), or one (N_in,)."""
        require_one(self)
        takes = self.sources[-1][-1]
        if x.ndim != axes or x.shape[-1] != takes:
            wanted = f"({takes},), one sample" if axes == 1 else f"(P, {takes}), one row per sample"
            raise ValueError(f"`x` must have shape {wanted}, got {x.shape}.")

    def rounded(
        self, x: Float[Array, "P N_in"], width: ArrayLike | None, product: Product
    ) -> Float[Array, "P N_out"]:
        """Outputs, with h W^T by a `product` of h and W; there are no kinks to round off."""
        del width
        found = self._activations(x, product)
        return jnp.concatenate([found[node] for node, _, _ in self.sinks], axis=1)

    @checked(x=array)
    def outputs(self, x: Float[Array, "P N_in"]) -> Float[Array, "P N_out"]:
        """Outputs for all samples at once, with the network's gates.

        **Raises:** `ValueError` for other inputs, or another number of samples than the gates'.
        """
        self._require_inputs(x, 2)
        return self.rounded(x, None, plain)

    @checked(x=array, gates=None)
    def __call__(self, x: Float[Array, " N_in"], gates: Any = None) -> Float[Array, " N_out"]:
        """Output of one sample.

        `gates`, a number by the name of each node and edge that has a gate, as in
        `{"a": 1.0, ("a", "out"): 0.0}`, replaces the network's own and is required where it has
        any.
        """
        self._require_inputs(x, 1)
        if gates is None:
            return self.outputs(x[None])[0]
        return self._of_sample(gates).outputs(x[None])[0]

    def _of_sample(self: G, given: Any) -> G:
        """The same network with one sample's gates."""
        given = graph_parts.mapping("gates", given, "a number by the name of each gate")
        names = [*self.node_gates, *self.edge_gates]
        if set(given) != set(names):
            raise ValueError(
                f"`gates` must have one number for each of {names}, got {list(given)}."
            )
        one = {name: jnp.asarray(value, self.dtype) for name, value in given.items()}
        odd = [name for name, value in one.items() if value.ndim]
        if odd:
            raise refuse(f"gates[{odd[0]!r}]", "a number, that of one sample", given[odd[0]])
        return self.with_sample_gates(tuple(one[name][None] for name in names))

    @property
    def dtype(self) -> Any:
        """Floating-point precision of the parameters."""
        return next(iter(self.weights.values())).dtype

    @property
    def hidden(self) -> tuple[int, ...]:
        """None that stand in layers."""
        return ()

    @property
    def sample_gates(self) -> tuple[Array, ...]:
        """The gates of nodes, then those of edges, (P,) each."""
        return (*self.node_gates.values(), *self.edge_gates.values())

    def with_sample_gates(self: G, gates: tuple[Array | None, ...]) -> G:
        """The same network with these in place of `sample_gates`."""
        count = len(self.node_gates)
        nodes = dict(zip(self.node_gates, gates[:count], strict=True))
        edges = dict(zip(self.edge_gates, gates[count:], strict=True))
        return copied(self, node_gates=nodes, edge_gates=edges)

    def require_fit(self, task: Task) -> None:
        """Raise `ValueError` unless it takes the task's inputs and samples, and gives its outputs.

        Gates of another number of samples than the task's are told here, before a run.
        """
        require_one(self)
        takes, gives = self.sources[-1][-1], self.sinks[-1][-1]
        if (takes, gives) != (task.inputs, task.outputs):
            raise ValueError(
                f"`network` maps {takes} inputs to {gives} outputs, but `task` {task.name!r} has "
                f"{task.inputs} inputs and {task.outputs} outputs."
            )
        self._require_rows(task.x)

    def time_constants(self, tau: Array) -> Parameters:
        """One for all arrays."""
        if tau.ndim:
            raise ValueError(
                f"`tau` must be one number for a {self.kind}, got shape {tau.shape}: a graph has "
                "edges instead of layers."
            )
        return jax.tree.map(lambda _: tau, self.parameters)


def require_one(network: AbstractGraph, name: str = "network") -> None:
    """Raise `ValueError` for a stack of networks, or one without arrays."""
    w = next(iter(network.weights.values()), None)
    if getattr(w, "ndim", None) is None:
        raise ValueError(f"`{name}` holds no arrays; pass one whose weights and biases are there.")
    require_single(name, network.bias_strength.ndim, 0, "networks")
