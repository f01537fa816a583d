"""Exact walks of modules of ReLUs that are not flowlin's own networks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.tolerances import of_flow
from tests.zoo import two_layers

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")
END, RTOL = 6.0, 1e-9


def normal_task(seed, samples, inputs, outputs):
    rng = np.random.default_rng(seed)
    return fl.Task(rng.normal(size=(samples, inputs)), rng.normal(size=(samples, outputs)))


def apart(a, b):
    """Relative distance of two modules' arrays."""
    flat = [
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(eqx.filter(m, eqx.is_array))])
        for m in (a, b)
    ]
    return np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[1])


def slope_and_error(model, task, flow, rates=(4e-3, 1e-4)):
    """The exponent with which descent comes to the walk's end, and how near it is."""
    found = [
        apart(fl.gradient_descent(model, task, rate, t1=float(flow.end)).final, flow.final)
        for rate in rates
    ]
    return np.log(found[0] / found[1]) / np.log(rates[0] / rates[1]), found[1]


SHAPES = (2, 1), (2, 2), (1, 2)  # of weights


class NoBiases(eqx.Module):
    """Layers without biases."""

    weights: list

    def __call__(self, x):
        for w in self.weights[:-1]:
            x = jax.nn.relu(w @ x)
        return self.weights[-1] @ x


class Image(eqx.Module):
    """A convolution of 5 x 5 pixels, max pooling, a readout: windows of dead pairs are ties."""

    first: eqx.nn.Conv2d
    pool: eqx.nn.MaxPool2d
    readout: eqx.nn.Linear

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.first, self.pool = eqx.nn.Conv2d(1, 2, 2, key=one), eqx.nn.MaxPool2d(2, 2)
        self.readout = eqx.nn.Linear(8, 1, use_bias=False, key=two)

    def __call__(self, x):
        return self.readout(self.pool(jax.nn.relu(self.first(x.reshape(1, 5, 5)))).ravel())


@pytest.mark.slow
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("measure", [fl.measures.activity, fl.measures.hidden])
def test_units_of_a_module_are_those_of_the_network_of_its_weights(measure, layer):
    """Layers by their numbers, or by the parts of either model."""
    task = normal_task(1, 30, 4, 2)
    mlp = eqx.nn.MLP(4, 2, 5, 2, key=jax.random.key(0))
    own = fl.ReLUNetwork.of(mlp)
    known = measure(own, task, layer=layer)
    for network, name in ((mlp, layer), (mlp, f"layers[{layer}]"), (own, f"weights[{layer}]")):
        for a, b in zip(measure(network, task, layer=name), known, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)


class Folded(eqx.Module):
    """Two kinks at the numbers of one part."""

    part: eqx.nn.Linear

    def __call__(self, x):
        z = self.part(x)
        return jax.nn.relu(z) + jnp.abs(z)


def test_a_part_with_several_layers_is_no_name_of_one():
    network, task = Folded(eqx.nn.Linear(4, 2, key=jax.random.key(0))), normal_task(1, 30, 4, 2)
    assert fl.measures.hidden(network, task, layer=1).shape == (30, 2)
    with pytest.raises(ValueError, match=r"`layer` = 'part' is the part of several; give one of"):
        fl.measures.hidden(network, task, layer="part")


def as_mlp(network):
    """The same network of two hidden layers with biases as an MLP of Equinox."""
    width, _ = network.hidden
    sizes = network.weights[0].shape[1], network.weights[-1].shape[0]
    mlp = eqx.nn.MLP(*sizes, width, 2, use_final_bias=False, key=jax.random.key(0))
    mlp = eqx.tree_at(lambda m: [layer.weight for layer in m.layers], mlp, list(network.weights))
    return eqx.tree_at(
        lambda m: [layer.bias for layer in m.layers[:2]], mlp, list(network.biases[:2])
    )


@pytest.fixture(scope="module")
def both():
    """A network of flowlin and the same one as an MLP of Equinox, and the walks of both."""
    network, task = two_layers()
    mlp = as_mlp(network)
    own = fl.gradient_flow(network, task, 2 * END, rtol=RTOL)
    return mlp, task, own, fl.gradient_flow(mlp, task, 2 * END, rtol=RTOL)


