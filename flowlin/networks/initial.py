"""Initial weights: i.i.d. normal, balanced, lambda-balanced."""

from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, PRNGKeyArray, PyTree

from flowlin._tools.arguments import (
    argument_error,
    boolean,
    describe_value,
    float_array,
    integer_from,
    not_negative,
)
from flowlin._tools.arrays import Real, as_dtype, is_traced, require_finite
from flowlin._tools.memory import require_memory
from flowlin._tools.numerics import jit_by_array
from flowlin.networks import graph_parts
from flowlin.networks.graph_parts import EDGE_FORMAT, Edge, Variances
from flowlin.tasks.task import Task


def draw_normal_layers(
    task: Task,
    hidden: int | Sequence[int],
    variance: float | Sequence[float],
    bias: bool | Sequence[bool],
    key: PRNGKeyArray,
    copies: int = 1,
) -> tuple[list[Array], list[Array | None]]:
    """Draw weights and biases i.i.d. normal; arguments as in `ReLUNetwork.init`.

    All layers but the first take so many `copies` of what the one below gives.
    """
    widths = _hidden_widths(hidden)
    sizes = [*widths, task.outputs]
    takes = [task.inputs, *(copies * width for width in widths)]
    layers = len(sizes)
    variances = _values_per_layer("variance", variance, layers)
    for value in variances:
        not_negative("variance", value)
        _require_representable(value, task)
    if isinstance(bias, (bool, np.bool_)):
        bias = [bool(bias)] * len(widths) + [False]
    flags = [boolean("bias", value) for value in _values_per_layer("bias", bias, layers)]
    _require_layer_memory(hidden, sum(m * (1 + n) for m, n in zip(sizes, takes, strict=True)), task)
    shapes = tuple(zip(sizes, takes, strict=True))
    as_array = jnp.asarray if is_traced(variances) else as_dtype
    return _draw_layers(key, as_array(variances, task.x.dtype), shapes, tuple(flags))


def _require_representable(variance: Real, task: Task) -> None:
    """Raise `ValueError` for a variance that the task's precision rounds to zero."""
    least = float(jnp.finfo(task.x.dtype).tiny)
    if not is_traced(variance) and 0 < float(variance) < least:
        raise ValueError(
            f"`variance` = {float(variance):g} is below {least:.2g}, the smallest that "
            f"{task.x.dtype} holds, and all weights would be 0; make the task in float64, or scale "
            "the weights of a network of larger variance."
        )


@jit_by_array
def _draw_layers(
    key: PRNGKeyArray, variances: Array, shapes: Sequence[tuple[int, int]], biased: Sequence[bool]
) -> tuple[list[Array], list[Array | None]]:
    """Make the draws of `normal` in one program: one by one, each shape would be compiled alone."""

    def draw_array(key, variance, shape):
        # Scaled after the draw, to the bit: else the compiler would merge two factors.
        standard = lax.optimization_barrier(jax.random.normal(key, shape, variance.dtype))
        return jnp.sqrt(variance) * standard

    weights, biases = [], []
    keys = jax.random.split(key, len(shapes))
    for k, variance, shape, has_bias in zip(keys, variances, shapes, biased, strict=True):
        w_key, b_key = jax.random.split(k)  # the weights do not depend on whether there is a bias
        weights.append(draw_array(w_key, variance, shape))
        biases.append(draw_array(b_key, variance, shape[:1]) if has_bias else None)
    return weights, biases


