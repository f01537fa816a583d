"""Each tutorial as a notebook with the outputs of the build, and a link to it on its page.

A notebook leaves the site, where relative links mean nothing. So there a link to another page is
its text, and the figure that moves a line on where it is. The first cell installs.

`python docs/_tools/notebooks.py` puts the notebooks of the last build into `docs/notebooks/`, which
a code host shows. Where only the text of a tutorial has changed, it needs no build.
"""

import pathlib
import re
import sys

import jupytext
import nbformat
from jupyter_cache import get_cache
from sphinx.application import Sphinx

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
LINK = '<p class="as-notebook"><a href="{0}" download="{0}">This page as a notebook</a></p>\n'
RELATIVE = re.compile(
    r"(?<!!)\[([^][]+)\]\((?![a-z]+:)(?:[^)\s]*\.(?:md|py)(?:#[^)\s]*)?|#[^)\s]*)\)"
)
MOVES = "<!-- {walk} -->"
STILL = "*(On the tutorial's page a figure stands here that a reader moves through in time.)*"
INSTALL = (
    "# Where flowlin is not installed: start in its repository's folder, and remove the `# `.\n"
    "# %pip install '.[plot,data]'"
)


DOCS = pathlib.Path(__file__).resolve().parent.parent
KEPT, BUILT = DOCS / "notebooks", DOCS.parent / "site" / "tutorials"


def is_tutorial(page: str) -> bool:
    """Whether a page is made from a tutorial's script."""
    return page.startswith("tutorials/") and page != "tutorials/index"


def add_link(app: Sphinx, page: str, template: str, context: dict, doctree: object) -> None:
    """Put the link above a tutorial's text."""
    if is_tutorial(page):
        context["body"] = LINK.format(pathlib.PurePosixPath(page).name + ".ipynb") + context["body"]


def plain(text: str) -> str:
    """A page's Markdown without links within the site."""
    return RELATIVE.sub(lambda found: f"*{' '.join(found[1].split())}*", text).replace(MOVES, STILL)


def portable(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A notebook that reads well by itself, with a cell that installs behind its first text.

    Its figures are PNG alone, which every viewer shows; the pages have them sharp.
    """
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        if cell.cell_type == "markdown":
            cell.source = plain(cell.source)
            continue
        cell.metadata.pop("execution", None)  # when it ran
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                output.data.pop("image/svg+xml", None)
        cell.outputs = joined(cell.outputs)
    cell = nbformat.v4.new_code_cell(INSTALL, id="install")
    notebook.cells.insert(1, cell)
    notebook.metadata.setdefault("kernelspec", KERNEL)
    return notebook


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """The outputs of a cell, what it printed in pieces as one; where it breaks is up to chance."""
    found: list[nbformat.NotebookNode] = []
    for output in outputs:
        if found and found[-1].get("name") == output.get("name", "none"):
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def outputs(file: pathlib.Path) -> dict[str, nbformat.NotebookNode]:
    """The executed cells of a notebook by their code; none where there is no such file."""
    cells = nbformat.read(file, as_version=4).cells if file.exists() else []
    return {c.source: c for c in cells if c.cell_type == "code" and c.execution_count}


def with_outputs(script: pathlib.Path) -> nbformat.NotebookNode:
    """A tutorial as a notebook, each cell with what it gave in the last build, or in one before.

    **Raises:** `ValueError` where a cell's code was in none.
    """
    name = f"{script.stem}.ipynb"
    known = outputs(KEPT / name) | outputs(BUILT / name)
    notebook = portable(jupytext.read(script, fmt="py:percent"))
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.source != INSTALL:
            if cell.source not in known:
                raise ValueError(f"{script.name} has code that no build ran: run `dev.py docs`.")
            ran = known[cell.source]
            cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
    return notebook


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the notebooks beside the pages."""
    if error or app.builder.name != "html":
        return
    cache = get_cache(app.config.nb_execution_cache_path)
    for page in filter(is_tutorial, app.env.found_docs):
        notebook = jupytext.read(pathlib.Path(app.env.doc2path(page)), fmt="py:percent")
        _, executed = cache.merge_match_into_notebook(notebook)
        nbformat.write(portable(executed), pathlib.Path(app.outdir, page + ".ipynb"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.connect("html-page-context", add_link)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    for tutorial in sorted((DOCS / "tutorials").glob("*.py")):
        try:
            notebook = with_outputs(tutorial)
        except ValueError as error:
            sys.exit(str(error))
        nbformat.write(notebook, KEPT / f"{tutorial.stem}.ipynb")
