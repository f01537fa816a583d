"""Where runs end: at an event alone, at rest, after long, and before any saved time."""

import functools
import io
import math
import warnings

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.zoo import jit

ONE = fl.Task([[1.0]], [[1.0]])
TREE = fl.tasks.hierarchy(levels=2)
NETWORK = fl.LinearNetwork.init(TREE, 6, bias=False, key=jax.random.key(0))
REST = fl.GradientBelow(1e-4, terminate=True)
LOW = fl.LossBelow(0.5, terminate=True)
DOPRI = diffrax.Dopri8()  # by name: no other one is tried, which is another program


def first_layer(network):
    """Which array moves: the first."""
    return lambda leaf: leaf is network.weights[0]


@functools.cache
def resting(start, decay=None):
    """A unit w that begins at `start`, and its readout of 2, which stays."""
    network = fl.LinearNetwork((np.full((1, 1), start), np.full((1, 1), 2.0)))
    return fl.gradient_flow(
        network, ONE, None, events=fl.GradientBelow(1e-3, terminate=True),
        trainable=first_layer(network), weight_decay=decay, rtol=1e-10,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("decay", "start"),
    [(None, 0.2), (None, 1e-12), pytest.param(0.5, 0.1, marks=pytest.mark.slow)],
)
def test_the_gradient_falls_when_the_closed_form_says(decay, start):
    """Of (1 - a w)^2 / 2 + k w^2 / 2, a fixed: a (1 - a w) - k w falls as exp(-(a^2 + k) t)."""
    a, level, k = 2.0, 1e-3, decay or 0.0
    flow = resting(start, decay)
    first = abs(a * (1 - a * start) - k * start)
    assert flow.result == fl.RESULTS.event_occurred
    np.testing.assert_allclose(flow.end, math.log(first / level) / (a**2 + k), rtol=1e-6)
    assert flow.ts.shape == (2,)


@pytest.mark.slow
def test_the_norm_is_that_of_all_that_moves():
    """By finite differences of the loss, at the end of a run; from a saddle that is the start."""
    flow = fl.gradient_flow(NETWORK, TREE, None, events=REST, solver=DOPRI)
    weights = np.concatenate([np.ravel(w) for w in flow.final.weights])

    def loss(w):
        first, second = np.split(w, [6 * 4])
        outputs = TREE.x @ first.reshape(6, 4).T @ second.reshape(7, 6).T
        return np.mean(np.sum((outputs - TREE.y) ** 2, axis=1)) / 2

    slopes = [(loss(weights + d) - loss(weights - d)) / 2e-5 for d in 1e-5 * np.eye(weights.size)]
    np.testing.assert_allclose(np.linalg.norm(slopes), 1e-4, rtol=1e-5)
    low = fl.GradientBelow(1e-9, terminate=True)  # below what the steps' errors leave
    with pytest.warns(fl.CrossingsWarning, match="event 'gradient'"):
        flow = fl.gradient_flow(NETWORK, TREE, None, events=low, solver=DOPRI)
    assert np.isinf(flow.events.uncertainty[0])
    zero = jax.tree.map(jnp.zeros_like, NETWORK)
    flow = fl.gradient_flow(zero, TREE, float("inf"), events=REST, solver=DOPRI)
    assert float(flow.end) == 0
    assert flow.result == fl.RESULTS.event_occurred
    assert np.array_equal(flow.events.select("gradient").time, [0.0])


@pytest.mark.parametrize("t1", [None, math.inf])
def test_without_an_end_an_event_must_end_it(t1):
    for events in ((), fl.LossBelow(0.1)):
        with pytest.raises(ValueError, match="`t1` is inf, and no event ends the run; give a fini"):
            fl.gradient_flow(NETWORK, TREE, t1, events=events)
    never = fl.LossBelow(-1.0, terminate=True)
    with pytest.raises(fl.RunError, match="no event has ended the run"):
        fl.gradient_flow(NETWORK, TREE, t1, events=never, max_steps=30)


@pytest.mark.slow
def test_an_extension_without_an_end_ends_at_its_event():
    with pytest.raises(ValueError, match="`t1` is inf, and no event"):
        fl.gradient_flow(NETWORK, TREE, 1.0).extend(None)
    with pytest.raises(ValueError, match="`t1` must be finite and positive, got inf"):
        fl.gradient_descent(NETWORK, TREE, 0.1, 5).extend(None)
    how = {"events": REST, "solver": DOPRI}
    whole = fl.gradient_flow(NETWORK, TREE, None, **how)
    short = fl.gradient_flow(NETWORK, TREE, None, max_steps=20, throw=False, **how)
    assert np.array_equal(short.extend(None).end, whole.end)
    (one,) = fl.sweep([NETWORK], TREE, None, **how)
    assert np.array_equal(one.end, whole.end)


