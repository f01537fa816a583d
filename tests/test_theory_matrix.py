"""Closed forms for whole matrices: Riccati, single layer, and the choice among them."""

import functools
import pickle

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import flowlin as fl
from flowlin.theory import balanced_gram, balanced_product, single_layer, solve

INF = float("inf")
KEY = jax.random.key(0)


def gram(t, w1, w2, s_yx, variance=1.0, balance=0.0, tau=1.0):
    return balanced_gram(t, w1, w2, s_yx, variance=variance, balance=balance, tau=tau)


def white_task(s_yx, variance, centred=False):
    """A task with Sigma_x = variance I and the given Sigma_yx."""
    inputs = s_yx.shape[1]
    samples = 3 * inputs
    draw = np.random.default_rng(5).normal(size=(samples, inputs))
    if centred:
        draw = draw - draw.mean(axis=0)
    x = np.sqrt(samples * variance) * np.linalg.qr(draw)[0]
    return fl.Task(x, x @ s_yx.T / variance)


def targets(inputs, outputs, rank, seed=0):
    rng = np.random.default_rng(seed)
    s_yx = rng.normal(size=(outputs, rank)) @ rng.normal(size=(rank, inputs))
    return s_yx / np.linalg.norm(s_yx, 2)


def integrated(ts, w1, w2, s_yx, s_x, tau):
    """Q Q^T by DOP853."""
    hidden, inputs = w1.shape

    def split(y):
        return y[: w1.size].reshape(hidden, inputs), y[w1.size :].reshape(-1, hidden)

    def velocity(_, y):
        a, b = split(y)
        error = s_yx - b @ a @ s_x
        return np.concatenate([(b.T @ error).ravel(), (error @ a.T).ravel()]) / tau

    start = np.concatenate([np.ravel(w1), np.ravel(w2)])
    run = solve_ivp(velocity, (0, ts[-1]), start, "DOP853", t_eval=ts, rtol=1e-12, atol=1e-14)
    stacks = [np.concatenate([a.T, b]) for a, b in map(split, run.y.T)]
    return np.array([q @ q.T for q in stacks])


def errors(found, expected):
    """Largest Frobenius distance, relative to the largest norm."""
    found, expected = np.asarray(found), np.asarray(expected)
    distance = np.linalg.norm(found - expected, axis=(-2, -1))
    return np.max(distance) / np.max(np.linalg.norm(expected, axis=(-2, -1)))


def network_for(task, hidden, balance, seed=0):
    """(Lambda-)balanced weights of the largest rank that the sizes allow."""
    rng = np.random.default_rng(seed)
    rank = min(task.inputs, task.outputs, hidden)
    product = rng.normal(size=(task.outputs, rank)) @ rng.normal(size=(rank, task.inputs))
    return fl.LinearNetwork.balanced(
        task, hidden, bias=False, balance=balance, product=0.05 * product, key=KEY
    )


# inputs, outputs, hidden, rank of the target, lambda
SIZES = [
    (5, 3, 4, 3, 0.0),
    (3, 5, 7, 2, 0.0),
    (5, 3, 2, 3, 0.0),  # bottleneck: the strongest modes win
    (5, 3, 2, 3, 0.7),
    (3, 5, 3, 2, -0.4),
]


@pytest.mark.parametrize("sizes", SIZES)
def test_riccati_against_an_integrator_and_its_limits(sizes):
    inputs, outputs, hidden, rank, balance = sizes
    d, tau = 1.7, 1.3
    s_yx = targets(inputs, outputs, rank)
    w1, w2 = map(np.asarray, network_for(white_task(s_yx, d), hidden, balance).weights)
    ts = np.array([0.0, 0.3, 2.0, 8.0, 20.0])
    # Long times too, in one call: exponentials far beyond the range of float64.
    found = np.asarray(gram(np.array([*ts, 1e6, INF]), w1, w2, s_yx, d, balance, tau))
    expected = integrated(ts, w1, w2, s_yx, d * np.eye(inputs), tau)
    assert errors(found[:5], expected) < 1e-11
    q = np.concatenate([w1.T, w2])
    np.testing.assert_allclose(found[0], q @ q.T, atol=1e-14)
    u, s, vt = np.linalg.svd(s_yx)
    k = min(rank, hidden)
    limit = (u[:, :k] * s[:k] / d) @ vt[:k]
    np.testing.assert_allclose(found[-1][inputs:, :inputs], limit, atol=1e-14)
    np.testing.assert_allclose(found[-2], found[-1], atol=1e-5)  # null directions decay as 1/t
    # The conserved quantity, as the traces of the two blocks see it.
    traces = np.trace(found[:, inputs:, inputs:], axis1=1, axis2=2) - np.trace(
        found[:, :inputs, :inputs], axis1=1, axis2=2
    )
    np.testing.assert_allclose(traces, hidden * balance, atol=1e-13)


