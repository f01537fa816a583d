"""What each class prints: see `flowlin._show`. Nothing here compiles a program."""

import math
import re
from typing import Any

import jax
import numpy as np

from flowlin._always_on import Maximum, logged, maximum, stepped
from flowlin._show import ADVICE, Summary, clipped, known, number, plural, span
from flowlin.result import RESULTS

MOST_NAMES = 6  # of events or observables in a line
MOST_ROWS = 8  # of a table
MOST_STARS = 6  # values of t*, for layers, quantiles and conventions
MOST_EVENTS = 5  # of a log, listed one by one


def network(found: Any) -> Summary:
    """Kind, widths, bias, number of parameters, precision."""
    weights, biases = found.weights, found.biases
    stack = weights[0].shape[:-2]
    widths = [weights[0].shape[-1], *(w.shape[-2] for w in weights)]
    rows = [("widths", " -> ".join(map(str, widths))), ("bias", _biased(biases))]
    if any(b is not None for b in biases):
        rows[-1] = ("bias", f"{rows[-1][1]}, c = {number(found.bias_strength)}")
    if hasattr(found, "slope") and number(found.slope) != "0":
        rows.append(("slope", f"slope {number(found.slope)}"))
    if hasattr(found, "gates_"):
        shapes = [gate.shape[len(stack) :] for gate in found.gates_]
        rows.append(("gates", f"gates {', '.join(map(str, shapes))}"))
    sizes = [math.prod(a.shape[len(stack) :]) for a in jax.tree.leaves((weights, biases))]
    rows.append(("parameters", plural(sum(sizes), "parameter")))
    rows.append(("precision", str(weights[0].dtype)))
    if stack:
        rows.append(("stacked", f"stacked {stack}"))
    return Summary(type(found).__name__, rows, inline=True)


def _biased(biases: tuple[Any, ...]) -> str:
    """Which layers have a bias."""
    having = [layer for layer, b in enumerate(biases) if b is not None]
    if not having:
        return "no bias"
    if having == list(range(len(biases) - 1)):
        return "bias in hidden layers"
    return f"bias in layers {', '.join(map(str, having))}"


def task(found: Any) -> Summary:
    """Name, numbers of samples, inputs and outputs, precision, devices."""
    *stack, samples, inputs = found.x.shape
    rows = [
        ("name", repr(clipped(found.name))),
        ("samples", plural(samples, "sample")),
        ("inputs", plural(inputs, "input")),
        ("outputs", plural(found.y.shape[-1], "output")),
        ("precision", str(found.x.dtype)),
    ]
    if stack:
        rows.append(("stacked", f"stacked {tuple(stack)}"))
    elif isinstance(found.x, jax.Array) and found.shards > 1:
        rows.append(("devices", f"split among {found.shards} devices"))
    return Summary("Task", rows, inline=True)


def trajectory(flow: Any) -> Summary:
    """Network and task, times, loss, events, t*, what was chosen and why, and the end."""
    labels, known_task = dict(flow.labels), flow.reference.task
    rows = [
        ("network", clipped(repr(flow.final), ADVICE)),
        ("task", f"unknown, {plural(flow.samples, 'sample')}"),
        ("saved", _saved(flow)),
        ("loss", f"{_from_to(flow.losses)}, {clipped(repr(flow.reference.loss))}"),
    ]
    if known_task is not None:
        rows[1] = ("task", clipped(repr(known_task), ADVICE))
    if flow.events.channels:
        rows.append(("events", _named(flow.events)))
    if doubts := _unresolved(flow.events):
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
    when = number(flow.ts) if times is None else _times(times)
    return f"{when}: {', '.join(what)}"


def _times(times: np.ndarray) -> str:
    if not len(times):
        return "no time"
    return f"{plural(len(times), 'time')} from {number(times[0])} to {number(times[-1])}"


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
        name, time = _channel_names(flow.events), known(flow.events.time, 1)
        last = [] if time is None else name[time >= float(flow.end)]
        said += "".join(f", {clipped(name)!r}" for name in sorted(set(last)))
    return clipped(said, ADVICE)


