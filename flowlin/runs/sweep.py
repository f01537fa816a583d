"""Sweeps: many runs in one call, in threads or under `vmap`, with rows kept in a file."""

import contextlib
import math
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    checked,
    final_time,
    function_of,
    instance_of,
    integer_from,
    require_known_options,
    sequence_of,
)
from flowlin._tools.arrays import PathLike, automatic_mesh, replace_fields, require_no_nan
from flowlin._tools.printing import tqdm_bar
from flowlin._tools.warn import warn_user
from flowlin.networks.base import AbstractModel
from flowlin.networks.modules import any_module, as_model, as_module
from flowlin.record.results import RunError
from flowlin.record.sweep import Sweep
from flowlin.record.trajectory import Trajectory, trim_and_raise
from flowlin.runs.gradient_flow import gradient_flow
from flowlin.runs.grid import Grid, evaluate_on_grid, is_value_function
from flowlin.runs.progress import interrupt_when_set
from flowlin.runs.sweep_rows import Records, gather_rows, run_prints, runs_of_process
from flowlin.tasks.task import Task


def _networks_argument(name: str, value: object) -> object:
    """Check that an argument is a list of networks, or a function that makes them.

    A network alone is refused, since it may be a stack.
    """
    if isinstance(value, eqx.Module):  # some of which can be iterated over
        raise ValueError("`networks` must be a list of networks; unstack it with `jax.tree.map`.")
    return (
        value
        if is_value_function(value)
        else sequence_of(any_module, "a list of networks")(name, value)
    )


def _tasks_argument(name: str, value: object) -> object:
    """Check that an argument is a task, a list of tasks, or a function that makes them."""
    if isinstance(value, Task) or is_value_function(value):
        return value
    return sequence_of(CHECKS_BY_NAME["task"], "a task or a list of tasks")(name, value)


@checked(
    networks=_networks_argument,
    tasks=_tasks_argument,
    t1=final_time,
    grid=instance_of(Grid, "an fl.Grid", "make one by fl.grid(seed=range(3))"),
    record=function_of("flow"),
    batch=integer_from(1),
    workers=integer_from(1),
)
def sweep(
    networks: Sequence[eqx.Module] | Callable[..., eqx.Module],
    tasks: Task | Sequence[Task] | Callable[..., Task],
    t1: float | None,
    *,
    grid: Grid | None = None,
    record: Callable[[Trajectory], Mapping[str, PyTree]] | None = None,
    checkpoint: PathLike | None = None,
    mesh: Mesh | None = None,
    batch: int | None = None,
    workers: int | None = None,
    progress: bool = False,
    **options: Any,
) -> Sweep:
    """Solve the gradient flow of many networks: seeds, variances, c, widths, tasks.

    On a CPU the members run one by one in threads: an adaptive run's cost is in small operations,
    which `vmap` does not make cheaper, and it makes every run wait for the slowest
    (`benchmarks/sweep.py`). On an accelerator they run in batches under `vmap`. One compilation
    serves all of one kind and shape.

    **Arguments:**

    - `networks`: of flowlin, or other Equinox modules as for `gradient_flow`; or with a `grid` a
      function of its values, by their names, that returns one.
    - `tasks`: one for all, one per network, or with a `grid` a function of its values.
    - `t1`, `options`: as for `gradient_flow`; each run's result equals its own. `throw` is not
      among them: runs that fail are in `failed`, and a warning counts them.
    - `grid`: the values that are swept over, by `fl.grid`; they lead the rows of all tables.
    - `record`: a function of a run's trajectory that returns a dictionary of numbers, recorded as
      the run ends **instead of** its trajectory: one row per run.
    - `checkpoint`: a file to which the rows of `record` are written as they come, a CSV table. The
      same call, and one over more values, finds the file and makes the runs only that it does not
      have. A file whose runs were made by other functions of the same names, `record` among them,
      is refused: their code and the values that they use are compared. Of several processes each
      has a file of its own beside it, `runs.process-0.csv` for `runs.csv`, which later calls read
      as well, by however many processes.
    - `mesh`: devices among which the members of each batch are split, along all its
      axes; every device runs its own members, which wait for no other device's.
    - `batch`: members under one `vmap`; None is 1 on a CPU and 256 elsewhere, per device of a mesh.
    - `workers`: threads; None is one per core that this process may use on a CPU, and one
      elsewhere, or with a mesh.
    - `progress`: a tqdm bar over the runs.

    With several processes (`jax.distributed`), `record` and no mesh, each makes every n-th run, and
    waits for nobody until the rows are exchanged at the end: all of them return all rows.

    Ctrl-C, and an error in a run or in `record`, carry the runs that were begun as
    `error.trajectories`, a dictionary by place, or the rows so far as `error.rows`; an error in
    `record` has the run that it was called on as `error.trajectory`.

    **Returns:** a `Sweep`, the runs' trajectories in order, or what was recorded of them.

    **Raises:** `ValueError` for no networks, or numbers that do not fit.
    """
    points = () if grid is None else tuple(grid)
    t1 = math.inf if t1 is None else t1
    every, of_every = evaluate_on_grid(points, networks=networks, tasks=tasks)
    members = _sweep_members(every, of_every, points)
    _check_sweep(options, record, checkpoint, mesh)
    on_cpu = jax.default_backend() == "cpu"
    devices = 1 if mesh is None else mesh.devices.size
    batch = batch or devices * (1 if on_cpu else 256)
    workers = workers or (_usable_cores() if on_cpu and mesh is None else 1)
    records = None if record is None else Records(record, points, checkpoint)
    prints = []
    if record is not None and checkpoint is not None:
        prints = run_prints(members, t1, options, record)
    shared = records is not None and mesh is None
    own = runs_of_process(len(members)) if shared else range(len(members))
    known = {} if records is None else records.rows_on_file(prints)
    kept: dict[int, PyTree] = {k: row for k, row in known.items() if k in own}

    def run_places(places):
        flows = _run_batch([members[k] for k in places], t1, mesh, options)
        for k, flow in zip(places, flows, strict=True):
            one = prints[k] if prints else None
            kept[k] = flow if records is None else records.record_row(k, one, flow)

    groups = _group_alike([k for k in own if k not in kept], members, batch)
    with _attach_on_error("trajectories" if records is None else "rows", kept):
        _run_groups(run_places, groups, kept, workers, len(own) if progress else None)
        kept = gather_rows(kept) if shared else kept
    found = [kept[k] for k in range(len(members))]
    flows, rows = (found, None) if records is None else ((), found)
    result = Sweep(flows, points, rows, confirm_sweep)
    if result.failed:
        k, why = next(iter(result.failed.items()))
        warn_user(
            f"{len(result.failed)} of {len(result)} runs failed, run {k} first: {why} "
            "`sweep.failed` lists them.",
        )
    return result


