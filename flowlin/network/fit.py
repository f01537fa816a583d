"""Whether a network is one that a function takes: not stacked, and of a task's shapes."""

from typing import Any

from jaxtyping import Array

from flowlin.tasks.task import Task


def require_inputs(network: Any, x: Array, name: str = "x", axes: int = 2) -> None:
    """Raise `ValueError` unless the network takes these inputs: many (P, N_in), or one (N_in,)."""
    _require_one(network)
    takes = network.weights[0].shape[1]
    if x.ndim == axes and x.shape[-1] == takes:
        return
    many = f"(P, {takes}), one row per sample"
    wanted, other = (f"({takes},), one sample", many) if axes == 1 else (many, f"({takes},)")
    remedy = ""
    if x.ndim == 3 - axes and x.shape[-1] == takes:
        remedy = f"; inputs of shape {other}, go into `network{'.outputs' if axes == 1 else ''}(x)`"
    raise ValueError(f"`{name}` must have shape {wanted}, got {x.shape}{remedy}.")


def _require_one(network: Any) -> None:
    if getattr(network.weights[0], "ndim", None) is None:
        raise ValueError("`network` holds no arrays; pass one whose weights and biases are there.")
    if network.weights[0].ndim != 2:
        raise ValueError(
            "`network` is a stack of networks; take one, as in jax.tree.map(lambda a: a[0], "
            "network), or map over all by jax.vmap."
        )


def check_fit(network: Any, task: Task) -> None:
    """Raise `ValueError` unless the network takes the task's inputs and gives its outputs."""
    _require_one(network)
    takes, gives = network.weights[0].shape[-1], network.weights[-1].shape[-2]
    if (takes, gives) != (task.inputs, task.outputs):
        raise ValueError(
            f"`network` maps {takes} inputs to {gives} outputs, but `task` {task.name!r} has "
            f"{task.inputs} inputs and {task.outputs} outputs."
        )
