"""Exact walks in float32 against float64: do they end, with which events, and how far off?

    python benchmarks/precision.py [--quick] [--seeds 10]

Five tasks, 8 and 64 hidden units with biases, seeds 0, 1, ..., `kinks=fl.ExactKinks()`, each in
float32 at rtol 1e-3 ... 2e-6, and in float64 at the same rtol from the same float32 weights. The
reference is float64 at rtol 1e-10. Medians and largest over the seeds:

- ended: runs that reached t1.
- events: of the gates, over the reference's number; and of runs with as many as the reference.
- parameters: relative distance at t1.
- loss: largest difference at 101 times, over L(0).
- t*, open and closed: relative difference, where it is the same maximum.

Writes `precision.json` and the table `precision.md` to `benchmarks/results/`.
"""

import itertools
import warnings
from typing import Any, NamedTuple

import _common
import jax
import jax.numpy as jnp
import numpy as np
from exact_walk import SETTINGS
from tqdm import tqdm

import flowlin as fl

TOLERANCES = (1e-3, 1e-4, 1e-5, 2e-6)
REFERENCE = 1e-10


class Run(NamedTuple):
    """What is kept of one run."""

    ended: bool
    events: int
    parameters: np.ndarray
    losses: np.ndarray
    stars: np.ndarray  # t*, open and closed
    fractions: np.ndarray


def walk(network: Any, task: fl.Task, setting: tuple, rtol: float) -> Run:
    """One run in the network's precision."""
    t1, _, quantile = setting
    ts = np.linspace(0, t1, 101)
    flow = _common.exact_walk(network, task, t1, rtol, ts=ts, throw=False)
    line = flow.linearization(quantile)
    both = (line.open, line.closed)
    losses = np.full(len(ts), np.nan)
    losses[: len(flow.losses)] = flow.losses
    return Run(
        ended=bool(flow.result == fl.RESULTS.successful),
        events=len(flow.events),
        parameters=_common.flat(flow.final).astype(float),
        losses=losses,
        stars=np.array([float(one.time) for one in both]),
        fractions=np.array([float(one.fraction) for one in both]),
    )


def compared(run: Run, exact: Run) -> dict[str, Any]:
    """How far a run is off the reference."""
    same = run.fractions == exact.fractions
    off = np.abs(run.stars - exact.stars) / np.where(exact.stars > 0, exact.stars, 1.0)
    gap = np.linalg.norm(run.parameters - exact.parameters)
    return {
        "ended": run.ended,
        "events": run.events / max(exact.events, 1),
        "as many": run.events == exact.events,
        "parameters": gap / np.linalg.norm(exact.parameters),
        "loss": np.max(np.abs(run.losses - exact.losses)) / exact.losses[0],
        "open": off[0] if same[0] else np.nan,
        "closed": off[1] if same[1] else np.nan,
    }


def row(task: str, hidden: int, dtype: str, rtol: float, found: list[dict]) -> dict[str, Any]:
    """One row of the table, over the runs that ended."""
    ended = [one for one in found if one["ended"]]

    def spread(name: str) -> list[float]:
        values = [one[name] for one in ended if np.isfinite(one[name])]
        return [float(f(values)) for f in (np.median, np.max)] if values else [np.inf, np.inf]

    names = ("events", "parameters", "loss", "open", "closed")
    return {
        "task": task,
        "hidden": hidden,
        "dtype": dtype,
        "rtol": rtol,
        "runs": len(found),
        "ended": len(ended),
        "as many": sum(one["as many"] for one in ended),
        "same maximum": [int(sum(np.isfinite(o[s]) for o in ended)) for s in ("open", "closed")],
        **{name: spread(name) for name in names},
    }


def rows(name: str, task: fl.Task, hidden: int, seeds: int) -> list[dict[str, Any]]:
    """All tolerances in both precisions on one task."""
    single, setting = task.astype(jnp.float32), SETTINGS[name]
    double = single.astype(jnp.float64)
    found: dict[tuple[str, float], list[dict]] = {}
    for seed in tqdm(range(seeds), f"{name}, {hidden}"):
        network = fl.ReLUNetwork.init(
            single, (hidden,), variance=setting[1], key=jax.random.key(seed)
        )
        wide = network.astype(jnp.float64)
        exact = walk(wide, double, setting, REFERENCE)
        for rtol in TOLERANCES:
            runs = {
                "float32": walk(network, single, setting, rtol),
                "float64": walk(wide, double, setting, rtol),
            }
            for dtype, run in runs.items():
                found.setdefault((dtype, rtol), []).append(compared(run, exact))
    return [row(name, hidden, *key, some) for key, some in sorted(found.items())]


def markdown(table: list[dict]) -> str:
    """The table as Markdown."""
    head = (
        "task", "H", "precision", "rtol", "ended", "events / reference", "as many",
        "parameters", "loss", "t* open", "t* closed", "same maximum",
    )  # fmt: skip

    def errors(pair: list[float]) -> str:
        return f"{pair[0]:.0e} / {pair[1]:.0e}" if np.isfinite(pair[0]) else "-"

    body = [
        (
            r["task"], r["hidden"], r["dtype"], f"{r['rtol']:.0e}", f"{r['ended']} of {r['runs']}",
            "{:.2f} / {:.2f}".format(*r["events"]), r["as many"],
            *(errors(r[name]) for name in ("parameters", "loss", "open", "closed")),
            "{} / {}".format(*r["same maximum"]),
        )
        for r in table
    ]  # fmt: skip
    return _common.markdown_table(head, body)


def main() -> None:
    """Run every task at every tolerance in both precisions."""
    parser = _common.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    warnings.simplefilter("ignore", fl.LinearizationWarning)
    tasks, widths = _common.toys(), (8, 64)
    if given.quick:
        tasks, widths, given.seeds = {"xor": tasks["xor"]}, (8,), 2
    table = [
        line
        for (name, task), hidden in itertools.product(tasks.items(), widths)
        for line in rows(name, task, hidden, given.seeds)
    ]
    text = markdown(table)
    print(text)
    if not given.quick:
        _common.save("precision", table, text)


if __name__ == "__main__":
    main()
