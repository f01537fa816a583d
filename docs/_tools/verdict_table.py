"""The directive `verdict-table`: every claim of the papers as a card, to be searched and filtered.

The rows are those that `examples/paper/verdicts.py --quoted` writes, from the studies' results.
What filters them is `_static/verdicts.js`; without it all cards stand there.
"""

import functools
import html
import json
import os
import pathlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlencode

import panels
import unbuilt
import verdicts
from _judge import CLASSES, OUTCOMES
from docutils import nodes
from PIL import Image
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

CONTROLS = """\
<form class="verdict-controls" role="search">
<label>Search <input type="search" name="words" list="verdict-places"
placeholder="Fig. 3, Eq. 14, t* ..."></label>
<datalist id="verdict-places">{places}</datalist>
<label>Verdict <select name="verdict"><option value="">all</option>{verdicts}</select></label>
<label>Paper <select name="paper"><option value="">all</option>{papers}</select></label>
<label>Kind <select name="kind"><option value="">all</option>{kinds}</select></label>
<output>{number} cards</output>
</form>
"""
HEAD = """\
<article class="verdict" id="{id}"
data-verdict="{outcome}" data-paper="{paper}" data-kind="{class}">
<div class="verdict-said"><p class="verdict-badge">{outcome}</p>
<p class="verdict-source">{source}</p>
<p>{said}</p>{asked}{follows}<p class="verdict-number">{before}{number}{behind}</p></div>
"""
MORE = """\
<details><summary>All numbers</summary>
{measured}<p>Verdict: {verdict}</p>{moves}
<p>Computed by <code>python3 dev.py run python examples/paper/{study}.py</code></p>
</details><p class="verdict-links"><a href="#{id}">this card</a>{errata}
"""
# A number with its uncertainty, or a share with its interval.
NUMBER = re.compile(
    r"-?[\d.,]+(?:e-?\d+)? ?%?(?: ± [\d.]+(?:e-?\d+)?(?: \(\d+ seeds\))?"
    r"|(?: of \d+)? \([\d.]+ ?%? to [\d.]+ ?%\))"
)
# Where none has an interval: an error, a share, a percentage.
BARE = re.compile(
    r"(?<!from )(?<!variance )(?<!to )(?<![\d(.])"
    r"(?:\d[\d.]*e-?\d+|\d[\d,]* of \d[\d,]*\d|\d[\d.]* ?%)"
)
# Right behind the words that `DECIDING` has: any number.
PLAIN = re.compile(r"-?\d(?:[\d.,]*\d)?(?:e-?\d+)?")
# What decides on a claim, where that is not its first number: the words that it stands behind.
DECIDING = {
    "with a_0 the singular values at the start": r"as App\. B says, (?:[\d.]+ ± [^,]*, ){2}",
    "All networks with c > 0|shoots up early|gating units is small": r"c = 0\.01:",
    "vast majority of kinks": r"half learned \(t = [^)]*\)\)",
    "But for a slight shift of time": r"after one shift of .*?\) by ",
    "one class converge while": r"over between classes .*?\) to ",
    "Training organises": r"logits start .*?, end ",
    "training set has 50000 images": r"^",
    "Input constants act as a bias": r"overlaps most with mode 1, by ",
    "ReLU networks learn the tree in stages": r"at the paper's variance: linear \d, ReLU ",
    "in all cases where c > 0": r"c = 0\.01: ReLU ",
    "The proof's display": r"off from the eigenvalue by up to ",
    "the layers are balanced in practice": r"at 0\.1 of the strength (?:[\d.]+, ){3}",
    "without the tilde on x": r"error as printed ",
    "are those of Fig. 6's two tasks": r"that they hold: in this order 1 and ",
    "are trained on the hierarchical task": r"the cube of Fig\. 5C has ",
    "Depth changes the dynamics": r"one layer 0\.\d+, two layers ",
    "on the singular values of Sigma_yx, the": r"final strengths: .*?two layers ~ s\^",
}
PLACE = re.compile(r"\b(?:Fig\.|Eq\.) \d+[A-Z]?")
# Where a sentence ends, or a part of it: not behind App., Fig., Eq., Sec.
END = re.compile(r"(?:;|(?<! )(?<!App)(?<!Fig)(?<!Figs)(?<!Eq)(?<!Eqs)(?<!Sec)\.) ")
# What a verdict goes on with, behind its colon.
FOLLOWS = {
    "holds under a condition": "Condition",
    "holds in part, refuted as stated": "What holds",
    "misprint": "Correct",
    "measured": "Found",
}
CRITERION = re.compile(r"criterion\b", re.I)
# Where what is measured is said once, before its numbers by case: how a case begins, and what.
CASE = re.compile(r"c = |inputs |With the same|the ratios")
WHAT = re.compile(r"(.{9,200}?)(?:: |\. )")
# What a number is of, behind it: up to a sign, not up to another number.
BEHIND = re.compile(r"((?:[^,;.(:\d]|(?<=_)\d)*+)(?=[,;.:]|(?<= )\(|$)")
LONGEST = 120  # letters before a number
# Of studies with more than one picture: what a row says that is shown by another than the first.
SHOWN = {
    "c_4_race_pairs": r"never trained|From balanced",
    "c_6_rectified_bias": r"offset XOR|Without bias|open gates",
    "c_6_rectified_pathways": r"How many pathways|contextual|by context",
    "l_effective_weights_maps": r"Before training|After training|sub-clusters|two styles",
    "m_fig1_flow": r"Which mode",
    "m_fig2_separation": r"Fig\. 2E",
    "m_fig2_stages": r"in stages|one factor of time",
    "m_fig5_functions": r"Fig\. 5C|do not rely",
    "m_fig6_codes": r"fewer dimensions|explains more|lower rank",
    "m_fig7_descent": r"descent at rate",
    "m_fig11_delta": r"preference|non-linear solutions|settle",
    "w_fig4_width": r"half the width",
}
DOCS = pathlib.Path(__file__).resolve().parents[1]
PANELS = DOCS.parent / "build" / "docs" / "panels"  # what is cut out of pictures
ERRATUM = re.compile(r"\bE(\d+)[a-d]?\b")


