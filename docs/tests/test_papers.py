"""Mentions of the lead paper lead to its entry."""

import sys
from pathlib import Path

from docutils import nodes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "_tools"))

import papers


def test_every_mention_is_linked_with_its_equation_and_nothing_else():
    page = nodes.section("", nodes.title("", "The lead paper"))
    page += nodes.paragraph("", "Strength of a mode (lead paper Eq. 13; lead\npaper App. E).")
    page += nodes.paragraph("", "", nodes.literal("", "lead paper"), nodes.Text(" leading papers"))
    before = page.astext()
    papers.link_papers(page, "r.html#lead-paper")
    assert page.astext() == before
    links = [(link.astext(), link["refuri"]) for link in page.findall(nodes.reference)]
    assert links == [
        ("lead paper Eq. 13", "r.html#lead-paper"),
        ("lead\npaper App. E", "r.html#lead-paper"),
    ]
