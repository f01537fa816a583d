"""Equal modes: a group has one strength and one time, and a basis that no machine changes."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot as plt

import flowlin as fl
from tests.tolerances import ROUNDING

TREE = fl.tasks.hierarchy()
GROUPS = ((0,), (1,), (2, 3), (4, 5, 6, 7))
NETWORK = fl.LinearNetwork.init(TREE, 16, bias=False, variance=1e-3, key=jax.random.key(0))


def noisy(task, size, seed):
    noise = np.random.default_rng(seed).standard_normal(task.y.shape)
    return fl.Task(task.x, task.y + size * noise)


def turned(modes, seed):
    """With another basis of every group, as another machine might find it."""
    rng = np.random.default_rng(seed)
    u, v = np.array(modes.u), np.array(modes.v)
    for group in modes.groups:
        rotation = np.linalg.qr(rng.normal(size=(len(group), len(group))))[0]
        columns = np.asarray(group)
        u[:, columns], v[:, columns] = u[:, columns] @ rotation, v[:, columns] @ rotation
    return eqx.tree_at(lambda m: (m.u, m.v), modes, (jnp.asarray(u), jnp.asarray(v)))


@pytest.mark.parametrize("c", [0.0, 1.0])
def test_the_tree_has_groups(c):
    modes = fl.theory.modes(TREE, c)
    assert modes.groups == (*GROUPS, (8,))[: 5 if c else 4]
    assert modes.equal == ((2, 3), (4, 5, 6, 7))
    assert "4-7" in repr(modes)
    x = np.asarray(modes.augmented(TREE.x))
    syx = np.asarray(TREE.y).T @ x / TREE.samples
    np.testing.assert_allclose(np.asarray(modes.u * modes.s[None] @ modes.v.T), syx, atol=ROUNDING)
    for basis in (modes.u, modes.v):
        np.testing.assert_allclose(basis.T @ basis, np.eye(len(modes.s)), atol=ROUNDING)
    np.testing.assert_allclose(
        np.asarray(modes.v.T @ x.T @ x @ modes.v) / TREE.samples, np.diag(modes.d), atol=ROUNDING
    )


def test_modes_of_one_variance_and_other_strengths_are_not_equal():
    """Nor those of one strength and other variances, whose directions the inputs tell."""
    x = np.diag([2.0, 2.0, 1.0, 1.0])
    modes = fl.theory.modes(fl.Task(x, np.diag([1.0, 0.5, 2.0, 2.0])))
    assert modes.groups == ((0,), (1, 2), (3,))
    same = fl.theory.modes(fl.Task(x, np.diag([1.0, 1.0, 2.0, 2.0])))
    np.testing.assert_allclose(same.s, np.full(4, 0.5))
    assert same.equal == ((0, 1), (2, 3))
    np.testing.assert_allclose(same.v, np.eye(4), atol=ROUNDING)


@pytest.mark.parametrize("size", [1e-14, 1e-12])
def test_noise_in_the_targets_moves_nothing(size, seed):
    modes, other = (fl.theory.modes(task, 1.0) for task in (TREE, noisy(TREE, size, seed)))
    assert other.groups == modes.groups
    for field in ("u", "s", "v", "d", "full_strength"):
        np.testing.assert_allclose(getattr(other, field), getattr(modes, field), atol=1e3 * size)


@pytest.fixture(scope="module")
def hits():
    """When modes have half of their strength, in bases of other machines, and with some noise."""
    network = fl.LinearNetwork.init(TREE, 64, variance=1e-3, key=jax.random.key(0))

    def run(task, modes):
        # The program of those in test_events.
        options = {"events": fl.ModeHits(modes, share=0.5), "solver": diffrax.Dopri8()}
        flow = fl.gradient_flow(network, task, 40.0, rtol=1e-10, **options)
        return np.asarray(flow.events.first("mode"))

    modes, near = fl.theory.modes(TREE, 1.0), noisy(TREE, 1e-12, 1)
    return run(TREE, modes), run(TREE, turned(modes, 0)), run(near, fl.theory.modes(near, 1.0))


def test_a_group_has_one_time_that_no_basis_changes(hits):
    first, another, near = hits
    assert np.all(np.isfinite(first[:8]))
    for group in GROUPS:
        np.testing.assert_allclose(first[list(group)], first[group[0]], rtol=1e-14)
    np.testing.assert_allclose(another, first, rtol=1e-9)
    np.testing.assert_allclose(near, first, rtol=1e-9)


@pytest.mark.slow
def test_strengths_are_the_groups(seed):
    modes = fl.theory.modes(TREE)
    strengths = modes.strengths(NETWORK, TREE)
    for group in modes.groups:
        columns = np.asarray(group)
        u, v = modes.u[:, columns], modes.v[:, columns]
        product = NETWORK.weights[1] @ NETWORK.weights[0]
        mean = np.trace(u.T @ product @ v) / len(group)
        np.testing.assert_allclose(strengths[columns], mean, rtol=1e-10, atol=1e-14)
    for other in (turned(modes, seed), turned(modes, seed + 1)):
        np.testing.assert_allclose(other.strengths(NETWORK, TREE), strengths, rtol=1e-10)
        balanced = [fl.theory.balanced_strength(NETWORK, m) for m in (other, modes)]
        np.testing.assert_allclose(*balanced, rtol=1e-10)
        starts = [np.stack(fl.theory.mode_starts(NETWORK, m)) for m in (other, modes)]
        np.testing.assert_allclose(*starts, rtol=1e-10)
    raw, between = map(np.asarray, fl.theory.mode_starts(NETWORK, modes))
    np.testing.assert_allclose(raw, strengths, rtol=1e-10)
    alone = np.asarray(fl.theory.imbalance(*modes.hidden_vectors(NETWORK)))[:2]
    np.testing.assert_allclose(between[:2], alone, rtol=1e-10)


def test_a_basis_follows_from_its_span(seed):
    rng = np.random.default_rng(seed)
    span = np.linalg.qr(rng.normal(size=(6, 3)))[0]
    task = fl.Task(np.eye(6), span @ span.T)
    modes = [fl.theory.modes(noisy(task, 1e-13, k)) for k in (seed, seed + 1)]
    assert modes[0].equal == ((0, 1, 2),)
    for one in modes:
        np.testing.assert_allclose(one.v[:, :3] @ one.v[:, :3].T, span @ span.T, atol=1e-10)
        np.testing.assert_allclose(one.u, modes[0].u, atol=1e-9)
        np.testing.assert_allclose(one.v, modes[0].v, atol=1e-9)
        # The longest projection of an axis is the first vector.
        lengths = np.linalg.norm(span, axis=1)
        np.testing.assert_allclose(one.v[np.argmax(lengths), 0], np.max(lengths), rtol=1e-9)


@pytest.mark.parametrize(
    ("dtype", "s"), [(jnp.float32, (1.0, 5e-5, 3e-5)), (jnp.float64, (1.0, 3e-10, 2.5e-10))]
)
def test_weak_modes_are_not_equal_because_they_are_weak(dtype, s):
    """Though they are within 1e-4, or 1e-10, of the largest of each other."""
    modes = fl.theory.modes(fl.Task(np.eye(3), np.diag(s)).astype(dtype))
    assert modes.equal == ()
    np.testing.assert_allclose(3 * modes.s, s, rtol=1e-3)


def test_float32_has_groups_too():
    modes = fl.theory.modes(TREE.astype(jnp.float32))
    assert modes.groups == GROUPS
    near = fl.theory.modes(noisy(TREE, 1e-6, 0).astype(jnp.float32))
    assert near.groups == GROUPS
    np.testing.assert_allclose(near.v, modes.v, atol=1e-4)


@pytest.mark.slow
def test_a_picture_has_one_curve_for_a_group():
    modes = fl.theory.modes(TREE)
    flow = fl.gradient_flow(NETWORK, TREE, 12.0, ts=[0.0, 6.0, 12.0], observe={"modes": modes})
    ax = fl.plot.modes(flow, modes)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[:4] == ["mode 0", "mode 1", "modes 2-3", "modes 4-7"]
    plt.close("all")
