"""The objective of a run: loss and gradient of a network's parameters, and the vector field."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._arrays import augment
from flowlin.chunks import summed
from flowlin.forward import Parameters, forward, product
from flowlin.kinks import AbstractKinks
from flowlin.loss import Loss, SquaredError
from flowlin.network import AbstractNetwork, LinearNetwork
from flowlin.task import Task


class AbstractObjective(eqx.Module):
    """Loss and gradient as functions of a network of one fixed kind on one task."""

    @property
    def label(self) -> str:
        """Its name in `flow.stats`."""
        return type(self).__name__

    @property
    def falls(self) -> bool:
        """Whether the loss can only fall along the flow of minus the gradient."""
        return True

    def value(self, network: AbstractNetwork) -> Float[Array, ""]:
        """The run's own loss."""
        raise NotImplementedError

    def gradient(self, network: AbstractNetwork) -> Parameters:
        """Gradient of the loss with respect to weights and biases."""
        raise NotImplementedError


class FullData(AbstractObjective):
    """The loss on all samples, by a forward and a backward pass over chunks of them."""

    task: Task
    loss: Loss
    kinks: AbstractKinks
    shards: int = eqx.field(static=True, default=1)  # devices among which the samples are split

    def value(self, network: AbstractNetwork) -> Float[Array, ""]:
        """The loss on the task."""
        return self._summed(self._loss, network)

    def gradient(self, network: AbstractNetwork) -> Parameters:
        """Gradient of the loss on the task."""
        return self.value_and_gradient(network)[1]

    def value_and_gradient(self, network: AbstractNetwork) -> tuple[Array, Parameters]:
        """Both in one pass over the samples."""
        return self._summed(jax.value_and_grad(self._loss), network)

    def _loss(self, parameters: Parameters, network: AbstractNetwork, rows: Any) -> Array:
        """The part of the loss that comes from some of the samples."""
        x, y, gates = rows
        activation = self.kinks.activation(network.with_sample_gates(gates))
        fast = _product if x.shape[0] < self.task.samples and x.dtype == jnp.float64 else product
        outputs, _ = forward(parameters, network.bias_strength, x, activation, fast)
        return self.loss.weight(self.task.samples) * self.loss.total(outputs, y)

    def _summed(self, function: Any, network: AbstractNetwork) -> Any:
        """A function such as `_loss`, added up over all samples."""
        rows = (self.task.x, self.task.y, network.sample_gates)
        width = max(network.hidden, default=self.task.outputs)

        def part(rows):
            return function(network.parameters, network, rows)

        return summed(part, rows, width, self.shards)


def _product(h: Array, w: Array) -> Array:
    """h W^T, laid out so that XLA's fast kernel for CPUs takes its derivative by W too.

    In chunks and float64 a quarter faster over all; in float32 slower (`benchmarks/evaluation.py`).
    """
    return (w @ h.T).T


class Statistics(AbstractObjective):
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
        return _statistics(task, loss.weight(task.samples), task.shards)

    def value(self, network: AbstractNetwork) -> Float[Array, ""]:
        """The loss on the task."""
        delta = _end_to_end(network.parameters, network) - self.solution
        return self.floor + jnp.sum((self.slope + 0.5 * delta @ self.sigma_x) * delta)

    def gradient(self, network: AbstractNetwork) -> Parameters:
        """Gradient of the loss on the task."""
        product, pull_back = jax.vjp(lambda p: _end_to_end(p, network), network.parameters)
        return pull_back(self.slope + (product - self.solution) @ self.sigma_x)[0]


@partial(jax.jit, static_argnames=("weight", "shards"))
def _statistics(task: Task, weight: float, shards: int) -> Statistics:
    """What `Statistics.of` returns; the samples are augmented chunk by chunk."""
    width = 1 + task.inputs

    def moments(rows):
        x, y = augment(rows[0], 1.0), rows[1]
        return x.T @ x, y.T @ x

    sigma_x, sigma_yx = (weight * m for m in summed(moments, (task.x, task.y), width, shards))
    values, vectors = jnp.linalg.eigh(sigma_x)
    cut = values[-1] * len(values) * jnp.finfo(task.x.dtype).eps
    inverse = jnp.where(values > cut, 1 / jnp.where(values > cut, values, 1.0), 0.0)
    solution = (sigma_yx @ vectors) * inverse @ vectors.T

    def residuals(rows):
        x, y = augment(rows[0], 1.0), rows[1]
        residual = x @ solution.T - y
        return residual.T @ x, jnp.sum(residual**2)

    slope, squares = summed(residuals, (task.x, task.y), width, shards)
    return Statistics(sigma_x, solution, weight * slope, 0.5 * weight * squares)


def _end_to_end(parameters: Parameters, network: AbstractNetwork) -> Array:
    linear = network.with_parameters(parameters)
    assert isinstance(linear, LinearNetwork)
    matrix, offset = linear.affine()
    return jnp.concatenate([offset[:, None], matrix], axis=1)


def objective(
    network: AbstractNetwork, task: Task, loss: Loss, kinks: AbstractKinks
) -> AbstractObjective:
    """The cheapest exact objective: statistics for linear networks under squared error."""
    # With fewer samples than inputs the samples are the smaller statistic.
    fewer = isinstance(network, LinearNetwork) and task.samples > task.inputs
    if fewer and isinstance(loss, SquaredError):
        return Statistics.of(task, loss)
    return FullData(task, loss, kinks, task.shards)


class Modified(AbstractObjective):
    r"""What descent with a finite step descends, by backward error analysis.

    Steps $w_{k+1} = w_k - \epsilon \nabla L$ follow, at the times $k \epsilon \tau$ and up to
    $O(\epsilon^2)$, the flow of

    $$\tilde L = L + \frac{\epsilon}{4} \|\nabla L\|^2, \qquad
      \nabla \tilde L = \nabla L + \frac{\epsilon}{2} \nabla^2 L\, \nabla L$$

    (Barrett and Dherin 2021, Sec. 2; Hairer, Lubich and Wanner 2006, IX.1 for any method), which
    needs a gradient that is smooth. The Hessian enters as one forward derivative of the gradient.
    `value` stays the plain loss, which need not fall where the curvature is below -2 / eps:
    $\tau \dot L = -g \cdot (1 + \frac{\epsilon}{2} \nabla^2 L)\, g$.
    """

    plain: AbstractObjective
    learning_rate: Float[Array, ""]

    @property
    def label(self) -> str:
        """That of the plain one, and that it is modified."""
        return f"{self.plain.label}, modified"

    @property
    def falls(self) -> bool:
        """No: see above."""
        return False

    def value(self, network: AbstractNetwork) -> Float[Array, ""]:
        """The plain loss."""
        return self.plain.value(network)

    def gradient(self, network: AbstractNetwork) -> Parameters:
        """Gradient of the modified loss."""

        def plain(parameters: Parameters) -> Parameters:
            return self.plain.gradient(network.with_parameters(parameters))

        slope = plain(network.parameters)
        slope, bend = jax.jvp(plain, (network.parameters,), (slope,))
        return jax.tree.map(lambda g, h: g + self.learning_rate / 2 * h, slope, bend)


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
