"""Weight decay: what it conserves up to a factor, its closed form, kinks, descent."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import flowlin as fl
from flowlin.engine.kinks.deep_flow import DeepFlow
from flowlin.engine.kinks.deep_switching import NetworkRule
from flowlin.engine.solvers.rkc import direction, spectral_radius
from flowlin.training.objective import Decay, Decayed, FullData, Modified, decayed
from flowlin.training.rules import GradientField, objective

RATE, T1 = 0.05, 5.0


def rate(value):
    return Decay(jnp.asarray(value))


@pytest.mark.parametrize(
    ("kind", "options", "within"),
    [
        (fl.LinearNetwork, {"rtol": 1e-10}, 1e-9),
        (fl.ReLUNetwork, {"rtol": 1e-10}, 1e-9),
        (fl.ReLUNetwork, {"kinks": fl.AveragedKinks()}, 1e-4),
    ],
    ids=["linear", "exact", "averaged"],
)
def test_what_is_conserved_decays(tree, kind, options, within):
    network = kind.init(tree, 8, 0.3, key=jax.random.key(3))
    flow = fl.gradient_flow(network, tree, T1, tau=2.0, weight_decay=RATE, **options)
    before, after = fl.measures.conserved(network), fl.measures.conserved(flow.final)
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert np.max(np.abs(a)) > 0.1
        np.testing.assert_allclose(b, a * np.exp(-2 * RATE * T1 / 2.0), rtol=within, atol=within)
    assert "with weight decay" in flow.stats["objective"]


def test_regression_with_decay_is_its_closed_form():
    """Ridge regression, by statistics: the decay is a multiple of the identity in Sigma_x."""
    key, other = jax.random.split(jax.random.key(0))
    task = fl.Task(jax.random.normal(key, (9, 3)), jax.random.normal(other, (9, 2)))
    network = fl.LinearNetwork((jnp.ones((2, 3)),), (jnp.ones(2),))
    ts = np.linspace(0, 8, 5)
    flow = fl.gradient_flow(network, task, 8.0, ts=ts, tau=2.0, weight_decay=0.3, rtol=1e-11)
    x = np.concatenate([np.ones((9, 1)), task.x], axis=1)
    start, moments = np.ones((2, 4)), x.T @ x / 9 + 0.3 * np.eye(4)
    closed = fl.theory.single_layer(ts, start, task.y.T @ x / 9, moments, tau=2.0)
    np.testing.assert_allclose(flow.networks.weights[0], closed[..., 1:], atol=1e-10)
    np.testing.assert_allclose(flow.networks.biases[0], closed[..., 0], atol=1e-10)


def test_the_loss_on_the_data_may_rise_and_its_crossings_are_found():
    """w falls through the best fit at 1 and rests at 1/2: L dips below the level within a step."""
    task = fl.Task(np.ones((1, 1)), np.ones((1, 1)))
    network = fl.LinearNetwork((jnp.full((1, 1), 3.0),))
    events = (fl.LossBelow(1e-4), fl.LossBelow(0.05, name="below"))
    flow = fl.gradient_flow(network, task, 4.0, weight_decay=1.0, events=events, rtol=1e-10)
    reached = [-0.5 * np.log((0.5 + np.sqrt(2 * level)) / 2.5) for level in (0.05, 1e-4)]
    np.testing.assert_allclose(flow.events.time, reached, rtol=1e-8)
    assert float(flow.losses[-1]) > 0.12


def test_descent_of_any_kind_decays(tree):
    """The same steps by optax, by batches of all samples, and by hand."""
    network = fl.LinearNetwork.init(tree, 8, 0.1, key=jax.random.key(0))
    goal = objective(network, tree, fl.SquaredError(), decay=rate([0.2, 0.1]))
    assert isinstance(goal, Decayed)
    step = jax.jit(lambda n: goal.gradient(n))
    for _ in range(3):
        slope = step(network)
        old, parameters = network, jax.tree.map(lambda w, g: w - 0.1 * g, network.parameters, slope)
        network = network.with_parameters(parameters)
    start = fl.LinearNetwork.init(tree, 8, 0.1, key=jax.random.key(0))
    options = {"weight_decay": [0.2, 0.1]}
    batches = functools.partial(
        fl.stochastic_gradient_descent, batch_size=tree.samples, key=jax.random.key(0)
    )
    runs = (
        fl.gradient_descent(start, tree, 0.1, 3, optimiser=optax.sgd(0.1), **options),
        batches(start, tree, 0.1, 3, **options),
    )
    for run in runs:
        for a, b in zip(jax.tree.leaves(run.final), jax.tree.leaves(network), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
    # By hand for one of the biases, in the first layer: its own part and the decay's.
    plain = objective(old, tree, fl.SquaredError()).gradient(old)[1][0]
    np.testing.assert_allclose(slope[1][0], plain + 0.2 * old.biases[0], rtol=1e-12)


def test_the_modified_flow_of_a_decayed_loss(tree):
    network = fl.LinearNetwork.init(tree, 8, 0.1, key=jax.random.key(0))
    goal = Modified(objective(network, tree, fl.SquaredError(), decay=rate(0.2)), jnp.asarray(0.1))

    def total(parameters):
        (w1, w2), (b, _) = parameters
        loss = jnp.sum(((tree.x @ w1.T + b) @ w2.T - tree.y) ** 2) / (2 * tree.samples)
        return loss + 0.1 * (jnp.sum(w1**2) + jnp.sum(w2**2) + jnp.sum(b**2))

    def modified(parameters):
        slope = jax.tree.leaves(jax.grad(total)(parameters))
        return total(parameters) + 0.1 / 4 * sum(jnp.sum(g**2) for g in slope)

    expected = jax.jit(jax.grad(modified))(network.parameters)
    for a, b in zip(*map(jax.tree.leaves, (goal.gradient(network), expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)
    assert goal.label == "FullData, with weight decay, modified"
    assert float(goal.value(network)) == pytest.approx(
        float(fl.measures.loss(network, tree)), rel=1e-12
    )


def test_the_spectral_radius_counts_it(tree):
    """Stability of explicit steps is that of the Hessian of what is descended."""
    network, tau = fl.LinearNetwork.init(tree, 8, 0.1, key=jax.random.key(0)), jnp.asarray(2.0)

    @jax.jit
    def radius(decay):
        goal = objective(network, tree, fl.SquaredError(), decay=Decay(decay))
        velocity = functools.partial(GradientField(goal, network, tau), None, args=None)
        y, start = network.parameters, jnp.zeros(())
        found = spectral_radius(velocity, y, velocity(y), direction(y), start, 200, "lax")
        return found[1]

    # The Hessian's own eigenvalues lie to both sides of zero here.
    own, with_decay = float(radius(jnp.asarray(0.0))), float(radius(jnp.asarray(50.0)))
    assert 0.1 < own < 3.0
    assert abs(with_decay - 50.0 / 2) < own


def test_sliding_pairs_of_deep_walks_stay_at_their_kinks():
    """Behind a hidden layer biases decay more slowly than what comes in: gates make up for it."""
    task = fl.tasks.xor()
    network = fl.ReLUNetwork.init(task, (4, 3), 0.5, bias=True, key=jax.random.key(0))
    decay = rate([0.3, 0.2, 0.1])
    flow = DeepFlow(network, task, fl.SquaredError(), jnp.asarray(1.0), decay)
    plain = DeepFlow(network, task, fl.SquaredError(), jnp.asarray(1.0))

    @jax.jit
    def found(parameters, codes):
        frozen = flow.freeze(NetworkRule(flow, 4)._sides(codes, jnp.asarray(0, jnp.int8)))
        parameters, _ = flow.settle(parameters, frozen)
        at, _ = flow.pressed(parameters, frozen)
        velocity = flow(None, parameters, frozen)
        rates = flow.rates(parameters, at)
        pull = jax.tree.map(jnp.subtract, plain(None, parameters, frozen), velocity)
        return parameters, rates, jnp.concatenate(at.z), pull

    z = jnp.concatenate(flow.forward(network.parameters, None).z)
    codes = jnp.where(z > 0, 1, -1).astype(jnp.int8).at[4 + 1, 2].set(0)
    parameters = network.parameters
    for _ in range(8):  # onto the kink
        parameters, rates, z, pull = found(parameters, codes)
    assert abs(z[5, 2]) < 1e-12
    assert abs(rates[5, 2]) < 1e-12
    np.testing.assert_allclose(pull[0][2], 0.1 * parameters[0][2], rtol=1e-12)


@pytest.mark.parametrize(
    ("decay", "message"),
    [
        (-0.1, "`weight_decay` must be zero or positive, got -0.1"),
        (np.nan, "`weight_decay` must be finite"),
        ([0.1, 0.2, 0.3], r"`weight_decay` must be a number or have shape \(2,\)"),
        ("much", "`weight_decay` must be an array of real numbers, got 'much'"),
    ],
)
def test_bad_decay(tree, decay, message):
    network = fl.LinearNetwork.init(tree, 8, 0.1, key=jax.random.key(0))
    for run in (
        lambda: fl.gradient_flow(network, tree, 1.0, weight_decay=decay),
        lambda: fl.gradient_descent(network, tree, 0.1, 1, weight_decay=decay),
    ):
        with pytest.raises(ValueError, match=message):
            run()


def test_what_is_descended_is_what_the_gradient_is_of():
    task = fl.tasks.xor()
    network = fl.LinearNetwork.init(task, 3, key=jax.random.key(0))
    for rate in (0.1, [0.1, 0.3]):
        plain = decayed(FullData(task, fl.SquaredError()), Decay(jnp.asarray(rate)))
        goal = Modified(plain, jnp.asarray(0.2))
        for one in (goal, goal.plain, goal.plain.plain):
            at = jax.tree.map(lambda w: 2 * w, network.parameters)
            slope = jax.grad(lambda w, one=one: one.descended(network, w))(at)
            for a, b in zip(*map(jax.tree.leaves, (slope, one.gradient(network, at))), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)
