"""The vector field of a run, and the objective that it descends."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from flowlin._tools.flat import as_tree, like
from flowlin._tools.types import Parameters
from flowlin.field.decay import Decay, decayed
from flowlin.field.objective import AbstractObjective, FullData
from flowlin.field.pace import paced
from flowlin.field.statistics import Statistics
from flowlin.loss import Loss, SquaredError
from flowlin.network.kinds import LinearNetwork
from flowlin.network.model import AbstractModel
from flowlin.tasks.task import Task


def objective(
    network: AbstractModel,
    task: Task,
    loss: Loss,
    width: float = 0.0,
    decay: Decay | None = None,
) -> AbstractObjective:
    """The cheapest exact objective: statistics for linear networks under squared error.

    `width`: over which kinks are rounded off.
    """
    # With fewer samples than inputs the samples are the smaller statistic.
    fewer = isinstance(network, LinearNetwork) and task.samples > task.inputs
    if fewer and isinstance(loss, SquaredError):
        return decayed(Statistics.of(task, loss), decay)
    return decayed(FullData(task, loss, width, task.shards), decay)


class GradientField(eqx.Module):
    """The vector field dw/dt = -grad L / tau, with the signature that diffrax expects.

    `tau` is a prefix of the parameters' tree; see `flowlin.field.pace`.
    """

    objective: AbstractObjective
    network: AbstractModel
    tau: PyTree

    def __call__(self, t: Any, parameters: Parameters, args: Any) -> Parameters:
        """Velocity of the parameters, of those that are there."""
        del t, args
        gradient = self.objective.gradient(self.network, as_tree(parameters))
        return like(parameters, paced(jax.tree.map(jnp.negative, gradient), self.tau))
