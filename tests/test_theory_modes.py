"""Closed forms of single two-layer modes, unbalanced ones too, and `theory.Mode` for any depth."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.integrate

import flowlin as fl
from tests.closed_forms import (
    columns,
    derivatives,
    differences,
    elementwise,
    integrated,
    relative,
)

INF = float("inf")
theory = fl.theory


def strength_of(t, s, d, a0, imbalance, tau=1.0):
    return theory.Mode(s, d, a0, imbalance=imbalance, tau=tau).strength(t)


def hitting_time_of(level, s, d, a0, imbalance, tau=1.0):
    return theory.Mode(s, d, a0, imbalance=imbalance, tau=tau).hitting_time(level)


def start_of(level, t, s, d, imbalance, tau=1.0):
    return theory.Mode(s, d, imbalance=imbalance, tau=tau).start_for(level, t)


def half_time_of(s, d, a0, imbalance=0.0, tau=1.0):
    return theory.Mode(s, d, a0, imbalance=imbalance, tau=tau).half_time


def levels_of(s, d, imbalance):
    return theory.Mode(s, d, imbalance=imbalance).inflection_levels


def inflections_of(s, d, a0, imbalance, tau):
    return theory.Mode(s, d, a0, imbalance=imbalance, tau=tau).inflection_times


def weights_of(t, s, d, w1, w2, tau=1.0):
    return theory.Mode.of_weights(s, d, w1, w2, tau).weights(t)


def vectors_of(t, s, d, p, q, tau=1.0):
    return theory.Mode.of_vectors(s, d, p, q, tau).vectors(t)


strength = elementwise(strength_of)
hitting_time = elementwise(hitting_time_of)
start = elementwise(start_of)
mode_weights = elementwise(weights_of)
mode_strength = elementwise(theory.mode_strength)
half_time = elementwise(half_time_of)
inflection_levels = elementwise(levels_of)
inflection_times = elementwise(inflections_of)
imbalance_of = jax.jit(theory.imbalance)
vectors = jax.jit(vectors_of)
strength_slopes = derivatives(strength_of)
hitting_slopes = derivatives(hitting_time_of)

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
    w1, w2 = mode_weights(t, s, d, *w0, tau)
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
    a0, unbalance = np.sum(start_[0] * start_[1], axis=-1), imbalance_of(*start_)
    np.testing.assert_allclose(imbalance_of(p, q), unbalance, rtol=1e-12)
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
    np.testing.assert_allclose(balanced, mode_strength(t, 0.8, 0.3, 0.05), rtol=1e-14)
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


def test_forms_broadcast():
    mode = (0.8, 0.3, -0.05, 0.2, 1.5)
    grid = np.linspace(0, 2, 18)
    whole = jax.jit(strength_of)(grid[:, None], 0.8, np.ones(4), *mode[2:])
    expected = strength(grid[:, None], 0.8, np.ones(4), *mode[2:])
    assert whole.shape == (18, 4)
    np.testing.assert_allclose(whole, expected, rtol=1e-13)
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
    lower, upper = inflection_levels(s, d, imbalance)
    first, last = inflection_times(s, d, a0, imbalance, tau)
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
    half = half_time(s, d, 1e-3, imbalance, tau)
    np.testing.assert_allclose(strength(half, s, d, 1e-3, imbalance, tau), s / (2 * d), rtol=1e-13)
    balanced = tau / (2 * s) * np.log(s / (d * 1e-3) - 1)
    np.testing.assert_allclose(half[0], balanced, rtol=1e-14)
    assert half_time(s, 0.0, a0) == INF


# --- derivatives ----------------------------------------------------------------------------


def test_gradients_of_the_unbalanced_strength():
    found = np.stack(strength_slopes(*MODES))
    # Differences across d = 0 and s = 0 are those of the same analytic formula; where the mode is
    # balanced the imbalance enters squared. The cone at a0 = imbalance = 0 is none of the points.
    expected = differences(strength, MODES, 1e-3)
    assert np.all(np.isfinite(found))
    assert np.max(relative(found, expected)[:, :17]) < 1e-6
    _, s, d, _, imbalance, tau = MODES
    a = np.asarray(strength(*MODES))
    velocity = np.sqrt(imbalance**2 + 4 * a**2) * (s - d * a) / tau
    np.testing.assert_allclose(found[0], velocity, rtol=1e-9, atol=1e-13)


@pytest.mark.slow
def test_the_unbalanced_strength_is_differentiated_forwards_and_mapped():
    forward = jax.jit(lambda *mode: jax.jvp(strength_of, mode, jax.tree.map(jnp.ones_like, mode)))
    found, tangent = forward(*MODES)
    np.testing.assert_allclose(found, strength(*MODES), rtol=1e-13)
    expected = np.sum(strength_slopes(*MODES), axis=0)
    np.testing.assert_allclose(tangent, expected, rtol=1e-9, atol=1e-11)
    mapped = jax.jit(jax.vmap(strength_of))(*MODES)
    np.testing.assert_allclose(mapped, found, rtol=1e-13)


def test_gradients_of_the_unbalanced_hitting_time():
    t, s, d, a0, imbalance, tau = MODES[:, [0, 1, 2, 3, 5, 8, 9, 11, 14, 15]]
    levels = np.asarray(strength(t, s, d, a0, imbalance, tau))
    points = np.stack([levels, s, d, a0, imbalance, tau])
    found = np.stack(hitting_slopes(*points))
    expected = differences(hitting_time, points, 1e-3 * np.minimum(1, np.abs(levels / a0 - 1)))
    assert np.max(relative(found, expected)) < 1e-5
    velocity = np.sqrt(imbalance**2 + 4 * levels**2) * (s - d * levels) / tau
    np.testing.assert_allclose(found[0], 1 / velocity, rtol=1e-9)
    velocity = np.sqrt(imbalance**2 + 4 * a0**2) * (s - d * a0) / tau
    np.testing.assert_allclose(found[3], -1 / velocity, rtol=1e-9)


@pytest.mark.slow
def test_gradients_of_starts_and_half_times():
    """By what they invert: the start of a level is a0, the strength at half time is s/2d."""

    def again(t, s, d, a0, imbalance, tau):
        mode = theory.Mode(s, d, a0, imbalance=imbalance, tau=tau)
        return mode.start_for(mode.strength(t), t)

    def half(t, s, d, a0, imbalance, tau):
        mode = theory.Mode(s, d, a0, imbalance=imbalance, tau=tau)
        return mode.strength(mode.half_time + 0 * t)

    points = MODES[:, [0, 1, 2, 3, 11, 16]]
    found = np.stack(derivatives(again)(*points))
    np.testing.assert_allclose(found, np.outer([0, 0, 0, 1, 0, 0], np.ones(6)), atol=1e-8)
    points = MODES[:, [0, 1, 2, 3, 12, 16]].copy()
    points[3, 3] = 0.5  # above half strength from above: the time is inf
    _, s, d, *_ = points
    slopes = np.stack(derivatives(half)(*points))[:, [0, 1, 2, 5]]
    nothing = np.zeros(6)
    expected = np.stack([nothing, 1 / (2 * d), -s / (2 * d**2), *[nothing] * 3])
    np.testing.assert_allclose(slopes, expected[:, [0, 1, 2, 5]], atol=1e-8)


def test_gradients_are_numbers_at_every_end():
    ends = [0.0, 1.0, 1e-12], [0.0, 1.0, 1e-12], [0.0, 0.5, -0.5], [0.0, 0.7]
    for t in (0.0, 1.0, INF, 1e300):
        s, d, a0, imbalance = (z.ravel() for z in np.meshgrid(*ends))
        points = np.broadcast_arrays(t, s, d, a0, imbalance, 1.0)
        found = np.stack(strength_slopes(*points))
        assert not np.any(np.isnan(found)), t
    found = hitting_slopes(*np.broadcast_arrays(0.6, s, d, a0, imbalance, 1.0))
    assert not np.any(np.isnan(np.stack(found)))


@pytest.mark.slow
def test_weights_are_smooth_where_the_strength_has_a_cone():
    """At w1 = 0 and balance, in the weights themselves."""

    def product(w1, w2):
        w1, w2 = weights_of(1.3, 0.9, 0.6, w1, w2)
        return w1 * w2

    w1, w2 = np.array([0.0, 0.2, 0.3, 0.0]), np.array([0.0, 0.2, -0.3, 0.5])
    hessian = jax.jit(jax.vmap(jax.hessian(product)))(w1, w2)
    gradient = jax.jit(jax.vmap(jax.grad(product)))
    h = 1e-4
    expected = (gradient(w1 + h, w2) - gradient(w1 - h, w2)) / (2 * h)
    np.testing.assert_allclose(hessian, expected, rtol=1e-5, atol=1e-6)


# --- a mode of any depth as one thing -------------------------------------------------------

S, D, A0, TAU = np.array([1.0, 0.6]), np.array([0.5, 0.8]), np.array([0.02, 0.1]), 1.3


@jax.jit
def everything(mode):
    """At one time and level, and the derivatives of the half-time."""
    slope = jax.grad(lambda mode: jnp.sum(mode.half_time))(mode)
    times = mode.half_time, mode.inflection_times[1]
    return mode.strength(2.0), mode.hitting_time(0.2), *times, slope.s, slope.a0


@jax.jit
def by_functions(s, a0):
    """The same by Eqs. 7 and 13 of the lead paper, whose modes are balanced."""

    def half(s, a0):
        return theory.hitting_time(s / (2 * D), s, D, a0, TAU)

    slope = jax.grad(lambda *mode: jnp.sum(half(*mode)), argnums=(0, 1))(s, a0)
    strength, time = (
        form(z, s, D, a0, TAU)
        for form, z in ((theory.mode_strength, 2.0), (theory.hitting_time, 0.2))
    )
    return strength, time, half(s, a0), half(s, a0), *slope


@pytest.mark.slow
def test_a_mode_goes_through_transformations_whole():
    found = everything(theory.Mode(S, D, A0, tau=TAU))
    for a, b in zip(found, by_functions(S, A0), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_an_unbalanced_mode_and_a_deep_one_by_quadrature():
    """The time to half of the strength, from the equation of motion."""
    for mode in (theory.Mode(1.0, 0.5, 0.02, imbalance=0.3), theory.Mode(1.0, 0.5, 0.02, 3)):

        def slowness(a, deep=not mode.two_layers):
            return 1 / ((3 * a ** (4 / 3) if deep else np.hypot(0.3, 2 * a)) * (1 - 0.5 * a))

        expected = scipy.integrate.quad(slowness, 0.02, 1.0)[0]
        found = jax.jit(lambda mode: mode.half_time)(mode)
        assert float(found) == pytest.approx(expected, rel=1e-8)


def test_modes_map_and_depths_broadcast():
    single = jax.jit(jax.vmap(lambda s, d, a0: theory.Mode(s, d, a0, tau=TAU).half_time))(S, D, A0)
    np.testing.assert_allclose(single, everything(theory.Mode(S, D, A0, tau=TAU))[2], rtol=1e-12)
    deep = theory.Mode(1.0, 0.5, 0.1, depth=np.array([1.0, 2.0, np.inf]))
    lower, upper = deep.inflection_levels
    np.testing.assert_allclose(upper, [np.nan, 1.0, 4 / 3], rtol=1e-15)
    np.testing.assert_array_equal(lower, [np.nan, 0.0, 0.0])
    unknown = everything(theory.Mode(S, D, A0 * np.array([1.0, np.nan]), tau=TAU))
    assert np.isnan(unknown[2]).tolist() == [False, True]
    assert repr(theory.Mode(1.0, 0.5, 0.1)) == (
        "Mode(s = 1, d = 0.5, a0 = 0.1, depth = 2, imbalance = 0, tau = 1)"
    )


# --- input, and a network -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d": -1.0}, "`d` must be zero or positive"),
        ({"depth": 1.5}, "`depth` must be 1, or 2 and more"),
        ({"tau": 0.0}, "`tau` must be positive"),
        ({"s": -1.0, "depth": 3}, "`s` must be zero or positive"),
        ({"depth": 3, "imbalance": 0.1}, "`imbalance` must be 0, and known to be"),
        ({"s": S, "d": np.ones(3)}, r"shapes do not broadcast: `s` \(2,\), `d` \(3,\)"),
    ],
)
def test_modes_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        theory.Mode(**{"s": 1.0, "d": 1.0, "a0": 0.1, **options})


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda: theory.Mode(1.0, -0.1, 0.1, imbalance=0.2), "`d` must be"),
        (lambda: theory.Mode(1.0, 0.5, 0.1, imbalance=0.2, tau=0.0), "`tau` must be"),
        (lambda: theory.Mode.of_vectors(1.0, 0.5, np.ones(2), np.ones(1)), "`p` and `q` must"),
        (lambda: theory.Mode.of_weights(S, 0.5, np.ones(3), 1.0), r"`w1` \(3,\)"),
        (lambda: theory.Mode(1.0, 0.5).strength(1.0), "no start; pass `a0`"),
        (lambda: theory.Mode(1.0, 0.5).half_time, "no start; pass `a0`"),
        (lambda: theory.Mode(1.0, 0.5, 0.1).weights(1.0), "`theory.Mode.of_vectors`"),
        (
            lambda: theory.Mode.of_vectors(1.0, 0.5, np.ones(2), np.ones(2)).weights(1.0),
            "has 2 hidden units",
        ),
        (lambda: theory.Mode(1.0, 0.5, depth=3).start_for(-0.1, 1.0), "`level` must be"),
    ],
)
def test_bad_input_is_named(form, message):
    with pytest.raises(ValueError, match=message):
        form()


@pytest.mark.slow
def test_an_aligned_unbalanced_network_follows_its_modes(tree):
    """Hidden vectors in separate coordinates, of any signs and imbalance: no approximation."""
    modes = theory.modes(tree)
    count = modes.s.shape[0]
    rng = np.random.default_rng(0)
    w1, w2 = rng.normal(size=(2, count)) * 0.3
    u, v = np.asarray(modes.u), np.asarray(modes.v)
    network = fl.LinearNetwork((w1[:, None] * v.T, u * w2))
    ts = np.linspace(0, 12, 7)
    flow = fl.gradient_flow(network, tree, 12.0, ts=ts, rtol=1e-10)
    found = mode_weights(ts[:, None], modes.s, modes.d, w1, w2)
    np.testing.assert_allclose(flow.networks.weights[0], found[0][:, :, None] * v.T, atol=1e-8)
    first, last = flow.networks.weights
    strengths = np.einsum("ok,toh,thi,ik->tk", u, last, first, v)  # of single directions
    expected = strength(ts[:, None], modes.s, modes.d, w1 * w2, w2**2 - w1**2)
    np.testing.assert_allclose(strengths, expected, atol=1e-8)
