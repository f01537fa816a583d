"""Gated deep linear networks on a graph."""

import abc
from collections.abc import Mapping, Sequence
from typing import TypeVar

import equinox as eqx
import jax.numpy as jnp
from equinox import AbstractVar
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from flowlin._tools.arguments import (
    ARGUMENT_HINTS,
    CHECKS_BY_NAME,
    argument_error,
    checked,
    instance_of,
    real_array,
    require_float_array,
    require_single,
)
from flowlin._tools.arrays import Product, Real, replace_fields
from flowlin._tools.files import saveable
from flowlin._tools.printing import print_by
from flowlin.networks import graph_parts
from flowlin.networks.base import AbstractOwnModel, ModelFacts
from flowlin.networks.base import apply_weights as plain
from flowlin.networks.graph_parts import Columns, Edge, Variances, graph_owners
from flowlin.networks.graph_summary import graph_summary
from flowlin.networks.initial import draw_normal_graph
from flowlin.networks.pathways import (
    Pathway,
    PathwayStatistics,
    all_pathways,
    edges_with_constant,
    pathway_correlations,
)
from flowlin.tasks.task import Task, labels_remedy

# ---- What flows along the edges of an acyclic graph: the forward pass in the order of the nodes.

G = TypeVar("G", bound="AbstractGraph")


