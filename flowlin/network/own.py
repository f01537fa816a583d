"""What flowlin's own networks have in common as models: weights, biases, and their strength."""

from typing import Any, TypeVar

import equinox as eqx
import jax
from equinox import AbstractVar
from jax.typing import DTypeLike
from jaxtyping import Array

from flowlin._tools.checks import checked
from flowlin._tools.copies import copied
from flowlin._tools.flat import as_tree
from flowlin._tools.types import Parameters
from flowlin.network.fit import require_alike
from flowlin.network.model import AbstractModel

O = TypeVar("O", bound="AbstractOwn")  # noqa: E741


class AbstractOwn(AbstractModel):
    """A tree of weights, one of biases, and the constant c in front of the biases."""

    weights: AbstractVar[Any]
    biases: AbstractVar[Any]
    bias_strength: AbstractVar[Array]

    @property
    def module(self: O) -> O:
        """The network itself."""
        return self

    @property
    def kind(self) -> str:
        """The name of its class."""
        return type(self).__name__

    @property
    def parameters(self) -> Parameters:
        """What is trained: the weights and the biases."""
        return self.weights, self.biases

    def parameters_of(self, module: "AbstractOwn") -> Parameters:
        """Its weights and biases."""
        return module.parameters

    def with_parameters(self: O, parameters: Parameters) -> O:
        """The same network with other weights and biases; those that are None stay."""
        weights, biases = eqx.combine(as_tree(parameters), self.parameters)
        return copied(self, weights=weights, biases=biases)

    @checked
    def astype(self: O, dtype: DTypeLike) -> O:
        """The same network in another floating-point precision, float32 or float64."""
        return jax.tree.map(lambda array: array.astype(dtype), self)

    @property
    def about_kinks(self) -> tuple[str, str]:
        """There are none, but for ReLU networks, which have a policy."""
        return "none", "the network has no kinks"

    def packed(self, parameters: Parameters) -> Parameters:
        """As they are."""
        return parameters

    def unpacked(self, stored: Parameters) -> Parameters:
        """As they are."""
        return stored

    def restored(self, stored: AbstractModel, name: str) -> AbstractModel:
        """What the file holds, which needs nothing of this one but to be of its kind."""
        require_alike(self, stored, name)
        return stored
