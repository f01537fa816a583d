"""The runs that a page shows over time: what is written is what ran, and its t* are in it."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).resolve().parent.parent
sys.path.append(str(DOCS / "_figures"))

import walks

TEXT = (DOCS / "_static" / "walk_data.js").read_text()
(HEAD,) = re.findall(r"\.\.\.(\{.*?\}), runs:", TEXT)
RUNS = [json.loads(line.rstrip(",")) for line in TEXT.splitlines() if line.startswith('{"task"')]
TICKS = walks.FRAMES * walks.TICKS
(FIRST,) = (run for run in RUNS if (run["task"], run["c"], run["seed"]) == ("semantic tree", 1, 0))


def read(text, width):
    """Numbers in base 64."""
    digits = np.array([walks.DIGITS.index(letter) for letter in text]).reshape(-1, width)
    return digits @ 64 ** np.arange(width - 1, -1, -1)


def events(run):
    """(ticks, pairs, sides), sides from 0, off, to 2, on."""
    number = len(run["events"]) // 5
    changes = read(run["events"][3 * number :], 2)
    return read(run["events"][: 3 * number], 3), changes // 3, changes % 3


def sides(run, tick):
    """Sides at a tick, (samples, units)."""
    now = read(run["initial"], 1)
    for at, pair, side in zip(*events(run), strict=True):
        if at <= tick:
            now[pair] = side
    return now.reshape(run["samples"], run["units"])


def first_of_the_most(run, least):
    """(tick, share of units) at which the most units are first at `least` for every sample."""
    now = read(run["initial"], 1).reshape(run["samples"], run["units"])
    ticks, pairs, new = events(run)
    found = [(0, (now >= least).all(0).mean())]
    for tick in np.unique(ticks):
        for k in np.flatnonzero(ticks == tick):
            now.ravel()[pairs[k]] = new[k]
        found.append((tick, (now >= least).all(0).mean()))
    return max(found, key=lambda one: (one[1], -one[0]))


def test_the_figure_is_small():
    sizes = [(DOCS / "_static" / name).stat().st_size for name in ("walk_data.js", "walk.js")]
    assert sum(sizes) < 300_000
    assert json.loads(HEAD)["frames"] == walks.FRAMES
    wanted = {(task.name, c) for task in walks.settings() for c in walks.STRENGTHS}
    assert {(run["task"], run["c"]) for run in RUNS} == wanted
    assert len(RUNS) == len(wanted) * len(walks.SEEDS)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['task']} {run['c']} {run['seed']}")
def test_a_run_has_its_linearization_times(run):
    for name, least in (("open", 2), ("closed", 1)):
        tick, share = first_of_the_most(run, least)
        time, fraction = run[name]
        assert share == pytest.approx(fraction, abs=1e-4)
        assert abs(tick - time / run["end"] * TICKS) <= 1.5
    high, low = read(run["high"], 2), read(run["low"], 2)
    assert len(high) == len(low) == walks.FRAMES
    assert (low <= high).all()
    assert high.max() / run["units"] == pytest.approx(run["descent"][1], abs=1e-4)
    first = int(np.argmax(high))
    assert first <= run["descent"][0] / run["end"] * walks.FRAMES <= first + 1


def test_the_first_run_is_that_of_the_example():
    rows = json.loads((DOCS.parent / "examples/results/chattering.json").read_text())["rows"]
    names = {"exact flow, open": "open", "exact flow, closed": "closed"}
    names |= {"descent, rate 0.01": "descent"}
    for row in rows:
        if row["run"] in names:
            told = FIRST[names[row["run"]]]
            assert told == pytest.approx([row["t*"], row["always on"]], abs=1e-4)


def test_numbers_are_written_as_they_are_read():
    numbers = [0, 1, 63, 64, 4095]
    assert read(walks.packed(numbers, 2), 2).tolist() == numbers
    assert walks.packed_bits(np.array([True, False, False, False, False, True, True])) == "hg"
    order = np.array([2, 0, 1])
    one = walks.Sides(np.arange(6).reshape(2, 3), np.array([5]), np.array([3]), np.array([1]))
    changed = walks.ordered(one, order)
    assert changed.at(4).tolist() == one.initial[:, order].tolist()
    assert changed.at(5).tolist() == one.at(5)[:, order].tolist()


@pytest.mark.slow
def test_a_run_made_anew_is_the_one_that_is_shown():
    setting = walks.settings()[-1]
    (kept,) = (run for run in RUNS if (run["task"], run["c"], run["seed"]) == (setting.name, 1, 0))
    made = walks.walk(setting, 1.0, 0)
    for name in ("open", "closed", "descent"):
        assert made[name] == pytest.approx(kept[name], abs=1e-3)
    ticks, *changes = events(made)
    shown, *others = events(kept)
    assert np.abs(ticks - shown).max() <= 1
    assert [c.tolist() for c in changes] == [c.tolist() for c in others]
    same = [read(made[name], 2) == read(kept[name], 2) for name in ("low", "high")]
    assert np.mean(same) > 0.98  # a step at which rounding decides may differ
