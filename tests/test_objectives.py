"""What runs descend, from the inside: by samples in chunks, by statistics, decayed, modified.

And the vector fields that are made of it. This file imports internals: what it asks is not seen
from outside but as rounding, memory, or time.
"""

import functools
import itertools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import flowlin as fl
from flowlin.engine import descend
from flowlin.engine.kinks.averaged import AveragedGates
from flowlin.engine.kinks.deep_flow import DeepFlow
from flowlin.engine.kinks.deep_switching import DeepSwitching
from flowlin.engine.solvers.rkc import direction, spectral_radius
from flowlin.events.order_statistics import FirstLayerUnits
from flowlin.events.path import StepPath
from flowlin.networks.base import time_constants
from flowlin.networks.fit import numbers_per_sample
from flowlin.networks.modules import ForeignModel
from flowlin.networks.pathways import count_pathways
from flowlin.networks.trainable import trainable_part
from flowlin.runs.gradient_descent import StepRule, WatchOptions, descent_of
from flowlin.training import objective as chunks
from flowlin.training.objective import Decay, FullData, ModifiedLoss, with_decay
from flowlin.training.problem import Problem
from flowlin.training.rules import VectorField, choose_objective
from flowlin.training.statistics import GraphStatistics, all_bundles, is_cheaper, paths_ahead
from tests.by_hand import COUNTS, ByHand, classes, linear, relu
from tests.test_graph import TREE, diamond, graph_of
from tests.tolerances import ROUNDING, of_slope

SAMPLES = 131  # seven chunks of 18 rows and 5 rows over
MEAN = fl.SquaredError()


def close(one, other, tolerance=ROUNDING):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance / 100)


def arrays_of(network):
    return [np.asarray(a) for a in jax.tree.leaves(network.parameters)]


# ---- Chunks of samples: the numbers of one pass, in memory that does not grow with the samples


def data(samples=SAMPLES):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, 5))
    return fl.Task(x, np.eye(3)[np.argmax(x[:, :3], axis=1)])


def deep(task, hidden=(6, 4)):
    return fl.ReLUNetwork.init(task, hidden, 0.3, key=jax.random.key(1))


def in_chunks(patch, rows=16):
    """Chunks of at least so many rows."""
    patch.setattr(chunks, "MIN_CHUNK_ROWS", rows)
    patch.setitem(chunks.CHUNK_BYTES, "cpu", 1)


@pytest.fixture
def small(monkeypatch):
    in_chunks(monkeypatch)


CASES = {
    "cross-entropy, deep": (deep, fl.CrossEntropy(), None),
    "relu": (lambda task: deep(task, (6,)), MEAN, None),
    "sum": (lambda task: deep(task, (6,)), fl.SquaredError("sum"), None),
    "smooth": (lambda task: deep(task, (6,)), MEAN, 0.3),
    "gates of samples": (lambda task: deep(task, (6,)).frozen(task), fl.CrossEntropy(), None),
    "gates of units": (lambda task: deep(task, (6,)).always_on(task), MEAN, None),
    "linear": (lambda task: deep(task).linear(), fl.CrossEntropy(), None),
}
QUICK = ("relu",)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_chunks_give_the_numbers_of_one_pass(name):
    make, loss, width = CASES[name]
    task = data()
    goal = FullData(task, loss, width)

    @jax.jit
    def both(network):
        with pytest.MonkeyPatch.context() as patch:
            in_chunks(patch)
            assert chunks.number_of_chunks(SAMPLES, 6, 8) == 8
            many = goal.value_and_gradient(network), goal.loss_value(network)
            in_chunks(patch, 1000)
            one = goal.value_and_gradient(network), goal.loss_value(network)
        return many, one, loss(network.outputs(task.x), task.y)

    many, one, plain = both(make(task))
    close(many, one)
    if width is None:
        np.testing.assert_allclose(many[1], plain, rtol=ROUNDING)


