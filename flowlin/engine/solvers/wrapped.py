"""What solvers that wrap another solver have in common."""

import abc
from typing import Any, TypeGuard, TypeVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from diffrax import AbstractWrappedSolver
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

State = TypeVar("State")


class Forwarding(AbstractWrappedSolver[State]):
    """Forwards what diffrax reads off a solver, but for its dense output.

    Subclasses define `init`, `step` and `interpolation_cls`.
    """

    @property
    def term_structure(self):  # pyright: ignore
        """Forwarded."""
        return self.solver.term_structure

    @property
    def term_compatible_contr_kwargs(self):  # pyright: ignore
        """Forwarded."""
        return self.solver.term_compatible_contr_kwargs

    # diffrax reads these three off anything that passes for a Runge-Kutta or implicit solver.

    @property
    def scan_kind(self) -> Any:
        """Forwarded."""
        return self.solver.scan_kind  # pyright: ignore

    @property
    def root_finder(self) -> Any:
        """Forwarded."""
        return self.solver.root_finder  # pyright: ignore

    @property
    def root_find_max_steps(self) -> Any:
        """Forwarded."""
        return self.solver.root_find_max_steps  # pyright: ignore

    def order(self, terms):
        """Forwarded."""
        return self.solver.order(terms)

    def strong_order(self, terms):
        """Forwarded."""
        return self.solver.strong_order(terms)

    def error_order(self, terms):
        """Forwarded."""
        return self.solver.error_order(terms)

    def func(self, terms, t0, y0, args):
        """Forwarded."""
        return self.solver.func(terms, t0, y0, args)


class Wrapped(Forwarding[State]):
    """Forwards the dense output as well."""

    @property
    def interpolation_cls(self):  # pyright: ignore
        """Forwarded."""
        return self.solver.interpolation_cls


# ---- Explicit Runge-Kutta steps from a known velocity.


class Explicit(Wrapped[PyTree]):
    """The same steps as those of the wrapped explicit Runge-Kutta solver.

    diffrax's loop over the stages brings a derivative of its own, in which a stage is traced and
    compiled many times; a plain scan holds it once. Steps from one point share their first stage.
    """

    solver: diffrax.AbstractERK

    def init(self, terms, t0, t1, y0, args):
        """Forwarded."""
        return jax.tree.map(jnp.asarray, self.solver.init(terms, t0, t1, y0, args))

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step, with the inner solver's error, dense output and state."""
        first = self.first_stage(terms, t0, y0, args, solver_state, made_jump)
        _, (y1, error, dense, last) = self.step_from(*first, terms, t0, t1, y0, args)
        return y1, error, dense, self.state(solver_state, last), diffrax.RESULTS.successful

    def first_stage(
        self, terms, t0, y0, args, solver_state, made_jump
    ) -> tuple[PyTree, Array | None]:
        """The velocity at the start as far as it is known, and whether it is outdated, or None.

        The first stage can be the last one of the step before unless it jumped.
        """
        if solver_state is None:
            return terms.vf(t0, y0, args), None
        unknown, known = solver_state
        return known, unknown | made_jump

    @staticmethod
    def state(before: PyTree, last: PyTree) -> PyTree:
        """The state after a step with this last stage."""
        return None if before is None else (jnp.asarray(False), last)

    def step_not_taken(
        self, velocity: PyTree, terms, t0, t1, y0
    ) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        """Return what a step returns, for one that is not taken: y0 stays, all stages are zero."""
        tableau: Any = self.solver.tableau
        first, count = terms.prod(velocity, terms.contr(t0, t1)), len(tableau.b_sol)
        ks = jax.tree.map(lambda k: jnp.zeros((count, *k.shape), k.dtype), first)
        still = jax.tree.map(jnp.zeros_like, first)
        return y0, still, {"y0": y0, "y1": y0, "k": ks}, velocity

    def step_from(
        self, velocity: PyTree, outdated: Array | None, terms, t0, t1, y0, args
    ) -> tuple[PyTree, tuple[PyTree, PyTree, PyTree, PyTree]]:
        """The first stage, and the step from it: its end, error, dense output and last stage.

        The first stage is this velocity, unless that is `outdated` (None: it never is). Then it is
        one more turn of the loop over stages, so that the vector field is compiled once for all.
        """
        tableau: Any = self.solver.tableau
        control = terms.contr(t0, t1)
        count, skipped = len(tableau.b_sol), 1 if outdated is None else 0
        rows = np.zeros((count, count))
        for row, known in zip(rows[1:], tableau.a_lower, strict=True):
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

            def field():
                return terms.vf(t0 + c.astype(jnp.result_type(t0)) * (t1 - t0), y, args)

            due = None if outdated is None else (number > 0) | outdated
            f = field() if due is None else lax.cond(due, field, lambda: velocity)
            k = terms.prod(f, control)
            ks = jax.tree.map(lambda all_, k: all_.at[number].set(k), ks, k)
            return (ks, y, f), None if outdated is None else f

        none = self.step_not_taken(velocity, terms, t0, t1, y0)[2]["k"]
        if outdated is None:
            first = terms.prod(velocity, control)
            none = jax.tree.map(lambda all_, k: all_.at[0].set(k), none, first)
        times = np.concatenate([np.zeros(1), np.asarray(tableau.c, float)])
        each = jax.tree.map(lambda a: jnp.asarray(a[skipped:]), (np.arange(count), times, rows))
        (ks, y, last), found = lax.scan(stage, (none, y0, velocity), each)
        if outdated is not None:
            velocity = jax.tree.map(lambda all_: all_[0], found)
        y1 = y if tableau.ssal else at(tableau.b_sol, ks)
        return velocity, (y1, sums(tableau.b_error, ks), {"y0": y0, "y1": y1, "k": ks}, last)


