"""What the errata share: sizes, findings, errors, differences."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from _judge import verdict
from _paper import Row
from _tree import PAPER, Setting

EXACT = 1e-6  # relative error up to which a formula is right, unless it is an approximation


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: random draws, seeds of flows, time at which early laws are looked at, runs'."""

    draws: int = 100
    seeds: int = 20
    early: int = 15  # index into the saved times
    setting: Setting = PAPER


@dataclasses.dataclass(frozen=True)
class Finding:
    """A printed form's error and the right form's, and where the printed form is right too.

    - `erratum`: number in the list of errata, and a word.
    - `claim`, `source`, `measured`, `quote`, `kind`: as in `Row`.
    - `printed`, `right`: errors; `right` is None where nothing is put in the claim's place.
    - `condition`: what makes the printed form right, and its error then. A weaker statement than
      the text's, or, where it is `left_open` by the text, a way to read it.
    - `enough`: error up to which a form counts as right.
    - `correction`: the right form in words, where there is only one; with it what is wrong as
      printed is a misprint.
    - `found`: what the numbers show in words, where nothing is claimed.
    - `formula`: whether the errors are a formula's relative ones, to be drawn, and added to
      `measured`.
    """

    erratum: str
    claim: str
    source: str
    measured: str
    printed: float
    right: float | None = None
    condition: tuple[str, float] | None = None
    left_open: bool = False
    enough: float = EXACT
    correction: str = ""
    found: str = ""
    quote: str = ""
    kind: str = "claim"
    formula: bool = True

    @property
    def row(self) -> Row:
        """What was found, as a row of the table."""
        measured = f"{self.measured}: {self._errors}" if self.formula else self.measured
        return Row(self.claim, self.source, measured, self._verdict, self.quote, self.kind)

    @property
    def _errors(self) -> str:
        parts = [f"error as printed {self.printed:.2g}"]
        parts += [] if self.right is None else [f"right form {self.right:.2g}"]
        if self.condition is not None:
            parts.append(f"as printed with {self.condition[0]} {self.condition[1]:.2g}")
        return ", ".join(parts)

    @property
    def _verdict(self) -> str:
        if self.found:
            return f"measured: {self.found}"
        holds = self.printed <= self.enough
        mended = self.right is not None and self.right <= self.enough
        if self.correction and mended and not holds:
            return f"misprint: {self.correction}"
        if self.condition is None:
            return verdict(holds)
        words, error = self.condition
        if self.left_open:
            return verdict({"in general": holds, words: error <= self.enough})
        return verdict(holds, (words, error <= self.enough))


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
