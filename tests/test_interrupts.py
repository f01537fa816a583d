"""Ctrl-C, a full disk, kill -9: nothing that was computed is lost."""

import multiprocessing
import os
import random
import signal
import threading
import time
from multiprocessing import forkserver
from typing import Any

import diffrax
import jax
import numpy as np
import optax
import pytest

import flowlin as fl
from flowlin.runs import checkpoint as checkpoints
from flowlin.runs import gradient_descent as descending
from flowlin.runs import load as storage
from flowlin.runs.checkpoint import Checkpoint
from flowlin.runs.progress import Interruptible, Pace
from tests import killed_runs

jax.config.update("jax_enable_x64", True)

TASK = fl.tasks.hierarchy()
LINEAR = fl.LinearNetwork.init(TASK, 6, variance=1e-2, key=jax.random.key(0))
# Bounded by stability: about 1,600 steps.
ADAM = optax.adam(1e-2)
LONG: dict[str, Any] = {"t1": 1e3, "solver": diffrax.Tsit5(), "rtol": 1e-6}


@pytest.fixture(autouse=True)
def _heard():
    """Ctrl-C is heard, even where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def often(monkeypatch):
    """Runs pause every hundred steps; nothing is due for the clock."""
    monkeypatch.setattr(Pace, "budget", lambda self, accepted: 100)
    monkeypatch.setattr(Pace, "due", lambda self, at: False)


def interrupt_after(pauses, monkeypatch, at_once=False):
    """An interrupt from outside comes after so many pauses of a run, or `at_once`: in the last.

    A run of seconds may have ended before one from outside is heard.
    """
    pause = Interruptible.pause
    seen = []

    def counted(self, run, flow, limits):
        seen.append(float(flow.end))
        if len(seen) == pauses and at_once:
            signal.raise_signal(signal.SIGINT)
        elif len(seen) == pauses:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        return pause(self, run, flow, limits)

    monkeypatch.setattr(Interruptible, "pause", counted)
    return seen


def assert_equal(a, b):
    """To the last bit."""
    pairs = ((a.ts, b.ts), (a.losses, b.losses), (a.end, b.end), (a.events.time, b.events.time))
    finals = zip(jax.tree.leaves(a.final), jax.tree.leaves(b.final), strict=True)
    for x, y in (*pairs, *finals):
        np.testing.assert_array_equal(x, y)


def test_ctrl_c_hands_back_the_trajectory(often, monkeypatch):
    seen = interrupt_after(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt) as stopped:
        fl.gradient_flow(LINEAR, TASK, **LONG | {"t1": 1e7})
    flow = stopped.value.trajectory
    assert float(flow.end) in seen
    assert flow.result == fl.RESULTS.interrupted
    assert int(flow.counts["num_steps"]) > 0
    assert f"What was computed until t = {float(flow.end):.6g}" in stopped.value.__notes__[0]
    whole = flow.extend(float(flow.end) + 1.0)
    assert whole.result == fl.RESULTS.successful
    assert float(whole.end) == float(flow.end) + 1.0


def test_descent_is_not_looked_at_where_it_only_pauses(often):
    """A look is at all samples and may cost as much as thousands of mini-batches."""
    looks = []

    def looked(network, task):
        jax.debug.callback(lambda: looks.append(1))
        return task.x[0, 0]

    run = fl.stochastic_gradient_descent(
        LINEAR,
        TASK,
        1e-3,
        1000,
        batch_size=2,
        key=jax.random.key(0),
        save_every=500,
        observe={"b": looked},
    )
    jax.effects_barrier()
    assert len(looks) == len(run.ts) == 3


def test_a_flow_is_not_looked_at_where_it_only_pauses(often, monkeypatch):
    monkeypatch.setattr(Pace, "budget", lambda self, accepted: 2)
    looks = []

    def looked(network, task):
        jax.debug.callback(lambda: looks.append(1))
        return task.x[0, 0]

    run = fl.gradient_flow(LINEAR, TASK, 3.0, observe={"b": looked}, rtol=1e-9)
    jax.effects_barrier()
    assert len(looks) == len(run.ts) == 2
    assert run.stats["num_steps"] > 8  # and half as many pauses


def test_ctrl_c_before_the_first_pause_says_so(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Interruptible, "budget", interrupt)
    with pytest.raises(KeyboardInterrupt) as stopped:
        fl.gradient_flow(LINEAR, TASK, **LONG)
    assert stopped.value.trajectory is None


def test_an_interrupted_checkpoint_resumes_to_the_bit(tmp_path, often, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(2, patch, at_once=True)
        with pytest.raises(KeyboardInterrupt) as stopped:
            fl.gradient_flow(LINEAR, TASK, **LONG, checkpoint=tmp_path / "run.npz")
    end = stopped.value.trajectory.end
    # By the clock it would not have been written yet.
    assert storage.read("path", tmp_path / "run.npz").content.flow.end == end
    resumed = fl.gradient_flow(LINEAR, TASK, **LONG, checkpoint=tmp_path / "run.npz")
    whole = fl.gradient_flow(LINEAR, TASK, **LONG, checkpoint=tmp_path / "other.npz")
    assert 0 < end < whole.end
    assert_equal(resumed, whole)


def test_a_full_disk_loses_nothing(tmp_path, often, monkeypatch):
    path = tmp_path / "run.npz"
    monkeypatch.setattr(Pace, "due", lambda self, at: True)
    written, replace = [], os.replace

    def full(source, target):
        written.append(target)
        if len(written) > 3:
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left") as stopped:
            fl.gradient_flow(LINEAR, TASK, **LONG, checkpoint=path)
    flow = stopped.value.trajectory
    assert flow.result == fl.RESULTS.interrupted
    notes = " ".join(stopped.value.__notes__)
    assert "Checkpoint: [Errno 28]" in notes
    assert "`.trajectory`" in notes
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]
    assert 0 < storage.read("path", path).content.flow.end <= flow.end
    resumed = fl.gradient_flow(LINEAR, TASK, **LONG, checkpoint=path)
    assert_equal(resumed, fl.gradient_flow(LINEAR, TASK, **LONG, checkpoint=tmp_path / "b.npz"))


def test_a_sweep_hands_back_what_was_begun(often, monkeypatch):
    networks = [
        fl.LinearNetwork.init(TASK, 6, variance=1e-2, key=jax.random.key(k)) for k in range(4)
    ]
    t1s = fl.sweep(networks[:1], TASK, **LONG | {"t1": 10.0})  # compiles
    assert len(t1s) == 1
    interrupt_after(3, monkeypatch)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as stopped:
        fl.sweep(networks, TASK, **LONG | {"t1": 1e7}, workers=2)
    assert time.monotonic() - begun < 60
    flows = stopped.value.trajectories
    assert flows
    assert all(flow.result == fl.RESULTS.interrupted for flow in flows.values())
    interrupt_after(3, monkeypatch)
    with pytest.raises(KeyboardInterrupt) as stopped:
        fl.sweep(networks, TASK, **LONG | {"t1": 1e7}, workers=1, record=lambda flow: {"a": 1.0})
    assert stopped.value.rows == {}  # not one run was through


DESCENTS: dict[str, Any] = {
    "relu": lambda steps, **options: fl.gradient_descent(
        fl.ReLUNetwork.init(TASK, 6, variance=1e-2, key=jax.random.key(0)), TASK, 0.05, steps,
        events=(fl.LossBelow(1.5), fl.UnitSwitches(0.13)), interpolate=True, save_every=7,
        **options,
    ),
    "batches": lambda steps, **options: fl.stochastic_gradient_descent(
        LINEAR, TASK, 0.05, steps, batch_size=3, key=jax.random.key(1), optimiser=ADAM,
        events=(fl.LossBelow(1.5),), save_every=7, **options,
    ),
}  # fmt: skip


def assert_same_descent(a, b):
    """To the last bit, with what it goes on with."""
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(one, other)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert len(a.events) > 0


@pytest.mark.parametrize("kind", DESCENTS)
def test_descent_is_one_run_however_it_was_broken_off(kind, tmp_path, often, monkeypatch):
    """Interrupted and extended; killed and resumed; extended from its end; in small programs."""
    run, path = DESCENTS[kind], tmp_path / "run.npz"
    with monkeypatch.context() as patch:
        patch.setattr(Pace, "budget", lambda self, accepted: None)
        whole = run(280)
    assert_same_descent(run(280), whole)

    def interrupted(self, run, flow, limits):
        if int(flow.counts["num_steps"]) == 200:
            raise KeyboardInterrupt
        return run, flow

    with monkeypatch.context() as patch:
        patch.setattr(Interruptible, "pause", interrupted)
        with pytest.raises(KeyboardInterrupt) as stopped:
            run(280, checkpoint=path)
    part = stopped.value.trajectory
    assert part.result == fl.RESULTS.interrupted
    assert int(part.counts["num_steps"]) == 100
    np.testing.assert_array_equal(part.losses, whole.losses[:15])
    assert_same_descent(part.extend(14.0), whole)
    assert_same_descent(run(280, checkpoint=path), whole)
    with monkeypatch.context() as patch:
        patch.setattr(descending, "advanced", lambda *_: pytest.fail("has run"))
        assert_same_descent(run(280, checkpoint=path), whole)
    assert_same_descent(run(140).extend(14.0), whole)
    with pytest.raises(ValueError, match="of a run with another steps; remove the file"):
        run(275, checkpoint=path)


def test_a_checkpoint_knows_its_optimiser(tmp_path):
    """An optimiser is made of functions: it is known by what it does. Its state may hold a key."""

    def run(*noise):
        chosen = optax.chain(optax.scale_by_adam(), optax.add_noise(*noise), optax.scale(-1e-2))
        options = {"optimiser": chosen, "save_every": 7, "checkpoint": tmp_path / "run.npz"}
        return fl.gradient_descent(LINEAR, TASK, 0.05, 14, **options)

    first, again = run(0.1, 0.5, 3), run(0.1, 0.5, 3)
    np.testing.assert_array_equal(again.extend(1.0).losses, first.extend(1.0).losses)
    with pytest.raises(ValueError, match="of a run with another optimiser; remove"):
        run(0.1, 0.6, 3)


def test_short_runs_compile_one_program(monkeypatch):
    """What lets a run be interrupted costs a short one nothing."""
    calls = []
    monkeypatch.setattr("flowlin.runs.run.started", lambda *_: pytest.fail("compiled apart"))
    monkeypatch.setattr(Interruptible, "pause", lambda *a: calls.append(a))
    fl.gradient_flow(LINEAR, TASK, **LONG | {"t1": 10.0})
    assert not calls


@pytest.fixture(scope="module")
def processes():
    """Starts processes that have imported what `killed_runs.py` needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.killed_runs"])
    with pytest.MonkeyPatch.context() as patch:
        # diffrax checks saved times by calling back, and what does is compiled in every process.
        patch.setenv("EQX_ON_ERROR", "off")
        patch.setenv("JAX_PLATFORMS", "cpu")
        forkserver.ensure_running()
    return context


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exact", "averaged", "linear", "descent"])
def test_runs_killed_at_random_times_equal_the_undisturbed_one(kind, tmp_path, processes):
    def child(name):
        process = processes.Process(target=killed_runs.run, args=(kind, str(tmp_path / name)))
        process.start()
        return process

    def writes(process, name):
        """When it has written its checkpoint, or has come to its end."""
        path, begun = tmp_path / name, time.time_ns()
        while process.is_alive() and not (path.exists() and path.stat().st_mtime_ns > begun):
            time.sleep(0.01)
        return time.monotonic()

    def ended(process):
        process.join()
        return process.exitcode

    whole = child("whole.npz")
    begun = writes(whole, "whole.npz")
    assert ended(whole) == 0
    seconds = time.monotonic() - begun
    draw = random.Random(kind)
    for _ in range(2):
        killed = child("run.npz")
        writes(killed, "run.npz")
        time.sleep(draw.uniform(0.0, 0.5) * seconds)
        killed.kill()
        assert ended(killed) in (0, -signal.SIGKILL)
    assert ended(child("run.npz")) == 0
    left = {file.name for file in tmp_path.iterdir()}
    assert left <= {"whole.npz", "run.npz"}
    found, wanted = (
        storage.read("path", tmp_path / name).content for name in ("run.npz", "whole.npz")
    )
    for a, b in zip(jax.tree.leaves(found.flow), jax.tree.leaves(wanted.flow), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(found.state, wanted.state, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_checkpoint_that_is_slow_to_write_is_written_less_often(tmp_path, monkeypatch):
    flow = fl.gradient_flow(LINEAR, TASK, 1.0)
    checkpoint = Checkpoint(tmp_path / "run", flow.reference.run)
    monkeypatch.setattr(checkpoints, "write", lambda path, content: None)
    checkpoint.end(flow.reference.run, flow)
    assert checkpoint.pace.seconds == checkpoints.SECONDS
    # Three seconds of writing are 2 % of 150.
    monkeypatch.setattr(time, "monotonic", iter([0.0, 3.0]).__next__)
    checkpoint.end(flow.reference.run, flow)
    assert checkpoint.pace.seconds == pytest.approx(150.0)
