"""Loss functions of a whole task."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin.codec import storable


class Loss(eqx.Module):
    """A loss that is a weighted sum over samples."""

    def weight(self, samples: int) -> float:
        """The factor of each sample among `samples`."""
        raise NotImplementedError

    def total(
        self, outputs: Float[Array, "P N_out"], targets: Float[Array, "P N_out"]
    ) -> Float[Array, ""]:
        """The sum over samples, each of weight one."""
        raise NotImplementedError

    def __call__(
        self, outputs: Float[Array, "P N_out"], targets: Float[Array, "P N_out"]
    ) -> Float[Array, ""]:
        """The loss of outputs (P, N_out) against targets of the same shape."""
        return self.weight(targets.shape[0]) * self.total(outputs, targets)


@storable
class SquaredError(Loss):
    r"""Half the squared error, $L = \frac{1}{2P} \sum_p \|y_p - \hat y_p\|^2$.

    **Arguments:**

    - `reduction`: `"mean"` as above; `"sum"` drops the 1/P (the loss of the lead paper, App. E).
      The two flows are the same curve run at speeds that differ by P: see `fl.StepClock`.

    **Raises:** `ValueError` for another reduction.
    """

    reduction: Literal["mean", "sum"] = eqx.field(static=True, default="mean")

    def __check_init__(self):
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f'`reduction` must be "mean" or "sum", got {self.reduction!r}.')

    def weight(self, samples: int) -> float:
        """The factor of each sample's half squared error among `samples`: 1/P or 1."""
        return 1.0 / samples if self.reduction == "mean" else 1.0

    def total(
        self, outputs: Float[Array, "P N_out"], targets: Float[Array, "P N_out"]
    ) -> Float[Array, ""]:
        """The sum over samples, each of weight one."""
        return 0.5 * jnp.sum((targets - outputs) ** 2)


@storable
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


@storable
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
