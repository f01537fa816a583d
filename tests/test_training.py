"""Options of training: tau per layer, weight decay, what is trained, weights of samples."""

import functools
import itertools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.by_hand import COUNTS, ByHand, classes, entropy, linear, relu, squared
from tests.tolerances import ROUNDING

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

TAU, DECAY = (2.0, 0.5), (0.2, 0.05)  # the same decay in units of each layer's time
T1, STEP = 2.0, 2e-4
MEAN, SUM = fl.SquaredError(), fl.SquaredError("sum")
ROWS = np.repeat(np.arange(7), COUNTS)


def close(found, wanted, tolerance=ROUNDING):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def agree(pair, tolerance=ROUNDING):
    one, other = pair
    close(one, other, tolerance)


def but(network, leaf):
    """A filter spec that trains all but one array."""
    return eqx.tree_at(leaf, jax.tree.map(lambda _: True, network), False)


def apart(a, b):
    return float(fl.distance(a, b, relative=True))


@pytest.fixture(scope="module")
def weighted():
    return classes(COUNTS)


# ---- Everything at once, against small steps and SciPy


@pytest.fixture(scope="module")
def network(weighted):
    """One of whose pairs of unit and sample one comes to slide."""
    return relu(weighted, seed=7)


@pytest.fixture(scope="module")
def walk(network, weighted):
    """An exact walk of which all is asked; the readout's bias rests."""
    options = {"trainable": but(network, lambda n: n.biases[1]), "loss": fl.CrossEntropy()}
    return fl.gradient_flow(
        network, weighted, T1, tau=TAU, weight_decay=DECAY, rtol=1e-10, **options
    )


@pytest.mark.slow
def test_a_walk_with_everything_is_the_limit_of_small_steps(walk, network, weighted):
    by_hand = ByHand(network, weighted, entropy, TAU, DECAY, rests=(3,))
    assert np.sum(np.asarray(walk.events.new) == 0) > 0  # pairs slide
    errors = [apart(walk.final, by_hand.limit(T1, step)) for step in (10 * STEP, STEP)]
    assert errors[1] < 0.2 * errors[0] < 1e-3
    assert np.array_equal(walk.final.biases[1], network.biases[1])
    np.testing.assert_array_equal(walk.tau, TAU)


@pytest.mark.slow
def test_what_is_conserved_decays_along_it(walk, network):
    """Layers keep their difference in units of their time constants, up to the decay in them."""
    before, after = (fl.measures.conserved(n, tau=TAU) for n in (network, walk.final))
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert np.max(np.abs(a)) > 0.1
        np.testing.assert_allclose(b, a * np.exp(-0.2 * T1), atol=1e-9)


@pytest.fixture(scope="module")
def from_statistics(weighted):
    """A linear flow of which all is asked, mode hits too; the first weights rest."""
    network, modes = linear(weighted), fl.theory.modes(weighted, 1.0)
    level = 0.9 * modes.strengths(network, weighted) + 0.1 * modes.full_strength
    options = {"tau": TAU, "weight_decay": DECAY, "events": fl.ModeHits(modes, level)}
    trainable = but(network, lambda n: n.weights[0])
    flow = fl.gradient_flow(network, weighted, T1, rtol=1e-10, trainable=trainable, **options)
    solution = ByHand(network, weighted, squared, TAU, DECAY, rests=(0,)).solution(T1)
    return flow, solution, modes, level


@pytest.mark.slow
def test_a_linear_flow_with_everything_is_that_of_scipy(from_statistics, weighted):
    (flow, solution, *_), network = from_statistics, linear(weighted)
    assert flow.stats["objective"] == "LinearStatistics, with weight decay"
    by_hand = ByHand(network, weighted, squared)
    assert apart(flow.final, solution(T1)) < 1e-8
    assert np.array_equal(flow.final.weights[0], network.weights[0])
    assert float(flow.losses[-1]) == pytest.approx(
        by_hand(jax.tree.leaves(flow.final.parameters))[0]
    )


