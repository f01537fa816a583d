"""Initial weights: normal draws, balanced and lambda-balanced factors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import flowlin as fl
from tests import budget

BALANCE = 1e-12
BIAS = pytest.param(False, marks=pytest.mark.slow), True


def task_of(inputs, outputs, dtype=jnp.float64):
    return fl.Task(jnp.ones((2, inputs), dtype), jnp.ones((2, outputs), dtype))


def factors(network):
    """The layers' matrices in numpy, the raw first bias as the first column of the first."""
    weights = [np.asarray(w) for w in network.weights]
    assert all(b is None for b in network.biases[1:])
    if network.biases[0] is not None:
        weights[0] = np.column_stack([network.biases[0], weights[0]])
    return weights


def end_to_end(weights):
    return functools.reduce(lambda product, w: w @ product, weights)


def imbalances(weights):
    """W_{l+1}^T W_{l+1} - W_l W_l^T for every hidden layer."""
    pairs = zip(weights[1:], weights[:-1], strict=True)
    return [after.T @ after - before @ before.T for after, before in pairs]


def test_normal_draws_have_their_layers_variances(key):
    variances = (1e-4, 4e-2, 9.0)

    network = fl.ReLUNetwork.init(task_of(200, 200), (200, 200), variances, (True,) * 3, key=key)
    arrays = []
    for w, b, variance in zip(*network.parameters, variances, strict=True):
        for array in (w, b):
            values = np.ravel(array) / np.sqrt(variance)
            arrays.append(values)
            # The sample variance of n normal values has the relative deviation sqrt(2 / n).
            assert abs(np.var(values) - 1) < 5 * np.sqrt(2 / values.size)
            assert abs(np.mean(values)) < 5 / np.sqrt(values.size)
            assert stats.kstest(values, "norm").pvalue > 1e-3
    # No two of the arrays are the same draw.
    for i, one in enumerate(arrays):
        for other in arrays[:i]:
            n = min(one.size, other.size)
            assert not np.any(abs(one[:n] - other[:n]) < 1e-12)


def test_one_variance_serves_all_layers_and_scales_the_draw(key):
    task = task_of(3, 2)
    unit = fl.LinearNetwork.init(task, 4, 1.0, True, key=key)
    small = fl.LinearNetwork.init(task, (4,), 2e-4, (True, False), key=key)
    default = fl.LinearNetwork.init(task, 4, key=key)
    for parameters in (small.parameters, default.parameters):
        assert jax.tree.structure(parameters) == jax.tree.structure(unit.parameters)
        for a, b in zip(jax.tree.leaves(parameters), jax.tree.leaves(unit.parameters), strict=True):
            np.testing.assert_allclose(a, np.sqrt(2e-4) * b, rtol=1e-14)
    zero = fl.LinearNetwork.init(task, 4, 0.0, key=key)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(zero.parameters))


def test_draws_are_those_of_jax_random_layer_by_layer(key):
    variances = (0.5, 2.0)
    network = fl.ReLUNetwork.init(task_of(3, 2), 4, variances, (True, True), key=key)
    parameters = zip(*network.parameters, jax.random.split(key, 2), variances, strict=True)
    for w, b, layer_key, variance in parameters:
        assert b is not None
        w_key, b_key = jax.random.split(layer_key)
        scale = np.sqrt(variance)
        np.testing.assert_array_equal(w, scale * jax.random.normal(w_key, w.shape))
        np.testing.assert_array_equal(b, scale * jax.random.normal(b_key, b.shape))


def network_of(width, key):
    return fl.ReLUNetwork.init(task_of(3, 2), width, 0.3, (True, True), key=key)


def weights_of(width, key):
    """Of a network, and of a chain of nodes; all have biases."""
    nodes, edges = {"in": 3, "a": width, "out": 2}, [("in", "a"), ("a", "out")]
    graph = fl.GatedGraph.init(task_of(3, 2), nodes, edges, variance=0.3, key=key)
    return jax.tree.leaves((network_of(width, key).parameters, graph.parameters))


