"""Globally gated networks: the formula, its special cases, runs and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests import zoo


@pytest.fixture(scope="module")
def task():
    return fl.tasks.xor()


@pytest.fixture(scope="module")
def network(task):
    gates = fl.HalfSpaces.random(task, 3, key=jax.random.key(1))
    return fl.GloballyGatedNetwork.init(
        task, (5, 4), gates=gates, variance=0.3, bias=True, bias_strength=0.7, key=jax.random.key(0)
    )


def test_outputs_are_the_formula(network, task):
    (w1, w2, w3), (b1, b2, _) = network.weights, network.biases
    assert w2.shape == (4, 15)
    g, c, h = np.asarray(network.gates), 0.7, []
    for x, gate in zip(np.asarray(task.x), g, strict=True):
        first = w1 @ x + c * b1
        second = sum(gate[m] * w2[:, 5 * m : 5 * m + 5] @ first for m in range(3)) + c * b2
        h.append(sum(gate[m] * w3[:, 4 * m : 4 * m + 4] @ second for m in range(3)))
    np.testing.assert_allclose(network.outputs(task.x), h, rtol=1e-13, atol=1e-15)
    one = network(task.x[2], network.gates[2])
    np.testing.assert_allclose(one, h[2], rtol=1e-13, atol=1e-15)
    others = network.with_gates(network.gates[:2])
    np.testing.assert_allclose(others.outputs(task.x[:2]), h[:2], rtol=1e-13, atol=1e-15)


def test_effective_maps_are_those_of_the_gates(network, task):
    nodes, edges = {"in": 2, "a": 3, "out": 2}, [("in", "a"), ("a", "out"), ("in", "out")]
    gates = {"a": np.array([1.0, 0.0, 0.5, 2.0])}
    graph = fl.GatedGraph.init(
        task, nodes, edges, node_gates=gates, variance=0.3, bias=True, key=jax.random.key(5)
    )
    for one in (network, graph):
        matrix, offset = fl.measures.effective_map(one, task)
        found = jnp.einsum("poi,pi->po", matrix, task.x) + offset
        np.testing.assert_allclose(found, one.outputs(task.x), rtol=1e-13, atol=1e-15)
    way = graph.weights["a", "out"] @ graph.weights["in", "a"]
    by_hand = [gate * way + graph.weights["in", "out"] for gate in gates["a"]]
    np.testing.assert_allclose(matrix, by_hand, rtol=1e-13, atol=1e-15)
    with pytest.raises(ValueError, match="`layer`"):
        fl.measures.effective_map(graph, task, layer=0)


def test_with_one_open_gate_it_is_a_linear_network(task):
    linear = fl.LinearNetwork.init(task, (5, 4), 0.1, key=jax.random.key(2))
    gated = fl.GloballyGatedNetwork.init(
        task, (5, 4), gates=jnp.ones((task.samples, 1)), variance=0.1, bias=True,
        key=jax.random.key(2),
    )  # fmt: skip
    runs = [fl.gradient_flow(net, task, 5.0) for net in (linear, gated)]
    for mine, its in zip(*(jax.tree.leaves(run.final.parameters) for run in runs), strict=True):
        np.testing.assert_allclose(mine, its, atol=1e-9)


def many_gates(task):
    gates = fl.HalfSpaces.random(task, 6, key=jax.random.key(3))
    return fl.GloballyGatedNetwork.init(
        task, (5,), gates=gates, variance=0.1, bias=True, key=jax.random.key(0)
    )


def test_it_flows_saves_and_learns_what_a_linear_network_cannot(task, tmp_path):
    network = many_gates(task)
    flow = fl.gradient_flow(network, task, 60.0, events=(fl.LossBelow(0.01),))
    assert float(flow.losses[-1]) < 1e-3 < float(flow.losses[0])
    assert len(flow.events) == 1
    flow.save(tmp_path / "run.npz")
    final = fl.load(tmp_path / "run.npz").final
    np.testing.assert_array_equal(final.outputs(task.x), flow.final.outputs(task.x))
    assert repr(final).startswith(
        "GloballyGatedNetwork(2 -> 5 -> 2, bias in hidden layers, c = 1, 6"
    )
    descent = fl.gradient_descent(network, task, 0.01, 100, save_every=100)
    near = fl.gradient_flow(network, task, 1.0)
    assert zoo.distance(descent.final, near.final) < 1e-2
    linear = fl.gradient_flow(fl.LinearNetwork.init(task, (5,), key=jax.random.key(0)), task, 60.0)
    assert float(linear.losses[-1]) > 0.1


def test_gates_of_inputs():
    task = fl.Task(jnp.asarray([[0.0, 0.0], [0.1, 0.0], [4.0, 4.0], [4.0, 4.1]]), jnp.ones((4, 1)))
    clusters = fl.Clusters.of(task, 2)
    found = np.asarray(clusters(task.x))
    assert np.all(found.sum(axis=1) == 1)
    assert np.all(found[0] == found[1])
    assert np.all(found[2] == found[3])
    assert np.any(found[0] != found[2])
    half = fl.HalfSpaces([[1.0, 0.0], [0.0, -1.0]], [1.0, -0.5])
    np.testing.assert_array_equal(half(task.x), [[0, 1], [0, 1], [1, 0], [1, 0]])
    halves = fl.HalfSpaces.random(task, 200, key=jax.random.key(0))
    assert 0.3 < float(jnp.mean(halves(task.x))) < 0.7


def test_what_is_refused(network, task):
    with pytest.raises(ValueError, match="`gates` are for 3 samples"):
        fl.GloballyGatedNetwork.init(task, 4, gates=jnp.ones((3, 2)), key=jax.random.key(0))
    with pytest.raises(ValueError, match="one column per gate"):
        network.with_gates(jnp.ones((4, 2)))
    with pytest.raises(ValueError, match=r"3 times"):
        fl.GloballyGatedNetwork([jnp.ones((2, 2)), jnp.ones((1, 2))], gates=jnp.ones((4, 3)))
    with pytest.raises(ValueError, match=r"\(P, M\)"):
        fl.GloballyGatedNetwork([jnp.ones((2, 2)), jnp.ones((1, 2))], gates=jnp.ones(4))
    with pytest.raises(ValueError, match="are for 4 samples"):
        network.outputs(task.x[:3])
    with pytest.raises(ValueError, match="no gates of their own"):
        fl.gradient_flow(network, task, 1.0, events=fl.UnitSwitches())
    with pytest.raises(ValueError, match="`number`"):
        fl.Clusters.of(task, 9)
    with pytest.raises(ValueError, match="`thresholds`"):
        fl.HalfSpaces(jnp.ones((2, 2)), jnp.ones(3))