@pytest.mark.slow
def test_small_tasks_are_one_pass():
    task = fl.tasks.digits()
    assert chunks.number_of_chunks(task.samples, 64, 8) == 1
    network = deep(task, (6,))

    @jax.jit
    def both(parameters):
        plain = jax.grad(lambda p: MEAN(network.with_parameters(p).outputs(task.x), task.y))
        return FullData(task, MEAN).gradient(network.with_parameters(parameters)), plain(parameters)

    for a, b in zip(*map(jax.tree.leaves, both(network.parameters)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradient_is_the_slope_of_the_value_and_has_one_itself(small):
    """By central differences, in chunks."""
    task = data()
    network = deep(task, (6,))
    many = FullData(task, MEAN, 0.3)
    along = np.random.default_rng(3).normal(size=(6, 5))

    def moved(step):
        w = network.weights[0] + step * jnp.asarray(along)
        return network.with_parameters(((w, network.weights[1]), network.biases))

    def value(step):
        return many.loss_value(moved(step))

    def squared(step):
        return jnp.sum(many.gradient(moved(step))[0][0] ** 2)

    @jax.jit
    def found(step):
        slope = jnp.vdot(many.gradient(moved(step))[0][0], along)
        return (value(step), squared(step)), (slope, jax.grad(squared)(step))

    h = 1e-5
    (high, low), (_, slopes) = (found(step)[0] for step in (h, -h)), found(0.0)
    for up, down, slope in zip(high, low, slopes, strict=True):
        np.testing.assert_allclose(slope, (up - down) / (2 * h), rtol=of_slope(h))


def memory(function, *arguments) -> int:
    """Bytes that a compiled function takes besides arguments and results."""
    made = jax.jit(function).lower(*arguments).compile().memory_analysis()
    assert made is not None
    return made.temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("derivative", [False, True])
def test_memory_does_not_grow_with_the_samples(derivative, monkeypatch):
    in_chunks(monkeypatch, 64)

    def field(many, network):
        return many.gradient(network)

    def reverse(many, network):
        def squared(p):
            slopes = jax.tree.leaves(field(many, network.with_parameters(p)))
            return sum(jnp.sum(g**2) for g in slopes)

        return jax.grad(squared)(network.parameters)

    found = []
    for samples in (640, 6400):
        task = data(samples)
        goal, network = FullData(task, MEAN), deep(task, (32,))
        found.append(memory(reverse if derivative else field, goal, network))
    assert found[1] < 1.1 * found[0]
    assert found[1] < 640 * 32 * 8  # one array of pairs of the smaller task


@pytest.mark.slow
def test_linear_statistics_take_no_copy_of_the_task(monkeypatch):
    monkeypatch.setitem(chunks.CHUNK_BYTES, "cpu", 2**16)
    task = data(20_000)
    network = fl.LinearNetwork.init(task, 4, key=jax.random.key(2))
    used = memory(lambda t: choose_objective(network, t, MEAN).expansion.sigma_x, task)  # pyright: ignore
    assert used < 20_000 * 6 * 8


def test_a_foreign_module_tells_what_one_sample_takes():
    """The widest layer's numbers, not those of its weights, inside of compiled parts too."""
    task = fl.tasks.xor()
    model = eqx.nn.MLP(2, 2, 9, 1, jnp.tanh, dtype=jnp.float64, key=jax.random.key(0))

    class Compiled(eqx.Module):
        model: eqx.nn.MLP

        def __call__(self, x):
            return jax.jit(lambda x: self.model(x))(x)

    for one in (model, Compiled(model)):
        assert numbers_per_sample(ForeignModel.from_module("network", one), task) == 9


class Held(eqx.Module):
    """What a model holds besides its arrays, in every way."""

    w: jax.Array
    act: object = eqx.field(static=True)
    rest: object = None

    def __call__(self, x):
        return self.act(self.w @ x)  # pyright: ignore


def test_the_kind_of_a_foreign_module_names_what_is_static_and_bound_too():
    leaky = functools.partial(jax.nn.leaky_relu, negative_slope=0.1)
    first = Held(jnp.ones((2, 2)), jnp.tanh, (leaky, None, 0.5, "x"))
    assert ForeignModel.from_module("network", first).facts.kind == (
        "Held(act=tanh, rest[0]=partial, rest[0].func=leaky_relu, "
        "rest[0].keywords['negative_slope']=0.1, rest[2]=0.5, rest[3]='x')"
    )


# ---- Statistics in place of samples


def test_linear_statistics_in_chunks_are_those_of_numpy(small):
    task = data()
    network = fl.LinearNetwork.init(task, 4, 0.3, key=jax.random.key(2))
    found = choose_objective(network, task, MEAN)
    x = np.concatenate([np.ones((SAMPLES, 1)), task.x], axis=1)
    close(found.expansion.sigma_x, x.T @ x / SAMPLES)  # pyright: ignore
    by_hand = ByHand(network, task)
    loss, velocity = by_hand(by_hand.start)
    value, gradient = jax.jit(lambda n: (found.loss_value(n), found.gradient(n)))(network)
    np.testing.assert_allclose(value, loss, rtol=ROUNDING)
    close(gradient, [-v for v in velocity])


def both_ways(network, task):
    """By statistics and by samples: gradient and value, and the value's slope by a gate."""

    @jax.jit
    def found(network):
        def by(goal):
            def value(gate):
                other = network.with_sample_gates((gate, *network.sample_gates[1:]))
                return goal(other).loss_value(other)

            slope = jax.value_and_grad(value)(network.sample_gates[0])
            return goal(network).gradient(network), slope

        by_statistics = by(lambda n: GraphStatistics.from_graph(n, task, MEAN))
        return by_statistics, by(lambda _: FullData(task, MEAN))

    return map(jax.tree.leaves, found(network))


@pytest.mark.parametrize("size", ["two ways", pytest.param("many", marks=pytest.mark.slow)])
def test_statistics_of_a_graph_and_its_samples_agree(size):
    network, task = (diamond(), TREE) if size == "two ways" else graph_of(200)
    for a, b in zip(*both_ways(network, task), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=ROUNDING * np.max(np.abs(b)))


def regressors(graph):
    ahead = paths_ahead(graph)
    assert ahead is not None
    return all_bundles(ahead, graph)


@pytest.mark.slow
def test_statistics_are_chosen_where_they_are_cheaper():
    assert not is_cheaper(*graph_of(8))
    network, task = graph_of(200)
    assert is_cheaper(network, task)
    # Those of one source, sink and gates are one regressor.
    assert len(regressors(network)) == 12 == count_pathways(network)
    rng = np.random.default_rng(1)
    gates = {f"{side}{k}": rng.integers(0, 2, 8) for k in range(12) for side in "ab"}
    layers = [("in",), *((f"a{k}", f"b{k}") for k in range(12)), ("out",)]
    pairs = [(s, t) for low, high in itertools.pairwise(layers) for s in low for t in high]
    edges = {pair: np.eye(1) for pair in pairs}
    graph = fl.GatedGraph(edges)
    assert len(regressors(graph)) == 1
    many = fl.GatedGraph(edges, node_gates=gates)
    assert count_pathways(many) == 2**12
    assert paths_ahead(many) is None


# ---- Weight decay, the modified loss, and what optimisers see of them


@pytest.mark.parametrize("rate", [pytest.param(0.1, marks=pytest.mark.slow), (0.1, 0.3)])
def test_what_is_descended_is_what_the_gradient_is_of(rate):
    """Decayed and modified; by hand where it is not modified."""
    task = classes(COUNTS)
    network = linear(task)
    plain = FullData(task, MEAN)
    both = with_decay(plain, Decay(jnp.asarray(rate)))
    goals = both, ModifiedLoss(both, jnp.asarray(0.2))

    @jax.jit
    def slopes(at):
        found = [
            jax.grad(lambda w, goal=goal: goal.objective_value(network, w))(at) for goal in goals
        ]
        value = goals[-1].loss_value(network.with_parameters(at))
        return found, [goal.gradient(network, at) for goal in goals], value

    at = jax.tree.map(lambda w: 2 * np.asarray(w), network.parameters)
    wanted, found, value = slopes(at)
    close(found, wanted)
    rates = rate if isinstance(rate, tuple) else (rate, rate)
    loss, velocity = ByHand(network, task, decay=rates)(jax.tree.leaves(at))
    close(found[0], [-v for v in velocity])
    assert float(value) == pytest.approx(loss, rel=ROUNDING)  # that on the data
    assert goals[-1].stats_label == "FullData, with weight decay, modified"


def test_the_modified_gradient_is_that_of_the_square_of_the_plain_one():
    r"""L + eps / 4 |grad L|^2 by central differences of the gradient by hand."""
    task = classes(COUNTS)
    network, rate, h = linear(task), 0.1, 1e-5
    plain = with_decay(FullData(task, MEAN), Decay(jnp.asarray((0.2, 0.05))))
    goal = ModifiedLoss(plain, jnp.asarray(rate))
    found = jax.jit(lambda n: goal.gradient(n))(network)
    by_hand = ByHand(network, task, decay=(0.2, 0.05))
    start, (_, force) = by_hand.start, by_hand(by_hand.start)

    def gradient(step):  # at a distance along the gradient
        return by_hand([a - step * f for a, f in zip(start, force, strict=True)])[1]

    ends = zip(gradient(h), gradient(-h), force, jax.tree.leaves(found), strict=True)
    for high, low, f, one in ends:
        wanted = -f - rate / 2 * (high - low) / (2 * h)
        np.testing.assert_allclose(one, wanted, atol=of_slope(h))


def test_the_spectral_radius_counts_the_decay():
    """Stability of explicit steps is that of the Hessian of what is descended."""
    task = classes()
    network, tau = linear(task), jnp.asarray(2.0)

    @jax.jit
    def radius(decay):
        goal = choose_objective(network, task, MEAN, decay=Decay(decay))
        velocity = functools.partial(VectorField(goal, network, tau), None, args=None)
        y, start = network.parameters, jnp.zeros(())
        found = spectral_radius(velocity, y, velocity(y), direction(y), start, 200, "lax")
        return found[1]

    # The Hessian's own eigenvalues lie to both sides of zero here.
    own, with_decay = float(radius(jnp.asarray(0.0))), float(radius(jnp.asarray(50.0)))
    assert 0.1 < own < 10.0
    assert abs(with_decay - 50.0 / 2) < own


@pytest.mark.slow
def test_optimisers_that_do_not_ask_cost_no_value(monkeypatch):
    task = classes()
    network = relu(task)

    def flops():
        problem = Problem(network, task, MEAN, jnp.ones(()))
        made = descent_of(problem, StepRule(0.1, 0.1, optax.adam(0.1)), WatchOptions())
        state = made.initial_state(0)
        cost = jax.jit(lambda s: made.take_step(s)).lower(state).compile().cost_analysis()
        return cost["flops"]  # pyright: ignore

    found = flops()

    def plainly(optimiser, gradient, state, w, _):
        with jax.numpy_dtype_promotion("standard"):  # which optax needs
            return optimiser.update(gradient, state, w)

    monkeypatch.setattr(descend, "optimiser_update", plainly)
    assert found == flops() > 0


# ---- Vector fields with a time constant per layer, arrays that rest, weights and decay


MOVES = {
    "all": None,
    "not the hidden biases": (True, True, False, True),
    "not the readout": (True, False, True, True),
}


@pytest.mark.parametrize(
    "moves",
    ["all", pytest.param("not the hidden biases", marks=pytest.mark.slow), "not the readout"],
)
def test_fields_and_averaged_gates_have_the_velocity_by_hand(moves):
    task = classes(COUNTS)
    network, decay = relu(task), Decay(jnp.asarray((0.2, 0.05)))
    problem = Problem(network, task, MEAN, jnp.asarray([2.0, 0.5]), decay, MOVES[moves])
    y = problem.parameters

    @jax.jit
    def velocities(y):
        goal = with_decay(FullData(task, MEAN), decay)
        field = VectorField(goal, network, problem.time_constants)(None, y, None)
        solver = AveragedGates(network, task, MEAN, problem.time_constants, decay)
        along = jax.jvp(
            lambda p: network.with_parameters(p).preactivations(task.x)[0], (y,), (field,)
        )[1]
        return field, solver.init(None, 0.0, 1.0, y, None).velocity, along

    field, (dz, averaged), along = velocities(y)
    rests = tuple(k for k, one in enumerate(MOVES[moves] or (True,) * 4) if not one)
    by_hand = ByHand(network, task, tau=(2.0, 0.5), decay=(0.2, 0.05), rests=rests)
    wanted = [v for k, v in enumerate(by_hand(by_hand.start)[1]) if k not in rests]
    assert jax.tree.structure(field) == jax.tree.structure(averaged) == jax.tree.structure(y)
    close(field, wanted)
    close(averaged, wanted, 1e-9)
    close(dz, along, 1e-9)


def rescaled(network, factors):
    """A network with every layer's weights and bias times a number."""
    layers = zip(factors, *network.parameters, strict=True)
    scaled = [(f * w, None if b is None else f * b) for f, w, b in layers]
    return network.with_parameters(tuple(zip(*scaled, strict=True)))


@pytest.mark.slow
def test_a_deep_flow_with_tau_per_layer_is_that_of_a_rescaled_network():
    tau, factors = (4.0, 0.5, 0.5), (2.0, 0.5**0.5, 0.5**0.5)
    rng = np.random.default_rng(5)
    task = fl.Task(rng.normal(size=(10, 5)), rng.normal(size=(10, 3)))
    network = fl.ReLUNetwork.init(task, (5, 5), 0.3, (True, False, False), key=jax.random.key(5))
    # Some pairs of the first layer at their kinks, so that the Gram matrix counts.
    rows = np.concatenate([np.ones((10, 1)), task.x], axis=1)[:3]
    w1, _, _, b = jax.tree.leaves(network.parameters)
    full = np.concatenate([b[:, None], w1], axis=1)
    for _ in range(2):  # the second time takes the rounding of the first
        full = full - full @ rows.T @ np.linalg.solve(rows @ rows.T, rows)
    parts = jnp.asarray(full[:, 1:]), jnp.asarray(full[:, 0])
    network = eqx.tree_at(lambda n: (n.weights[0], n.biases[0]), network, parts)

    @eqx.filter_jit
    def at(network, tau):
        flow = DeepFlow(network, task, MEAN, time_constants(network, tau))
        sides = DeepSwitching(flow, 100).start_sides(network.parameters)
        return sides.codes, flow(None, network.parameters, flow.fix_sides(sides))

    codes, velocity = at(network, jnp.asarray(tau))
    same_codes, other = at(rescaled(network, factors), jnp.ones(3))
    assert np.sum(codes == 0) > 2
    np.testing.assert_array_equal(codes, same_codes)
    close(rescaled(network.with_parameters(velocity), factors).parameters, other, 1e-9)


@pytest.mark.slow
def test_sliding_pairs_of_deep_walks_stay_at_their_kinks_under_decay():
    """Behind a hidden layer biases decay more slowly than what comes in: gates make up for it."""
    task = fl.tasks.xor()
    network = fl.ReLUNetwork.init(task, (4, 3), 0.5, bias=True, key=jax.random.key(0))
    decay = Decay(jnp.asarray([0.3, 0.2, 0.1]))
    flow = DeepFlow(network, task, MEAN, jnp.asarray(1.0), decay)
    plain = DeepFlow(network, task, MEAN, jnp.asarray(1.0))
    codes = np.where(np.concatenate(network.preactivations(task.x), axis=1).T > 0, 1, -1)
    codes[4 + 1, 2] = 0

    @jax.jit
    def found(parameters, codes):
        frozen = flow.fix_sides(
            DeepSwitching(flow, 4)._layer_sides(codes, jnp.asarray(0, jnp.int8))
        )
        parameters, _ = flow.project_to_kinks(parameters, frozen)
        at, _ = flow.pass_with_slides(parameters, frozen)
        velocity = flow(None, parameters, frozen)
        rates = flow.preactivation_rates(parameters, at)
        pull = jax.tree.map(jnp.subtract, plain(None, parameters, frozen), velocity)
        return parameters, rates, jnp.concatenate(at.z), pull

    parameters = network.parameters
    for _ in range(8):  # onto the kink
        parameters, rates, z, pull = found(parameters, jnp.asarray(codes, jnp.int8))
    assert abs(z[5, 2]) < ROUNDING
    assert abs(rates[5, 2]) < ROUNDING
    close(pull[0][2], 0.1 * np.asarray(parameters[0][2]))


def test_what_is_watched_along_a_step_knows_the_weights_that_rest():
    task = classes()
    network = relu(task, width=5)
    y0 = trainable_part(network.parameters, (False, True, True, True))
    y1, error = (jax.tree.map(lambda a, f=f: f * a, y0) for f in (1.5, 0.01))
    dense = {"y0": y0, "y1": y1, "k0": error, "k1": error}

    def preactivations(parameters):
        return network.with_parameters(parameters).preactivations(task.x)[0]

    @jax.jit
    def found(dense):
        path = StepPath(diffrax.ThirdOrderHermitePolynomialInterpolation, 0.0, 1.0, dense, y0)
        units = FirstLayerUnits(path, 3, error, task.x, network, preactivations(y1).T)
        images = [(path.map_affine(preactivations)(t), preactivations(path(t))) for t in (0.3, 0.5)]
        off = preactivations(jax.tree.map(jnp.add, y1, error)) - preactivations(y1)
        moved = units.error_effect(jnp.asarray(2)), jnp.abs(off[:, 2])
        return (
            images,
            moved,
            units.preactivation_coefficients(jnp.arange(5)),
            units.end_preactivations,
        )

    images, moved, rows, ends = found(dense)
    for image, wanted in (*images, moved):
        np.testing.assert_allclose(image, wanted, rtol=ROUNDING, atol=1e-15)
    np.testing.assert_allclose(np.sum(rows, axis=0), ends, atol=ROUNDING)
    middle = np.einsum("n,nhp->hp", np.array([1.0, 0.0, -1.0, 0.0]), rows)
    np.testing.assert_allclose(middle, np.asarray(images[1][1]).T, atol=ROUNDING)
