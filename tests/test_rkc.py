"""Runge-Kutta-Chebyshev: order, stability, spectral radius, tolerance, and life inside a flow."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin.engine.solvers.rkc import stability_interval
from flowlin.engine.solvers.wrapped import ROWS, History
from flowlin.training.objective import FullData
from tests.zoo import distance


def stability_polynomials(stages, z):
    """P_s(z), by the method's own stages on y' = z y with h = 1."""

    def one(z):
        term = diffrax.ODETerm(lambda t, y, args: z * y)
        return fl.RKC(30)._stages(term, 0.0, 1.0, jnp.ones(()), z, None, stages)

    return jax.vmap(one)(z)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_stability_interval_is_that_of_the_theory(dtype):
    run = jax.jit(stability_polynomials)
    for s in (2, 3, 5, 12, 30):
        beta = stability_interval(30)[s - 2]
        assert beta == pytest.approx(0.653 * (s**2 - 1), rel=3e-3)
        inside = run(s, jnp.linspace(-beta, 0, 2001, dtype=dtype))
        assert jnp.max(jnp.abs(inside)) < 1 + 20 * jnp.finfo(dtype).eps
        # Damped by a third of epsilon, away from the end points.
        assert jnp.max(jnp.abs(inside[50:1000])) < 1 - 0.04
        # |P| reaches 1 where w0 + w1 z = -w0 at the earliest, just beyond beta.
        assert jnp.all(jnp.abs(run(s, -beta * jnp.asarray([1.2, 1.5], dtype))) > 1)
    if dtype == jnp.float64:
        z = jnp.array([-1e-3, 1e-3])
        defect = run(12, z) - (1 + z + z**2 / 2)
        assert jnp.all(jnp.abs(defect) < jnp.abs(z) ** 3 / 6)


class Counted:
    """A solve to t = 2 that counts how often the field is evaluated."""

    def __init__(self, field, y0, controller):
        self.calls, self.y0, self.controller = 0, y0, controller

        def counted(t, y, args):
            jax.debug.callback(self.count)
            return field(t, y, args)

        self.term = diffrax.ODETerm(counted)

    def count(self):
        self.calls += 1

    def __call__(self, dt0):
        """Final state, solver state, numbers of steps and of evaluations."""
        self.calls = 0
        solution = diffrax.diffeqsolve(
            self.term, fl.RKC(), 0.0, 2.0, dt0, self.y0, stepsize_controller=self.controller,
            saveat=diffrax.SaveAt(t1=True, solver_state=True),
        )  # fmt: skip
        jax.effects_barrier()
        return solution.ys[0], solution.solver_state, solution.stats, self.calls


def test_order_and_number_of_evaluations():
    """Order 2 on a nonlinear field that depends on time, whatever the stages."""
    rates = jnp.array([1.0, 4.0, 30.0])

    def field(t, y, args):
        return rates * (jnp.cos(t) - y) + jnp.sin(3 * t) - jnp.roll(y, 1) ** 3

    y0 = jnp.array([0.5, -0.2, 1.0])
    exact = diffrax.diffeqsolve(
        diffrax.ODETerm(field), diffrax.Dopri8(), 0.0, 2.0, None, y0,
        stepsize_controller=diffrax.PIDController(rtol=1e-12, atol=1e-12),
    ).ys[0]  # fmt: skip
    solve, steps, errors = Counted(field, y0, diffrax.ConstantStepSize()), (20, 40, 80, 320), []
    for n in steps:
        y, state, _, calls = solve(jnp.asarray(2.0 / n))
        errors.append(float(jnp.linalg.norm(y - exact)))
        assert int(state.evaluations) == calls
        # The fewest stages that reach 1.2 x radius x h, and about one for the radius.
        assert calls < n * (2.5 + np.sqrt(1 + 1.2 * 34 * (2 / n) / 0.653)) + 40
    slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert -2.2 < slope < -1.8


def test_a_radius_that_leaps_is_noticed():
    """The radius grows two thousandfold within a step's length; the run must stay bounded."""

    def field(t, y, args):
        rate = 1 + 2e3 * jax.nn.sigmoid(200 * (t - 1))
        return jnp.array([0.5, rate]) * (jnp.cos(t) - y)

    solve = Counted(field, jnp.ones(2), diffrax.PIDController(rtol=1e-4, atol=1e-6))
    y, state, stats, calls = solve(None)
    assert abs(float(y[1]) - np.cos(2.0)) < 2e-3
    assert float(state.radius) == pytest.approx(2001, rel=0.02)
    assert int(stats["num_rejected_steps"]) > 0
    # The state counts accepted steps, and two evaluations choose the first step's length.
    assert int(state.evaluations) + 2 < calls


