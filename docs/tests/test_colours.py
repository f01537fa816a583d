"""Colours of verdicts' cards and of the figure that moves stand out, in the light and in the dark.

What a colour variable is, is read in the theme's style sheet and then in the site's own.
"""

import pathlib
import re
import sys

import furo
import pytest

DOCS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(DOCS.parent / "examples" / "paper")]

import _judge

OWN = (DOCS / "_static/flowlin.css").read_text()
THEME = next(pathlib.Path(furo.__file__).parent.rglob("furo.css")).read_text()
GROUND = "--color-background-secondary"  # of the cards
TEXT, LINE = 4.5, 3.0  # the least contrasts that WCAG 2.1, level AA, asks for
TEXTS = ("--color-foreground-primary", "--color-foreground-secondary", "--color-brand-content")
RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
# Only these have a colour of their own.
OUTCOME = re.compile(r'article\.verdict\[data-verdict="([^"]+)"\] \{ --verdict: ([^;]+); \}')


def variables(sheet, dark):
    """The variables of a style sheet in one of the two looks."""
    found = {}
    for selector, body in RULE.findall(sheet):
        looks = re.search(r"\[data-theme=\"?dark\"?\]", selector)
        own = "data-verdict" in selector
        if not own and "not(" not in selector and (dark or not looks):
            found |= dict(re.findall(r"(--[\w-]+): ?([^;]+)", body))
    return found


def colour(value, known):
    """The colour that a value is, through variables."""
    name = re.fullmatch(r"var\((--[\w-]+)\)", value)
    return colour(known[name[1]], known) if name else value


def luminance(value):
    """Of a colour in hexadecimal digits, as WCAG defines it."""
    digits = value.lstrip("#")
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """From 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_definition():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#fff") == pytest.approx(4.54, abs=0.005)
    assert contrast("#d9a400", "#f8f9fb") < LINE  # the rule can fail


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_cards_of_verdicts_stand_out(dark):
    known = variables(THEME, dark) | variables(OWN, dark)
    ground = colour(known[GROUND], known)
    assert (luminance(ground) < 0.1) == dark
    badges = dict(OUTCOME.findall(OWN))
    assert set(badges) < set(_judge.OUTCOMES)
    badges["others"] = known["--verdict"]
    for outcome, value in badges.items():
        assert contrast(colour(value, known), ground) >= TEXT > LINE, outcome
    for name in TEXTS:
        assert contrast(colour(known[name], known), ground) >= TEXT, name


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_lines_of_the_figure_that_moves_stand_out(dark):
    known = variables(THEME, dark) | variables(OWN, dark)
    ground = colour(known["--color-background-primary"], known)
    for name in ("--on", "--sliding", "--flow", "--descent"):
        assert contrast(colour(known[name], known), ground) >= LINE, name


def test_both_ways_into_the_dark_have_the_same_colours():
    """By the reader's choice on the page, and by that of the system."""
    rules = RULE.findall(OWN)
    chosen = [body.split() for selector, body in rules if 'data-theme="dark"' in selector]
    asked = [body.split() for selector, body in rules if "body:not(" in selector]
    assert chosen == asked
    assert len(chosen) == 2