def test_other_shapes_need_no_other_program_and_are_drawn_as_in_one(key):
    """Small arrays are the beginnings of longer ones; under `jit` each has its own shape."""
    weights_of(4, key)
    before = budget.spent["programs"]
    found = weights_of(7, key)
    assert budget.spent["programs"] == before
    old = jax.random.PRNGKey(0)  # of the same bits
    for a, b in zip(found, weights_of(7, old), strict=True):
        np.testing.assert_array_equal(a, b)
    traced = jax.jit(lambda key: network_of(7, key).parameters)(key)
    for a, b in zip(jax.tree.leaves(traced), found[:4], strict=True):
        np.testing.assert_array_equal(a, b)


def test_biases_are_where_they_are_asked_for(key):
    task = task_of(3, 2)

    def drawn(bias):
        network = fl.ReLUNetwork.init(task, 4, bias=bias, key=key)
        return network, [b is not None for b in network.biases]

    assert drawn(True)[1] == [True, False]
    assert drawn(False)[1] == [False, False]
    mixed, flags = drawn((False, True))
    assert flags == [False, True]
    # The other draws are the same with and without a bias.
    full = drawn((True, True))[0]
    for a, b in zip(mixed.weights, full.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(mixed.biases[1], full.biases[1])


@pytest.mark.parametrize("bias", BIAS)
@pytest.mark.parametrize(
    ("hidden", "columns", "outputs"),
    [((5,), 5, 3), ((5, 6), 5, 3), ((6, 5, 6), 5, 3), ((5,), 3, 5), ((6, 5, 6), 3, 5)],
)
def test_balanced_keeps_the_product_and_balances(bias, hidden, columns, outputs, key):
    product = np.random.default_rng(0).normal(size=(outputs, columns))
    network = fl.LinearNetwork.balanced(
        task_of(columns - bias, outputs),
        hidden,
        bias=bias,
        bias_strength=3.0,
        product=product,
        key=key,
    )
    assert network.hidden == hidden
    assert (network.biases[0] is not None) == bias
    assert network.bias_strength == 3.0
    weights = factors(network)
    np.testing.assert_allclose(end_to_end(weights), product, atol=BALANCE)
    for imbalance in imbalances(weights):
        np.testing.assert_allclose(imbalance, 0, atol=BALANCE)
    # The balanced factors of a product are its L-th roots: each has its singular values^(1/L).
    roots = np.linalg.svd(product, compute_uv=False) ** (1 / len(weights))
    for w in weights:
        values = np.linalg.svd(w, compute_uv=False)
        np.testing.assert_allclose(values[: len(roots)], roots, atol=1e-12)
        np.testing.assert_allclose(values[len(roots) :], 0, atol=1e-12)


@pytest.mark.parametrize("bias", BIAS)
def test_balanced_by_default_takes_the_product_of_a_normal_draw(bias, key):
    task = task_of(5 - bias, 3)

    def network(k, variance=1.0):
        return fl.LinearNetwork.balanced(task, 5, variance, bias, key=k)

    one = factors(network(key))
    np.testing.assert_allclose(imbalances(one)[0], 0, atol=BALANCE)
    quarter = end_to_end(factors(network(key, 0.25)))
    np.testing.assert_allclose(quarter, 0.25 * end_to_end(one), atol=1e-12)
    # Entries of the product of two unit draws have mean 0, variance H and kurtosis 3 + 6 / H.
    many = np.stack([end_to_end(factors(network(k))) for k in jax.random.split(key, 40)])
    assert abs(many.var() / 5 - 1) < 5 * np.sqrt((2 + 6 / 5) / many.size)
    assert abs(many.mean()) < 5 * np.sqrt(5 / many.size)


def test_balanced_turns_the_hidden_layer_at_random(key):
    product = np.eye(3, 5)
    one, other = (
        fl.LinearNetwork.balanced(task_of(5, 3), 5, bias=False, product=product, key=k)
        for k in jax.random.split(key)
    )
    assert np.linalg.norm(one.weights[0] - other.weights[0]) > 0.1
    np.testing.assert_allclose(one.affine()[0], other.affine()[0], atol=1e-12)


@pytest.mark.parametrize("balance", [0.0, 0.5, -0.5])
@pytest.mark.parametrize("given", [True, False])
def test_balanced_through_a_bottleneck(balance, given, key):
    """A product of rank 2 has a balanced factorisation through two units, and so has a draw."""
    rng = np.random.default_rng(0)
    product = rng.normal(size=(3, 2)) @ rng.normal(size=(2, 5))
    network = fl.LinearNetwork.balanced(
        task_of(5, 3),
        2,
        1.0,
        bias=False,
        balance=balance,
        product=product if given else None,
        key=key,
    )
    weights = factors(network)
    np.testing.assert_allclose(imbalances(weights)[0], balance * np.eye(2), atol=BALANCE)
    if given:
        np.testing.assert_allclose(end_to_end(weights), product, atol=BALANCE)


@pytest.mark.parametrize(
    ("balance", "columns", "outputs", "hidden"),
    [
        (0.7, 5, 3, 3),
        (0.7, 3, 5, 4),
        (1e-3, 3, 5, 5),
        (25.0, 3, 5, 3),
        (-0.7, 3, 5, 3),
        (-0.7, 5, 3, 4),
        (-1e-3, 5, 3, 5),
        (-25.0, 5, 3, 3),
    ],
)
@pytest.mark.parametrize("bias", BIAS)
def test_lambda_balanced(balance, columns, outputs, bias, hidden, key):
    product = np.random.default_rng(1).normal(size=(outputs, columns))
    network = fl.LinearNetwork.balanced(
        task_of(columns - bias, outputs),
        hidden,
        bias=bias,
        balance=balance,
        product=product,
        key=key,
    )
    weights = factors(network)
    np.testing.assert_allclose(end_to_end(weights), product, atol=BALANCE)
    (imbalance,) = imbalances(weights)
    atol = BALANCE * max(1, abs(balance))
    np.testing.assert_allclose(imbalance, balance * np.eye(hidden), atol=atol)


def test_lambda_balanced_by_default_takes_a_normal_draw(key):
    task = task_of(5, 3)
    network = fl.LinearNetwork.balanced(task, 3, bias=False, balance=0.5, key=key)
    (imbalance,) = imbalances(factors(network))
    np.testing.assert_allclose(imbalance, 0.5 * np.eye(3), atol=BALANCE)
    balanced = fl.LinearNetwork.balanced(task, 3, bias=False, key=key)
    one, other = (end_to_end(factors(n)) for n in (network, balanced))
    np.testing.assert_allclose(one, other, atol=1e-15)


@pytest.mark.slow
def test_balanced_in_float32(key):
    task = task_of(5, 3, jnp.float32)
    product = np.random.default_rng(0).normal(size=(3, 5))
    for balance in (0.0, 0.5):
        network = fl.LinearNetwork.balanced(
            task, 3, bias=False, balance=balance, product=product, key=key
        )
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(network))
        (imbalance,) = imbalances(factors(network))
        np.testing.assert_allclose(imbalance, balance * np.eye(3), atol=1e-5)
        np.testing.assert_allclose(end_to_end(factors(network)), product, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(hidden=(5, 2)), r"`hidden` has a layer of 2 units, .* rank 3"),
        (
            dict(hidden=6, balance=-0.1),
            r"at most as many hidden units as inputs \(bias included\), 5, got 6",
        ),
        (dict(hidden=5, bias=False), r"`product` must have shape \(3, 4\), got \(3, 5\)"),
        (dict(hidden=5, product=np.full((3, 5), np.nan)), r"NaN"),
    ],
)
def test_impossible_balance(arguments, message, key):
    """Four inputs and a bias to three outputs, for a product of full rank."""
    arguments = {"product": np.eye(3, 5), **arguments}
    with pytest.raises(ValueError, match=message):
        fl.LinearNetwork.balanced(task_of(4, 3), **arguments, key=key)
