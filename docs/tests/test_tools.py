"""What the build is made with: the check of built pages, links that lead out, captions, tables."""

import os
import pathlib
import re
import sys
import types
import zlib

import numpy as np
import pytest
from docutils import nodes
from PIL import Image
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

DOCS = pathlib.Path(__file__).resolve().parent.parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS / "_tools"), str(DOCS / "reference"), str(ROOT / "examples" / "paper")]

import check_site
import gallery
import jupytext
import nbformat
import notebooks
import panels
import repository_links
import search_index
import sentences
import unbroken
import verdict_table
import verdicts

HEADER = b"# Sphinx inventory version 2\n# Project: a\n# Version: b\n# compressed with zlib.\n"
PAGE = """\
<img src="https://elsewhere.org/a.png"><script src="there.js"></script><h1 id="top">A</h1>
<a href="#top">x</a> <a href="other.html#place">x</a> <a href="other.html#none">x</a>
<a href="#?paper=M">x</a>
<a href="gone.html">x</a> <a href="https://elsewhere.org">x</a> <a href="mailto:a@b">x</a>
"""


@pytest.fixture
def site(tmp_path):
    names = [name for name in check_site.public_names() if name != "flowlin.theory.modes"]
    lines = "".join(f"{name} py:function 1 a.html#$ -\n" for name in names)
    (tmp_path / "objects.inv").write_bytes(HEADER + zlib.compress(lines.encode()))
    (tmp_path / "index.html").write_text(PAGE)
    (tmp_path / "other.html").write_text('<p id="place">B</p>')
    (tmp_path / "look.css").write_text("a { src: url(data:x) } b { src: url('none.woff2') }")
    return tmp_path


def test_faults_of_built_pages_are_told(site):
    assert list(check_site.faults(site)) == [
        "flowlin.theory.modes is not documented",
        "index.html: loads https://elsewhere.org/a.png from outside",
        "index.html: other.html#none has no such place",
        "index.html: gone.html is not there",
        "index.html: there.js is not there",
        "look.css: loads none.woff2, which is outside or is not there",
    ]


def test_links_out_of_the_pages_hand_out_files():
    rest = "[b](start.md) ![c](../docs/chattering.png) [d](../no.py)"
    text = [f"[a](../benchmarks/README.md) [e](_figures/speed.py) {rest}"]
    repository_links.hand_out(types.SimpleNamespace(srcdir=DOCS), "index", text)
    assert text[0] == f"[a](path:../benchmarks/README.md) [e](path:_figures/speed.py) {rest}"


def test_scripts_and_tables_that_pages_link_to_have_pages(tmp_path):
    """As a build of one page sees them; what else is linked to is handed out."""
    for name in ("source", "site"):
        (tmp_path / name).mkdir()
    files = ("docs/_figures/speed.py", "benchmarks/results/bias_rank.md", "CITATION.cff")
    links = (f"[a]({os.path.relpath(ROOT / file, tmp_path / 'source')})" for file in files)
    (tmp_path / "source/index.md").write_text("\n".join(["# Title", *links]))
    options = {"extensions": ["myst_parser", "repository_links"], "html_theme": "furo"}
    with docutils_namespace():
        Sphinx(
            tmp_path / "source", None, tmp_path / "site", tmp_path / "trees", "html", options,
            status=None, warningiserror=True,
        ).build()  # fmt: skip
    page = (tmp_path / "site/index.html").read_text()
    for file in files[:2]:
        assert f'href="files/{file}.html"' in page
    assert re.findall(r'href="_downloads/\w+/([\w.]+)"', page) == ["CITATION.cff"]
    script, table = ((tmp_path / f"site/files/{file}.html").read_text() for file in files[:2])
    assert "highlight" in script
    assert '<div class="table-wrapper"><table' in table
    assert repository_links.markdown("1.2e-3, a").count('<span class="number">1.2e-3</span>') == 1
    assert repository_links.markdown("[a](b.md) ![c](d.png) [e](https://f.org)") == (
        '<p>a c <a href="https://f.org">e</a></p>\n'
    )


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "docs/README.md"]
)
def test_links_of_the_repository_lead_somewhere(name):
    page = ROOT / name
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    inside = [link for link in links if not link.startswith("https://")]
    assert [link for link in inside if not (page.parent / link).exists()] == []


