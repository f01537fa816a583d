"""What a sweep records of each run: a row of numbers, kept in a file as it comes."""

import hashlib
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jaxtyping import ArrayLike

from flowlin._tools.archive import require_place
from flowlin._tools.checks import refuse
from flowlin._tools.growing import GrowingTable, Row
from flowlin._tools.result import RESULTS, okay
from flowlin._tools.types import PathLike
from flowlin._tools.version import __version__
from flowlin.network.model import AbstractModel
from flowlin.runs.grids import TAKEN
from flowlin.runs.trajectory import Trajectory
from flowlin.tasks.task import Task

OWN = ["failed", "key"]  # the last columns of a file


class Records:
    """The rows of a sweep: of each run what `record` returns, and how it failed, if it did.

    With a `path` they are written as they come, each with a fingerprint of its run, its `key`, by
    which the same run is known when it is asked for again; rows of other runs stay where they are.
    Each of several processes writes a file of its own, and reads those of all.
    """

    def __init__(self, record: Callable[[Trajectory], Any], points: tuple[Row, ...], path: Any):
        self.record, self.points = record, points
        self.file, self.others = None, []
        if path is not None:
            mine, others = _places(path)
            self.file = GrowingTable("checkpoint", mine)
            self.others = [GrowingTable("checkpoint", other) for other in others]
            for table in (self.file, *self.others):
                table.require_columns(list(points[0]) if points else [], OWN)

    def known(self, keys: list[str]) -> dict[int, Row]:
        """By place, the rows of runs that the files have already."""
        if self.file is None:
            return {}
        own = {*(self.points[0] if self.points else ()), "key"}
        found = {
            str(row["key"]): {name: value for name, value in row.items() if name not in own}
            for table in (*self.others, self.file)
            for row in table.rows
        }
        return {place: found[key] for place, key in enumerate(keys) if key in found}

    def row(self, place: int, key: str, flow: Trajectory) -> Row:
        """What is recorded of a run, which is then in the file."""
        found = self._recorded(flow)
        found["failed"] = "" if okay(flow.result) else " ".join(RESULTS[flow.result].split())
        if self.file is not None:
            point = self.points[place] if self.points else {}
            self.file.append({**point, **found, "key": key})
        return found

    def _recorded(self, flow: Trajectory) -> Row:
        """What the user's function says of a run, checked."""
        found = self.record(flow)
        if not isinstance(found, dict) or not found:
            raise refuse("record", "a function that returns a dictionary of numbers", found)
        taken = TAKEN.union(*self.points[:1]).intersection(found)
        if taken:
            name = sorted(map(str, taken))[0]
            raise ValueError(f"`record` returns {name!r}, a column that the table has already.")
        return {str(name): _number(str(name), value) for name, value in found.items()}


def _places(path: PathLike) -> tuple[pathlib.Path, list[pathlib.Path]]:
    """The table that this process writes, `runs.process-0.csv` for one of several, and others'."""
    whole = require_place("checkpoint", path)
    mine = whole
    if jax.process_count() > 1:
        mine = whole.with_suffix(f".process-{jax.process_index()}{whole.suffix}")
    pattern = re.compile(re.escape(whole.stem) + r"(\.process-\d+)?" + re.escape(whole.suffix))
    found = [one for one in whole.parent.glob("*") if pattern.fullmatch(one.name)]
    return mine, sorted(one for one in found if one != mine)


def share(members: int) -> range:
    """Which of the runs are this process's: every n-th, of n processes."""
    return range(jax.process_index(), members, jax.process_count())


def exchanged(rows: dict[int, Row]) -> dict[int, Row]:
    """The rows of all processes, by place; each gives its own."""
    if jax.process_count() == 1:
        return rows
    text = np.frombuffer(json.dumps(list(rows.items())).encode(), np.uint8)
    longest = int(np.max(process_allgather(np.array(text.size, np.int32))))
    padded = np.pad(text, (0, longest - text.size), constant_values=ord(" "))
    every = np.asarray(process_allgather(padded))
    return {place: row for one in every for place, row in json.loads(one.tobytes())}


def _number(name: str, value: Any) -> float | int | bool:
    """One number or truth value, as Python's own."""
    found = value.item() if getattr(value, "ndim", None) == 0 else value
    if not isinstance(found, (bool, int, float)):
        raise refuse(f"record[{name!r}]", "a number", value)
    return found


def prints(
    members: list[tuple[AbstractModel, Task]], t1: ArrayLike, options: dict[str, Any]
) -> list[str]:
    """A fingerprint of each run: of its network, task, end and options, and of this version.

    Functions among the options count by their names.
    """
    common = _print(__version__, eqx.tree_pformat(options), t1, options)
    tasks = {id(task): _print(task.x, task.y, task.weights) for _, task in members}
    return [_print(common, tasks[id(task)], model.kind, model)[:16] for model, task in members]


def _print(*parts: Any) -> str:
    """A hash of text, numbers and arrays."""
    made = hashlib.sha256()
    for leaf in jax.tree.leaves(parts):
        if isinstance(leaf, str):
            made.update(leaf.encode())
        elif eqx.is_array_like(leaf):
            numbers = np.asarray(leaf)
            made.update(repr((numbers.shape, numbers.dtype)).encode() + numbers.tobytes())
    return made.hexdigest()
