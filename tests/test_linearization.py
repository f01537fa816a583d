"""Gate logs, the linearization time and activity, and which policy for kinks a run takes."""

import contextlib
import dataclasses
import functools
import re
import warnings
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests import numpy_walk
from tests.test_walk import drawn
from tests.tolerances import of_flow, of_time

# Where the solver is named, stiffness is not measured: one program instead of three.
TSIT: dict[str, Any] = {"solver": diffrax.Tsit5()}
T1, TIMES = 10.0, np.linspace(0, 10.0, 101)
WIDTHS = 4e-3, 1e-3


@functools.cache
def smoothed(width):
    """A run that logs gates."""
    return fl.gradient_flow(*drawn(6), T1, kinks=fl.SmoothKinks(width), ts=TIMES, **TSIT)


@pytest.fixture(scope="module")
def smooth():
    """A network, its task, and the runs by width."""
    return *drawn(6), {width: smoothed(width) for width in WIDTHS}


# ---- Smoothed kinks.


@pytest.mark.slow
def test_the_error_of_smoothing_is_linear_in_the_width(smooth):
    network, task, flows = smooth
    second = numpy_walk.walk(network, task, T1, TIMES)
    assert second.slides > 0
    errors = []
    for flow in flows.values():
        (hidden, _), _ = flow.networks.parameters
        errors.append(np.linalg.norm(hidden[-1] - second.hidden[-1]))
    slope = np.diff(np.log(errors)) / np.diff(np.log(WIDTHS))
    assert 0.7 < slope[0] < 1.4
    assert errors[-1] < 2e-2


def preactivations(flow, task):
    """At the saved times, (T, H, P)."""
    (hidden, _), (bias, _) = jax.tree.map(np.asarray, flow.networks.parameters)
    return np.einsum("thn,pn->thp", hidden, np.asarray(task.x)) + bias[:, :, None]


def test_gate_log_is_the_sign_of_the_preactivations(smooth):
    """Replaying the log gives, at any time, the sides read off the network there."""
    _, task, flows = smooth
    for width, flow in flows.items():
        rows = flow.events.select("gate").table()
        assert len(rows) > 10
        sides = np.asarray(flow.events.initial[:20]).copy()
        clear = []
        for t, z in zip(TIMES, preactivations(flow, task), strict=True):
            while rows and rows[0]["time"] <= t:
                row = rows.pop(0)
                _, unit, sample = row["index"]
                assert sides[unit * 5 + sample] == row["old"]
                sides[unit * 5 + sample] = row["new"]
            z = z.ravel()
            clear.append(np.abs(np.abs(z) - width) > 1e-6)
            expected = np.where(z > width, 1, np.where(z > -width, 0, -1))
            assert np.array_equal(sides[clear[-1]], expected[clear[-1]])
        assert np.mean(clear) > 0.9


