"""What the scripts of this folder share: sizes, verdicts, saving. Switches JAX to float64.

"M" is the lead paper, "W" its workshop version, "C" the curriculum on deep linear networks, "B" the
paper on the bias after ReLU, "L" the one on effective weights. Errata are
numbered B.1 to B.19: effective rank, learning rules, rate of a mode, tau, augmentation by c,
Proposition 1, zero modes, early law, dead units, condition of Eq. 13, delay, gated modes, t*, start
at t*, variance explained and labels, cross-references, workshop version, effective weights, B, C.
"""

import argparse
import dataclasses
import io
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from _judge import CLASSES
from matplotlib.figure import Figure
from PIL import Image

jax.config.update("jax_enable_x64", True)

import flowlin as fl

# How every figure marks networks without bias; the colour is that of the kind of network.
WITHOUT = {"linestyle": "--", "markerfacecolor": "white"}
WITHOUT_BAR = {"hatch": "////", "fill": False}
RESULTS = pathlib.Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True)
class Row:
    """A claim and what became of it.

    - `claim`: what the paper says, in a sentence.
    - `source`: where, such as "M Fig. 3C".
    - `measured`: the numbers, with interval, seeds and size.
    - `verdict`: one of `CLASSES`; for a condition, a misprint or a control followed by ": " and
      the condition, the correction that holds, or what it shows.
    """

    claim: str
    source: str
    measured: str
    verdict: str

    def __post_init__(self) -> None:
        if self.kind not in CLASSES:
            raise ValueError(
                f"`verdict` must start with one of {tuple(CLASSES)}, got {self.verdict!r}."
            )

    @property
    def kind(self) -> str:
        """The verdict's class: one of `CLASSES`."""
        return self.verdict.split(":")[0]

    @property
    def record(self) -> dict[str, str]:
        """As it is saved."""
        return dataclasses.asdict(self) | {"class": self.kind}


@dataclasses.dataclass(frozen=True)
class Study:
    """An experiment of the papers: what is run, drawn and found.

    - `name`: the script's stem; figure and numbers are saved under it.
    - `sizes`: for "quick" (seconds, for tests), "default" (minutes on two cores) and "full" (the
      paper's size, or "default" again where that is the paper's).
    - `compute`: size -> data. The only slow part.
    - `draw`: data -> the figure; called within `fl.plot.style()`.
    - `numbers`: data -> what the figure shows in numbers, a dictionary that JSON can hold.
    - `judge`: data -> the claims' verdicts.
    - `heavy`: takes minutes even when quick is wanted, such as image data: the table of verdicts
      then quotes the committed results.
    """

    name: str
    sizes: dict[str, Any]
    compute: Callable[[Any], Any]
    draw: Callable[[Any], Figure]
    numbers: Callable[[Any], dict[str, Any]]
    judge: Callable[[Any], list[Row]]
    heavy: bool = False

    def main(self, doc: str | None) -> None:
        """The command line: runs, prints the verdicts, saves figure and numbers."""
        parser = argparse.ArgumentParser(
            description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        size = parser.add_mutually_exclusive_group()
        size.add_argument("--quick", dest="size", action="store_const", const="quick")
        size.add_argument("--full", dest="size", action="store_const", const="full")
        parser.add_argument(
            "--out", type=pathlib.Path, help="folder; default figures/paper, or results here"
        )
        given = parser.parse_args()
        name = given.size or "default"
        # What is committed was computed at the default size or the paper's.
        out = given.out or (pathlib.Path("figures/paper") if name == "quick" else RESULTS)
        out.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        data = self.compute(self.sizes[name])
        rows = self.judge(data)
        record = {
            "study": self.name,
            "size": {"name": name} | dataclasses.asdict(self.sizes[name]),
            "numbers": self.numbers(data),
            "verdicts": [row.record for row in rows],
        }
        (out / f"{self.name}.json").write_text(json.dumps(record, indent=1, default=plain) + "\n")
        with fl.plot.style():
            save(self.draw(data), out / f"{self.name}.png")
        for row in rows:
            print(f"{row.source}: {row.claim}\n    {row.measured}\n    {row.verdict}")
        print(f"{out / self.name}.png and .json after {time.perf_counter() - started:.0f} s")
        sys.stdout.flush()


def save(figure: Figure, path: pathlib.Path) -> None:
    """A PNG with a palette, a third of the size of one without."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    Image.open(picture).convert("RGB").quantize(256).save(path, optimize=True)


def plain(value: Any) -> Any:
    """Arrays as lists of six digits, paths as text."""
    if isinstance(value, pathlib.Path):
        return str(value)
    rounded = np.vectorize(lambda v: float(f"{v:.6g}"), otypes=[object])
    return rounded(np.asarray(value)).tolist()


def initial(task: fl.Task, seed: int, **how: Any) -> fl.ReLUNetwork:
    """The paper's initial ReLU network: 64 units, variance 2e-4, c = 1 unless said otherwise."""
    how = {"hidden": (64,), "variance": 2e-4, "bias": True, "bias_strength": 1.0} | how
    return fl.ReLUNetwork.init(task, **how, key=jax.random.key(seed))
