"""The bias mode: Proposition 1 with its conditions, and every counterexample to it."""

import jax
import numpy as np
import pytest

import flowlin as fl

modes = fl.theory.modes
bias_mode = jax.jit(fl.theory.bias_mode)


def one_hot_task(y):
    return fl.Task(np.eye(len(y)), np.asarray(y, dtype=float))


def correlations(task, c):
    """Sigma_yx and Sigma_x of [c; x] in numpy."""
    x, y = np.column_stack([np.full(task.samples, c), task.x]), np.asarray(task.y)
    return y.T @ x / len(x), x.T @ x / len(x)


def values_of(task, c):
    return np.linalg.svd(correlations(task, c)[0], compute_uv=False)


def centred_norm(y):
    return np.linalg.norm(y - y.mean(axis=0), 2)


RANDOM = np.random.default_rng(0).normal(size=(6, 3))
UNBALANCED_TREE = [  # the root, one node of three items and one of a single one, the items
    [1, 1, 0, 1, 0, 0, 0],
    [1, 1, 0, 0, 1, 0, 0],
    [1, 1, 0, 0, 0, 1, 0],
    [1, 0, 1, 0, 0, 0, 1],
]


@pytest.mark.parametrize("c", [0.5, 10.0])
def test_proposition_1_for_any_targets(c):
    """One-hot inputs: v_0 is an eigenvector of Sigma_x, with its eigenvalue and strength."""
    task, samples = one_hot_task(RANDOM), 6
    found = bias_mode(task, c)
    _, sx = correlations(task, c)
    spectrum = [c**2 + 1 / samples, *[1 / samples] * (samples - 1), 0]
    np.testing.assert_allclose(np.linalg.eigvalsh(sx)[::-1], spectrum, atol=1e-12)
    direction = np.array([1.0, *[1 / (c * samples)] * samples])
    direction /= np.linalg.norm(direction)
    np.testing.assert_allclose(found.v, direction, rtol=1e-13)
    np.testing.assert_allclose(sx @ direction, spectrum[0] * direction, atol=1e-12)
    np.testing.assert_allclose(found.d, spectrum[0], rtol=1e-13)
    mean = RANDOM.mean(axis=0)
    np.testing.assert_allclose(found.s, np.sqrt(c**2 + 1 / samples) * np.linalg.norm(mean))
    np.testing.assert_allclose(found.u, mean / np.linalg.norm(mean), rtol=1e-12)
    assert found.is_eigenvector
    # But it is no singular vector for targets whose products with their mean differ (E6a).
    assert found.input_residual < 1e-14
    assert found.target_residual > 0.1
    assert not found.is_singular
    # The second condition, in the errata's words.
    left, right = (c**2 + 1 / samples) * np.sum(mean**2), centred_norm(RANDOM) ** 2 / samples**2
    np.testing.assert_allclose(found.margin**2, left / right, rtol=1e-12)


