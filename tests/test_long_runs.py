"""Long runs: pauses change nothing, runs can be extended, killed and resumed, saved and loaded."""

import os
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin.engine import method
from flowlin.runs import gradient_flow as flow
from flowlin.runs import run as driving
from flowlin.runs.run import AbstractPause

jax.config.update("jax_enable_x64", True)

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

TASK = fl.tasks.hierarchy()
LINEAR = fl.LinearNetwork.init(TASK, 6, variance=1e-2, key=jax.random.key(0))
RELU = fl.ReLUNetwork.init(TASK, 6, variance=1e-2, key=jax.random.key(0))
TIMES = np.linspace(0, 4, 10)


class Often(AbstractPause):
    """Pauses after so many steps."""

    by_clock = True

    def __init__(self, steps=3):
        self.steps = steps

    def budget(self, accepted):
        return self.steps

    def pause(self, run, flow, limits):
        return run, flow

    def end(self, run, flow):
        return flow

    def broken_off(self, run, flow):
        pass


def assert_equal(a, b, rtol=0.0):
    """Two trajectories are the same, by default to the last bit."""

    def numbers(run):
        rows = (run.ts, run.losses, run.observed, run.saved)
        return *rows, run.events, run.final, run.end, run.counts, int(run.result._value)

    leaves = jax.tree.leaves_with_path(numbers(a))
    for (path, x), y in zip(leaves, jax.tree.leaves(numbers(b)), strict=True):
        np.testing.assert_allclose(x, y, rtol, rtol, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(("network", "ts"), [(LINEAR, None), (RELU, TIMES)], ids=["linear", "relu"])
def test_pauses_change_nothing(network, ts, monkeypatch):
    def run(pause):
        with monkeypatch.context() as patch:
            patch.setattr(flow, "driven", lambda r, limits, *_: driving.driven(r, limits, [pause]))
            return fl.gradient_flow(network, TASK, 4.0, ts=ts, events=(fl.LossBelow(1.2),))

    whole, paused = run(Often(1000)), run(Often())
    assert int(whole.counts["num_accepted_steps"]) > 9
    assert_equal(whole, paused)


@pytest.mark.parametrize("network", [LINEAR, RELU], ids=["linear", "relu"])
def test_extended_run_is_one_with_a_step_end_there(network, monkeypatch):
    events = (fl.LossBelow(1.2),)
    early, late = np.linspace(0, 1.8, 10), np.linspace(2, 4, 10)  # as many times as elsewhere
    first = fl.gradient_flow(network, TASK, 1.9, ts=early, events=events)
    longer = first.extend(4.0, ts=late)
    pid = method.controller
    monkeypatch.setattr(
        method,
        "controller",
        lambda *a: diffrax.ClipStepSizeController(pid(*a), step_ts=jnp.asarray([1.9])),
    )
    whole = fl.gradient_flow(network, TASK, 4.0, ts=np.append(early, late), events=events)
    assert_equal(longer, whole, 1e-13)  # different programs may round differently
    assert float(first.end) == 1.9  # the first part stays as it is


def test_extended_twice_without_ts():
    ends = fl.gradient_flow(LINEAR, TASK, 2.0).extend(3.0).extend(4.0)
    whole = fl.gradient_flow(LINEAR, TASK, 4.0)
    assert ends.ts.tolist() == [0.0, 2.0, 3.0, 4.0]
    for a, b in zip(jax.tree.leaves(ends.final), jax.tree.leaves(whole.final), strict=True):
        assert np.allclose(a, b, rtol=0, atol=1e-6)


def test_a_run_that_gave_up_goes_on():
    whole = fl.gradient_flow(LINEAR, TASK, 4.0)
    part = fl.gradient_flow(LINEAR, TASK, 4.0, max_steps=5, throw=False)
    assert part.result == fl.RESULTS.max_steps_reached
    assert int(part.counts["num_steps"]) == 5
    assert part.extend(4.5).ts.tolist() == [0.0, float(part.end), 4.5]
    with pytest.raises(fl.RunError, match="`max_steps` = 3 reached"):
        part.extend(4.5, max_steps=3)
    assert int(whole.counts["num_steps"]) > 5


def test_logs_grow_where_they_overflow(monkeypatch):
    """Events beyond the first log's room are found by trying the segment again."""
    watch = fl.Crossing(lambda n, t: n.outputs(t.x), level=0.3)
    whole = fl.gradient_flow(LINEAR, TASK, 4.0, events=(watch,))
    monkeypatch.setattr(flow, "first_capacity", lambda *_: 2)
    # The whole run's room is that of its first log, which this one's grows to.
    small = fl.gradient_flow(LINEAR, TASK, 4.0, events=(watch,), max_events=1024)
    assert len(whole.events) > 2
    assert_equal(whole, small, 1e-13)
    with pytest.raises(fl.RunError, match="`max_events` = 3"):
        fl.gradient_flow(LINEAR, TASK, 4.0, events=(watch,), max_events=3)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: fl.gradient_flow(LINEAR, TASK, 2.0), {"t1": 1.0}, "`t1` must lie beyond"),
        (lambda: fl.gradient_flow(LINEAR, TASK, 2.0), {"t1": 3.0, "ts": [1.0]}, "`ts` must lie"),
        (lambda: fl.gradient_flow(LINEAR, TASK, 2.0, dense=True), {"t1": 3.0}, "cannot be ext"),
        (lambda: fl.gradient_descent(LINEAR, TASK, 0.1, 3), {"t1": 0.3}, "`t1` must lie beyond"),
        (
            lambda: fl.gradient_flow(
                LINEAR, TASK, 9.0, events=(fl.LossBelow(1.2, terminate=True),)
            ),
            {"t1": 10.0},
            "terminating event",
        ),
    ],
)
def test_what_cannot_be_extended_says_why(make, options, message):
    with pytest.raises(ValueError, match=message):
        make().extend(**options)


