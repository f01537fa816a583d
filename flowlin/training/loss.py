"""Base class of the loss functions of a whole task."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arguments import checked, real_array
from flowlin._tools.arrays import Scalar, fill_missing, total_weight

# Of samples, or of entries of the targets; None counts each as one.
TargetWeights = Float[Array, " P"] | Float[Array, "P N_out"] | None


class Loss(eqx.Module):
    """A loss that is a weighted sum over samples."""

    @property
    @abc.abstractmethod
    def is_sum_over_outputs(self) -> bool:
        """Tell whether a sample's loss is a sum over its outputs, so that each has its weight."""

    @abc.abstractmethod
    def factor_per_sample(self, mass: Scalar) -> Scalar:
        """Return the factor of each sample's own loss, where the samples' weights sum to `mass`.

        Samples without weights count one each: their mass is P.
        """

    @abc.abstractmethod
    def total_loss(
        self,
        outputs: Float[Array, "P N_out"],
        targets: Float[Array, "P N_out"],
        weights: TargetWeights = None,
    ) -> Float[Array, ""]:
        """Return the sum of the samples' own losses, times `weights` (P,) where they are given.

        With weights (P, N_out) the sum over samples and outputs, if `is_sum_over_outputs`.
        """

    @abc.abstractmethod
    def require_fit(self, targets: Float[Array, "P N_out"]) -> None:
        """Raise `ValueError` for targets, where known, that the loss is not made for."""

    def require_weights(self, weights: TargetWeights, shape: tuple[int, ...]) -> None:
        """Raise `ValueError` unless weights go with the loss, and with targets of this shape."""
        if weights is None or jnp.shape(weights) == shape[:1]:
            return
        if jnp.shape(weights) != shape:
            raise ValueError(
                f"`weights` must have shape {shape[:1]}, one per sample, or {shape}, one per entry "
                f"of the targets, got {jnp.shape(weights)}."
            )
        if not self.is_sum_over_outputs:
            raise ValueError(
                f"`weights` of shape {shape}, one per entry of the targets, are for losses that "
                f"are sums over outputs, and `loss` = {self!r} takes a sample's outputs together; "
                f"give `weights` of shape {shape[:1]}, or take fl.SquaredError()."
            )

    @checked(outputs=real_array, targets=real_array, weights=real_array)
    def __call__(
        self,
        outputs: Float[Array, "P N_out"],
        targets: Float[Array, "P N_out"],
        weights: TargetWeights = None,
    ) -> Float[Array, ""]:
        """Return the loss of outputs (P, N_out) against targets of the same shape.

        **Arguments:** `weights` (P,) of the samples, or (P, N_out) of the targets' entries, as
        those of `fl.Task`; NaN targets of weight zero are missing.

        **Raises:** `ValueError` for arrays of other shapes, for targets that do not fit, and for
        weights of entries where the loss is no sum over outputs.
        """
        shapes = jnp.shape(outputs), jnp.shape(targets)
        if len(shapes[0]) != 2 or shapes[0] != shapes[1]:
            raise ValueError(
                "`outputs` and `targets` must have one shape (P, N_out), got "
                f"{shapes[0]} and {shapes[1]}; one row is a sample, and labels of classes become "
                "rows by `jax.nn.one_hot(labels, N_out)`."
            )
        self.require_fit(targets)
        if weights is None:
            return self.factor_per_sample(targets.shape[0]) * self.total_loss(outputs, targets)
        self.require_weights(weights, shapes[0])
        targets = fill_missing(targets, weights)
        return self.factor_per_sample(total_weight(weights)) * self.total_loss(
            outputs, targets, weights
        )
