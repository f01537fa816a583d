"""The linear and gated flows: closed forms, conserved quantities, SciPy, and what a run gives."""

import diffrax
import jax
import jax.flatten_util
import numpy as np
import pytest
from scipy.integrate import simpson, solve_ivp
from scipy.optimize import brentq

import flowlin as fl
from tests.tolerances import ROUNDING, of_flow, of_time
from tests.zoo import ALIGNED, distance

TREE = fl.tasks.hierarchy(2)
X, Y = np.asarray(TREE.x), np.asarray(TREE.y)
MODES = fl.theory.modes(TREE, 1.0)
U, S, V, D = (np.asarray(a) for a in (MODES.u, MODES.s, MODES.v, MODES.d))
T1, UNITS = 10.0, 6
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(60)
TIMES, SHARES = T1 * (_NODES + 1) / 2, T1 * _WEIGHTS / 2  # of a quadrature from 0 to T1
HALF = fl.LossBelow(0.5)
DOPRI8 = diffrax.Dopri8()  # by name, where a run would measure stiffness in programs of its own


def run(network, t1=T1, rtol=1e-10, **options):
    """All of these runs are one program."""
    ts = t1 / T1 * TIMES
    return fl.gradient_flow(network, TREE, t1, ts=ts, rtol=rtol, events=(HALF,), **options)


def random_network(c=1.0):
    return fl.LinearNetwork.init(TREE, UNITS, 0.05, bias_strength=c, key=jax.random.key(3))


@pytest.fixture(scope="module")
def modal():
    """A balanced network aligned to the modes, and its strengths."""
    strengths = np.linspace(1e-2, 3e-2, len(S))
    product = (U * strengths) @ V.T
    key = jax.random.key(1)
    return fl.LinearNetwork.balanced(TREE, UNITS, product=product, key=key), strengths


@pytest.fixture(scope="module")
def mode_run(modal):
    return run(modal[0])


@pytest.fixture(scope="module")
def random_run():
    return run(random_network())


def parts(network):
    """W_1, b, W_2, of one time or of many."""
    return [np.asarray(a) for a in (network.weights[0], network.biases[0], network.weights[1])]


def strengths(network):
    """u^T W_2 [b, W_1] v per mode."""
    w1, b, w2 = parts(network)
    return np.einsum("ok,...oh,...hi,ik->...k", U, w2, np.concatenate([b[..., None], w1], -1), V)


def velocity(network, c, gates=1.0, task=TREE, residual=lambda f, y: f - y):
    """Minus the gradient of the mean loss, by hand, of [W_1, b, W_2]."""
    w1, b, w2 = network
    x, y = np.asarray(task.x), np.asarray(task.y)
    h = gates * (x @ w1.T + c * b)
    off = residual(h @ w2.T, y) / len(x)
    back = gates * (off @ w2)
    return [-back.T @ x, -c * back.sum(0), -off.T @ h]


def integrated(network, t1, *options):
    """The parts at t1, by SciPy in NumPy alone."""
    start = parts(network)
    borders = np.cumsum([a.size for a in start])[:-1]

    def whole(arrays):
        return np.concatenate([np.ravel(a) for a in arrays])

    def slope(_, y):
        pieces = np.split(y, borders)
        arrays = [a.reshape(b.shape) for a, b in zip(pieces, start, strict=True)]
        return whole(velocity(arrays, *options))

    tight = {"method": "DOP853", "rtol": 1e-11, "atol": 1e-13}
    return solve_ivp(slope, (0.0, t1), whole(start), **tight).y[:, -1]


def close_to_scipy(flow, t1, *options):
    network = jax.tree.map(lambda a: a[0], flow.networks)
    expected = integrated(network, t1, *options)
    found = np.concatenate([np.ravel(a) for a in parts(flow.final)])
    np.testing.assert_allclose(found, expected, atol=of_flow(1e-10))


def exact_strengths(modal, t):
    return np.asarray(fl.theory.mode_strength(t, MODES.s, MODES.d, modal[1]))


def exact_loss(a):
    return np.mean(np.sum(Y**2, 1)) / 2 + np.sum(D * a**2 / 2 - S * a, -1)


# ---- One program: weights, losses, events, times.