def confirm_sweep(
    runs: Sweep,
    finer: bool,
    max_steps: int | None,
    max_events: int,
    workers: int | None,
    progress: bool,
) -> Sweep:
    """Confirm the runs of a sweep in threads, as `Sweep.confirm` says."""
    kept: dict[int, PyTree] = {}
    failed: dict[int, str] = {}

    def confirm_run(places: list[int]) -> None:
        (k,) = places
        try:
            kept[k] = runs[k].confirm(finer=finer, max_steps=max_steps, max_events=max_events)
        except RunError as error:
            failed[k] = str(error)
            kept[k] = runs[k]

    groups = [[[k] for k in range(len(runs))]] if len(runs) else []
    total, begun = len(runs) if progress else None, {}  # second runs so far are nothing to return
    with _attach_on_error("trajectories", kept):
        _run_groups(confirm_run, groups, begun, workers or _usable_cores(), total)
    if failed:
        k = min(failed)
        warn_user(
            f"{len(failed)} of {len(runs)} runs are not confirmed, run {k} first: {failed[k]} "
            "Their `flow.events.confirmed` is False.",
        )
    return Sweep([kept[k] for k in range(len(runs))], runs.points, confirmed=confirm_sweep)


def _check_sweep(
    options: dict[str, Any], record: object, checkpoint: object, mesh: Mesh | None
) -> None:
    """Raise for options that a sweep does not take, or not in this combination."""
    require_known_options(options, gradient_flow, caller=sweep)
    if "throw" in options:
        raise ValueError("`throw` is not for sweeps; look at `sweep.failed`.")
    if checkpoint is not None and record is None:
        raise ValueError(
            "`checkpoint` of a sweep keeps what is recorded of each run; pass `record`, a function "
            "that returns a dictionary of numbers."
        )
    if checkpoint is not None and mesh is not None and jax.process_count() > 1:
        raise ValueError(
            "`checkpoint` on several processes is for runs that each makes by itself; leave out "
            "`mesh`."
        )