def naive(t, w1, w2, s_yx, d, balance):
    """The formula as it stands, in 60 digits, with the integral as a matrix exponential."""
    with mpmath.workdps(60):
        q = mpmath.matrix(np.concatenate([w1.T, w2]).tolist())
        inputs, n = w1.shape[1], sum(s_yx.shape)
        f = np.zeros((n, n))
        f[inputs:, :inputs], f[:inputs, inputs:] = s_yx, s_yx.T
        f += np.diag(np.where(np.arange(n) < inputs, -1, 1)) * d * balance / 2
        f = mpmath.matrix(f.tolist())
        block = mpmath.zeros(2 * n)
        for i in range(n):
            block[i, n + i] = 1
            for j in range(n):
                block[i, j] = 2 * f[i, j]
        growth, phi = mpmath.expm(f * t), mpmath.expm(block * t)[:n, n:]
        inside = mpmath.eye(q.cols) + d * (q.T * phi * q)
        g = growth * q * inside**-1 * q.T * growth
        return np.array(g.tolist(), dtype=float)


@pytest.mark.parametrize("balance", [0.0, 0.6])
def test_riccati_in_sixty_digits(balance):
    """Small and large weights, and growth by exp(30) along modes that compete for two units."""
    s_yx = targets(4, 3, 3)
    task = white_task(s_yx, 1.0)
    w1, w2 = map(np.asarray, network_for(task, 2, balance).weights)
    ts = np.array([1e-3, 5.0, 30.0])
    for scale in (1.0, 1e-6):
        start = scale * w1, scale * w2, s_yx, 1.0, scale**2 * balance
        for t, found in zip(ts, gram(ts, *start), strict=True):
            assert errors(found, naive(t, *start)) < 1e-14


def test_riccati_from_singular_weights():
    """Rank one in one mode's plane stays there, for ever; zero weights stay zero."""
    s_yx = targets(5, 3, 3)
    u, s, vt = np.linalg.svd(s_yx)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    ts = np.array([0.0, 0.1, 1.0, 9.0, 30.0, 1e6, INF])
    for mode in range(3):
        w1, w2 = 0.1 * np.outer(turn[0], vt[mode]), 0.1 * np.outer(u[:, mode], turn[0])
        found = gram(ts, w1, w2, s_yx)[:, 5:, :5]
        strength = fl.theory.mode_strength(ts, s[mode], 1.0, 0.01)
        expected = strength[:, None, None] * np.outer(u[:, mode], vt[mode])
        np.testing.assert_allclose(found, expected, atol=1e-14)
    assert not np.any(gram(ts, 0 * w1, 0 * w2, s_yx))
    # One layer in one mode, the other layer zero: p + q grows, p - q decays; balanced it is not.
    assert np.all(np.isfinite(gram(ts, w1, 0 * w2, s_yx)))


def test_riccati_with_aligned_modes_and_equal_singular_values():
    s = np.array([1.0, 0.5, 0.5, 0.5, 0.0])
    rng = np.random.default_rng(1)
    u, v, r = (np.linalg.qr(rng.normal(size=(n, n)))[0][:, :5] for n in (5, 6, 8))
    s_yx, a0 = (u * s) @ v.T, np.array([1e-4, 1e-3, 0.2, 1e-8, 0.4])
    w1, w2 = (r * np.sqrt(a0)) @ v.T, (u * np.sqrt(a0)) @ r.T
    ts = np.array([0.0, 0.5, 3.0, 20.0, 300.0, 1e5, INF])
    strengths = fl.theory.mode_strength(ts[:, None], s, 0.8, a0)
    found = gram(ts, w1, w2, s_yx, 0.8)[:, 6:, :6]
    np.testing.assert_allclose(found, (u * strengths[:, None]) @ v.T, atol=1e-13)


