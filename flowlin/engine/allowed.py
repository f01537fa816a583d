r"""The error that one step may make in each number of the state, at every scale of the weights.

A relative tolerance says what an error counts against. Against each number alone it is too much:
numbers pass through zero, and nothing depends on their digits there. Against a fixed size it is too
little: weights begin at 1e-3 or at 1e-20, and what is below that size has no error control. Here an
error counts against the number and a part of the hidden unit that it belongs to. For a unit g let

- $S_0$ be the root mean square of its numbers at t = 0 (that of the whole network if it is 0),
- $S$ that of the larger of each number's sizes at both ends of the step,
- $D$ that of the step's changes.

With rounding $\epsilon$ the error allowed to a number whose larger size is $|y|$ is

$$\text{scale} = \max\bigl(\text{rtol} \max(\min(|y| + \max(0.02 S, 0.7 S_0),
  \max(10 D, 100 S_0)), 10^{-12} S_0), \; 64 \epsilon S \bigr),$$

and a step is accepted where the root mean square of error / scale over all numbers is below one.

- $|y| + \max(0.02 S, 0.7 S_0)$: relative to the number, whatever its size, and to its unit where it
  passes zero. At ordinary starts ($S_0$ = 0.014) this is about |y| + 0.01. By S alone a run takes
  as many steps and is less accurate: small numbers of large units hold modes that are not yet
  learnt.
- $\min(\ldots, \max(10 D, 100 S_0))$: a unit that has grown a hundredfold counts by what it moves.
  On a plateau the next mode is hidden in units of size one, 1e-6 or 1e-12 of them; what is left of
  their velocity is that mode, so that an error relative to the change is one relative to the mode.
- $64 \epsilon S$: below rounding no step is short enough.
- $10^{-12} S_0$: of units that vanish.

For an implicit method, unless the network has one hidden layer, 2 stands in place of 100 and
clip(rtol / 1000, $64 \epsilon$, $2048 \epsilon$) in place of $64 \epsilon$. On the plateaus of deep
networks stability holds an explicit method to steps that are more exact than asked; an implicit one
takes what it is allowed. With three and more layers a hidden mode is about as large as it began
until shortly before it is learnt: velocities are of higher than first order in it, and it grows in
finite time (Saxe et al. 2014). So $100 S_0$ would be a hundred times the mode itself. What
is left of the equations that such a method solves is more than one rounding, and steps that were to
be more exact would creep.

Averaged gates count by S alone: their error is of first order where pairs slide, and steps that
resolve each number creep.

The constants are measured: `benchmarks/scale.py`.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

from flowlin._tools.arrays import Scalar
from flowlin._tools.numerics import as_tree, finite_or, flatten_like, largest_number
from flowlin.engine.solvers.error_scale import AbstractErrorScale
from flowlin.training.problem import Problem

Owners = tuple[tuple[str, int | None], ...]

# Of a unit's size and of its start: against these errors of numbers that pass zero count.
UNIT_SHARE, START_SHARE = 0.02, 0.7
CHANGE_FACTOR = 10.0  # changes of a unit in a step, against which errors count where it has grown
GROWTH_FACTOR = 100.0  # times a unit's start, from which on it counts by what it moves
VANISHING_FLOOR = 1e-12  # of a unit's start: the least size of units that vanish
MEMORY = "memory "  # how the owners of what a rule remembers are called, with their numbers
LEAST_TINY = 1e4  # of the smallest normal number: the least scale
ERROR_ROUNDINGS = 64.0  # of a unit's size, below which no step is short enough
# Both for implicit methods in deep networks; the roundings up to a part of the tolerance.
DEEP_GROWTH_FACTOR, DEEP_ROUNDINGS, DEEP_PART = 2.0, 2048.0, 1e-3


class ErrorPerUnit(AbstractErrorScale):
    """The error relative to hidden units: see the top of this file.

    - `owners`: of each array of the state, whose numbers it holds, and along which axis.
    - `start`: $S_0$ by the owner.
    - `by_number`: whether errors count against each number, and against what a unit moves once it
      has grown; if not, against the unit's size.
    - `deep_implicit`: whether the method is implicit, and the network not of one hidden layer.
    - `one_array_each`: whether owners have one array each, and may be so far apart in size that the
      squares of the smaller are 0 beside the larger.
    """

    rtol: Scalar
    owners: Owners = eqx.field(static=True)
    start: dict[str, Array]
    by_number: bool = eqx.field(static=True)
    deep_implicit: bool = eqx.field(static=True)
    one_array_each: bool = eqx.field(static=True, default=False)

    @staticmethod
    def from_problem(
        problem: Problem, rtol: Any, by_number: bool = True, deep_implicit: bool = False
    ) -> "ErrorPerUnit":
        """Measure the units of a problem's network at t = 0."""
        network, owners, apart = problem.network, problem.owners, problem.groups is not None
        leaves = jax.tree.leaves(network.parameters)
        start = (_rms_sizes_apart if apart else _rms_sizes)(leaves, owners)
        whole = _rms_sizes(leaves, (("", None),) * len(owners))[""]
        start = {name: jnp.where(size > 0, size, whole) for name, size in start.items()}
        if problem.trained is not None:
            owners = tuple(o for o, moves in zip(owners, problem.trained, strict=True) if moves)
        # What a rule remembers counts array by array.
        for k, memory in enumerate(jax.tree.leaves(problem.memory)):
            size = jnp.sqrt(jnp.mean(memory**2))
            start[f"{MEMORY}{k}"] = jnp.where(size > 0, size, whole)
            owners = (*owners, (f"{MEMORY}{k}", None))
        start = lax.stop_gradient(start)
        return ErrorPerUnit(rtol, owners, start, by_number, deep_implicit, apart)  # pyright: ignore

    @property
    def atol(self) -> Array:
        """A hundredth of `rtol` of the smallest unit at the start."""
        return self.rtol / 100 * jnp.min(jnp.stack([jnp.min(s) for s in self.start.values()]))

    def __call__(self, y0: PyTree, y1: PyTree) -> PyTree:
        """Return each number's allowed error, from the states at both ends of a step."""
        y0, y1 = lax.stop_gradient((y0, y1))

        def size_and_change(a: Array, b: Array) -> Array:
            return jnp.stack([jnp.maximum(jnp.abs(a), jnp.abs(b)), b - a])

        def measure(y: PyTree) -> tuple[dict[str, Array], list[Array]]:
            leaves = jax.tree.leaves(as_tree(y))
            return self._owner_sizes(leaves), leaves

        # Side by side, in half as many kernels.
        found, rows = jax.vmap(measure)(jax.tree.map(size_and_change, y0, y1))
        sizes = [leaf[0] for leaf in rows]
        least, most = self._unit_limits(found)
        allowed = _broadcast_to_arrays(most, self.owners, sizes)
        if self.by_number:
            share = {
                name: jnp.maximum(UNIT_SHARE * size, START_SHARE * self.start[name])
                for name, (size, _) in found.items()
            }
            own = _broadcast_to_arrays(share, self.owners, sizes)
            allowed = [jnp.minimum(a + b, c) for a, b, c in zip(sizes, own, allowed, strict=True)]
        floor = _broadcast_to_arrays(least, self.owners, sizes)
        scale = [jnp.maximum(self.rtol * a, b) for a, b in zip(allowed, floor, strict=True)]
        return flatten_like(y0, jax.tree.unflatten(jax.tree.structure(as_tree(y0)), scale))

    def relative_error(self, y: PyTree) -> Array:
        """Return `rtol`, or the part of it that counts where units have grown a hundredfold."""
        largest = largest_number(jax.tree.leaves(lax.stop_gradient(y)))
        start = jnp.max(jnp.stack([jnp.max(size) for size in self.start.values()]))
        share = GROWTH_FACTOR * start / jnp.where(largest > 0, largest, 1)
        return self.rtol * (jnp.minimum(share, 1) if self.by_number else jnp.ones_like(share))

    def size_scale(self, y: PyTree) -> PyTree:
        """Return `rtol` of each number's unit: of its size or of its start, whichever is larger."""
        leaves, structure = jax.tree.flatten(as_tree(y))
        size, least = self._owner_sizes(leaves), LEAST_TINY * jnp.finfo(leaves[0].dtype).tiny
        sizes = {
            name: self.rtol * jnp.maximum(size[name], self.start[name]) + least for name in size
        }
        return flatten_like(
            y, jax.tree.unflatten(structure, _broadcast_to_arrays(sizes, self.owners, leaves))
        )

    def first_step_scale(self, y0: PyTree) -> PyTree:
        """Return the scale by which the first step is guessed.

        Where all is zero it is guessed by 1: by next to nothing the step would be nothing. Nor is
        a size so small that the square of a velocity relative to it is infinite.
        """
        tiny = jnp.finfo(jax.tree.leaves(y0)[0].dtype).tiny
        least = self.rtol * tiny**0.25  # of 1e-77, in float32 of 3e-10

        def guess_by(scale: Array) -> Array:
            return jnp.where(scale > LEAST_TINY * tiny, jnp.maximum(scale, least), self.rtol)

        return jax.tree.map(guess_by, self.size_scale(y0))

    def _owner_sizes(self, leaves: list[Array]) -> dict[str, Array]:
        """Return the size of each owner's units, by arrays in the order of the owners."""
        return (_rms_sizes_apart if self.one_array_each else _rms_sizes)(leaves, self.owners)

    def _unit_limits(self, found: dict[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the least scale of each unit's numbers, and the most that errors count against.

        - `found`: each owner's sizes and changes, (2, units).
        """
        info = jnp.finfo(next(iter(found.values())).dtype)
        growth, roundings = GROWTH_FACTOR, jnp.asarray(ERROR_ROUNDINGS * info.eps, info.dtype)
        if self.deep_implicit:
            growth, most_rounding = DEEP_GROWTH_FACTOR, DEEP_ROUNDINGS * info.eps
            roundings = jnp.clip(DEEP_PART * self.rtol, roundings, most_rounding)
        least, most = {}, {}
        for name, (size, change) in found.items():
            start = self.start[name]
            rounding = roundings * size + LEAST_TINY * info.tiny
            least[name] = jnp.maximum(self.rtol * VANISHING_FLOOR * start, rounding)
            most[name] = (
                jnp.maximum(CHANGE_FACTOR * change, growth * start) if self.by_number else size
            )
        if memory := [name for name in found if name.startswith(MEMORY)]:
            # It may decay to nothing, and is moved by a force that has the network's roundings.
            units = [jnp.max(found[name][0]) for name in found if name not in memory]
            rounding = roundings * jnp.max(jnp.stack(units))
            least |= {name: jnp.maximum(least[name], rounding) for name in memory}
        return least, most


def _rms_sizes(leaves: list[Array], owners: Owners) -> dict[str, Array]:
    """Return the root mean square of each owner's numbers, (units,) or ()."""
    # Squares relative to the largest number, or those of small weights would be 0.
    largest = largest_number(leaves)
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    squares: dict[str, Array] = {}
    counts: dict[str, int] = {}
    for leaf, (name, axis) in zip(leaves, owners, strict=True):
        rest = tuple(k for k in range(leaf.ndim) if axis is None or k != axis % leaf.ndim)
        found = jnp.sum((leaf / unit) ** 2, axis=rest)
        squares[name] = squares[name] + found if name in squares else found
        counts[name] = counts.get(name, 0) + leaf.size // max(found.size, 1)
    return {name: unit * jnp.sqrt(squares[name] / max(counts[name], 1)) for name in squares}


def _rms_sizes_apart(leaves: list[Array], owners: Owners) -> dict[str, Array]:
    """Return the same root mean squares, with squares relative to each unit's own largest number.

    Owners have one array each here.
    """
    found = {}
    for leaf, (name, axis) in zip(leaves, owners, strict=True):
        assert axis is not None
        rows = jnp.moveaxis(jnp.abs(leaf), axis, 0)
        rest = tuple(range(1, rows.ndim))
        largest = jnp.max(rows, axis=rest, keepdims=True)
        unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
        found[name] = jnp.ravel(unit) * jnp.sqrt(jnp.mean((rows / unit) ** 2, axis=rest))
    return found


def _broadcast_to_arrays(
    values: dict[str, Array], owners: Owners, leaves: list[Array]
) -> list[Array]:
    """Broadcast the values of units to every number of the arrays."""

    def broadcast_one(name: str, axis: int | None, leaf: Array) -> Array:
        own = values[name]
        shape = [1] * leaf.ndim
        if axis is not None:
            shape[axis] = own.size
        return jnp.broadcast_to(own.reshape(shape), leaf.shape)

    return [broadcast_one(*owner, leaf) for owner, leaf in zip(owners, leaves, strict=True)]


class ErrorScaledController(diffrax.AbstractAdaptiveStepSizeController):
    """diffrax's PID controller of errors that are ratios to what is `allowed`.

    - `pid`: of errors that are ratios, with tolerances rtol = 0 and atol = 1, or the slack of a
      method whose estimate is too large.
    """

    pid: diffrax.PIDController
    error_scale: ErrorPerUnit

    @staticmethod
    def from_scale(
        error_scale: ErrorPerUnit, gains: tuple[float, float] = (0.0, 1.0), slack: float = 1.0
    ) -> "ErrorScaledController":
        """Make the controller of errors against a scale, with proportional and integral gain."""
        pid = diffrax.PIDController(rtol=0.0, atol=slack, pcoeff=gains[0], icoeff=gains[1])
        return ErrorScaledController(pid, error_scale)  # pyright: ignore

    @property
    def rtol(self):  # pyright: ignore
        """The tolerance that the user gives."""
        return self.error_scale.rtol

    @property
    def atol(self):  # pyright: ignore
        """An absolute tolerance for methods that solve equations to one."""
        return self.error_scale.atol

    @property
    def norm(self):  # pyright: ignore
        """The root mean square."""
        return self.pid.norm

    def wrap(self, direction):
        """Return the controller itself: runs go forwards only."""
        del direction
        return self

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        """Choose the first step as diffrax does, in units of what is allowed."""
        unit = self.error_scale.first_step_scale(y0)

        def scale_velocity(terms, t, y, args):
            velocity = func(terms, t, jax.tree.map(jnp.multiply, y, unit), args)
            return jax.tree.map(jnp.divide, velocity, unit)

        start = jax.tree.map(jnp.divide, y0, unit)
        return self.pid.init(terms, t0, t1, start, dt0, args, scale_velocity, error_order)

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, state):  # pyright: ignore
        """Choose the next step as diffrax does, by ratios of errors to what is allowed."""
        # A stage outside of the field's domain: the error is NaN, its scale shall not be.
        scale = self.error_scale(y0, finite_or(y0, y1_candidate))
        ratios = jax.tree.map(jnp.divide, y_error, scale)
        none = jax.tree.map(jnp.zeros_like, y0)
        return self.pid.adapt_step_size(t0, t1, none, none, args, ratios, error_order, state)
