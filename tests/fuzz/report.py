"""Counts of outcomes: right, told, obscure, silent, hang, died."""

import collections
from collections.abc import Iterable
from typing import Any

from tests.fuzz.outcome import VERDICTS

BAD = ("silent", "hang", "died", "invalid", "obscure")
MEANING = """\
Odd arguments to every public callable, drawn from fixed seeds. *Right* is an answer to arguments
that have one. *Told* is an error raised by flowlin that names the argument, *obscure* any other.
*Silent* is an answer to arguments that have none, *hang* and *died* a call that never returned or
that ended the process, *invalid* a mistake of the test's own. What the
cases of seed 0 found has been mended, so that they say how things stand, and not what is left to
find: `--seed 1` draws others."""
# Of the long version, as counted for flowlin 0.1, which had fewer public names.
FIRST = {"right": 597, "told": 560, "obscure": 647, "silent": 238, "died": 1}


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


def markdown(outcomes: list[dict[str, Any]], command: str) -> str:
    """The totals beside those of version 0.1, and the cases that are neither right nor told."""
    lines = [f"| version | calls | {' | '.join(VERDICTS)} |", "| --- " * (2 + len(VERDICTS)) + "|"]
    for version, total in (("0.1", FIRST), ("now", counts(outcomes)["total"])):
        cells = [f"{total.get(verdict, 0):,}" for verdict in VERDICTS]
        lines.append(f"| {version} | {sum(total.values()):,} | {' | '.join(cells)} |")
    left = offenders(outcomes)
    text = f"{MEANING}\n\n    {command}\n\n" + "\n".join(lines) + "\n"
    return text + (f"\n```{left}\n```\n" if left else "")
