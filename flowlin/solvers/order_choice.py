"""The order and the length of the next step of a multistep method, as CVODE chooses them.

Source: Hindmarsh et al. (2005). SUNDIALS. ACM Trans. Math. Softw. 31, 363-396, section 2.1, and
the code of CVODE (`cvPrepareNextStep`).
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flowlin.solvers.nordsieck import Formula

LEAST = 1.5  # a step is lengthened, or the order changed, only for so much
MOST = 10.0
SHORTEST = 0.1
BIAS, BIAS_HIGHER = 6.0, 10.0  # of the error estimates; changing up is less welcome

Norm = Callable[[Float[Array, " N"]], Float[Array, ""]]


class Memory(eqx.Module):
    """What the choice goes by.

    - `wait`: steps until the order is looked at again.
    - `correction`, `ratio`: of the step before such a look.
    """

    wait: Int[Array, ""]
    correction: Float[Array, " N"]
    ratio: Float[Array, ""]

    @staticmethod
    def fresh(like: Float[Array, " N"]) -> "Memory":
        """At the start, with order 1."""
        return Memory(jnp.full((), 2, jnp.int32), jnp.zeros_like(like), jnp.zeros((), like.dtype))


class Next(eqx.Module):
    """What was chosen: by how much the step changes, and the order by -1, 0 or 1."""

    factor: Float[Array, ""]
    change: Int[Array, ""]
    memory: Memory


def chosen(
    rule: Formula,
    order: Int[Array, ""],
    most: int | Int[Array, ""],
    table: Float[Array, "6 N"],
    correction: Float[Array, " N"],
    norm: Norm,
    memory: Memory,
    stretch: Float[Array, ""],
) -> Next:
    """After a step.

    - `most`: the highest order.
    - `table`, `correction`: after and of the step.
    - `norm`: in units of the tolerance.
    - `stretch`: the step's length over that of the one before.
    """
    q = order.astype(table.dtype)
    error = norm(correction) * rule.error
    same = _factor(BIAS * error, q + 1)
    wait = memory.wait - 1
    look = wait <= 0
    down = _factor(BIAS * norm(table[order]) * rule.lower, q)
    known = jnp.where(memory.ratio > 0, memory.ratio, 1)
    high = correction - rule.ratio / known * stretch ** (q + 1) * memory.correction
    up = _factor(BIAS_HIGHER * norm(high) * rule.higher, q + 2)
    down = jnp.where(look & (order > 1), down, 0)
    up = jnp.where(look & (order < most) & (memory.ratio > 0), up, 0)
    best = jnp.maximum(jnp.maximum(same, down), up)
    changes = best >= LEAST
    change = jnp.where(best == same, 0, jnp.where(best == down, -1, 1))
    change = jnp.where(changes, change, 0).astype(order.dtype)
    factor = jnp.where(changes, jnp.minimum(best, MOST), 1)
    # A step whose error was too large is tried again, shorter.
    factor = jnp.where(error > 1, jnp.maximum(same, SHORTEST), factor)
    keep = wait == 1
    wait = jnp.where(look, 2, wait)
    memory = Memory(
        wait=jnp.where(change == 0, wait, order + change + 1).astype(memory.wait.dtype),
        correction=jnp.where(keep, correction, memory.correction),
        ratio=jnp.where(keep, rule.ratio, memory.ratio),
    )
    return Next(factor, change, memory)


def _factor(error: Float[Array, ""], order: Float[Array, ""]) -> Float[Array, ""]:
    """By how much a step may be longer, from its error in units of the tolerance."""
    return 1 / (error ** (1 / order) + 1e-6)