def test_riccati_with_equal_modes_in_a_bottleneck():
    """Among equal modes the start decides which two of three are learnt, also at infinity."""
    u, v = (np.linalg.qr(np.random.default_rng(i).normal(size=(3, 3)))[0] for i in (0, 1))
    s_yx = u @ v.T  # all singular values one: Q in the growing eigenspace only
    start = np.random.default_rng(2).normal(size=(3, 2))
    w1, w2 = 0.1 * (v @ start).T, 0.1 * u @ start
    basis = np.linalg.qr(start)[0]
    found = gram(np.array([1e3, 1e6, INF]), w1, w2, s_yx)[:, 3:, :3]
    limit = u @ basis @ basis.T @ v.T
    np.testing.assert_allclose(found, np.broadcast_to(limit, found.shape), atol=1e-13)


def test_lambda_to_zero():
    s_yx = targets(3, 3, 2)
    task = white_task(s_yx, 1.0)
    ts = np.array([0.5, 5.0, 50.0])
    w1, w2 = network_for(task, 2, 0.0).weights
    limit = gram(ts, w1, w2, s_yx)
    for balance, bound in ((1e-5, 1e-4), (1e-12, 1e-11), (-1e-12, 1e-11)):
        assert errors(gram(ts, w1, w2, s_yx, 1.0, balance), limit) < bound


def test_an_array_of_times_is_a_loop_over_times():
    s_yx = targets(3, 2, 2)
    w1, w2 = network_for(white_task(s_yx, 1.0), 2, 0.0).weights
    ts = np.array([[0.0, 1.0], [7.0, INF]])
    whole = balanced_product(ts, w1, w2, s_yx)
    assert whole.shape == (2, 2, 2, 3)
    for index in np.ndindex(2, 2):
        np.testing.assert_allclose(
            whole[index], balanced_product(ts[index], w1, w2, s_yx), atol=1e-15
        )
    with pytest.raises(ValueError, match="do not chain"):
        balanced_product(1.0, w1.T, w2, s_yx)


WEIGHING = np.arange(6.0).reshape(2, 3) + 1


@jax.jit
def weighed(t, w1, w2, balance):
    s_yx = targets(3, 2, 1)
    product = balanced_product(t, w1, w2, s_yx, variance=0.8, balance=balance)
    return jnp.sum(jnp.sin(product) * WEIGHING)


slopes = jax.jit(jax.grad(weighed, argnums=(0, 1, 2, 3)))


def differences(form, arguments, which, step=1e-4):
    """Central differences with one Richardson step, in every entry of one argument."""
    point = np.asarray(arguments[which], dtype=float)
    found = np.zeros(point.shape)

    def at(move):
        return float(form(*arguments[:which], point + move, *arguments[which + 1 :]))

    for index in np.ndindex(point.shape):
        unit = np.zeros(point.shape)
        unit[index] = step
        coarse, fine = at(unit) - at(-unit), at(unit / 2) - at(-unit / 2)
        found[index] = (8 * fine - coarse) / (6 * step)
    return found


def starts():
    rng = np.random.default_rng(3)
    w1, w2 = 0.5 * rng.normal(size=(2, 3)), 0.5 * rng.normal(size=(2, 2))
    return {"full": (w1, w2), "rank one": (np.outer(w1[:, 0], w1[0]), 0 * w2)}


@pytest.mark.parametrize("start", ["full", "rank one"])
@pytest.mark.parametrize("balance", [0.0, 0.3])
def test_gradients_of_the_riccati_solution(start, balance):
    w1, w2 = starts()[start]
    point = (0.9, w1, w2, balance)
    for which, slope in enumerate(slopes(*point)):
        np.testing.assert_allclose(slope, differences(weighed, point, which), atol=1e-9)
    for t in (0.0, 1e3, 1e6, INF):
        found = slopes(t, w1, w2, balance)
        assert all(np.all(np.isfinite(x)) for x in found)
    assert found[0] == 0
    # At t = 0 by the equation itself: d/dt Q Q^T = F G + G F - d G^2, and the product's slopes.
    np.testing.assert_allclose(
        slopes(0.0, w1, w2, balance)[1],
        w2.T @ (np.cos(w2 @ w1) * WEIGHING),
        atol=1e-13,
    )


