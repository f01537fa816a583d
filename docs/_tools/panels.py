"""The panels of the papers' figures that the cards of claims show, cut out of the pictures.

`FIGURES` says how a figure's panels are arranged and which of them show what; panels are numbered
row by row from 1. Where exactly they lie is read off the picture: between them it is white.
"""

import itertools
import pathlib
import re
from typing import NamedTuple

import numpy as np
from PIL import Image

WHITE = 250  # of 255: all channels of a pixel without ink are at least as light
MARGIN = 8  # pixels of white around a panel
NEAR = 0.14  # a gap is looked for within this part of the picture beside where it is expected
NARROWEST = 6  # pixels of a gap: where there is none, panels overlap

Panels = tuple[int, ...]  # none: the whole picture
Box = tuple[int, int, int, int]  # left, upper, right, lower


class Figure(NamedTuple):
    """How a figure's panels are arranged.

    - `shows`: what a row's source and claim say, and the panels that show it; the first that fits.
    - `top`, `bottom`: the parts of the height between which panels lie.
    - `keyed`: panels that need the legend below `bottom`.
    - `middle`: where the first gap between rows is expected.
    """

    rows: int
    columns: int
    shows: dict[str, Panels]
    top: float = 0.0
    bottom: float = 1.0
    keyed: Panels = ()
    middle: float = 0.5


FIGURES = {
    "b_bias_after_relu": Figure(2, 2, {
        "learn fast": (1,), "gradient flow": (4,), "final loss|eliminated": (3,), "": (2,),
    }),
    "c_1_svd": Figure(2, 2, {
        "Depth changes|closed-form trajectories": (2,), "small random starts": (4,), "": (1,),
    }),
    "c_2_hierarchy": Figure(2, 2, {
        "equal starts|weaker": (4,), "order sure": (3,), "hitting times|holds closely": (2,),
        "": (1,),
    }),
    "c_3_low_rank": Figure(2, 2, {
        "helps|early stopping|test error": (4,), "further layer": (3,), "": (1,),
    }),
    "c_4_race": Figure(2, 2, {"head start": (3,), "": (1,)}),
    "c_4_race_pairs": Figure(1, 2, {"never trained": (2,), "": (1,)}),
    "c_5_gates": Figure(1, 3, {"never seen": (2,), "many gates": (3,), "": (1,)}),
    "c_6_rectified_bias": Figure(1, 2, {"offset XOR": (1,), "": (2,)}),
    "c_6_rectified_pathways": Figure(1, 2, {"How many": (1,), "": (2,)}),
    "c_7_learning_coefficient": Figure(1, 3, {"flows from": (3,), "": (2,)}),
    "c_8_disentanglement": Figure(1, 2, {"rotations": (2,), "": (1,)}),
    "l_effective_weights": Figure(1, 2, {"": (1,)}),
    "m_eq13_14": Figure(1, 3, {r"Eq\. 13": (1,), "": (2,)}, bottom=0.9, keyed=(2,)),
    "m_fig1": Figure(2, 2, {
        "Rank and test|Early linear": (3, 4), r"Fig\. 1B": (3,), r"Fig\. 1C": (4,),
        "Without bias": (1, 2), "": (1,),
    }, top=0.06, middle=0.54),
    "m_fig10": Figure(2, 2, {
        "always-on": (3,), "gating|dead|small subset": (3, 4), "": (1,),
    }),
    "m_fig11_delta": Figure(1, 2, {"": (2,)}),
    "m_fig12": Figure(1, 2, {"majority": (2,), "": (1,)}, bottom=0.91, keyed=(2,)),
    "m_fig1_flow": Figure(1, 2, {"": (1,)}, top=0.055),
    "m_fig2": Figure(2, 2, {
        "XOR the match breaks": (4,), "XOR": (3,), "Without bias": (2,), "": (1,),
    }),
    "m_fig2_separation": Figure(2, 2, {"Without bias": (4,), "": (3,)}, bottom=0.93, keyed=(3, 4)),
    "m_fig2_stages": Figure(1, 3, {"learn in stages": (2,), "": (1,)}),
    "m_fig3": Figure(2, 2, {
        r"Fig\. 3A": (1,), r"Fig\. 3B": (2,), r"Fig\. 3D": (4,), "": (3,),
    }),
    "m_fig4": Figure(1, 3, {"gated linear": (3,), "": (1, 2)}, bottom=0.885, keyed=(1, 2)),
    "m_fig5": Figure(1, 3, {"margin": (1,), "": (2,)}),
    "m_fig6": Figure(2, 2, {
        "lead of s|regression|explains": (4,), "Without bias|and without": (1, 2), "": (1,),
    }, top=0.036),
    "m_fig6_codes": Figure(1, 2, {
        "dimensions|lower rank": (1,), "": (1, 2),
    }, bottom=0.93, keyed=(1, 2)),
    "m_fig7_descent": Figure(1, 2, {"": (1,)}, top=0.05),
    "m_fig9": Figure(1, 3, {"XOR": (), "in stages": (1, 2), "": (1,)}),
    "m_prop1": Figure(1, 3, {"first singular|learned first": (), "": (1,)}),
    "m_sec5": Figure(2, 2, {
        "silent alignment|balanced": (1,), "biases|bias of a unit": (2,), "": (3,),
    }, bottom=0.96, keyed=(3,)),
    "w_fig4": Figure(2, 2, {"without it they diverge": (1, 2), "": (1,)}, top=0.062),
    "w_fig4_width": Figure(2, 2, {"": (1,)}, top=0.035),
}  # fmt: skip


