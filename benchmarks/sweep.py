"""Sweeps of the exact walk: one by one, in threads, and under `vmap`.

    python benchmarks/sweep.py [--quick] [--runs 1000]

Seeds, variances and bias strengths on the semantic tree (H = 64, t = 60, rtol 1e-6): wall time per
run of a loop of single runs, of `fl.sweep` (threads), of `lax.map` and of `vmap` over a batch, in
turns within one process; then `--runs` runs in one sweep, some of which are compared with their
single runs. Writes `sweep.json` and the table `sweep.md` to `benchmarks/results/`.
"""

import os
import warnings
from typing import Any

import _common
import jax
import jax.numpy as jnp
import numpy as np

import flowlin as fl

RTOL = 1e-6


def members(count: int, task: fl.Task) -> list[fl.ReLUNetwork]:
    """Networks of different seed, initial variance and bias strength."""
    settings = [(v, c) for v in (2e-4, 1e-3) for c in (1.0, 2.0)]
    return [
        fl.ReLUNetwork.init(
            task, 64, settings[k % 4][0], bias_strength=settings[k % 4][1], key=jax.random.key(k)
        )
        for k in range(count)
    ]


def contest(task: fl.Task, t1: float, count: int, repeats: int) -> list[dict[str, Any]]:
    """Seconds per run of each way to do `count` runs."""
    networks = members(count, task)
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *networks)

    def last(network):
        flow = fl.gradient_flow(network, task, t1, rtol=RTOL, throw=False, max_events=1024)
        return flow.final.parameters, flow.events.time

    mapped, batched = jax.jit(lambda n: jax.lax.map(last, n)), jax.jit(jax.vmap(last))
    runs = {
        "loop": lambda: [fl.gradient_flow(n, task, t1, rtol=RTOL) for n in networks],
        "fl.sweep": lambda: fl.sweep(networks, task, t1, rtol=RTOL).flows,
        "lax.map": lambda: mapped(stacked),
        "vmap": lambda: batched(stacked),
    }
    for run in runs.values():
        run()
    times = _common.alternated(runs, repeats)
    return [
        {"way": way, "runs": count, "seconds per run": t / count, "times loop": t / times["loop"]}
        for way, t in times.items()
    ]


def many(task: fl.Task, t1: float, count: int) -> dict[str, Any]:
    """One large sweep: wall time, its table, and how far runs are from their single runs."""
    networks = members(count, task)
    fl.gradient_flow(networks[0], task, t1, rtol=RTOL)  # compiles
    total, runs = _common.seconds(
        lambda: fl.sweep(networks, task, t1, rtol=RTOL, progress=True).flows
    )
    runs = fl.Sweep(runs)
    picked = range(0, count, max(1, count // 20))
    alone = {k: fl.gradient_flow(networks[k], task, t1, rtol=RTOL).final for k in picked}
    off = [float(fl.distance(runs[k].final, end, relative=True)) for k, end in alone.items()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.LinearizationWarning)
        stars = runs.map(lambda flow: flow.linearization().open.time)
    return {
        "way": f"fl.sweep, {os.cpu_count()} cores",
        "runs": count,
        "seconds per run": total / count,
        "seconds": total,
        "failed": len(runs.failed),
        "events": len(runs.table()),
        "largest distance from single runs": float(np.max(off)),
        "t* open, quartiles": [float(q) for q in np.quantile(stars, (0.25, 0.5, 0.75))],
    }


def main() -> None:
    """Measure and write."""
    parser = _common.parser(__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    given = parser.parse_args()
    task = fl.tasks.hierarchy()
    if given.quick:
        print(many(task, 2.0, 4))
        return
    rows = contest(task, 60.0, 16, 3)
    rows.append(many(task, 60.0, given.runs))
    head = ("way", "runs", "seconds per run", "times loop")
    cells = [[row[key] for key in head[:2]] for row in rows]
    for cell, row in zip(cells, rows, strict=True):
        ratio = row.get("times loop")
        cell += [f"{row['seconds per run']:.3f}", "-" if ratio is None else f"{ratio:.2f}"]
    large = rows[-1]
    text = _common.markdown_table(head, cells) + (
        f"\n\n{large['runs']} runs took {large['seconds']:.0f} s, {large['failed']} failed; "
        f"{large['events']:,} events in one table; largest relative distance of a run from its "
        f"single run {large['largest distance from single runs']:.0e}."
    )
    print(text)
    _common.save("sweep", rows, text)


if __name__ == "__main__":
    main()
