"""A model whose outputs move more, or less, than its own for the same weights: lazy to rich."""

from typing import Any

import equinox as eqx
import jax
from jax import lax
from jaxtyping import Array, Float, PyTree

from flowlin.network.model import AbstractModel


class ScaledModel(eqx.Module):
    r"""The function $f_\alpha(w) = f(w_0) + \alpha\, (f(w) - f(w_0))$ of one sample.

    - `parameters`: w, which moves; None for arrays of the model that do not.
    - `start`: the model at w_0, and `alpha`; neither has a derivative, so runs leave them alone.
    """

    parameters: PyTree
    start: AbstractModel
    alpha: Array

    @property
    def network(self) -> Any:
        """The model at w, without the scale; stacked where the parameters are."""
        return self.start.with_parameters(self.parameters).module

    def __call__(self, x: Float[Array, " N_in"]) -> Float[Array, " N_out"]:
        """The output of one sample."""
        start, alpha = jax.tree.map(lax.stop_gradient, (self.start, self.alpha))
        first = start.outputs(x[None])[0]
        return first + alpha * (start.with_parameters(self.parameters).outputs(x[None])[0] - first)
