"""What the studies share: the command line, intervals, saving. Switches JAX to float64."""

import argparse
import json
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import matplotlib
import numpy as np

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)

from matplotlib.figure import Figure

import flowlin as fl

RESULTS = pathlib.Path(__file__).parent / "results"
TABLES = pathlib.Path("figures")  # of runs, which go on where they were


def options(doc: str | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=40, help="of every point of the grid")
    parser.add_argument("--workers", type=int, help="threads; None is one per core")
    parser.add_argument("--quick", action="store_true", help="seconds, for tests")
    parser.add_argument("--out", type=pathlib.Path, help="folder; default figures, or results here")
    warnings.simplefilter("ignore", fl.LinearizationWarning)
    warnings.filterwarnings("ignore", "All-NaN slice")  # what is nowhere linear has no time
    return parser.parse_args()


def table(name: str, quick: bool) -> pathlib.Path | None:
    """The file of a study's runs; none of a quick one."""
    if quick:
        return None
    TABLES.mkdir(exist_ok=True)
    return TABLES / f"{name}.csv"


def bootstrap(
    statistic: Callable[[np.ndarray], Any], rows: np.ndarray, times: int = 1000
) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % interval of a statistic of rows (R, ...) that are drawn anew with replacement."""
    rng = np.random.default_rng(0)
    draws = [statistic(rows[rng.integers(len(rows), size=len(rows))]) for _ in range(times)]
    low, high = np.nanquantile(np.array(draws), [0.025, 0.975], axis=0)
    return low, high


def save(name: str, numbers: dict[str, Any], figure: Figure, given: argparse.Namespace) -> None:
    """Numbers, which are printed too, and the figure."""
    text = json.dumps(numbers, indent=1, default=float)
    print(text)
    out = given.out or (TABLES / "studies" if given.quick else RESULTS)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(text + "\n")
    figure.savefig(out / f"{name}.png", dpi=110)
