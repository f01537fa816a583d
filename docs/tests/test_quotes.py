"""Numbers that pages quote are those of the committed results.

Speeds against other methods are looked up one by one. A table that names its result file, in the
paragraph above it, may hold no number that this file does not.
"""

import functools
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).resolve().parent.parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(DOCS / "_figures")]

import _peers_table
import speed
from PIL import Image

RESULT = re.compile(r"\]\(((?:\.\./)+(?:benchmarks|examples)/[^)#]*results/[^)#]+\.(?:md|json))\)")
NUMBER = re.compile(r"(?<![\w.-])-?(?:\d[\d,]*\d|\d)?(?:\.\d+)?(?:e-?\d+)?(?![\w])")
ROW = r"^\| {} \| ([^|]*)"
SPEEDS = {
    "gradient descent, PyTorch": "descent, PyTorch",
    "diffrax Bosh3 across the kinks": "diffrax Bosh3",
    "gradient descent, bare loop in JAX": "descent, JAX",
}
SECONDS = {
    "`ExactKinks`": "flowlin ExactKinks",
    "diffrax Bosh3 across the kinks": "diffrax Bosh3",
    "SciPy RK45": "scipy RK45",
    "SciPy DOP853": "scipy DOP853",
    "SciPy LSODA": "scipy LSODA",
    "CVODE BDF": "CVODE BDF, GMRES",
} | {name: name for name in ("diffrax Tsit5", "diffrax Dopri8", "torchdiffeq dopri5")}


@pytest.fixture(scope="module")
def tree():
    """The comparison on the semantic tree."""
    entries = json.loads((ROOT / "benchmarks/results/peers.json").read_text())
    (found,) = (entry for entry in entries if entry["problem"] == "relu tree")
    return found


def load(name):
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())


def ratio(tree, name, target):
    return _peers_table.ratio(tree, name, target, "seconds")


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/exactness.md"])
def test_speeds_are_those_of_the_result(tree, page):
    text = (ROOT / page).read_text()
    for row, name in SPEEDS.items():
        (told,) = re.findall(ROW.format(re.escape(row)), text, re.M)
        assert told.strip() == f"{ratio(tree, name, 1e-5):.0f}", row
    (late,) = re.findall(r"takes ([\d.]+) of the walk's time", text)
    assert late == f"{ratio(tree, 'descent, JAX', 1e-3):.2f}"
    assert "250 times |" in text
    assert tree["cap"] / _peers_table.best(tree, tree["main"], 1e-5)["seconds"] >= 250


def test_the_tutorial_has_the_same_speed(tree):
    text = (DOCS / "tutorials/6-exact-flow-through-kinks.py").read_text()
    (told,) = re.findall(r"takes Bosh3 across the kinks (\d+) times", text)
    assert told == f"{ratio(tree, 'diffrax Bosh3', 1e-5):.0f}"


def test_the_tutorial_has_the_same_times_of_descent():
    rows = json.loads((ROOT / "examples/results/chattering.json").read_text())["rows"]
    text = (DOCS / "tutorials/6-exact-flow-through-kinks.py").read_text()
    (told,) = re.findall(
        r"it is ([\d.]+), ([\d.]+) and ([\d.]+) at the rates 1e-2, 1e-3 and 1e-4 where "
        r"the flow has ([\d.]+)\n# and ([\d.]+) ",
        text,
    )
    opened, closed, *descents = (row["t*"] for row in rows)
    assert list(told) == [*(f"{t:.1f}" for t in descents), f"{opened:.4f}", f"{closed:.3f}"]


def test_seconds_across_kinks_are_those_of_the_result(tree):
    text = (DOCS / "explanation/kinks-and-sliding.md").read_text()
    for row, name in (
        SECONDS | {f"descent, {x}": f"descent, {x}" for x in ("JAX", "PyTorch")}
    ).items():
        (told,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", text, re.M)
        best = [_peers_table.best(tree, name, target) for target in (1e-3, 1e-4, 1e-5)]
        assert told.split(" | ") == [f"{b['seconds']:.2g}" if b else "-" for b in best], row


@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", "docs/explanation/linearization-time.md"]
)
def test_times_of_descent_and_flow_are_those_of_the_result(page):
    rows = json.loads((ROOT / "examples/results/chattering.json").read_text())["rows"]
    times = {row["run"]: row["t*"] for row in rows}
    text = (ROOT / page).read_text()
    told = re.findall(
        r"^\| (?:gradient )?descent, (?:learning )?rate (1e-\d) \| (.*) \|$", text, re.M
    )
    assert [(rate, f"{times[f'descent, rate {float(rate):g}']:.1f}") for rate, _ in told] == told
    assert len(told) == 3
    both = times["exact flow, open"], times["exact flow, closed"]
    short = "| exact flow | {:.2f} open, {:.2f} closed |".format(*both)
    long = "| exact flow, open | {:.4f} |\n| exact flow, closed | {:.3f} |".format(*both)
    assert (short in text) or (long in text)