def test_wide_rates_in_float32():
    s_yx = targets(4, 3, 3)
    w1, w2 = (np.asarray(w) for w in network_for(white_task(s_yx, 1.0), 2, 0.0).weights)
    ts = np.array([1.0, 10.0, INF])
    double = gram(ts, w1, w2, s_yx)
    single = gram(*(np.asarray(a, np.float32) for a in (ts, w1, w2, s_yx)))
    assert single.dtype == jnp.float32
    assert errors(single, double) < 1e-5


# --- a single layer -------------------------------------------------------------------------


def test_single_layer_against_an_integrator_and_its_limits():
    rng = np.random.default_rng(0)
    x, y, w0 = rng.normal(size=(3, 5)), rng.normal(size=(3, 2)), rng.normal(size=(2, 5))
    s_yx, s_x, tau = y.T @ x / 3, x.T @ x / 3, 0.7  # three samples: two directions without data
    ts = np.array([0.0, 0.2, 1.0, 9.0, 1e6, INF])
    found = single_layer(ts, w0, s_yx, s_x, tau=tau)
    run = solve_ivp(
        lambda _, w: np.ravel(s_yx - w.reshape(2, 5) @ s_x) / tau,
        (0, 9),
        w0.ravel(),
        "DOP853",
        t_eval=ts[:4],
        rtol=1e-12,
        atol=1e-14,
    )
    assert errors(found[:4], run.y.T.reshape(-1, 2, 5)) < 1e-11
    np.testing.assert_allclose(found[0], w0, atol=1e-15)
    inverse = np.linalg.pinv(s_x)
    limit = s_yx @ inverse + w0 @ (np.eye(5) - s_x @ inverse)
    np.testing.assert_allclose(found[4:], np.stack([limit, limit]), atol=1e-12)
    for t, one in zip(ts, found, strict=True):
        np.testing.assert_allclose(single_layer(t, w0, s_yx, s_x, tau=tau), one, atol=1e-15)
    with pytest.raises(ValueError, match="must be"):
        single_layer(1.0, w0.T, s_yx, s_x)


def test_gradients_of_the_single_layer():
    rng = np.random.default_rng(0)
    x, w0, s_yx = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    s_x = x.T @ x  # one direction without data
    s_yx = s_yx @ s_x

    @jax.jit
    def weighed(t, w):
        return jnp.sum(jnp.sin(single_layer(t, w, s_yx, s_x)) * WEIGHING)

    gradient = jax.jit(jax.grad(weighed, argnums=(0, 1)))
    for which, slope in enumerate(gradient(0.3, w0)):
        np.testing.assert_allclose(slope, differences(weighed, (0.3, w0), which), atol=1e-9)
    for t in (0.0, 1e6, INF):
        assert all(np.all(np.isfinite(g)) for g in gradient(t, w0))


# --- the choice -----------------------------------------------------------------------------


def flow_of(network, task, tau=1.0, t1=8.0):
    ts = np.array([0.0, 0.5, 2.0, t1])
    return fl.gradient_flow(network, task, t1, ts=ts, tau=tau, rtol=1e-10)


def test_solve_takes_the_single_layer():
    rng = np.random.default_rng(0)
    task = fl.Task(rng.normal(size=(6, 3)), rng.normal(size=(6, 2)))
    network = fl.LinearNetwork((rng.normal(size=(2, 3)),), (rng.normal(size=2),), 1.5)
    solution = solve(network, task, tau=1.2)
    assert (solution.name, solution.exact) == ("single layer", True)
    assert solution.certificate.imbalance is None
    assert solution.product(jnp.zeros(4)).shape == (4, 2, 4)
    # The raw bias stands in front.
    np.testing.assert_allclose(solution.product(0.0)[:, 0], network.biases[0], atol=1e-15)
    assert np.max(solution.error(flow_of(network, task, 1.2))) < 1e-9


@pytest.mark.parametrize("balance", [0.0, 0.5])
def test_solve_takes_the_riccati_solution(balance):
    """With a bias: centred inputs whose variance is c^2 are white in [c; x]."""
    s_yx = targets(3, 4, 2)
    task = white_task(s_yx, 0.64, centred=True)
    task = fl.Task(task.x, task.y + np.arange(4.0))
    network = fl.LinearNetwork.balanced(
        task, 3, variance=0.05, bias_strength=0.8, balance=balance, key=KEY
    )
    solution = solve(network, task, tau=1.2)
    assert (solution.name, solution.exact) == ("Riccati", True)
    found = solution.certificate
    assert found.whiteness < 1e-14
    assert found.spread < 1e-14
    np.testing.assert_allclose([found.variance, found.balance], [0.64, balance], atol=1e-13)
    assert np.max(solution.error(flow_of(network, task, 1.2))) < 1e-9
    # The solution goes through jit as an argument.
    again = jax.jit(lambda s, t: s.product(t))(solution, jnp.ones(1))
    np.testing.assert_allclose(again, solution.product(jnp.ones(1)), atol=1e-14)