def panels_of(picture: str, words: str) -> Panels:
    """Return the panels of a picture that show what a row's source and claim say."""
    shows = FIGURES[picture].shows if picture in FIGURES else {"": ()}
    return next(panels for pattern, panels in shows.items() if re.search(pattern, words))


def crop(path: pathlib.Path, panels: Panels) -> Image.Image:
    """Cut panels of one row out of a figure, with its legend below where they need it.

    **Raises:** ValueError where panels of the picture overlap, so that a cut would go through ink.
    """
    figure, whole = FIGURES[path.stem], Image.open(path).convert("RGB")
    boxes = panel_boxes(whole, figure)
    own = [boxes[number - 1] for number in panels]
    parts = [_extent(own)]
    if set(panels) & set(figure.keyed):
        below = Image.new("RGB", whole.size, "white")
        start = round(figure.bottom * whole.height)
        below.paste(whole.crop((0, start, *whole.size)), (0, start))
        parts.append(_inked(_ink(below), (0, start, *whole.size)))
    cut = [whole.crop((x - MARGIN, y - MARGIN, r + MARGIN, b + MARGIN)) for x, y, r, b in parts]
    clean = [_with_white_margin(one) for one in cut]
    sheet = Image.new(
        "RGB", (max(one.width for one in clean), sum(one.height for one in clean)), "white"
    )
    heights = itertools.accumulate((one.height for one in clean), initial=0)
    for one, height in zip(clean, heights, strict=False):
        sheet.paste(one, ((sheet.width - one.width) // 2, height))
    return sheet


def panel_boxes(whole: Image.Image, figure: Figure) -> list[Box]:
    """Return the box of ink of every panel, row by row."""
    top, bottom = round(figure.top * whole.height), round(figure.bottom * whole.height)
    ink = _ink(whole)[top:bottom]
    expected = [k / figure.columns for k in range(1, figure.columns)]
    columns = itertools.pairwise(_gaps(np.any(ink, axis=0), expected, True))
    found = []
    for left, right in columns:
        lines = np.any(ink[:, left:right], axis=1)
        rows = itertools.pairwise(_gaps(lines, [figure.middle] * (figure.rows - 1), False))
        found.append([_inked(ink, (left, y, right, b)) for y, b in rows])
    return [
        (x, y + top, r, b + top)
        for row in zip(*found, strict=True) for x, y, r, b in row
    ]  # fmt: skip


def _ink(picture: Image.Image) -> np.ndarray:
    """Return where pixels are not white."""
    return np.any(np.asarray(picture) < WHITE, axis=2)


def _gaps(lines: np.ndarray, expected: list[float], first_gap: bool) -> list[int]:
    """Return the ends of the lines, and in between the middles of gaps near the expected places.

    Of several the first: behind a panel on the right its neighbour's label follows, and then the
    gap between that and the ticks. Or the widest.
    """
    first, last = np.flatnonzero(lines)[[0, -1]]
    length, found = last - first, [0]
    for part in expected:
        low, high = (round(first + length * (part + sign * NEAR)) for sign in (-1, 1))
        runs = [
            (len(run), run[len(run) // 2])
            for empty, group in itertools.groupby(range(low, high), lambda k: not lines[k])
            if empty and (run := list(group))
        ]
        wide = [run for run in runs if run[0] >= NARROWEST]
        if not wide:
            raise ValueError(f"no gap between panels near {part:.2f} of the picture")
        found.append(wide[0][1] if first_gap else max(wide)[1])
    return [*found, lines.size]


def _inked(ink: np.ndarray, box: Box) -> Box:
    """Return the smallest box around the ink within a box."""
    x, y, right, bottom = box
    inside = ink[y:bottom, x:right]
    ys, xs = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
    return x + int(xs[0]), y + int(ys[0]), x + int(xs[-1]) + 1, y + int(ys[-1]) + 1


def _extent(boxes: list[Box]) -> Box:
    """Return the smallest box around boxes."""
    x, y, right, bottom = zip(*boxes, strict=True)
    return min(x), min(y), max(right), max(bottom)


def _with_white_margin(cut: Image.Image) -> Image.Image:
    """Return a cut with its margin white, into which other panels may have reached."""
    inside = cut.crop((MARGIN, MARGIN, cut.width - MARGIN, cut.height - MARGIN))
    sheet = Image.new("RGB", cut.size, "white")
    sheet.paste(inside, (MARGIN, MARGIN))
    return sheet
