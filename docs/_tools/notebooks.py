"""Each tutorial as a notebook with the outputs of the build, and a link to it on its page.

A notebook leaves the site, where neither the builder's roles nor relative links mean anything. So
there a role is the name in it, a link to another page its text, and the figure that moves a line on
where it is. The first cell installs.
"""

import pathlib
import re

import jupytext
import nbformat
from jupyter_cache import get_cache
from sphinx.application import Sphinx

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
LINK = '<p class="as-notebook"><a href="{0}" download="{0}">This page as a notebook</a></p>\n'
ROLE = re.compile(r"\{[\w:]+\}`(?:([^`<]+?)\s*<[^`>]*>|([^`]+))`")
RELATIVE = re.compile(
    r"(?<!!)\[([^][]+)\]\((?![a-z]+:)(?:[^)\s]*\.(?:md|py)(?:#[^)\s]*)?|#[^)\s]*)\)"
)
MOVES = "```{walk}\n```"
STILL = "*(On the tutorial's page a figure stands here that a reader moves through in time.)*"
INSTALL = (
    "# Where flowlin is not installed: start in its repository's folder, and remove the `# `.\n"
    "# %pip install '.[plot,data]'"
)


def is_tutorial(page: str) -> bool:
    """Whether a page is made from a tutorial's script."""
    return page.startswith("tutorials/") and page != "tutorials/index"


def add_link(app: Sphinx, page: str, template: str, context: dict, doctree: object) -> None:
    """Put the link above a tutorial's text."""
    if is_tutorial(page):
        context["body"] = LINK.format(pathlib.PurePosixPath(page).name + ".ipynb") + context["body"]


def plain(text: str) -> str:
    """A page's Markdown without roles and without links within the site."""
    text = ROLE.sub(lambda found: f"`{found[1] or found[2]}`", text)
    return RELATIVE.sub(lambda found: f"*{' '.join(found[1].split())}*", text).replace(MOVES, STILL)


def portable(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A notebook that reads well by itself, with a cell that installs behind its first text."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = plain(cell.source)
    cell = nbformat.v4.new_code_cell(INSTALL, id="install")
    notebook.cells.insert(1, cell)
    return notebook


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the notebooks beside the pages."""
    if error or app.builder.name != "html":
        return
    cache = get_cache(app.config.nb_execution_cache_path)
    for page in filter(is_tutorial, app.env.found_docs):
        notebook = jupytext.read(pathlib.Path(app.env.doc2path(page)), fmt="py:percent")
        _, executed = cache.merge_match_into_notebook(notebook)
        executed.metadata.setdefault("kernelspec", KERNEL)
        nbformat.write(portable(executed), pathlib.Path(app.outdir, page + ".ipynb"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.connect("html-page-context", add_link)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
