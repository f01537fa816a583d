"""What one evaluation of a gated graph's field costs, from pathway statistics and from samples.

    python benchmarks/gated_graph.py [--quick]

The gradient at one state, jitted, over numbers of samples: two gated ways of one hidden layer, two
by two ways of two hidden layers (4 pathways), a shared middle of four sources and sinks with gates
at the sinks (16 pathways), and one node per unit (16 pathways of width 1). Medians of runs in turns
within one process, float64. `count_products` is the ratio, statistics over samples, that the
library chooses by, and `time` what is measured; `once` is what the statistics themselves cost, in
evaluations from samples. Writes `gated_graph.json` and the table `gated_graph.md` to
`benchmarks/results/`.
"""

import itertools
from collections.abc import Callable
from typing import Any

import _common
import jax
import jax.numpy as jnp
import numpy as np

import flowlin as fl
from flowlin.training.objective import FullData
from flowlin.training.statistics import GraphStatistics, count_products, is_cheaper

SAMPLES = (16, 128, 1_000, 10_000)


def on(samples: int, seed: int) -> np.ndarray:
    """A gate that is open for half of the samples."""
    return np.random.default_rng(seed).integers(0, 2, samples)


def graphs(samples: int) -> dict[str, tuple[fl.Task, fl.GatedGraph]]:
    """The graphs, each with its task."""
    task, key = _common.gaussian(samples, 16, 8), jax.random.key(0)

    def made(nodes: dict, edges: Any, gates: Any = (), **options: Any) -> Any:
        given = {node: on(samples, k) for k, node in enumerate(gates)}
        nodes = {"in": 16, "out": 8} | nodes
        return task, fl.GatedGraph.init(
            task, nodes, edges, node_gates=given, variance=0.1, key=key, **options
        )

    def between(*layers: str) -> list[tuple[str, str]]:
        return [(a, b) for low, high in itertools.pairwise(layers)
                for a in low.split() for b in high.split()]  # fmt: skip

    ways = made({"a": 32, "b": 32}, between("in", "a b", "out"), "ab")
    deep = {node: 32 for node in "abcd"}
    units = [f"u{k}" for k in range(16)]
    middle = [(f"in{k}", "mid") for k in range(4)] + [("mid", f"out{k}") for k in range(4)]
    ends = {"mid": 32} | {f"in{k}": 4 for k in range(4)} | {f"out{k}": 2 for k in range(4)}
    given = {f"out{k}": on(samples, k) for k in range(4)}
    return {
        "2 ways": ways,
        "2 x 2 ways": made(deep, between("in", "a b", "c d", "out"), "abcd"),
        "shared middle": (
            task,
            fl.GatedGraph.init(
                task, ends, middle, node_gates=given, variance=0.1, key=key,
                inputs={f"in{k}": slice(4 * k, 4 * k + 4) for k in range(4)},
                outputs={f"out{k}": slice(2 * k, 2 * k + 2) for k in range(4)},
            ),
        ),
        "16 units": made(dict.fromkeys(units, 1), between("in", " ".join(units), "out"), units),
    }  # fmt: skip


def row(name: str, task: fl.Task, network: fl.GatedGraph, repeats: int) -> dict[str, Any]:
    """Times of one graph and number of samples."""
    loss = fl.SquaredError()
    made = jax.jit(lambda n, t: GraphStatistics.from_graph(n, t, loss))
    fields = {"statistics": made(network, task), "samples": FullData(task, loss)}
    gradient = jax.jit(lambda goal, n: goal.gradient(n))
    runs: dict[str, Callable[[], Any]] = {
        k: (lambda goal=goal: gradient(goal, network)) for k, goal in fields.items()
    }
    runs["once"] = lambda: made(network, task)
    found = [run() for run in runs.values()][:2]
    pairs = zip(*map(jax.tree.leaves, found), strict=True)
    times = _common.alternated(runs, repeats)
    counts = count_products(network, task)
    assert counts is not None
    return {
        "graph": name,
        "samples": task.samples,
        "pathways": len(network.pathways),
        "statistics, us": 1e6 * times["statistics"],
        "samples, us": 1e6 * times["samples"],
        "operations": counts[0] / counts[1],
        "time": times["statistics"] / times["samples"],
        "once": times["once"] / times["samples"],
        "chosen": "statistics" if is_cheaper(network, task) else "samples",
        "difference": max(float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in pairs),
    }


def main() -> None:
    """Measure, print, write."""
    given = _common.parser(__doc__).parse_args()
    repeats = 20 if given.quick else 300
    rows = [
        row(name, task, network, repeats)
        for samples in (SAMPLES[:2] if given.quick else SAMPLES)
        for name, (task, network) in graphs(samples).items()
    ]
    rows.sort(key=lambda r: list(graphs(2)).index(r["graph"]))
    cells = [
        [r["graph"], r["samples"], r["pathways"]]
        + [f"{r[k]:.0f}" for k in ("statistics, us", "samples, us")]
        + [f"{r[k]:.3g}" for k in ("operations", "time", "once")]
        + [r["chosen"], f"{r['difference']:.0e}"]
        for r in rows
    ]
    wrong = [max(r["time"], 1 / r["time"]) for r in rows
             if (r["time"] < 1) != (r["chosen"] == "statistics")]  # fmt: skip
    device = jax.devices()[0]
    text = _common.markdown_table(list(rows[0]), cells) + (
        f"\n\nOn {device.platform} ({device.device_kind}), medians of {repeats} runs in turns. "
        f"The slower one was chosen in {len(wrong)} of {len(rows)}"
        + (f", at worst by a factor of {max(wrong):.2g}." if wrong else ".")
    )
    print(text)
    if not given.quick:
        _common.save("gated_graph", rows, text)


if __name__ == "__main__":
    main()
