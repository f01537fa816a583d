"""The pages' examples run: each `pycon` block, in order, in one namespace for a page.

The namespace is empty at first, so a page has its own imports. Blocks marked `python` are compiled
only, and so are the tutorials, which the build runs. A warning is an error here: a page that shows
one catches it.
"""

import ast
import doctest
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).resolve().parent.parent
PAGES = sorted(DOCS.rglob("*.md"))
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
FENCE = re.compile(r"\s*(?P<ticks>`{3,}|~{3,})\s*(?P<info>[^`]*)$")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """A fenced block: what it says behind its fence, the line of its fence (from 1), its text."""

    info: str
    line: int
    text: str


def blocks(text):
    """All fenced blocks of a page in order; a directive's content is looked through as well."""
    lines, directives, k = text.splitlines(), [], 0
    while k < len(lines):
        fence = FENCE.match(lines[k])
        k += 1
        if fence is None:
            continue
        ticks, info = fence["ticks"], fence["info"].strip()
        if not info and ticks in directives:
            del directives[directives.index(ticks) :]
        elif info.startswith("{"):
            directives.append(ticks)
        else:
            end = next((j for j in range(k, len(lines)) if closes(lines[j], ticks)), None)
            if end is None:
                raise SyntaxError(f"line {k}: no fence {ticks} ends this block")
            indent = len(lines[k - 1]) - len(lines[k - 1].lstrip())
            yield Block(info, k, "".join(f"{line[indent:]}\n" for line in lines[k:end]))
            k = end + 1


def closes(line, ticks):
    """Whether a line is the fence that ends a block begun with these ticks."""
    return set(line.strip()) == {ticks[0]} and len(line.strip()) >= len(ticks)


def check(page):
    """What is wrong with a page's examples, each with file and line; empty if nothing is."""
    text = page.read_text()
    found, wrong, examples = list(blocks(text)), [], []
    for block in found:
        if block.info == "pycon":
            parsed = doctest.DocTestParser().get_examples(block.text, name=page.name)
            for example in parsed:
                example.lineno += block.line
            examples += parsed
        elif block.info == "python":
            ast.parse("\n" * block.line + block.text, filename=str(page))
    if len(examples) != len(re.findall(r"^\s*>>>", text, re.M)):
        wrong.append(f"{page}: a line with >>> outside of a block that is marked pycon\n")
    names = {"__name__": "__main__"}
    run = doctest.DocTest(examples, names, page.name, str(page), 0, text)
    doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(run, out=wrong.append)
    return "".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_shows_what_its_examples_print(page, as_a_user):
    """Every page's examples run and print what stands below them."""
    wrong = check(page)
    if wrong:
        pytest.fail(wrong, pytrace=False)


def test_no_page_uses_a_name_that_it_does_not_make(tmp_path):
    """All code of a page, in order, has its imports; fragments of files, in `contribute`, aside."""
    for k, page in enumerate(page for page in PAGES if page.parent.name != "contribute"):
        found = blocks(page.read_text())
        code = [source(block) for block in found if block.info in ("pycon", "python")]
        (tmp_path / f"{k}_{page.stem}.py").write_text("\n".join(code))
    names = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", "--select", "F821"]
    told = subprocess.run(
        [*names, "--output-format", "concise", "."], cwd=tmp_path, capture_output=True, text=True
    )
    assert told.stdout + told.stderr == ""


def source(block):
    """A block's code, without prompts and what is printed."""
    if block.info == "python":
        return block.text
    return "".join(e.source for e in doctest.DocTestParser().get_examples(block.text))


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.name)
def test_a_tutorial_is_python(tutorial):
    """A tutorial compiles; the build runs it."""
    ast.parse(tutorial.read_text(), filename=str(tutorial))


PAGE = """\
A page.

````{note}
```pycon
>>> x = 1
```
````

- in a list:

  ```pycon
  >>> for k in range(2):
  ...     print(x + k)
  1
  3
  ```

`````md
```pycon
a fence within a fence is text
```
`````
"""


def test_a_wrong_output_is_told_with_its_line(tmp_path):
    """The check can fail, and names the line of the example."""
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    wrong = check(page)
    assert f'File "{page}", line 12' in wrong
    assert "Expected:\n    1\n    3\nGot:\n    1\n    2" in wrong
    page.write_text(PAGE.replace("  3\n", "  2\n"))
    assert not check(page)


def test_examples_that_would_not_run_are_told(tmp_path):
    """A `>>>` in another block, a fence left open, and Python that does not compile."""
    page = tmp_path / "page.md"
    page.write_text("```{eval-rst}\n>>> 1\n```\n")
    assert "outside" in check(page)
    page.write_text("```pycon\n>>> 1\n1\n")
    with pytest.raises(SyntaxError, match="line 1: no fence"):
        check(page)
    page.write_text("a line\n```python\nx = \n```\n")
    with pytest.raises(SyntaxError) as told:
        check(page)
    assert told.value.lineno == 3
