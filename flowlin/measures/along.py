"""Measures over a whole trajectory, and on a task other than the run's."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax import lax

from flowlin._tools.checks import checked, function_of, refuse, returned
from flowlin.measures._input import Samples, samples, whole
from flowlin.network.foreign import ForeignModel
from flowlin.network.model import AbstractModel
from flowlin.network.own import AbstractOwn
from flowlin.tasks.task import Task
from flowlin.theory.task_modes import Modes

Measure = Callable[[Any, Any], Any]
MEASURE = function_of("network", "task")


def _measure_or_modes(name: str, value: Any) -> Any:
    """A function of (network, task), or modes."""
    return value if isinstance(value, Modes) else MEASURE(name, value)


def _trajectory_or_stacked(name: str, value: Any) -> Any:
    """A trajectory, or networks stacked on a leading axis."""
    if hasattr(type(value), "networks"):  # a trajectory, whose class lies above measures
        return value
    if not isinstance(value, eqx.Module):
        raise refuse(name, "a trajectory, or stacked networks", value)
    if not isinstance(value, AbstractOwn):
        return ForeignModel.of(name, value)
    if np.ndim(value.bias_strength) != 1:
        raise ValueError(
            f"`{name}` must hold networks stacked on one leading axis, got weights of shape "
            f"{jax.tree.leaves(value.weights)[0].shape}; of a single network call the measure "
            "itself."
        )
    return value


@checked(flow=_trajectory_or_stacked, measure=_measure_or_modes, task=samples)
def along(flow: Any, measure: Measure | Modes, task: Samples = None) -> Any:
    """A measure at all saved times of a trajectory, in one call.

    The same numbers as `observe={name: measure}` records during the run. One network after the
    other, so that memory does not grow with the number of times.

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
    networks = flow
    if not isinstance(flow, AbstractModel):
        networks, task = flow.models, flow.reference.task if task is None else task
    if isinstance(measure, Modes):
        first = jax.tree.map(lambda leaf: leaf[0], networks)
        measure = measure.observable(first, whole(first, task))
    return _mapped(measure, networks, task)


@eqx.filter_jit
def _mapped(measure: Measure, networks: AbstractModel, task: Samples) -> Any:
    first = jax.tree.map(lambda leaf: leaf[0], networks)
    returned("`measure`", measure, first.module, task)
    return lax.map(lambda network: measure(network.module, task), networks)


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

    def __call__(self, network: Any, task: Samples = None) -> Any:
        """The measure of the network on `self.task`; the other task is left aside."""
        del task
        return self.measure(network, self.task)
