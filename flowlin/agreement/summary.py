"""What comparisons of flow and descent print: see `flowlin._tools.show`."""

from typing import Any

import numpy as np

from flowlin._tools.show import Summary, known, number, plural, span, times_of


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
    when = number(found.ts) if times is None else times_of(times)
    return Summary(f"Comparison at {when}", rows)
