"""The built pages in a real browser, from disk: wide and narrow, light and dark.

`python3 dev.py docs` builds them. Skipped where no Chromium is installed, or nothing is built.
"""

import pathlib
import re
import urllib.parse

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
  note("dollar", all("article .math").filter((m) => m.previousSibling?.textContent.endsWith("$")
    || m.nextSibling?.textContent.startsWith("$")).map((m) => m.textContent.slice(0, 40)));
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


PAGES_OF_WORDS = {
    "hitting time": "tutorials/2-hierarchy-and-race",
    "checkpoint": "how-to/long-runs",
    "Checkpoints": "how-to/long-runs",
    "time constant": "reference/runs",
    "t*": "explanation/linearization-time",
    "linearization": "explanation/linearization-time",
    "sliding": "explanation/kinks-and-sliding",
    "gradient_flow": "reference/runs",
    "ModeHits": "reference/events",
    "neural tangent kernel": "reference/measures",
    "Eq. 14": "verdicts",
}
FIRST = "document.querySelector('ul.search > li')"


def search(tab, words):
    tab.look(1280, "light")
    tab.open(SITE / "search.html", f"?q={urllib.parse.quote(words)}")
    assert tab.complaints == []


@pytest.mark.parametrize("words", PAGES_OF_WORDS)
def test_search_finds_the_page_of_words_first(tab, words):
    search(tab, words)
    assert tab.run(f"{FIRST}.querySelector('small').textContent.trim()") == PAGES_OF_WORDS[words]
    excerpt = tab.run(f"{FIRST}.querySelector('p.context').textContent")
    assert 40 < len(excerpt) < 260
    marked = tab.run("[...document.querySelectorAll('ul.search mark')].map((e) => e.textContent)")
    stem = words.split()[0].lower().removesuffix("s")
    assert any(stem in mark.lower() for mark in marked)
    links = tab.run("[...document.querySelectorAll('ul.search a')].map((a) => a.href)")
    assert all(pathlib.Path(urllib.parse.unquote(urllib.parse.urlsplit(k).path)).exists()
               for k in links)  # fmt: skip


def test_search_leads_to_a_place_on_a_page(tab):
    search(tab, "gradient_flow")
    tab.follow(f"{FIRST}.querySelector('p.part a')")
    tab.until("location.hash === '#flowlin.gradient_flow' && document.readyState === 'complete'")
    assert tab.run("document.getElementById('flowlin.gradient_flow') !== null")


def test_search_leads_to_a_verdict(tab):
    search(tab, "Eq. 14")
    place = tab.run(f"{FIRST}.querySelector('p.part a').href").partition("#")[2]
    tab.follow(f"{FIRST}.querySelector('p.part a')")
    tab.until("location.pathname.endsWith('verdicts.html') && document.readyState === 'complete'")
    card = f"document.getElementById('{place}')"
    assert re.search(r"Eqs?\. .*14", tab.run(f"{card}.innerText"))
    assert not tab.run(f"{card}.hidden")


def test_search_has_nothing_of_what_is_inside(tab):
    headings = "window.flowlinPages.flatMap((page) => page.parts.map((part) => part[1]))"
    search(tab, "xyzzy")
    assert tab.run("document.querySelector('.search-summary').innerText").startswith("0 pages")
    names = [name for name in tab.run(headings) if name.startswith("flowlin.")]
    assert len(names) > 200
    rooms = {name.split(".")[1] for name in names if name.split(".")[1].islower()}
    inside = {"engine", "events", "networks", "record", "runs", "training", "_tools"}
    assert not rooms & inside


WALK = "document.querySelector('figure.walk')"


def shown(tab, name):
    return tab.run(f"{WALK}.querySelector('[data-shown={name}]').textContent")


def marks(tab, plane, kind):
    return tab.run(f"{WALK}.querySelectorAll('svg.{plane} rect.{kind}').length")


