r"""Backward differentiation formulas of orders 1 to 5 with a fixed leading coefficient.

A *table* (6, N) is the solution as a polynomial, in Nordsieck's form: row j is $h^j y^{(j)} / j!$
at the end of the last step, of length h, and rows above the order are zero. Row 0 is the state.
Source: Hindmarsh et al. (2005). SUNDIALS. ACM Trans. Math. Softw. 31, 363-396, and the code of
CVODE (`cvSetBDF`, `cvSetTqBDF`, `cvIncreaseBDF`, `cvDecreaseBDF`); Byrne and Hindmarsh (1975).
"""

import math
from collections.abc import Callable
from typing import ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

MOST = 5  # the highest order; formulas beyond 6 are not stable
POWERS = np.arange(MOST + 1)
_PASCAL = np.array([[math.comb(j, i) for j in POWERS] for i in POWERS], float)


class Formula(eqx.Module):
    """One step's formula.

    - `corrector`: (6,), by how much of the correction each row of the table changes.
    - `error`: of the local error per norm of the correction.
    - `lower`, `higher`: the same of the orders one below and above, per norm of the last row and
      of a difference of corrections.
    - `ratio`: what makes corrections of two steps comparable.
    """

    corrector: Float[Array, "6"]
    error: Float[Array, ""]
    lower: Float[Array, ""]
    higher: Float[Array, ""]
    ratio: Float[Array, ""]

    @property
    def lead(self) -> Float[Array, ""]:
        """The leading coefficient: a step solves y = h f(y) / lead + what is known."""
        return self.corrector[1]


def multistep_formula(
    order: Int[Array, ""], h: Float[Array, ""], steps: Float[Array, "5"]
) -> Formula:
    """The formula of a step of length h after `steps`, newest first."""
    q, j = order.astype(h.dtype), jnp.arange(1, MOST + 1, dtype=h.dtype)
    inverse = h / (h + jnp.concatenate([jnp.zeros(1, h.dtype), jnp.cumsum(steps)]))
    polynomial = jnp.zeros(MOST + 1, h.dtype).at[0].set(1)
    for k in range(MOST - 1):
        polynomial = polynomial + jnp.where(k + 1 < order, inverse[k], 0) * _shift_powers(
            polynomial
        )
    inner, last, after = polynomial[1], inverse[order - 1], inverse[order]
    alpha = -jnp.sum(jnp.where(j <= q, 1 / j, 0))
    star, hat = -inner - alpha, -inner - last
    polynomial = polynomial + star * _shift_powers(polynomial)
    a1 = 1 - hat + alpha
    a2 = 1 + q * a1
    a3 = jnp.where(order > 1, alpha + 1 / q, 1)
    a5 = alpha - 1 / (q + 1)
    lower = jnp.abs(star / polynomial[order] * (1 - hat - last + a3) / a3)
    return Formula(
        corrector=polynomial,
        error=jnp.abs(a1 / (alpha * a2)),
        lower=jnp.where(order > 1, lower, 1),
        higher=jnp.abs((1 - hat + after + a5) / (a2 * after * (q + 2) * a5)),
        ratio=jnp.abs(a2 * star / (polynomial[order] * last)),
    )


def predict_table(table: Float[Array, "6 N"]) -> Float[Array, "6 N"]:
    """The polynomial one step later."""
    return jnp.matmul(jnp.asarray(_PASCAL, table.dtype), table, precision="highest")


def rescale_table(table: Float[Array, "6 N"], ratio: Float[Array, ""]) -> Float[Array, "6 N"]:
    """The same polynomial for a step that is longer by `ratio`."""
    return table * (ratio ** POWERS.astype(ratio.dtype))[:, None]


def change_order(
    table: Float[Array, "6 N"],
    order: Int[Array, ""],
    change: Int[Array, ""],
    correction: Float[Array, " N"],
    steps: Float[Array, "5"],
) -> Float[Array, "6 N"]:
    """The table for an order higher or lower by one, or as it is; `steps` begin with the last.

    Going up, the new derivative is estimated by the step's `correction`; going down, the
    polynomial keeps the state, the velocity and the earlier states that the lower order uses.
    """
    place, up = jnp.cumsum(steps) / steps[0], change > 0
    count = order - jnp.where(up, 1, 2)  # factors x + place
    polynomial = jnp.zeros(MOST + 1, table.dtype).at[2].set(1)
    for k in range(MOST - 2):
        longer = place[k] * polynomial + _shift_powers(polynomial)
        polynomial = jnp.where(k < count, longer, polynomial)
    k = jnp.arange(MOST, dtype=table.dtype)
    held = k < order.astype(k.dtype)
    sums = jnp.sum(jnp.where(held, 1 / place - 1 / (k + 1), 0))
    product = jnp.prod(jnp.where(held, place, 1))
    vector = jnp.where(up, -sums / product * correction, -table[order])
    moved = table + polynomial[:, None] * vector[None]
    return jnp.where(change == 0, table, moved)


