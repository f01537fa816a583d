"""The directive `verdict-table`: every claim of the papers, to be searched and filtered.

The rows are those that `examples/paper/verdicts.py --quoted` writes, from the studies' results.
What filters them is `_static/verdicts.js`; without it the whole table stands there.
"""

import html
import json
import pathlib
from collections import Counter

import verdicts
from _judge import CLASSES, OUTCOMES
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

CONTROLS = """\
<form class="verdict-controls" role="search">
<label>Search <input type="search" name="words" placeholder="mode, t*, erratum ..."></label>
<label>Verdict <select name="verdict"><option value="">all</option>{verdicts}</select></label>
<label>Paper <select name="paper"><option value="">all</option>{papers}</select></label>
<label>Kind <select name="kind"><option value="">all</option>{kinds}</select></label>
<output>{number} rows</output>
</form>
"""
HEAD = (
    "<thead><tr><th>what is said</th><th>source</th><th>measured</th><th>verdict</th></tr></thead>"
)
ROW = """\
<tr data-verdict="{outcome}" data-paper="{paper}" data-kind="{class}">
<td data-name="claim">{quoted}{claim}</td>
<td data-name="source">{source}<br><code>{study}.py</code></td>
<td data-name="measured">{measured}<br><small>{size}</small></td>
<td data-name="verdict"><span class="verdict">{verdict}</span><br><small>{moves}</small></td>
</tr>
"""


def records() -> list[dict[str, str]]:
    """All rows of all studies, as they stand in the committed results."""
    found = []
    for study in verdicts.names():
        record = json.loads((verdicts.RESULTS / f"{study}.json").read_text())
        more = {"study": study, "size": verdicts.size_text(record["size"])}
        for row in record["verdicts"]:
            found.append(row | more | {"paper": verdicts.paper_of(row["source"])})
    return found


def options(names: dict[str, str], counts: Counter[str]) -> str:
    """The options of a list, each with the number of its rows."""
    lines = [
        f'<option value="{key}">{text} ({counts[key]})</option>' for key, text in names.items()
    ]
    return "".join(lines)


def table(rows: list[dict[str, str]]) -> str:
    """The table with its controls, as HTML."""
    counts = {key: Counter(row[key] for row in rows) for key in ("outcome", "paper", "class")}
    controls = CONTROLS.format(
        verdicts=options({k: k for k in OUTCOMES}, counts["outcome"]),
        papers=options(verdicts.PAPERS, counts["paper"]),
        kinds=options({k: k for k in CLASSES}, counts["class"]),
        number=len(rows),
    )
    lines = [line(row) for row in rows]
    return f'{controls}<table class="verdicts">{HEAD}<tbody>{"".join(lines)}</tbody></table>'


def line(row: dict[str, str]) -> str:
    """A row; the sentence of the source first, where there is one."""
    safe = {k: html.escape(v) for k, v in row.items()}
    quoted = f"<q>{safe['quote']}</q><br>" if row["quote"] else ""
    return ROW.format_map(safe | {"quoted": quoted})


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
