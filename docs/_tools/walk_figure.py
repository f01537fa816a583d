"""The directive `walk`: an exact walk and descent beside it, that a reader moves through in time.

The runs are in `_static/walk_data.js`, made by `docs/_figures/walks.py`; `_static/walk.js` draws
them. Only pages with this directive load the two.
"""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SCRIPTS = ("walk_data.js", "walk.js")
HTML = """\
<figure class="walk" role="group" aria-label="The exact walk and descent over time">
<noscript><p>This figure is drawn by JavaScript.</p></noscript>
<form>
<div class="walk-choice">
<label>Task <select name="task"></select></label>
<label>Strength c of the bias <select name="c"></select></label>
<label>Seed <select name="seed"></select></label>
</div>
<div class="walk-planes">
<p><b>Exact flow</b> at t = <span data-shown="t"></span>, loss <span data-shown="loss"></span>:
of <span data-shown="units"></span> units
<b class="open">▮</b> <span data-shown="open"></span> are on for every sample (open);
<b class="closed">▯</b> with the sliding ones, <span data-shown="closed"></span> (closed)</p>
<svg class="flow" aria-hidden="true"></svg>
<p><b>Gradient descent</b>, rate 0.01, the same weights at t = 0:
<b class="descent">▮</b> <span data-shown="descent"></span> in this step</p>
<svg class="descent" aria-hidden="true"></svg>
<p class="walk-key"><i class="off"></i> off <i class="sliding"></i> sliding, on its kink
(<span data-shown="sliding"></span> pairs)
<i class="on"></i> on; hidden units from left to right, the longest on for every sample first</p>
</div>
<div class="walk-choice">
<button type="button" name="play">Play</button>
<span>or go to</span>
<button type="button" data-star="open"></button>
<button type="button" data-star="closed"></button>
<button type="button" data-star="descent"></button>
</div>
<input type="range" name="time" min="0" step="1" aria-label="flow time t">
<svg class="timeline" role="img"
aria-label="Share of units that are on for every sample, and the loss, over flow time"></svg>
<p class="walk-key">Units on for every sample: <i class="line open"></i> flow, open
<i class="line closed"></i> flow, closed <i class="band"></i> descent, lowest to highest within 0.1;
triangles at t*</p>
</form>
<figcaption><p>{caption}</p></figcaption>
</figure>
"""
CAPTION = """\
Each cell is a pair of a hidden unit and a sample. Move the slider, or press Play. A filled column
is a unit that has become linear. On the tree with c = 1 the most are filled at the open t*; then
pairs begin to slide, held on their kinks: the open count falls and the closed one rises. Descent
steps over the kinks and back. Its pairs speckle, and the step that happens to have the most filled
columns is at neither t*. With c = 0 hardly a column fills.
Made by <code>docs/_figures/walks.py</code>.\
"""


class Walk(SphinxDirective):
    """`walk`: the figure."""

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", HTML.format(caption=CAPTION), format="html", classes=["walk"])]


def load(app: Sphinx, page: str, template: str, context: dict, doctree: Any) -> None:
    """Have a page with the figure load what draws it."""
    if doctree and any("walk" in node["classes"] for node in doctree.findall(nodes.raw)):
        for script in SCRIPTS:
            app.add_js_file(script, loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's door."""
    app.add_directive("walk", Walk)
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True}