def _channel_names(log: Any) -> np.ndarray:
    """What crossed, per event."""
    names = np.array([channel.name for channel in log.channels], dtype=object)
    place = np.searchsorted(log.offsets[1:], np.asarray(log.component), side="right")
    return names[np.minimum(place, len(names) - 1)]


def _named(log: Any) -> str:
    """Events by name with their counts; sizes where they are not counted."""
    if known(log.time, 1) is None:
        sizes = _sizes(log)
        words = [f"{clipped(name)} of {plural(n, 'component')}" for name, n in sizes.items()]
    else:
        found = _channel_names(log)[np.isfinite(np.asarray(log.time))]
        words = [f"{clipped(name)} {np.sum(found == name):,}" for name in _sizes(log)]
    return ", ".join([*words[:MOST_NAMES], *["..."] * (len(words) > MOST_NAMES)])


def _unresolved(log: Any) -> str:
    """Of how many stretches it is not known whether all crossings were found."""
    count = None if log.unresolved is None else known(log.unresolved.count, 0)
    if not count:
        return ""
    return f"crossings may be missing in {plural(int(count), 'place')}: see events.unresolved"


def _sizes(log: Any) -> dict[str, int]:
    """Numbers of components by name."""
    sizes: dict[str, int] = {}
    for channel in log.channels:
        sizes[channel.name] = sizes.get(channel.name, 0) + channel.size
    return sizes


def _linearized(flow: Any) -> list[tuple[str, ...]]:
    """t* of every hidden layer and quantile that the run recorded."""
    return [(label, _maximum(found)) for label, found in _maxima(flow).items()][:MOST_STARS]


def _maxima(flow: Any) -> dict[str, Maximum]:
    """t* by quantile, layer and convention; a discrete run has no conventions."""
    found, layers = {}, len(flow.final.hidden)

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
    return f"{_within(found.time, found.uncertainty)} (fraction {found.fraction:.4g}{lasting})"


def _within(value: float, uncertainty: float) -> str:
    return f"{value:.6g} ± {uncertainty:.1g}" if uncertainty else f"{value:.6g}"


def event_log(log: Any) -> Summary:
    """Events by name: how many, of how many components, when; and the first of them."""
    time = known(log.time, 1)
    sizes = list(_sizes(log).items())
    if time is None:
        rows = [(clipped(name), "of " + plural(n, "component")) for name, n in sizes]
        return Summary(f"EventLog: times {number(log.time)}", rows[:MOST_ROWS])
    kept = np.isfinite(time)
    count, found = int(np.sum(kept)), _channel_names(log)[kept] if sizes else np.array([])
    title = f"EventLog: {plural(count, 'event')}"
    if int(log.count) > count:
        title += f", the first found of {number(log.count)}"
    rows = []
    for name, size in sizes[:MOST_ROWS]:
        mine = time[kept][found == name]
        when = f"t = {span(mine)}" if len(mine) else ""
        rows.append((clipped(name), f"{len(mine):,}", "of " + plural(size, "component"), when))
    rows += [("...", "", "", "")] * (len(sizes) > MOST_ROWS)
    return Summary(title, rows + _listed(log, min(count, MOST_EVENTS), count > MOST_EVENTS))


def _listed(log: Any, count: int, more: bool) -> list[tuple[str, ...]]:
    """The first events one by one: what crossed, when, and from which side to which."""
    columns = (log.component, log.time, log.uncertainty, log.old, log.new)
    kept, rows = [np.asarray(column)[:count].tolist() for column in columns], []
    for k, time, off, old, new in zip(*kept, strict=True):
        rows.append((_component(log, k), f"t = {_within(time, off)}", f"{old:+d} -> {new:+d}"))
    return rows + [("...", "", "")] * more


def _component(log: Any, k: int) -> str:
    """Name and index of a component, as `EventLog.name` and `EventLog.index` have them."""
    place = int(np.searchsorted(log.offsets[1:], k, side="right"))
    channel, local = log.channels[place], k - log.offsets[place]
    inner = np.unravel_index(local, channel.shape) if channel.shape else ()
    index = ", ".join(str(int(i)) for i in (*channel.prefix, *inner))
    return clipped(channel.name) + (f"[{index}]" if index else "")


