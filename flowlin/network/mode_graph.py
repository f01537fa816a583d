"""Gated graphs whose edges carry mode strengths instead of matrices."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from flowlin._tools.codec import storable
from flowlin._tools.show import shown
from flowlin._tools.types import Product
from flowlin.network import summary
from flowlin.network.graph_forward import AbstractGraph
from flowlin.network.graph_parts import Columns, Edge
from flowlin.network.pathways import Pathway
from flowlin.tasks.task import Task


@shown(summary.graph)
@storable()
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

    def _through(self, h: Float[Array, "P K"], w: Array, product: Product) -> Array:
        """B h, mode by mode."""
        del product
        return h * w

    def _product(self, pathway: Pathway) -> Float[Array, "... K"]:
        """The product of the strengths along a pathway, mode by mode."""
        found: Any = 1.0
        for edge in pathway.edges:
            found = found * self.weights[edge]
        return found

    def held(self, task: Task) -> int:
        """K."""
        del task
        return next(iter(self.weights.values())).shape[-1]
