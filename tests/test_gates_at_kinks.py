"""Maps, given gates and activity of networks whose pairs slide: as the sides of the walk say."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

measures = fl.measures


def binary_task():
    """Features of zeros and ones, many alike: pairs slide soon. One sample is all zeros."""
    rng = np.random.default_rng(1)
    rng.normal(size=48)  # a draw whose runs have sliding pairs of positive z at their ends
    x = (rng.random((10, 5)) < 0.4).astype(float)
    x[0] = 0
    return fl.Task(x, rng.normal(size=(10, 2)))


TASK = binary_task()
T1 = 8.0


def walk_of(hidden, variance):
    start = fl.ReLUNetwork.init(TASK, hidden, variance, key=jax.random.key(3))
    return fl.gradient_flow(start, TASK, T1, ts=np.linspace(0, T1, 24))


@pytest.fixture(scope="module")
def shallow():
    return walk_of((6,), 0.1)


@pytest.fixture(scope="module")
def two_layers():
    return walk_of((5, 4), 0.3)


class Residual(eqx.Module):
    """A layer, a residual one, and a readout."""

    a: eqx.nn.Linear
    b: eqx.nn.Linear
    c: eqx.nn.Linear

    def __init__(self, key):
        sizes = ((4, 5), (5, 5), (5, 2))
        self.a, self.b, self.c = (
            eqx.nn.Linear(*size, dtype=jnp.float64, key=one)
            for size, one in zip(sizes, jax.random.split(key, 3), strict=True)
        )

    def __call__(self, x):
        h = self.a(x)
        h = h + self.b(jax.nn.relu(h))
        return self.c(jax.nn.relu(h))


class OneLayer(eqx.Module):
    """The module of a network without biases."""

    w: jax.Array
    v: jax.Array

    def __call__(self, x):
        return self.v @ jax.nn.relu(self.w @ x)


def sides_of(flow, t):
    places = range(len(flow.model.hidden))
    return [np.asarray(flow.events.sides(t, place)) for place in places]


def gated_by(network, sides):
    """The network with gates that are on where sides are positive."""
    gates = [(one > 0).astype(float) for one in sides]
    return fl.GatedLinearNetwork(
        network.weights, network.biases, network.bias_strength, gates=gates
    )


def positive_slides(network, task, sides):
    """How many sliding pairs have a z that rounding has made positive."""
    z = network.preactivations(task.x)
    return sum(int(np.sum(np.asarray(a)[s == 0] > 0)) for a, s in zip(z, sides, strict=True))


def assert_same_maps(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("shallow", "float64"), ("two_layers", "float64"), ("two_layers", "float32")],
)
def test_gates_at_the_end_of_a_walk_are_those_of_its_sides(kind, dtype, request):
    flow = request.getfixturevalue(kind)
    sides = sides_of(flow, T1)
    network, task = flow.final.astype(dtype), TASK.astype(dtype)
    # By the signs of z some sliding pairs would be on: else nothing is tested.
    assert positive_slides(network, task, sides) >= 1
    gated = gated_by(network, sides)
    assert_same_maps(measures.effective_map(network, task), measures.effective_map(gated, task))
    for found, expected in zip(network.frozen(task).given_gates, sides, strict=True):
        np.testing.assert_array_equal(found, expected > 0)
    for layer, gates in enumerate(network.always_on(task).given_gates):
        np.testing.assert_array_equal(gates, np.all(sides[layer] > 0, axis=0))
        activity = measures.activity(network, task, layer=layer)
        by_sides = flow.linearization(layer=layer).activity(T1)
        np.testing.assert_allclose(activity, by_sides, rtol=1e-6)


@pytest.mark.slow
def test_saved_networks_of_one_layer_have_the_gates_of_the_sides(shallow):
    maps = shallow.along(measures.effective_map)
    gates = shallow.along(lambda n, t: n.frozen(t).given_gates[0])
    for k, t in enumerate(np.asarray(shallow.ts)):
        np.testing.assert_array_equal(gates[k], shallow.events.sides(t) > 0)
    given = np.asarray(gates)
    expected = jax.vmap(
        lambda network, gates: measures.effective_map(
            fl.GatedLinearNetwork(
                network.weights, network.biases, network.bias_strength, gates=[gates]
            ),
            TASK,
        )
    )(shallow.networks, given)
    assert_same_maps(maps, expected)


@pytest.mark.slow
def test_between_steps_of_several_layers_sides_tell_the_gates(two_layers):
    """There z has the error of the interpolation, which is more than rounding."""
    by_sides, by_z = [], []
    for k, t in enumerate(np.asarray(two_layers.ts)[-8:-1]):
        network = jax.tree.map(lambda a, k=k: a[len(two_layers.ts) - 8 + k], two_layers.networks)
        sides = sides_of(two_layers, t)
        expected = measures.effective_map(gated_by(network, sides), TASK).matrix
        by_sides.append(measures.effective_map(network, TASK, sides=sides).matrix - expected)
        by_z.append(measures.effective_map(network, TASK).matrix - expected)
    assert np.max(np.abs(by_sides)) < 1e-9
    assert np.max(np.abs(by_z)) > 1e-3


def test_sides_are_one_array_for_each_layer():
    network = fl.ReLUNetwork.init(TASK, (5, 4), 0.3, key=jax.random.key(3))
    sides = [np.ones((10, 5)), np.zeros((10, 4))]
    for wrong in (sides[:1], [sides[0].T, sides[1]]):
        with pytest.raises(ValueError, match=r"`sides` must have shapes \[\(10, 5\), \(10, 4\)\]"):
            measures.effective_map(network, TASK, sides=wrong)
    with pytest.raises(ValueError, match="`sides` must be None for a network without sides"):
        measures.effective_map(network.linear(), TASK, sides=sides)


@pytest.mark.slow
def test_gates_of_a_module_are_those_of_its_sides():
    rng = np.random.default_rng(1)
    task = fl.Task(rng.normal(size=(8, 4)), rng.normal(size=(8, 2)))
    flow = fl.gradient_flow(Residual(jax.random.key(0)), task, 4.0, rtol=1e-9, ts=[0.0, 4.0])
    sides = sides_of(flow, 4.0)
    assert [int(np.sum(one == 0)) for one in sides] == [0, 1]
    # Rounding leaves z of that pair on either side: here on the one that is not its gate's.
    rounding = 4 * np.finfo(float).eps * np.any(sides[1] == 0, axis=0)
    final = eqx.tree_at(lambda m: m.b.bias, flow.final, flow.final.b.bias + rounding)
    assert 0 < measures.hidden(final, task, layer=1)[sides[1] == 0] < 1e-14
    gates = [(one > 0).astype(float) for one in sides]
    gated = fl.GatedModule.frozen(final, task).with_gates(gates)
    expected = measures.effective_map(gated, task)
    assert_same_maps(measures.effective_map(final, task), expected)
    assert_same_maps(measures.effective_map(final, task, sides=sides), expected)
    for found, one in zip(fl.GatedModule.frozen(final, task).gates, sides, strict=True):
        np.testing.assert_array_equal(found, one > 0)
    always = fl.GatedModule.always_on(final, task).gates
    for found, one in zip(always, sides, strict=True):
        np.testing.assert_array_equal(found, np.all(one > 0, axis=0))


@pytest.mark.slow
def test_a_modules_gates_are_off_where_terms_cancel(shallow):
    """The module of the walk's network at its end."""
    (w, v), (b, _) = shallow.final.parameters
    module = OneLayer(jnp.concatenate([w, shallow.final.bias_strength * b[:, None]], axis=1), v)
    task = fl.Task(np.pad(TASK.x, ((0, 0), (0, 1)), constant_values=1.0), TASK.y)
    sides = sides_of(shallow, T1)
    gates = fl.GatedModule.frozen(module, task).gates
    np.testing.assert_array_equal(gates[0], sides[0] > 0)
    matrix = measures.effective_map(module, task).matrix[:, :, :-1]
    expected = measures.effective_map(shallow.final, TASK, sides=sides).matrix
    np.testing.assert_allclose(matrix, expected, rtol=0, atol=1e-9)
    few = measures.activity(module, task).always_on
    assert few == np.mean(np.all(sides[0] > 0, axis=0))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e15])
def test_what_is_no_rounding_keeps_its_gate(scale, dtype):
    """All weights small or large; one small unit; a feature of 1e8 with weights of 1e-8."""
    w = np.random.default_rng(1).normal(size=(5, 2)) * np.array([1e-8, 1.0])
    w[2] *= 1e-20
    x = np.array([[1e8, 1.0], [1e8, 1e-3], [-1e8, 1e-4], [0.0, 0.0]])
    task = fl.Task(x, np.zeros((4, 1))).astype(dtype)
    w, v = jnp.asarray(scale * w, dtype), jnp.ones((1, 5), dtype)
    network = fl.ReLUNetwork([w, v])
    expected = (task.x @ w.T > 0).astype(dtype)
    assert not expected[-1].any()
    np.testing.assert_array_equal(network.frozen(task).given_gates[0], expected)
    np.testing.assert_array_equal(fl.GatedModule.frozen(OneLayer(w, v), task).gates[0], expected)