def records() -> list[dict[str, str]]:
    """All rows of all studies, from the committed results: by paper, its claims first."""
    found = []
    for study in verdicts.names():
        record = json.loads((verdicts.RESULTS / f"{study}.json").read_text())
        more = {"study": study, "size": verdicts.size_text(record["size"])}
        for k, row in enumerate(record["verdicts"]):
            own = {"paper": verdicts.paper_of(row["source"]), "id": f"{study}-{k}"}
            found.append(row | more | own)
    papers = list(verdicts.PAPERS)
    return sorted(
        found,
        key=lambda row: (papers.index(row["paper"]), row["class"] != "claim",
                         not row["study"].startswith(f"{row['paper'].lower()}_")),
    )  # fmt: skip


def headings(page: str) -> dict[str, str]:
    """The places of a page's second headings, by the first word of each: "E11", "M"."""
    text = unbuilt.with_blocks((DOCS / page).read_text())
    found = re.findall(r"(?:^\(([\w-]+)\)=\n+)?^## ((\w+).*)", text, re.M)
    return {
        word: place or re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        for place, title, word in found
    }


def errata(source: str) -> str:
    """Links to the errata that a source names, as HTML."""
    places = headings("explanation/errata.md")
    places["E17"] = places["E16"]  # both under one heading
    numbers = dict.fromkeys(f"E{number}" for number in ERRATUM.findall(source))
    return "".join(
        f' <a href="explanation/errata.html#{places[number]}">erratum {number}</a>'
        for number in numbers
    )


def options(names: Mapping[str, str], counts: Counter[str]) -> str:
    """The options of a list, each with the number of its rows."""
    lines = [
        f'<option value="{key}">{text} ({counts[key]})</option>' for key, text in names.items()
    ]
    return "".join(lines)


def natural(place: str) -> tuple[str, int, str]:
    """A key that sorts Fig. 2 before Fig. 10."""
    kind, number, part = re.fullmatch(r"(\D+)(\d+)(.*)", place).groups()  # pyright: ignore
    return kind, int(number), part


def controls(rows: Sequence[Mapping[str, str]]) -> str:
    """The form that filters, as HTML."""
    counts = {key: Counter(row[key] for row in rows) for key in ("outcome", "paper", "class")}
    places = {place for row in rows for place in PLACE.findall(row["source"])}
    return CONTROLS.format(
        places="".join(f'<option value="{place}">' for place in sorted(places, key=natural)),
        verdicts=options({k: k for k in OUTCOMES}, counts["outcome"]),
        papers=options(verdicts.PAPERS, counts["paper"]),
        kinds=options({k: k for k in CLASSES}, counts["class"]),
        number=len(rows),
    )


