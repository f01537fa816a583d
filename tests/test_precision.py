"""Runs in float32: they end, their digits, and what users are told of them."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

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


def start(task, hidden=8, seed=0):
    return fl.ReLUNetwork.init(task, (hidden,), variance=1e-2, key=jax.random.key(seed))


def walked_without_x64(cases):
    """The README's lines, for (task, hidden, max_steps), in a process that is left in float32."""
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
        [sys.executable, "-c", textwrap.dedent(code), json.dumps(cases)], timeout=600,
        capture_output=True, text=True, cwd=ROOT, check=True,
        env={**os.environ, "JAX_ENABLE_X64": "0"},
    ).stdout  # fmt: skip
    return json.loads(out)


@pytest.mark.slow
def test_a_walk_without_x64_ends_and_the_user_is_told_once():
    (whole, cut), told = walked_without_x64([("tree", 8, 4096), ("tree", 8, 7)])
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
def test_wider_walks_without_x64_end():
    found, _ = walked_without_x64([("tree", 64, 4096), ("xor", 16, 4096)])
    for how, steps, end, events, _ in found:
        assert (how, end) == (["successful"], 30.0)
        assert 0 < events < 1000
        assert steps < 1000


def both(task, network, t1):
    """The run in float32 at its default rtol, and a fine one in float64 from the same weights."""
    single = fl.gradient_flow(network, task, t1)
    wide, double = network.astype(jnp.float64), task.astype(jnp.float64)
    return single, fl.gradient_flow(wide, double, t1, rtol=1e-8)


@pytest.mark.slow
def test_walks_in_float32_are_those_in_float64(tree):
    task = tree.astype(jnp.float32)
    for seed in range(3):
        single, double = both(task, start(task, seed=seed), 30.0)
        assert single.final.dtype == jnp.float32
        assert distance(single.final, double.final) < 2e-4
        assert abs(len(single.events) / len(double.events) - 1) < 0.1
        mine, theirs = (flow.linearization() for flow in (single, double))
        assert float(mine.open.fraction) == float(theirs.open.fraction)
        assert np.allclose(mine.open.time, theirs.open.time, rtol=2e-4)
        assert np.allclose(mine.closed.time, theirs.closed.time, rtol=2e-4)


@pytest.mark.slow
def test_pairs_within_rounding_of_their_kinks_are_few():
    """With float64's multiples of eps the weights are off by 3e-5, and events are missed."""
    task = gaussian().astype(jnp.float32)
    single, double = both(task, start(task, 32), 10.0)
    assert len(single.events) == len(double.events)
    assert distance(single.final, double.final) < 1.5e-5


@pytest.fixture(scope="module")
def narrow():
    """By seed: a network, its task, and its walk in float32; one program."""
    found = {}
    for seed in (0, 7):
        network, task = drawn(seed)
        network, task = network.astype(jnp.float32), task.astype(jnp.float32)
        found[seed] = network, task, fl.gradient_flow(network, task, 10.0)
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
        fl.gradient_flow(network, far, 30.0)
    flow = why.value.trajectory
    assert bool(flow.result == fl.RESULTS.dt_min_reached)
    assert int(flow.stats["num_steps"]) < 100


@pytest.mark.slow
def test_a_float32_walk_between_near_samples_is_that_in_float64(narrow):
    """Samples of 100 that are 0.01 apart; steps are small against `t1`, and not against t."""
    network, task, _ = narrow[7]
    near = fl.Task(100 + np.float32(1e-2) * np.asarray(task.x), task.y)
    single = fl.gradient_flow(network, near, 30.0)
    double = fl.gradient_flow(network.astype(jnp.float64), near.astype(jnp.float64), 30.0)
    # Within rounding of each other, so in any order.
    assert sorted(single.events.index) == sorted(double.events.index)
    assert distance(single.final, double.final) < 1e-3
