"""Closed forms of whole matrices: Riccati, and a single layer."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import flowlin as fl
from tests.closed_forms import elementwise, errors, targets, white_task

INF = float("inf")
KEY = jax.random.key(0)
single_layer = fl.theory.single_layer
mode_strength = elementwise(fl.theory.mode_strength)


def gram(ts, w1, w2, s_yx, variance=1.0, balance=0.0, tau=1.0, check=True):
    """By one program for each shape: at eight times, and of four units.

    Fewer than these are filled up with zeros, as which they stay; not so where they cannot be
    balanced with the others.
    """
    missing = max(4 - len(w1), 0) if balance == 0 else 0
    w1, w2 = np.pad(w1, ((0, missing), (0, 0))), np.pad(w2, ((0, 0), (0, missing)))
    found = fl.theory.balanced_gram(
        np.resize(ts, 8), w1, w2, s_yx, variance=variance, balance=balance, tau=tau, check=check
    )
    return np.asarray(found)[: len(ts)]


def gram_by_integrator(ts, w1, w2, s_yx, s_x, tau):
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


@pytest.fixture(scope="module", autouse=True)
def program():
    """Of the shape that most tests have."""
    gram(np.zeros(8), np.zeros((4, 5)), np.zeros((3, 4)), np.zeros((3, 5)))


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
    (5, 3, 4, 3, -0.4),
    (5, 3, 2, 3, 0.0),  # bottleneck: the strongest modes win
    pytest.param((5, 3, 2, 3, 0.7), marks=pytest.mark.slow),
    pytest.param((3, 5, 3, 2, -0.4), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("sizes", SIZES)
def test_riccati_against_an_integrator_and_its_limits(sizes):
    inputs, outputs, hidden, rank, balance = sizes
    d, tau = 1.7, 1.3
    s_yx = targets(inputs, outputs, rank)
    w1, w2 = map(np.asarray, network_for(white_task(s_yx, d), hidden, balance).weights)
    ts = np.array([0.0, 0.3, 2.0, 8.0, 20.0])
    # Long times too, in one call: exponentials far beyond the range of float64.
    found = gram(np.array([*ts, 1e6, INF]), w1, w2, s_yx, d, balance, tau)
    expected = gram_by_integrator(ts, w1, w2, s_yx, d * np.eye(inputs), tau)
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


@pytest.mark.parametrize(("hidden", "balance"), [(2, 0.0), (4, -0.6)])
def test_riccati_in_sixty_digits(hidden, balance):
    """Small and large weights, and growth by exp(30) along modes that compete for two units."""
    s_yx = targets(5, 3, 3)
    task = white_task(s_yx, 1.0)
    w1, w2 = map(np.asarray, network_for(task, hidden, balance).weights)
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
        strength = mode_strength(ts, s[mode], 1.0, 0.01)
        expected = strength[:, None, None] * np.outer(u[:, mode], vt[mode])
        np.testing.assert_allclose(found, expected, atol=1e-14)
    assert not np.any(gram(ts, 0 * w1, 0 * w2, s_yx))
    # One layer in one mode, the other layer zero: p + q grows, p - q decays; balanced it is not.
    assert np.all(np.isfinite(gram(ts, w1, 0 * w2, s_yx, check=False)))


@pytest.mark.parametrize("s", [(1.0, 0.5, 0.5), (0.5, 0.5, 0.5), (0.5, 0.5, 0.0)])
def test_riccati_with_aligned_modes_and_equal_singular_values(s):
    rng = np.random.default_rng(1)
    u, v, r = (np.linalg.qr(rng.normal(size=(n, n)))[0][:, :3] for n in (3, 5, 4))
    s_yx, a0 = (u * s) @ v.T, np.array([1e-4, 0.2, 1e-8])
    w1, w2 = (r * np.sqrt(a0)) @ v.T, (u * np.sqrt(a0)) @ r.T
    ts = np.array([0.0, 0.5, 3.0, 20.0, 300.0, 1e5, INF])
    strengths = mode_strength(ts[:, None], s, 0.8, a0)
    found = gram(ts, w1, w2, s_yx, 0.8)[:, 5:, :5]
    np.testing.assert_allclose(found, (u * strengths[:, None]) @ v.T, atol=1e-13)


def test_riccati_with_equal_modes_in_a_bottleneck():
    """Among equal modes the start decides which two of three are learnt, also at infinity."""
    u, v = (np.linalg.qr(np.random.default_rng(n).normal(size=(n, 3)))[0] for n in (3, 5))
    s_yx = u @ v.T  # all singular values one: Q in the growing eigenspace only
    start = np.random.default_rng(2).normal(size=(3, 2))
    w1, w2 = 0.1 * (v @ start).T, 0.1 * u @ start
    basis = np.linalg.qr(start)[0]
    found = gram(np.array([1e3, 1e6, INF]), w1, w2, s_yx)[:, 5:, :5]
    limit = u @ basis @ basis.T @ v.T
    np.testing.assert_allclose(found, np.broadcast_to(limit, found.shape), atol=1e-13)


def test_lambda_to_zero():
    s_yx = targets(5, 3, 2)
    task = white_task(s_yx, 1.0)
    ts = np.array([0.5, 5.0, 50.0])
    w1, w2 = network_for(task, 4, 0.0).weights
    limit = gram(ts, w1, w2, s_yx)
    for balance, bound in ((1e-5, 1e-4), (1e-12, 1e-11), (-1e-12, 1e-11)):
        assert errors(gram(ts, w1, w2, s_yx, 1.0, balance, check=False), limit) < bound


@pytest.mark.slow
@pytest.mark.parametrize("balance", [0.7, -0.4])
def test_the_balance_of_weights_is_measured(balance):
    """With lambda left out it is that of the weights; a formula for balance 0 is far off."""
    s_yx = targets(5, 3, 3)
    task = white_task(s_yx, 1.0)
    w1, w2 = map(np.asarray, network_for(task, 2, balance).weights)
    ts = np.array([0.0, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0, 8.0])  # as many as `gram` takes
    expected = gram_by_integrator(ts, w1, w2, s_yx, np.eye(5), 1.0)
    measured = fl.theory.balanced_gram(ts, w1, w2, s_yx)
    assert errors(measured, expected) < 1e-11
    plain = fl.theory.balanced_gram(ts, w1, w2, s_yx, balance=0.0, check=False)
    assert errors(plain, expected) > 0.1
    with pytest.raises(ValueError, match=r"not balanced: .* is off 0 times the identity by 0\.\d"):
        fl.theory.balanced_gram(ts, w1, w2, s_yx, balance=0.0)
    with pytest.raises(ValueError, match=r"`theory\.solve"):
        fl.theory.balanced_product(ts, w1, 2 * w2, s_yx)


@pytest.mark.slow
def test_times_of_any_shape():
    s_yx = targets(5, 3, 2)
    w1, w2 = network_for(white_task(s_yx, 1.0), 2, 0.0).weights
    ts = np.array([[0.0, 1.0], [7.0, INF]])
    whole = fl.theory.balanced_product(ts, w1, w2, s_yx)
    expected = gram(ts.ravel(), w1, w2, s_yx)[:, 5:, :5].reshape(2, 2, 3, 5)
    np.testing.assert_allclose(whole, expected, atol=1e-15)
    one = fl.theory.balanced_product(1.0, w1, w2, s_yx)
    np.testing.assert_allclose(one, expected[0, 1], atol=1e-15)
    with pytest.raises(ValueError, match="do not chain"):
        fl.theory.balanced_product(1.0, w1.T, w2, s_yx)


WEIGHING = np.arange(6.0).reshape(2, 3) + 1


@jax.jit
def weighed(t, w1, w2, balance):
    s_yx = targets(3, 2, 1)
    product = fl.theory.balanced_product(t, w1, w2, s_yx, variance=0.8, balance=balance)
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_wide_rates_in_float32():
    s_yx = targets(5, 3, 3)
    w1, w2 = (np.asarray(w) for w in network_for(white_task(s_yx, 1.0), 2, 0.0).weights)
    ts = np.array([1.0, 10.0, INF])
    double = gram(ts, w1, w2, s_yx)
    ts, w1, w2, s_yx = (np.asarray(a, np.float32) for a in (ts, w1, w2, s_yx))
    single = gram(ts, w1, w2, s_yx)
    assert single.dtype == np.float32
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
    one = single_layer(1.0, w0, s_yx, s_x, tau=tau)
    np.testing.assert_allclose(one, found[2], atol=1e-15)
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
