"""What the search looks through: pages in parts, at headings, public names and verdicts.

Sphinx's search shows no excerpts from disk, drops signs as in t*, and lists modules that are not
public. So `_templates/search.html` loads what is written here, `search_data.js`, and
`_static/search.js`, which ranks the parts.
"""

import html
import json
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

PUBLIC = ("measures", "plot", "tasks", "theory")  # the rooms; all else below `flowlin` is inside
INSIDE = re.compile(rf"flowlin\.(?!(?:{'|'.join(PUBLIC)})\.)_?[a-z_]+\.")
TEX = re.compile(r"\\(?:q?quad|text|math[a-z]+|left|right|displaystyle)\b|\\[,;! ]|[\\{}]|\^(?=\*)")
CARD = re.compile(r'<article class="verdict" id="([^"]+)".*?"verdict-source">([^<]*)<', re.S)
FRACTION = re.compile(r"\\[dt]?frac\b")
PROMPT = re.compile(r"^(?:>>>|\.\.\.) ", re.M)
# Words that people type, by the page that says what they are. Parts are separated by commas.
WORDS = {
    "explanation/linearization-time": "t*, t star, linearization, linearization time",
    "explanation/glossary": "glossary, notation, symbols",
    "explanation/kinks-and-sliding": "kink, sliding, Filippov",
    "how-to/devices": "GPU, CUDA, devices",
    "how-to/long-runs": "checkpoint, resume, save, extend, progress",
    "how-to/own-loss": "loss, cross entropy",
    "how-to/sweeps": "sweep, seeds, vmap",
    "reference/runs": "time constant, tau, gradient_flow",
    "start": "install, pip",
    "tutorials/2-hierarchy-and-race": "hitting time, half time, semantic tree",
    "tutorials/8-from-flow-time-to-sgd-steps": "learning rate, steps",
}


class Part(NamedTuple):
    """A stretch of a page: the place in it, its heading, and what stands below, code apart."""

    anchor: str
    heading: str
    texts: list[str]
    code: list[str]


def plain(node: nodes.Node) -> str:
    """What a node says, on one line: formulas without TeX's signs, code without prompts."""
    texts = []
    for text in node.findall(nodes.Text):
        formula = isinstance(text.parent, nodes.math | nodes.math_block)
        texts.append(formula_in_words(text) if formula else PROMPT.sub("", text))
    return " ".join("".join(texts).split())


def formula_in_words(text: str) -> str:
    """A formula without TeX's signs: a fraction as what is above / what is below."""
    if FRACTION.search(text):
        text = FRACTION.sub(" ", text).replace("}{", " / ")
    return TEX.sub("", text)


def is_public(name: str) -> bool:
    """Tell whether a name of the library, such as "flowlin.theory.modes", is one for users."""
    return not INSIDE.match(name)


def parts(doctree: nodes.Node) -> list[Part]:
    """The parts of a page in order, a verdict's card one of them; what is inside has none."""
    found: list[Part] = []
    tags = r"(?s)<(svg|form|style|script|noscript)\b.*?</\1>|<[^>]*>"

    def below(node: nodes.Node) -> None:
        for child in node.children:
            if isinstance(child, nodes.section):
                found.append(Part(child["ids"][0], plain(child[0]), [], []))
                below(child)
            elif isinstance(child, addnodes.desc_signature):
                found.extend(Part(name, name, [], []) for name in child["ids"] if is_public(name))
                found[-1].texts.append(" ".join(child.astext().split()))
            elif isinstance(child, nodes.title | nodes.comment | addnodes.index):
                continue
            elif isinstance(child, nodes.table) and "names" in child["classes"]:
                continue  # each name says it again below
            elif isinstance(child, nodes.raw):
                cards = CARD.findall(child.astext())
                found.extend(Part(place, html.unescape(source), [], []) for place, source in cards)
                text = html.unescape(re.sub(tags, " ", child.astext()))
                found[-1].texts.append(" ".join(text.split()))
            elif isinstance(child, nodes.literal_block):
                found[-1].code.append(plain(child))
            elif isinstance(child, nodes.TextElement):
                found[-1].texts.append(plain(child))
            else:
                below(child)

    below(doctree)
    return found


def data(app: Sphinx) -> Iterator[dict[str, object]]:
    """Each page: where it is, its words, its parts as (place, heading, text, code).

    Code stands apart, so that an excerpt is of a sentence where one has the words.
    Without the changelog, which names everything and explains nothing.
    """
    for page in sorted(app.env.found_docs - {"changelog"}):
        found = parts(app.env.get_doctree(page))
        yield {
            "page": page,
            "words": [word.strip() for word in WORDS.get(page, "").split(",") if word],
            "parts": [(p.anchor, p.heading, " ".join(p.texts), " ".join(p.code)) for p in found],
        }


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the data beside the pages."""
    if error or app.builder.name != "html":
        return
    unknown = set(WORDS) - app.env.found_docs
    if unknown:
        raise ValueError(f"`WORDS` names pages that are not there: {sorted(unknown)}.")
    pages = json.dumps(list(data(app)), ensure_ascii=False, separators=(",", ":"))
    pathlib.Path(app.outdir, "search_data.js").write_text(f"window.flowlinPages = {pages};\n")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
