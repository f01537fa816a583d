"""Implicit multistep integration of what is stiff and smooth, above all of gradient flow."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from .bdf_formulas import (
    MOST,
    Memory,
    Next,
    NordsieckInterpolation,
    change_order,
    choose_order,
    multistep_formula,
    predict_table,
    rescale_table,
    step_polynomial,
)
from .error_scale import AbstractErrorScale, ErrorPerNumber
from .newton_krylov import (
    ByLineax,
    Found,
    Move,
    Recycling,
    Ritz,
    Step,
    attach_derivatives,
    difference_products,
    is_asymmetric,
    solve_step,
)
from .wrapped import AbstractCounting, History, Report

VECTORS, DIRECTIONS = 16, 8  # kept from step to step, and of one solve
FIRST = 20  # products with each vector at the start, where eigenvalues are followed
WORTHWHILE = 3  # products of a solve from which on its directions are taken up
NEWTON = 0.1  # what Newton's method may leave, in units of what the error test allows
UNLIKE = 1e-2  # of the length that was due: the table is of no use for a step so short
# diffrax makes the next step longer by SAFETY / error^(1 / ERROR_ORDER).
SAFETY, ERROR_ORDER = 0.9, 2
ASYMMETRIC = (
    "The Jacobian of the vector field is not symmetric, as that of a gradient flow is and as "
    "fl.RecycledBDF presumes without a `linear_solver`: its conjugate gradients would fail and "
    "its steps creep. Give it one for any matrix, as in fl.RecycledBDF(rtol=1e-6, atol=1e-9, "
    "linear_solver=lineax.LU()), or take diffrax.Kvaerno5()."
)


class BDFState(AbstractCounting):
    """State that one step hands to the next.

    - `rows`: the Nordsieck table without the state, for steps of length `scale`.
    - `steps`: lengths of the last steps, newest first; `due`: the one proposed for the next.
    - `order`: of the next step, and `memory`: what its choice goes by.
    - `ritz`: of the Jacobian times the flow's time constant, so that they keep while that changes.
    - `rate`: of Newton's convergence.
    - `evaluations`: of the vector field so far, products included, by accepted steps.
    - `log`: those of its eigenvalues that are followed, at the start and after every accepted step.
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
    log: History | None

    def report(self, ts: Array) -> Report:
        """The Hessian's eigenvalues at the saved times, where they are followed."""
        followed = {} if self.log is None else {"hessian_eigenvalues": -self.log.at(ts)}
        return {"accepted_evaluations": self.evaluations}, followed

    @staticmethod
    def fresh(y: Float[Array, " N"], vectors: int) -> "BDFState":
        """Before anything is known, with room for so many eigenvectors."""
        rows, zero = jnp.zeros((MOST, y.size), y.dtype), jnp.zeros((), y.dtype)
        return BDFState(
            rows=rows,
            scale=zero,
            steps=rows[:, 0],
            due=zero,
            order=jnp.ones((), jnp.int32),
            memory=Memory.fresh(y),
            ritz=Ritz.none(vectors, y),
            rate=zero + 1,
            evaluations=jnp.zeros((), jnp.int32),
            log=None,
        )

    def restart(self, slope: Float[Array, " N"], h: Float[Array, ""]) -> "BDFState":
        """At order 1, with h times the velocity; the Ritz vectors stay, since they turn slowly."""
        anew = BDFState.fresh(slope, len(self.ritz.values))
        return dataclasses.replace(
            anew,
            rows=anew.rows.at[0].set(slope),
            scale=h,
            due=h,
            ritz=self.ritz,
            evaluations=self.evaluations + 1,
            log=self.log,
        )

    def follow(self, step: Step, pace: Float[Array, ""], t: ArrayLike, count: int, times: int):
        """With so many leading eigenvalues at a step's `start`, logged for t.

        `pace`: the step over the time constant; `times`: how often each vector is multiplied.
        """
        step, ritz, pace = _stop_gradient((step, self.ritz, pace))
        product = difference_products(step, step.start, step.move(step.start))

        def jacobian(v: Array) -> Array:
            return product(v) * step.lead / pace

        start = ritz, ritz.values[:count]
        ritz, values = lax.fori_loop(
            0, times, lambda _, found: found[0].follow(jacobian, count, pace.dtype), start
        )
        values = values.astype(pace.dtype)
        log = History.empty(t, values) if self.log is None else self.log
        spent = self.evaluations + 1 + times * (count + 1)
        return dataclasses.replace(self, ritz=ritz, evaluations=spent, log=log.append(t, values))


