"""ReLU networks in closed form: early phase, slowed clock, linear model after t*."""

import jax
import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp
from scipy.linalg import expm

import flowlin as fl
from tests.closed_forms import errors, product_by_integrator

theory = fl.theory
SMALL = fl.tasks.hierarchy(levels=2)


def network(seed=0, hidden=12, variance=2e-4, c=1.0, bias=True, task=SMALL):
    return fl.ReLUNetwork.init(
        task,
        hidden=(hidden,),
        variance=variance,
        bias=bias,
        bias_strength=c,
        key=jax.random.key(seed),
    )


def arrays(net):
    """[b, W_1] and W_2 of a network, in numpy."""
    w = np.asarray(net.weights[0])
    if net.biases[0] is not None:
        w = np.concatenate([np.asarray(net.biases[0])[:, None], w], axis=1)
    return w, np.asarray(net.weights[1])


def inputs(net, task):
    x = np.asarray(task.x)
    if net.biases[0] is None:
        return x
    return np.concatenate([np.full((len(x), 1), float(net.bias_strength)), x], axis=1)


def descended(net, task, t1, steps, weight, outputs=True):
    """Plain descent in small steps, with or without the outputs in the errors, every step."""
    (w, a), x, y = arrays(net), inputs(net, task), np.asarray(task.y)
    path = [(w, a)]
    for _ in range(steps):
        z = w @ x.T
        e = weight * (y - (a @ np.maximum(z, 0)).T * outputs)
        dw, da = ((z > 0) * (a.T @ e.T)) @ x, e.T @ np.maximum(z, 0).T
        w, a = w + t1 / steps * dw, a + t1 / steps * da
        path.append((w, a))
    return path


def off(found, reference):
    """Relative distance of a network from (w, a)."""
    difference = [np.linalg.norm(f - r) for f, r in zip(arrays(found), reference, strict=True)]
    return np.linalg.norm(difference) / np.linalg.norm([np.linalg.norm(r) for r in reference])


@pytest.fixture(scope="module")
def phase():
    return theory.early_phase(network(), SMALL)


@pytest.fixture(scope="module")
def sliding():
    """A network some of whose pairs slide."""
    net = network(3, c=0.5)
    return net, theory.early_phase(net, SMALL)


# --- the walk -------------------------------------------------------------------------------


def of_sum(net, tau):
    """The early phase of a sum of squares, to its end."""
    return theory.early_phase(net, SMALL, tau, loss=fl.SquaredError("sum"))


def of_two_pieces(net, t1, task=SMALL):
    """The early phase up to a t1 by which no unit changes more than once, in one program."""
    return theory.early_phase(net, task, t1=t1, max_pieces=2)


def euler(s, t1, steps):
    """Relative error of Euler's method where a component grows at the rate s."""
    return s**2 * t1**2 / (2 * steps)


@pytest.mark.slow
def test_walk_is_the_limit_of_small_steps(sliding):
    net, phase = sliding
    used = np.isfinite(np.asarray(phase.pieces.start))
    assert np.any(np.asarray(phase.pieces.codes)[used] == 0)
    t1, s = float(phase.t1), float(theory.modes(SMALL, 0.5).s[0])
    distances = [
        off(phase.network(t1), descended(net, SMALL, t1, steps, 1 / 4, outputs=False)[-1])
        for steps in (2000, 8000)
    ]
    assert distances[1] < 1.1 * euler(s, t1, 8000)
    assert distances[0] / distances[1] == pytest.approx(4, rel=0.1)  # first order, to nothing else


@pytest.mark.slow
def test_walk_of_a_sum_of_squares_and_of_another_bias_strength():
    net = network(3, c=2.0)
    found = of_sum(net, 2.0)
    t, s = min(1.5, float(found.t1)), 4 * float(theory.modes(SMALL, 2.0).s[0])
    end = descended(net, SMALL, t / 2, 8000, 1.0, outputs=False)[-1]
    assert off(found.network(t), end) < 1.1 * euler(s, t / 2, 8000)


@pytest.mark.slow
def test_walk_conserves_and_ignores_the_scale(phase):
    def norms(net):
        w, a = arrays(net)
        return np.sum(w**2, axis=1) - np.sum(a**2, axis=0)

    times = np.linspace(0, float(phase.t1), 7)
    for t in times:
        np.testing.assert_allclose(norms(phase.network(t)), norms(network()), atol=1e-14)
    assert np.all(np.diff(phase.overlap(times)) > 0)
    smaller = theory.early_phase(network(variance=2e-8), SMALL)
    assert float(smaller.t1) > float(phase.t1)
    starts = np.asarray(smaller.pieces.start)
    starts = np.where(starts < float(phase.t1), starts, np.inf)
    np.testing.assert_allclose(starts, phase.pieces.start, rtol=1e-9)


