"""Words of the glossary lead there, once a page, and every row has its place."""

import re
import sys
from pathlib import Path

import pytest
from docutils import nodes

DOCS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(DOCS / "_tools"))

import terms

WORDS = re.findall(r"^\| (?!word)(.+?) \|", (DOCS / "explanation/glossary.md").read_text(), re.M)


@pytest.mark.parametrize("term", terms.TERMS)
def test_a_linked_word_is_in_the_glossary(term):
    assert term in WORDS


def test_places_of_words_differ():
    assert len({terms.anchor(word) for word in WORDS}) == len(WORDS) > 60


def test_the_first_use_of_a_word_is_linked_and_no_other():
    page = nodes.section("", nodes.title("", "Kinks"))
    text = "Pairs slide on kinks, where a gate-like kink is; t* of (t*) walkers."
    page += nodes.paragraph("", text)
    page += nodes.paragraph("", "", nodes.literal("", "mode"), nodes.reference("", "a mode"))
    page += nodes.paragraph("", "", nodes.strong("", "Modes"), nodes.Text(" have half times."))
    before = page.astext()
    terms.link_terms(page, "g.html")
    assert page.astext() == before
    found = [
        (link.astext(), link["refuri"])
        for link in page.findall(nodes.reference)
        if "term" in link["classes"]
    ]
    assert found == [
        ("Pairs", "g.html#term-pair"),
        ("slide", "g.html#term-sliding"),
        ("kinks", "g.html#term-kink"),
        ("t*", "g.html#term-linearization-time"),
        ("Modes", "g.html#term-mode"),
        ("half times", "g.html#term-half-time"),
    ]


@pytest.mark.parametrize(
    ("text", "linked"),
    [
        ("Pairs of siblings, a pair (v, u), an input of strength 1. It delays the rest.", []),
        ("Pairs of units and samples: a pair.", [("Pairs", "pair")]),
        ("The network's strength c, the bias\nstrength.", [("strength c", "bias strength")]),
        ("Full\nstrength, then strengths.", [("Full\nstrength", "full strength"),
                                            ("strengths", "strength")]),
        ("It delays it: a delay.", [("delay", "delay")]),
        ("A touch is touched at events.", [("touch", "touch"), ("events", "event")]),
    ],
)  # fmt: skip
def test_a_word_of_another_meaning_is_not_linked(text, linked):
    page = nodes.section("", nodes.paragraph("", text))
    terms.link_terms(page, "g.html")
    found = [(link.astext(), link["refuri"]) for link in page.findall(nodes.reference)]
    assert found == [(word, f"g.html#{terms.anchor(term)}") for word, term in linked]