class AbstractGraph(AbstractOwnModel):
    r"""Network on an acyclic graph, with gates on nodes and edges.

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
    def _apply_edge(self, h: Float[Array, "P N_from"], w: Array, product: Product) -> Array:
        """Apply an edge's weights to an activation, by a `product` of h and W."""

    @abc.abstractmethod
    def _pathway_product(self, pathway: Pathway) -> Array:
        """Return the product of the weights along a pathway of its own."""

    @checked(pathway=None)
    def product(self, pathway: Pathway) -> Array:
        """Return the product of weights along a pathway, (N_sink, N_source); of a stack one each.

        In the runs of a race, whose weights are mode strengths, (K,).

        **Raises:** `ValueError` for a pathway that is not one of its own.
        """
        wanted = "one of `network.pathways`"
        pathway = instance_of(Pathway, wanted)("pathway", pathway)
        if not set(pathway.edges) <= set(edges_with_constant(self)):
            wrong = f"`pathway` must be {wanted}, got {pathway}, which takes other edges."
            raise ValueError(wrong)
        return self._pathway_product(pathway)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Its edges, (from, to)."""
        return tuple(self.weights)

    @property
    def order(self) -> tuple[str, ...]:
        """Its nodes, each after all those that it takes from."""
        return graph_parts.topological_order(self.edges)

    @property
    def gated_samples(self) -> int | None:
        """The number of samples that its gates are for; None without gates."""
        gates = self.sample_gates
        return gates[0].shape[-1] if gates else None

    def gate(self, name: str | Edge) -> Array | None:
        """Return the gate (P,) of a node or an edge; None where it has none and is one."""
        found = self.node_gates if isinstance(name, str) else self.edge_gates
        return found.get(name)  # pyright: ignore

    @checked(x=real_array)
    def activations(self, x: Float[Array, "P N_in"]) -> dict[str, Float[Array, "P N"]]:
        """Return the activations h of all nodes, by name, (P, width) each.

        **Raises:** `ValueError` for other inputs, or another number of samples than the gates'.
        """
        self._require_inputs(x, 2)
        return self._node_activations(x, plain)

    def _node_activations(self, x: Array, product: Product) -> dict[str, Array]:
        """Compute the activations of all nodes, with h W^T by a `product` of h and W."""
        self._require_rows(x)
        found = {node: self._apply_gate(node, x[:, a:b]) for node, a, b in self.sources}
        for node in self.order:
            if node not in found:
                found[node] = self._apply_gate(node, self._sum_inputs(node, found, product))
        return found

    def _sum_inputs(self, node: str, found: Mapping[str, Array], product: Product) -> Array:
        """Add up what comes along the edges into a node, and its bias."""
        total: Real = 0.0
        for edge, w in self.weights.items():
            if edge[1] == node:
                total = total + self._apply_gate(edge, self._apply_edge(found[edge[0]], w, product))
        if node not in self.biases:
            return jnp.asarray(total)
        return total + (self.bias_strength * self.biases[node])[None]

    def _apply_gate(self, name: str | Edge, h: Array) -> Array:
        """Multiply an activation by the gate of a node or an edge, if it has one."""
        gate = self.gate(name)
        return h if gate is None else gate[:, None] * h

    def _require_rows(self, x: Array) -> None:
        """Raise `ValueError` where the gates are for another number of samples."""
        rows = self.gated_samples
        if rows is not None and rows != x.shape[0]:
            raise ValueError(
                f"the gates are for {rows} samples and the inputs have {x.shape[0]}; per-sample "
                "gates go with the samples they were made for. For one sample call "
                "`network(x, gates)` with that sample's gates."
            )

    def _require_inputs(self, x: Array, axes: int) -> None:
        """Raise `ValueError` unless it takes these inputs: many (P, N_in), or one (N_in,)."""
        require_single_graph(self)
        takes = self.sources[-1][-1]
        shape = jnp.shape(x)  # of a number, too
        if len(shape) != axes or shape[-1] != takes:
            wanted = f"({takes},), one sample" if axes == 1 else f"(P, {takes}), one row per sample"
            raise ValueError(f"`x` must have shape {wanted}, got {shape}.")

    def smooth_outputs(
        self, x: Float[Array, "P N_in"], width: ArrayLike | None, product: Product
    ) -> Float[Array, "P N_out"]:
        """Compute the outputs, h W^T by a `product` of h and W; there are no kinks to round off."""
        del width
        self._require_inputs(x, 2)
        found = self._node_activations(x, product)
        return jnp.concatenate([found[node] for node, _, _ in self.sinks], axis=1)

    @checked(x=real_array, gates=None)
    def __call__(self, x: Float[Array, " N_in"], gates: object = None) -> Float[Array, " N_out"]:
        """Compute the output of one sample.

        `gates`, a number by the name of each node and edge that has a gate, as in
        `{"a": 1.0, ("a", "out"): 0.0}`, replaces the network's own and is required where it has
        any.
        """
        self._require_inputs(x, 1)
        if gates is None:
            return self.outputs(x[None])[0]
        return self._with_sample_values(gates).outputs(x[None])[0]

    def _with_sample_values(self: G, given: object) -> G:
        """Return the same network with one sample's gates."""
        given = graph_parts.as_dictionary("gates", given, "a number by the name of each gate")
        names = [*self.node_gates, *self.edge_gates]
        if set(given) != set(names):
            raise ValueError(
                f"`gates` must have one number for each of {names}, got {list(given)}."
            )
        one = {name: jnp.asarray(value, self.dtype) for name, value in given.items()}
        odd = [name for name, value in one.items() if value.ndim]
        if odd:
            raise argument_error(
                f"gates[{odd[0]!r}]", "a number, that of one sample", given[odd[0]]
            )
        return self.with_sample_gates(tuple(one[name][None] for name in names))

    @property
    def facts(self) -> ModelFacts:
        """Units by nodes; an edge from a source to a sink, and a sink's bias, own themselves."""
        name = type(self).__name__
        owners = graph_owners(self.weights, self.biases, self.sources, self.sinks)
        return ModelFacts(
            name=name, kind=name, hidden=(), owners=tuple(owners), layers=None, kinks="none",
            kinks_because="the network has no kinks",
            numbers_per_sample=max(max(w.shape) for w in self.weights.values()),
        )  # fmt: skip

    @property
    def sample_gates(self) -> tuple[Array, ...]:
        """The gates of nodes, then those of edges, (P,) each."""
        return (*self.node_gates.values(), *self.edge_gates.values())

    def with_sample_gates(self: G, gates: tuple[Array | None, ...]) -> G:
        """Return the same network with these in place of `sample_gates`."""
        count = len(self.node_gates)
        nodes = dict(zip(self.node_gates, gates[:count], strict=True))
        edges = dict(zip(self.edge_gates, gates[count:], strict=True))
        return replace_fields(self, node_gates=nodes, edge_gates=edges)


def require_graph_fit(network: AbstractGraph, task: Task) -> None:
    """Raise `ValueError` unless a graph takes the task's inputs and samples, and gives its outputs.

    Gates for another number of samples than the task's raise here, before a run.
    """
    require_single_graph(network)
    takes, gives = network.sources[-1][-1], network.sinks[-1][-1]
    if (takes, gives) != (task.inputs, task.outputs):
        raise ValueError(
            f"`network` maps {takes} inputs to {gives} outputs, but `task` {task.name!r} has "
            f"{task.inputs} inputs and {task.outputs} outputs.{labels_remedy(task, gives)}"
        )
    network._require_rows(task.x)


def require_single_graph(network: AbstractGraph, name: str = "network") -> None:
    """Raise `ValueError` for a stack of networks, or for one without arrays."""
    w = next(iter(network.weights.values()), None)
    if getattr(w, "ndim", None) is None:
        raise ValueError(f"`{name}` holds no arrays; pass one whose weights and biases are there.")
    require_single(name, network.bias_strength.ndim, 0, "networks")


