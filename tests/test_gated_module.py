"""A module with given gates: the module itself as long as no gate switches, and smooth beyond."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.tolerances import ROUNDING, of_flow

XOR = fl.tasks.xor()
RTOL = 1e-9


def mlp(activation=jax.nn.relu):
    return eqx.nn.MLP(2, 2, 3, 1, activation, dtype=jnp.float64, key=jax.random.key(1))


class Pooled(eqx.Module):
    """A convolution, ReLUs, a maximum over neighbours, and a readout."""

    conv: eqx.nn.Conv1d
    pool: eqx.nn.MaxPool1d
    readout: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.conv = eqx.nn.Conv1d(1, 2, 3, dtype=jnp.float64, key=first)
        self.pool = eqx.nn.MaxPool1d(2, 2)
        self.readout = eqx.nn.Linear(4, 1, dtype=jnp.float64, key=second)

    def __call__(self, x):
        return self.readout(self.pool(jax.nn.relu(self.conv(x[None]))).reshape(-1))


@pytest.fixture(scope="module")
def pooled():
    """A module, and a task of five samples."""
    rng = np.random.default_rng(0)
    task = fl.Task(rng.normal(size=(5, 6)), rng.normal(size=(5, 1)))
    return Pooled(jax.random.key(0)), task


class Bent(eqx.Module):
    """|w x| + max(w x, 1 - x), for one weight."""

    w: jax.Array

    def __call__(self, x):
        return jnp.abs(self.w * x) + jnp.maximum(self.w * x, 1 - x)


def test_its_gates_are_those_of_the_kinks_by_hand():
    # z of |w x| is w x, and that of the maximum is w x - (1 - x): -2, 1, 4 and -5, 1, 7 at w = 2.
    x = np.array([[-1.0], [0.5], [2.0]])
    gated = fl.GatedModule.frozen(Bent(jnp.array([2.0])), fl.Task(x, np.zeros((3, 1))))
    assert [gate.ravel().tolist() for gate in gated.gates] == [[0, 1, 1], [0, 1, 1]]
    assert gated.outputs(jnp.asarray(x)).ravel().tolist() == [4, 2, 8]
    # The weight turns, and the gates do not: g (2 w x) - w x, and g w x + (1 - g)(1 - x).
    turned = gated.with_parameters(jax.tree.map(lambda w: -w, gated.parameters))
    assert turned.outputs(jnp.asarray(x)).ravel().tolist() == [0, -2, -8]
    on = fl.GatedModule.always_on(Bent(jnp.array([2.0])), fl.Task(x[1:], np.zeros((2, 1))))
    assert [gate.tolist() for gate in on.gates] == [[1], [1]]
    assert on.outputs(jnp.array([[-3.0]])).item() == -12
    off = on.with_gates([jnp.zeros(1), jnp.zeros((1, 1))])
    assert off.outputs(jnp.array([[-3.0]])).item() == 6 + 4


@pytest.mark.slow
def test_of_an_mlp_it_is_the_gated_network_of_its_weights():
    module, own = mlp(), fl.ReLUNetwork.of(mlp())
    for name in ("frozen", "always_on"):
        ours, theirs = getattr(fl.GatedModule, name)(module, XOR), getattr(own, name)(XOR)
        np.testing.assert_array_equal(ours.gates[0], theirs.given_gates[0])
        np.testing.assert_allclose(ours.outputs(XOR.x), theirs.outputs(XOR.x), atol=ROUNDING)
    flows = [fl.gradient_flow(one, XOR, 3.0, rtol=RTOL) for one in (ours, theirs)]
    assert flows[0].losses[-1] == pytest.approx(float(flows[1].losses[-1]), rel=of_flow(RTOL))
    assert flows[0].stats["kinks"] == "none"
    assert not flows[0].events.channels


@pytest.mark.slow
def test_its_flow_is_the_modules_until_a_gate_switches():
    """The walk of the module is that of the network of its weights, which is known."""
    module, own = mlp(), fl.ReLUNetwork.of(mlp())
    gated = fl.GatedModule.frozen(module, XOR)
    walk = fl.gradient_flow(own, XOR, 3.0, rtol=RTOL)
    first = float(walk.events.select("gate").time[0])
    off = []
    for end in (0.99 * first, 3.0):
        pair = [fl.gradient_flow(one, XOR, end, rtol=RTOL).final for one in (own, gated)]
        moved, held = (one.outputs(XOR.x) for one in pair)
        off.append(float(jnp.abs(moved - held).max()))
    assert off[0] < of_flow(RTOL)
    assert off[1] > 1e3 * of_flow(RTOL)


@pytest.mark.slow
def test_it_computes_maps_and_steps_as_the_module_does(pooled):
    module, task = pooled
    gated = fl.GatedModule.frozen(module, task)
    np.testing.assert_array_equal(gated.outputs(task.x), jax.vmap(module)(task.x))
    ours, theirs = (fl.measures.effective_map(one, task) for one in (gated, module))
    np.testing.assert_allclose(ours.matrix, theirs.matrix, atol=ROUNDING)
    runs = [fl.gradient_descent(one, task, 0.01, 1) for one in (gated, module)]
    for a, b in zip(*(jax.tree.leaves(run.model.parameters) for run in runs), strict=True):
        np.testing.assert_allclose(a, b, atol=ROUNDING)


@pytest.mark.slow
def test_a_file_needs_the_module_for_its_functions(pooled, tmp_path):
    module, task = pooled
    gated = fl.GatedModule.frozen(module, task)
    flow = fl.gradient_descent(gated, task, 0.01, 3)
    flow.save(tmp_path / "run.npz")
    with pytest.raises(ValueError, match=r"run of a GatedModule\(Pooled\), of which a file keeps"):
        fl.load(tmp_path / "run.npz")
    found = fl.load(tmp_path / "run.npz", like=gated)
    assert eqx.tree_equal(found.final, flow.final)
    fl.gradient_descent(module, task, 0.01, 3).save(tmp_path / "other.npz")
    with pytest.raises(ValueError, match=r"`like` is GatedModule.*, and the file holds"):
        fl.load(tmp_path / "other.npz", like=gated)


@pytest.mark.slow
def test_what_has_no_gates_or_others_is_refused(pooled):
    module, task = pooled
    gated = fl.GatedModule.frozen(module, task)
    with pytest.raises(ValueError, match=r"Equinox module of ReLUs.*`network.frozen"):
        fl.GatedModule.frozen(fl.ReLUNetwork.init(XOR, 2, key=jax.random.key(0)), XOR)
    with pytest.raises(ValueError, match="module of ReLUs, whose gates are known; the program of"):
        fl.GatedModule.always_on(mlp(jnp.tanh), XOR)
    with pytest.raises(ValueError, match="`gates` are for 5 samples and the inputs have 2"):
        gated.outputs(task.x[:2])
    with pytest.raises(ValueError, match="`gates` needs one array per hidden layer, 2, got 1"):
        gated.with_gates([jnp.ones(8)])
    with pytest.raises(ValueError, match="`network`, Pooled, fails on one sample of `task`"):
        fl.GatedModule.frozen(module, XOR)
    nan = fl.Task(np.ones((2, 6)), np.ones((2, 1)))
    with pytest.raises(ValueError, match=r"`task\.x` holds 1 value\(s\) that are NaN"):
        fl.GatedModule.frozen(module, eqx.tree_at(lambda t: t.x, nan, nan.x.at[0, 0].set(jnp.nan)))
