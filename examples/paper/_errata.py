"""What the errata share: sizes, findings, errors, differences."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from _paper import Row
from _tree import PAPER, Setting

EXACT = 1e-6  # relative error up to which a formula is right, unless it is an approximation


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: random draws, seeds of flows, time at which early laws are looked at, runs'."""

    draws: int = 100
    seeds: int = 3
    early: int = 15  # index into the saved times
    setting: Setting = PAPER


@dataclasses.dataclass(frozen=True)
class Finding:
    """A printed form's error and the right form's, and where the printed form is right too.

    - `erratum`: number in the list of errata, and a word.
    - `claim`, `source`, `measured`: as in `Row`; the errors are added to `measured`.
    - `printed`, `right`: errors; `right` is None where nothing is put in the claim's place.
    - `condition`: what makes the printed form right, and its error then.
    - `enough`: error up to which a form counts as right.
    - `correction`: the right form in words; with it what is wrong as printed is a misprint.
    - `control`: what the numbers show where no paper makes the claim.
    - `formula`: whether the errors are a formula's relative ones, to be drawn.
    """

    erratum: str
    claim: str
    source: str
    measured: str
    printed: float
    right: float | None = None
    condition: tuple[str, float] | None = None
    enough: float = EXACT
    correction: str = ""
    control: str = ""
    formula: bool = True

    @property
    def row(self) -> Row:
        """The verdict."""
        first, second = (
            ("relative distance", "") if self.control else ("error as printed", "right form ")
        )
        text = f"{first} {self.printed:.2g}"
        text += "" if self.right is None else f", {second}{self.right:.2g}"
        verdict = "does not hold"
        if self.condition is not None:
            text += f"; printed form with {self.condition[0]}: {self.condition[1]:.2g}"
        if self.control:
            verdict = f"control: {self.control}"
        elif self.printed <= self.enough:
            verdict = "holds"
        elif self.correction and self.right is not None and self.right <= self.enough:
            verdict = f"misprint: {self.correction}"
        elif self.condition is not None and self.condition[1] <= self.enough:
            verdict = f"holds under a condition: {self.condition[0]}"
        return Row(self.claim, self.source, f"{self.measured}: {text}", verdict)


def off(found: Any, reference: Any) -> float:
    """Relative distance of two arrays; 1 where it is undefined."""
    found, reference = np.asarray(found), np.asarray(reference)
    value = np.linalg.norm(found - reference) / np.linalg.norm(reference)
    return float(value) if np.isfinite(value) else 1.0


def slope(value: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """Gradient by central differences of fourth order."""
    found = np.empty_like(at)
    for index in np.ndindex(at.shape):
        shift = np.zeros_like(at)
        shift[index] = step
        near, far = (value(at + k * shift) - value(at - k * shift) for k in (1, 2))
        found[index] = (8 * near - far) / (12 * step)
    return found
