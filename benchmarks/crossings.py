"""Crossings within a step: how many of them are found, here and by others, and what it costs.

A mode strength a(t) rises from 0.01 to 1, and sin(k a) and |a - 0.7| - 0.01 are watched. SciPy's
`solve_ivp` records all events but compares signs at the ends of steps; diffrax's `Event` ends the
run at the first one that it sees, so it is started again behind it.
"""

from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
import optimistix
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


def diffraxs(g: Any) -> int:
    """Crossings by diffrax's event, started again a hair behind each."""
    event = diffrax.Event(
        lambda t, y, args, **kwargs: g(y[0] * y[1]),
        root_finder=optimistix.Newton(1e-9, 1e-9),
    )
    t, w, count = 0.0, jnp.full(2, START**0.5), 0
    while t < T1 and count < 1000:
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: field(y)), diffrax.Dopri8(), t, T1, None, w,
            stepsize_controller=diffrax.PIDController(rtol=RTOL, atol=RTOL / 100), event=event,
        )  # fmt: skip
        if not bool(found.result == diffrax.RESULTS.event_occurred):
            break
        count, t, w = count + 1, float(found.ts[-1]), found.ys[-1]  # pyright: ignore
        t, w = t + 1e-9, w + 1e-9 * field(w)
    return count


def main() -> None:
    """Count, print, save."""
    given = parser(__doc__).parse_args()
    rows, results = [], []
    for name, (g, true) in observables().items():
        if given.quick and name != "sin(100 a)":
            continue
        (found, time), scipy = ours(g), scipys(g)
        diffrax_ = diffraxs(g)
        results.append(
            {"observable": name, "true": true, "flowlin": found, "scipy": scipy,
             "diffrax": diffrax_, "seconds": time}
        )  # fmt: skip
        rows.append([name, true, found, scipy, diffrax_, f"{1e3 * time:.0f} ms"])
    head = ["observable", "true", "flowlin", "SciPy DOP853", "diffrax Dopri8", "flowlin's time"]
    table = markdown_table(head, rows)
    print(table)
    if not given.quick:
        save("crossings", results, table)


if __name__ == "__main__":
    main()
