"""`fl.polish`: critical points and their curvature, against closed forms and whole Hessians."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.tolerances import EPS, ROUNDING, of_slope

jax.config.update("jax_enable_x64", True)

STRENGTH = 2.0
SCALAR = fl.Task([[1.0]], [[STRENGTH]])  # L = (s - w2 w1)^2 / 2


def scalar(first, second):
    """A 1-1-1 linear network."""
    return fl.LinearNetwork([[[first]], [[second]]])


def test_ridge_regression_ends_where_its_normal_equations_say(seed):
    """(Sigma_x + decay) W = Sigma_yx, and the Hessian is Sigma_x + decay, once for each output."""
    rng = np.random.default_rng(seed)
    x, y, decay = rng.normal(size=(9, 3)), rng.normal(size=(9, 2)), 0.3
    task = fl.Task(x, y)
    network = fl.LinearNetwork([rng.normal(size=(2, 3))])
    point = fl.polish(network, task, weight_decay=decay)
    curvature = x.T @ x / 9 + decay * np.eye(3)
    expected = np.linalg.solve(curvature, x.T @ y / 9).T
    np.testing.assert_allclose(point.network.weights[0], expected, rtol=0, atol=ROUNDING)
    twice = np.sort(np.tile(np.linalg.eigvalsh(curvature), 2))
    np.testing.assert_allclose(point.eigenvalues, twice, rtol=ROUNDING)
    assert point.converged
    assert point.index == 0
    assert point.nullity == 0
    moved = np.linalg.norm(expected - network.weights[0])
    np.testing.assert_allclose(point.moved, moved, rtol=ROUNDING)


@pytest.mark.parametrize("size", [1e-3, 1e-12, 1e-20])
def test_the_saddle_that_small_weights_leave_is_found_as_a_saddle(size):
    """At w = 0 the Hessian is ((0, -s), (-s, 0)), its eigenvalues -s and s."""
    point = fl.polish(scalar(size, -2 * size), SCALAR)
    assert point.converged
    assert point.index == 1
    assert point.nullity == 0
    np.testing.assert_allclose(point.eigenvalues, [-STRENGTH, STRENGTH], rtol=ROUNDING)
    assert max(abs(float(w[0, 0])) for w in point.network.weights) <= 1e3 * EPS * size
    assert point.loss == STRENGTH**2 / 2


def test_a_minimum_among_many_is_the_one_near_by():
    """On w2 w1 = s the Hessian's eigenvalues are 0, along the minima, and w1^2 + w2^2."""
    first, second = 2.0, 1.01
    point = fl.polish(scalar(first, second), SCALAR)
    w1, w2 = (float(w[0, 0]) for w in point.network.weights)
    assert point.converged
    assert point.index == 0
    assert point.nullity == 1
    assert abs(w1 * w2 - STRENGTH) <= 8 * EPS
    np.testing.assert_allclose(point.eigenvalues, [0, w1**2 + w2**2], atol=ROUNDING)
    nearest = abs(STRENGTH - first * second) / np.hypot(first, second)  # up to the bend over it
    np.testing.assert_allclose(point.moved, np.hypot(w1 - first, w2 - second), rtol=1e-9)
    assert 0.99 * nearest < point.moved < 2 * nearest


@pytest.fixture(scope="module")
def late():
    """A task, and the networks of its flow at two times at which it has nearly ended."""
    rng = np.random.default_rng(5)
    task = fl.Task(rng.normal(size=(9, 2)), rng.normal(size=(9, 2)))
    network = fl.LinearNetwork.init(task, 3, 0.5, key=jax.random.key(1))
    return task, *(fl.gradient_flow(network, task, t, rtol=1e-10).final for t in (36.0, 37.0))


def test_the_end_of_a_flow_is_polished_and_its_rate_is_the_least_curvature(late):
    """Late in a flow the distance from its end decays at the least eigenvalue that is not 0."""
    task, first, second = late
    point = fl.polish(second, task)
    assert point.converged
    assert point.index == 0
    curved = np.asarray(point.eigenvalues)[int(point.nullity) :]
    far = [float(fl.distance(one, point.network)) for one in (first, second)]
    np.testing.assert_allclose(np.log(far[0] / far[1]), curved[0], rtol=1e-3)