def test_all_modes_follow_the_closed_form(modal, mode_run):
    exact = exact_strengths(modal, TIMES[:, None])
    np.testing.assert_array_equal(mode_run.ts, TIMES)
    np.testing.assert_allclose(strengths(mode_run.networks), exact, atol=of_flow(1e-10))
    np.testing.assert_allclose(mode_run.losses, exact_loss(exact), atol=of_flow(1e-10))
    assert np.max(exact[-1]) > 10 * np.max(modal[1])  # it does move


def test_an_event_comes_when_the_closed_form_says(modal, mode_run):
    time = brentq(lambda t: exact_loss(exact_strengths(modal, t)) - 0.5, 0.0, T1, xtol=1e-12)
    (row,) = mode_run.events.table()
    assert row["time"] == pytest.approx(time, rel=of_time(1e-10))


def test_tau_stretches_time(mode_run, modal):
    slowed = run(modal[0], t1=3 * T1, tau=3.0)
    np.testing.assert_allclose(slowed.losses, mode_run.losses, rtol=of_flow(1e-10))
    np.testing.assert_allclose(slowed.events.time, 3 * mode_run.events.time, rtol=of_time(1e-10))


def test_the_error_is_proportional_to_the_tolerance(modal):
    tolerances = np.array([1e-6, 1e-8, 1e-10])
    exact = exact_strengths(modal, T1)
    ends = [strengths(run(modal[0], rtol=rtol).final) for rtol in tolerances]
    errors = [np.max(np.abs(end - exact)) for end in ends]
    assert all(error < of_flow(rtol) for error, rtol in zip(errors, tolerances, strict=True))
    assert 0.8 < np.polyfit(np.log(tolerances), np.log(errors), 1)[0] < 1.3


@pytest.mark.parametrize("c", [1.0, 3.0])
def test_the_imbalance_is_conserved(c):
    """W_2^T W_2 - W_1 W_1^T - b b^T, and something moves."""
    network = random_network(c)

    def imbalance(network):
        w1, b, w2 = parts(network)
        return w2.T @ w2 - w1 @ w1.T - np.outer(b, b)

    end = run(network, rtol=1e-12).final
    np.testing.assert_allclose(imbalance(end), imbalance(network), atol=of_flow(1e-12))
    assert np.linalg.norm(parts(end)[2] - parts(network)[2]) > 0.1


def test_the_loss_falls_by_the_integral_of_the_squared_gradient(random_run):
    w1, b, w2 = parts(random_run.networks)
    speed = [sum(np.sum(g**2) for g in velocity(one, 1.0)) for one in zip(w1, b, w2, strict=True)]

    def loss(network):
        w1, b, w2 = parts(network)
        return np.mean(np.sum(((X @ w1.T + b) @ w2.T - Y) ** 2, 1)) / 2

    fall = loss(random_network()) - loss(random_run.final)
    assert fall > 0.1
    assert SHARES @ np.array(speed) == pytest.approx(fall, rel=1e-8)


def test_a_run_against_scipy_and_what_it_says_of_itself(random_run):
    found = np.concatenate([np.ravel(a) for a in parts(random_run.final)])
    np.testing.assert_allclose(found, integrated(random_network(), T1, 1.0), atol=of_flow(1e-10))
    assert random_run.stats["solver"] == "Dopri8"
    assert "too short to measure" in random_run.stats["solver_because"]
    with pytest.raises(ValueError, match="needs a run with `dense=True`"):
        random_run.network(1.0)


@pytest.fixture(scope="module")
def dense():
    ts = np.array([0.0, 0.5, 2.0, T1])
    how = {"rtol": 1e-10, "solver": DOPRI8, "dense": True}
    return fl.gradient_flow(random_network(), TREE, T1, ts=ts, **how)


@pytest.mark.slow
def test_dense_output_passes_through_the_saved_states(dense, random_run):
    assert distance(dense.final, random_run.final) < of_flow(1e-10)
    for found, saved in zip(parts(dense.network(dense.ts)), parts(dense.networks), strict=True):
        np.testing.assert_allclose(found, saved, rtol=ROUNDING)
    for found, saved in zip(parts(dense.network(0.5)), parts(dense.networks), strict=True):
        np.testing.assert_allclose(found, saved[1], rtol=ROUNDING)
    for found, start in zip(parts(dense.networks), parts(random_network()), strict=True):
        np.testing.assert_array_equal(found[0], start)
    with pytest.raises(ValueError, match="lies outside the run"):
        dense.network(11.0)
    with pytest.raises(ValueError, match="cannot be extended"):
        dense.extend(12.0)


