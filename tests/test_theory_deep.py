"""Deep linear networks: single balanced modes of any depth, and learning coefficients."""

import itertools

import jax
import mpmath as mp
import numpy as np
import pytest

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


def strength_of(t, s, d, a0, depth, tau=1.0):
    return theory.Mode(s, d, a0, depth, tau=tau).strength(t)


def hitting_time_of(level, s, d, a0, depth, tau=1.0):
    return theory.Mode(s, d, a0, depth, tau=tau).hitting_time(level)


def start_of(level, t, s, d, depth, tau=1.0):
    return theory.Mode(s, d, depth=depth, tau=tau).start_for(level, t)


deep_strength = elementwise(strength_of)
deep_hitting_time = elementwise(hitting_time_of)
mode_strength = elementwise(theory.mode_strength)
deep_slopes = derivatives(strength_of)
deep_hitting_slopes = derivatives(hitting_time_of)

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


@elementwise
def moved_start(*given):
    """A start and its change, of the six arguments and their changes."""
    return jax.jvp(start_of, given[:6], given[6:])


def deep_start(*mode):
    return moved_start(*mode, *np.zeros(6))[0]


def deep_velocity(a, s, d, depth, tau):
    endless = np.isinf(depth)
    return np.where(endless, 1, depth) * np.abs(a) ** (2 - 2 / depth) * (s - d * a) / tau


@pytest.fixture(scope="module", autouse=True)
def strengths():
    """Of the modes above; what it compiles serves all tests."""
    return deep_strength(*DEEP)


def test_deep_modes_solve_their_equation(strengths):
    t, s, d, a0, depth, tau = DEEP
    found = integrated(lambda a: t * deep_velocity(a, s, d, depth, tau), a0)
    np.testing.assert_allclose(strengths, found, rtol=1e-9)


@pytest.mark.slow
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
    found = deep_strength(t, s, d, a0, INF, 1.0)
    np.testing.assert_allclose(found, s / d / (1 + np.array(u)), rtol=1e-13)
    # And the limit of large depths, in units of tau / L.
    for depth, distance in [(1e4, 2e-3), (1e8, 2e-7)]:
        close = deep_strength(t / depth, s, d, a0, depth, 1.0)
        np.testing.assert_allclose(close, found, rtol=distance)


def test_depths_one_and_two_are_closed():
    t = np.linspace(0, 5, 18)
    two = mode_strength(t, 0.8, 0.3, 0.05, 1.5)
    np.testing.assert_allclose(deep_strength(t, 0.8, 0.3, 0.05, 2.0, 1.5), two, rtol=1e-14)
    one = 0.8 / 0.3 + (0.05 - 0.8 / 0.3) * np.exp(-0.3 * t / 1.5)
    np.testing.assert_allclose(deep_strength(t, 0.8, 0.3, 0.05, 1.0, 1.5), one, rtol=1e-14)
    # In between, nearly two.
    close = deep_strength(t, 0.8, 0.3, 0.05, 2 + 1e-9, 1.5)
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
    before, after = deep_strength(times, 0.9, 0.0, 0.01, 3.0, 1.0)[:2]
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


@pytest.mark.slow
def test_deep_inflections_and_half_times():
    depths = np.resize([2.0, 3.0, INF, 1.0, 3.0, 3.0], 18)
    mode = (
        1.0,
        np.resize([0.5, 0.5, 0.5, 0.5, 0.5, 0.0], 18),
        np.resize([0.01, 0.01, 0.01, -0.1, 1.1, 0.1], 18),
        depths,
    )

    @jax.jit
    def times(*numbers):
        mode = theory.Mode(*numbers)
        return mode.inflection_times[1], mode.half_time

    inflection, half = times(*mode)
    levels = deep_strength(inflection, *mode, 1.0)
    np.testing.assert_allclose(levels[:3], [1, 8 / 7, 4 / 3], rtol=1e-12)
    assert inflection[3] == INF  # a single layer never accelerates
    np.testing.assert_allclose(deep_strength(half, *mode, 1.0)[:4], 1, rtol=1e-12)
    np.testing.assert_array_equal(half[4:6], INF)  # beyond it; no drag
    np.testing.assert_allclose(half[0], np.log(199) / 2, rtol=1e-14)  # two layers
    # The level is where the speed is largest.
    found = theory.Mode(1.0, 0.5, depth=depths).inflection_levels[1]
    for depth, level in zip(depths[:3], found, strict=False):
        near = deep_velocity(level * np.array([1 - 1e-3, 1, 1 + 1e-3]), 1.0, 0.5, depth, 1)
        assert np.argmax(near) == 1


