"""Runs in float32: they end, their digits, and what users are told of them."""

import functools
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests import numpy_walk
from tests.test_walk import drawn, gaussian
from tests.zoo import distance

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

ROOT = Path(__file__).resolve().parent.parent


# The defaults of walks in these precisions, by name: no other solver is tried at rest, which is
# another program.
BOSH, TSIT = diffrax.Bosh3(), diffrax.Tsit5()
CASES = ("tree", 64, 4096), ("tree", 64, 7), ("xor", 16, 4096)  # task, hidden, max_steps


@functools.cache
def walked_without_x64():
    """The README's lines, for all `CASES`, in a process that is left in float32."""
    code = """
        import json, sys, warnings
        import jax
        import flowlin as fl
        found = []
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for make, hidden, max_steps in json.loads(sys.argv[1]):
                task = {"tree": fl.tasks.hierarchy, "xor": fl.tasks.xor}[make]()
                key = jax.random.key(0)
                network = fl.ReLUNetwork.init(task, (hidden,), variance=1e-2, key=key)
                flow = fl.gradient_flow(network, task, 30.0, max_steps=max_steps, throw=False)
                how = [name for name in ("successful", "max_steps_reached")
                       if bool(flow.result == getattr(fl.RESULTS, name))]
                steps = int(flow.stats["num_steps"])
                found.append([how, steps, float(flow.end), len(flow.events), str(flow.ts.dtype)])
        print(json.dumps([found, [(w.category.__name__, str(w.message)) for w in told]]))
        """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), json.dumps(CASES)], timeout=600,
        capture_output=True, text=True, cwd=ROOT, check=True,
        env={**os.environ, "JAX_ENABLE_X64": "0"},
    ).stdout  # fmt: skip
    return json.loads(out)


@pytest.mark.slow
def test_a_walk_without_x64_ends_and_the_user_is_told_once():
    (whole, cut, _), told = walked_without_x64()
    assert whole[0] == ["successful"]
    assert whole[2] == 30.0
    assert whole[4] == "float32"
    assert cut[:2] == [["max_steps_reached"], 7]
    assert [name for name, _ in told] == ["PrecisionWarning"]
    assert "jax_enable_x64" in told[0][1]


@pytest.mark.slow
def test_a_network_from_before_the_line_is_told_once(monkeypatch):
    """It ran at four digits without a word."""
    monkeypatch.setattr(fl.runs.precision_warning, "_has_warned", False)
    task = fl.tasks.xor()
    network = fl.LinearNetwork((0.1 * np.ones((2, 2)),))
    early, narrow = network.astype("float32"), task.astype("float32")
    fl.gradient_flow(early, narrow, 0.1)  # float32 is meant
    fl.gradient_flow(early, task, 0.1, rtol=1e-4)  # so are its digits
    fl.gradient_flow(network, narrow, 0.1)  # in float64
    with pytest.warns(fl.PrecisionWarning, match="`network` is of float32 and `task` of float64"):
        fl.gradient_flow(early, task, 0.1)
    fl.gradient_flow(early, task, 0.1)  # once


@pytest.mark.slow
def test_wide_walks_without_x64_take_few_steps():
    (tree, _, xor), _ = walked_without_x64()
    for how, steps, end, events, _ in (tree, xor):
        assert (how, end) == (["successful"], 30.0)
        assert 0 < events < 1000
        assert steps < 1000


@pytest.fixture(scope="module")
def both():
    """By seed: walks in float32 at their default rtol, and fine ones from the same weights."""
    task, found = gaussian().astype(jnp.float32), []
    for seed in range(3):
        network = fl.ReLUNetwork.init(task, (32,), variance=1e-2, key=jax.random.key(seed))
        single = fl.gradient_flow(network, task, 10.0, solver=BOSH)
        wide, double = network.astype(jnp.float64), task.astype(jnp.float64)
        found.append((single, fl.gradient_flow(wide, double, 10.0, rtol=1e-8, solver=TSIT)))
    return found


@pytest.mark.slow
def test_walks_in_float32_are_those_in_float64(both):
    for single, double in both:
        assert single.final.dtype == jnp.float32
        assert distance(single.final, double.final) < 2e-4
        assert abs(len(single.events) / len(double.events) - 1) < 0.1
        mine, theirs = (flow.linearization() for flow in (single, double))
        assert float(mine.open.fraction) == float(theirs.open.fraction)
        assert np.allclose(mine.open.time, theirs.open.time, rtol=2e-4)
        assert np.allclose(mine.closed.time, theirs.closed.time, rtol=2e-4)


@pytest.mark.slow
def test_pairs_within_rounding_of_their_kinks_are_few(both):
    """With float64's multiples of eps the weights are off by 3e-5, and events are missed."""
    single, double = both[0]
    assert len(single.events) == len(double.events)
    assert distance(single.final, double.final) < 1.5e-5


