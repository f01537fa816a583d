"""Gradient norm, sharpness, tangent kernels: against formulas, whole Hessians and Jacobians."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import flowlin as fl
from tests.tolerances import ROUNDING

jax.config.update("jax_enable_x64", True)

gradient_norm = fl.measures.gradient_norm
sharpness = fl.measures.sharpness
tangent_kernel = fl.measures.tangent_kernel


def gaussian(samples, inputs, outputs, seed, **options):
    rng = np.random.default_rng(seed)
    return fl.Task(
        rng.normal(size=(samples, inputs)), rng.normal(size=(samples, outputs)), **options
    )


def mlp(width, seed=0):
    """A smooth module of three inputs and two outputs."""
    key = jax.random.key(seed)
    return eqx.nn.MLP(3, 2, width, 2, activation=jnp.tanh, dtype=jnp.float64, key=key)


def hessian(module, task):
    """The whole Hessian of half the mean square by all arrays."""
    moves, rest = eqx.partition(module, eqx.is_inexact_array)
    vector, back = ravel_pytree(moves)

    def loss(v):
        outputs = jax.vmap(eqx.combine(back(v), rest))(task.x)
        return jnp.sum((outputs - task.y) ** 2) / (2 * len(task.x))

    return np.asarray(jax.jit(jax.hessian(loss))(vector))


def test_sharpness_of_a_relu_network_is_that_of_the_whole_hessian(seed):
    task = gaussian(5, 3, 2, seed)
    network = fl.ReLUNetwork.init(task, 3, 0.5, key=jax.random.key(seed))

    class ByHand(eqx.Module):
        weights: tuple
        biases: tuple

        def __call__(self, x):
            z = self.weights[0] @ x + network.bias_strength * self.biases[0]
            return self.weights[1] @ jnp.where(z > 0, z, 0.0)

    assert network.biases[1] is None
    expected = np.linalg.eigvalsh(hessian(ByHand(network.weights, network.biases), task))[::-1]
    found = sharpness(network, task, count=18)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING * expected[0])
    assert sharpness(network, task) == pytest.approx(expected[0], rel=ROUNDING)


@pytest.mark.parametrize("outputs", [2, 60])  # by the whole Hessian, and by products
def test_sharpness_of_one_linear_layer_is_that_of_the_inputs(outputs, seed):
    """The Hessian is the inputs' correlation matrix, once for every output."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 2.0, 9)
    task = gaussian(9, 5, outputs, seed, weights=weights)
    network = fl.LinearNetwork((rng.normal(size=(outputs, 5)),))
    x = np.asarray(task.x)
    expected = np.linalg.eigvalsh(x.T @ (weights[:, None] * x) / weights.sum())[::-1]
    expected = np.repeat(expected, outputs)[:3]
    np.testing.assert_allclose(sharpness(network, task, count=3), expected, rtol=1e-10)
    of_sum = sharpness(network, task, loss=fl.SquaredError("sum"), count=3)
    np.testing.assert_allclose(of_sum, weights.sum() * expected, rtol=1e-10)
    flat = fl.Task(0 * task.x, task.y, weights=weights)
    assert np.array_equal(sharpness(network, flat, count=3), np.zeros(3))


@pytest.fixture(scope="module")
def smooth():
    """A module of more than 256 parameters, a task, and the whole Hessian."""
    task, module = gaussian(7, 3, 2, 0), mlp(14)
    return module, task, hessian(module, task)


@pytest.mark.slow
def test_sharpness_of_a_module_with_many_parameters_by_products_alone(smooth):
    module, task, whole = smooth
    expected = np.linalg.eigvalsh(whole)[::-1]
    assert len(expected) > 256
    assert expected[-1] < 0
    np.testing.assert_allclose(sharpness(module, task, count=4), expected[:4], rtol=1e-9)


def readout(leaf):
    return np.shape(leaf) == (2, 14)


@pytest.mark.slow
def test_sharpness_by_those_arrays_that_move(smooth):
    module, task, whole = smooth
    marks = jax.tree.map(
        lambda a: np.full(a.shape, readout(a)), eqx.filter(module, eqx.is_inexact_array)
    )
    moves = np.concatenate([np.ravel(mark) for mark in jax.tree.leaves(marks)])
    expected = np.linalg.eigvalsh(whole[moves][:, moves])[::-1]
    found = sharpness(module, task, trainable=readout, count=28)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * expected[0])


PAIR = fl.Task([[1.0]], [[1.0]])


def pair_network(a, b):
    """The function a b x."""
    return fl.LinearNetwork((jnp.reshape(b, (1, 1)), jnp.reshape(a, (1, 1))))


def pair_sharpness(a, b):
    """Largest eigenvalue of the Hessian of (a b - 1)^2 / 2."""
    return (a**2 + b**2) / 2 + np.hypot((a**2 - b**2) / 2, 2 * a * b - 1)