def test_gates_hold_until_the_first_change(phase):
    (w, a), x, e = arrays(network()), inputs(network(), SMALL), np.asarray(SMALL.y) / 4
    gates = w @ x.T > 0
    for j in np.flatnonzero(np.isfinite(phase.first_change)):
        m = (x * gates[j][:, None]).T @ e
        block = np.block([[np.zeros((5, 5)), m], [m.T, np.zeros((7, 7))]])
        state = np.concatenate([w[j], a[:, j]])
        change = float(phase.first_change[j])
        z = x @ (expm(block * change) @ state)[:5]
        assert np.min(np.abs(z)) < 1e-12 * np.linalg.norm(state)
        for t in np.linspace(0, change, 20)[:-1]:
            np.testing.assert_array_equal(x @ (expm(block * t) @ state)[:5] > 0, gates[j])
        for t in (0.3 * change, 0.9 * change):
            moved, readout = arrays(phase.network(t))
            found = np.concatenate([moved[j], readout[:, j]])
            np.testing.assert_allclose(found, expm(block * t) @ state, rtol=1e-11)
        np.testing.assert_allclose(phase.rates[j], np.linalg.svd(m)[1], atol=1e-14)
        assert abs(phase.component[j]) <= np.linalg.norm(state) / np.sqrt(2)


@pytest.mark.slow
def test_fate_is_where_the_first_gates_turn_a_unit_to():
    """By the exponential of the matrix, on inputs of both signs, where all three fates occur."""
    seen = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        task = fl.Task(rng.normal(size=(4, 4)), rng.normal(size=(4, 7)))
        net = network(seed, c=1.5, task=task)
        fates = np.asarray(of_two_pieces(net, 1e-3, task).fate)
        (w, a), x, e = arrays(net), inputs(net, task), np.asarray(task.y) / 4
        gates = w @ x.T > 0
        for j in range(12):
            m = (x * gates[j][:, None]).T @ e
            block = np.block([[np.zeros((5, 5)), m], [m.T, np.zeros((7, 7))]])
            sizes = np.linalg.svd(m)[1]
            if sizes[0] == 0:
                assert fates[j] == -1
                continue
            # Less its growth at the largest rate, which is beyond the range of float64.
            late = 40 / (sizes[0] - sizes[1]) * (block - sizes[0] * np.eye(12))
            z = x @ (expm(late) @ np.concatenate([w[j], a[:, j]]))[:5]
            assert fates[j] == (1 if np.all(z > 0) else -1 if np.all(z < 0) else 0)
        seen += fates.tolist()
    assert {-1, 0, 1} == set(seen)


def test_fates_and_the_walk(phase):
    codes, fate = np.asarray(phase.final_sides), np.asarray(phase.fate)
    on, none = np.all(codes == 1, axis=1), np.all(codes == -1, axis=1)
    assert np.all(fate[on] == 1)
    assert np.all(fate[none] == -1)
    line = phase.linearization()
    assert float(line.open.fraction) >= np.mean(on)


@pytest.mark.slow
def test_a_sum_of_squares_is_the_mean_on_another_clock(phase):
    modes = theory.modes(SMALL, 1.0)
    other = of_sum(network(), 4.0)
    assert float(other.t1) == pytest.approx(float(phase.t1), rel=1e-12)
    level = 0.5 * modes.full_strength
    clocks = [theory.slowed_clock(early, modes) for early in (phase, other)]
    mean, total = (clock.delays(level) for clock in clocks)  # of hitting times
    assert np.all(np.isfinite(mean[:4]))
    np.testing.assert_allclose(total, mean, rtol=1e-8)


def test_times_outside_and_large_weights(phase):
    late = np.resize([-0.1, 0.0, float(phase.t1), 1.01 * float(phase.t1)], 7)
    np.testing.assert_array_equal(np.isfinite(phase.overlap(late))[:4], [False, True, True, False])
    large = network(3, variance=1.0)
    with pytest.raises(ValueError, match="too large for an early phase"):
        theory.early_phase(large, SMALL)


