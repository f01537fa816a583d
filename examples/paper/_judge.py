"""How verdicts are reached: one rule for each kind of claim, and the margins of each quantity.

A rule answers with True, False, or None where the numbers do not tell. Two things are "the same"
where the whole 95 % interval of their distance, its absolute value seed by seed, is within the
equivalence margin of that quantity, "apart" where all of it is beyond its difference margin
(Schuirmann 1987, two one-sided tests); what is between is undecided. One is "more" than the other
where the interval of the paired differences is above zero. Intervals of means are Student's, of
shares Wilson's (1927). Where one claim is read off several comparisons at once, `of` is their
number: every interval then has the level 1 - .05 / of (Bonferroni).
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
from scipy import stats

OUTCOMES = {
    "holds": "as it stands",
    "holds under a condition": "where the text leaves this open: in the readings that follow",
    "holds in part, refuted as stated": "not as the text says it; what holds follows",
    "refuted as stated": "and nothing of it was found to hold",
    "misprint": "wrong as printed, and the one correction that follows holds",
    "not decidable from the text": "for want of words or data that could be tested",
    "undecided": "between the margins, or too few seeds",
    "measured": "what was found, where nothing is claimed",
}
CLASSES = {
    "claim": "a sentence of a source, quoted",
    "control": "what a claim is compared with, or what was asked beside it",
    "theorem": "of a textbook, or derived here",
    "test": "of the library by itself",
}
MARGINS_TIMES = ContextVar("MARGINS_TIMES", default=1.0)


@contextlib.contextmanager
def margins_times(factor: float) -> Iterator[None]:
    """Within it all margins are wider by this factor: does a verdict move?"""
    token = MARGINS_TIMES.set(factor)
    try:
        yield
    finally:
        MARGINS_TIMES.reset(token)


@dataclasses.dataclass(frozen=True)
class Margins:
    """Of one quantity.

    - `near`: two are equivalent up to this distance.
    - `far`: they differ from this distance on.
    - `unit`: in words, such as "of L(0)".
    """

    near: float
    far: float
    unit: str

    @property
    def same(self) -> float:
        """`near`, or within `margins_times` that much wider."""
        return MARGINS_TIMES.get() * self.near

    @property
    def apart(self) -> float:
        """`far`, likewise."""
        return MARGINS_TIMES.get() * self.far

    def __str__(self) -> str:
        return f"same up to {self.same:g}, apart from {self.apart:g} {self.unit}"


# Every distance that is called close or far in this folder is one of these.
LOSSES = Margins(0.05, 0.1, "of the loss at zero weights or at the start")
EXACT = Margins(0.01, 0.05, "of the loss at zero weights, where a match is called exact")
TIMES = Margins(0.1, 0.25, "of the time that it is compared with")
MAPS = Margins(0.1, 0.2, "of the norm of the map")
LIKENESS = Margins(0.05, 0.1, "below 1 (CKA, cosine, R^2)")
COEFFICIENTS = Margins(0.05, 0.1, "of the closed form")
SHARES = Margins(0.1, 0.2, "as a share of units, samples or pairs")


def half_width(values: Any, of: int = 1) -> float:
    """Half of the 95 % confidence interval of a mean, by Student's t; nan of a single number."""
    values = np.asarray(values, float)
    if len(values) < 2:
        return np.nan
    spread = values.std(ddof=1) / np.sqrt(len(values))
    return float(stats.t.ppf(1 - 0.025 / of, len(values) - 1) * spread)


def half_widths(values: Any) -> np.ndarray:
    """The same of every column of (seeds, ...), for error bars."""
    values = np.asarray(values, float)
    return np.apply_along_axis(half_width, 0, values)


def interval(values: Any, digits: int = 3) -> str:
    """Mean and 95 % confidence interval over seeds, with their number; without one where all seeds
    agree, as counts may: then no width is known, and least of all is it zero."""
    values = np.asarray(values, float)
    if len(values) > 1 and np.ptp(values) == 0:
        return f"{values[0]:.{digits}g} in all {len(values)} seeds"
    return f"{values.mean():.{digits}g} ± {half_width(values):.2g} ({len(values)} seeds)"


def wilson(successes: int, number: int, of: int = 1) -> tuple[float, float]:
    """The 95 % interval of a share, after Wilson (1927)."""
    found = stats.binomtest(successes, number).proportion_ci(1 - 0.05 / of, "wilson")
    return float(found.low), float(found.high)


def share(found: Any, of: int = 1) -> str:
    """How many of a number of seeds, with Wilson's interval."""
    found = np.asarray(found, bool)
    low, high = wilson(int(found.sum()), len(found), of)
    return f"{found.sum()} of {len(found)} ({low:.0%} to {high:.0%})"


def sign(values: Any, of: int = 1) -> int:
    """1 or -1 where the interval of the mean is above or below zero, otherwise 0."""
    middle, half = np.mean(values), half_width(values, of)
    return int(middle > half) - int(middle < -half)


def same(distances: Any, margins: Margins, of: int = 1) -> bool | None:
    """Whether two are the same; False where they are apart.

    `distances`: by seed, of any sign. Their absolute values count: pairs that are far apart one by
    one are not the same because they are so in both directions.
    """
    distances = np.abs(np.asarray(distances, float))
    middle, half = np.mean(distances), half_width(distances, of)
    if middle + half <= margins.same:
        return True
    return False if middle - half >= margins.apart else None


def apart(distances: Any, margins: Margins, of: int = 1) -> bool | None:
    """Whether two are apart; False where they are the same."""
    found = same(distances, margins, of)
    return None if found is None else not found


def more(values: Any, than: Any = 0.0, of: int = 1) -> bool | None:
    """Whether one is more than the other, by seed, paired; False where it is less."""
    found = sign(np.asarray(values, float) - np.asarray(than, float), of)
    return None if found == 0 else found > 0


def usual(found: Any, level: float = 0.5, of: int = 1) -> bool | None:
    """Whether what is found by seed, True or False, is so in more than this share of all seeds."""
    found = np.asarray(found, bool)
    low, high = wilson(int(found.sum()), len(found), of)
    return True if low > level else False if high < level else None


def both(*found: bool | None) -> bool | None:
    """All must hold: False if one does not, else None if one is undecided."""
    return False if False in found else None if None in found else True


def verdict(found: bool | Mapping[str, bool | None] | None, *parts: tuple[str, bool | None]) -> str:
    """The outcome's words.

    - `found`: whether the claim holds; where the text leaves open how it is to be read, by reading,
      in words. It holds where all do, and under a condition where some do.
    - `parts`: weaker statements, which the text does not make, and whether they hold; looked at
      where all that it does say is refuted.
    """
    readings = found if isinstance(found, Mapping) else {"": found}
    right = [words for words, holds in readings.items() if holds]
    if len(right) == len(readings):
        return "holds"
    if right:
        return f"holds under a condition: {' or '.join(right)}"
    if None in readings.values():
        return "undecided"
    for words, holds in parts:
        if holds:
            return f"holds in part, refuted as stated: {words}"
    return "refuted as stated"
