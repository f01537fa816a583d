"""The directive `verdict-table`: every claim of the papers, to be searched and filtered.

The rows are those that `examples/paper/verdicts.py --quoted` writes, from the studies' results.
What filters them is `_static/verdicts.js`; without it the whole table stands there.
"""

import html
import json
import pathlib
from collections import Counter

import verdicts
from _judge import CLASSES
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PAPERS = {
    "M": "M, the lead paper",
    "W": "W, its workshop version",
    "C": "C, the curriculum on deep linear networks",
    "B": "B, the bias after ReLU",
    "L": "L, effective weights",
    "other": "other papers",
}
CONTROLS = """\
<form class="verdict-controls" role="search">
<label>Search <input type="search" name="words" placeholder="mode, t*, erratum ..."></label>
<label>Verdict <select name="verdict"><option value="">all</option>{verdicts}</select></label>
<label>Paper <select name="paper"><option value="">all</option>{papers}</select></label>
<output>{number} claims</output>
</form>
"""
HEAD = "<thead><tr><th>claim</th><th>source</th><th>measured</th><th>verdict</th></tr></thead>"
ROW = """\
<tr data-verdict="{class}" data-paper="{paper}">
<td data-name="claim">{claim}</td>
<td data-name="source">{source}<br><code>{study}.py</code></td>
<td data-name="measured">{measured}<br><small>{size}</small></td>
<td data-name="verdict"><span class="verdict">{verdict}</span></td>
</tr>
"""


def paper_of(source: str) -> str:
    """The paper that a source names by its letter."""
    letter = source.replace(";", " ").replace(",", " ").split()[0]
    return letter if letter in PAPERS else "other"


def records() -> list[dict[str, str]]:
    """All rows of all studies, as they stand in the committed results."""
    found = []
    for study in verdicts.names():
        record = json.loads((verdicts.RESULTS / f"{study}.json").read_text())
        more = {"study": study, "size": verdicts.size_text(record["size"])}
        for row in record["verdicts"]:
            found.append(row | more | {"paper": paper_of(row["source"])})
    return found


def options(names: dict[str, str], counts: Counter[str]) -> str:
    """The options of a list, each with the number of its rows."""
    lines = [
        f'<option value="{key}">{text} ({counts[key]})</option>' for key, text in names.items()
    ]
    return "".join(lines)


def table(rows: list[dict[str, str]]) -> str:
    """The table with its controls, as HTML."""
    kinds = {kind: kind for kind in CLASSES}
    controls = CONTROLS.format(
        verdicts=options(kinds, Counter(row["class"] for row in rows)),
        papers=options(PAPERS, Counter(row["paper"] for row in rows)),
        number=len(rows),
    )
    lines = [ROW.format_map({k: html.escape(v) for k, v in row.items()}) for row in rows]
    return f'{controls}<table class="verdicts">{HEAD}<tbody>{"".join(lines)}</tbody></table>'


class VerdictTable(SphinxDirective):
    """`verdict-table`: the table and its controls."""

    def run(self) -> list[nodes.Node]:
        for path in pathlib.Path(verdicts.RESULTS).glob("*.json"):
            self.env.note_dependency(str(path))
        return [nodes.raw("", table(records()), format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.add_directive("verdict-table", VerdictTable)
    return {"parallel_read_safe": True}
