"""Measures of the networks that a run has saved, one after the other."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, PyTree

from flowlin._tools.arguments import CHECKS_BY_NAME, finite_array, function_of
from flowlin._tools.arrays import require_finite
from flowlin._tools.user_functions import shapes_of_result
from flowlin.networks.base import AbstractModel
from flowlin.networks.fit import require_fit
from flowlin.networks.modules import as_module
from flowlin.tasks.task import Task

Samples = Task | ArrayLike | None
Measure = Callable[..., PyTree]  # of a network and a task, or inputs
MEASURE = function_of("network", "task")


class AbstractPreparedMeasure(eqx.Module):
    """A measure that costs less per network once it is prepared for a task."""

    @abc.abstractmethod
    def observable(self, network: eqx.Module, task: Task, *, check: bool = True) -> Measure:
        """Return the same measure of networks such as this one, on this task alone."""


def require_measure(name: str, value: object) -> object:
    """Accept a function of (network, task), or modes."""
    return value if isinstance(value, AbstractPreparedMeasure) else MEASURE(name, value)


def require_samples(name: str, value: object) -> object:
    """Accept a task, an array of inputs in its place, or None where no sample is needed."""
    return value if value is None or isinstance(value, Task) else finite_array(name, value)


def require_targets(network: AbstractModel, task: object) -> Task:
    """Return the task; raise `ValueError` unless inputs and targets fit and are finite."""
    found: Task = CHECKS_BY_NAME["task"]("task", task)
    require_fit(network, found)
    require_finite("task.x", found.x)
    require_finite("task.y", found.y)
    return found


def measure_networks(
    measure: Measure | AbstractPreparedMeasure, networks: AbstractModel, task: Samples
) -> PyTree:
    """Measure stacked networks, (T, ...); memory does not grow with T."""
    if isinstance(measure, AbstractPreparedMeasure):
        first = _first_network(networks)
        measure = measure.observable(first, require_targets(first, task))
    return _map_networks(measure, networks, task)


@eqx.filter_jit
def _first_network(networks: AbstractModel) -> AbstractModel:
    """Return the first of stacked networks; zeros of its shape where there is none."""

    def first_leaf(leaf: Array) -> Array:
        return leaf[0] if leaf.shape[0] else jnp.zeros(leaf.shape[1:], leaf.dtype)

    return jax.tree.map(first_leaf, networks)


@eqx.filter_jit
def _map_networks(measure: Measure, networks: AbstractModel, task: Samples) -> PyTree:
    """Call the measure on one stacked network after the other."""
    first = _first_network(networks)
    shapes_of_result("`measure`", measure, as_module(first), task)
    return lax.map(lambda network: measure(as_module(network), task), networks)
