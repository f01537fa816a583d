"""Runs per second of a sweep: one process per run, one process for all, several as on a cluster.

    python benchmarks/sweep_processes.py [--quick] [--runs 200]

The same exact walks everywhere (semantic tree, 64 units, t = 60, rtol 1e-6, seeds), from the start
of Python to the last row on disk, with importing and compiling:

- a new process for every run, as a job array or a shell loop makes them, one per core at a time;
  without and with JAX's compilation cache, which an earlier run has filled;
- `fl.sweep` in one process, a thread per core;
- `fl.sweep` in as many processes as there are cores, joined by `jax.distributed`, one thread each:
  every process makes its share, and the rows are exchanged once, at the end. This is what runs on
  a cluster with one process per node.

Writes `sweep_processes.json` and the table `sweep_processes.md` to `benchmarks/results/`.
"""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

import _common
import jax

import flowlin as fl

SCRIPT = pathlib.Path(__file__)
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def options() -> Any:
    """The command line; that of the processes which this one starts too."""
    parser = _common.parser(__doc__)
    parser.add_argument("--runs", type=int, default=200, help="of a sweep")
    parser.add_argument("--single", type=int, default=8, help="processes of one run each")
    parser.add_argument("--part", nargs=5, help="what a process of this benchmark makes")
    return parser.parse_args()


def part(port: str, process: str, processes: str, seeds: str, table: str) -> None:
    """One process: its share of the seeds; prints the seconds of the sweep and of its first run.

    `seeds` are `first:last`, and no `port` stands for a process by itself.
    """
    if port:
        jax.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(process))
    first, last = map(int, seeds.split(":"))
    task, before, ends = fl.tasks.hierarchy(), time.perf_counter(), []

    def network(seed: int) -> fl.ReLUNetwork:
        return fl.ReLUNetwork.init(task, 64, 1e-3, key=jax.random.key(seed))

    def record(flow: fl.Trajectory) -> dict[str, Any]:
        ends.append(time.perf_counter())
        return {"loss": flow.losses[-1], "events": len(flow.events)}

    fl.sweep(
        network, task, 60.0, grid=fl.grid(seed=range(first, last)), record=record,
        checkpoint=table, rtol=1e-6, workers=1 if port else None,
    )  # fmt: skip
    print(time.perf_counter() - before, ends[0] - before)


def started(port: str, process: int, seeds: str, table: str, cache: str = "") -> subprocess.Popen:
    """A process of this script; `cache` is a folder for compiled programs."""
    own = {name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name}
    kept = {"JAX_COMPILATION_CACHE_DIR": cache} if cache else {}
    path = os.pathsep.join([str(SCRIPT.parent.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, SCRIPT, "--part", port, str(process), str(CORES), seeds, table],
        env=own | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"} | kept,
        stdout=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen) -> list[float]:
    """The numbers of the last line that it has printed."""
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a process ended with {process.returncode}.")
    return [float(word) for word in output.splitlines()[-1].split()]


def one_by_one(runs: int, folder: str, cache: str = "") -> float:
    """Seconds of as many processes of one run each, one per core at a time."""
    before, going = time.perf_counter(), []
    for seed in range(runs):
        if len(going) == CORES:
            finished(going.pop(0))
        table = f"{folder}/{time.monotonic_ns()}.csv"
        going.append(started("", 0, f"{seed}:{seed + 1}", table, cache))
    for process in going:
        finished(process)
    return time.perf_counter() - before


def together(runs: int, folder: str, processes: int) -> tuple[float, float]:
    """Seconds of a sweep in one process or in several, and those before its first run's end."""
    before, port = time.perf_counter(), ""
    if processes > 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
    table = f"{folder}/{processes}.csv"
    all_of_them = [started(port, k, f"0:{runs}", table) for k in range(processes)]
    inner = [finished(process) for process in all_of_them]
    total = time.perf_counter() - before
    return total, min(total - whole + first for whole, first in inner)


def rows(runs: int, single: int, folder: str) -> list[dict[str, Any]]:
    """Every way's seconds and runs per second."""
    found = []

    def add(way: str, number: int, seconds: float, start: float | None = None) -> None:
        steady = None if start is None else (number - 1) / (seconds - start)
        found.append({
            "way": way, "runs": number, "seconds": seconds, "before the first row": start,
            "runs per second": number / seconds, "runs per second after the first": steady,
        })  # fmt: skip
        print(found[-1], flush=True)

    add(f"a process per run, {CORES} at a time", single, one_by_one(single, folder))
    cache = f"{folder}/programs"
    one_by_one(1, folder, cache)
    seconds = one_by_one(single, folder, cache)
    add(f"a process per run, {CORES} at a time, programs kept", single, seconds)
    add(f"`fl.sweep`, one process, {CORES} threads", runs, *together(runs, folder, 1))
    add(f"`fl.sweep`, {CORES} processes, a thread each", runs, *together(runs, folder, CORES))
    return found


def table(found: list[dict[str, Any]]) -> str:
    """As Markdown."""
    head = ("way", "runs", "seconds", "runs per second", "after the first", "times as many")
    least = found[0]["runs per second"]
    lines = []
    for row in found:
        steady = row["runs per second after the first"]
        lines.append([
            row["way"], row["runs"], f"{row['seconds']:.0f}", f"{row['runs per second']:.2f}",
            "-" if steady is None else f"{steady:.1f}", f"{row['runs per second'] / least:.1f}",
        ])  # fmt: skip
    return _common.markdown_table(head, lines) + (
        f"\n\n{CORES} cores; from the start of Python to the last row on disk, importing and "
        "compiling included; in the fifth column without what comes before the first row."
    )


def main() -> None:
    """Measure and write."""
    given = options()
    if given.part:
        part(*given.part)
        return
    if given.quick:
        given.runs, given.single = 4, 1
    with tempfile.TemporaryDirectory() as folder:
        found = rows(given.runs, given.single, folder)
    print(table(found))
    if not given.quick:
        _common.save("sweep_processes", found, table(found))


if __name__ == "__main__":
    main()
