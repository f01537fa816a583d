"""What does a walk cost after it has converged, and what is it worth?

    python benchmarks/settled.py [--quick]

Walks of 12 units, of two layers and in float32, to times long after convergence: with default
arguments, which end at held sides, and with the same solver named, which walk on. "Switches after"
counts those logged after the time from which the default run is held; none of them is determined.
In float32 rounding bounds the steps at held sides, so that run is shorter.
"Moved" is the distance of the two final networks, relative to their size. Writes `settled.json` and
the table `settled.md` to `benchmarks/results/`.
"""

import warnings
from typing import Any

import _common
import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import flowlin as fl


def starts() -> dict[str, tuple[Any, fl.Task]]:
    """Networks and tasks by the name of their row."""
    tree, xor = fl.tasks.hierarchy(levels=3), fl.tasks.offset_xor(0.5)
    network = fl.ReLUNetwork.init(tree, 12, 1e-2, key=jax.random.key(0))
    single = network.astype(jnp.float32), tree.astype(jnp.float32)
    return {
        "tree": (network, tree),
        "offset xor": (fl.ReLUNetwork.init(xor, 12, 1e-2, key=jax.random.key(1)), xor),
        "offset xor, two layers": (
            fl.ReLUNetwork.init(xor, (5, 4), 1e-1, key=jax.random.key(3)), xor),
        "tree from 1e-20": (fl.ReLUNetwork.init(tree, 12, 1e-40, key=jax.random.key(0)), tree),
        "tree, float32": single,
    }  # fmt: skip


def measured(row: str, network: Any, task: fl.Task, t1: float, walked: float) -> dict[str, Any]:
    """One row: the default run to t1, and the one that walks on to `walked`."""
    flow = fl.gradient_flow(network, task, t1)
    again = fl.gradient_flow(network, task, walked, solver=diffrax.Tsit5())
    converged = float(flow.stats["converged"])
    pairs = zip(jax.tree.leaves(flow.final), jax.tree.leaves(again.final), strict=True)
    off, size = np.sum([(np.sum((a - b) ** 2), np.sum(a**2)) for a, b in pairs], axis=0)
    return {
        "run": row,
        "t1": t1,
        "converged": converged,
        "steps": int(flow.stats["num_steps"]),
        "steps that walk on": int(again.stats["num_steps"]),
        "to t": walked,
        "switches after": int(np.sum(np.asarray(again.events.time) > converged)),
        "moved": float(np.sqrt(off / size)),
    }


def main() -> None:
    """Measure, print, write."""
    quick = _common.parser(__doc__).parse_args().quick
    warnings.simplefilter("ignore")
    rows = []
    for row, (network, task) in list(starts().items())[: 1 if quick else 5]:
        t1 = 1e6 if network.dtype == jnp.float64 else 1e4
        rows.append(measured(row, network, task, t1, 1e3 if quick else 1e4))
    text = _common.markdown_table(
        list(rows[0]),
        [[f"{v:.4g}" if isinstance(v, float) else f"{v}" for v in row.values()] for row in rows],
    )
    print(text)
    if not quick:
        _common.save("settled", rows, text)


if __name__ == "__main__":
    main()