@pytest.mark.slow
def test_a_phase_of_large_weights_has_a_start_and_the_end_that_is_asked_for():
    large = network(3, variance=1.0)
    early = of_two_pieces(large, 1e-3)
    np.testing.assert_allclose(early.network(0.0).weights[0], large.weights[0], rtol=1e-14)
    assert np.isfinite(early.overlap(1e-3))
    assert np.isnan(early.overlap(1.02e-3))


@pytest.mark.slow
def test_jit_and_derivatives_of_the_walk():
    net = network(hidden=3)

    def size(scale):
        w, b = net.weights, net.biases
        # Other proportions of a unit's parts, by which gates change at other times.
        other = fl.ReLUNetwork((w[0] * scale, w[1]), (b[0], None), 1.0)
        task = fl.Task(SMALL.x, SMALL.y * (1 + (scale - 1) * SMALL.x[:, :1]))
        return theory.early_phase(other, task, t1=1.6).overlap(1.6) * 1e3

    value = jax.jit(jax.value_and_grad(size))
    h = 1e-5
    slope = (float(value(1.0 + h)[0]) - float(value(1.0 - h)[0])) / (2 * h)
    assert float(value(1.0)[1]) == pytest.approx(slope, rel=1e-6)


# --- the slowed clock -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def unbiased():
    """A network without biases, its only sample, and its early phase."""
    task = fl.Task([[1.5]], [[2.0]])
    net = network(1, hidden=6, variance=1e-2, bias=False, task=task)
    return net, task, theory.early_phase(net, task, 0.7, t1=2.0)


@pytest.mark.slow
def test_clock_is_exact_for_one_sample(unbiased):
    net, task, early = unbiased
    modes = theory.modes(task)
    clock = theory.slowed_clock(early, modes)
    w, a = (v.ravel() for v in arrays(net))

    def field(t, y):
        h = np.maximum(y[:6] * 1.5, 0)
        e = 2.0 - y[6:] @ h
        return np.concatenate([(h > 0) * y[6:] * 1.5 * e, h * e]) / 0.7

    def hit(t, y):
        return y[6:] @ np.maximum(y[:6] * 1.5, 0) - 1.6

    hit.terminal = True
    run = solve_ivp(
        field, (0, 9), np.concatenate([w, a]), events=hit, method="DOP853", rtol=1e-12, atol=1e-14
    )
    theta = float(clock.reading_at(0.8))
    changes = np.unique(early.pieces.start[early.pieces.start < theta])
    exact = quad(lambda v: 1 / (1 - float(clock.share(v))), 0, theta, points=changes, epsrel=1e-10)[
        0
    ]
    assert exact == pytest.approx(run.t[-1], rel=1e-9)
    # Its own quadrature does not stop at the changes of gates.
    found = clock.hitting_times(0.8 * modes.full_strength)[0]
    assert float(found) == pytest.approx(exact, rel=1e-6)
    end = np.concatenate([v.ravel() for v in arrays(early.network(clock.reading_at(0.8)))])
    np.testing.assert_allclose(end, run.y[:, -1], rtol=1e-6, atol=1e-11)
    assert np.isinf(clock.hitting_times(1.01 * modes.full_strength)[0])


@pytest.mark.slow
def test_clock_follows_a_network_to_its_plateau(phase):
    modes = theory.modes(SMALL, 1.0)
    clock = theory.slowed_clock(phase, modes)
    t1, steps = 6.0, 12_000
    path = descended(network(), SMALL, t1, steps, 1 / 4)
    x, u, v = inputs(network(), SMALL), np.asarray(modes.u[:, 0]), np.asarray(modes.v[:, 0])
    share = np.array([u @ a @ np.maximum(w @ x.T, 0) @ x @ v / 4 for w, a in path[::20]])
    share = share / float(modes.s[0])
    for level in (0.25, 0.5, 0.8):
        theta = clock.reading_at(level)
        assert float(clock.share(theta)) == pytest.approx(level, rel=1e-9)
        measured = np.interp(level, share, np.linspace(0, t1, len(share)))
        assert float(clock.time(theta)) == pytest.approx(measured, rel=0.02)
        assert float(clock.time(theta)) > float(theta)
    opened, closed = clock.linearization()
    assert float(opened.fraction) <= float(closed.fraction)
    assert 0 < float(opened.time) <= float(clock.time(clock.reading_at(0.9)))
    assert np.all(clock.delays(0.5 * modes.full_strength)[:2] > 0)


# --- after t* -------------------------------------------------------------------------------