def test_checkpoints_of_other_runs_and_other_files_are_refused(tmp_path):
    path = tmp_path / "run.npz"
    fl.gradient_flow(LINEAR, TASK, 2.0, checkpoint=path)
    with pytest.raises(ValueError, match=r"another (solver, )?t1; remove the file"):
        fl.gradient_flow(LINEAR, TASK, 4.0, checkpoint=path)
    other = fl.LinearNetwork.init(TASK, 6, variance=1e-2, key=jax.random.key(1))
    with pytest.raises(ValueError, match="another network"):
        fl.gradient_flow(other, TASK, 2.0, checkpoint=path)
    few = tmp_path / "few.npz"
    fl.gradient_flow(LINEAR, TASK, 2.0, solver=fl.RKC(max_stages=5), checkpoint=few)
    with pytest.raises(ValueError, match="of a run with another solver; remove"):
        fl.gradient_flow(LINEAR, TASK, 2.0, solver=fl.RKC(max_stages=6), checkpoint=few)
    (tmp_path / "text").write_text("no")
    with pytest.raises(ValueError, match="not written by flowlin"):
        fl.gradient_flow(LINEAR, TASK, 2.0, checkpoint=tmp_path / "text")
    with pytest.raises(ValueError, match="there is no folder"):
        fl.gradient_flow(LINEAR, TASK, 2.0, checkpoint=tmp_path / "nowhere" / "run.npz")
    with pytest.raises(ValueError, match="does not keep dense output"):
        fl.gradient_flow(LINEAR, TASK, 2.0, checkpoint=path, dense=True)
    with pytest.raises(ValueError, match="holds no trajectory"):
        fl.load(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fl.gradient_flow(RELU, TASK, 4.0, ts=TIMES, events=(fl.LossBelow(1.2),)),
        lambda: fl.gradient_flow(
            LINEAR, TASK, 2.0, observe={"n": lambda n, t: n, "l": lambda n, t: [n.weights[0]]}
        ),
        lambda: fl.gradient_descent(RELU, TASK, 0.05, 20, loss=fl.CrossEntropy()),
        lambda: fl.gradient_flow(LINEAR, TASK, 4.0, max_steps=5, throw=False),
    ],
    ids=["relu", "observed", "descent", "failed"],
)
def test_saved_and_loaded_trajectories_are_equal(make, tmp_path):
    run = make()
    run.save(tmp_path / "run.npz")
    back = fl.load(tmp_path / "run.npz")
    assert_equal(run, back)
    assert back.stats.keys() == run.stats.keys()
    assert back.result == run.result
    assert jax.tree.structure(back.observed) == jax.tree.structure(run.observed)
    assert back.events.table() == run.events.table()
    assert back.reference.loss == run.reference.loss
    if isinstance(run.final, fl.ReLUNetwork):
        assert back.linearization().open.time == run.linearization().open.time
    with pytest.raises(ValueError, match="cannot be extended"):
        back.extend(100.0)
    with np.load(tmp_path / "run.npz", allow_pickle=False) as plain:  # without the library
        assert np.array_equal(plain["content.losses"], run.losses)


class Odd(NamedTuple):
    """Of the user's."""

    a: jax.Array


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    run = fl.gradient_flow(LINEAR, TASK, 2.0)
    run.save(path)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        run.extend(4.0).save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]
    assert_equal(fl.load(path), run)
    bad = fl.gradient_flow(LINEAR, TASK, 2.0, observe={"x": lambda n, t: Odd(t.x)})
    with pytest.raises(ValueError, match="cannot save a Odd"):
        bad.save(path)
    with pytest.raises(ValueError, match="there is no folder"):
        run.save(tmp_path / "nowhere" / "run.npz")
