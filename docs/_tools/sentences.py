"""Sentences of the pages that say too much at once: too many numbers, or too many words.

`python docs/_tools/sentences.py` prints those of all pages. Code, formulas, tables, headings and
what the build or another script writes are no prose. A number with its uncertainty or its interval
is one, and so is a range, or a size such as 12 x 12. That in a name (Fig. 3, E8, CIFAR-10) is none.
"""

import pathlib
import re
from collections.abc import Iterator

DOCS = pathlib.Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
MOST_NUMBERS, MOST_WORDS = 3, 35

# What is no prose, and what is put in its place.
NO_PROSE = (
    (re.compile(r"^([ ]*)(`{3,}|~{3,}).*?^[ ]*\2`*[ ]*$", re.M | re.S), "\n"),
    (re.compile(r"^<!-- \{\w+\}.* -->\n(?:(?!<!-- \{).*\n)*?<!-- until here -->$", re.M), "\n"),
    (re.compile(r"^.*<!--.*-->$", re.M), "\n"),  # a docstring's first words, or a block
    (re.compile(r"^.*<summary>.*$", re.M), "\n"),
    (re.compile(r"\$\$.*?\$\$", re.S), "\n\n"),
    (re.compile(r"^[ ]*\|.*$", re.M), "\n"),
    (re.compile(r"^#+ .*$", re.M), "\n"),
    (re.compile(r"!\[[^]]*\]\([^)]*\)"), " "),
    (re.compile(r"\$[^$]+\$"), "FORMULA"),
    (re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S), "CODE"),
    (re.compile(r"\[([^][]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"</?[a-z][^>]*>"), " "),
)
ITEM = re.compile(r"\n\s*\n|\n(?=[ ]*(?:[-*]|\d+\.) )")
# Behind these words and letters a full stop ends no sentence.
SHORT = r"(?<!\bApp)(?<!\bFig)(?<!\bFigs)(?<!\bEq)(?<!\bEqs)(?<!\bSec)(?<!\bProp)(?<!\bet al)"
END = re.compile(rf"(?:{SHORT}\.|[?!])[\")*\\]*\s+(?=[^a-z\s]|flowlin\b)")
NUMBER = r"-?(?:\d[\d,]*\d|\d)?(?:\.\d+)?(?<=\d)(?:e[-+]?\d+)?(?:/\d+)?(?: ?%)?"
NAMED = re.compile(
    r"(?:\b(?:Figs?\.|Eqs?\.|Sec\.|App\.|Prop\.|Proposition|[Tt]utorials?|[Mm]odes?|[Ss]eed|[Ll]ayer)"
    r" [\dA-Z][\w.]*(?:(?:,| and|,? to) \d[\w.]*)*|[<>=] 0(?![\d.])"
    r"|\b[A-Za-z]+[-/]?\d[\w.-]*|\b\d{4}-\d\d-\d\d\b)"
)
COUNTED = re.compile(
    rf"(?<![\w.]){NUMBER}(?: ± {NUMBER})?"
    rf"(?: \({NUMBER} (?:to|\.\.\.) {NUMBER}\)| (?:to|x|\.\.\.) {NUMBER})?(?![\w])"
)


CELLS = re.compile(r"^# %%", re.M)  # of a tutorial


def text_of(page: pathlib.Path) -> str:
    """A page's Markdown; of a tutorial, which is a script, that of its cells of text."""
    text = page.read_text()
    if page.suffix == ".md":
        return text
    cells = (cell.partition("\n") for cell in CELLS.split(text)[1:])
    texts = (cell for kind, _, cell in cells if kind.strip().startswith("[markdown]"))
    return "\n\n".join(re.sub(r"^# ?", "", cell, flags=re.M) for cell in texts)


def paragraphs(text: str) -> list[str]:
    """A page's prose: its paragraphs and items of lists, each on one line."""
    for pattern, instead in NO_PROSE:
        text = pattern.sub(instead, text)
    parts = (re.sub(r"^\s*(?:[-*]|\d+\.) ", "", part) for part in ITEM.split(text))
    return [line for part in parts if (line := " ".join(part.split()))]


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page."""
    for paragraph in paragraphs(text):
        start = 0
        for end in END.finditer(paragraph):
            yield paragraph[start : end.end()].strip()
            start = end.end()
        yield paragraph[start:].strip()


def words(sentence: str) -> int:
    """How many words a sentence has."""
    return len(re.findall(r"[^\W_]\S*", sentence))


def numbers(sentence: str) -> int:
    """How many numbers a sentence has, those of names aside."""
    return len(COUNTED.findall(NAMED.sub("NAME", sentence)))


def too_long(text: str) -> list[str]:
    """The sentences of a page that say too much, each with what it has too many of."""
    found = []
    for sentence in sentences(text):
        counts = (("numbers", numbers(sentence), MOST_NUMBERS),
                  ("words", words(sentence), MOST_WORDS))  # fmt: skip
        found += [f"{count} {what}: {sentence}" for what, count, most in counts if count > most]
    return found


def pages() -> list[pathlib.Path]:
    """The pages with prose of their own; the changelog's bullets are bounded elsewhere."""
    found = sorted([*DOCS.rglob("*.md"), *(DOCS / "tutorials").glob("*.py")])
    return [ROOT / "README.md", *(path for path in found if path != DOCS / "changelog.md")]


if __name__ == "__main__":
    for page in pages():
        for told in too_long(text_of(page)):
            print(f"{page.relative_to(ROOT)}: {told}")
