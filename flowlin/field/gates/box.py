"""The box-constrained quadratic program that chooses gates at a kink."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from flowlin._tools.rounding import rounding_in

BLOCK_STEPS = 10  # block pivots before single ones


def box_qp(
    k: Float[Array, "m m"],
    q: Float[Array, " m"],
    bound: Float[Array, " m"],
    active: Bool[Array, " m"],
    max_steps: int = 500,
) -> tuple[Float[Array, " m"], Bool[Array, ""]]:
    r"""Minimiser of $\tfrac12 u^T K u - q^T u$ over $0 \le u \le \beta$; K positive semi-definite.

    Its optimality conditions are Filippov's rule for the velocity $v = q - K u$ of several pairs
    at their kinks: v < 0 with u = 0 (off), v > 0 with u = beta (on), or v = 0 in between
    (sliding). v is unique; u is where K is regular.

    Block principal pivoting (Judice and Pires, Comput. Oper. Res. 1994): every variable on the
    wrong side changes its set at once. If that does not settle, Murty's rule, the first wrong
    variable alone, which ends for every positive definite matrix.

    Where K is singular, each u is found with a small multiple of the identity added to K, and
    corrected once for it; v then has all its digits.

    **Arguments:** `active` marks the variables there are; u = 0 for the others.

    **Returns:** u, and whether it satisfies the conditions.
    """
    q, bound = jnp.where(active, q, 0.0), jnp.where(active, bound, 0.0)
    k = jnp.where(active[:, None] & active, k, 0.0)
    rounding = rounding_in(k.dtype)
    slack_u = rounding.slack * bound
    slack_v = rounding.slack * (jnp.abs(q) + jnp.abs(k) @ bound)
    largest = jnp.max(jnp.diagonal(k))
    ridge = jnp.where(largest > 0, rounding.cut * largest, 1.0)

    def solve(free, upper):
        fixed = jnp.where(upper, bound, 0.0)
        inner = jnp.where(free[:, None] & free, k, 0.0)
        factor = jax.scipy.linalg.cho_factor(inner + jnp.diag(jnp.where(free, ridge, 1.0)))

        def refined(u):
            return u + jax.scipy.linalg.cho_solve(factor, jnp.where(free, q - k @ u, 0.0))

        u = refined(refined(fixed))  # the first time leaves the ridge's share
        return u, q - k @ u

    def body(state):
        free, upper, _, step, _ = state
        single = step >= BLOCK_STEPS
        u, v = solve(free, upper)
        low, high = free & (u < -slack_u), free & (u > bound + slack_u)
        freed = active & ~free & jnp.where(upper, v < -slack_v, v > slack_v)
        wrong = low | high | freed
        first = jnp.arange(wrong.shape[0]) == jnp.argmax(wrong)
        moved = wrong & jnp.where(single, first, True)
        free = (free & ~moved) | (freed & moved)
        upper = jnp.where(moved, high, upper)
        return free, upper, jnp.clip(u, 0.0, bound), step + 1, ~jnp.any(wrong)

    none = jnp.zeros_like(active)
    start = (active, none, jnp.zeros_like(q), jnp.zeros((), int), jnp.asarray(False))
    *_, u, _, settled = lax.while_loop(lambda s: ~s[-1] & (s[-2] < max_steps), body, start)
    return u, settled
