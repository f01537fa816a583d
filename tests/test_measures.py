"""Measures of networks: units, modes, function, conserved quantities, and along trajectories."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

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
    return fl.ReLUNetwork.init(task, 7, 0.3, bias_strength=2.0, key=jax.random.key(3))


@pytest.fixture(scope="module")
def run(task, network):
    """A run of few kinks and no sliding, by what it observes."""
    return functools.partial(
        fl.gradient_flow, network, task, 2.0, ts=TS, kinks=fl.IgnoreKinks(), rtol=1e-10
    )


@pytest.fixture(scope="module")
def flow(run):
    return run()


# --- along a trajectory ---------------------------------------------------------------------


def test_observed_and_along_and_one_by_one_agree(run, flow, task):
    modes, test = fl.theory.modes(task, 2.0), gaussian(9, seed=1)
    observe = {
        "activity": measures.activity,
        "rates": measures.kink_rates,
        "norms": measures.norms,
        "matrix": functools.partial(measures.mode_matrix, modes=modes),
        "test": measures.OnTask(measures.loss, test),
        "rank": lambda n, task: measures.effective_rank_of_gram(measures.hidden(n, task)),
    }
    observed = run(observe=observe).observed
    for name, measure in observe.items():
        stored = measures.along(flow, measure)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12),
            stored,
            observed[name],
        )
        single = [
            measure(jax.tree.map(lambda a, k=k: a[k], flow.networks), task) for k in range(len(TS))
        ]
        jax.tree.map(
            lambda a, *b: np.testing.assert_allclose(a, np.stack(b), rtol=1e-12, atol=1e-13),
            stored,
            *single,
        )
    test_losses = [
        np.mean(np.sum((np.asarray(n.outputs(test.x)) - test.y) ** 2, axis=1)) / 2
        for n in (flow.final,)
    ]
    np.testing.assert_allclose(observed["test"][-1], test_losses[0], rtol=1e-12)
    other = measures.along(flow, measures.loss, test)
    np.testing.assert_allclose(other, observed["test"], rtol=1e-9)
    np.testing.assert_allclose(measures.along(flow, measures.loss), flow.losses, rtol=1e-12)


def test_a_trajectory_without_its_task(flow, tmp_path):
    flow.save(tmp_path / "flow.npz")
    loaded = fl.load(tmp_path / "flow.npz")
    kinks = measures.along(loaded, measures.kink_positions)
    np.testing.assert_array_equal(kinks, measures.along(flow, measures.kink_positions))
    with pytest.raises(ValueError, match=r"this measure looks at samples: pass a `task`"):
        measures.along(loaded, measures.hidden)


# --- units ----------------------------------------------------------------------------------


def test_activity_is_that_of_the_gate_events(flow, task):
    found = measures.along(flow, measures.activity)
    with pytest.warns(UserWarning, match="still at its maximum"):
        expected = flow.linearization()
    assert len(set(np.asarray(found.always_on).tolist())) > 1
    for a, b in zip(found, expected.activity(TS), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-15)


@pytest.mark.parametrize("quantile", [0.0, 0.1, 0.4])
def test_activity_at_a_quantile(quantile):
    task = gaussian(30, 2, 2)
    network = deep(fl.ReLUNetwork, task, hidden=(9, 11), c=1.5)
    h = np.asarray(task.x)
    for layer in range(2):
        z = h @ np.asarray(network.weights[layer]).T + 1.5 * np.asarray(network.biases[layer])
        h = np.maximum(z, 0)
        share = (z > 0).mean(axis=0)
        on = np.mean(share >= 1 - quantile - 1e-12)
        off = np.mean(share <= quantile + 1e-12)
        found = measures.activity(network, task, quantile=quantile, layer=layer)
        np.testing.assert_allclose(found, (on, 1 - on - off, off), atol=1e-15)
        of_inputs = measures.activity(network, task.x, quantile=quantile, layer=layer)
        np.testing.assert_array_equal(found, of_inputs)
        np.testing.assert_allclose(measures.hidden(network, task, layer=layer), h, rtol=1e-12)
    assert 0 < on < 1


def test_activity_in_chunks(monkeypatch):
    task = gaussian(2000, 3, 2)
    network = deep(fl.ReLUNetwork, task, hidden=(5, 9))
    gated = network.frozen(task)
    whole = [measures.activity(n, task, quantile=0.3, layer=1) for n in (network, gated)]
    wrong = [measures.error_rate(n, task) for n in (network, gated)]
    monkeypatch.setattr("flowlin.chunks.ROWS", 100)
    monkeypatch.setitem(fl.chunks.BYTES, "cpu", 1)
    for n, activity, rate in zip((network, gated), whole, wrong, strict=True):
        found = measures.activity(n, task, quantile=0.3, layer=1)
        np.testing.assert_array_equal(found, activity)
        assert measures.error_rate(n, task) == rate


def test_preactivations_vanish_at_the_kinks(task, network):
    k = measures.kink_positions(network)
    w = network.weights[0]
    points = k[:, None] * w / jnp.linalg.norm(w, axis=1, keepdims=True)
    np.testing.assert_allclose(jnp.diag(network.preactivations(points)[0]), 0, atol=1e-14)
    at_origin = network.preactivations(jnp.zeros((1, 2)))[0][0] > 0
    np.testing.assert_array_equal(k < 0, at_origin)
    bare = fl.ReLUNetwork(network.weights)
    assert np.all(np.asarray(measures.kink_positions(bare)) == 0)
    assert np.all(np.asarray(measures.kink_rates(bare, task)) == 0)


def test_kink_rates_are_those_of_the_flow(flow):
    k = measures.along(flow, measures.kink_positions)
    rates = measures.along(flow, measures.kink_rates)
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

    step = jax.tree.map(lambda g: -g / 2.0, jax.grad(total)(network.parameters))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-12), chosen(network, task), step
    )
    moved = [
        network.with_parameters(jax.tree.map(lambda p, v, h=h: p + h * v, network.parameters, step))
        for h in (1e-6, -1e-6)
    ]
    ahead, behind = (measures.kink_positions(n, layer=1) for n in moved)
    rates = measures.kink_rates(network, task, layer=1, velocity=chosen)
    np.testing.assert_allclose(rates, (ahead - behind) / 2e-6, rtol=1e-6)


def test_norms(task):
    network = fl.LinearNetwork.init(
        task, (4, 3), 0.5, bias=(True, False, True), key=jax.random.key(0)
    )
    found = measures.norms(network)
    for a, w in zip(found.weights, network.weights, strict=True):
        assert float(a) == pytest.approx(np.linalg.norm(w), rel=1e-14)
    assert found.biases[1] is None
    assert float(found.biases[0]) == pytest.approx(np.linalg.norm(network.biases[0]), rel=1e-14)


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
    step = measures.velocity(network, task, loss=loss)

    def rate(measure, layer):
        def along(parameters):
            return measure(network.with_parameters(parameters), layer=layer)

        return jax.jvp(along, (network.parameters,), (step,))

    for layer in range(3):
        values, rates = rate(measures.conserved, layer)
        size = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(step))
        assert size > 0.01
        np.testing.assert_allclose(rates, 0, atol=1e-13 * max(1, size))
        matrix, rates = rate(measures.conserved_matrix, layer)
        # A later layer's bias has no partner outside its own unit, and a gate parts two units.
        np.testing.assert_allclose(jnp.diag(matrix), -values, rtol=1e-12, atol=1e-13)
        moves = float(jnp.max(jnp.abs(rates)))
        assert moves < 1e-12 * max(1, size) if kind == "linear" else moves > 1e-4


def test_drift(flow):
    values = measures.along(flow, measures.conserved)
    found = measures.drift(values)
    expected = [
        max(abs(float(q) - float(q0)) for q, q0 in zip(v, values[0], strict=True)) for v in values
    ]
    np.testing.assert_allclose(found, expected, atol=0)
    assert found[0] == 0
    assert np.max(found) < 1e-8
    moved = measures.along(flow, lambda n, _: jnp.sum(n.weights[0] ** 2, axis=1))
    assert np.max(measures.drift(moved)) > 0.1


# --- modes ----------------------------------------------------------------------------------


def test_mode_matrix_is_the_end_to_end_matrix(tree, key):
    modes = fl.theory.modes(tree, 3.0)
    network = fl.LinearNetwork.init(tree, (6, 5), 0.2, bias_strength=3.0, key=key)
    w1, w2, w3 = (np.asarray(w) for w in network.weights)
    b1, b2 = (np.asarray(b)[:, None] for b in network.biases[:2])
    end_to_end = w3 @ w2 @ np.hstack([b1, w1])
    found = measures.mode_matrix(
        fl.LinearNetwork(network.weights, (network.biases[0], None, None), 3.0), tree, modes
    )
    seen = np.asarray(modes.d) > 0
    expected = np.asarray(modes.u).T @ end_to_end @ np.asarray(modes.v) * seen
    np.testing.assert_allclose(found, expected, atol=1e-13)
    assert not np.all(seen)
    relu = fl.ReLUNetwork(network.weights, network.biases, 3.0)
    for n in (network, relu):
        strengths = modes.strengths(n, tree)
        np.testing.assert_allclose(
            jnp.diag(measures.mode_matrix(n, tree, modes)), strengths, atol=1e-14
        )
    assert b2.any()


def test_mode_shares(tree, key):
    modes = fl.theory.modes(tree, 1.0)
    relu = fl.ReLUNetwork.init(tree, 6, 0.2, key=key)
    shares = measures.mode_shares(relu, tree, modes)
    np.testing.assert_allclose(sum(shares), 1, rtol=1e-12)
    assert min(shares) > 0.01
    # Mode 1's input in mode 0's output, beside mode 0 itself; and an output that is in no mode.
    other = np.linalg.svd(np.asarray(modes.u))[0][:, -1]
    u, v, d = (np.asarray(a) for a in (modes.u, modes.v, modes.d))
    w = 3 * np.outer(u[:, 0], v[:, 0]) + 2 * np.outer(u[:, 0], v[:, 1]) + np.outer(other, v[:, 2])
    network = fl.LinearNetwork((w[:, 1:],), (w[:, 0],))
    parts = np.array([9 * d[0], 4 * d[1], d[2]])
    np.testing.assert_allclose(
        measures.mode_shares(network, tree, modes), parts / parts.sum(), rtol=1e-12
    )


def test_hidden_vectors_and_their_alignment(tree, aligned):
    network, modes = aligned
    p, q = measures.hidden_vectors(network, tree, modes)
    np.testing.assert_allclose(jnp.sum(p * q, 1), jnp.linspace(1e-3, 3e-3, 9), rtol=1e-12)
    np.testing.assert_allclose(fl.theory.imbalance(p, q), 0, atol=1e-15)
    np.testing.assert_allclose(measures.alignment(network, tree, modes), 1, rtol=1e-12)
    relu = fl.ReLUNetwork.init(tree, 16, 0.1, bias_strength=2.0, key=jax.random.key(2))
    modes = fl.theory.modes(tree, 2.0)
    live = relu.always_on(tree)
    p, q = measures.hidden_vectors(live, tree, modes)
    matrix = measures.mode_matrix(live, tree, modes)
    seen = modes.d > 0
    np.testing.assert_allclose(p @ q.T * seen, matrix, atol=1e-14)
    assert 0 < jnp.sum(live.gates_[0]) < 16
    raw = measures.hidden_vectors(relu, tree, modes)
    cosines = [
        np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b)
        for a, b in zip(*map(np.asarray, raw), strict=True)
    ]
    np.testing.assert_allclose(measures.alignment(relu, tree, modes), cosines, rtol=1e-12)


# --- function -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "relu", "leaky", "gated"])
def test_effective_maps_are_the_network(kind):
    task = gaussian(12, 3, 2)
    network = deep(fl.LinearNetwork if kind == "linear" else fl.ReLUNetwork, task)
    network = deep(fl.ReLUNetwork, task, slope=0.2) if kind == "leaky" else network
    network = network.frozen(task) if kind == "gated" else network
    matrix, offset = measures.effective_map(network, task)
    values = jnp.einsum("poi,pi->po", matrix, task.x) + offset
    size = np.max(np.abs(network.outputs(task.x)))
    np.testing.assert_allclose(values, network.outputs(task.x), atol=1e-13 * size)
    if kind == "linear":
        for a, b in zip(network.affine(), (matrix, offset), strict=True):
            np.testing.assert_allclose(b, np.broadcast_to(a, b.shape), rtol=1e-11, atol=1e-12)
    elif kind != "gated":
        jacobian = jax.vmap(jax.jacfwd(network))(task.x)
        np.testing.assert_allclose(matrix, jacobian, rtol=1e-11, atol=1e-12)
        assert len(np.unique(np.asarray(matrix)[:, 0, 0])) > 3
    for layer in range(3):
        matrix, offset = measures.effective_map(network, task.x, layer=layer)
        values = jnp.einsum("phi,pi->ph", matrix, task.x) + offset
        h = measures.hidden(network, task, layer=layer)
        np.testing.assert_allclose(values, h, atol=1e-13 * np.max(np.abs(h)))


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
    for i, a in enumerate(axes[0]):
        for k, b in enumerate(axes[2]):
            expected = network(jnp.array([a, 0.3, b]))
            np.testing.assert_allclose(found[i, 0, k], expected, rtol=1e-12, atol=1e-13)
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
        (lambda n, t: measures.conserved(n, layer=-1), r"`layer` = -1 does not exist"),
        (lambda n, t: measures.activity(n, t, quantile=0.5), r"`quantile` must lie in"),
        (lambda n, t: measures.hidden(n, t.x[0]), r"one row per sample, \(P, N_in\)"),
        (lambda n, t: measures.loss(n, t.x), r"pass an `fl.Task`"),
        (lambda n, t: measures.error_rate(n, fl.Task(t.x, t.y[:, :1])), r"single output"),
        (lambda n, t: measures.on_grid(n, axes=[jnp.zeros(2)]), r"one array for each of 2 inputs"),
        (lambda n, t: measures.on_grid(n, axes=jnp.zeros(3000)), r"9,000,000 points"),
        (lambda n, t: measures.on_grid(n, axes=jnp.zeros((2, 2))), r"one-dimensional"),
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
    network = deep(fl.ReLUNetwork, task, hidden=(4,)).astype(jnp.float32)
    single, modes = task.astype(jnp.float32), fl.theory.modes(task, 3.0)
    modes = jax.tree.map(lambda a: a.astype(jnp.float32), modes)
    found = [
        measures.hidden(network, single),
        measures.kink_rates(network, single),
        measures.conserved(network),
        measures.effective_map(network, single),
        measures.on_grid(network, axes=jnp.zeros(2, jnp.float32)),
        measures.error_rate(network, single),
        measures.mode_shares(network, single, modes),
        measures.norms(network),
    ]
    assert {a.dtype for a in jax.tree.leaves(found)} == {jnp.dtype(jnp.float32)}
    assert math.isfinite(sum(float(jnp.sum(a)) for a in jax.tree.leaves(found)))
