"""Any function of one sample's output and target as the loss."""

import functools
import pickle

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import flowlin as fl

TASK = fl.tasks.xor()
LINEAR = fl.LinearNetwork.init(TASK, 3, 0.1, key=jax.random.key(0))
RELU = fl.ReLUNetwork.init(TASK, 3, 0.5, key=jax.random.key(1))


def half_square(output, target):
    return 0.5 * jnp.sum((target - output) ** 2)


def huber(output, target, delta=0.3):
    return jnp.sum(optax.huber_loss(output, target, delta=delta))


def close(a, b, tolerance=1e-12):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_the_same_function_is_the_same_flow():
    events = fl.LossBelow(0.4)
    own, known = (
        fl.gradient_flow(LINEAR, TASK, 3.0, loss=loss, rtol=1e-10, events=events)
        for loss in (half_square, fl.SquaredError())
    )
    close(own.losses, known.losses)
    close(own.final.parameters, known.final.parameters)
    close(own.events.time, known.events.time, 1e-9)
    assert len(own.events) == len(known.events) > 0


def test_the_same_function_compiles_once():
    traced = []

    def loss(output, target):
        traced.append(output)
        return half_square(output, target)

    short = fl.gradient_flow(LINEAR, TASK, 1.0, loss=loss)
    before = len(traced)
    fl.gradient_flow(LINEAR, TASK, 2.0, loss=loss)
    assert len(traced) == before
    assert "mean of loss" in repr(short)


def test_descent_is_a_loop_of_its_gradients():
    """With decay of one rate per layer, and flow and descent compared by this loss."""
    decay = [0.1, 0.3]
    loss = functools.partial(huber, delta=0.2)
    descent = fl.gradient_descent(LINEAR, TASK, 0.1, 20, loss=loss, weight_decay=decay)

    def total(parameters):
        (w1, w2), (b, _) = parameters
        outputs = (TASK.x @ w1.T + b) @ w2.T
        off = jnp.abs(outputs - TASK.y)
        data = jnp.mean(jnp.sum(jnp.where(off < 0.2, off**2 / 2, 0.2 * (off - 0.1)), axis=1))
        pull = decay[0] * (jnp.sum(w1**2) + jnp.sum(b**2)) + decay[1] * jnp.sum(w2**2)
        return data + pull / 2, data

    gradient = jax.jit(jax.grad(total, has_aux=True))
    parameters = LINEAR.parameters
    for k in range(21):
        slope, data = gradient(parameters)
        assert float(descent.losses[k]) == pytest.approx(float(data), rel=1e-12)
        if k < 20:
            parameters = jax.tree.map(lambda w, g: w - 0.1 * g, parameters, slope)
    close(descent.final.parameters, parameters)
    assert repr(descent.reference.loss) == "mean of huber"
    start = fl.measures.loss(LINEAR, TASK, loss=loss)
    assert float(start) == pytest.approx(float(descent.losses[0]), rel=1e-12)
    same = fl.compare(descent, descent)
    assert float(jnp.max(jnp.abs(same.loss))) == 0.0


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda output, target: (output - target) ** 2, r"makes float64 of shape \(2,\); sum or"),
        (lambda output, target: jnp.any(output > target), "makes bool of shape"),
        (lambda output, target: (output[0], 1), "makes a tuple"),
        (lambda output: output, r"must be a function of \(output, target\), and takes"),
        (3.0, r"a loss of flowlin or a function of \(output, target\) of one sample, got 3.0"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_other_functions_are_told_at_every_door(loss, message):
    doors = (
        lambda: fl.gradient_flow(LINEAR, TASK, 1.0, loss=loss),
        lambda: fl.gradient_flow(RELU, TASK, 1.0, loss=loss),
        lambda: fl.gradient_descent(LINEAR, TASK, 0.1, 1, loss=loss),
        lambda: fl.sweep([LINEAR], TASK, 1.0, loss=loss),
        lambda: fl.largest_learning_rate(LINEAR, TASK, 1.0, loss=loss),
        lambda: fl.measures.loss(LINEAR, TASK, loss=loss),
        lambda: fl.measures.velocity(LINEAR, TASK, loss=loss),
    )
    for door in doors:
        with pytest.raises(ValueError, match=f"`loss`.*{message}"):
            door()


@pytest.mark.usefixtures("without_type_checks")
def test_what_needs_the_squared_error_says_so():
    with pytest.raises(ValueError, match=r"`loss` must be fl.SquaredError\(\), got function"):
        fl.theory.early_phase(RELU, TASK, loss=huber)  # pyright: ignore
    flow = fl.gradient_flow(LINEAR, fl.Task(np.ones((9, 2)), np.ones((9, 2))), 1.0, loss=huber)
    assert flow.stats["objective"] == "FullData"


def test_files_keep_its_name(tmp_path):
    def mine(output, target):
        return half_square(output, target)

    flow = fl.gradient_flow(LINEAR, TASK, 1.0, loss=mine, checkpoint=tmp_path / "run")
    flow.save(tmp_path / "flow.npz")
    for found in (fl.load(tmp_path / "flow.npz"), pickle.loads(pickle.dumps(flow))):
        assert repr(found.reference.loss) == "mean of mine, known by name"
        with pytest.raises(ValueError, match="the loss mine was read from a file"):
            fl.measures.loss(LINEAR, TASK, loss=found.reference.loss)
    with pytest.raises(ValueError, match="of a run with another loss"):
        fl.gradient_flow(LINEAR, TASK, 1.0, loss=half_square, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="of a run with another weight_decay"):
        fl.gradient_flow(
            LINEAR, TASK, 1.0, loss=mine, checkpoint=tmp_path / "run", weight_decay=0.1
        )
