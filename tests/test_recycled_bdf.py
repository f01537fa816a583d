"""The stiff multistep method: order, step control, recycled vectors, and life inside a flow."""

import diffrax
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin._tools.arrays import copied
from flowlin.engine.solvers.bdf_formulas import NordsieckInterpolation, polynomial
from flowlin.engine.solvers.newton_krylov import Ritz
from flowlin.training.objective import FullData
from flowlin.training.rules import GradientField

RATES = jnp.array([1.0, 30.0, 900.0])
START = jnp.array([0.5, -0.2, 1.0])
PLAIN = jnp.array(1.0), jnp.array(0.1)  # of the rates, and of the nonlinear part


def forced(t, y, args):
    """Stiff, with a symmetric Jacobian: rate (cos t - y) - bend |y|^2 y."""
    rate, bend = args
    return rate * RATES.astype(y.dtype) * (jnp.cos(t) - y) - bend * (y @ y) * y


def solve(order, rtol, start=START, args=PLAIN, adjoint=None, room=2**20):
    """To t = 2; saved on the way."""
    solver = copied(fl.RecycledBDF(rtol=1.0, atol=1.0), max_order=order, rtol=rtol, atol=rtol)
    ends = [jnp.asarray(t, start.dtype) for t in (0, 2)]
    ts = diffrax.SubSaveAt(ts=jnp.linspace(0.05, 2, 40, dtype=start.dtype))
    return diffrax.diffeqsolve(
        diffrax.ODETerm(forced), solver, *ends, None, start, args, max_steps=room,
        saveat=diffrax.SaveAt(subs=[diffrax.SubSaveAt(t1=True), ts], solver_state=True),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol),
        adjoint=adjoint or diffrax.RecursiveCheckpointAdjoint(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def grid():
    """Orders 1, 2, 3 and 5 at four tolerances, (4, 4), and the exact solution at the times."""
    orders, tolerances = jnp.array([1, 2, 3, 5]), jnp.array([1e-3, 1e-4, 1e-5, 1e-6])
    run = jax.jit(jax.vmap(jax.vmap(solve, (None, 0)), (0, None)))
    exact = diffrax.diffeqsolve(
        diffrax.ODETerm(forced), diffrax.Dopri8(), 0.0, 2.0, None, START, PLAIN,
        saveat=diffrax.SaveAt(ts=jnp.linspace(0.05, 2, 40)),
        stepsize_controller=diffrax.PIDController(rtol=1e-12, atol=1e-12),
    )  # fmt: skip
    return orders, tolerances, run(orders, tolerances), exact.ys


def test_error_falls_with_the_order_and_the_order_varies(grid):
    orders, tolerances, found, exact = grid
    errors = jnp.linalg.norm(found.ys[0][:, :, 0] - exact[-1], axis=-1)
    steps, last = found.stats["num_accepted_steps"], found.solver_state.order
    slopes = [np.polyfit(np.log(n), np.log(e), 1)[0] for n, e in zip(steps, errors, strict=True)]
    assert np.allclose(slopes[:3], [-1, -2, -3], atol=0.35)
    assert slopes[3] < -4
    assert jnp.all(last <= orders[:, None])
    assert jnp.all(last[:3, -1] == orders[:3])
    assert jnp.min(last[3]) < jnp.max(last[3])
    assert jnp.all(found.stats["num_rejected_steps"] > 0)  # steps of other lengths than were due
    along = jnp.max(jnp.linalg.norm(found.ys[1] - exact, axis=-1), axis=-1)
    assert jnp.all(along[2:] < 30 * tolerances)


def test_dense_output_begins_and_ends_at_the_states():
    table = jnp.arange(18.0).reshape(6, 3)
    dense = NordsieckInterpolation(t0=1.0, t1=1.5, **polynomial(START, table, lambda v: v))
    assert jnp.allclose(dense.evaluate(1.0), START)
    assert jnp.array_equal(dense.evaluate(1.5), table[0])
    slope = jax.jvp(dense.evaluate, (1.5,), (1.0,))[1]
    assert jnp.allclose(slope, table[1] / 0.5)


@eqx.filter_jit
def stepped(state, y, h, jump, args):
    solver = fl.RecycledBDF(rtol=1e-6, atol=1e-6)
    return solver.step(diffrax.ODETerm(forced), 2.0, 2.0 + h, y, args, state, jump)


def test_a_step_that_cannot_be_taken_and_a_restart(grid):
    state = jax.tree.map(lambda a: a[3, -1], grid[2].solver_state)
    y, h = grid[2].ys[0][3, -1, 0], state.due
    no, yes = jnp.array(False), jnp.array(True)
    y1, error, _, after, result = stepped(state, y, h, no, PLAIN)
    assert result == diffrax.RESULTS.successful
    assert jnp.all(jnp.isfinite(error))
    assert int(state.order) >= 3

    # After a jump of the field: implicit Euler, with the eigenvectors that were known.
    y1, error, _, after, result = stepped(state, y, h / 9, yes, PLAIN)
    assert int(after.order) == 1
    assert jnp.allclose(y1, y + h / 9 * forced(2.0 + h / 9, y1, PLAIN), atol=1e-7)
    assert jnp.allclose(after.ritz.values, -RATES[::-1], rtol=0.05)
    # So it is where step size control has shortened the step out of all proportion.
    assert int(stepped(state, y, h / 1e4, no, PLAIN)[3].order) == 1

    # Negative curvature: solutions part by more than e^1 in the step.
    _, error, _, after, result = stepped(state, y, h, no, (jnp.array(-1.0), jnp.array(0.1)))
    assert jnp.all(jnp.isinf(error))
    assert result == diffrax.RESULTS.dt_min_reached
    # Newton's method does not converge in three iterations.
    _, error, _, after, result = stepped(state, y, h, no, (jnp.array(1.0), jnp.array(1e7)))
    assert jnp.all(jnp.isinf(error))
    assert int(after.evaluations) >= int(state.evaluations) + 2


def test_float32(grid):
    args = jax.tree.map(lambda a: a.astype(jnp.float32), PLAIN)
    found = jax.jit(solve)(5, jnp.float32(1e-4), START.astype(jnp.float32), args)
    assert {leaf.dtype for leaf in jax.tree.leaves(found.solver_state)} <= {
        jnp.dtype(name) for name in ("float32", "int32")
    }
    assert jnp.allclose(found.ys[0][0], grid[3][-1], atol=1e-3)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_derivatives_are_those_of_the_solution(mode):
    """Of start and rate, where the slow component is known."""

    def end(start, rate, adjoint):
        args = rate, jnp.zeros(())
        return solve(5, 1e-7, start * jnp.ones(3), args, adjoint, room=512).ys[0][0, 0]

    def exact(start, rate):
        slow = (rate**2 * jnp.cos(2.0) + rate * jnp.sin(2.0)) / (1 + rate**2)
        return slow + (start - rate**2 / (1 + rate**2)) * jnp.exp(-2 * rate)

    expected = jax.grad(exact, (0, 1))(2.0, 1.5)
    if mode == "reverse":
        found = jax.grad(end, (0, 1))(2.0, 1.5, diffrax.RecursiveCheckpointAdjoint())
    else:
        found = jax.jacfwd(lambda *a: end(*a, diffrax.ForwardMode()), (0, 1))(2.0, 1.5)
    assert np.allclose(found, expected, rtol=1e-5)


def test_a_run_with_events_that_is_stopped_and_resumed(tree, aligned, tmp_path, monkeypatch):
    """Equal to one that was not, bit for bit, and every evaluation is counted."""
    calls, velocity = [], GradientField.__call__

    def reported(self, t, parameters, args):
        jax.debug.callback(lambda: calls.append(1))
        return velocity(self, t, parameters, args)

    monkeypatch.setattr(GradientField, "__call__", reported)
    network, modes = aligned
    rho, ts = 0.5 * modes.full_strength, jnp.linspace(0, 60, 7)

    def run(name, **options):
        return fl.gradient_flow(
            network, tree, 60.0, ts=ts, solver=fl.RecycledBDF(), rtol=1e-6,
            events=fl.ModeHits(modes, rho), observe={"strengths": modes},
            checkpoint=tmp_path / name, throw=False, **options,
        )  # fmt: skip

    stopped = run("a", max_steps=50)
    assert float(stopped.end) < 60
    again = run("a")
    jax.effects_barrier()
    assert len(calls) == int(again.stats["evaluations"])
    assert int(again.stats["num_rejected_steps"]) > 0
    flow = run("b")
    assert eqx.tree_equal(
        (again.final, again.losses, again.events, again.counts),
        (flow.final, flow.losses, flow.events, flow.counts),
    )
    a0 = modes.strengths(network, tree)
    exact = fl.theory.hitting_time(rho, modes.s, modes.d, a0)
    hits = flow.events.select("mode")
    assert len(hits) >= 5
    for time, (k,) in zip(hits.time, hits.index, strict=True):
        assert float(time) == pytest.approx(float(exact[k]), rel=1e-4)
    strengths = fl.theory.mode_strength(ts[:, None], modes.s, modes.d, a0)
    assert jnp.max(jnp.abs(flow.observed["strengths"] - strengths)[:, modes.s > 0]) < 1e-3


def test_eigenvalues_are_those_of_the_hessian(tree, key):
    network = fl.LinearNetwork.init(tree, 4, 0.05, bias_strength=3.0, key=key)
    ts = jnp.linspace(0, 12, 7)
    solver = fl.RecycledBDF(eigenvalues=3)
    flow = fl.gradient_flow(network, tree, 12.0, tau=2.0, ts=ts, solver=solver, rtol=1e-5)
    value = FullData(tree, fl.SquaredError()).value
    build = jax.flatten_util.ravel_pytree(network.parameters)[1]
    hessian = jax.hessian(lambda w: value(network.with_parameters(build(w))))
    states = jax.vmap(lambda n: jax.flatten_util.ravel_pytree(n.parameters)[0])(flow.networks)
    exact = jnp.linalg.eigvalsh(jax.lax.map(hessian, states))[:, ::-1][:, :3]
    assert jnp.allclose(flow.observed["hessian_eigenvalues"], exact, rtol=0.01)
    assert jnp.max(exact[:, 0]) > 1.5 * jnp.min(exact[:, 0])


def test_vectors_stay_orthonormal_from_update_to_update():
    """What they lack, a thousandth at first, is gone to rounding; 6e-5 would be left by itself."""
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(40, 40)))
    jacobian = -(turn * np.geomspace(300, 1e-3, 40)) @ turn.T
    some = Ritz.scattered(6, jnp.zeros(40))
    some = Ritz(1.001 * some.vectors, some.values)
    update = eqx.filter_jit(lambda some, rows: some.updated(rows, rows @ jacobian))
    for _ in range(50):
        rows = rng.normal(size=(3, 40))
        some = update(some, rows / np.linalg.norm(rows, axis=1, keepdims=True))
    np.testing.assert_allclose(some.vectors @ some.vectors.T, np.eye(6), atol=2e-6)


def test_what_cannot_work_says_so(tree, key):
    with pytest.raises(ValueError, match=r"`rtol` and `atol` of fl\.RecycledBDF are missing"):
        diffrax.diffeqsolve(diffrax.ODETerm(forced), fl.RecycledBDF(), 0.0, 1.0, 0.1, START, PLAIN)
    network = fl.LinearNetwork.init(tree, 4, key=key)
    with pytest.raises(ValueError, match="RecycledBDF needs one `tau`"):
        fl.gradient_flow(network, tree, 1.0, tau=[1.0, 2.0], solver=fl.RecycledBDF())
    relu = fl.ReLUNetwork.init(tree, 4, key=key)
    with pytest.raises(ValueError, match="walks with explicit Runge-Kutta solvers"):
        fl.gradient_flow(relu, tree, 1.0, kinks=fl.ExactKinks(), solver=fl.RecycledBDF())
