"""Refining contenders, timing them in turns, and keeping what was measured."""

import copy
import os
import time
from typing import Any

import _common
import numpy as np
from _peers_problems import PATIENCE, Problem, cost
from _peers_solvers import Contender, Unfinished
from _peers_torch import choose_threads, torch
from tqdm import tqdm

BUDGET = 10.0  # seconds of repetitions per run
SHRINK = 0.9  # descent's rate, relative to what its first-order law asks for


def error(problem: Problem, found: np.ndarray) -> float:
    """Relative error of the final parameters, or the largest of the hitting times."""
    known = problem.known
    if problem.hits is None:
        off = np.linalg.norm(found - known) / np.linalg.norm(known)
    else:
        off = np.max(np.abs(found - known) / known)
    return float(off) if np.isfinite(off) else float("inf")


def tried(problem: Problem, contender: Contender, knob: float) -> dict[str, Any]:
    """One run."""
    assert contender.run is not None
    row: dict[str, Any] = {"knob": knob}
    begin = time.perf_counter()
    try:
        values, evaluations = contender.run(knob)
        row |= {"error": error(problem, values), "evaluations": evaluations}
    except Unfinished as stopped:
        row |= {"unfinished": True, "evaluations": stopped.args[0]}
    except (AssertionError, ValueError, RuntimeError, MemoryError) as failure:
        row |= {"failed": f"{type(failure).__name__}: {failure}"[:120], "evaluations": None}
    row["first seconds"] = time.perf_counter() - begin  # with compilation
    return row


def by_tolerance(problem: Problem, contender: Contender) -> list[dict]:
    """From loose to tight until the smallest target is met, or one run's time is spent."""
    rows: list[dict] = []
    for knob in problem.knobs:
        row = tried(problem, contender, knob)
        rows.append(row)
        spent = sum(r["first seconds"] for r in rows)
        stop = "error" not in row or spent > problem.cap
        if stop or row["error"] <= min(problem.targets):
            break
    return rows


def by_rate(problem: Problem, contender: Contender) -> list[dict]:
    """Descent: a rate for every target, from the errors before it, which fall with the rate."""
    rows: list[dict] = []
    rate, targets = problem.rate, sorted(problem.targets, reverse=True)
    while targets:
        row = tried(problem, contender, rate)
        rows.append(row)
        if "error" not in row:
            break
        while targets and row["error"] <= targets[0]:
            targets.pop(0)
        if not targets:
            break
        slower = rate * min(0.8, SHRINK * targets[0] / row["error"]) if row["error"] else rate / 2
        if not np.isfinite(row["error"]) or row["error"] > 0.5:
            slower = rate / 2  # unstable, or not yet first order
        predicted = row["first seconds"] * rate / slower
        if predicted > PATIENCE * problem.cap:
            needed = round(problem.t1 / slower)
            rows.append({"knob": slower, "unfinished": True, "predicted": needed,
                         "evaluations": needed, "first seconds": predicted})  # fmt: skip
            break
        rate = slower
    return rows


def refine(problem: Problem, contenders: dict[str, Contender]) -> dict[str, list[dict]]:
    """Every contender's runs, from loose to tight."""
    found: dict[str, list[dict]] = {}
    for name, contender in (bar := tqdm(contenders.items(), problem.name)):
        bar.set_postfix_str(name)
        if contender.run is None:
            found[name] = []
        elif contender.iterates_of:
            # The same iterates as another contender's: its knobs, its errors.
            found[name] = [dict(r) for r in found[contender.iterates_of] if "error" in r]
        else:
            rule = by_rate if contender.descends else by_tolerance
            found[name] = rule(problem, contender)
    return found


def chosen(rows: list[dict], target: float) -> dict | None:
    """The coarsest run that meets a target."""
    return next((r for r in rows if r.get("error", np.inf) <= target), None)


def time_in_turns(
    problem: Problem, contenders: dict[str, Contender], rows: dict[str, list[dict]], repeats: int
) -> None:
    """Time every run that meets a target, all of them taking turns; adds `seconds`."""
    runs, places = {}, {}
    for name, contender in contenders.items():
        for target in problem.targets:
            row = chosen(rows[name], target)
            if row is None or contender.run is None:
                continue
            key = f"{name} {row['knob']}"
            runs[key] = lambda run=contender.run, k=row["knob"]: run(k)
            places[key] = (name, row)
    for key in [key for key, (name, _) in places.items() if contenders[name].iterates_of]:
        name, row = places[key]
        check = tried(problem, contenders[name], row["knob"])
        if "error" not in check:
            row.pop("error")
            row |= check
            del runs[key], places[key]
            continue
        row |= check
    for key, seconds in _common.alternated(runs, repeats, BUDGET).items():
        places[key][1]["seconds"] = seconds


def measured(problem: Problem, contenders: dict[str, Contender], repeats: int) -> dict[str, Any]:
    """The entry of one problem."""
    begin, load = time.perf_counter(), os.getloadavg()[0]
    threads = None if torch is None else choose_threads(problem)
    rows = refine(problem, contenders)
    time_in_turns(problem, contenders, rows, repeats)
    return {
        "problem": problem.name,
        "title": problem.title,
        "events": problem.hits is not None,
        "parameters": len(problem.start),
        "reference": problem.reference,
        "targets": problem.targets,
        "cap": problem.cap,
        "main": problem.main,
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "threads of PyTorch": threads,
        "evaluation": float(f"{cost(problem):.3g}"),
        "took": round(time.perf_counter() - begin),
        "contenders": [
            {"name": name, "note": contenders[name].note, "tried": tidy(rows[name])}
            for name in contenders
        ],
    }


def chosen_ones(
    contenders: dict[str, Contender], main: str, prefixes: list[str]
) -> dict[str, Contender]:
    """The main contender, those whose names begin so, and those whose knobs they take over."""
    wanted = {n for n in contenders if n == main or n.startswith(tuple(prefixes))}
    wanted |= {c.iterates_of for n, c in contenders.items() if n in wanted and c.iterates_of}
    return {name: c for name, c in contenders.items() if name in wanted}


def joined(known: dict[str, Any], found: dict[str, Any], prefixes: list[str]) -> dict[str, Any]:
    """Contenders measured later, those whose names begin so, put into an entry.

    They were timed in turns with the main contender; its time then and now scales their seconds.
    """
    main = known["main"]
    then, now = (
        {r["knob"]: r["seconds"] for r in c["tried"] if "seconds" in r}
        for c in (next(c for c in e["contenders"] if c["name"] == main) for e in (known, found))
    )
    scale = float(np.median([then[knob] / now[knob] for knob in then if knob in now]))
    later = {
        c["name"]: copy.deepcopy(c)
        for c in found["contenders"]
        if c["name"].startswith(tuple(prefixes))
    }
    for contender in later.values():
        contender["scaled by"] = float(f"{scale:.3g}")
        for row in contender["tried"]:
            if "seconds" in row:
                row["seconds"] = float(f"{row['seconds'] * scale:.4g}")
    contenders = [later.pop(c["name"], c) for c in known["contenders"]]
    contenders = [*later.values(), *contenders]  # with those that were not known then
    return known | {"contenders": contenders, "threads of PyTorch": found["threads of PyTorch"]}


def tidy(rows: list[dict]) -> list[dict]:
    """Numbers at the digits they deserve."""

    def short(value):
        if isinstance(value, float):
            return None if not np.isfinite(value) else float(f"{value:.4g}")
        return value

    return [{key: short(value) for key, value in row.items()} for row in rows]
