"""Closed forms of single modes: unbalanced two-layer ones, and balanced ones of any depth."""

import jax
import mpmath as mp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import flowlin as fl
from flowlin import theory

INF = float("inf")

strength = jax.jit(theory.unbalanced_strength)
hitting_time = jax.jit(theory.unbalanced_hitting_time)
start = jax.jit(theory.unbalanced_start)
vectors = jax.jit(theory.mode_vectors)
deep_strength = jax.jit(theory.deep_strength)
deep_hitting_time = jax.jit(theory.deep_hitting_time)


def batched(*mode):
    """Scalars as arrays of the one shape that is compiled."""
    return np.broadcast_arrays(np.zeros(18), *map(np.asarray, mode))[1:]


def gradients(form):
    return jax.jit(jax.vmap(jax.grad(form, argnums=(0, 1, 2, 3, 4, 5))))


strength_gradients = gradients(theory.unbalanced_strength)
hitting_gradients = gradients(theory.unbalanced_hitting_time)
deep_gradients = gradients(theory.deep_strength)
deep_hitting_gradients = gradients(theory.deep_hitting_time)


def columns(rows):
    return np.array(rows, dtype=float).T


# One batch for all tests, so that every form is compiled for one shape.
MODES = columns(
    [
        # t, s, d, a0, imbalance, tau
        (2.0, 1.4, 1.1, 1e-3, 0.3, 1.0),
        (3.0, 0.3, 0.5, 1e-5, 1e-4, 2.0),
        (1.0, 0.7, 0.5, -0.8, 0.6, 1.0),  # from below, through zero
        (0.7, 0.2, 0.5, 3.0, 1.0, 1.5),  # from above
        (2.0, 0.7, 0.5, 1.4, 0.4, 1.0),  # at the fixed point
        (0.5, 0.0, 0.5, 0.8, 0.7, 1.0),  # no drive
        (3.0, 0.0, 0.5, -0.8, 0.0, 1.0),  # no drive, balanced
        (2.0, 1e-9, 0.5, 0.8, 0.0, 1.0),
        (3.0, 0.9, 0.0, 1e-3, 0.5, 1.0),  # no drag
        (1.0, 0.9, 1e-9, -1e-3, 0.5, 1.0),
        (4.0, 0.0, 0.0, 0.4, 0.2, 1.0),  # stays
        (1.0, -1.2, 0.8, 0.9, 0.5, 1.0),  # towards a negative fixed point
        (1.0, -1.2, 0.8, -0.9, 1e-2, 1.3),
        (2.0, 1.0, 0.7, -1e-2, 0.0, 1.0),  # towards the saddle
        (2.0, 1.0, 0.7, 1e-2, 0.0, 1.0),  # balanced
        (0.01, 1.0, 0.7, 1e-2, 300.0, 1.0),  # nearly a single layer
        (0.5, 1.0, 0.7, 0.0, 1.0, 1.0),
        (30.0, 1.0, 0.7, 1e-2, 0.3, 1.0),  # at rest, to many digits
    ]
)


def scalar_weights(a0, imbalance):
    """(w1, w2) of the product and the imbalance w2^2 - w1^2."""
    norm = np.sqrt(imbalance**2 + 4 * a0**2)
    larger = np.sqrt((norm + np.abs(imbalance)) / 2)
    return a0 / np.where(larger > 0, larger, 1), larger


def integrated(field, y0):
    """The flow at time 1, all modes at once."""
    run = solve_ivp(
        lambda t, y: field(y.reshape(y0.shape)).ravel(),
        (0, 1),
        y0.ravel(),
        method="DOP853",
        rtol=1e-12,
        atol=1e-15,
    )
    return run.y[:, -1].reshape(y0.shape)


def in_sinh_and_cosh(t, s, d, a0, imbalance, tau):
    """The Riccati equation's textbook solution, in enough digits for its cancellations."""
    with mp.workdps(400):
        t, s, d, a0, imbalance, tau = map(mp.mpf, (t, s, d, a0, imbalance, tau))
        t, m = t / tau, mp.sqrt(imbalance**2 + 4 * a0**2) / 2
        plus, minus = (m + a0) / 2, (m - a0) / 2
        rate = mp.sqrt(s**2 + 4 * d**2 * plus * minus)
        sinh, cosh = (mp.sinh(rate * t) / rate if rate else t), mp.cosh(rate * t)
        x = (cosh + (s + 2 * d * minus) * sinh) / (cosh + (2 * d * plus - s) * sinh)
        return float(plus * x - minus / x)


