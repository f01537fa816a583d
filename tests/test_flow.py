"""The linear and gated flows against closed forms, conserved quantities and brute force."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.zoo import distance


def test_all_modes_follow_the_closed_form(tree, aligned):
    network, modes = aligned
    flow = fl.gradient_flow(network, tree, 60.0, ts=jnp.linspace(0, 60, 61), rtol=1e-10)
    strengths = jax.vmap(lambda n: modes.strengths(n, tree))(flow.networks)
    exact = fl.theory.mode_strength(flow.ts[:, None], modes.s, modes.d, strengths[0])
    driven = modes.s > 0
    error = jnp.abs(strengths / jnp.where(driven, exact, 1.0) - 1)[:, driven]
    assert float(jnp.max(error)) < 1e-8


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_tau_stretches_time(tree, aligned, tau):
    network, _ = aligned
    one = fl.gradient_flow(network, tree, 10.0)
    other = fl.gradient_flow(network, tree, 10.0 * tau, tau=tau)
    assert distance(other.final, one.final) < 1e-6


def imbalance(network):
    """W_{l+1}^T W_{l+1} - W_l W_l^T with biases as columns, per hidden layer."""
    parts = []
    for k in range(len(network.weights) - 1):
        low, high, bias = network.weights[k], network.weights[k + 1], network.biases[k]
        inner = low @ low.T + (0 if bias is None else jnp.outer(bias, bias))
        parts.append(high.T @ high - inner)
    return parts


@pytest.mark.parametrize("bias_strength", [1.0, 3.0])
@pytest.mark.parametrize("hidden", [(16,), (12, 10)])
def test_imbalance_is_conserved(tree, key, hidden, bias_strength):
    flags = (True,) + (False,) * len(hidden)
    network = fl.LinearNetwork.init(
        tree, hidden, 0.05, bias=flags, bias_strength=bias_strength, key=key
    )
    flow = fl.gradient_flow(network, tree, 20.0, rtol=1e-12)
    for before, after in zip(imbalance(network), imbalance(flow.final), strict=True):
        assert float(jnp.max(jnp.abs(after - before))) < 1e-10
    assert distance(flow.final, network) > 0.1


def test_unit_norms_of_a_smoothed_relu_flow_are_conserved_up_to_the_width(tree, key):
    # sigma_w is homogeneous outside |z| < w only, so the drift is of the order of the width.
    network = fl.ReLUNetwork.init(tree, 16, key=key)

    def norms(n):
        return jnp.sum(n.weights[0] ** 2, 1) + n.biases[0] ** 2 - jnp.sum(n.weights[1] ** 2, 0)

    drifts = []
    for width in (1e-3, 1e-4):
        kinks, solver = fl.SmoothKinks(width), diffrax.Tsit5()
        flow = fl.gradient_flow(network, tree, 5.0, kinks=kinks, solver=solver)
        drifts.append(float(jnp.max(jnp.abs(norms(flow.final) - norms(network)))))
    assert drifts[1] < 1e-4
    assert drifts[1] < 0.3 * drifts[0]


@pytest.mark.parametrize("kind", [fl.LinearNetwork, fl.ReLUNetwork])
def test_energy_identity(tree, key, kind):
    """L(0) - L(T) is the integral of the squared gradient."""
    network = kind.init(tree, 16, 0.01, key=key)
    kinks = fl.SmoothKinks(1e-3)

    def speed(n, task):
        from flowlin.training.objective import FullData

        gradient = FullData(task, fl.SquaredError(), kinks.width).gradient(n)
        return sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient))

    ts = jnp.linspace(0, 6, 4001)
    flow = fl.gradient_flow(network, tree, 6.0, ts=ts, observe={"speed": speed}, kinks=kinks)
    from scipy.integrate import simpson

    work = simpson(np.asarray(flow.observed["speed"]), x=np.asarray(ts))
    fall = float(flow.losses[0] - flow.losses[-1])
    assert fall > 0.1
    assert work == pytest.approx(fall, rel=2e-6)


@pytest.mark.parametrize("c", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_statistics_equal_full_data(key, c, reduction):
    """The sufficient statistics give the loss and the gradient of the samples to rounding."""
    from flowlin.training.objective import FullData
    from flowlin.training.statistics import Statistics

    task = fl.tasks.teacher(200, (2.0, 1.0, 0.5), inputs=7, outputs=4, noise=0.3, key=key)
    network = fl.LinearNetwork.init(
        task, (6, 5), 0.3, bias=(True, False, True), bias_strength=c, key=key
    )
    loss = fl.SquaredError(reduction)
    fast, plain = Statistics.of(task, loss), FullData(task, loss)
    assert float(fast.value(network)) == pytest.approx(float(plain.value(network)), rel=1e-13)
    for a, b in zip(
        jax.tree.leaves(fast.gradient(network)),
        jax.tree.leaves(plain.gradient(network)),
        strict=True,
    ):
        assert jnp.max(jnp.abs(a - b)) <= 1e-13 * jnp.max(jnp.abs(b))


def test_statistics_keep_digits_at_the_floor():
    """Near a perfect fit the expanded form resolves losses far below rounding of |y|^2."""
    from flowlin.training.objective import FullData
    from flowlin.training.statistics import Statistics

    task = fl.tasks.teacher(50, (1.0, 0.5), whiten=True, key=jax.random.key(2))
    w = jnp.linalg.lstsq(task.x, task.y)[0].T
    network = fl.LinearNetwork((w * (1 + 1e-9),))
    fast = Statistics.of(task, fl.SquaredError()).value(network)
    plain = FullData(task, fl.SquaredError()).value(network)
    assert float(plain) < 1e-17
    assert float(fast) == pytest.approx(float(plain), rel=1e-5)


def test_linear_runs_choose_statistics_by_themselves(key):
    task = fl.tasks.teacher(60, (2.0, 1.0), key=key)
    network = fl.LinearNetwork.init(task, 4, 0.1, key=key)
    flow = fl.gradient_flow(network, task, 5.0, rtol=1e-11)
    assert flow.stats["objective"] == "Statistics"
    same = fl.gradient_flow(network.frozen(task), task, 5.0, rtol=1e-11)
    assert same.stats["objective"] == "FullData"
    assert distance(same.final, flow.final) < 1e-10


def test_error_is_proportional_to_the_tolerance(tree, key):
    network = fl.LinearNetwork.init(tree, 16, key=key)
    reference = fl.gradient_flow(network, tree, 15.0, rtol=1e-13, atol=1e-14).final
    errors = [
        distance(fl.gradient_flow(network, tree, 15.0, rtol=r).final, reference)
        for r in (1e-4, 1e-6, 1e-8, 1e-10)
    ]
    for rtol, error in zip((1e-4, 1e-6, 1e-8, 1e-10), errors, strict=True):
        assert error < 100 * rtol
    slope = np.polyfit(np.log([1e-4, 1e-6, 1e-8, 1e-10]), np.log(errors), 1)[0]
    assert 0.8 < slope < 1.3


def rk4(network, task, t1, steps):
    """Brute force: classical Runge-Kutta on the network's own loss."""

    def velocity(parameters):
        def loss(p):
            return fl.SquaredError()(network.with_parameters(p).outputs(task.x), task.y)

        return jax.tree.map(lambda g: -g, jax.grad(loss)(parameters))

    def step(p, _):
        h = t1 / steps

        def add(k, s):
            return jax.tree.map(lambda a, b: a + s * h * b, p, k)

        k1 = velocity(p)
        k2 = velocity(add(k1, 0.5))
        k3 = velocity(add(k2, 0.5))
        k4 = velocity(add(k3, 1.0))
        new = jax.tree.map(
            lambda a, b1, b2, b3, b4: a + h / 6 * (b1 + 2 * b2 + 2 * b3 + b4), p, k1, k2, k3, k4
        )
        return new, None

    return network.with_parameters(jax.lax.scan(step, network.parameters, length=steps)[0])


