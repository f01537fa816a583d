"""Half the squared error."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arguments import checked, choice_of
from flowlin._tools.arrays import Scalar, weight_rows
from flowlin._tools.files import saveable
from flowlin.training.loss import Loss, TargetWeights


@checked(reduction=choice_of("mean", "sum"))
@saveable()
class SquaredError(Loss):
    r"""Half the squared error, $L = \frac{1}{2P} \sum_p \|y_p - \hat y_p\|^2$.

    **Arguments:**

    - `reduction`: `"mean"` as above; `"sum"` drops the 1/P (the loss of the lead paper, App. E).
      The two flows are the same curve run at speeds that differ by P: that of the sum with the
      time constant tau is that of the mean with tau/P, and descent on the sum at the rate eps is
      descent on the mean at P eps (see `fl.StepClock`). Of weighted samples (`fl.Task(weights=)`)
      P is the sum of the weights; of weighted entries that over N_out.

    **Raises:** `ValueError` for another reduction.
    """

    reduction: Literal["mean", "sum"] = eqx.field(static=True, default="mean")

    @property
    def is_sum_over_outputs(self) -> bool:
        """Tell that outputs have their errors each."""
        return True

    def factor_per_sample(self, mass: Scalar) -> Scalar:
        """Return the factor of each sample's half squared error: 1 over the mass, or 1."""
        return 1.0 / mass if self.reduction == "mean" else 1.0

    def total_loss(
        self,
        outputs: Float[Array, "P N_out"],
        targets: Float[Array, "P N_out"],
        weights: TargetWeights = None,
    ) -> Float[Array, ""]:
        """Return the sum over samples of half the squared errors, by their weights."""
        return 0.5 * jnp.sum(weight_rows((targets - outputs) ** 2, weights))

    def require_fit(self, targets: Float[Array, "P N_out"]) -> None:
        """Accept all targets."""