@pytest.fixture(scope="module")
def ridge():
    """One linear layer on inputs of very different scales: a linear stiff flow, solved exactly."""
    scales = np.geomspace(0.03, 30, 6)
    x = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 6)))[0] * scales * np.sqrt(12)
    task = fl.Task(x, x @ np.linspace(-1, 1, 12).reshape(6, 2) + 0.1)
    network = fl.LinearNetwork((jnp.ones((2, 6)),))
    sigma, cross = task.x.T @ task.x / 12, task.y.T @ task.x / 12
    best = jnp.linalg.solve(sigma, cross.T).T

    def exact(t):
        decay = jax.scipy.linalg.expm(-sigma * t)
        return network.with_parameters(((best + (network.weights[0] - best) @ decay,), (None,)))

    return task, network, exact


def test_error_against_tolerance_and_vmap_equals_a_loop():
    """A linear stiff system with a known exponential."""
    q = jnp.linalg.qr(jax.random.normal(jax.random.key(1), (8, 8)))[0]
    matrix = -(q * jnp.geomspace(1e-2, 1e3, 8)) @ q.T
    term, y0 = diffrax.ODETerm(lambda t, y, args: matrix @ y), jnp.ones(8)

    def solve(rtol):
        solution = diffrax.diffeqsolve(
            term, fl.RKC(), 0.0, 10.0, None, y0, saveat=diffrax.SaveAt(t1=True, solver_state=True),
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol / 100),
        )  # fmt: skip
        return solution.ys[0], solution.solver_state.evaluations

    tolerances = jnp.array([1e-3, 1e-5, 1e-7])
    together, work = jax.jit(jax.vmap(solve))(tolerances)
    alone = jax.jit(solve)
    for k, rtol in enumerate(tolerances):
        y, evaluations = alone(rtol)
        assert jnp.allclose(together[k], y, rtol=1e-9, atol=1e-12)
        assert int(work[k]) == int(evaluations)
    exact = jax.scipy.linalg.expm(10 * matrix) @ y0
    errors = jnp.linalg.norm(together - exact, axis=1) / jnp.linalg.norm(exact)
    assert jnp.all(errors < 10 * tolerances ** (2 / 3))
    # The error estimate is of third order locally: an exponent of 2/3.
    slope = np.polyfit(np.log(tolerances), np.log(errors), 1)[0]
    assert 0.55 < slope < 0.8


def test_stiff_flow_under_jit_and_vmap_with_dense_output(ridge):
    task, network, exact = ridge

    @eqx.filter_jit
    @eqx.filter_vmap
    def run(shift):
        start = network.with_parameters(jax.tree.map(lambda a: a + shift, network.parameters))
        return fl.gradient_flow(
            start, task, 20.0, solver=fl.RKC(), rtol=1e-6, dense=True, max_steps=1024, max_events=1
        )

    flows = run(jnp.array([0.0, -3.0]))
    flow = jax.tree.map(lambda a: a[0], flows)
    assert distance(flow.final, exact(20.0)) < 1e-4
    for t in (0.01, 0.5, 7.0):
        assert distance(flow.network(t), exact(t)) < 1e-4
    assert np.allclose(flows.observed["spectral_radius"], 900.0, rtol=1e-2)

    ordinary = fl.gradient_flow(network, task, 20.0, solver=diffrax.Tsit5(), rtol=1e-6)
    work = int(flow.stats["accepted_evaluations"])
    assert work * 8 < int(ordinary.stats["num_steps"]) * 6


def test_spectral_radius_is_the_sharpness(tree, key):
    network = fl.LinearNetwork.init(tree, 4, 0.05, bias_strength=3.0, key=key)
    objective = FullData(tree, fl.SquaredError())
    ts = jnp.linspace(0, 12, 7)
    flow = fl.gradient_flow(network, tree, 12.0, ts=ts, solver=fl.RKC(), rtol=1e-5)
    start, build = jax.flatten_util.ravel_pytree(network.parameters)
    hessian = jax.hessian(lambda w: objective.value(network.with_parameters(build(w))))
    states = jax.vmap(lambda n: jax.flatten_util.ravel_pytree(n.parameters)[0])(flow.networks)
    assert states.shape == (7, start.size)
    spectrum = jnp.linalg.eigvalsh(jax.lax.map(hessian, states))
    exact = jnp.max(jnp.abs(spectrum), axis=1)
    assert jnp.allclose(flow.observed["spectral_radius"], exact, rtol=0.01)
    assert jnp.max(exact) > 2 * jnp.min(exact)
    # Beyond the start it is the largest eigenvalue, the sharpness.
    assert jnp.array_equal(exact[1:], spectrum[1:, -1])


