"""What flowlin's own networks have in common as models: weights and biases, layer by layer."""

import abc

from equinox import AbstractVar
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.types import Activation, Biases, Parameters, Product, Weights
from flowlin.network.fit import check_fit
from flowlin.network.forward_pass import forward
from flowlin.network.own import AbstractOwn
from flowlin.tasks.task import Task


class AbstractLayered(AbstractOwn):
    """Weights (N_out_l, N_in_l), biases (N_out_l,) or None, and the constant c in front of them."""

    weights: AbstractVar[Weights]
    biases: AbstractVar[Biases]
    bias_strength: AbstractVar[Array]

    @abc.abstractmethod
    def rounded_activation(self, width: ArrayLike | None) -> Activation:
        """The activation with kinks rounded off over |z| < width, its own without one."""

    def rounded(
        self, x: Float[Array, "P N_in"], width: ArrayLike | None, product: Product
    ) -> Float[Array, "P N_out"]:
        """Outputs, h W^T by a `product` of h and W; kinks rounded off over a width, if any."""
        activation = self.rounded_activation(width)
        return forward(self.parameters, self.bias_strength, x, activation, product)[0]

    def held(self, task: Task) -> int:
        """The most that a layer takes from the one below."""
        return max((w.shape[-1] for w in self.weights[1:]), default=task.outputs)

    def require_fit(self, task: Task) -> None:
        """Raise `ValueError` unless it takes the task's inputs and gives its outputs."""
        check_fit(self, task)

    def time_constants(self, tau: Array) -> Parameters:
        """One for all arrays, or one per layer (L,), which a layer's weights and bias share."""
        own = len(self.weights)
        if tau.ndim and tau.shape != (own,):
            raise ValueError(
                f"`tau` must be one number or have one entry per layer, {own} with the readout, "
                f"got shape {tau.shape}."
            )
        each = tuple(tau[k] if tau.ndim else tau for k in range(own))
        slow = [None if b is None else t for t, b in zip(each, self.biases, strict=True)]
        return each, tuple(slow)

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return tuple(w.shape[-2] for w in self.weights[:-1])

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of all layers, from N_in over the hidden ones to N_out."""
        return (self.weights[0].shape[-1], *(w.shape[-2] for w in self.weights))

    @property
    def dtype(self):
        """Floating-point precision of the parameters."""
        return self.weights[0].dtype
