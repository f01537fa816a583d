"""The first time that a page uses a word of the glossary, the word leads there.

Each row of the glossary has an anchor, such as "term-kink". Words within links, headings, code and
entries of the reference stay as they are.
"""

import re
from collections.abc import Iterator

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

GLOSSARY = "explanation/glossary"
# Words of the glossary that a reader may not know, and what they look like in a text; a space is a
# line's end, too. Of two words that begin at one place the first counts.
TERMS = {
    "pair": r"pairs?(?! of (?!a unit|units?)| that share| \()",  # not of siblings, no (v, u)
    "bias strength": r"bias strengths?|strengths? (?:of (?:the|its) bias|c)",
    "pathway": r"pathways?",
    "preactivation": r"preactivations?",
    "gate": r"gates?",
    "kink": r"kinks?",
    "sliding": r"sliding|slides?",
    "branch": r"branch(?:es)?",
    "walk": r"walks?",
    "mode": r"modes?",
    "full strength": r"full strengths?",
    "strength": r"(?<!input of )strengths?",
    "hitting time": r"hitting times?",
    "half time": r"half[ -]times?|half learned",
    "delay": r"delays?(?! (?:it|the))",
    "imbalance": r"imbalances?",
    "certificate": r"certificates?",
    "linearization time": r"linearization times?|t\*",
    "open, closed": r"open and closed|open convention|closed convention",
    "time constant": r"time constants?",
    "flow time": r"flow times?|flow's time",
    "effective map": r"effective maps?",
    "effective rank": r"effective ranks?",
    "event": r"events?",
    "touch": r"touch(?:es)?",
}
ANY = re.compile(
    "|".join(
        rf"(?P<t{k}>(?<![\w*-])(?:{look})(?![\w*-]))" for k, look in enumerate(TERMS.values())
    ).replace(" ", r"\s"),
    re.IGNORECASE,
)
CLOSED = (
    nodes.reference, nodes.title, nodes.literal, nodes.literal_block, nodes.math, nodes.raw,
    nodes.figure, nodes.caption, addnodes.desc, addnodes.pending_xref, addnodes.toctree,
)  # fmt: skip


def anchor(word: str) -> str:
    """The place of a word's row in the glossary."""
    return "term-" + nodes.make_id(word)


def texts(node: nodes.Node, closed: tuple[type, ...] = CLOSED) -> Iterator[nodes.Text]:
    """The texts below a node, in order, but for those in what is `closed`."""
    for child in node.children:
        if isinstance(child, nodes.Text):
            yield child
        elif not isinstance(child, closed):
            yield from texts(child, closed)


def link_terms(page: nodes.Element, glossary: str) -> None:
    """Link the first use of each word, on a page from which `glossary` is the way to its rows."""
    told: set[int] = set()
    for text in list(texts(page)):
        found, end = [], 0
        for match in ANY.finditer(text):
            term = int(str(match.lastgroup)[1:])
            if term not in told:
                told.add(term)
                place = f"{glossary}#{anchor(list(TERMS)[term])}"
                found += [
                    nodes.Text(text[end : match.start()]),
                    nodes.reference("", match[0], internal=True, refuri=place, classes=["term"]),
                ]
                end = match.end()
        if found:
            text.parent.replace(text, [*found, nodes.Text(text[end:])])


def add_anchors(app: Sphinx, page: nodes.document) -> None:
    """Give each row of the glossary its anchor."""
    if app.env.docname == GLOSSARY:
        for row in page.findall(nodes.row):
            if isinstance(row.parent, nodes.tbody):
                row.children[0]["ids"].append(anchor(row.children[0].astext()))  # pyright: ignore


class Terms(SphinxPostTransform):
    """Links to the glossary on all pages that are read, not looked up."""

    default_priority = 900

    def run(self, **options: object) -> None:
        """Link the page's words."""
        page = self.env.docname
        if page not in (GLOSSARY, "verdicts", "gallery", "changelog") and not page.startswith(
            "reference/"
        ):
            link_terms(self.document, self.app.builder.get_relative_uri(page, GLOSSARY))


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.connect("doctree-read", add_anchors)
    app.add_post_transform(Terms)
    return {"parallel_read_safe": True}
