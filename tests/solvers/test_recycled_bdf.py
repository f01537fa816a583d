"""The stiff multistep method in plain diffrax: order, step control, restarts, derivatives."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.solvers.problems import (
    CURVATURES,
    Parts,
    driven,
    field,
    filled,
    quadratic,
    reference,
    size,
)
from tests.zoo import jit

TIMES = np.linspace(0, 2, 41)[1:]
ORDERS, TOLERANCES = np.array([1, 2, 3, 5]), np.array([1e-3, 1e-4, 1e-5, 1e-6])
SLACK = 0.35  # of an order that is read off steps of varying length and order
STIFF = driven(900.0, size=3, bend=0.1)


def solution(parts, start, t1, order, rtol, adjoint=None, room=None) -> Any:
    """At t1 and at 40 times on the way, with the solver's last state."""
    blank = fl.RecycledBDF(rtol=1.0, atol=1.0)
    solver = eqx.tree_at(lambda s: (s.max_order, s.rtol, s.atol), blank, (order, rtol, rtol))
    dtype = start.dtype
    t1 = jnp.asarray(t1, dtype)
    on_the_way = diffrax.SubSaveAt(ts=t1 * jnp.asarray(TIMES / 2, dtype))
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field), solver, jnp.zeros((), dtype), t1, None, start, parts,
        max_steps=room, adjoint=adjoint or diffrax.RecursiveCheckpointAdjoint(),
        saveat=diffrax.SaveAt(subs=[diffrax.SubSaveAt(t1=True), on_the_way], solver_state=True),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol),
    )  # fmt: skip


def arrays(*arguments):
    found = solution(*arguments)
    end, along = found.ys
    return end[0], along, found.stats, found.solver_state


@pytest.fixture(scope="module")
def solve():
    """A problem's end, states on the way, counts of steps and the last state; one program."""
    program = jax.jit(arrays)

    def run(problem, order=5, rtol=1e-6):
        # Of one type, whether they are Python's own or from an array: one program.
        how = np.asarray(order), np.asarray(rtol)
        return program(filled(problem), problem.start, problem.t1, *how)

    run(STIFF)
    return run


@pytest.fixture(scope="module")
def grid(solve):
    """The runs of every order at every tolerance."""
    return [[solve(STIFF, order, rtol) for rtol in TOLERANCES] for order in ORDERS]


def test_the_error_falls_with_the_order(grid):
    exact = reference(STIFF.parts, STIFF.start, TIMES)
    errors = np.array([[size(end - exact[-1]) for end, *_ in row] for row in grid])
    steps = np.array([[int(run[2]["num_accepted_steps"]) for run in row] for row in grid])
    slopes = [np.polyfit(np.log(n), np.log(e), 1)[0] for n, e in zip(steps, errors, strict=True)]
    np.testing.assert_allclose(slopes[:3], [-1, -2, -3], atol=SLACK)
    assert slopes[3] < -4
    along = np.array([[np.max(np.linalg.norm(run[1] - exact, axis=1)) for run in r] for r in grid])
    assert np.all(along[2:] < 30 * TOLERANCES)


def test_the_order_varies_and_steps_are_tried_again(grid):
    last = np.array([[int(run[3].order) for run in row] for row in grid])
    assert np.all(last <= ORDERS[:, None])
    assert np.array_equal(last[:3, -1], ORDERS[:3])
    assert np.min(last[3]) < np.max(last[3])
    assert all(int(run[2]["num_rejected_steps"]) > 0 for row in grid for run in row)


def test_a_linear_system_follows_its_closed_form(solve, seed):
    problem = quadratic(seed, CURVATURES)
    end, _, counts, state = solve(problem)
    assert size(end - problem.end) < 1e-5
    # An ordinary method needs six evaluations per 3.3 / radius to be stable.
    assert int(state.evaluations) * 20 < problem.t1 * problem.radius / 3.3 * 6
    assert int(counts["num_steps"]) < 300


def test_a_radius_that_leaps_is_no_trouble(solve):
    problem = driven(2.0, leap=2e3, size=3)
    end, _, counts, _ = solve(problem)
    assert size(end - problem.end) < 1e-4
    assert int(counts["num_steps"]) < 400


