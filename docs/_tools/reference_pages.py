"""What the reference's pages have beside autodoc: tables of names, pictures, words in signatures.

- the directive `names`: the public names of a page with their first sentences, at its head;
- a function of `fl.plot` has its picture, `_static/plot/NAME.png`, under what it says;
- words of signatures that are no public names, such as `Numbers`, lead to where they are explained.
"""

import inspect
import pathlib
import re
from collections.abc import Iterator

from _docstrings import link_lead_paper  # pyright: ignore
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

import flowlin as fl

DOCS = pathlib.Path(__file__).resolve().parents[1]
PICTURES = DOCS / "_static" / "plot"
ENTRY = re.compile(r"<!-- \.\. (?:auto(?:function|class|exception)|py:data):: (\S+)")
WORDS = "reference/index", "words-in-signatures"  # the page and the heading


# Behind these a point ends no sentence.
ABBREVIATED = "".join(rf"(?<!\b{word}\.)" for word in ("App", "Eq", "Eqs", "Fig", "Figs", "Sec"))


def first_sentence(text: str) -> str:
    """A docstring's first sentence, on one line; of one that leads to a formula, its beginning."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(rf"{ABBREVIATED}(?<=[.])\s+(?=[A-Z`])", paragraph)[0]
    return sentence if sentence[-1:] in ".)" else f"{sentence.rpartition(':')[0] or sentence}."


def names_of(page: str) -> Iterator[tuple[str, str]]:
    """(the full name, its first sentence) of each entry in a page's text."""
    for found in ENTRY.finditer(page):
        name = found[1]
        if "data::" in found[0]:  # its words stand on the page
            yield name, first_sentence(page[found.end() :].partition("-->")[2].strip())
        else:
            thing = fl
            for part in name.split(".")[1:]:
                thing = getattr(thing, part)
            yield name, first_sentence(inspect.getdoc(thing) or "")


def words() -> set[str]:
    """The words of signatures that the reference's first page explains, in its table's rows."""
    text = (DOCS / f"{WORDS[0]}.md").read_text()
    below = text.partition("## Words in signatures")[2]
    cells = re.findall(r"^\| ([^|]*)\|", below, re.M)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


class Names(SphinxDirective):
    """`names`: a table of the page's names, each with its first sentence."""

    def run(self) -> list[nodes.Node]:
        source, _ = self.get_source_info()
        body = nodes.tbody()
        for name, sentence in names_of(pathlib.Path(source).read_text()):
            body += self.row(name, sentence)
        link_lead_paper(body, self.env.docname)
        group = nodes.tgroup("", *(nodes.colspec(colwidth=k) for k in (30, 70)), body, cols=2)
        return [nodes.table("", group, classes=["names"])]

    def row(self, name: str, sentence: str) -> nodes.row:
        """A name with its link, and what it is."""
        short = name.removeprefix("flowlin.")
        link = addnodes.pending_xref(
            "", nodes.literal("", short), refdomain="py", reftype="obj", reftarget=name,
            refexplicit=True, refdoc=self.env.docname, refwarn=True,
        )  # fmt: skip
        return nodes.row(
            "",
            nodes.entry("", nodes.paragraph("", "", link)),
            nodes.entry("", *self.parse_text_to_nodes(sentence)),
        )


def add_picture(app: Sphinx, what: str, name: str, thing, options, lines: list[str]) -> None:
    """Put the picture of a function of `fl.plot` under its docstring's first paragraph."""
    room, _, function = name.rpartition(".")
    found = [p for kind in ("png", "gif") for p in PICTURES.glob(f"{function}.{kind}")]
    if room == "flowlin.plot" and found:
        end = lines.index("") if "" in lines else len(lines)
        picture = f"![What {function} draws](/_static/plot/{found[0].name})"
        lines[end:end] = ["", picture, ""]


def explained(app: Sphinx, env, node: addnodes.pending_xref, text: nodes.Element):
    """A link to the words in signatures, for one of them."""
    if node.get("refdomain") != "py" or node["reftarget"] not in words():
        return None
    return make_refnode(app.builder, node["refdoc"], *WORDS, text, "explained")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.add_directive("names", Names)
    app.connect("autodoc-process-docstring", add_picture, priority=400)  # before it is parsed
    app.connect("missing-reference", explained)
    return {"parallel_read_safe": True}
