"""Measures of representations: ranks, similarity, variance explained, scaling."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, stats
from scipy.spatial.distance import cdist

import flowlin as fl

measures = fl.measures

# Compiled whole: otherwise every operation is compiled for every shape.
effective_rank = jax.jit(measures.effective_rank)
effective_rank_of_gram = jax.jit(measures.effective_rank_of_gram)
spectral_entropy = jax.jit(measures.spectral_entropy)
linear_cka, debiased_cka = (
    jax.jit(functools.partial(measures.linear_cka, debiased=debiased)) for debiased in (False, True)
)
variance_explained = jax.jit(measures.variance_explained)
distances = jax.jit(measures.distances)
mds = jax.jit(measures.mds, static_argnums=1)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# --- effective rank -------------------------------------------------------------------------


def test_effective_rank_is_the_entropy_of_the_singular_values(rng):
    a = rng.normal(size=(3, 7, 5)) * np.array([1, 1e3, 1e-3])[:, None, None]
    s = np.array([linalg.svdvals(matrix) for matrix in a])
    entropy, of_squares = (np.array([stats.entropy(row) for row in rows]) for rows in (s, s**2))
    rank, gram = np.asarray(effective_rank(a)), np.asarray(effective_rank_of_gram(a))
    np.testing.assert_allclose(spectral_entropy(a), entropy, rtol=1e-12)
    np.testing.assert_allclose(rank, np.exp(entropy), rtol=1e-12)
    np.testing.assert_allclose(gram, np.exp(of_squares), rtol=1e-12)
    # The Gram matrix itself, on either side.
    transposed = np.swapaxes(a, 1, 2)
    np.testing.assert_allclose(effective_rank(transposed @ a), gram, rtol=1e-7)
    np.testing.assert_allclose(effective_rank(a @ transposed), gram, rtol=1e-7)
    assert np.all((gram > 1) & (gram < rank) & (rank < 5))


def test_effective_rank_of_known_spectra(rng):
    q = np.linalg.qr(rng.normal(size=(6, 6)))[0]

    def diagonal(*values):
        return np.diag(np.pad(np.array(values, float), (0, 6 - len(values))))

    known = np.stack(
        [3 * q, q[:, :4] @ q[:4], np.outer(q[0], q[1]), diagonal(1), diagonal(2, 2), diagonal(1, 2),
         diagonal(0)]
    )  # fmt: skip
    # p = 1/3, 2/3 of the values, 1/5, 4/5 of their squares.
    ranks = np.array([6, 4, 1, 1, 2, 3 / 2 ** (2 / 3), np.nan])
    of_squares = np.array([6, 4, 1, 1, 2, 5 / 4**0.8, np.nan])
    np.testing.assert_allclose(effective_rank(known), ranks, rtol=1e-13)
    np.testing.assert_allclose(effective_rank_of_gram(known), of_squares, rtol=1e-13)
    np.testing.assert_allclose(spectral_entropy(known), np.log(ranks), rtol=1e-13, atol=1e-13)
    assert effective_rank(known)[3] == 1


def test_effective_rank_has_a_derivative(rng):
    full, low = rng.normal(size=(5, 4)), rng.normal(size=(5, 2)) @ rng.normal(size=(2, 4))
    rank, gram = (
        jax.jit(jax.value_and_grad(measure))
        for measure in (measures.effective_rank, measures.effective_rank_of_gram)
    )

    def check(measure, a, step, **tolerance):
        ahead, behind = (float(measure(a + h * step)[0]) for h in (1e-5, -1e-5))
        found = float(np.sum(np.asarray(measure(a)[1]) * step))
        assert found == pytest.approx((ahead - behind) / 2e-5, **tolerance)

    for measure, a in [(rank, full), (gram, full), (gram, low), (gram, np.eye(5, 4))]:
        check(measure, a, rng.normal(size=(5, 4)), rel=2e-5, abs=1e-5)
    # Along its own rank, where there is a derivative.
    check(rank, low, low @ rng.normal(size=(4, 4)), rel=1e-5)


# --- alignment ------------------------------------------------------------------------------


def hsic_of_quadruples(k, m):
    """The U-statistic itself: the mean over ordered quadruples of distinct samples."""
    quadruples = list(itertools.permutations(range(len(k)), 4))
    return np.mean([k[i, j] * (m[i, j] + m[q, r] - 2 * m[i, q]) for i, j, q, r in quadruples])


def test_cka_estimators(rng):
    a, b = rng.normal(size=(6, 3)) + 2, rng.normal(size=(6, 5)) - 1
    b[:, :2] += a[:, :2]
    k, m = a @ a.T, b @ b.T
    centre = np.eye(6) - 1 / 6

    def biased(k, m):
        return np.trace(k @ centre @ m @ centre)

    for cka, hsic in ((linear_cka, biased), (debiased_cka, hsic_of_quadruples)):
        expected = hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))
        found = float(cka(a, b))
        assert found == pytest.approx(expected, rel=1e-12)
        assert abs(found) < 1


def test_cka_invariance_and_bias(rng):
    a, b = rng.normal(size=(2, 8, 6))
    rotation = linalg.qr(rng.normal(size=(6, 6)))[0]
    for cka in (linear_cka, debiased_cka):
        assert float(cka(a, 1e200 * a @ rotation + 5)) == pytest.approx(1, abs=1e-12)
        assert float(cka(b, a)) == pytest.approx(float(cka(a, b)), rel=1e-12)
    # Independent features of few samples: the biased one is far from 0, the other on average 0.
    many = rng.normal(size=(2, 400, 8, 64))
    assert np.mean(linear_cka(*many)) > 0.8
    assert abs(np.mean(debiased_cka(*many))) < 0.02
    assert np.isnan(linear_cka(a, np.ones((8, 6))))


# --- variance explained ---------------------------------------------------------------------


def test_variance_explained_is_that_of_sklearn(rng):
    from sklearn.linear_model import LinearRegression
    from sklearn.metrics import r2_score

    features, hidden = rng.normal(size=(20, 3)) + 4, rng.normal(size=(2, 20, 7)) + 1
    hidden[1] += features @ rng.normal(size=(3, 7))
    for h, found in zip(hidden, variance_explained(hidden, features), strict=True):
        fitted = LinearRegression().fit(features, h).predict(features)
        score = r2_score(
            h.ravel() - np.tile(h.mean(0), 20), fitted.ravel() - np.tile(h.mean(0), 20)
        )
        assert float(found) == pytest.approx(score, rel=1e-10)


def test_shares_of_orthogonal_features_add_up(rng):
    s, c = np.asarray(fl.tasks.parallel(one_hot=False).y).T
    hidden = rng.normal(size=(4, 9)) + 3

    def share(hidden, *features):
        """Constant features explain nothing."""
        return float(variance_explained(hidden, np.stack([*features, *[0 * s] * 4][:4], 1)))

    parts = share(hidden, s), share(hidden, c), share(hidden, s, c)
    assert parts[2] == pytest.approx(parts[0] + parts[1], rel=1e-12)
    assert 0 < parts[0] < parts[2] < 1
    # Collinear once centred.
    assert share(hidden, s, 1 - s, c, 1 - c) == pytest.approx(parts[2], rel=1e-12)
    assert share(np.outer(s, np.arange(9.0)) + 5, s) == pytest.approx(1)
    assert share(hidden, np.full(4, 0.1)) == 0
    assert np.isnan(share(np.ones((4, 9)), s))
    assert float(variance_explained(hidden, s)) == pytest.approx(parts[0], rel=1e-12)


# --- distances and scaling ------------------------------------------------------------------


@pytest.mark.slow
def test_constant_representations_are_nan_and_small_variation_is_not(rng):
    """Equal rows, whose mean is rounded, and rows that differ in the last places are constant."""
    varied, features = rng.normal(size=(6, 3)), np.arange(6.0)
    ulps = np.nextafter(0.7, 1) - 0.7
    for constant in (np.tile([0.1, 0.3, 0.7], (6, 1)), 0.7 + ulps * rng.integers(0, 3, (6, 3))):
        both = np.stack([varied, constant])
        for found in (
            variance_explained(both, features),
            linear_cka(both, both[:1]),
            debiased_cka(both, both),
            [mds(one, 2).share[0] for one in both],
        ):
            assert np.array_equal(np.isnan(found), [False, True])
        assert not np.any(mds(constant, 2).points)
    # So many rows in float32 vary by less than P eps, and are not constant.
    far = 1 + np.float32(1e-3) * rng.normal(size=(60_000, 1)).astype(np.float32)
    np.testing.assert_allclose(variance_explained(far, far - 1), 1, rtol=1e-4)
    slope = jax.jit(jax.value_and_grad(lambda h: measures.variance_explained(h, features)))
    moved = 1e-6 * rng.normal(size=(6, 3))
    up, down = (float(slope(varied + s * moved)[0]) for s in (1, -1))
    value, by_entry = slope(varied)
    np.testing.assert_allclose(np.sum(np.asarray(by_entry) * moved), (up - down) / 2, rtol=1e-6)
    np.testing.assert_allclose(slope(1 + 1e-12 * varied)[0], value, rtol=1e-2)


def test_similarity_matrices(rng):
    hidden = rng.normal(size=(2, 6, 4))
    found = jax.jit(measures.gram)(hidden), distances(hidden)
    for h, g, d in zip(hidden, *found, strict=True):
        np.testing.assert_allclose(g, h @ h.T, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(d, cdist(h, h), rtol=1e-13, atol=1e-15)
    hidden[0, :2] = [[1e6, 0, 0, 0], [1e6, 1e-6, 0, 0]]  # close
    assert float(distances(hidden)[0, 0, 1]) == 1e-6
    slope = jax.jit(jax.grad(lambda h: jnp.sum(measures.distances(h))))(np.ones((3, 2)))
    assert np.all(np.asarray(slope) == 0)


def test_distance_ratio(rng):
    hidden, classes = rng.normal(size=(7, 3)), np.array([0, 1, 0, 2, 1, 0, 1])
    d = cdist(hidden, hidden)
    pairs = list(itertools.combinations(range(7), 2))
    within = np.mean([d[i, j] for i, j in pairs if classes[i] == classes[j]])
    between = np.mean([d[i, j] for i, j in pairs if classes[i] != classes[j]])
    found = float(measures.distance_ratio(hidden, classes))
    assert found == pytest.approx(within / between, rel=1e-13)


def test_scaling_is_classical_over_all_times(rng):
    hidden = np.cumsum(rng.normal(size=(5, 6, 4)), axis=0) @ np.diag([3.0, 2, 1, 0.1])
    stacked = hidden.reshape(30, 4)
    centre = np.eye(30) - 1 / 30
    values, vectors = linalg.eigh(-0.5 * centre @ cdist(stacked, stacked, "sqeuclidean") @ centre)
    expected = vectors[:, ::-1][:, :2] * np.sqrt(values[::-1][:2])
    points, share = mds(hidden, 2)
    flat = np.asarray(points).reshape(30, 2)
    signs = np.sign(np.sum(flat * expected, axis=0))
    np.testing.assert_allclose(flat, expected * signs, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(share, values[::-1][:2] / values[values > 1e-9].sum(), rtol=1e-10)
    # In all dimensions nothing is lost: every distance between any two times is kept.
    everything = np.asarray(mds(hidden, 4).points).reshape(30, 4)
    np.testing.assert_allclose(cdist(everything, everything), cdist(stacked, stacked), atol=1e-12)


def test_scaling_has_a_fixed_orientation(rng):
    # Two pairs of siblings: on either side of an axis, equally far up to rounding.
    hidden = (
        np.array([[-2, 1e-9, 0], [-2, 0, 1], [2, 0, 1], [2, 0, 0]])
        @ linalg.qr(rng.normal(size=(3, 3)))[0]
    )
    growing = np.linspace(0.1, 1, 8)[:, None, None] * hidden
    points = np.asarray(mds(growing, 2).points)
    assert np.all(points[:, :2, 0] > 0)
    assert np.all(points[:, 2:, 0] < 0)
    for nudge in 1e-13 * rng.normal(size=(3, *growing.shape)):
        np.testing.assert_allclose(mds(growing + nudge, 2).points, points, atol=1e-9)
    np.testing.assert_allclose(mds(-growing, 2).points, points, atol=1e-9)
    assert mds(hidden, 2).points.shape == (4, 2)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: measures.effective_rank(np.ones(3)), r"`matrix` must have one row per sample"),
        (lambda: measures.linear_cka(np.ones((4, 2)), np.ones((5, 2))), r"`b` has 5"),
        (lambda: measures.linear_cka(np.ones((3, 2)), np.ones((3, 2)), debiased=True), "4 samples"),
        (
            lambda: measures.variance_explained(np.ones((4, 2)), np.ones(3)),
            r"each of the 4 samples",
        ),
        (lambda: measures.mds(np.ones((4, 2)), 3), r"between 1 and H = 2"),
        (lambda: measures.distance_ratio(np.ones((4, 2)), np.ones(3)), r"shape \(4,\)"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
def test_float32_under_jit_and_vmap(rng):
    hidden = jnp.asarray(rng.normal(size=(3, 6, 4)), jnp.float32)

    def every(h):
        return (
            measures.effective_rank(h),
            measures.effective_rank_of_gram(h),
            measures.linear_cka(h, h[:, :2], debiased=True),
            measures.variance_explained(h, h[:, 0] ** 2),
            measures.distances(h),
            measures.mds(h),
        )

    found, plain = jax.jit(jax.vmap(every))(hidden), jax.jit(every)(hidden[1].astype(float))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a[1], b, rtol=2e-4, atol=2e-5)
