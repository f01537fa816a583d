"""The objective of a run: loss and gradient of a network's parameters, and the vector field."""

import abc
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractClassVar, AbstractVar
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.types import Parameters
from flowlin.field.chunks import summed
from flowlin.loss import Loss
from flowlin.network.forward_pass import product
from flowlin.network.model import AbstractModel
from flowlin.tasks.task import Task


def dot(a: PyTree, b: PyTree) -> Array:
    """The scalar product of two trees."""
    return functools.reduce(jnp.add, jax.tree.leaves(jax.tree.map(jnp.vdot, a, b)))


class AbstractObjective(eqx.Module):
    """Loss and gradient as functions of a network of one fixed kind on one task."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """Its name in `flow.stats`."""

    @property
    @abc.abstractmethod
    def falls(self) -> bool:
        """Whether the loss can only fall along the flow of minus the gradient."""

    @abc.abstractmethod
    def value(self, network: AbstractModel) -> Float[Array, ""]:
        """The run's own loss."""

    @abc.abstractmethod
    def descended(self, network: AbstractModel, parameters: Parameters = None) -> Float[Array, ""]:
        """What `gradient` is the gradient of, at the parameters given."""

    @abc.abstractmethod
    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Gradient of the loss, by all parameters of the network, or at and by those given.

        Given ones that are None rest as the network has them.
        """


class AbstractPlain(AbstractObjective):
    """Objectives whose value is what their gradient is the gradient of."""

    @property
    def label(self) -> str:
        """The name of its class."""
        return type(self).__name__

    @property
    def falls(self) -> bool:
        """It falls."""
        return True

    def descended(self, network: AbstractModel, parameters: Parameters = None) -> Float[Array, ""]:
        """The loss."""
        return self.value(network if parameters is None else network.with_parameters(parameters))


class FullData(AbstractPlain):
    """The loss on all samples, by a forward and a backward pass over chunks of them.

    - `width`: over which kinks are rounded off, if they are, see `flowlin.network.rounded`.
    - `shards`: devices among which the samples are split.
    """

    task: Task
    loss: Loss
    width: ArrayLike | None = None
    shards: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        self.loss.require_fit(self.task.y)

    def value(self, network: AbstractModel) -> Float[Array, ""]:
        """The loss on the task."""
        return self._summed(self._loss, network, None)

    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Gradient of the loss on the task."""
        return self.value_and_gradient(network, parameters)[1]

    def value_and_gradient(
        self, network: AbstractModel, parameters: Parameters = None
    ) -> tuple[Array, Parameters]:
        """Both in one pass over the samples."""
        return self._summed(jax.value_and_grad(self._loss), network, parameters)

    def _loss(self, parameters: Parameters, network: AbstractModel, rows: PyTree) -> Array:
        """The part of the loss that comes from some of the samples."""
        x, y, gates, weights = rows
        network = network.with_parameters(parameters).with_sample_gates(gates)
        fast = _product if x.shape[0] < self.task.samples and x.dtype == jnp.float64 else product
        outputs = network.rounded(x, self.width, fast)
        return self.loss.weight(self.task.mass) * self.loss.total(outputs, y, weights)

    def _summed(
        self, function: Callable[..., PyTree], network: AbstractModel, parameters: Parameters
    ) -> Any:
        """A function such as `_loss`, added up over all samples."""
        rows = (self.task.x, self.task.y, network.sample_gates, self.task.weights)
        parameters = network.parameters if parameters is None else parameters

        def part(rows):
            return function(parameters, network, rows)

        return summed(part, rows, network.held(self.task), self.shards)


def _product(h: Array, w: Array) -> Array:
    """h W^T, laid out so that XLA's fast kernel for CPUs takes its derivative by W too.

    In chunks and float64 a quarter faster over all; in float32 slower (`benchmarks/evaluation.py`).
    """
    return (w @ h.T).T


class AbstractAltered(AbstractObjective):
    """A loss with something added to what is descended; `value` stays the plain loss."""

    plain: AbstractVar[AbstractObjective]
    alteration: AbstractClassVar[str]

    @property
    def label(self) -> str:
        """That of the plain one, and how it is altered."""
        return f"{self.plain.label}, {self.alteration}"

    @property
    def falls(self) -> bool:
        """No: the flow goes down something else."""
        return False

    def value(self, network: AbstractModel) -> Float[Array, ""]:
        """The plain loss."""
        return self.plain.value(network)


class Modified(AbstractAltered):
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

    alteration: ClassVar[str] = "modified"

    def descended(self, network: AbstractModel, parameters: Parameters = None) -> Float[Array, ""]:
        """The modified loss."""
        slope = self.plain.gradient(network, parameters)
        added = self.learning_rate / 4 * dot(slope, slope)
        return self.plain.descended(network, parameters) + added

    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Gradient of the modified loss."""
        parameters = network.parameters if parameters is None else parameters

        def plain(parameters: Parameters) -> Parameters:
            return self.plain.gradient(network, parameters)

        slope = plain(parameters)
        slope, bend = jax.jvp(plain, (parameters,), (slope,))
        return jax.tree.map(lambda g, h: g + self.learning_rate / 2 * h, slope, bend)
