"""The exact walk through networks with several hidden layers."""

import warnings

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin.field.gates.layers import DeepFlow
from flowlin.field.gates.layers_rule import NetworkRule
from flowlin.field.gates.one_layer import GatedFlow
from flowlin.field.gates.one_layer_rule import UnitRule
from tests.test_exact import descended, exact, gaussian
from tests.zoo import distance

jax.config.update("jax_enable_x64", True)

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")


def start(task, hidden, seed, **options):
    return fl.ReLUNetwork.init(task, hidden, key=jax.random.key(seed), **options)


@pytest.mark.parametrize(
    ("slope", "tau"), [(0.0, 2.0), (0.2, ((2.0, 0.5), (None, None))), (0.0, ((None, 3.0), 2.0))]
)
def test_with_one_hidden_layer_it_is_the_walk_unit_by_unit(slope, tau):
    task = gaussian()
    network = start(task, 32, 0, variance=0.3, slope=slope)
    # Three pairs of every unit at their kinks.
    (hidden, readout), (bias, _) = network.parameters
    rows = jnp.concatenate([jnp.ones((20, 1)), task.x], axis=1)[:3]
    full = jnp.concatenate([bias[:, None], hidden], axis=1)
    full = full - full @ rows.T @ jnp.linalg.solve(rows @ rows.T, rows)
    at = ((full[:, 1:], readout), (full[:, 0], None))
    tau = jax.tree.map(jnp.asarray, tau)
    loss = fl.SquaredError()
    one = UnitRule(GatedFlow(network, task, loss, tau), 4, "lax")
    all_ = NetworkRule(DeepFlow(network, task, loss, tau), 100)
    modes = [eqx.filter_jit(rule.start)(at) for rule in (one, all_)]
    assert all(not np.any(m.trouble) for m in modes)
    assert np.array_equal(modes[0].codes, modes[1].codes)
    # Where the biases alone move, a unit slides on one kink at most.
    alone = jax.tree.leaves(tau)[0] == 3.0
    assert np.sum(modes[0].codes == 0) > (1 if alone else 3)
    frozen = [rule.flow.freeze(m) for rule, m in zip((one, all_), modes, strict=True)]
    for part in (lambda f, z: f(None, at, z), lambda f, z: f.margins(at, z)):
        a, b = (
            eqx.filter_jit(part)(rule.flow, z) for rule, z in zip((one, all_), frozen, strict=True)
        )
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def stopped():
    """A run that goes on until a sample slides in two layers."""
    task = fl.tasks.hierarchy(levels=3)
    network = start(task, (32, 32), 1, variance=1e-2)
    return task, network, exact(network, task, 40.0, 1e-10, throw=False)


def test_it_stops_where_a_sample_slides_in_two_layers(stopped):
    task, network, flow = stopped
    assert flow.result == fl.RESULTS.slides_in_two_layers
    assert 0.5 < float(flow.end) < 5.0
    with pytest.raises(fl.RunError, match="slides in two layers at once at t = ") as caught:
        exact(network, task, 40.0, 1e-10)
    assert float(caught.value.trajectory.end) == float(flow.end)
    # Descent, which knows of no rule, hovers over both kinks from there on.
    layer, unit, sample = flow.events.index[-1]
    codes = np.asarray(flow.events.initial).copy()
    codes[np.asarray(flow.events.component)] = np.asarray(flow.events.new)
    slides = np.argwhere(codes.reshape(64, 8) == 0)
    (other,) = [u for u, i in slides if i == sample]
    assert layer == 0
    assert other >= 32
    rate, beyond = 1e-5, 1.03 * float(flow.end)
    later = descended(network, task, fl.SquaredError(), rate, round(beyond / rate))
    z0, z1 = later.preactivations(task.x)
    assert abs(z0[sample, unit]) < 1e-5 < 1e-3 < jnp.median(jnp.abs(z0))
    assert abs(z1[sample, other - 32]) < 1e-5 < 1e-3 < jnp.median(jnp.abs(z1))


def test_log_activity_and_linearization_per_layer(stopped):
    task, _, flow = stopped
    codes = np.asarray(flow.events.initial).copy()
    for component, old, new in zip(
        *map(np.asarray, (flow.events.component, flow.events.old, flow.events.new)), strict=True
    ):
        assert codes[component] == old != new
        codes[component] = new
    assert {index[0] for index in flow.events.index} == {0, 1}
    codes[int(flow.events.component[-1])] = 0  # the crossing that did not happen
    z = np.concatenate([np.asarray(z).T for z in flow.final.preactivations(task.x)])
    assert np.abs(z.ravel()[codes == 0]).max() < 1e-9
    assert np.all(z.ravel()[codes > 0] > -1e-9)
    assert np.all(z.ravel()[codes < 0] < 1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for layer in (0, 1):
            rows = codes.reshape(2, 32, 8)[layer]
            activity = flow.linearization(layer=layer).activity(flow.end * 0.9999999)
            assert np.allclose(sum(activity), 1.0)
            assert float(activity.off) == pytest.approx(
                np.mean(np.all(rows <= 0, axis=1)), abs=1 / 31
            )


def converges(network, task, t1, solver, rates=(1e-3, 1e-5)):
    flow = exact(network, task, t1, 1e-10, solver)
    slid = int(jnp.sum(flow.events.new == 0))
    errors = [
        distance(descended(network, task, fl.SquaredError(), r, round(t1 / r)), flow.final)
        for r in rates
    ]
    slope = np.diff(np.log(errors)) / np.diff(np.log(rates))
    return slid, float(slope[0]), errors[-1]


def test_descent_converges_to_the_walk_up_to_there(stopped):
    task, network, flow = stopped
    slid, slope, error = converges(network, task, 1.95, diffrax.Tsit5())
    assert float(flow.end) > 1.95
    assert slid > 10
    assert slope == pytest.approx(1.0, abs=0.05)
    assert error < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "hidden", "t1", "options"),
    [
        (gaussian(), (16, 16, 16), 0.35, {"variance": 0.1, "bias": (True,) * 4, "slope": 0.1}),
        # x and -x share kinks in the first layer only, and second-layer units lose all inputs.
        (fl.tasks.xor(), (8, 8), 1.0, {"variance": 0.2, "bias": False}),
    ],
)
def test_descent_converges_to_deeper_walks(task, hidden, t1, options):
    network = start(task, hidden, 0, **options)
    _, slope, error = converges(network, task, t1, diffrax.Bosh3())  # quicker to compile
    assert slope == pytest.approx(1.0, abs=0.05)
    assert error < 5e-6
