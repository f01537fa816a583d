"""The error that a step may make: what controllers of steps and solvers both go by."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, PyTree


class AbstractErrorScale(eqx.Module):
    """The error that a step may make in each number of the state.

    - `rtol`, `atol`: as a solver with tolerances of its own takes them.
    """

    rtol: eqx.AbstractVar[ArrayLike]
    atol: eqx.AbstractVar[ArrayLike]

    @abc.abstractmethod
    def __call__(self, y0: PyTree, y1: PyTree) -> PyTree:
        """Return each number's allowed error, by both ends of a step; not differentiated."""

    @abc.abstractmethod
    def relative_error(self, y: PyTree) -> Array:
        """Return the largest error that is allowed to a state at rest, relative to its size."""


class ErrorPerNumber(AbstractErrorScale):
    """The error `atol` + `rtol` |y|, where the user gives an `atol`."""

    rtol: ArrayLike
    atol: ArrayLike

    def __call__(self, y0: PyTree, y1: PyTree) -> PyTree:
        """Return the error by the larger of each number's sizes at both ends."""

        def number_scale(a, b):
            return self.atol + self.rtol * jnp.maximum(jnp.abs(a), jnp.abs(b))

        return lax.stop_gradient(jax.tree.map(number_scale, y0, y1))

    def relative_error(self, y: PyTree) -> Array:
        """Return the allowed error of the largest number."""
        leaves = jax.tree.leaves(lax.stop_gradient(y))
        largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]))
        return jnp.asarray(self.rtol + self.atol / jnp.where(largest > 0, largest, 1))