@pytest.mark.slow
def test_modes_are_hit_along_what_moves(from_statistics, weighted):
    flow, solution, modes, level = from_statistics
    assert len(flow.events) > 0
    for time, (k,) in zip(np.asarray(flow.events.time), flow.events.index, strict=True):
        found = modes.strengths(solution(time), weighted)
        assert float(found[k]) == pytest.approx(float(level[k]), abs=1e-8)


# ---- Combinations: of linear flows an orthogonal array, in which any two options meet in all four
# ways; of exact walks all of them.

NAMES = ("tau", "rests", "entropy", "decay", "weights")
COMBINATIONS = [(a, b, c, a != b, a != c) for a, b, c in itertools.product((False, True), repeat=3)]
ONES = np.ones(7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "on",
    COMBINATIONS,
    ids=lambda on: "+".join(name for name, one in zip(NAMES, on, strict=True) if one) or "nothing",
)
def test_combinations_are_those_of_scipy(on):
    tau, rests, cross, decay, weights = on
    task = classes(COUNTS if weights else None)
    network = linear(task)
    flow = fl.gradient_flow(
        network, task, T1, rtol=1e-9, tau=TAU if tau else 2.0,
        weight_decay=DECAY if decay else None, loss=fl.CrossEntropy() if cross else MEAN,
        trainable=but(network, lambda n: n.biases[0]) if rests else None,
    )  # fmt: skip
    by_hand = ByHand(
        network, task, entropy if cross else squared, TAU if tau else (2.0, 2.0),
        DECAY if decay else (0.0, 0.0), rests=(2,) if rests else (),
    )  # fmt: skip
    assert apart(flow.final, by_hand.solution(T1)(T1)) < 1e-7


def count_slides(start, combinations, rests, cross, tau=TAU, decay=DECAY):
    """Count the walks with these options that slide; all are held against small steps by hand.

    `start` makes the network of a task; with `rests` the biases of its last hidden layer rest.
    """
    slides, depth = 0, len(tau)
    for combination in combinations:
        slow, decays, weights, leaks, weak = combination
        task = classes(COUNTS if weights else ONES)
        network = start(task, slope=0.2 if leaks else 0.0, bias_strength=0.6 if weak else 1.0)
        speeds, rates = tau if slow else (2.0,) * depth, decay if decays else (0.0,) * depth
        flow = fl.gradient_flow(
            network, task, 2 * T1, rtol=1e-9, tau=speeds, weight_decay=rates,
            loss=fl.CrossEntropy() if cross else MEAN,
            trainable=but(network, lambda n: n.biases[depth - 2]) if rests else None,
        )  # fmt: skip
        slides += bool(np.any(np.asarray(flow.events.new) == 0))
        kind, still = entropy if cross else squared, (2 * depth - 2,) if rests else ()
        steps = ByHand(network, task, kind, speeds, rates, still)
        assert apart(flow.final, steps.limit(2 * T1, 2e-3)) < 2e-3, combination
    return slides


@pytest.mark.slow
@pytest.mark.parametrize("cross", [False, True], ids=["squares", "entropy"])
@pytest.mark.parametrize("rests", [False, True], ids=["all", "biases rest"])
def test_walks_with_any_combination_are_the_limit_of_small_steps(rests, cross):
    """Time constants, decay, weights of samples, a leak, and the bias strength.

    They are numbers of one program, as long as all of them are given.
    """
    start = functools.partial(relu, seed=14)
    assert count_slides(start, itertools.product((False, True), repeat=5), rests, cross) > 5


def start_of_two_layers(task, **options):
    biased = (True, True, True)
    return fl.ReLUNetwork.init(task, (3, 3), 0.4, biased, key=jax.random.key(2), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rests", "cross"), [(False, True), (True, False)], ids=["entropy", "biases rest"]
)
def test_walks_of_two_hidden_layers_with_any_two_options_are_too(rests, cross):
    tau, decay = (2.0, 0.5, 1.0), (0.2, 0.05, 0.1)
    assert count_slides(start_of_two_layers, COMBINATIONS, rests, cross, tau, decay) > 3


