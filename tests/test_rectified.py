"""A ReLU run read as gated linear networks: shares, graphs, replay, pathways."""

import dataclasses

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests import zoo

pytestmark = pytest.mark.slow  # a walk, and the program that reads it
T1 = 20.0


@pytest.fixture(scope="module")
def task():
    return fl.tasks.hierarchy(levels=2)


@pytest.fixture(scope="module")
def flow(task):
    return zoo.small_walk(task, rtol=1e-10)


@pytest.fixture(scope="module")
def rectified(flow, task):
    return fl.rectified(flow, task)


def test_shares_add_up_to_the_fall_of_the_loss(flow, rectified):
    fall = float(flow.losses[0] - flow.losses[-1])
    assert rectified.loss_fall.shape == (rectified.intervals, 7)
    assert np.all(rectified.loss_fall >= 0)
    np.testing.assert_allclose(np.sum(rectified.loss_fall), fall, rtol=1e-9)
    np.testing.assert_allclose(sum(one.share for one in rectified.pathways), 1.0, rtol=1e-9)


def test_intervals_are_those_of_the_log(flow, rectified):
    switches = np.unique(np.asarray(flow.events.select("gate").time))
    np.testing.assert_array_equal(rectified.times, [0.0, *switches, T1])
    for k in (0, 4, rectified.intervals - 1):
        middle = (rectified.times[k] + rectified.times[k + 1]) / 2
        own = np.asarray(flow.events.sides(middle)).T
        np.testing.assert_array_equal(rectified.history.sides[0][k], own)
        assert rectified.sliding[k] == np.sum(own == 0)


def test_between_switches_the_graph_flows_as_the_network(rectified, task):
    start, end = rectified.times[:2]
    assert rectified.sliding[0] == 0
    graph = rectified.graph(0)
    np.testing.assert_allclose(
        graph.outputs(task.x), rectified.network(start).outputs(task.x), atol=1e-15
    )
    flow = fl.gradient_flow(graph, task, end - start, rtol=1e-12)
    outputs = rectified.network(end).outputs(task.x)
    np.testing.assert_allclose(flow.final.outputs(task.x), outputs, atol=1e-11)


def test_gates_handed_over_give_the_whole_run(flow, rectified):
    assert np.mean(rectified.sliding > 0) > 0.5
    assert zoo.distance(rectified.replay(), flow.final) < 1e-9


def test_a_replay_that_cannot_go_on_says_where(rectified, task):
    unknown = eqx.tree_at(lambda task: task.y, task, task.y * jnp.nan)
    with pytest.raises(RuntimeError, match=r"between the switches at t = .*`rtol` = 1e-10"):
        dataclasses.replace(rectified, task=unknown).replay()


def test_fractions_are_those_that_keep_sliding_pairs_on_their_kinks(rectified, task):
    k = int(np.argmax(rectified.sliding))
    t = float(np.mean(rectified.times[k : k + 2]))
    gates, network = rectified.gates(t), rectified.network(t)
    slides = rectified.history.sides[0][k].T == 0
    inner = np.asarray(gates)[slides]
    assert np.all((inner > 0) & (inner < 1))
    gated = fl.GatedLinearNetwork(
        network.weights, network.biases, network.bias_strength, gates=(gates,)
    )

    def loss(parameters):
        outputs = gated.with_parameters(parameters).outputs(task.x)
        return fl.SquaredError()(outputs, task.y)

    (w, _), (b, _) = jax.grad(loss)(gated.parameters)
    z_rate = task.x @ w.T + network.bias_strength * b[None]
    assert np.max(np.abs(np.asarray(z_rate)[slides])) < 1e-12
    moved = np.asarray(gates + 0.1 * slides)  # other fractions do not
    gated = fl.GatedLinearNetwork(
        network.weights, network.biases, network.bias_strength, gates=(jnp.asarray(moved),)
    )
    (w, _), (b, _) = jax.grad(loss)(gated.parameters)
    z_rate = task.x @ w.T + network.bias_strength * b[None]
    assert np.max(np.abs(np.asarray(z_rate)[slides])) > 1e-6