def test_the_entry_of_flowlin_is_that_of_the_citation():
    page, citation = (DOCS / "references.md").read_text(), (ROOT / "CITATION.cff").read_text()
    (version,), (date,) = (re.findall(rf"^{key}: (.*)$", citation, re.M)
                           for key in ("version", "date-released"))  # fmt: skip
    assert f"version = {{{version}}}" in page
    assert f"date    = {{{date}}}" in page
    entries = re.findall(r"^## (\w+),", page, re.M)
    assert entries == [paper for paper in verdicts.PAPERS if paper != "other"]
    assert page.count("```bibtex") == len(entries) + 1


FOLDERS = (  # of pictures, of the scripts that draw them
    ("docs", "examples"),
    ("examples/paper/results", "examples/paper"),
    ("examples/studies/results", "examples/studies"),
    ("benchmarks/results", "benchmarks"),
)


def test_every_picture_has_a_script():
    for pictures, scripts in FOLDERS:
        found = list((ROOT / pictures).glob("*.png"))
        assert found
        assert all(gallery.first_paragraph(gallery.script_of(p, ROOT / scripts)) for p in found)
    assert gallery.script_of(pathlib.Path("m_fig12.png"), ROOT / "examples/paper").stem == "m_fig12"
    script = ROOT / "examples/studies/lazy_to_rich.py"
    said = {name: gallery.caption(pathlib.Path(f"lazy_to_rich{name}.png"), script)
            for name in ("", "_offset")}  # fmt: skip
    assert said[""] == gallery.first_paragraph(script)
    assert said["_offset"].startswith(r"Offset XOR over $\Delta$. See: for each c the spread R")
    pictures = (ROOT / "benchmarks/results").glob("peers*.png")
    peers = {gallery.caption(p, ROOT / "benchmarks/peers.py") for p in pictures}
    assert len(peers) == 7
    assert all(text.startswith("Error against work: ") for text in peers)
    with pytest.raises(ValueError, match=r"no script .* has a name that none\.png begins with"):
        gallery.script_of(pathlib.Path("none.png"), ROOT / "examples")


def says_what_to_see(text):
    """Whether a caption has, behind what is drawn, a second sentence."""
    sentences = re.sub(r"\b(App|Eqs?|Fig|Prop|Sec)\. ", "", text)
    return bool(re.search(r"[.?] (See: \w|[A-Z]).*\.$", sentences))


def test_captions_say_what_to_see():
    captions = {
        picture.stem: gallery.caption(picture, gallery.script_of(picture, ROOT / scripts))
        for pictures, scripts in FOLDERS
        for picture in (ROOT / pictures).glob("*.png")
    }
    silent = {name for name, text in captions.items() if not says_what_to_see(text)}
    assert not silent, "end with 'See: ...'"
    assert not {name: told for name, text in captions.items() if (told := sentences.too_long(text))}
    assert says_what_to_see("M Fig. 2: modes over time. See: the first is early.")
    assert not says_what_to_see("M App. B and Fig. 2: modes over time.")  # the rule can fail


def test_the_verdicts_are_those_of_the_committed_table():
    rows = verdict_table.records()
    committed = (ROOT / "examples/paper/results/verdicts.md").read_text()
    claims = [row for row in rows if row["class"] == "claim"]
    assert f"In all {len(claims)} claims" in committed
    assert {row["paper"] for row in rows} == set(verdicts.PAPERS)
    assert verdicts.paper_of("C; Saxe, Sodhani and Lewallen 2022") == "C"
    before, _ = verdict_table.card(rows[0] | {"quote": "a < b", "claim": "c < d"})
    assert "<q>a &lt; b</q></p><p>c &lt; d</p>" in before
    assert len({row["id"] for row in rows}) == len(rows)
    shown = {verdict_table.picture_of(row) for row in rows}
    assert set(verdict_table.SHOWN) < shown
    assert all((ROOT / f"examples/paper/results/{picture}.png").exists() for picture in shown)


def test_a_card_shows_the_panels_of_its_claim(tmp_path):
    rows, said = verdict_table.records(), {}
    for row in rows:
        said.setdefault(verdict_table.picture_of(row), []).append(
            f"{row['source']}: {row['claim']}"
        )
    assert set(panels.FIGURES) <= set(said)
    for picture, figure in panels.FIGURES.items():
        first = {next(p for p in figure.shows if re.search(p, words)) for words in said[picture]}
        assert first == set(figure.shows), picture  # no pattern that no row has
    shown = {verdict_table.shown_of(row, tmp_path) for row in rows}
    cut = [path for path in shown if path.parent == tmp_path]
    assert len(cut) > 60
    for path in cut:  # white all around what is cut out, so nothing is cut through
        picture, *numbers = path.stem.split("-")
        whole = Image.open(verdicts.RESULTS / f"{picture}.png").convert("RGB")
        ink = np.pad((np.asarray(whole) < panels.WHITE).any(axis=2), 2)
        boxes = panels.panel_boxes(whole, panels.FIGURES[picture])
        for x, y, right, bottom in (boxes[int(number) - 1] for number in numbers):
            around = ink[y : bottom + 4, x : right + 4].copy()
            around[2:-2, 2:-2] = False
            assert not around.any(), path
    whole = panels.Figure(1, 2, {"": (1,)})
    with pytest.raises(ValueError, match=r"no gap between panels near 0\.50"):
        panels.panel_boxes(Image.new("RGB", (100, 50), "black"), whole)