def summaries(rows: Sequence[Mapping[str, str]]) -> str:
    """For each source its verdicts, a line for each outcome, with where they stand, as HTML."""
    return "".join(
        f'<details class="verdict-summary"{" open" * (paper == "M")}>'
        f"<summary>{html.escape(name)}</summary><ul>{''.join(lines(paper, rows))}</ul></details>"
        for paper, name in verdicts.PAPERS.items()
        if any((row["paper"], row["class"]) == (paper, "claim") for row in rows)
    )


def lines(paper: str, rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """A source's lines of the summary: outcome, number, the first equations and figures."""
    claims = [row for row in rows if row["paper"] == paper and row["class"] == "claim"]
    place = headings("references.md").get(paper, "references")
    yield f'<li>{len(claims)} claims of <a href="references.html#{place}">{title(paper)}</a></li>'
    for outcome in OUTCOMES:
        found = [row["source"] for row in claims if row["outcome"] == outcome]
        if found:
            named = {place for text in found for place in PLACE.findall(text)}
            places = sorted(named, key=natural)
            where = f": {', '.join(places[:9])}{' …' * (len(places) > 9)}" if places else ""
            query = urlencode({"paper": paper, "verdict": outcome, "kind": "claim"})
            yield f'<li><a href="#?{query}">{outcome}</a> {len(found)}{where}</li>'


def title(paper: str) -> str:
    """A paper's title, as the references have it; for others what they are."""
    text = (DOCS / "references.md").read_text()
    found = re.search(rf"^## {paper}, .*\n\n\*([^*]+?)\.?\*", text, re.M)
    return f"<i>{html.escape(found[1])}</i>" if found else "other works"


def deciding(measured: str, claim: str) -> re.Match[str] | None:
    """The number that decides on a claim.

    It is the first with an interval, or without, if `DECIDING` has no other. Right behind the words
    of `DECIDING` it is any.
    """
    behind = next((words for said, words in DECIDING.items() if re.search(said, claim)), "")
    start = re.search(behind, measured)
    if start is None:
        raise ValueError(f"`DECIDING`: no {behind!r} in what was measured for {claim!r}")
    at = start.end()
    beside = [kind.match(measured, at) for kind in (NUMBER, BARE, PLAIN) if behind]
    found = next(filter(None, beside), None)
    return found or NUMBER.search(measured, at) or BARE.search(measured, at)


def headline(measured: str, claim: str = "") -> tuple[str, str, str]:
    """What stands before the number that decides on a claim, that number, what stands behind it."""
    found = deciding(measured, claim)
    if not found:
        return shorten(measured, LONGEST), "", ""
    before = END.split(measured[: found.start()])[-1]
    cut = before[-LONGEST:].partition(" ")[2] if len(before) > LONGEST else before
    what = WHAT.match(measured) if CASE.match(before) else None
    if what and what.end() <= found.start() - len(before) and "(" not in what[1]:
        cut = f"{what[1]}: … {cut}"
    elif cut != before:
        cut = f"… {cut}"
    behind = BEHIND.match(measured, found.end())
    return cut, found[0], behind[1].rstrip() if behind and len(behind[1]) < LONGEST else ""


def clauses(measured: str) -> list[str]:
    """The clauses and sentences of what was measured; what is in brackets stays whole.

    A criterion comes last, and is one with all that follows.
    """
    found, start = [], 0
    for end in END.finditer(measured):
        if CRITERION.match(measured, start):
            break
        before = measured[: end.start()]
        if before.count("(") <= before.count(")"):
            found.append(measured[start : end.start()])
            start = end.end()
    return [*found, measured[start:]]


def told(measured: str, size: str) -> str:
    """What was measured as HTML: its clauses as a list, its criterion on a line of its own."""
    *items, last = clauses(measured)
    criterion = f"<p>{html.escape(capital(last))}</p>" if CRITERION.match(last) else ""
    items = [html.escape(item) for item in (items if criterion else [*items, last])]
    if len(items) == 1:
        return f"<p>Measured: {items[0]} <i>({html.escape(size)})</i></p>{criterion}"
    lines = "\n".join(f"<li>{item}</li>" for item in items)
    return f"<p>Measured <i>({html.escape(size)})</i>:</p>\n<ul>{lines}</ul>{criterion}"


def shorten(text: str, longest: int) -> str:
    """A text's first words, up to so many letters."""
    return text if len(text) <= longest else text[:longest].rpartition(" ")[0] + " …"


def picture_of(row: Mapping[str, str]) -> str:
    """The name of the picture that shows a row."""
    for picture, words in SHOWN.items():
        told = f"{row['source']}: {row['claim']}"
        if picture.startswith(f"{row['study']}_") and re.search(words, told):
            return picture
    return row["study"]


def card(row: Mapping[str, str]) -> tuple[str, str]:
    """A card as HTML, what stands before its picture and behind."""
    claim = row["claim"] if row["class"] == "claim" else ""
    before, number, behind = headline(row["measured"], claim)
    safe = {k: html.escape(v) for k, v in {**row, "before": before, "behind": behind}.items()}
    safe["number"] = f"<b>{html.escape(number)}</b>" if number else ""
    said = f"<q>{safe['quote']}</q>" if row["quote"] else safe["claim"]
    moves = f"<p>{capital(safe['moves'])}</p>" if row["moves"] else ""
    measured = told(row["measured"], row["size"])
    more = {"measured": measured, "moves": moves, "errata": errata(row["source"])}
    asked = f"<p>{safe['claim']}</p>" if row["quote"] else ""
    head = {"said": said, "asked": asked, "follows": what_follows(row["verdict"])}
    return HEAD.format_map(safe | head), MORE.format_map(safe | more)


def what_follows(verdict: str) -> str:
    """The condition, the part that holds, the correction or what was found, as HTML."""
    outcome, _, rest = verdict.partition(": ")
    if not rest:
        return ""
    return f"<p><i>{FOLLOWS[outcome]}:</i> {html.escape(shorten(rest, 2 * LONGEST))}</p>"


def capital(text: str) -> str:
    """A text with its first letter a capital."""
    return text[:1].upper() + text[1:]


def shown_of(row: Mapping[str, str], folder: pathlib.Path) -> pathlib.Path:
    """The picture of a card: the panels that show its claim, cut out into a folder."""
    picture = verdicts.RESULTS / f"{picture_of(row)}.png"
    chosen = panels.panels_of(picture.stem, f"{row['source']}: {row['claim']}")
    if not chosen:
        return picture
    return cut_out(picture, chosen, folder)


@functools.cache
def place_of(picture: pathlib.Path) -> str:
    """The start of a picture's place, which has its shape before it is loaded.

    Pictures are loaded when they come near; if cards grew then, a link to one would miss it.
    """
    with Image.open(picture) as image:
        width, height = image.size
    return f'<div class="verdict-picture" style="aspect-ratio: {width} / {height}">'


@functools.cache
def cut_out(picture: pathlib.Path, chosen: panels.Panels, folder: pathlib.Path) -> pathlib.Path:
    """The file in a folder with the chosen panels of a picture, once in a build."""
    path = folder / f"{picture.stem}-{'-'.join(map(str, chosen))}.png"
    folder.mkdir(parents=True, exist_ok=True)
    panels.crop(picture, chosen).save(path)
    return path


class VerdictTable(SphinxDirective):
    """`verdict-table`: the summaries, the controls, the cards."""

    def run(self) -> list[nodes.Node]:
        for kind in ("json", "png"):
            for path in verdicts.RESULTS.glob(f"*.{kind}"):
                self.env.note_dependency(str(path))
        rows = records()
        cards = [node for row in rows for node in self.card(row)]
        return [nodes.raw("", summaries(rows) + controls(rows), format="html"), *cards]

    def card(self, row: Mapping[str, str]) -> Iterator[nodes.Node]:
        """A card with its picture and its files."""
        before, behind = card(row)
        study, folder = row["study"], "/../examples/paper"
        path = shown_of(row, PANELS)
        yield nodes.raw("", before + place_of(path), format="html")
        picture = os.path.relpath(path, DOCS)
        yield nodes.image("", uri=f"/{picture}", alt=f"Figure of {study}.py", loading="lazy")
        yield nodes.raw("", f"</div>{behind}", format="html")
        for name in (f"results/{picture_of(row)}.png", f"{study}.py", f"results/{study}.json"):
            text = nodes.literal("", pathlib.PurePath(name).name)
            link = addnodes.download_reference(
                "", "", text, reftarget=f"{folder}/{name}", refdoc=self.env.docname
            )
            yield nodes.inline("", "", link)
        yield nodes.raw("", "</p></article>", format="html")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.add_directive("verdict-table", VerdictTable)
    return {"parallel_read_safe": True}
