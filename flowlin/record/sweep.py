"""The runs of a sweep, or what was recorded of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    argument_error,
    boolean,
    checked,
    function_of,
    integer_from,
    sequence_of,
)
from flowlin._tools.arrays import DataFrame, data_frame
from flowlin._tools.printing import (
    LONGEST_ADVICE,
    Summary,
    format_count,
    format_range,
    print_by,
    shorten_text,
)
from flowlin._tools.tables import TableRow
from flowlin.record.event_log import EVENT_COLUMNS
from flowlin.record.event_log_summary import MOST_ROWS
from flowlin.record.results import RESULTS, is_success
from flowlin.record.trajectory import Trajectory
from flowlin.record.trajectory_summary import (
    MOST_STARS,
    describe_result,
    result_in_words,
    t_star_maxima,
)


def sweep_summary(runs: "Sweep") -> Summary:
    """Summarise how many runs, which failed, the ranges of their ends, losses, events and t*."""
    title = f"Sweep of {format_count(len(runs), 'run')}"
    if not len(runs):
        return Summary(title, [])
    if not runs.flows:
        return _summary_of_columns(title, runs)
    flow, tasks = runs[0], {id(run.reference.task) for run in runs}
    kinds: dict[str, str] = {}
    for run in runs:  # the first of each kind
        kinds.setdefault(run.model.facts.kind, repr(run.model))
    of_task = repr(flow.reference.task) + (" and others" if len(tasks) > 1 else "")
    rows = [
        ("networks", shorten_text("; ".join(kinds.values()), LONGEST_ADVICE)),
        ("task", shorten_text(of_task, LONGEST_ADVICE)),
        ("failed", _list_failures(runs)),
        ("end", f"t = {format_range([float(run.end) for run in runs])}"),
        ("loss", _loss_ranges([np.asarray(run.losses) for run in runs])),
        ("steps", format_range([int(run.counts["num_steps"]) for run in runs])),
    ]
    if flow.events.channels:
        rows.append(("events", f"{format_range([len(run.events) for run in runs])} per run"))
    found = [t_star_maxima(run) for run in runs]
    labels = [label for label in found[0] if all(label in one for one in found)]
    for label in labels[:MOST_STARS]:
        rows.append((label, format_range([one[label].time for one in found])))
    return Summary(title, rows)


def _summary_of_columns(title: str, runs: "Sweep") -> Summary:
    """Summarise the ranges of all columns, and which runs failed."""
    failed = list(runs.failed)
    listed = f"{len(failed)}, run {failed[0]} first: {runs.failed[failed[0]]}" if failed else "none"
    rows = [(shorten_text(name), _column_range(values)) for name, values in runs.columns.items()]
    return Summary(title, [("failed", shorten_text(listed, LONGEST_ADVICE)), *rows])


def _column_range(values: np.ndarray) -> str:
    """Format the range of numbers, or how many different words there are."""
    return (
        format_count(len(set(values)), "value")
        if values.dtype.kind == "U"
        else format_range(values)
    )


def _loss_ranges(losses: list[np.ndarray]) -> str:
    """Format the ranges of the first and the last saved losses."""
    saved = [rows for rows in losses if len(rows)]
    if not saved:
        return "not saved"
    first, last = (format_range([rows[k] for rows in saved]) for k in (0, -1))
    return f"{first} -> {last}"


def _list_failures(runs: "Sweep") -> str:
    """Format which runs failed, the first with its reason."""
    fine = {RESULTS[RESULTS.successful], RESULTS[RESULTS.event_occurred]}
    bad = {k: describe_result(run) for k, run in enumerate(runs) if RESULTS[run.result] not in fine}
    if not bad:
        return "none"
    listed = [*map(str, list(bad)[:MOST_ROWS]), *["..."] * (len(bad) > MOST_ROWS)]
    runs_ = "run" if len(bad) == 1 else "runs"
    return f"{len(bad)} ({runs_} {', '.join(listed)}): {next(iter(bad.values()))}"


@checked(
    flows=sequence_of(CHECKS_BY_NAME["flow"], "a list of trajectories"),
    points=None,
    rows=None,
    confirmed=None,
)
@print_by(sweep_summary)
class Sweep(Sequence[Any]):
    """The runs of a sweep, in the order of its networks: a trajectory each.

    Of a sweep that recorded, the rows instead: a dictionary of numbers of each run.

    - `points`: of a sweep over a grid, the values of each run, by name.
    - `confirmed`: the function that confirms its runs; None where it is not known.
    """

    def __init__(
        self,
        flows: Sequence[Trajectory],
        points: Sequence[TableRow] = (),
        rows: Sequence[TableRow] | None = None,
        confirmed: Callable[..., "Sweep"] | None = None,
    ):
        self.flows, self.points = tuple(flows), tuple(points)
        self._confirmed = confirmed
        self._rows = None if rows is None else tuple(rows)

    @property
    def _all_entries(self) -> tuple[Any, ...]:
        """Return the runs, or the rows that were recorded instead."""
        return self.flows if self._rows is None else self._rows

    def __len__(self) -> int:
        return len(self._all_entries)

    def __getitem__(self, index) -> Any:
        if not isinstance(index, (int, np.integer, slice)):
            raise argument_error("index", "a whole number or a slice", index)
        if isinstance(index, slice):
            rows = None if self._rows is None else self._rows[index]
            return Sweep(self.flows[index], self.points[index], rows, self._confirmed)
        if not -len(self) <= index < len(self):  # `Sequence` loops until IndexError
            raise IndexError(f"`index` = {index} is out of range: the sweep has {len(self)} runs.")
        return self._all_entries[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all_entries)

    @property
    def failed(self) -> dict[int, str]:
        """Return which runs did not reach their end, and why."""
        if self._rows is not None:
            return {k: str(row["failed"]) for k, row in enumerate(self._rows) if row["failed"]}
        return {
            k: result_in_words(flow)
            for k, flow in enumerate(self.flows)
            if not is_success(flow.result)
        }

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Return by name what was recorded, (runs,), and the values of the grid.

        **Raises:** `ValueError` if the sweep recorded nothing.
        """
        if self._rows is None:
            raise ValueError("this sweep kept its runs; pass `record`, or use `map(function)`.")
        rows = self.table()
        names = [name for name in (rows[0] if rows else ()) if name not in ("run", "failed")]
        return {name: np.array([row[name] for row in rows]) for name in names}

    @checked(workers=integer_from(1), finer=boolean)
    def confirm(
        self,
        *,
        finer: bool = False,
        max_steps: int | None = 2**20,
        max_events: int = 2**16,
        workers: int | None = None,
        progress: bool = False,
    ) -> "Sweep":
        """Return the sweep of its flows with their global errors: `Trajectory.confirm` of each.

        The second runs are made one by one in threads, as the first were. Where one fails, the
        flow stays as it was, `flow.events.confirmed` is False, and a warning counts such runs.
        Ctrl-C and errors carry the flows that were confirmed as `error.trajectories`, by place.

        **Arguments:** `finer`, `max_steps`, `max_events` as of `Trajectory.confirm`; `workers` and
        `progress` as of `fl.sweep`.

        **Raises:** `ValueError` for a sweep that kept rows and no runs, one that was put together
        by hand, and for runs that cannot be confirmed, as those of batches under `vmap`.
        """
        if self._rows is not None:
            raise ValueError(
                "this sweep kept what `record` returned, and no run to confirm; call "
                "`flow.confirm()` in `record`."
            )
        if self._confirmed is None:
            raise ValueError(
                "this sweep was put together by hand; confirm its runs one by one: "
                "fl.Sweep([flow.confirm() for flow in sweep])."
            )
        return self._confirmed(self, finer, max_steps, max_events, workers, progress)

    @checked(function=function_of("flow"))
    def map(self, function: Callable[..., PyTree]) -> PyTree:
        """Return what a function says of every run, or row; arrays are stacked, (runs, ...)."""
        rows = [function(flow) for flow in self]
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *rows)

    def table(self) -> list[dict[str, Any]]:
        """Return a list of rows, each a dictionary led by `run` and the values of the grid.

        Of what was recorded, one per run, with `failed` at the end, empty where a run did not fail;
        otherwise the events of all runs, one each, as `EventLog.table`.
        """
        points = self.points or ({},) * len(self)
        if self._rows is not None:
            return [{"run": k} | points[k] | row for k, row in enumerate(self._rows)]
        return [
            {"run": k} | points[k] | row
            for k, flow in enumerate(self.flows)
            for row in flow.events.table()
        ]

    def to_pandas(self) -> DataFrame:
        """Return `table()` as a `pandas.DataFrame`.

        **Raises:** `ImportError` if pandas is missing.
        """
        rows, names = self.table(), list(self.points[0]) if self.points else []
        if self._rows is None:
            return data_frame(rows, ("run", *names, *EVENT_COLUMNS))
        return data_frame(rows, list(rows[0]) if rows else ("run", *names, "failed"))