@pytest.mark.parametrize(
    ("branching", "c"),
    [
        (2, 1.0),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 0.0), (2, 10.0), (3, 1.0))),
    ],
)
def test_a_balanced_tree_has_a_leading_bias_mode(branching, c):
    task = fl.tasks.hierarchy(5 - branching, branching)
    found = bias_mode(task, c)
    assert found.is_eigenvector
    assert found.is_singular
    assert found.is_first
    assert (found.rank, found.ties, found.mean_rank) == (1, 1, 1)
    assert int(found.bias_rank) == (c != 0)
    assert found.first_from == 0
    np.testing.assert_allclose([found.overlap, found.s], [1, values_of(task, c)[0]], rtol=1e-12)
    strongest = modes(task, c)
    # The bias coordinate is there, as zero, also for c = 0.
    assert (found.v[0] == 0) == (c == 0)
    v = np.asarray(found.v if c else found.v[1:])
    np.testing.assert_allclose(abs(v @ np.asarray(strongest.v)[:, 0]), 1, rtol=1e-12)
    u = np.asarray(strongest.u)[:, 0]
    np.testing.assert_allclose(abs(np.asarray(found.u) @ u), 1, rtol=1e-12)
    np.testing.assert_allclose(found.d, strongest.d[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("y", "first", "mean"),
    [(UNBALANCED_TREE, 1.533, 1.531), (np.eye(3)[[0, 0, 0, 1, 2]], 0.740, 0.727)],
)
def test_unequal_classes_and_trees_have_no_singular_bias_mode(y, first, mean):
    """Errata E6a: y_i . ybar is not constant; the first mode is a little more than the bias."""
    task = one_hot_task(y)
    found = bias_mode(task, 1.0)
    assert values_of(task, 1.0)[0] == pytest.approx(first, abs=5e-4)
    assert float(found.s) == pytest.approx(mean, abs=5e-4)
    assert found.is_eigenvector
    assert not found.is_singular
    assert found.target_residual > 0.05
    assert found.is_first
    assert (found.rank, found.bias_rank, found.mean_rank) == (1, 1, 1)
    assert 0.9 < found.overlap < 1 - 1e-4


def test_a_small_mean_target_is_learnt_late():
    """Errata E6b: c = 1 and a bias mode far behind two others; it takes a c of 17 to lead."""
    task = one_hot_task(np.transpose([[1, -0.95, 0, 0], [0, 0, 1, -0.95]]))
    found = bias_mode(task, 1.0)
    assert values_of(task, 1.0)[0] == pytest.approx(0.345, abs=5e-4)
    assert float(found.s) == pytest.approx(0.020, abs=5e-4)
    assert not found.is_singular
    assert not found.is_first
    # Both modes are far stronger; by symmetry one of them has the mean target to itself.
    assert np.all(np.linalg.svd(correlations(task, 1.0)[0])[1] > 10 * found.s)
    assert found.overlap < 0.1
    c = float(found.first_from)
    assert c == pytest.approx(19.5, abs=0.5)
    assert bias_mode(task, 1.001 * c).is_first
    assert not bias_mode(task, 0.999 * c).is_first


def test_xor_without_bias_ties():
    """One-hot XOR at c = 0: two equal singular values, the mean target one of them (E6b)."""
    task = one_hot_task(fl.tasks.xor().y)
    for c in (0.0, 1.0):
        found, values = bias_mode(task, c), values_of(task, c)
        assert found.is_singular
        assert found.is_first
        assert found.rank == 1
        np.testing.assert_allclose([found.s, found.overlap], [values[0], 1], rtol=1e-12)
        assert found.ties == 1 + (values[0] - values[1] < 1e-12) == 2 - (c > 0)


def uncorrelated_task(offset, seed=0):
    """Inputs of any mean and covariance, and targets that fulfil both conditions of the module.

    The deviations of x and y are drawn without the direction of xbar (whose deviations y must not
    follow) and of ybar.
    """
    rng = np.random.default_rng(seed)
    xbar, ybar = rng.normal(size=4), offset * rng.normal(size=3)
    x, y = rng.normal(size=(30, 4)), rng.normal(size=(30, 3))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    y -= np.outer(y @ ybar, ybar) / (ybar @ ybar)
    along = x @ xbar
    y -= np.outer(along, along @ y) / (along @ along)
    return fl.Task(x + xbar, y + ybar)


@pytest.mark.parametrize("offset", [0.01, 0.1, 1.0])
def test_both_conditions_for_any_inputs(offset):
    """The singular values are m |ybar| and those of C, whatever the inputs; its place is known."""
    task = uncorrelated_task(offset)
    cs = np.array([0.0, 0.3, 1.0, 4.0, 30.0])
    found = jax.vmap(bias_mode, in_axes=(None, 0))(task, cs)
    covariance = np.cov(np.asarray(task.y).T, np.asarray(task.x).T, bias=True)[:3, 3:]
    others = np.linalg.svd(covariance, compute_uv=False)[:2]
    means = np.mean(task.x, axis=0), np.mean(task.y, axis=0)
    for k, c in enumerate(cs):
        s = np.hypot(c, np.linalg.norm(means[0])) * np.linalg.norm(means[1])
        np.testing.assert_allclose(values_of(task, c), sorted([s, *others])[::-1], rtol=1e-10)
        assert found.rank[k] == 1 + np.sum(others > s)
        assert found.mean_rank[k] == found.rank[k]
        np.testing.assert_allclose([found.s[k], found.overlap[k]], [s, 1], rtol=1e-10)
    # Neither orthonormal inputs nor v_0 an eigenvector of their moments.
    assert np.max(np.maximum(found.input_residual, found.target_residual)) < 1e-12
    assert np.max(found.singular_residual) < 1e-12
    assert found.eigen_residual[2] > 0.1
    first = np.asarray(found.rank) == 1
    np.testing.assert_array_equal(np.asarray(found.margin) > 1, first)
    np.testing.assert_array_equal(cs >= np.asarray(found.first_from), first)


@pytest.mark.parametrize("samples", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_bias_mode_of_any_task_against_its_modes(samples):
    rng = np.random.default_rng(0)
    task = fl.Task(rng.normal(size=(samples, 5)), rng.normal(size=(samples, 3)))
    found = bias_mode(task, 1.0)
    syx, sx = correlations(task, 1.0)
    v = np.concatenate([[1.0], np.mean(task.x, axis=0)])
    v /= np.linalg.norm(v)
    np.testing.assert_allclose(found.v, v, rtol=1e-12)
    np.testing.assert_allclose(found.s, np.linalg.norm(syx @ v), rtol=1e-12)
    np.testing.assert_allclose(found.d, v @ sx @ v, rtol=1e-12)
    beside = sx @ v - v * (v @ sx @ v)
    residual = np.linalg.norm(beside) / np.linalg.norm(sx @ v)
    np.testing.assert_allclose(found.eigen_residual, residual, rtol=1e-11)
    image = syx.T @ syx @ v
    residual = np.linalg.norm(image - v * (v @ image)) / np.linalg.norm(image)
    np.testing.assert_allclose(found.singular_residual, residual, rtol=1e-11)
    assert not found.is_eigenvector
    assert not found.is_singular
    u, _, vt = np.linalg.svd(syx, full_matrices=False)
    overlaps = abs(vt @ v), abs(vt[:, 0]), abs(np.mean(task.y, axis=0) @ u)
    ranks = found.rank, found.bias_rank, found.mean_rank
    np.testing.assert_array_equal(ranks, [1 + np.argmax(overlap) for overlap in overlaps])
    np.testing.assert_allclose(found.overlap, np.max(overlaps[0]), rtol=1e-11)


@pytest.mark.slow
def test_the_bias_mode_of_centred_inputs_needs_the_bias():
    """Centred inputs have the bias as an eigenvector, and no direction of the mean at c = 0."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 4))
    task = fl.Task(x - x.mean(axis=0), rng.normal(size=(30, 3)) + 0.2)
    found = bias_mode(task, 2.0)
    np.testing.assert_allclose(found.v, [1, 0, 0, 0, 0], atol=1e-15)
    np.testing.assert_allclose(found.s, 2 * np.linalg.norm(np.mean(task.y, axis=0)), rtol=1e-12)
    np.testing.assert_allclose(found.d, 4, rtol=1e-12)
    assert found.is_eigenvector
    # Targets without a mean: nothing to learn, but a singular vector of value zero.
    y = np.asarray(task.y)
    silent = bias_mode(fl.Task(task.x, y - y.mean(axis=0)), 2.0)
    assert silent.is_singular
    assert silent.s == 0
    assert silent.first_from == np.inf
    exact, rounded = bias_mode(fl.tasks.xor(), 0.0), bias_mode(task, 0.0)
    for without in (exact, rounded):
        np.testing.assert_allclose([without.s, without.d, without.rank], 0, atol=1e-12)
        assert not without.is_eigenvector
        assert not without.is_singular