@pytest.mark.parametrize("page", ["index.html", "tutorials/6-exact-flow-through-kinks.html"])
def test_a_walk_stands_at_its_linearization_times(tab, page):
    tab.look(1280, "light")
    tab.open(SITE / page)
    assert tab.complaints == []
    counts = {}
    for star in ("open", "closed", "descent"):
        tab.run(f"{WALK}.querySelector('[data-star={star}]').click()")
        counts[star] = (
            shown(tab, "t"),
            marks(tab, "flow", "open"),
            marks(tab, "descent", "descent"),
        )
        assert str(counts[star][1]) == shown(tab, "open")
        assert str(counts[star][2]) == shown(tab, "descent")
        both = counts[star][1] + marks(tab, "flow", "closed")
        assert str(both) == shown(tab, "closed")
        assert marks(tab, "flow", "sliding") == int(shown(tab, "sliding"))
        if star == "closed":
            assert both == 50
    assert (counts["open"][:2], counts["closed"][0]) == (("2.77", 33), "23.16")
    assert (counts["descent"][0], counts["descent"][2]) == ("9.41", 40)
    assert counts["closed"][1] < counts["descent"][1] < counts["open"][1]


def test_a_walk_moves_by_keys_and_choices(tab):
    tab.look(1280, "light")
    tab.open(SITE / "index.html")
    slider = f"{WALK}.querySelector('input[type=range]')"
    tab.run(f"{slider}.focus()")
    for key, code, t in (("Home", 36, "0.00"), ("ArrowRight", 39, "0.10"), ("End", 35, "30.00")):
        for kind in ("rawKeyDown", "keyUp"):
            tab.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)
        assert shown(tab, "t") == t
        assert f"t = {t}" in tab.run(f"{slider}.getAttribute('aria-valuetext')")
    cells = []
    for task, c in (("offset XOR", "2"), ("ten digits", "1"), ("semantic tree", "0")):
        tab.run(f"""{{
          const form = {WALK}.querySelector("form");
          [form.task.value, form.c.value] = ["{task}", "{c}"];
          form.task.dispatchEvent(new Event("input", {{bubbles: true}}));
        }}""")
        cells.append(tab.run(f"{WALK}.querySelectorAll('svg.flow rect.on, svg.flow rect.off, "
                             "svg.flow rect.sliding').length"))  # fmt: skip
        assert shown(tab, "t") == "30.00"
    assert cells == [4 * 32, 10 * 32, 8 * 64]
    tab.run(f"{WALK}.querySelector('[name=play]').click()")
    tab.until(f"+{WALK}.querySelector('[data-shown=t]').textContent > 0.2 && "
              f"+{WALK}.querySelector('[data-shown=t]').textContent < 29")  # fmt: skip
    tab.run(f"{WALK}.querySelector('[name=play]').click()")
    assert tab.run(f"{WALK}.querySelector('[name=play]').textContent") == "Play"
    assert tab.complaints == []


@pytest.mark.parametrize("width", [1280, 740, 360])
def test_nothing_of_a_walk_lies_over_another_thing(tab, width):
    tab.look(width, "light")
    tab.open(SITE / "index.html")
    assert faults(tab) == []
    over = tab.run(f"""(() => {{
      const texts = [...{WALK}.querySelectorAll("svg text, p, label, button, input")]
        .filter((e) => !e.closest("noscript") && !e.querySelector("p"));
      const boxes = texts.map((e) => [e.textContent.slice(0, 30), e.getBoundingClientRect()]);
      return boxes.flatMap(([one, a], k) => boxes.slice(k + 1)
        .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1
          && a.top < b.bottom - 1 && b.top < a.bottom - 1)
        .map(([other]) => `${{one}} / ${{other}}`));
    }})()""")
    assert over == []


CARDS = "document.querySelectorAll('article.verdict:not([hidden])')"


def test_a_card_is_on_one_screen(tab):
    tab.look(1280, "light")
    tab.open(SITE / "verdicts.html")
    heights = tab.run(f"[...{CARDS}].map((card) => card.getBoundingClientRect().height)")
    assert max(heights) < 900


