"""Explicit Runge-Kutta steps from a known velocity."""

from typing import Any, TypeGuard, cast

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import PyTree

from flowlin.solvers.wrapped import Wrapped


class Explicit(Wrapped[Any]):
    """The same steps as those of the wrapped explicit Runge-Kutta solver.

    diffrax's loop over the stages brings a derivative of its own, in which a stage is traced and
    compiled many times; a plain scan holds it once. `step_from` leaves out the first stage, which
    steps from one point share.
    """

    solver: diffrax.AbstractERK

    def init(self, terms, t0, t1, y0, args):
        """Forwarded."""
        return jax.tree.map(jnp.asarray, self.solver.init(terms, t0, t1, y0, args))

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step, with the inner solver's error, dense output and state."""
        velocity = self.first(terms, t0, y0, args, solver_state, made_jump)
        y1, error, dense, last = self.step_from(velocity, terms, t0, t1, y0, args)
        return y1, error, dense, self.state(solver_state, last), diffrax.RESULTS.successful

    @staticmethod
    def first(terms, t0, y0, args, solver_state, made_jump) -> PyTree:
        """The first stage, where it can be the last one of the step before unless it jumped."""
        if solver_state is None:
            return terms.vf(t0, y0, args)
        unknown, known = solver_state
        return lax.cond(unknown | made_jump, lambda: terms.vf(t0, y0, args), lambda: known)

    @staticmethod
    def state(before: Any, last: PyTree) -> Any:
        """The state after a step with this last stage."""
        return None if before is None else (jnp.asarray(False), last)

    def step_from(self, velocity: PyTree, terms, t0, t1, y0, args):
        """One step from a known velocity; its last stage in place of the state."""
        tableau: Any = self.solver.tableau
        control = terms.contr(t0, t1)
        count = len(tableau.b_sol)
        rows = np.zeros((count - 1, count))
        for row, known in zip(rows, tableau.a_lower, strict=True):
            row[: len(known)] = known

        def sums(coefficients, ks):
            def one(k):
                return jnp.tensordot(coefficients.astype(k.dtype), k, 1, precision="highest")

            return jax.tree.map(one, ks)

        def at(coefficients, ks):
            return jax.tree.map(jnp.add, y0, sums(coefficients, ks))

        def stage(carry, one):
            ks, _, _ = carry
            number, c, row = one
            y = at(row, ks)
            f = terms.vf(t0 + c.astype(jnp.result_type(t0)) * (t1 - t0), y, args)
            k = terms.prod(f, control)
            return (jax.tree.map(lambda all_, k: all_.at[number].set(k), ks, k), y, f), None

        first = terms.prod(velocity, control)
        none = jax.tree.map(lambda k: jnp.zeros((count, *k.shape), k.dtype).at[0].set(k), first)
        each = np.arange(1, count), np.asarray(tableau.c, float), rows
        (ks, y, last), _ = lax.scan(stage, (none, y0, velocity), jax.tree.map(jnp.asarray, each))
        y1 = y if tableau.ssal else at(tableau.b_sol, ks)
        return y1, sums(tableau.b_error, ks), {"y0": y0, "y1": y1, "k": ks}, last


def is_explicit(solver: diffrax.AbstractSolver | None) -> TypeGuard[diffrax.AbstractERK]:
    """Whether it is an explicit Runge-Kutta method; `diffrax.HalfSolver` of one only passes for it.

    diffrax forwards `isinstance` from a wrapper to what it wraps, but not the tableau.
    """
    return issubclass(type(solver), diffrax.AbstractERK)


def evaluations(solver: diffrax.AbstractSolver) -> int:
    """Evaluations of the vector field per step of an explicit Runge-Kutta method."""
    assert is_explicit(solver)
    tableau = cast(diffrax.ButcherTableau, solver.tableau)
    return tableau.num_stages - tableau.fsal
