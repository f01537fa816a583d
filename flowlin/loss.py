"""Loss functions of a whole task."""

import abc
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.checks import WORDS, array, checked, instance, one_of
from flowlin._tools.codec import storable


class Loss(eqx.Module):
    """A loss that is a weighted sum over samples."""

    @abc.abstractmethod
    def weight(self, samples: int) -> float:
        """The factor of each sample among `samples`."""

    @abc.abstractmethod
    def total(
        self, outputs: Float[Array, "P N_out"], targets: Float[Array, "P N_out"]
    ) -> Float[Array, ""]:
        """The sum over samples, each of weight one."""

    @checked(outputs=array, targets=array)
    def __call__(
        self, outputs: Float[Array, "P N_out"], targets: Float[Array, "P N_out"]
    ) -> Float[Array, ""]:
        """The loss of outputs (P, N_out) against targets of the same shape.

        **Raises:** `ValueError` for arrays of other shapes.
        """
        shapes = jnp.shape(outputs), jnp.shape(targets)
        if len(shapes[0]) != 2 or shapes[0] != shapes[1]:
            raise ValueError(
                "`outputs` and `targets` must have one shape (P, N_out), got "
                f"{shapes[0]} and {shapes[1]}; one row is a sample."
            )
        return self.weight(targets.shape[0]) * self.total(outputs, targets)


@checked(reduction=one_of("mean", "sum"))
@storable()
class SquaredError(Loss):
    r"""Half the squared error, $L = \frac{1}{2P} \sum_p \|y_p - \hat y_p\|^2$.

    **Arguments:**

    - `reduction`: `"mean"` as above; `"sum"` drops the 1/P (the loss of the lead paper, App. E).
      The two flows are the same curve run at speeds that differ by P: see `fl.StepClock`.

    **Raises:** `ValueError` for another reduction.
    """

    reduction: Literal["mean", "sum"] = eqx.field(static=True, default="mean")

    def weight(self, samples: int) -> float:
        """The factor of each sample's half squared error among `samples`: 1/P or 1."""
        return 1.0 / samples if self.reduction == "mean" else 1.0

    def total(
        self, outputs: Float[Array, "P N_out"], targets: Float[Array, "P N_out"]
    ) -> Float[Array, ""]:
        """The sum over samples, each of weight one."""
        return 0.5 * jnp.sum((targets - outputs) ** 2)


@checked
@storable()
class CrossEntropy(Loss):
    r"""Mean softmax cross-entropy, $L = -\frac{1}{P} \sum_p y_p \cdot \log
    \mathrm{softmax}(\hat y_p)$, for one-hot (or probability) targets.
    """

    def weight(self, samples: int) -> float:
        """The factor of each sample's cross-entropy among `samples`: 1/P."""
        return 1.0 / samples

    def total(
        self, outputs: Float[Array, "P N_out"], targets: Float[Array, "P N_out"]
    ) -> Float[Array, ""]:
        """The sum over samples, each of weight one."""
        return -jnp.sum(targets * jax.nn.log_softmax(outputs, axis=-1))


@checked
@storable()
class LinearizedLoss(Loss):
    r"""A loss made linear at zero outputs, $L(0) + \sum_i \nabla L(0)_i \cdot \hat y_i$.

    Its gradient flow is the early phase. A `loss` for `fl.gradient_flow` like others.
    """

    loss: SquaredError | CrossEntropy

    def weight(self, samples: int) -> float:
        """The factor of each sample, that of the loss."""
        return self.loss.weight(samples)

    def total(
        self, outputs: Float[Array, "P N_out"], targets: Float[Array, "P N_out"]
    ) -> Float[Array, ""]:
        """The sum over samples, each of weight one."""
        value, slope = jax.value_and_grad(self.loss.total)(jnp.zeros_like(targets), targets)
        return value + jnp.sum(slope * outputs)


WORDS["loss"] = instance(Loss, "a loss of flowlin", "pass fl.SquaredError() or fl.CrossEntropy()")
