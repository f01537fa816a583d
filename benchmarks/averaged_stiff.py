"""Stiffness and kinks together: evaluations against the error of the loss curve, for ReLU networks.

    python benchmarks/averaged_stiff.py [--quick]

Writes `benchmarks/results/averaged_stiff.json` and the table `averaged_stiff.md`: per problem and
contender the largest relative error of the loss along the run and the number of evaluations, pairs
of large products, those spent on the spectral radius included. `AveragedKinks` alone is held at an
rtol just below 1e-3, from which on it hands over to RKC where it becomes stiff. Descent has the
rate 2 over the largest spectral radius along the most exact run by RKC, its stability edge. The
reference is Heun's method with fixed steps, done twice; MNIST (2,000 images, H = 128, in float32)
is read from the folder that `FLOWLIN_DATA` names. 15 minutes on one core.
"""

import time
from typing import Any

import _common
import jax
import jax.numpy as jnp
import numpy as np

import flowlin as fl
from flowlin.training.rules import VectorField, choose_objective

ROWS = 400  # of the loss curve, after its start
ALONE = 9e-4  # an rtol at which averaged gates do not hand over


def problems(quick: bool):
    """(name, network, task, final time, steps of the references)."""
    digits, key = fl.tasks.digits(), jax.random.key(0)
    network = fl.ReLUNetwork.init(digits, 64, key=key, bias_strength=10.0)
    if quick:
        yield "digits c=10 t=4", network, digits, 4.0, (400,)
        return
    yield "digits c=10 t=100", network, digits, 100.0, (12_000, 24_000)
    mnist = fl.tasks.mnist(2000)
    network = fl.ReLUNetwork.init(mnist, 128, key=key, bias_strength=10.0)
    mnist = fl.Task(*(jnp.asarray(a, jnp.float32) for a in (mnist.x, mnist.y)), name=mnist.name)
    yield "MNIST 2,000 c=10 t=100", network.astype(jnp.float32), mnist, 100.0, (2_000, 4_000)


def curve(network, task, t1: float, steps: int, stages: int) -> np.ndarray:
    """Losses at ROWS + 1 equidistant times, by Euler's (descent) or Heun's method."""
    goal = choose_objective(network, task, fl.SquaredError())
    field = VectorField(goal, network, jnp.ones((), network.dtype))
    each, h = steps // ROWS, t1 / steps

    def moved(y, k, share=1.0):
        return jax.tree.map(lambda a, v: a + share * h * v, y, k)

    def step(_, y):
        k = field(0.0, y, None)
        if stages == 1:
            return moved(y, k)
        return moved(moved(y, k, 0.5), field(0.0, moved(y, k), None), 0.5)

    def row(y, _):
        y = jax.lax.fori_loop(0, each, step, y)
        return y, goal.loss_value(network.with_parameters(y))

    first = goal.loss_value(network)
    found = jax.jit(lambda y: jax.lax.scan(row, y, None, ROWS)[1])(network.parameters)
    return np.concatenate([[first], found])


def off(losses: Any, known: np.ndarray) -> float:
    """The largest relative error of a loss curve."""
    return float(np.max(np.abs(np.asarray(losses) / known - 1)))


def runs(quick: bool):
    """(label, options of the flow)."""
    averaged, ignored = fl.AveragedKinks(), fl.IgnoreKinks()
    yield "AveragedKinks alone", {"kinks": averaged, "rtol": ALONE}
    for rtol in (1e-3,) if quick else (1e-3, 1e-2):
        yield f"AveragedKinks {rtol:.0e}", {"kinks": averaged, "rtol": rtol}
    for rtol in (1e-2,) if quick else (1e-3, 1e-2, 2e-2):
        yield f"RKC {rtol:.0e}", {"kinks": ignored, "solver": fl.RKC(), "rtol": rtol}


def measured(network, task, t1: float, label: str, options: dict, known: np.ndarray):
    """One contender: its error, evaluations and time; and the largest radius, where it is known."""
    start, ts = time.perf_counter(), jnp.linspace(0.0, t1, ROWS + 1)
    # Units are watched so that no contender logs every gate.
    flow = fl.gradient_flow(network, task, t1, ts=ts, events=(fl.UnitSwitches(),), **options)
    row = {
        "contender": label,
        "solver": flow.stats["solver"],
        "because": flow.stats["solver_because"],
        "error": off(flow.losses, known),
        "evaluations": int(flow.stats["evaluations"]),
        "steps": int(flow.stats["num_steps"]),
        "rejected": int(flow.stats["num_rejected_steps"]),
        "seconds": round(time.perf_counter() - start, 1),
    }
    print(row, flush=True)
    radius = flow.observed.get("spectral_radius", jnp.zeros(1))
    return row, float(jnp.nanmax(radius))


def descended(network, task, t1: float, radius: float, known: np.ndarray) -> dict:
    """Descent at its stability edge."""
    start = time.perf_counter()
    steps = ROWS * int(np.ceil(t1 * radius / 2 / ROWS))
    row = {
        "contender": "descent",
        "rate": t1 / steps,
        "error": off(curve(network, task, t1, steps, 1), known),
        "evaluations": steps,
        "seconds": round(time.perf_counter() - start, 1),
    }
    print(row, flush=True)
    return row


def results(quick: bool):
    """One entry per problem."""
    for name, network, task, t1, counts in problems(quick):
        print(name, flush=True)
        *coarse, known = (curve(network, task, t1, steps, 2) for steps in counts)
        found = [measured(network, task, t1, *run, known) for run in runs(quick)]
        # Of RKC alone: after averaged gates a pair at its kink may pass for a sharp direction.
        known_by = [(row["error"], r) for row, r in found if row["solver"] == "RKC"]
        radius = min(known_by)[1]
        yield {
            "problem": name,
            "reference": f"Heun, {counts[-1]} steps",
            "distance_to_half_the_steps": off(coarse[0], known) if coarse else None,
            "last_loss": float(known[-1]),
            "largest_radius": radius,
            "rows": [descended(network, task, t1, radius, known), *(row for row, _ in found)],
        }


def table(entries: list[dict]) -> str:
    """Error : evaluations, a row per problem."""
    names = ["problem", "last loss", "radius", *(row["contender"] for row in entries[0]["rows"])]
    lines = []
    for entry in entries:
        cells = [f"{row['error']:.1e} : {row['evaluations']}" for row in entry["rows"]]
        about = f"{entry['last_loss']:.3f}", f"{entry['largest_radius']:.0f}"
        lines.append([entry["problem"], *about, *cells])
    return _common.markdown_table(names, lines)


def main() -> None:
    """Run every contender on every problem."""
    quick = _common.parser(__doc__).parse_args().quick
    title = "Largest relative error of the loss curve : evaluations."
    _common.print_and_save("averaged_stiff", list(results(quick)), table, title, quick)


if __name__ == "__main__":
    main()
