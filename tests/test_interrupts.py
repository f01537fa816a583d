"""Ctrl-C, a full disk, kill -9: nothing that was computed is lost."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import diffrax
import jax
import numpy as np
import pytest

import flowlin as fl
from flowlin.runs import stepping, storage
from flowlin.runs.interrupts import Interruptible
from flowlin.runs.progress import Pace

jax.config.update("jax_enable_x64", True)

TASK = fl.tasks.hierarchy()
LINEAR = fl.LinearNetwork.init(TASK, 6, variance=1e-2, key=jax.random.key(0))
# Bounded by stability: about 1,600 steps.
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


def interrupt_after(pauses, monkeypatch):
    """An interrupt from outside comes after so many pauses of a run."""
    pause = Interruptible.pause
    seen = []

    def counted(self, run, flow, limits):
        seen.append(float(flow.end))
        if len(seen) == pauses:
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


def test_ctrl_c_before_the_first_pause_says_so(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Interruptible, "budget", interrupt)
    with pytest.raises(KeyboardInterrupt) as stopped:
        fl.gradient_flow(LINEAR, TASK, **LONG)
    assert stopped.value.trajectory is None


def test_an_interrupted_checkpoint_resumes_to_the_bit(tmp_path, often, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(2, patch)
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
    with pytest.raises(ValueError, match="`checkpoint` is not for sweeps"):
        fl.sweep(networks, TASK, 10.0, checkpoint="run.npz")


@pytest.mark.parametrize("batch", [None, 4])
def test_descent_in_segments_is_the_same_and_can_be_interrupted(batch, monkeypatch):
    options: dict[str, Any] = {"events": (fl.LossBelow(1.5),), "save_every": 7}
    run: Any = fl.gradient_descent
    if batch:
        run = fl.stochastic_gradient_descent
        options |= {"batch_size": batch, "key": jax.random.key(1)}
    whole = run(LINEAR, TASK, 0.05, 66, **options)
    monkeypatch.setattr(stepping, "SECONDS", 1e-9)
    segments = run(LINEAR, TASK, 0.05, 66, **options)
    assert jax.tree.structure(whole) == jax.tree.structure(segments)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(segments), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    take, taken = stepping._Segments._take, []

    def interrupted(self, found, bar):
        taken.append(found)
        if len(taken) == 4:
            raise KeyboardInterrupt
        take(self, found, bar)

    monkeypatch.setattr(stepping._Segments, "_take", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        run(LINEAR, TASK, 0.05, 66, **options)
    part = stopped.value.trajectory
    assert part.result == fl.RESULTS.interrupted
    assert int(part.counts["num_steps"]) == 21
    np.testing.assert_array_equal(part.losses, segments.losses[:4])


def test_short_runs_compile_one_program(monkeypatch):
    """What lets a run be interrupted costs a short one nothing."""
    calls = []
    monkeypatch.setattr("flowlin.runs.driving.started", lambda *_: pytest.fail("compiled apart"))
    monkeypatch.setattr(Interruptible, "pause", lambda *a: calls.append(a))
    fl.gradient_flow(LINEAR, TASK, **LONG | {"t1": 10.0})
    assert not calls


KILLED = """
import sys
import diffrax, jax, numpy as np
jax.config.update("jax_enable_x64", True)
import flowlin as fl
from flowlin.runs import checkpoint
checkpoint.SECONDS = 0.05
task = fl.tasks.hierarchy()
kind, path = sys.argv[1:]
key = jax.random.key(0)
relu = fl.ReLUNetwork.init(task, 6, variance=1e-2, key=key)
linear = fl.LinearNetwork.init(task, 6, variance=1e-2, key=key)
measures = {
    "norms": fl.measures.norms, "x": lambda n, t: [n.outputs(t.x)[0]],
    "activity": fl.measures.activity,
}
network, t1, options = {
    "exact": (relu, 150.0, {"rtol": 1e-9, "observe": measures}),
    "averaged": (relu, 60.0, {"kinks": fl.AveragedKinks()}),
    "linear": (linear, 4e3, {
        "solver": diffrax.Tsit5(), "rtol": 1e-6, "events": (fl.LossBelow(1.2),),
        "observe": {"norms": fl.measures.norms},
    }),
}[kind]
flow = fl.gradient_flow(network, task, t1, ts=np.linspace(0, t1, 20), checkpoint=path, **options)
print("done", flow.stats["num_steps"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exact", "averaged", "linear"])
def test_runs_killed_at_random_times_equal_the_undisturbed_one(kind, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(KILLED))
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}

    def child(name):
        command = [sys.executable, str(script), kind, str(tmp_path / name)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def writes(process, name):
        """When it has written its checkpoint, or has come to its end."""
        path, begun = tmp_path / name, time.time_ns()
        while process.poll() is None and not (path.exists() and path.stat().st_mtime_ns > begun):
            time.sleep(0.01)
        return time.monotonic()

    whole = child("whole.npz")
    begun = writes(whole, "whole.npz")
    assert "done" in whole.communicate()[0]
    seconds = time.monotonic() - begun
    draw = random.Random(kind)
    for _ in range(2):
        killed = child("run.npz")
        writes(killed, "run.npz")
        time.sleep(draw.uniform(0.0, 0.5) * seconds)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    assert "done" in child("run.npz").communicate()[0]
    left = {file.name for file in tmp_path.iterdir()}
    assert left <= {"script.py", "whole.npz", "run.npz"}
    found, wanted = (
        storage.read("path", tmp_path / name).content for name in ("run.npz", "whole.npz")
    )
    for a, b in zip(jax.tree.leaves(found.flow), jax.tree.leaves(wanted.flow), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(found.state, wanted.state, strict=True):
        np.testing.assert_array_equal(a, b)