def test_tolerances_must_be_given():
    with pytest.raises(ValueError, match=r"`rtol` and `atol` of fl\.RecycledBDF are missing"):
        diffrax.diffeqsolve(
            diffrax.ODETerm(field), fl.RecycledBDF(), 0.0, 1.0, 0.1, STIFF.start, STIFF.parts
        )


@pytest.mark.slow
def test_a_step_that_cannot_be_taken_and_a_restart(grid):
    """On three rates, whose eigenvectors are all known."""
    y, _, _, state = grid[3][-1]
    h, rates = state.due, -np.diag(STIFF.parts.matrix)

    @eqx.filter_jit
    def stepped(h, jump, pull, bend):
        solver = fl.RecycledBDF(rtol=1e-6, atol=1e-6)
        parts = filled(STIFF)._replace(matrix=-pull * np.diag(rates), bend=bend)
        return solver.step(diffrax.ODETerm(field), 2.0, 2.0 + h, y, parts, state, jump)

    def step(h, jump=False, pull=1.0, bend=0.1):
        return stepped(h, jnp.array(jump), jnp.array(pull), jnp.array(bend))

    _, error, _, after, result = step(h)
    assert result == diffrax.RESULTS.successful
    assert np.all(np.isfinite(error))
    assert int(state.order) >= 3

    # After a jump of the field: implicit Euler, with the eigenvectors that were known.
    y1, _, _, after, _ = step(h / 9, jump=True)
    assert int(after.order) == 1
    moved = -rates * (y1 - np.cos(2.0 + h / 9)) - 0.1 * np.sum(y1**2) * y1
    np.testing.assert_allclose(y1, y + h / 9 * moved, atol=1e-7)
    y1 = np.asarray(y1)
    slope = -np.diag(rates) - 0.1 * ((y1 @ y1) * np.eye(3) + 2 * np.outer(y1, y1))
    # Those that matter at this step; few products tell the third one apart from its neighbours.
    np.testing.assert_allclose(after.ritz.values[:2], np.linalg.eigvalsh(slope)[:2], rtol=0.02)
    # So it is where step size control has shortened the step out of all proportion.
    assert int(step(h / 1e4)[3].order) == 1

    # Negative curvature: solutions part by more than e^1 in the step.
    _, error, _, _, result = step(h, pull=-1.0)
    assert np.all(np.isinf(error))
    assert result == diffrax.RESULTS.dt_min_reached
    # Newton's method does not converge in three iterations.
    _, error, _, after, _ = step(h, bend=1e7)
    assert np.all(np.isinf(error))
    assert int(after.evaluations) >= int(state.evaluations) + 2


@pytest.mark.slow
def test_float32():
    parts = Parts(*(np.asarray(part, np.float32) for part in filled(STIFF)))
    start = STIFF.start.astype(np.float32)
    end, _, _, state = jax.jit(arrays, static_argnums=3)(
        parts, start, np.float32(2.0), 5, np.float32(1e-4)
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} <= {
        jnp.dtype(name) for name in ("float32", "int32")
    }
    np.testing.assert_allclose(end, STIFF.end, atol=1e-3)


@pytest.mark.slow
def test_derivatives_are_those_of_the_solution():
    """Of start and rate, where the slow component is known. In reverse mode: test_alone.py."""

    def end(start, rate):
        parts = Parts(-rate * jnp.diag(jnp.array([1.0, 30.0, 900.0])), 1.0, jnp.zeros(3))
        adjoint = diffrax.ForwardMode()
        found = solution(parts, start * jnp.ones(3), 2.0, 5, 1e-7, adjoint, room=512)
        return found.ys[0][0, 0]

    def exact(start, rate):
        slow = (rate**2 * jnp.cos(2.0) + rate * jnp.sin(2.0)) / (1 + rate**2)
        return slow + (start - rate**2 / (1 + rate**2)) * jnp.exp(-2 * rate)

    expected = jax.grad(exact, (0, 1))(2.0, 1.5)
    found = jit(jax.jacfwd(end, (0, 1)))(2.0, 1.5)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