@pytest.mark.slow
def test_deep_starts_invert_the_strength():
    t, s, d, a0, depth, tau = DEEP
    a = np.asarray(deep_strength(*DEEP))
    moves = np.random.default_rng(0).normal(size=(6, 18))
    found, moved = moved_start(a, t, s, d, depth, tau, *moves)
    # Of what a rounding of the level allows; the last mode has forgotten its start.
    np.testing.assert_allclose(found[:17], a0[:17], rtol=1e-11)
    np.testing.assert_allclose(deep_start(a, 0.0, s, d, depth, tau), a, rtol=1e-15)
    wanted = np.geomspace(1e-3, 1e14, 18)
    found = deep_start(0.9, wanted, 1.0, 0.7, 3.0, 1.0)
    times = deep_hitting_time(0.9, 1.0, 0.7, found, 3.0, 1.0)
    np.testing.assert_allclose(times, wanted, rtol=1e-12)
    # From above, the last to arrive comes from infinity.
    last = deep_hitting_time(3.0, 1.0, 0.7, 1e30, 3.0, 1.0)
    found = deep_start(
        3.0, np.resize(last * np.array([0.99, 1.01, 1e9, INF]), 18), 1.0, 0.7, 3.0, 1.0
    )
    assert 10 < found[0] < found[1] == found[2] == found[3] == INF
    back = deep_start(0.5, INF, 1.0, 0.7, depth, 1.0)
    np.testing.assert_array_equal(back, np.where(depth == 1, -INF, 0))
    # Derivatives by the inverse function theorem.
    by = np.stack(deep_slopes(*DEEP))
    finite = np.where(np.isinf(depth), 0, by[4])
    change = by[0] * moves[1] + by[1] * moves[2] + by[2] * moves[3] + finite * moves[4]
    expected = (moves[0] - change - by[5] * moves[5]) / by[3]
    inside = np.isfinite(depth) & (np.arange(18) < 17)
    np.testing.assert_allclose(moved[inside], expected[inside], rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_gradients_of_deep_modes():
    found = np.stack(deep_slopes(*DEEP))
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
    found = np.stack(deep_hitting_slopes(*points))
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
        np.testing.assert_allclose(np.stack(deep_slopes(*DEEP))[which, k], slope, rtol=1e-5)


@pytest.mark.slow
def test_second_derivatives_of_a_deep_mode():
    """By the start and by time: the velocity's slope, carried along by the flow."""
    s, d = 1.0, 0.7

    t, a0, ones = np.linspace(0.1, 3, 18), np.full(18, 0.1), np.ones(18)

    def by_time(a0):
        return jax.jvp(lambda t: strength_of(t, s, d, a0, 3.0), (t,), (ones,))[1]

    a = np.asarray(deep_strength(t, s, d, a0, 3.0, 1.0))
    slope = 4 * a ** (1 / 3) * (s - d * a) - 3 * d * a ** (4 / 3)
    carried = deep_velocity(a, s, d, 3, 1) / deep_velocity(a0, s, d, 3, 1)
    found = jax.jit(lambda a0: jax.jvp(by_time, (a0,), (ones,))[1])(a0)
    np.testing.assert_allclose(found, slope * carried, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_deep_slopes_are_numbers_at_every_end():
    ends = [0.0, 1.0, 1e-12], [0.0, 1.0, 1e-12], [0.0, 0.5], [1.0, 2.0, 3.0, INF]
    for t in (0.0, 1.0, INF, 1e300):
        s, d, a0, depth = (z.ravel() for z in np.meshgrid(*ends))
        points = np.broadcast_arrays(t, s, d, a0, depth, 1.0)
        assert not np.any(np.isnan(np.stack(deep_slopes(*points)))), t
    found = deep_hitting_slopes(*np.broadcast_arrays(0.6, s, d, a0, depth, 1.0))
    assert not np.any(np.isnan(np.stack(found)))


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda: theory.Mode(1.0, 0.5, 0.1, 1.5), "`depth` must be"),
        (lambda: theory.Mode(-1.0, 0.5, 0.1, 3), "`s` must be"),
        (lambda: theory.Mode(1.0, 0.5, -0.1, 3), "`a0` must be"),
    ],
)
def test_bad_input_is_named(form, message):
    with pytest.raises(ValueError, match=message):
        form()


# --- singular learning theory ---------------------------------------------------------------


def reduced_rank(inputs, hidden, outputs, rank):
    """Four times the coefficient of two layers, and its multiplicity: Aoyagi and Watanabe 2005."""
    m, h, n, r = inputs, hidden, outputs, rank
    if m + h < n + r:
        return 2 * (h * m - h * r + n * r), 1
    if n + h < m + r:
        return 2 * (h * n - h * r + m * r), 1
    if m + n < h + r:
        return 2 * m * n, 1
    total = -((h + r) ** 2) - m**2 - n**2 + 2 * (h + r) * (m + n) + 2 * m * n
    odd = (m + h + n + r) % 2
    return (total + odd) / 2, 1 + odd


def test_learning_coefficients():
    """By hand where a normal crossing is plain to see, and by the older formula of two layers."""
    found = theory.learning_coefficient
    assert found((3, 5), 2) == (7.5, 1)  # regular: half of the parameters
    assert found((1, 1, 1), 0) == (0.5, 2)  # (u v)^2 at 0: two sheets
    assert found((1,) * 5, 0) == (0.5, 4)  # four sheets
    assert found((1,) * 5, 1) == (0.5, 1)  # a smooth hypersurface
    assert found((2, 1, 1), 0) == (0.5, 1)  # |v|^2 u^2: the sheet u = 0 goes before v = 0
    for case in itertools.product(range(1, 6), range(1, 6), range(1, 6), range(4)):
        if case[-1] <= min(case[:3]):
            four, multiplicity = reduced_rank(*case)
            assert found(case[:3], case[3]) == (four / 4, multiplicity), case
    assert found((4, 9, 2, 3), 1) == found((3, 2, 9, 4), 1)
    assert found((3, 3, 9, 3), 1) == found((3, 3, 3), 1)  # a wide layer is no bottleneck


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((3,), 0), r"`widths` must hold two numbers or more.* got \(3,\)"),
        (((3, 2, 3), 3), "`rank` must be at most the least of `widths`, 2, got 3"),
        (((3, 0), 0), r"`widths\[1\]` must be a whole number of 1 or more"),
        (((3, 2), 0.5), "`rank` must be a whole number of 0 or more"),
    ],
)
def test_no_learning_coefficient_of_bad_widths(arguments, message):
    with pytest.raises(ValueError, match=message):
        theory.learning_coefficient(*arguments)
