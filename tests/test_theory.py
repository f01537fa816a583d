"""Closed forms: modes of a task, the balanced two-layer mode."""

import itertools
from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import flowlin as fl
from tests.closed_forms import columns, derivatives, differences, elementwise

INF = float("inf")
theory, modes = fl.theory, fl.theory.modes

mode_strength = elementwise(theory.mode_strength)
hitting_time = elementwise(theory.hitting_time)
gating_delay = elementwise(theory.gating_delay)
strength_slopes = derivatives(theory.mode_strength)
hitting_slopes = derivatives(theory.hitting_time)
delay_slopes = derivatives(theory.gating_delay)


def augmented(task, c):
    x = np.asarray(task.x)
    return np.column_stack([np.full(len(x), c), x]) if c else x


def correlations(task, c):
    """Sigma_yx and Sigma_x in numpy."""
    x, y = augmented(task, c), np.asarray(task.y)
    return y.T @ x / len(x), x.T @ x / len(x)


def random_task(samples=20, inputs=4, outputs=3, seed=0):
    rng = np.random.default_rng(seed)
    return fl.Task(rng.normal(size=(samples, inputs)), rng.normal(size=(samples, outputs)))


def task_with(u, s, v, d):
    """A task whose Sigma_yx is u diag(s) v^T and whose Sigma_x is v diag(d) v^T."""
    samples = 2 * len(v)
    white = np.linalg.qr(np.random.default_rng(9).normal(size=(samples, len(v))))[0]
    x = np.sqrt(samples) * white * np.sqrt(d) @ v.T
    # Y = X Sigma_x^-1 Sigma_xy has the wanted correlation with X.
    y = x @ (v / d) @ v[:, : len(s)].T @ (v[:, : len(s)] * s) @ u.T
    return fl.Task(x, y)


def layers(sizes, seed=0):
    """Weights and biases of a network with a bias in every layer."""
    rng = np.random.default_rng(seed)
    pairs = list(itertools.pairwise(sizes))
    return [rng.normal(size=(b, a)) for a, b in pairs], [rng.normal(size=b) for _, b in pairs]


