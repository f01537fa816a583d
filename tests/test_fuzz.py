"""Odd arguments to every public callable: a right answer, or an error that names an argument.

`python -m tests.fuzz` does the work, in child processes: a wrong value of each sort for each
argument, and some hundred random calls, with `--long-fuzz` some thousand.
"""

import json
import pathlib
import subprocess
import sys

import pytest

import flowlin as fl
from tests.fuzz import drive, known, report
from tests.fuzz.names import targets
from tests.fuzz.words import unknown

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHOWN = 40  # offenders in a message
OBSCURE = 0.01  # of all calls, errors that come from the inside


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory, data_folder):
    """What came of each call."""
    path = tmp_path_factory.mktemp("fuzz") / "fuzz"
    length = ["--long"] if request.config.getoption("--long-fuzz") else []
    command = [sys.executable, "-m", "tests.fuzz", *length, "--report", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(path.with_suffix(".json").read_text())["outcomes"]


def cases(outcomes, *verdicts):
    """Those with one of the verdicts, as a message."""
    found = [outcome for outcome in outcomes if outcome["verdict"] in verdicts]
    more = f"\n... and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return (
        f"{len(found)} of {len(outcomes)} calls:\n{report.offenders(found[:SHOWN], verdicts)}{more}"
        '\n\nOne again, with its traceback: python -m tests.fuzz --case "CASE"'
    )


def count(outcomes, *verdicts):
    return sum(outcome["verdict"] in verdicts for outcome in outcomes)


def test_every_public_callable_is_described(monkeypatch):
    """A new public name is included by itself, and asks for words for its new parameters."""
    assert unknown(targets()) == [], "see tests/fuzz/words.py"

    def new(network, surprise):
        return network, surprise

    new.__module__ = "flowlin.new"
    monkeypatch.setattr(fl.measures, "new", new, raising=False)
    assert unknown(targets()) == ["fl.measures.new.surprise"]


@pytest.mark.slow
def test_valid_calls_are_answered(outcomes):
    assert not count(outcomes, "invalid"), cases(outcomes, "invalid")


@pytest.mark.slow
def test_nothing_hangs_or_dies(outcomes):
    assert not count(outcomes, "hang", "died"), cases(outcomes, "hang", "died")


@pytest.mark.slow
def test_nothing_bad_is_accepted(outcomes):
    found = {outcome["case"] for outcome in outcomes if outcome["verdict"] == "silent"}
    assert found == set(known.ACCEPTED), cases(outcomes, "silent")


@pytest.mark.slow
def test_errors_name_an_argument(outcomes):
    obscure = count(outcomes, "obscure") / len(outcomes)
    assert obscure < OBSCURE, f"{obscure:.1%} are obscure, " + cases(outcomes, "obscure")


@pytest.mark.slow
def test_children_that_hang_or_die_are_counted():
    """The harness itself: each bad end costs one case, and the others are judged all the same."""
    ends = {
        "fl.tasks.xor()": "right",
        "fl.tasks.hierarchy(levels=__import__('os').abort())": "died",
        "fl.tasks.hierarchy(levels=0)": "told",
        "fl.tasks.hierarchy(levels=sum(1 for _ in iter(int, 1)))": "hang",
        "fl.tasks.hierarchy(level=2)": "told",
        "fl.tasks.hierarchy(levels=(lambda: 1 / 0)())": "invalid",
    }
    found = drive.outcomes([list(ends)], 1, 2.0)
    assert {outcome["case"]: outcome["verdict"] for outcome in found} == ends
