"""The parts of a gated graph as somebody gives them: checked, and as arrays of one precision."""

import functools
import graphlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Array, ArrayLike

from flowlin._tools.arguments import argument_error, describe_value, float_array
from flowlin._tools.arrays import require_finite, widest_dtype

Edge = tuple[str, str]
Variances = ArrayLike | Mapping[Edge, ArrayLike]  # of all edges, or of each
Columns = tuple[tuple[str, int, int], ...]  # (node, first column, the one after the last)

Name = TypeVar("Name", str, Edge)  # of what has a gate
CONSTANT_SOURCE = (
    "bias"  # the source whose only entry is one: a bias is the weight of an edge from it
)
EDGE_FORMAT = 'pairs of nodes, (from, to), such as ("in", "a")'


@functools.lru_cache(maxsize=1024)
def topological_order(edges: tuple[Edge, ...]) -> tuple[str, ...]:
    """Sort the nodes of a graph, each after all those that it takes from.

    **Raises:** `ValueError` that names a cycle.
    """
    sorter: graphlib.TopologicalSorter = graphlib.TopologicalSorter()
    for source, target in edges:
        sorter.add(target, source)
    try:
        return tuple(sorter.static_order())
    except graphlib.CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise ValueError(
            f"`edges` go in a circle, {cycle}; a graph without cycles has a forward pass."
        ) from None


def edge_of_nodes(name: str, value: object) -> Edge:
    """Check for an edge, a pair of names of nodes."""
    pair = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(pair) != 2 or not all(isinstance(end, str) and end for end in pair):
        raise argument_error(name, EDGE_FORMAT, value)
    if CONSTANT_SOURCE in pair:
        raise ValueError(
            f"`{name}` has a node {CONSTANT_SOURCE!r}, the name of the constant source of all "
            "biases; give the node another name."
        )
    return pair


