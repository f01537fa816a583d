"""Networks of layers: forward pass, gates, freezing, precision, bad input; global gates."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.tolerances import ROUNDING

SIZES = (3, 5, 4, 2)  # inputs, two hidden layers, outputs; fewer layers leave the middle out
KINDS = ("linear", "relu", "leaky", "gated")
C = 1.7
SLOPE = 0.3


def draw(layers, flags, seed=0):
    """Weights and biases in numpy for 1 to 3 layers."""
    rng = np.random.default_rng(seed)
    sizes = (*SIZES[:layers], SIZES[-1])
    pairs = list(itertools.pairwise(sizes))
    weights = tuple(rng.normal(size=(b, a)) for a, b in pairs)
    biases = tuple(
        rng.normal(size=b) if on else None for (_, b), on in zip(pairs, flags, strict=True)
    )
    return weights, biases


def inputs(samples=6, seed=1):
    return np.random.default_rng(seed).normal(size=(samples, SIZES[0]))


def some_gates(weights, samples, seed=2):
    rng = np.random.default_rng(seed)
    return tuple(rng.uniform(size=(samples, len(w))) for w in weights[:-1])


def plain_forward(weights, biases, x, gate):
    """Sample by sample in numpy, the constant c as one more input of each layer with a bias.

    `gate(layer, sample, z)` gives the gates (H,); returns outputs, preactivations and gates.
    """
    outputs, zs, gs = [], [[] for _ in weights[1:]], [[] for _ in weights[1:]]
    for sample, h in enumerate(x):
        for layer, (w, b) in enumerate(zip(weights, biases, strict=True)):
            augmented = w if b is None else np.column_stack([b, w])
            z = augmented @ (h if b is None else np.concatenate([[C], h]))
            if layer < len(weights) - 1:
                g = gate(layer, sample, z)
                zs[layer].append(z)
                gs[layer].append(g)
                z = g * z
            h = z
        outputs.append(h)
    return np.array(outputs), [np.array(z) for z in zs], [np.array(g) for g in gs]


def make(kind, weights, biases, gates):
    if kind == "gated":
        return fl.GatedLinearNetwork(weights, biases, C, gates=gates)
    if kind == "linear":
        return fl.LinearNetwork(weights, biases, C)
    return fl.ReLUNetwork(weights, biases, C, slope=SLOPE if kind == "leaky" else 0.0)


def gate_rule(kind, gates):
    return {
        "linear": lambda layer, sample, z: np.ones_like(z),
        "relu": lambda layer, sample, z: (z > 0).astype(float),
        "leaky": lambda layer, sample, z: np.where(z > 0, 1.0, SLOPE),
        "gated": lambda layer, sample, z: gates[layer][sample],
    }[kind]


@pytest.fixture
def deep():
    """A leaky network of three layers with biases everywhere, and a task for it."""
    weights, biases = draw(3, (True,) * 3)
    x = inputs(6)
    task = fl.Task(x, np.random.default_rng(3).normal(size=(6, SIZES[-1])))
    return fl.ReLUNetwork(weights, biases, C, slope=SLOPE), task


@pytest.mark.parametrize(
    ("layers", "flags"),
    [(n, f) for n in (1, 2, 3) for f in itertools.product((False, True), repeat=n)],
)
def test_forward_is_the_plain_one(layers, flags):
    weights, biases = draw(layers, flags)
    x = inputs()
    gates = some_gates(weights, len(x))
    for kind in KINDS:
        network = make(kind, weights, biases, gates)
        outputs, zs, gs = plain_forward(weights, biases, x, gate_rule(kind, gates))
        np.testing.assert_allclose(network.outputs(jnp.asarray(x)), outputs, atol=1e-13)
        found = network.preactivations(jnp.asarray(x)), network.gates(jnp.asarray(x))
        for arrays, expected in zip(found, (zs, gs), strict=True):
            assert len(arrays) == layers - 1
            for a, b in zip(arrays, expected, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-13)
        assert network.hidden == tuple(len(w) for w in weights[:-1])
        assert network.widths == (SIZES[0], *network.hidden, SIZES[-1])


@pytest.mark.parametrize("kind", KINDS[:3])
def test_one_sample_and_vmap_agree_with_outputs(kind):
    weights, biases = draw(3, (True, False, True))
    network = make(kind, weights, biases, None)
    x = jnp.asarray(inputs())
    expected = network.outputs(x)
    assert network(x[0]).shape == (SIZES[-1],)
    np.testing.assert_allclose(network(x[2]), expected[2], atol=1e-14)
    np.testing.assert_allclose(jax.vmap(network)(x), expected, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_the_activation_is_gate_times_z_and_its_derivative_the_gate(kind):
    weights, biases = draw(2, (True, False))
    gates = some_gates(weights, 3)
    network = make(kind, weights, biases, gates)
    z = jnp.repeat(jnp.array([[-2.0], [0.0], [3.0]]), SIZES[1], axis=1)
    rule = gate_rule(kind, gates)
    expected = np.array([rule(0, sample, np.asarray(row)) for sample, row in enumerate(z)])
    found = jnp.broadcast_to(network.gate(0, z), z.shape)
    h, pull_back = jax.vjp(lambda z: network.activation(0, z), z)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(h, expected * z)
    np.testing.assert_array_equal(pull_back(jnp.ones_like(z))[0], expected)
    ahead = jax.jvp(lambda z: network.activation(0, z), (z,), (jnp.ones_like(z),))[1]
    np.testing.assert_array_equal(ahead, expected)


@pytest.mark.parametrize("slope", [0.0, SLOPE])
def test_a_unit_at_zero_is_off(slope):
    network = fl.ReLUNetwork(([[1.0, -1.0]], [[2.0]]), slope=slope)
    x = jnp.array([[1.0, 1.0], [2.0, 1.0], [1.0, 2.0]])
    assert network.preactivations(x)[0][0, 0] == 0
    np.testing.assert_array_equal(network.gates(x)[0][:, 0], [slope, 1.0, slope])
    # Its derivative is the off one too: d output / d w_1 = 2 g x with g = slope.
    gradient = jax.grad(lambda n: n.outputs(x[:1])[0, 0])(network)
    np.testing.assert_allclose(gradient.weights[0], [[2 * slope, 2 * slope]])


def test_frozen_gates_reproduce_the_network_on_its_task(deep):
    network, task = deep
    frozen = network.frozen(task)
    assert isinstance(frozen, fl.GatedLinearNetwork)
    np.testing.assert_allclose(frozen.outputs(task.x), network.outputs(task.x), atol=1e-13)
    for a, b in zip(frozen.gates(task.x), network.gates(task.x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_frozen_gates_do_not_follow_the_weights(deep):
    network, task = deep
    frozen = network.frozen(task)
    turned = frozen.with_parameters(jax.tree.map(lambda p: -p, frozen.parameters))
    weights, biases = jax.tree.map(lambda p: -np.asarray(p), network.parameters)
    gates = network.gates(task.x)
    expected, _, _ = plain_forward(weights, biases, task.x, gate_rule("gated", gates))
    np.testing.assert_allclose(turned.outputs(task.x), expected, atol=1e-13)
    with pytest.raises(ValueError, match=r"are for 6 samples and the inputs have 4"):
        frozen.outputs(task.x[:4])


def test_always_on_keeps_the_units_on_for_every_sample():
    # Units: always on, always off, mixed, and exactly at zero for one sample.
    w1 = jnp.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [1.0, -0.5]])
    w2 = jnp.array([[1.0, 10.0, 100.0, 1000.0]])
    x = jnp.array([[1.0, 2.0], [2.0, 1.0], [3.0, 1.0]])
    task = fl.Task(x, jnp.ones((3, 1)))
    network = fl.ReLUNetwork((w1, w2)).always_on(task)
    assert isinstance(network, fl.GatedLinearNetwork)
    np.testing.assert_array_equal(network.gates(x[:1])[0], [[1.0, 0.0, 0.0, 0.0]])
    # It is linear: also where the ReLU network is not.
    np.testing.assert_allclose(network.outputs(-x), -x.sum(axis=1, keepdims=True))


def test_always_on_of_a_deep_network_by_brute_force(deep):
    network, task = deep
    network = eqx.tree_at(lambda n: n.biases[0], network, network.biases[0] + 1.0)
    found = network.always_on(task).gates(task.x)
    some = 0
    for gates, z in zip(found, network.preactivations(task.x), strict=True):
        for unit in range(z.shape[1]):
            on = all(float(value) > 0 for value in z[:, unit])
            some += on
            np.testing.assert_array_equal(gates[:, unit], float(on))
    assert 0 < some < sum(network.hidden)


def test_gates_per_unit_and_per_sample():
    weights, biases = draw(3, (True, True, False))
    x = jnp.asarray(inputs())
    per_unit = tuple(np.array(g[0]) for g in some_gates(weights, 1))
    network = fl.GatedLinearNetwork(weights, biases, C, gates=per_unit)
    repeated = tuple(np.tile(g, (len(x), 1)) for g in per_unit)
    expected, _, _ = plain_forward(weights, biases, x, gate_rule("gated", repeated))
    np.testing.assert_allclose(network.outputs(x), expected, atol=1e-13)
    np.testing.assert_allclose(network(x[1]), expected[1], atol=1e-13)
    np.testing.assert_allclose(jax.vmap(network)(x), expected, atol=1e-13)
    assert [g.shape for g in network.gates(x)] == [(6, 5), (6, 4)]

    gates = tuple(jnp.asarray(g) for g in some_gates(weights, len(x)))
    expected, _, _ = plain_forward(weights, biases, x, gate_rule("gated", gates))
    sampled = fl.GatedLinearNetwork(weights, biases, C, gates=gates)
    np.testing.assert_allclose(sampled.outputs(x), expected, atol=1e-13)
    np.testing.assert_allclose(sampled(x[2], [g[2] for g in gates]), expected[2], atol=1e-13)
    np.testing.assert_allclose(jax.vmap(sampled)(x, gates), expected, atol=1e-13)
    # Given gates replace the network's own.
    np.testing.assert_allclose(network(x[2], [g[2] for g in gates]), expected[2], atol=1e-13)
    with pytest.raises(ValueError, match=r"For one sample call `network\(x, gates\)`"):
        sampled(x[0])


def test_one_hidden_layer_takes_the_bare_gates():
    weights, biases = draw(2, (True, False))
    gates = jnp.asarray(some_gates(weights, 6)[0])
    network = fl.GatedLinearNetwork(weights, biases, C, gates=(gates,))
    x = jnp.asarray(inputs())
    np.testing.assert_array_equal(network(x[3], gates[3]), network(x[3], (gates[3],)))
    np.testing.assert_allclose(network(x[3], gates[3]), network.outputs(x)[3], atol=1e-14)
    np.testing.assert_allclose(jax.vmap(network)(x, gates), network.outputs(x), atol=1e-14)


def test_a_call_with_a_wrong_number_of_gates_is_an_error():
    weights, biases = draw(3, (True, True, False))
    network = fl.GatedLinearNetwork(weights, biases, gates=[np.ones(5), np.ones(4)])
    x = jnp.ones(3)
    for gates in ([np.ones(5)], [np.ones(5), np.ones(4), np.ones(2)], jnp.ones(5)):
        with pytest.raises(ValueError, match="gates"):
            network(x, gates)


def test_gates_of_one_are_the_linear_network():
    weights, biases = draw(3, (True, True, True))
    gated = fl.GatedLinearNetwork(weights, biases, C, gates=[np.ones(5), np.ones(4)])
    linear = fl.LinearNetwork(weights, biases, C)
    x = jnp.asarray(inputs())
    np.testing.assert_array_equal(gated.outputs(x), linear.outputs(x))


@pytest.mark.parametrize("flags", list(itertools.product((False, True), repeat=3)))
def test_affine_is_the_end_to_end_map(flags):
    weights, biases = draw(3, flags)
    network = fl.LinearNetwork(weights, biases, C)
    matrix, offset = network.affine()
    np.testing.assert_allclose(matrix, weights[2] @ weights[1] @ weights[0], atol=1e-13)
    x = jnp.asarray(inputs())
    np.testing.assert_allclose(x @ matrix.T + offset[None], network.outputs(x), atol=1e-13)
    np.testing.assert_allclose(offset, network(jnp.zeros(3)), atol=1e-13)


def test_affine_of_a_single_layer():
    matrix, offset = fl.LinearNetwork([[[1.0, 2.0]]], [[3.0]], 2.0).affine()
    np.testing.assert_array_equal(matrix, [[1.0, 2.0]])
    np.testing.assert_array_equal(offset, [6.0])


def test_with_parameters_replaces_the_parameters_only(deep):
    network, task = deep
    for other in (network, network.frozen(task)):
        doubled = jax.tree.map(lambda p: 2 * p, other.parameters)
        changed = other.with_parameters(doubled)
        assert eqx.tree_equal(changed.parameters, doubled)
        assert eqx.tree_equal(changed.with_parameters(other.parameters), other)
        assert changed.bias_strength == C
    without = fl.LinearNetwork(network.weights)
    changed = without.with_parameters((network.weights, network.biases))
    assert eqx.tree_equal(changed, fl.LinearNetwork(network.weights, network.biases))


def test_the_linear_network_has_the_same_weights(deep):
    network, task = deep
    linear = fl.LinearNetwork(network.weights, network.biases, C)
    for other in (network, network.frozen(task), linear):
        assert eqx.tree_equal(other.linear(), linear)


def test_distance_is_that_of_all_weights_and_biases(deep):
    network, task = deep
    other = jax.tree.map(lambda a: a + 0.5, network)
    apart = 0.5 * np.sqrt(sum(leaf.size for leaf in jax.tree.leaves(network.parameters)))
    size = np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(network.parameters)))
    frozen = other.frozen(task)

    @jax.jit
    def found(a, b, frozen):
        relative = functools.partial(fl.distance, relative=True)
        both = [(one(a, b), one(a.parameters, b.parameters)) for one in (fl.distance, relative)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), a, b)
        rows = jax.vmap(fl.distance, (0, None))(stacked, b)
        zero = jax.tree.map(jnp.zeros_like, a)
        none = fl.distance(frozen, a), relative(zero, zero)  # gates and c are no parameters
        return both, rows, (none, jax.grad(lambda n: relative(n, b))(b))

    (plain, relative), rows, none = found(other, network, frozen)
    np.testing.assert_allclose(plain, apart, rtol=1e-14)
    np.testing.assert_allclose(relative, apart / size, rtol=1e-14)
    np.testing.assert_allclose(rows, [apart, 0.0], rtol=1e-14)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(none))


@pytest.mark.parametrize(
    ("a", "message"),
    [
        (lambda n: n.weights, r"`a` and `b` must have parameters of one structure, got .*\(4, 5\)"),
        (lambda n: jax.tree.map(lambda a: a[None], n), "`a` is a stack of networks; take one"),
        (lambda n: "text", "`a` holds no arrays of floats"),
    ],
)
def test_distance_of_other_things_is_an_error(deep, a, message):
    with pytest.raises(ValueError, match=message):
        fl.distance(a(deep[0]), deep[0])


def test_every_leaf_is_an_array(deep):
    network, task = deep
    for other in (network, network.frozen(task), fl.LinearNetwork(*network.parameters)):
        leaves = jax.tree.leaves(other)
        assert all(isinstance(leaf, jax.Array) for leaf in leaves)
        assert len(leaves) - len(jax.tree.leaves(other.parameters)) >= 1


@pytest.mark.parametrize(
    "kind", [*(pytest.param(k, marks=pytest.mark.slow) for k in KINDS[:3]), "gated"]
)
def test_stacked_networks_vmap(kind):
    x = jnp.asarray(inputs())
    drawn = [draw(3, (True, True, False), seed) for seed in range(3)]
    networks = [make(kind, *w, some_gates(w[0], 6, seed)) for seed, w in enumerate(drawn)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks)
    assert stacked.hidden == SIZES[1:3]
    found = jax.vmap(lambda n: n.outputs(x))(stacked)
    expected = np.stack([n.outputs(x) for n in networks])
    np.testing.assert_allclose(found, expected, atol=1e-13)


@pytest.mark.slow
def test_vmap_over_the_bias_strength(deep):
    network, task = deep
    strengths = jnp.array([0.0, 1.0, 10.0])

    def outputs(c):
        return eqx.tree_at(lambda n: n.bias_strength, network, c).outputs(task.x)

    def rebuilt(c):
        return fl.ReLUNetwork(network.weights, network.biases, c, SLOPE)

    found = jax.vmap(outputs)(strengths)
    built = jax.vmap(lambda c: rebuilt(c).outputs(task.x))
    for row, again, c in zip(found, built(strengths), strengths, strict=True):
        scaled = [c * b for b in network.biases]
        expected = fl.ReLUNetwork(network.weights, scaled, 1.0, SLOPE).outputs(task.x)
        np.testing.assert_allclose(row, expected, atol=1e-13)
        np.testing.assert_allclose(again, expected, atol=1e-13)


@pytest.mark.slow
def test_vmap_over_gates(deep):
    network, task = deep
    rng = np.random.default_rng(4)
    gates = tuple(rng.uniform(size=(7, width)) for width in network.hidden)

    def outputs(*g):
        gated = fl.GatedLinearNetwork(network.weights, network.biases, C, gates=g)
        return gated.outputs(task.x)

    found = jax.vmap(outputs)(*map(jnp.asarray, gates))
    for trial in range(7):
        repeated = [np.tile(g[trial], (task.samples, 1)) for g in gates]
        rule = gate_rule("gated", repeated)
        expected, _, _ = plain_forward(network.weights, network.biases, np.asarray(task.x), rule)
        np.testing.assert_allclose(found[trial], expected, atol=1e-13)


@pytest.mark.slow
def test_freezing_under_vmap(deep):
    network, task = deep
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), network)
    stacked = eqx.tree_at(lambda n: n.slope, stacked, jnp.array([SLOPE, 0.1]))
    frozen = jax.vmap(lambda n: n.frozen(task))(stacked)
    found = jax.vmap(lambda n: n.outputs(task.x))(frozen)
    expected = jax.vmap(lambda n: n.outputs(task.x))(stacked)
    np.testing.assert_allclose(found, expected, atol=1e-13)


@pytest.mark.parametrize(
    "bias", [*(pytest.param(b, marks=pytest.mark.slow) for b in (True, False)), (False, True, True)]
)
def test_the_same_key_gives_the_same_parameters(bias, key):
    task, hidden = fl.tasks.offset_xor(), SIZES[1:3]
    linear = fl.LinearNetwork.init(task, hidden, 0.1, bias, 3.0, key=key)
    relu = fl.ReLUNetwork.init(task, hidden, 0.1, bias, 3.0, slope=0.2, key=key)
    assert eqx.tree_equal(linear.parameters, relu.parameters)
    assert float(linear.bias_strength) == float(relu.bias_strength) == 3.0
    assert float(relu.slope) == 0.2
    other = fl.LinearNetwork.init(task, hidden, 0.1, bias, 3.0, key=jax.random.key(1))
    assert not np.any(np.asarray(other.weights[0] == linear.weights[0]))


def test_lists_and_integers_become_arrays():
    network = fl.LinearNetwork([[[1, 2], [3, 4]], [[1, 1]]], [[1, 0], None], 2)
    assert network.dtype == jnp.float64
    np.testing.assert_array_equal(network(jnp.array([1.0, 1.0])), [12.0])


def test_float32(deep):
    network, task = deep
    linear = fl.LinearNetwork(network.weights, network.biases, C)
    for other in (network, network.frozen(task), linear):
        single = other.astype(jnp.float32)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(single))
        outputs = single.outputs(task.x.astype(jnp.float32))
        assert outputs.dtype == single.dtype == jnp.float32
        np.testing.assert_allclose(outputs, other.outputs(task.x), atol=1e-4)
    gates = network.astype(jnp.float32).gates(task.x.astype(jnp.float32))
    assert all(g.dtype == jnp.float32 for g in gates)


@pytest.mark.slow
def test_float32_tasks_give_float32_networks(key):
    task = fl.tasks.offset_xor().astype(jnp.float32)
    for network in (
        fl.LinearNetwork.init(task, 5, key=key),
        fl.ReLUNetwork.init(task, 5, slope=0.1, key=key),
    ):
        leaves = [*jax.tree.leaves(network), network.outputs(task.x), network(task.x[0])]
        assert all(leaf.dtype == jnp.float32 for leaf in leaves)


# ---- Gates that whole layers share


@pytest.fixture(scope="module")
def task():
    return fl.tasks.xor()


@pytest.fixture(scope="module")
def globally(task):
    gates = fl.HalfSpaces.random(task, 3, key=jax.random.key(1))
    return fl.GloballyGatedNetwork.init(
        task, (5, 4), gates=gates, variance=0.3, bias=True, bias_strength=0.7, key=jax.random.key(0)
    )


def test_outputs_are_the_formula(globally, task):
    w1, w2, w3, b1, b2 = (np.asarray(a) for a in jax.tree.leaves(globally.parameters))
    assert w2.shape == (4, 15)
    g, c, h = np.asarray(globally.gates), 0.7, []
    for x, gate in zip(np.asarray(task.x), g, strict=True):
        first = w1 @ x + c * b1
        second = sum(gate[m] * w2[:, 5 * m : 5 * m + 5] @ first for m in range(3)) + c * b2
        h.append(sum(gate[m] * w3[:, 4 * m : 4 * m + 4] @ second for m in range(3)))
    np.testing.assert_allclose(globally.outputs(task.x), h, rtol=1e-13, atol=1e-15)
    one = globally(task.x[2], globally.gates[2])
    np.testing.assert_allclose(one, h[2], rtol=1e-13, atol=1e-15)
    others = globally.with_gates(globally.gates[:2])
    np.testing.assert_allclose(others.outputs(task.x[:2]), h[:2], rtol=1e-13, atol=1e-15)


def test_effective_maps_are_those_of_the_gates(globally, task):
    matrix, offset = fl.measures.effective_map(globally, task)
    found = np.einsum("poi,pi->po", matrix, task.x) + offset
    np.testing.assert_allclose(found, globally.outputs(task.x), rtol=1e-13, atol=1e-15)


def test_effective_maps_of_a_graph_are_those_of_its_ways(task):
    nodes, edges = {"in": 2, "a": 3, "out": 2}, [("in", "a"), ("a", "out"), ("in", "out")]
    gates = {"a": np.array([1.0, 0.0, 0.5, 2.0])}
    graph = fl.GatedGraph.init(
        task, nodes, edges, node_gates=gates, variance=0.3, bias=True, key=jax.random.key(5)
    )
    matrix, offset = fl.measures.effective_map(graph, task)
    found = np.einsum("poi,pi->po", matrix, task.x) + offset
    np.testing.assert_allclose(found, graph.outputs(task.x), rtol=1e-13, atol=1e-15)
    w = {edge: np.asarray(one) for edge, one in graph.weights.items()}
    way = w["a", "out"] @ w["in", "a"]
    by_hand = [gate * way + w["in", "out"] for gate in gates["a"]]
    np.testing.assert_allclose(matrix, by_hand, rtol=1e-13, atol=1e-15)
    with pytest.raises(ValueError, match="`layer`"):
        fl.measures.effective_map(graph, task, layer=0)


@pytest.mark.slow
def test_with_one_open_gate_it_is_a_linear_network(task):
    linear = fl.LinearNetwork.init(task, 5, 0.1, key=jax.random.key(2))
    gated = fl.GloballyGatedNetwork.init(
        task, 5, gates=np.ones((task.samples, 1)), variance=0.1, bias=True,
        key=jax.random.key(2),
    )  # fmt: skip
    runs = [fl.gradient_descent(net, task, 0.1, 20) for net in (linear, gated)]
    for mine, its in zip(*(jax.tree.leaves(run.final.parameters) for run in runs), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=ROUNDING)


@pytest.fixture(scope="module")
def learner(task):
    gates = fl.HalfSpaces.random(task, 6, key=jax.random.key(3))
    return fl.GloballyGatedNetwork.init(
        task, (5,), gates=gates, variance=0.1, bias=True, key=jax.random.key(0)
    )


def flow_to(t1, learner, task):
    """One program whatever the end."""
    return fl.gradient_flow(learner, task, t1, events=(fl.LossBelow(0.01),))


@pytest.fixture(scope="module")
def flow(learner, task):
    return flow_to(60.0, learner, task)


@pytest.mark.slow
def test_it_learns_what_a_linear_network_cannot(flow, task, tmp_path):
    """The best of those by least squares is left with a loss."""
    x = np.column_stack([np.ones(task.samples), task.x])
    _, left, *_ = np.linalg.lstsq(x, np.asarray(task.y))
    assert float(flow.losses[-1]) < 1e-3 < 0.1 < np.sum(left) / (2 * task.samples)
    assert len(flow.events) == 1
    flow.save(tmp_path / "run.npz")
    final = fl.load(tmp_path / "run.npz").final
    np.testing.assert_array_equal(final.outputs(task.x), flow.final.outputs(task.x))
    assert repr(final).startswith(
        "GloballyGatedNetwork(2 -> 5 -> 2, bias in hidden layers, c = 1, 6"
    )


@pytest.mark.slow
def test_its_flow_is_the_limit_of_descent(learner, task):
    near = flow_to(1.0, learner, task)
    errors = [
        fl.distance(fl.gradient_descent(learner, task, rate, t1=1.0).final, near.final)
        for rate in (1e-2, 1e-3)
    ]
    assert errors[1] < 0.2 * errors[0] < 1e-2


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
