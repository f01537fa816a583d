"""What modes, certificates and solutions print: see `flowlin._tools.show`."""

from typing import Any

from flowlin._tools.show import ADVICE, Summary, clipped, first, known, number, plural

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
    kind = "exact" if found.exact else "not exact"
    why = ("why", clipped(found.why, ADVICE))
    return Summary(f"Solution: {found.name}, {kind}", [why, *certificate(found.certificate).rows])
