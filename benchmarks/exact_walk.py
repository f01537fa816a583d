"""The exact walk of ReLU networks over many seeds: does it finish, and are its events converged?

    python benchmarks/exact_walk.py [--quick] [--seeds 100]

Five tasks, 64 hidden units with biases, seeds 0, 1, ..., `kinks=fl.ExactKinks()` at rtol 1e-6,
1e-8 and 1e-10 (1e-4: the first 20 seeds), saved at 401 times. Per task and tolerance:

- failed: runs that did not reach t1.
- rises: runs in which the loss rises between saved times by more than rounding, 8 eps (L +
  sqrt(L L(0))); the largest rise, and the largest loss from which it rose so, both over L(0).
- drift: the largest change of |w_j|^2 + b_j^2 - |a_j|^2 over units and saved times.
- re-entered: (unit, sample) pairs that leave a slide and are back in it within 0.01, as a share
  of the events.
- t* off: the largest relative difference of t* (open, closed) from the same seed's at the finest
  tolerance, and the number of seeds in which it exceeds 1e-7. Where 1e-8 differs so, the JSON has
  the seed with the event at t*, its uncertainty, and the residual there, sqrt(2 L(t*)).
- majority: seeds in which more than half of the units are always on at t* (open, closed).

Few units are ever on for all 40 samples of the Gaussian data: there, always on means on for three
quarters of them.

Writes `exact_walk.json` and the tables `exact_walk.md` to `benchmarks/results/`.
"""

import warnings
from typing import Any, NamedTuple

import _common
import jax
import numpy as np
from tqdm import tqdm

import flowlin as fl

# final time, initial variance, quantile of t*
SETTINGS = {
    "hierarchy": (60.0, 2e-4, 0.0),
    "xor": (60.0, 2e-4, 0.0),
    "xor 0/1": (60.0, 2e-4, 0.0),
    "offset xor": (60.0, 2e-4, 0.0),
    "gaussian": (10.0, 1e-2, 0.25),
}
TOLERANCES = (1e-4, 1e-6, 1e-8, 1e-10)
BACK_WITHIN = 1e-2
SAME = 1e-7


class Run(NamedTuple):
    """What is kept of one run."""

    seed: int
    seconds: float
    okay: bool
    events: int
    accepted: int
    rejected: int
    rise: float
    rises: bool
    rose_from: float  # largest loss that rose, over L(0)
    drift: float
    entries: int
    reentered: int
    t_star: tuple[float, float]  # open, closed
    fraction: tuple[float, float]
    residual: tuple[float, float]  # sqrt(2 L) at t*
    half_width: float  # uncertainty of the open t*
    pair: int  # (unit, sample) component that switches at the open t*
    uncertainty: float  # largest of all events


def reentered(log: fl.EventLog) -> int:
    """How often a pair leaves a slide and is back in it within `BACK_WITHIN`."""
    time, component, old, new = map(np.asarray, (log.time, log.component, log.old, log.new))
    order = np.argsort(component, kind="stable")
    time, component, old, new = (a[order] for a in (time, component, old, new))
    same = component[1:] == component[:-1]
    return int(np.sum(same & (old[:-1] == 0) & (new[1:] == 0) & (np.diff(time) < BACK_WITHIN)))