def test_unbalanced_modes_solve_their_equation():
    t, s, d, a0, imbalance, tau = MODES
    w0 = np.stack(scalar_weights(a0, imbalance))
    found = integrated(lambda w: w[::-1] * (s - d * w[0] * w[1]) * t / tau, w0)
    w1, w2 = theory.mode_weights(t, s, d, *w0, tau)
    scale = np.max(np.abs(found), axis=0)
    assert np.max(np.abs(np.stack([w1, w2]) - found) / scale) < 1e-10
    np.testing.assert_allclose(w2**2 - w1**2, imbalance, atol=1e-14 * np.max(scale) ** 2)
    np.testing.assert_allclose(strength(*MODES), found[0] * found[1], rtol=1e-9, atol=1e-12)


def test_unbalanced_strength_to_the_last_digits():
    expected = [in_sinh_and_cosh(*mode) for mode in MODES.T.tolist()]
    np.testing.assert_allclose(strength(*MODES), expected, rtol=2e-14)


def test_any_hidden_vectors_solve_their_equation():
    """Neither parallel nor balanced; the strength only knows their product and imbalance."""
    t, s, d, _, _, tau = MODES
    start_ = np.random.default_rng(0).normal(size=(2, 18, 3)) * np.geomspace(1e-2, 1, 18)[:, None]

    def field(y):
        a = np.sum(y[0] * y[1], axis=-1)
        return y[::-1] * ((s - d * a) * t / tau)[:, None]

    found = integrated(field, start_)
    p, q = vectors(t, s, d, *start_, tau)
    np.testing.assert_allclose(np.stack([p, q]), found, rtol=1e-8, atol=1e-11)
    a0, unbalance = np.sum(start_[0] * start_[1], axis=-1), theory.imbalance(*start_)
    np.testing.assert_allclose(theory.imbalance(p, q), unbalance, rtol=1e-12)
    norms = np.sum(start_**2, axis=-1)
    area = norms[0] * norms[1] - a0**2
    np.testing.assert_allclose(unbalance**2, (norms[0] - norms[1]) ** 2 + 4 * area, rtol=1e-12)
    np.testing.assert_allclose(strength(t, s, d, a0, unbalance, tau), np.sum(p * q, axis=-1))


