"""Short runs of every kind, recorded before a change of the code's form and compared after it.

    python -m tests.goldens FILE      records, or compares if the file is there

For changes that shall leave every number as it is, to the last bit. The numbers are this machine's
and this JAX's: a file is made for one change, and none is committed. Exits with 1 where one
differs.
"""

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import flowlin as fl

jax.config.update("jax_enable_x64", True)  # before any array is made
TREE = fl.tasks.hierarchy(levels=2)
XOR = fl.tasks.offset_xor(0.5)
KEY = jax.random.key(0)
TS = np.linspace(0, 6, 4)
LEVELS = fl.LossBelow(0.3)
EXACT, AVERAGED = fl.ExactKinks(), fl.AveragedKinks()


def relu(task: fl.Task = TREE, hidden: Any = 4, **how: Any) -> fl.ReLUNetwork:
    """A ReLU network at an ordinary start."""
    return fl.ReLUNetwork.init(task, hidden, 0.05, key=KEY, **how)


def linear(task: fl.Task = TREE, hidden: Any = 4) -> fl.LinearNetwork:
    """A linear network at an ordinary start."""
    return fl.LinearNetwork.init(task, hidden, 0.05, key=KEY)


def flow(network: Any, task: fl.Task = TREE, t1: float | None = 6.0, **how: Any) -> fl.Trajectory:
    """A flow with a level of its loss watched."""
    how = {"events": (LEVELS,), "rtol": 1e-6} | how
    return fl.gradient_flow(network, task, t1, **how)


def descent(network: Any, **how: Any) -> fl.Trajectory:
    """A descent with a level of its loss watched."""
    how = {"events": (LEVELS,)} | how
    return fl.gradient_descent(network, TREE, 0.05, 200, **how)


def mini_batches(network: Any) -> fl.Trajectory:
    """A descent on batches of two."""
    return fl.stochastic_gradient_descent(network, TREE, 0.05, 100, batch_size=2, key=KEY)


def perceptron() -> Any:
    """A network that is not the library's."""
    return eqx.nn.MLP(TREE.inputs, TREE.outputs, 5, 1, activation=jnp.tanh, key=KEY)


def gated() -> fl.GatedLinearNetwork:
    """A network whose gates are those of a ReLU network at its start."""
    return relu().frozen(TREE)


def first_alone(network: fl.LinearNetwork) -> Any:
    """Which arrays move where only the first layer does."""
    rests = jax.tree.map(lambda a: False, network)
    return eqx.tree_at(lambda n: n.weights[0], rests, True)


def single(tree: Any) -> Any:
    """The same in float32."""
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)


def modes(network: Any) -> fl.ModeHits:
    """Half of every mode."""
    return fl.ModeHits(fl.theory.modes(TREE, network), share=0.5)


RUNS: dict[str, Callable[[], fl.Trajectory]] = {
    "linear": lambda: flow(linear(), ts=TS),
    "linear, modes": lambda: flow(linear(), events=modes(linear()), dense=True),
    "linear, deep": lambda: flow(linear(hidden=(4, 3)), t1=20.0),
    "linear, modified": lambda: flow(linear(), modified_rate=0.01),
    "linear, decay and tau": lambda: flow(linear(), weight_decay=0.01, tau=[1.0, 2.0]),
    "linear, part": lambda: flow(linear(), trainable=first_alone(linear())),
    "linear, implicit": lambda: flow(linear(), solver=diffrax.Kvaerno3()),
    "linear, RKC": lambda: flow(linear(), solver=fl.RKC(), t1=30.0, rtol=1e-4),
    "linear, recycled": lambda: flow(linear(), solver=fl.RecycledBDF(), t1=30.0),
    "linear, tiny": lambda: flow(fl.LinearNetwork.init(TREE, 4, 1e-24, key=KEY), t1=100.0),
    "linear, stiff": lambda: flow(linear(), t1=3e3, rtol=1e-8),
    "walk": lambda: flow(relu(), ts=TS, kinks=EXACT),
    "walk, xor": lambda: flow(relu(XOR), XOR, kinks=EXACT, t1=12.0),
    "walk, no biases": lambda: flow(relu(bias=False), kinks=EXACT),
    "walk, deep": lambda: flow(relu(hidden=(3, 3)), kinks=EXACT, t1=12.0),
    "walk, modes": lambda: flow(relu(), kinks=EXACT, events=modes(relu())),
    "walk, decay": lambda: flow(relu(), kinks=EXACT, weight_decay=0.02, tau=[1.0, 2.0]),
    "averaged": lambda: flow(relu(), kinks=AVERAGED, rtol=1e-4, ts=TS),
    "averaged, units": lambda: flow(relu(), kinks=AVERAGED, events=(fl.UnitSwitches(0.1),)),
    "smooth": lambda: flow(relu(), kinks=fl.SmoothKinks(1e-2)),
    "ignored": lambda: flow(relu(), kinks=fl.IgnoreKinks()),
    "gated": lambda: flow(gated()),
    "cross entropy": lambda: flow(linear(), loss=fl.CrossEntropy(), events=()),
    "module": lambda: flow(perceptron(), observe={"loss": fl.measures.loss}, ts=TS),
    "to an event": lambda: flow(linear(), t1=None, events=fl.LossBelow(0.4, terminate=True)),
    "float32": lambda: flow(single(linear()), single(TREE), rtol=1e-4),
    "traced": lambda: jax.jit(lambda n: flow(n, kinks=EXACT, max_events=128))(relu()),
    "descent": lambda: descent(linear()),
    "descent, relu": lambda: descent(relu(), ts=np.arange(4.0), events=(fl.UnitSwitches(0.0),)),
    "descent, adam": lambda: descent(linear(), optimiser=optax.adam(0.05)),
    "batches": lambda: mini_batches(relu()),
}  # fmt: skip


def numbers(found: fl.Trajectory) -> dict[str, np.ndarray]:
    """What a run found, by name."""
    leaves = jax.tree.leaves(eqx.filter(found.final, eqx.is_array))
    counts = {name: n for name, n in found.stats.items() if isinstance(n, jax.Array)}
    parts = {"losses": found.losses, "time": found.events.time, "new": found.events.new}
    parts |= {"component": found.events.component, "end": found.end} | counts
    return {name: np.asarray(a) for name, a in parts.items()} | {
        f"final {k}": np.asarray(leaf) for k, leaf in enumerate(leaves)
    }


def main(path: pathlib.Path) -> int:
    """Record all runs, or say which of them differ."""
    found = {f"{run}: {k}": a for run, make in RUNS.items() for k, a in numbers(make()).items()}
    if not path.exists():
        np.savez(path, **found)  # pyright: ignore
        print(f"{len(RUNS)} runs recorded in {path}")
        return 0
    known = np.load(path)
    differ = sorted(
        name
        for name in {*found, *known.files}
        if name not in found
        or name not in known.files
        or not np.array_equal(found[name], known[name], equal_nan=True)
    )
    for name in differ:
        print("differs:", name)
    print(f"{len(RUNS)} runs, {len(differ)} of {len(found)} arrays differ")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