@pytest.mark.slow
def test_an_mlp_walks_as_the_network_of_its_weights(both):
    mlp, _, own, flow = both
    assert flow.stats["kinks"] == "ExactKinks()"
    assert flow.model.hidden == (6, 6)
    assert len(flow.events) == len(own.events) > 10
    # Both count changes alike, by layer, unit and sample.
    assert [row["index"] for row in flow.events.table()] == [
        row["index"] for row in own.events.table()
    ]
    assert np.array_equal(flow.events.new, own.events.new)
    assert np.any(np.asarray(flow.events.new) == 0)
    np.testing.assert_allclose(flow.events.time, own.events.time, atol=of_flow(RTOL))
    for layer, w in zip(flow.final.layers, own.final.weights, strict=True):
        np.testing.assert_allclose(layer.weight, w, atol=of_flow(RTOL))
    lines = [
        one.linearization(layer=part).open
        for one, part in ((flow, "layers[1]"), (own, "weights[1]"))
    ]
    assert float(lines[0].fraction) == float(lines[1].fraction)
    assert isinstance(flow.final, eqx.nn.MLP)
    assert apart(flow.final, mlp) > 0.1


@pytest.mark.slow
def test_samples_to_which_the_layer_below_sends_nothing_share_a_kink():
    """In these the second layer slides and dies there; each sample's C is not the kink's."""
    task, turned = fl.tasks.hierarchy(levels=2), 0
    for seed in (3, 36, 130, 171):
        network = fl.ReLUNetwork.init(task, (3, 3), variance=0.5, key=jax.random.key(seed))
        own, flow = (fl.gradient_flow(m, task, 8.0, rtol=RTOL) for m in (network, as_mlp(network)))
        one, other = own.events.table(), flow.events.table()
        assert [(r["name"], r["index"]) for r in one] == [(r["name"], r["index"]) for r in other]
        assert [r["time"] for r in one] == pytest.approx([r["time"] for r in other], abs=1e-7)
        assert own.events.new.tolist() == flow.events.new.tolist()
        turned += sum(row["name"] == "branch" for row in one)
    assert turned > 2


@pytest.mark.slow
def test_it_is_kept_extended_and_resumed_to_the_bit(both, tmp_path):
    mlp, task, _, flow = both
    options = {"rtol": RTOL, "checkpoint": tmp_path / "state.npz"}
    part = fl.gradient_flow(mlp, task, 2 * END, max_steps=20, throw=False, **options)
    assert 0 < len(part.events) < len(flow.events)
    whole = fl.gradient_flow(mlp, task, 2 * END, **options)
    for name in ("final", "events"):
        a, b = (jax.tree.leaves(eqx.filter(getattr(f, name), eqx.is_array)) for f in (whole, flow))
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True)), name
    flow.save(tmp_path / "flow.npz")
    loaded = fl.load(tmp_path / "flow.npz", like=mlp)
    assert loaded.model.hidden == (6, 6)
    for layer in (0, 1):
        assert np.array_equal(loaded.events.sides(END, layer), flow.events.sides(END, layer))


@pytest.mark.slow
def test_float32(both):
    mlp, task, _, flow = both
    narrow, few = jax.tree.map(
        lambda a: a.astype(jnp.float32) if eqx.is_array(a) else a, (mlp, task)
    )
    found = fl.gradient_flow(narrow, few, 2 * END)
    assert found.result == fl.RESULTS.successful
    assert found.losses.dtype == jnp.float32
    assert apart(found.final, flow.final) < 1e-3


@pytest.mark.slow
def test_convolutions_on_an_empty_background_share_kinks():
    """Without biases at the start all pairs of the background are at one kink for each filter."""
    rng = np.random.default_rng(0)
    images = np.zeros((5, 5, 5))
    for image in images:
        row, column = rng.integers(0, 4, 2)
        image[row : row + 2, column : column + 2] = rng.uniform(size=(2, 2))
    task = fl.Task(images.reshape(5, 25), rng.normal(size=(5, 1)))
    model = Image(jax.random.key(0))
    zero = eqx.tree_at(lambda m: m.first.bias, model, replace_fn=jnp.zeros_like)
    flow = fl.gradient_flow(zero, task, END, rtol=RTOL)
    slope, error = slope_and_error(zero, task, flow)
    assert error < 1e-4
    assert slope == pytest.approx(1.0, abs=0.3)
    # An event of the convolution is in a channel, at a row and a column.
    model: Any = flow.model
    sites, log = model.kinks.sites, flow.events.select("gate")
    for (site, unit, sample), place in zip(log.index, log.place, strict=True):
        where = sites[site]
        assert place == (where.place, *np.unravel_index(unit, where.shape), sample)
    assert (sites[0].place, sites[0].shape) == ("first", (2, 4, 4))


