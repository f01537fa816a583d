"""How modes print."""

from typing import Any

from flowlin._tools.printing import Summary, concrete_array, format_count, format_number

MOST_MODES = 8  # rows of the table


def modes_summary(found: Any) -> Summary:
    """Summarise strengths and variances of the first modes, and the certificate."""
    (inputs, count), outputs = found.v.shape[-2:], found.u.shape[-2]
    title = (
        f"Modes: {count} of {format_count(inputs, 'input')} and {format_count(outputs, 'output')}"
    )
    title += f", c = {format_number(found.bias_strength)}"
    s, d = concrete_array(found.s, 1), concrete_array(found.d, 1)
    rows: list[tuple[str, ...]]
    if s is None or d is None:
        rows = [("s", format_number(found.s)), ("d", format_number(found.d))]
    else:
        rows = [("mode", "s", "d", "s/d")]
        for name, (k, *_) in list(zip(found.names, found.groups, strict=True))[:MOST_MODES]:
            share = s[k] / d[k] if s[k] > 0 and d[k] > 0 else 0.0
            rows.append((name, format_number(s[k]), format_number(d[k]), format_number(share)))
        rows += [("...", "", "", "")] * (len(found.groups) > MOST_MODES)
    rows.append(("commutator", f"{format_number(found.commutator, 4)}, 0 where modes decouple"))
    rows.append(
        ("completeness", f"{format_number(found.completeness)}, 1 where modes span the inputs")
    )
    return Summary(title, rows)
