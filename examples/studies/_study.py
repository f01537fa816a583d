"""What the scripts of this folder share: command line, results. Switches JAX to float64."""

import argparse
import dataclasses
import json
import pathlib
import sys
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
        parser = argparse.ArgumentParser(
            description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--quick", action="store_true", help="about a minute, for tests")
        parser.add_argument(
            "--out", type=pathlib.Path, help="folder; default figures/studies, or results here"
        )
        given = parser.parse_args()
        out = given.out or (pathlib.Path("figures/studies") if given.quick else RESULTS)
        out.mkdir(parents=True, exist_ok=True)
        data = self.compute(self.quick if given.quick else self.default)
        lines = self.findings(data)
        record = {"findings": lines} | dataclasses.asdict(data)
        text = json.dumps(record, default=lambda value: np.asarray(value).tolist())
        (out / f"{self.name}.json").write_text(text + "\n")
        with fl.plot.style():
            self.draw(data).savefig(out / f"{self.name}.png", dpi=150)
        print("\n".join(lines))
        sys.stdout.flush()
