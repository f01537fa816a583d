"""Descent against exact walks of deep networks: does it converge to them at first order?

Part `--descent` of `deep_walk.py`. Ten starts of mixed cases, walked at rtol 1e-10. Descent runs at
rates 1e-3, 1e-4, 1e-5 and, where that takes no more than two million steps, 1e-6; its relative
parameter distance to the walk is the largest at four times, t1/4 ... t1. The slope is that of log
distance against log rate, by least squares; descent chatters where the flow slides, so single
distances scatter. A run is an exception where the slope is beyond 0.7 ... 1.3 or the walk has a
branch (from where on descent may take another solution). Writes `deep_walk_descent.json` and the
table `deep_walk_descent.md`.
"""

from typing import Any

import _common
import _deep
import numpy as np
from tqdm import tqdm

import flowlin as fl

RATES = (1e-3, 1e-4, 1e-5, 1e-6)
MOST_STEPS = 2_000_000
FIRST_ORDER = (0.7, 1.3)


def starts() -> list[tuple[_deep.Case, int]]:
    """Cases with their seeds; those of one task and one width share a program."""
    tree, xor, gaussian = fl.tasks.hierarchy(levels=3), fl.tasks.xor(), _common.gaussian(8, 4, 2)
    cases = [
        (_deep.Case("xor", xor, (8, 8), 0.2, 20.0), (0, 1)),
        (_deep.Case("xor", xor, (8, 8), 0.2, 2.0), (2,)),
        (_deep.Case("gaussian", gaussian, (8, 8), 0.3, 20.0), (0, 1)),
        (_deep.Case("gaussian", gaussian, (8, 8), 0.3, 2.0), (2,)),
        (_deep.Case("tree", tree, (16, 16), 3e-2, 20.0), (0, 1, 2)),
        (_deep.Case("gaussian", gaussian, (6, 6, 6), 0.3, 10.0), (0,)),
    ]
    return [(case, seed) for case, seeds in cases for seed in seeds]


def apart(case: _deep.Case, network: Any, times: np.ndarray, walked: Any, rate: float) -> float:
    """Largest distance of descent from the walk over the times."""
    distances, last = [], 0.0
    for time, exact in zip(times, walked, strict=True):
        network, last = _common.descended(network, case.task, time - last, rate), time
        distances.append(float(fl.distance(network, exact, relative=True)))
    return max(distances)


def measured(case: _deep.Case, seed: int, rates: tuple[float, ...]) -> dict[str, Any]:
    """One start: distances, slope, and what the walk met."""
    network, times = case.start(seed), np.linspace(0, case.t1, 5)[1:]
    flow = _deep.walk(case, network, 1e-10, ts=times, throw=False)
    walked = [_deep.saved(flow, k) for k in range(len(times))]
    rates = tuple(rate for rate in rates if case.t1 / rate <= MOST_STEPS * 1.001)
    distances = [apart(case, network, times, walked, rate) for rate in rates]
    slope = float(np.polyfit(np.log(rates), np.log(distances), 1)[0])
    branches = _deep.Branch.all_of(flow)
    return {
        "case": case.label,
        "seed": seed,
        "t1": case.t1,
        "outcome": _deep.said(flow),
        "events": len(flow.events) - len(branches),
        "in two layers": _deep.shared_slides(
            flow.events, case.hidden, case.task.samples, float(flow.end)
        ),
        "rates": rates,
        "distances": distances,
        "slope": slope,
        "branches": branches,
        "exception": bool(branches) or not FIRST_ORDER[0] < slope < FIRST_ORDER[1],
    }


def markdown(rows: list[dict]) -> str:
    """The table as Markdown."""
    head = ("case", "seed", "t1", "events", "in two layers", *(f"{r:.0e}" for r in RATES), "slope",
            "branches", "exception")  # fmt: skip
    body = [
        (
            r["case"], r["seed"], f"{r['t1']:g}", r["events"], f"{r['in two layers']:.0%}",
            *(f"{d:.1e}" for d in r["distances"]), *["-"] * (len(RATES) - len(r["distances"])),
            f"{r['slope']:.2f}", ", ".join(f"{b[0]:.4g}" for b in r["branches"]) or "none",
            "yes" if r["exception"] else "no",
        )
        for r in rows
    ]  # fmt: skip
    return _common.markdown_table(head, body) + "\n\nBranches: the times at which there is one."


def compare(quick: bool) -> None:
    """All starts."""
    rows: list[dict] = []
    quick_start = (_deep.Case("xor", fl.tasks.xor(), (4, 4), 0.3, 2.0), 0)
    for case, seed in tqdm([quick_start] if quick else starts()):
        rows.append(measured(case, seed, (1e-2, 1e-3) if quick else RATES))
        if not quick:
            _common.save("deep_walk_descent", rows, markdown(rows))
    print(markdown(rows))
