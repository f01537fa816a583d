"""The rows of a sweep: numbers of each run, written to a file as the run ends."""

import hashlib
import json
import pathlib
import re
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jaxtyping import ArrayLike, PyTree

from flowlin._tools.arguments import argument_error
from flowlin._tools.arrays import PathLike
from flowlin._tools.files import writable_path
from flowlin._tools.function_code import PYTHON, function_parts
from flowlin._tools.tables import GrowingTable, TableRow
from flowlin._tools.version import __version__
from flowlin.networks.base import AbstractModel
from flowlin.networks.gated_module import GatedModule
from flowlin.networks.modules import ForeignModel
from flowlin.record.results import SUCCESSES, result_is
from flowlin.record.trajectory import Trajectory
from flowlin.record.trajectory_summary import result_in_words
from flowlin.runs.grid import RESERVED_COLUMNS
from flowlin.tasks.task import Task
from flowlin.training.function_loss import FunctionLoss

LAST_COLUMNS = ["failed", "key", "functions"]  # the last columns of a file


class RunPrint(NamedTuple):
    """Two fingerprints by which a row of a file tells its run.

    - `key`: a fingerprint of network, task, end, options, and this version.
    - `functions`: fingerprints of what the functions among them do, by where they stand, and the
      version of Python of which that is the code, as JSON.
    """

    key: str
    functions: str


class Records:
    """The rows of a sweep: what `record` returns of each run, and why it failed, if it did.

    With a `path` each is written as its run ends, with what a later call knows the run by, a
    `RunPrint`; rows of other runs stay in the file. Each of several processes writes a file of its
    own, and reads those of all.
    """

    def __init__(
        self,
        record: Callable[[Trajectory], object],
        points: tuple[TableRow, ...],
        path: PathLike | None,
    ):
        self.record, self.points = record, points
        self.file, self.others = None, []
        if path is not None:
            mine, others = _table_paths(path)
            self.file = GrowingTable("checkpoint", mine)
            self.others = [GrowingTable("checkpoint", other) for other in others]
            for table in (self.file, *self.others):
                _require_functions_column(table)
                table.require_columns(list(points[0]) if points else [], LAST_COLUMNS)

    def rows_on_file(self, prints: list[RunPrint]) -> dict[int, TableRow]:
        """Return, by place in `prints`, the rows of runs that the files have already.

        **Raises:** `ValueError` where other functions than now made one of them.
        """
        if self.file is None:
            return {}
        own = {*(self.points[0] if self.points else ()), "key", "functions"}
        by_key = {
            str(row["key"]): (table, row)
            for table in (*self.others, self.file)
            for row in table.rows
        }
        found = {}
        for place, now in enumerate(prints):
            if now.key in by_key:
                table, row = by_key[now.key]
                _require_same_functions(table, str(row["functions"]), now.functions)
                found[place] = {name: cell for name, cell in row.items() if name not in own}
        return found

    def record_row(self, place: int, run: RunPrint | None, flow: Trajectory) -> TableRow:
        """Record a run: return its row, and write it to the file.

        An error of the user's function carries the run as `error.trajectory`.
        """
        try:
            found = self._call_record(flow)
        except Exception as error:
            error.trajectory = flow  # pyright: ignore
            error.add_note(f"`record` was called on run {place}, the `.trajectory` of this error.")
            raise
        found["failed"] = "" if result_is(flow.result, *SUCCESSES) else result_in_words(flow)
        if self.file is not None:
            point = self.points[place] if self.points else {}
            self.file.append_row({**point, **found, **(run._asdict() if run else {})})
        return found

    def _call_record(self, flow: Trajectory) -> TableRow:
        """Call the user's function on a run, and check the numbers that it returns."""
        found = self.record(flow)
        if not isinstance(found, dict) or not found:
            raise argument_error("record", "a function that returns a dictionary of numbers", found)
        taken = RESERVED_COLUMNS.union(*self.points[:1]).intersection(found)
        if taken:
            name = sorted(map(str, taken))[0]
            raise ValueError(f"`record` returns {name!r}, a column that the table has already.")
        return {str(name): _python_number(str(name), value) for name, value in found.items()}


def _table_paths(path: PathLike) -> tuple[pathlib.Path, list[pathlib.Path]]:
    """Return the path of this process's table, and those of other processes beside it.

    Of several processes the first writes `runs.process-0.csv` for `runs.csv`.
    """
    whole = writable_path("checkpoint", path)
    mine = whole
    if jax.process_count() > 1:
        mine = whole.with_suffix(f".process-{jax.process_index()}{whole.suffix}")
    pattern = re.compile(re.escape(whole.stem) + r"(\.process-\d+)?" + re.escape(whole.suffix))
    found = [one for one in whole.parent.glob("*") if pattern.fullmatch(one.name)]
    return mine, sorted(one for one in found if one != mine)


