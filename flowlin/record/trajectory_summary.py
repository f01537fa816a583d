"""The lines that a trajectory prints: network, task, times, loss, events, t*, and the end."""

import re
from typing import Any

import jax
import numpy as np

from flowlin._tools.printing import (
    ADVICE,
    Summary,
    clipped,
    known,
    number,
    plural,
    times_of,
)
from flowlin.record.event_log_summary import channel_names, channel_sizes, within
from flowlin.record.linearization import Maximum, logged, maximum, stepped
from flowlin.record.results import RESULTS

MOST_NAMES = 6  # of events or observables in a line


def named_counts(log: Any) -> str:
    """Format events by name with their counts; sizes where they are not counted."""
    if known(log.time, 1) is None:
        sizes = channel_sizes(log)
        words = [f"{clipped(name)} of {plural(n, 'component')}" for name, n in sizes.items()]
    else:
        found = channel_names(log)[np.isfinite(np.asarray(log.time))]
        words = [f"{clipped(name)} {np.sum(found == name):,}" for name in channel_sizes(log)]
    return ", ".join([*words[:MOST_NAMES], *["..."] * (len(words) > MOST_NAMES)])


def unresolved(log: Any) -> str:
    """Describe in how many stretches crossings may be missing; empty where in none."""
    count = None if log.unresolved is None else known(log.unresolved.count, 0)
    if not count:
        return ""
    return f"crossings may be missing in {plural(int(count), 'place')}: see events.unresolved"


MOST_STARS = 6  # values of t*, for layers, quantiles and conventions


def summary(flow: Any) -> Summary:
    """Summarise network and task, times, loss, events, t*, what was chosen and why, the end."""
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
    """Format the saved times, and what was saved there."""
    times = known(flow.ts, 1)
    what = ["networks"] if flow.saved is not None else [clipped(name) for name in flow.observed]
    what = [*what[:MOST_NAMES], *["..."] * (len(what) > MOST_NAMES)]
    if flow.dense is not None:
        what.append("dense output")
    when = number(flow.ts) if times is None else times_of(times)
    return f"{when}: {', '.join(what)}"


def _from_to(losses: Any) -> str:
    """Format the first and the last loss."""
    found = known(losses, 1)
    if found is None:
        return number(losses)
    if not len(found):
        return "no time saved"
    return f"{number(found[0])} -> {number(found[-1])}"


def _end(flow: Any) -> str:
    """Format when and how a run ended."""
    steps = number(flow.counts["num_steps"])
    steps += " step" if steps == "1" else " steps"
    return f"t = {number(flow.end)} after {steps}: {outcome(flow)}"


def outcome(flow: Any) -> str:
    """Describe how a run ended, and at which event."""
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
    """List t* of every hidden layer and quantile that the run recorded."""
    return [(label, _maximum(found)) for label, found in maxima(flow).items()][:MOST_STARS]


def maxima(flow: Any) -> dict[str, Maximum]:
    """Return t* by quantile, layer and convention; a discrete run has no conventions."""
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
    """Format t*, how far it may be off, the fraction, and whether it lasts."""
    lasting = ", still so at the end" if found.lasting else ""
    return f"{within(found.time, found.uncertainty)} (fraction {found.fraction:.4g}{lasting})"
