"""The lines that a trajectory prints: network, task, times, loss, events, t*, and the end."""

import re
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from flowlin._tools.printing import (
    LONGEST_ADVICE,
    Summary,
    concrete_array,
    format_count,
    format_number,
    format_times,
    shorten_text,
)
from flowlin.networks.layer_places import layer_places
from flowlin.networks.modules import ForeignModel, has_known_kinks
from flowlin.record.event_log_summary import (
    channel_sizes,
    event_names,
    first_branch,
    number_with_error,
    say_whose_error,
)
from flowlin.record.linearization import (
    LinearizationTime,
    end_of_certainty,
    lasts_until,
    linearization_of_log,
    linearization_time,
)
from flowlin.record.results import RESULTS, result_is
from flowlin.record.touches import count_touches
from flowlin.training.rules import MOVED_BY

MOST_NAMES = 6  # of events or observables in a line


def counts_by_name(log: Any) -> str:
    """Format events by name with their counts; sizes where they are not counted."""
    if concrete_array(log.time, 1) is None:
        sizes = channel_sizes(log)
        words = [
            f"{shorten_text(name)} of {format_count(n, 'component')}" for name, n in sizes.items()
        ]
    else:
        found = event_names(log)[np.isfinite(np.asarray(log.time))]
        words = [f"{shorten_text(name)} {np.sum(found == name):,}" for name in channel_sizes(log)]
    return ", ".join([*words[:MOST_NAMES], *["..."] * (len(words) > MOST_NAMES)])


def note_unresolved(log: Any) -> str:
    """Describe in how many stretches crossings may be missing; empty where in none."""
    count = concrete_array(log.unresolved.count, 0)
    if not count:
        return ""
    return f"crossings may be missing in {format_count(int(count), 'place')}: see events.unresolved"


MOST_STARS = 6  # values of t*, for layers, quantiles and conventions


def trajectory_summary(flow: Any) -> Summary:
    """Summarise network and task, times, loss, events, t*, what was chosen and why, the end."""
    labels, known_task = dict(flow.labels), flow.reference.task
    rows = [
        ("network", shorten_text(repr(flow.model), LONGEST_ADVICE)),
        ("task", f"unknown, {format_count(flow.samples, 'sample')}"),
        ("saved", _describe_saved(flow)),
        ("loss", f"{_first_to_last(flow.losses)}, {shorten_text(repr(flow.reference.loss))}"),
    ]
    if known_task is not None:
        rows[1] = ("task", shorten_text(repr(known_task), LONGEST_ADVICE))
    if (tau := flow.observed.get("tau")) is not None and _depends_on_time(flow.tau):
        rows.append(("tau", f"of time, {_first_to_last(tau)}"))
    if flow.events.channels:
        whose = "" if flow.discrete else f"; {say_whose_error(flow.events)}"
        rows.append(("events", counts_by_name(flow.events) + whose))
    if doubts := note_unresolved(flow.events):
        rows.append(("unresolved", doubts))
    rows += _graze_lines(flow) + _branch_lines(flow)
    rows += _t_star_lines(flow)
    chosen = [name for name in ("kinks", "solver") if labels.get(name, "none") != "none"]
    for name in chosen:
        why = labels.get(f"{name}_because")
        rows.append(
            (name, shorten_text(labels[name] + (f": {why}" if why else ""), LONGEST_ADVICE))
        )
    if rule := labels.get("objective", "").partition(MOVED_BY)[2]:
        rows.append(("rule", rule))
    rows.append(("end", _describe_end(flow)))
    converged = concrete_array(flow.counts.get("converged"), 0)
    if converged is not None and np.isfinite(converged):
        rows.append(("converged", f"at t = {converged:.6g}: no later event is determined"))
    return Summary("Trajectory", rows)


def _graze_lines(flow: Any) -> list[tuple[str, ...]]:
    """Say which switches, sides and ends of slides errors of the size of `rtol` decide."""
    rows, touches = [], count_touches(flow.events)
    if touches:
        times = f"{format_count(touches, 'time')} a pair switched"
        rows.append(("touches", f"{times} there and back within the error: see events.is_touch"))
    margin, rtol = (concrete_array(flow.counts.get(name), 0) for name in ("grazing_margin", "rtol"))
    if margin is not None and rtol is not None and margin < rtol:
        missed = f"a pair missed a kink that repels by {margin:.1e} of its size"
        rows.append(("grazing", f"{missed}, below rtol = {rtol:.0e}: it may go another way"))
    since = concrete_array(flow.counts.get("slides_decayed"), 0)
    if since is not None and np.isfinite(since):
        held = f"from t = {since:.6g} on a pair slides by a drive within the error"
        rows.append(("slides", f"{held}: its end is not seen"))
    return rows


