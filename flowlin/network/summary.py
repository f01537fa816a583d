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
    sizes = [math.prod(a.shape[len(stack) :]) for a in jax.tree.leaves((weights, biases))]
    rows.append(("parameters", plural(sum(sizes), "parameter")))
    rows.append(("precision", str(weights[0].dtype)))
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
