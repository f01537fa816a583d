"""Numbers that pages quote are those of the committed results.

Speeds against other methods are looked up one by one. A table that names its result file, in the
paragraph above it, may hold no number that this file does not. The tables of studies are held
against the findings of the result that their section links as "numbers".
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
STUDY = re.compile(r"\[numbers\]\((\.\./\.\./examples/studies/results/[^)]+\.json)\)")
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

# How a study's tables, by the start of their heads, stand in the findings of its result: the
# numbers of a row, of a column or of a cell in one of them; or not so.
STUDIES = {
    "| setting | predicted / measured": None,  # the smallest and the largest of several: below
    "| ReLU in | modes late by": None,
    "| ReLU in | first mode": "row",
    "| c | modes late by": "row",
    "| seeds | c": "row",
    "| initial variance |": "column",
    "| factor |": "column",
    "| c | R |": "row",
    "| task | R at": "cell",
    "| variance | over |": "cell",
    "| variance | R at": "cell",
    "| c | constant mode": "row",
    "| lambda |": "row",
    "| c | R is least": "row",
    "| Delta |": "row",
    "| c | rates part": None,  # ratios of what is found
    "| run | order reversed": "column",
    "| task | c\\* at v": "cell",
    "| g | both on": "row",
    "| setting | units with": "row",
    "| rate | window": "row",
    "| network | at the start": "row",
    "| task | part at t": "cell",
    "| task | linear, as many": "row",
}


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


def test_speeds_are_those_of_the_result(tree):
    text = (DOCS / "explanation/exactness.md").read_text()
    for row, name in SPEEDS.items():
        (told,) = re.findall(ROW.format(re.escape(row)), text, re.M)
        assert told.strip() == f"{ratio(tree, name, 1e-5):.0f}", row
    (late,) = re.findall(r"takes ([\d.]+) of the walk's time", text)
    assert late == f"{ratio(tree, 'descent, JAX', 1e-3):.2f}"
    assert "250 times |" in text
    assert tree["cap"] / _peers_table.best(tree, tree["main"], 1e-5)["seconds"] >= 250


def test_the_readme_has_the_same_speed(tree):
    text = (ROOT / "README.md").read_text()
    (slow,) = re.findall(r"to an error of 1e-5 a bare loop of descent takes (\d+) times", text)
    (fast,) = re.findall(r"But to 1e-3 it takes ([\d.]+) of the walk's time", text)
    assert slow == f"{ratio(tree, 'descent, JAX', 1e-5):.0f}"
    assert fast == f"{ratio(tree, 'descent, JAX', 1e-3):.2f}"


@pytest.mark.parametrize("work", ["evaluations", "seconds"])
@pytest.mark.parametrize("error", [5e-4, 2e-4, 1e-4])
def test_averaged_gates_lie_left_of_all_others(work, error):
    """As the caption on their page says of the picture of digits."""
    text = (DOCS / "explanation/averaged-gates.md").read_text()
    assert "from an error of 5e-4 on averaged gates (black, filled)" in text
    (digits,) = (entry for entry in load("peers") if entry["problem"] == "relu digits")
    costs = {
        run[work]: one["name"]
        for one in digits["contenders"]
        for run in one["tried"]
        if work in run and run.get("error", 1) <= error
    }
    assert costs[min(costs)] == "flowlin AveragedKinks"


def test_bold_claims_are_those_of_the_tables_below_them():
    gates, exact = (
        (DOCS / f"explanation/{name}.md").read_text() for name in ("averaged-gates", "exactness")
    )
    assert "**To an error of 6e-5 on digits with c = 10 averaged gates take a sixth" in gates
    (row,) = re.findall(r"^\| digits c=10 t=10 \| (.*) \|$", gates, re.M)
    (error, averaged), (other, bosh3) = (
        [float(z) for z in cell.split(" : ")] for cell in (row.split(" | ")[k] for k in (1, 5))
    )
    assert [error, other] == pytest.approx([6e-5, 6e-5], rel=0.1)
    assert bosh3 / averaged == pytest.approx(6, abs=0.5)
    assert "agrees with the flow to 8e-10 or better" in exact
    table = exact.split("## Closed forms")[1].split("**What calls")[0]
    rows = [line.split(" | ") for line in table.split("\n") if line.startswith("| ")]
    assert max(float(cells[2]) for cells in rows[2:]) == 8e-10


def test_the_tutorial_has_the_same_speed(tree):
    text = (DOCS / "tutorials/6-exact-flow-through-kinks.py").read_text()
    (told,) = re.findall(r"takes Bosh3 across the kinks (\d+) times", text)
    assert told == f"{ratio(tree, 'diffrax Bosh3', 1e-5):.0f}"


def test_the_tutorial_has_the_same_times_of_descent():
    rows = json.loads((ROOT / "examples/results/chattering.json").read_text())["rows"]
    text = (DOCS / "tutorials/6-exact-flow-through-kinks.py").read_text()
    told = re.findall(r"# \| (?:descent, rate|flow,) \S+ \| ([\d.]+) \|", text)
    opened, closed, *descents = (row["t*"] for row in rows)
    assert told == [*(f"{t:.1f}" for t in descents), f"{opened:.4f}", f"{closed:.3f}"]


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


def is_row(line):
    """Whether a line is one of a table, which may stand in a list."""
    return line.lstrip().startswith("|")


def tables(text):
    """(its section's text above it, its head, its rows below the head) of each table of a page."""
    lines, k = text.splitlines(), 0
    while k < len(lines):
        if not is_row(lines[k]):
            k += 1
            continue
        start, end = k, k
        while end < len(lines) and is_row(lines[end]):
            end += 1
        before = re.sub(r"\s*(<details>.*)?\s*$", "", "\n".join(lines[:start]))  # a folded one
        section = re.split(r"^#+ ", before, flags=re.M)[-1]
        yield section, lines[start].strip(), lines[start + 2 : end]
        k = end


def above(section):
    """The paragraph right above a table."""
    return section.rsplit("\n\n", 1)[-1]


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
    (page, above(section), rows)
    for page in sorted(DOCS.rglob("*.md"))
    for section, _, rows in tables(page.read_text())
    if RESULT.search(above(section))
]


