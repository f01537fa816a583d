"""A relative link from a page to a file of the repository that is no page leads to that file.

So such a link works on a code host as well as on the built pages. There a script and a table have a
page of their own, `files/PATH.html`, that shows them; other files are handed out.
"""

import html
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from markdown_it import MarkdownIt
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!!)(\[[^][]*\]\()((?!\w+:)[^)#\s]+)\)")
WITHIN = re.compile(r"!?\[([^][]*)\]\((?!\w+:)[^)\s]+\)")  # leads nowhere from a page of its own
NUMBER = re.compile(r"(?<=[>\s(])\d[\d.]*e[-+]\d+(?=[<\s,;:)])")
SHOWN = (".md", ".py")


def hand_out(app: Sphinx, page: str, content: list[str]) -> None:
    """Mark the links of a page that lead to a file outside of `docs`, or to one that draws."""
    docs = pathlib.Path(app.srcdir).resolve()

    def mark(match: re.Match[str]) -> str:
        path = (docs / page).parent.joinpath(match[2]).resolve()
        page_like = path.is_relative_to(docs) and not path.is_relative_to(docs / "_figures")
        return f"{match[1]}path:{match[2]})" if path.is_file() and not page_like else match[0]

    content[0] = LINK.sub(mark, content[0])


def lead_to_pages(app: Sphinx, document: nodes.document) -> None:
    """Lead links to what is shown to its page, before Sphinx copies it to hand it out."""
    for link in list(document.findall(addnodes.download_reference)):
        path = pathlib.Path(app.env.relfn2path(link["reftarget"])[1]).resolve()
        if path.suffix in SHOWN and path.is_relative_to(ROOT):
            name = path.relative_to(ROOT).as_posix()
            uri = app.builder.get_relative_uri(app.env.docname, page_of(name))
            link.replace_self(nodes.reference("", "", *link.children, refuri=uri, file=name))


def page_of(name: str) -> str:
    """The page that shows a file of the repository."""
    return f"files/{name}"


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The pages of all files that are linked to."""
    documents = (app.env.get_doctree(page) for page in sorted(app.env.found_docs))
    links = (link for document in documents for link in document.findall(nodes.reference))
    for name in sorted({link["file"] for link in links if "file" in link}):
        title = html.escape(name)
        body = f"<h1><code>{title}</code></h1>\n{shown(app, ROOT / name)}"
        yield page_of(name), {"title": title, "body": body, "parents": []}, "page.html"


def shown(app: Sphinx, path: pathlib.Path) -> str:
    """A script with its colours, or Markdown with its tables, as HTML."""
    text = path.read_text()
    if path.suffix == ".py":
        return app.builder.highlighter.highlight_block(text, "python")  # pyright: ignore
    return markdown(text)


def markdown(text: str) -> str:
    """Markdown as HTML, its links within the repository as text, its numbers unbroken."""
    made = MarkdownIt("commonmark").enable("table").render(WITHIN.sub(r"\1", text))
    made = made.replace("<table>", '<div class="table-wrapper"><table class="docutils">')
    made = NUMBER.sub(r'<span class="number">\g<0></span>', made)
    return made.replace("</table>", "</table></div>")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.connect("source-read", hand_out)
    app.connect("doctree-read", lead_to_pages, priority=400)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True}
