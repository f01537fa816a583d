"""Whether a model fits a task, and how much memory its samples take."""

import jax

from flowlin.networks.base import AbstractModel, AbstractOwnModel, require_task_fit
from flowlin.networks.gated_module import GatedModule
from flowlin.networks.graph import AbstractGraph, require_graph_fit
from flowlin.networks.modules import ForeignModel
from flowlin.tasks.task import Task


def require_fit(model: AbstractModel, task: Task) -> None:
    """Raise `ValueError` unless the model takes the task's inputs and gives its outputs.

    A graph's gates must be for the task's samples, too.
    """
    match model:
        case AbstractGraph():
            require_graph_fit(model, task)
        case AbstractOwnModel():
            require_task_fit(model, task)
        case ForeignModel():
            model.require_sample_outputs(task)
        case GatedModule():
            model.model.require_sample_outputs(task)


def numbers_per_sample(model: AbstractModel, task: Task) -> int:
    """Estimate how many numbers per sample of a task a forward pass holds at once.

    Of a module, the size of the largest array that grows with the samples, per sample.
    """
    known = model.facts.numbers_per_sample
    if known is not None:
        return known
    module = model.model if isinstance(model, GatedModule) else model
    two, three = (_array_sizes(module, samples, task) for samples in (2, 3))
    return max(1, *(b - a for a, b in zip(two, three, strict=False)))


def _array_sizes(model: AbstractModel, samples: int, task: Task) -> list[int]:
    """List the sizes of all arrays that a forward pass makes, in order."""
    x = jax.ShapeDtypeStruct((samples, task.inputs), model.dtype)
    found, left = [], [jax.make_jaxpr(model.outputs)(x).jaxpr]
    while left:
        for equation in left.pop().eqns:
            found += [one.aval.size for one in equation.outvars if hasattr(one.aval, "size")]
            parts = jax.tree.leaves(equation.params)
            parts = [getattr(part, "jaxpr", part) for part in parts]  # of a closed one
            left += [part for part in parts if hasattr(part, "eqns")]
    return found
