"""Measures of networks: units, modes, function, conserved quantities, and along trajectories."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.zoo import ALIGNED

measures = fl.measures
TS = np.array([0.0, 0.4, 0.9999, 1.0, 1.0001, 2.0])


def gaussian(samples=5, inputs=2, outputs=3, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(samples, inputs)), rng.normal(size=(samples, outputs))
    return fl.Task(x, y)


def deep(kind, task, hidden=(6, 5, 4), c=3.0, seed=0, **more):
    """A network with a bias on every layer."""
    rng = np.random.default_rng(seed)
    sizes = (task.inputs, *hidden, task.outputs)
    pairs = list(zip(sizes[1:], sizes[:-1], strict=True))
    weights = [rng.normal(size=pair) for pair in pairs]
    return kind(weights, [0.3 * rng.normal(size=n) for n, _ in pairs], c, **more)


@pytest.fixture(scope="module")
def task():
    return gaussian()


@pytest.fixture(scope="module")
def network(task):
    return fl.ReLUNetwork.init(task, 5, 0.3, bias_strength=2.0, key=jax.random.key(4))


OBSERVED = {
    "network": lambda network, task: network,
    "activity": measures.activity,
    "positions": measures.kink_positions,
    "rates": measures.kink_rates,
    "conserved": measures.conserved,
    "norms": measures.norms,
    "test": measures.OnTask(measures.loss, gaussian(9, seed=1)),
}


@pytest.fixture(scope="module")
def descent(task, network):
    """A run of few kinks, and what it observed."""
    return fl.gradient_descent(network, task, 0.01, 200, save_every=40, observe=OBSERVED)


@pytest.fixture(scope="module")
def flow(task, network):
    """The same as a flow, and what is asked of it."""
    asked = {name: OBSERVED[name] for name in ("network", "positions", "rates", "conserved")}
    return fl.gradient_flow(
        network, task, 2.0, ts=TS, observe=asked, kinks=fl.IgnoreKinks(), rtol=1e-10
    )


def at_once(function, *arguments):
    """The value of a function compiled as a whole, which is faster than piece by piece."""
    return jax.device_get(jax.jit(function)(*arguments))


# --- along a trajectory ---------------------------------------------------------------------


def test_observed_and_stored_networks_agree(descent, task):
    def every(network, task):
        return {name: measure(network, task) for name, measure in OBSERVED.items()}

    stored = measures.along(descent.observed["network"], every, task)
    for a, b in zip(jax.tree.leaves(descent.observed), jax.tree.leaves(stored), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    for a, b in zip(
        jax.tree.leaves(descent.final), jax.tree.leaves(descent.observed["network"]), strict=True
    ):
        np.testing.assert_allclose(b[-1], a, rtol=1e-12)
    test = OBSERVED["test"].task
    residuals = np.asarray(at_once(lambda n: n.outputs(test.x), descent.final)) - test.y
    np.testing.assert_allclose(descent.observed["test"][-1], np.sum(residuals**2) / 18, rtol=1e-10)


def test_a_trajectory_knows_its_task_until_it_is_saved(task, tmp_path):
    network = fl.LinearNetwork.init(task, 3, 0.3, key=jax.random.key(0))
    run = fl.gradient_descent(network, task, 0.1, 4, save_every=2)
    np.testing.assert_allclose(measures.along(run, measures.loss), run.losses, rtol=1e-12)
    run.save(tmp_path / "run.npz")
    loaded = fl.load(tmp_path / "run.npz")
    np.testing.assert_allclose(measures.along(loaded, measures.loss, task), run.losses, rtol=1e-12)
    values = measures.along(loaded, measures.conserved)
    assert values.shape == (3, 3)
    with pytest.raises(ValueError, match=r"this measure looks at samples: pass a `task`"):
        measures.along(loaded, measures.hidden)


# --- units ----------------------------------------------------------------------------------


def test_activity_is_that_of_the_gate_events(descent):
    found = descent.observed["activity"]
    expected = descent.linearization().activity(np.asarray(descent.ts))
    assert len({row for row in zip(*(np.asarray(a).tolist() for a in found), strict=True)}) > 1
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-15)


def activity_of(z, quantile):
    """Shares of units that are on, gating and off, of preactivations (P, H)."""
    share = (z > 0).mean(axis=0)
    on = np.mean(share >= 1 - quantile - 1e-12)
    off = np.mean(share <= quantile + 1e-12)
    return on, 1 - on - off, off


@pytest.mark.parametrize("quantile", [0.0, 0.4])
def test_activity_at_a_quantile(quantile):
    task = gaussian(30, 2, 2)
    network = deep(fl.ReLUNetwork, task, hidden=(9, 11), c=1.5)

    def every(network, task):
        return [
            (
                measures.activity(network, task, quantile=quantile, layer=layer),
                measures.activity(network, task.x, quantile=quantile, layer=layer),
                measures.hidden(network, task, layer=layer),
            )
            for layer in range(2)
        ]

    h = np.asarray(task.x)
    for layer, (found, of_inputs, hidden) in enumerate(at_once(every, network, task)):
        z = h @ np.asarray(network.weights[layer]).T + 1.5 * np.asarray(network.biases[layer])
        h = np.maximum(z, 0)
        np.testing.assert_allclose(found, activity_of(z, quantile), atol=1e-15)
        np.testing.assert_array_equal(found, of_inputs)
        np.testing.assert_allclose(hidden, h, rtol=1e-12, atol=1e-12)
    assert 0 < found[0] < 1


@pytest.mark.slow
def test_many_samples_are_looked_at_in_chunks():
    """Some 900 at once of as many units as here, on a CPU."""
    task = gaussian(3001, 3, 2)
    network = deep(fl.ReLUNetwork, task, hidden=(5, 300))
    (w1, w2, w3), (b1, b2, b3) = (map(np.asarray, arrays) for arrays in network.parameters)
    z = np.maximum(np.asarray(task.x) @ w1.T + 3 * b1, 0) @ w2.T + 3 * b2
    outputs = np.maximum(z, 0) @ w3.T + 3 * b3
    wrong = float(np.mean(np.argmax(outputs, axis=1) != np.argmax(np.asarray(task.y), axis=1)))
    for one in (network, network.frozen(task)):
        found = measures.activity(one, task, quantile=0.3, layer=1)
        np.testing.assert_allclose(found, activity_of(z, 0.3), atol=1e-15)
        assert float(measures.error_rate(one, task)) == pytest.approx(wrong, abs=1e-15)


def test_preactivations_vanish_at_the_kinks(task, network):
    def every(network):
        k = measures.kink_positions(network)
        w = network.weights[0]
        points = k[:, None] * w / jnp.linalg.norm(w, axis=1, keepdims=True)
        at_origin = network.preactivations(jnp.zeros((1, 2)))[0][0]
        return k, jnp.diag(network.preactivations(points)[0]), at_origin

    k, at_kinks, at_origin = at_once(every, network)
    np.testing.assert_allclose(at_kinks, 0, atol=1e-14)
    np.testing.assert_array_equal(k < 0, at_origin > 0)
    bare = fl.ReLUNetwork(network.weights)
    rates = at_once(measures.kink_rates, bare, task)
    assert np.all(at_once(measures.kink_positions, bare) == 0)
    assert np.all(rates == 0)


@pytest.mark.slow
def test_kink_rates_are_those_of_the_flow(flow):
    k, rates = np.asarray(flow.observed["positions"]), flow.observed["rates"]
    near = (flow.events.time > TS[2]) & (flow.events.time < TS[4])
    assert not np.any(near)
    differences = (k[4] - k[2]) / (TS[4] - TS[2])
    assert np.max(np.abs(differences)) > 0.1
    np.testing.assert_allclose(rates[3], differences, rtol=1e-5, atol=1e-6)


def test_kink_rates_of_another_loss_and_layer(task):
    network = deep(fl.ReLUNetwork, task, slope=0.1)
    chosen = functools.partial(measures.velocity, loss=fl.SquaredError("sum"), tau=2.0)

    def total(parameters):
        outputs = network.with_parameters(parameters).outputs(task.x)
        return 0.5 * jnp.sum((outputs - task.y) ** 2)

    def every(network, task):
        step = jax.tree.map(lambda g: -g / 2.0, jax.grad(total)(network.parameters))

        def moved(h):
            parameters = jax.tree.map(lambda p, v: p + h * v, network.parameters, step)
            return measures.kink_positions(network.with_parameters(parameters), layer=1)

        rates = measures.kink_rates(network, task, layer=1, velocity=chosen)
        return step, chosen(network, task), rates, (moved(1e-6) - moved(-1e-6)) / 2e-6

    step, velocity, rates, differences = at_once(every, network, task)
    for a, b in zip(jax.tree.leaves(velocity), jax.tree.leaves(step), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_allclose(rates, differences, rtol=1e-6)


def test_norms(task):
    network = deep(fl.LinearNetwork, task)
    network = fl.LinearNetwork(network.weights, (None, *network.biases[1:]), 2.0)
    found = at_once(measures.norms, network)
    assert found.biases[0] is None
    for sizes, arrays in zip(found, network.parameters, strict=True):
        for size, array in zip(sizes[1:], arrays[1:], strict=True):
            np.testing.assert_allclose(size, np.linalg.norm(array), rtol=1e-14)


# --- conserved quantities -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "relu", "leaky", "gated"])
def test_conserved_quantities_have_no_velocity(kind, task):
    """Their derivative along the flow is zero, unit by unit, for any depth, c and loss."""
    if kind == "linear":
        network = deep(fl.LinearNetwork, task)
    else:
        network = deep(fl.ReLUNetwork, task, slope=0.2 if kind == "leaky" else 0.0)
        network = network.frozen(task) if kind == "gated" else network
    loss = fl.SquaredError() if kind == "leaky" else fl.CrossEntropy()
    task = fl.Task(task.x, np.eye(3)[[0, 1, 2, 0, 1]])

    def every(network, task):
        """Values and their velocities, per layer, and the parameters' velocities."""
        step = measures.velocity(network, task, loss=loss)

        def values(parameters):
            moved = network.with_parameters(parameters)
            both = (measures.conserved, measures.conserved_matrix)
            return [tuple(measure(moved, layer=layer) for measure in both) for layer in range(3)]

        return (*jax.jvp(values, (network.parameters,), (step,)), step)

    values, rates, step = at_once(every, network, task)
    size = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(step))
    assert size > 0.01
    for (unit, matrix), (unit_rate, matrix_rate) in zip(values, rates, strict=True):
        np.testing.assert_allclose(np.diag(matrix), unit, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(unit_rate, 0, atol=1e-13 * max(1, size))
        moves = np.max(np.abs(matrix_rate))  # gates part two units
        assert moves < 1e-12 * max(1, size) if kind == "linear" else moves > 1e-4


@pytest.mark.slow
def test_drift(flow):
    values = np.asarray(flow.observed["conserved"])
    found = measures.drift(values)
    expected = [
        max(abs(float(q) - float(q0)) for q, q0 in zip(v, values[0], strict=True)) for v in values
    ]
    np.testing.assert_allclose(found, expected, atol=0)
    assert found[0] == 0
    assert np.max(found) < 1e-8
    moved = np.sum(np.asarray(flow.observed["network"].weights[0]) ** 2, axis=2)
    assert np.max(measures.drift(moved)) > 0.03


# --- modes ----------------------------------------------------------------------------------


def by_group(values, modes):
    """Of equal modes the mean."""
    means = {k: np.mean(values[list(group)]) for group in modes.groups for k in group}
    return np.array([means[k] for k in range(len(values))])


def test_mode_matrix_is_the_end_to_end_matrix(tree, key):
    modes = fl.theory.modes(tree, 3.0)
    network = fl.LinearNetwork.init(
        tree, (6, 5), 0.2, bias=(True, False, False), bias_strength=3.0, key=key
    )
    w1, w2, w3 = (np.asarray(w) for w in network.weights)
    end_to_end = w3 @ w2 @ np.hstack([np.asarray(network.biases[0])[:, None], w1])
    seen = np.asarray(modes.d) > 0
    assert not np.all(seen)
    expected = np.asarray(modes.u).T @ end_to_end @ np.asarray(modes.v) * seen
    relu = fl.ReLUNetwork(network.weights, network.biases, 3.0)
    matrices = [at_once(measures.mode_matrix, n, tree, modes) for n in (network, relu)]
    np.testing.assert_allclose(matrices[0], expected, atol=1e-13)
    for n, matrix in zip((network, relu), matrices, strict=True):
        diagonal = by_group(np.diag(matrix), modes)
        np.testing.assert_allclose(diagonal, modes.strengths(n, tree), atol=1e-14)


def test_mode_shares(tree, key):
    modes = fl.theory.modes(tree, 1.0)
    relu = fl.ReLUNetwork.init(tree, 6, 0.2, key=key)
    shares = at_once(measures.mode_shares, relu, tree, modes)
    np.testing.assert_allclose(sum(shares), 1, rtol=1e-12)
    assert min(shares) > 0.01
    # Mode 1's input in mode 0's output, beside mode 0 itself; and an output that is in no mode.
    other = np.linalg.svd(np.asarray(modes.u))[0][:, -1]
    u, v, d = (np.asarray(a) for a in (modes.u, modes.v, modes.d))
    w = 3 * np.outer(u[:, 0], v[:, 0]) + 2 * np.outer(u[:, 0], v[:, 1]) + np.outer(other, v[:, 2])
    network = fl.LinearNetwork((w[:, 1:],), (w[:, 0],))
    parts = np.array([9 * d[0], 4 * d[1], d[2]])
    found = at_once(measures.mode_shares, network, tree, modes)
    np.testing.assert_allclose(found, parts / parts.sum(), rtol=1e-12)


def test_hidden_vectors_and_their_alignment(tree, aligned):
    def every(network, task, modes):
        return (
            measures.hidden_vectors(network, task, modes),
            measures.alignment(network, task, modes),
            measures.mode_matrix(network, task, modes),
        )

    network, modes = aligned
    (p, q), cosines, _ = at_once(every, network, tree, modes)
    np.testing.assert_allclose(np.sum(p * q, 1), ALIGNED, rtol=1e-12)
    np.testing.assert_allclose(fl.theory.imbalance(p, q), 0, atol=1e-15)
    np.testing.assert_allclose(cosines, 1, rtol=1e-12)
    relu = fl.ReLUNetwork.init(tree, 16, 0.1, bias_strength=2.0, key=jax.random.key(2))
    modes = fl.theory.modes(tree, 2.0)
    live = relu.always_on(tree)
    assert 0 < np.sum(live.given_gates[0]) < 16
    (p, q), _, matrix = at_once(every, live, tree, modes)
    np.testing.assert_allclose(p @ q.T * (np.asarray(modes.d) > 0), matrix, atol=1e-14)
    (p, q), cosines, _ = at_once(every, relu, tree, modes)
    pq, pp, qq = (by_group(np.sum(a * b, axis=1), modes) for a, b in ((p, q), (p, p), (q, q)))
    np.testing.assert_allclose(cosines, pq / np.sqrt(pp * qq), rtol=1e-12)


# --- function -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "relu", "leaky", "gated"])
def test_effective_maps_are_the_network(kind):
    task = gaussian(12, 3, 2)
    network = deep(fl.LinearNetwork if kind == "linear" else fl.ReLUNetwork, task)
    network = deep(fl.ReLUNetwork, task, slope=0.2) if kind == "leaky" else network
    network = network.frozen(task) if kind == "gated" else network

    def every(network, task):
        """Maps and what they should give, of the outputs and the hidden layers; the Jacobian."""
        found = [(measures.effective_map(network, task), network.outputs(task.x))]
        for layer in range(3):
            h = measures.hidden(network, task, layer=layer)
            found.append((measures.effective_map(network, task.x, layer=layer), h))
        return found, None if kind == "gated" else jax.vmap(jax.jacfwd(network))(task.x)

    found, jacobian = at_once(every, network, task)
    for (matrix, offset), expected in found:
        values = np.einsum("poi,pi->po", matrix, task.x) + offset
        np.testing.assert_allclose(values, expected, atol=1e-13 * np.max(np.abs(expected)))
    matrix, offset = found[0][0]
    if kind == "linear":
        affine = fl.LinearNetwork(network.weights, network.biases, 3.0).affine()
        for a, b in zip(affine, (matrix, offset), strict=True):
            np.testing.assert_allclose(b, np.broadcast_to(a, b.shape), rtol=1e-11, atol=1e-12)
    else:
        assert len(np.unique(matrix[:, 0, 0])) > 3
    if jacobian is not None:
        np.testing.assert_allclose(matrix, jacobian, rtol=1e-11, atol=1e-12)


def test_effective_offset_is_the_sum_over_layers():
    task = gaussian(6, 3, 2)
    network = deep(fl.ReLUNetwork, task, c=2.5)
    w, b = ([np.asarray(a) for a in arrays] for arrays in network.parameters)
    offset = np.asarray(measures.effective_map(network, task).offset)
    for p, x in enumerate(np.asarray(task.x)):
        gates, h = [], x
        for k in range(3):
            z = w[k] @ h + 2.5 * b[k]
            gates.append(np.diag((z > 0).astype(float)))
            h = gates[-1] @ z
        total = 2.5 * b[3]
        for k in range(3):
            chain = gates[k] @ (2.5 * b[k])
            for higher in range(k + 1, 3):
                chain = gates[higher] @ w[higher] @ chain
            total = total + w[3] @ chain
        np.testing.assert_allclose(offset[p], total, rtol=1e-12)


def test_single_layers_have_one_map(task):
    network = fl.LinearNetwork((np.ones((3, 2)),), (np.arange(3.0),), 2.0)
    matrix, offset = measures.effective_map(network, task)
    assert matrix.shape == (5, 3, 2)
    np.testing.assert_array_equal(offset, np.tile([0.0, 2, 4], (5, 1)))


def test_function_on_a_grid():
    task = fl.tasks.offset_xor(0.5)
    network = deep(fl.ReLUNetwork, task, hidden=(8,))
    axes = (np.linspace(-1, 1, 4), np.array([0.3]), np.linspace(0, 2, 3))
    found = measures.on_grid(network, axes=axes)
    assert found.shape == (4, 1, 3, 2)
    points = jnp.array([[a, 0.3, b] for a in axes[0] for b in axes[2]])
    expected = np.asarray(network.outputs(points)).reshape(4, 3, 2)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-12, atol=1e-13)
    averaged = measures.on_grid(network, axes=axes, average=2)
    np.testing.assert_allclose(averaged, np.mean(found, axis=2), rtol=1e-12)
    corners = measures.on_grid(network, task, axes=jnp.array([-1.0, 1.0]))
    assert corners.shape == (2, 2, 2, 2)
    # Of an affine function the average over the cube is its value at the middle.
    linear = deep(fl.LinearNetwork, task, hidden=(8,))
    flat = measures.on_grid(linear, average=2)
    assert flat.shape == (21, 21, 2)
    np.testing.assert_allclose(flat[5, 20], linear(jnp.array([-0.5, 1.0, 0.0])), rtol=1e-12)