for _word in ("nodes", "edges"):
    ARGUMENT_HINTS[f"GatedGraph.{_word}"] = (
        "weights",
        "nodes and edges are those that `weights` has. fl.GatedGraph.init(task, nodes, edges, "
        "key=key) draws weights for them.",
    )


@checked(weights=None, biases=None, node_gates=None, edge_gates=None, inputs=None, outputs=None)
@print_by(graph_summary)
@saveable()
class GatedGraph(AbstractGraph):
    r"""Gated deep linear network on a graph (Saxe, Sodhani and Lewallen 2022).

    Every edge carries a matrix, and nodes and edges have given gates that depend on the sample:

    $$h_v = g_v \Big(\sum_{e \to v} g_e W_e h_{s(e)} + c\, b_v\Big).$$

    **Arguments:**

    - `weights`: by edge (from, to) a matrix (N_to, N_from); together an acyclic graph.
    - `biases`: by node an array (N,), of nodes that edges go into; none by default.
    - `bias_strength`: the constant c that multiplies every bias.
    - `node_gates`, `edge_gates`: by node or edge an array (P,), one number per sample of the task
      that it is trained on. A gate that is not there is one.
    - `inputs`: by source, a node that no edge goes into, the slice of the columns of x that it
      takes, as in `{"left": slice(0, 4), "right": slice(4, 8)}`; one source takes all by default.
    - `outputs`: by sink, a node that no edge goes out of, likewise for y.

    Weights and biases are trained and nothing else; every array is a leaf, so graphs stack and
    vmap.

    **Raises:** `ValueError` that names a cycle, a node that is not known, gates of several lengths,
    shapes that do not meet, columns that are left out or taken twice, or NaN.
    """

    weights: dict[Edge, Array]
    biases: dict[str, Array]
    bias_strength: Array
    node_gates: dict[str, Array]
    edge_gates: dict[Edge, Array]
    sources: Columns = eqx.field(static=True)
    sinks: Columns = eqx.field(static=True)

    def __init__(
        self,
        weights: object,
        biases: object = None,
        bias_strength: ArrayLike = 1.0,
        *,
        node_gates: object = None,
        edge_gates: object = None,
        inputs: object = None,
        outputs: object = None,
    ):
        self.weights = graph_parts.edge_matrices(weights)
        dtype = next(iter(self.weights.values())).dtype
        self.biases = graph_parts.node_biases(biases, self.weights)
        self.bias_strength = jnp.asarray(bias_strength, dtype)
        sizes, (first, last) = (
            graph_parts.node_widths(self.weights),
            graph_parts.sources_and_sinks(self.weights),
        )
        self.node_gates = graph_parts.gates_by_name("node_gates", node_gates, sizes, dtype)
        self.edge_gates = graph_parts.gates_by_name("edge_gates", edge_gates, self.weights, dtype)
        named = [("node_gates", self.node_gates), ("edge_gates", self.edge_gates)]
        graph_parts.require_one_length(
            {f"{name}[{key!r}]": gate for name, found in named for key, gate in found.items()}
        )
        self.sources = graph_parts.assign_columns("inputs", inputs, first, sizes, "x")
        self.sinks = graph_parts.assign_columns("outputs", outputs, last, sizes, "y")

    @classmethod
    @checked(
        nodes=None, edges=None, node_gates=None, edge_gates=None, variance=None, bias=None,
        inputs=None, outputs=None,
    )  # fmt: skip
    def init(
        cls,
        task: Task,
        nodes: Mapping[str, int],
        edges: Sequence[Edge],
        *,
        node_gates: object = None,
        edge_gates: object = None,
        variance: Variances = 2e-4,
        bias: object = False,
        bias_strength: float = 1.0,
        inputs: object = None,
        outputs: object = None,
        key: PRNGKeyArray,
    ) -> "GatedGraph":
        """Return a graph whose weights and biases are drawn i.i.d. normal.

        The same key gives a chain, its edges in order, and a `LinearNetwork` of its shape the same
        parameters.

        **Arguments:**

        - `task`: gives the numbers of inputs and outputs, and the precision.
        - `nodes`: the width of every node, sources and sinks included.
        - `edges`: pairs of nodes, (from, to).
        - `node_gates`, `edge_gates`, `inputs`, `outputs`: as for the class.
        - `variance`: of every weight and bias, or one by each edge; a bias has that of the first
          edge into its node.
        - `bias`: True for biases on all nodes between sources and sinks, or a list of nodes.
        - `bias_strength`: the constant c that multiplies every bias.
        - `key`: of `jax.random`.

        **Raises:** `ValueError` as for the class, for a variance that is negative or so small that
        the task's precision holds none of it, a width below 1, or a task of another shape.
        """
        weights, biases = draw_normal_graph(task, nodes, edges, variance, bias, key)
        network = cls(
            weights, biases, bias_strength, node_gates=node_gates, edge_gates=edge_gates,
            inputs=inputs, outputs=outputs,
        )  # fmt: skip
        require_graph_fit(network, task)
        return network

    def _apply_edge(self, h: Float[Array, "P N_from"], w: Array, product: Product) -> Array:
        """Return h W^T."""
        return product(h, w)

    @property
    def pathways(self) -> tuple[Pathway, ...]:
        """All pathways from sources to sinks; with biases also from them, as source "bias".

        **Raises:** `ValueError` for more than 10,000.
        """
        require_single_graph(self)
        return all_pathways(self)

    @checked
    def pathway_statistics(self, task: Task) -> PathwayStatistics:
        r"""Return the correlations by pathways that the loss is made of.

        `.yx[p]` is $\langle g_p\, y x_p^T \rangle$ and `.x[j, p]` is
        $\langle g_j x_j x_p^T g_p \rangle$, where y are the columns of p's sink and x_p those of
        its source; averages weigh the samples as the task does. The flow of the squared error sees
        nothing else of the task:

        $$\tau \dot W_e = \sum_{p \ni e} W_{after\,e}^T \Big[\Sigma_{yx}(p) -
          \sum_{j \text{ ends as } p} W_j \Sigma_x(j, p)\Big] W_{before\,e}^T.$$

        **Raises:** `ValueError` for a task that does not fit, or more than 10,000 pathways.

        Source: Saxe, Sodhani and Lewallen (2022).
        """
        require_graph_fit(self, task)
        return pathway_correlations(self, task)

    def _pathway_product(self, pathway: Pathway) -> Float[Array, "... N_sink N_source"]:
        """Return the product of the matrices along a pathway."""
        found: Array | None = None
        for edge in pathway.edges:
            w = edge_matrix(self, edge)
            found = w if found is None else w @ found
        assert found is not None
        return found


