"""The implicit method of variable order for stiff and smooth gradient flow."""

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from flowlin._tools.checks import checked, whole
from flowlin.solvers.newton import Move, Step, attached, newton
from flowlin.solvers.nordsieck import MOST, POWERS, formula, predicted, reordered, rescaled
from flowlin.solvers.order_choice import Memory, chosen
from flowlin.solvers.radius import History
from flowlin.solvers.ritz import Ritz

import os
VECTORS, DIRECTIONS = [int(a) for a in os.environ.get('VD','16,8').split(',')]  # kept from step to step, and of one step's solve
WORTHWHILE = 3  # products in a solve from which on its directions are taken up
NEWTON = 0.1  # of the error test: what Newton's method may leave
SAFETY, ERROR_ORDER = 0.9, 2  # of diffrax's step size control: of the error of a step it makes
# a factor of SAFETY / error^(1 / ERROR_ORDER), which is here to be the method's own
UNLIKE = 1e-2  # of the length that was proposed: what was known is of no use there


class NordsieckInterpolation(diffrax.AbstractLocalInterpolation):
    """A polynomial in x = (t - t1) / (t1 - t0): its value at t1, and its rows x, x^2 ... x^5."""

    t0: Any
    t1: Any
    y1: PyTree
    rows: PyTree

    def evaluate(self, t0, t1=None, left=True):
        """At t0, or the increment from t0 to t1."""
        del left
        if t1 is not None:
            return jax.tree.map(jnp.subtract, self.evaluate(t1), self.evaluate(t0))
        span = self.t1 - self.t0
        x = jnp.where(span == 0, 0, (t0 - self.t1) / jnp.where(span == 0, 1, span))
        powers = x ** POWERS[1:]
        return jax.tree.map(
            lambda y, rows: y + jnp.tensordot(powers.astype(rows.dtype), rows, 1), self.y1, self.rows
        )


class BDFState(eqx.Module):
    """What one step hands to the next.

    - `rows`: (5, N), the Nordsieck table without the state, for steps of length `scale`.
    - `steps`: (5,), lengths of the last steps, newest first.
    - `due`: the length that was proposed for the next one.
    - `order`, `memory`: of the method now, and what its choice goes by.
    - `ritz`: of the Jacobian; `rate`: of Newton's convergence.
    - `evaluations`: of the vector field so far, differences included, by accepted steps.
    - `log`: the Jacobian's leading eigenvalues after every accepted step.
    """

    rows: Float[Array, "5 N"]
    scale: Float[Array, ""]
    steps: Float[Array, "5"]
    due: Float[Array, ""]
    order: Int[Array, ""]
    memory: Memory
    ritz: Ritz
    rate: Float[Array, ""]
    evaluations: Int[Array, ""]
    log: History

    def restarted(self, slope: Float[Array, " N"], h: Float[Array, ""]) -> "BDFState":
        """At order 1, with h times the velocity; eigenvectors stay, since they turn slowly."""
        rows = jnp.zeros_like(self.rows).at[0].set(slope)
        return BDFState(
            rows=rows,
            scale=h,
            steps=jnp.zeros_like(self.steps),
            due=h,
            order=jnp.ones_like(self.order),
            memory=Memory.fresh(slope),
            ritz=self.ritz,
            rate=jnp.ones_like(self.rate),
            evaluations=self.evaluations + 1,
            log=self.log,
        )


