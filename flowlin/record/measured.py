"""Measures of the networks that a run has saved, one after the other."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike

from flowlin._tools.arguments import WORDS, finite_array, function_of
from flowlin._tools.arrays import require_finite
from flowlin._tools.user_functions import returned
from flowlin.networks.base import AbstractModel
from flowlin.tasks.task import Task

Samples = Task | ArrayLike | None
Measure = Callable[[Any, Any], Any]
MEASURE = function_of("network", "task")


class AbstractPreparedMeasure(eqx.Module):
    """A measure that costs less per network once it is prepared for a task."""

    @abc.abstractmethod
    def observable(self, network: eqx.Module, task: Task, *, check: bool = True) -> Measure:
        """Return the same measure of networks such as this one, on this task alone."""


def require_measure(name: str, value: Any) -> Any:
    """Accept a function of (network, task), or modes."""
    return value if isinstance(value, AbstractPreparedMeasure) else MEASURE(name, value)


def require_samples(name: str, value: Any) -> Any:
    """Accept a task, an array of inputs in its place, or None where no sample is needed."""
    return value if value is None or isinstance(value, Task) else finite_array(name, value)


def whole(network: AbstractModel, task: Any) -> Task:
    """Return the task; raise `ValueError` unless inputs and targets fit and are finite."""
    task = WORDS["task"]("task", task)
    network.require_fit(task)
    require_finite("task.x", task.x)
    require_finite("task.y", task.y)
    return task


def measured(
    measure: Measure | AbstractPreparedMeasure, networks: AbstractModel, task: Samples
) -> Any:
    """Measure stacked networks, (T, ...); memory does not grow with T."""
    if isinstance(measure, AbstractPreparedMeasure):
        first = _first(networks)
        measure = measure.observable(first, whole(first, task))
    return _mapped(measure, networks, task)


def _first(networks: AbstractModel) -> AbstractModel:
    """Return the first of stacked networks; zeros of its shape where there is none."""

    def first(leaf: Array) -> Array:
        return leaf[0] if leaf.shape[0] else jnp.zeros(leaf.shape[1:], leaf.dtype)

    return jax.tree.map(first, networks)


@eqx.filter_jit
def _mapped(measure: Measure, networks: AbstractModel, task: Samples) -> Any:
    """Call the measure on one stacked network after the other."""
    first = _first(networks)
    returned("`measure`", measure, first.module, task)
    return lax.map(lambda network: measure(network.module, task), networks)
