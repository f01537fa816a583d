"""Sweeps: many runs in one call."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

jax.config.update("jax_enable_x64", True)

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

TASK, TIMES = fl.tasks.xor(), np.linspace(0, 6, 7)
NETWORKS = [
    fl.ReLUNetwork.init(TASK, 4, variance, bias_strength=c, key=jax.random.key(seed))
    for seed, (variance, c) in enumerate([(1e-2, 1.0), (1e-1, 1.0), (1e-2, 3.0), (5e-2, 0.5)])
]


def t_star(flow):
    return flow.linearization().open.time


@pytest.fixture(scope="module")
def runs():
    """All other runs of ReLU networks here are of its program."""
    return fl.sweep(NETWORKS, TASK, 6.0, ts=TIMES)


def test_every_run_equals_its_own_and_logs_make_one_table(runs):
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


@pytest.mark.slow
def test_batches_under_vmap_agree_with_threads():
    how: dict[str, Any] = {
        "events": fl.LossBelow(0.2, terminate=True),
        "solver": diffrax.Tsit5(),
    }
    networks = [fl.LinearNetwork.init(TASK, 3, 0.1, key=jax.random.key(seed)) for seed in range(3)]
    x = [TASK.x + shift for shift in (0.5, 1.0, 1.5)]
    tasks = [fl.Task(one, TASK.x) for one in x]
    runs, batched = (fl.sweep(networks, tasks, 9.0, batch=b, **how) for b in (1, 2))
    for a, b in zip(runs, batched, strict=True):
        assert b.result == fl.RESULTS.event_occurred
        assert len(b.events) == len(a.events)
        np.testing.assert_allclose(b.end, a.end, rtol=1e-9)
        np.testing.assert_allclose(b.final.weights[0], a.final.weights[0], rtol=1e-8)
    with pytest.raises(ValueError, match=r"made under `jit` or `vmap`.* `batch=1`"):
        batched.confirm()


@pytest.mark.slow
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


def test_a_run_that_fails_leaves_the_others(runs):
    steps = np.asarray(runs.map(lambda flow: flow.counts["num_steps"]))
    pair, longer = [NETWORKS[np.argmin(steps)], NETWORKS[np.argmax(steps)]], 1
    with pytest.warns(UserWarning, match=f"1 of 2 runs failed, run {longer} first: The maximum"):
        found = fl.sweep(pair, TASK, 6.0, ts=TIMES, max_steps=int(np.min(steps)), workers=2)
    assert list(found.failed) == [longer]
    assert float(found[1 - longer].end) == 6.0
    assert 0 < float(found[longer].end) < 6.0


@pytest.mark.slow
def test_confirmed_runs_are_those_that_are_confirmed_one_by_one(runs):
    sure, one = runs[1:].confirm(workers=2), runs[2].confirm()
    assert [flow.events.confirmed for flow in sure] == 3 * [True]
    assert np.array_equal(sure[1].events.uncertainty, one.events.uncertainty)
    assert np.array_equal(sure[1].events.time, runs[2].events.time)
    (again,) = sure[1:2].confirm(finer=True)
    assert np.array_equal(again.losses, runs[2].confirm(finer=True).losses)


@pytest.mark.slow
def test_a_second_run_that_fails_leaves_its_flow_as_it_was(runs):
    steps = [int(flow.confirm(finer=True).counts["num_steps"]) for flow in runs]
    least, most = int(np.argmin(steps)), int(np.argmax(steps))
    with pytest.warns(UserWarning, match="runs are not confirmed, run .* first: `max_steps` = "):
        sure = runs.confirm(max_steps=steps[least])
    assert sure[least].events.confirmed
    assert sure[most] is runs[most]


def test_sweeps_that_cannot_be_confirmed_say_why(runs):
    with pytest.raises(ValueError, match="put together by hand; confirm its runs one by one"):
        fl.Sweep(list(runs)).confirm()
    with pytest.raises(ValueError, match=r"kept what `record` returned.* call `flow.confirm"):
        fl.Sweep([], rows=[{"loss": 1.0, "failed": ""}]).confirm()
    with pytest.raises(ValueError, match="`workers` must be a whole number of 1 or more"):
        runs.confirm(workers=0)


GRID = fl.grid(c=[1.0, 3.0], variance=np.array([1e-2, 1e-1]), seed=range(2))


def network(c, seed, variance):
    return fl.ReLUNetwork.init(TASK, 4, variance, bias_strength=c, key=jax.random.key(seed))


def test_a_grid_is_all_combinations_the_last_fastest(runs):
    assert GRID.shape == (2, 2, 2)
    assert GRID.names == ("c", "variance", "seed")
    assert list(GRID) == [GRID[k] for k in range(8)] == GRID[:]
    assert GRID[1] == {"c": 1.0, "variance": 1e-2, "seed": 1}
    assert GRID[-1] == {"c": 3.0, "variance": 1e-1, "seed": 1}
    assert all(type(value) in (int, float) for point in GRID for value in point.values())
    assert "Grid of 8 points" in repr(GRID)
    found = fl.sweep(network, TASK, 6.0, grid=fl.grid(c=3.0, variance=1e-2, seed=2), ts=TIMES)
    assert np.array_equal(found[0].losses, runs[2].losses)
    row = found.table()[0]
    assert list(row)[:4] == ["run", "c", "variance", "seed"]
    assert list(found.to_pandas().columns) == list(row)


@pytest.mark.slow
def test_kinds_shapes_and_tasks_may_be_swept():
    def either(relu):
        return NETWORKS[0] if relu else fl.LinearNetwork.init(TASK, 3, key=jax.random.key(0))

    def task(scale):
        return fl.Task(scale * TASK.x, TASK.y)

    grid = fl.grid(relu=[True, False], scale=[1.0, 2.0])
    runs = fl.sweep(either, task, 6.0, grid=grid, ts=TIMES)
    assert [type(flow.final).__name__ for flow in runs] == 2 * ["ReLUNetwork"] + 2 * [
        "LinearNetwork"
    ]
    assert np.array_equal(runs[0].losses, fl.sweep(NETWORKS[:1], TASK, 6.0, ts=TIMES)[0].losses)
    assert runs[2].reference.task is runs[0].reference.task  # one of each value
    assert runs[1].reference.task is not runs[0].reference.task
    assert "Sweep of 4 runs" in repr(runs)


class Recorded:
    """What is recorded of a run, which may give up after some of them."""

    def __init__(self, most=99):
        self.calls, self.most = 0, most

    def __call__(self, flow):
        self.calls += 1
        if self.calls > self.most:
            raise RuntimeError("the power went")
        switches = len(flow.events)
        return {"loss": flow.losses[-1], "switches": switches, "many": switches > 9}


def test_a_sweep_that_was_cut_off_loses_nothing(tmp_path, runs):
    assert len(runs) == 4  # whose program it takes
    file, options = tmp_path / "runs.csv", {"grid": GRID, "ts": TIMES}
    whole = fl.sweep(network, TASK, 6.0, record=Recorded(), **options)
    with pytest.raises(RuntimeError, match="the power went"):
        fl.sweep(network, TASK, 6.0, record=Recorded(3), checkpoint=file, workers=1, **options)
    assert file.read_text().count("\n") == 4  # a header and three rows
    with open(file, "a") as open_file:
        open_file.write("1.0,0.01,1,0.2")  # by one that was killed
    again = Recorded()
    resumed = fl.sweep(network, TASK, 6.0, record=again, checkpoint=file, **options)
    assert again.calls == 5
    assert resumed.table() == whole.table()
    assert list(resumed.columns) == ["c", "variance", "seed", "loss", "switches", "many"]
    assert resumed.columns["loss"].reshape(GRID.shape)[1, 0, 1] == resumed.table()[5]["loss"]
    file.rename(tmp_path / "runs.process-3.csv")  # what several processes leave
    known = Recorded()
    found = fl.sweep(network, TASK, 6.0, record=known, checkpoint=file, **options)
    assert known.calls == 0
    assert found.table() == whole.table()
    (tmp_path / "runs.process-3.csv").rename(file)
    more, longer = Recorded(), fl.grid(c=[0.5, 1.0, 3.0], variance=[1e-2, 1e-1], seed=range(2))
    found = fl.sweep(network, TASK, 6.0, record=more, checkpoint=file, grid=longer, ts=TIMES)
    assert more.calls == 4
    assert found[4:].table()[0]["loss"] == whole.table()[0]["loss"]
    assert len(resumed.to_pandas()) == 8
    assert "switches" in repr(resumed)
    other = Recorded()
    fl.sweep(network, TASK, 6.0, record=other, checkpoint=file, grid=GRID, ts=TIMES, rtol=1e-7)
    assert other.calls == 8  # which are other runs
    assert resumed.map(lambda row: row["switches"]).tolist() == resumed.columns["switches"].tolist()
    with pytest.raises(ValueError, match=r"is a table of c, variance, seed, loss, .* have seed, "):
        fl.sweep(
            lambda seed: network(1.0, seed, 0.1), TASK, 6.0, grid=fl.grid(seed=range(2)),
            record=other, checkpoint=file,
        )  # fmt: skip


def recording(scale):
    def record(flow):
        return {"loss": scale * flow.losses[-1]}

    return record


def test_a_file_knows_functions_by_what_they_do(tmp_path, runs):
    assert len(runs) == 4  # whose program it takes
    file = tmp_path / "runs.csv"

    def again(record, **options):
        return fl.sweep(
            NETWORKS[:1], TASK, 6.0, ts=TIMES, record=record, checkpoint=file, **options
        )

    first = again(recording(1.0)).table()
    assert again(recording(1.0)).table() == first
    with pytest.raises(ValueError, match="rows of these runs by another function `record`, whose "):
        again(recording(2.0))
    text = file.read_text()
    file.write_text(text.replace("cpython-", "cpython-2.7-"))  # whose code is another one anyway
    assert again(recording(2.0)).table() == first
    file.write_text(text.replace('""python""', '""x""'))
    with pytest.raises(ValueError, match="is damaged: its column 'functions' holds"):
        again(recording(2.0))
    rows = [line.split(",") for line in text.splitlines()]
    file.write_text("loss,failed,key\n" + ",".join(rows[1][:3]) + "\n")
    with pytest.raises(ValueError, match="earlier version of flowlin: it has no column 'functions"):
        again(recording(1.0))


@pytest.mark.slow
def test_a_file_knows_the_functions_of_events_observables_losses_and_networks(tmp_path):
    def power(exponent):
        return lambda output, target: jnp.sum((output - target) ** exponent)

    def module(exponent):
        return eqx.nn.MLP(2, 2, 2, 1, lambda x: x**exponent, key=jax.random.key(0))

    def size(scale):
        return lambda network, task: scale * network.layers[0].weight[0, 0]

    def go(exponent: Any = 2, network: Any = 2, scale=1.0, level=0.1):
        crossing = fl.Crossing(lambda n, t: n.layers[0].weight[0, 0] - level, name="size")
        return fl.sweep(
            [module(network)], TASK, 0.1, record=recording(1.0), checkpoint=tmp_path / "runs.csv",
            events=[crossing], loss=power(exponent), observe={"size": size(scale)},
            solver=diffrax.Tsit5(),
        )  # fmt: skip

    assert go().table() == go().table()
    for changed, place in (
        ({"level": 0.2}, r"events.0..observable"),
        ({"exponent": 4}, "loss"),
        ({"network": 3}, "network"),
        ({"scale": 2.0}, r"observe.'size'."),
    ):
        with pytest.raises(ValueError, match=f"another function `{place}`"):
            go(**changed)


def test_an_error_in_record_carries_the_rows_so_far_and_its_run(runs):
    with pytest.raises(RuntimeError, match="the power went") as caught:
        fl.sweep(NETWORKS, TASK, 6.0, ts=TIMES, record=Recorded(2), workers=1)
    error: Any = caught.value
    assert {k: row["loss"] for k, row in error.rows.items()} == {
        k: float(runs[k].losses[-1]) for k in range(2)
    }
    assert np.array_equal(error.trajectory.losses, runs[2].losses)
    assert error.__notes__[0].startswith("`record` was called on run 2, the `.trajectory`")


def test_runs_that_fail_say_so_in_their_rows(tmp_path, runs):
    assert not runs.failed
    options = {"ts": TIMES, "record": Recorded(), "max_steps": 20, "grid": fl.grid(seed=range(2))}
    for _ in range(2):  # the second from the file
        with pytest.warns(UserWarning, match="2 of 2 runs failed, run 0 first: The maximum number"):
            runs = fl.sweep(NETWORKS[:2], TASK, 6.0, checkpoint=tmp_path / "runs.csv", **options)
        assert list(runs.failed) == [0, 1]
        assert runs.table()[1]["failed"] == runs.failed[1]


def test_bad_input():
    def refused(words, networks=network, **options):
        with pytest.raises(ValueError, match=words):
            fl.sweep(networks, TASK, 6.0, **options)

    refused("`networks` is a function; pass `grid`")
    refused("`networks` takes `variance`, which is no axis", grid=fl.grid(c=1.0, seed=0))
    refused("axis 'x', and no function of networks", grid=fl.grid(c=1.0, seed=0, variance=1, x=2))
    refused("`networks` holds 4 for 8 points of `grid`", NETWORKS, grid=GRID)
    refused("`checkpoint` of a sweep keeps .* pass `record`", NETWORKS, checkpoint="runs.csv")
    for record, words in (
        (lambda flow: 1.0, "`record` must be a function that returns a dictionary .* got 1.0"),
        (lambda flow: {"a": flow.losses}, "`record.'a'.` must be a number, got an array of shape"),
        (lambda flow: {"c": 1.0}, "`record` returns 'c', a column that the table has already"),
    ):
        refused(words, grid=fl.grid(c=1.0, variance=0.01, seed=0), record=record, ts=TIMES)
    for axes, words in (
        ({"c": []}, "`c` must be a list of numbers, .* give at least one value"),
        ({"c": [[1.0], [2.0]]}, "`c` must be a list of numbers"),
        ({"c": [None]}, r"`c\[0\]` must be a number, a truth value or a word, got None"),
        ({"time": [1.0]}, "`time` is a column of a sweep's tables already"),
    ):
        with pytest.raises(ValueError, match=words):
            fl.grid(**axes)
    with pytest.raises(ValueError, match="`networks` is empty"):
        fl.sweep([], TASK, 1.0)
    with pytest.raises(ValueError, match="`tasks` holds 1 tasks for 4 networks"):
        fl.sweep(NETWORKS, [TASK], 1.0)
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
