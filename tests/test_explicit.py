"""Explicit Runge-Kutta steps against diffrax's own."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flowlin.engine.solvers.wrapped import Explicit

jax.config.update("jax_enable_x64", True)

TERM = diffrax.ODETerm(lambda t, y, args: (jnp.sin(t) * y[1], t - y[0] ** 2 * args))
START = (jnp.arange(1.0, 4.0), jnp.array([0.3, -0.2, 1.0]))
SOLVERS = (diffrax.Heun(), diffrax.Bosh3(), diffrax.Tsit5(), diffrax.Dopri8())


def stepped(solver, rate):
    """A step after a first one, with everything that it gives."""
    state, y = solver.init(TERM, 0.1, 0.3, START, rate), START
    for t0, t1 in ((0.1, 0.3), (0.3, 0.8)):
        y, error, dense, state, _ = solver.step(TERM, t0, t1, y, rate, state, False)
    between = solver.interpolation_cls(t0=0.3, t1=0.8, **dense).evaluate(0.55)
    return y, error, between, state


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_a_step_is_that_of_diffrax(solver):
    found, known = (jax.jit(lambda r, s=s: stepped(s, r))(1.3) for s in (Explicit(solver), solver))
    assert jax.tree.structure(found) == jax.tree.structure(known)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(known), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15)


def test_its_derivatives_are_finite_differences_in_both_modes():
    solver = Explicit(diffrax.Tsit5())

    def total(rate):
        y, _, between, _ = stepped(solver, rate)
        return jnp.sum(y[0]) + jnp.sum(between[1] ** 2)

    finite = (total(1.3 + 1e-5) - total(1.3 - 1e-5)) / 2e-5
    for derivative in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(derivative(total)(1.3), finite, rtol=1e-8)


def test_a_step_holds_the_evaluation_once_beside_the_first():
    def program(function):
        return str(jax.make_jaxpr(function)(START)).count("= sin")

    solver, options = Explicit(diffrax.Dopri8()), (TERM, 0.1, 0.3)
    state = solver.init(*options, START, 1.0)
    assert program(lambda y: solver.step(*options, y, 1.0, state, False)[0]) == 2
    assert program(lambda y: solver.step_from(y, *options, y, 1.0)[0]) == 1
