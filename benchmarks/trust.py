"""Is the true error within the ±, and is what is not determined said to be?

    python benchmarks/trust.py [--quick] [--only WORD [WORD ...]]

Runs at tolerances from 1e-4 to 1e-9 are confirmed by `flow.confirm()` and held against the truth:
the same flow by Dopri8 at 1e-12, and of averaged gates the exact walk. "Within" counts events that
are determined and that the truth has. "Spurious" are events that the truth has not: touches at
loose tolerances, and what rounding does after convergence. The share of the last 20 events that
`confirm` goes by was chosen on the first four rows (walks by Tsit5, seeds 0 to 2); all other rows
are held out.

The second table is of the same events by the run, by the finer one that `confirm` makes, and by
both: errors go with `rtol` (steps are as long as their error, of the method's order, allows), so
t2 + (t2 - t1) / 9 would be the limit. The third is of runs to t = 1,000, long after convergence.

Writes `trust.json` and the tables `trust.md` to `benchmarks/results/`, group by group; with
`--only` the groups of these names alone. Rows of other groups stay as they were; each says which
day it is from. Rows of all events have shares, and no medians.
"""

import datetime
import itertools
import json
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import _common
import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import flowlin as fl
from flowlin.record.event_match import counterparts_in_log
from flowlin.runs.confirm import FINER, with_global_errors

TSIT, BOSH, DOP = diffrax.Tsit5(), diffrax.Bosh3(), diffrax.Dopri8()
RTOLS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
TRUTH = {"rtol": 1e-12, "solver": DOP}


class Case(NamedTuple):
    """Runs of one kind: flows by tolerance from one start, and the times of their true events."""

    row: str
    flows: list[Any]
    truth: Any


def tasks() -> dict[str, fl.Task]:
    """Trees, XOR, Gaussian samples and a teacher, all small."""
    teacher = fl.tasks.teacher(40, (1.0, 0.5, 0.2), key=jax.random.key(2))
    return {
        "tree": fl.tasks.hierarchy(levels=3),
        "offset xor": fl.tasks.offset_xor(0.5),
        "gaussian": _common.gaussian(12, 5, 2),
        "teacher": teacher,
    }


def flows(
    network: Any, task: fl.Task, t1: float, rtols: Any, truth: Any = TRUTH, **how: Any
) -> Any:
    """Flows at the tolerances, and the true one."""
    options: dict[str, Any] = {"throw": False} | how
    found = [fl.gradient_flow(network, task, t1, rtol=r, **options) for r in rtols]
    return found, fl.gradient_flow(network, task, t1, **(options | truth))


def time_to_learn(std: float) -> float:
    """Some time constants after all is learned from weights of this size."""
    return 30.0 + 20.0 * max(0.0, -np.log10(std) - 1)


def one_layer_walks(seeds: Any, solver: Any, rtols: Any, row: str, **kind: Any) -> Iterator[Case]:
    """Exact walks of 12 units on all tasks from weights of three sizes."""
    combinations: Any = itertools.product(tasks().items(), seeds, (1e-1, 1e-2, 1e-6))
    for (name, task), seed, std in combinations:
        network = fl.ReLUNetwork.init(task, 12, std**2, key=jax.random.key(seed), **kind)
        found = flows(network, task, time_to_learn(std), rtols, solver=solver)
        yield Case(f"{row}, {name}" if row == "walk, Tsit5" else row, *found)


def other_walks(seeds: Any) -> Iterator[Case]:
    """Leaky units, cross-entropy, decay, two layers, float32, tiny starts."""
    tree, gauss = tasks()["tree"], tasks()["gaussian"]
    for seed in seeds:
        key = jax.random.key(seed)
        tiny = fl.ReLUNetwork.init(tree, 12, 1e-24, key=key)
        yield Case("walk from 1e-12", *flows(tiny, tree, 150.0, RTOLS, solver=TSIT))
        leaky = fl.ReLUNetwork.init(gauss, 12, 1e-2, slope=0.1, key=key)
        yield Case("walk, leaky", *flows(leaky, gauss, 30.0, RTOLS, solver=TSIT))
        plain = fl.ReLUNetwork.init(gauss, 12, 1e-2, key=key)
        decay = flows(plain, gauss, 30.0, RTOLS, solver=TSIT, weight_decay=0.02)
        yield Case("walk, weight decay", *decay)
        labels = jax.nn.one_hot(jnp.argmax(gauss.y, axis=1), 2)
        sorts, entropy = fl.Task(gauss.x, labels), fl.CrossEntropy()
        yield Case(
            "walk, cross-entropy", *flows(plain, sorts, 30.0, RTOLS, solver=TSIT, loss=entropy)
        )
        deep = fl.ReLUNetwork.init(tree, (8, 6), 0.15, key=key)
        yield Case("walk, two layers", *flows(deep, tree, 20.0, RTOLS[1:5], solver=TSIT))
        half = tasks()["gaussian"].astype(jnp.float32)
        single, same = plain.astype(jnp.float32), flows(plain, gauss, 30.0, (), solver=TSIT)[1]
        yield Case(
            "walk, float32", flows(single, half, 30.0, (1e-4, 1e-5), truth={"rtol": 1e-4})[0], same
        )


