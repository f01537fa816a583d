"""What the results say about the goals."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import _common
import numpy as np
from _peers_table import best


class Verdict(NamedTuple):
    """A goal and what was measured; `met` is None where no goal was set."""

    script: str
    goal: str
    measured: str
    met: bool | None


def load(name: str) -> list[dict[str, Any]]:
    """The entries of `results/name.json`; none where it is missing."""
    path = _common.RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else []


def needed(entry: dict, name: str, target: float, unit: str) -> tuple[float | None, bool]:
    """Work of a contender at an error; True where it is only predicted, by its first-order law."""
    row = best(entry, name, target)
    if row is not None:
        return row.get(unit), False
    rows = next((c["tried"] for c in entry["contenders"] if c["name"] == name), [])
    if rows and rows[-1].get("predicted"):
        return rows[-1]["evaluations" if unit == "evaluations" else "first seconds"], True
    return None, False


def against(entry: dict, peer: str, target: float, unit: str, goal: float) -> Verdict:
    """A peer's work over that of flowlin's main contender."""
    script = f"peers: {entry['title']}"
    wanted = f"{goal:g}x fewer {unit} than {peer} at {target:.0e}"
    wanted = wanted.replace("fewer seconds", "less time")
    mine, _ = needed(entry, entry["main"], target, unit)
    theirs, predicted = needed(entry, peer, target, unit)
    if not mine:
        return Verdict(script, wanted, f"{entry['main']} did not get there", False)
    if not theirs:
        rows = next((c["tried"] for c in entry["contenders"] if c["name"] == peer), [])
        spent = rows[-1]["first seconds"] if rows and unit == "seconds" else 0.0
        found = f"{peer} did not get there"
        if spent:
            found += f" in {spent:,.0f} s, {spent / mine:,.0f} times {mine:.3g} s"
        return Verdict(script, wanted, found, spent / mine >= goal)
    sign = "about " if predicted else ""
    found = f"{sign}{theirs / mine:.3g}x ({theirs:,.3g} / {mine:,.3g} {unit})"
    return Verdict(script, wanted, found, theirs / mine >= goal)


def event_times(entry: dict) -> Iterator[Verdict]:
    """The least advantage over any method of SciPy and of torchdiffeq, at every error.

    And what it were if nothing but the same evaluations of the field were to be done.
    """
    for library in ("scipy", "torchdiffeq"):
        for ours in ("flowlin", "flowlin under jit"):
            found, worst = [], np.inf
            for target in entry["targets"]:
                mine = best(entry, ours, target)
                rows = [best(entry, c["name"], target) for c in entry["contenders"]
                        if c["name"].startswith(library)]  # fmt: skip
                times = [r["seconds"] for r in rows if r]
                if mine and times:
                    ratios = [t / mine["seconds"] for t in times]
                    worst = min(worst, min(ratios))
                    found.append(f"{target:.0e}: {min(ratios):.2g} ... {max(ratios):.2g}x")
                    if cost := entry.get("evaluation"):
                        least = mine["evaluations"] * cost
                        found[-1] += f" (its field alone: {min(times) / least:.2g}x)"
                elif not mine:
                    found.append(f"{target:.0e}: {ours} did not get there in its time")
                    worst = 0.0
            yield Verdict(
                f"peers: {entry['title']}", f"10x less time than {library}, {ours}",
                "; ".join(found), bool(found) and worst >= 10,
            )  # fmt: skip


def peers() -> Iterator[Verdict]:
    """Goals of `peers.py`."""
    entries = {e["problem"]: e for e in load("peers")}
    goals = [
        ("linear c=10", "diffrax Tsit5", 1e-5, "evaluations", 20.0),
        ("relu tree", "descent, JAX", 1e-5, "seconds", 100.0),
        ("relu tree", "descent, PyTorch", 1e-5, "seconds", 100.0),
        ("relu digits", "descent, JAX", 1e-3, "evaluations", 25.0),
        ("relu digits", "descent, JAX", 1e-4, "evaluations", 60.0),
        ("relu digits", "diffrax Bosh3", 1e-4, "evaluations", 5.0),
    ]
    for problem, peer, target, unit, goal in goals:
        if problem in entries:
            yield against(entries[problem], peer, target, unit, goal)
    for name, entry in entries.items():
        if name.startswith("events"):
            yield from event_times(entry)


def agreement(rows: list[dict]) -> Verdict:
    """Differences halve with the rate."""
    linear = [r["parameters"] for r in rows if r["network"] == "LinearNetwork"]
    return Verdict(
        "agreement", "-", f"linear networks: parameters {linear[0]:.1e} apart at the largest rate "
        f"and {linear[2]:.1e} at a quarter of it", None,
    )  # fmt: skip


def exact_walk(rows: list[dict]) -> Verdict:
    """No run fails."""
    rows = [r for r in rows if "failed" in r]
    runs, failed = sum(r["seeds"] for r in rows), sum(r["failed"] for r in rows)
    return Verdict("exact_walk", "no run fails", f"{failed} of {runs:,} runs failed", failed == 0)


def deep_walk(rows: list[dict]) -> Verdict:
    """No run fails, none gains loss."""
    rows = [r for r in rows if "failed" in r]
    runs, failed = sum(r["seeds"] for r in rows), sum(r["failed"] for r in rows)
    rises = sum(r["runs with rises"] for r in rows)
    text = f"{failed} of {runs:,} runs failed; the loss rises in {rises}"
    return Verdict("deep_walk", "no run fails, loss never rises", text, failed + rises == 0)


def descent_limit(rows: list[dict]) -> Verdict:
    """First order."""
    slopes = [r["slope"] for r in rows if "slope" in r]
    off = max(abs(slope - 1) for slope in slopes)
    span = f"slopes {min(slopes):.3f} ... {max(slopes):.3f} in {len(slopes)} runs"
    return Verdict("descent_limit", "descent converges at first order, 1 +- 0.05", span, off < 0.05)


def derivatives(rows: list[dict]) -> Verdict:
    """Medians and largest differences."""
    rows = [r for r in rows if "median" in r]
    beyond, events = sum(len(r["beyond 1e-6"]) for r in rows), sum(r["events"] for r in rows)
    median, largest = (max(r[key] for r in rows) for key in ("median", "largest"))
    text = f"median {median:.0e} or less, {beyond} of {events:,} beyond 1e-6, largest {largest:.0e}"
    return Verdict("derivatives", "-", text, None)


def matched_error(rows: list[dict]) -> Verdict:
    """Descent's time over the exact walk's."""
    found = [r for r in rows if r.get("contender") == "descent, bare loop" and "ratio" in r]
    text = ", ".join(f"{r['ratio']:.0f}x at {r['target']:.0e}" for r in found)
    first = next((r["ratio"] for r in found if r["target"] == 1e-5), 0.0)
    return Verdict("matched_error", "100x less time than descent at 1e-5", text, first >= 100)


def stiff(rows: list[dict]) -> Verdict:
    """Evaluations of Tsit5 over RKC's at about 1e-5."""
    mine = [r for r in rows if "c=10" in r["problem"] and r["solver"] == "RKC"]
    other = [r for r in rows if "c=10" in r["problem"] and r["solver"] == "Tsit5"]
    a = min((r for r in mine if r["error"] <= 1.25e-5), key=lambda r: r["evaluations"])
    b = min((r for r in other if r["error"] <= 1.25e-5), key=lambda r: r["evaluations"])
    times = b["evaluations"] / a["evaluations"]
    text = f"{times:.0f}x ({a['error']:.1e} against {b['error']:.1e})"
    return Verdict("stiff", "20x fewer evaluations than Tsit5 at about 1e-5", text, times >= 20)


