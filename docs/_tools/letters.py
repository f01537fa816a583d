"""How small the letters of a committed figure are on the site, and how many panels it has.

A picture keeps its text as pixels alone. How large it was drawn is read in its script, and in the
modules of the script's folder that draw for it: sizes that are given there, else what
`fl.plot.style()` sets. Subscripts, which are 0.7 of their letter, do not count.
"""

import pathlib
import re
from collections.abc import Iterator

import gallery
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTH = 736  # of the text, in CSS pixels, on a screen 1,280 pixels wide
HEIGHT = 336  # at most, of a picture of `fl.plot` in the reference
DPI = 150  # of what is saved with a palette, which keeps none
TICKS = 9.0  # points, the least that `fl.plot.style()` sets
NAMED = {"xx-small": 5.79, "x-small": 6.94, "small": 8.33}
FOLDERS = {
    "docs": "examples",
    "examples/results": "examples",
    "docs/_static": "docs/_figures",
    "docs/_static/speed": "docs/_figures",
    "docs/_static/plot": "docs/_figures",
    "examples/paper/results": "examples/paper",
    "examples/studies/results": "examples/studies",
    "benchmarks/results": "benchmarks",
}
MAKERS = {"docs/_static/speed": "speed.py", "docs/_static/plot": "plots.py"}
SIZE = re.compile(r"(?:font|label)_?size\"?[=:] ?\"?([\w.-]+)")
PART = re.compile(r"^(?:from|import) (_\w+)", re.M)
GRID = re.compile(r"subplots?\(\s*(\d+), (\d+)")
OTHER = re.compile(r"subplots\(\s*(?!\d+, \d+|figsize|\))|subfigures\(")
MOSAIC = re.compile(r"subplot_mosaic\(\s*\"([A-Z;]+)\"")


def pictures() -> Iterator[pathlib.Path]:
    """The committed figures that pages show."""
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).glob("*.png"))


def script(picture: pathlib.Path) -> pathlib.Path:
    """What drew a picture."""
    folder = picture.parent.relative_to(ROOT).as_posix()
    if folder in MAKERS:
        return ROOT / FOLDERS[folder] / MAKERS[folder]
    if picture.stem.startswith("peers"):
        return ROOT / "benchmarks" / "_report_plots.py"
    return gallery.script_of(picture, ROOT / FOLDERS[folder])


def drawing(path: pathlib.Path, known: frozenset[str] = frozenset()) -> str:
    """A script's text, and that of the modules beside it that it takes for drawing."""
    text = path.read_text()
    parts = [path.with_name(f"{name}.py") for name in PART.findall(text) if name not in known]
    known |= {part.stem for part in parts}
    shown = (part for part in parts if part.exists())
    return "\n".join([text, *(drawing(part, known) for part in shown)])


def points(text: str) -> float:
    """The smallest size of letters in a drawing script, in points."""
    sizes = [NAMED.get(size) or float(size) for size in SIZE.findall(text) if known(size)]
    if "plot.lifetimes(" in text:
        sizes += [7.0]
    elif "plot.pathways(" in text:
        sizes += [NAMED["small"]]  # names of nodes
    elif "fl.plot." in text and "plot.style()" not in text:
        sizes += [NAMED["small"]]  # the library's legends
    return min([TICKS, *sizes])


def known(size: str) -> bool:
    """Whether a size is a number or a name of a small one."""
    return size in NAMED or re.fullmatch(r"\d+(?:\.\d+)?", size) is not None


def pixels(picture: pathlib.Path) -> float:
    """The height of a picture's smallest letters, in CSS pixels at the width of the text."""
    with Image.open(picture) as image:
        (width, height), dpi = image.size, image.info.get("dpi", (DPI, DPI))[0]
    shown = min(WIDTH, width)
    if picture.parent.name == "plot":
        shown = min(shown, HEIGHT * width / height)
    return points(drawing(script(picture))) * shown * dpi / (72 * width)


def has_other_grids(picture: pathlib.Path) -> bool:
    """Whether the number of a figure's panels is not said in numbers."""
    return OTHER.search(drawing(script(picture))) is not None


def panels(picture: pathlib.Path) -> int:
    """The most panels of a figure that its script asks for in numbers; 1 where it does not."""
    text = drawing(script(picture))
    grids = [int(rows) * int(columns) for rows, columns in GRID.findall(text)]
    return max([1, *grids, *(len(set(found) - {";"}) for found in MOSAIC.findall(text))])
