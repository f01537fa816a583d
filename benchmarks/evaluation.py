"""What one evaluation of the ReLU field costs, against its two large products alone.

    python benchmarks/evaluation.py [--quick] [--chunks] [--averaged]

X W^T and M^T X, jitted alone with the field's layouts: over all samples in one, and (since that
turns out slower on a CPU) in the field's own chunks. The ratio is to the faster of the two. Medians
of runs in turns within one process, float32 and float64, and the memory that the compiled
evaluation takes besides its arguments and results. `--chunks` tries other sizes of a chunk instead
of writing results. `--averaged` times a step of averaged gates, which is two evaluations, on tasks
of more and more samples: what small ones take for each sample is the least that a large one could
take, were its arrays made chunk by chunk. Writes `evaluation.json` and the table `evaluation.md`,
or `evaluation_averaged`, to `benchmarks/results/`.
"""

from typing import Any

import _common
import jax
import jax.numpy as jnp

import flowlin as fl
from flowlin.engine.kinks.averaged import AveragedGates
from flowlin.training import objective as chunks
from flowlin.training.objective import FullData

ROWS = (500, 1_000, 2_000, 4_000, 60_000)  # samples of a step of averaged gates
SIZES = ((5_000, 784, 512), (10_000, 784, 512), (5_000, 1024, 1024))


def problem(samples: int, inputs: int, hidden: int, dtype: Any) -> tuple[FullData, Any, Any]:
    """Objective, network and the matrix M of one size."""
    task = _common.gaussian(samples, inputs, 10).astype(dtype)
    network = fl.ReLUNetwork.init(task, hidden, bias_strength=10.0, key=jax.random.key(0))
    pulls = jax.random.normal(jax.random.key(1), (samples, hidden), dtype)
    return FullData(task, fl.SquaredError()), network, pulls


def products(w: Any, x: Any, m: Any) -> tuple[Any, Any]:
    """Both over all samples at once."""
    return x @ w.T, m.T @ x


def chunked_products(w: Any, x: Any, m: Any) -> Any:
    """Both in the field's chunks; z is looked at, or XLA would leave its product out."""

    def part(rows):
        x, m = rows
        return m.T @ x, jnp.max(x @ w.T, axis=0)

    return chunks.sum_over_samples(part, (x, m), w.shape[0])


def compiled(function: Any, *arguments: Any) -> tuple[Any, int]:
    """A call without arguments, run once, and its temporary memory in bytes."""
    made = jax.jit(function).lower(*arguments).compile()
    memory: Any = made.memory_analysis()
    jax.block_until_ready(made(*arguments))
    return lambda: made(*arguments), memory.temp_size_in_bytes


def row(size: tuple[int, int, int], dtype: Any, repeats: int) -> dict[str, Any]:
    """Times and memory of one size and precision."""
    goal, network, pulls = problem(*size, dtype)
    arguments = (network.weights[0], goal.task.x, pulls)
    field, memory = compiled(lambda goal, network: goal.gradient(network), goal, network)
    both, _ = compiled(lambda g, n: g.value_and_gradient(n), goal, network)
    whole, _ = compiled(products, *arguments)
    parts, _ = compiled(chunked_products, *arguments)
    runs = {"field": field, "field and loss": both, "products": whole, "in chunks": parts}
    times = _common.alternated(runs, repeats)
    best = min(times["products"], times["in chunks"])
    return {
        "samples": size[0],
        "inputs": size[1],
        "hidden": size[2],
        "dtype": jnp.dtype(dtype).name,
        "chunks": chunks.number_of_chunks(size[0], size[2], jnp.dtype(dtype).itemsize),
        **{f"{name}, ms": 1e3 * t for name, t in times.items()},
        "ratio": times["field"] / best,
        "ratio with loss": times["field and loss"] / best,
        "ratio to one pass": times["field"] / times["products"],
        "memory, MB": memory / 1e6,
    }


