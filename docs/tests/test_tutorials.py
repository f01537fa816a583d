"""Each tutorial opens alike, folds what only draws, and answers its exercises.

The build runs the answers, so their numbers are computed there; here it is looked that they are.
"""

import re
import sys
from pathlib import Path

import jupytext
import pytest

DOCS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(DOCS / "_tools"))

import letters

TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
OPENING = re.compile(
    r"# \d\. .+\n\nYou will learn\n\n((?:- .+\n(?:  .+\n)*)+)\n"
    r"It takes about \d+ minutes to read, and .* to run\.\n"
)


def read(path):
    """A tutorial's cells."""
    return jupytext.read(path, fmt="py:percent").cells


def tags(cell):
    return cell.metadata.get("tags", [])


@pytest.fixture(params=TUTORIALS, ids=lambda path: path.stem)
def cells(request):
    return read(request.param)


def test_it_says_first_what_one_learns_and_how_long_it_takes(cells):
    opening = OPENING.match(cells[0].source)
    assert opening
    assert 3 <= len(re.findall(r"^- ", opening[1], re.M)) <= 4


def test_what_draws_is_folded_and_nothing_else(cells):
    for cell in cells:
        if cell.cell_type == "code" and "hide-cell" not in tags(cell):
            assert ("hide-input" in tags(cell)) == ("plt.show()" in cell.source), cell.source
            assert "hide-input" not in tags(cell) or "print(" not in cell.source, cell.source


def test_every_exercise_has_an_answer_that_is_computed(cells):
    (asked,) = [cell.source for cell in cells if "## Exercises" in cell.source]
    numbers = re.findall(r"^(\d)\. ", asked.split("## Exercises")[1], re.M)
    answers = [cell for cell in cells if "hide-cell" in tags(cell)]
    assert len(answers) == len(numbers) >= 3
    for number, cell in zip(numbers, answers, strict=True):
        assert cell.source.startswith(f"# {number}. ")
        assert cell.metadata["mystnb"]["code_prompt_show"] == f"Answer {number}"
        assert "print(" in cell.source


def test_letters_of_figures_are_legible(cells):
    """At the width of the text; pages show these figures as vectors, of 96 pixels an inch."""
    for cell in cells:
        for width in map(float, re.findall(r"figsize=\(([\d.]+),", cell.source)):
            legend = letters.NAMED["small"] if "fl.plot." in cell.source else letters.TICKS
            size = min(legend, letters.points(cell.source))
            pixels = size * min(letters.WIDTH, 96 * width) / (72 * width)
            assert round(pixels, 1) >= 8.0, cell.source


def test_all_tutorials_are_read():
    assert len(TUTORIALS) == 8