def linearization_time(found: Any) -> Summary:
    """t*, its fraction, and how long it lasts."""
    return Summary("LinearizationTime", _t_star(found), inline=True)


def linearization(found: Any) -> Summary:
    """t* in both conventions."""
    rows = [(name, *(cell for _, cell in _t_star(getattr(found, name)))) for name in SIDES]
    return Summary(f"Linearization of {plural(found.open_counts.units, 'unit')}", rows)


SIDES = ("open", "closed")


def _t_star(found: Any) -> list[tuple[str, ...]]:
    """t* = time ± half its bracket, the fraction, how long it lasts."""
    time, bracket = known(found.time, 0), known(found.bracket, 1)
    when = number(found.time)
    if time is not None and bracket is not None:
        when = _within(float(time), float(np.max(np.abs(bracket - time))))
    return [
        ("time", f"t* = {when}"),
        ("fraction", f"fraction {number(found.fraction)}"),
        ("lasts", f"lasts {number(found.lasts)}"),
    ]


def accuracy(found: Any) -> Summary:
    """Largest rate, slope, errors."""
    rows = [
        ("rate", f"rate {number(found.rate)}"),
        ("slope", f"slope {number(found.slope)}"),
        ("errors", f"errors {span(found.errors)}"),
    ]
    return Summary("Accuracy", rows, inline=True)


def rate_certificate(found: Any) -> Summary:
    """The largest rate of every quantity, and what limits it."""
    share = f"{100 * found.within:g} % of the flow up to t = {number(found.t1)}"
    steps = plural(len(found.rates), "rate")
    rows = [
        ("tried", f"{steps}, {span(found.rates)} ({span(found.steps)} steps)"),
        ("edge of stability", number(found.edge)),
    ]
    rows += [
        (row["quantity"], f"rate {row['rate']:.6g}", f"slope {row['slope']:.4g}", row["limit"])
        for row in found.table()
    ]
    if found.chattering is not None:
        wide = f"|z| = {span(found.chattering.errors)}, slope {found.chattering.slope:.4g}"
        rows.append(("chattering", wide))
    return Summary(f"RateCertificate: descent within {share}", rows)


def comparison(found: Any) -> Summary:
    """The distances at the last time, and the largest."""
    times, rows = known(found.ts, 1), []
    for name in ("parameters", "function", "loss"):
        values = known(getattr(found, name), 1)
        if values is None or times is None:
            rows.append((name, number(getattr(found, name))))
            continue
        largest = values[np.argmax(np.abs(values))]
        rows.append((name, f"{number(values[-1])} at the end", f"largest {number(largest)}"))
    when = number(found.ts) if times is None else _times(times)
    return Summary(f"Comparison at {when}", rows)


def sweep(runs: Any) -> Summary:
    """How many runs, which failed, and the ranges of their ends, losses, events and t*."""
    title = f"Sweep of {plural(len(runs), 'run')}"
    if not len(runs):
        return Summary(title, [])
    flow, tasks = runs[0], {id(run.reference.task) for run in runs}
    of_task = repr(flow.reference.task) + (" and others" if len(tasks) > 1 else "")
    rows = [
        ("networks", clipped(repr(flow.final), ADVICE)),
        ("task", clipped(of_task, ADVICE)),
        ("failed", _failed(runs)),
        ("end", f"t = {span([float(run.end) for run in runs])}"),
        ("loss", _spans([np.asarray(run.losses) for run in runs])),
        ("steps", span([int(run.counts["num_steps"]) for run in runs])),
    ]
    if flow.events.channels:
        rows.append(("events", f"{span([len(run.events) for run in runs])} per run"))
    found = [_maxima(run) for run in runs]
    for label in list(found[0])[:MOST_STARS]:
        rows.append((label, span([maxima[label].time for maxima in found])))
    return Summary(title, rows)


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