def sweep(rows: list[dict]) -> Verdict:
    """Against a loop."""
    known = {r["way"]: r for r in rows}
    many = known.get("fl.sweep, 2 cores", {})
    text = f"{1 / known['fl.sweep']['times loop']:.2g}x faster than a loop on 2 cores"
    if many:
        text += f"; {many['runs']} runs in {many['seconds']:.0f} s, {many['failed']} failed"
    return Verdict("sweep", "-", text, None)


def border(rows: list[dict]) -> Verdict:
    """Where the exact walk beats plain steps across kinks."""
    sizes = [r["PH"] for r in rows if r["target"] == 1e-4 and "seconds" in r["plain"]
             and r["exact"].get("seconds", np.inf) < r["plain"]["seconds"]]  # fmt: skip
    text = f"at 1e-4 the exact walk is faster up to {max(sizes):,} (unit, sample) pairs"
    return Verdict("border", "-", text, None)


def border_deep(rows: list[dict]) -> Verdict:
    """The same for two and three hidden layers, at a finer error."""
    fine = [r for r in rows if r["target"] == 1e-6]
    others = sum("seconds" in r[method] for r in fine for method in ("plain", "smooth"))
    ratios = [r["descent"]["seconds"] / r["exact"]["seconds"] for r in fine]
    text = (
        f"two and three layers, up to {max(r['PH'] for r in fine):,} pairs, at 1e-6: plain and "
        f"smoothed flows get there in {others} of {2 * len(fine)} cases; descent takes "
        f"{min(ratios):.1f} to {max(ratios):.0f} times as long as the exact walk"
    )
    return Verdict("border_deep", "-", text, None)


def border_wide(rows: list[dict]) -> Verdict:
    """How long walks within the border of the default take, and what others would."""
    seconds = {row["default"]: [] for row in rows}
    for row in rows:
        seconds[row["default"]].append(row["exact"]["seconds"])
    walked, averaged = seconds["ExactKinks()"], seconds["AveragedKinks()"]
    text = (
        f"walks that are the default take up to {max(walked):.0f} s of the processor; where gates "
        f"are averaged by default they would take {min(averaged):.0f} to {max(averaged):.0f} s"
    )
    return Verdict("border_wide", "-", text, None)


CLAIMS: tuple[Callable[[list[dict]], Verdict], ...] = (
    agreement, border, border_deep, border_wide, deep_walk, derivatives, descent_limit, exact_walk,
    matched_error, stiff, sweep,
)  # fmt: skip


def verdicts() -> list[Verdict]:
    """All of them; results of another shape than expected are left to their tables."""
    found = list(peers())
    for claim in CLAIMS:
        rows = load(claim.__name__)
        try:
            if rows:
                found.append(claim(rows))
        except (KeyError, IndexError, ValueError):
            found.append(Verdict(claim.__name__, "-", "see its table", None))
    return found
