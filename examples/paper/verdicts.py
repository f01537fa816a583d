r"""Every claim of the papers with what was measured and the verdict, one table for each paper.

Runs all studies of this folder, one after the other in one process, so that those which share
tasks share runs and compiled programs.

    python examples/paper/verdicts.py [--quick | --quoted] [--minutes N] [--out PATH] [--json PATH]

By default the studies of toy tasks are computed at their default size, and those of images are
quoted from their committed results and marked so, with the size at which they were computed; the
table is `results/verdicts.md`. With `--quoted` all are quoted. With `--quick` all are computed at
quick size, as each script does it, with its figures and numbers, and the table is
`figures/paper/verdicts.md`. A study that fails has a row that says so, and the exit code is 1.
After `--minutes` no other study is begun, and those left out are printed.
"""

import argparse
import dataclasses
import gc
import importlib
import json
import math
import os
import pathlib
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from _judge import OUTCOMES
from _paper import RESULTS, Row, Study
from tqdm import tqdm

HERE = pathlib.Path(__file__).resolve().parent
FAILED = "failed"
# How the sources of claims are named, in the order of the tables.
PAPERS = {
    "M": "M, the lead paper",
    "W": "W, its workshop version",
    "C": "C, the curriculum on deep linear networks",
    "B": "B, the bias after ReLU",
    "L": "L, effective weights",
    "other": "Other papers that these name",
}
ASIDE = {
    "control": "Controls, and what was asked beside the claims",
    "theorem": "Theorems",
    "test": "Tests of the library",
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A line of a table; `script` is relative to the repository's root."""

    claim: str
    source: str
    measured: str
    verdict: str
    script: str
    quote: str = ""
    kind: str = "claim"
    moves: str = ""

    @property
    def outcome(self) -> str:
        """The verdict without what follows."""
        return self.verdict.split(":")[0]

    @property
    def heading(self) -> str:
        """Of the table that it stands in."""
        return PAPERS[paper_of(self.source)] if self.kind == "claim" else ASIDE[self.kind]


def paper_of(source: str) -> str:
    """The paper that a source names by its letter."""
    letter = re.split(r"[ ;,]", source)[0]
    return letter if letter in PAPERS else "other"


def names() -> list[str]:
    """The scripts of this folder that define a study, Fig. 2 before Fig. 10."""
    found = [path.stem for path in HERE.glob("[!_]*.py") if "\nSTUDY = " in path.read_text()]
    return sorted(found, key=lambda name: [int(s) if s.isdigit() else s for s in _parts(name)])


def _parts(name: str) -> list[str]:
    return re.split(r"(\d+)", name)


def study_of(name: str) -> Study:
    """The study of a script."""
    return importlib.import_module(name).STUDY


def computed(study: Study) -> list[Row]:
    """The verdicts on a study that is run now, at its default size."""
    return study.rows(study.compute(study.sizes["default"]))


def quoted(study: Study, folder: pathlib.Path = RESULTS) -> list[Row]:
    """The verdicts in a study's saved results, marked as quoted, with the size."""
    path = folder / f"{study.name}.json"
    if not path.exists():
        raise FileNotFoundError(f"no results to quote: run {study.name}.py and commit {path.name}.")
    record = json.loads(path.read_text())
    mark = f"quoted, {size_text(record['size'])}: "
    rows = map(Row.of, record["verdicts"])
    return [dataclasses.replace(row, measured=mark + row.measured) for row in rows]


def size_text(size: dict[str, Any]) -> str:
    """A recorded size in words, such as "default size, 5,000 samples, 5 seeds"."""
    parts = [f"{size['name']} size"]
    for key in ("samples", "seeds"):
        numbers = dict.fromkeys(v for v in _values(size, key) if isinstance(v, int))
        parts += [f"{' and '.join(f'{v:,}' for v in numbers)} {key}"] if numbers else []
    return ", ".join(parts)


def _values(size: dict[str, Any], key: str) -> Iterator[Any]:
    """All values of a key in nested dictionaries."""
    for name, value in size.items():
        if isinstance(value, dict):
            yield from _values(value, key)
        elif name == key:
            yield value


def entries(
    scripts: Sequence[str], rows_of: Callable[[Study], list[Row]], minutes: float = math.inf
) -> list[Entry]:
    """All rows of all studies; a study that fails has one row, and its traceback is printed."""
    found, last = [], time.monotonic() + 60 * minutes
    bar = tqdm(scripts, unit="study")
    for k, name in enumerate(bar):
        if time.monotonic() > last:
            print(f"not computed, since {minutes:g} minutes are over:", *scripts[k:])
            break
        bar.set_postfix_str(name)
        script = f"examples/paper/{name}.py"
        try:
            rows = rows_of(study_of(name))
        except Exception as error:  # one failure must not hide the other studies
            traceback.print_exc()
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            found.append(
                Entry("The study can be computed", name, text, FAILED, script, kind="test")
            )
        else:
            found += [Entry(**dataclasses.asdict(row), script=script) for row in rows]
        forget_programs()
    return found


def forget_programs() -> None:
    """Forgets compiled programs where there are so many that Linux would end the process.

    Each takes up to 25 maps of memory, of which a process has at most 65,530.
    """
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 40_000:
        jax.clear_caches()
        gc.collect()


def tables(rows: Sequence[Entry], folder: pathlib.Path) -> str:
    """One table for each paper, then those of what is no claim of theirs, as Markdown.

    Links work from a folder. Below each the number of its rows by outcome.
    """
    parts = []
    for title in (*PAPERS.values(), *ASIDE.values()):
        some = [row for row in rows if row.heading == title]
        if some:
            parts.append(f"## {title}\n\n{table(some, folder)}\n\n{counted(some)}\n")
    claims = [row for row in rows if row.kind == "claim"]
    return "\n".join([*parts, f"In all {counted(claims)}\n"])


def table(rows: Sequence[Entry], folder: pathlib.Path) -> str:
    """The rows of one table."""
    lines = ["| what is said | source | measured | verdict | script |", "|---|---|---|---|---|"]
    for row in rows:
        script = HERE.parents[1] / row.script
        link = pathlib.PurePath(os.path.relpath(script, folder.resolve())).as_posix()
        said = f"{cell(row.claim)}<br>“{cell(row.quote)}”" if row.quote else cell(row.claim)
        verdict = cell(row.verdict) + (f"<br>{cell(row.moves)}" if row.moves else "")
        cells = [said, cell(row.source), cell(row.measured), verdict, f"[{script.stem}]({link})"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def counted(rows: Sequence[Entry]) -> str:
    """The number of rows by outcome."""
    counts = Counter(row.outcome for row in rows)
    number = "; ".join(f"{counts[v]} {v}" for v in (*OUTCOMES, FAILED) if counts[v])
    kinds = {row.kind for row in rows}
    what = "claims" if kinds == {"claim"} else "rows"
    return f"{len(rows)} {what} in {len({row.script for row in rows})} studies: {number}."


def cell(text: str) -> str:
    """Text that stays within a cell of a Markdown table."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="all at quick size, with figures")
    how.add_argument("--quoted", action="store_true", help="quote all; computes nothing")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none later")
    parser.add_argument("--out", type=pathlib.Path, help="the tables")
    parser.add_argument("--json", type=pathlib.Path, help="write its rows there as well")
    given = parser.parse_args()
    out = given.out or (pathlib.Path("figures/paper") if given.quick else RESULTS) / "verdicts.md"

    def rows_of(study: Study) -> list[Row]:
        if given.quick:
            return study.save("quick", out.parent)
        return quoted(study) if given.quoted or study.heavy else computed(study)

    rows = entries(names(), rows_of, given.minutes)
    text = tables(rows, out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    if given.json:
        given.json.write_text(
            json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n"
        )
    print(f"{out}\n{text.splitlines()[-1]}")
    return int(any(row.verdict == FAILED for row in rows))


if __name__ == "__main__":
    sys.exit(main())
