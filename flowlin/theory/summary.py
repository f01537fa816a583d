"""What the objects of the theory print: see `flowlin._tools.show`.

Nothing here compiles a program.
"""

import dataclasses
from typing import Any

import numpy as np

from flowlin._tools.show import ADVICE, Summary, clipped, first, known, number, plural, span

MOST_MODES = 8


def modes(found: Any) -> Summary:
    """Strengths and variances of the first modes, and the certificate."""
    (inputs, count), outputs = found.v.shape[-2:], found.u.shape[-2]
    title = f"Modes: {count} of {plural(inputs, 'input')} and {plural(outputs, 'output')}"
    title += f", c = {number(found.bias_strength)}"
    s, d = known(found.s, 1), known(found.d, 1)
    if s is None or d is None:
        rows = [("s", number(found.s)), ("d", number(found.d))]
    else:
        rows = [("mode", "s", "d", "s/d")]
        for k in range(min(count, MOST_MODES)):
            share = s[k] / d[k] if s[k] > 0 and d[k] > 0 else 0.0
            rows.append((str(k), number(s[k]), number(d[k]), number(share)))
        rows += [("...", "", "", "")] * (count > MOST_MODES)
    rows.append(("commutator", f"{number(found.commutator, 4)}, 0 where modes decouple"))
    rows.append(("completeness", f"{number(found.completeness)}, 1 where modes span the inputs"))
    return Summary(title, rows)


def mode_hits(found: Any) -> Summary:
    """Of how many modes and which c, and what was said of them."""
    count, c = found.modes.s.shape[-1], number(found.modes.bias_strength)
    return _event(found, f"{plural(count, 'mode')}, c = {c}")


def race_hits(found: Any) -> Summary:
    """Of how many pathways and modes, and what was said of them."""
    pathways, modes = found.race.s.shape[-2:]
    return _event(found, f"{plural(pathways, 'pathway')} for {plural(modes, 'mode')}")


def _event(found: Any, of: str) -> Summary:
    """An event: of what, and all arguments but the first that are not left at their defaults."""
    rows = [("of", of)]
    for field in dataclasses.fields(found)[1:]:
        value = getattr(found, field.name)
        if value is not field.default:
            plain = value is None or isinstance(value, (bool, str))
            rows.append((field.name, f"{field.name}={repr(value) if plain else number(value)}"))
    return Summary(type(found).__name__, rows, inline=True)


def mode(found: Any) -> Summary:
    """Its numbers."""
    names = ("s", "d", "a0", "depth", "imbalance", "tau")
    said = [(name, f"{name} = {number(getattr(found, name))}") for name in names]
    return Summary("Mode", said, inline=True)


def certificate(found: Any) -> Summary:
    """The conditions, of the task and of the weights, and the strengths at t = 0."""

    def numbers(*names: str) -> str:
        values = {name: getattr(found, name) for name in names}
        return ", ".join(f"{name} {number(x, 4)}" for name, x in values.items() if x is not None)

    rows = [("task", numbers("commutator", "completeness", "condition", "whiteness", "variance"))]
    if weights := numbers("outside", "imbalance", "balance", "spread", "inner"):
        rows.append(("weights", weights))
    if modewise := numbers("alignment", "coupling", "negative"):
        rows.append(("modes", modewise))
    if found.a0 is not None:
        rows.append(("a0", first(found.a0, 4)))
    return Summary("Certificate", rows)


def solution(found: Any) -> Summary:
    """Which it is, whether it is exact, why, and the conditions."""
    why = ("why", clipped(found.why, ADVICE))
    return Summary(f"Solution: {_named(found)}", [why, *certificate(found.certificate).rows])


def _named(found: Any) -> str:
    """Which solution it is, and whether it is exact."""
    return f"{found.name}, {'exact' if found.exact else 'not exact'}"


def bias_mode(found: Any) -> Summary:
    """Strength and variance, rank among the task's modes, and how well the conditions hold."""
    if number(found.rank) == "0":
        return Summary("BiasMode: none, the inputs' mean is zero and so is c", [])
    conditions = ("input", "target", "eigen", "singular")
    residuals = ", ".join(f"{n} {number(getattr(found, f'{n}_residual'), 4)}" for n in conditions)
    rows = [
        ("rank", f"{number(found.rank)}, overlap {number(found.overlap, 4)}"),
        ("ties", f"{number(found.ties)} of this strength"),
        ("margin", f"{number(found.margin, 4)}, at least 1 from c = {number(found.first_from)}"),
        ("residuals", f"{residuals}, 0 where conditions hold"),
        ("bias", f"most of it in rank {number(found.bias_rank)}"),
        ("mean target", f"most of it in rank {number(found.mean_rank)}"),
    ]
    return Summary(f"BiasMode: s = {number(found.s)}, d = {number(found.d)}", rows)


