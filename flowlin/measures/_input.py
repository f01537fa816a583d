"""What measures are called with."""

from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from flowlin._arrays import floating
from flowlin.network import AbstractNetwork
from flowlin.task import Task

Samples = Task | ArrayLike | None

ROUNDING = 8  # units in the last place by which equal representations may differ


def inputs_of(task: Samples) -> Array:
    """Inputs (P, N_in) of a task, or the array of them that was given in its place."""
    if isinstance(task, Task):
        return task.x
    if task is None:
        raise ValueError(
            "this measure looks at samples: pass a `task`, or inputs of shape (P, N_in). A "
            "trajectory that was loaded, or made under `jit`, does not know its own."
        )
    x = floating(task)
    if x.ndim != 2:
        raise ValueError(f"inputs must have one row per sample, (P, N_in), got shape {x.shape}.")
    return x


def whole(task: Any) -> Task:
    """The task, where targets are needed too."""
    if not isinstance(task, Task):
        raise ValueError(f"this measure needs inputs and targets: pass an `fl.Task`, got {task!r}.")
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
    array = floating(value)
    if array.ndim < 2:
        raise ValueError(
            f"`{name}` must have one row per sample, (..., P, H), got shape {array.shape}; reshape "
            f"a single feature with `{name}[:, None]`."
        )
    return array


def centred(array: Array) -> Array:
    """Without the mean over samples, (..., P, H); zero where all samples agree up to rounding.

    One sample is subtracted before the mean, whose own rounding is then that of the differences.
    """
    off = array - array[..., :1, :]
    off = off - off.mean(axis=-2, keepdims=True)
    rounding = ROUNDING * jnp.finfo(array.dtype).eps * jnp.abs(array).max(axis=-2, keepdims=True)
    constant = jnp.all(jnp.abs(off) <= rounding, axis=(-2, -1), keepdims=True)
    return jnp.where(constant, 0.0, off)