def test_a_card_has_the_first_number_with_an_interval():
    headline = verdict_table.headline
    assert headline("b = 0: x 1.5 ± 0.2 (5 seeds), y 3; z 4 ± 1") == (
        "b = 0: x ", "1.5 ± 0.2 (5 seeds)", "",
    )  # fmt: skip
    assert headline("one; so in 9 of 10 (60% to 98%)") == ("so in ", "9 of 10 (60% to 98%)", "")
    assert headline("x. As App. B says, 0.2 ± 0.1")[:2] == ("As App. B says, ", "0.2 ± 0.1")
    assert headline("nothing of 3") == ("nothing of 3", "", "")
    assert headline("exact: error 2.2e-08 over 32 hits") == ("exact: error ", "2.2e-08", "")
    assert headline("so it is in 5 of 50") == ("so it is in ", "5 of 50", "")
    assert headline("drops from variance 2e-08: 4") == ("drops from variance 2e-08: 4", "", "")

    # What it is of: said behind it, or once for all cases.
    assert headline("0.2 ± 0.1 of x_3, 5")[2] == " of x_3"
    assert headline("0.2 ± 0.1 of the 5")[2] == ""
    assert headline("share of units. inputs 0/1: 0.2 ± 0.1; inputs 1: 3")[0] == (
        "share of units: … inputs 0/1: "
    )
    long = " ".join(["word"] * 60)
    assert headline(f"{long} 2 ± 1")[0].startswith("… word")
    assert len(headline(f"{long} 2 ± 1")[0]) < 125
    assert len(headline(long)[0]) < 125


def test_the_number_of_a_card_is_that_which_decides():
    rows = [row for row in verdict_table.records() if row["class"] == "claim"]
    for said in verdict_table.DECIDING:
        own = [row for row in rows if re.search(said, row["claim"])]
        assert own
        for row in own:
            first, deciding = (verdict_table.headline(row["measured"], claim)[1]
                               for claim in ("", row["claim"]))  # fmt: skip
            assert first != deciding
    (kinks,) = [row for row in rows if "vast majority" in row["claim"]]
    assert verdict_table.headline(kinks["measured"], kinks["claim"])[1].startswith("0.769 ±")
    with pytest.raises(ValueError, match="`DECIDING`: no"):
        verdict_table.headline("nothing", kinks["claim"])


def test_what_was_measured_is_a_list_of_its_clauses():
    clauses = verdict_table.clauses
    assert clauses("a 1; b (2; 3. 4) 5. By App. B x . y; c") == [
        "a 1", "b (2; 3. 4) 5", "By App. B x . y", "c",
    ]  # fmt: skip
    assert clauses("a; criterion, of 2: less; or more. So") == [
        "a",
        "criterion, of 2: less; or more. So",
    ]
    assert verdict_table.told("a < 1; b. Criterion: c; d", "2 seeds") == (
        "<p>Measured <i>(2 seeds)</i>:</p>\n<ul><li>a &lt; 1</li>\n<li>b</li></ul>"
        "<p>Criterion: c; d</p>"
    )
    assert verdict_table.told("a; criterion: b", "size") == (
        "<p>Measured: a <i>(size)</i></p><p>Criterion: b</p>"
    )
    rows = verdict_table.records()
    letters = re.compile(r"[^\W_]+")
    for row in rows:
        found = clauses(row["measured"])
        assert letters.findall(" ".join(found)) == letters.findall(row["measured"])
        assert [part.count("(") for part in found] == [part.count(")") for part in found]
        assert not any("; " in re.sub(r"\(.*\)", "", part) for part in found[:-1])
    assert sum("<p>Criterion" in verdict_table.card(row)[1] for row in rows) > 100
    assert sum("</li>\n<li>" in verdict_table.card(row)[1] for row in rows) > 100


