"""How a graph prints."""

import math
from typing import Any

import jax

from flowlin._tools.printing import Summary, format_count, format_number


def graph_summary(graph: Any) -> Summary:
    """Summarise a graph: nodes and edges, gates, biases, number of parameters, precision."""
    stack = graph.bias_strength.shape
    edges = [f"{a} -> {b}" for a in graph.order for c, b in graph.weights if c == a]
    rows = [("edges", ", ".join(edges) if len(edges) <= 6 else format_count(len(edges), "edge"))]
    sizes = {a: w.shape[-1] for (a, _), w in graph.weights.items()}
    if next(iter(graph.weights.values())).ndim == len(stack) + 1:
        rows.append(("modes", format_count(next(iter(sizes.values())), "mode")))
    else:
        sizes |= {b: w.shape[-2] for (_, b), w in graph.weights.items()}
        rows.append(("widths", ", ".join(f"{node} {sizes[node]}" for node in graph.order)))
    gates = (*graph.node_gates.values(), *graph.edge_gates.values())
    if gates:
        rows.append(
            ("gates", f"{format_count(len(gates), 'gate')} for {gates[0].shape[-1]:,} samples")
        )
    rows.append(("bias", "no bias"))
    if graph.biases:
        where = f"bias in {', '.join(graph.biases)}"
        rows[-1] = ("bias", f"{where}, c = {format_number(graph.bias_strength)}")
    arrays = jax.tree.leaves((graph.weights, graph.biases))
    count = sum(math.prod(a.shape[len(stack) :]) for a in arrays)
    rows.append(("parameters", format_count(count, "parameter")))
    rows.append(("precision", str(arrays[0].dtype)))
    if stack:
        rows.append(("stacked", f"stacked {stack}"))
    return Summary(type(graph).__name__, rows, inline=True)
