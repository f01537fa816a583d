"""The loss of a linear network from sufficient statistics."""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from flowlin._tools.arrays import augment, weighted
from flowlin._tools.types import Parameters
from flowlin.field.chunks import summed
from flowlin.field.objective import AbstractPlain
from flowlin.loss import SquaredError
from flowlin.network.kinds import LinearNetwork
from flowlin.network.model import AbstractModel
from flowlin.tasks.task import Task


class Expansion(eqx.Module):
    r"""The squared error of a linear map M as a function of M, about a least-squares solution M*.

    Quadratic in M, it is expanded about M*, which keeps its digits near convergence where
    $\Sigma_{yx} - M \Sigma_x$ would cancel:

    $$L(M) = L^* + \langle G^*, \Delta\rangle + \tfrac12 \langle \Delta\, \Sigma_x, \Delta\rangle,
      \qquad \Delta = M - M^*,\; G^* = M^* \Sigma_x - \Sigma_{yx}.$$

    Exact for any M*, since L and G* are those of M* itself.
    """

    sigma_x: Float[Array, "N N"]
    solution: Float[Array, "N_out N"]
    slope: Float[Array, "N_out N"]
    floor: Float[Array, ""]

    def value(self, product: Float[Array, "N_out N"]) -> Float[Array, ""]:
        """The loss of a map."""
        delta = product - self.solution
        return self.floor + jnp.sum((self.slope + 0.5 * delta @ self.sigma_x) * delta)

    def gradient(self, product: Float[Array, "N_out N"]) -> Float[Array, "N_out N"]:
        """Gradient of the loss by the map."""
        return self.slope + (product - self.solution) @ self.sigma_x


def expanded(
    regression: Callable[[PyTree], tuple[Array, Array, Array | None]],
    rows: PyTree,
    weight: Array | float,
    width: int,
    shards: int,
) -> Expansion:
    """The expansion of a regression over samples, taken chunk by chunk.

    **Arguments:**

    - `regression`: of rows (P', ...), the regressors (P', N), targets (P', N_out), and weights.
    - `rows`: the tree of arrays with all samples.
    - `weight`: of the sum over samples in the loss.
    - `width`, `shards`: the number N of regressors, and as for `summed`.
    """

    def moments(rows):
        x, y, weights = regression(rows)
        counted = weighted(x, weights)
        return counted.T @ x, y.T @ counted

    sigma_x, sigma_yx = (weight * m for m in summed(moments, rows, width, shards))
    values, vectors = jnp.linalg.eigh(sigma_x)
    cut = values[-1] * len(values) * jnp.finfo(sigma_x.dtype).eps
    inverse = jnp.where(values > cut, 1 / jnp.where(values > cut, values, 1.0), 0.0)
    # Whatever it is, what follows is exact: no derivative has to go through the eigenproblem.
    solution = lax.stop_gradient((sigma_yx @ vectors) * inverse @ vectors.T)

    def residuals(rows):
        x, y, weights = regression(rows)
        residual = x @ solution.T - y
        counted = weighted(residual, weights)
        return counted.T @ x, jnp.sum(counted * residual)

    slope, squares = summed(residuals, rows, width, shards)
    return Expansion(sigma_x, solution, weight * slope, 0.5 * weight * squares)


class Statistics(AbstractPlain):
    r"""Squared error of a linear network from sufficient statistics: no sample is seen again.

    The end-to-end map M = [offset, matrix] of inputs x~ = [1; x] is all that the loss depends on.
    """

    expansion: Expansion

    @staticmethod
    def of(task: Task, loss: SquaredError) -> "Statistics":
        """Statistics of a task; two passes over its chunks and one N x N eigenproblem."""
        return Statistics(_expansion(task, loss, task.shards))

    def value(self, network: AbstractModel) -> Float[Array, ""]:
        """The loss on the task."""
        return self.expansion.value(_end_to_end(network.parameters, network))

    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Gradient of the loss on the task."""
        parameters = network.parameters if parameters is None else parameters
        product, pull_back = jax.vjp(lambda p: _end_to_end(p, network), parameters)
        return pull_back(self.expansion.gradient(product))[0]


@partial(jax.jit, static_argnames="shards")
def _expansion(task: Task, loss: SquaredError, shards: int) -> Expansion:
    """The samples are augmented chunk by chunk."""

    def regression(rows: PyTree) -> tuple[Array, Array, Array | None]:
        x, y, weights = rows
        return augment(x, 1.0), y, weights

    rows = (task.x, task.y, task.weights)
    return expanded(regression, rows, loss.weight(task.mass), 1 + task.inputs, shards)


def _end_to_end(parameters: Parameters, network: AbstractModel) -> Array:
    linear = network.with_parameters(parameters)
    assert isinstance(linear, LinearNetwork)
    matrix, offset = linear.affine()
    return jnp.concatenate([offset[:, None], matrix], axis=1)