def always_on():
    """Three units along the leading mode, unbalanced, and two that are off for all samples."""
    modes = theory.modes(SMALL, 1.0)
    u, v = np.asarray(modes.u[:, 0]), np.asarray(modes.v[:, 0])
    v = v * np.sign(v[0])
    u = np.sign(np.sum(u)) * u
    w1 = np.outer([0.1, 0.2, 0.05, -0.3, -0.1], v)
    w2 = np.outer(u, [0.3, 0.1, 0.2, 0.2, 0.1])
    return fl.ReLUNetwork((w1[:, 1:], w2), (w1[:, 0], None))


def test_linear_model_of_the_always_on_units():
    net = always_on()
    w1, w2 = arrays(net)
    found = theory.after_linearization(net, SMALL, 2.0)
    np.testing.assert_array_equal(found.always_on, [True] * 3 + [False] * 2)
    # To rounding the weights have one mode; the others would grow out of it, and not be aligned.
    assert not found.solution.exact
    assert "rounding of the weights decides" in found.solution.why
    fewer = theory.after_linearization(net, SMALL, always_on=found.always_on & (w1[:, 0] > 0.06))
    np.testing.assert_array_equal(fewer.always_on, [True, True, False, False, False])
    ts = np.array([0.0, 1.0, 2.0, 3.0])
    np.testing.assert_allclose(fewer.product(ts)[0], w2[:, :2] @ w1[:2], rtol=1e-12)
    linear = fl.LinearNetwork((w1[:3, 1:], w2[:, :3]), (w1[:3, 0], None))
    expected = product_by_integrator(ts, linear, SMALL, 2.0)
    assert errors(found.product(ts), expected) < 1e-10
    x = inputs(net, SMALL)
    outputs = np.einsum("toi,pi->tpo", expected, x)
    np.testing.assert_allclose(found.outputs(ts), outputs, atol=1e-10)
    losses = np.sum((outputs - np.asarray(SMALL.y)) ** 2, axis=(1, 2)) / 8
    np.testing.assert_allclose(found.loss(ts), losses, rtol=1e-9)
    w, a = descended(net, SMALL, 1.5, 4000, 1 / 4)[-1]
    np.testing.assert_allclose(outputs[-1], (a @ np.maximum(w @ x.T, 0)).T, rtol=3e-3)


@pytest.mark.slow
def test_a_flow_of_the_always_on_units_is_the_linear_model():
    net, ts = always_on(), np.linspace(0, 3, 4)
    flow = fl.gradient_flow(net.always_on(SMALL), SMALL, 3.0, tau=2.0, ts=ts, rtol=1e-10)
    assert np.max(theory.after_linearization(net, SMALL, 2.0).error(flow)) < 1e-8


# --- bad input ------------------------------------------------------------------------------


def test_bad_input(phase, without_type_checks):
    deep = fl.ReLUNetwork.init(SMALL, hidden=(3, 3), key=jax.random.key(0))
    dead = fl.ReLUNetwork((-np.ones((12, 4)), np.ones((7, 12))), (-np.ones(12), None))
    both = fl.ReLUNetwork(network().weights, (network().biases[0], np.zeros(7)))
    linear = fl.LinearNetwork(network().weights, network().biases)
    for bad, words in ((deep, "one"), (linear, "LinearNetwork"), (both, "readout")):
        with pytest.raises(ValueError, match=words):
            theory.early_phase(bad, SMALL)  # pyright: ignore
    with pytest.raises(ValueError, match="pass `t1`"):
        theory.early_phase(dead, SMALL)
    with pytest.raises(ValueError, match="on for every sample"):
        theory.after_linearization(dead, SMALL)
    with pytest.raises(ValueError, match="`always_on` must have one entry"):
        theory.after_linearization(network(), SMALL, always_on=[True])
    with pytest.raises(ValueError, match=r"the network has c = 1"):
        theory.slowed_clock(phase, theory.modes(SMALL, 0.5))
    with pytest.raises(ValueError, match=r"`loss` must be fl\.SquaredError"):
        theory.early_phase(network(), SMALL, loss=fl.CrossEntropy())  # pyright: ignore
    with pytest.raises(ValueError, match="outside jit and vmap"):
        jax.jit(lambda net: theory.after_linearization(net, SMALL).always_on)(network())


@pytest.mark.slow
def test_too_few_pieces_and_modes_with_a_bias_that_the_network_lacks(phase, unbiased):
    with pytest.raises(ValueError, match="max_pieces"):
        of_two_pieces(network(), phase.t1)
    _, task, early = unbiased
    with pytest.raises(ValueError, match="bias"):
        theory.slowed_clock(early, theory.modes(task, 1.0))
