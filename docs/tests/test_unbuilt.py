"""The pages as a visitor of the repository sees them, without a build; and what the build adds."""

import re
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
from docutils import nodes
from PIL import Image
from sphinx import addnodes

DOCS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(DOCS / "_tools"), str(DOCS / "reference")]

import gallery
import letters
import notebooks
import reference_pages
import unbuilt

TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
PAGES = [*sorted(DOCS.rglob("*.md")), *TUTORIALS]
LINE = re.compile(r"^\[`.*?`\]\((.*?)\)(.*?) <!-- \.\. (\S+):: (\S+)", re.M)
MARKS = re.compile(
    r"(?<!`)\{[a-z:]+\}`|^(?:# )?\s*(?:`{3,}|:{3,})\{.*|^\([\w-]+\)=|\]\(path:", re.M
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_has_no_marks_of_the_builder(page):
    assert MARKS.findall(page.read_text()) == []


def test_marks_are_found():
    text = "a {py:obj}`x` and `{walk}`\n```{walk}\n:::{note}\n# ```{walk}\n(place)=\n[a](path:b)\n"
    assert len(MARKS.findall(text)) == 6


def test_comments_stand_for_blocks_and_places():
    text = "a\n<!-- {pictures} docs examples -->\n# <!-- {walk} -->\n<!-- (lead-paper)= -->\n"
    assert unbuilt.with_blocks(text) == (
        "a\n```{pictures} docs examples\n```\n# ```{walk}\n# ```\n(lead-paper)=\n"
    )
    assert unbuilt.with_blocks("a <!-- {walk} --> b <!-- aside -->") == (
        "a <!-- {walk} --> b <!-- aside -->"
    )
    text = "[x](x.py): It is x. <!-- .. autoclass:: x.X :members: a, b :no-index: -->\n"
    assert unbuilt.with_blocks(text) == (
        "```{eval-rst}\n.. autoclass:: x.X\n   :members: a, b\n   :no-index:\n```\n"
    )
    text = "[x](x.py) <!-- {literalinclude} ../x.py :language: python -->\n"
    assert unbuilt.with_blocks(text) == "```{literalinclude} ../x.py\n:language: python\n```\n"


def test_what_a_block_has_in_its_place_unbuilt_is_left_out_of_the_build():
    text = "<!-- {plots} -->\n\n![a](b.png)\n\n<!-- until here -->\nend\n<!-- {walk} -->\nmore\n"
    assert unbuilt.with_blocks(text) == "```{plots}\n```\nend\n```{walk}\n```\nmore\n"


SCREEN, COLUMN = 1080, (830, 110)  # pixels; a code host's column, in pixels and in letters
FOLDED = re.compile(r"<details>.*?</details>", re.S)
TARGET = re.compile(r"\[([^]]*)\]\([^)]*\)")


def pixels(block):
    """How high a code host shows a block of Markdown, about."""
    width, letters_a_line = COLUMN
    if block.startswith("```"):
        return 48 + 19.7 * (block.count("\n") - 1)
    if block.startswith("#"):
        return 78
    if block.startswith("|"):
        return 16 + 37 * block.count("\n")
    if picture := re.match(r"!\[[^]]*\]\(([^)]*)\)", block):
        with Image.open(DOCS.parent / picture[1]) as image:
            return 16 + image.height * width / image.width
    block = re.sub(r"\$[^$]*\$", "a short formula", block)
    items = [" ".join(TARGET.sub(r"\1", item).split()) for item in re.split(r"\n(?=- )", block)]
    return 16 + sum(24 * -(-len(item) // letters_a_line) for item in items)


def test_the_readme_is_two_screens():
    text = FOLDED.sub("<details>", (DOCS.parent / "README.md").read_text())
    parts = (part.strip() for part in re.split(r"(```.*?```)|\n\s*\n", text, flags=re.S) if part)
    heights = [pixels(part) for part in parts if part]
    assert len(heights) > 15
    assert sum(heights) <= 2 * SCREEN
    assert pixels("| a |\n|---|\n| b |") == 90
    assert pixels("- [word](a.md)\n- " + "word " * 23) == 16 + 3 * 24


def test_the_gallery_shows_all_pictures_unbuilt():
    """`python docs/_tools/gallery.py` brings it up to date."""
    text = (DOCS / "gallery.md").read_text()
    assert text == gallery.in_plain_markdown(text)
    shown = re.findall(r"^!\[[\w-]+\]\((\S+)\)$", text, re.M)
    assert {(DOCS / path).resolve() for path in shown} == {
        picture for picture in letters.pictures() if "docs/_static" not in picture.as_posix()
    } | set(gallery.PLOTS.glob("*.png"))
    captions = re.findall(r"^!\[.*\)\n\n(\S.*) \[`[\w.]+`\]\((\S+)\)$", text, re.M)
    assert len(captions) == len(shown) == len(set(shown))
    assert all((DOCS / maker).is_file() for _, maker in captions)
    built = unbuilt.with_blocks(text)
    assert "![" not in built
    assert built.count("```{p") == 6


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=lambda p: p.stem)
def test_names_lead_to_their_sources_and_say_what_they_are(page):
    text = page.read_text()
    told = dict(reference_pages.names_of(text))
    assert len(LINE.findall(text)) == len(re.findall(r"\.\. \w+:?\w*:: ", text))  # each has a line
    for path, sentence, kind, name in LINE.findall(text):
        assert (page.parent / path).is_file(), path
        assert sentence == (f": {told[name]}" if name in told and kind != "py:data" else "")
        if kind == "automodule":
            assert name.split(".") == list(Path(path).with_suffix("").parts[2:])
        elif kind != "py:data":
            assert re.search(
                rf"(class|def) {name.split('.')[-1]}\b", (page.parent / path).read_text()
            )


@pytest.mark.parametrize("index", sorted(DOCS.glob("**/index.md")), ids=lambda p: p.parent.name)
def test_a_folders_first_page_links_to_all_of_it(index):
    """So the lists that a visitor reads are the site's table of contents."""
    beside = [*index.parent.glob("*.md"), *index.parent.glob("[0-9]*.py")]
    pages = {path.stem for path in beside} - {"index", "README"}
    if index.parent == DOCS:
        pages |= {f"{path.parent.name}/index" for path in DOCS.glob("*/index.md")}
    assert set(unbuilt.contents(index.read_text())) == pages


def test_the_first_use_of_a_name_leads_to_the_reference():
    page = nodes.section("", nodes.title("", "", nodes.literal("", "fl.RKC")))
    words = ("fl.RKC(tol=1)", "fl.RKC", "fl.nothing", "RKC", "fl.theory.modes", "fl.Trajectory")
    page += nodes.paragraph("", "", *(nodes.literal("", word) for word in words))
    page += nodes.paragraph("", "", nodes.reference("", "", nodes.literal("", "fl.sweep")))
    page += addnodes.desc("", nodes.paragraph("", "", nodes.literal("", "fl.grid")))
    before = page.astext()
    unbuilt.link_names(page, "page")
    assert page.astext() == before
    links = [(x.astext(), x["reftarget"]) for x in page.findall(addnodes.pending_xref)]
    assert links == [
        ("fl.RKC(tol=1)", "flowlin.RKC"),
        ("fl.theory.modes", "flowlin.theory.modes"),
        ("fl.Trajectory", "flowlin.Trajectory"),
    ]


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda path: path.stem)
def test_a_notebook_is_its_tutorial_with_what_it_computed(script):
    """`python docs/_tools/notebooks.py` brings it up to date."""
    file = DOCS / "notebooks" / f"{script.stem}.ipynb"
    kept = nbformat.read(file, as_version=4)
    nbformat.validate(kept)
    now = notebooks.portable(jupytext.read(script, fmt="py:percent"))
    assert [(c.cell_type, c.source) for c in kept.cells] == [
        (c.cell_type, c.source) for c in now.cells
    ]
    assert file.stat().st_size < 1_000_000
    for cell in kept.cells:
        if cell.cell_type == "code" and cell.source != notebooks.INSTALL:
            kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
            assert cell.execution_count
            assert "error" not in {output.output_type for output in cell.outputs}
            assert ("image/png" in kinds) == ("plt.show()" in cell.source)
            assert "image/svg+xml" not in kinds
            if "print(" in cell.source:
                assert "stream" in {output.output_type for output in cell.outputs}


def test_code_that_was_never_run_is_told(tmp_path):
    script = tmp_path / "9-new.py"
    script.write_text("# %% [markdown]\n# # A title\n\n# %%\nprint(1)\n")
    with pytest.raises(ValueError, match=r"9-new\.py has code that no build ran"):
        notebooks.with_outputs(script)


def test_the_changelog_is_sorted_in_lines():
    text = (DOCS.parent / "CHANGELOG.md").read_text()
    latest, *older = re.split(r"^## .*\n", text, flags=re.M)[1:]
    assert re.findall(r"^### (.*)", latest, re.M) == ["Breaking", "Added", "Fixed"]
    for version in (latest, *older):
        lines = [line for line in version.splitlines() if line and line[0] != "#"]
        assert [line for line in lines if not line.startswith("- ") or len(line) > 150] == []
    assert re.match(r"\s*### Breaking", latest)