def walk(task: fl.Task, setting: tuple, rtol: float, seed: int, hidden: int) -> Run:
    """One run, and what is kept of it."""
    t1, variance, quantile = setting
    network = fl.ReLUNetwork.init(
        task, hidden=(hidden,), variance=variance, key=jax.random.key(seed)
    )
    taken, flow = _common.seconds(
        lambda: _common.exact_walk(network, task, t1, rtol, ts=np.linspace(0, t1, 401), throw=False)
    )
    losses = np.asarray(flow.losses)
    rounding = 8 * np.finfo(float).eps * (losses[1:] + np.sqrt(losses[1:] * losses[0]))
    rise = np.diff(losses)
    line, log = flow.linearization(quantile), flow.events
    stars = (float(line.open.time), float(line.closed.time))
    log_losses = np.interp(stars, np.asarray(flow.ts), np.log(losses))
    at = np.flatnonzero(np.asarray(log.time) == float(line.open.time))
    return Run(
        seed=seed,
        seconds=taken,
        okay=bool(flow.result == fl.RESULTS.successful),
        events=len(log),
        accepted=int(flow.stats["num_accepted_steps"]),
        rejected=int(flow.stats["num_rejected_steps"]),
        rise=float(np.max(rise) / losses[0]),
        rises=bool(np.any(rise > rounding)),
        rose_from=float(np.max(losses[:-1] * (rise > rounding)) / losses[0]),
        drift=float(np.max(fl.measures.drift(fl.measures.along(flow, fl.measures.conserved)))),
        entries=int(np.sum(np.asarray(log.new) == 0)),
        reentered=reentered(log),
        t_star=stars,
        residual=tuple(np.sqrt(2 * np.exp(log_losses)).tolist()),
        fraction=(float(line.open.fraction), float(line.closed.fraction)),
        half_width=float(np.asarray(log.uncertainty)[at[0]]) if at.size else 0.0,
        pair=int(np.asarray(log.component)[at[0]]) if at.size else -1,
        uncertainty=float(np.max(np.asarray(log.uncertainty), initial=0.0)),
    )


def reason(row: dict[str, Any], rtol: float) -> str:
    """Why t* differs between rtol and the finest tolerance."""
    if row["fractions"][0] != row["fractions"][1]:
        return "another maximum"
    change = abs(row["values"][0] - row["values"][1])
    if change <= sum(row.get("uncertainties", [0.0])):
        return "tangential: within the event's uncertainty"
    if rtol / row["residual"] > row["off"]:
        return "late: an error of rtol moves the residual by more than that"
    return "unexplained"


def exceptions(task: str, runs: dict[float, list[Run]]) -> list[dict]:
    """Seeds whose t* differs between the two finest tolerances, and why."""
    coarse, fine = sorted(runs)[1], sorted(runs)[0]
    found = []
    for a, b in zip(runs[coarse], runs[fine], strict=True):
        for side, name in enumerate(("open", "closed")):
            off = abs(a.t_star[side] / b.t_star[side] - 1) if b.t_star[side] else 0.0
            if off <= SAME:
                continue
            row: dict[str, Any] = {"task": task, "seed": a.seed, "t*": name, "off": off}
            row |= {"values": [a.t_star[side], b.t_star[side]]}
            row |= {"residual": b.residual[side]}
            row |= {"fractions": [a.fraction[side], b.fraction[side]]}
            if name == "open":
                row |= {"pairs": [a.pair, b.pair], "uncertainties": [a.half_width, b.half_width]}
            found.append(row | {"reason": reason(row, coarse)})
    return found


def exception_table(rows: list[dict]) -> str:
    """The exceptions as Markdown."""
    head = (
        "task", "seed", "t*", "at 1e-8", "at 1e-10", "off", "uncertainty", "residual", "reason",
    )  # fmt: skip
    body = [
        (
            r["task"], r["seed"], r["t*"], *(f"{v:.9g}" for v in r["values"]), f"{r['off']:.1e}",
            " / ".join(f"{u:.0e}" for u in r.get("uncertainties", [])) or "-",
            f"{r['residual']:.0e}", r["reason"],
        )
        for r in rows
    ]  # fmt: skip
    title = "Seeds whose t* differs by more than 1e-7 between rtol 1e-8 and 1e-10:"
    return f"{title}\n\n{_common.markdown_table(head, body)}" if body else title + " none."


