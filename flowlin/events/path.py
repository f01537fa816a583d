"""The network's parameters along one step of a solver."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from flowlin._tools.arrays import Parameters, as_parameters, replace_fields, with_axes

Image = TypeVar("Image")

STEP_PARTS = 8  # parts into which a step of several pieces is cut, so that no part holds a joint

# Degrees in time of diffrax's dense outputs; the library's own have an attribute `degree`.
DENSE_DEGREES = {
    diffrax.LocalLinearInterpolation: 1,
    diffrax.ThirdOrderHermitePolynomialInterpolation: 3,
    diffrax.Dopri5.interpolation_cls: 4,
    diffrax.Tsit5.interpolation_cls: 4,
    diffrax.Dopri8.interpolation_cls: 6,
}


def dense_degree(interpolation_cls: object) -> int | None:
    """Return the degree in time of a solver's dense output; None where it is not known."""
    # diffrax hands over the Hermite cubic as a bound method of its class.
    kind = getattr(interpolation_cls, "__self__", interpolation_cls)
    return getattr(kind, "degree", DENSE_DEGREES.get(kind))


class StepPath(eqx.Module):
    """Dense output of one step from `t0` to `t1`, as a function of time.

    `dense` is what the solver hands to its interpolation, and `start` the state at `t0`. `back` is
    the linear map from states to parameters, where a run is solved in other coordinates.
    `quantities` are what the solver can tell of the network at a time and its parameters without a
    pass over the inputs, by name: "outputs" (P, N_out) and the run's own "loss"; None of any other.
    """

    interpolation_cls: Callable[..., PyTree] = eqx.field(static=True)
    t0: Any
    t1: Any
    dense_info: dict[str, PyTree]
    start: Parameters
    to_parameters: Callable[[Parameters], Parameters] | None = None
    quantities: Callable[[ArrayLike, Parameters], dict[str, Array]] | None = None

    def quantities_at(self, t: ArrayLike, parameters: Parameters) -> dict[str, Array]:
        """Return what the solver can tell at time t, where the parameters are these."""
        return {} if self.quantities is None else self.quantities(t, parameters)

    def __call__(self, t: ArrayLike) -> Parameters:
        """Return the parameters at time t."""
        return as_parameters(self.to_parameters, self.state_at(t))

    def state_at(self, t: ArrayLike) -> Parameters:
        """Return the solver's state at time t."""
        return self._evaluate_dense(self.dense_info, t)

    def with_offset(self, offset: Parameters | None) -> "StepPath":
        """Return the path with the same state added everywhere; None is none.

        Dense outputs of Runge-Kutta methods are states at the ends, with weights that add up to
        one, and velocities.
        """
        if offset is None:
            return self
        ends = {name: self.dense_info[name] for name in ("y0", "y1")}
        moved = {name: jax.tree.map(jnp.add, end, offset) for name, end in ends.items()}
        return replace_fields(self, dense_info=self.dense_info | moved)

    @property
    def degree(self) -> int | None:
        """The degree of the parameters as a polynomial in time; None where it is not known."""
        return dense_degree(self.interpolation_cls)

    def part_times(self, fractions: ArrayLike) -> Array:
        """Return the times at fractions (n,) of the step's *parts*.

        Where the step is a chain of pieces, whose joints are kinks, times are spread so that each
        eighth of the fractions lies within one piece, with joints at its ends.
        """
        if "pieces" not in self.dense_info:
            return self.t0 + (self.t1 - self.t0) * fractions
        starts, ends = self.dense_info["pieces"].starts, self.dense_info["pieces"].ends
        count = jnp.maximum(jnp.sum(jnp.isfinite(starts)), 1)
        pieces, parts = (jnp.asarray(table)[count - 1] for table in _part_starts(len(starts)))
        marks = starts[pieces] + (ends[pieces] - starts[pieces]) * parts.astype(starts.dtype)
        marks = jnp.append(marks, ends[count - 1])
        # Linear in between: hat functions, each one at a mark and zero at all others.
        at = jnp.asarray(fractions)[..., None] * STEP_PARTS
        slots = with_axes(np.arange(STEP_PARTS + 1, dtype=at.dtype), at.ndim - 1)
        away = jnp.abs(at - slots)
        hats = jnp.maximum(1 - away, 0).astype(marks.dtype)
        return jnp.matmul(hats, marks, precision="highest")

    def map_affine(self, affine: Callable[[Parameters], Image]) -> Callable[[ArrayLike], Image]:
        """Return an affine map of the parameters as a function of time.

        A dense output that adds states and velocities with coefficients in time commutes with
        the map's linear part. This is applied to each of them once, for however many times.
        Parameters that do not move make the rest: the map of zeros.
        """
        if not all(self._is_state_like(part) for part in self.dense_info.values()):
            return lambda t: affine(self(t))
        rest = affine(as_parameters(self.to_parameters, jax.tree.map(jnp.zeros_like, self.start)))

        def linear_part(part: PyTree) -> Image:
            image = affine(as_parameters(self.to_parameters, part))
            return jax.tree.map(jnp.subtract, image, rest)

        images = {
            name: linear_part(part) if self._is_state(part) else jax.vmap(linear_part)(part)
            for name, part in self.dense_info.items()
        }
        return lambda t: jax.tree.map(jnp.add, self._evaluate_dense(images, t), rest)

    def _evaluate_dense(self, dense: dict[str, PyTree], t: ArrayLike) -> PyTree:
        """Evaluate the solver's interpolation with this dense output at time t."""
        return self.interpolation_cls(t0=self.t0, t1=self.t1, **dense).evaluate(t)

    def _is_state_like(self, part: PyTree) -> bool:
        """Tell whether a part of the dense output is one state or velocity, or a stack of them."""
        return self._is_state(part) or self._is_state(jax.eval_shape(_first_entries, part))

    def _is_state(self, part: PyTree) -> bool:
        """Tell whether a part of the dense output is shaped like one state."""
        same = jax.tree.structure(part) == jax.tree.structure(self.start)
        return same and _leaf_shapes(part) == _leaf_shapes(self.start)


@functools.cache
def _part_starts(most: int) -> tuple[np.ndarray, np.ndarray]:
    """Place the eighths of a step of 1 to `most` pieces: each one's piece, and its part of it."""
    count, slot = np.arange(1, most + 1)[:, None], np.arange(STEP_PARTS)
    piece = slot * count // STEP_PARTS
    first, after = -(-piece * STEP_PARTS // count), -(-(piece + 1) * STEP_PARTS // count)
    return piece, (slot - first) / (after - first)


def _first_entries(part: PyTree) -> PyTree:
    """Return the first entries of all arrays, scalars as they are."""
    return jax.tree.map(lambda a: a[0] if a.ndim else a, part)


def _leaf_shapes(tree: PyTree) -> list[tuple[int, ...]]:
    """Return the shapes of all arrays of a tree."""
    return [a.shape for a in jax.tree.leaves(tree)]
