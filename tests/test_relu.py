"""ReLU flows: kinks, gate logs, the linearization time and activity."""

import contextlib
import re
import warnings
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin.record.event_log import Channel, EventLog
from flowlin.record.linearization import linearization_of_log

# Where the solver is named, stiffness is not measured: one program instead of three.
SMOOTH: dict[str, Any] = {"kinks": fl.SmoothKinks(1e-4), "solver": diffrax.Tsit5()}


@pytest.fixture(scope="module")
def run(tree):
    network = fl.ReLUNetwork.init(tree, 24, key=jax.random.key(3))
    return network, fl.gradient_flow(network, tree, 12.0, dense=True, **SMOOTH)


def test_gate_log_is_the_sign_of_the_preactivations(tree, run):
    """Replaying the log gives, at any time, the sides read off the network there."""
    _, flow = run
    width = 1e-4
    log = flow.events.select("gate")
    for t in (0.0, 0.7, 2.1, 5.3, 11.9):
        sides = np.asarray(flow.events.initial[: 24 * 8]).copy()
        for row in log.table():
            if row["time"] <= t:
                _, unit, sample = row["index"]
                assert sides[unit * 8 + sample] == row["old"]
                sides[unit * 8 + sample] = row["new"]
        z = np.asarray(flow.network(t).preactivations(tree.x)[0]).T.ravel()
        clear = np.abs(np.abs(z) - width) > 1e-7
        expected = np.where(z > width, 1, np.where(z > -width, 0, -1))
        assert np.array_equal(sides[clear], expected[clear])
        assert clear.mean() > 0.9


def test_activity_equals_counts_of_the_networks(tree, run):
    _, flow = run
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = flow.linearization()
    ts = jnp.linspace(0.05, 11.95, 41)
    z = jax.vmap(lambda n: n.preactivations(tree.x)[0])(flow.network(ts))
    for closed, level in ((False, 1e-4), (True, -1e-4)):
        activity = result.activity(ts, closed=closed)
        on = jnp.mean(jnp.all(z > level, axis=1), axis=1)
        off = jnp.mean(jnp.all(z <= level, axis=1), axis=1)
        assert jnp.mean(jnp.isclose(activity.always_on, on)) > 0.9
        assert jnp.mean(jnp.isclose(activity.off, off)) > 0.9
        assert jnp.allclose(activity.always_on + activity.gating + activity.off, 1.0)


def gate_log(units, samples, initial, events):
    """A log written by hand: rows (time, unit, sample, old, new)."""
    rows = np.array(events, dtype=float).reshape(-1, 5)
    return EventLog(
        jnp.asarray(rows[:, 0]),
        jnp.full(len(rows), 1e-9),
        jnp.asarray(rows[:, 1] * samples + rows[:, 2], int),
        jnp.asarray(rows[:, 3], int),
        jnp.asarray(rows[:, 4], int),
        jnp.asarray(len(rows)),
        jnp.asarray(np.asarray(initial).ravel(), int),
        (Channel("gate", (units, samples), (0,)),),
    )