def early_phase(found: Any) -> Summary:
    """How far it goes, of what, where the units are turned to, and when their gates change."""
    rows = [("network", clipped(found.start, ADVICE)), ("task", clipped(found.task, ADVICE))]
    fate, change = known(found.fate, 1), known(found.first_change, 1)
    if fate is not None and change is not None:
        on, off, split = (np.sum(fate == side) for side in (1, -1, 0))
        rows.append(("fate", f"{on} on for all samples, {off} for none, {split} for some"))
        changing = change[np.isfinite(change)]
        when = f", first at t = {span(changing)}" if len(changing) else ""
        rows.append(("gates", f"change in {plural(len(changing), 'unit')}{when}"))
    units = plural(found.fate.shape[-1], "unit")
    return Summary(f"EarlyPhase of {units} up to t = {number(found.t1)}", rows)


def slowed_clock(found: Any) -> Summary:
    """The leading mode, and the early phase whose clock it slows down."""
    s, d = first(found.modes.s, most=1), first(found.modes.d, most=1)
    s, d = (word.removesuffix(", ...") for word in (s, d))
    title = f"SlowedClock by the leading mode, s = {s}, d = {d}"
    early = early_phase(found.early)
    return Summary(title, [("early phase", early.title), *early.rows])


def after_linearization(found: Any) -> Summary:
    """How many units it is of, which solution, whether it is exact, why, and the conditions."""
    on = known(found.always_on, 1)
    units = plural(found.always_on.shape[-1], "unit")
    count = number(found.always_on) if on is None else str(np.sum(on))
    rows = [("trained on", clipped(found.task, ADVICE)), ("solution", _named(found.solution))]
    if found.bias_strength is not None:
        rows.insert(1, ("bias", f"c = {number(found.bias_strength)}"))
    rows += solution(found.solution).rows
    return Summary(f"AfterLinearization: {count} of {units} always on", rows)


def lazy(found: Any) -> Summary:
    """Of what, at which scale, how many components of the error move, how fast, and what stays."""
    rows = [
        ("network", clipped(repr(found.start), ADVICE)),
        ("task", clipped(found.task, ADVICE)),
    ]
    values, error = known(found.eigenvalues, 1), known(found.error0, 1)
    if values is None or error is None:
        return Summary("Lazy", [*rows, ("eigenvalues", number(found.eigenvalues))])
    moving = values[values > 0]
    rows.append(("kernel", f"rank {len(moving)} of {len(values)}, eigenvalues {span(moving)}"))
    rows.append(("times", f"tau / eigenvalue {span(np.asarray(found.tau) / moving)}"))
    left = np.sum(error[values == 0] ** 2)
    rows.append(("loss", f"{number(np.sum(error**2) / 2)} -> {number(left / 2)} at t = inf"))
    return Summary(f"Lazy: alpha = {number(found.alpha)}, tau = {number(found.tau)}", rows)


def lazy_certificate(found: Any) -> Summary:
    """Its residuals, and what its digits depend on."""
    names = ("outputs", "kernel", "condition", "tolerance")
    rows = [(name, f"{name} {number(getattr(found, name), 4)}") for name in names]
    rows.insert(2, ("rank", f"rank {found.rank}"))
    return Summary("LazyCertificate", rows, inline=True)


def race_certificate(found: Any) -> Summary:
    """Its residuals."""
    names = ("commutator", "outputs", "inputs", "alignment")
    rows = [(name, f"{name} {number(getattr(found, name), 4)}") for name in names]
    rows.append(("tolerance", f"tolerance {number(found.tolerance, 4)}"))
    return Summary("RaceCertificate", rows, inline=True)


def race(found: Any) -> Summary:
    """Who races for how many modes, whether it is exact, and what each would reach alone."""
    count, modes = found.s.shape
    title = f"Race of {plural(count, 'pathway')} for {plural(modes, 'mode')}"
    rows = [("exact", "yes" if found.exact else "no"), ("residuals", str(found.certificate))]
    alone = np.asarray(found.s) / np.where((d := np.einsum("ppk->pk", found.d)) > 0, d, np.inf)
    for p, row in list(zip(found.pathways, alone, strict=True))[:MOST_MODES]:
        rows.append((" -> ".join(p.nodes), f"alone to {first(row, 4)}"))
    return Summary(title, rows + [("...", "")] * (count > MOST_MODES))