class NordsieckInterpolation(diffrax.AbstractLocalInterpolation):
    """Dense output: a polynomial in x = (t - t1) / (t1 - t0).

    - `y1`: its value at t1; `rows`: its coefficients of x, x^2 ... x^5.
    """

    degree: ClassVar[int] = 5

    t0: float | Array
    t1: float | Array
    y1: PyTree
    rows: PyTree

    def evaluate(
        self, t0: float | Array, t1: float | Array | None = None, left: bool = True
    ) -> PyTree:
        """At t0, or the increment from t0 to t1."""
        del left
        if t1 is not None:
            return jax.tree.map(jnp.subtract, self.evaluate(t1), self.evaluate(t0))
        span = self.t1 - self.t0
        x = jnp.where(span == 0, 0, (t0 - self.t1) / jnp.where(span == 0, 1, span))
        powers = [x ** int(j) for j in POWERS[1:]]

        def at(y: Array, rows: Array) -> Array:
            return y + sum(power * row for power, row in zip(powers, rows, strict=True))

        return jax.tree.map(at, self.y1, self.rows)


def step_polynomial(
    y: Float[Array, " N"], table: Float[Array, "6 N"], unravel: Callable[[Array], PyTree]
) -> dict[str, PyTree]:
    """Return `NordsieckInterpolation`'s fields: the table bent so that the polynomial begins at y.

    It would begin a local error away, which an event could fall into.
    """
    signs = jnp.asarray((-1.0) ** POWERS, table.dtype)
    gap = y - jnp.sum(signs[:, None] * table, axis=0)
    return {"y1": unravel(table[0]), "rows": jax.vmap(unravel)(table[1:].at[1].add(gap))}


def _shift_powers(polynomial: Array) -> Array:
    """Times x."""
    return jnp.concatenate([jnp.zeros(1, polynomial.dtype), polynomial[:-1]])


# ---- The order and the length of the next step of a multistep method, as CVODE chooses them.
#
# Source: Hindmarsh et al. (2005). SUNDIALS. ACM Trans. Math. Softw. 31, 363-396, section 2.1, and
# the code of CVODE (`cvPrepareNextStep`).

LEAST = 1.5  # a step is lengthened, or the order changed, only for so much
LARGEST_FACTOR = 10.0
SHORTEST = 0.1
BIAS, BIAS_HIGHER = 6.0, 10.0  # of the error estimates; changing up is less welcome

Norm = Callable[[Float[Array, " N"]], Float[Array, ""]]


class Memory(eqx.Module):
    """Errors of the last step that the choice of an order goes by.

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
    """A choice: by how much the step changes, and the order by -1, 0 or 1."""

    factor: Float[Array, ""]
    change: Int[Array, ""]
    memory: Memory


def choose_order(
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
    same = _step_factor(BIAS * error, q + 1)
    wait = memory.wait - 1
    look = wait <= 0
    down = _step_factor(BIAS * norm(table[order]) * rule.lower, q)
    known = jnp.where(memory.ratio > 0, memory.ratio, 1)
    high = correction - rule.ratio / known * stretch ** (q + 1) * memory.correction
    up = _step_factor(BIAS_HIGHER * norm(high) * rule.higher, q + 2)
    down = jnp.where(look & (order > 1), down, 0)
    up = jnp.where(look & (order < jnp.asarray(most, order.dtype)) & (memory.ratio > 0), up, 0)
    best = jnp.maximum(jnp.maximum(same, down), up)
    changes = best >= LEAST
    change = jnp.where(best == same, 0, jnp.where(best == down, -1, 1))
    change = jnp.where(changes, change, 0).astype(order.dtype)
    factor = jnp.where(changes, jnp.minimum(best, LARGEST_FACTOR), 1)
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


def _step_factor(error: Float[Array, ""], order: Float[Array, ""]) -> Float[Array, ""]:
    """By how much a step may be longer, from its error in units of the tolerance."""
    return 1 / (error ** (1 / order) + 1e-6)