def test_linearization_time_of_a_log_written_by_hand():
    # Two units, two samples. Unit 0: on, off -> slides at 1 -> on at 2 -> off at 5.
    # Unit 1: off, off -> both on at 3 (sample 0) and 4 (sample 1) -> sample 1 slides at 4.5.
    log = gate_log(
        2, 2, [[1, -1], [-1, -1]],
        [(1, 0, 1, -1, 0), (2, 0, 1, 0, 1), (3, 1, 0, -1, 1), (4, 1, 1, -1, 1),
         (4.5, 1, 1, 1, 0), (5, 0, 1, 1, -1)],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = linearization_of_log(log, 0, 2, 0.0, jnp.asarray(9.0))
    assert (float(result.open.time), float(result.open.fraction)) == (4.0, 1.0)
    assert float(result.open.lasts) == 0.5
    assert (float(result.closed.time), float(result.closed.fraction)) == (4.0, 1.0)
    assert float(result.closed.lasts) == 1.0
    ts = jnp.array([0.0, 1.0, 1.5, 2.0, 2.9, 3.5, 4.2, 4.7, 6.0])
    opened, closed = result.activity(ts), result.activity(ts, closed=True)
    assert np.allclose(opened.always_on, [0, 0, 0, 0.5, 0.5, 0.5, 1, 0.5, 0])
    assert np.allclose(closed.always_on, [0, 0.5, 0.5, 0.5, 0.5, 0.5, 1, 1, 0.5])
    assert np.allclose(opened.off, [0.5, 0.5, 0.5, 0.5, 0.5, 0, 0, 0, 0])
    assert result.open.bracket[0] < 4.0 < result.open.bracket[1]


def test_quantile_of_a_log_written_by_hand():
    # Four samples, q = 0.25: linear with at most one sample off, off with at most one on.
    log = gate_log(1, 4, [[1, 1, -1, -1]], [(1, 0, 2, -1, 1), (2, 0, 0, 1, -1), (3, 0, 1, 1, -1)])
    result = linearization_of_log(log, 0, 4, 0.25, jnp.asarray(4.0))
    assert float(result.open.time) == 1.0
    activity = result.activity(jnp.array([0.5, 1.5, 2.5, 3.5]))
    assert np.allclose(activity.always_on, [0, 1, 0, 0])
    assert np.allclose(activity.off, [0, 0, 0, 1])


def test_warns_when_the_maximum_stands_at_the_end():
    log = gate_log(1, 1, [[-1]], [(1, 0, 0, -1, 1)])
    with pytest.warns(
        fl.LinearizationWarning, match="still at its maximum 1 when the run ends at t = 2"
    ):
        linearization_of_log(log, 0, 1, 0.0, jnp.asarray(2.0))


@pytest.mark.parametrize("quantile", [0.0, 0.13])
def test_unit_switches_agree_with_the_gate_log(tree, run, quantile):
    network, flow = run
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gates = flow.linearization(quantile)
        units = fl.gradient_flow(
            network, tree, 12.0, events=(fl.UnitSwitches(quantile),), **SMOOTH
        ).linearization(quantile)
    for a, b in ((gates.open, units.open), (gates.closed, units.closed)):
        assert float(a.time) == pytest.approx(float(b.time), rel=1e-8)
        assert float(a.fraction) == float(b.fraction)
    ts = jnp.linspace(0, 12, 101)
    for closed in (False, True):
        for a, b in zip(gates.activity(ts, closed), units.activity(ts, closed), strict=True):
            assert jnp.mean(jnp.abs(a - b) > 1e-9) < 0.03


def test_large_tasks_ignore_kinks_and_ask_for_unit_switches():
    task = fl.tasks.digits(300)
    network = fl.ReLUNetwork.init(task, 64, key=jax.random.key(0))
    flow = fl.gradient_flow(network, task, 0.5, rtol=1e-3, kinks=fl.IgnoreKinks())
    with pytest.raises(ValueError, match=r"events=\(fl.UnitSwitches\(0\),\)"):
        flow.linearization()


def test_smoothing_error_is_linear_in_the_width(tree):
    """Against descent with a step small enough not to matter."""
    network = fl.ReLUNetwork.init(tree, 16, key=jax.random.key(0))
    descent = fl.gradient_descent(network, tree, 5e-5, 40_000)
    reference = jnp.concatenate([a.ravel() for a in jax.tree.leaves(descent.final.parameters)])
    errors, widths = [], (4e-3, 1e-3)
    for width in widths:
        options = SMOOTH | {"kinks": fl.SmoothKinks(width)}
        flow = fl.gradient_flow(network, tree, 2.0, rtol=1e-8, **options)
        final = jnp.concatenate([a.ravel() for a in jax.tree.leaves(flow.final.parameters)])
        errors.append(float(jnp.linalg.norm(final - reference) / jnp.linalg.norm(reference)))
    slope = np.log(errors[0] / errors[1]) / np.log(widths[0] / widths[1])
    assert 0.7 < slope < 1.4
    assert errors[-1] < 2e-2


def test_sliding_stalls_plain_integration_and_says_so(tree):
    network = fl.ReLUNetwork.init(tree, key=jax.random.key(0))
    options = SMOOTH | {"kinks": fl.IgnoreKinks(), "max_steps": 3000}
    with pytest.raises(fl.RunError, match="slides on its kinks") as caught:
        fl.gradient_flow(network, tree, 10.0, **options)
    partial = caught.value.trajectory
    assert 0 < float(partial.end) < 10
    assert len(partial.events) > 0
    assert jnp.all(jnp.isfinite(partial.final.weights[0]))


def test_two_hidden_layers_log_each_layer(tree):
    network = fl.ReLUNetwork.init(tree, (12, 10), 0.02, key=jax.random.key(1))
    flow = fl.gradient_flow(network, tree, 4.0, rtol=1e-6, **SMOOTH)
    layers = {row["index"][0] for row in flow.events.table()}
    assert layers == {0, 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for layer, width in ((0, 12), (1, 10)):
            fraction = flow.linearization(layer=layer).activity(0.0).always_on
            z = network.preactivations(tree.x)[layer]
            assert float(fraction) * width == pytest.approx(
                float(jnp.sum(jnp.all(z > 1e-4, axis=0)))
            )
    with pytest.raises(ValueError, match="`layer` = 2 does not exist"):
        flow.linearization(layer=2)


def test_linearization_is_for_relu_networks(tree):
    flow = fl.gradient_flow(fl.LinearNetwork.init(tree, 4, key=jax.random.key(0)), tree, 1.0)
    with pytest.raises(ValueError, match="of a LinearNetwork there are none"):
        flow.linearization()
    with pytest.raises(ValueError, match=r"`quantile` must lie in \[0, 0.5\)"):
        flow.linearization(0.7)


@pytest.mark.parametrize(
    ("hidden", "samples", "solver", "chosen", "why"),
    [
        ((4,), 8, None, "ExactKinks()", "32 .unit, sample. pairs"),
        ((4, 3), 8, None, "ExactKinks()", "56 .unit, sample. pairs"),
        ((4,), 8, diffrax.Kvaerno5(), "SmoothKinks()", "Kvaerno5 is not an explicit"),
        ((4,), 8, diffrax.HalfSolver(diffrax.Tsit5()), "SmoothKinks()", "HalfSolver is not an"),
        ((40,), 300, None, "AveragedKinks()", "12000 .unit, sample. pairs"),
        ((40,), 300, diffrax.Bosh3(), "IgnoreKinks()", "12000 .unit, sample. pairs"),
        ((30, 20), 300, None, "IgnoreKinks()", "15000 .unit, sample. pairs"),
    ],
)
def test_kinks_are_chosen_by_size_and_solver(hidden, samples, solver, chosen, why):
    task = fl.tasks.teacher(samples, (1.0, 0.5), key=jax.random.key(0))
    network = fl.ReLUNetwork.init(task, hidden, key=jax.random.key(0))
    labels = {}

    def end(network):
        flow = fl.gradient_flow(network, task, 1e-3, rtol=1e-3, solver=solver)
        labels.update(flow.labels)
        return flow.end

    with contextlib.ExitStack() as stack:
        if chosen != "ExactKinks()":  # what is not exact says so
            stack.enter_context(pytest.warns(fl.KinksWarning, match=why))
        jax.eval_shape(end, network)  # the choice is made before anything is compiled
    assert labels["kinks"] == chosen
    assert re.search(why, labels["kinks_because"])
