"""C, fifth part: what gated, globally gated, ReLU and linear networks learn of one task. See: gates
that know the context learn the task (left); with them what all contexts share carries over to pairs
held out, what is one context's own does not (black and pink, middle).

A contextual task (`_contexts.py`) of which some pairs of item and context are held out: a gated
deep linear network with a pathway for all contexts and one for each (Saxe, Sodhani and Lewallen
2022), globally gated networks with half-spaces and clusters for gates (Li and Sompolinsky 2022), a
ReLU and a linear network. And a ReLU teacher, for what the number of global gates does.

    python examples/paper/c_5_gates.py [--quick | --full]
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _contexts import contextual
from _judge import LOSSES, MAPS, both, interval, more, same, verdict
from _paper import Row, Study, fl
from matplotlib.figure import Figure
from tqdm import tqdm


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `seeds`: of all networks, of the pairs held out, and of the teacher.
    - `contexts`, `levels`, `held_out`, `units`, `t1`: the contextual task, pairs held out, units
      of the ReLU network (the others have about as many parameters), end.
    - `gates`: numbers of global gates.
    - `inputs`, `samples`, `teacher`, `teacher_t1`, `many`: inputs, samples and units of the ReLU
      teacher, end, numbers of global gates.
    """

    seeds: int
    contexts: int = 3
    levels: int = 3
    held_out: int = 4
    units: int = 32
    t1: float = 300.0
    gates: tuple[int, ...] = (2, 4, 8, 16)
    inputs: int = 10
    samples: int = 200
    teacher: int = 5
    teacher_t1: float = 100.0
    many: tuple[int, ...] = (1, 4, 16, 64)


SIZES = {
    "quick": Size(1, contexts=2, levels=2, held_out=1, units=8, t1=5.0, gates=(4,),
                  samples=20, teacher_t1=2.0, many=(4,)),
    "default": Size(5),
    "full": Size(20, many=(1, 4, 16, 64, 256)),
}  # fmt: skip


@dataclasses.dataclass
class Learned:
    """Last training loss over the first, and mean squared error over the targets' on what is held
    out, of the outputs that hold in all contexts and of those of the own context."""

    train: float
    shared: float
    own: float


@dataclasses.dataclass
class Data:
    """By name of the network, what each seed learned; and test errors on the teacher."""

    size: Size
    contexts: dict[str, list[Learned]]
    teacher: dict[str, list[float]]


# Networks


def split(size: Size, seed: int) -> tuple[fl.Task, fl.Task]:
    """The contextual task without and with only the pairs held out, no item held out twice."""
    task = contextual(size.contexts, size.levels)
    items = task.samples // size.contexts
    rng = np.random.default_rng(seed)
    item = rng.permutation(items)[: size.held_out]
    out = np.zeros(task.samples, bool)
    out[rng.integers(size.contexts, size=size.held_out) * items + item] = True
    seen, held = (fl.Task(task.x[k], task.y[k], name=task.name) for k in (~out, out))
    return seen, held


def context_gates(task: fl.Task, contexts: int) -> dict[str, Any]:
    """By node, whether the sample is of its context, read off the inputs."""
    return {f"context {c}": task.x[:, task.inputs - contexts + c] for c in range(contexts)}