def edge_matrix(network: GatedGraph, edge: Edge) -> Array:
    """Return the matrix of an edge; that of the constant source is c b as a column."""
    if edge[0] == graph_parts.CONSTANT_SOURCE:
        return network.bias_strength[..., None, None] * network.biases[edge[1]][..., None]
    return network.weights[edge]


def _single_graph(name: str, value: object) -> GatedGraph:
    """Check for one graph, and no stack of them, of a precision that runs can have."""
    remedy = "make one by fl.GatedGraph.init(task, nodes=..., edges=..., key=key)"
    value = instance_of(GatedGraph, "an fl.GatedGraph", remedy)(name, value)
    require_single_graph(value, name)
    for edge, w in value.weights.items():
        require_float_array(f"{name}.weights[{edge}]", w)
    return value


CHECKS_BY_NAME["graph"] = _single_graph


# ---- Gated graphs whose edges carry mode strengths instead of matrices.


@print_by(graph_summary)
@saveable()
class ModeGraph(AbstractGraph):
    r"""A gated graph of K modes that do not meet: an edge multiplies each by a strength of its own.

    What the race of `theory.race` runs on, $h_v = g_v \sum_{e \to v} g_e B_e h_{s(e)}$ with
    B_e (K,), and what its runs hand out. Every source has K columns of x, every sink K of y.

    - `weights`: by edge, the strengths B_e (K,); trained.
    - `biases`, `bias_strength`: none, and one.
    - `node_gates`, `edge_gates`: those of the `GatedGraph`.
    """

    weights: dict[Edge, Array]
    biases: dict[str, Array]
    bias_strength: Array
    node_gates: dict[str, Array]
    edge_gates: dict[Edge, Array]
    sources: Columns = eqx.field(static=True)
    sinks: Columns = eqx.field(static=True)

    def _apply_edge(self, h: Float[Array, "P K"], w: Array, product: Product) -> Array:
        """Return B h, mode by mode."""
        del product
        return h * w[None]

    def _pathway_product(self, pathway: Pathway) -> Float[Array, "... K"]:
        """Return the product of the strengths along a pathway, mode by mode."""
        found: Real = 1.0
        for edge in pathway.edges:
            found = found * self.weights[edge]
        return jnp.asarray(found)