@pytest.mark.filterwarnings("ignore:the .* always-on fraction")
def test_activity_equals_counts_of_the_networks(smooth):
    _, task, flows = smooth
    for width, flow in flows.items():
        result, z = flow.linearization(), preactivations(flow, task)
        for closed, level in ((False, width), (True, -width)):
            activity = result.activity(TIMES, closed=closed)
            on, off = np.mean(np.all(z > level, 2), 1), np.mean(np.all(z <= level, 2), 1)
            assert np.mean(np.isclose(activity.always_on, on)) > 0.9
            assert np.mean(np.isclose(activity.off, off)) > 0.9
            np.testing.assert_allclose(sum(activity), 1.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the .* always-on fraction")
def test_unit_switches_agree_with_the_gate_log():
    """Units counted on the way, without a log of gates, and afterwards, from the log."""
    flow, quantiles = smoothed(WIDTHS[0]), (0.0, 0.2)
    how: dict[str, Any] = {"kinks": fl.SmoothKinks(WIDTHS[0]), "ts": TIMES} | TSIT
    events = [fl.UnitSwitches(quantile) for quantile in quantiles]
    counted = fl.gradient_flow(*drawn(6), T1, events=events, **how)
    assert not any(channel.name == "gate" for channel in counted.events.channels)
    for quantile in quantiles:
        mine, other = flow.linearization(quantile), counted.linearization(quantile)
        for closed in (False, True):
            for a, b in zip(
                mine.activity(TIMES, closed=closed), other.activity(TIMES, closed=closed),
                strict=True,
            ):  # fmt: skip
                np.testing.assert_allclose(a, b)
        for a, b in ((mine.open, other.open), (mine.closed, other.closed)):
            np.testing.assert_allclose(a.time, b.time, rtol=of_time())
            assert float(a.fraction) == float(b.fraction)
        assert len(np.unique(mine.activity(TIMES).always_on)) > 1  # something does happen


# ---- Logs written by hand.


def by_hand(units, samples, initial, rows, end):
    """A flow whose log has the rows (time, unit, sample, old, new); nothing is solved for it."""
    network = fl.ReLUNetwork((np.ones((units, 1)), np.ones((1, units))))
    task = fl.Task(np.ones((samples, 1)), np.ones((samples, 1)))
    flow = jax.eval_shape(
        lambda n: fl.gradient_flow(n, task, 1.0, kinks=fl.IgnoreKinks(), max_events=8, **TSIT),
        network,
    )
    flow = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), flow)
    time, unit, sample, old, new = np.array(rows, dtype=float).T
    log = dataclasses.replace(
        flow.events,
        time=jnp.asarray(time),
        uncertainty=jnp.full(len(rows), 1e-9),
        component=jnp.asarray(unit * samples + sample, int),
        old=jnp.asarray(old, int),
        new=jnp.asarray(new, int),
        count=jnp.asarray(len(rows)),
        initial=jnp.asarray(np.ravel(initial), int),
    )
    return dataclasses.replace(flow, events=log, end=jnp.asarray(end))