def gated(task: fl.Task, size: Size, key: Any) -> fl.GatedGraph:
    """A pathway for all contexts and one for each, which share their inputs and outputs."""
    units = max(1, size.units // (size.contexts + 1))
    middle = ["all", *context_gates(task, size.contexts)]
    nodes = {"in": task.inputs, **dict.fromkeys(middle, units), "out": task.outputs}
    edges = [edge for node in middle for edge in (("in", node), (node, "out"))]
    return fl.GatedGraph.init(
        task, nodes, edges, node_gates=context_gates(task, size.contexts), variance=1e-2, key=key
    )


def regated(network: fl.GatedGraph, task: fl.Task, contexts: int) -> fl.GatedGraph:
    """The same weights with the gates of other samples."""
    gates = context_gates(task, contexts)
    return fl.GatedGraph(network.weights, node_gates=gates)


def globally(task: fl.Task, gating: Any, size: Size, gates: int, key: Any) -> Any:
    """A globally gated network with about the ReLU network's number of parameters."""
    numbers = size.units * (task.inputs + task.outputs)
    units = max(1, round(numbers / (task.inputs + gates * task.outputs)))
    return fl.GloballyGatedNetwork.init(task, (units,), gates=gating, variance=1e-2, key=key)


def error(network: Any, task: fl.Task, columns: Any) -> float:
    """Squared error over the targets' square, of some outputs."""
    off = network.outputs(task.x)[:, columns] - task.y[:, columns]
    return float(jnp.sum(off**2) / jnp.sum(task.y[:, columns] ** 2))


def learned(flow: Any, network: Any, test: fl.Task, contexts: int) -> Learned:
    """What a run learned; `network` is its last one with the gates of the test samples."""
    block = test.outputs // (contexts + 1)
    train = float(flow.losses[-1] / flow.losses[0])
    shared, own = slice(0, block), slice(block, None)
    return Learned(train, error(network, test, shared), error(network, test, own))


def on_contexts(size: Size, seed: int) -> dict[str, Learned]:
    """Every network on the contextual task."""
    task, test = split(size, seed)
    key, count = jax.random.key(seed), size.contexts
    relu = fl.ReLUNetwork.init(task, (size.units,), 1e-2, False, key=key)
    found = {}
    for name, network in (("linear", relu.linear()), ("ReLU", relu)):
        flow = fl.gradient_flow(network, task, size.t1, rtol=1e-6)
        found[name] = learned(flow, flow.final, test, count)
    flow = fl.gradient_flow(gated(task, size, key), task, size.t1, rtol=1e-6)
    found["gated by context"] = learned(flow, regated(flow.final, test, count), test, count)
    for gates in size.gates:
        for name, gating in (
            (f"{gates} half-spaces", fl.HalfSpaces.random(task, gates, key=key)),
            (f"{gates} clusters", fl.Clusters.of(task, min(gates, task.samples), seed=seed)),
        ):
            network = globally(task, gating, size, gates, key)
            flow = fl.gradient_flow(network, task, size.t1, rtol=1e-6)
            found[name] = learned(flow, flow.final.with_gates(gating(test.x)), test, count)
    return found


def on_teacher(size: Size, seed: int) -> dict[str, float]:
    """Test errors on a ReLU teacher."""
    rng = np.random.default_rng(seed)
    w, a = rng.normal(size=(size.teacher, size.inputs)), rng.normal(size=(1, size.teacher))
    teacher = fl.ReLUNetwork([w / np.sqrt(size.inputs), a])
    x = jnp.asarray(rng.normal(size=(size.samples + 1000, size.inputs)))
    y = teacher.outputs(x)
    task, test = (fl.Task(x[k], y[k], name="ReLU teacher")
                  for k in (slice(size.samples), slice(size.samples, None)))  # fmt: skip
    key, found = jax.random.key(seed), {}
    relu = fl.ReLUNetwork.init(task, (size.units,), 1e-2, False, key=key)
    for name, network in (("linear", relu.linear()), ("ReLU", relu)):
        kinks = fl.AveragedKinks() if name == "ReLU" else None
        flow = fl.gradient_flow(network, task, size.teacher_t1, rtol=1e-5, kinks=kinks)
        found[name] = error(flow.final, test, slice(None))
    for gates in size.many:
        gating = fl.HalfSpaces.random(task, gates, key=key)
        network = globally(task, gating, size, gates, key)
        flow = fl.gradient_flow(network, task, size.teacher_t1, rtol=1e-5)
        found[f"{gates} half-space{'s' * (gates > 1)}"] = error(
            flow.final.with_gates(gating(test.x)), test, slice(None)
        )
    return found


def compute(size: Size) -> Data:
    """All runs."""
    contexts: dict[str, list[Learned]] = {}
    teacher: dict[str, list[float]] = {}
    for seed in tqdm(range(size.seeds), desc="seeds", disable=None):
        for name, one in on_contexts(size, seed).items():
            contexts.setdefault(name, []).append(one)
        for name, off in on_teacher(size, seed).items():
            teacher.setdefault(name, []).append(off)
    return Data(size, contexts, teacher)


# What is measured


def column(runs: list[Learned], name: str) -> np.ndarray:
    """One number of every seed."""
    return np.array([getattr(one, name) for one in runs])


def numbers(data: Data) -> dict[str, Any]:
    """Losses and errors by network."""
    found = {
        f"contexts, {name}: {what}": column(runs, what)
        for name, runs in data.contexts.items()
        for what in ("train", "shared", "own")
    }
    return found | {f"teacher, {name}: test": np.array(v) for name, v in data.teacher.items()}


def judge(data: Data) -> list[Row]:
    """What each gating can learn, what it generalises, how many gates it takes: no text claims
    it, C asks for the comparison."""
    return [_learning_row(data), _held_out_row(data), _many_row(data)]


def _learning_row(data: Data) -> Row:
    train = {name: column(runs, "train") for name, runs in data.contexts.items()}
    found = {name: same(rows, LOSSES, len(train)) for name, rows in train.items()}
    words = {True: "learned by", False: "not by", None: "undecided for"}
    groups = {
        word: ", ".join(name for name, learned in found.items() if learned is key)
        for key, word in words.items()
    }
    return Row(
        claim="What each gating scheme can learn: gates that know the context, global ones that "
        "know nothing of the task, none",
        quote="Compare GDLNs with globally-gated deep linear networks and understand the "
        "relationship/limits of each gating scheme",
        source="C, gating schemes (Saxe, Sodhani and Lewallen 2022; Li and Sompolinsky 2022)",
        measured="last training loss over the first on the contextual task, about equally many "
        "parameters: "
        + ", ".join(f"{name} {interval(rows)}" for name, rows in train.items())
        + f"; criterion: from zero {LOSSES}, {len(train)} comparisons",
        verdict="measured: " + "; ".join(f"{w} {names}" for w, names in groups.items() if names),
        kind="control",
    )


def _held_out_row(data: Data) -> Row:
    shared = {name: column(runs, "shared") for name, runs in data.contexts.items()}
    own = {name: column(runs, "own") for name, runs in data.contexts.items()}
    name = "gated by context"
    return Row(
        claim="A pathway shared by all contexts carries over to pairs of item and context never "
        "seen",
        source="C, pathway-specific effective datasets (Saxe, Sodhani and Lewallen 2022)",
        measured="error on pairs held out over the targets' square, properties of all contexts, "
        "which this pathway learns / of the own one, which no shared pathway can: "
        + ", ".join(f"{one} {interval(shared[one])} / {np.mean(own[one]):.2g}" for one in shared)
        + "; criterion: for the network gated by context the former less, paired, and less than "
        "outputs of zero, two comparisons",
        verdict=verdict(both(more(own[name], shared[name], 2), more(1.0, shared[name], 2))),
        kind="control",
    )


def _many_row(data: Data) -> Row:
    test = {name: np.array(v) for name, v in data.teacher.items()}
    gated_ = {name: v for name, v in test.items() if "half" in name}
    first, last = next(iter(gated_)), next(reversed(gated_))
    near = same(np.sqrt(gated_[last]) - np.sqrt(test["ReLU"]), MAPS)
    found = {True: "near", False: "far from", None: "neither near nor far from"}
    steps = {True: "less than", False: "more than", None: "not seen to differ from that"}
    return Row(
        claim="Whether a globally gated network with many gates behaves like a ReLU network",
        source="C, gating schemes (Li and Sompolinsky 2022)",
        measured=f"test error on a ReLU teacher of {data.size.teacher} units ({data.size.samples} "
        "samples in training), about equally many parameters: "
        + ", ".join(f"{name} {interval(v)}" for name, v in test.items())
        + f"; criterion: distance of the roots of the errors at the most gates {MAPS}",
        verdict=f"measured: {last} {found[near]} the ReLU network"
        + (
            f", the error {steps[more(gated_[first], gated_[last])]} with {first}"
            if first != last else ""
        ),
        kind="control",
    )  # fmt: skip


# The figure


def draw(data: Data) -> Figure:
    """Training losses, errors on pairs held out, test errors on the teacher."""
    figure, axes = plt.subplots(1, 3, figsize=(10.2, 3.8), width_ratios=(1.2, 1.2, 0.9))
    names = list(data.contexts)
    train = [column(data.contexts[name], "train") for name in names]
    _dots(axes[0], names, train, "black", "")
    axes[0].axvline(LOSSES.same, color="0.5", linewidth=0.8)
    axes[0].set(xlabel="last training loss over the first", xscale="log",
                title="contextual task: what is learned")  # fmt: skip
    for what, colour, word in (("shared", "black", "properties of all contexts"),
                               ("own", "#CC79A7", "of the own context")):  # fmt: skip
        found = [column(data.contexts[name], what) for name in names]
        _dots(axes[1], names, found, colour, word)
    axes[1].set(xlabel="error over the targets' square",
                title="contextual task: pairs held out")  # fmt: skip
    axes[1].legend(
        fontsize="small",
        handlelength=1,
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
    )
    names = list(data.teacher)
    _dots(axes[2], names, [np.array(data.teacher[name]) for name in names], "black", "")
    axes[2].set(xlabel="test error over\nthe targets' square", xscale="log",
                title="ReLU teacher: new inputs")  # fmt: skip
    return figure


def _dots(ax: Any, names: list[str], values: list[np.ndarray], colour: str, label: str) -> None:
    """A row per network: seeds as dots, their mean as a bar."""
    for row, own in enumerate(values):
        ax.plot(own, np.full(len(own), row), "o", color=colour, alpha=0.5, markersize=4)
        ax.plot(np.mean(own), row, "|", color=colour, markersize=14, markeredgewidth=2,
                label=label if row == 0 and label else None)  # fmt: skip
    ax.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))


STUDY = Study("c_5_gates", SIZES, compute, draw, numbers, judge, heavy=True)

if __name__ == "__main__":
    STUDY.main(__doc__)
