"""Loss functions of a whole task."""

import abc
import inspect
from collections.abc import Callable
from typing import Any, Literal, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    argument_error,
    checked,
    choice_of,
    function_of,
    instance_of,
    real_array,
)
from flowlin._tools.arrays import fill_missing, smallest_value, total_weight, weight_rows
from flowlin._tools.files import saveable
from flowlin._tools.user_functions import user_function_errors

# Of samples, or of entries of the targets; None counts each as one.
TargetWeights = Float[Array, " P"] | Float[Array, "P N_out"] | None


class Loss(eqx.Module):
    """A loss that is a weighted sum over samples."""

    @property
    @abc.abstractmethod
    def is_sum_over_outputs(self) -> bool:
        """Tell whether a sample's loss is a sum over its outputs, so that each has its weight."""

    @abc.abstractmethod
    def factor_per_sample(self, mass: ArrayLike) -> Any:
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


AnyLoss = Loss | Callable[..., Any]  # what users pass; `checked` makes a Loss of it


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

    def factor_per_sample(self, mass: ArrayLike) -> Any:
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

    def factor_per_sample(self, mass: ArrayLike) -> Any:
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


@saveable()
class FunctionLoss(Loss):
    r"""Mean of a user's function of one sample, $L = \frac{1}{P} \sum_p \ell(\hat y_p, y_p)$.

    A function that is passed as `loss` becomes one. The same function is the same compiled
    program. Files and pickles keep its `name` alone: `function` is None then.
    """

    function: Callable[..., Any] | None = eqx.field(static=True)
    name: str = eqx.field(static=True)

    @staticmethod
    def from_function(function: Callable[..., Any]) -> "FunctionLoss":
        """Make the loss of a function (output, target) -> scalar; it takes the function's name."""
        inner = getattr(function, "func", function)  # a functools.partial has no name
        return FunctionLoss(function, getattr(inner, "__name__", type(inner).__name__))

    @property
    def is_sum_over_outputs(self) -> bool:
        """Tell that a function may take all outputs together."""
        return False

    def factor_per_sample(self, mass: ArrayLike) -> Any:
        """Return 1 over the mass, the factor of each sample's own loss."""
        return 1.0 / mass

    def total_loss(
        self,
        outputs: Float[Array, "P N_out"],
        targets: Float[Array, "P N_out"],
        weights: TargetWeights = None,
    ) -> Float[Array, ""]:
        """Return the sum over samples of the function's values, by their weights."""
        losses = jax.vmap(self._require_function())(outputs, targets)
        return jnp.sum(losses if weights is None else weights * losses, dtype=outputs.dtype)

    def require_fit(self, targets: Float[Array, "P N_out"]) -> None:
        """Raise `ValueError` unless the function makes one real number of one sample."""
        one = jax.ShapeDtypeStruct(targets.shape[1:], targets.dtype)
        function = self._require_function()
        what = f"`loss` = {self.name} fails on one sample's output and target, {one.shape} each"
        with user_function_errors(what):
            found = jax.eval_shape(function, one, one)
        shape, dtype = getattr(found, "shape", None), getattr(found, "dtype", None)
        if dtype is None or shape != () or not jnp.issubdtype(dtype, jnp.floating):
            what = f"a {type(found).__name__}" if dtype is None else f"{dtype} of shape {shape}"
            raise ValueError(
                f"`loss` = {self.name} must make one floating-point number of one sample's output "
                f"and target, each of shape {one.shape}, and makes {what}; sum or average over the "
                "outputs, not over samples."
            )

    def _require_function(self) -> Callable[..., Any]:
        """Return the function; raise `ValueError` where a file kept its name alone."""
        if self.function is None:
            raise ValueError(
                f"the loss {self.name} was read from a file, which keeps a function's name alone; "
                "pass the function as `loss` again."
            )
        return self.function

    def _fields_to_store(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Leave the function out of what a file holds."""
        return {**fields, "function": None}

    def __reduce__(self):
        return FunctionLoss, (None, self.name)  # a lambda cannot be pickled

    def __repr__(self) -> str:
        return f"mean of {self.name}" + (", known by name" if self.function is None else "")


@checked
@saveable()
class LinearizedLoss(Loss):
    r"""A loss made linear at zero outputs, $L(0) + \sum_i \nabla L(0)_i \cdot \hat y_i$.

    Its gradient flow is the early phase. A `loss` for `fl.gradient_flow` like others.
    """

    loss: AnyLoss

    @property
    def is_sum_over_outputs(self) -> bool:
        """Tell whether the inner loss is a sum over outputs."""
        return self._inner_loss.is_sum_over_outputs

    def factor_per_sample(self, mass: ArrayLike) -> Any:
        """Return the factor of each sample's own loss, that of the inner loss."""
        return self._inner_loss.factor_per_sample(mass)

    def total_loss(
        self,
        outputs: Float[Array, "P N_out"],
        targets: Float[Array, "P N_out"],
        weights: TargetWeights = None,
    ) -> Float[Array, ""]:
        """Return the sum over samples of the losses made linear, by their weights."""
        total = jax.value_and_grad(self._inner_loss.total_loss)
        value, slope = total(jnp.zeros_like(targets), targets, weights)
        return value + jnp.sum(slope * outputs)

    def require_fit(self, targets: Float[Array, "P N_out"]) -> None:
        """Raise `ValueError` for targets that the inner loss is not made for."""
        self._inner_loss.require_fit(targets)

    @property
    def _inner_loss(self) -> Loss:
        """Return the inner loss, typed as `checked` leaves it."""
        return cast(Loss, self.loss)


def _as_loss(name: str, value: Any) -> Loss:
    """Turn a loss of the library, or a function of one sample, into a `Loss`."""
    if isinstance(value, Loss):
        return value
    wanted = "a loss of flowlin or a function of (output, target) of one sample"
    if not callable(value) or inspect.isclass(value):
        remedy = "pass fl.SquaredError(), fl.CrossEntropy() or a function"
        return instance_of(Loss, wanted, remedy)(name, value)
    function_of("output", "target")(name, value)
    try:
        hash(value)
    except TypeError:
        remedy = "wrap it: lambda output, target: loss(output, target)"
        raise argument_error(name, "a function that can be hashed", value, remedy) from None
    return FunctionLoss.from_function(value)


CHECKS_BY_NAME["loss"] = _as_loss