def smooth(seeds: Any, name: str, solver: Any, rtols: Any) -> Iterator[Case]:
    """Linear networks of two and three layers."""
    tree = tasks()["tree"]
    for seed, std in itertools.product(seeds, (0.3, 1e-2, 1e-5)):
        for hidden in ((16,), (12, 12)) if std > 1e-3 else ((16,),):
            network = fl.LinearNetwork.init(tree, hidden, std**2, key=jax.random.key(seed))
            half = fl.ModeHits(fl.theory.modes(tree, network), share=0.5)
            levels = [fl.LossBelow(share, name=f"loss {share}") for share in (1.5, 0.5, 0.1)]
            t1, events = 2 * time_to_learn(std), [half, *levels]
            found = flows(network, tree, t1, rtols, solver=solver, events=events)
            yield Case(f"smooth, {name}", *found)


def averaged(seeds: Any) -> Iterator[Case]:
    """ReLU networks on digits with averaged gates."""
    digits = fl.tasks.digits(60)
    for seed in seeds:
        network = fl.ReLUNetwork.init(digits, 6, 1e-2, key=jax.random.key(seed))
        half = fl.ModeHits(fl.theory.modes(digits, network), share=0.3)
        events = [half, *(fl.LossBelow(s, name=f"loss {s}") for s in (0.45, 0.4, 0.35))]
        how = {"kinks": fl.AveragedKinks(), "events": events}
        found = [fl.gradient_flow(network, digits, 30.0, rtol=r, **how) for r in (1e-3, 1e-4, 1e-5)]
        exact = fl.gradient_flow(
            network, digits, 30.0, events=events, kinks=fl.ExactKinks(), **TRUTH
        )
        yield Case("averaged gates, losses and modes", found, exact)


def confirmed_and_finer(flow: Any) -> tuple[Any, Any]:
    """A flow with its errors, and the finer run that shows them; None where it is a coarser one."""
    finer = flow.confirm(finer=True)
    if finer.reference.run is flow.reference.run:
        return finer, None
    return with_global_errors(flow, finer, FINER[1]), finer


def events_of_name(run: Any, name: str) -> Any:
    """A run's events of one name, their components counted from the first of that name.

    Runs may have other events before them: an exact walk logs gates and branches.
    """
    log = run.events.select(name)
    first = log.offsets[[channel.name for channel in log.channels].index(name)]
    return types.SimpleNamespace(
        component=np.asarray(log.component) - first,
        **{
            field: np.asarray(getattr(log, field))
            for field in ("time", "uncertainty", "old", "new")
        },
    )


def judged(case: Case) -> Iterator[dict[str, Any]]:
    """Errors, local and global ± of each event of a case's runs; the true error is inf of none."""
    whole = case.row.startswith(("smooth", "averaged"))
    for flow in case.flows:
        confirmed, finer = confirmed_and_finer(flow)
        names = [name for name in {c.name for c in flow.events.channels} if "gate" not in name]
        for name in names if whole else ["gate"]:
            own, true, sure = (events_of_name(run, name) for run in (flow, case.truth, confirmed))
            time, true_times = np.asarray(own.time), np.append(true.time, np.inf)
            there = true_times[counterparts_in_log(own, true)]
            part = {
                "error": np.abs(time - there),
                "local": np.asarray(own.uncertainty),
                "stated": np.asarray(sure.uncertainty),
                "rounding": 2e-15 * time,
            }
            both = np.full((2, len(time)), np.nan)
            if finer is not None:
                better = events_of_name(finer, name)
                second = np.append(better.time, np.nan)[counterparts_in_log(own, better)]
                both = np.abs(np.stack([second, second + (second - time) / 9]) - there)
                ends = true_times[counterparts_in_log(better, true)]
                off, stated = np.abs(np.asarray(better.time) - ends), np.asarray(better.uncertainty)
                sure_ones = np.isfinite(off) & np.isfinite(stated)
                part["finer within"] = (off <= stated + 2e-15 * np.asarray(better.time))[sure_ones]
            yield part | {"finer": both[0], "of both": both[1]}


