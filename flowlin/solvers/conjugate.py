"""Conjugate gradients that keep their last directions, for (1 - A) x = b with a symmetric A."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flowlin._tools.loops import while_loop

Linear = Callable[[Float[Array, " N"]], Float[Array, " N"]]


class Solve(eqx.Module):
    """A solve under way, or done.

    - `x`, `residual`: the solution so far, and what is left of b.
    - `better`: the residual, preconditioned; `product`: of the two.
    - `direction`: the next one.
    - `count`: products with A so far.
    - `convex`: whether 1 - A was positive along every direction; if not the solve has failed.
    - `directions`, `images`: (M, N), of norm 1 those of the last M products, and A times them.
    """

    x: Float[Array, " N"]
    residual: Float[Array, " N"]
    better: Float[Array, " N"]
    product: Float[Array, ""]
    direction: Float[Array, " N"]
    count: Int[Array, ""]
    convex: Bool[Array, ""]
    directions: Float[Array, "M N"]
    images: Float[Array, "M N"]


def conjugate_gradients(
    image: Linear,
    b: Float[Array, " N"],
    preconditioner: Linear,
    unsolved: Callable[[Float[Array, " N"]], Bool[Array, ""]],
    most: int,
    room: int,
) -> Solve:
    """Solve (1 - A) x = b.

    - `image`: v to A v.
    - `unsolved`: whether a preconditioned residual is still too large.
    - `most`: products at most; `room`: how many directions to keep.

    It stops at a direction along which 1 - A is not positive, as it is for any step of an implicit
    method that is short against the rate at which solutions part.
    """
    blank = jnp.zeros((room, b.size), b.dtype)
    better = preconditioner(b)
    start = Solve(
        jnp.zeros_like(b), b, better, jnp.vdot(b, better), better,
        jnp.zeros((), jnp.int32), jnp.ones((), bool), blank, blank,
    )  # fmt: skip

    def unfinished(s: Solve) -> Bool[Array, ""]:
        return s.convex & (s.count < most) & unsolved(s.better)

    def body(s: Solve) -> Solve:
        moved = image(s.direction)
        left = s.direction - moved
        curvature = jnp.vdot(s.direction, left)
        length = jnp.where(curvature > 0, s.product / curvature, 0)
        residual = s.residual - length * left
        better = preconditioner(residual)
        product = jnp.vdot(residual, better)
        size, row = jnp.linalg.norm(s.direction), s.count % room
        return Solve(
            s.x + length * s.direction,
            residual,
            better,
            product,
            better + product / s.product * s.direction,
            s.count + 1,
            curvature > 0,
            s.directions.at[row].set(s.direction / size),
            s.images.at[row].set(moved / size),
        )

    return while_loop(unfinished, body, start, kind="lax")
