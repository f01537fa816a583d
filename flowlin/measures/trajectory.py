"""Measures over a whole trajectory, and on a task other than the run's."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jax import lax

from flowlin.measures._input import Samples
from flowlin.network import AbstractNetwork
from flowlin.task import Task
from flowlin.trajectory import Trajectory

Measure = Callable[[AbstractNetwork, Any], Any]


def along(flow: Trajectory | AbstractNetwork, measure: Measure, task: Samples = None) -> Any:
    """A measure at all saved times of a trajectory, in one call.

    The same numbers as `observe={name: measure}` records during the run. One network after the
    other, so that memory does not grow with the number of times.

    **Arguments:**

    - `flow`: a trajectory with saved networks, or networks stacked on a leading axis, such as
      `flow.network(ts)` of a run with `dense=True`.
    - `measure`: function of (network, task) that returns arrays.
    - `task`: None is the trajectory's own, where it knows it: not once loaded from a file, or made
      under `jit` with the task as an argument. The measure is then called with None.

    **Returns:** what `measure` returns, with a leading axis T.

    **Raises:** `ValueError` if the run recorded observables instead of networks.
    """
    if isinstance(flow, Trajectory):
        task = flow.reference.task if task is None else task
        return _mapped(measure, flow.networks, task)
    return _mapped(measure, flow, task)


@eqx.filter_jit
def _mapped(measure: Measure, networks: Any, task: Samples) -> Any:
    return lax.map(lambda network: measure(network, task), networks)


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

    def __call__(self, network: AbstractNetwork, task: Samples = None) -> Any:
        """The measure of the network on `self.task`; the other task is left aside."""
        del task
        return self.measure(network, self.task)
