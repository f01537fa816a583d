"""What measures are called with."""

from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from flowlin._tools.arrays import require_finite
from flowlin._tools.checks import WORDS, finite_array, floating
from flowlin.network.fit import require_inputs
from flowlin.network.kinds import AbstractNetwork
from flowlin.network.model import AbstractModel
from flowlin.tasks.task import Task

Samples = Task | ArrayLike | None

ROUNDING = 8  # units in the last place by which equal representations may differ


def samples(name: str, value: Any) -> Any:
    """A task, an array of inputs in its place, or None where no sample is looked at."""
    return value if value is None or isinstance(value, Task) else finite_array(name, value)


def task_or_none(name: str, value: Any) -> Any:
    """A task, or None."""
    return value if value is None else WORDS["task"](name, value)


def inputs_of(network: AbstractModel, task: Samples) -> Array:
    """Inputs (P, N_in) of a task, or the array of them that was given in its place."""
    if task is None:
        raise ValueError(
            "this measure looks at samples: pass a `task`, or inputs of shape (P, N_in). A "
            "trajectory that was loaded, or made under `jit`, does not know its own."
        )
    x = task.x if isinstance(task, Task) else floating("task", task)
    name = "task.x" if isinstance(task, Task) else "task"
    if isinstance(network, AbstractNetwork):
        require_inputs(network, x, name)
    elif x.ndim != 2:
        raise ValueError(f"`{name}` must have shape (P, N_in), one row per sample, got {x.shape}.")
    if not len(x):
        raise ValueError("`task` has no samples.")
    require_finite("task.x", x)
    return x


def whole(network: AbstractModel, task: Any) -> Task:
    """The task, where targets are needed too."""
    task = WORDS["task"]("task", task)
    network.require_fit(task)
    require_finite("task.x", task.x)
    require_finite("task.y", task.y)
    return task


def require_layer(network: AbstractNetwork, layer: int) -> None:
    """Raise `ValueError` unless the network has this hidden layer."""
    if not 0 <= layer < len(network.hidden):
        raise ValueError(
            f"`layer` = {layer} does not exist; the network has {len(network.hidden)} hidden "
            "layer(s), counted from 0."
        )


def rows(name: str, value: Any) -> Array:
    """A representation (..., P, H)."""
    found = floating(name, value)
    if found.ndim < 2:
        raise ValueError(
            f"`{name}` must have one row per sample, (..., P, H), got shape {found.shape}; reshape "
            f"a single feature with `{name}[:, None]`."
        )
    if 0 in found.shape:
        raise ValueError(f"`{name}` is empty: its shape is {found.shape}.")
    return found


def centred(array: Array) -> Array:
    """Without the mean over samples, (..., P, H); zero where all samples agree up to rounding.

    One sample is subtracted before the mean, whose own rounding is then that of the differences.
    """
    off = array - array[..., :1, :]
    off = off - off.mean(axis=-2, keepdims=True)
    rounding = ROUNDING * jnp.finfo(array.dtype).eps * jnp.abs(array).max(axis=-2, keepdims=True)
    constant = jnp.all(jnp.abs(off) <= rounding, axis=(-2, -1), keepdims=True)
    return jnp.where(constant, 0.0, off)
