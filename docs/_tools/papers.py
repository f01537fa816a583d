"""Every "lead paper" in a docstring or on a page leads to its entry among the references."""

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from terms import texts

REFERENCES = "references"
PLACE = "lead-paper"
NAMED = re.compile(r"lead\s+paper(?:,?\s+(?:Eqs?|Figs?|Secs?|Apps?|Props?)\.\s[A-Z]?\d*[A-Z]?)?")
CLOSED = (
    nodes.reference, nodes.title, nodes.literal, nodes.literal_block, nodes.math, nodes.raw,
    addnodes.desc_signature, addnodes.pending_xref, addnodes.toctree,
)  # fmt: skip


def link_papers(page: nodes.Element, place: str) -> None:
    """Link each mention of the paper, with its equation, to the place of its entry."""
    for text in list(texts(page, CLOSED)):
        found, end = [], 0
        for match in NAMED.finditer(text):
            link = nodes.reference("", match[0], internal=True, refuri=place, classes=["paper"])
            found += [nodes.Text(text[end : match.start()]), link]
            end = match.end()
        if found:
            text.parent.replace(text, [*found, nodes.Text(text[end:])])


class Papers(SphinxPostTransform):
    """Links to the references on all other pages."""

    default_priority = 890  # before those to the glossary

    def run(self, **options: object) -> None:
        """Link the page's mentions."""
        page = self.env.docname
        if page not in (REFERENCES, "gallery"):
            way = self.app.builder.get_relative_uri(page, REFERENCES)
            link_papers(self.document, f"{way}#{PLACE}")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.add_post_transform(Papers)
    return {"parallel_read_safe": True}