def last_row(flow, ts, end):
    """Assert that what is due before the end is saved, and the end after it."""
    due = [t for t in ts if t < end * (1 - 1e-9)]
    rows = len(due) + 1
    assert int(np.sum(np.isfinite(flow.ts))) == rows
    np.testing.assert_allclose(flow.ts[:rows], [*due, end], rtol=1e-9)
    last = jax.tree.map(lambda a: a[rows - 1], flow.networks.weights)
    assert all(map(np.array_equal, last, flow.final.weights))


def with_times(network, ts):
    return fl.gradient_flow(network, TREE, 100.0, ts=ts, events=LOW, max_steps=256)


@pytest.fixture(scope="module")
def end():
    """When the loss is low."""
    return float(fl.gradient_flow(NETWORK, TREE, None, events=LOW).end)


@pytest.fixture(scope="module")
def early():
    """A run whose program others share, with all its times before the end."""
    return with_times(NETWORK, [1.0, 2.0])


def test_the_end_is_the_last_row(early, end):
    last_row(early, [1.0, 2.0], end)
    for ts in ([1.0, 99.0], [98.0, 99.0], [1.0, end]):
        flow = with_times(NETWORK, ts)
        last_row(flow, ts, end)
        np.testing.assert_allclose(flow.losses[-1], 0.5, rtol=1e-7)


@pytest.mark.slow
def test_the_end_is_the_last_row_under_jit():
    end = float(jit(with_times)(NETWORK, jnp.asarray([1.0, 2.0])).end)
    for ts in ([1.0, 2.0], [1.0, 99.0], [98.0, 99.0], [1.0, end]):
        flow = jit(with_times)(NETWORK, jnp.asarray(ts))
        last_row(flow, ts, end)
        last = np.flatnonzero(np.isfinite(flow.ts))[-1]
        np.testing.assert_allclose(flow.losses[last], 0.5, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("ts", [[1.0, 2.0], [1.0, 60.0], [60.0]])
def test_the_end_is_the_last_row_of_a_descent(ts):
    def run(network):
        return fl.gradient_descent(network, TREE, 0.1, 800, ts=ts, events=LOW)

    plain, compiled = run(NETWORK), jit(run)(NETWORK)
    due = [t for t in ts if t < plain.end]
    for found in (plain, compiled):
        assert int(np.sum(np.isfinite(found.ts))) == len(due) + 1
        np.testing.assert_allclose(found.ts[: len(due) + 1], [*due, float(plain.end)], rtol=1e-12)
        assert found.losses[len(due)] <= 0.5


@pytest.mark.slow
def test_a_run_before_its_first_saved_time_is_a_run(tmp_path):
    """It prints, is saved and loaded, and goes on."""
    flow = fl.gradient_flow(NETWORK, TREE, 50.0, ts=[40.0], max_steps=3, throw=False)
    assert flow.ts.shape == flow.losses.shape == (0,)
    assert flow.networks.weights[0].shape[0] == 0
    assert flow.along(fl.measures.loss, TREE).shape == (0,)
    assert "no time saved" in str(flow)
    flow.save(tmp_path / "flow.npz")
    assert fl.load(tmp_path / "flow.npz").ts.shape == (0,)
    assert np.array_equal(flow.extend(50.0, ts=[45.0]).ts, [45.0])


@pytest.mark.slow
def test_progress_without_an_end():
    stream = io.StringIO()
    progress = fl.LogProgress(1e-12, stream)
    fl.gradient_flow(NETWORK, TREE, None, events=REST, solver=DOPRI, progress=progress)
    lines = stream.getvalue().splitlines()
    assert " of " not in lines[-1]
    assert lines[-1].endswith("unknown left, ended")


@pytest.mark.slow
def test_a_long_horizon_is_no_reason_to_give_up():
    """The smallest step is relative to the time, not to `t1`."""
    assert float(fl.gradient_flow(NETWORK, TREE, 1e14).end) == 1e14
    narrow, task = jax.tree.map(lambda a: a.astype(jnp.float32), (NETWORK, TREE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # once a process, of float32
        flow = fl.gradient_flow(narrow, task, 1e8, rtol=1e-4)
    assert float(flow.end) == float(jnp.float32(1e8))
