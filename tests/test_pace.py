"""One time constant per layer, and layers that do not move, in flows of flowlin's networks."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin.engine.kinks.averaged import AveragedGates
from flowlin.engine.kinks.deep_flow import DeepFlow
from flowlin.engine.kinks.deep_switching import NetworkRule
from flowlin.events.order_statistics import Units
from flowlin.events.watch import Path
from flowlin.networks.base import moving
from flowlin.training.objective import FullData
from flowlin.training.problem import Problem
from flowlin.training.rules import GradientField
from tests.test_exact import distance, gaussian

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

T1 = 6.0


def start(tree, kind=fl.ReLUNetwork):
    return kind.init(tree, 8, 0.05, key=jax.random.key(0))


def rescaled(network, factors):
    """A network with every layer's weights and bias times a number."""
    layers = zip(factors, *network.parameters, strict=True)
    scaled = [(f * w, None if b is None else f * b) for f, w, b in layers]
    return network.with_parameters(tuple(zip(*scaled, strict=True)))


def but(network, leaf):
    """A filter spec that trains all but one array."""
    return eqx.tree_at(leaf, jax.tree.map(lambda _: True, network), False)


@pytest.mark.slow
def test_a_walk_with_tau_per_layer_is_that_of_a_rescaled_network(tree):
    # tau_l dw_l/dt = -grad_l L is a flow with tau = 1 of sqrt(tau_l) w_l, of which the network
    # is the same function if the product of all tau is one.
    network, tau = start(tree), (4.0, 0.25)
    flow = fl.gradient_flow(network, tree, T1, tau=tau, rtol=1e-9)
    other = fl.gradient_flow(rescaled(network, (2.0, 0.5)), tree, T1, rtol=1e-9)
    assert distance(rescaled(flow.final, (2.0, 0.5)), other.final) < 1e-7
    assert np.sum(np.asarray(flow.events.new) == 0) > 1  # pairs slide
    assert flow.events.index == other.events.index
    np.testing.assert_allclose(flow.events.time, other.events.time, rtol=1e-6)
    kept = flow.along(lambda n, task: fl.measures.conserved(n, tau=tau))
    np.testing.assert_allclose(kept[1], kept[0], atol=1e-8)
    np.testing.assert_array_equal(flow.tau, tau)


@pytest.mark.slow
def test_a_walk_with_frozen_weights_is_the_limit_of_small_steps(tree):
    network = start(tree)
    flow = fl.gradient_flow(
        network, tree, T1, trainable=but(network, lambda n: n.weights[0]), rtol=1e-9
    )
    assert eqx.tree_equal(flow.final.weights[0], network.weights[0])
    assert np.sum(np.asarray(flow.events.new) == 0) > 0
    rate = 1e-4
    descent = fl.gradient_descent(
        network, tree, rate, round(T1 / rate), trainable=but(network, lambda n: n.weights[0])
    )
    assert distance(descent.final, flow.final) < 1e-4