class RecycledBDF(diffrax.AbstractAdaptiveSolver[BDFState]):
    r"""Backward differentiation formulas of orders 1 to 5: implicit, for stiff and smooth flow.

    Order and step size are chosen as SUNDIALS' CVODE chooses them. What differs is the linear
    algebra of Newton's method. The Jacobian of a gradient flow is minus a Hessian: symmetric, with
    a few outlying eigenvalues whose eigenvectors turn slowly. So its systems are solved by
    conjugate gradients, one evaluation of the field a product (a difference of two), and the
    directions of one solve tell the outliers to the next, as Ritz vectors that precondition it: a
    solve then takes about four products, where from nothing it takes eight to ten.

    For stiff flows of smooth networks; the more digits, the more it gains over `RKC`. Kinks, also
    rounded ones, limit its steps, and where a flow is not stiff explicit methods need fewer
    evaluations. One time constant only: with one per layer the Jacobian is not symmetric.

    It solves other stiff equations in `diffrax.diffeqsolve`. Where their Jacobian is not symmetric
    a solver of lineax takes the place of conjugate gradients and nothing is recycled:
    `linear_solver=lineax.LU()` for some hundred unknowns. Without one the symmetry is looked at
    where a solve starts, where Newton's method fails, and in derivatives.

    A step at which Newton's method fails, or along which two solutions part faster than in a step
    (negative curvature), is tried again at a fifth of its length. Derivatives, forward and reverse,
    come from the implicit function theorem, by a linear solve of their own in each step, and are
    NaN where that fails. Memory is about 60 times the parameters. In float32 its tolerances are of
    use down to about 1e-4.

    **Arguments:**

    - `max_order`: the highest order, 1 to 5.
    - `eigenvalues`: how many leading eigenvalues of the Hessian to follow along the run, up to 16,
      each at one evaluation a step, and two more; `gradient_flow` returns them as
      `flow.observed["hessian_eigenvalues"]` (T, K), the largest first. Those that precondition the
      solves come for nothing, but may be a fifth too small.
    - `rtol`, `atol`: those of the step size controller, which `gradient_flow` fills in; for
      `diffrax.diffeqsolve` they must be given. The method's own steps are taken under a
      `diffrax.PIDController` with default coefficients.
    - `linear_solver`: a solver of lineax for the equations of Newton's method, which come in units
      of what the tolerances allow; its products are not among the evaluations that are counted.
      Iterative ones, `lineax.GMRES(rtol=1e-3, atol=1e-3)`, are not preconditioned.

    **Raises:** `ValueError` for another order, without tolerances, with a `linear_solver` beside
    `eigenvalues`, or (by `gradient_flow`) for several time constants or a `linear_solver`.
    `RuntimeError` of a solve in which it sees a Jacobian that is not symmetric and has no
    `linear_solver`.

    Source: Hindmarsh et al. (2005). SUNDIALS. ACM Trans. Math. Softw. 31, 363-396; for recycling
    Parks et al. (2006), SIAM J. Sci. Comput. 28, 1651-1674, here for symmetric systems that change
    with the step size and along the run.
    """

    max_order: int = MOST
    eigenvalues: int = eqx.field(static=True, default=0)
    rtol: Any = None
    atol: Any = None
    linear_solver: lx.AbstractLinearSolver | None = None
    norm: Callable[[PyTree], Array] | None = eqx.field(static=True, default=None, init=False)
    allowed: AbstractErrorScale | None = eqx.field(default=None, init=False)
    time_constant: Any = eqx.field(default=None, init=False)  # a number, or a function of time

    term_structure: ClassVar = diffrax.ODETerm
    interpolation_cls: ClassVar[Callable[..., diffrax.AbstractLocalInterpolation]] = (
        NordsieckInterpolation
    )

    def __check_init__(self):
        if self.linear_solver is not None and self.eigenvalues:
            raise ValueError(
                "`eigenvalues` of fl.RecycledBDF are those of a symmetric Jacobian; leave them out "
                "where a `linear_solver` is given."
            )

    def order(self, terms):
        """The highest order."""
        del terms
        return self.max_order

    def error_order(self, terms):
        """The order by which step size control turns the error into the length of the next step."""
        del terms
        return ERROR_ORDER

    def func(self, terms, t0, y0, args):
        """The vector field."""
        return terms.vf(t0, y0, args)

    def init(self, terms, t0, t1, y0, args) -> BDFState:
        """At order 1, for a first step to t1."""
        if self.rtol is None or self.atol is None:
            raise ValueError(
                "`rtol` and `atol` of fl.RecycledBDF are missing; outside of `fl.gradient_flow` "
                "give it those of the step size controller."
            )
        y, unravel = ravel_pytree(y0)
        move, h = Move(terms, t0, terms.contr(t0, t1), args, unravel), jnp.asarray(t1 - t0, y.dtype)
        slope = move(y)
        if self._presumes_symmetry:
            slope = eqx.error_if(slope, is_asymmetric(move, y), ASYMMETRIC)
        state, count = (
            BDFState.fresh(y, self._vector_count(y)).restart(slope, h),
            self._eigenvalue_count(y),
        )
        if not count:
            return state
        state = dataclasses.replace(state, ritz=Ritz.arbitrary(min(VECTORS, y.size), y))
        pace = self._step_over_tau(h, t0)
        return state.follow(Step(move, y, slope, jnp.ones_like(h)), pace, t0, count, FIRST)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step, at the order that is due."""
        y, unravel = ravel_pytree(y0)
        h, control = jnp.asarray(t1 - t0, y.dtype), terms.contr(t0, t1)
        here = Move(terms, t0, control, args, unravel)
        # The step size control may have shortened the step beyond what the table can tell.
        anew = made_jump | (h < UNLIKE * solver_state.due)
        state = lax.cond(anew, lambda: solver_state.restart(here(y), h), lambda: solver_state)
        rule = multistep_formula(state.order, h, state.steps)
        table = jnp.concatenate([y[None], state.rows])
        table = predict_table(rescale_table(table, h / state.scale))
        step = Step(Move(terms, t1, control, args, unravel), table[0], table[1], rule.lead)
        pace = self._step_over_tau(h, t1)
        linear = self._newton_solver(state.ritz, pace, self._error_scale(y, table[0], unravel))
        found = solve_step(
            step, linear, self._scaled_norm(y, table[0], unravel), NEWTON / rule.error, state.rate
        )
        correction = attach_derivatives(step, found.x, linear)
        if (
            self._presumes_symmetry
        ):  # or one failing step after the other would be tried again, ever shorter
            failed = lax.cond(found.okay, lambda: ~found.okay, lambda: is_asymmetric(step.move, y))
            correction = eqx.error_if(correction, failed, ASYMMETRIC)
        table = table + rule.corrector[:, None] * correction[None]
        going = self._choose_order(state, y, h, table, correction, rule, unravel)
        error = self._step_error(y, table[0], correction, going.factor, unravel)
        error = jnp.where(found.okay, lax.stop_gradient(error), jnp.inf)
        after = _state_after(state, h, table, correction, going, found, rule.lead / pace)
        if count := self._eigenvalue_count(y):
            after = after.follow(dataclasses.replace(step, start=table[0]), pace, t1, count, 1)
        # Only steps of fixed length are kept in spite of an infinite error.
        fine, failed = diffrax.RESULTS.successful, diffrax.RESULTS.dt_min_reached
        result = diffrax.RESULTS.where(found.okay, fine, failed)
        return unravel(table[0]), unravel(error), step_polynomial(y, table, unravel), after, result

    def _eigenvalue_count(self, y) -> int:
        """Return how many eigenvalues are followed."""
        return min(self.eigenvalues, y.size)

    def _vector_count(self, y) -> int:
        """Return how many eigenvectors are kept from step to step."""
        return min(VECTORS, y.size) if self.linear_solver is None else 0

    @property
    def _presumes_symmetry(self) -> bool:
        """Tell whether the Jacobian is taken for symmetric without being known to be a flow's."""
        return self.linear_solver is None and self.allowed is None

    def _step_over_tau(self, h, t):
        """Return a step in units of the time constant at time t."""
        tau = self.time_constant
        if tau is None:
            return h
        return h / jnp.asarray(tau(jnp.asarray(t)) if callable(tau) else tau, h.dtype)

    def _newton_solver(self, ritz, pace, scale) -> Recycling | ByLineax:
        """The way to solve Newton's linear systems, whose matrix is 1 - h J / lead."""
        if self.linear_solver is None:
            values = ritz.values * lax.stop_gradient(pace).astype(ritz.values.dtype)
            return Recycling(
                Ritz(ritz.vectors, values), min(DIRECTIONS, scale.size), not self._presumes_symmetry
            )
        return ByLineax(self.linear_solver, scale)

    def _error_scale(self, y, y1, unravel):
        """Return the error that a step may make in each number."""
        allowed = self.allowed or ErrorPerNumber(self.rtol, self.atol)
        return ravel_pytree(allowed(unravel(y), unravel(y1)))[0]

    def _scaled_norm(self, y, y1, unravel):
        """The norm of a vector in units of the tolerance."""
        scale, norm = self._error_scale(y, y1, unravel), self.norm
        if norm is None:
            return lambda v: jnp.sqrt(jnp.mean((v / scale) ** 2))
        return lambda v: norm(unravel(v / scale))

    def _choose_order(self, state, y, h, table, correction, rule, unravel) -> Next:
        """The next order and step; not differentiated."""
        rule, table, correction, y, h = lax.stop_gradient((rule, table, correction, y, h))
        stretch = h / jnp.where(state.steps[0] > 0, state.steps[0], h)
        norm = self._scaled_norm(y, table[0], unravel)
        return choose_order(
            rule, state.order, self.max_order, table, correction, norm, state.memory, stretch
        )

    def _step_error(self, y, y1, correction, factor, unravel):
        """An error from which the step size control concludes this factor."""
        size = self._scaled_norm(y, y1, unravel)(correction)
        return correction * (SAFETY / factor) ** ERROR_ORDER / jnp.where(size > 0, size, 1)


