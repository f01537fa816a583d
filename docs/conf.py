"""How Sphinx builds the pages: `python3 dev.py docs` writes them to `site/`."""

import hashlib
import os
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent
ROOT = DOCS.parent
BUILD = ROOT / "build" / "docs"
sys.path[:0] = map(str, (DOCS / "_tools", DOCS / "reference", ROOT / "examples" / "paper"))

from sphinx.application import Sphinx

import flowlin as fl


def state_of(*folders: str) -> str:
    """A hash of the Python files in folders of the repository."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# The tutorials' kernel shows its figures by itself, unless it is told of another backend.
os.environ.pop("MPLBACKEND", None)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(BUILD / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # what XLA says of a slow compilation is no output
os.environ["IPYTHONDIR"] = str(BUILD / "ipython")
profile = BUILD / "ipython" / "profile_default" / "ipython_kernel_config.py"
profile.parent.mkdir(parents=True, exist_ok=True)
profile.write_text(
    "c = get_config()\n"
    "c.InlineBackend.figure_formats = {'svg', 'png'}\n"  # sharp on pages; what notebooks keep
    "c.IPKernelApp.log_level = 40\n"  # it runs on this machine and warns that others might listen
)

project = "flowlin"
author = "The flowlin authors"
copyright = author
version = release = fl.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "_docstrings",
    "mathematics",
    "notebooks",
    "repository_links",
    "gallery",
    "reference_pages",
    "verdict_table",
    "walk_figure",
    "search_index",
    "terms",
    "papers",
    "unbroken",
    "unbuilt",
]
# README.md and the notebooks are for who reads the pages unbuilt.
exclude_patterns = ["_*", "**/_*.py", "tests", "conf.py", "README.md", "notebooks"]
nitpicky = True
# Of the library itself every name must lead somewhere; those of others have no pages here.
nitpick_ignore_regex = [("py:class", r"(?!flowlin\.).*")]

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / "executed" / state_of("flowlin"))  # run again with another
nb_execution_timeout = 280
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

autodoc_member_order = "bysource"
maximum_signature_line_length = 88

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"flowlin {release}"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["flowlin.css"]
html_js_files = ["verdicts.js"]
html_math_renderer = "katex"
html_copy_source = False
html_domain_indices = False  # of modules within the library
html_show_sphinx = False
copybutton_prompt_text = ">>> |\\.\\.\\. |\\$ "
copybutton_prompt_is_regexp = True


def setup(app: Sphinx) -> None:
    """Build all pages anew where what makes them has changed."""
    app.add_config_value("tools", state_of("docs/_tools", "docs/reference"), "env")
