"""Samples of a run, members of a sweep and exact walks, split among a cluster's devices.

    python examples/cluster.py                       the devices of this machine
    python examples/cluster.py --devices 8           a CPU that plays eight devices
    srun python examples/cluster.py --distributed    one process per task of a SLURM job
    python examples/cluster.py --coordinator HOST:PORT --processes 2 --process 0
                                                     the same by hand, once per process

Every process runs this script with the same options; each loads the images and gives the rows of
its own devices. Trains a ReLU network on digits or MNIST, a sweep over seeds of the semantic
tree's linear network, and exact walks over c and seeds, each process its share of them. Process 0
prints one table.
"""

import argparse
import time
from typing import Any

import jax
import numpy as np

import flowlin as fl

jax.config.update("jax_enable_x64", True)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=("digits", "mnist"), default="digits")
    parser.add_argument("--images", type=int, help="a stratified subset")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--t1", type=float, default=10.0)
    parser.add_argument("--members", type=int, default=32, help="networks of the sweep")
    parser.add_argument("--table", help="CSV file of the walks, which a later call goes on from")
    parser.add_argument("--devices", type=int, help="simulate as many CPU devices per process")
    parser.add_argument("--distributed", action="store_true", help="find the cluster's processes")
    parser.add_argument("--coordinator", help="address of process 0, HOST:PORT")
    parser.add_argument("--processes", type=int, help="number of processes")
    parser.add_argument("--process", type=int, help="which one this is, from 0")
    parser.add_argument("--quick", action="store_true", help="small and short, for tests")
    given = parser.parse_args()
    if given.quick:
        given.images, given.hidden, given.t1, given.equal_modes = 200, 8, 0.5, 4
        given.devices = given.devices or 2
    return given


GIVEN = options()
if GIVEN.devices:  # read once, when JAX asks for its devices
    jax.config.update("jax_num_cpu_devices", GIVEN.devices)


def start() -> None:
    """Join the other processes, if there are any."""
    if GIVEN.distributed:
        jax.distributed.initialize()
    elif GIVEN.coordinator:
        jax.distributed.initialize(GIVEN.coordinator, GIVEN.processes, GIVEN.process)


def shared_task(mesh: jax.sharding.Mesh) -> fl.Task:
    """The images, as many as the devices divide, every process with the rows of its devices."""
    whole = getattr(fl.tasks, GIVEN.task)(samples=GIVEN.images)
    samples = whole.samples - whole.samples % mesh.devices.size
    own = samples // jax.process_count()
    rows = slice(jax.process_index() * own, (jax.process_index() + 1) * own)
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("devices"))
    x, y = (
        jax.make_array_from_process_local_data(split, np.asarray(array)[rows])
        for array in (whole.x, whole.y)
    )
    return fl.Task(x, y, name=whole.name).sharded(mesh)


def full_run(mesh: jax.sharding.Mesh) -> tuple[str, ...]:
    """One network on all images, every device with its share of them."""
    task = shared_task(mesh)
    network = fl.ReLUNetwork.init(task, GIVEN.hidden, key=jax.random.key(0))
    before = time.perf_counter()
    flow = fl.gradient_flow(
        network,
        task,
        GIVEN.t1,
        kinks=fl.AveragedKinks(),
        rtol=1e-4,
        events=(fl.LossBelow(0.25), fl.UnitSwitches(0.01)),
    )
    seconds = time.perf_counter() - before
    result = f"loss {float(flow.losses[-1]):.6f}, {len(flow.events)} events"
    return (f"{task.name}, {task.samples} images", f"{seconds:.1f}", result)


def sweep(mesh: jax.sharding.Mesh) -> tuple[str, ...]:
    """Many networks, every device with its share of them."""
    task = fl.tasks.hierarchy()
    networks = [
        fl.LinearNetwork.init(task, 16, key=jax.random.key(seed))
        for seed in range(GIVEN.equal_modes)
    ]
    before = time.perf_counter()
    half = fl.LossBelow(0.5)
    runs = fl.sweep(networks, task, 6 * GIVEN.t1, mesh=mesh, events=(half,), max_events=64)
    seconds = time.perf_counter() - before
    times = [row["time"] for row in runs.table()]
    reached = f"median {np.median(times):.4f}" if times else "not reached"
    return (f"sweep, {len(runs)} seeds", f"{seconds:.1f}", f"loss 0.5 at t: {reached}")


def walks() -> tuple[str, ...]:
    """Exact walks, every process with its share of them, and all of them with all rows."""
    task = fl.tasks.hierarchy()

    def network(c: float, seed: int) -> fl.ReLUNetwork:
        return fl.ReLUNetwork.init(task, 16, 1e-3, bias_strength=c, key=jax.random.key(seed))

    def record(flow: fl.Trajectory) -> dict[str, Any]:
        return {"switches": len(flow.events), "loss": flow.losses[-1]}

    grid = fl.grid(c=[0.3, 1.0], seed=range(GIVEN.equal_modes))
    before = time.perf_counter()
    runs = fl.sweep(
        network, task, 3 * GIVEN.t1, grid=grid, record=record, checkpoint=GIVEN.table, rtol=1e-6
    )
    seconds = time.perf_counter() - before
    low, high = runs.columns["switches"].reshape(grid.shape).mean(axis=1)
    result = f"switches per run: {low:.1f} at c = 0.3, {high:.1f} at 1"
    return (f"exact walks, {len(runs)} runs", f"{seconds:.1f}", result)


def main() -> None:
    """All of it, and the table."""
    start()
    mesh = jax.make_mesh((jax.device_count(),), ("devices",))
    rows = [full_run(mesh), sweep(mesh), walks()]
    if jax.process_index() == 0:
        platform = jax.devices()[0].platform
        print(f"{jax.device_count()} {platform} devices in {jax.process_count()} process(es)\n")
        for row in (("what", "seconds", "result"), *rows):
            print(f"{row[0]:<28}{row[1]:>8}  {row[2]}")


if __name__ == "__main__":
    main()