def sizes_of_chunks(repeats: int) -> None:
    """Print times of one evaluation for several sizes of a chunk."""
    for size in ((5_000, 784, 128), *SIZES):
        for dtype in (jnp.float32, jnp.float64):
            goal, network, _ = problem(*size, dtype)
            runs, memory = {}, {}
            for exponent in (18, 19, 20, 21, 22, 23, 40):
                chunks.CHUNK_BYTES["cpu"], chunks.MIN_CHUNK_ROWS = 2**exponent, 1
                name = f"2^{exponent} bytes"
                runs[name], memory[name] = compiled(lambda g, n: g.gradient(n), goal, network)
            for name, t in _common.alternated(runs, repeats).items():
                print(size, jnp.dtype(dtype).name, name, f"{1e3 * t:.1f} ms", memory[name])


def averaged_row(samples: int, inputs: int, hidden: int, repeats: int) -> dict[str, Any]:
    """Times of one step of averaged gates in float32, and of its two pairs of products."""
    goal, network, pulls = problem(samples, inputs, hidden, jnp.float32)
    solver = AveragedGates(network, goal.task, fl.SquaredError(), 1.0)
    start = network.parameters
    state = jax.jit(lambda y: solver.init(None, 0.0, 1.0, y, None))(start)

    def take_step(state, y):
        end, error, _, after, _ = solver.step(None, jnp.float32(0), 1e-2, y, None, state, False)
        return end, error, after

    step, memory = compiled(take_step, state, start)
    twice, _ = compiled(
        lambda w, x, m: (products(w, x, m), products(w + 1, x, m + 1)),
        network.weights[0],
        goal.task.x,
        pulls,
    )
    times = _common.alternated({"step": step, "products": twice}, repeats)
    each = {f"{name}, us a sample": 1e6 * t / samples for name, t in times.items()}
    ratio = times["step"] / times["products"]
    return {"samples": samples, **each, "ratio": ratio, "memory, MB": memory / 1e6}


def averaged_steps(quick: bool, repeats: int) -> None:
    """Measure steps of averaged gates, print, write."""
    rows = [
        averaged_row(n, 784, 64 if quick else 512, repeats) for n in ROWS[: 2 if quick else None]
    ]
    least = min(r["step, us a sample"] for r in rows)
    cells = [[r["samples"], *(f"{r[n]:.2f}" for n in list(r)[1:])] for r in rows]
    text = _common.markdown_table(list(rows[0]), cells) + (
        f"\n\nFloat32, 784 inputs, 512 units, medians of {repeats} runs in turns. For each sample "
        f"the largest task takes {rows[-1]['step, us a sample'] / least:.2f} times as long as the "
        "task that takes least."
    )
    print(text)
    if not quick:
        _common.save("evaluation_averaged", rows, text)


def main() -> None:
    """Measure, print, write."""
    parser = _common.parser(__doc__)
    parser.add_argument("--chunks", action="store_true", help="try sizes of a chunk")
    parser.add_argument("--averaged", action="store_true", help="steps of averaged gates")
    given = parser.parse_args()
    repeats = 3 if given.quick else 15
    if given.averaged:
        averaged_steps(given.quick, repeats)
        return
    if given.chunks:
        sizes_of_chunks(repeats)
        return
    sizes = ((2_500, 100, 256),) if given.quick else SIZES
    rows = [row(size, dtype, repeats) for size in sizes for dtype in (jnp.float32, jnp.float64)]
    head = ("samples", "inputs", "hidden", "dtype", "chunks")
    numbers = ("products, ms", "in chunks, ms", "field, ms", "memory, MB")
    ratios = ("ratio", "ratio with loss", "ratio to one pass")
    cells = [
        [r[h] for h in head] + [f"{r[n]:.1f}" for n in numbers] + [f"{r[n]:.2f}" for n in ratios]
        for r in rows
    ]
    device = jax.devices()[0]
    text = _common.markdown_table((*head, *numbers, *ratios), cells) + (
        f"\n\nOn {device.platform} ({device.device_kind}), medians of {repeats} runs in turns; "
        "ratio: the field to the faster of the products in one pass and in chunks."
    )
    print(text)
    if not given.quick:
        _common.save("evaluation", rows, text)


if __name__ == "__main__":
    main()
