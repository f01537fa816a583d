"""How certificates of learning rates print."""

from typing import Any

from flowlin._tools.printing import Summary, format_count, format_number, format_range


def accuracy_summary(found: Any) -> Summary:
    """Print the largest rate, the slope and the errors of one quantity."""
    rows = [
        ("rate", f"rate {format_number(found.rate)}"),
        ("slope", f"slope {format_number(found.slope)}"),
        ("errors", f"errors {format_range(found.errors)}"),
    ]
    return Summary("Accuracy", rows, inline=True)


def rate_certificate_summary(found: Any) -> Summary:
    """Print the rates tried, and the largest one of every quantity with what limits it."""
    share = f"{100 * found.within:g} % of the flow up to t = {format_number(found.t1)}"
    steps = format_count(len(found.rates), "rate")
    rows = [
        ("tried", f"{steps}, {format_range(found.rates)} ({format_range(found.steps)} steps)"),
        ("edge of stability", format_number(found.edge)),
    ]
    rows += [
        (row["quantity"], f"rate {row['rate']:.6g}", f"slope {row['slope']:.4g}", row["limit"])
        for row in found.table()
    ]
    if found.chattering is not None:
        wide = f"|z| = {format_range(found.chattering.errors)}, slope {found.chattering.slope:.4g}"
        rows.append(("chattering", wide))
    return Summary(f"RateCertificate: descent within {share}", rows)