@checked(max_order=whole(1, "", MOST))
class RecycledBDF(diffrax.AbstractAdaptiveSolver[BDFState]):
    r"""Backward differentiation formulas, orders 1 to 5, for stiff and smooth gradient flow."""

    max_order: int = eqx.field(static=True, default=MOST)
    rtol: Any = None
    atol: Any = None
    norm: Callable[[PyTree], Array] = eqx.field(static=True, default=diffrax.PIDController(1.,1.).norm)

    term_structure: ClassVar = diffrax.ODETerm
    interpolation_cls: ClassVar[Callable[..., Any]] = NordsieckInterpolation

    def order(self, terms):
        """The highest order."""
        del terms
        return self.max_order

    def error_order(self, terms):
        """What turns the error that a step returns into the length of the next one."""
        del terms
        return ERROR_ORDER

    def func(self, terms, t0, y0, args):
        """The vector field."""
        return terms.vf(t0, y0, args)

    def init(self, terms, t0, t1, y0, args) -> BDFState:
        """Order 1."""
        if self.rtol is None or self.atol is None:
            raise ValueError("")
        y, unravel = ravel_pytree(y0)
        h = jnp.asarray(t1 - t0, y.dtype)
        ritz = Ritz.none(min(VECTORS, y.size), y)
        blank = jnp.zeros((MOST, y.size), y.dtype)
        state = BDFState(
            rows=blank,
            scale=h,
            steps=blank[:, 0],
            due=h,
            order=jnp.ones((), jnp.int32),
            memory=Memory.fresh(y),
            ritz=ritz,
            rate=jnp.ones((), y.dtype),
            evaluations=jnp.zeros((), jnp.int32),
            log=History.empty(t0, ritz.values),
        )
        move = Move(terms, t0, terms.contr(t0, t1), args, unravel)
        return state.restarted(move(y), h)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step, of whatever length and order is due."""
        y, unravel = ravel_pytree(y0)
        h, control = jnp.asarray(t1 - t0, y.dtype), terms.contr(t0, t1)
        anew = made_jump | (h < UNLIKE * solver_state.due)
        first = Move(terms, t0, control, args, unravel)
        state = lax.cond(
            anew, lambda: solver_state.restarted(first(y), h), lambda: solver_state
        )
        before = jnp.concatenate([y[None], state.rows])
        table = predicted(rescaled(before, h / state.scale))
        rule = formula(state.order, h, state.steps)
        step = Step(Move(terms, t1, control, args, unravel), table[0], table[1], rule.lead)
        norm = self._norm(y, y, unravel)
        found = newton(step, state.ritz, norm, NEWTON / rule.error, state.rate, self._room(y))
        correction = attached(step, found.x, state.ritz)
        table = table + rule.corrector[:, None] * correction
        return self._finished(h, state, y, table, correction, rule, found, unravel, t1)

    def _finished(self, h, state, y, table, correction, rule, found, unravel, t1):
        still, moved, now, length = jax.tree.map(
            lax.stop_gradient, (table, correction, y, h)
        )
        tried = length < (1 - 1e-3) * state.due
        last = jnp.where(state.steps[0] > 0, state.steps[0], h)
        norm = self._norm(now, now, unravel)
        rule_still = jax.tree.map(lax.stop_gradient, rule)
        going = chosen(
            rule_still, state.order, self.max_order, still, moved, norm, state.memory,
            lax.stop_gradient(length / last), tried,
        )
        steps = jnp.concatenate([h[None], state.steps[:-1]])
        rows = reordered(table, state.order, going.change, correction, steps)[1:]
        ritz = lax.cond(
            found.last.count >= WORTHWHILE,
            lambda: jax.tree.map(lax.stop_gradient, state.ritz).updated(found.last.directions, found.last.images * (rule_still.lead / length)),
            lambda: state.ritz,
        )
        after = BDFState(
            rows=rows,
            scale=h,
            steps=steps,
            due=going.factor * h,
            order=state.order + going.change,
            memory=going.memory,
            ritz=ritz,
            rate=found.rate,
            evaluations=state.evaluations + found.evaluations,
            log=state.log.append(t1, ritz.values),
        )
        error = self._error(now, still[0], moved, going.factor, found.okay, unravel)
        # The polynomial, bent so that it begins where the step did.
        gap = y - jnp.tensordot((-1.0) ** POWERS, table, 1)
        dense = {"y1": unravel(table[0]), "rows": jax.vmap(unravel)(table[1:].at[1].add(gap))}
        result = diffrax.RESULTS.where(
            found.okay, diffrax.RESULTS.successful, diffrax.RESULTS.dt_min_reached
        )
        return unravel(table[0]), error, dense, after, result

    def _room(self, y):
        return min(DIRECTIONS, y.size)

    def _norm(self, y, y1, unravel):
        weights = self.atol + self.rtol * jnp.maximum(jnp.abs(y), jnp.abs(y1))
        return lambda v: self.norm(unravel(v / weights))

    def _error(self, y, y1, correction, factor, okay, unravel):
        """An error from which the step size control concludes the method's own factor."""
        size = self._norm(y, y1, unravel)(correction)
        wanted = (SAFETY / factor) ** ERROR_ORDER
        error = correction * wanted / jnp.where(size > 0, size, 1)
        return unravel(jnp.where(okay, error, jnp.inf))
