"""The vector field of a run, and the objective that it descends."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, PyTree

from flowlin._tools.flat import as_tree, like
from flowlin._tools.types import Parameters
from flowlin.field.decay import Decay, decayed
from flowlin.field.graph_statistics import GraphStatistics, is_cheaper
from flowlin.field.objective import AbstractObjective, FullData
from flowlin.field.pace import paced
from flowlin.field.statistics import Statistics
from flowlin.loss import Loss, SquaredError
from flowlin.network.graph import GatedGraph
from flowlin.network.kinds import LinearNetwork
from flowlin.network.model import AbstractModel
from flowlin.tasks.task import Task


def objective(
    network: AbstractModel,
    task: Task,
    loss: Loss,
    width: ArrayLike | None = None,
    decay: Decay | None = None,
) -> AbstractObjective:
    """The cheapest exact objective: from statistics where that is cheaper, under squared error.

    `width`: over which kinks are rounded off, if they are.
    """
    plain: AbstractObjective = FullData(task, loss, width, task.shards)
    if isinstance(loss, SquaredError):
        # With fewer samples than inputs the samples are the smaller statistic.
        if isinstance(network, LinearNetwork) and task.samples > task.inputs:
            plain = Statistics.of(task, loss)
        elif isinstance(network, GatedGraph) and is_cheaper(network, task):
            plain = GraphStatistics.of(network, task, loss)
    return decayed(plain, decay)


class GradientField(eqx.Module):
    """The vector field dw/dt = -grad L / tau, with the signature that diffrax expects.

    `tau` is a prefix of the parameters' tree; see `flowlin.field.pace`.
    """

    objective: AbstractObjective
    network: AbstractModel
    tau: PyTree

    def __call__(self, t: ArrayLike | None, parameters: Parameters, args: PyTree) -> Parameters:
        """Velocity of the parameters, of those that are there."""
        del t, args
        gradient = self.objective.gradient(self.network, as_tree(parameters))
        return like(parameters, paced(jax.tree.map(jnp.negative, gradient), self.tau))
