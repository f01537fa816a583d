"""Several devices against one; run by `test_sharded.py`, alone or as two processes."""

import faulthandler
import math
import pathlib
import sys
from typing import Any

import diffrax
import jax
import numpy as np
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2 if sys.argv[1:] else 8)

import flowlin as fl
from flowlin.training import objective as chunks
from flowlin.training.rules import choose_objective

SAMPLES = 1040  # 130 rows per device: chunks and a remainder
# By name, so that no run measures stiffness, in programs of its own.
SWEPT: dict[str, Any] = {"rtol": 1e-6, "solver": diffrax.Tsit5()}


def data(samples: int = SAMPLES) -> fl.Task:
    """The same on every process."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, 5))
    return fl.Task(x, np.eye(3)[np.argmax(x[:, :3], axis=1)])


def flat(network) -> np.ndarray:
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(network.parameters)])


def close(one, other, rtol=1e-9) -> None:
    np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-12)


def same_run(
    task, shared, kind: Any = fl.ReLUNetwork, run=fl.gradient_flow, t=(1.0,), hidden=(6,), **options
):
    network = kind.init(task, hidden, 0.1, key=jax.random.key(1))
    one, many = (run(network, place, *t, **options) for place in (task, shared))
    close(many.losses, one.losses)
    close(flat(many.final), flat(one.final), 1e-8)
    assert len(many.events) == len(one.events)
    close(many.events.time, one.events.time, 1e-7)
    return many


def check_flows(task, shared) -> None:
    """Every objective, and gates that are averaged, in chunks (the caller sets their size).

    Units that switch, and kinks that are ignored, are watched by the two processes.
    """
    modes, loss = fl.theory.modes(task, 1.0), fl.LossBelow(0.4)
    hits = fl.ModeHits(modes, 0.1 * modes.full_strength)
    options = {"kinks": fl.AveragedKinks(), "rtol": 1e-3}
    same_run(task, shared, **options)
    deep = same_run(task, shared, hidden=(5, 4), **options)
    assert deep.stats["solver"] == "AveragedGraph"
    descent = {"run": fl.gradient_descent, "t": (0.1, 30)}
    statistics = same_run(task, shared, fl.LinearNetwork, events=(loss, hits), **descent)
    assert (
        choose_objective(statistics.final, shared, fl.SquaredError()).stats_label
        == "LinearStatistics"
    )
    assert {e["name"] for e in statistics.events.table()} >= {"loss", "mode"}


def check_collectives(task, shared) -> None:
    """No device sees more than its rows, and sums are joined once, not in every chunk."""
    network = fl.ReLUNetwork.init(task, 6, 0.1, key=jax.random.key(1))
    frozen = network.frozen(shared)
    for one in (network, frozen):
        goal = choose_objective(one, shared, fl.SquaredError())
        compiled = jax.jit(lambda goal, n: goal.gradient(n)).lower(goal, one).compile()
        text = compiled.as_text() or ""
        assert "all-gather" not in text
        assert "all-to-all" not in text
        assert "while" in text
        joined = [line for line in text.splitlines() if " all-reduce(" in line]
        assert joined
        assert not [line for line in joined if "while/body" in line]
    goal = choose_objective(frozen, shared, fl.SquaredError())
    own = choose_objective(network.frozen(task), task, fl.SquaredError())
    close(goal.gradient(frozen)[0][0], own.gradient(network.frozen(task))[0][0])


def check_sweep(mesh) -> None:
    task = data(40)
    networks = [fl.LinearNetwork.init(task, 3, 0.1, key=jax.random.key(k)) for k in range(10)]
    options = {"events": (fl.LossBelow(0.4),), "max_events": 512} | SWEPT
    one = fl.sweep(networks, task, 2.0, **options)
    many = fl.sweep(networks, task, 2.0, mesh=mesh, **options)
    assert len(many) == 10
    assert many[0].reference.task is task
    for a, b in zip(one, many, strict=True):
        close(flat(b.final), flat(a.final))
        assert len(a.events) == len(b.events)
        close(b.events.time, a.events.time)


def eight_devices() -> None:
    """All of it on eight devices of this process."""
    mesh = jax.make_mesh((8,), ("samples",))
    task = data()
    shared = task.sharded(mesh)
    assert shared.shards == 8
    check_collectives(task, shared)
    check_flows(task, shared)
    check_sweep(mesh)
    with pytest.raises(ValueError, match="do not divide the 12 samples; take 8"):
        data(12).sharded(mesh)
    with pytest.raises(ValueError, match="none of the mesh's axes"):
        task.sharded(mesh, "rows")


def one_process(port: str, process: int, folder: str) -> None:
    """One of two processes with two devices each; gives its own rows only.

    The first compares with a run on one device, and `test_sharded.py` the two with each other.
    """
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
    mesh = jax.make_mesh((4,), ("samples",))
    whole = data()
    rows = slice(process * SAMPLES // 2, (process + 1) * SAMPLES // 2)
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("samples"))
    x, y = (
        jax.make_array_from_process_local_data(split, np.asarray(a)[rows])
        for a in (whole.x, whole.y)
    )
    shared = fl.Task(x, y).sharded(mesh)
    assert shared.shards == 4
    assert not shared.x.is_fully_addressable
    network = fl.ReLUNetwork.init(whole, 6, 0.1, key=jax.random.key(1))
    options = {
        "kinks": fl.IgnoreKinks(),
        "solver": diffrax.Bosh3(),
        "events": (fl.LossBelow(0.4), fl.UnitSwitches()),
        "rtol": 1e-3,
    }
    many = fl.gradient_flow(network, shared, 3.0, **options)
    if process == 0:
        one = fl.gradient_flow(network, whole, 3.0, **options)
        close(flat(many.final), flat(one.final), 1e-8)
        close(many.events.time, one.events.time, 1e-7)
    assert len(many.events.select("loss")) == 1
    print("numbers", flat(many.final).tolist(), many.events.time.tolist())
    with pytest.raises(ValueError, match="NaN or infinite"):
        fl.Task(x / 0, y)
    networks = [fl.LinearNetwork.init(whole, 3, 0.1, key=jax.random.key(k)) for k in range(5)]
    one, many = (fl.sweep(networks, whole, 1.0, mesh=m, **SWEPT) for m in (None, mesh))
    for a, b in zip(one, many, strict=True):
        close(flat(b.final), flat(a.final))
    check_recorded(whole, networks, process, pathlib.Path(folder) / "runs.csv")


def check_recorded(task: fl.Task, networks: list, process: int, table: pathlib.Path) -> None:
    """Each process makes every second run, into a table of its own, and has the rows of all."""
    made = []

    def record(flow):
        made.append(float(flow.losses[-1]))
        return {"loss": flow.losses[-1], "gap": math.inf, "odd": len(made) % 2 == 1}

    def again(seeds):
        members, grid = networks[:seeds], fl.grid(seed=range(seeds))
        options = {"grid": grid, "checkpoint": table} | SWEPT
        return fl.sweep(members, task, 1.0, record=record, **options)

    again(3)
    assert len(made) == 2 - process
    runs = again(5)
    assert len(made) == 3 - process
    alone = fl.sweep(networks, task, 1.0, **SWEPT)
    assert runs.columns["loss"].tolist() == [float(flow.losses[-1]) for flow in alone]
    assert runs.columns["gap"].tolist() == 5 * [math.inf]
    assert runs.columns["odd"].tolist() == [True, True, False, False, True]
    own = table.with_name(f"runs.process-{process}.csv")
    assert own.read_text().count("\n") == 4 - process
    assert not table.exists()
    mesh = jax.make_mesh((4,), ("samples",))
    with pytest.raises(ValueError, match="leave out `mesh`"):
        fl.sweep(networks, task, 1.0, record=record, checkpoint=table, mesh=mesh)


def main() -> None:
    faulthandler.dump_traceback_later(200)  # where it stands, should it wait for the other for ever
    chunks.MIN_CHUNK_ROWS, chunks.CHUNK_BYTES["cpu"] = 16, 1
    if sys.argv[1:]:
        one_process(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        eight_devices()
    print("all equal")


if __name__ == "__main__":
    main()