def _state_after(
    state: BDFState,
    h: Float[Array, ""],
    table: Float[Array, "6 N"],
    correction: Float[Array, " N"],
    going: Next,
    found: Found,
    per_image: Float[Array, ""],
) -> BDFState:
    """The state after a step with this table and correction.

    `per_image`: what the images of the solve are multiplied by to be those of the Jacobian.
    """
    steps = jnp.concatenate([h[None], state.steps[:-1]])

    def learn() -> Ritz:
        images = found.last.images * lax.stop_gradient(per_image)
        return lax.stop_gradient(state.ritz).update(found.last.directions, images)

    ritz = state.ritz
    if len(ritz.values):
        ritz = lax.cond(found.last.count >= WORTHWHILE, learn, lambda: state.ritz)
    return BDFState(
        rows=change_order(table, state.order, going.change, correction, steps)[1:],
        scale=h,
        steps=steps,
        due=going.factor * lax.stop_gradient(h),
        order=state.order + going.change,
        memory=going.memory,
        ritz=ritz,
        rate=found.rate,
        evaluations=state.evaluations + found.evaluations,
        log=state.log,
    )


def _stop_gradient(tree: PyTree) -> PyTree:
    """Not differentiated."""
    return jax.tree.map(lambda a: lax.stop_gradient(a) if eqx.is_inexact_array(a) else a, tree)
