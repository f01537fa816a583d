"""The directives `pictures` and `plots`: committed figures, each with what makes it.

`python docs/_tools/gallery.py` writes the same into `docs/gallery.md` as plain Markdown, for who
reads the page unbuilt; the build has the directives in its place.
"""

import ast
import inspect
import json
import os
import pathlib
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import flowlin as fl

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIGURE = """\
:::{{figure}} {picture}
:alt: {alt}
:width: 100%
:loading: lazy

{caption}
:::
"""
PLOTS = ROOT / "docs" / "_static" / "plot"
LINK = "{{py:obj}}`fl.plot.{0} <flowlin.plot.{0}>`"
PAGE = ROOT / "docs" / "gallery.md"
PLACE = re.compile(r"(<!-- \{(\w+)\}([^>]*) -->\n).*?(<!-- until here -->\n)", re.S)
PLAIN = re.compile(r"(\$[^$]*\$|`[^`]*`)|([*_])")  # formulas and code; what must be escaped


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


def caption(picture: pathlib.Path, script: pathlib.Path) -> str:
    """What a script says of a picture: first, or of the function that draws one of its others.

    Of a picture of one problem of a benchmark, by what title its results call the problem.
    """
    ending = picture.stem[len(script.stem) :]
    results, named = picture.with_name(f"{script.stem}.json"), ending.replace("_", "")
    for entry in json.loads(results.read_text()) if ending and results.is_file() else ():
        if isinstance(entry, dict) and re.sub("[ =]", "", entry.get("problem", "")) == named:
            return f"Error against work: {entry['title']}. Left is better."
    for node in ast.parse(script.read_text()).body if ending else ():
        if isinstance(node, ast.FunctionDef) and node.name == f"draw{ending}":
            return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    return first_paragraph(script)


def figure(picture: pathlib.Path, text: str, maker: str) -> str:
    """A figure in Markdown: a text with no markup but formulas and code, then what made it."""
    source = f"/../{picture.relative_to(ROOT).as_posix()}"
    escaped = PLAIN.sub(lambda found: found[1] or f"\\{found[2]}", text)
    caption = f"{escaped} {maker}"
    return FIGURE.format(picture=source, alt=text, caption=caption)


class Pictures(SphinxDirective):
    """`pictures PICTURES SCRIPTS`: the figures in one folder, made by the scripts in the other."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        pictures, scripts = (ROOT / argument for argument in self.arguments)
        found = sorted(pictures.glob("*.png"), key=natural)
        figures = "\n".join(self.figure(picture, scripts) for picture in found)
        return [nodes.container("", *self.parse_text_to_nodes(figures), classes=["pictures"])]

    def figure(self, picture: pathlib.Path, scripts: pathlib.Path) -> str:
        """A figure in Markdown; the page is built again when its script changes."""
        script = script_of(picture, scripts)
        self.env.note_dependency(str(script))
        name = script.relative_to(ROOT).as_posix()
        return figure(picture, caption(picture, script), f"[`{name}`](path:/../{name})")


class Plots(SphinxDirective):
    """`plots`: the pictures of `fl.plot`, each named as the function that draws it."""

    def run(self) -> list[nodes.Node]:
        found = sorted(PLOTS.glob("*.png"))
        figures = "\n".join(figure(p, said(p.stem), LINK.format(p.stem)) for p in found)
        return [nodes.container("", *self.parse_text_to_nodes(figures), classes=["pictures"])]


def said(name: str) -> str:
    """The first sentence of a function of `fl.plot`."""
    return (inspect.getdoc(getattr(fl.plot, name)) or "").split("\n\n")[0]


def in_plain_markdown(text: str) -> str:
    """The gallery's page with its figures between the comments that stand for directives."""

    def filled(found: re.Match[str]) -> str:
        directive, folders = found[2], [ROOT / folder for folder in found[3].split()]
        shown = plain_plots() if directive == "plots" else plain_pictures(*folders)
        return f"{found[1]}\n{shown}\n{found[4]}"

    return PLACE.sub(filled, text)


def plain_pictures(pictures: pathlib.Path, scripts: pathlib.Path) -> str:
    """The figures in one folder, made by the scripts in the other, as plain Markdown."""
    return "\n".join(
        plain(picture, caption(picture, script := script_of(picture, scripts)), script, script.name)
        for picture in sorted(pictures.glob("*.png"), key=natural)
    )


def plain_plots() -> str:
    """The pictures of `fl.plot`, as plain Markdown."""
    found = sorted(PLOTS.glob("*.png"))
    drawing = [inspect.unwrap(getattr(fl.plot, picture.stem)) for picture in found]
    makers = [pathlib.Path(inspect.getsourcefile(one) or "") for one in drawing]
    return "\n".join(
        plain(picture, said(picture.stem), maker, f"fl.plot.{picture.stem}")
        for picture, maker in zip(found, makers, strict=True)
    )


def plain(picture: pathlib.Path, text: str, maker: pathlib.Path, name: str) -> str:
    """A figure with its caption and a link to what made it, relative to the gallery's page."""
    source, link = (
        pathlib.PurePath(os.path.relpath(path, PAGE.parent)).as_posix() for path in (picture, maker)
    )
    escaped = PLAIN.sub(lambda found: found[1] or f"\\{found[2]}", text)
    return f"![{picture.stem}]({source})\n\n{escaped} [`{name}`]({link})\n"


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.add_directive("pictures", Pictures)
    app.add_directive("plots", Plots)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    PAGE.write_text(in_plain_markdown(PAGE.read_text()))