def half_square(output, target):
    return 0.5 * jnp.sum((target - output) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [SUM, half_square], ids=["sum", "function"])
def test_weights_of_other_losses(weighted, loss):
    network = linear(weighted)
    flow = fl.gradient_flow(network, weighted, T1, loss=loss, tau=TAU, rtol=1e-9)
    by_hand = ByHand(network, weighted, squared, TAU, summed=loss is SUM)
    assert apart(flow.final, by_hand.solution(T1)(T1)) < 1e-7
    assert float(flow.losses[0]) == pytest.approx(by_hand(by_hand.start)[0])


@pytest.mark.slow
def test_averaged_kinks_with_everything(weighted):
    network = relu(weighted, seed=7)
    options = {"trainable": but(network, lambda n: n.biases[1]), "loss": fl.CrossEntropy()}
    flow = fl.gradient_flow(
        network, weighted, T1, tau=TAU, weight_decay=DECAY, kinks=fl.AveragedKinks(), **options
    )
    by_hand = ByHand(network, weighted, entropy, TAU, DECAY, rests=(3,))
    assert apart(flow.final, by_hand.limit(T1, STEP)) < 3e-4


@pytest.mark.slow
def test_a_deep_walk_with_everything_is_the_limit_of_descent(weighted):
    """Weights of entries are those of samples for two outputs of three."""
    key = jax.random.key(0)
    entries = np.asarray(weighted.weights)[:, None] * np.array([1.0, 0.0, 1.0])
    task = fl.Task(weighted.x, weighted.y, weights=entries)
    network = fl.ReLUNetwork.init(task, (3, 3), 0.5, (True, True, False), key=key)
    options = {
        "trainable": but(network, lambda n: n.weights[1]),
        "weight_decay": (0.2, 0.1, 0.05),
    }
    flow = fl.gradient_flow(network, task, T1, rtol=1e-9, **options)
    assert len(flow.events) > 0
    errors = [
        apart(fl.gradient_descent(network, task, step, t1=T1, **options).final, flow.final)
        for step in (10 * STEP, STEP)
    ]
    assert errors[1] < 0.2 * errors[0] < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "rest"),
    [(5, lambda n: n.biases[0]), (1, lambda n: n.weights[0])],
    ids=["the bias rests", "the weights rest"],
)
def test_decay_moves_a_kink_whose_weights_or_bias_rest(seed, rest):
    """What decays is a part of z alone, so pairs that slide are driven by it."""
    task = fl.tasks.offset_xor(0.5)
    network = fl.ReLUNetwork.init(task, 6, 0.5, key=jax.random.key(seed))
    options = {"trainable": but(network, rest), "weight_decay": 0.1}
    flow = fl.gradient_flow(network, task, 5.0, rtol=1e-9, max_steps=1000, **options)
    assert np.sum(np.asarray(flow.events.new) == 0) > 0  # pairs slide
    errors = [
        apart(fl.gradient_descent(network, task, step, t1=5.0, **options).final, flow.final)
        for step in (1e-2, 1e-3)
    ]
    assert errors[1] < 0.2 * errors[0] < 2e-3


# ---- What each of them means


def rescaled(network, factors):
    """A network with every layer's weights and bias times a number."""
    layers = zip(factors, *network.parameters, strict=True)
    scaled = [(f * w, None if b is None else f * b) for f, w, b in layers]
    return network.with_parameters(tuple(zip(*scaled, strict=True)))


