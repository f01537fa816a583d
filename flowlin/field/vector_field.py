"""The vector field of a run, and the objective that it descends."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from flowlin._tools.types import Parameters
from flowlin.field.decay import Decay, decayed
from flowlin.field.objective import AbstractObjective, FullData
from flowlin.field.statistics import Statistics
from flowlin.loss import Loss, SquaredError
from flowlin.network.kinds import AbstractNetwork, LinearNetwork
from flowlin.tasks.task import Task


def objective(
    network: AbstractNetwork,
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
    """The vector field dw/dt = -grad L / tau, with the signature that diffrax expects."""

    objective: AbstractObjective
    network: AbstractNetwork
    tau: Array

    def __call__(self, t: Any, parameters: Parameters, args: Any) -> Parameters:
        """Velocity of the parameters."""
        del t, args
        gradient = self.objective.gradient(self.network.with_parameters(parameters))
        return jax.tree.map(lambda g: -g / self.tau, gradient)
