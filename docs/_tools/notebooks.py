"""Each tutorial as a notebook with the outputs of the build, and a link to it on its page."""

import pathlib

import jupytext
import nbformat
from jupyter_cache import get_cache
from sphinx.application import Sphinx

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
LINK = '<p class="as-notebook"><a href="{0}" download="{0}">This page as a notebook</a></p>\n'


def is_tutorial(page: str) -> bool:
    """Whether a page is made from a tutorial's script."""
    return page.startswith("tutorials/") and page != "tutorials/index"


def add_link(app: Sphinx, page: str, template: str, context: dict, doctree: object) -> None:
    """Put the link above a tutorial's text."""
    if is_tutorial(page):
        context["body"] = LINK.format(pathlib.PurePosixPath(page).name + ".ipynb") + context["body"]


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the notebooks beside the pages."""
    if error or app.builder.name != "html":
        return
    cache = get_cache(app.config.nb_execution_cache_path)
    for page in filter(is_tutorial, app.env.found_docs):
        notebook = jupytext.read(pathlib.Path(app.env.doc2path(page)), fmt="py:percent")
        _, executed = cache.merge_match_into_notebook(notebook)
        executed.metadata.setdefault("kernelspec", KERNEL)
        nbformat.write(executed, pathlib.Path(app.outdir, page + ".ipynb"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.connect("html-page-context", add_link)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