def test_unbalanced_strength_at_the_ends_of_time():
    _, s, d, a0, imbalance, tau = MODES
    np.testing.assert_array_equal(strength(0.0, *MODES[1:]), a0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = s / d
    rest[8] = INF  # no drag
    rest[10] = a0[10]  # stays
    rest[13] = 0  # the saddle
    for never in (INF, 1e300):
        found = strength(np.full(18, never), s, d, a0, imbalance, tau)
        np.testing.assert_allclose(found, rest, rtol=1e-14, atol=1e-99)


def test_unbalanced_strength_in_the_limits_of_its_parameters():
    t = np.linspace(0, 3, 18)
    balanced = strength(t, 0.8, 0.3, 0.05, 0.0)
    np.testing.assert_allclose(balanced, theory.mode_strength(t, 0.8, 0.3, 0.05), rtol=1e-14)
    np.testing.assert_allclose(strength(t, 0.8, 0.3, 0.05, 1e-9), balanced, rtol=1e-12)
    # A single layer with the fixed weight sqrt(lambda): linear, at the rate lambda d.
    for imbalance in (1e9, -1e9):
        single = 0.8 / 0.3 + (0.05 - 0.8 / 0.3) * np.exp(-t * 0.3)
        np.testing.assert_allclose(strength(t / 1e9, 0.8, 0.3, 0.05, imbalance), single, rtol=1e-14)
    np.testing.assert_allclose(strength(t, 0.0, 0.0, -0.4, 0.3), -0.4, rtol=1e-15)
    np.testing.assert_allclose(strength(t, 0.0, 0.7, 0.4, 0.0), 0.4 / (1 + 0.56 * t), rtol=1e-14)
    np.testing.assert_allclose(strength(t, 0.9, 0.0, 0.0, 0.4), 0.2 * np.sinh(1.8 * t), rtol=1e-13)
    # Reflection of u.
    np.testing.assert_allclose(
        strength(t, -0.9, 0.6, 0.1, 0.4), -strength(t, 0.9, 0.6, -0.1, 0.4), rtol=1e-15
    )


def test_forms_broadcast_jit_and_vmap():
    mode = (0.8, 0.3, -0.05, 0.2, 1.5)
    grid = np.linspace(0, 2, 18)
    whole = strength(grid, *mode)
    np.testing.assert_allclose(whole, [strength(t, *mode) for t in grid], rtol=1e-14)
    np.testing.assert_allclose(whole, theory.unbalanced_strength(grid, *mode), rtol=1e-14)
    for form, batch in [(strength, MODES), (deep_strength, DEEP)]:
        np.testing.assert_allclose(form(*batch), jax.jit(jax.vmap(form))(*batch), rtol=1e-13)
    assert strength(grid[:, None], 0.8, np.ones(4), 0.1, 0.3).shape == (18, 4)
    p, q = vectors(grid[:, None], 0.8, 0.3, np.ones((4, 3)), np.zeros((4, 3)))
    assert p.shape == q.shape == (18, 4, 3)


# --- times of unbalanced modes --------------------------------------------------------------


def test_hitting_time_inverts_the_unbalanced_strength():
    t, s, d, a0, imbalance, tau = MODES
    levels = np.asarray(strength(*MODES))
    speed = np.sqrt(imbalance**2 + 4 * levels**2) * np.abs(s - d * levels) * t / tau
    moving = speed > 1e-3 * np.abs(levels)
    assert np.sum(moving) == 15
    found = np.asarray(hitting_time(levels, s, d, a0, imbalance, tau))
    # Of what a rounding of the level allows.
    np.testing.assert_allclose(found[moving], t[moving], rtol=1e-12)
    back = np.asarray(start(levels, t, s, d, imbalance, tau))
    np.testing.assert_allclose(back[:17], a0[:17], rtol=1e-11, atol=1e-15)
    assert np.all(np.asarray(hitting_time(a0, s, d, a0, imbalance, tau)) == 0)


@pytest.mark.parametrize(
    ("rho", "s", "d", "a0", "imbalance"),
    [
        (2.1, 1.0, 0.5, 0.1, 0.3),  # beyond the fixed point
        (2.0, 1.0, 0.5, 0.1, 0.3),  # at the fixed point
        (0.05, 1.0, 0.5, 0.1, 0.3),  # behind
        (0.1, 1.0, 0.5, -0.1, 0.0),  # beyond the saddle
        (0.0, 1.0, 0.5, -0.1, 0.0),  # at the saddle
        (0.1, 1.0, 0.5, 0.0, 0.0),  # from the saddle
        (0.1, 0.0, 0.0, 0.0, 1.0),  # nothing moves
        (INF, 1.0, 0.0, 0.1, 0.3),
        (-INF, 1.0, 0.5, 0.1, 0.3),
    ],
)
def test_levels_that_are_never_reached(rho, s, d, a0, imbalance):
    assert hitting_time(rho, s, d, a0, imbalance) == INF
    assert hitting_time(-rho, -s, d, -a0, imbalance) == INF


def test_no_start_arrives_later_than_one_from_infinity():
    """a' ~ -d a^2 far out: a mode from -inf passes rho after a finite time."""
    last = hitting_time(0.3, 1.0, 0.7, -1e12, 0.4)
    times = np.array([0.99, 1.01]) * last
    before, after = start(0.3, times, 1.0, 0.7, 0.4)
    assert before < -1
    assert after == -INF
    assert start(3.0, 100.0, 1.0, 0.7, 0.4) == INF
    assert 0 < start(0.3, 100.0, 1.0, 0.7, 0.0) < 1e-80  # balanced: from ever closer to zero


def test_inflections_and_half_times():
    s, d, a0, tau = 1.0, 0.5, -1.0, 1.3
    imbalance = np.array([0.0, 1e-3, 0.5, 1.3, 1.5])
    lower, upper = theory.inflection_levels(s, d, imbalance)
    first, last = theory.inflection_times(s, d, a0, imbalance, tau)
    np.testing.assert_array_equal(np.isnan(lower), [False] * 4 + [True])  # sqrt(2) = s / sqrt(2) d
    np.testing.assert_array_equal(np.isinf(first), [True, False, False, False, True])
    np.testing.assert_array_equal(np.isinf(last), [True, False, False, False, True])
    assert lower[0] == 0
    np.testing.assert_allclose(upper[0], s / (2 * d), rtol=1e-15)

    def speed(a, imbalance):
        return np.sqrt(imbalance**2 + 4 * a**2) * (s - d * a)

    for k in (1, 2, 3):
        for level, time, kind in [(lower, first, 1), (upper, last, -1)]:
            np.testing.assert_allclose(
                strength(time[k], s, d, a0, imbalance[k], tau), level[k], rtol=1e-9
            )
            here, h = np.array(level[k]), 1e-5 * np.array(level[k])
            sides = [speed(here + side * h, imbalance[k]) for side in (-1, 0, 1)]
            # The speed is least at the lower level and greatest at the upper one.
            assert kind * (sides[0] - sides[1]) >= -1e-15
            assert kind * (sides[2] - sides[1]) >= -1e-15
    half = theory.half_time(s, d, 1e-3, imbalance, tau)
    np.testing.assert_allclose(strength(half, s, d, 1e-3, imbalance, tau), s / (2 * d), rtol=1e-13)
    balanced = theory.hitting_time(s / (2 * d), s, d, 1e-3, tau)
    np.testing.assert_allclose(half[0], balanced, rtol=1e-14)
    assert theory.half_time(s, 0.0, a0) == INF


# --- derivatives ----------------------------------------------------------------------------


def differences(form, points, steps):
    """Central differences with one Richardson step, of a batch, by every argument."""
    found = []
    for which in range(len(points)):

        def slope(h, which=which):
            ends = [np.array(points) for _ in range(2)]
            ends[0][which] += h
            ends[1][which] -= h
            return (np.asarray(form(*ends[0])) - np.asarray(form(*ends[1]))) / (2 * h)

        size = np.abs(points[which])
        h = steps * np.where(size < 1e-6, 0.05, size)
        found.append((4 * slope(h / 2) - slope(h)) / 3)
    return np.stack(found)


def relative(found, expected):
    return np.abs(found - expected) / (np.abs(expected) + 1e-3 * np.max(np.abs(expected), axis=0))


def test_gradients_of_the_unbalanced_strength():
    found = np.stack(strength_gradients(*MODES))
    # Differences across d = 0 and s = 0 are those of the same analytic formula; where the mode is
    # balanced the imbalance enters squared. The cone at a0 = imbalance = 0 is none of the points.
    expected = differences(strength, MODES, 1e-3)
    assert np.all(np.isfinite(found))
    assert np.max(relative(found, expected)[:, :17]) < 1e-6
    _, s, d, _, imbalance, tau = MODES
    a = np.asarray(strength(*MODES))
    velocity = np.sqrt(imbalance**2 + 4 * a**2) * (s - d * a) / tau
    np.testing.assert_allclose(found[0], velocity, rtol=1e-9, atol=1e-13)
    tangent = jax.jvp(theory.unbalanced_strength, tuple(MODES), tuple(np.ones_like(MODES)))[1]
    np.testing.assert_allclose(tangent, np.sum(found, axis=0), rtol=1e-9, atol=1e-11)


def test_gradients_of_the_unbalanced_hitting_time():
    t, s, d, a0, imbalance, tau = MODES[:, [0, 1, 2, 3, 5, 8, 9, 11, 14, 15]]
    levels = np.asarray(strength(t, s, d, a0, imbalance, tau))
    points = np.stack([levels, s, d, a0, imbalance, tau])
    found = np.stack(hitting_gradients(*points))
    expected = differences(hitting_time, points, 1e-3 * np.minimum(1, np.abs(levels / a0 - 1)))
    assert np.max(relative(found, expected)) < 1e-5
    velocity = np.sqrt(imbalance**2 + 4 * levels**2) * (s - d * levels) / tau
    np.testing.assert_allclose(found[0], 1 / velocity, rtol=1e-9)
    velocity = np.sqrt(imbalance**2 + 4 * a0**2) * (s - d * a0) / tau
    np.testing.assert_allclose(found[3], -1 / velocity, rtol=1e-9)


def test_gradients_of_starts_and_half_times():
    """By what they invert: the start of a level is a0, the strength at half time is s/2d."""

    def again(t, s, d, a0, imbalance, tau):
        rho = theory.unbalanced_strength(t, s, d, a0, imbalance, tau)
        return theory.unbalanced_start(rho, t, s, d, imbalance, tau)

    def half(t, s, d, a0, imbalance, tau):
        time = theory.half_time(s, d, a0, imbalance, tau)
        return theory.unbalanced_strength(time + 0 * t, s, d, a0, imbalance, tau)

    points = MODES[:, [0, 1, 2, 3, 11, 16]]
    found = np.stack(gradients(again)(*points))
    np.testing.assert_allclose(found, np.outer([0, 0, 0, 1, 0, 0], np.ones(6)), atol=1e-8)
    points = MODES[:, [0, 1, 2, 3, 12, 16]].copy()
    points[3, 3] = 0.5  # above half strength from above: the time is inf
    _, s, d, *_ = points
    slopes = np.stack(gradients(half)(*points))[:, [0, 1, 2, 5]]
    nothing = np.zeros(6)
    expected = np.stack([nothing, 1 / (2 * d), -s / (2 * d**2), *[nothing] * 3])
    np.testing.assert_allclose(slopes, expected[:, [0, 1, 2, 5]], atol=1e-8)


def test_gradients_are_numbers_at_every_end():
    ends = [0.0, 1.0, 1e-12], [0.0, 1.0, 1e-12], [0.0, 0.5, -0.5], [0.0, 0.7]
    for t in (0.0, 1.0, INF, 1e300):
        s, d, a0, imbalance = (z.ravel() for z in np.meshgrid(*ends))
        points = np.broadcast_arrays(t, s, d, a0, imbalance, 1.0)
        found = np.stack(strength_gradients(*points))
        assert not np.any(np.isnan(found)), t
    found = hitting_gradients(*np.broadcast_arrays(0.6, s, d, a0, imbalance, 1.0))
    assert not np.any(np.isnan(np.stack(found)))


def test_weights_are_smooth_where_the_strength_has_a_cone():
    """At w1 = 0 and balance, in the weights themselves."""

    def product(w1, w2):
        w1, w2 = theory.mode_weights(1.3, 0.9, 0.6, w1, w2)
        return w1 * w2

    w1, w2 = np.array([0.0, 0.2, 0.3, 0.0]), np.array([0.0, 0.2, -0.3, 0.5])
    hessian = jax.jit(jax.vmap(jax.hessian(product)))(w1, w2)
    gradient = jax.jit(jax.vmap(jax.grad(product)))
    h = 1e-4
    expected = (gradient(w1 + h, w2) - gradient(w1 - h, w2)) / (2 * h)
    np.testing.assert_allclose(hessian, expected, rtol=1e-5, atol=1e-6)


# --- any depth ------------------------------------------------------------------------------

DEEP = columns(
    [
        # t, s, d, a0, depth, tau
        (3.0, 1.4, 1.1, 1e-2, 3, 1.0),
        (40.0, 0.9, 0.5, 1e-4, 4, 2.0),
        (0.5, 0.3, 0.5, 3.0, 3, 1.0),  # from above
        (2.0, 0.3, 0.5, 90.0, 5, 1.5),  # from far above
        (1.0, 0.7, 0.5, 1.4, 3, 1.0),  # at the fixed point
        (3.0, 0.0, 0.5, 0.8, 3, 1.0),  # no drive
        (1.0, 1e-9, 0.5, 0.8, 7, 1.0),
        (1.0, 0.9, 0.0, 1e-2, 3, 1.0),  # no drag
        (1.0, 0.9, 1e-9, 1e-2, 3, 1.0),
        (2.0, 0.0, 0.0, 0.4, 3, 1.0),  # stays
        (2.0, 1.0, 0.7, 0.1, 2, 1.0),
        (2.0, 1.0, 0.7, 0.1, 1, 1.3),
        (2.0, 1.0, 0.7, -0.1, 1, 1.0),
        (2.0, 0.0, 0.0, 0.4, 1, 1.0),
        (1.0, 1.0, 0.7, 0.3, 2.5, 1.0),
        (9.0, 1.0, 0.7, 0.2, INF, 1.0),
        (2.0, 1.0, 0.7, 4.0, INF, 1.0),
        (30.0, 1.0, 0.7, 0.1, 3, 1.0),  # at rest, to many digits
    ]
)


def deep_velocity(a, s, d, depth, tau):
    endless = np.isinf(depth)
    return np.where(endless, 1, depth) * np.abs(a) ** (2 - 2 / depth) * (s - d * a) / tau


def test_deep_modes_solve_their_equation():
    t, s, d, a0, depth, tau = DEEP
    found = integrated(lambda a: t * deep_velocity(a, s, d, depth, tau), a0)
    np.testing.assert_allclose(deep_strength(*DEEP), found, rtol=1e-9)


def test_deep_hitting_time_by_quadrature():
    _, s, d, a0, depth, tau = DEEP
    for share in (0.1, 0.5, 0.9999):
        end = np.where(d > 0, s / np.where(d > 0, d, 1), 2)
        rho = a0 + share * (end - a0)
        found = np.asarray(deep_hitting_time(rho, s, d, a0, depth, tau))
        for k in np.flatnonzero((rho != a0) & (s + d > 0) & (a0 > 0)):
            with mp.workdps(25):
                b = mp.mpf(1) - 2 / mp.mpf(depth[k]) if np.isfinite(depth[k]) else mp.mpf(1)
                layers = depth[k] if np.isfinite(depth[k]) else 1

                def slowness(y, k=k, b=b):
                    return mp.exp(-b * y) / (mp.mpf(s[k]) - mp.mpf(d[k]) * mp.exp(y))

                ends = mp.linspace(mp.log(mp.mpf(a0[k])), mp.log(mp.mpf(rho[k])), 5)
                expected = float(tau[k] * mp.quad(slowness, ends) / layers)
            np.testing.assert_allclose(found[k], expected, rtol=1e-11)


def test_endless_depth_is_lamberts_function():
    """u + log u falls at the rate s^2 / d for u = (s - d a) / (d a)."""
    s, d, a0 = 1.1, 0.6, 0.2
    t = np.linspace(0, 20, 18)
    u0 = (s - d * a0) / (d * a0)
    u = [float(mp.lambertw(u0 * mp.exp(u0 - s**2 / d * z)).real) for z in t]
    found = deep_strength(t, *batched(s, d, a0, INF, 1.0))
    np.testing.assert_allclose(found, s / d / (1 + np.array(u)), rtol=1e-13)
    # And the limit of large depths, in units of tau / L.
    for depth, distance in [(1e4, 2e-3), (1e8, 2e-7)]:
        close = deep_strength(t / depth, *batched(s, d, a0, depth, 1.0))
        np.testing.assert_allclose(close, found, rtol=distance)


def test_depths_one_and_two_are_closed():
    t = np.linspace(0, 5, 18)
    two = theory.mode_strength(t, 0.8, 0.3, 0.05, 1.5)
    np.testing.assert_allclose(
        deep_strength(t, *batched(0.8, 0.3, 0.05, 2.0, 1.5)), two, rtol=1e-14
    )
    one = 0.8 / 0.3 + (0.05 - 0.8 / 0.3) * np.exp(-0.3 * t / 1.5)
    np.testing.assert_allclose(
        deep_strength(t, *batched(0.8, 0.3, 0.05, 1.0, 1.5)), one, rtol=1e-14
    )
    # In between, nearly two.
    close = deep_strength(t, *batched(0.8, 0.3, 0.05, 2 + 1e-9, 1.5))
    np.testing.assert_allclose(close, two, rtol=1e-8)


def test_deep_strength_at_the_ends_of_time():
    _, s, d, a0, depth, tau = DEEP
    found = deep_strength(np.zeros(18), s, d, a0, depth, tau)
    np.testing.assert_allclose(found, a0, rtol=1e-15)
    rest = np.where(d > 0, s / np.where(d > 0, d, 1), INF)
    rest[[9, 13]] = a0[[9, 13]]
    for never in (INF, 1e300):
        found = deep_strength(np.full(18, never), s, d, a0, depth, tau)
        np.testing.assert_allclose(found, rest, rtol=1e-14, atol=1e-99)
    # Without drag a deep mode diverges in finite time.
    end = 0.01 ** (-1 / 3) / 0.9
    times = np.resize(end * np.array([1 - 1e-6, 1 + 1e-6]), 18)
    before, after = deep_strength(times, *batched(0.9, 0.0, 0.01, 3.0, 1.0))[:2]
    np.testing.assert_allclose(before, 0.01 * 1e18, rtol=1e-8)
    assert after == INF


def test_deep_hitting_time_inverts_the_strength():
    t, s, d, a0, depth, tau = DEEP
    a = np.asarray(deep_strength(*DEEP))
    moving = np.abs(deep_velocity(a, s, d, depth, tau)) * t > 1e-6 * np.abs(a)
    found = np.asarray(deep_hitting_time(a, s, d, a0, depth, tau))
    np.testing.assert_allclose(found[moving], t[moving], rtol=1e-9)
    assert np.sum(moving) == 14
    assert np.all(np.asarray(deep_hitting_time(a0, s, d, a0, depth, tau)) == 0)
    beyond = np.where(s > d * a0, 1.01, 0.99) * np.where(d > 0, s / np.where(d > 0, d, 1), INF)
    beyond = np.where(s == 0, -1, beyond)
    assert np.all(np.asarray(deep_hitting_time(beyond, s, d, a0, depth, tau)) == INF)


def test_deep_inflections_and_half_times():
    depths = np.resize([2.0, 3.0, INF, 1.0, 3.0, 3.0], 18)
    mode = (
        1.0,
        np.resize([0.5, 0.5, 0.5, 0.5, 0.5, 0.0], 18),
        np.resize([0.01, 0.01, 0.01, -0.1, 1.1, 0.1], 18),
        depths,
    )
    inflection, half = jax.jit(
        lambda *z: (theory.deep_inflection_time(*z), theory.deep_half_time(*z))
    )(*batched(*mode))
    levels = deep_strength(inflection, *batched(*mode, 1.0))
    np.testing.assert_allclose(levels[:3], [1, 8 / 7, 4 / 3], rtol=1e-12)
    assert inflection[3] == INF  # a single layer never accelerates
    np.testing.assert_allclose(deep_strength(half, *batched(*mode, 1.0))[:4], 1, rtol=1e-12)
    np.testing.assert_array_equal(half[4:6], INF)  # beyond it; no drag
    np.testing.assert_allclose(half[0], theory.half_time(1.0, 0.5, 0.01), rtol=1e-14)
    # The level is where the speed is largest.
    for depth, level in zip(
        depths[:3], theory.deep_inflection_level(1.0, 0.5, depths), strict=False
    ):
        near = deep_velocity(level * np.array([1 - 1e-3, 1, 1 + 1e-3]), 1.0, 0.5, depth, 1)
        assert np.argmax(near) == 1


def test_deep_starts_invert_the_strength():
    starts = jax.jit(lambda z, dz: jax.jvp(theory.deep_start, tuple(z), tuple(dz)))

    def start(*mode):
        return starts(tuple(batched(*mode)), np.zeros((6, 18)))[0]

    t, s, d, a0, depth, tau = DEEP
    a = np.asarray(deep_strength(*DEEP))
    moves = np.random.default_rng(0).normal(size=(6, 18))
    found, moved = map(np.asarray, starts((a, t, s, d, depth, tau), moves))
    # Of what a rounding of the level allows; the last mode has forgotten its start.
    np.testing.assert_allclose(found[:17], a0[:17], rtol=1e-11)
    np.testing.assert_allclose(start(a, 0.0, s, d, depth, tau), a, rtol=1e-15)
    wanted = np.geomspace(1e-3, 1e14, 18)
    found = start(0.9, wanted, 1.0, 0.7, 3.0, 1.0)
    times = deep_hitting_time(*batched(0.9, 1.0, 0.7), found, *batched(3.0, 1.0))
    np.testing.assert_allclose(times, wanted, rtol=1e-12)
    # From above, the last to arrive comes from infinity.
    last = deep_hitting_time(*batched(3.0, 1.0, 0.7, 1e30, 3.0, 1.0))[0]
    found = start(3.0, np.resize(last * np.array([0.99, 1.01, 1e9, INF]), 18), 1.0, 0.7, 3.0, 1.0)
    assert 10 < found[0] < found[1] == found[2] == found[3] == INF
    back = start(0.5, INF, 1.0, 0.7, depth, 1.0)
    np.testing.assert_array_equal(back, np.where(depth == 1, -INF, 0))
    # Derivatives by the inverse function theorem.
    by = np.stack(deep_gradients(*DEEP))
    finite = np.where(np.isinf(depth), 0, by[4])
    change = by[0] * moves[1] + by[1] * moves[2] + by[2] * moves[3] + finite * moves[4]
    expected = (moves[0] - change - by[5] * moves[5]) / by[3]
    inside = np.isfinite(depth) & (np.arange(18) < 17)
    np.testing.assert_allclose(moved[inside], expected[inside], rtol=1e-7, atol=1e-9)


def test_gradients_of_deep_modes():
    found = np.stack(deep_gradients(*DEEP))
    assert np.all(np.isfinite(found))
    _, s, d, _, depth, tau = DEEP
    a = np.asarray(deep_strength(*DEEP))
    np.testing.assert_allclose(found[0], deep_velocity(a, s, d, depth, tau), rtol=1e-8, atol=1e-13)
    # Where all differences stay within the range of the parameters.
    inside = np.resize([0, 1, 2, 3, 14], 18)
    points = DEEP[:, inside]
    expected = differences(deep_strength, points, 1e-3)
    assert np.max(relative(found[:, inside], expected)) < 1e-6
    levels = np.asarray(deep_strength(*points))
    points = np.stack([levels, *points[1:]])
    found = np.stack(deep_hitting_gradients(*points))
    expected = differences(
        deep_hitting_time, points, 1e-3 * np.minimum(1, np.abs(1 - levels / points[3]))
    )
    assert np.max(relative(found, expected)) < 1e-5
    # One-sided, at s = 0 and at d = 0: by the linearised flow.
    h = 1e-7
    for k, which in [(5, 1), (7, 2), (9, 1), (9, 2)]:
        moved = DEEP.copy()
        moved[which] += h
        slope = (np.asarray(deep_strength(*moved))[k] - a[k]) / h
        np.testing.assert_allclose(np.stack(deep_gradients(*DEEP))[which, k], slope, rtol=1e-5)


def test_second_derivatives_of_a_deep_mode():
    """By the start and by time: the velocity's slope, carried along by the flow."""
    s, d = 1.0, 0.7

    def by_time(t, a0):
        return jax.jvp(lambda t: theory.deep_strength(t, s, d, a0, 3.0), (t,), (1.0,))[1]

    t, a0 = np.linspace(0.1, 3, 18), np.full(18, 0.1)
    a = np.asarray(deep_strength(t, *batched(s, d), a0, *batched(3.0, 1.0)))
    slope = 4 * a ** (1 / 3) * (s - d * a) - 3 * d * a ** (4 / 3)
    carried = deep_velocity(a, s, d, 3, 1) / deep_velocity(a0, s, d, 3, 1)
    one = jax.vmap(lambda t, a0: jax.jvp(lambda z: by_time(t, z), (a0,), (1.0,))[1])
    np.testing.assert_allclose(jax.jit(one)(t, a0), slope * carried, rtol=1e-9, atol=1e-9)


def test_deep_gradients_are_numbers_at_every_end():
    ends = [0.0, 1.0, 1e-12], [0.0, 1.0, 1e-12], [0.0, 0.5], [1.0, 2.0, 3.0, INF]
    for t in (0.0, 1.0, INF, 1e300):
        s, d, a0, depth = (z.ravel() for z in np.meshgrid(*ends))
        points = np.broadcast_arrays(t, s, d, a0, depth, 1.0)
        assert not np.any(np.isnan(np.stack(deep_gradients(*points)))), t
    found = deep_hitting_gradients(*np.broadcast_arrays(0.6, s, d, a0, depth, 1.0))
    assert not np.any(np.isnan(np.stack(found)))


# --- input, and a network -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda: theory.unbalanced_strength(1.0, 1.0, -0.1, 0.1, 0.2), "`d` must be"),
        (lambda: theory.unbalanced_hitting_time(1.0, 1.0, 0.5, 0.1, 0.2, 0.0), "`tau` must be"),
        (lambda: theory.mode_vectors(1.0, 1.0, 0.5, [0.1, 0.2], [0.1]), "`p` and `q` must have"),
        (lambda: theory.deep_strength(1.0, 1.0, 0.5, 0.1, 1.5), "`depth` must be"),
        (lambda: theory.deep_strength(1.0, -1.0, 0.5, 0.1, 3), "`s` must be"),
        (lambda: theory.deep_hitting_time(0.2, 1.0, 0.5, -0.1, 3), "`a0` must be"),
    ],
)
def test_bad_input_is_named(form, message):
    with pytest.raises(ValueError, match=message):
        form()


def test_an_aligned_unbalanced_network_follows_its_modes(tree):
    """Hidden vectors in separate coordinates, of any signs and imbalance: no approximation."""
    modes = theory.modes(tree)
    count = modes.s.shape[0]
    rng = np.random.default_rng(0)
    w1, w2 = rng.normal(size=(2, count)) * 0.3
    network = fl.LinearNetwork((w1[:, None] * modes.v.T, modes.u * w2))
    ts = np.linspace(0, 12, 7)
    flow = fl.gradient_flow(network, tree, 12.0, ts=ts, rtol=1e-10)
    found = theory.mode_weights(ts[:, None], modes.s, modes.d, w1, w2)
    np.testing.assert_allclose(
        flow.networks.weights[0], found[0][:, :, None] * modes.v.T, atol=1e-8
    )
    strengths = jax.vmap(modes.strengths, in_axes=(0, None))(flow.networks, tree)
    expected = strength(ts[:, None], modes.s, modes.d, w1 * w2, w2**2 - w1**2)
    np.testing.assert_allclose(strengths, expected, atol=1e-8)