def test_groups_share_their_gates_and_pathways_their_units(rectified):
    (groups,) = rectified.groups
    assert sorted(sum(groups, ())) == list(range(6))
    sides = rectified.history.sides[0]
    for units in groups:
        assert np.all(sides[:, units] == sides[:, units[:1]])
    for one in rectified.pathways:
        middle = rectified.history.interval_at((one.start + one.end) / 2)
        rows = [tuple(row) for row in sides[middle]]
        assert tuple(one.sides) in rows
        assert one.lifetime > 0
    shares = [one.share for one in rectified.pathways]
    assert shares == sorted(shares, reverse=True)
    assert rectified.explained_share(0) == 0
    assert rectified.explained_share(1) == shares[0]
    needed = rectified.pathways_needed(0.9)
    assert rectified.explained_share(needed) >= 0.9 > rectified.explained_share(needed - 1)


def test_overlap_of_two_times_counts_pairs(rectified):
    found = rectified.overlap([0.0, 1.0, T1])
    sides = rectified.history.sides[0]
    own = np.mean(sides[0] == sides[rectified.history.interval_at(1.0)])
    np.testing.assert_allclose(np.diagonal(found), 1.0)
    np.testing.assert_allclose(found, found.T)
    assert found[0, 1] == own < 1


def test_on_symmetric_data_relu_is_linear_at_half_speed_and_half_width():
    """Pairs of units (w, a), (-w, -a), samples x, -x with odd targets (Zhang et al. 2025).

    One of a pair is on at x and the other at -x, so that the map is the sum of a w^T over pairs,
    and every gradient is half of the linear network's, which has one unit of each pair. A unit's
    kink at x is also that at -x, where its forces cancel: it is crossed without a jump.
    """
    rng = np.random.default_rng(0)
    x, w, a = rng.normal(size=(4, 3)), 0.3 * rng.normal(size=(4, 3)), 0.3 * rng.normal(size=(2, 4))
    y = x @ rng.normal(size=(3, 2))
    task = fl.Task(np.r_[x, -x], np.r_[y, -y])
    relu = fl.ReLUNetwork([np.r_[w, -w], np.c_[a, -a]])
    linear = fl.LinearNetwork([w, a])
    flow = fl.gradient_flow(relu, task, 6.0, rtol=1e-10)
    half = fl.gradient_flow(linear, task, 3.0, rtol=1e-10)
    assert len(flow.events) > 0
    np.testing.assert_allclose(flow.final.weights[0][:4], half.final.weights[0], atol=1e-9)
    np.testing.assert_allclose(flow.losses, half.losses, atol=1e-9)
    full = fl.gradient_flow(linear, task, 6.0, rtol=1e-10)
    assert float(jnp.max(jnp.abs(full.final.weights[0] - flow.final.weights[0][:4]))) > 1e-2


def test_two_hidden_layers_are_graphs_where_nothing_slides():
    """Its program is that of the walk of tests/test_module_walks.py."""
    network, task = zoo.two_layers()
    deep = fl.rectified(fl.gradient_flow(network, task, 12.0, rtol=1e-10), task)
    k = int(np.argmin(deep.sliding))
    assert deep.sliding[k] == 0
    start, end = deep.times[k : k + 2]
    flow = fl.gradient_flow(deep.graph(k), task, end - start, rtol=1e-11, solver=diffrax.Tsit5())
    outputs = deep.network(end).outputs(task.x)
    np.testing.assert_allclose(flow.final.outputs(task.x), outputs, atol=1e-9)
    slides = int(np.argmax(deep.sliding))
    for call in (lambda: deep.graph(slides), lambda: deep.pathways, lambda: deep.replay()):
        with pytest.raises(ValueError, match="hidden layers"):
            call()


def test_what_it_refuses(flow, rectified, task):
    linear = fl.gradient_flow(flow.final.linear(), task, 0.1)
    other = fl.tasks.xor()
    for call, words in [
        (lambda: fl.rectified(linear, task), "ReLUNetwork"),
        (lambda: fl.rectified(flow, other), "`task`"),
        (lambda: rectified.graph(rectified.intervals), "`k`"),
        (lambda: rectified.graph(True), "`k`"),
        (lambda: rectified.gates(2 * T1), "outside the run"),
        (lambda: rectified.overlap([-1.0]), "`times`"),
        (lambda: rectified.explained_share(-1), "`n`"),
        (lambda: rectified.pathways_needed(1.5), "`share`"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


def test_it_prints(rectified):
    assert "11 intervals" in repr(rectified)
    assert "5 of 6 units" in repr(rectified)
    assert repr(rectified.pathways[0]).startswith("RectifiedPathway(unit")
