"""What a network prints: see `flowlin._tools.show`."""

import math
from typing import Any

import jax

from flowlin._tools.show import Summary, number, plural


def network(found: Any) -> Summary:
    """Kind, widths, bias, number of parameters, precision."""
    weights, biases = found.weights, found.biases
    stack = weights[0].shape[:-2]
    rows = [("widths", " -> ".join(map(str, found.widths))), ("bias", _biased(biases))]
    if any(b is not None for b in biases):
        rows[-1] = ("bias", f"{rows[-1][1]}, c = {number(found.bias_strength)}")
    if hasattr(found, "slope") and number(found.slope) != "0":
        rows.append(("slope", f"slope {number(found.slope)}"))
    if hasattr(found, "gates_"):
        shapes = [gate.shape[len(stack) :] for gate in found.gates_]
        rows.append(("gates", f"gates {', '.join(map(str, shapes))}"))
    if found.sample_gates and not hasattr(found, "gates_"):
        rows.append(("gates", plural(found.gates.shape[-1], "global gate")))
    sizes = [math.prod(a.shape[len(stack) :]) for a in jax.tree.leaves((weights, biases))]
    rows.append(("parameters", plural(sum(sizes), "parameter")))
    rows.append(("precision", str(weights[0].dtype)))
    if stack:
        rows.append(("stacked", f"stacked {stack}"))
    return Summary(type(found).__name__, rows, inline=True)


def graph(found: Any) -> Summary:
    """Kind, nodes and edges, what has gates and biases, number of parameters, precision."""
    stack = found.bias_strength.shape
    edges = [f"{a} -> {b}" for a in found.order for c, b in found.weights if c == a]
    rows = [("edges", ", ".join(edges) if len(edges) <= 6 else plural(len(edges), "edge"))]
    sizes = {a: w.shape[-1] for (a, _), w in found.weights.items()}
    if next(iter(found.weights.values())).ndim == len(stack) + 1:
        rows.append(("modes", plural(next(iter(sizes.values())), "mode")))
    else:
        sizes |= {b: w.shape[-2] for (_, b), w in found.weights.items()}
        rows.append(("widths", ", ".join(f"{node} {sizes[node]}" for node in found.order)))
    gates = (*found.node_gates.values(), *found.edge_gates.values())
    if gates:
        rows.append(("gates", f"{plural(len(gates), 'gate')} for {gates[0].shape[-1]:,} samples"))
    rows.append(("bias", "no bias"))
    if found.biases:
        where = f"bias in {', '.join(found.biases)}"
        rows[-1] = ("bias", f"{where}, c = {number(found.bias_strength)}")
    arrays = jax.tree.leaves((found.weights, found.biases))
    count = sum(math.prod(a.shape[len(stack) :]) for a in arrays)
    rows.append(("parameters", plural(count, "parameter")))
    rows.append(("precision", str(arrays[0].dtype)))
    if stack:
        rows.append(("stacked", f"stacked {stack}"))
    return Summary(type(found).__name__, rows, inline=True)


def _biased(biases: tuple[Any, ...]) -> str:
    """Which layers have a bias."""
    having = [layer for layer, b in enumerate(biases) if b is not None]
    if not having:
        return "no bias"
    if having == list(range(len(biases) - 1)):
        return "bias in hidden layers"
    return f"bias in layers {', '.join(map(str, having))}"