@pytest.mark.slow
def test_a_walk_with_tau_per_layer_is_that_of_a_rescaled_network():
    # tau_l dw_l/dt = -grad_l L is a flow with tau = 1 of sqrt(tau_l) w_l, of which the network
    # is the same function if the product of all tau is one.
    task = classes()
    key = jax.random.key(6)
    network, tau, factors = fl.ReLUNetwork.init(task, 6, 0.3, key=key), (4.0, 0.25), (2.0, 0.5)
    flow = fl.gradient_flow(network, task, 6.0, tau=tau, rtol=1e-9)
    other = fl.gradient_flow(rescaled(network, factors), task, 6.0, tau=(1.0, 1.0), rtol=1e-9)
    assert apart(rescaled(flow.final, factors), other.final) < 1e-7
    assert np.sum(np.asarray(flow.events.new) == 0) > 0  # a pair slides
    assert flow.events.index == other.events.index
    np.testing.assert_allclose(flow.events.time, other.events.time, rtol=1e-6)
    kept = flow.along(lambda n, task: fl.measures.conserved(n, tau=tau))
    np.testing.assert_allclose(kept[1], kept[0], atol=1e-8)


NODES, PROBABILITIES = np.polynomial.hermite_e.hermegauss(8)
TS = np.linspace(0, 4, 5)


@pytest.fixture(scope="module")
def ridge():
    """Of a population, x ~ N(0, 1) and y = x^3, by quadrature: task and flow."""
    task = fl.Task(NODES[:, None], NODES[:, None] ** 3, weights=PROBABILITIES)
    network = fl.LinearNetwork((np.full((1, 1), 8.0),))
    events = (fl.LossBelow(3.5), fl.LossBelow(3.0001, name="dip"))
    return task, fl.gradient_flow(
        network, task, 4.0, ts=TS, weight_decay=1.0, events=events, rtol=1e-12
    )


@pytest.mark.slow
def test_ridge_regression_of_a_population_by_quadrature(ridge):
    r"""Sigma_yx = E x^4 = 3 and Sigma_x = 1, to which the decay is added.

    w goes from 8 past the best fit at 3 to rest at 3/2: the loss on the data falls to 3 and rises
    again, and the flow dips below a level within a step.
    """
    task, flow = ridge
    modes = fl.theory.modes(task)
    close((modes.s, modes.d), (np.array([3.0]), np.array([1.0])))
    w = 1.5 + 6.5 * np.exp(-2 * TS)
    found = np.asarray(flow.networks.weights[0])[:, 0, 0]
    np.testing.assert_allclose(found, w, rtol=1e-9)
    closed = fl.theory.single_layer(TS, np.full((1, 1), 8.0), 3 * np.eye(1), 2 * np.eye(1))
    np.testing.assert_allclose(found, np.asarray(closed)[:, 0, 0], rtol=1e-9)
    np.testing.assert_allclose(flow.losses, (15 - 6 * w + w**2) / 2, rtol=1e-9)
    reached = 3 + np.sqrt(2 * np.array([3.5, 3.0001]) - 6)
    np.testing.assert_allclose(flow.events.time, -np.log((reached - 1.5) / 6.5) / 2, rtol=1e-8)


@pytest.mark.slow
def test_regression_with_decay_is_its_closed_form():
    """By statistics: the decay is a multiple of the identity in Sigma_x, biases included."""
    rng = np.random.default_rng(0)
    task = fl.Task(rng.normal(size=(9, 3)), rng.normal(size=(9, 2)))
    network = fl.LinearNetwork((np.ones((2, 3)),), (np.ones(2),))
    ts = np.linspace(0, 8, 5)
    flow = fl.gradient_flow(network, task, 8.0, ts=ts, tau=2.0, weight_decay=0.3, rtol=1e-11)
    x = np.concatenate([np.ones((9, 1)), task.x], axis=1)
    start, moments = np.ones((2, 4)), x.T @ x / 9 + 0.3 * np.eye(4)
    closed = fl.theory.single_layer(ts, start, np.asarray(task.y).T @ x / 9, moments, tau=2.0)
    np.testing.assert_allclose(flow.networks.weights[0], closed[..., 1:], atol=1e-10)
    np.testing.assert_allclose(flow.networks.biases[0], closed[..., 0], atol=1e-10)


# ---- Weights of samples: whole numbers stand for repeated rows