def test_log_of_the_radius_thins_itself():
    steps = 3 * ROWS + 5
    log = History.empty(0.0, 0.0)
    log, _ = jax.lax.scan(lambda log, t: (log.append(t, 2 * t), None), log, jnp.arange(steps) / 1.0)
    known = log.time[jnp.isfinite(log.time)]
    assert int(log.stride) == 4
    assert jnp.array_equal(known, jnp.arange(0.0, steps, 4))
    assert jnp.allclose(log.at(jnp.array([0.0, 10.0, 3000.5])), jnp.array([0.0, 20.0, 6001.0]))


def test_events_and_observables_agree_with_the_closed_form(tree, aligned):
    network, modes = aligned
    a0, driven = modes.strengths(network, tree), modes.s > 0
    rho, ts = 0.5 * modes.full_strength, jnp.linspace(0, 12, 7)
    flow = fl.gradient_flow(
        network, tree, 60.0, ts=ts, solver=fl.RKC(), rtol=1e-6,
        events=(fl.ModeHits(modes, rho), fl.LossBelow(0.05, terminate=True)),
        observe={"strengths": modes},
    )  # fmt: skip
    exact = fl.theory.hitting_time(rho, modes.s, modes.d, a0)
    hits = flow.events.select("mode")
    assert len(hits) >= 5
    for time, (k,) in zip(hits.time, hits.index, strict=True):
        assert float(time) == pytest.approx(float(exact[k]), rel=1e-4)
    loss = fl.SquaredError()(flow.final.outputs(tree.x), tree.y)
    assert float(loss) == pytest.approx(0.05, rel=1e-6)
    assert 12 < float(flow.end) < 60
    strengths = fl.theory.mode_strength(ts[:, None], modes.s, modes.d, a0)
    gap = jnp.abs(flow.observed["strengths"] - strengths)[:, driven]
    assert jnp.max(gap) < 1e-3
    assert flow.observed["spectral_radius"].shape == ts.shape


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_derivatives_of_a_stiff_solve(mode):
    """Of start and rate, through the stages of every step: y' = -rate (y - cos t)."""

    def end(start, rate, solver, adjoint):
        rates = jnp.array([1.0, 500.0]) * rate
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: -args * (y - jnp.cos(t))), solver, 0.0, 1.0, None,
            start * jnp.ones(2), rates, max_steps=256, adjoint=adjoint,
            stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-7),
        ).ys[0, 0]  # fmt: skip

    def exact(start, rate):
        slow = (rate**2 * jnp.cos(1.0) + rate * jnp.sin(1.0)) / (1 + rate**2)
        return slow + (start - rate**2 / (1 + rate**2)) * jnp.exp(-rate)

    expected = jax.grad(exact, (0, 1))(2.0, 1.5)
    if mode == "reverse":
        found = jax.grad(end, (0, 1))(2.0, 1.5, fl.RKC(64), diffrax.RecursiveCheckpointAdjoint())
    else:
        forward = fl.RKC(loop="lax"), diffrax.ForwardMode()
        found = jax.jacfwd(lambda *a: end(*a, *forward), (0, 1))(2.0, 1.5)
    assert np.allclose(found, expected, rtol=2e-3)


def test_float32_and_few_stages():
    rates = jnp.array([0.5, 900.0], jnp.float32)
    zero, one = jnp.zeros((), jnp.float32), jnp.ones((), jnp.float32)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -rates * (y - 1)), fl.RKC(6), zero, one, None,
        jnp.array([3.0, 1.5], jnp.float32), saveat=diffrax.SaveAt(t1=True, solver_state=True),
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
    )  # fmt: skip
    assert solution.ys.dtype == jnp.float32
    assert solution.solver_state.radius.dtype == jnp.float32
    exact = 1 + jnp.array([2.0, 0.5]) * jnp.exp(-rates)
    assert jnp.allclose(solution.ys[0], exact, rtol=3e-3)
    # Steps of 6 stages reach 0.653 x 35 / (1.2 x 900) at most.
    assert int(solution.stats["num_accepted_steps"]) > 1 / (22.9 / 1080)


def test_what_cannot_work_says_so(ridge):
    task, network, _ = ridge
    with pytest.raises(ValueError, match="`max_stages` must be a whole number from 2 to 2048"):
        fl.RKC(max_stages=1)
    with pytest.raises(ValueError, match='`loop` must be "checkpointed"'):
        fl.RKC(loop="scan")
    relu = fl.ReLUNetwork((network.weights[0], jnp.ones((2, 2))))
    with pytest.raises(ValueError, match="walks with explicit Runge-Kutta solvers"):
        fl.gradient_flow(relu, task, 1.0, kinks=fl.ExactKinks(), solver=fl.RKC())
    # A fixed step beyond the largest number of stages fails instead of running away.
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -1e6 * y), fl.RKC(4), 0.0, 1.0, 0.1, jnp.ones(3),
        throw=False,
    )  # fmt: skip
    assert solution.result == diffrax.RESULTS.dt_min_reached