def as_dictionary(name: str, value: object, wanted: str) -> dict[Any, Any]:
    """Check for a dictionary; None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise argument_error(name, f"a dictionary, {wanted}", value)
    return dict(value)


def edge_matrices(weights: object) -> dict[Edge, Array]:
    """Check weights by edge, and return them as matrices that meet at the nodes."""
    given = as_dictionary("weights", weights, "a matrix (N_to, N_from) by each edge (from, to)")
    if not given:
        raise ValueError("`weights` is empty; give at least one edge its matrix (N_to, N_from).")
    found = {}
    for key, value in given.items():
        key = edge_of_nodes("weights", key)
        w = float_array(f"weights[{key}]", value, exact=True)
        if w.ndim != 2 or 0 in w.shape:
            raise ValueError(f"`weights[{key}]` must be a matrix (N_to, N_from), got {w.shape}.")
        require_finite(f"weights[{key}]", w)
        found[key] = w
    dtype = widest_dtype(*found.values())
    topological_order(tuple(found))
    node_widths(found)
    return {key: w.astype(dtype) for key, w in sorted(found.items())}


def node_widths(weights: Mapping[Edge, Array]) -> dict[str, int]:
    """Return the width of every node.

    **Raises:** `ValueError` for matrices of which two do not agree on a node's.
    """
    found: dict[str, tuple[int, Edge]] = {}
    for key, w in weights.items():
        for node, size in zip(key, w.shape[::-1], strict=True):
            known, other = found.setdefault(node, (size, key))
            if known != size:
                raise ValueError(
                    f"`weights[{key}]` of shape {w.shape} gives node {node!r} {size} units, and "
                    f"`weights[{other}]` gives it {known}; matrices have shape (N_to, N_from)."
                )
    return {node: size for node, (size, _) in found.items()}


def sources_and_sinks(edges: Iterable[Edge]) -> tuple[list[str], list[str]]:
    """Return the nodes that no edge goes into, and those that none goes out of, in order."""
    edges = tuple(edges)
    order = topological_order(edges)
    into, out = {target for _, target in edges}, {source for source, _ in edges}
    return [n for n in order if n not in into], [n for n in order if n not in out]


def assign_columns(
    name: str, value: object, known: list[str], sizes: Mapping[str, int], variable: str
) -> Columns:
    """Assign columns of x (or y) to the sources (or sinks) `known`; `sizes` are the nodes' widths.

    **Raises:** `ValueError` for a node that is none of them or is left out, for slices of another
    length than the node's width, that overlap, or that leave columns out.
    """
    total = sum(sizes[node] for node in known)
    if value is None and len(known) == 1:
        return ((known[0], 0, total),)
    given = as_dictionary(name, value, f"a slice of the columns of {variable} by each of {known}")
    found = []
    for node, part in given.items():
        _require_end(name, node, known, sizes, variable)
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise argument_error(
                f"{name}[{node!r}]", "a slice of columns, such as slice(0, 4)", part
            )
        start, stop, _ = part.indices(total)
        if stop - start != sizes[node]:
            raise ValueError(
                f"`{name}[{node!r}]` takes {max(0, stop - start)} of {total} columns of "
                f"{variable}, and the node has {sizes[node]} units."
            )
        found.append((node, start, stop))
    missing = [node for node in known if node not in given]
    if missing:
        takes = "takes no columns of x" if variable == "x" else "gives no columns of y"
        where = "no edge into it" if variable == "x" else "no edge out of it"
        raise ValueError(
            f"`{name}` leaves out node {missing[0]!r}, which has {where} and so {takes}; give "
            "every such node its slice, or leave the node out."
        )
    found.sort(key=lambda row: row[1:])
    _require_covered(name, found, total, variable)
    return tuple(found)


def _require_end(name: str, node: object, known: list[str], sizes: Mapping, variable: str) -> None:
    """Raise `ValueError` unless a node is one of those that take x or give y."""
    if node in known:
        return
    if node not in sizes:
        raise ValueError(
            f"`{name}` names {describe_value(node)}, which is no node; they are {list(sizes)}."
        )
    way = ("has edges into it", "source") if variable == "x" else ("has edges out of it", "sink")
    raise ValueError(f"`{name}` names {node!r}, which {way[0]}; a {way[1]} has none.")


def _require_covered(
    name: str, rows: list[tuple[str, int, int]], total: int, variable: str
) -> None:
    """Raise `ValueError` unless slices, in order, take every column once."""
    reached, before = 0, ""
    for node, start, stop in rows:
        if start < reached:
            raise ValueError(
                f"`{name}[{node!r}]` and `{name}[{before!r}]` overlap at column {start} of "
                f"{variable}; give each column to one node."
            )
        if start > reached:
            raise ValueError(f"`{name}` leaves out column {reached} of {variable}.")
        reached, before = stop, node
    if reached < total:
        raise ValueError(f"`{name}` leaves out column {reached} of {variable}.")


def node_biases(biases: object, weights: Mapping[Edge, Array]) -> dict[str, Array]:
    """Check biases by node, and return them, (N,) each; edges go into all these nodes."""
    dtype, sizes, found = next(iter(weights.values())).dtype, node_widths(weights), {}
    given = as_dictionary("biases", biases, "an array (N,) by each node that has one")
    takers = {target for _, target in weights}
    for node, value in given.items():
        if node not in takers:
            raise ValueError(
                f"`biases` names {describe_value(node)}, which no edge goes into; those that have "
                f"edges into them are {sorted(takers)}."
            )
        b = float_array(f"biases[{node!r}]", value).astype(dtype)
        if b.shape != (sizes[node],):
            raise ValueError(f"`biases[{node!r}]` must have shape ({sizes[node]},), got {b.shape}.")
        require_finite(f"biases[{node!r}]", b)
        found[node] = b
    return dict(sorted(found.items()))


def gates_by_name(
    name: str, value: object, known: Iterable[Name], dtype: np.dtype
) -> dict[Name, Array]:
    """Check gates (P,) by node or edge, which must be known, and return them."""
    known, found = list(known), {}
    given = as_dictionary(name, value, "an array (P,), one number per sample, by each name")
    for key, one in given.items():
        if key not in known:
            raise ValueError(f"`{name}` names {key!r:.60}, which is none of {known}.")
        gate = float_array(f"{name}[{key!r}]", one).astype(dtype)
        if gate.ndim != 1 or not gate.size:
            raise ValueError(
                f"`{name}[{key!r}]` must have shape (P,), one number per sample, got {gate.shape}."
            )
        require_finite(f"{name}[{key!r}]", gate)
        found[key] = gate
    return dict(sorted(found.items()))


def require_one_length(gates: Mapping[str, Array]) -> None:
    """Raise `ValueError` unless gates, by the names of what they are given as, have one length."""
    lengths = {name: gate.shape[-1] for name, gate in gates.items()}
    for name, length in lengths.items():
        first, wanted = next(iter(lengths.items()))
        if length != wanted:
            raise ValueError(
                f"`{name}` is for {length} samples and `{first}` for {wanted}; all gates have one "
                "number per sample of the same task."
            )


def graph_owners(
    weights: Mapping[Edge, Array], biases: Mapping[str, Array], sources: Columns, sinks: Columns
) -> list[tuple[str, int | None]]:
    """Return whose numbers the edges', then the biases' arrays hold: see `ModelFacts.owners`."""
    first, last = ({node for node, *_ in ends} for ends in (sources, sinks))

    def edge_owner(edge: Edge, w: Array) -> tuple[str, int | None]:
        a, b = edge
        if b not in last:
            return f"node {b}", 0
        if a not in first:
            return f"node {a}", -1
        return f"edge {a} -> {b}", None if w.ndim > 1 else 0

    own = [(f"bias {b}", None) if b in last else (f"node {b}", 0) for b in sorted(biases)]
    return [edge_owner(edge, w) for edge, w in sorted(weights.items())] + own
