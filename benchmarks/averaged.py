"""Gates averaged over a step: error against evaluations, for ReLU networks too large to walk.

    python benchmarks/averaged.py [--quick] [--references]

Writes `benchmarks/results/averaged.json` and the table `averaged.md`: per problem and contender
the relative parameter error and the number of evaluations, pairs of large products (three per
attempted step for `AveragedKinks` and for Bosh3, and one at the start). The reference is Heun's
method with fixed steps, done twice, the second time with twice the steps; their distance says how
far it can be trusted. References are kept in `benchmarks/.cache`; the results hold their checksums.
`--references` makes them and stops. MNIST is read from the folder that `FLOWLIN_DATA` names.
"""

import argparse
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

import flowlin as fl
from flowlin.field import GradientField, objective

HERE = pathlib.Path(__file__).parent


def problems(quick: bool):
    """(name, network, task, final time, steps of the coarser reference)."""
    digits, key = fl.tasks.digits(), jax.random.key(0)

    def network(task, hidden, c):
        return fl.ReLUNetwork.init(task, hidden, key=key, bias_strength=c)

    if quick:
        yield "digits c=1 t=4", network(digits, 64, 1.0), digits, 4.0, 500
        return
    for c, t1 in ((1.0, 100.0), (10.0, 10.0), (1.0, 300.0)):
        yield f"digits c={c:g} t={t1:g}", network(digits, 64, c), digits, t1, 100_000
    mnist = fl.tasks.mnist(2000)
    yield "MNIST 2,000 c=10 t=10", network(mnist, 128, 10.0), mnist, 10.0, 10_000


def flat(network) -> np.ndarray:
    """All parameters in one row."""
    return np.concatenate([np.asarray(a).ravel() for a in jax.tree.leaves(network.parameters)])


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Relative distance of two rows of parameters."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def heun(network, task, t1: float, steps: int) -> np.ndarray:
    """Parameters at t1 by Heun's method with fixed steps."""
    goal = objective(network, task, fl.SquaredError(), fl.IgnoreKinks())
    field, h = GradientField(goal, network, jnp.ones(())), t1 / steps

    def step(_, y):
        k0 = field(0.0, y, None)
        k1 = field(0.0, jax.tree.map(lambda a, k: a + h * k, y, k0), None)
        return jax.tree.map(lambda a, k, m: a + h / 2 * (k + m), y, k0, k1)

    end = jax.jit(lambda y: jax.lax.fori_loop(0, steps, step, y))(network.parameters)
    return flat(network.with_parameters(end))


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


def main() -> None:
    """Run every contender on every problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--references", action="store_true")
    given = parser.parse_args()
    for name, network, task, t1, steps in problems(given.quick):
        coarse, fine = (reference(name, network, task, t1, k * steps) for k in (1, 2))
        print(name, distance(coarse, fine), flush=True)


if __name__ == "__main__":
    main()