def runs_of_process(members: int) -> range:
    """Return the places of the runs that this process makes: every n-th, of n processes."""
    return range(jax.process_index(), members, jax.process_count())


def gather_rows(rows: dict[int, TableRow]) -> dict[int, TableRow]:
    """Gather the rows of all processes, by place; each process gives its own."""
    if jax.process_count() == 1:
        return rows
    text = np.frombuffer(json.dumps(list(rows.items())).encode(), np.uint8)
    longest = int(np.max(process_allgather(np.array(text.size, np.int32))))
    padded = np.pad(text, (0, longest - text.size), constant_values=ord(" "))
    every = np.asarray(process_allgather(padded))
    return {place: row for one in every for place, row in json.loads(one.tobytes())}


def _python_number(name: str, value: object) -> float | int | bool:
    """Return a number or truth value as Python's own; `ValueError` for anything else."""
    item = getattr(value, "item", None)
    found = item() if callable(item) and getattr(value, "ndim", None) == 0 else value
    if not isinstance(found, (bool, int, float)):
        raise argument_error(f"record[{name!r}]", "a number", value)
    return found


def run_prints(
    members: list[tuple[AbstractModel, Task]],
    t1: ArrayLike | None,
    options: dict[str, object],
    record: Callable[[Trajectory], object],
) -> list[RunPrint]:
    """Return what each run is known by in a file."""
    common = _hash_of_parts(__version__, eqx.tree_pformat(options), t1, options)
    tasks = {id(task): _hash_of_parts(task.x, task.y, task.weights) for _, task in members}
    shared = {"python": PYTHON}
    for name, value in {"record": record, **options}.items():
        shared |= _function_prints(name, value)

    def run_print(model: AbstractModel, task: Task) -> RunPrint:
        own = model.model if isinstance(model, GatedModule) else model
        functions = own.rest.tree if isinstance(own, ForeignModel) else ()
        marks = shared | _function_prints("network", functions)
        key = _hash_of_parts(common, tasks[id(task)], model.facts.kind, model)
        return RunPrint(key[:16], json.dumps(marks))

    return [run_print(model, task) for model, task in members]


def _function_prints(name: str, value: object) -> dict[str, str]:
    """Return fingerprints of what the functions in an argument do, by where they stand in it."""
    found = {}
    for path, leaf in jax.tree.leaves_with_path(value, is_leaf=callable):
        function = leaf.function if isinstance(leaf, FunctionLoss) else leaf
        parts = function_parts(function) if callable(function) else []
        if parts:
            found[f"`{name}{jax.tree_util.keystr(path)}`"] = _hash_of_parts(*parts)[:16]
    return found


def _require_functions_column(table: GrowingTable) -> None:
    """Raise `ValueError` for a file of an earlier version, whose rows do not name functions."""
    if table.columns is not None and table.columns[-2:] == LAST_COLUMNS[:2]:
        raise ValueError(
            f"`checkpoint` = {str(table.path)!r} is of an earlier version of flowlin: it has no "
            "column 'functions', and its rows do not say by which functions they were made; choose "
            "another file, and read this one as the table that it is."
        )


def _require_same_functions(table: GrowingTable, before: str, now: str) -> None:
    """Raise `ValueError` where a row of a file was made by other functions than now.

    The code of another version of Python is not compared.
    """
    if before == now:
        return
    try:
        old, new = json.loads(before), json.loads(now)
        same_python = old.pop("python") == new.pop("python")
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ValueError(
            f"`checkpoint` = {str(table.path)!r} is damaged: its column 'functions' holds "
            f"{before!r}; choose another file, or remove it."
        ) from None
    changed = [place for place in {**new, **old} if old.get(place) != new.get(place)]
    if same_python and changed:
        raise ValueError(
            f"`checkpoint` = {str(table.path)!r} has rows of these runs by another function "
            f"{', '.join(changed)}, whose code, or a value that it uses, is not the same; choose "
            "another file, or remove it to make the runs anew."
        )


def _hash_of_parts(*parts: PyTree) -> str:
    """Return a hash of text, numbers and arrays, in hexadecimal digits."""
    made = hashlib.sha256()
    for leaf in jax.tree.leaves(parts):
        if isinstance(leaf, str):
            made.update(leaf.encode())
        elif eqx.is_array_like(leaf):
            numbers = np.asarray(leaf)
            made.update(repr((numbers.shape, numbers.dtype)).encode() + numbers.tobytes())
    return made.hexdigest()
