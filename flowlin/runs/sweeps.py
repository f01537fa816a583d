"""Many runs in one call."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flowlin._tools.arrays import automatic
from flowlin._tools.bar import tqdm_bar
from flowlin._tools.checks import (
    WORDS,
    checked,
    function_of,
    refuse,
    require_known,
    sequence_of,
    whole,
)
from flowlin._tools.copies import copied
from flowlin._tools.frame import data_frame
from flowlin._tools.result import RESULTS, okay
from flowlin._tools.show import shown
from flowlin._tools.warning import warn
from flowlin.log.eventlog import COLUMNS
from flowlin.network.foreign import model
from flowlin.network.model import AbstractModel
from flowlin.runs import summary
from flowlin.runs.flow import gradient_flow
from flowlin.runs.interrupts import broken_off_by
from flowlin.runs.trajectory import Trajectory, finished
from flowlin.tasks.task import Task


@checked(flows=sequence_of(WORDS["flow"], "a list of trajectories"))
@shown(summary.sweep)
class Sweep(Sequence[Trajectory]):
    """The runs of a sweep, in the order of its networks."""

    def __init__(self, flows: Sequence[Trajectory]):
        self.flows = tuple(flows)

    def __len__(self) -> int:
        return len(self.flows)

    def __getitem__(self, index) -> Any:
        if not isinstance(index, (int, np.integer, slice)):
            raise refuse("index", "a whole number or a slice", index)
        if isinstance(index, slice):
            return Sweep(self.flows[index])
        if not -len(self) <= index < len(self):  # what sequences raise, which ends loops over them
            raise IndexError(f"`index` = {index} is out of range: the sweep has {len(self)} runs.")
        return self.flows[index]

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.flows)

    @property
    def failed(self) -> dict[int, str]:
        """Which runs did not reach their end, and why."""
        return {
            k: RESULTS[flow.result] for k, flow in enumerate(self.flows) if not okay(flow.result)
        }

    @checked(function=function_of("flow"))
    def map(self, function: Callable[[Trajectory], Any]) -> Any:
        """A function of every run; its arrays stacked along a leading axis (runs, ...)."""
        rows = [function(flow) for flow in self.flows]
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *rows)

    def table(self) -> list[dict[str, Any]]:
        """The events of all runs, one dictionary each as `EventLog.table`, led by `run`."""
        return [
            {"run": k} | row for k, flow in enumerate(self.flows) for row in flow.events.table()
        ]

    def to_pandas(self) -> Any:
        """`table()` as a `pandas.DataFrame`, one row per event of any run.

        **Raises:** `ImportError` if pandas is missing.
        """
        return data_frame(self.table(), ("run", *COLUMNS))


def _listed(name: str, value: Any) -> tuple:
    """Networks in a list; a single one is none, since it may be a stack."""
    if isinstance(value, eqx.Module):  # some of which can be iterated over
        raise ValueError("`networks` must be a list of networks; unstack it with `jax.tree.map`.")
    return sequence_of(model, "a list of networks")(name, value)


def _tasks(name: str, value: Any) -> Any:
    """One task, or several in a list."""
    if isinstance(value, Task):
        return value
    return sequence_of(WORDS["task"], "a task or a list of tasks")(name, value)


@checked(networks=_listed, tasks=_tasks, batch=whole(1), workers=whole(1))
def sweep(
    networks: Sequence[eqx.Module],
    tasks: Task | Sequence[Task],
    t1: float,
    *,
    mesh: Mesh | None = None,
    batch: int | None = None,
    workers: int | None = None,
    progress: bool = False,
    **options: Any,
) -> Sweep:
    """Gradient flow of many networks of one shape: seeds, variances, c, tasks.

    On a CPU the members run one by one in threads: an adaptive run's cost is in small operations,
    which `vmap` does not make cheaper, and it makes every run wait for the slowest
    (`benchmarks/sweep.py`). On an accelerator they run in batches under `vmap`.

    **Arguments:**

    - `networks`: all of one kind and shape, so that one compilation serves all; of flowlin, or
      other Equinox modules as for `gradient_flow`.
    - `tasks`: one for all, or one per network, all of one shape.
    - `t1`, `options`: as for `gradient_flow`; each run's result equals its own. `throw` is not
      among them: runs that fail are in `failed`, and a warning counts them.
    - `mesh`: devices among which the members of each batch are split, along all its
      axes; every device runs its own members, which wait for no other device's.
    - `batch`: members under one `vmap`; None is 1 on a CPU and 256 elsewhere, per device of a mesh.
    - `workers`: threads; None is one per core on a CPU and one elsewhere, or with a mesh.
    - `progress`: a tqdm bar over the runs.

    Ctrl-C carries the runs that were begun as `error.trajectories`, a dictionary by place.

    **Returns:** a `Sweep`, the runs' trajectories in order.

    **Raises:** `ValueError` for no networks, different shapes, or numbers that do not fit.
    """
    members = _members(networks, tasks)
    require_known(options, gradient_flow, of=sweep)
    if "throw" in options:
        raise ValueError("`throw` is not for sweeps; look at `sweep.failed`.")
    if "checkpoint" in options:
        raise ValueError(
            "`checkpoint` is not for sweeps, whose runs would share one file; call "
            "`gradient_flow` for each with a file of its own."
        )
    on_cpu = jax.default_backend() == "cpu"
    devices = 1 if mesh is None else mesh.devices.size
    batch = batch or devices * (1 if on_cpu else 256)
    workers = workers or ((os.cpu_count() or 1) if on_cpu and mesh is None else 1)
    chunks = [members[k : k + batch] for k in range(0, len(members), batch)]

    def run(chunk):
        return _together(chunk, t1, mesh, options)

    result = Sweep(_all(run, chunks, workers, progress))
    if result.failed:
        k, why = next(iter(result.failed.items()))
        warn(
            f"{len(result.failed)} of {len(result)} runs failed, run {k} first: {why} "
            "`sweep.failed` lists them.",
        )
    return result


def _all(
    run: Callable[[Any], list[Trajectory]], chunks: Sequence[Any], workers: int, progress: bool
) -> list[Trajectory]:
    """The runs of all chunks.

    An interrupt breaks them off, and carries those that were begun as `.trajectories`, by place.
    """
    asked = threading.Event()
    kept: dict[int, list[Trajectory]] = {}
    bar = tqdm_bar(sum(map(len, chunks)), unit="run") if progress else None

    def one(place: int) -> None:
        with broken_off_by(asked):
            if asked.is_set():
                return
            try:
                kept[place] = run(chunks[place])
            except KeyboardInterrupt as error:
                begun = getattr(error, "trajectory", None)
                kept[place] = [] if begun is None else [begun]
                raise

    try:
        with ThreadPoolExecutor(workers) as pool:
            try:
                one(0)  # alone, since it compiles for all
                if bar is not None:
                    bar.update(len(kept[0]))
                for place, _ in enumerate(pool.map(one, range(1, len(chunks))), 1):
                    if bar is not None:
                        bar.update(len(kept[place]))
            except BaseException:
                asked.set()
                raise
    except KeyboardInterrupt as error:
        error.trajectories = {}  # pyright: ignore
        error.add_note("The runs that were begun are in the `.trajectories` of this error.")
        size = len(chunks[0])
        for place, flows in kept.items():
            rows = {place * size + k: flow for k, flow in enumerate(flows)}
            error.trajectories |= rows  # pyright: ignore
        raise
    finally:
        if bar is not None:
            bar.close()
    return [flow for place in range(len(chunks)) for flow in kept[place]]


def _members(networks, tasks) -> list[tuple[AbstractModel, Task]]:
    """Pairs of network and task, checked to be of one shape."""
    if not networks:
        raise ValueError("`networks` is empty; give at least one.")
    tasks = [tasks] * len(networks) if isinstance(tasks, Task) else tasks
    if len(tasks) != len(networks):
        raise ValueError(
            f"`tasks` holds {len(tasks)} tasks for {len(networks)} networks; give one per network, "
            "or one task for all."
        )
    for name, items in (("networks", networks), ("tasks", [_unnamed(task) for task in tasks])):
        shapes = [(jax.tree.structure(m), [a.shape for a in jax.tree.leaves(m)]) for m in items]
        odd = [k for k, shape in enumerate(shapes) if shape != shapes[0]]
        if odd:
            raise ValueError(
                f"`{name}[{odd[0]}]` has another kind or shape than `{name}[0]`; make one "
                "sweep for each."
            )
    return list(zip(networks, tasks, strict=True))


def _unnamed(task: Task) -> Task:
    """The task without its name, which is part of its structure."""
    return copied(task, name="")


def _together(chunk, t1, mesh, options) -> list[Trajectory]:
    """The runs of one chunk: one alone, or several under `vmap` and among a mesh's devices."""

    def one(network, task):
        return gradient_flow(network, task, t1, throw=False, **options)

    if len(chunk) == 1 and mesh is None:
        return [one(*chunk[0])]
    devices = 1 if mesh is None else mesh.devices.size
    missing = -len(chunk) % devices  # the last chunk repeats its last member
    networks, tasks = zip(*chunk, *[chunk[-1]] * missing, strict=True)
    networks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks)
    if all(task is tasks[0] for task in tasks):  # closed over, so that trajectories know it
        runs, stacked = jax.vmap(lambda network: one(network, tasks[0])), (networks,)
    else:
        runs = jax.vmap(one)
        unnamed = [_unnamed(task) for task in tasks]
        stacked = (networks, jax.tree.map(lambda *leaves: jnp.stack(leaves), *unnamed))
    if mesh is not None:
        # Mapped by hand: under one loop for all, every run would wait for the slowest of all.
        mesh = automatic(mesh)
        spec = PartitionSpec(mesh.axis_names)
        stacked = jax.device_put(stacked, NamedSharding(mesh, spec))
        runs = jax.shard_map(runs, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    flows = jax.jit(runs)(*stacked)
    if mesh is not None:  # every process has all of them
        flows = jax.device_put(flows, NamedSharding(mesh, PartitionSpec()))
    rows = [jax.tree.map(lambda a, k=k: a[k], flows) for k in range(len(chunk))]
    return [finished(row, False, lambda flow: "") for row in rows]