def _branch_lines(flow: Any) -> list[tuple[str, ...]]:
    """Say when the first branch was, past which the run is one of several flows, and why."""
    if (branch := first_branch(flow.events)) is None:
        return []
    since = f"from t = {branch.time:.6g} on this flow is one of several"
    rows = [("branches", f"{since}: see events.select('branch')")]
    because = f"{branch.reason}: {branch.pair}"
    return [*rows, ("because", because)] if branch.reason else rows


def _describe_saved(flow: Any) -> str:
    """Format the saved times, and what was saved there."""
    times = concrete_array(flow.ts, 1)
    what = (
        ["networks"] if flow.saved is not None else [shorten_text(name) for name in flow.observed]
    )
    what = [*what[:MOST_NAMES], *["..."] * (len(what) > MOST_NAMES)]
    if flow.dense is not None:
        what.append("dense output")
    when = format_number(flow.ts) if times is None else format_times(times)
    return f"{when}: {', '.join(what)}"


def _depends_on_time(tau: object) -> bool:
    """Tell whether a run's time constant is NaN, which stands for a function of time."""
    found = concrete_array(tau, 0)
    return found is not None and bool(np.isnan(found))


def _first_to_last(values: object) -> str:
    """Format the first and the last of a run's losses, or of other numbers at its saved times."""
    found = concrete_array(values, 1)
    if found is None:
        return format_number(values)
    if not len(found):
        return "no time saved"
    return f"{format_number(found[0])} -> {format_number(found[-1])}"


def _describe_end(flow: Any) -> str:
    """Format when and how a run ended."""
    steps = format_number(flow.counts["num_steps"])
    steps += " step" if steps == "1" else " steps"
    return f"t = {format_number(flow.end)} after {steps}: {describe_result(flow)}"


def result_in_words(flow: Any) -> str:
    """Return how a run ended in one line, with the advice that is for networks with kinks."""
    said = " ".join(RESULTS[flow.result].split())
    if result_is(flow.result, RESULTS.dt_min_reached) and has_known_kinks(flow.model):
        said += " A ReLU flow that slides on its kinks needs `kinks=fl.SmoothKinks(...)`."
    return said


def describe_result(flow: Any) -> str:
    """Describe how a run ended, and at which event."""
    (value,) = jax.tree.leaves(flow.result)
    if concrete_array(value, 0) is None:
        return f"outcome {format_number(value)}"
    said = result_in_words(flow)
    if said == RESULTS[RESULTS.event_occurred]:
        name, time = event_names(flow.events), concrete_array(flow.events.time, 1)
        last = [] if time is None else name[time >= float(flow.end)]
        said += "".join(f", {shorten_text(name)!r}" for name in sorted(set(last)))
    return shorten_text(said, LONGEST_ADVICE)


def _t_star_lines(flow: Any) -> list[tuple[str, ...]]:
    """List t* of every hidden layer and quantile that the run recorded."""
    stars = list(t_star_maxima(flow).items())[:MOST_STARS]
    return [(label, _describe_maximum(found, flow.end)) for label, found in stars]


def t_star_maxima(flow: Any) -> dict[str, LinearizationTime]:
    """Return t* by quantile, layer and convention; a discrete run has no conventions."""
    found, places = {}, layer_places(flow.model)
    parts = [place.part for place in places] if isinstance(flow.model, ForeignModel) else []
    tell = all(parts) and len(set(parts)) == len(places)  # several may be in one part

    def t_star_label(quantile: str, layer: int) -> str:
        name = parts[layer] if tell else f"layer {layer}"
        return f"t*{quantile}" + (f" of {name}" if len(places) > 1 else "")

    if concrete_array(flow.events.time, 1) is None:
        return {}
    for (layer, quantile), counts in sorted((flow.step_counts or {}).items()):
        suffix = f"({quantile:g})" if quantile else ""
        found[t_star_label(suffix, layer)] = linearization_time(counts, flow.end)
    until = end_of_certainty(flow.events, flow.counts)
    for channel in flow.events.channels:
        logs = re.fullmatch(r"gate|always_on(\(.*\))?", channel.name)
        if logs and channel.prefix and channel.prefix[0] < len(places):
            star = t_star_label(logs[1] or "", channel.prefix[0])
            quantile = float(logs[1][1:-1]) if logs[1] else 0.0
            both = linearization_of_log(
                flow.events, channel.prefix[0], flow.samples, quantile, flow.end, True, until
            )
            found |= {f"{star} open": both.open, f"{star} closed": both.closed}
    return found


def _describe_maximum(found: LinearizationTime, end: Array) -> str:
    """Format t*, how far it may be off, the fraction, and whether it lasts."""
    lasting = ", still so at the end" if lasts_until(found, end) else ""
    if np.isfinite(found.determined_until):
        lasting = f", not determined after t = {float(found.determined_until):.6g}"
    off = np.max(np.abs(np.asarray(found.bracket) - np.asarray(found.time)))
    time = number_with_error(float(found.time), float(off))
    return f"{time} (fraction {float(found.fraction):.4g}{lasting})"