def _usable_cores() -> int:
    """Return the number of cores that this process may use, on a cluster not all there are."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _group_alike(places: list[int], members: list, batch: int) -> list[list[list[int]]]:
    """Group places by the kind and shape of their members, in chunks of at most `batch`."""
    groups: dict[Hashable, list[int]] = {}
    for k in places:
        network, task = members[k]
        leaves, kind = jax.tree.flatten((network, _without_name(task)))
        groups.setdefault((kind, *((a.shape, str(a.dtype)) for a in leaves)), []).append(k)
    return [[own[k : k + batch] for k in range(0, len(own), batch)] for own in groups.values()]


def _run_groups(
    run: Callable[[list[int]], None],
    groups: list[list[list[int]]],
    kept: dict[int, PyTree],
    workers: int,
    total: int | None,
) -> None:
    """Run all chunks of all groups in threads; `run` puts each result at its place in `kept`.

    A run that breaks off leaves its trajectory so far there. `total` asks for a progress bar.
    """
    asked = threading.Event()
    bar = None if total is None else tqdm_bar(total, unit="run", initial=len(kept))

    def run_chunk(chunk: list[int]) -> None:
        with interrupt_when_set(asked):
            if asked.is_set():
                return
            try:
                run(chunk)
            except (KeyboardInterrupt, Exception) as error:
                begun = getattr(error, "trajectory", None)
                if begun is not None and len(chunk) == 1:
                    kept[chunk[0]] = begun
                raise

    def update_bar(chunk: list[int]) -> None:
        if bar is not None:
            bar.update(len(chunk))

    try:
        with ThreadPoolExecutor(workers) as pool:
            try:
                for first, *others in groups:
                    run_chunk(first)  # alone, since it compiles for its group
                    update_bar(first)
                    for chunk, _ in zip(others, pool.map(run_chunk, others), strict=True):
                        update_bar(chunk)
            except BaseException:
                asked.set()
                raise
    finally:
        if bar is not None:
            bar.close()


@contextlib.contextmanager
def _attach_on_error(name: str, kept: dict[int, PyTree]) -> Iterator[None]:
    """Attach what is in `kept` to an interrupt or an error, as an attribute of this name."""
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        begun = "The runs that were begun" if name == "trajectories" else "The rows so far"
        error.add_note(f"{begun} are in the `.{name}` of this error.")
        single = {k: one for k, one in kept.items() if isinstance(one, Trajectory)}
        rows = {k: one for k, one in kept.items() if k not in single}
        setattr(error, name, single if name == "trajectories" else rows)
        raise


def _sweep_members(networks, tasks, points) -> list[tuple[AbstractModel, Task]]:
    """Return pairs of network and task, one per run; `ValueError` for numbers that do not fit."""
    networks = [as_model(f"networks[{k}]", one) for k, one in enumerate(networks)]
    for k, network in enumerate(networks):
        require_no_nan(f"networks[{k}]", as_module(network))
    if not networks:
        raise ValueError("`networks` is empty; give at least one.")
    if points and len(networks) != len(points):
        raise ValueError(
            f"`networks` holds {len(networks)} for {len(points)} points of `grid`; give one for "
            "each, or a function of its values."
        )
    tasks = [tasks] * len(networks) if isinstance(tasks, Task) else tasks
    if len(tasks) != len(networks):
        raise ValueError(
            f"`tasks` holds {len(tasks)} tasks for {len(networks)} networks; give one per network, "
            "or one task for all."
        )
    tasks = [CHECKS_BY_NAME["task"](f"tasks[{k}]", one) for k, one in enumerate(tasks)]
    return list(zip(networks, tasks, strict=True))


def _without_name(task: Task) -> Task:
    """Return the task without its name, which is part of its structure under JAX."""
    return replace_fields(task, name="")


def _run_batch(chunk, t1, mesh, options) -> list[Trajectory]:
    """Run one chunk: one member alone, or several under `vmap` and among a mesh's devices."""

    def run_one(network, task):
        return gradient_flow(network, task, t1, throw=False, **options)

    if len(chunk) == 1 and mesh is None:
        return [run_one(*chunk[0])]
    devices = 1 if mesh is None else mesh.devices.size
    missing = -len(chunk) % devices  # the last chunk repeats its last member
    networks, tasks = zip(*chunk, *[chunk[-1]] * missing, strict=True)
    networks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks)
    if all(task is tasks[0] for task in tasks):  # closed over, so that trajectories know it
        runs, stacked = jax.vmap(lambda network: run_one(network, tasks[0])), (networks,)
    else:
        runs = jax.vmap(run_one)
        unnamed = [_without_name(task) for task in tasks]
        stacked = (networks, jax.tree.map(lambda *leaves: jnp.stack(leaves), *unnamed))
    if mesh is not None:
        # Mapped by hand: under one loop for all, every run would wait for the slowest of all.
        mesh = automatic_mesh(mesh)
        spec = PartitionSpec(mesh.axis_names)
        stacked = jax.device_put(stacked, NamedSharding(mesh, spec))
        runs = jax.shard_map(runs, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    if mesh is None:
        flows = jax.jit(runs)(*stacked)
    else:  # every process has all of them, and of each one copy
        flows = jax.jit(runs, out_shardings=NamedSharding(mesh, PartitionSpec()))(*stacked)
        flows = jax.tree.map(lambda a: a.addressable_data(0), flows)
    rows = [jax.tree.map(lambda a, k=k: a[k], flows) for k in range(len(chunk))]
    return [trim_and_raise(row, False, lambda flow: "") for row in rows]