def test_sharpness_of_two_weights_and_its_derivative_are_closed_forms():
    value, slope = jax.value_and_grad(lambda a: sharpness(pair_network(a, jnp.asarray(0.7)), PAIR))(
        jnp.asarray(1.3)
    )
    h = 1e-5
    difference = (pair_sharpness(1.3 + h, 0.7) - pair_sharpness(1.3 - h, 0.7)) / (2 * h)
    assert value == pytest.approx(pair_sharpness(1.3, 0.7), rel=ROUNDING)
    assert slope == pytest.approx(difference, rel=1e-8)


def test_sharpness_along_a_run_and_recorded_during_it():
    run = fl.gradient_descent(
        pair_network(jnp.asarray(0.3), jnp.asarray(0.5)), PAIR, 0.1, 40, save_every=20,
        observe={"sharpness": sharpness, "a": lambda n, _: n.weights},
    )  # fmt: skip
    b, a = (np.ravel(w) for w in run.observed["a"])
    np.testing.assert_allclose(run.observed["sharpness"], pair_sharpness(a, b), rtol=1e-12)
    stacked = jax.vmap(pair_network)(jnp.asarray(a), jnp.asarray(b))
    two = functools.partial(sharpness, count=2)
    found = fl.measures.along(stacked, two, PAIR)
    np.testing.assert_allclose(found[:, 0], run.observed["sharpness"], rtol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), a**2 + b**2, rtol=1e-12)


def test_more_eigenvalues_than_fit_into_memory_are_refused():
    wide = fl.LinearNetwork((np.ones((10**5, 4)),))
    task = fl.Task(np.ones((1, 4)), np.ones((1, 10**5)))
    with pytest.raises(ValueError, match=r"`count` = 100000 of 400000 eigenvalues asks for .* GiB"):
        sharpness(wide, task, count=10**5)


# --- the gradient's norm --------------------------------------------------------------------


def relu_gradient(network, task, error):
    """Weights and biases of the gradient of one hidden layer, written out in NumPy.

    `error` (P, N_out) is the derivative of the loss by the outputs.
    """
    (w1, w2), b, c = network.weights, network.biases[0], float(network.bias_strength)
    w1, w2, x = (np.asarray(a) for a in (w1, w2, task.x))
    z = x @ w1.T + c * np.asarray(b)
    on = np.where(z > 0, 1.0, float(network.slope))
    back = (error @ w2) * on
    return back.T @ x, error.T @ (on * z), c * back.sum(axis=0)


def norm_of(*arrays):
    return np.sqrt(sum(np.sum(a**2) for a in arrays))


@pytest.fixture
def leaky(seed):
    """A leaky ReLU network with biases, and a task whose samples have weights."""
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, 5)
    task = gaussian(5, 3, 2, seed, weights=weights)
    key = jax.random.key(seed)
    return fl.ReLUNetwork.init(task, 4, 0.5, bias_strength=2.0, slope=0.3, key=key), task


def test_gradient_norm_of_a_relu_network_is_that_of_back_propagation_in_numpy(leaky):
    network, task = leaky
    weights = np.asarray(task.weights)[:, None]
    off = np.asarray(network.outputs(task.x)) - np.asarray(task.y)
    w1, w2, b = relu_gradient(network, task, weights * off / weights.sum())
    assert gradient_norm(network, task) == pytest.approx(norm_of(w1, w2, b), rel=ROUNDING)
    of_sum = gradient_norm(network, task, loss=fl.SquaredError("sum"))
    assert of_sum == pytest.approx(weights.sum() * norm_of(w1, w2, b), rel=ROUNDING)
    matrices = gradient_norm(network, task, trainable=lambda leaf: leaf.ndim == 2)
    assert matrices == pytest.approx(norm_of(w1, w2), rel=ROUNDING)


def test_gradient_norm_under_cross_entropy(leaky):
    """Its derivative by the outputs is what the softmax is too large by."""
    network, task = leaky
    classes = fl.Task(task.x, np.eye(2)[[0, 1, 1, 0, 1]])
    outputs = np.exp(np.asarray(network.outputs(task.x)))
    off = outputs / outputs.sum(axis=1, keepdims=True) - np.asarray(classes.y)
    expected = norm_of(*relu_gradient(network, classes, off / 5))
    found = gradient_norm(network, classes, loss=fl.CrossEntropy())
    assert found == pytest.approx(expected, rel=ROUNDING)


@pytest.mark.slow
def test_gradient_norm_of_a_module_in_another_precision():
    """A module of float32 on a task of float64, by its gradient in NumPy."""
    task = gaussian(5, 3, 2, 0)
    module = eqx.nn.Linear(3, 2, dtype=jnp.float32, key=jax.random.key(0))
    w, b, x = (np.asarray(a, np.float64) for a in (module.weight, module.bias, task.x))
    off = (x @ w.T + b - np.asarray(task.y)) / 5
    found = gradient_norm(module, task)
    assert found.dtype == jnp.float32
    assert found == pytest.approx(norm_of(off.T @ x, off.sum(axis=0)), rel=1e-5)


