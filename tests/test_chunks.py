"""Chunks of samples: the numbers of one pass, in memory that does not grow with the samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin.training import objective as chunks
from flowlin.training.objective import FullData
from flowlin.training.rules import objective

SAMPLES = 131  # seven chunks of 18 rows and 5 rows over


def data(samples: int = SAMPLES) -> fl.Task:
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (samples, 5))
    return fl.Task(x, jax.nn.one_hot(jax.random.categorical(keys[1], x[:, :3]), 3))


@pytest.fixture
def small(monkeypatch):
    """Chunks of at least 16 rows."""
    monkeypatch.setattr(chunks, "ROWS", 16)
    monkeypatch.setitem(chunks.BYTES, "cpu", 1)


def relu(task, hidden=(6,)):
    return fl.ReLUNetwork.init(task, hidden, 0.3, key=jax.random.key(1))


def goal(network, task, loss=fl.SquaredError(), kinks=fl.IgnoreKinks()):
    return FullData(task, loss, kinks.width)


def close(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def cases():
    task = data()
    deep, wide = relu(task, (6, 4)), relu(task)
    return {
        "relu": (wide, {}),
        "sum": (wide, {"loss": fl.SquaredError("sum")}),
        "cross-entropy, deep": (deep, {"loss": fl.CrossEntropy()}),
        "smooth": (wide, {"kinks": fl.SmoothKinks(0.3)}),
        "gates of samples": (deep.frozen(task), {}),
        "gates of units": (wide.always_on(task), {}),
        "linear": (fl.LinearNetwork(deep.weights, deep.biases), {"loss": fl.CrossEntropy()}),
    }


@pytest.mark.parametrize("name", cases())
def test_chunks_give_the_numbers_of_one_pass(name, small, monkeypatch):
    network, options = cases()[name]
    task = data()
    assert chunks.pieces(SAMPLES, 6, 8) == 8
    many = goal(network, task, **options)
    found = many.value_and_gradient(network)
    close(many.value(network), found[0])
    monkeypatch.setattr(chunks, "ROWS", 1000)
    close(found, goal(network, task, **options).value_and_gradient(network))
    loss = options.get("loss", fl.SquaredError())
    if "kinks" not in options:
        close(found[0], loss(network.outputs(task.x), task.y))


def test_small_tasks_are_one_pass():
    task = fl.tasks.digits()
    assert chunks.pieces(task.samples, 64, 8) == 1
    network = relu(task)
    plain = jax.grad(
        lambda p: fl.SquaredError()(network.with_parameters(p).outputs(task.x), task.y)
    )
    for a, b in zip(
        jax.tree.leaves(goal(network, task).gradient(network)),
        jax.tree.leaves(plain(network.parameters)),
        strict=True,
    ):
        assert np.array_equal(a, b)


def test_statistics_in_chunks(small, monkeypatch):
    task = data()
    network = fl.LinearNetwork.init(task, 4, 0.3, key=jax.random.key(2))
    found = objective(network, task, fl.SquaredError())
    full = goal(network, task)
    close(found.gradient(network), full.gradient(network))
    close(found.value(network), full.value(network))
    monkeypatch.setattr(chunks, "ROWS", 1000)
    jax.clear_caches()  # the size of a chunk is no argument of the jitted function
    close(found.expansion.sigma_x, objective(network, task, fl.SquaredError()).expansion.sigma_x)


def test_gradient_is_the_slope_of_the_value_and_has_one_itself(small):
    task = data()
    network = relu(task)
    many = goal(network, task, kinks=fl.SmoothKinks(0.3))

    def value(w):
        return many.value(network.with_parameters(((w, network.weights[1]), network.biases)))

    def squared(w):
        moved = network.with_parameters(((w, network.weights[1]), network.biases))
        return jnp.sum(many.gradient(moved)[0][0] ** 2)

    w, along = network.weights[0], jax.random.normal(jax.random.key(3), (6, 5))
    slope = jnp.vdot(many.gradient(network)[0][0], along)
    h = 1e-5
    for function, found in ((value, slope), (squared, jnp.vdot(jax.grad(squared)(w), along))):
        difference = (function(w + h * along) - function(w - h * along)) / (2 * h)
        np.testing.assert_allclose(found, difference, rtol=1e-7)


def memory(function, *arguments) -> int:
    """Bytes that a compiled function takes besides arguments and results."""
    made = jax.jit(function).lower(*arguments).compile()
    return made.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("derivative", [False, True])
def test_memory_does_not_grow_with_the_samples(derivative, monkeypatch):
    monkeypatch.setattr(chunks, "ROWS", 64)
    monkeypatch.setitem(chunks.BYTES, "cpu", 1)

    def field(many, network):
        return many.gradient(network)

    def reverse(many, network):
        def squared(p):
            return sum(
                jnp.sum(g**2) for g in jax.tree.leaves(field(many, network.with_parameters(p)))
            )

        return jax.grad(squared)(network.parameters)

    found = []
    for samples in (640, 6400):
        task = data(samples)
        network = relu(task, (32,))
        found.append(memory(reverse if derivative else field, goal(network, task), network))
    assert found[1] < 1.1 * found[0]
    assert found[1] < 640 * 32 * 8  # one array of pairs of the smaller task


def test_linear_statistics_take_no_copy_of_the_task(monkeypatch):
    monkeypatch.setitem(chunks.BYTES, "cpu", 2**16)
    task = data(20_000)
    network = fl.LinearNetwork.init(task, 4, key=jax.random.key(2))
    used = memory(lambda t: objective(network, t, fl.SquaredError()).expansion.sigma_x, task)
    assert used < 20_000 * 6 * 8
