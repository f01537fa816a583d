"""Gated deep linear networks on a graph."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from flowlin._tools.checks import WORDS, checked, instance, require_runnable
from flowlin._tools.codec import storable
from flowlin._tools.show import shown
from flowlin._tools.types import Product
from flowlin.network import graph_parts, summary
from flowlin.network.graph_forward import AbstractGraph, require_one
from flowlin.network.graph_initial import drawn
from flowlin.network.graph_parts import Columns, Edge, Variances
from flowlin.network.pathways import Pathway, PathwayStatistics, correlations, enumerated
from flowlin.tasks.task import Task


@checked(weights=None, biases=None, node_gates=None, edge_gates=None, inputs=None, outputs=None)
@shown(summary.graph)
@storable()
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
        weights: Any,
        biases: Any = None,
        bias_strength: ArrayLike = 1.0,
        *,
        node_gates: Any = None,
        edge_gates: Any = None,
        inputs: Any = None,
        outputs: Any = None,
    ):
        self.weights = graph_parts.matrices(weights)
        dtype = next(iter(self.weights.values())).dtype
        self.biases = graph_parts.offsets(biases, self.weights)
        self.bias_strength = jnp.asarray(bias_strength, dtype)
        sizes, (first, last) = graph_parts.widths(self.weights), graph_parts.ends(self.weights)
        self.node_gates = graph_parts.gates("node_gates", node_gates, sizes, dtype)
        self.edge_gates = graph_parts.gates("edge_gates", edge_gates, self.weights, dtype)
        named = [("node_gates", self.node_gates), ("edge_gates", self.edge_gates)]
        graph_parts.require_one_length(
            {f"{name}[{key!r}]": gate for name, found in named for key, gate in found.items()}
        )
        self.sources = graph_parts.columns("inputs", inputs, first, sizes, "x")
        self.sinks = graph_parts.columns("outputs", outputs, last, sizes, "y")

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
        node_gates: Any = None,
        edge_gates: Any = None,
        variance: Variances = 2e-4,
        bias: Any = False,
        bias_strength: float = 1.0,
        inputs: Any = None,
        outputs: Any = None,
        key: PRNGKeyArray,
    ) -> "GatedGraph":
        """Weights and biases i.i.d. normal.

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

        **Raises:** `ValueError` as for the class, for a negative variance, a width below 1, or a
        task of another shape.
        """
        weights, biases = drawn(task, nodes, edges, variance, bias, key)
        network = cls(
            weights, biases, bias_strength, node_gates=node_gates, edge_gates=edge_gates,
            inputs=inputs, outputs=outputs,
        )  # fmt: skip
        network.require_fit(task)
        return network

    def _through(self, h: Float[Array, "P N_from"], w: Array, product: Product) -> Array:
        """h W^T."""
        return product(h, w)

    def held(self, task: Task) -> int:
        """The widest node's."""
        del task
        return max(graph_parts.widths(self.weights).values())

    @property
    def pathways(self) -> tuple[Pathway, ...]:
        """All pathways from sources to sinks; with biases also from them, as source "bias".

        **Raises:** `ValueError` for more than 10,000.
        """
        require_one(self)
        return enumerated(self)

    @checked
    def pathway_statistics(self, task: Task) -> PathwayStatistics:
        r"""The correlations by pathways that the loss is made of.

        `.yx[p]` is $\langle g_p\, y x_p^T \rangle$ and `.x[j, p]` is
        $\langle g_j x_j x_p^T g_p \rangle$, where y are the columns of p's sink and x_p those of
        its source; averages weigh the samples as the task does. The flow of the squared error sees
        nothing else of the task:

        $$\tau \dot W_e = \sum_{p \ni e} W_{after\,e}^T \Big[\Sigma_{yx}(p) -
          \sum_{j \text{ ends as } p} W_j \Sigma_x(j, p)\Big] W_{before\,e}^T.$$

        **Raises:** `ValueError` for a task that does not fit, or more than 10,000 pathways.

        Source: Saxe, Sodhani and Lewallen (2022).
        """
        self.require_fit(task)
        return correlations(self, task)

    def _product(self, pathway: Pathway) -> Float[Array, "... N_sink N_source"]:
        """The product of the matrices along a pathway."""
        found: Any = None
        for edge in pathway.edges:
            w = matrix(self, edge)
            found = w if found is None else w @ found
        return found


def matrix(network: GatedGraph, edge: Edge) -> Array:
    """The matrix of an edge; that of the constant source is c b as a column."""
    if edge[0] == graph_parts.CONSTANT:
        return network.bias_strength[..., None, None] * network.biases[edge[1]][..., None]
    return network.weights[edge]


def _graph(name: str, value: Any) -> GatedGraph:
    """One graph, and no stack of them, of a precision that runs can have."""
    remedy = "make one by fl.GatedGraph.init(task, nodes=..., edges=..., key=key)"
    value = instance(GatedGraph, "an fl.GatedGraph", remedy)(name, value)
    require_one(value, name)
    for edge, w in value.weights.items():
        require_runnable(f"{name}.weights[{edge}]", w)
    return value


WORDS["graph"] = _graph