def tables(text):
    """(the paragraph above it, its rows below the head) of each table of a page."""
    lines, k = text.splitlines(), 0
    while k < len(lines):
        if not lines[k].startswith("|"):
            k += 1
            continue
        start, end = k, k
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        before = re.sub(r"\s*(<details>.*)?\s*$", "", "\n".join(lines[:start]))  # a folded one
        above = before.rsplit("\n\n", 1)[-1]
        yield above, lines[start + 2 : end]
        k = end


def numbers(text):
    """The numbers of a text as (value, half a unit of the last digit that its print has)."""
    for found in filter(None, NUMBER.findall(text)):
        plain = found.replace(",", "")
        if not re.search(r"\d", plain):
            continue
        mantissa, _, exponent = plain.partition("e")
        whole, point, behind = mantissa.partition(".")
        digits = len(behind) if point else len(whole.rstrip("0")) - len(whole)  # 460 is 4.6e2
        yield float(plain), 0.5001 * 10.0 ** (int(exponent or 0) - digits)


@functools.cache
def known(file):
    """The numbers of a result, JSON and table: as they stand, in per cent, in thousandths."""
    both = [file.with_suffix(kind) for kind in (".md", ".json")]
    found = [list(numbers(path.read_text())) for path in both if path.exists()]
    values = np.array([value for one in found for value, _ in one])
    return np.concatenate([values, 100 * values, 1e3 * values])


def strangers(rows, values):
    """Numbers in rows, their first cell aside, that none of the values is when rounded."""
    return [
        f"{value:g} in {row}"
        for row in rows
        for value, half in numbers(row.split("|", 2)[2])
        if not np.any(abs(values - value) <= half)
    ]


QUOTING = [
    (page, above, rows)
    for page in sorted(DOCS.rglob("*.md"))
    for above, rows in tables(page.read_text())
    if RESULT.search(above)
]


@pytest.mark.parametrize(
    ("page", "above", "rows"),
    QUOTING,
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_tables_hold_numbers_of_their_result(page, above, rows):
    assert not strangers(rows, known((page.parent / RESULT.findall(above)[-1]).resolve()))


def test_claims_on_speed_are_those_of_the_results(tree):
    text = (DOCS / "explanation/benchmarks.md").read_text()
    jax, bosh = (ratio(tree, name, 1e-5) for name in ("descent, JAX", "diffrax Bosh3"))
    assert f"1/{jax:.0f} of the time of descent in JAX and 1/{bosh:.0f} of that of" in text
    assert ratio(tree, "descent, JAX", 1e-3) < 1
    jobs = {row["job"]: row for row in load("latency")}
    assert f"take {jobs['README']['first']:.1f} s the first time" in text
    assert f"and {jobs['README']['further']:.2f} s from then on" in text
    first, further = (f"{jobs['README'][when]:{form}} s" for when, form in
                      (("first", ".1f"), ("further", ".2f")))  # fmt: skip
    told = f"ten lines take {first}, and {further} from then on"
    assert told in (DOCS / "explanation/exactness.md").read_text()
    lost = [loss for entry in load("peers") for loss in _peers_table.losses(entry)]
    most = max((loss for loss in lost if loss["times"]), key=lambda loss: loss["times"])
    assert f"up to {most['times']:.1f} times faster in plain diffrax" in text
    assert (most["unit"], most["peer"].split()[0]) == ("seconds", "diffrax")
    border = [row for row in load("border") if row["task"] == "gaussian"]
    fine = [row for row in border if row["target"] == 1e-6]
    assert not any(row[name].get("seconds") for row in fine for name in ("plain", "smooth"))
    pays = {row["PH"]: row["exact"]["seconds"] < row["plain"]["seconds"]
            for row in border if row["target"] == 1e-4}  # fmt: skip
    assert all(pays[pairs] == (pairs <= 1280) for pairs in pays)
    stiff = speed.entry("linear c=10")
    (_, error, _) = speed.PROBLEMS["linear c=10"]
    own = _peers_table.best(stiff, "flowlin", error)["evaluations"]
    assert _peers_table.best(stiff, "diffrax Tsit5", error)["evaluations"] > 200 * own


def test_figures_of_speed_are_drawn_from_the_committed_results():
    """Each picture holds a hash of its results; a result that is measured anew wants it redrawn."""
    assert {path.stem for path in speed.STATIC.iterdir()} == set(speed.FIGURES)
    page = (DOCS / "explanation/benchmarks.md").read_text()
    for name, (_, results) in speed.FIGURES.items():
        with Image.open(speed.STATIC / f"{name}.png") as picture:
            assert picture.info["made from"] == speed.made_from(results), name
        assert f"speed/{name}.png" in page


def test_a_stranger_is_told():
    assert strangers(["| a | 37 | 1.2e-3 | 12 % |"], np.array([44.9, 0.00123, 11.8])) == [
        "37 in | a | 37 | 1.2e-3 | 12 % |"
    ]
    assert len(QUOTING) >= 15
