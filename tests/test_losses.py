"""Losses: squared error, cross-entropy, and any function of one sample's output and target."""

import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import special

import flowlin as fl
from tests.by_hand import ByHand
from tests.tolerances import ROUNDING

TASK = fl.tasks.xor()
LINEAR = fl.LinearNetwork.init(TASK, 3, 0.1, key=jax.random.key(0))
RELU = fl.ReLUNetwork.init(TASK, 3, 0.5, key=jax.random.key(1))


@pytest.fixture(scope="module")
def pair():
    """Outputs and one-hot targets, (7, 3)."""
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(7, 3))), jnp.asarray(np.eye(3)[rng.integers(3, size=7)])


# ---- The library's own


def test_squared_error_sums_over_samples_and_outputs(pair):
    outputs, targets = (np.asarray(a) for a in pair)
    total = 0.0
    for sample in range(7):
        for k in range(3):
            total += (targets[sample, k] - outputs[sample, k]) ** 2 / 2
    np.testing.assert_allclose(fl.SquaredError("sum")(*pair), total, rtol=1e-14)
    np.testing.assert_allclose(fl.SquaredError("mean")(*pair), total / 7, rtol=1e-14)
    assert fl.SquaredError()(*pair) == fl.SquaredError("mean")(*pair)
    assert fl.SquaredError()(pair[1], pair[1]) == 0


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_squared_error_weight_is_that_of_its_gradient(reduction, pair):
    loss = fl.SquaredError(reduction)
    assert loss.factor_per_sample(7) == {"mean": 1 / 7, "sum": 1.0}[reduction]
    gradient = jax.jit(jax.grad(loss))(*pair)
    outputs, targets = (np.asarray(a) for a in pair)
    np.testing.assert_allclose(
        gradient, loss.factor_per_sample(7) * (outputs - targets), rtol=1e-13
    )


@pytest.mark.parametrize("soft", [False, True])
def test_cross_entropy_is_that_of_scipy(soft, pair):
    outputs, targets = (np.asarray(a) for a in pair)
    if soft:
        targets = special.softmax(np.random.default_rng(1).normal(size=(7, 3)), axis=1)
    value, gradient = jax.jit(jax.value_and_grad(fl.CrossEntropy()))(pair[0], jnp.asarray(targets))
    expected = -np.mean(np.sum(targets * special.log_softmax(outputs, axis=1), axis=1))
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    slopes = (special.softmax(outputs, axis=1) - targets) / 7
    np.testing.assert_allclose(gradient, slopes, atol=1e-15)


def test_cross_entropy_of_large_logits():
    logits = jnp.array([[1e4, 0.0], [-1e4, 0.0]])
    targets = jnp.array([[1.0, 0.0], [1.0, 0.0]])
    value, slope = jax.jit(jax.value_and_grad(fl.CrossEntropy()))(logits, targets)
    np.testing.assert_allclose(value, 1e4 / 2)
    assert np.all(np.isfinite(slope))


LABELS = np.arange(3.0)[:, None]
SIGNED = np.array([[1.0, -1.0]] * 3)


@pytest.mark.parametrize(
    ("targets", "said"),
    [(LABELS, r"they have one column.*`one_hot=True`"), (SIGNED, r"they go down to -1.*classes")],
)
@pytest.mark.parametrize("loss", [fl.CrossEntropy(), fl.theory.LinearizedLoss(fl.CrossEntropy())])
def test_cross_entropy_refuses_targets_that_are_no_classes(loss, targets, said):
    """Loss and flow of class labels were zero, those of signed targets had no lower bound."""
    task = fl.Task(np.eye(3), targets)
    network = fl.LinearNetwork((np.full((targets.shape[1], 3), 0.1),))
    for call in (
        lambda: loss(network.outputs(task.x), task.y),
        lambda: fl.measures.loss(network, task, loss=loss),
        lambda: fl.measures.velocity(network, task, loss=loss),
        lambda: fl.gradient_flow(network, task, 1.0, loss=loss),
        lambda: fl.gradient_descent(network, task, 0.1, 3, loss=loss),
        lambda: fl.stochastic_gradient_descent(
            network, task, 0.1, 3, loss=loss, batch_size=2, key=jax.random.key(0)
        ),
    ):
        with pytest.raises(ValueError, match=rf"`loss` = CrossEntropy\(\) needs `targets`.*{said}"):
            call()