def test_gates_of_one_are_the_linear_flow(tree, key):
    linear = fl.LinearNetwork.init(tree, (8, 6), 0.05, key=key)
    gated = fl.GatedLinearNetwork(
        linear.weights, linear.biases, linear.bias_strength, gates=(jnp.ones(8), jnp.ones((8, 6)))
    )
    a = fl.gradient_flow(linear, tree, 8.0, rtol=1e-11).final
    b = fl.gradient_flow(gated, tree, 8.0, rtol=1e-11).final
    assert distance(b, a) < 1e-11


def test_gated_flow_against_brute_force(tree, key):
    gates = jax.random.bernoulli(key, 0.5, (8, 10)).astype(float)
    linear = fl.LinearNetwork.init(tree, 10, 0.1, key=key)
    gated = fl.GatedLinearNetwork(linear.weights, linear.biases, 2.0, gates=(gates,))
    flow = fl.gradient_flow(gated, tree, 4.0, rtol=1e-11).final
    assert distance(flow, rk4(gated, tree, 4.0, 4000)) < 1e-9


def test_frozen_gates_equal_the_relu_flow_until_its_first_switch(tree, key):
    relu = fl.ReLUNetwork.init(tree, 16, key=key)
    kinks = fl.IgnoreKinks()
    run = fl.gradient_flow(relu, tree, 1.0, kinks=kinks, max_steps=2000, throw=False)
    first = float(run.events.time[0])
    assert first > 1e-3
    before = 0.999 * first
    a = fl.gradient_flow(relu, tree, before, kinks=kinks, rtol=1e-11).final
    b = fl.gradient_flow(relu.frozen(tree), tree, before, rtol=1e-11).final
    assert distance(a, b) < 1e-10
    # Past the switch they part: the test can fail.
    late = fl.gradient_flow(relu.frozen(tree), tree, 3.0).final
    assert distance(fl.gradient_flow(relu, tree, 3.0).final, late) > 1e-3


