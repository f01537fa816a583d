"""The command; see the package's docstring."""

import argparse
import json
import pathlib
import shlex
import sys
import zlib

import jax

jax.config.update("jax_enable_x64", True)

from tests.fuzz import drive, report
from tests.fuzz.cases import drawn
from tests.fuzz.known import KNOWN, KNOWN_LONG
from tests.fuzz.names import Target, targets
from tests.fuzz.outcome import judged
from tests.fuzz.product import product
from tests.fuzz.words import unknown, valid

# Cases drawn per parameter, besides the product, and child processes among which callables are
# split: each pays for a start and for what it compiles.
SHORT, LONG = (0.1, 2), (4, 8)


def main() -> int:
    """Run what was asked for; 1 if a callable is not described."""
    asked = _arguments()
    if asked.case:
        found = judged(asked.case, show=True)
        print(f"{found.verdict}: {found.detail}")
        return 0
    known = targets()
    missing = unknown(known)
    if missing:
        print("not described in tests/fuzz/words.py:", *missing, sep="\n  ")
        return 1
    chosen = [t for name, t in known.items() if any(o in name for o in asked.only or [""])]
    batches = batched(chosen, asked.seed, *(LONG if asked.long else SHORT))
    with Lines(asked.report) as lines:
        outcomes = drive.outcomes(batches, asked.workers, asked.limit, lines.write)
    text = f"{report.table(outcomes)}\n{report.offenders(outcomes)}\n"
    print(text)
    if asked.report:
        path = pathlib.Path(asked.report)
        command = " ".join(["python -m tests.fuzz", *map(shlex.quote, sys.argv[1:])])
        path.with_suffix(".md").write_text(report.markdown(outcomes, command))
        content = {"counts": report.counts(outcomes), "outcomes": outcomes}
        path.with_suffix(".json").write_text(json.dumps(content, indent=1))
    return 0


def batched(chosen: list[Target], seed: int, per: float, number: int) -> list[list[str]]:
    """Cases in a number of batches; callables that start from one object go together.

    A child process makes the object once. With less than a case per parameter, valid calls and
    properties are left to the library's other tests.
    """
    order = sorted(chosen, key=lambda target: next(iter(valid(target).values()), ""))
    cases = []
    known = KNOWN + KNOWN_LONG if per >= 1 else KNOWN
    for target in order:
        rounding = (zlib.crc32(target.name.encode()) + seed) % 100 / 100
        random = drawn(target, int(per * len(target.parameters) + rounding), seed)
        own = product(target) + (random if per >= 1 else random[1:])
        own += [case for case in known if case.startswith(f"{target.name}(")]
        cases += dict.fromkeys(own)
    size = max(1, -(-len(cases) // number))
    return [cases[k : k + size] for k in range(0, len(cases), size)]


class Lines:
    """Outcomes as they come, one a line in FILE.jsonl, so that a run cut short leaves them."""

    def __init__(self, path: str | None):
        self.file = pathlib.Path(path).with_suffix(".jsonl").open("w") if path else None

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *error) -> None:
        if self.file:
            self.file.close()

    def write(self, outcome: dict) -> None:
        if self.file:
            print(json.dumps(outcome), file=self.file, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--long", action="store_true", help="thousands of cases")
    parser.add_argument("--seed", type=int, default=0, help="other cases for each number")
    parser.add_argument("--only", nargs="*", help="callables whose names contain one of these")
    parser.add_argument("--case", help="one case, with its traceback or value")
    parser.add_argument("--report", help="file for the counts, .md, and all outcomes, .json")
    parser.add_argument("--workers", type=int, default=2, help="child processes at once")
    parser.add_argument("--limit", type=float, default=60.0, help="processor time of a case, s")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