def test_a_link_to_a_card_shows_it_while_pictures_come(tab):
    tab.look(1280, "light")
    tab.open(SITE / "verdicts.html")
    last = tab.run(f"[...{CARDS}].at(-1).id")
    tab.open(SITE / "index.html")
    tab.open(SITE / "verdicts.html", f"#{last}")
    box = f"document.getElementById('{last}').getBoundingClientRect()"
    tab.until(f"0 <= {box}.top && {box}.bottom <= innerHeight")  # it scrolls smoothly


def test_the_start_page_has_told_all_within_two_screens(tab):
    """What flowlin is for, ten lines with what they print, two commands, and what it is not."""
    tab.look(1280, "light", height=1080)
    tab.open(SITE / "index.html")
    tops = tab.run(
        "Object.fromEntries([...document.querySelectorAll('article h2')].map((h) =>"
        "[h.firstChild.textContent, h.getBoundingClientRect().top + scrollY]))"
    )
    assert list(tops)[:4] == ["In ten lines", "Two commands", "What it is not", "Watch it"]
    assert tops["Watch it"] <= 2 * 1080


def test_the_verdicts_are_filtered(tab):
    tab.look(1280, "light")
    tab.open(SITE / "verdicts.html")
    every = tab.run(f"{CARDS}.length")
    assert every > 150
    tab.run("""{
      const {words, verdict} = document.querySelector(".verdict-controls");
      verdict.value = "misprint";
      words.value = "erratum";
      words.dispatchEvent(new Event("input", {bubbles: true}));
    }""")
    some = tab.run(f"{CARDS}.length")
    assert 0 < some < every
    assert f"{some} of {every}" in tab.run("document.querySelector('.verdict-controls').innerText")
    assert tab.run("location.hash") == "#?words=erratum&verdict=misprint"
    tab.run("window.before = true; location.reload()")
    tab.until("!window.before && document.readyState === 'complete'")
    assert tab.run(f"{CARDS}.length") == some
    tab.run("document.querySelector('.verdict-summary a[href^=\"#?\"]').click()")
    tab.until("document.querySelector('.verdict-controls').paper.value === 'M'")
    assert 0 < tab.run(f"{CARDS}.length") < every


@pytest.mark.parametrize(
    ("words", "has", "has_not"),
    [
        ("Fig. 3", r"Fig(s|ure)?\. .*3", r"Fig\. 30"),
        ("figure 12", r"Fig\. 12", None),
        ("Eq. 14", r"Eqs?\. .*14", r"Eq\. 140"),
        ("eq 1", r"Eqs?\. (\d+, |\d+ and )*1(?!\d)", None),
        ("t*", r"t\*", None),
        ("linearization time", r"t\*", None),
    ],
)
def test_verdicts_are_found_by_what_people_type(tab, words, has, has_not):
    tab.look(1280, "light")
    tab.open(SITE / "verdicts.html")
    tab.run(f"""{{
      const {{words}} = document.querySelector(".verdict-controls");
      words.value = "{words}";
      words.dispatchEvent(new Event("input", {{bubbles: true}}));
    }}""")
    texts = tab.run(f"[...{CARDS}].map((card) => card.textContent)")
    assert 0 < len(texts) < 100
    assert all(re.search(has, text) for text in texts)
    if has_not:
        assert not any(re.fullmatch(has_not, text) for text in texts)


def test_a_fault_is_told(tab, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        "<article><p>$\\alpha$ <img src='none.png'><span class='math'>x</span></p>"
        "<p>$<span class='math'>y</span>$</p>"
        "<div style='width: 2000px'>wide</div></article><script>f()</script>"
    )
    tab.look(400, "light")
    tab.open(page)
    told = "\n".join(faults(tab))
    for word in ("picture: ", "formula: x", "dollar: y", "TeX: $", "px in 400", "f is not defined"):
        assert word in told