@pytest.fixture(scope="module")
def narrow():
    """By seed: a network, its task, and its walk in float32; one program."""
    found = {}
    for seed in (0, 7):
        network, task = drawn(seed)
        network, task = network.astype(jnp.float32), task.astype(jnp.float32)
        found[seed] = network, task, fl.gradient_flow(network, task, 10.0, solver=BOSH)
    return found


@pytest.mark.slow
def test_a_walk_in_float32_is_a_second_walk(narrow):
    for network, task, flow in narrow.values():
        second = numpy_walk.walk(network, task, 10.0)
        assert second.slides > 0
        assert flow.final.dtype == jnp.float32
        assert [row["index"][1:] for row in flow.events.table()] == [
            (unit, sample) for _, unit, sample, *_ in second.switches
        ]
        np.testing.assert_allclose(flow.final.weights[0], second.hidden[-1], atol=2e-4)
        np.testing.assert_allclose(flow.final.weights[1], second.readout[-1], atol=2e-4)


@pytest.mark.slow
def test_a_walk_that_float32_cannot_do_ends_and_names_the_remedy(narrow):
    """The first step's length overflows, and what follows is NaN."""
    network, task, _ = narrow[0]
    far = fl.Task(np.float32(1e15) * np.asarray(task.x), task.y)
    with pytest.raises(fl.RunError, match=r"may be too close for float32; .*jax_enable_x64") as why:
        fl.gradient_flow(network, far, 30.0, solver=BOSH)
    flow = why.value.trajectory
    assert bool(flow.result == fl.RESULTS.dt_min_reached)
    assert int(flow.stats["num_steps"]) < 100


@pytest.mark.slow
def test_a_float32_walk_between_near_samples_is_that_in_float64(narrow):
    """Samples of 100 that are 0.01 apart; steps are small against `t1`, and not against t."""
    network, task, _ = narrow[7]
    near = fl.Task(100 + np.float32(1e-2) * np.asarray(task.x), task.y)
    single = fl.gradient_flow(network, near, 30.0, solver=BOSH)
    wide, double = network.astype(jnp.float64), near.astype(jnp.float64)
    double = fl.gradient_flow(wide, double, 30.0, solver=TSIT)
    # Within rounding of each other, so in any order.
    assert sorted(single.events.index) == sorted(double.events.index)
    assert distance(single.final, double.final) < 1e-3


def first_layer_of(task, network, factor, t1, **options):
    """The first layer's weights at the end, where inputs are so many times as large.

    The weights on them are as much smaller, and only these move, as fast beside their size. So the
    preactivations are the same at the same part of the way.
    """
    first = network.weights[0] / factor
    scaled = network.with_parameters(((first, *network.weights[1:]), network.biases))
    only = eqx.tree_at(lambda n: n.weights[0], jax.tree.map(lambda _: False, network), True)
    task = fl.Task(task.x * factor, task.y)
    flow = fl.gradient_flow(scaled, task, t1 / factor**2, trainable=only, **options)
    return factor * flow.final.weights[0]


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [(4,), (4, 3)], ids=["one layer", "two layers"])
@pytest.mark.parametrize("factor", [1e8, 1e12])
def test_inputs_of_any_size_have_kinks_where_they_are(hidden, factor):
    """Rounding of z is told by what w x and c b are, not by all weights times all inputs."""
    task = gaussian(8)
    network = fl.ReLUNetwork.init(task, hidden, 0.3, key=jax.random.key(0))
    # An array for the tolerances, so that all have one program.
    known = first_layer_of(task, network, 1.0, 20.0, atol=jnp.asarray(1e-9), solver=TSIT)
    atol = jnp.asarray(1e-9 / factor)
    found = first_layer_of(task, network, factor, 20.0, atol=atol, solver=TSIT)
    assert jnp.max(jnp.abs(known - network.weights[0])) > 0.1
    np.testing.assert_allclose(found, known, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_weights_that_are_tiny_beside_their_units_are_told():
    """With the remedy that is told they have their digits."""
    task = gaussian(8)
    network = fl.LinearNetwork.init(task, 3, 0.3, key=jax.random.key(0))
    known = first_layer_of(task, network, 1.0, 5.0)
    with pytest.warns(
        fl.PrecisionWarning, match=r"`weights\[0\]` has numbers of 6e-09, on inputs of 1e\+08"
    ) as told:
        loose = first_layer_of(task, network, 1e8, 5.0)
    (atol,) = re.findall(r"`atol=(\S+)`", str(told[0].message))
    fine = first_layer_of(task, network, 1e8, 5.0, atol=float(atol))
    errors = [float(jnp.max(jnp.abs(one - known))) for one in (loose, fine)]
    assert errors[1] < 1e-6 < errors[0]
