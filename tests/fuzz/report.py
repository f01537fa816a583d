"""Counts of outcomes: right, told, obscure, silent, hang, died."""

import collections
from collections.abc import Iterable
from typing import Any

from tests.fuzz.outcome import VERDICTS

BAD = ("silent", "hang", "died", "invalid", "obscure")


def counts(outcomes: Iterable[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """By callable and verdict; `total` last."""
    table: dict[str, dict[str, int]] = {}
    total = collections.Counter()
    for outcome in outcomes:
        row = table.setdefault(outcome["case"].split("(")[0], dict.fromkeys(VERDICTS, 0))
        row[outcome["verdict"]] += 1
        total[outcome["verdict"]] += 1
    return {**table, "total": {verdict: total[verdict] for verdict in VERDICTS}}


def table(outcomes: Iterable[dict[str, Any]]) -> str:
    """The counts as text, the worst callables first."""
    rows = counts(outcomes)
    total = rows.pop("total")
    order = sorted(rows, key=lambda name: [-rows[name][verdict] for verdict in BAD])
    width = max(map(len, [*rows, "total"]))
    lines = [f"{'':{width}} " + " ".join(f"{verdict:>7}" for verdict in VERDICTS)]
    for name, row in [("total", total), *((name, rows[name]) for name in order)]:
        lines.append(f"{name:{width}} " + " ".join(f"{row[v] or '.':>7}" for v in VERDICTS))
    return "\n".join(lines)


def offenders(outcomes: Iterable[dict[str, Any]], verdicts: Iterable[str] = BAD) -> str:
    """The cases of these verdicts, by callable."""
    found = collections.defaultdict(list)
    for outcome in outcomes:
        if outcome["verdict"] in verdicts:
            found[outcome["case"].split("(")[0]].append(outcome)
    lines = []
    for name in sorted(found):
        lines.append(f"\n{name}")
        for one in sorted(found[name], key=lambda o: BAD.index(o["verdict"])):
            lines.append(f"  {one['verdict']:8} {one['case']}")
            if one["detail"]:
                lines.append(f"           {one['detail']}")
    return "\n".join(lines)
