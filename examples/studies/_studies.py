"""What the studies share: the command line, intervals, saving. Switches JAX to float64."""

import argparse
import dataclasses
import json
import pathlib
import sys
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

# Intervals and rules are those of the verdicts.
sys.path.append(str(pathlib.Path(__file__).parents[1] / "paper"))

from _judge import half_widths as half_widths
from _judge import share as share

RESULTS = pathlib.Path(__file__).parent / "results"
TABLES = pathlib.Path("figures")  # of runs, which go on where they were


def command(doc: str | None) -> argparse.ArgumentParser:
    """What every study's command line has."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about a minute, for tests")
    parser.add_argument("--out", type=pathlib.Path, help="folder; default figures, or results here")
    warnings.simplefilter("ignore", fl.LinearizationWarning)
    return parser


def options(doc: str | None) -> argparse.Namespace:
    """The command line of a sweep."""
    parser = command(doc)
    parser.add_argument("--seeds", type=int, default=40, help="of every point of the grid")
    parser.add_argument("--workers", type=int, help="threads; None is one per core")
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
    """Numbers and figure."""
    text = json.dumps(numbers, indent=1, default=lambda value: np.asarray(value).tolist())
    out = given.out or (TABLES / "studies" if given.quick else RESULTS)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(text + "\n")
    figure.savefig(out / f"{name}.png", dpi=130)


def sweeps(
    name: str,
    doc: str | None,
    compute: Callable[[argparse.Namespace], Any],
    numbers: Callable[[Any], dict[str, Any]],
    draw: Callable[[Any], Figure],
) -> None:
    """The command line of a study of sweeps: runs, draws, saves, prints the numbers."""
    given = options(doc)
    data = compute(given)
    with fl.plot.style():
        figure = draw(data)
    found = numbers(data)
    save(name, found, figure, given)
    print(json.dumps(found, indent=1, default=float))


@dataclasses.dataclass(frozen=True)
class Study:
    """A question that exact events answer.

    - `name`: the script's stem; figure and numbers are saved under it.
    - `quick`, `default`: sizes, for tests and as committed.
    - `compute`: size -> data, a dataclass of what JSON can hold once arrays are lists.
    - `findings`: data -> what was found, in sentences with their numbers.
    - `draw`: data -> the figure.
    """

    name: str
    quick: Any
    default: Any
    compute: Callable[[Any], Any]
    findings: Callable[[Any], list[str]]
    draw: Callable[[Any], Figure]

    def main(self, doc: str | None) -> None:
        """The command line."""
        given = command(doc).parse_args()
        data = self.compute(self.quick if given.quick else self.default)
        lines = self.findings(data)
        with fl.plot.style():
            figure = self.draw(data)
        save(self.name, {"findings": lines} | dataclasses.asdict(data), figure, given)
        print("\n".join(lines))
