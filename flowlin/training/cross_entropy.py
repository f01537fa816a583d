"""Softmax cross-entropy."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arguments import checked
from flowlin._tools.arrays import Scalar, smallest_value
from flowlin._tools.files import saveable
from flowlin.training.loss import Loss, TargetWeights


@checked
@saveable()
class CrossEntropy(Loss):
    r"""Mean softmax cross-entropy, $L = -\frac{1}{P} \sum_p y_p \cdot \log
    \mathrm{softmax}(\hat y_p)$, for one-hot (or probability) targets.

    Targets have two columns or more, none of them negative: the loss has no lower bound otherwise,
    and is zero whatever a single output is. Rows need not sum to one: several classes may be
    marked, as in `fl.tasks.hierarchy`. Traced targets are not checked.
    """

    @property
    def is_sum_over_outputs(self) -> bool:
        """Tell that the softmax is of all outputs."""
        return False

    def factor_per_sample(self, mass: Scalar) -> Scalar:
        """Return 1 over the mass, the factor of each sample's cross-entropy."""
        return 1.0 / mass

    def total_loss(
        self,
        outputs: Float[Array, "P N_out"],
        targets: Float[Array, "P N_out"],
        weights: TargetWeights = None,
    ) -> Float[Array, ""]:
        """Return the sum over samples of the cross-entropies, by their weights."""
        shares = targets * jax.nn.log_softmax(outputs, axis=-1)
        return -jnp.sum(shares if weights is None else weights[:, None] * shares)

    def require_fit(self, targets: Float[Array, "P N_out"]) -> None:
        """Raise `ValueError` for a single output, or known targets below zero."""
        if targets.shape[1] == 1:
            raise ValueError(
                "`loss` = CrossEntropy() needs `targets` of two or more classes, and they have "
                "one column: the softmax of one output is always 1. Make classes one-hot, by "
                "`one_hot=True` of the task or `jax.nn.one_hot(labels, classes)`, and a "
                "probability p the two columns [1 - p, p]."
            )
        if smallest_value(targets) < 0:
            raise ValueError(
                "`loss` = CrossEntropy() needs `targets` that are one-hot or probabilities, and "
                f"they go down to {smallest_value(targets):g}, where it has no lower bound; make "
                "them classes, or take fl.SquaredError()."
            )