def joined(parts: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """What was found of all events of some runs, end to end."""
    names = {name: None for part in parts for name in part}
    empty = np.zeros(0)
    return {name: np.concatenate([part.get(name, empty) for part in parts]) for name in names}


def coverage(row: str, of: dict[str, np.ndarray]) -> dict[str, Any]:
    """A row of the first table: shares of the events that are within the ±."""
    error, local, stated, rounding = (of[k] for k in ("error", "local", "stated", "rounding"))
    real, known = np.isfinite(error), np.isfinite(stated)
    both = real & known
    positive = both & (error > 0)
    return {
        "runs": row,
        "events": len(error),
        "local, within 3 ±": float(np.mean((error <= 3 * local + rounding)[real])),
        "within ±": float(np.mean((error <= stated + rounding)[both])),
        "within 3 ±": float(np.mean((error <= 3 * stated + rounding)[both])),
        "± over error": float(np.median((stated / np.where(error > 0, error, 1.0))[positive])),
        "real, not determined": float(np.mean(~known[real])),
        "spurious": int(np.sum(~real)),
        "spurious, determined": int(np.sum(~real & known)),
    }


def improvement(row: str, of: dict[str, np.ndarray]) -> dict[str, Any]:
    """A row of the second table: errors by the run, by the finer one, and by both of them."""
    known = np.isfinite(of["error"]) & np.isfinite(of["stated"]) & np.isfinite(of["finer"])
    errors = {"run": of["error"], "finer": of["finer"], "both": of["of both"]}
    found: dict[str, Any] = {"errors of": row, "determined": int(np.sum(known))}
    for name, error in errors.items():
        median, most = np.quantile(error[known], (0.5, 0.9))
        found |= {f"{name}, median": float(median), f"{name}, 90 %": float(most)}
    for name in ("finer", "both"):
        found[f"{name} worse"] = float(
            np.mean((errors[name] > of["error"] + of["rounding"])[known])
        )
    for name, error in errors.items():
        within = error <= of["stated"] + of["rounding"]
        found[f"{name}, within the run's ±"] = float(np.mean(within[known]))
    return found | {"finer, within its own ±": float(np.mean(of["finer within"]))}


def long_after(seed: int, name: str, rtol: float) -> dict[str, Any]:
    """One run to t = 1,000: what is determined, and t*."""
    task = tasks()[name]
    network = fl.ReLUNetwork.init(task, 8, 1e-2, key=jax.random.key(seed))
    flow = fl.gradient_flow(network, task, 1000.0, rtol=rtol, solver=TSIT)
    before, confirmed = flow.linearization().open, flow.confirm()
    after = confirmed.linearization().open
    return {
        "run": f"{name}, seed {seed}",
        "rtol": rtol,
        "events": len(flow.events),
        "determined": int(np.sum(confirmed.events.is_determined)),
        "converged at": float(confirmed.stats["converged"]),
        "t* before": float(before.time),
        "t* open": float(after.time),
        "±": float(after.bracket[1] - after.time),
        "not determined after": float(after.determined_until),
    }


CASES: dict[str, Callable[[Any], Iterator[Case]]] = {
    "walks by Tsit5": lambda seeds: one_layer_walks(range(3), TSIT, RTOLS, "walk, Tsit5"),
    "held out by Tsit5": lambda seeds: one_layer_walks(seeds, TSIT, RTOLS, "walk, Tsit5, held out"),
    "held out by Bosh3": lambda seeds: one_layer_walks(
        seeds, BOSH, RTOLS[:3], "walk, Bosh3, held out"
    ),
    "held out by Dopri8": lambda seeds: one_layer_walks(
        seeds, DOP, RTOLS, "walk, Dopri8, held out"
    ),
    "other walks": other_walks,
    "smooth, Tsit5": lambda seeds: smooth(seeds, "Tsit5", TSIT, RTOLS[:5]),
    "smooth, Dopri8": lambda seeds: smooth(seeds, "Dopri8", DOP, RTOLS[:5]),
    "smooth, RecycledBDF": lambda seeds: smooth(seeds, "RecycledBDF", fl.RecycledBDF(), RTOLS[:5]),
    "smooth, RKC": lambda seeds: smooth(seeds, "RKC", fl.RKC(), RTOLS[:3]),
    "averaged gates": averaged,
}
GROUPS = [*CASES, "long after"]
ROWS = [
    *(f"walk, Tsit5, {name}" for name in ("tree", "offset xor", "gaussian", "teacher")),
    *(f"walk, {name}, held out" for name in ("Tsit5", "Bosh3", "Dopri8")),
    "walk from 1e-12",
    *(f"walk, {name}" for name in ("leaky", "weight decay", "cross-entropy", "two layers")),
    "walk, float32",
    *(f"smooth, {name}" for name in ("Tsit5", "Dopri8", "RecycledBDF", "RKC")),
    "averaged gates, losses and modes",
]


def measured(name: str, quick: bool) -> list[dict[str, Any]]:
    """The rows of a group; quickly of a few runs."""
    found: dict[str, list[dict[str, Any]]] = {}
    for case in itertools.islice(CASES.get(name, none)(range(3, 6)), 2 if quick else None):
        flows = case.flows[: 3 if quick else None]
        found.setdefault(case.row, []).extend(judged(case._replace(flows=flows)))
    parts = {row: joined(of) for row, of in found.items()}
    rows = [coverage(row, of) for row, of in parts.items()]
    rows += [improvement(row, of) for row, of in parts.items() if np.any(np.isfinite(of["finer"]))]
    if name == "long after":
        seeds, rtols = range(1 if quick else 3), (1e-6, 1e-8, 1e-10)
        runs = itertools.product(("tree", "offset xor"), seeds, rtols)
        rows += [long_after(seed, name, rtol) for name, seed, rtol in runs]
    today = datetime.date.today().isoformat()
    return [row | {"made": today} for row in rows]


def none(seeds: Any) -> Iterator[Case]:
    """No cases."""
    del seeds
    return iter(())


def with_totals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows in the order of the tables, each table with the shares of all its events."""
    order = {name: k for k, name in enumerate(ROWS)}
    chosen_on = [f"walk, Tsit5, {name}" for name in tasks()]
    found: list[dict[str, Any]] = []
    for kind, total in (("runs", total_coverage), ("errors of", total_improvement)):
        own = [row for row in rows if kind in row and not row[kind].startswith("all")]
        own.sort(key=lambda row: order[row[kind]])
        held_out = [row for row in own if row[kind] not in chosen_on]
        found += own
        if own and (kind == "runs" or len(held_out) < len(own)):
            found.append(total("all", own))
        if held_out:
            found.append(total("all held out", held_out))
    return found + [row for row in rows if "run" in row]


def shares(rows: list[dict[str, Any]], weights: Any, names: list[str]) -> dict[str, float]:
    """Shares of the events of several rows, of which each has so many."""
    return {
        name: float(np.sum(np.multiply([row[name] for row in rows], weights)) / np.sum(weights))
        for name in names
    }


def total_coverage(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of all events of some rows; medians of such are not known."""
    events, spurious, determined = (
        np.array([row[key] for row in rows])
        for key in ("events", "spurious", "spurious, determined")
    )
    real = events - spurious
    known = np.round(real * (1 - np.array([row["real, not determined"] for row in rows])))
    return {
        "runs": name,
        "events": int(np.sum(events)),
        **shares(rows, real, ["local, within 3 ±"]),
        **shares(rows, known, ["within ±", "within 3 ±"]),
        "± over error": "-",
        **shares(rows, real, ["real, not determined"]),
        "spurious": int(np.sum(spurious)),
        "spurious, determined": int(np.sum(determined)),
        "made": max(row["made"] for row in rows),
    }


def total_improvement(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The same of the table of errors."""
    weights = [row["determined"] for row in rows]
    shared = [key for key in rows[0] if "worse" in key or "within" in key]
    known = {"errors of": name, "determined": sum(weights)} | shares(rows, weights, shared)
    return {key: known.get(key, "-") for key in rows[0]} | {
        "made": max(row["made"] for row in rows)
    }


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row is of."""
    return tuple(row.get(name) for name in ("runs", "errors of", "run", "rtol"))


def tables(rows: list[dict[str, Any]]) -> str:
    """The tables of all rows, one for each kind."""
    kinds = [[row for row in rows if kind in row] for kind in ("runs", "errors of", "run")]
    return "\n\n".join(
        _common.markdown_table(list(kind[0]), [[shown(v) for v in row.values()] for row in kind])
        for kind in kinds
        if kind
    )


def main() -> None:
    """Measure, print, write."""
    parser = _common.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=GROUPS, help="the groups to make")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    groups = given.only or (["walks by Tsit5", "long after"] if given.quick else GROUPS)
    known: dict[Any, dict[str, Any]] = {}
    for name in groups:
        new = {identity(row): row for row in measured(name, given.quick)}
        file = _common.RESULTS / "trust.json"
        if not given.quick and file.exists():
            known = {identity(row): row for row in json.loads(file.read_text())}
        rows = with_totals(list((known | new).values()))
        print(tables(rows))
        if not given.quick:
            _common.save("trust", rows, tables(rows))


def shown(value: Any) -> str:
    """A cell of the table."""
    return f"{value:.5g}" if isinstance(value, float) else f"{value}"


if __name__ == "__main__":
    main()
