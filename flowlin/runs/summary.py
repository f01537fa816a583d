"""What each class prints: see `flowlin._tools.show`. Nothing here compiles a program."""

import re
from typing import Any

import jax
import numpy as np

from flowlin._tools.result import RESULTS
from flowlin._tools.show import ADVICE, Summary, clipped, known, number, plural, span, times_of
from flowlin.log.always_on import Maximum, logged, maximum, stepped
from flowlin.log.summary import (
    MOST_NAMES,
    MOST_ROWS,
    channel_names,
    named_counts,
    unresolved,
    within,
)

MOST_STARS = 6  # values of t*, for layers, quantiles and conventions


def trajectory(flow: Any) -> Summary:
    """Network and task, times, loss, events, t*, what was chosen and why, and the end."""
    labels, known_task = dict(flow.labels), flow.reference.task
    rows = [
        ("network", clipped(repr(flow.model), ADVICE)),
        ("task", f"unknown, {plural(flow.samples, 'sample')}"),
        ("saved", _saved(flow)),
        ("loss", f"{_from_to(flow.losses)}, {clipped(repr(flow.reference.loss))}"),
    ]
    if known_task is not None:
        rows[1] = ("task", clipped(repr(known_task), ADVICE))
    if flow.events.channels:
        rows.append(("events", named_counts(flow.events)))
    if doubts := unresolved(flow.events):
        rows.append(("unresolved", doubts))
    rows += _linearized(flow)
    chosen = [name for name in ("kinks", "solver") if labels.get(name, "none") != "none"]
    for name in chosen:
        why = labels.get(f"{name}_because")
        rows.append((name, clipped(labels[name] + (f": {why}" if why else ""), ADVICE)))
    rows.append(("end", _end(flow)))
    return Summary("Trajectory", rows)


def _saved(flow: Any) -> str:
    """The saved times, and what was saved there."""
    times = known(flow.ts, 1)
    what = ["networks"] if flow.saved is not None else [clipped(name) for name in flow.observed]
    what = [*what[:MOST_NAMES], *["..."] * (len(what) > MOST_NAMES)]
    if flow.dense is not None:
        what.append("dense output")
    when = number(flow.ts) if times is None else times_of(times)
    return f"{when}: {', '.join(what)}"


def _from_to(losses: Any) -> str:
    found = known(losses, 1)
    if found is None or not len(found):
        return number(losses)
    return f"{number(found[0])} -> {number(found[-1])}"


def _end(flow: Any) -> str:
    """When and how a run ended."""
    steps = number(flow.counts["num_steps"])
    steps += " step" if steps == "1" else " steps"
    return f"t = {number(flow.end)} after {steps}: {_outcome(flow)}"


def _outcome(flow: Any) -> str:
    """How it ended, in words; at which event."""
    (value,) = jax.tree.leaves(flow.result)
    if known(value, 0) is None:
        return f"outcome {number(value)}"
    said = " ".join(RESULTS[flow.result].split())
    if said == RESULTS[RESULTS.event_occurred]:
        name, time = channel_names(flow.events), known(flow.events.time, 1)
        last = [] if time is None else name[time >= float(flow.end)]
        said += "".join(f", {clipped(name)!r}" for name in sorted(set(last)))
    return clipped(said, ADVICE)


def _linearized(flow: Any) -> list[tuple[str, ...]]:
    """t* of every hidden layer and quantile that the run recorded."""
    return [(label, _maximum(found)) for label, found in _maxima(flow).items()][:MOST_STARS]


def _maxima(flow: Any) -> dict[str, Maximum]:
    """t* by quantile, layer and convention; a discrete run has no conventions."""
    found, layers = {}, len(flow.model.hidden)

    def label(quantile: str, layer: int) -> str:
        return f"t*{quantile}" + (f" of layer {layer}" if layers > 1 else "")

    if known(flow.events.time, 1) is None:
        return {}
    for (layer, quantile), counts in sorted((flow.step_counts or {}).items()):
        suffix = f"({quantile:g})" if quantile else ""
        found[label(suffix, layer)] = maximum(stepped(counts))
    for k, channel in enumerate(flow.events.channels):
        logs = re.fullmatch(r"gate|always_on(\(.*\))?", channel.name)
        if logs and channel.prefix:
            star = label(logs[1] or "", channel.prefix[0])
            for side, lowest in (("open", 1), ("closed", 0)):
                found[f"{star} {side}"] = maximum(logged(flow.events, k, lowest))
    return found


def _maximum(found: Maximum) -> str:
    lasting = ", still so at the end" if found.lasting else ""
    return f"{within(found.time, found.uncertainty)} (fraction {found.fraction:.4g}{lasting})"


def sweep(runs: Any) -> Summary:
    """How many runs, which failed, and the ranges of their ends, losses, events and t*."""
    title = f"Sweep of {plural(len(runs), 'run')}"
    if not len(runs):
        return Summary(title, [])
    if not runs.flows:
        return _recorded(title, runs)
    flow, tasks = runs[0], {id(run.reference.task) for run in runs}
    kinds: dict[str, str] = {}
    for run in runs:  # the first of each kind
        kinds.setdefault(run.model.kind, repr(run.model))
    of_task = repr(flow.reference.task) + (" and others" if len(tasks) > 1 else "")
    rows = [
        ("networks", clipped("; ".join(kinds.values()), ADVICE)),
        ("task", clipped(of_task, ADVICE)),
        ("failed", _failed(runs)),
        ("end", f"t = {span([float(run.end) for run in runs])}"),
        ("loss", _spans([np.asarray(run.losses) for run in runs])),
        ("steps", span([int(run.counts["num_steps"]) for run in runs])),
    ]
    if flow.events.channels:
        rows.append(("events", f"{span([len(run.events) for run in runs])} per run"))
    found = [_maxima(run) for run in runs]
    labels = [label for label in found[0] if all(label in maxima for maxima in found)]
    for label in labels[:MOST_STARS]:
        rows.append((label, span([maxima[label].time for maxima in found])))
    return Summary(title, rows)


def _recorded(title: str, runs: Any) -> Summary:
    """The ranges of all columns, and which runs failed."""
    failed = list(runs.failed)
    listed = f"{len(failed)}, run {failed[0]} first: {runs.failed[failed[0]]}" if failed else "none"
    rows = [(clipped(name), _range(values)) for name, values in runs.columns.items()]
    return Summary(title, [("failed", clipped(listed, ADVICE)), *rows])


def _range(values: np.ndarray) -> str:
    """Of numbers; of words how many there are."""
    return plural(len(set(values)), "value") if values.dtype.kind == "U" else span(values)


def _spans(losses: list[np.ndarray]) -> str:
    """The ranges of the first and the last saved losses."""
    saved = [rows for rows in losses if len(rows)]
    if not saved:
        return "not saved"
    return f"{span([rows[0] for rows in saved])} -> {span([rows[-1] for rows in saved])}"


def _failed(runs: Any) -> str:
    """Which runs failed, the first with its reason."""
    fine = {RESULTS[RESULTS.successful], RESULTS[RESULTS.event_occurred]}
    bad = {k: _outcome(run) for k, run in enumerate(runs) if RESULTS[run.result] not in fine}
    if not bad:
        return "none"
    listed = [*map(str, list(bad)[:MOST_ROWS]), *["..."] * (len(bad) > MOST_ROWS)]
    runs_ = "run" if len(bad) == 1 else "runs"
    return f"{len(bad)} ({runs_} {', '.join(listed)}): {next(iter(bad.values()))}"
