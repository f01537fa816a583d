"""Explicit Runge-Kutta steps without a loop over the stages."""

from typing import Any, cast

import diffrax
import jax
import jax.numpy as jnp
from jax import lax

from flowlin.solvers.wrapped import Wrapped


class Unrolled(Wrapped[Any]):
    """The same steps as those of the wrapped explicit Runge-Kutta solver, only faster.

    diffrax runs a loop over the stages that sums over all of them each time, which keeps its
    programs small. Written out, a step of a small network costs less.

    **Raises:** `ValueError` for solvers of another kind.
    """

    solver: diffrax.AbstractERK

    def __check_init__(self):
        if not isinstance(self.solver, diffrax.AbstractERK):
            raise ValueError(
                f"{type(self.solver).__name__} is not an explicit Runge-Kutta solver; use one such "
                "as diffrax.Tsit5()."
            )

    def init(self, terms, t0, t1, y0, args):
        """Forwarded."""
        return jax.tree.map(jnp.asarray, self.solver.init(terms, t0, t1, y0, args))

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step, with the inner solver's error, dense output and state."""
        tableau: Any = self.solver.tableau
        control = terms.contr(t0, t1)

        def moved(coefficients, ks):
            used = [(a, k) for a, k in zip(coefficients, ks, strict=True) if a != 0]
            return [jax.tree.map(lambda k, a=float(a): a * k, k) for a, k in used]

        def at(coefficients, ks):
            return jax.tree.map(lambda y, *terms_: y + sum(terms_), y0, *moved(coefficients, ks))

        def velocity(t, y):
            return terms.vf(t, y, args)

        f = (
            velocity(t0, y0)
            if solver_state is None
            else self._first(lambda: velocity(t0, y0), solver_state, made_jump)
        )
        ks, y = [terms.prod(f, control)], y0
        for c, row in zip(tableau.c, tableau.a_lower, strict=True):
            y = at(row, ks)
            f = velocity(t0 + float(c) * (t1 - t0), y)
            ks.append(terms.prod(f, control))
        y1 = y if tableau.ssal else at(tableau.b_sol, ks)
        error = jax.tree.map(lambda *e: sum(e), *moved(tableau.b_error, ks))
        dense = {"y0": y0, "y1": y1, "k": jax.tree.map(lambda *k: jnp.stack(k), *ks)}
        state = None if solver_state is None else (jnp.asarray(False), f)
        return y1, error, dense, state, diffrax.RESULTS.successful

    @staticmethod
    def _first(evaluate, solver_state, made_jump):
        """The first stage, which is the last one of the step before unless there was a jump."""
        first_step, known = solver_state
        return lax.cond(first_step | made_jump, evaluate, lambda: known)


def evaluations(solver: diffrax.AbstractSolver) -> int:
    """Evaluations of the vector field per step of an explicit Runge-Kutta method."""
    assert isinstance(solver, diffrax.AbstractERK)
    tableau = cast(diffrax.ButcherTableau, solver.tableau)
    return tableau.num_stages - tableau.fsal