def test_a_deep_flow_with_tau_per_layer_is_that_of_a_rescaled_network():
    task, tau, factors = gaussian(), (4.0, 0.5, 0.5), (2.0, 0.5**0.5, 0.5**0.5)
    network = fl.ReLUNetwork.init(task, (6, 6), 0.3, (True, False, False), key=jax.random.key(4))
    # Some pairs of the first layer at their kinks, so that the Gram matrix counts.
    rows = jnp.concatenate([jnp.ones((20, 1)), task.x], axis=1)[:3]
    full = jnp.concatenate([network.biases[0][:, None], network.weights[0]], axis=1)
    for _ in range(2):  # the second time takes the rounding of the first
        full = full - full @ rows.T @ jnp.linalg.solve(rows @ rows.T, rows)
    network = eqx.tree_at(lambda n: (n.weights[0], n.biases[0]), network, (full[:, 1:], full[:, 0]))

    @eqx.filter_jit
    def at(network, tau):
        flow = DeepFlow(network, task, fl.SquaredError(), network.time_constants(tau))
        sides = NetworkRule(flow, 100).start(network.parameters)
        return sides.codes, flow(None, network.parameters, flow.freeze(sides))

    codes, velocity = at(network, jnp.asarray(tau))
    same_codes, other = at(rescaled(network, factors), jnp.ones(3))
    assert np.sum(codes == 0) > 2
    np.testing.assert_array_equal(codes, same_codes)
    velocity = rescaled(network.with_parameters(velocity), factors).parameters
    for a, b in zip(jax.tree.leaves(velocity), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("moves", [(True, False, True), (False, True, True), None])
def test_averaged_gates_have_the_velocity_of_the_field(tree, moves):
    network = start(tree)
    problem = Problem(network, tree, fl.SquaredError(), jnp.asarray([2.0, 0.5]), trained=moves)
    field = GradientField(FullData(tree, problem.loss), network, problem.constants)
    solver = AveragedGates(network, tree, problem.loss, problem.constants)
    y = problem.parameters
    found = solver.init(None, 0.0, 1.0, y, None).velocity
    wanted = field(None, y, None)
    assert len(jax.tree.leaves(y)) == (2 if moves else 3)
    assert jax.tree.structure(found[1]) == jax.tree.structure(wanted) == jax.tree.structure(y)
    for a, b in zip(jax.tree.leaves(found[1]), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-13)
    _, there = jax.jvp(
        lambda p: network.with_parameters(p).preactivations(tree.x)[0], (y,), (wanted,)
    )
    np.testing.assert_allclose(found[0], there, rtol=1e-9, atol=1e-13)


def test_a_linear_network_with_a_frozen_layer():
    # From sufficient statistics, with mode hits along the path of what moves.
    task = gaussian()
    network, modes = start(task, fl.LinearNetwork), fl.theory.modes(task, 1.0)
    options = {"trainable": but(network, lambda n: n.weights[0]), "rtol": 1e-10}
    flow = fl.gradient_flow(network, task, 4.0, events=fl.ModeHits(modes, 0.05), **options)
    assert flow.stats["objective"] == "Statistics"
    assert eqx.tree_equal(flow.final.weights[0], network.weights[0])
    assert len(flow.events) > 0
    time, (k,) = float(flow.events.time[0]), flow.events.index[0]
    there = fl.gradient_flow(network, task, time, **options).final
    assert np.isclose(modes.strengths(there, task)[k], 0.05, atol=1e-8)


def test_what_is_watched_along_a_step_knows_the_weights_that_rest():
    task = gaussian()
    network = fl.ReLUNetwork.init(task, 8, 0.1, key=jax.random.key(1))
    y0 = moving(network.parameters, (False, True, True))
    y1, error = (jax.tree.map(lambda a, f=f: f * a, y0) for f in (1.5, 0.01))
    dense = {"y0": y0, "y1": y1, "k0": error, "k1": error}
    path = Path(diffrax.ThirdOrderHermitePolynomialInterpolation, 0.0, 1.0, dense, y0)

    def preactivations(parameters):
        return network.with_parameters(parameters).preactivations(task.x)[0]

    np.testing.assert_allclose(
        path.image(preactivations)(0.3), preactivations(path(0.3)), rtol=1e-12
    )
    units = Units(path, 3, error, task.x, network, preactivations(y1).T)
    off = preactivations(jax.tree.map(jnp.add, y1, error)) - preactivations(y1)
    np.testing.assert_allclose(units.moved(jnp.asarray(2)), np.abs(off[:, 2]), atol=1e-15)
    rows = units.rows(jnp.arange(8))
    np.testing.assert_allclose(jnp.sum(rows, axis=0), units.ends, atol=1e-12)
    middle = jnp.einsum("n,nhp->hp", jnp.asarray([1.0, 0.0, -1.0, 0.0]), rows)
    np.testing.assert_allclose(middle, preactivations(path(0.5)).T, atol=1e-12)


def test_messages(tree, without_type_checks):
    network = start(tree, fl.LinearNetwork)
    for options, words in (
        ({"tau": [1.0, 2.0, 3.0]}, r"`tau` must be one number .* per layer, 2 .* got shape \(3,\)"),
        ({"tau": [1.0, -2.0]}, r"`tau\[1\]` must be finite and positive, got -2"),
        ({"tau": [[1.0]]}, "`tau` must be a number, or one per layer"),
        ({"tau": [1.0, 2.0], "modified_rate": 0.1}, "`modified_rate` asks for the modified flow"),
        ({"tau": 0.0}, "`tau` must be finite and positive"),
    ):
        with pytest.raises(ValueError, match=words):
            fl.gradient_flow(network, tree, 1.0, **options)
    with pytest.raises(ValueError, match="`tau` must be"):
        fl.gradient_descent(network, tree, 0.1, 5, tau=[1.0, 2.0])