def test_solve_with_fewer_samples_than_inputs():
    """Sigma_x is a multiple of a projector: Riccati as long as W_1 acts within the data's span."""
    x = 2 * np.linalg.qr(np.random.default_rng(0).normal(size=(5, 3)))[0].T
    task = fl.Task(x, np.random.default_rng(1).normal(size=(3, 2)))
    within = np.random.default_rng(2).normal(size=(2, 3)) @ x / 20
    network = fl.LinearNetwork.balanced(task, 4, bias=False, product=within, key=KEY)
    solution = solve(network, task)
    assert solution.name == "Riccati"
    ts = np.array([0.0, 1.0, 5.0])
    w1, w2 = map(np.asarray, network.weights)
    expected = integrated(ts, w1, w2, task.y.T @ x / 3, x.T @ x / 3, 1.0)
    assert errors(solution.product(ts), expected[:, 5:, :5]) < 1e-10
    outside = fl.LinearNetwork.balanced(task, 4, bias=False, variance=0.1, key=KEY)
    solution = solve(outside, task)
    assert not solution.exact
    assert "inputs that the data do not have" in solution.why


@pytest.mark.parametrize("mixed", [False, True])
def test_solve_takes_modes_of_any_imbalance(mixed):
    """Hidden vectors p, q in planes of their own, a0 of both signs; a turn of them mixes modes."""
    rng = np.random.default_rng(0)
    u, v, planes = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (3, 4, 6))
    d, s = np.array([2.0, 0.5, 1.0, 0.7]), np.array([1.0, 0.6, 0.3])
    x = np.sqrt(12 * d) * np.linalg.qr(rng.normal(size=(12, 4)))[0] @ v.T
    task = fl.Task(x, x @ (v[:, :3] * s / d[:3]) @ u.T)
    mix = rng.normal(size=(2, 2, 3))
    p, q = (0.4 * (planes.reshape(6, 2, 3) * one).sum(axis=1) for one in mix)
    if mixed:
        p = p[:, ::-1]
    w1, w2 = q @ v[:, :3].T, u @ p.T
    solution = solve(fl.LinearNetwork((w1, w2)), task, tau=0.7)
    ts = np.array([0.0, 0.5, 2.0, 12.0])
    expected = integrated(ts, w1, w2, task.y.T @ x / 12, x.T @ x / 12, 0.7)[:, 4:, :4]
    error = errors(solution.product(ts), expected)
    assert solution.exact != mixed
    assert solution.name == ("isolated modes" if mixed else "modes")
    assert error > 1e-3 if mixed else error < 1e-10
    negative = solution.certificate.negative
    assert mixed or 0 < negative < 3


def test_solve_takes_decoupled_modes(aligned, tree):
    """One-hot inputs with a bias are not white, but their modes decouple."""
    network, modes = aligned
    solution = solve(network, tree)
    assert (solution.name, solution.exact) == ("modes", True)
    assert solution.certificate.negative == 0
    assert solution.certificate.alignment < 1e-12
    flow = flow_of(network, tree, t1=12.0)
    assert np.max(solution.error(flow)) < 1e-9
    np.testing.assert_allclose(solution.loss(flow.ts), flow.losses, rtol=1e-9)
    outputs = jax.vmap(lambda n: n.outputs(tree.x))(flow.networks)
    np.testing.assert_allclose(solution.outputs(flow.ts), outputs, atol=1e-8)
    final = np.where(modes.d > 0, modes.full_strength, solution.certificate.a0)
    np.testing.assert_allclose(solution.product(INF), (modes.u * final) @ modes.v.T, atol=1e-12)


