"""A loss made linear at zero outputs."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arguments import checked
from flowlin._tools.arrays import Scalar
from flowlin._tools.files import saveable
from flowlin.training.function_loss import AnyLoss, as_loss
from flowlin.training.loss import Loss, TargetWeights


@checked
@saveable()
class LinearizedLoss(Loss):
    r"""A loss made linear at zero outputs, $L(0) + \sum_i \nabla L(0)_i \cdot \hat y_i$.

    Its gradient flow is the early phase. A `loss` for `fl.gradient_flow` like others.
    """

    loss: Loss

    def __init__(self, loss: AnyLoss):
        self.loss = as_loss(loss)

    @property
    def is_sum_over_outputs(self) -> bool:
        """Tell whether the inner loss is a sum over outputs."""
        return self.loss.is_sum_over_outputs

    def factor_per_sample(self, mass: Scalar) -> Scalar:
        """Return the factor of each sample's own loss, that of the inner loss."""
        return self.loss.factor_per_sample(mass)

    def total_loss(
        self,
        outputs: Float[Array, "P N_out"],
        targets: Float[Array, "P N_out"],
        weights: TargetWeights = None,
    ) -> Float[Array, ""]:
        """Return the sum over samples of the losses made linear, by their weights."""
        total = jax.value_and_grad(self.loss.total_loss)
        value, slope = total(jnp.zeros_like(targets), targets, weights)
        return value + jnp.sum(slope * outputs)

    def require_fit(self, targets: Float[Array, "P N_out"]) -> None:
        """Raise `ValueError` for targets that the inner loss is not made for."""
        self.loss.require_fit(targets)
