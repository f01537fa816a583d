"""Crossings within a step: how many of them are found, here and by others, and what it costs.

A mode strength a(t) rises from 0.01 to 1, and sin(k a) and |a - 0.7| - 0.01 are watched. SciPy's
`solve_ivp` records all events too, but compares signs at the ends of steps.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from _common import markdown_table, parser, save, seconds
from scipy.integrate import solve_ivp

import flowlin as fl

START, T1, RTOL = 0.01, 30.0, 1e-8
TASK = fl.Task([[1.0]], [[1.0]])


def observables() -> dict[str, tuple[Any, int]]:
    """Functions of a by name, with the true number of crossings up to a = 1."""
    swings = {
        f"sin({k} a)": (lambda a, k=k: jnp.sin(k * a), int(k / np.pi) - int(k * START / np.pi))
        for k in (100, 200, 2000)
    }
    return swings | {"abs(a - 0.7) - 0.01": (lambda a: jnp.abs(a - 0.7) - 0.01, 2)}


def ours(g: Any) -> tuple[int, float]:
    """Crossings in the log, and seconds of a compiled run."""
    network = fl.LinearNetwork((jnp.full((1, 1), START**0.5), jnp.full((1, 1), START**0.5)))
    event = fl.Crossing(lambda n, task: g(n.weights[0][0, 0] * n.weights[1][0, 0]))

    def run():
        return fl.gradient_flow(network, TASK, T1, events=(event,), rtol=RTOL)

    run()
    time, flow = seconds(run)
    assert int(flow.stats["unresolved_crossings"]) == 0
    return len(flow.events), time


def field(w):
    """Velocity of the two weights."""
    return (1 - w[0] * w[1]) * w[::-1]


def scipys(g: Any) -> int:
    """Crossings by SciPy's events."""

    def event(t, w):
        return float(g(w[0] * w[1]))

    start = [START**0.5, START**0.5]
    found = solve_ivp(
        lambda t, w: field(w), (0, T1), start, "DOP853", events=event, rtol=RTOL, atol=RTOL / 100
    )
    return len(found.t_events[0])


def main() -> None:
    """Count, print, save."""
    given = parser(__doc__).parse_args()
    rows, results = [], []
    for name, (g, true) in observables().items():
        if given.quick and name != "sin(100 a)":
            continue
        (found, time), scipy = ours(g), scipys(g)
        results.append(
            {"observable": name, "true": true, "flowlin": found, "scipy": scipy,
             "seconds": time}
        )  # fmt: skip
        rows.append([name, true, found, scipy, f"{1e3 * time:.0f} ms"])
    head = ["observable", "true", "flowlin", "SciPy DOP853", "flowlin's time"]
    table = markdown_table(head, rows)
    print(table)
    if not given.quick:
        save("crossings", results, table)


if __name__ == "__main__":
    main()
