"""A power of ten in a table stays on its line; a browser breaks 1e-4 behind its sign otherwise."""

import re
from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

POWER = re.compile(r"(?<![\w.])\d[\d.]*e[-+]\d+(?!\w)")


def unbroken(text: str) -> Iterator[nodes.Node]:
    """A text in parts, its powers of ten as nodes of the class that keeps them whole."""
    end = 0
    for power in POWER.finditer(text):
        yield nodes.Text(text[end : power.start()])
        yield nodes.inline("", power[0], classes=["number"])
        end = power.end()
    yield nodes.Text(text[end:])


class Unbroken(SphinxPostTransform):
    """Keeps the powers of ten in a page's tables whole."""

    default_priority = 910

    def run(self, **options: object) -> None:
        """Mark what stands in cells, code and formulas aside."""
        for cell in self.document.findall(nodes.entry):
            for text in list(cell.findall(nodes.Text)):
                parent = text.parent
                plain = not isinstance(parent, nodes.literal | nodes.math | nodes.raw)
                if plain and POWER.search(text):
                    parent.replace(text, list(unbroken(text)))


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.add_post_transform(Unbroken)
    return {"parallel_read_safe": True}
