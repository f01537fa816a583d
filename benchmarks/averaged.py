"""Gates averaged over a step: error against evaluations, for ReLU networks too large to walk.

    python benchmarks/averaged.py [--quick]

Writes `benchmarks/results/averaged.json` and the table `averaged.md`: per problem and contender
the relative parameter error and the number of evaluations, pairs of large products (per attempted
step two for `AveragedKinks` and three for Bosh3, and one at the start), and seconds with
compilation. The reference is Heun's method with fixed steps, done twice, the second time with twice
the steps; their distance says how far it can be trusted. References are kept in `benchmarks/.cache`
(45 minutes on one core); the results hold checksums of their parameters rounded to four
digits of the largest. The last problem is small enough to walk: there `ExactKinks` at rtol 1e-10 is
the reference. MNIST is read from the folder that `FLOWLIN_DATA` names.
"""

import hashlib
import pathlib
import time

import _common
import jax
import jax.numpy as jnp
import numpy as np

import flowlin as fl
from flowlin.training.rules import VectorField, choose_objective

HERE = pathlib.Path(__file__).parent


def problems(quick: bool):
    """(name, network, task, final time, steps of the coarser reference)."""
    digits, key = fl.tasks.digits(), jax.random.key(0)

    def network(task, hidden, c):
        return fl.ReLUNetwork.init(task, hidden, key=key, bias_strength=c)

    if quick:
        yield "digits c=1 t=4", network(digits, 64, 1.0), digits, 4.0, 200
        return
    for c, t1 in ((1.0, 100.0), (10.0, 10.0), (1.0, 300.0)):
        yield f"digits c={c:g} t={t1:g}", network(digits, 64, c), digits, t1, 100_000
    mnist = fl.tasks.mnist(2000)
    yield "MNIST 2,000 c=10 t=10", network(mnist, 128, 10.0), mnist, 10.0, 10_000


def off(a: np.ndarray, b: np.ndarray) -> float:
    """Relative distance of two rows of parameters."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def heun(network, task, t1: float, steps: int) -> np.ndarray:
    """Parameters at t1 by Heun's method with fixed steps."""
    goal = choose_objective(network, task, fl.SquaredError())
    field, h = VectorField(goal, network, jnp.ones(())), t1 / steps

    def step(_, y):
        k0 = field(0.0, y, None)
        k1 = field(0.0, jax.tree.map(lambda a, k: a + h * k, y, k0), None)
        return jax.tree.map(lambda a, k, m: a + h / 2 * (k + m), y, k0, k1)

    end = jax.jit(lambda y: jax.lax.fori_loop(0, steps, step, y))(network.parameters)
    return _common.flat(network.with_parameters(end))


def reference(name, network, task, t1, steps) -> np.ndarray:
    """Heun's parameters, from the cache where they are known."""
    label = name.replace(" ", "_").replace(",", "").replace("=", "")
    path = HERE / ".cache" / f"heun_{label}_{steps}.npy"
    if not path.exists():
        start = time.perf_counter()
        path.parent.mkdir(exist_ok=True)
        np.save(path, heun(network, task, t1, steps))
        print(f"{name}: {steps} Heun steps in {time.perf_counter() - start:.0f} s", flush=True)
    return np.load(path)


def measured(network, task, t1, kinks, rtol, known) -> dict:
    """One contender: its error, evaluations and time."""
    start = time.perf_counter()
    # Units are watched so that no contender logs every gate.
    flow = fl.gradient_flow(network, task, t1, kinks=kinks, rtol=rtol, events=(fl.UnitSwitches(),))
    error = off(_common.flat(flow.final), known)
    averaged = isinstance(kinks, fl.AveragedKinks)
    row = {
        "contender": "AveragedKinks" if averaged else flow.stats["solver"],
        "rtol": rtol,
        "error": error,
        "evaluations": 1 + (2 if averaged else 3) * int(flow.stats["num_steps"]),
        "rejected": int(flow.stats["num_rejected_steps"]),
        "seconds": round(time.perf_counter() - start, 1),
    }
    if averaged:
        row["grazing_margin"] = float(flow.stats["grazing_margin"])
    print(row, flush=True)
    return row


def contenders(quick: bool):
    """(kinks, rtol)."""
    for rtol in (1e-3,) if quick else (1e-3, 1e-4, 1e-5):
        yield fl.AveragedKinks(), rtol
    for rtol in (1e-4,) if quick else (1e-4, 1e-5, 1e-6):
        yield fl.IgnoreKinks(), rtol


def checksum(parameters: np.ndarray) -> dict:
    """Norm, and SHA-256 of the parameters in units of 1e-4 of the largest."""
    units = np.round(parameters / np.max(np.abs(parameters)) * 1e4).astype(np.int32)
    digest = hashlib.sha256(units.tobytes()).hexdigest()
    return {"norm": float(np.linalg.norm(parameters)), "sha256": digest}


def results(quick: bool):
    """One entry per problem."""
    for name, network, task, t1, steps in problems(quick):
        coarse, fine = (reference(name, network, task, t1, k * steps) for k in (1, 2))
        print(name, flush=True)
        yield {
            "problem": name,
            "reference": f"Heun, {2 * steps} steps",
            "distance_to_half_the_steps": off(coarse, fine),
            "checksum": checksum(fine),
            "rows": [
                measured(network, task, t1, *contender, fine) for contender in contenders(quick)
            ],
        }
    if quick:
        return
    small = fl.tasks.digits(200)
    network = fl.ReLUNetwork.init(small, 32, key=jax.random.key(0))
    known = _common.flat(_common.exact_walk(network, small, 10.0, 1e-10).final)
    print("digits, 200 samples", flush=True)
    yield {
        "problem": "digits, 200 samples, H = 32, c=1 t=10",
        "reference": "ExactKinks, rtol 1e-10",
        "checksum": checksum(known),
        "rows": [measured(network, small, 10.0, *c, known) for c in contenders(quick)],
    }


def table(entries: list[dict]) -> str:
    """Error : evaluations, a row per problem."""
    rows = entries[0]["rows"]
    names = ["problem", "reference", *(f"{r['contender']} {r['rtol']:.0e}" for r in rows)]
    lines = []
    for entry in entries:
        known = entry["reference"]
        if "distance_to_half_the_steps" in entry:
            known += f" ({entry['distance_to_half_the_steps']:.1e} from half of them)"
        cells = [f"{r['error']:.1e} : {r['evaluations']}" for r in entry["rows"]]
        lines.append([entry["problem"], known, *cells])
    return _common.markdown_table(names, lines)


def main() -> None:
    """Run every contender on every problem."""
    quick = _common.parser(__doc__).parse_args().quick
    title = "Relative parameter error : evaluations."
    _common.print_and_save("averaged", list(results(quick)), table, title, quick)


if __name__ == "__main__":
    main()