def test_solve_approximates_and_says_so(tree):
    network = fl.LinearNetwork.init(tree, 64, variance=1e-4, key=KEY)
    solution = solve(network, tree)
    assert (solution.name, solution.exact) == ("isolated modes", False)
    assert "not white" in solution.why
    assert "not aligned" in solution.why
    found = solution.certificate
    assert found.negative is not None
    assert found.negative > 0
    error = np.max(solution.error(flow_of(network, tree, t1=12.0)))
    assert 0.01 < error < 0.1
    # The bias coordinate is there also where c = 0 takes it out of the modes.
    silent = fl.LinearNetwork(network.weights, network.biases, 0.0)
    assert solve(silent, tree).product(jnp.ones(2)).shape == (2, 15, 9)


def product_by_integrator(ts, network, task):
    """End-to-end matrix of a linear network of any depth, by DOP853; biases in front."""
    weights = [np.asarray(w) for w in network.weights]
    x, y = np.asarray(task.x), np.asarray(task.y)
    if network.biases[0] is not None:
        weights[0] = np.column_stack([network.biases[0], weights[0]])
        x = np.column_stack([np.full(len(x), float(network.bias_strength)), x])
    ends = np.cumsum([w.size for w in weights])[:-1]
    s_yx, s_x = y.T @ x / len(x), x.T @ x / len(x)

    def split(z):
        return [a.reshape(w.shape) for a, w in zip(np.split(z, ends), weights, strict=True)]

    def whole(factors, size):
        return functools.reduce(lambda product, w: w @ product, factors, np.eye(size))

    def velocity(_, z):
        w = split(z)
        error = s_yx - whole(w, len(s_x)) @ s_x
        moves = [
            whole(w[k + 1 :], len(w[k])).T @ error @ whole(w[:k], len(s_x)).T for k in range(len(w))
        ]
        return np.concatenate([move.ravel() for move in moves])

    start = np.concatenate([w.ravel() for w in weights])
    run = solve_ivp(velocity, (0, ts[-1]), start, "DOP853", t_eval=ts, rtol=1e-11, atol=1e-13)
    return np.array([whole(split(z), len(s_x)) for z in run.y.T])


@pytest.mark.parametrize("hidden", [(9, 10), (10, 9, 11)])
def test_solve_takes_deep_modes_in_the_basis_of_the_weights(tree, hidden):
    """Equal modes share a plane; balanced weights may be aligned to any basis of it."""
    found = fl.theory.modes(tree, 1.0)
    u, v, a0 = np.array(found.u), np.array(found.v), np.linspace(0.01, 0.3, 9)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    group = slice(4, 8)
    np.testing.assert_allclose(found.s[group], 1 / 8)
    u[:, group], v[:, group] = u[:, group] @ turn, v[:, group] @ turn
    a0[8] = 0  # the direction that no data take
    network = fl.LinearNetwork.balanced(tree, hidden, product=(u * a0) @ v.T, key=KEY)
    solution = solve(network, tree)
    assert (solution.name, solution.exact) == ("deep modes", True)
    certificate = solution.certificate
    assert max(certificate.imbalance, certificate.inner, certificate.alignment) < 1e-13
    assert certificate.balance is None
    np.testing.assert_allclose(np.sort(certificate.a0), np.sort(a0), atol=1e-15)
    ts = np.array([0.0, 1.0, 5.0, 15.0])
    expected = product_by_integrator(ts, network, tree)
    assert errors(solution.product(ts), expected) < 1e-9
    if len(hidden) == 2:
        assert np.max(solution.error(flow_of(network, tree))) < 1e-8
    final = np.where(found.d > 0, found.full_strength, 0)
    np.testing.assert_allclose(solution.product(INF), (u * final) @ v.T, atol=1e-12)
    # The modes as they come are not it.
    mixed = np.asarray(found.u).T @ ((u * a0) @ v.T) @ np.asarray(found.v)
    assert np.max(abs(mixed - np.diag(np.diag(mixed)))) > 0.01