def is_explicit(solver: diffrax.AbstractSolver | None) -> TypeGuard[diffrax.AbstractERK]:
    """Tell whether a solver is an explicit Runge-Kutta method.

    `diffrax.HalfSolver` of one only passes for it: diffrax forwards `isinstance`
    from a wrapper to what it wraps, but not the tableau.
    """
    return issubclass(type(solver), diffrax.AbstractERK)


def evaluations(solver: diffrax.AbstractSolver) -> int:
    """Evaluations of the vector field per step of an explicit Runge-Kutta method."""
    assert is_explicit(solver)
    tableau = solver.tableau
    assert isinstance(tableau, diffrax.ButcherTableau)
    return tableau.num_stages - tableau.fsal


# ---- What a solver logs along a run, in a state of fixed size.

ROWS = 1024  # a power of two


class History(eqx.Module):
    """Something along a run: every step's at first, thinned to every other one when full."""

    time: Float[Array, " K"]
    value: Float[Array, "K ..."]
    steps: Int[Array, ""]
    stride: Int[Array, ""]

    @staticmethod
    def empty(time: ArrayLike, value: ArrayLike) -> "History":
        """A history without rows, of values such as this one."""

        def rows(like: ArrayLike) -> Array:
            return jnp.full((ROWS, *jnp.shape(like)), jnp.inf, jnp.result_type(like))

        return History(rows(time), rows(value), jnp.zeros((), jnp.int32), jnp.ones((), jnp.int32))

    def append(self, time: ArrayLike, value: ArrayLike) -> "History":
        """One step more."""
        full = self.steps >= ROWS * self.stride
        stride = jnp.where(full, 2 * self.stride, self.stride)
        row = jnp.where(self.steps % stride == 0, self.steps // stride, ROWS)

        def append_row(rows, value):
            half = jnp.concatenate([rows[::2], jnp.full_like(rows[ROWS // 2 :], jnp.inf)])
            return jnp.where(full, half, rows).at[row].set(value, mode="drop")

        return History(
            append_row(self.time, time), append_row(self.value, value), self.steps + 1, stride
        )

    def at(self, t: Float[Array, " T"]) -> Float[Array, "T ..."]:
        """The values at times t, linear in between."""
        known = jnp.isfinite(self.time)
        last = jnp.max(jnp.where(known, jnp.arange(ROWS), 0))
        # Past the last row stands its value.
        place = jnp.minimum(jnp.arange(ROWS), last)

        def along(values: Array) -> Array:
            return jnp.interp(t, self.time, values[place])

        flat = jax.vmap(along, 1, 1)(self.value.reshape(ROWS, -1))
        return flat.reshape(*t.shape, *self.value.shape[1:])


# ---- What the library's own solvers carry from step to step and say of a run.

Report = tuple[dict[str, Array], dict[str, Array]]


class AbstractReporting(eqx.Module):
    """A state that knows more of a run than how many steps it took."""

    @abc.abstractmethod
    def report(self, ts: Array) -> Report:
        """Counts, and observables (T, ...) at the saved times."""


class AbstractCounting(AbstractReporting):
    """One that counts, since steps differ in what they cost.

    - `evaluations`: of the vector field so far, by accepted steps.
    """

    evaluations: eqx.AbstractVar[Int[Array, ""]]