def test_cross_entropy_flow_against_brute_force(key):
    task = fl.tasks.xor()
    network = fl.LinearNetwork.init(task, 6, 0.2, key=key)
    flow = fl.gradient_flow(network, task, 3.0, loss=fl.CrossEntropy(), rtol=1e-10)
    state, steps = network.parameters, 20000
    for_loss = fl.CrossEntropy()

    def step(p, _):
        g = jax.grad(lambda q: for_loss(network.with_parameters(q).outputs(task.x), task.y))(p)
        return jax.tree.map(lambda a, b: a - 3.0 / steps * b, p, g), None

    euler = network.with_parameters(jax.lax.scan(step, state, length=steps)[0])
    assert distance(euler, flow.final) < 1e-3
    assert float(flow.losses[-1]) < float(flow.losses[0])


def test_saved_times_dense_and_observables_agree(tree, key):
    network = fl.LinearNetwork.init(tree, 8, key=key)
    ts = jnp.array([0.5, 2.0, 7.5])
    flow = fl.gradient_flow(network, tree, 10.0, ts=ts, dense=True)
    assert jnp.array_equal(flow.ts, ts)
    for i, t in enumerate(ts):
        saved = jax.tree.map(lambda a, i=i: a[i], flow.networks)
        assert distance(flow.network(t), saved) < 1e-12
        loss = fl.SquaredError()(saved.outputs(tree.x), tree.y)
        assert float(loss) == pytest.approx(float(flow.losses[i]), rel=1e-12)
    stacked = flow.network(ts)
    assert jnp.allclose(stacked.weights[0], flow.networks.weights[0], rtol=1e-12)
    observe = {"norm": lambda n, task: jnp.linalg.norm(n.weights[0])}
    other = fl.gradient_flow(network, tree, 10.0, ts=ts, observe=observe)
    norms = jax.vmap(lambda n: jnp.linalg.norm(n.weights[0]))(flow.networks)
    assert jnp.allclose(other.observed["norm"], norms, rtol=1e-12)
    with pytest.raises(ValueError, match="recorded `observe` instead of networks"):
        _ = other.networks
    with pytest.raises(ValueError, match="needs a run with `dense=True`"):
        other.network(1.0)
    with pytest.raises(ValueError, match="lies outside the run"):
        flow.network(11.0)