def orthogonal(size, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


# --- modes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [0.0, 1.0, 3.0])
@pytest.mark.parametrize(("inputs", "outputs"), [(4, 3), (3, 6)])
def test_modes_are_the_singular_triples(c, inputs, outputs):
    task = random_task(20, inputs, outputs)
    found = modes(task, c)
    syx, sx = correlations(task, c)
    count = min(syx.shape)
    u, s, v, d = map(np.asarray, (found.u, found.s, found.v, found.d))
    assert u.shape == (outputs, count)
    assert v.shape == (inputs + (c > 0), count)
    assert found.bias_strength == c
    np.testing.assert_allclose((u * s) @ v.T, syx, atol=1e-14)
    np.testing.assert_allclose(u.T @ u, np.eye(count), atol=1e-13)
    np.testing.assert_allclose(v.T @ v, np.eye(count), atol=1e-13)
    assert np.all(np.diff(s) <= 0)
    for k in range(count):
        np.testing.assert_allclose(d[k], v[:, k] @ sx @ v[:, k], rtol=1e-13)
    np.testing.assert_allclose(found.augmented(task.x), augmented(task, c))
    np.testing.assert_allclose(found.full_strength, s / d, rtol=1e-13)
    # The share of the inputs' variance that the modes span, and the certificate, from Sigma.
    projected = v.T @ augmented(task, c).T
    share = np.sum(projected**2) / np.sum(augmented(task, c) ** 2)
    np.testing.assert_allclose(found.completeness, share, rtol=1e-13)
    if count == len(sx):
        np.testing.assert_allclose(found.completeness, 1)
    else:
        assert found.completeness < 0.99
    square = syx.T @ syx
    bracket = np.linalg.norm(square @ sx - sx @ square)
    expected = bracket / np.linalg.norm(square) / np.linalg.norm(sx)
    np.testing.assert_allclose(found.commutator, expected, rtol=1e-9)
    assert found.commutator > 1e-3


@pytest.mark.parametrize("c", [0.0, 1.0, 10.0])
def test_modes_of_the_hierarchy(c):
    task = fl.tasks.hierarchy()
    found = modes(task, c)
    first = np.sqrt(15 * (8 * c**2 + 1)) / 8
    rest = [np.sqrt(7) / 8, *[np.sqrt(3) / 8] * 2, *[1 / 8] * 4]
    values = [first, *rest, *([0] if c else [])]
    np.testing.assert_allclose(found.s, values, atol=1e-13)
    variances = [c**2 + 1 / 8, *[1 / 8] * 7, *([0] if c else [])]
    np.testing.assert_allclose(found.d, variances, atol=1e-13)
    assert found.commutator < 1e-14
    np.testing.assert_allclose(found.completeness, 1)
    if c:
        # The direction [1; -c, ..., -c] that the inputs never take: no mode, and no strength.
        assert found.s[-1] == found.d[-1] == found.full_strength[-1] == 0
        assert abs(found.v[0, 0]) > 0.5


def test_equal_singular_values_share_a_basis_that_decouples():
    u, v = orthogonal(5, 1), orthogonal(5, 2)
    s = np.array([2.0, 1.0, 1.0, 1.0, 0.3])
    variances = np.array([0.7, 2.0, 0.5, 1.1, 0.4])
    task = task_with(u, s, v, variances)
    found = modes(task)
    syx, sx = correlations(task, 0.0)
    assert found.commutator < 1e-13
    np.testing.assert_allclose(found.s, s, atol=1e-12)
    turned = np.asarray(found.v).T @ sx @ np.asarray(found.v)
    np.testing.assert_allclose(turned, np.diag(found.d), atol=1e-12)
    np.testing.assert_allclose(np.sort(found.d[1:4]), [0.5, 1.1, 2.0], atol=1e-12)
    again = np.asarray(found.u) * np.asarray(found.s) @ np.asarray(found.v).T
    np.testing.assert_allclose(again, syx, atol=1e-12)
    # A plain singular value decomposition does not do it: the test can fail.
    plain = np.linalg.svd(syx)[2]
    assert np.max(abs(plain @ sx @ plain.T - np.diag(np.diag(plain @ sx @ plain.T)))) > 0.01


@pytest.mark.parametrize(
    ("dtype", "s"),
    [(jnp.float64, (1.0, 3e-9, 1e-9, 1e-10)), (jnp.float32, (1.0, 0.0102, 0.01, 0.0001))],
)
def test_small_distinct_singular_values_are_not_mixed(dtype, s):
    """Only equal singular values leave the basis free; these differ by far more than rounding."""
    task = task_with(orthogonal(4, 1), np.array(s), orthogonal(4, 2), np.ones(4)).astype(dtype)
    found = modes(task)
    syx, _ = correlations(task.astype(jnp.float64), 0.0)
    turned = np.asarray(found.u, float).T @ syx @ np.asarray(found.v, float)
    np.testing.assert_allclose(turned, np.diag(s), atol=10 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_modes_do_not_depend_on_the_units_of_the_inputs(scale):
    """Pixels from 0 to 255 have the same modes as pixels from 0 to 1, also in float32."""
    u, v = orthogonal(6, 1), orthogonal(6, 2)
    s = np.array([1.0, 0.3, 0.1, 0.03, 0.01, 0.003])
    task = task_with(u, s, v, np.ones(6)).astype(jnp.float32)
    found = modes(fl.Task(scale * task.x, task.y))
    assert found.s.dtype == jnp.float32
    np.testing.assert_allclose(found.s / scale, s, rtol=1e-3)
    np.testing.assert_allclose(found.d / scale**2, 1, rtol=1e-3)


def test_targets_that_the_inputs_do_not_explain_have_no_modes():
    """A Sigma_yx that is rounding noise is zero: no mode is driven."""
    both = np.linalg.qr(np.random.default_rng(1).normal(size=(50, 6)))[0]
    found = modes(fl.Task(7 * both[:, :3], both[:, 3:]))
    np.testing.assert_array_equal(found.s, 0)
    np.testing.assert_array_equal(found.full_strength, 0)
    assert modes(fl.tasks.xor()).s[0] == 0


def test_strengths_of_a_linear_network_are_its_product_in_the_modes_basis():
    """a = u^T W v wherever v is an eigenvector of Sigma_x, W with the bias as first column; of
    equal modes the mean."""
    task = fl.tasks.hierarchy()
    c = 2.0
    weights, biases = layers((8, 6, 15))
    network = fl.LinearNetwork(weights, biases, c)
    found = modes(task, c)
    whole = np.column_stack([weights[1] @ biases[0] + biases[1], weights[1] @ weights[0]])
    expected = np.einsum("ok,oi,ik->k", np.asarray(found.u), whole, np.asarray(found.v))
    for group in map(list, found.groups):
        expected[group] = np.mean(expected[group])
    strengths = found.strengths(network, task)
    # The last mode has d = 0: no sample sees it.
    np.testing.assert_allclose(strengths[:-1], expected[:-1], atol=1e-12)
    assert strengths[-1] == 0


@pytest.mark.parametrize("c", [0.0, 1.0])
def test_strengths_of_any_network_by_brute_force(c):
    task = random_task(12)
    found = modes(task, c)
    network = fl.ReLUNetwork(*layers((4, 6, 5, 3)), 1.5)
    outputs, x = np.asarray(network.outputs(task.x)), augmented(task, c)
    u, v = np.asarray(found.u), np.asarray(found.v)
    expected = []
    for k in range(3):
        correlation = sum((u[:, k] @ outputs[p]) * (x[p] @ v[:, k]) for p in range(12))
        expected.append(correlation / 12 / float(found.d[k]))
    np.testing.assert_allclose(found.strengths(network, task, check=False), expected, atol=1e-12)
    observable = found.observable(network, task, check=False)
    np.testing.assert_allclose(observable(network, task), expected, atol=1e-12)


@pytest.mark.parametrize("c", [0.0, 1.0])
def test_the_linear_short_cut_is_the_general_path(c):
    task = random_task(12)
    found = modes(task, c)
    linear = fl.LinearNetwork(*layers((4, 6, 5, 3)), 1.5)
    gated = fl.GatedLinearNetwork(
        linear.weights, linear.biases, 1.5, gates=[np.ones(6), np.ones(5)]
    )
    short, general = (found.observable(n, task, check=False) for n in (linear, gated))
    assert short.projected.shape[0] == 5
    assert general.projected.shape[0] == 12
    expected = general(gated, task)
    np.testing.assert_allclose(short(linear, task), expected, atol=1e-12)
    strengths = found.strengths(linear, task, check=False)
    np.testing.assert_allclose(strengths, expected, atol=1e-12)


def test_at_the_least_squares_solution_every_mode_has_its_full_strength():
    """By the normal equations, whether or not the modes decouple."""
    task = random_task()
    weights = np.linalg.lstsq(augmented(task, 1.0), np.asarray(task.y))[0].T
    network = fl.LinearNetwork((weights[:, 1:],), (weights[:, 0],))
    found = modes(task, 1.0)
    np.testing.assert_allclose(found.strengths(network, task), found.full_strength, atol=1e-12)


def test_modes_are_not_made_under_jit():
    task, message = random_task(), r"call it outside jit and vmap and pass the modes in"
    with pytest.raises(ValueError, match=message):
        jax.jit(lambda t: modes(t).s)(task)
    with pytest.raises(ValueError, match=message):
        jax.vmap(lambda t: modes(t).s)(jax.tree.map(lambda a: np.asarray(a)[None], task))


# --- strength of a mode ---------------------------------------------------------------------

MODES = columns(
    [
        # s, d, a0, tau
        (1.4, 1.1, 1e-3, 1.0),
        (0.3, 0.125, 1e-5, 2.0),
        (0.2, 0.5, 3.0, 1.0),  # from above
        (0.7, 0.5, 1.4, 1.0),  # at the fixed point
        (0.0, 0.5, 0.8, 1.5),  # decays
        (1e-9, 0.5, 0.8, 1.0),
        (0.9, 0.0, 1e-3, 1.0),  # grows without bound
        (0.9, 1e-9, 1e-3, 1.0),
        (0.0, 0.0, 0.4, 1.0),  # stays
        (1.0, 1.0, 0.0, 1.0),  # stays at the saddle
    ]
)


def test_mode_strength_solves_its_equation():
    s, d, a0, tau = MODES
    ts = np.linspace(0, 6, 9)
    run = solve_ivp(
        lambda t, a: 2 * a * (s - d * a) / tau,
        (0, 6),
        a0,
        method="DOP853",
        t_eval=ts,
        rtol=1e-13,
        atol=1e-15,
    )
    np.testing.assert_allclose(mode_strength(ts[:, None], s, d, a0, tau), run.y.T, rtol=1e-10)


def test_mode_strength_at_the_ends_of_time():
    s, d, a0, tau = MODES
    np.testing.assert_array_equal(mode_strength(0.0, s, d, a0, tau), a0)
    with np.errstate(divide="ignore", invalid="ignore"):
        limit = np.where((a0 == 0) | ((s == 0) & (d == 0)), a0, np.where(d == 0, INF, s / d))
    np.testing.assert_allclose(mode_strength(INF, s, d, a0, tau), limit, rtol=1e-14)
    # Long after the exponential has left the range of float64.
    late = mode_strength(1e6, s, d, a0, tau)
    np.testing.assert_allclose(late[s > 1e-3], limit[s > 1e-3], rtol=1e-14)


def test_mode_strength_in_the_papers_form_and_at_the_limits_of_the_errata():
    s, d, a0, t = 0.8, 0.3, 0.01, np.linspace(0, 10, 7)
    printed = (s / d) / (1 - (1 - s / (d * a0)) * np.exp(-2 * s * t))
    np.testing.assert_allclose(mode_strength(t, s, d, a0), printed, rtol=1e-13)
    t = np.array([0.0, 0.1, 5.0, 1e8])
    np.testing.assert_allclose(mode_strength(t, 0.0, 0.0, 0.4), 0.4, rtol=0)
    np.testing.assert_allclose(mode_strength(t, 0.0, 0.7, 0.4), 0.4 / (1 + 0.56 * t), rtol=1e-15)
    np.testing.assert_allclose(mode_strength(t[:3], 0.9, 0.0, 0.4), 0.4 * np.exp(1.8 * t[:3]))


def test_two_layer_forms_broadcast():
    """By themselves, and as they are called here: numbers of one shape."""
    rng = np.random.default_rng(0)
    t, s, d = (rng.uniform(0.1, 2, size=shape) for shape in ((5, 1, 1), (4, 1), (3,)))
    s[0], d[0] = 0, 0
    cases = [
        (theory.mode_strength, mode_strength, (t, s, d, 0.05, 1.3)),
        (theory.hitting_time, hitting_time, (0.07 * t, s, d, 0.05, 1.3)),
        (theory.gating_delay, gating_delay, (s[1:], d, 0.01, np.array([[[0.5]], [[1.0]]]), 1.3)),
    ]
    for form, by_numbers, arguments in cases:
        whole, numbers = jax.jit(form)(*arguments), by_numbers(*arguments)
        assert whole.shape == numbers.shape
        np.testing.assert_allclose(whole, numbers, rtol=1e-14)


def test_derivatives_of_the_mode_strength():
    points = columns(
        [
            (2.0, 1.4, 1.1, 1e-2, 1.0),
            (2.0, 0.2, 0.5, 3.0, 1.3),
            (2.0, 0.0, 0.5, 0.8, 1.5),
            (2.0, 0.9, 0.0, 0.1, 1.0),
            (2.0, 0.0, 0.0, 0.4, 1.0),
            (0.0, 0.9, 0.5, 0.4, 1.0),
        ]
    )
    # Times before 0, which a difference looks at, are refused where they are known: not so here.
    expected = differences(mode_strength, points)
    np.testing.assert_allclose(strength_slopes(*points), expected, rtol=1e-7, atol=1e-9)


def test_derivatives_of_the_mode_strength_close_to_s_zero():
    """There a = a0 / (1 + 2 a0 d t) and da/ds = 2 a0 t (1 + a0 d t) / (1 + 2 a0 d t)^2."""
    t, d, a0 = 2.0, 0.5, 0.1
    slopes = strength_slopes(t, [0.0, 1e-300, 1e-16, 1e-14, 1e-12, 1e-10], d, a0, 1.0)
    nearly = 1 + 2 * a0 * d * t
    np.testing.assert_allclose(slopes[1], 2 * a0 * t * (1 + a0 * d * t) / nearly**2, rtol=1e-7)
    np.testing.assert_allclose(slopes[3], 1 / nearly**2, rtol=1e-7)


def test_derivatives_of_the_mode_strength_at_the_saddle_and_at_infinite_time():
    # A mode at zero grows at its linear rate: da/da0 = exp(2 s t / tau).
    slopes = strength_slopes(1.0, 0.7, 0.5, 0.0, 1.0)
    np.testing.assert_allclose(slopes[3], np.exp(1.4), rtol=1e-12)
    # In the end it is s/d, whatever it started from.
    slopes = strength_slopes(INF, 0.7, 0.5, 0.1, 1.0)
    np.testing.assert_allclose(slopes[1:4], [1 / 0.5, -0.7 / 0.25, 0], atol=1e-12)


# --- hitting time ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("s", "d", "a0", "rhos"),
    [
        (1.4, 1.1, 1e-3, (2e-3, 0.1, 1.2, 1.2727)),
        (0.3, 0.0, 1e-5, (2e-5, 0.5, 100.0)),
        (0.2, 0.5, 3.0, (2.9, 1.0, 0.41)),  # from above
        (0.0, 0.5, 0.8, (0.7, 0.1, 1e-4)),
        (1e-13, 0.5, 0.8, (0.7, 0.1, 1e-4)),
        (1e-7, 0.5, 0.8, (0.7, 0.1, 1e-4)),
    ],
)
@pytest.mark.parametrize("tau", [1.0, 2.5])
def test_hitting_time_is_the_inverse_of_the_strength(s, d, a0, rhos, tau):
    rhos = np.array(rhos)
    times = hitting_time(rhos, s, d, a0, tau)
    assert np.all(np.diff(times) > 0)
    assert np.all(times > 0)
    np.testing.assert_allclose(mode_strength(times, s, d, a0, tau), rhos, rtol=1e-12)
    times = np.array([0.01, 0.3, 2.0])
    levels = mode_strength(times, s, d, a0, tau)
    np.testing.assert_allclose(hitting_time(levels, s, d, a0, tau), times, rtol=1e-9)


def exact_hitting_time(rho, s, d, a0):
    """Eq. 13 as printed, in 60 digits (for tau = 1)."""
    with localcontext() as context:
        context.prec = 60
        rho, s, d, a0 = map(Decimal, (rho, s, d, a0))
        return float(((s * rho - d * a0 * rho) / (s * a0 - d * a0 * rho)).ln() / (2 * s))


def test_hitting_time_to_the_last_digits():
    cases = [
        case
        for s in (1e-20, 1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 1e-2, 1.0, 1e3)
        for case in ((0.02 * s, s, 0.3, 0.01 * s), (0.9, s, 0.0, 1e-3), (1.1e4, s, 0.3, 2e4))
    ]
    expected = [exact_hitting_time(*case) for case in cases]
    np.testing.assert_allclose(hitting_time(*columns(cases)), expected, rtol=3e-15)


def test_hitting_time_of_levels_that_are_never_reached():
    rho = np.array([0.05, 0.1, 0.5, 1.9, 2.0, 3.0])
    below = hitting_time(rho, 1.0, 0.5, 0.1)  # 0.1 up to 2
    np.testing.assert_array_equal(np.isinf(below), [True, False, False, False, True, True])
    assert below[1] == 0
    above = hitting_time(rho, 1.0, 0.5, 3.0)  # 3 down to 2
    np.testing.assert_array_equal(np.isinf(above), [True, True, True, True, True, False])
    np.testing.assert_array_equal(hitting_time(np.array([0.0, 0.5]), 0.0, 1.0, 1.0) > 0.4, True)
    assert hitting_time(0.0, 0.0, 1.0, 1.0) == INF
    assert hitting_time(0.5, 1.0, 0.5, 0.0) == INF  # at the saddle for ever
    assert hitting_time(0.5, 0.0, 0.0, 0.4) == INF  # nothing drives it
    assert hitting_time(1.5, 1.0, 0.5, 2.0) == INF  # at the fixed point for ever


def test_hitting_time_of_the_start_is_zero():
    a0 = np.array([0.1, 2.0, 3.0, 0.0])
    np.testing.assert_array_equal(hitting_time(a0, 1.0, 0.5, a0), 0)
    np.testing.assert_array_equal(hitting_time(a0, 0.0, 0.0, a0), 0)


def test_derivatives_of_the_hitting_time():
    points = columns(
        [
            (0.3, 1.4, 1.1, 1e-2, 1.0),
            (1.0, 0.2, 0.5, 3.0, 1.3),
            (0.4, 0.0, 0.5, 0.8, 1.5),
            (0.4, 0.9, 0.0, 0.1, 1.0),
        ]
    )
    rho, s, d, a0, tau = points
    found = hitting_slopes(*points)
    np.testing.assert_allclose(found, differences(hitting_time, points), rtol=1e-7, atol=1e-9)
    # By the equation itself: dt/drho = 1 / velocity there, dt/da0 = -1 / velocity at the start.
    np.testing.assert_allclose(found[0], tau / (2 * rho * (s - d * rho)), rtol=1e-12)
    np.testing.assert_allclose(found[3], -tau / (2 * a0 * (s - d * a0)), rtol=1e-12)


def test_derivatives_of_the_hitting_time_at_the_start():
    """There the time is zero and its derivative one over the velocity, from the reached side."""
    s, d, a0 = columns([(1.0, 0.5, 0.1), (0.2, 0.5, 3.0)])
    inverse = 1 / (2 * a0 * (s - d * a0))
    expected = np.outer([1, 0, 0, -1, 0], inverse)
    np.testing.assert_allclose(hitting_slopes(a0, s, d, a0, 1.0), expected, rtol=1e-12)


def test_derivatives_of_the_hitting_time_close_to_s_zero():
    """log(1 + s q) / 2s is q/2 - s q^2 / 4 there, with q = (rho - a0) / (a0 (s - d rho))."""
    rho, d, a0, s = 0.4, 0.5, 0.8, np.array([1e-300, 1e-16, 1e-12, 1e-9])
    q = (rho - a0) / (a0 * (s - d * rho))
    slope = -q / (s - d * rho) / 2 - q**2 / 4
    np.testing.assert_allclose(hitting_slopes(rho, s, d, a0, 1.0)[1], slope, rtol=1e-7)


def test_derivatives_of_the_hitting_time_of_unreached_levels_are_not_nan():
    points = columns([(3.0, 1.0, 0.5, 0.1, 1.0), (0.5, 0.0, 0.0, 0.4, 1.0)])
    assert np.all(np.isfinite(hitting_slopes(*points)))


# --- delay by gating ------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.01, 0.5, 1.5])
@pytest.mark.parametrize("tau", [1.0, 625.0])
def test_gating_delay_is_a_difference_of_hitting_times(rho, tau):
    """With the live fraction g a mode starts at a0 g; rho cancels (errata E11)."""
    s, d, a0 = 1.4, 0.8, 5e-3
    g = np.array([0.1, 0.5, 0.9, 1.0])
    delay = gating_delay(s, d, a0, g, tau)
    late, linear = hitting_time(rho, s, d, a0 * g, tau), hitting_time(rho, s, d, a0, tau)
    np.testing.assert_allclose(delay, late - linear, rtol=1e-12, atol=1e-13 * tau)
    printed = (
        (s**2 * a0 - s * d * a0**2 * g - s * rho * d * a0 + d**2 * a0**2 * g * rho)
        / (s**2 * a0 * g - s * d * a0 * g * rho - s * d * a0**2 * g + d**2 * a0**2 * g * rho)
    )  # fmt: skip
    np.testing.assert_allclose(delay, tau / (2 * s) * np.log(printed), rtol=1e-12, atol=1e-13 * tau)
    # Positive exactly for g < 1, and about tau/2s log(1/g) for a small start.
    assert delay[3] == 0
    assert np.all(delay[:3] > 0)
    np.testing.assert_allclose(delay, tau / (2 * s) * np.log(1 / g), rtol=1e-2)


def test_derivatives_of_the_gating_delay():
    points = columns([(1.4, 0.8, 0.2, 0.6, 1.5), (1.4, 0.0, 0.2, 1.0, 1.0)])
    expected = differences(gating_delay, points)
    np.testing.assert_allclose(delay_slopes(*points), expected, rtol=1e-7, atol=1e-9)
