"""What the studies share: tasks, the command line, intervals, saving. Switches JAX to float64."""

import argparse
import dataclasses
import functools
import json
import pathlib
import sys
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
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
LEAST = 1e-9  # singular values below are zero up to rounding
NO_TREES = ("classes", "dense targets", "Gaussian inputs")


@functools.cache
def task_named(name: str) -> fl.Task:
    """Return a task: a semantic tree, one that is none, or one with which findings end.

    - "tree" of 8 leaves, "small tree" of 4.
    - "classes": 8 orthogonal inputs, 4 classes of 4, 2, 1 and 1 of them, one-hot targets.
    - "dense targets": 8 orthogonal inputs, 4 targets each, uniform in [0, 1].
    - "Gaussian inputs": 16 of 12 dimensions, neighbours correlated by 1/2; such targets.
    - "offset XOR", at Delta = 0.4: four inputs whose linear modes do not solve the task.
    - "MNIST": 300 images, in float64.
    """
    rng = np.random.default_rng(0)
    apart = np.abs(np.subtract.outer(np.arange(12), np.arange(12)))
    match name:
        case "tree":
            return fl.tasks.hierarchy(levels=3)
        case "small tree":
            return fl.tasks.hierarchy(levels=2)
        case "classes":
            return _task(name, np.eye(8), np.repeat(np.eye(4), (4, 2, 1, 1), axis=0))
        case "dense targets":
            return _task(name, np.eye(8), rng.uniform(size=(8, 4)))
        case "Gaussian inputs":
            x = rng.normal(size=(16, 12)) @ np.linalg.cholesky(0.5**apart).T
            return _task(name, x, rng.uniform(size=(16, 4)))
        case "offset XOR":
            return fl.tasks.offset_xor(0.4)
        case "MNIST":
            return fl.tasks.mnist(300).astype(jnp.float64)
    raise ValueError(f"no task is named {name!r}; see `task_named`.")


def _task(name: str, x: np.ndarray, y: np.ndarray) -> fl.Task:
    return fl.Task(jnp.asarray(x), jnp.asarray(y), name=name)


def driven_groups(modes: fl.theory.Modes) -> list[list[int]]:
    """Return the modes that the targets drive, equal ones together: (G,) lists of numbers.

    Equal modes have one strength, the mean of their trace, and one hit; single ones mean nothing.
    """
    return [list(group) for group in modes.groups if float(modes.s[group[0]]) > LEAST]


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


def save(
    name: str, numbers: dict[str, Any], figures: dict[str, Figure], given: argparse.Namespace
) -> None:
    """Numbers and figures, these by what is added to the name."""
    text = json.dumps(numbers, indent=1, default=lambda value: np.asarray(value).tolist())
    out = given.out or (TABLES / "studies" if given.quick else RESULTS)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(text + "\n")
    for ending, figure in figures.items():
        figure.savefig(out / f"{name}{ending}.png", dpi=130)


def sweeps(
    name: str,
    doc: str | None,
    compute: Callable[[argparse.Namespace], Any],
    numbers: Callable[[Any], dict[str, Any]],
    draw: Callable[[Any], Figure],
    others: Mapping[str, Callable[[Any], Figure]] = types.MappingProxyType({}),
) -> None:
    """The command line of a study of sweeps: runs, draws, saves, prints the numbers."""
    given = options(doc)
    data = compute(given)
    with fl.plot.style():
        drawn = {key: draw(data) for key, draw in ({"": draw} | dict(others)).items()}
    found = numbers(data)
    save(name, found, drawn, given)
    print(json.dumps(found, indent=1, default=float))


def committed(name: str, kind: Any) -> Any:
    """Return the data of a study as its JSON holds them."""
    return rebuild(kind, json.loads((RESULTS / f"{name}.json").read_text()))


def rebuild(kind: Any, value: Any) -> Any:
    """Return what JSON holds as the dataclass, tuple, dictionary or array that it was."""
    parts, origin = typing.get_args(kind), typing.get_origin(kind)
    if value is None:
        return None
    if origin in (types.UnionType, typing.Union):
        return rebuild(next(part for part in parts if part is not types.NoneType), value)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        fields = value if isinstance(value, dict) else dict(zip(hints, value, strict=True))
        found = {
            name: rebuild(hint, fields[name]) for name, hint in hints.items() if name in fields
        }
        return cast(Any, kind)(**found)
    if origin is tuple:
        kinds = parts[:1] * len(value) if Ellipsis in parts else parts
        return tuple(rebuild(*pair) for pair in zip(kinds, value, strict=True))
    if origin is list:
        return [rebuild(parts[0], one) for one in value]
    if origin is dict:
        return {parts[0](key): rebuild(parts[1], one) for key, one in value.items()}
    return np.asarray(value) if kind is np.ndarray else value


@dataclasses.dataclass(frozen=True)
class Study:
    """A question that exact events answer.

    - `name`: the script's stem; figure and numbers are saved under it.
    - `quick`, `default`: sizes, for tests and as committed.
    - `compute`: size -> data, a dataclass of what JSON can hold once arrays are lists.
    - `findings`: data -> what was found, in sentences with their numbers.
    - `draw`: data -> the figure.
    - `others`: likewise, of further figures, by what is added to the name. The gallery's caption of
      "_offset" is what the script's `draw_offset` says of itself.
    """

    name: str
    quick: Any
    default: Any
    compute: Callable[[Any], Any]
    findings: Callable[[Any], list[str]]
    draw: Callable[[Any], Figure]
    others: dict[str, Callable[[Any], Figure]] = dataclasses.field(default_factory=dict)

    def main(self, doc: str | None) -> None:
        """The command line."""
        parser = command(doc)
        parser.add_argument("--redraw", action="store_true", help="the committed runs, drawn anew")
        given = parser.parse_args()
        if given.redraw:
            data = committed(self.name, typing.get_type_hints(self.compute)["return"])
        else:
            data = self.compute(self.quick if given.quick else self.default)
        lines = self.findings(data)
        with fl.plot.style():
            drawn = {key: draw(data) for key, draw in ({"": self.draw} | self.others).items()}
        save(self.name, {"findings": lines} | dataclasses.asdict(data), drawn, given)
        print("\n".join(lines))
