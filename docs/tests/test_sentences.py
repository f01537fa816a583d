"""Sentences of all pages are short and have few numbers: one thought, and what a reader can hold.

`docs/_tools/sentences.py` says what counts as a sentence, a word and a number.
"""

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(DOCS / "_tools"))

import sentences

PAGES = sentences.pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(sentences.ROOT)))
def test_sentences_say_one_thing(page):
    found = sentences.too_long(sentences.text_of(page))
    assert not found, "\n".join([f"{page}: cut in two, or make a table of numbers:", *found])


def test_all_pages_are_read():
    read = [one for page in PAGES for one in sentences.sentences(sentences.text_of(page))]
    assert len(PAGES) > 60
    assert len(read) > 2000
    assert max(map(sentences.words, read)) > sentences.MOST_WORDS - 5  # whole ones
    assert sum(sentences.numbers(one) == sentences.MOST_NUMBERS for one in read) > 10


PAGE = """\
# 1 2 3 4 5

One is 1.5 ± 0.2. Two, as M Fig. 2 and Eq. 3 and 4 say (E5,
[App. B](x.md#6-7)), is $8 + 9$, `10`, CIFAR-10 or 1/2?
**Three: 11 to 12.** flowlin is four.

- five: 13
2. six ends at a formula

$$14 + 15.$$

| 16 | 17. Not this |
|---|---|

```text
18. Not this.
```

[`fl.name`](a.py): not this. <!-- .. autofunction:: flowlin.name -->
<!-- {pictures} a b -->

Not this.

<!-- until here -->

![Not this.](b.png) *See: seven.*
"""


def test_a_page_is_cut_into_its_sentences():
    assert list(sentences.sentences(PAGE)) == [
        "One is 1.5 ± 0.2.",
        "Two, as M Fig. 2 and Eq. 3 and 4 say (E5, App. B), is FORMULA, CODE, CIFAR-10 or 1/2?",
        "**Three: 11 to 12.**",
        "flowlin is four.",
        "five: 13",
        "six ends at a formula",
        "*See: seven.*",
    ]
    assert [sentences.numbers(one) for one in sentences.sentences(PAGE)] == [1, 1, 1, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1, 2.5 and 3e-4", 3),
        ("1,024 of 10,000, so 10 %", 3),
        ("0.9 (0.8 to 1.0), then -3 ± .5 of 12 x 12", 3),
        ("t = 2; t\\* = .5, 1e-2 ... 1e-4", 3),
        ("on 2026-11-22 with c_4, L2 and MNIST-10", 0),
        ("where z < 0 and z > 0.5, of mode 2 and 3", 1),
    ],
)
def test_a_number_with_its_interval_is_one(text, count):
    assert sentences.numbers(text) == count


def test_what_says_too_much_is_told():
    assert sentences.too_long("Of 1, 2, 3, 4. All.") == ["4 numbers: Of 1, 2, 3, 4."]
    long = " ".join(["word"] * (sentences.MOST_WORDS + 1))
    assert sentences.too_long(f"{long}. All.") == [f"{sentences.MOST_WORDS + 1} words: {long}."]
    assert not sentences.too_long(long.removeprefix("word "))


def test_a_tutorial_is_read_without_its_code(tmp_path):
    script = tmp_path / "1-a.py"
    script.write_text(
        "# ---\n# a: 1\n# ---\n# %% [markdown]\n# # 1. A\n#\n# One\n# two.\n\n# %%\nx = 1\n"
    )
    assert list(sentences.sentences(sentences.text_of(script))) == ["One two."]