# ---- Other fields against SciPy.


@pytest.fixture(scope="module")
def gated():
    """Gates per sample and unit, and their flow."""
    gates = np.random.default_rng(0).integers(0, 2, size=(4, UNITS)).astype(float)
    linear = fl.LinearNetwork.init(TREE, UNITS, 0.1, key=jax.random.key(0))
    network = fl.GatedLinearNetwork(linear.weights, linear.biases, 2.0, gates=(gates,))
    return gates, fl.gradient_flow(network, TREE, 4.0, rtol=1e-10)


def test_a_gated_flow_is_that_of_scipy(gated):
    gates, flow = gated
    np.testing.assert_array_equal(flow.ts, [0.0, 4.0])  # both ends, where no times are asked for
    close_to_scipy(flow, 4.0, 2.0, gates)


CLASSES = fl.Task(X + 0.1, np.eye(7)[[0, 1, 1, 2]])


@pytest.fixture(scope="module")
def entropic():
    network = fl.LinearNetwork.init(CLASSES, UNITS, 0.2, key=jax.random.key(0))
    return fl.gradient_flow(network, CLASSES, 3.0, loss=fl.CrossEntropy(), rtol=1e-10)


def test_a_flow_of_the_cross_entropy_is_that_of_scipy(entropic):
    def residual(f, y):
        share = np.exp(f - np.max(f, 1, keepdims=True))
        return share / np.sum(share, 1, keepdims=True) - y

    close_to_scipy(entropic, 3.0, 1.0, 1.0, CLASSES, residual)


# ---- Sums over samples: sufficient statistics against every sample, by hand.

