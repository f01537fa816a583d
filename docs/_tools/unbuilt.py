"""What a page says plainly, since it is also read unbuilt, and the build makes more of.

- `<!-- {walk} -->`, which a code host does not show, is the builder's block of that name, and
  `<!-- (name)= -->` a place of that name.
- What stands between such a block and `<!-- until here -->` is for who reads the page unbuilt.
- A line that ends with `<!-- .. autoclass:: flowlin.name :members: a, b -->` links to a name's
  source and says what it is; the build has the name's docstring in its place. One that ends with
  `<!-- {include} path -->` links to a file, and the build has what is in the file.
- A folder's pages are those that its `index.md` links to, in that order.
- The first `fl.name` of a page leads to the name's entry in the reference.
"""

import pathlib
import re

from _docstrings import targets  # pyright: ignore
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

MARK = re.compile(r"^(# )?<!-- (?:(\{[\w-]+\}.*)|(\([\w-]+\)=)) -->$", re.M)
INSTEAD = re.compile(r"^.*\S <!-- (?:\.\. (\S+:: \S+)|(\{\w+\} [\w./]+))(.*) -->$", re.M)
UNBUILT = re.compile(r"^(<!-- \{\w+\}.* -->\n)(?:(?!<!-- \{).*\n)*?<!-- until here -->\n", re.M)
OPTION = re.compile(r"(:[\w-]+:[^:]*)")
BELOW = re.compile(r"(?<!!)\[[^][]+\]\((?!\w+:)((?:[\w-]+/index|[\w-]+)\.(?:md|py))\)")
NAME = re.compile(r"(fl\.[\w.]+)(?:\(.*\))?", re.S)
CLOSED = (nodes.reference, nodes.title, nodes.math, nodes.raw, addnodes.desc, addnodes.pending_xref)


def with_blocks(text: str) -> str:
    """A page's text with the builder's blocks and places where comments stand for them."""

    def block(found: re.Match[str]) -> str:
        before, name, place = found.groups(default="")
        lines = [place] if place else [f"```{name}", "```"]
        return "\n".join(before + line for line in lines)

    def replacement(found: re.Match[str]) -> str:
        options = [option.strip() for option in OPTION.findall(found[3])]
        if found[2]:
            return "\n".join([f"```{found[2]}", *options, "```"])
        lines = ["```{eval-rst}", f".. {found[1]}", *(f"   {option}" for option in options), "```"]
        return "\n".join(lines)

    text = UNBUILT.sub(r"\1", text)
    return INSTEAD.sub(replacement, MARK.sub(block, text))


def contents(text: str) -> list[str]:
    """The pages below a folder's first page: those that it links to, in the order of its text."""
    return list(dict.fromkeys(link.rpartition(".")[0] for link in BELOW.findall(text)))


def complete(app: Sphinx, page: str, content: list[str]) -> None:
    """Put the blocks into a page, and behind a folder's first page its table of contents."""
    text = with_blocks(content[0])
    if pathlib.PurePosixPath(page).name == "index":
        text += "\n".join(["\n```{toctree}", ":hidden:", "", *contents(text), "```\n"])
    content[0] = text


def link_names(document: nodes.Element, page: str) -> None:
    """Link the first use of each public name on a page, signatures and docstrings aside."""
    told, known = set(), targets("")

    def below(node: nodes.Node) -> None:
        for child in list(node.children):
            if isinstance(child, nodes.literal):
                found = NAME.fullmatch(child.astext())
                whole = known.get(found[1]) if found else None
                if whole and whole not in told:
                    told.add(whole)
                    link = addnodes.pending_xref(
                        "", refdomain="py", reftype="obj", reftarget=whole, refexplicit=True,
                        refdoc=page, refwarn=True,
                    )  # fmt: skip
                    child.replace_self(link)
                    link += child
            elif not isinstance(child, CLOSED):
                below(child)

    below(document)


def link_names_of(app: Sphinx, document: nodes.document) -> None:
    """Link the names of a page that was read; the changelog's may be gone."""
    if app.env.docname != "changelog":
        link_names(document, app.env.docname)


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.connect("source-read", complete)
    app.connect("doctree-read", link_names_of)
    return {"parallel_read_safe": True}
