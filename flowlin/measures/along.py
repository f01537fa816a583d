"""Measures over a whole trajectory, and on a task other than the run's."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from flowlin._tools.arguments import CHECKS_BY_NAME, argument_error, checked, float_array
from flowlin._tools.arrays import require_finite
from flowlin.networks.base import AbstractModel, AbstractOwnModel, require_inputs
from flowlin.networks.modules import ForeignModel
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.record.measured import (
    MEASURE,
    AbstractPreparedMeasure,
    Measure,
    Samples,
    measure_networks,
    require_measure,
    require_samples,
)
from flowlin.record.trajectory import Trajectory
from flowlin.tasks.task import Task

EQUAL_ULPS = 8  # units in the last place by which equal representations may differ


def task_or_none(name: str, value: object) -> object:
    """Accept a task, or None."""
    return value if value is None else CHECKS_BY_NAME["task"](name, value)


def inputs_of(network: AbstractModel, task: Samples) -> Array:
    """Return the inputs (P, N_in) of a task, or the array of them that was given in its place."""
    if task is None:
        raise ValueError(
            "this measure looks at samples: pass a `task`, or inputs of shape (P, N_in). A "
            "trajectory that was loaded, or made under `jit`, does not know its own."
        )
    x = task.x if isinstance(task, Task) else float_array("task", task)
    name = "task.x" if isinstance(task, Task) else "task"
    if isinstance(network, AbstractNetwork):
        require_inputs(network, x, name)
    elif x.ndim != 2:
        raise ValueError(f"`{name}` must have shape (P, N_in), one row per sample, got {x.shape}.")
    if not len(x):
        raise ValueError("`task` has no samples.")
    require_finite("task.x", x)
    return x


def require_representation(name: str, value: object) -> Array:
    """Accept a representation (..., P, H), and return it in floating point."""
    found = float_array(name, value)
    if found.ndim < 2:
        raise ValueError(
            f"`{name}` must have one row per sample, (..., P, H), got shape {found.shape}; reshape "
            f"a single feature with `{name}[:, None]`."
        )
    if 0 in found.shape:
        raise ValueError(f"`{name}` is empty: its shape is {found.shape}.")
    return found


def centre_samples(array: Array) -> Array:
    """Subtract the mean over samples, (..., P, H); zero where all samples agree up to rounding.

    One sample is subtracted before the mean, so that the mean is rounded as the differences are.
    """
    off = array - array[..., :1, :]
    off = off - off.mean(axis=-2, keepdims=True)
    rounding = EQUAL_ULPS * jnp.finfo(array.dtype).eps * jnp.abs(array).max(axis=-2, keepdims=True)
    constant = jnp.all(jnp.abs(off) <= rounding, axis=(-2, -1), keepdims=True)
    return jnp.where(constant, 0.0, off)


def _trajectory_or_networks(name: str, value: PyTree) -> Trajectory | AbstractModel:
    """Return a trajectory, or the model of networks that are stacked on a leading axis."""
    if isinstance(value, Trajectory):
        return value
    if not isinstance(value, eqx.Module):
        raise argument_error(name, "a trajectory, or stacked networks", value)
    if not isinstance(value, AbstractOwnModel):
        return ForeignModel.from_module(name, value)
    if np.ndim(value.bias_strength) != 1:
        raise ValueError(
            f"`{name}` must hold networks stacked on one leading axis, got weights of shape "
            f"{jax.tree.leaves(value.weights)[0].shape}; of a single network call the measure "
            "itself."
        )
    return value


@checked(flow=None, measure=require_measure, task=require_samples)
def along(flow: PyTree, measure: Measure | AbstractPreparedMeasure, task: Samples = None) -> PyTree:
    """Return a measure at all saved times of a trajectory, in one call.

    These are the numbers that `observe={name: measure}` records during the run. Networks are
    measured one after the other, so that memory does not grow with the number of times.

    **Arguments:**

    - `flow`: a trajectory with saved networks, or networks stacked on a leading axis, such as
      `flow.network(ts)` of a run with `dense=True`.
    - `measure`: function of (network, task) that returns arrays; or modes, for their strengths.
    - `task`: None is the trajectory's own, where it knows it: not once loaded from a file, or made
      under `jit` with the task as an argument. The measure is then called with None.

    **Returns:** what `measure` returns, with a leading axis T.

    **Raises:** `ValueError` if the run recorded observables instead of networks, for networks that
    are not stacked, and for a measure that returns no arrays.
    """
    source = _trajectory_or_networks("flow", flow)
    if isinstance(source, Trajectory):
        return source.along(measure, task)
    return measure_networks(measure, source, task)


@checked(measure=MEASURE)
class OnTask(eqx.Module):
    """A measure on a task of its own, whatever the run trains on.

    `observe={"test error": OnTask(error_rate, test)}`. The task's arrays stay arrays; those that a
    `lambda` takes from around it become constants of the compiled program.

    **Arguments:**

    - `measure`: function of (network, task).
    - `task`: what it is called with.
    """

    measure: Measure
    task: Task

    def __call__(self, network: PyTree, task: Samples = None) -> PyTree:
        """Return the measure of the network on `self.task`; the other task is not used."""
        del task
        return self.measure(network, self.task)
