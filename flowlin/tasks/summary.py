"""What a task prints: see `flowlin._tools.show`."""

from typing import Any

import jax

from flowlin._tools.show import Summary, clipped, plural


def task(found: Any) -> Summary:
    """Name, numbers of samples, inputs and outputs, precision, devices."""
    *stack, samples, inputs = found.x.shape
    rows = [
        ("name", repr(clipped(found.name))),
        ("samples", plural(samples, "sample")),
        ("inputs", plural(inputs, "input")),
        ("outputs", plural(found.y.shape[-1], "output")),
        *([] if found.weights is None else [("weights", "weighted")]),
        ("precision", str(found.x.dtype)),
    ]
    if stack:
        rows.append(("stacked", f"stacked {tuple(stack)}"))
    elif isinstance(found.x, jax.Array) and found.shards > 1:
        rows.append(("devices", f"split among {found.shards} devices"))
    return Summary("Task", rows, inline=True)