def draw_balanced_layers(
    task: Task,
    hidden: int | Sequence[int],
    variance: float | Sequence[float],
    bias: bool,
    *,
    balance: float,
    product: ArrayLike | None,
    key: PRNGKeyArray,
) -> tuple[list[Array], list[Array | None]]:
    """Draw balanced or lambda-balanced factors; arguments as in `LinearNetwork.balanced`.

    With the product's singular value decomposition U diag(a) V^T and orthonormal R_l,
    W_l = R_l diag(sigma_l) R_{l-1}^T, R_0 = V, R_L = U: sigma_l = a^(1/L) balances; for two
    layers sigma_2^2 - sigma_1^2 = lambda and sigma_1 sigma_2 = a.
    """
    draw_key, key = jax.random.split(key)
    widths = _hidden_widths(hidden)
    columns = task.inputs + bias
    shape = (task.outputs, columns)
    _require_layer_memory(hidden, sum(n**2 for n in (columns, *widths, task.outputs)), task)
    drawn_rank = min(*shape, *widths) if product is None else None
    if product is None:
        flags = [bias] + [False] * len(widths)
        drawn, drawn_biases = draw_normal_layers(task, hidden, variance, flags, draw_key)
        if bias:
            drawn[0] = jnp.concatenate([drawn_biases[0][:, None], drawn[0]], axis=1)  # pyright: ignore
        product = drawn[0]
        for w in drawn[1:]:
            product = w @ product
    product = float_array("product", product).astype(task.x.dtype)
    if product.shape != shape:
        raise ValueError(f"`product` must have shape {shape}, got {product.shape}.")
    rank = _product_rank(product) if drawn_rank is None else drawn_rank
    if balance == 0 and min(widths) < rank:
        raise ValueError(
            f"`hidden` has a layer of {min(widths)} units, but a product of rank {rank} needs at "
            f"least {rank}."
        )
    bases = _orthogonal_bases(product, widths, key)
    sigmas = _layer_singular_values(product, widths, balance, len(bases) - 1, rank)
    weights: list[Array] = []
    for left, right, sigma in zip(bases[1:], bases[:-1], sigmas, strict=True):
        k = min(left.shape[1], right.shape[1], sigma.shape[0])
        weights.append((left[:, :k] * sigma[:k][None]) @ right[:, :k].T)
    biases: list[Array | None] = [None] * len(weights)
    if bias:
        biases[0], weights[0] = weights[0][:, 0], weights[0][:, 1:]
    return weights, biases


def _orthogonal_bases(product: Array, widths: list[int], key: PRNGKeyArray) -> list[Array]:
    """Return orthogonal V, R_1, ..., R_{L-1}, U: singular vectors and random rotations."""
    u, _, vt = jnp.linalg.svd(product, full_matrices=True)
    rotations = [
        jnp.linalg.qr(jax.random.normal(k, (width, width), product.dtype))[0]
        for k, width in zip(jax.random.split(key, len(widths)), widths, strict=True)
    ]
    return [vt.T, *rotations, u]


def _layer_singular_values(
    product: Array, widths: list[int], balance: float, layers: int, rank: int
) -> list[Array]:
    """Return the singular values of every layer, zero-padded to the width."""
    a = jnp.linalg.svd(product, compute_uv=False)[:rank]
    if balance == 0:
        return [a ** (1.0 / layers)] * layers
    if layers != 2:
        raise ValueError("`balance` other than 0 needs exactly one hidden layer.")
    room = product.shape[0] if balance > 0 else product.shape[1]
    if widths[0] > room:
        side = "outputs" if balance > 0 else "inputs (bias included)"
        raise ValueError(
            f"`balance` = {balance} needs at most as many hidden units as {side}, {room}, got "
            f"{widths[0]}: a unit beyond them cannot carry the surplus."
        )
    if widths[0] < a.shape[0]:
        raise ValueError(f"`hidden` must be at least the product's rank {a.shape[0]}.")
    a = jnp.zeros(widths[0], a.dtype).at[: a.shape[0]].set(a)
    root = jnp.sqrt(balance**2 + 4 * a**2)
    # The larger of the two squares has no cancellation; the other follows from the product.
    large = jnp.sqrt((abs(balance) + root) / 2)
    small = a / large
    return [small, large] if balance > 0 else [large, small]


def _product_rank(product: Array) -> int:
    """Return a concrete product's rank up to rounding; the largest possible one if it is traced."""
    if is_traced(product):
        return min(product.shape)
    require_finite("product", product)
    return int(np.linalg.matrix_rank(np.asarray(product)))


def _hidden_widths(hidden: int | Sequence[int]) -> list[int]:
    """Check the widths of hidden layers, and list them; one integer is one layer."""
    several = isinstance(hidden, Sequence) and not isinstance(hidden, (str, bytes))
    listed = several or getattr(hidden, "ndim", 0)
    try:
        widths = [integer_from(1)("hidden", n) for n in (hidden if listed else [hidden])]  # pyright: ignore
    except ValueError:
        widths = []
    if not widths:
        raise ValueError(
            f"`hidden` must hold at least one width of 1 or more, got {hidden!r:.60}; widths are "
            "whole numbers."
        )
    return widths


