"""What rectified linear networks print: see `flowlin._tools.show`."""

from typing import Any

import numpy as np

from flowlin._tools.show import Summary, clipped, number, plural


def rectified(found: Any) -> Summary:
    """Intervals, groups, and in how much of the time pairs slide."""
    length = np.diff(found.times)
    slides = float(np.sum(length[found.sliding > 0]) / np.sum(length))
    groups = ", ".join(str(len(own)) for own in found.groups)
    units = ", ".join(str(own.shape[1]) for own in found.history.sides)
    rows = [
        ("network", clipped(repr(found.flow.model))),
        ("intervals", f"{plural(found.intervals, 'interval')} to t = {number(found.times[-1])}"),
        ("groups", f"{groups} of {units} units"),
        ("sliding", f"in {100 * slides:.3g} % of the time, up to {max(found.sliding)} pairs"),
    ]
    return Summary("Rectified", rows)


def pathway(found: Any) -> Summary:
    """Units, samples, life and share."""
    rows = [
        ("units", clipped(f"units {list(found.units)}")),
        ("samples", clipped(f"samples {list(found.samples)}")),
        ("life", f"t = {number(found.start)} to {number(found.end)}"),
        ("share", f"share {found.share:.3g}"),
    ]
    return Summary("RectifiedPathway", rows, inline=True)
