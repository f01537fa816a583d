"""Runge-Kutta-Chebyshev in plain diffrax: order, tolerance, spectral radius, work."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import flowlin as fl
from tests.solvers.problems import Parts, driven, field, filled, heat, quadratic, size
from tests.zoo import jit

calls = []


def counted(t, y, args):
    """The field, which says when it is evaluated."""
    jax.debug.callback(lambda: calls.append(1))
    return field(t, y, args)


def solved(parts, start, t1, rtol, first, shortest, longest):
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(counted), fl.RKC(), jnp.zeros(()), t1, first, start, parts,
        stepsize_controller=diffrax.PIDController(
            rtol=rtol, atol=rtol / 100, dtmin=shortest, dtmax=longest
        ),
        saveat=diffrax.SaveAt(t1=True, solver_state=True), max_steps=None, throw=False,
    )  # fmt: skip
    state = solution.solver_state
    failed = solution.result == diffrax.RESULTS.dt_min_reached
    return solution.ys[0], state.evaluations, state.radius, solution.stats, failed


@pytest.fixture(scope="module")
def solve():
    """A problem's end, evaluations, radius, counts of steps, whether it failed; one program."""
    program = jax.jit(solved)

    def run(problem, rtol=1e-5, step=None):
        """With steps of one length if it is given, whatever their error."""
        steps = (1e-4, 0.0, np.inf) if step is None else (step, step, step)
        rtol = rtol if step is None else 1e6
        calls.clear()
        # Of one type, whether they are Python's own or from an array: one program.
        how = map(np.asarray, (rtol, *steps))
        found = program(filled(problem), problem.start, problem.t1, *how)
        jax.effects_barrier()
        return found

    run(heat())
    return run


def test_order_two_and_every_evaluation_is_counted(solve):
    """On a nonlinear field that depends on time, whatever the stages."""
    problem, steps, errors = driven(30.0), (80, 160, 320, 640), []
    for n in steps:
        end, evaluations, _, counts, _ = solve(problem, step=(1 + 1e-9) * problem.t1 / n)
        errors.append(size(end - problem.end))
        assert int(counts["num_steps"]) == n
        assert int(evaluations) == len(calls)
        # The fewest stages that reach 1.2 x radius x h, and about one for the radius.
        assert len(calls) < n * (2.5 + np.sqrt(1 + 1.2 * 34 * (2 / n) / 0.653)) + 40
    slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert -2.2 < slope < -1.8


def test_errors_fall_with_the_tolerance(solve, seed):
    """The error estimate is of third order locally: an exponent of 2/3."""
    problem, tolerances = quadratic(seed), np.array([1e-3, 1e-4, 1e-5])
    found = [solve(problem, rtol) for rtol in tolerances]
    errors = np.array([size(end - problem.end, problem.end) for end, *_ in found])
    assert np.all(errors < 10 * tolerances ** (2 / 3))
    assert 0.55 < np.polyfit(np.log(tolerances), np.log(errors), 1)[0] < 0.8
    np.testing.assert_allclose(
        problem.end, expm(problem.t1 * problem.parts.matrix) @ problem.start, atol=1e-12
    )


@pytest.mark.parametrize(
    ("problem", "gain"), [(heat(), 1), (quadratic(1), 8)], ids=["heat", "quadratic"]
)
def test_work_goes_as_the_root_of_the_radius(solve, problem, gain):
    """To be stable an ordinary method needs six evaluations per 3.3 / radius."""
    end, evaluations, radius, _, _ = solve(problem)
    assert size(end - problem.end, problem.end) < 5e-3
    assert float(radius) == pytest.approx(problem.radius, rel=0.02)
    assert int(evaluations) * gain < problem.t1 * problem.radius / 3.3 * 6


def test_a_radius_that_leaps_is_noticed(solve):
    """The radius grows a thousandfold within a step's length; the run must stay bounded."""
    problem = driven(2.0, leap=2e3)
    end, evaluations, radius, counts, _ = solve(problem, 1e-4)
    assert size(end - problem.end) < 2e-3
    assert float(radius) == pytest.approx(problem.radius, rel=0.02)
    assert int(counts["num_rejected_steps"]) > 0
    assert int(evaluations) < len(calls)  # the state counts accepted steps


def test_a_step_that_no_number_of_stages_reaches_fails(solve):
    problem = quadratic(0)
    *_, failed = solve(problem._replace(parts=Parts(1e4 * problem.parts.matrix)), step=0.1)
    assert bool(failed)


def test_what_cannot_work_says_so():
    with pytest.raises(ValueError, match="`max_stages` must be a whole number from 2 to 2048"):
        fl.RKC(max_stages=1)
    with pytest.raises(ValueError, match='`loop` must be "checkpointed"'):
        fl.RKC(loop="scan")


@pytest.mark.slow
def test_derivatives_of_a_stiff_solve():
    """Of start and rate, through the stages of every step: y' = -rate (y - cos t).

    In reverse mode: test_alone.py.
    """

    def end(start, rate):
        rates = jnp.array([1.0, 500.0]) * rate
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: -args * (y - jnp.cos(t))), fl.RKC(loop="lax"),
            0.0, 1.0, None, start * jnp.ones(2), rates, max_steps=256,
            adjoint=diffrax.ForwardMode(),
            stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-7),
        ).ys[0, 0]  # fmt: skip

    def exact(start, rate):
        slow = (rate**2 * jnp.cos(1.0) + rate * jnp.sin(1.0)) / (1 + rate**2)
        return slow + (start - rate**2 / (1 + rate**2)) * jnp.exp(-rate)

    expected = jax.grad(exact, (0, 1))(2.0, 1.5)
    found = jit(jax.jacfwd(end, (0, 1)))(2.0, 1.5)
    np.testing.assert_allclose(found, expected, rtol=2e-3)


@pytest.mark.slow
def test_float32_and_few_stages():
    rates = np.array([0.5, 900.0], np.float32)
    zero, one = np.array([0.0, 1.0], np.float32)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -args * (y - one)), fl.RKC(6), zero, one, None,
        jnp.array([3.0, 1.5], jnp.float32), jnp.asarray(rates),
        saveat=diffrax.SaveAt(t1=True, solver_state=True),
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
    )  # fmt: skip
    assert solution.ys.dtype == jnp.float32
    assert solution.solver_state.radius.dtype == jnp.float32
    exact = 1 + np.array([2.0, 0.5]) * np.exp(-rates)
    np.testing.assert_allclose(solution.ys[0], exact, rtol=3e-3)
    # Steps of 6 stages reach 0.653 x 35 / (1.2 x 900) at most.
    assert int(solution.stats["num_accepted_steps"]) > 1 / (22.9 / 1080)
