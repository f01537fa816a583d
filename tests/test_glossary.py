"""The glossary says what the code says: its names are in the code, and each word is there once."""

import ast
import pathlib
import re
import runpy

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "explanation" / "glossary.md").read_text()
FILES = sorted((ROOT / "flowlin").rglob("*.py"))
TREES = [ast.parse(path.read_text()) for path in FILES]
COUNTS = runpy.run_path(str(ROOT / "docs" / "_tools" / "house_counts.py"))


def section(title):
    """The text below a heading, up to the next one."""
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)[1]  # pyright: ignore


def quoted(text):
    return re.findall(r"`(\w+)`", text)


ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| word")
]


def names():
    """Of functions, classes, fields, parameters and constants."""
    for tree in TREES:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            if isinstance(node, ast.arg):
                yield node.arg
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


KNOWN = set(names())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_word_has_a_name_in_the_code_and_a_meaning(row):
    word, *_, code, meaning = row
    assert word
    assert meaning
    assert len(quoted(code)) == 1
    # A statistic of a run has its name as a text.
    name = quoted(code)[0]
    assert name in KNOWN or any(f'"{name}"' in path.read_text() for path in FILES)


def test_no_word_is_explained_twice():
    words = [row[0] for row in ROWS]
    assert len(words) > 50
    assert sorted(words) == sorted(set(words))


def test_participles_of_functions_are_listed():
    found = {name for tree in TREES for name in COUNTS["function_names"](tree)}
    found = {name for name in found if COUNTS["is_participle"](name.split("_")[0])}
    assert found == set(quoted(section("Participles")))


def test_words_that_are_not_used_are_not():
    retired = set(quoted(section("Words that are not used")))
    assert len(retired) > 10
    assert not retired & KNOWN
