"""What the scripts of this folder share: sizes, verdicts, saving. Switches JAX to float64.

"M" is the lead paper, "W" its workshop version, "C" the curriculum on deep linear networks, "B" the
paper on the bias after ReLU, "L" the one on effective weights. Errata are
numbered E1 to E19: effective rank, learning rules, rate of a mode, tau, augmentation by c,
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
from _judge import CLASSES, OUTCOMES, margins_times
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

    - `claim`: what is asked, in a sentence of ours.
    - `source`: where it stands, such as "M Fig. 3C".
    - `measured`: the numbers, with interval, seeds and size.
    - `verdict`: one of `OUTCOMES`; for a condition, a part, a misprint or what was measured,
      followed by ": " and the condition, the part that holds, the correction, or what was found.
    - `quote`: the sentence of the source, word for word; "..." where words are left out.
    - `kind`: one of `CLASSES`. A claim has a quote.
    - `moves`: what the verdict is with margins half and twice as wide, where it is another.
    """

    claim: str
    source: str
    measured: str
    verdict: str
    quote: str = ""
    kind: str = "claim"
    moves: str = ""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("verdict", self.outcome, OUTCOMES),
            ("kind", self.kind, CLASSES),
        ):
            if value not in known:
                raise ValueError(f"`{name}` must start with one of {tuple(known)}, got {value!r}.")
        if self.kind == "claim" and not self.quote:
            raise ValueError(f"`quote` is missing: where does {self.source} say {self.claim!r}?")

    @property
    def outcome(self) -> str:
        """The verdict without what follows: one of `OUTCOMES`."""
        return self.verdict.split(":")[0]

    @property
    def record(self) -> dict[str, str]:
        """As it is saved."""
        record = dataclasses.asdict(self) | {"class": self.kind, "outcome": self.outcome}
        del record["kind"]
        return record

    @classmethod
    def of(cls, record: dict[str, str]) -> "Row":
        """What was saved."""
        known = {k: v for k, v in record.items() if k not in ("class", "outcome")}
        return cls(**known, kind=record["class"])


@dataclasses.dataclass(frozen=True)
class Study:
    """An experiment of the papers: what is run, drawn and found.

    - `name`: the script's stem; figure and numbers are saved under it.
    - `sizes`: for "quick" (seconds, for tests), "default" (minutes on two cores) and "full" (the
      paper's size, or "default" again where that is the paper's).
    - `compute`: size -> data. The only slow part.
    - `draw`: data -> the figure; called within `fl.plot.style()`.
    - `others`: likewise, of further figures, by what is added to the name. The gallery's caption of
      "_rank" is what the script's `draw_rank` says of itself.
    - `numbers`: data -> what the figure shows in numbers, a dictionary that JSON can hold.
    - `judge`: data -> the claims' verdicts.
    - `heavy`: takes minutes even when quick is wanted, such as image data: the table of verdicts
      then quotes the committed results.
    - `again`: the committed record -> the data that `draw` needs; for `--redraw`.
    """

    name: str
    sizes: dict[str, Any]
    compute: Callable[[Any], Any]
    draw: Callable[[Any], Figure]
    numbers: Callable[[Any], dict[str, Any]]
    judge: Callable[[Any], list[Row]]
    heavy: bool = False
    others: dict[str, Callable[[Any], Figure]] = dataclasses.field(default_factory=dict)
    again: Callable[[dict[str, Any]], Any] | None = None

    def rows(self, data: Any) -> list[Row]:
        """The claims' verdicts, with what they are at half and at twice the margins."""
        found = self.judge(data)
        others = {}
        for factor, words in ((0.5, "at half the margins"), (2.0, "at twice the margins")):
            with margins_times(factor):
                others[words] = self.judge(data)
        moves = (
            "; ".join(f"{words}: {other[k].verdict}" for words, other in others.items()
                      if other[k].verdict != row.verdict)
            for k, row in enumerate(found)
        )  # fmt: skip
        return [dataclasses.replace(row, moves=m) for row, m in zip(found, moves, strict=True)]

    def pictures(self, data: Any, out: pathlib.Path) -> list[str]:
        """Saves all figures; what stands above their panels and in their legends."""
        says: list[str] = []
        with fl.plot.style():
            for ending, draw in ({"": self.draw} | self.others).items():
                figure = draw(data)
                says += titles(figure)
                save(figure, out / f"{self.name}{ending}.png")
        return list(dict.fromkeys(says))

    def found(self, name: str) -> tuple[Any, dict[str, Any]]:
        """The data and the record of a size, or of what is committed, for "redraw"."""
        if name == "redraw" and self.again is not None:
            record = json.loads((RESULTS / f"{self.name}.json").read_text())
            return self.again(record), record
        data = self.compute(self.sizes[name])
        rows = self.rows(data)
        for row in rows:
            told = [f"{row.source}: {row.claim}", row.quote, row.measured, row.verdict, row.moves]
            print("\n    ".join(filter(None, told)))
        return data, {
            "study": self.name,
            "size": {"name": name} | dataclasses.asdict(self.sizes[name]),
            "numbers": self.numbers(data),
            "verdicts": [row.record for row in rows],
        }

    def main(self, doc: str | None) -> None:
        """The command line: runs, prints the verdicts, saves figures and numbers."""
        parser = argparse.ArgumentParser(
            description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        size = parser.add_mutually_exclusive_group()
        for name in ("quick", "full", *(["redraw"] if self.again else [])):
            size.add_argument(f"--{name}", dest="size", action="store_const", const=name)
        parser.add_argument(
            "--out", type=pathlib.Path, help="folder; default figures/paper, or results here"
        )
        given = parser.parse_args()
        name = given.size or "default"
        # What is committed was computed at the default size or the paper's.
        out = given.out or (pathlib.Path("figures/paper") if name == "quick" else RESULTS)
        started = time.perf_counter()
        self.save(name, out)
        print(f"{out / self.name}.png and .json after {time.perf_counter() - started:.0f} s")
        sys.stdout.flush()

    def save(self, name: str, out: pathlib.Path) -> list[Row]:
        """Computes a size and returns the verdicts; figures and numbers go to a folder."""
        out.mkdir(parents=True, exist_ok=True)
        data, record = self.found(name)
        record["figure says"] = self.pictures(data, out)
        (out / f"{self.name}.json").write_text(json.dumps(record, indent=1, default=plain) + "\n")
        return [Row.of(row) for row in record["verdicts"]]


def titles(figure: Figure) -> list[str]:
    """What stands above its panels and in their legends."""
    legends = [ax.get_legend() for ax in figure.axes]
    texts = [text.get_text() for one in legends if one is not None for text in one.get_texts()]
    found = [figure.get_suptitle(), *(ax.get_title() for ax in figure.axes), *texts]
    return list(dict.fromkeys(filter(None, found)))


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