def _require_layer_memory(hidden: int | Sequence[int], numbers: int, task: Task) -> None:
    """Raise `ValueError` where so many numbers, and as many again, do not fit into memory."""
    size = 2 * numbers * task.x.dtype.itemsize
    require_memory("hidden", hidden, size, "Take fewer units")


def _values_per_layer(name: str, value: PyTree, layers: int) -> PyTree:
    """List a value per layer: one that is given for all, or those of a list."""
    single = isinstance(value, str) or np.ndim(value) == 0
    values = [value] * layers if single else list(value)
    if len(values) != layers:
        raise ValueError(
            f"`{name}` has {len(values)} entries for {layers} layers (readout included)."
        )
    return values


# ---- Initial weights of a gated graph: i.i.d. normal.


def draw_normal_graph(
    task: Task,
    nodes: object,
    edges: object,
    variance: Variances,
    bias: object,
    key: PRNGKeyArray,
) -> tuple[dict[Edge, Array], dict[str, Array]]:
    """Draw a graph's weights and biases i.i.d. normal; arguments as in `GatedGraph.init`."""
    sizes = _widths_by_node(nodes)
    pairs = _edge_list(edges, sizes)
    biased = _nodes_with_bias(bias, pairs, sizes)
    variances = _edge_variances(variance, pairs)
    for value in variances.values():
        _require_representable(value, task)
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


def _widths_by_node(nodes: object) -> dict[str, int]:
    """Check the widths of the nodes, and return them by name."""
    given = graph_parts.as_dictionary("nodes", nodes, "a width by each node")
    odd = [node for node in given if not isinstance(node, str) or not node]
    if odd or not given:
        wanted = "a dictionary of widths by the nodes' names"
        raise argument_error("nodes", wanted, odd[0] if odd else nodes)
    return {node: integer_from(1)(f"nodes[{node!r}]", size) for node, size in given.items()}


def _edge_list(edges: object, sizes: Mapping[str, int]) -> list[Edge]:
    """List the edges, checked: pairs of known nodes, in no circle, that leave no node alone."""
    if isinstance(edges, (str, bytes)) or not isinstance(edges, Iterable):
        raise argument_error("edges", f"a list of {EDGE_FORMAT}", edges)
    pairs = [graph_parts.edge_of_nodes(f"edges[{k}]", pair) for k, pair in enumerate(edges)]
    if not pairs:
        raise ValueError(f"`edges` is empty; give {EDGE_FORMAT}.")
    for k, pair in enumerate(pairs):
        unknown = [node for node in pair if node not in sizes]
        if unknown:
            raise ValueError(
                f"`edges[{k}]` = {pair} has node {unknown[0]!r}, which is none of `nodes`, "
                f"{list(sizes)}."
            )
        if pair in pairs[:k]:
            raise ValueError(f"`edges[{k}]` = {pair} is there twice.")
    graph_parts.topological_order(tuple(pairs))
    alone = [node for node in sizes if not any(node in pair for pair in pairs)]
    if alone:
        raise ValueError(
            f"`nodes` has {alone[0]!r}, which no edge leads to or from: there is no path through "
            "it. Leave it out, or give it edges."
        )
    return pairs


def _nodes_with_bias(bias: object, pairs: list[Edge], sizes: Mapping[str, int]) -> set[str]:
    """Return the nodes that have a bias."""
    if isinstance(bias, (bool, np.bool_)):
        first, last = graph_parts.sources_and_sinks(pairs)
        return set(sizes) - set(first) - set(last) if bias else set()
    if isinstance(bias, (str, bytes)) or not isinstance(bias, Iterable):
        raise argument_error("bias", "True, False or a list of nodes", bias)
    for node in bias:
        if not isinstance(node, str) or not any(node == target for _, target in pairs):
            raise ValueError(
                f"`bias` names {describe_value(node)}, which no edge goes into; name nodes that "
                "have edges into them."
            )
    return set(bias)


def _edge_variances(variance: Variances, pairs: list[Edge]) -> dict[Edge, PyTree]:
    """Return the variance of every edge."""
    if not isinstance(variance, Mapping):
        return dict.fromkeys(pairs, not_negative("variance", variance))
    if set(variance) != set(pairs):
        raise ValueError(
            f"`variance` must be a number, or have one by each edge, {pairs}; got {list(variance)}."
        )
    return {edge: not_negative(f"variance[{edge}]", variance[edge]) for edge in pairs}