def test_solve_takes_deep_modes_that_nothing_drives():
    """Among modes with s = 0 each side has a basis of its own; they decay."""
    task = white_task(targets(3, 3, 1), 1.0)
    found = fl.theory.modes(task)
    u, v = np.array(found.u), np.array(found.v)
    for side, seed in ((u, 0), (v, 1)):
        turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(2, 2)))[0]
        side[:, 1:] = side[:, 1:] @ turn
    product = (u * np.array([0.05, 0.3, 0.1])) @ v.T
    network = fl.LinearNetwork.balanced(task, (3, 3), bias=False, product=product, key=KEY)
    solution = solve(network, task)
    assert (solution.name, solution.exact) == ("deep modes", True)
    ts = np.array([0.0, 0.5, 2.0, 10.0])
    expected = product_by_integrator(ts, network, task)
    assert errors(solution.product(ts), expected) < 1e-9


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("scaled", "not balanced"),
        ("turned", "neighbouring layers are not aligned"),
        ("mixed", "not aligned to the modes"),
        ("negative", "2 modes start with negative strength"),
    ],
)
def test_solve_says_why_deep_modes_are_not_exact(change, reason):
    """Each condition by itself: what fails alone is named, and the flow does leave the modes."""
    task = white_task(targets(3, 3, 3), 1.0)
    found = fl.theory.modes(task)
    a0 = np.array([0.2, 0.1, 0.05]) * (1 if change != "negative" else np.array([1, -1, -1]))
    u = found.u @ np.linalg.qr(np.arange(9.0).reshape(3, 3) + 5 * np.eye(3))[0]
    product = ((found.u if change != "mixed" else u) * a0) @ found.v.T
    network = fl.LinearNetwork.balanced(task, (3, 3), bias=False, product=product, key=KEY)
    w1, w2, w3 = network.weights
    if change == "scaled":
        network = fl.LinearNetwork((2 * w1, w2 / 2, w3))
    if change == "turned":
        network = fl.LinearNetwork((w1, w2[::-1], w3))
    solution = solve(network, task)
    assert (solution.name, solution.exact) == ("isolated modes", False)
    assert reason in solution.why
    assert ("not balanced" in solution.why) == (change in ("scaled", "turned"))
    ts = np.array([0.0, 0.5, 2.0, 10.0])
    error = errors(solution.product(ts), product_by_integrator(ts, network, task))
    assert 0.01 < error < 2


def test_solve_refuses_what_it_has_no_solution_for(tree):
    relu = fl.ReLUNetwork.init(tree, 4, key=KEY)
    with pytest.raises(ValueError, match="linear counterpart"):
        solve(relu, tree)
    for hidden, bias in [(4, (True, True)), ((4, 4), (True, True, False))]:
        with pytest.raises(ValueError, match="bias beyond its first layer"):
            solve(fl.LinearNetwork.init(tree, hidden, bias=bias, key=KEY), tree)
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(lambda task: solve(fl.LinearNetwork.init(task, 4, key=KEY), task).product(1.0))(
            tree
        )
    solution = solve(fl.LinearNetwork.init(tree, 4, key=KEY), tree)
    flow = fl.gradient_descent(relu, tree, 0.1, 1)
    with pytest.raises(ValueError, match="end-to-end"):
        solution.error(flow)


FORMS = ("single layer", "Riccati", "modes", "isolated modes", "deep modes")


def solution_named(name):
    """A solution of each form."""
    task = white_task(targets(4, 3, 2), 1.0) if name == "Riccati" else fl.tasks.hierarchy()
    if name == "single layer":
        return solve(fl.LinearNetwork([0.1 * np.asarray(task.y.T @ task.x)]), task)
    if name == "isolated modes":
        return solve(fl.LinearNetwork.init(task, 5, key=KEY), task)
    sizes = (5, 5) if name == "deep modes" else 5
    modes = fl.theory.modes(task, 1.0)
    product = None if name == "Riccati" else (modes.u[:, :3] * 0.01) @ modes.v[:, :3].T
    bias = name != "Riccati"
    return solve(fl.LinearNetwork.balanced(task, sizes, bias=bias, product=product, key=KEY), task)


@pytest.mark.parametrize("name", [*FORMS, "after linearization"])
def test_solutions_can_be_pickled(name):
    if name in FORMS:
        solution = solution_named(name)
        assert solution.name == name
    else:
        task = fl.tasks.hierarchy()
        network = fl.ReLUNetwork.init(task, 5, key=KEY)
        solution = fl.theory.after_linearization(network, task, always_on=np.ones(5, bool))
    back = pickle.loads(pickle.dumps(solution))
    assert type(back) is type(solution)
    ts = np.array([0.0, 1.0])
    np.testing.assert_array_equal(back.product(ts), solution.product(ts))
    np.testing.assert_array_equal(back.loss(ts), solution.loss(ts))
