"""Shared by the benchmark scripts; switches JAX to float64."""

import argparse
import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import flowlin as fl

RESULTS = pathlib.Path(__file__).parent / "results"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser that knows `--quick`."""
    found = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--quick", action="store_true", help="seconds; leaves the results alone")
    return found


def gaussian(samples: int, inputs: int = 6, outputs: int = 3, seed: int = 7) -> fl.Task:
    """Standard normal inputs and targets."""
    keys = jax.random.split(jax.random.key(seed))
    x = jax.random.normal(keys[0], (samples, inputs))
    return fl.Task(x, jax.random.normal(keys[1], (samples, outputs)), name=f"gaussian {samples}")


def toys() -> dict[str, fl.Task]:
    """The tasks that the exact walk is judged on."""
    return {
        "hierarchy": fl.tasks.hierarchy(),
        "xor": fl.tasks.xor(),
        "xor 0/1": fl.tasks.xor(binary=True),
        "offset xor": fl.tasks.offset_xor(),
        "gaussian": gaussian(40),
    }


def flat(network: Any) -> np.ndarray:
    """All weights and biases in one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(network.parameters)])


def exact_walk(network: Any, task: fl.Task, t1: float, rtol: Any, **options: Any) -> Any:
    """The exact walk."""
    return fl.gradient_flow(network, task, t1, kinks=fl.ExactKinks(), rtol=rtol, **options)


@jax.jit
def _descend(network: Any, task: fl.Task, rate: Any, steps: Any) -> Any:
    loss = fl.SquaredError()

    def value(parameters):
        return loss(network.with_parameters(parameters).outputs(task.x), task.y)

    def step(_, parameters):
        gradient = jax.grad(value)(parameters)
        return jax.tree.map(lambda p, g: p - rate * g, parameters, gradient)

    return jax.lax.fori_loop(0, steps, step, network.parameters)


def descended(network: Any, task: fl.Task, t1: float, rate: float) -> Any:
    """Plain full-batch descent for a time t1 in one jitted loop, nothing looked at."""
    steps = round(t1 / rate)
    return network.with_parameters(_descend(network, task, t1 / steps, steps))


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    """Wall time and result of one call."""
    start = time.perf_counter()
    result = jax.block_until_ready(run())
    return time.perf_counter() - start, result


def alternated(
    runs: dict[str, Callable[[], Any]], repeats: int, budget: float = 30
) -> dict[str, float]:
    """Median wall time of each, taking turns; everything must have been compiled before.

    What has taken more than `budget` seconds, half a minute, is not run again.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            if sum(times[name]) < budget:
                times[name].append(seconds(run)[0])
    return {name: float(np.median(found)) for name, found in times.items()}


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table as Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def save(name: str, results: Sequence[Any], text: str | None = None) -> None:
    """Write `results/name.json`, one line per entry, and its table `results/name.md`."""
    RESULTS.mkdir(exist_ok=True)
    body = ",\n".join(json.dumps(entry) for entry in results)
    (RESULTS / f"{name}.json").write_text(f"[\n{body}\n]\n")
    if text is not None:
        (RESULTS / f"{name}.md").write_text(text + "\n")


def print_and_save(
    name: str, entries: Sequence[Any], table: Callable[[Any], str], title: str, quick: bool
) -> None:
    """Print the table of a benchmark's entries, and save both under its title unless quick."""
    print(table(entries))
    if not quick:
        save(name, entries, f"{title}\n\n{table(entries)}")
