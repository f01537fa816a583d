"""Where the flow of a deep network is not unique: a search for walks that descent leaves.

Part `--branches` of `deep_walk.py`. Gaussian tasks: inputs (P, d) and targets (P, 2) standard
normal, drawn with the two keys of `jax.random.split(jax.random.key(seed))`; networks
`fl.ReLUNetwork.init(task, (6, 6), 0.3, key=jax.random.key(seed))`; walked to t = 20 at rtol 1e-9.
Where a walk has a branch, descent runs from the start at rates 1e-3 and 1e-4. It follows the walk
if its relative parameter distance at t = 20 shrinks to less than `SHRINKS` of itself with the rate.
Where it does not, it runs at 1e-5 too, and at all rates from just past the first exit (`PAST`
later). If it still does not shrink, the flow is taken to be not unique, and `SmoothKinks` of widths
1e-3 and 1e-4 run from the start: the walk is their limit if they come closer with the width.
Writes `deep_walk_branches.json` and the table `deep_walk_branches.md`.
"""

from typing import Any

import _common
import _deep
import numpy as np
from tqdm import tqdm

import flowlin as fl

SETTINGS = ((8, 4), (6, 5))  # samples, inputs
T1 = 20.0
RATES = (1e-3, 1e-4, 1e-5)
WIDTHS = (1e-3, 1e-4)
PAST = 1e-3
SHRINKS = 0.4


def case_of(samples: int, inputs: int, seed: int) -> _deep.Case:
    """A Gaussian problem of its own for every seed."""
    task = _common.gaussian(samples, inputs, 2, seed)
    return _deep.Case(f"P = {samples}, d = {inputs}", task, (6, 6), 0.3, T1)


def distances(case: _deep.Case, network: Any, start: float, end: Any, rates: Any) -> list[float]:
    """Relative distances to the walk's end of descent from a time on, one per rate."""
    ends = [_common.descended(network, case.task, case.t1 - start, rate) for rate in rates]
    return [float(fl.distance(one, end, relative=True)) for one in ends]


def shrinks(found: list[float]) -> bool:
    """Whether the last distance is much smaller than the one before."""
    return found[-1] < SHRINKS * found[-2]


def smoothed(case: _deep.Case, network: Any, end: Any) -> list[float]:
    """Relative distances to the walk's end of smoothed flows."""
    found = []
    for width in WIDTHS:
        flow = fl.gradient_flow(
            network, case.task, case.t1, kinks=fl.SmoothKinks(width), rtol=1e-7,
            events=(fl.UnitSwitches(),), throw=False,
        )  # fmt: skip
        found.append(float(fl.distance(flow.final, end, relative=True)))
    return found


def examined(case: _deep.Case, seed: int, rates: tuple[float, ...]) -> dict[str, Any]:
    """One walk, and what descent does where it has a branch."""
    network = case.start(seed)

    def walk(time: float) -> Any:
        return _deep.walk(case, network, 1e-9, ts=np.array([time, case.t1]), throw=False)

    flow = walk(case.t1 / 2)
    branches = _deep.Branch.all_of(flow)
    row: dict[str, Any] = {"case": case.name, "seed": seed, "outcome": _deep.said(flow)}
    row |= {"reached": float(flow.end), "events": len(flow.events) - len(branches)}
    row |= {"branches": branches, "follows": True}
    if not branches or row["outcome"] != "end":
        return row
    row["certificate"] = float(flow.stats["branch_certificate"])
    row["from the start"] = distances(case, network, 0.0, flow.final, rates[:2])
    row["follows"] = shrinks(row["from the start"])
    if not row["follows"]:
        past = min(branches[0].time + PAST, case.t1)
        later = _deep.saved(walk(past), 0)
        row["from the start"] += distances(case, network, 0.0, flow.final, rates[2:])
        row["from past the exit"] = distances(case, later, past, flow.final, rates)
        row["follows"] = shrinks(row["from the start"])
    if not row["follows"]:
        row["smoothed"] = smoothed(case, network, flow.final)
    return row


def markdown(rows: list[dict]) -> str:
    """The table as Markdown: counts, and a line per walk with a branch."""
    lines = []
    for name in dict.fromkeys(r["case"] for r in rows):
        mine = [r for r in rows if r["case"] == name]
        branched = [r for r in mine if r["branches"]]
        left = [r for r in branched if not r["follows"]]
        failed = sum(r["outcome"] != "end" for r in mine)
        lines.append((name, len(mine), failed, len(branched), len(left)))
    counts = _common.markdown_table(
        ("case", "seeds", "failed", "with branches", "not followed by descent"), lines
    )
    head = ("case", "seed", "branches: time (layer, unit, sample)", "certificate",
            "descent from the start", "from past the exit", "smoothed", "follows")  # fmt: skip

    def several(values: Any) -> str:
        return " / ".join(f"{value:.1e}" for value in values) or "-"

    body = [
        (
            r["case"], r["seed"], "; ".join(f"{b[0]:.6g} {tuple(b[1])}" for b in r["branches"]),
            f"{r['certificate']:.1e}", several(r["from the start"]),
            several(r.get("from past the exit", ())), several(r.get("smoothed", ())),
            "yes" if r["follows"] else "**no**",
        )
        for r in rows
        if "certificate" in r
    ]  # fmt: skip
    said = "Distances at rates 1e-3 / 1e-4 / 1e-5, and at widths 1e-3 / 1e-4."
    return f"{counts}\n\n{_common.markdown_table(head, body)}\n\n{said}"


def search(seeds: int, quick: bool) -> None:
    """All seeds of all settings."""
    rows: list[dict] = []
    settings = SETTINGS[:1] if quick else SETTINGS
    for samples, inputs in settings:
        for seed in tqdm(range(2 if quick else seeds), f"P = {samples}, d = {inputs}"):
            case = case_of(samples, inputs, seed)
            rows.append(examined(case, seed, (1e-2, 1e-3, 1e-3) if quick else RATES))
            if not quick:
                _common.save("deep_walk_branches", rows, markdown(rows))
    print(markdown(rows))