def test_linearization_time_of_a_log_written_by_hand():
    # Two units, two samples. Unit 0: on, off -> slides at 1 -> on at 2 -> off at 5.
    # Unit 1: off, off -> both on at 3 (sample 0) and 4 (sample 1) -> sample 1 slides at 4.5.
    flow = by_hand(
        2, 2, [[1, -1], [-1, -1]],
        [(1, 0, 1, -1, 0), (2, 0, 1, 0, 1), (3, 1, 0, -1, 1), (4, 1, 1, -1, 1),
         (4.5, 1, 1, 1, 0), (5, 0, 1, 1, -1)],
        9.0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = flow.linearization()
    assert (float(result.open.time), float(result.open.fraction)) == (4.0, 1.0)
    assert float(result.open.lasts) == 0.5
    assert (float(result.closed.time), float(result.closed.fraction)) == (4.0, 1.0)
    assert float(result.closed.lasts) == 1.0
    ts = np.array([0.0, 1.0, 1.5, 2.0, 2.9, 3.5, 4.2, 4.7, 6.0])
    opened, closed = result.activity(ts), result.activity(ts, closed=True)
    assert np.allclose(opened.always_on, [0, 0, 0, 0.5, 0.5, 0.5, 1, 0.5, 0])
    assert np.allclose(closed.always_on, [0, 0.5, 0.5, 0.5, 0.5, 0.5, 1, 1, 0.5])
    assert np.allclose(opened.off, [0.5, 0.5, 0.5, 0.5, 0.5, 0, 0, 0, 0])
    assert result.open.bracket[0] < 4.0 < result.open.bracket[1]


@pytest.mark.slow
def test_quantile_of_a_log_written_by_hand():
    # Four samples, q = 0.25: linear with at most one sample off, off with at most one on.
    rows = [(1, 0, 2, -1, 1), (2, 0, 0, 1, -1), (3, 0, 1, 1, -1)]
    result = by_hand(1, 4, [[1, 1, -1, -1]], rows, 4.0).linearization(0.25)
    assert float(result.open.time) == 1.0
    activity = result.activity(np.array([0.5, 1.5, 2.5, 3.5]))
    assert np.allclose(activity.always_on, [0, 1, 0, 0])
    assert np.allclose(activity.off, [0, 0, 0, 1])


def test_warns_when_the_maximum_stands_at_the_end():
    flow = by_hand(1, 1, [[-1]], [(1, 0, 0, -1, 1)], 2.0)
    with pytest.warns(
        fl.LinearizationWarning, match="still at its maximum 1 when the run ends at t = 2"
    ):
        flow.linearization()


# ---- Plain integration, and which policy is taken.


@pytest.fixture(scope="module")
def plain():
    """Runs that do not look for kinks, of a flow without slides and of one with; one program."""

    def run(network, task, t1):
        # Few enough that the log does not grow, which is another program.
        kinks, options = fl.IgnoreKinks(), {"max_steps": 400, "throw": False} | TSIT
        return fl.gradient_flow(network, task, t1, kinks=kinks, **options)

    crossing, sliding = drawn(CROSSING), drawn(6)
    return run(*crossing, CROSSED), run(*sliding, T1)


CROSSING, CROSSED = 1, 1.0  # a draw, and up to when its pairs only cross


def test_plain_integration_is_the_second_walk_where_nothing_slides(plain):
    flow, _ = plain
    second = numpy_walk.walk(*drawn(CROSSING), CROSSED)
    assert second.slides == 0
    assert len(flow.events.select("gate")) == len(second.switches) > 1
    np.testing.assert_allclose(flow.final.weights[0], second.hidden[-1], atol=of_flow())


def test_sliding_stalls_plain_integration_and_says_so(plain):
    _, flow = plain
    assert 0 < float(flow.end) < T1
    assert len(flow.events) > 0
    assert np.all(np.isfinite(flow.final.weights[0]))
    network, task = drawn(6)
    with pytest.raises(fl.RunError, match="slides on its kinks"):
        fl.gradient_flow(network, task, T1, kinks=fl.IgnoreKinks(), max_steps=400, **TSIT)


def test_linearization_is_for_relu_networks():
    linear = fl.LinearNetwork((np.ones((2, 2)), np.ones((2, 2))))
    flow = fl.gradient_descent(linear, fl.tasks.xor(), 0.1, 1)
    with pytest.raises(ValueError, match="of a LinearNetwork there are none"):
        flow.linearization()
    with pytest.raises(ValueError, match=r"`quantile` must lie in \[0, 0.5\)"):
        flow.linearization(0.7)


@pytest.mark.parametrize(
    ("hidden", "samples", "solver", "chosen", "why"),
    [
        ((4,), 8, None, "ExactKinks()", "32 .unit, sample. pairs"),
        pytest.param(
            (4, 3), 8, None, "ExactKinks()", "56 .unit, sample. pairs", marks=pytest.mark.slow
        ),
        ((4,), 8, diffrax.HalfSolver(diffrax.Tsit5()), "SmoothKinks()", "HalfSolver is not an"),
        ((40,), 300, None, "AveragedKinks()", "12000 .unit, sample. pairs"),
        ((40,), 300, diffrax.Bosh3(), "IgnoreKinks()", "12000 .unit, sample. pairs"),
        ((30, 20), 300, None, "AveragedKinks()", "15000 .unit, sample. pairs"),
    ],
)  # fmt: skip
def test_kinks_are_chosen_by_size_and_solver(hidden, samples, solver, chosen, why):
    task = fl.Task(np.ones((samples, 2)), np.ones((samples, 1)))
    widths = 2, *hidden, 1
    network = fl.ReLUNetwork([np.ones(n) for n in zip(widths[1:], widths, strict=False)])
    labels = {}

    def end(network):
        flow = fl.gradient_flow(network, task, 1e-3, rtol=1e-3, solver=solver)
        labels.update(flow.labels)
        if samples > 8:  # too many pairs for a log of their gates
            with pytest.raises(ValueError, match=r"events=\(fl.UnitSwitches\(0\),\)"):
                flow.linearization()
        return flow.end

    with contextlib.ExitStack() as stack:
        if chosen != "ExactKinks()":  # what is not exact says so
            stack.enter_context(pytest.warns(fl.KinksWarning, match=why))
        jax.eval_shape(end, network)  # the choice is made before anything is compiled
    assert labels["kinks"] == chosen
    assert re.search(why, labels["kinks_because"])
