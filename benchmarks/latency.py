"""What a user waits for beside the steps: first calls, further calls, and a call's overhead.

    python benchmarks/latency.py [--quick] [--repeats 3] [--only JOB ...] [--against FOLDER]

"README" is all that stands there after its imports, of each version its own: a task, its modes, a
network, its flow with mode hits, the linearization; "ten lines" is that flow alone. Each job runs
in a process of its own, without a persistent compilation cache: the first call, which compiles;
the median of further calls, with other seeds where it has one; and how many programs were
compiled. "overhead" is a linear flow of a few steps: nearly all of it is what a call costs. "two
layers" is an exact walk of 5 + 5 units on the same task, "MLP" one of the same network as an
Equinox module.
`--against` runs every job in turns with the flowlin of another checkout, too, and writes both. Wall
seconds, medians over the repeats. Writes `latency.json` and the table `latency.md` to
`benchmarks/results/`; a choice of jobs with `--only`, which is printed, is not written.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import _common
import numpy as np

CHILD = """
import contextlib, io, json, pathlib, sys, time
import equinox as eqx
import jax
import jax.monitoring
jax.config.update("jax_enable_x64", True)
import flowlin as fl

programs = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration, **_: programs.append(event)
    if event == "/jax/core/compile/backend_compile_duration" else None
)
def lines(k, text=(pathlib.Path(fl.__file__).parents[1] / "README.md").read_text()):
    block = text.split("```python\\n")[1].split("```")[0].split("import flowlin as fl\\n")[1]
    with contextlib.redirect_stdout(io.StringIO()):
        exec(block, {"fl": fl, "jax": jax})

def prepared():
    task = fl.tasks.hierarchy(levels=3)
    modes = fl.theory.modes(task, bias_strength=1.0)
    half = fl.ModeHits(modes, rho=0.5 * modes.full_strength)  # words that older versions know

    def network(kind, seed, hidden=(64,), variance=2e-4):
        return kind.init(task, hidden=hidden, variance=variance, key=jax.random.key(seed))

    relu = {seed: network(fl.ReLUNetwork, seed) for seed in range(4)}
    linear = {seed: network(fl.LinearNetwork, seed) for seed in range(20)}
    deep = {seed: network(fl.ReLUNetwork, seed, (5, 5), 0.05) for seed in range(4)}
    mlps = {seed: mlp(deep[seed]) for seed in deep}
    jax.block_until_ready(jax.tree.leaves((relu, linear, deep, mlps, modes)))
    return task, half, relu, linear, deep, mlps

def mlp(network):
    "The same network as an Equinox module."
    found = eqx.nn.MLP(8, 15, 5, 2, use_final_bias=False, key=jax.random.key(0))
    where = lambda m: [*(one.weight for one in m.layers), *(one.bias for one in m.layers[:2])]
    return eqx.tree_at(where, found, [*network.weights, *network.biases[:2]])

jobs = {"README": (lines, 3)}
if sys.argv[1] not in jobs:
    task, half, relu, linear, deep, mlps = prepared()
    flow = fl.gradient_flow
    jobs = {
        "ten lines": (lambda k: flow(relu[k], task, 60.0, events=(half,)), 3),
        "linear": (lambda k: flow(linear[k], task, 60.0), 19),
        "linear, mode hits": (lambda k: flow(linear[k], task, 60.0, events=(half,)), 19),
        "overhead": (lambda k: flow(linear[k % 20], task, 0.01), 399),
        "two layers": (lambda k: flow(deep[k], task, 20.0), 3),
        "MLP": (lambda k: flow(mlps[k], task, 20.0), 3),
        "descent": (lambda k: fl.gradient_descent(relu[k], task, 1e-2, 500), 3),
    }
if sys.argv[1] == "linearization":
    flows = {k: flow(relu[k], task, 60.0, rtol=1e-6) for k in range(2)}
    jobs["linearization"] = lambda k: flows[k].linearization(), 1
run, more = jobs[sys.argv[1]]
programs.clear()

def seconds(k):
    start = time.perf_counter()
    jax.block_until_ready([a for a in jax.tree.leaves(run(k)) if isinstance(a, jax.Array)])
    return time.perf_counter() - start

first, compiled = seconds(0), len(programs)
warm = sorted(seconds(k) for k in range(1, more + 1))[more // 2]
print(json.dumps({"first": first, "further": warm, "programs": compiled}))
"""
FLOWS = ("ten lines", "linear", "linear, mode hits", "overhead")
JOBS = ("README", *FLOWS, "two layers", "MLP", "linearization", "descent")
HEAD = ("job", "first call", "further calls", "programs")


def measured(job: str, folder: pathlib.Path) -> dict[str, float]:
    """One process with the flowlin of this folder."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", CHILD, job],
            cwd=elsewhere,
            env=clean | {"PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise RuntimeError(f"{job}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def contest(job: str, folders: list[pathlib.Path], repeats: int) -> dict[str, Any]:
    """Medians of a job, in turns; those of a second folder under "before", if it can do it."""
    found = [[measured(job, folders[0])]]
    try:
        found += [[measured(job, folder)] for folder in folders[1:]]
    except RuntimeError as error:
        print(f"not of the other version: {str(error).strip().splitlines()[-1]}", flush=True)
    for _ in range(repeats - 1):
        for rows, folder in zip(found, folders, strict=False):  # without one that cannot do it
            rows.append(measured(job, folder))
    medians = [
        {name: float(np.median([row[name] for row in rows])) for name in rows[0]} for rows in found
    ]
    before = {"before": medians[1]} if len(medians) > 1 else {}
    return {"job": job, **medians[0], **before}


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown, with the ratio to before where there is one."""

    def cell(row: dict[str, Any], name: str) -> str:
        digits = "{:.0f}" if name == "programs" else "{:.3g} s"
        text, before = digits.format(row[name]), row.get("before")
        return text if before is None else f"{text} (before {digits.format(before[name])})"

    cells = [
        [row["job"], *(cell(row, n) for n in ("first", "further", "programs"))] for row in rows
    ]
    return _common.markdown_table(HEAD, cells)


def main() -> None:
    """Measure and write."""
    parser = _common.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=pathlib.Path, help="a checkout of another version")
    parser.add_argument("--only", nargs="+", choices=JOBS, default=JOBS, metavar="JOB")
    given = parser.parse_args()
    folders = [pathlib.Path(__file__).resolve().parent.parent]
    folders += [given.against.resolve()] if given.against else []
    if given.quick:
        print(table([contest("overhead", folders, 1)]))
        return
    rows = [contest(job, folders, given.repeats) for job in given.only]
    text = table(rows)
    if given.against:
        asked = ["git", "-C", str(given.against), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        text += f"\n\nBefore: commit {commit}."
    print(text)
    if given.only == JOBS:
        _common.save("latency", rows, text)


if __name__ == "__main__":
    main()
