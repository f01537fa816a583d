"""Losses from sufficient statistics, of linear networks and of gated graphs."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from flowlin._tools.arrays import Parameters, prepend_constant, weight_rows
from flowlin.networks.base import AbstractModel
from flowlin.networks.graph import GatedGraph
from flowlin.networks.graph_parts import CONSTANT_SOURCE, Edge
from flowlin.networks.network_kinds import LinearNetwork
from flowlin.networks.pathways import columns_of_node, source_columns
from flowlin.tasks.task import Task, weights_by_sample
from flowlin.training.objective import AbstractPlainObjective, sum_over_samples
from flowlin.training.squared_error import SquaredError

STATISTICS_ARE = "sufficient statistics are"  # in errors


class QuadraticLoss(eqx.Module):
    r"""The squared error of a linear map M as a function of M, about a least-squares solution M*.

    Quadratic in M, it is expanded about M*, which keeps its digits near convergence where
    $\Sigma_{yx} - M \Sigma_x$ would cancel:

    $$L(M) = L^* + \langle G^*, \Delta\rangle + \tfrac12 \langle \Delta\, \Sigma_x, \Delta\rangle,
      \qquad \Delta = M - M^*,\; G^* = M^* \Sigma_x - \Sigma_{yx}.$$

    It is exact for any M*, since L* and G* are the loss and its gradient at that M*.
    """

    sigma_x: Float[Array, "N N"]
    solution: Float[Array, "N_out N"]
    gradient_at_solution: Float[Array, "N_out N"]
    loss_at_solution: Float[Array, ""]

    def value(self, product: Float[Array, "N_out N"]) -> Float[Array, ""]:
        """Return the loss of a map M."""
        delta = product - self.solution
        return self.loss_at_solution + jnp.sum(
            (self.gradient_at_solution + 0.5 * delta @ self.sigma_x) * delta
        )

    def gradient(self, product: Float[Array, "N_out N"]) -> Float[Array, "N_out N"]:
        """Return the gradient of the loss by the map M."""
        return self.gradient_at_solution + (product - self.solution) @ self.sigma_x


def expand_regression(
    regression: Callable[[PyTree], tuple[Array, Array, Array | None]],
    rows: PyTree,
    weight: Array | float,
    width: int,
    shards: int,
) -> QuadraticLoss:
    """Expand the squared error of a regression over samples, which are taken chunk by chunk.

    **Arguments:**

    - `regression`: of rows (P', ...), the regressors (P', N), targets (P', N_out), and weights.
    - `rows`: the tree of arrays with all samples.
    - `weight`: of the sum over samples in the loss.
    - `width`: the number N of regressors.
    - `shards`: number of devices among which the samples are split.
    """

    def regression_moments(rows):
        x, y, weights = regression(rows)
        counted = weight_rows(x, weights)
        return counted.T @ x, y.T @ counted

    sigma_x, sigma_yx = (
        weight * m for m in sum_over_samples(regression_moments, rows, width, shards)
    )
    values, vectors = jnp.linalg.eigh(sigma_x)
    # Directions of the inputs below rounding get no inverse.
    cut = values[-1] * len(values) * jnp.finfo(sigma_x.dtype).eps
    inverse = jnp.where(values > cut, 1 / jnp.where(values > cut, values, 1.0), 0.0)
    # The loss is exact for any solution: no derivative has to go through the eigenproblem.
    solution = lax.stop_gradient((sigma_yx @ vectors) * inverse[None] @ vectors.T)

    def residual_moments(rows):
        x, y, weights = regression(rows)
        residual = x @ solution.T - y
        counted = weight_rows(residual, weights)
        return counted.T @ x, jnp.sum(counted * residual)

    slope, squares = sum_over_samples(residual_moments, rows, width, shards)
    return QuadraticLoss(sigma_x, solution, weight * slope, 0.5 * weight * squares)


class LinearStatistics(AbstractPlainObjective):
    r"""Squared error of a linear network from sufficient statistics: no sample is seen again.

    The end-to-end map M = [offset, matrix] of inputs x~ = [1; x] is all that the loss depends on.
    """

    expansion: QuadraticLoss

    @staticmethod
    def from_task(task: Task, loss: SquaredError) -> "LinearStatistics":
        """Make the statistics of a task: two passes over its chunks, one N x N eigenproblem."""
        return LinearStatistics(_linear_loss(task, loss, task.shards))

    def loss_value(self, network: AbstractModel) -> Float[Array, ""]:
        """Return the loss on the task."""
        return self.expansion.value(_map_with_offset(network.parameters, network))

    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Return the gradient of the loss on the task."""
        parameters = network.parameters if parameters is None else parameters
        product, pull_back = jax.vjp(lambda p: _map_with_offset(p, network), parameters)
        return pull_back(self.expansion.gradient(product))[0]


@partial(jax.jit, static_argnames="shards")
def _linear_loss(task: Task, loss: SquaredError, shards: int) -> QuadraticLoss:
    """Expand the loss by the end-to-end map of [1; x], which is augmented chunk by chunk."""

    def linear_regression(rows: PyTree) -> tuple[Array, Array, Array | None]:
        x, y, weights = rows
        return prepend_constant(x, 1.0), y, weights

    rows = (task.x, task.y, weights_by_sample(task, STATISTICS_ARE))
    return expand_regression(
        linear_regression, rows, loss.factor_per_sample(task.mass), 1 + task.inputs, shards
    )


def _map_with_offset(parameters: Parameters, network: AbstractModel) -> Array:
    """Return the affine map of a network as one matrix [offset, matrix], (N_out, 1 + N_in)."""
    linear = network.with_parameters(parameters)
    assert isinstance(linear, LinearNetwork)
    matrix, offset = linear.affine()
    return jnp.concatenate([offset[:, None], matrix], axis=1)


# ---- The loss of a gated graph from the statistics of its pathways.

MOST_BUNDLES = 512  # bundles; with more the samples are taken


PathAhead = tuple[str, tuple[str | Edge, ...]]  # the sink, and the gates on the way to it


class PathwayBundle(NamedTuple):
    """All pathways of one source and one sink with the same gates: the data see their sum alone.

    `gates` are the names of nodes and edges, in order.
    """

    sink: str
    source: str
    gates: tuple[str | Edge, ...]


class GraphStatistics(AbstractPlainObjective):
    r"""Squared error of a gated graph from the statistics of its pathways: no sample is seen again.

    The loss is a linear regression for each sink, on the regressors $[g_p x_p]$ of the pathways
    that end there (those with the same source and gates taken together), whose coefficients are the
    products $W_p$ along them. It is expanded about a solution as for linear networks.
    """

    bundles: tuple[tuple[PathwayBundle, ...], ...] = eqx.field(static=True)
    expansions: tuple[QuadraticLoss, ...]

    @staticmethod
    def from_graph(network: GatedGraph, task: Task, loss: SquaredError) -> "GraphStatistics":
        """Make the statistics of a task by the pathways of a graph."""
        ahead = paths_ahead(network)
        assert ahead is not None
        found = all_bundles(ahead, network)
        each = tuple(tuple(b for b in found if b.sink == sink) for sink, _, _ in network.sinks)
        expansions = tuple(_loss_at_sink(network, task, loss, one, task.shards) for one in each)
        return GraphStatistics(each, expansions)

    def loss_value(self, network: AbstractModel) -> Float[Array, ""]:
        """Return the loss on the task."""
        pairs = zip(
            self.expansions, self._products_by_sink(network, network.parameters), strict=True
        )
        return sum((one.value(product) for one, product in pairs), jnp.zeros((), network.dtype))

    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Return the gradient of the loss on the task."""
        parameters = network.parameters if parameters is None else parameters
        products, pull_back = jax.vjp(lambda p: self._products_by_sink(network, p), parameters)
        pairs = zip(self.expansions, products, strict=True)
        return pull_back([one.gradient(product) for one, product in pairs])[0]

    def _products_by_sink(self, network: AbstractModel, parameters: Parameters) -> list[Array]:
        """Return by sink the sums of products of its bundles, side by side, (N_sink, N)."""
        graph = network.with_parameters(parameters)
        assert isinstance(graph, GatedGraph)
        found = bundle_products(graph)
        return [jnp.concatenate([found[b] for b in one], axis=1) for one in self.bundles]


@partial(jax.jit, static_argnames=("bundles", "shards"))
def _loss_at_sink(
    network: GatedGraph,
    task: Task,
    loss: SquaredError,
    bundles: tuple[PathwayBundle, ...],
    shards: int,
) -> QuadraticLoss:
    """Expand the loss at one sink by the sums of products of its bundles."""
    start, stop = columns_of_node(network.sinks, bundles[0].sink)
    width = sum(_source_width(network, b.source) for b in bundles)

    def sink_regression(rows: PyTree) -> tuple[Array, Array, Array | None]:
        x, y, gates, weights = rows
        own = network.with_sample_gates(gates)
        return bundle_regressors(own, bundles, x), y[:, start:stop], weights

    rows = (task.x, task.y, network.sample_gates, weights_by_sample(task, STATISTICS_ARE))
    return expand_regression(
        sink_regression, rows, loss.factor_per_sample(task.mass), width, shards
    )


def bundle_regressors(network: GatedGraph, bundles: tuple[PathwayBundle, ...], x: Array) -> Array:
    """Return the gated inputs g x of bundles side by side, (P, N)."""
    found = []
    for bundle in bundles:
        part = source_columns(network, bundle.source, x)
        for name in bundle.gates:
            part = network.gate(name)[:, None] * part  # pyright: ignore
        found.append(part)
    return jnp.concatenate(found, axis=1)


def _source_width(network: GatedGraph, source: str) -> int:
    """Count the inputs of a source; the constant of the biases is one."""
    if source == CONSTANT_SOURCE:
        return 1
    start, stop = columns_of_node(network.sources, source)
    return stop - start


def _names_with_gates(network: GatedGraph, *names: str | Edge) -> tuple[str | Edge, ...]:
    """Return those of some nodes and edges that have gates."""
    return tuple(name for name in names if network.gate(name) is not None)


def _merge_gate_names(
    names: tuple[str | Edge, ...], more: tuple[str | Edge, ...]
) -> tuple[str | Edge, ...]:
    """Join names of gates, in order."""
    return tuple(sorted((*names, *more), key=str))


def paths_ahead(network: GatedGraph) -> dict[str, set[PathAhead]] | None:
    """Return all sinks and gates on the ways from every node; None for too many."""
    found: dict[str, set[PathAhead]] = {
        node: {(node, _names_with_gates(network, node))} for node, _, _ in network.sinks
    }
    for node in reversed(network.order):
        for source, target in network.weights:
            if source != node:
                continue
            between = _names_with_gates(network, (source, target), node)
            more = {(sink, _merge_gate_names(gates, between)) for sink, gates in found[target]}
            found[node] = found.get(node, set()) | more
            if len(found[node]) > MOST_BUNDLES:
                return None
    return found


def all_bundles(ahead: dict[str, set[PathAhead]], network: GatedGraph) -> list[PathwayBundle]:
    """List all bundles of a graph, in an order."""
    found = [PathwayBundle(sink, n, g) for n, _, _ in network.sources for sink, g in ahead[n]]
    found += {
        PathwayBundle(sink, CONSTANT_SOURCE, g) for n in network.biases for sink, g in ahead[n]
    }
    return sorted(found, key=str)


def bundle_products(network: GatedGraph) -> dict[PathwayBundle, Array]:
    """Return the products of the weights along pathways, summed over those of one bundle.

    Goes from the sinks backwards: each edge is multiplied once for every bundle of ways ahead.
    """
    ahead: dict[str, dict[PathAhead, Any]] = {node: {} for node in network.order}
    for node, _, _ in network.sinks:
        ahead[node][node, _names_with_gates(network, node)] = None  # the identity
    for node in reversed(network.order):
        for (source, target), w in network.weights.items():
            if source == node:
                between = _names_with_gates(network, (source, target), node)
                for (sink, gates), product in ahead[target].items():
                    _add_product(ahead[node], (sink, _merge_gate_names(gates, between)), product, w)
    found: dict[PathwayBundle, Any] = {}
    for node, _, _ in network.sources:
        found |= {PathwayBundle(sink, node, gates): m for (sink, gates), m in ahead[node].items()}
    for node, b in network.biases.items():
        column = (network.bias_strength * b)[:, None]
        for (sink, gates), product in ahead[node].items():
            _add_product(found, PathwayBundle(sink, CONSTANT_SOURCE, gates), product, column)
    return found


def _add_product(found: dict[Any, Any], key: object, product: Array | None, w: Array) -> None:
    """Add product @ W to the sum under a key; None stands for the identity."""
    new = w if product is None else product @ w
    found[key] = found[key] + new if key in found else new


def count_products(network: GatedGraph, task: Task) -> tuple[int, int] | None:
    """Count multiplications of a forward pass, from statistics and from the samples.

    From the samples every edge's matrix multiplies all samples; from statistics it multiplies the
    products of the ways ahead, and these multiply the regressors' correlations. None for too many
    bundles.
    """
    ahead = paths_ahead(network)
    if ahead is None:
        return None
    outputs = {node: stop - start for node, start, stop in network.sinks}
    products = sum(
        w.size * outputs[sink]
        for (_, target), w in network.weights.items()
        for sink, _ in ahead[target]
        if target != sink
    )
    widths = dict.fromkeys(outputs, 0)
    for bundle in all_bundles(ahead, network):
        widths[bundle.sink] += _source_width(network, bundle.source)
    regressions = sum(outputs[sink] * width**2 for sink, width in widths.items())
    return products + regressions, task.samples * sum(w.size for w in network.weights.values())


def is_cheaper(network: GatedGraph, task: Task) -> bool:
    """Tell whether an evaluation from statistics costs less than one from the samples.

    Compares the forward passes, since backwards both cost about twice as much again
    (`benchmarks/gated_graph.py`).
    """
    found = count_products(network, task)
    return found is not None and found[0] < found[1]
