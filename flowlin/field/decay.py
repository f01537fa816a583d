"""Weight decay: half the sum of squares of what is trained, added to what is descended."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.types import Parameters
from flowlin.field.objective import AbstractAltered, AbstractObjective, dot
from flowlin.network.model import AbstractModel


class Decay(eqx.Module):
    r"""The gradient $\lambda w$ of $\frac{\lambda}{2} \|w\|^2$, weights and biases alike.

    - `rate`: $\lambda \ge 0$, a number for all parameters, or (L,) one per layer.
    """

    rate: Float[Array, "*L"]

    def pull(self, parameters: Parameters) -> Parameters:
        r"""$\lambda w$ of all parameters."""
        if self.rate.ndim == 0:
            return jax.tree.map(lambda w: self.rate * w, parameters)
        weights, biases = parameters
        pulled = [
            jax.tree.map(lambda w, k=k: self.rate[k] * w, layer)
            for k, layer in enumerate(zip(weights, biases, strict=True))
        ]
        return tuple(w for w, _ in pulled), tuple(b for _, b in pulled)

    def first(self) -> Float[Array, ""]:
        r"""$\lambda$ of the first layer."""
        return self.rate if self.rate.ndim == 0 else self.rate[0]


def slowed(velocity: Parameters, decay: Decay | None, parameters: Parameters) -> Parameters:
    """A velocity of the parameters with the decay's, $-\\lambda w$, where there is one."""
    if decay is None:
        return velocity
    return jax.tree.map(jnp.subtract, velocity, decay.pull(parameters))


class Decayed(AbstractAltered):
    r"""What a run with weight decay descends, $L + \frac{\lambda}{2} \|w\|^2$.

    `value` stays the loss on the data, which may rise: $\tau \dot L = -|g|^2 - \lambda\, g \cdot w$
    with its gradient g.
    """

    plain: AbstractObjective
    decay: Decay

    alteration: ClassVar[str] = "with weight decay"

    def descended(self, network: AbstractModel, parameters: Parameters = None) -> Float[Array, ""]:
        """The loss with the decay."""
        parameters = network.parameters if parameters is None else parameters
        energy = dot(self.decay.pull(parameters), parameters) / 2
        return self.plain.descended(network, parameters) + energy

    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Gradient of the loss with the decay."""
        parameters = network.parameters if parameters is None else parameters
        gradient: Parameters = self.plain.gradient(network, parameters)
        return jax.tree.map(jnp.add, gradient, self.decay.pull(parameters))


def decayed(plain: AbstractObjective, decay: Decay | None) -> AbstractObjective:
    """An objective with the decay, where there is one."""
    return plain if decay is None else Decayed(plain, decay)
