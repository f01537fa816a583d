"""The loss of a linear network from sufficient statistics."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arrays import augment, weighted
from flowlin._tools.types import Parameters
from flowlin.field.chunks import summed
from flowlin.field.objective import AbstractPlain
from flowlin.loss import SquaredError
from flowlin.network.kinds import LinearNetwork
from flowlin.network.model import AbstractModel
from flowlin.tasks.task import Task


class Statistics(AbstractPlain):
    r"""Squared error of a linear network from sufficient statistics: no sample is seen again.

    With inputs x~ = [1; x] and the end-to-end map M = [offset, matrix] the loss is quadratic in M.
    It is expanded about a least-squares solution M*, which keeps its digits near convergence
    where $\Sigma_{yx} - M \Sigma_x$ would cancel:

    $$L(M) = L^* + \langle G^*, \Delta\rangle + \tfrac12 \langle \Delta\, \Sigma_x, \Delta\rangle,
      \qquad \Delta = M - M^*,\; G^* = M^* \Sigma_x - \Sigma_{yx}.$$

    Exact for any M*, since L and G* are those of M* itself.
    """

    sigma_x: Float[Array, "N N"]
    solution: Float[Array, "N_out N"]
    slope: Float[Array, "N_out N"]
    floor: Float[Array, ""]

    @staticmethod
    def of(task: Task, loss: SquaredError) -> "Statistics":
        """Statistics of a task; two passes over its chunks and one N x N eigenproblem."""
        return _statistics(task, loss, task.shards)

    def value(self, network: AbstractModel) -> Float[Array, ""]:
        """The loss on the task."""
        delta = _end_to_end(network.parameters, network) - self.solution
        return self.floor + jnp.sum((self.slope + 0.5 * delta @ self.sigma_x) * delta)

    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Gradient of the loss on the task."""
        parameters = network.parameters if parameters is None else parameters
        product, pull_back = jax.vjp(lambda p: _end_to_end(p, network), parameters)
        return pull_back(self.slope + (product - self.solution) @ self.sigma_x)[0]


@partial(jax.jit, static_argnames="shards")
def _statistics(task: Task, loss: SquaredError, shards: int) -> Statistics:
    """What `Statistics.of` returns; the samples are augmented chunk by chunk."""
    weight, width, samples = loss.weight(task.mass), 1 + task.inputs, (task.x, task.y, task.weights)

    def moments(rows):
        x, y = augment(rows[0], 1.0), rows[1]
        counted = weighted(x, rows[2])
        return counted.T @ x, y.T @ counted

    sigma_x, sigma_yx = (weight * m for m in summed(moments, samples, width, shards))
    values, vectors = jnp.linalg.eigh(sigma_x)
    cut = values[-1] * len(values) * jnp.finfo(task.x.dtype).eps
    inverse = jnp.where(values > cut, 1 / jnp.where(values > cut, values, 1.0), 0.0)
    solution = (sigma_yx @ vectors) * inverse @ vectors.T

    def residuals(rows):
        x, y = augment(rows[0], 1.0), rows[1]
        residual = x @ solution.T - y
        counted = weighted(residual, rows[2])
        return counted.T @ x, jnp.sum(counted * residual)

    slope, squares = summed(residuals, samples, width, shards)
    return Statistics(sigma_x, solution, weight * slope, 0.5 * weight * squares)


def _end_to_end(parameters: Parameters, network: AbstractModel) -> Array:
    linear = network.with_parameters(parameters)
    assert isinstance(linear, LinearNetwork)
    matrix, offset = linear.affine()
    return jnp.concatenate([offset[:, None], matrix], axis=1)
