"""A user's function of one sample as a loss, and what users may pass as one."""

import inspect
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arguments import CHECKS_BY_NAME, argument_error, function_of, instance_of
from flowlin._tools.arrays import Scalar
from flowlin._tools.files import saveable
from flowlin._tools.user_functions import user_function_errors
from flowlin.training.loss import Loss, TargetWeights

AnyLoss = Loss | Callable[..., Array]  # what users pass; `as_loss` makes a Loss of it


@saveable()
class FunctionLoss(Loss):
    r"""Mean of a user's function of one sample, $L = \frac{1}{P} \sum_p \ell(\hat y_p, y_p)$.

    A function that is passed as `loss` becomes one. The same function is the same compiled
    program. Files and pickles keep its `name` alone: `function` is None then.
    """

    function: Callable[..., Array] | None = eqx.field(static=True)
    name: str = eqx.field(static=True)

    @staticmethod
    def from_function(function: Callable[..., Array]) -> "FunctionLoss":
        """Make the loss of a function (output, target) -> scalar; it takes the function's name."""
        inner = getattr(function, "func", function)  # a functools.partial has no name
        return FunctionLoss(function, getattr(inner, "__name__", type(inner).__name__))

    @property
    def is_sum_over_outputs(self) -> bool:
        """Tell that a function may take all outputs together."""
        return False

    def factor_per_sample(self, mass: Scalar) -> Scalar:
        """Return 1 over the mass, the factor of each sample's own loss."""
        return 1.0 / mass

    def total_loss(
        self,
        outputs: Float[Array, "P N_out"],
        targets: Float[Array, "P N_out"],
        weights: TargetWeights = None,
    ) -> Float[Array, ""]:
        """Return the sum over samples of the function's values, by their weights."""
        losses = jax.vmap(self.require_function())(outputs, targets)
        return jnp.sum(losses if weights is None else weights * losses, dtype=outputs.dtype)

    def require_fit(self, targets: Float[Array, "P N_out"]) -> None:
        """Raise `ValueError` unless the function makes one real number of one sample."""
        one = jax.ShapeDtypeStruct(targets.shape[1:], targets.dtype)
        function = self.require_function()
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

    def require_function(self) -> Callable[..., Array]:
        """Return the function; raise `ValueError` where a file kept its name alone."""
        if self.function is None:
            raise ValueError(
                f"the loss {self.name} was read from a file, which keeps a function's name alone; "
                "pass the function as `loss` again."
            )
        return self.function

    def _fields_to_store(self, fields: dict[str, object]) -> dict[str, object]:
        """Leave the function out of what a file holds."""
        return {**fields, "function": None}

    def __reduce__(self):
        return FunctionLoss, (None, self.name)  # a lambda cannot be pickled

    def __repr__(self) -> str:
        return f"mean of {self.name}" + (", known by name" if self.function is None else "")


def as_loss(loss: AnyLoss) -> Loss:
    """Return a loss of the library as it is, and a function of one sample as a `Loss`."""
    return loss if isinstance(loss, Loss) else FunctionLoss.from_function(loss)


def _loss_or_function(name: str, value: object) -> object:
    """Check for a loss of the library, or a function of one sample that programs can hold."""
    if isinstance(value, Loss):
        return value
    wanted = "a loss of flowlin or a function of (output, target) of one sample"
    if not callable(value) or inspect.isclass(value):
        remedy = "pass fl.SquaredError(), fl.CrossEntropy() or a function"
        return instance_of(Loss, wanted, remedy)(name, value)
    function = function_of("output", "target")(name, value)
    try:
        hash(function)
    except TypeError:
        remedy = "wrap it: lambda output, target: loss(output, target)"
        raise argument_error(name, "a function that can be hashed", value, remedy) from None
    return function


CHECKS_BY_NAME["loss"] = _loss_or_function
