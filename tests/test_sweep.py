"""Sweeps: many runs in one call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

jax.config.update("jax_enable_x64", True)

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

TASK, TIMES = fl.tasks.xor(), np.linspace(0, 6, 7)
NETWORKS = [
    fl.ReLUNetwork.init(TASK, 6, variance, bias_strength=c, key=jax.random.key(seed))
    for seed, (variance, c) in enumerate([(1e-2, 1.0), (1e-1, 1.0), (1e-2, 3.0), (5e-2, 0.5)])
]


def t_star(flow):
    return flow.linearization().open.time


def test_every_run_equals_its_own_and_logs_make_one_table():
    runs = fl.sweep(NETWORKS, TASK, 6.0, ts=TIMES)
    single = [fl.gradient_flow(n, TASK, 6.0, ts=TIMES) for n in NETWORKS]
    assert len(runs) == 4
    assert not runs.failed
    for one, other in zip(runs, single, strict=True):
        assert np.array_equal(one.losses, other.losses)
        assert np.array_equal(one.events.time, other.events.time)
        assert one.reference.task is TASK
    table = runs.table()
    assert [row["run"] for row in table] == [
        k for k, flow in enumerate(single) for _ in range(len(flow.events))
    ]
    assert len({len(flow.events) for flow in single}) > 1  # ragged
    assert table[0] == {"run": 0} | single[0].events.table()[0]
    assert np.array_equal(runs.map(t_star), [t_star(flow) for flow in single])
    assert len(runs[1:3]) == 2


def test_batches_under_vmap_agree_with_threads():
    loss = fl.LossBelow(0.2, terminate=True)
    networks = [fl.LinearNetwork.init(TASK, 3, 0.1, key=jax.random.key(seed)) for seed in range(3)]
    x = [TASK.x + shift for shift in (0.5, 1.0, 1.5)]
    tasks = [fl.Task(one, TASK.x) for one in x]
    runs, batched = (fl.sweep(networks, tasks, 9.0, batch=b, events=(loss,)) for b in (1, 2))
    for a, b in zip(runs, batched, strict=True):
        assert b.result == fl.RESULTS.event_occurred
        assert len(b.events) == len(a.events)
        np.testing.assert_allclose(b.end, a.end, rtol=1e-9)
        np.testing.assert_allclose(b.final.weights[0], a.final.weights[0], rtol=1e-8)


def test_tasks_of_one_shape_share_a_compilation():
    traced = []

    def seen(network, task):
        traced.append(task)
        return task.x[0, 0]

    tasks = [fl.Task(s * TASK.x, TASK.y, name=f"scaled by {s}") for s in (1.0, 2.0, 3.0)]
    networks = [fl.LinearNetwork.init(TASK, 3, 0.1, key=jax.random.key(0))] * 3
    observe = {"x": seen}
    first = fl.gradient_flow(networks[0], tasks[0], 1.0, observe=observe)
    traces = len(traced)
    for flow, task in zip(fl.sweep(networks, tasks, 1.0, observe=observe), tasks, strict=True):
        assert flow.reference.task is task
        assert np.all(flow.observed["x"] == task.x[0, 0])
    assert len(traced) == traces
    assert first.extend(2.0).reference.task is tasks[0]


def test_a_run_that_fails_leaves_the_others():
    pair = NETWORKS[:2]
    steps = fl.sweep(pair, TASK, 6.0, ts=TIMES).map(lambda flow: flow.counts["num_steps"])
    longer = int(np.argmax(steps))
    with pytest.warns(UserWarning, match=f"1 of 2 runs failed, run {longer} first: The maximum"):
        runs = fl.sweep(pair, TASK, 6.0, max_steps=int(np.min(steps)), workers=2)
    assert list(runs.failed) == [longer]
    assert float(runs[1 - longer].end) == 6.0
    assert 0 < float(runs[longer].end) < 6.0


def test_bad_input():
    with pytest.raises(ValueError, match="`networks` is empty"):
        fl.sweep([], TASK, 1.0)
    with pytest.raises(ValueError, match="`tasks` holds 1 tasks for 4 networks"):
        fl.sweep(NETWORKS, [TASK], 1.0)
    with pytest.raises(ValueError, match=r"`networks\[1\]` has another kind or shape"):
        fl.sweep([NETWORKS[0], fl.ReLUNetwork.init(TASK, 5, key=jax.random.key(0))], TASK, 1.0)
    with pytest.raises(ValueError, match="`workers` must be a whole number of 1 or more"):
        fl.sweep(NETWORKS, TASK, 1.0, workers=0)
    with pytest.raises(ValueError, match="`throw` is not for sweeps"):
        fl.sweep(NETWORKS, TASK, 1.0, throw=False)


def test_runs_that_are_not_there():
    for index in (0, -1):
        with pytest.raises(IndexError, match=f"`index` = {index} is out of range: the sweep has 0"):
            fl.Sweep([])[index]
    assert list(reversed(fl.Sweep([]))) == []


def test_a_stacked_network_is_refused(without_type_checks):
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *NETWORKS)
    with pytest.raises(ValueError, match="`networks` must be a list"):
        fl.sweep(stacked, TASK, 1.0)