def summary(task: str, rtol: float, runs: list[Run], finest: list[Run]) -> dict[str, Any]:
    """One row of the table."""

    def spread(values):
        return [float(np.median(values)), float(np.max(values))]

    stars = np.array([r.t_star for r in runs])
    exact = np.array([r.t_star for r in finest[: len(runs)]])
    off = np.abs(stars - exact) / np.where(exact > 0, exact, 1.0)
    majority = np.array([r.fraction for r in runs]) > 0.5
    return {
        "task": task,
        "rtol": rtol,
        "seeds": len(runs),
        "failed": sum(not r.okay for r in runs),
        "events": spread([r.events for r in runs]),
        "accepted": spread([r.accepted for r in runs]),
        "rejected": spread([r.rejected for r in runs]),
        "rise": float(np.max([r.rise for r in runs])),
        "runs with rises": sum(r.rises for r in runs),
        "rose from": float(np.max([r.rose_from for r in runs])),
        "drift": float(np.max([r.drift for r in runs])),
        "slides": float(np.median([r.entries for r in runs])),
        "re-entered": sum(r.reentered for r in runs) / max(1, sum(r.events for r in runs)),
        "t* off": [float(v) for v in np.max(off, axis=0)],
        "t* off, number": [int(v) for v in np.sum(off > SAME, axis=0)],
        "majority": [int(v) for v in np.sum(majority, axis=0)],
        "seconds": float(np.median([r.seconds for r in runs[1:] or runs])),
    }


def markdown(rows: list[dict]) -> str:
    """The tables as Markdown."""
    head = (
        "task", "rtol", "seeds", "failed", "rises (largest, from)", "drift",
        "events, median / max", "steps, median / max", "rejected", "re-entered",
        "t* open off", "t* closed off", "majority on, open / closed", "seconds",
    )  # fmt: skip
    body = [
        (
            r["task"], f"{r['rtol']:.0e}", r["seeds"], r["failed"],
            f"{r['runs with rises']} ({r['rise']:.0e}, {r['rose from']:.0e})"
            if r["runs with rises"]
            else "0",
            f"{r['drift']:.0e}",
            "{:.0f} / {:.0f}".format(*r["events"]), "{:.0f} / {:.0f}".format(*r["accepted"]),
            "{:.0f} / {:.0f}".format(*r["rejected"]), f"{100 * r['re-entered']:.2f} %",
            *(
                f"{off:.0e} ({n})" if r["rtol"] > min(TOLERANCES) else "-"
                for off, n in zip(r["t* off"], r["t* off, number"], strict=True)
            ),
            "{} / {}".format(*r["majority"]), f"{r['seconds']:.2f}",
        )
        for r in rows
    ]  # fmt: skip
    return _common.markdown_table(head, body)


def columns(task: str, rtol: float, runs: list[Run]) -> dict[str, Any]:
    """The runs seed by seed."""
    return {
        "task": task,
        "rtol": rtol,
        "events": [r.events for r in runs],
        "t* open": [float(f"{r.t_star[0]:.12g}") for r in runs],
        "t* closed": [float(f"{r.t_star[1]:.12g}") for r in runs],
        "fraction open": [r.fraction[0] for r in runs],
        "fraction closed": [r.fraction[1] for r in runs],
        "uncertainty of t* open": [float(f"{r.half_width:.2g}") for r in runs],
        "largest uncertainty": [float(f"{r.uncertainty:.2g}") for r in runs],
    }


def main() -> None:
    """Run every task at every tolerance."""
    parser = _common.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    given = parser.parse_args()
    warnings.simplefilter("ignore", fl.LinearizationWarning)
    tasks, hidden = _common.toys(), 64
    if given.quick:
        tasks, hidden, given.seeds = {"xor": tasks["xor"]}, 16, 2
    tables: list[list[dict]] = [[], [], []]
    for name, task in tasks.items():
        runs: dict[float, list[Run]] = {}
        for rtol in TOLERANCES:
            seeds = range(min(20, given.seeds) if rtol > 1e-5 else given.seeds)
            runs[rtol] = [
                walk(task, SETTINGS[name], rtol, seed, hidden)
                for seed in tqdm(seeds, f"{name}, {rtol:.0e}")
            ]
        tables[0] += [summary(name, r, found, runs[min(runs)]) for r, found in runs.items()]
        tables[1] += exceptions(name, runs)
        tables[2] += [columns(name, r, found) for r, found in runs.items()]
        text = f"{markdown(tables[0])}\n\n{exception_table(tables[1])}"
        print(text, flush=True)
        if not given.quick:
            _common.save("exact_walk", [*tables[0], *tables[1], *tables[2]], text)


if __name__ == "__main__":
    main()
