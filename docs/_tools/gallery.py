"""The directive `pictures`: a folder's committed figures, each with the script that makes it."""

import ast
import pathlib
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIGURE = """\
:::{{figure}} /../{picture}
:alt: {alt}
:width: 100%
:loading: lazy

{caption} [`{script}`](path:/../{script})
:::
"""


def natural(path: pathlib.Path) -> list[str | int]:
    """A key that sorts Fig. 2 before Fig. 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]


def script_of(picture: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The script in `folder` whose name a picture's begins with, the longest such name."""
    found = [path for path in folder.glob("*.py") if picture.stem.startswith(path.stem)]
    if not found:
        raise ValueError(f"no script in {folder} has a name that {picture.name} begins with.")
    return max(found, key=lambda path: len(path.stem))


def first_paragraph(script: pathlib.Path) -> str:
    """What a script's docstring says first, on one line."""
    text = ast.get_docstring(ast.parse(script.read_text()))
    if not text:
        raise ValueError(f"{script} has no docstring to take a caption from.")
    return " ".join(text.split("\n\n")[0].split())


class Pictures(SphinxDirective):
    """`pictures PICTURES SCRIPTS`: the figures in one folder, made by the scripts in the other."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        pictures, scripts = (ROOT / argument for argument in self.arguments)
        found = sorted(pictures.glob("*.png"), key=natural)
        figures = self.parse_text_to_nodes("\n".join(self.figure(p, scripts) for p in found))
        return [nodes.container("", *figures, classes=["pictures"])]

    def figure(self, picture: pathlib.Path, scripts: pathlib.Path) -> str:
        """A figure in Markdown; the page is built again when its script changes."""
        script = script_of(picture, scripts)
        self.env.note_dependency(str(script))
        caption = first_paragraph(script)
        return FIGURE.format(
            picture=picture.relative_to(ROOT).as_posix(),
            script=script.relative_to(ROOT).as_posix(),
            caption=caption.replace("*", "\\*").replace("_", "\\_"),
            alt=caption,
        )


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.add_directive("pictures", Pictures)
    return {"parallel_read_safe": True}