@pytest.mark.slow
def test_gradient_norm_of_two_weights_along_a_run_and_its_derivative():
    """Of (a b - 1)^2 / 2 it is |a b - 1| sqrt(a^2 + b^2); at a saddle its derivative is zero."""
    run = fl.gradient_descent(
        pair_network(jnp.asarray(0.3), jnp.asarray(0.5)), PAIR, 0.1, 30, save_every=10,
        observe={"norm": gradient_norm, "a": lambda n, _: n.weights},
    )  # fmt: skip
    b, a = (np.ravel(w) for w in run.observed["a"])
    expected = np.abs(a * b - 1) * np.hypot(a, b)
    np.testing.assert_allclose(run.observed["norm"], expected, rtol=1e-12)
    stacked = jax.vmap(pair_network)(jnp.asarray(a), jnp.asarray(b))
    found = fl.measures.along(stacked, gradient_norm, PAIR)
    np.testing.assert_allclose(found, expected, rtol=1e-12)

    def by_both(a):
        return gradient_norm(pair_network(a, a), PAIR)

    value, slope = jax.value_and_grad(by_both)(jnp.asarray(0.4))  # sqrt(2) (a - a^3)
    np.testing.assert_allclose([value, slope], np.sqrt(2) * np.array([0.336, 0.52]), rtol=1e-12)
    assert np.array_equal(jax.value_and_grad(by_both)(jnp.asarray(0.0)), (0.0, 0.0))


# --- the tangent kernel ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["relu", "module"])
def test_tangent_kernel_is_the_square_of_the_jacobian(kind, seed):
    task = gaussian(5, 3, 2, seed)
    relu = fl.ReLUNetwork.init(task, 4, 0.5, bias_strength=2.0, key=jax.random.key(seed))
    module = mlp(4, seed)
    network, tree = (relu, relu.parameters) if kind == "relu" else (module, module)
    moves, rest = eqx.partition(tree, eqx.is_array)
    vector, back = ravel_pytree(moves)

    def outputs(v):
        if kind == "relu":
            return relu.with_parameters(back(v)).outputs(task.x)
        return jax.vmap(eqx.combine(back(v), rest))(task.x)

    jacobian = np.asarray(jax.jit(jax.jacfwd(outputs))(vector))
    expected = np.einsum("pon,qun->poqu", jacobian, jacobian)
    found = tangent_kernel(network, task.x, by_output=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * expected.max())
    summed = np.einsum("poqo->pq", expected)
    np.testing.assert_allclose(tangent_kernel(network, task), summed, rtol=0, atol=1e-11)


def test_tangent_kernel_of_linear_networks_is_a_closed_form(seed):
    """Of one layer X X^T for each output; of two ||W2||^2 X X^T + N_out X W1^T W1 X^T."""
    rng = np.random.default_rng(seed)
    x, w1, w2 = rng.normal(size=(4, 3)), rng.normal(size=(5, 3)), rng.normal(size=(2, 5))
    one, two = fl.LinearNetwork((w1,)), fl.LinearNetwork((w1, w2))
    by_output = np.einsum("pq,ou->poqu", x @ x.T, np.eye(5))
    np.testing.assert_allclose(tangent_kernel(one, x, by_output=True), by_output, atol=1e-12)
    expected = np.sum(w2**2) * x @ x.T + 2 * x @ w1.T @ w1 @ x.T
    np.testing.assert_allclose(tangent_kernel(two, x), expected, rtol=1e-11, atol=1e-11)
    of_readout = tangent_kernel(two, x, trainable=lambda leaf: leaf.shape == (2, 5))
    np.testing.assert_allclose(of_readout, 2 * x @ w1.T @ w1 @ x.T, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
def test_tangent_kernel_along_networks_and_in_the_loss_that_falls():
    """The rate at which the loss of a flow falls is the error's form in the kernel."""
    task = gaussian(4, 3, 2, 0)
    networks = [fl.LinearNetwork.init(task, 4, 0.3, key=jax.random.key(k)) for k in range(2)]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *networks)
    by_output = functools.partial(tangent_kernel, by_output=True)
    found = np.asarray(fl.measures.along(stacked, by_output, task))
    for network, kernel in zip(networks, found, strict=True):
        error = (np.asarray(network.outputs(task.x)) - np.asarray(task.y)) / 4
        velocity = fl.measures.velocity(network, task)
        fall = sum(float(jnp.sum(v**2)) for v in jax.tree.leaves(velocity))
        assert np.einsum("po,poqu,qu", error, kernel, error) == pytest.approx(fall, rel=1e-11)