@pytest.mark.slow
def test_any_module_with_frozen_arrays_and_cross_entropy():
    """The other arrays stay, and the eigenvalues are those of JAX's own Hessian."""
    rng = np.random.default_rng(3)
    x, labels = (
        jnp.asarray(rng.normal(size=(12, 2))),
        jnp.asarray(np.eye(3)[rng.integers(3, size=12)]),
    )
    task = fl.Task(x, labels)
    module = eqx.nn.Linear(2, 3, dtype=jnp.float64, key=jax.random.key(0))
    only_bias = eqx.tree_at(lambda m: m.bias, jax.tree.map(lambda _: False, module), True)
    point = fl.polish(module, task, loss=fl.CrossEntropy(), trainable=only_bias)
    np.testing.assert_array_equal(point.network.weight, module.weight)
    assert isinstance(point.network, eqx.nn.Linear)

    def loss(bias):
        logits = x @ module.weight.T + bias[None]
        return -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(logits), axis=1))

    np.testing.assert_allclose(jax.grad(loss)(point.network.bias), 0, atol=64 * EPS)
    expected = np.linalg.eigvalsh(jax.hessian(loss)(point.network.bias))
    np.testing.assert_allclose(point.eigenvalues, expected, atol=ROUNDING)
    # A shift of all logits changes nothing: one flat direction.
    assert point.converged
    assert point.nullity == 1
    assert point.index == 0


def test_a_minimum_on_a_kink_is_told():
    """Samples +1 and -1, both with target -1: the loss has slope 1/2 on both sides of w = 0."""
    task = fl.Task([[1.0], [-1.0]], [[-1.0], [-1.0]])
    network = fl.ReLUNetwork([[[0.5]], [[1.0]]])
    only_first = eqx.tree_at(lambda n: n.weights[0], jax.tree.map(lambda _: False, network), True)
    with pytest.warns(fl.PolishWarning, match="kink"):
        point = fl.polish(network, task, trainable=only_first)
    assert not point.converged
    assert "NOT converged" in repr(point)
    assert point.gradient_norm >= 0.5


def test_a_flat_hessian_is_not_called_a_minimum():
    """At w = 0 of three layers the loss is flat to second order, and w3 w2 w1 = s is below it."""
    point = fl.polish(fl.LinearNetwork([[[0.0]]] * 3), SCALAR)
    assert point.converged
    assert point.index == 0
    assert point.nullity == 3
    assert "a minimum to second order" in repr(point)


def test_a_network_that_is_nan_is_told():
    network = scalar(1.0, 1.0)
    broken = network.with_parameters(jax.tree.map(lambda w: w * jnp.nan, network.parameters))
    with pytest.raises(ValueError, match=r"`network.* NaN"):
        fl.polish(broken, SCALAR)
    assert np.isnan(fl.measures.gradient_norm(broken, SCALAR))


@pytest.mark.slow
def test_it_is_the_same_under_jit_and_vmap_and_in_float32():
    starts = jnp.asarray([[0.9, 2.0], [1.5, 1.5], [-2.0, -1.1]])

    def end(start):
        return fl.polish(fl.LinearNetwork([start[:1, None], start[1:, None]]), SCALAR)

    each = [end(start) for start in starts]
    for found in (jax.vmap(end)(starts), eqx.filter_jit(jax.vmap(end))(starts)):
        assert bool(found.converged.all())
        np.testing.assert_allclose(
            found.eigenvalues, [one.eigenvalues for one in each], atol=ROUNDING
        )
    small = scalar(np.float32(1.5), np.float32(1.2))
    point = fl.polish(small, SCALAR)
    assert point.eigenvalues.dtype == jnp.float32
    assert point.converged
    assert abs(float(point.network.weights[0][0, 0] * point.network.weights[1][0, 0]) - 2) < 1e-6


@pytest.mark.slow
def test_derivatives_by_the_task_are_those_of_the_point():
    network = fl.LinearNetwork([[[0.5]]])

    def weight(y):
        point = fl.polish(network, fl.Task(jnp.asarray([[2.0]]), y[None, None]), weight_decay=0.5)
        return point.network.weights[0][0, 0]

    step = 1e-4
    y = jnp.asarray(1.5)
    difference = (weight(y + step) - weight(y - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(weight)(y), difference, rtol=of_slope(step))
    np.testing.assert_allclose(jax.grad(weight)(y), 2 / 4.5, rtol=ROUNDING)