def test_a_card_says_what_its_verdict_goes_on_with():
    follows = verdict_table.what_follows
    assert follows("holds") == ""
    assert follows("misprint: a < b") == "<p><i>Correct:</i> a &lt; b</p>"
    rows = verdict_table.records()
    some = [row for row in rows if ": " in row["verdict"]]
    assert all(follows(row["verdict"]) in verdict_table.card(row)[0] for row in some)
    assert {row["outcome"] for row in some} == set(verdict_table.FOLLOWS)


def test_a_source_has_ten_lines_of_summary_at_most():
    rows = verdict_table.records()
    papers = {row["paper"] for row in rows if row["class"] == "claim"}
    assert verdict_table.summaries(rows).count("<ul>") == len(papers) > 3
    for paper in papers:
        told = list(verdict_table.lines(paper, rows))
        assert 1 < len(told) <= 10
        numbers = [int(re.search(r"</a> (\d+)", line)[1]) for line in told[1:]]
        assert told[0].startswith(f"<li>{sum(numbers)} claims of <a href=")


def test_cards_are_in_order_and_lead_to_papers_and_errata():
    rows = verdict_table.records()
    assert rows[0]["study"].startswith("m_")
    order = [(list(verdicts.PAPERS).index(r["paper"]), r["class"] != "claim") for r in rows]
    assert order == sorted(order)
    assert verdict_table.title("M").startswith("<i>Bias-mediated early linearization")
    assert verdict_table.headings("references.md")["M"] == "lead-paper"
    assert verdict_table.errata("M Eq. 14; erratum E11, E11a").count("#e11-the-delay") == 1
    assert "e16-and-e17" in verdict_table.errata("erratum E17")
    assert verdict_table.errata("M Eq. 14") == ""


def test_notebooks_read_well_by_themselves():
    assert notebooks.plain("a\n<!-- {walk} -->\nb").splitlines()[1].startswith("*(On the")
    text = "`fl.grid`: [the\nnext](../a.md#b) [x](https://a.org) ![p](q.png) $a[i](t)$"
    assert notebooks.plain(text) == (
        "`fl.grid`: *the next* [x](https://a.org) ![p](q.png) $a[i](t)$"
    )
    printed = [nbformat.v4.new_output("stream", text=text) for text in ("a\n", "b\n")]
    shown = nbformat.v4.new_output("display_data", data={"text/plain": "c"})
    assert notebooks.joined([*printed, shown, shown]) == [printed[0], shown, shown]
    assert printed[0].text == "a\nb\n"
    for script in sorted((DOCS / "tutorials").glob("*.py")):
        made = notebooks.portable(jupytext.read(script, fmt="py:percent"))
        nbformat.validate(made)
        texts = "\n".join(cell.source for cell in made.cells if cell.cell_type == "markdown")
        assert not re.search(r"\{py:|\]\((?!https:)[^)\s]*[.#]", texts)
        assert made.cells[0].source.startswith("# ")
        assert "%pip install" in made.cells[1].source


def test_powers_of_ten_in_tables_are_whole():
    assert [node.astext() for node in unbroken.unbroken("a 1e-4, -2.5e+06 : x1e-4")] == [
        "a ", "1e-4", ", -", "2.5e+06", " : x1e-4",
    ]  # fmt: skip


def test_pages_are_searched_by_parts():
    page = nodes.section("", nodes.title("", "Page"), ids=["page"])
    formula = nodes.paragraph("", "the time ", nodes.math("", "t^* = \\text{inf}"))
    page += [formula, nodes.literal_block("", ">>> f{x}\n... y"), nodes.raw("", "<b>a &lt; b</b>")]
    page += nodes.section("", nodes.title("", "Below"), nodes.paragraph("", "words"), ids=["below"])
    for name in ("flowlin.theory.modes", "flowlin.Task.x", "flowlin.engine.kinks.inner"):
        entry = addnodes.desc("", addnodes.desc_signature("", name, ids=[name]))
        page += entry
    found = search_index.parts(nodes.container("", page))
    assert [part.anchor for part in found] == [
        "page", "below", "flowlin.theory.modes", "flowlin.Task.x",
    ]  # fmt: skip
    assert " ".join(found[0].texts) == "the time t* = inf a < b"
    assert found[0].code == ["f{x} y"]
    assert search_index.formula_in_words(r"\frac{\tau}{2 s} \log x") == " tau / 2 s log x"
    before, _ = verdict_table.card(verdict_table.records()[0])
    page += nodes.raw("", before)
    found = search_index.parts(nodes.container("", page))
    first = verdict_table.records()[0]
    assert found[-1][:2] == (first["id"], first["source"])
    assert " ".join(first["quote"].split()[:4]) in found[-1].texts[0]