@pytest.mark.slow
def test_no_walk_of_a_small_module_is_silently_elsewhere():
    """Without biases: descent comes to where a walk ends, or the walk says that it may not."""
    count = walked = 0
    for seed in range(40, 100):
        rng = np.random.default_rng([seed, 1, 2, 2, 1])
        task = fl.Task(rng.normal(size=(4, 1)), rng.normal(size=(4, 1)))
        model = NoBiases([jnp.asarray(rng.normal(size=shape)) for shape in SHAPES])
        flow = fl.gradient_flow(model, task, END, rtol=1e-8, throw=False)
        ended = float(flow.end) == END
        assert ended or flow.result == fl.RESULTS.sides_unsolved
        walked += ended
        count += len(flow.events) > 0
        if ended and not len(flow.events.select("branch")):
            near = fl.gradient_descent(model, task, 2e-4, t1=END).final
            assert apart(near, flow.final) < 5e-3, seed
    assert count > 10
    assert walked > 55


def told_of_kinks(model):
    """What a run says of a module's kinks, without making it."""
    told = []

    def run(model):
        flow = fl.gradient_flow(model, normal_task(0, 3, 4, 2), 1.0, kinks=fl.IgnoreKinks())
        told.append(flow.stats["kinks_because"])
        return flow.losses

    eqx.filter_eval_shape(run, model)
    return told[0]


@pytest.mark.parametrize(
    ("places", "total", "rest"),
    [(8, "16 units at 8 places: ", " and 2 more"), pytest.param(1, "", "", marks=pytest.mark.slow)],
)
def test_places_of_kinks_are_counted(places, total, rest):
    rectified = [eqx.nn.Lambda(lambda z: jax.nn.relu(z) - 1)] * places
    model = eqx.nn.Sequential([LINEAR, *rectified])
    named = ", ".join(["max of layers[0] (2)"] * min(places, 6))
    assert told_of_kinks(model) == f"as asked for; of Sequential: {total}{named}{rest}"


@pytest.mark.slow
def test_a_module_of_zeros_says_that_two_flows_start():
    """As a network of flowlin does; from weights that are on it has nothing to say."""
    task = fl.Task([[1.0], [2.0]], [[1.0], [1.0]])
    for size, told in ((0.0, 2), (1.0, 0)):
        model = NoBiases([jnp.full((1, 1), size), jnp.ones((1, 1))])
        flow = fl.gradient_flow(model, task, 1.0, rtol=1e-8)
        branches = flow.events.select("branch")
        assert len(branches) == told
        assert np.all(np.asarray(branches.time) == 0.0)
        assert all("starts on its kink" in row["reason"] for row in branches.table())
        assert (flow.losses[-1] == flow.losses[0]) == (told > 0)


@pytest.mark.slow
def test_ties_of_max_pooling_follow_what_rises():
    for seed in range(2):
        task = normal_task(seed, 5, 25, 1)
        model = Image(jax.random.key(seed))
        flow = fl.gradient_flow(model, task, END, rtol=RTOL)
        assert len(flow.events) > 1
        slope, error = slope_and_error(model, task, flow)
        assert error < 3e-5
        assert slope == pytest.approx(1.0, abs=0.2)


@jax.custom_jvp
def straight_through(z):
    """A ReLU with the derivative of another function."""
    return jnp.maximum(z, 0)


straight_through.defjvp(lambda values, tangents: (jnp.maximum(values[0], 0), tangents[0]))


@jax.custom_vjp
def reversed_gradient(z):
    """Twice z, with its gradient reversed, which no derivative forward can see."""
    return 2 * z


reversed_gradient.defvjp(lambda z: (2 * z, None), lambda _, g: (-2 * g,))


def recurrent(activation):
    """A function of a vector that goes through it number by number."""

    def take_in(h, z):
        h = activation(h + z)
        return h, h

    return lambda z: jax.lax.scan(take_in, jnp.zeros((), z.dtype), z)[1]


def losses(model, task, **options):
    return fl.gradient_flow(model, task, 1.0, **options).losses


LINEAR = eqx.nn.Linear(4, 2, key=jax.random.key(0))


def counted(z):
    """ReLUs in a loop of a length that is not known."""
    return jax.lax.while_loop(lambda h: jnp.sum(h) < 3, lambda h: jax.nn.relu(h) + 1, z)


