"""Figures are legible at the width at which pages show them, and have four panels at most.

`docs/_tools/letters.py` says how small letters are, and how many panels there are.
"""

import dataclasses
import json
import pathlib
import sys

import matplotlib.text
import pytest
from matplotlib import pyplot as plt
from PIL import Image

import flowlin as fl

DOCS = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = DOCS.parent / "examples"
STUDIES, IMAGES = EXAMPLES / "studies", EXAMPLES / "results"
sys.path[:0] = [str(DOCS / "_tools"), str(DOCS / "_figures"), str(STUDIES), str(EXAMPLES)]

import _studies
import half_gate_depth
import images_full
import letters
import speed

LEAST, MOST = 8.0, 4  # CSS pixels, panels
PICTURES = list(letters.pictures())


# Panels, as counted in the picture, where the data say how many.
COUNTED = {"m_fig9": 3, "stochastic_spread": 3}


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_letters_are_legible_and_panels_few(picture):
    pixels = round(letters.pixels(picture), 1)
    assert pixels >= LEAST, f"letters of {pixels} px: draw larger ones, or a narrower figure"
    panels = COUNTED.get(picture.stem, letters.panels(picture))
    assert panels <= MOST, f"{panels} panels: draw two pictures, each named after what it shows"


def test_panels_are_said_in_numbers_or_counted():
    assert {p.stem for p in PICTURES if letters.has_other_grids(p)} == set(COUNTED)


def test_sizes_are_read_in_scripts():
    assert letters.points('ax.legend(fontsize="x-small"); ax.text(fontsize=8)') == 6.94
    assert letters.points('{"labelsize": 7}; ax.legend(fontsize="small")') == 7
    assert letters.points("ax.set_title(words, fontsize=12)") == letters.TICKS
    assert letters.points("fl.plot.losses(flow)") == 8.33
    assert letters.points("with fl.plot.style(): fl.plot.pathways(run)") == 8.33
    assert letters.points("with fl.plot.style(): fl.plot.lifetimes(reading)") == 7


@pytest.mark.parametrize("name", speed.FIGURES)
def test_what_is_read_is_what_is_drawn(name):
    """The letters of a figure that is drawn here are no smaller than its script is read to say."""
    with fl.plot.style():
        figure = speed.FIGURES[name][0]()
    figure.draw_without_rendering()
    drawn = [
        text.get_fontsize()
        for text in figure.findobj(matplotlib.text.Text)
        if text.get_text().strip() and text.get_visible()
    ]
    picture = speed.STATIC / f"{name}.png"
    assert min(drawn) >= letters.points(letters.drawing(letters.script(picture)))
    assert len(figure.axes) <= MOST
    with Image.open(picture) as image:  # drawn at this size
        assert image.width == pytest.approx(figure.get_figwidth() * 150, abs=1)
    plt.close(figure)


@pytest.mark.parametrize("path", sorted(IMAGES.glob("images_full_*.json")), ids=lambda p: p.stem)
def test_flows_on_all_images_are_drawn_from_their_numbers(path):
    """`--redraw`: the committed picture has this size, and a point for each mode."""
    found = json.loads(path.read_text())
    figure = images_full.draw(found)
    flow = next(line for line in figure.axes[1].lines if line.get_label() == "flow")
    learned = [t for t, s in zip(found["flow"]["mode hits"], found["s"], strict=True) if s > 1e-6]
    assert list(flow.get_xdata()) == learned
    with Image.open(path.with_suffix(".png")) as image:
        assert image.width == pytest.approx(figure.get_figwidth() * 150, abs=1)
    plt.close(figure)


def test_a_study_is_read_back_as_it_was_computed():
    """What `--redraw` draws is what the JSON holds, to the letter."""
    data = _studies.committed("half_gate_depth", half_gate_depth.Data)
    assert isinstance(data.size, half_gate_depth.Size)
    text = json.dumps(dataclasses.asdict(data), default=lambda value: value.tolist())
    held = json.loads((STUDIES / "results/half_gate_depth.json").read_text())
    del held["findings"]
    assert text == json.dumps(held)
    assert _studies.rebuild(dict[float, list[int]], {"0.5": [1]}) == {0.5: [1]}
    assert _studies.rebuild(tuple[int, ...] | None, [1, 2]) == (1, 2)
    assert _studies.rebuild(tuple[int, ...] | None, None) is None
