"""Exact walks of networks with two and three hidden layers: do they all finish, and how exact?

    python benchmarks/deep_walk.py [--quick] [--seeds 100] [--case NAME]
                                   [--descent] [--branches] [--unbiased] [--shapes]

Biases in all hidden layers, seeds 0, 1, ..., `kinks=fl.ExactKinks()` at rtol 1e-6, 1e-8 and 1e-10,
saved at 401 times. Per case and tolerance:

- failed: runs that did not reach t1, and how they ended.
- rises: runs in which the loss rises between saved times by more than rounding, 8 eps (L +
  sqrt(L L(0))); the largest difference of two saved losses, next to each other, over L(0).
- drift: the largest change of |w_j|^2 + b_j^2 - |a_j|^2 over units of all layers and saved times,
  over the largest |w_j|^2 + b_j^2 + |a_j|^2 of the run; and that at t1 alone, where a step ends:
  at the others it is the error of the dense output within steps.
- in two layers: the share of the time in which a sample slides in two layers at once.
- branches: runs with exits where the flow may not be unique (`flow.events.select("branch")`), and
  the largest certificate of a first one (`flow.stats["branch_certificate"]`).
- t* off: per layer, open and closed, the largest relative difference of t* from the same seed's at
  rtol 1e-10, and the number of seeds in which it exceeds 1e-6.
- seconds: median over runs but the first, which compiles where the case is new; and per event.

Writes `deep_walk.json` and `deep_walk.md` to `benchmarks/results/`; with `--descent`, `--branches`,
`--unbiased` or `--shapes` their own parts instead, whose files end so (see `_deep_descent.py`,
`_deep_branches.py`, `_deep_unbiased.py` and `_deep_shapes.py`).
"""

import json
import warnings
from typing import Any, NamedTuple

import _common
import _deep
import _deep_branches
import _deep_descent
import _deep_shapes
import _deep_unbiased
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import flowlin as fl

TOLERANCES = (1e-6, 1e-8, 1e-10)
SAME = 1e-6
PARTS = """Parts: [descent against the walk](deep_walk_descent.md),
[where the flow may not be unique](deep_walk_branches.md),
[without biases](deep_walk_unbiased.md), [very small ones](deep_walk_shapes.md)."""


def cases() -> list[_deep.Case]:
    """What is walked."""
    tree = fl.tasks.hierarchy(levels=3)
    return [
        _deep.Case("xor", fl.tasks.xor(), (16, 16), 0.1, 20.0),
        _deep.Case("offset xor", fl.tasks.offset_xor(), (16, 16), 0.1, 20.0),
        _deep.Case("gaussian", _common.gaussian(12, 4), (12, 12), 0.2, 20.0),
        _deep.Case("tree", tree, (12, 12, 12), 0.05, 30.0),
        _deep.Case("tree", tree, (32, 32), 1e-2, 60.0),
    ]


class Run(NamedTuple):
    """What is kept of one run."""

    seed: int
    seconds: float
    outcome: str
    reached: float
    events: int
    steps: int
    rise: float
    rises: bool
    drift: float
    drift_at_end: float
    shared: float
    branches: list[_deep.Branch]
    certificate: float
    t_star: list[float]  # open and closed, layer by layer
    uncertainty: float  # largest of all events


def conserved(network: Any, task: fl.Task) -> Any:
    """What every hidden unit conserves, and the sum in place of the difference, (2, H)."""
    layers = range(len(network.hidden))
    kept = jnp.concatenate([fl.measures.conserved(network, layer=k) for k in layers])
    out = jnp.concatenate([jnp.sum(network.weights[k + 1] ** 2, axis=0) for k in layers])
    return jnp.stack([kept, kept + 2 * out])


def run(case: _deep.Case, rtol: float, seed: int) -> Run:
    """One run, and what is kept of it."""
    network = case.start(seed)
    options: Any = {"ts": np.linspace(0, case.t1, 401), "observe": {"units": conserved}}
    taken, flow = _common.seconds(lambda: _deep.walk(case, network, rtol, throw=False, **options))
    losses, units = np.asarray(flow.losses), np.asarray(flow.observed["units"])
    rounding = 8 * np.finfo(float).eps * (losses[1:] + np.sqrt(losses[1:] * losses[0]))
    drifts = np.max(np.abs(units[:, 0] - units[0, 0]), axis=1) / np.max(units[:, 1])
    lines = [flow.linearization(layer=k) for k in range(len(case.hidden))]
    log = flow.events
    return Run(
        seed=seed,
        seconds=taken,
        outcome=_deep.said(flow),
        reached=float(flow.end),
        events=int(np.sum([name == "gate" for name in log.name])),
        steps=int(flow.stats["num_steps"]),
        rise=float(np.max(np.diff(losses)) / losses[0]),
        rises=bool(np.any(np.diff(losses) > rounding)),
        drift=float(np.max(drifts)),
        drift_at_end=float(drifts[-1]),
        shared=_deep.shared_slides(log, case.hidden, case.task.samples, float(flow.end)),
        branches=_deep.Branch.all_of(flow),
        certificate=float(flow.stats["branch_certificate"]),
        t_star=[float(t.time) for line in lines for t in (line.open, line.closed)],
        uncertainty=float(np.max(np.asarray(log.uncertainty), initial=0.0)),
    )


