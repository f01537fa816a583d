"""Whether a network is one that a function takes: not stacked, and of a task's shapes."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from flowlin._tools.checks import array, refuse, require_single
from flowlin.tasks.task import Task


def inputs(name: str, value: Any) -> Any:
    """An array of inputs; as for JAX, a list is none."""
    if not isinstance(value, (jax.Array, np.ndarray)):
        raise refuse(name, "an array", value, f"pass jnp.asarray({name})")
    return array(name, value)


def require_inputs(network: Any, x: Array, name: str = "x", axes: int = 2) -> None:
    """Raise `ValueError` unless the network takes these inputs: many (P, N_in), or one (N_in,)."""
    require_one(network)
    takes = network.weights[0].shape[1]
    if x.ndim == axes and x.shape[-1] == takes:
        return
    many = f"(P, {takes}), one row per sample"
    wanted, other = (f"({takes},), one sample", many) if axes == 1 else (many, f"({takes},)")
    remedy = ""
    if x.ndim == 3 - axes and x.shape[-1] == takes:
        remedy = f"; inputs of shape {other}, go into `network{'.outputs' if axes == 1 else ''}(x)`"
    raise ValueError(f"`{name}` must have shape {wanted}, got {x.shape}{remedy}.")


def require_one(network: Any, name: str = "network") -> None:
    """Raise `ValueError` for a stack of networks, or one without arrays."""
    axes = getattr(network.weights[0], "ndim", None)
    if axes is None:
        raise ValueError(f"`{name}` holds no arrays; pass one whose weights and biases are there.")
    require_single(name, axes, 2, "networks")


def check_fit(network: Any, task: Task) -> None:
    """Raise `ValueError` unless the network takes the task's inputs and gives its outputs."""
    require_one(network)
    takes, gives = network.weights[0].shape[-1], network.weights[-1].shape[-2]
    if (takes, gives) != (task.inputs, task.outputs):
        raise ValueError(
            f"`network` maps {takes} inputs to {gives} outputs, but `task` {task.name!r} has "
            f"{task.inputs} inputs and {task.outputs} outputs."
        )


def require_alike(network: Any, other: Any, name: str) -> None:
    """Raise `ValueError` unless a file's network has the kind and shapes of the one given."""

    def kind(one: Any) -> Any:
        return jax.tree.structure(one), [leaf.shape for leaf in jax.tree.leaves(one)]

    if kind(network) != kind(other):
        raise ValueError(
            f"`{name}` is {network!r}, and the file holds {other!r}; pass one of that kind, "
            "or none for a network of flowlin."
        )
