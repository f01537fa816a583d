"""Newton's method for one implicit step, its linear systems solved from Jacobian products alone."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from flowlin._tools.loops import while_loop
from flowlin.solvers.conjugate import Linear, Solve, conjugate_gradients
from flowlin.solvers.ritz import Ritz

MOST_ITERATIONS = 3
MOST_PRODUCTS = 60  # in one solve
CLOSE = 0.02  # of the tolerance: looser, and noise in the high differences lowers the order
RATE_FALL = 0.3  # the rate of convergence falls by no more at a time
DIVERGED = 2.0  # times the correction before
DERIVATIVE_PRODUCTS = 500


class Move(eqx.Module):
    """h f(t, y) of a flat y, with the control that stands for h."""

    terms: Any
    t: ArrayLike
    control: ArrayLike
    args: PyTree
    unravel: Callable[[Array], Any] = eqx.field(static=True)

    def __call__(self, y: Float[Array, " N"]) -> Float[Array, " N"]:
        velocity = self.terms.vf(self.t, self.unravel(y), self.args)
        return ravel_pytree(self.terms.prod(velocity, self.control))[0]


class Step(eqx.Module):
    """The equation y = start + (move(y) - slope) / lead of an implicit step, for y - start.

    - `start`, `slope`: the state and h times the velocity that are predicted for the step's end.
    - `lead`: the formula's leading coefficient.
    """

    move: Move
    start: Float[Array, " N"]
    slope: Float[Array, " N"]
    lead: Float[Array, ""]

    def defect(self, here: Float[Array, " N"], x: Float[Array, " N"]) -> Float[Array, " N"]:
        """What is left of the equation at start + x, where `here` is the move."""
        return (here - self.slope) / self.lead - x


class Found(eqx.Module):
    """What Newton's method found.

    - `x`: the correction; `size`: the norm of its last change.
    - `rate`: of convergence, as far as is known.
    - `count`: iterations; `okay`, `failed`: whether it has converged, or will not.
    - `last`: the last linear solve.
    - `evaluations`: of the vector field, differences for products included.
    """

    x: Float[Array, " N"]
    size: Float[Array, ""]
    rate: Float[Array, ""]
    count: Int[Array, ""]
    okay: Bool[Array, ""]
    failed: Bool[Array, ""]
    last: Solve
    evaluations: Int[Array, ""]


def solved(
    step: Step,
    ritz: Ritz,
    norm: Callable[[Float[Array, " N"]], Float[Array, ""]],
    tolerance: Float[Array, ""],
    rate: Float[Array, ""],
    room: int,
) -> Found:
    """Solve a step's equation to a tolerance in `norm`; not differentiated, see `attached`.

    One iteration suffices where its correction times the `rate` of convergence is small.
    """
    step, ritz, tolerance, rate = jax.tree.map(
        lambda a: lax.stop_gradient(a) if eqx.is_inexact_array(a) else a,
        (step, ritz, tolerance, rate),
    )

    def body(found: Found) -> Found:
        y = step.start + found.x
        here = step.move(y)
        last = conjugate_gradients(
            differences(step, y, here),
            step.defect(here, found.x),
            lambda r: ritz.solved(1 / step.lead, r),
            lambda r: norm(r) > CLOSE * tolerance,
            MOST_PRODUCTS,
            room,
        )
        size = norm(last.x)
        later = found.count > 0
        rate = jnp.where(later, jnp.maximum(RATE_FALL * found.rate, size / found.size), found.rate)
        okay = last.convex & (size * jnp.minimum(rate, 1) <= tolerance)
        worse = later & (size > DIVERGED * found.size)
        hopeless = ~last.convex | (last.count >= MOST_PRODUCTS) | worse | jnp.isnan(size)
        spent = found.evaluations + 1 + last.count
        return Found(
            found.x + last.x, size, rate, found.count + 1, okay & ~hopeless, hopeless, last, spent
        )

    none, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    zero, blank = jnp.zeros_like(step.start), jnp.zeros((room, step.start.size), step.start.dtype)
    size = jnp.zeros_like(rate)
    empty = Solve(zero, zero, zero, size, zero, none, ~no, blank, blank)
    return while_loop(
        lambda found: ~(found.okay | found.failed) & (found.count < MOST_ITERATIONS),
        body,
        Found(zero, size, rate, none, no, no, empty, none),
        kind="lax",
    )


def differences(step: Step, y: Array, here: Array) -> Linear:
    """Products with h J / lead at y by differences, one evaluation each where jvp costs two."""
    size = jnp.linalg.norm(y)
    delta = jnp.sqrt(jnp.finfo(y.dtype).eps) * jnp.where(size > 0, size, 1)

    def image(v: Array) -> Array:
        d = delta / jnp.linalg.norm(v)
        return (step.move(y + d * v) - here) / (d * step.lead)

    return image


@eqx.filter_custom_jvp
def attached(step: Step, x: Float[Array, " N"], ritz: Ritz) -> Float[Array, " N"]:
    """The solution x of a step's equation with its derivatives, by the implicit function theorem.

    Those are solved for anew, to nearly all digits, in forward and in reverse mode.
    """
    del step, ritz
    return x


@attached.def_jvp
def _attached_jvp(primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    step, x, ritz = primals

    def defect(step: Step) -> Array:
        return step.defect(step.move(step.start + x), x)

    _, change = eqx.filter_jvp(defect, (step,), (tangents[0],))
    y, lead = step.start + x, lax.stop_gradient(step.lead)

    def image(v: Array) -> Array:
        return jax.jvp(step.move, (y,), (v,))[1] / lead

    def solve(_: Any, b: Array) -> Array:
        least = jnp.finfo(b.dtype).eps ** 0.75 * jnp.linalg.norm(b)
        return conjugate_gradients(
            image,
            b,
            lambda r: ritz.solved(1 / lead, r),
            lambda r: jnp.linalg.norm(r) > least,
            DERIVATIVE_PRODUCTS,
            1,
        ).x

    tangent = lax.custom_linear_solve(lambda v: v - image(v), change, solve, symmetric=True)
    return x, tangent
