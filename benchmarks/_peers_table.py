"""Tables, ratios and losses from the entries of `peers.json`."""

from collections.abc import Iterator
from typing import Any

import _common

NOISE = 1.1  # seconds within this factor are a draw


def best(entry: dict, name: str, target: float) -> dict | None:
    """The coarsest run of a contender that met a target."""
    rows = next(c["tried"] for c in entry["contenders"] if c["name"] == name)
    met = (r for r in rows if r.get("error") is not None and r["error"] <= target)
    return next(met, None)


def names(entry: dict, ours: bool) -> list[str]:
    """Contenders that are flowlin's, or that are not."""
    found = [c["name"] for c in entry["contenders"]]
    return [name for name in found if name.startswith("flowlin") == ours]


def ratio(entry: dict, name: str, target: float, unit: str) -> float | None:
    """A contender's seconds or evaluations over those of flowlin's main one."""
    mine, other = best(entry, entry["main"], target), best(entry, name, target)
    if mine is None or other is None or not mine.get(unit) or not other.get(unit):
        return None
    return other[unit] / mine[unit]


def why_not(contender: dict) -> str:
    """What kept a contender from an error."""
    if contender["note"]:
        return contender["note"]
    rows = contender["tried"]
    if not rows:
        return "not met: the coarsest rate took too long"
    errors = [r["error"] for r in rows if r.get("error") is not None]
    text = f"not met: best {min(errors):.0e}" if errors else "not met"
    last = rows[-1]
    if last.get("predicted"):
        return f"{text}; would need {last['predicted']:,} steps, {last['first seconds']:,.0f} s"
    if last.get("unfinished"):
        knob = "rate" if contender["name"].startswith("descent") else "rtol"
        return f"{text}; {knob} {last['knob']:.0e} not finished in {last['first seconds']:,.0f} s"
    if last.get("failed"):
        return f"{text}; rtol {last['knob']:.0e}: {last['failed'].split(':')[0]}"
    return text


def line(entry: dict, contender: dict, target: float) -> list[str]:
    """One row of a table."""
    name = contender["name"]
    row = best(entry, name, target)
    if row is None:
        return [f"{target:.0e}", name, "-", "-", "-", "-", "-", why_not(contender)]
    count = row["evaluations"]
    times = [ratio(entry, name, target, unit) for unit in ("evaluations", "seconds")]
    return [
        f"{target:.0e}", name, f"{row['knob']:.1e}", f"{row['error']:.1e}",
        "-" if count is None else f"{count:,}", f"{row['seconds']:.3g}",
        *("-" if t is None else f"{t:.3g}" for t in times),
    ]  # fmt: skip


def table(entry: dict) -> str:
    """One problem's table."""
    head = ("error", "contender", "rtol or rate", "error found", "evaluations", "seconds",
            "x evaluations", "x seconds")  # fmt: skip
    lines = [line(entry, c, t) for t in entry["targets"] for c in entry["contenders"]]
    return _common.markdown_table(head, lines)


def markdown(entries: list[dict]) -> str:
    """All tables."""
    parts = [
        "Medians in seconds, without compilation, of runs taking turns; x: times those of the "
        "flowlin contender that the heading names."
    ]
    for entry in entries:
        load = " ... ".join(map(str, entry["load"]))
        parts.append(
            f"## {entry['title']}\n\n{entry['parameters']:,} parameters. Reference: "
            f"{entry['reference']}. Ratios to {entry['main']}. Load of the machine: {load}; runs "
            f"longer than {entry['cap']:g} s are not finished.\n\n{table(entry)}"
        )
    return "\n\n".join(parts)


def losses(entry: dict) -> Iterator[dict[str, Any]]:
    """Where a peer is cheaper than every flowlin contender."""
    for target in entry["targets"]:
        for unit, margin in (("evaluations", 1.0), ("seconds", NOISE)):
            mine = [best(entry, name, target) for name in names(entry, ours=True)]
            costs = [(r or {}).get(unit) for r in mine]
            least = min((c for c in costs if c), default=None)
            for name in names(entry, ours=False):
                other = (best(entry, name, target) or {}).get(unit)
                if other and (least is None or other * margin < least):
                    yield {
                        "problem": entry["title"], "target": target, "unit": unit, "peer": name,
                        "times": None if least is None else least / other,
                    }  # fmt: skip