MANY = fl.tasks.teacher(50, (2.0, 1.0, 0.5), inputs=5, outputs=4, noise=0.3, key=jax.random.key(0))
REDUCTIONS = ["mean", pytest.param("sum", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=REDUCTIONS)
def one_step(request):
    """A step of descent, which gives the mean gradient to rounding; the loss over the mean one."""
    each = {"mean": 1, "sum": 50}[request.param]

    def step(network):
        return fl.gradient_descent(network, MANY, 1 / each, 1, loss=fl.SquaredError(request.param))

    step(fl.LinearNetwork.init(MANY, 3, 0.3, key=jax.random.key(0)))
    return step, each


@pytest.mark.parametrize("c", [0.5, 10.0])
def test_statistics_are_the_sums_over_all_samples(one_step, c):
    step, each = one_step
    network = fl.LinearNetwork.init(MANY, 3, 0.3, bias_strength=c, key=jax.random.key(0))
    found = step(network)
    moved = [a - b for a, b in zip(parts(found.final), parts(network), strict=True)]
    for a, b in zip(moved, velocity(parts(network), c, task=MANY), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-13 * np.max(np.abs(b)) + 1e-14)
    w1, b, w2 = parts(network)
    off = (np.asarray(MANY.x) @ w1.T + c * b) @ w2.T - np.asarray(MANY.y)
    loss = np.mean(np.sum(off**2, 1)) / 2 * each
    assert float(found.losses[0]) == pytest.approx(loss, rel=1e-13)


@pytest.mark.slow
def test_statistics_keep_digits_at_the_floor():
    """Near a perfect fit the expanded form resolves losses far below rounding of |y|^2."""
    task = fl.tasks.teacher(50, (1.0, 0.5), whiten=True, key=jax.random.key(2))
    x, y = np.asarray(task.x), np.asarray(task.y)
    w = np.linalg.lstsq(x, y)[0].T * (1 + 1e-9)
    run = fl.gradient_descent(fl.LinearNetwork((w,)), task, 0.1, 1)
    plain = np.mean(np.sum((x @ w.T - y) ** 2, 1)) / 2
    assert plain < 1e-17
    assert float(run.losses[0]) == pytest.approx(plain, rel=1e-5)


@pytest.mark.slow
def test_gates_of_one_are_the_linear_flow_which_is_that_of_statistics():
    network = fl.LinearNetwork.init(MANY, 3, 0.1, key=jax.random.key(0))
    gated = network.frozen(MANY)
    assert np.all(np.asarray(gated.given_gates[0]) == 1)
    flow, same = (
        fl.gradient_flow(one, MANY, 5.0, rtol=1e-11, solver=DOPRI8) for one in (network, gated)
    )
    assert flow.stats["objective"] == "LinearStatistics"
    assert same.stats["objective"] == "FullData"
    assert distance(same.final, flow.final) < 1e-11


# ---- Solvers: the same events by each.

TEACHER = fl.tasks.teacher(20, (2.0, 1.0), whiten=True)
TEACHERS = fl.theory.modes(TEACHER)
SOLVERS = [
    fl.RKC(),
    fl.RecycledBDF(),
    diffrax.HalfSolver(diffrax.Tsit5()),  # which passes for an explicit one
]


@pytest.fixture(scope="module", params=SOLVERS, ids=lambda s: type(s).__name__)
def solved(request):
    product = (TEACHERS.u * 0.01) @ TEACHERS.v.T
    key = jax.random.key(3)
    network = fl.LinearNetwork.balanced(TEACHER, 2, bias=False, product=product, key=key)
    events = (fl.ModeHits(TEACHERS, 0.5 * TEACHERS.full_strength),)
    options = {"events": events, "ts": np.linspace(0, 5, 7), "rtol": 1e-7}
    return request.param, fl.gradient_flow(network, TEACHER, 5.0, solver=request.param, **options)


@pytest.mark.slow  # tests/test_schedule.py has a run by each of the library's in the first tier
def test_any_solver_records_the_same_events(solved):
    solver, flow = solved
    exact = fl.theory.hitting_time(
        0.5 * TEACHERS.full_strength, TEACHERS.s, TEACHERS.d, np.array(0.01)
    )
    assert flow.events.index == [(0,), (1,)]
    np.testing.assert_allclose(flow.events.time, exact, rtol=1e-5)
    assert flow.stats["solver"] == type(solver).__name__
    assert flow.stats["solver_because"] == "as asked for"
    if isinstance(solver, fl.RKC):
        radius = np.asarray(flow.observed["spectral_radius"])
        assert radius.shape == flow.ts.shape
        # At the minimum, with white inputs, of the strongest mode: what both layers carry.
        w1, w2 = (np.asarray(w) for w in flow.final.weights)
        assert radius[-1] == pytest.approx(
            np.linalg.norm(w1, 2) ** 2 + np.linalg.norm(w2, 2) ** 2, rel=0.02
        )


# ---- The second tier.

slow = pytest.mark.slow


@slow
def test_the_imbalance_of_three_layers_is_conserved(key):
    network = fl.LinearNetwork.init(
        TREE, (5, 4), 0.05, bias=(True, False, False), bias_strength=3.0, key=key
    )

    def imbalances(network):
        w1, w2, w3 = (np.asarray(w) for w in network.weights)
        bias = np.asarray(network.biases[0])
        return [w2.T @ w2 - w1 @ w1.T - np.outer(bias, bias), w3.T @ w3 - w2 @ w2.T]

    flow = fl.gradient_flow(network, TREE, 20.0, rtol=1e-12, solver=DOPRI8)
    for before, after in zip(imbalances(network), imbalances(flow.final), strict=True):
        np.testing.assert_allclose(after, before, atol=of_flow(1e-12))
    assert distance(flow.final, network) > 0.1


WIDTH = 1e-3


@pytest.fixture(scope="module")
def rounded():
    """A network, its flow over rounded kinks, and what is seen 4,001 times on the way.

    The squared gradient, and for each unit how strongly samples pull at it: mean |residual . w_2|.
    """
    network = fl.ReLUNetwork.init(TREE, UNITS, 0.01, key=jax.random.key(0))
    activation = network.smooth_activation(WIDTH)

    def outputs(parameters, task):
        (w1, w2), (b, _) = parameters
        return activation(0, task.x @ w1.T + b[None]) @ w2.T

    def speed(network, task):
        gradient = jax.grad(lambda p: fl.SquaredError()(outputs(p, task), task.y))
        return sum((g**2).sum() for g in jax.tree.leaves(gradient(network.parameters)))

    def pull(network, task):
        residual = outputs(network.parameters, task) - task.y
        return abs(residual @ network.weights[1]).mean(axis=0)

    how = {"kinks": fl.SmoothKinks(WIDTH), "observe": {"speed": speed, "pull": pull}}
    ts = np.linspace(0, 6, 4001)
    return network, fl.gradient_flow(network, TREE, 6.0, ts=ts, solver=diffrax.Tsit5(), **how)


@slow
def test_unit_norms_of_a_smoothed_relu_flow_are_conserved_up_to_the_width(rounded):
    """They move by twice pull x (sigma - z sigma'), which is 0 outside |z| < w, at most w / 4."""
    network, flow = rounded

    def norms(network):
        w1, b, w2 = parts(network)
        return np.sum(w1**2, 1) + b**2 - np.sum(w2**2, 0)

    drift = np.abs(norms(flow.final) - norms(network))
    most = WIDTH / 2 * simpson(np.asarray(flow.observed["pull"]), x=flow.ts, axis=0)
    assert np.all(drift < most)
    assert np.max(drift / most) > 1e-2


@slow
def test_the_smoothed_relu_loss_falls_by_the_integral_of_the_squared_gradient(rounded):
    _, flow = rounded
    work = simpson(np.asarray(flow.observed["speed"]), x=flow.ts)
    fall = float(flow.losses[0] - flow.losses[-1])
    assert fall > 0.1
    assert work == pytest.approx(fall, rel=2e-6)


@slow
def test_frozen_gates_equal_the_relu_flow_until_its_first_switch(key):
    relu = fl.ReLUNetwork.init(TREE, UNITS, key=key)

    def run(network, t1, rtol=1e-11, **options):
        options |= {"solver": DOPRI8, "max_steps": 2000, "throw": False}
        return fl.gradient_flow(network, TREE, t1, rtol=rtol, **options)

    def ignoring(t1, **options):
        return run(relu, t1, kinks=fl.IgnoreKinks(), **options)

    first = float(ignoring(3.0, rtol=1e-8).events.time[0])
    assert first > 1e-3
    a, b = ignoring(0.999 * first).final, run(relu.frozen(TREE), 0.999 * first).final
    assert distance(a, b) < 1e-10
    # Past the switch they part: the test can fail.
    late = ignoring(3.0)
    assert distance(late.final, run(relu.frozen(TREE), float(late.end)).final) > 1e-3


@slow
def test_observables_are_those_of_the_saved_networks():
    observe = {"norm": lambda network, task: jax.numpy.linalg.norm(network.weights[0])}
    how, network = {"ts": TIMES, "rtol": 1e-10, "solver": DOPRI8}, random_network()
    flow = fl.gradient_flow(network, TREE, T1, observe=observe, **how)
    saved = fl.gradient_flow(network, TREE, T1, **how).networks
    norms = np.linalg.norm(parts(saved)[0], axis=(1, 2))
    np.testing.assert_allclose(flow.observed["norm"], norms, rtol=of_flow(1e-10))
    with pytest.raises(ValueError, match="recorded `observe` instead of networks"):
        _ = flow.networks


@slow
def test_balanced_strength_starts_the_closed_form(tree):
    """A random network: some raw strengths are negative, the balanced parts give hitting times."""
    modes = fl.theory.modes(tree, 1.0)
    rho = 0.5 * modes.full_strength
    product = (modes.u * ALIGNED[None]) @ modes.v.T
    network = fl.LinearNetwork.balanced(tree, product=product, key=jax.random.key(1))
    balanced = fl.theory.balanced_strength(network, modes)
    np.testing.assert_allclose(balanced[:8], ALIGNED[:8], rtol=1e-10)
    random = fl.LinearNetwork.init(tree, key=jax.random.key(0))
    assert np.any(np.asarray(modes.strengths(random, tree))[:8] < 0)
    a0 = fl.theory.balanced_strength(random, modes)
    flow = fl.gradient_flow(random, tree, 30.0, events=(fl.ModeHits(modes, rho),))
    expected = fl.theory.hitting_time(rho, modes.s, modes.d, a0)
    assert len(flow.events) >= 5
    for row in flow.events.table():
        assert row["time"] == pytest.approx(float(expected[row["index"][0]]), rel=0.05)
    deep = fl.LinearNetwork.init(tree, (4, 4), key=jax.random.key(0))
    with pytest.raises(ValueError, match="one hidden layer"):
        fl.theory.balanced_strength(deep, modes)


@slow
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


@slow
def test_the_spectral_radius_and_the_eigenvalues_are_those_of_the_hessian(tree, key):
    """Along a flow, by RKC and by RecycledBDF; the radius is the sharpness, beyond the start."""
    network = fl.LinearNetwork.init(tree, 4, 0.05, bias_strength=3.0, key=key)
    ts, bdf = np.linspace(0, 12, 7), fl.RecycledBDF(eigenvalues=3)
    radius = fl.gradient_flow(network, tree, 12.0, solver=fl.RKC(), ts=ts, rtol=1e-5)
    eigen = fl.gradient_flow(network, tree, 12.0, tau=2.0, solver=bdf, ts=ts, rtol=1e-7)
    _, build = jax.flatten_util.ravel_pytree(network.parameters)

    def loss(w):
        return fl.SquaredError()(network.with_parameters(build(w)).outputs(tree.x), tree.y)

    def spectra(flow):
        states = jax.vmap(lambda n: jax.flatten_util.ravel_pytree(n.parameters)[0])(flow.networks)
        return np.asarray(jax.numpy.linalg.eigvalsh(jax.lax.map(jax.hessian(loss), states)))

    spectrum = spectra(radius)
    exact = np.max(np.abs(spectrum), axis=1)
    np.testing.assert_allclose(radius.observed["spectral_radius"], exact, rtol=0.01)
    assert np.max(exact) > 2 * np.min(exact)
    np.testing.assert_array_equal(exact[1:], spectrum[1:, -1])
    leading = spectra(eigen)[:, ::-1][:, :3]
    np.testing.assert_allclose(eigen.observed["hessian_eigenvalues"], leading, rtol=0.01)
    assert np.max(leading[:, 0]) > 1.5 * np.min(leading[:, 0])


@slow
def test_a_stiff_linear_flow_by_rkc_under_jit_and_vmap_with_dense_output():
    """One linear layer on inputs of very different scales, which decays as an exponential."""
    scales = np.geomspace(0.03, 30, 6)
    x = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 6)))[0] * scales * np.sqrt(12)
    y = x @ np.linspace(-1, 1, 12).reshape(6, 2) + 0.1
    task, sigma = fl.Task(x, y), x.T @ x / 12
    best = np.linalg.solve(sigma, x.T @ y / 12).T
    rates, turn = np.linalg.eigh(sigma)

    @jax.jit
    @jax.vmap
    def run(start):
        flow = fl.gradient_flow(
            fl.LinearNetwork((start,)), task, 20.0, solver=fl.RKC(), rtol=1e-6, dense=True,
            max_steps=1024, max_events=1,
        )  # fmt: skip
        between = [flow.network(t).weights[0] for t in (0.01, 0.5, 7.0, 20.0)]
        return between, flow.observed["spectral_radius"], flow.stats["accepted_evaluations"]

    starts = np.stack([np.ones((2, 6)), -20 * np.ones((2, 6))])  # each in steps of its own
    found, radius, work = run(starts)
    for t, at in zip((0.01, 0.5, 7.0, 20.0), found, strict=True):
        exact = best + (starts - best) @ (turn * np.exp(-rates * t)) @ turn.T
        assert np.linalg.norm(at - exact) < 1e-4 * np.linalg.norm(exact)
    np.testing.assert_allclose(radius, 900.0, rtol=1e-2)
    # To be stable an ordinary method needs six evaluations per 3.3 / radius: six times as many.
    assert np.all(np.asarray(work) * 6 < 20.0 * 900 / 3.3 * 6)


@slow
def test_what_a_stiff_solver_cannot_do_is_said():
    network = random_network()
    with pytest.raises(ValueError, match="RecycledBDF needs one `tau`"):
        fl.gradient_flow(network, TREE, 1.0, tau=[1.0, 2.0], solver=fl.RecycledBDF())
    relu = fl.ReLUNetwork.init(TREE, 2, key=jax.random.key(0))
    for solver in (fl.RKC(), fl.RecycledBDF()):
        with pytest.raises(ValueError, match="walks with explicit Runge-Kutta solvers"):
            fl.gradient_flow(relu, TREE, 1.0, kinks=fl.ExactKinks(), solver=solver)
