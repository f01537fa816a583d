"""What a GPU is good for: evaluations, a flow on all of MNIST, walks, sweeps, implicit steps.

    python benchmarks/gpu.py [--quick]
    JAX_PLATFORMS=cpu python benchmarks/gpu.py

Rows of the device that JAX takes, in `gpu.json`; those of other devices stay as they were saved,
so that run twice it has the processor of the same machine beside the GPU. Everything is compiled
before it is timed. Products are as precise as their arrays, "highest", which runs take by
themselves, or float32 ones in TF32, which is what JAX takes on a GPU by default.

- *field*: one evaluation of the ReLU field on all of MNIST or grey CIFAR-10 (Gaussian inputs of
  their sizes), over the time of its two large products alone.
- *flow*: all of MNIST, H = 512, c = 10, to t = 2, averaged gates at rtol 1e-3 in float32, with ten
  mode hits and four levels of the loss, and without.
- *walk*: the exact walk of the README's tree, one network, and a sweep of 64 of them.
- *implicit*: `fl.RecycledBDF` on a linear network of digits, c = 10, to t = 3,000.

Writes `gpu.json` and the table `gpu.md` to `benchmarks/results/`.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import _common
import evaluation
import image_tolerance
import jax
import jax.numpy as jnp
import numpy as np

import flowlin as fl

SIZES = {"MNIST": (60_000, 784, 512), "CIFAR-10": (50_000, 1024, 1024)}


def device() -> str:
    """Its name; processors have none that JAX tells."""
    found = jax.devices()[0]
    return found.device_kind if found.platform != "cpu" else f"{len(os.sched_getaffinity(0))} cores"


def fields(quick: bool) -> Iterator[dict[str, Any]]:
    """Evaluations, in both precisions and in TF32."""
    for name, size in SIZES.items():
        size = (500, 30, 16) if quick else size
        for dtype, precision in (
            (jnp.float32, "highest"), (jnp.float32, "tensorfloat32"), (jnp.float64, "highest"),
        ):  # fmt: skip
            with jax.default_matmul_precision(precision):
                found = evaluation.row(size, dtype, 5)
            flops = 4 * size[0] * size[1] * size[2]
            yield {
                "what": f"field, {name}, H = {size[2]}, {found['dtype']}, {precision}",
                "seconds": found["field, ms"] / 1e3,
                "TFlop/s": flops / found["field, ms"] / 1e9,
                "over its products": found["ratio"],
            }


def flows(quick: bool) -> Iterator[dict[str, Any]]:
    """A ReLU flow on all images, with events and without, and with products in TF32."""
    problem = image_tolerance.Problem("mnist", 200 if quick else None, False, (512,), 10.0, 2.0)
    task = problem.task
    network = problem.network(task)
    events = image_tolerance.events_of(network, task)
    how = {"kinks": fl.AveragedKinks(), "rtol": 1e-3}

    def run(events: list[Any]) -> fl.Trajectory:
        return fl.gradient_flow(network, task, problem.t1, events=events, **how)

    known = None
    for precision in ("highest", "tensorfloat32"):
        with jax.default_matmul_precision(precision):
            for label, watched in (("with events", events), ("without", [])):
                run(watched)
                seconds, flow = _common.seconds(lambda watched=watched: run(watched))
                row = {
                    "what": f"flow, MNIST, float32, {precision}, {label}",
                    "seconds": seconds,
                    "evaluations": int(flow.stats["evaluations"]),
                }
                if watched:
                    times = image_tolerance.times(flow)
                    known = times if known is None else known
                    both = np.isfinite(times) & np.isfinite(known)
                    row["events off by"] = float(np.max(np.abs(times[both] / known[both] - 1)))
                yield row


def walks(quick: bool) -> Iterator[dict[str, Any]]:
    """One exact walk and many."""
    task, t1, count = fl.tasks.hierarchy(), 2.0 if quick else 60.0, 2 if quick else 64
    networks = [fl.ReLUNetwork.init(task, 16, key=jax.random.key(k)) for k in range(count)]
    for label, made in (
        ("walk, tree, H = 16, one", lambda: fl.gradient_flow(networks[0], task, t1)),
        (f"walk, tree, H = 16, a sweep of {count}", lambda: fl.sweep(networks, task, t1).flows),
    ):
        made()
        yield {"what": label, "seconds": _common.seconds(made)[0]}


def implicit(quick: bool) -> Iterator[dict[str, Any]]:
    """RecycledBDF, and RKC beside it."""
    task = fl.tasks.digits()
    network = fl.LinearNetwork.init(task, bias_strength=10.0, key=jax.random.key(0))
    for solver in (fl.RecycledBDF(), fl.RKC()):

        def made(solver: Any = solver) -> fl.Trajectory:
            t1 = 3.0 if quick else 3e3
            return fl.gradient_flow(network, task, t1, solver=solver, rtol=1e-5)

        made()
        seconds, flow = _common.seconds(made)
        name = f"implicit, digits, c = 10, {type(solver).__name__}"
        yield {
            "what": name, "seconds": seconds, "evaluations": int(flow.stats["evaluations"])
        }  # fmt: skip


def table(results: list[dict[str, Any]]) -> str:
    """A line for each row."""
    more = ("evaluations", "TFlop/s", "over its products", "events off by")
    rows = [
        [row["device"], row["what"], f"{row['seconds']:.3g}"]
        + [f"{row[name]:.3g}" if name in row else "" for name in more]
        for row in results
    ]
    return _common.markdown_table(["device", "what", "seconds", *more], rows)


def main() -> None:
    """Topic by topic, so that nothing is lost if it is broken off."""
    quick = _common.parser(__doc__).parse_args().quick
    path, here = _common.RESULTS / "gpu.json", device()
    results = json.loads(path.read_text()) if path.exists() else []
    results = [row for row in results if row["device"] != here]
    for topic in (fields, flows, walks, implicit):
        for row in topic(quick):
            results.append({"device": here, **row})
            print(results[-1], flush=True)
            if not quick:
                _common.save("gpu", results, table(results))


if __name__ == "__main__":
    main()
