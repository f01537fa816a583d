"""The built pages in a real browser, from disk: wide and narrow, light and dark.

`python3 dev.py docs` builds them. Skipped where no Chromium is installed, or nothing is built.
"""

import pathlib

import pytest
from browser import browser, installed

SITE = pathlib.Path(__file__).resolve().parents[2] / "site"
KINDS = {
    "start": "index.html",
    "tutorial": "tutorials/1-gradient-flow.html",
    "how-to": "how-to/own-task.html",
    "explanation": "explanation/index.html",
    "reference": "reference/theory.html",
    "gallery": "gallery.html",
    "verdicts": "verdicts.html",
    "contribute": "contribute/documentation.html",
}
LOOKS = [(width, scheme) for width in (1280, 400) for scheme in ("light", "dark")]
pytestmark = [
    pytest.mark.skipif(installed() is None, reason="no Chromium to look at the pages with"),
    pytest.mark.skipif(not SITE.exists(), reason="no pages; `python3 dev.py docs` builds them"),
]
# Everything that a reader would see go wrong, each with what it is.
FAULTS = r"""(() => {
  const found = [];
  const note = (text, elements) => { for (const e of elements) found.push(`${text}: ${e}`); };
  const all = (selector) => [...document.querySelectorAll(selector)];
  note("picture", all("img").filter((i) => !i.naturalWidth).map((i) => i.src));
  note("formula", all(".math").filter((m) => !m.querySelector(".katex-html"))
    .map((m) => m.textContent));
  note("formula", all(".katex-error").map((e) => e.title));
  const article = document.querySelector("article").cloneNode(true);
  article.querySelectorAll("pre, code, .math").forEach((e) => e.remove());
  note("TeX", article.textContent.match(/\$[^$\n]*\\[a-z]+[^$\n]*\$|\\\(|\\\[|\\frac/g) ?? []);
  const {scrollWidth, clientWidth} = document.documentElement;
  if (scrollWidth > clientWidth) {
    const inside = (e) => e.closest("article, .content") && !e.closest("pre, .katex, svg");
    const wide = all("body *").filter((e) =>
      inside(e) && e.getBoundingClientRect().right > clientWidth + 1);
    found.push(`${scrollWidth} px in ${clientWidth}`);
    note("wide", wide.slice(0, 3).map((e) => e.outerHTML.slice(0, 99)));
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


def faults(tab):
    return tab.run(FAULTS) + tab.complaints


def brightness(tab):
    colour = tab.run("getComputedStyle(document.body).backgroundColor")
    red, green, blue = (int(part) for part in colour[4:-1].split(","))
    return (red + green + blue) / (3 * 255)


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_of_each_kind_looks_right(tab, kind, width, scheme):
    tab.look(width, scheme)
    tab.open(SITE / KINDS[kind])
    assert faults(tab) == []
    assert tab.run("document.documentElement.clientWidth") == width
    assert (brightness(tab) > 0.8) == (scheme == "light")


def test_every_page_looks_right_on_a_narrow_screen(tab):
    tab.look(400, "light")
    wrong = {}
    for page in sorted(SITE.rglob("*.html")):
        tab.open(page)
        wrong |= {str(page.relative_to(SITE)): found for found in [faults(tab)] if found}
    assert wrong == {}


def test_mathematics_has_its_fonts(tab):
    tab.open(SITE / KINDS["tutorial"])
    assert tab.run("document.querySelectorAll('.math .katex-html').length") > 3
    loaded = tab.run(
        "[...document.fonts].filter((f) => f.status === 'loaded').map((f) => f.family)"
    )
    assert {"KaTeX_Main", "KaTeX_Math"} <= set(loaded)


def test_search_finds_a_word(tab):
    tab.look(1280, "light")
    tab.open(SITE / "search.html", "?q=linearization")
    tab.until("document.querySelectorAll('#search-results li a').length > 3")
    assert tab.complaints == []
    assert "linearization" in tab.run("document.querySelector('#search-results').innerText").lower()


def test_the_verdicts_are_filtered(tab):
    tab.open(SITE / "verdicts.html")
    shown = "document.querySelectorAll('table.verdicts tbody tr:not([hidden])').length"
    every = tab.run(shown)
    tab.run("""{
      const {words, verdict} = document.querySelector(".verdict-controls");
      verdict.value = "misprint";
      words.value = "erratum";
      words.dispatchEvent(new Event("input", {bubbles: true}));
    }""")
    some = tab.run(shown)
    assert 0 < some < every
    assert f"{some} of {every}" in tab.run("document.querySelector('.verdict-controls').innerText")


def test_a_fault_is_told(tab, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        "<article><p>$\\alpha$ <img src='none.png'><span class='math'>x</span></p>"
        "<div style='width: 2000px'>wide</div></article><script>f()</script>"
    )
    tab.look(400, "light")
    tab.open(page)
    told = "\n".join(faults(tab))
    for word in ("picture: ", "formula: x", "TeX: $", "px in 400", "f is not defined"):
        assert word in told
