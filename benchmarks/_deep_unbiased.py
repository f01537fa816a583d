"""Exact walks of deep networks without biases: do they finish, and does descent follow them?

Part `--unbiased` of `deep_walk.py`. Without biases a layer may send nothing for a sample, or one
unit alone may send something for several: then the units above share their kinks, or have none.
Small networks meet both often. Walks at rtol 1e-8; descent at rates 1e-3 and 1e-4, whose relative
parameter distance to the walk at the end is a tenth at the second where descent follows. It is said
to part where more than .3 is left of it: then the walk either has a branch, from where on descent
may take another solution, or descent chatters, or something is wrong. Writes
`deep_walk_unbiased.json` and the table `deep_walk_unbiased.md`.
"""

from typing import Any

import _common
import _deep
import numpy as np
from tqdm import tqdm

import flowlin as fl

RATES = (1e-3, 1e-4)
FOLLOWS = 0.3


def cases() -> list[_deep.Case]:
    """What is walked."""
    gaussian = _common.gaussian
    return [
        _deep.Case("gaussian", gaussian(12, 4), (6, 6), 0.2, 20.0, bias=False),
        _deep.Case("gaussian", gaussian(10, 3), (4, 4), 0.3, 20.0, bias=False),
        _deep.Case("gaussian", gaussian(10, 2), (3, 3), 0.5, 20.0, bias=False),
        _deep.Case("gaussian", gaussian(8, 3), (4, 4, 4), 0.4, 20.0, bias=False),
        _deep.Case("gaussian", gaussian(16, 3), (8, 8, 8), 0.3, 20.0, bias=False),
    ]


def measured(case: _deep.Case, seed: int) -> dict[str, Any]:
    """One start: how its walk ended, and descent beside it."""
    network = case.start(seed)
    flow = _deep.walk(case, network, 1e-8, ts=np.linspace(0, case.t1, 201), throw=False)
    losses = np.asarray(flow.losses)[np.isfinite(flow.losses)]
    ended = _deep.said(flow) == "end"
    descents = [_common.descended(network, case.task, case.t1, r) for r in RATES if ended]
    off = [float(fl.distance(end, flow.final, relative=True)) for end in descents]
    branches = _deep.Branch.all_of(flow)
    return {
        "seed": seed,
        "outcome": _deep.said(flow),
        "reached": float(flow.end),
        "events": len(flow.events) - len(branches),
        "rise": float(np.max(np.diff(losses)) / losses[0]) if len(losses) > 1 else None,
        "branches": sorted({branch.time for branch in branches}),
        "distances": off,
        "parts": bool(ended and off[1] > FOLLOWS * off[0]),
    }


def summary(case: _deep.Case, runs: list[dict]) -> dict[str, Any]:
    """One row of the table."""
    failed = [f"{r['outcome']} (seed {r['seed']})" for r in runs if r["outcome"] != "end"]
    off = [r["distances"] for r in runs if r["distances"] and not r["parts"]]
    return {
        "case": case.label,
        "seeds": len(runs),
        "failed": failed,
        "rise": max(r["rise"] for r in runs if r["rise"] is not None),
        "events": float(np.median([r["events"] for r in runs])),
        "with branches": sum(bool(r["branches"]) for r in runs),
        "distances": np.median(off, axis=0).tolist(),
        "parts, branch": [r["seed"] for r in runs if r["parts"] and r["branches"]],
        "parts, none": [r["seed"] for r in runs if r["parts"] and not r["branches"]],
        "runs": runs,
    }


def markdown(rows: list[dict]) -> str:
    """The table as Markdown."""
    head = ("case", "seeds", "failed", "largest difference of the loss", "events, median",
            "runs with branches", *(f"descent at {r:.0e}, median" for r in RATES),
            "parts after a branch (seeds)", "parts without one (seeds)")  # fmt: skip
    body = [
        (
            r["case"], r["seeds"], ", ".join(r["failed"]) or "0", f"{r['rise']:.0e}",
            f"{r['events']:.0f}", r["with branches"], *(f"{d:.1e}" for d in r["distances"]),
            *(f"{len(r[k])} ({', '.join(map(str, r[k]))})" if r[k] else "0"
              for k in ("parts, branch", "parts, none")),
        )
        for r in rows
    ]  # fmt: skip
    return _common.markdown_table(head, body)


def survey(seeds: int, quick: bool) -> None:
    """All seeds of every case."""
    small = [_deep.Case("gaussian", _common.gaussian(6, 2), (2, 2), 0.8, 2.0, bias=False)]
    rows: list[dict] = []
    for case in small if quick else cases():
        runs = [measured(case, s) for s in tqdm(range(2 if quick else seeds), case.label)]
        rows.append(summary(case, runs))
        if not quick:
            _common.save("deep_walk_unbiased", rows, markdown(rows))
    print(markdown(rows))