IN = r" in layers\[0\]"
ROOT = f"{IN} has a kink at zero, .* write .z. as jnp.abs.z., or add a positive number"
POWER = f"`pow`{IN}, of a power between 0 and 1 or not known, has a kink"
INDEX = f"an index{IN} is made of what is trained, .* may jump; .* jax.nn.softmax; `kinks=fl.Ignore"
BRANCH = f"`cond`{IN} is a branch on what is trained, .* compute both sides"
NAMED = (
    (jnp.sort, f"`sort`{IN} has kinks where .* by jnp.max, .* jnp.maximum .* `kinks=fl.IgnoreKink"),
    (lambda z: z[jnp.argmax(z)] * z, f"`argmax`{IN} jumps where two .* write jnp.max.*IgnoreKinks"),
    (lambda z: jnp.where(z > 0, jnp.sin(z), z), f"`where`{IN} on what is trained may jump"),
    (jnp.floor, "`floor` in layers"),
    (recurrent(jax.nn.relu), f"`scan`{IN} is a loop .* write it as a `for` of Python, or keep"),
    (counted, f"`while`{IN} is a loop .* write it as a `for` .* known number of steps"),
    (lambda z: z[jnp.int32(z[0]) % 2] * z, INDEX),
    (lambda z: z.at[jnp.round(z[0]).astype(int)].set(0.0), INDEX),
    (lambda z: jax.lax.cond(z[0] > 0, jnp.sin, jnp.cos, z), BRANCH),
    (lambda z: jax.lax.switch(z[0].astype(int), [jnp.sin, jnp.cos, jnp.tan], z), BRANCH),
    (lambda z: (z > 0).astype(z.dtype) * z, "`convert_element_type` in layers.* may jump or have"),
    (lambda z: jax.nn.relu(jax.lax.stop_gradient(z) + z), "`stop_gradient` in layers"),
    (lambda z: jnp.sqrt(z**2), f"`sqrt`{ROOT}"),
    (lambda z: z * jnp.linalg.norm(z), f"`sqrt`{ROOT}"),
    (lambda z: jnp.sqrt(z**2 - 1e-6), f"`sqrt`{ROOT}"),  # not above zero
    (lambda z: jnp.sqrt(jax.nn.relu(z)), f"`sqrt`{ROOT}"),
    (jnp.cbrt, f"`cbrt`{ROOT}"),
    (lambda z: (z**2) ** 0.5, POWER),
    (lambda z: jnp.abs(z) ** z, POWER),
    (straight_through, f"`custom_jvp_call`{IN} may hold a kink"),
    (reversed_gradient, f"`custom_vjp_call`{IN} may hold a kink"),
)


def test_kinks_that_are_not_known_are_named():
    task = normal_task(0, 3, 4, 2)
    for function, said in NAMED:
        model = eqx.nn.Sequential([LINEAR, eqx.nn.Lambda(function)])
        with pytest.raises(ValueError, match=f"needs to know the kinks, and Sequential: {said}"):
            fl.gradient_flow(model, task, 1.0, kinks=fl.ExactKinks())
    with pytest.warns(fl.KinksWarning, match="kinks is not known: Sequential: `custom_vjp_call`"):
        eqx.filter_eval_shape(losses, model, task)
    eqx.filter_eval_shape(losses, model, task, kinks=fl.IgnoreKinks())  # asked for


class Attending(eqx.Module):
    """A linear layer, and attention among its two outputs."""

    first: eqx.nn.Linear
    attention: eqx.nn.MultiheadAttention

    def __call__(self, x):
        tokens = self.first(x)[:, None]
        return self.attention(tokens, tokens, tokens)[:, 0]


ROOTS_AWAY_FROM_ZERO = (
    lambda z: jnp.sqrt(jnp.sum(z**2) + 1e-6) * z,
    lambda z: jnp.sqrt(z @ z + 1e-6) + jnp.sqrt(1 + z * z),
    lambda z: z / jnp.sqrt(jnp.var(z) + 1e-5),
    lambda z: z / jnp.linalg.norm(z),  # a pole, and no kink
    lambda z: jax.nn.sigmoid(z) ** 0.3 + jnp.sqrt(jax.nn.softplus(z)) + jnp.sqrt(jax.nn.softmax(z)),
    lambda z: (z**2) ** 1.5 + z**-0.5 + z**-2,
)


def test_smooth_modules_are_known_as_such():
    """A loop of smooth steps; the model at the start, which has no gradient; layers that normalise.

    Their max(0, variance) is no kink, nor are roots of what cannot come to zero.
    """
    task, key = normal_task(0, 3, 4, 2), jax.random.key(1)
    after = (
        *(eqx.nn.Lambda(f) for f in (recurrent(jnp.tanh), jax.nn.gelu, *ROOTS_AWAY_FROM_ZERO)),
        eqx.nn.LayerNorm(2), eqx.nn.RMSNorm(2), eqx.nn.GroupNorm(1, 2),
        eqx.nn.WeightNorm(eqx.nn.Linear(2, 2, key=key)),
    )  # fmt: skip
    attending = Attending(LINEAR, eqx.nn.MultiheadAttention(1, 1, key=key))
    scaled = fl.theory.lazy(LINEAR, task, alpha=2.0).scaled
    for model in (scaled, attending, *(eqx.nn.Sequential([LINEAR, one]) for one in after)):
        with pytest.raises(ValueError, match="has smooth operations alone"):
            fl.measures.hidden(model, task, layer=0)