def test_default_saves_both_ends(tree, key):
    network = fl.LinearNetwork.init(tree, 8, key=key)
    flow = fl.gradient_flow(network, tree, 10.0)
    assert jnp.array_equal(flow.ts, jnp.array([0.0, 10.0]))
    assert distance(jax.tree.map(lambda a: a[0], flow.networks), network) == 0
    assert distance(jax.tree.map(lambda a: a[1], flow.networks), flow.final) == 0


@pytest.mark.parametrize(
    "solver",
    [
        diffrax.Tsit5(),
        diffrax.Dopri8(),
        diffrax.Kvaerno5(),
        diffrax.HalfSolver(diffrax.Tsit5()),  # which passes for an explicit one, and has no tableau
    ],
)
def test_any_diffrax_solver_records_the_same_events(solver):
    task = fl.tasks.teacher(20, (2.0, 1.0), whiten=True)
    modes = fl.theory.modes(task)
    product = (modes.u * 0.01) @ modes.v.T
    network = fl.LinearNetwork.balanced(task, 2, bias=False, product=product, key=jax.random.key(3))
    rho = 0.5 * modes.full_strength
    flow = fl.gradient_flow(
        network, task, 5.0, events=(fl.ModeHits(modes, rho),), solver=solver, rtol=1e-7
    )
    exact = fl.theory.hitting_time(rho, modes.s, modes.d, 0.01)
    assert flow.events.index == [(0,), (1,)]
    assert np.allclose(flow.events.time, exact, rtol=1e-5)
    assert flow.stats["solver"] == type(solver).__name__


def test_balanced_strength_starts_the_closed_form(tree, aligned):
    network, modes = aligned
    exact = modes.strengths(network, tree)
    balanced = fl.theory.balanced_strength(network, modes)
    assert jnp.allclose(balanced[:8], exact[:8], rtol=1e-10)
    # A random network: some raw strengths are negative, the balanced parts give its hitting times.
    random = fl.LinearNetwork.init(tree, key=jax.random.key(0))
    assert jnp.any(modes.strengths(random, tree)[:8] < 0)
    rho = 0.5 * modes.full_strength
    a0 = fl.theory.balanced_strength(random, modes)
    flow = fl.gradient_flow(random, tree, 30.0, events=(fl.ModeHits(modes, rho),))
    expected = fl.theory.hitting_time(rho, modes.s, modes.d, a0)
    for row in flow.events.table():
        assert row["time"] == pytest.approx(float(expected[row["index"][0]]), rel=0.05)
    with pytest.raises(ValueError, match="one hidden layer"):
        fl.theory.balanced_strength(
            fl.LinearNetwork.init(tree, (4, 4), key=jax.random.key(0)), modes
        )


def test_a_step_size_controller_stands_in_for_the_tolerances(tree, key):
    network = fl.LinearNetwork.init(tree, 8, 1e-2, key=key)
    pid = diffrax.PIDController(rtol=1e-6, atol=1e-8)
    own = fl.gradient_flow(network, tree, 5.0, stepsize_controller=pid)
    plain = fl.gradient_flow(network, tree, 5.0, rtol=1e-6, atol=1e-8)
    assert own.stats == plain.stats
    for a, b in zip(jax.tree.leaves(own.final), jax.tree.leaves(plain.final), strict=True):
        np.testing.assert_array_equal(a, b)
    short = diffrax.PIDController(rtol=1e-6, atol=1e-8, dtmax=0.05)
    bounded = fl.gradient_flow(network, tree, 5.0, stepsize_controller=short)
    assert int(bounded.stats["num_accepted_steps"]) >= 100 > int(plain.stats["num_steps"])
    finer = diffrax.PIDController(rtol=1e-9, atol=1e-11)
    relu = fl.ReLUNetwork.init(tree, 8, 1e-2, key=key)
    with pytest.raises(ValueError, match="finer than `AveragedKinks` can use; give it 1e-05"):
        fl.gradient_flow(relu, tree, 5.0, kinks=fl.AveragedKinks(), stepsize_controller=finer)