def summary(case: _deep.Case, rtol: float, runs: list[Run], finest: list[Run]) -> dict[str, Any]:
    """One row of the table."""
    stars, exact = (np.array([r.t_star for r in found]) for found in (runs, finest))
    off = np.abs(stars - exact) / np.where(exact > 0, exact, 1.0)
    failed = [r for r in runs if r.outcome != "end"]
    branched = [r for r in runs if r.branches]
    warm = runs[1:] or runs
    return {
        "case": case.label,
        "rtol": rtol,
        "seeds": len(runs),
        "failed": len(failed),
        "outcomes": sorted({f"{r.outcome} (seed {r.seed})" for r in failed}),
        "runs with rises": sum(r.rises for r in runs),
        "rise": max(r.rise for r in runs),
        "drift": max(r.drift for r in runs),
        "drift at end": max(r.drift_at_end for r in runs),
        "events": [float(np.median([r.events for r in runs])), max(r.events for r in runs)],
        "steps": float(np.median([r.steps for r in runs])),
        "in two layers": np.quantile([r.shared for r in runs], (0, 0.5, 1)).tolist(),
        "runs with branches": len(branched),
        "certificate": max((r.certificate for r in branched), default=None),
        "t* off": np.max(off, axis=0).tolist(),
        "t* off, number": np.sum(off > SAME, axis=0).tolist(),
        "seconds": float(np.median([r.seconds for r in warm])),
        "seconds per event": float(np.median([r.seconds / max(1, r.events) for r in warm])),
    }


def off(row: dict) -> str:
    """By how much t* differs, layer by layer, open and closed."""
    found = zip(row["t* off"], row["t* off, number"], strict=True)
    return "; ".join(f"{most:.0e} ({seeds})" for most, seeds in found)


def markdown(rows: list[dict]) -> str:
    """The table as Markdown."""
    head = (
        "case", "rtol", "seeds", "failed", "rises (largest difference)", "drift (at t1)",
        "events, median / max", "steps", "in two layers, least / median / most",
        "branches: runs, certificate", "t* off per layer, open, closed (seeds)", "seconds",
        "ms per event",
    )  # fmt: skip
    body = [
        (
            r["case"], f"{r['rtol']:.0e}", r["seeds"], ", ".join(r["outcomes"]) or "0",
            f"{r['runs with rises']} ({r['rise']:.0e})",
            f"{r['drift']:.0e} ({r['drift at end']:.0e})",
            "{:.0f} / {:.0f}".format(*r["events"]), f"{r['steps']:.0f}",
            " / ".join(f"{share:.0%}" for share in r["in two layers"]),
            f"{r['runs with branches']}, {r['certificate']:.0e}" if r["certificate"] else "0",
            off(r) if r["rtol"] > min(TOLERANCES) else "-",
            f"{r['seconds']:.2f}", f"{1e3 * r['seconds per event']:.1f}",
        )
        for r in rows
    ]  # fmt: skip
    return f"{_common.markdown_table(head, body)}\n\n{PARTS}"


def columns(case: _deep.Case, rtol: float, runs: list[Run]) -> dict[str, Any]:
    """The runs seed by seed."""
    fields = ("seed", "reached", "events", "drift", "drift_at_end", "shared", "branches",
              "certificate", "t_star", "uncertainty")  # fmt: skip
    kept = {name: [getattr(r, name) for r in runs] for name in fields}
    kept["certificate"] = [None if np.isnan(r.certificate) else r.certificate for r in runs]
    return {"case": case.label, "rtol": rtol, **kept}


def walks(chosen: list[_deep.Case], seeds: int, saved: bool) -> None:
    """All seeds of every case at every tolerance; saved results of other cases are kept."""
    path = _common.RESULTS / "deep_walk.json"
    known = json.loads(path.read_text()) if saved and path.exists() else []
    for case in chosen:
        found = {
            rtol: [run(case, rtol, s) for s in tqdm(range(seeds), f"{case.label}, {rtol:.0e}")]
            for rtol in TOLERANCES
        }
        finest = found[min(TOLERANCES)]
        rows = [summary(case, rtol, runs, finest) for rtol, runs in found.items()]
        details = [columns(case, rtol, runs) for rtol, runs in found.items()]
        print(markdown(rows), flush=True)
        known = [entry for entry in known if entry["case"] != case.label] + rows + details
        if saved:
            known.sort(key=lambda entry: "failed" not in entry)  # summaries first
            table = markdown([entry for entry in known if "failed" in entry])
            _common.save("deep_walk", known, table)


def main() -> None:
    """The part that is asked for."""
    parser = _common.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--case", default="", help="only those with this in their names")
    parser.add_argument("--descent", action="store_true", help="descent against the walk")
    parser.add_argument("--branches", action="store_true", help="search where both part ways")
    parser.add_argument("--unbiased", action="store_true", help="networks without biases")
    parser.add_argument("--shapes", action="store_true", help="very small ones without biases")
    given = parser.parse_args()
    warnings.simplefilter("ignore", fl.LinearizationWarning)
    if given.descent:
        _deep_descent.compare(given.quick)
    elif given.branches:
        _deep_branches.search(given.seeds, given.quick)
    elif given.unbiased:
        _deep_unbiased.survey(given.seeds, given.quick)
    elif given.shapes:
        _deep_shapes.survey(given.seeds, given.quick)
    elif given.quick:
        walks([_deep.Case("xor", fl.tasks.xor(), (4, 4), 0.3, 5.0)], 2, saved=False)
    else:
        walks([case for case in cases() if given.case in case.label], given.seeds, saved=True)


if __name__ == "__main__":
    main()