def switches(log, names):
    """(unit, sample, side) and time of every switch, samples renamed and told once."""
    found = {}
    for index, side, time in zip(log.index, np.asarray(log.new), np.asarray(log.time), strict=True):
        found.setdefault((index[1], int(names[index[2]]), int(side)), set()).add(float(time))
    return dict(sorted(found.items()))


@pytest.mark.slow
def test_exact_walks_on_weights_are_those_on_repeated_rows():
    """Switches included. Copies that do not count make the weighted rows as many: one program."""
    rows = np.array([0, 1, 1, 2, 3, 3, 3])
    task, counts = classes(ONES).take(rows), [1.0, 2.0, 0.0, 1.0, 3.0, 0.0, 0.0]
    weights, repeated = (
        fl.gradient_flow(relu(task, seed=12), fl.Task(task.x, task.y, weights=w), 4.0, rtol=1e-9)
        for w in (counts, ONES)
    )
    close(weights.final.parameters, repeated.final.parameters)
    close(weights.losses, repeated.losses)
    one, other = (switches(walk.events, rows) for walk in (weights, repeated))
    assert len(other) > 2
    assert list(one) == list(other)
    for name, times in one.items():
        np.testing.assert_allclose(sorted(times), sorted(other[name]), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("c", [0.0, 1.0])
def test_closed_forms_take_weights(weighted, c):
    tasks = weighted, classes().take(ROWS)
    weights, repeated = (fl.theory.modes(task, c) for task in tasks)
    close((weights.s, weights.d), (repeated.s, repeated.d))
    products = [np.asarray(m.u * m.s[None]) @ np.asarray(m.v).T for m in (weights, repeated)]
    agree(products)
    close(weights.fingerprint, repeated.fingerprint)
    agree([fl.theory.bias_mode(task, c) for task in tasks], tolerance=1e-7)
    network = fl.LinearNetwork.init(weighted, 4, 0.1, bias=bool(c), key=jax.random.key(0))
    close(weights.strengths(network, tasks[0]), weights.strengths(network, tasks[1]))
    agree([fl.measures.mode_shares(network, task, weights) for task in tasks])
    agree([fl.measures.error_rate(network, task) for task in tasks])
    agree([fl.measures.velocity(network, task) for task in tasks])
    agree([fl.theory.solve(network, task).product(3.0) for task in tasks], tolerance=1e-10)


def test_weights_travel_with_the_samples(weighted, tmp_path):
    assert "weighted" in repr(weighted)
    np.testing.assert_array_equal(weighted.take([3, 1]).weights, [3, 2])
    assert weighted.astype("float32").weights.dtype == jnp.float32
    assert float(weighted.mass) == 11
    assert len(jax.tree.leaves(classes())) == 2
    seen = {"task": lambda network, task: task}
    fl.gradient_descent(linear(weighted), weighted, 0.1, 1, observe=seen).save(tmp_path / "run.npz")
    found = fl.load(tmp_path / "run.npz").observed["task"]
    np.testing.assert_array_equal(found.weights, np.stack([COUNTS] * 2))
    # Files of before there were weights have no such field.
    with np.load(tmp_path / "run.npz") as archive:
        arrays = dict(archive)
    header = json.loads(arrays.pop("header").tobytes(), object_hook=without_weights)
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(tmp_path / "old.npz", header=text, **arrays)
    old = fl.load(tmp_path / "old.npz").observed["task"]
    assert old.weights is None
    np.testing.assert_array_equal(old.x, found.x)


def without_weights(node):
    if node.get("object") == "Task":
        del node["fields"]["weights"]
    return node


@pytest.mark.slow
def test_a_sweep_takes_tasks_with_weights_and_without(weighted):
    network = linear(weighted)
    runs = fl.sweep([network] * 2, [classes(), weighted], 1.0)
    alone = fl.gradient_flow(network, weighted, 1.0)
    np.testing.assert_array_equal(runs[1].losses, alone.losses)
    assert not np.allclose(runs[0].losses, alone.losses)
