"""Where networks become linear: the boundary in c, measured and derived."""

from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, stats

import flowlin as fl

PART = 0.25  # of all units: half of those that grow, since the others are turned off


def crossing(strengths: Any, fractions: np.ndarray) -> float:
    """The c at which the mean over seeds of the fractions (C, seeds) first rises to `PART`.

    Between two c by the logarithm; NaN where it is there from the first c, or never.
    """
    mean = np.mean(fractions, axis=1)
    above = np.flatnonzero(mean >= PART)
    if not len(above) or above[0] == 0:
        return float("nan")
    k, logs = int(above[0]), np.log(strengths)
    share = (PART - mean[k - 1]) / (mean[k] - mean[k - 1])
    return float(np.exp(logs[k - 1] + share * (logs[k] - logs[k - 1])))


class Boundary(NamedTuple):
    """c* of one width and variance, with its 95 % interval over seeds, and what is derived."""

    width: int
    variance: float
    c: float
    low: float
    high: float
    derived: float


def derived(task: fl.Task, width: int, variance: float) -> float:
    r"""c* by the argument of `linearization_phase.py`: the c at which $c\, b = z \sqrt v$."""
    mean_x, mean_y = (float(np.linalg.norm(rows.mean(axis=0))) for rows in (task.x, task.y))
    z = stats.norm.ppf(2.0 ** (-1 / task.samples))  # median of the largest of P normal numbers
    start = z * np.sqrt(variance * width / (2 * mean_y))
    found = optimize.brentq(lambda c: c**2 * (c**2 + mean_x**2) ** -0.75 - start, 1e-9, 1e3)
    return float(np.asarray(found))


def exponents(rows: list[Boundary]) -> np.ndarray:
    """Of variance and width in c*, by least squares of logarithms."""
    fine = [row for row in rows if np.isfinite(row.c)]
    logs = np.log([[row.variance, row.width, np.e] for row in fine])
    return np.linalg.lstsq(logs, np.log([row.c for row in fine]), rcond=None)[0][:2]


def factor(rows: list[Boundary]) -> tuple[float, float]:
    """Geometric mean of measured over derived, and its standard deviation as a factor."""
    logs = np.array([np.log(row.c / row.derived) for row in rows if np.isfinite(row.c)])
    return float(np.exp(logs.mean())), float(np.exp(logs.std(ddof=1))) if len(logs) > 1 else 1.0