def test_error_rate_is_that_of_sklearn():
    from sklearn.metrics import zero_one_loss

    rng = np.random.default_rng(4)
    classes = rng.integers(3, size=40)
    task = fl.Task(rng.normal(size=(40, 3)) + 2 * np.eye(3)[classes], np.eye(3)[classes])
    network = fl.LinearNetwork((np.eye(3),))
    expected = zero_one_loss(classes, np.argmax(task.x, axis=1))
    assert 0 < expected < 0.5
    assert float(measures.error_rate(network, task)) == pytest.approx(expected, abs=1e-15)
    entropy = measures.loss(network, task, loss=fl.CrossEntropy())
    assert float(entropy) == pytest.approx(float(fl.CrossEntropy()(task.x, task.y)), rel=1e-13)


# --- input ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda n, t: measures.hidden(n, t, layer=3), r"`layer` = 3 does not exist"),
        (lambda n, t: measures.conserved(n, layer=-1), r"`layer` must be .* got -1"),
        (lambda n, t: measures.activity(n, t, quantile=0.5), r"`quantile` must lie in"),
        (lambda n, t: measures.hidden(n, t.x[0]), r"`task` must have shape .*one row per sample"),
        (lambda n, t: measures.loss(n, t.x), r"`task` must be an fl\.Task"),
        (lambda n, t: measures.error_rate(n, fl.Task(t.x, t.y[:, :1])), r"single output"),
        (lambda n, t: measures.on_grid(n, axes=[jnp.zeros(2)]), r"one array for each of 2 inputs"),
        (lambda n, t: measures.on_grid(n, axes=jnp.zeros(3000)), r"9,000,000 points"),
        (lambda n, t: measures.on_grid(n, axes=jnp.zeros((2, 2))), r"one-dimensional"),
        (
            lambda n, t: measures.effective_map(n.frozen(t), t.x[:3]),
            r"`gates\[0\]` are for \d+ samples and the inputs have 3",
        ),
        (lambda n, t: measures.on_grid(n, average=2), r"`average` = 2 is none of the 2"),
        (
            lambda n, t: measures.alignment(n, t, fl.theory.modes(t)),
            r"one hidden layer; the network has 2",
        ),
    ],
)
def test_bad_input(call, message, task):
    with pytest.raises(ValueError, match=message):
        call(deep(fl.ReLUNetwork, task, hidden=(3, 3)), task)


def test_float32(task):
    network = deep(fl.ReLUNetwork, task, hidden=(4,))
    modes = fl.theory.modes(task, 3.0)

    def every(network, task, modes):
        return (
            measures.hidden(network, task),
            measures.activity(network, task),
            measures.kink_rates(network, task),
            measures.conserved(network),
            measures.effective_map(network, task),
            measures.on_grid(network, axes=jnp.zeros(2, jnp.float32)),
            measures.error_rate(network, task),
            measures.mode_shares(network, task, modes),
            measures.alignment(network, task, modes),
            measures.norms(network),
        )

    single = jax.tree.map(lambda a: a.astype(jnp.float32), (network, task, modes))
    expected = jax.tree.leaves(jax.eval_shape(every, network, task, modes))
    found = jax.tree.leaves(at_once(every, *single))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == jnp.float32
        assert a.shape == b.shape
        assert np.all(np.isfinite(a))