@pytest.mark.parametrize(
    ("page", "paragraph", "rows"),
    QUOTING,
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_tables_hold_numbers_of_their_result(page, paragraph, rows):
    assert not strangers(rows, known((page.parent / RESULT.findall(paragraph)[-1]).resolve()))


def split(row):
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def wanted(head, rows, how):
    """The numbers of a table that stand together: those that one finding has to have, in groups.

    With a column goes its head, with a cell its row's first cell and its head: exact numbers.
    """
    heads, cells = split(head), [split(row) for row in rows]
    if how == "row":
        groups = [("", " ; ".join(row[1:])) for row in cells]
    elif how == "column":
        columns = range(1, len(heads))
        groups = [(heads[k], " ; ".join(row[k] for row in cells)) for k in columns]
    else:
        groups = [
            (f"{row[0]} {heads[k]}", part)
            for row in cells
            for k in range(1, len(heads))
            for part in row[k].split(", ")
            if not part.startswith("none")
        ]
    found = [([v for v, _ in numbers(label)], list(numbers(text))) for label, text in groups]
    return [(label, told) for label, told in found if told]


def holds(finding, label, told):
    values = np.array([value for value, _ in numbers(finding)])
    return set(label) <= set(values) and all(
        np.any(abs(values - value) <= half) for value, half in told
    )


STUDIED = [
    (file, head, rows)
    for page in sorted((DOCS / "explanation").glob("*.md"))
    for section, head, rows in tables(page.read_text())
    for file in [(page.parent / link).resolve() for link in STUDY.findall(section)[-1:]]
    if "findings" in json.loads(file.read_text())
]


@pytest.mark.parametrize("start", [start for start, how in STUDIES.items() if how])
def test_tables_of_studies_are_in_their_findings(start):
    ((file, head, rows),) = (table for table in STUDIED if table[1].startswith(start))
    findings = json.loads(file.read_text())["findings"]
    groups = wanted(head, rows, STUDIES[start])
    assert len(groups) >= 2
    lost = [told for label, told in groups if not any(holds(f, label, told) for f in findings)]
    assert not lost
    wrong = [(label, [(1.3 * v, half) for v, half in told]) for label, told in groups]
    passed = [group for group in wrong if any(holds(f, *group) for f in findings)]
    assert len(passed) <= len(wrong) / 3  # the check can fail


def test_every_table_of_a_study_is_checked_or_named():
    for _, head, _ in STUDIED:
        assert sum(head.startswith(start) for start in STUDIES) == 1, head


def study(name):
    return json.loads((ROOT / f"examples/studies/results/{name}.json").read_text())


def span(values):
    """The smallest and the largest as a table has them."""
    ends = [f"{end:.2f}" for end in (min(values), max(values))]
    return " to ".join(dict.fromkeys(ends))


def test_factors_with_depth_are_those_of_the_result():
    text = (DOCS / "explanation/studies.md").read_text()
    found = [finding for finding in study("half_gate_depth")["findings"] if "c = 0," not in finding]

    def factors(start, held=False):
        own = [f for f in found if f.startswith(start) and (", held out:" in f) == held]
        return [float(factor) for f in own for factor in re.findall(r"Gaussian ([\d.]+)", f)]

    of = "2 hidden layers of"
    two, narrow = factors("2 hidden"), factors(f"{of} 16,")
    two.remove(narrow[-1])
    both, first = (factors(f"{of} 96, ReLU in {layers}", True) for layers in ("1+2", "1,"))
    for row in (
        f"held out: two hidden layers (96 units, c = 1.5) | {span(both)}",
        f"held out: ReLU in the first of the two | {span(first)}",
        f"held out: three (128 units, a smaller tree) | {span(factors('3 hidden', True))}",
        f"others with bias: two | {span(two)}",
        f"others with bias: two of 16 units, last modes | {narrow[-1]:.2f}",
        f"others with bias: three | {span(factors('3 hidden'))}",
    ):
        assert f"| {row} |" in text
    for name, layers in (("layer 1", "1"), ("layer 2", "2"), ("both", "1+2")):
        (own,) = (f for f in found if f"of 32, ReLU in {layers}, H variance 0.32," in f)
        (told,) = re.findall(r"R = (\S+ ± [\d.]+)", own)
        late = [float(factor) for factor in re.findall(r"late by ([\d.]+)", own)]
        factor = "" if name == "both" else f"{span(late)} "
        assert f"\n  | {name} | {factor}| {told} |\n" in text


def test_gates_of_half_of_the_units_are_those_of_the_result():
    text = (DOCS / "explanation/studies.md").read_text()
    result = study("half_gate")
    scans, trees = result["scans"], result["no trees"]
    names = ("bias mode", "second singular value", "third", "last")
    for name, *modes in zip(names, scans["width"]["32"], scans["width"]["64"], strict=True):
        told = " | ".join(f"{mode['correlation by seed']:.2f}" for mode in modes)
        assert f"| {name} | {told} |" in text

    def of(runs, key, modes=slice(None)):
        return span([mode[key] for run in runs for mode in run[modes]])

    first, later, over = slice(1), slice(1, None), "derived over measured"
    runs = list(scans["variance"].values())
    slopes = [run for slope, run in scans["slope"].items() if slope != "0"]
    wide, *small = result["held out"].values()
    for row in (
        f"32 units, variances 2e-8 to 2e-4, bias mode | {of(runs, 'gate', first)} | "
        f"{of(runs, over, first)}",
        f"the same, later modes | {of(runs, 'gate', later)} | {of(runs, over, later)}",
        f"slopes 0.1, 0.3 and 0.6, all modes | {of(slopes, 'gate')} |",
        f"held out: 48 units, c = 0.7, slope 0.2 | {of([wide], 'gate')} |",
        f"held out: a smaller tree, slopes 0 and 0.3 | {of(small, 'gate')} |",
    ):
        assert f"| {row} |" in text
    assert f"derived means are {of([wide, *small], over)} of the measured ones" in text
    for task, (bias, *rest) in ({"tree": scans["variance"]["2e-06"]} | trees).items():
        interval = span(bias[f"{over}, interval"])
        told = f"| {task} | {bias[over]:.2f} ({interval}) | {bias['correlation by seed']:.2f} |"
        assert told in text
        if task in ("tree", "classes", "dense targets"):
            assert f"{told} {of([rest], 'gate')} |" in text


def test_the_readme_has_the_share_of_events_within_their_uncertainty():
    (held,) = (
        row for row in load("trust")
        if row.get("runs") == "all held out" and "within 3 ±" in row
    )  # fmt: skip
    told = re.search(
        r"`flow.confirm\(\)` makes it the run's. Of ([\d,]+) events held against\s+"
        r"finer runs ([\d.]+) % are then within three times their ±",
        (ROOT / "README.md").read_text(),
    )
    assert told.groups() == (f"{held['events']:,}", f"{100 * held['within 3 ±']:.1f}")


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


def test_a_row_in_a_list_is_told():
    said = "- by ([b](../benchmarks/results/b.md)):"
    ((section, head, rows),) = tables(f"# A\n\n{said}\n\n  | a | b |\n  | - | - |\n  | c | 3 |\n")
    assert (above(section), head) == (said, "| a | b |")
    assert strangers(rows, np.array([4.0])) == ["3 in   | c | 3 |"]
