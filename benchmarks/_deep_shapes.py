"""Exact walks of very small networks without biases against descent: is any silently elsewhere?

Part `--shapes` of `deep_walk.py`. One to five units in one to three hidden layers, where a layer
often sends nothing, a unit's weights pass through zero, and samples share kinks. Standard normal
inputs, targets and weights (0.5 of that in one hidden layer), t = 20, walks at rtol 1e-9. The
distance is the largest of any parameter at four times; descent at rates 1e-3 and 1e-4, all draws of
a shape in one program. A walk is *off* where the second distance is above 1e-5 and above .3 of the
first, and what is above it at rate 1e-5 above .3 of the second, since descent that slides chatters;
*silently* off if it has no branch and came to its end. A draw whose first layer does not move
is not counted. Writes `deep_walk_shapes.json` and the table `deep_walk_shapes.md`.
"""

import itertools
from typing import Any

import _common
import _deep
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import flowlin as fl

SHAPES = (
    "1-1-1-1", "1-2-2-1", "1-2-1-2-1", "2-2-2-1", "1-3-2-2", "2-2-1-2-1", "1-5-5-1", "3-5-1",
)  # fmt: skip
RATES, FINE = (1e-3, 1e-4), 1e-5
END, SAMPLES, TIMES = 20.0, 4, 4
SMALL, FOLLOWS = 1e-5, 0.3


def draw(shape: str, seed: int) -> tuple[fl.ReLUNetwork, fl.Task]:
    """A network and its task."""
    sizes = [int(size) for size in shape.split("-")]
    rng = np.random.default_rng([seed, *sizes])
    task = fl.Task(rng.normal(size=(SAMPLES, sizes[0])), rng.normal(size=(SAMPLES, sizes[-1])))
    scale = 1.0 if len(sizes) > 3 else 0.5
    weights = tuple(
        scale * rng.normal(size=(after, before)) for before, after in itertools.pairwise(sizes)
    )
    return fl.ReLUNetwork(weights, (None,) * len(weights)), task


def moves(network: fl.ReLUNetwork, task: fl.Task) -> bool:
    """Whether the first layer moves at the start."""
    gradient = jax.grad(lambda p: fl.SquaredError()(network.with_parameters(p).outputs(task.x),
                                                    task.y))(network.parameters)  # fmt: skip
    return bool(jnp.any(gradient[0][0] != 0))


def draws(shape: str, count: int) -> list[tuple[int, fl.ReLUNetwork, fl.Task]]:
    """The first draws whose first layer moves, with their seeds."""
    found: list[tuple[int, fl.ReLUNetwork, fl.Task]] = []
    seed = 0
    while len(found) < count:
        network, task = draw(shape, seed)
        if moves(network, task):
            found.append((seed, network, task))
        seed += 1
    return found


@jax.jit
def _descend_all(networks: Any, tasks: Any, rate: Any, steps: Any) -> Any:
    """Parameters of all draws after so many steps."""
    return jax.vmap(lambda n, task: _common._descend(n, task, rate, steps))(networks, tasks)


def descents(networks: list[Any], tasks: list[Any], rate: float) -> np.ndarray:
    """Parameters (draws, times, parameters) of descent at quarters of the horizon."""
    at, all_tasks = (jax.tree.map(lambda *a: jnp.stack(a), *these) for these in (networks, tasks))
    found = []
    for _ in range(TIMES):
        steps = round(END / TIMES / rate)
        parameters = _descend_all(at, all_tasks, rate, steps)
        at = jax.vmap(lambda n, p: n.with_parameters(p))(at, parameters)
        found.append(np.concatenate([np.reshape(w, (len(tasks), -1)) for w in at.weights], 1))
    return np.stack(found, 1)


def measured(shape: str, count: int) -> list[dict[str, Any]]:
    """All draws of a shape: how each walk ended, and how far descent is from it."""
    some = draws(shape, count)
    networks, tasks = [n for _, n, _ in some], [task for *_, task in some]
    walked = []
    for _, network, task in some:
        times = np.linspace(0, END, TIMES + 1)
        flow = _common.exact_walk(network, task, END, 1e-9, ts=times, throw=False)
        rows = flow.networks.weights[0].shape[0]
        saved = np.concatenate([np.reshape(w, (rows, -1)) for w in flow.networks.weights], 1)
        walked.append((flow, saved[1:]))
    followed = [descents(networks, tasks, rate) for rate in RATES]
    runs = []
    for k, (seed, *_) in enumerate(some):
        flow, saved = walked[k]
        branches = _deep.Branch.all_of(flow)
        good = np.isfinite(saved).all(axis=1)
        off = [float(np.max(np.abs(one[k][: len(saved)] - saved)[good], initial=0.0))
               for one in followed]  # fmt: skip
        runs.append({
            "seed": seed, "outcome": _deep.said(flow), "reached": float(flow.end),
            "events": len(flow.events) - len(branches),
            "branches": sorted({b.time for b in branches}), "distances": off,
        })  # fmt: skip
        doubtful = off[1] > SMALL and off[1] > FOLLOWS * off[0]
        if doubtful:
            last = descents(networks[k : k + 1], tasks[k : k + 1], FINE)[0]
            off.append(float(np.max(np.abs(last[: len(saved)] - saved)[good], initial=0.0)))
        runs[-1]["off"] = bool(doubtful and off[2] > SMALL / 10 and off[2] > FOLLOWS * off[1])
    return runs


def summary(shape: str, runs: list[dict]) -> dict[str, Any]:
    """One row of the table."""
    near = np.array([r["distances"][:2] for r in runs if not r["off"]])
    named = [r for r in runs if r["branches"] or r["outcome"] != "end"]
    return {
        "shape": shape,
        "draws": len(runs),
        "events": float(np.mean([r["events"] for r in runs])),
        "undecided": [r["seed"] for r in runs if r["outcome"] != "end"],
        "branches": [r["seed"] for r in runs if r["branches"]],
        "off, named": [r["seed"] for r in named if r["off"]],
        "off, silent": [r["seed"] for r in runs if r["off"] and r not in named],
        "median": np.median(near, axis=0).tolist(),
        "largest": np.max(near, axis=0).tolist(),
        "runs": runs,
    }


def markdown(rows: list[dict]) -> str:
    """The table as Markdown."""
    head = ("shape", "draws", "events, mean", "undecided (seeds)", "with a branch (seeds)",
            "off, named (seeds)", "off, silent (seeds)",
            *(f"descent at {r:.0e}, median; largest" for r in RATES))  # fmt: skip

    def told(seeds: list[int]) -> str:
        return f"{len(seeds)} ({', '.join(map(str, seeds))})" if seeds else "0"

    body = [
        (
            r["shape"], r["draws"], f"{r['events']:.1f}",
            *(told(r[k]) for k in ("undecided", "branches", "off, named", "off, silent")),
            *(f"{m:.1e}; {most:.1e}" for m, most in zip(r["median"], r["largest"], strict=True)),
        )
        for r in rows
    ]  # fmt: skip
    return _common.markdown_table(head, body)


def survey(seeds: int, quick: bool) -> None:
    """All shapes."""
    rows: list[dict] = []
    for shape in tqdm(SHAPES[:1] if quick else SHAPES):
        rows.append(summary(shape, measured(shape, 2 if quick else seeds)))
        if not quick:
            _common.save("deep_walk_shapes", rows, markdown(rows))
    print(markdown(rows))