def test_cross_entropy_takes_rows_of_several_classes_and_traced_targets():
    outputs, marked = jnp.zeros((2, 3)), jnp.array([[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
    assert float(fl.CrossEntropy()(outputs, marked)) == pytest.approx(2 * np.log(3))
    assert np.isfinite(jax.jit(fl.CrossEntropy())(outputs, -marked))


@pytest.mark.parametrize("loss", [fl.SquaredError(), fl.CrossEntropy()])
def test_losses_keep_float32(loss, pair):
    found = jax.jit(loss)(*(a.astype(jnp.float32) for a in pair))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, loss(*pair), rtol=1e-6)


# ---- Functions of one sample

TRACED = []


def half_square(output, target):
    """Half the squared error, which takes note of being traced."""
    TRACED.append(output)
    return 0.5 * jnp.sum((target - output) ** 2)


def huber(output, target, delta=0.3):
    return jnp.sum(optax.huber_loss(output, target, delta=delta))


NARROW = functools.partial(huber, delta=0.2)

EVENTS = fl.LossBelow(0.35)
OPTIONS: Any = {"loss": half_square, "rtol": 1e-10, "events": EVENTS}


@pytest.fixture(scope="module")
def flow():
    return fl.gradient_flow(LINEAR, TASK, 3.0, **OPTIONS)


@pytest.mark.slow
def test_the_same_function_is_the_same_flow(flow):
    by_hand = ByHand(LINEAR, TASK)
    solution = by_hand.solution(3.0)
    assert fl.distance(flow.final, solution(3.0), relative=True) < 1e-8

    def loss(t):
        return by_hand([np.asarray(a) for a in jax.tree.leaves(solution(t).parameters)])[0]

    np.testing.assert_allclose(flow.losses, [loss(t) for t in np.asarray(flow.ts)], rtol=1e-8)
    assert len(flow.events) == 1
    assert loss(float(flow.events.time[0])) == pytest.approx(0.35, rel=1e-8)
    assert flow.stats["objective"] == "FullData"  # of squared errors there would be statistics
    assert "mean of half_square" in repr(flow)


@pytest.mark.slow
def test_the_library_knows_it_by_statistics(flow):
    known = fl.gradient_flow(LINEAR, TASK, 3.0, **OPTIONS | {"loss": fl.SquaredError()})
    assert known.stats["objective"] == "LinearStatistics"
    np.testing.assert_allclose(flow.losses, known.losses, rtol=ROUNDING)
    assert fl.distance(flow.final, known.final) < ROUNDING
    np.testing.assert_allclose(flow.events.time, known.events.time, rtol=1e-9)


def test_the_same_function_compiles_once(flow):
    before = len(TRACED)
    assert before > 0
    assert fl.gradient_flow(LINEAR, TASK, 2.0, **OPTIONS).end < flow.end
    assert len(TRACED) == before


def test_descent_is_a_loop_of_its_gradients():
    """With decay of one rate per layer, and flow and descent compared by this loss."""
    descent = fl.gradient_descent(LINEAR, TASK, 0.1, 20, loss=NARROW, weight_decay=[0.1, 0.3])

    def by_numpy(outputs, y):
        off = outputs - y
        near = np.where(np.abs(off) < 0.2, off**2 / 2, 0.2 * (np.abs(off) - 0.1))
        return np.sum(near, axis=1), np.clip(off, -0.2, 0.2)

    by_hand = ByHand(LINEAR, TASK, by_numpy, decay=(0.1, 0.3))
    losses, arrays = zip(*by_hand.descent(0.1, 20), strict=True)
    np.testing.assert_allclose(descent.losses, losses, rtol=ROUNDING)
    assert fl.distance(descent.final, by_hand.at(arrays[-1]), relative=True) < ROUNDING
    assert repr(descent.reference.loss) == "mean of huber"
    start = fl.measures.loss(LINEAR, TASK, loss=NARROW)
    assert float(start) == pytest.approx(losses[0], rel=ROUNDING)
    same = fl.compare(descent, descent)
    assert float(np.max(np.abs(same.loss))) == 0.0


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


def test_files_keep_its_name(flow, tmp_path):
    flow.save(tmp_path / "flow.npz")
    kept = fl.load(tmp_path / "flow.npz")
    assert repr(kept.reference.loss) == "mean of half_square, known by name"
    with pytest.raises(ValueError, match="the loss half_square was read from a file"):
        fl.measures.loss(LINEAR, TASK, loss=kept.reference.loss)
    assert "mean of half_square" in repr(pickle.loads(pickle.dumps(flow)).reference.loss)


def test_a_checkpoint_is_of_one_loss_and_decay(tmp_path):
    options: Any = {"loss": NARROW, "weight_decay": [0.1, 0.3], "checkpoint": tmp_path / "run"}
    fl.gradient_descent(LINEAR, TASK, 0.1, 20, **options)
    for other, name in (({"loss": half_square}, "loss"), ({"weight_decay": 0.1}, "weight_decay")):
        with pytest.raises(ValueError, match=f"of a run with another {name}"):
            fl.gradient_descent(LINEAR, TASK, 0.1, 20, **options | other)
