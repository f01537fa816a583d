"""Long runs pause: to be looked at, broken off, killed, resumed and extended, and lose nothing.

The clock that runs pause by is the standard library's, and stands still here unless a test moves
it; log lines every trillionth of a second let a run pause after each of its steps.
"""

import hashlib
import io
import multiprocessing
import os
import random
import re
import signal
import threading
import time
from multiprocessing import forkserver
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import flowlin as fl
from tests import budget, killed_runs
from tests.tolerances import SAME_PROGRAM, of_flow

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

TASK = fl.tasks.xor()
LINEAR = fl.LinearNetwork.init(TASK, 2, variance=0.5, key=jax.random.key(0))
RELU = fl.ReLUNetwork.init(TASK, 2, variance=0.5, key=jax.random.key(0))
RTOL = 1e-6
END = 100.0  # bounded by stability: some 70 steps


def run(t1=END, **how):
    """A flow whose programs the tests share."""
    events = fl.LossBelow(0.4)
    return fl.gradient_flow(
        LINEAR, TASK, t1, solver=diffrax.Tsit5(), rtol=RTOL, events=events, **how
    )


class Lines(io.StringIO):
    """A log that does something after each of its lines, which are numbered from 1."""

    def __init__(self, act=lambda line: None):
        super().__init__()
        self.act, self.number = act, 0

    def write(self, text):
        super().write(text)
        if text == "\n":
            self.number += 1
            self.act(self.number)
        return len(text)


def at_every_step(act=lambda line: None) -> Any:
    """Pauses after each step, from the 16th on."""
    return fl.LogProgress(1e-12, Lines(act))


def on_line(number, act):
    """Only then."""
    return lambda line: act() if line == number else None


def interrupt():
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _heard():
    """Ctrl-C is heard, even where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.seconds = 0.0

    def passes(self, seconds):
        self.seconds += seconds

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(time, "monotonic", found)
    return found


def assert_same(a, b, rtol=0.0):
    """Two trajectories are the same, by default to the last bit."""

    def numbers(run):
        rows = run.ts, run.losses, run.observed, run.saved, run.step_counts, run.window_counts
        return *rows, run.events, run.final, run.end, run.counts, run.result

    leaves = jax.tree.leaves_with_path(numbers(a))
    assert jax.tree.structure(numbers(a)) == jax.tree.structure(numbers(b))
    for (path, x), y in zip(leaves, jax.tree.leaves(numbers(b)), strict=True):
        np.testing.assert_allclose(x, y, rtol, rtol, err_msg=jax.tree_util.keystr(path))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run with as few pauses as one with a checkpoint has."""
    return run(checkpoint=tmp_path_factory.mktemp("whole") / "run.npz")


# ---- Pauses.


def test_pauses_change_nothing(whole):
    log = at_every_step()
    assert_same(run(progress=log), whole)
    steps = int(whole.stats["num_accepted_steps"])
    lines = log.stream.getvalue().splitlines()
    assert len(lines) == steps - 16 + 1 > 40  # the last one says that it has ended
    line = r"t = [\d.]+ of 100 \(\d+%\), loss [\d.e-]+, \d+ steps, [\d.e+]+/s, .* passed, .* left"
    assert all(re.fullmatch(line, text) for text in lines[:-1])
    assert lines[-1].endswith("left, ended")


@pytest.fixture(scope="module")
def alone(whole):
    """The run with nothing that pauses it, and how many programs it took after the other one."""
    before = budget.spent["programs"]
    found = run()
    return found, budget.spent["programs"] - before


@pytest.mark.slow
def test_a_run_that_never_pauses_takes_the_programs_of_one_that_does(whole, alone):
    """What lets a run be interrupted costs a short one nothing, and moves no bit."""
    found, programs = alone
    assert programs == 0
    assert_same(found, whole)


RUNS = {
    "flow": lambda **how: fl.gradient_flow(LINEAR, TASK, 20.0, rtol=1e-9, **how),
    "descent": lambda **how: fl.stochastic_gradient_descent(
        LINEAR, TASK, 1e-3, 60, batch_size=2, key=jax.random.key(0), save_every=60, **how
    ),
}


@pytest.mark.parametrize("kind", [pytest.param("flow", marks=pytest.mark.slow), "descent"])
def test_it_is_not_looked_at_where_it_only_pauses(kind):
    """A look is at all samples and may cost as much as thousands of mini-batches."""
    looks, log = [], at_every_step()

    def looked(network, task):
        jax.debug.callback(lambda: looks.append(1))
        return task.x[0, 0]

    found = RUNS[kind](observe={"b": looked}, progress=log)
    jax.effects_barrier()
    assert len(looks) == len(found.ts) == 2
    assert log.stream.number > 8


# ---- Ctrl-C, and a full disk.


def test_ctrl_c_hands_back_the_trajectory():
    press = on_line(2, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt) as stopped:
        run(progress=at_every_step(press))
    part = stopped.value.trajectory  # pyright: ignore
    assert part.result == fl.RESULTS.interrupted
    assert int(part.stats["num_steps"]) == 17  # all, those before the interrupted pause included
    assert f"What was computed until t = {float(part.end):.6g}" in stopped.value.__notes__[0]
    longer = part.extend(float(part.end) + 1.0)
    assert longer.result == fl.RESULTS.successful
    assert float(longer.end) == float(part.end) + 1.0


def test_ctrl_c_before_the_first_pause_says_so(monkeypatch):
    """In place of the first look at the clock, which is just before the first step."""
    monkeypatch.setattr(time, "monotonic", interrupt)
    with pytest.raises(KeyboardInterrupt) as stopped:
        run()
    assert stopped.value.trajectory is None  # pyright: ignore


def press_later(seconds):
    """Ctrl-C from outside."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


@pytest.fixture
def heard_soon(monkeypatch):
    """Runs that nothing else pauses pause after a few tenths of a second, not after four."""
    monkeypatch.setattr(fl.runs.progress, "FIRST_PAUSE_SECONDS", 0.3)
    monkeypatch.setattr(fl.runs.progress, "PAUSE_SECONDS", 0.3)


@pytest.mark.slow
@pytest.mark.usefixtures("heard_soon")
def test_ctrl_c_from_outside_is_heard_without_anything_that_pauses(whole, alone):
    assert alone  # compiled
    press_later(1.5)  # until it has begun
    with pytest.raises(KeyboardInterrupt) as stopped:
        run(1e9)
    assert stopped.value.trajectory.end > whole.end  # pyright: ignore


@pytest.mark.slow
def test_a_sweep_hands_back_what_was_begun():
    """The first run is alone, whatever the workers, since it compiles."""
    networks = [fl.LinearNetwork.init(TASK, 2, 0.5, key=jax.random.key(k)) for k in range(4)]
    how: dict[str, Any] = {
        "solver": diffrax.Tsit5(),
        "rtol": RTOL,
        "max_steps": None,
        "workers": 2,
    }
    press_later(8.0)  # to compile, and until the first pause
    with pytest.raises(KeyboardInterrupt) as stopped:
        fl.sweep(networks, TASK, 1e9, **how)
    flows = stopped.value.trajectories  # pyright: ignore
    assert 0 < len(flows) <= 2  # those that have paused once
    assert all(flow.result == fl.RESULTS.interrupted for flow in flows.values())
    press_later(1.0)
    with pytest.raises(KeyboardInterrupt) as stopped:
        fl.sweep(networks, TASK, 1e9, **how, record=lambda flow: {"a": 1.0})
    # Not one run was through.
    assert stopped.value.rows == {}  # pyright: ignore


def test_a_full_disk_loses_nothing(whole, tmp_path, clock, monkeypatch):
    path, written, replace = tmp_path / "run.npz", [], os.replace

    def full(source, target):
        written.append(target)
        if len(written) > 3:
            raise OSError(28, "No space left on device")
        replace(source, target)

    log = at_every_step(lambda line: clock.passes(30.0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left") as stopped:
            run(checkpoint=path, progress=log)
    part = stopped.value.trajectory  # pyright: ignore
    assert part.result == fl.RESULTS.interrupted
    notes = " ".join(stopped.value.__notes__)
    assert "Checkpoint: [Errno 28]" in notes
    assert "`.trajectory`" in notes
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]
    assert 0 < np.load(path)["content.flow.end"] <= part.end
    assert_same(run(checkpoint=path), whole)


# ---- Checkpoints.


@pytest.mark.parametrize(("seconds", "writes"), [(0.0, 7), (3.0, 3)])
def test_a_checkpoint_that_is_slow_to_write_is_written_less_often(
    seconds, writes, tmp_path, clock, monkeypatch
):
    """At half the pace or later: every 16 seconds of 114, or, since three are 2 % of 150, every 75.

    The first one comes after 16 in any case, and the last at the end.
    """
    written, replace = [], os.replace

    def slow(source, target):
        clock.passes(seconds)
        written.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow)
    log = at_every_step(lambda line: clock.passes(2.0))
    run(checkpoint=tmp_path / "run.npz", progress=log)
    assert len(written) == writes


def test_a_checkpoint_goes_on_from_where_it_stands(whole, tmp_path, clock):
    path, log = tmp_path / "run.npz", at_every_step()
    with pytest.raises(KeyboardInterrupt) as stopped:
        run(checkpoint=path, progress=at_every_step(on_line(30, interrupt)))
    end = float(stopped.value.trajectory.end)  # pyright: ignore
    assert np.load(path)["content.flow.end"] == end  # which by the clock was not due
    assert_same(run(checkpoint=path, progress=log), whole)
    first = re.match(r"t = ([\d.]+) ", log.stream.getvalue())
    assert first is not None
    assert float(first[1]) > end
    before = path.read_bytes(), log.stream.number
    assert_same(run(checkpoint=path, progress=log), whole)  # it is over: nothing runs
    assert (path.read_bytes(), log.stream.number) == before


def test_checkpoints_of_other_runs_are_refused(tmp_path):
    path = tmp_path / "run.npz"
    run(checkpoint=path)
    with pytest.raises(ValueError, match=r"another t1; remove the file"):
        run(2 * END, checkpoint=path)
    other = fl.LinearNetwork.init(TASK, 2, variance=0.5, key=jax.random.key(1))
    how: dict[str, Any] = {"rtol": RTOL, "events": fl.LossBelow(0.4), "checkpoint": path}
    with pytest.raises(ValueError, match="another network"):
        fl.gradient_flow(other, TASK, END, solver=diffrax.Tsit5(), **how)
    with pytest.raises(ValueError, match="of a run with another solver; remove"):
        fl.gradient_flow(LINEAR, TASK, END, solver=diffrax.Dopri5(), **how)
    with pytest.raises(ValueError, match="does not keep dense output"):
        run(checkpoint=path, dense=True)
    (tmp_path / "text").write_text("no")
    with pytest.raises(ValueError, match="not written by flowlin"):
        run(checkpoint=tmp_path / "text")


def test_a_checkpoint_knows_what_its_functions_do(tmp_path):
    def record(observed, watched):
        def times(size):
            return lambda network, task: size * network.weights[0][0, 0]

        how: Any = {"observe": {"a": times(observed)}, "events": fl.Crossing(times(watched))}
        return fl.gradient_descent(LINEAR, TASK, 0.05, 2, checkpoint=tmp_path / "run.npz", **how)

    assert_same(record(1.0, 1.0), record(1.0, 1.0))
    for sizes, where in (
        ((2.0, 1.0), r"`observe\['a'\]`"),
        ((1.0, 2.0), "of the event 'crossing'"),
    ):
        with pytest.raises(ValueError, match=f"another function {where}, whose code, or a value"):
            record(*sizes)


@pytest.mark.slow
def test_a_checkpoint_knows_what_its_solver_was_given(tmp_path):
    def stabilised(stages):
        solver = fl.RKC(max_stages=stages)
        fl.gradient_flow(LINEAR, TASK, 2.0, solver=solver, checkpoint=tmp_path / "run.npz")

    stabilised(5)
    with pytest.raises(ValueError, match="of a run with another solver; remove"):
        stabilised(6)


@pytest.mark.slow
def test_a_checkpoint_knows_its_optimiser(tmp_path):
    """An optimiser is made of functions: it is known by what it does. Its state may hold a key."""

    def descend(*noise):
        chosen = optax.chain(optax.scale_by_adam(), optax.add_noise(*noise), optax.scale(-1e-2))
        options = {"optimiser": chosen, "save_every": 7, "checkpoint": tmp_path / "run.npz"}
        return fl.gradient_descent(LINEAR, TASK, 0.05, 14, **options)

    first, again = descend(0.1, 0.5, 3), descend(0.1, 0.5, 3)
    np.testing.assert_array_equal(again.extend(1.0).losses, first.extend(1.0).losses)
    with pytest.raises(ValueError, match="of a run with another optimiser; remove"):
        descend(0.1, 0.6, 3)


DESCENTS: dict[str, Any] = {
    "relu": lambda steps, **options: fl.gradient_descent(
        RELU, TASK, 0.05, steps, events=(fl.LossBelow(0.45), fl.UnitSwitches(0.25)),
        interpolate=True, save_every=7, **options,
    ),
    "batches": lambda steps, **options: fl.stochastic_gradient_descent(
        LINEAR, TASK, 0.05, steps, batch_size=3, key=jax.random.key(1), optimiser=optax.adam(1e-2),
        events=(fl.LossBelow(0.45),), save_every=7, **options,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", DESCENTS)
def test_descent_is_one_run_however_it_was_broken_off(kind, tmp_path):
    """Interrupted and extended; killed and resumed; extended from its end; in small programs."""
    descend, path = DESCENTS[kind], tmp_path / "run.npz"
    whole = descend(70)
    assert len(whole.events) > 0
    assert_same(descend(70, progress=at_every_step()), whole)
    with pytest.raises(KeyboardInterrupt) as stopped:
        descend(70, checkpoint=path, progress=at_every_step(on_line(10, interrupt)))
    part = stopped.value.trajectory  # pyright: ignore
    assert part.result == fl.RESULTS.interrupted
    assert 7 < int(part.counts["num_steps"]) < 40
    np.testing.assert_array_equal(part.losses, whole.losses[: len(part.losses)])
    assert_same(part.extend(3.5), whole)
    assert_same(descend(70, checkpoint=path), whole)
    assert_same(descend(35).extend(3.5), whole)
    with pytest.raises(ValueError, match="of a run with another steps; remove the file"):
        descend(69, checkpoint=path)


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
@pytest.mark.parametrize("kind", killed_runs.KINDS)
def test_runs_killed_at_random_times_equal_the_undisturbed_one(kind, seed, tmp_path, processes):
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
    draw = random.Random(f"{kind} {seed}")
    for _ in range(2):
        killed = child("run.npz")
        writes(killed, "run.npz")
        time.sleep(draw.uniform(0.0, 0.5) * seconds)
        killed.kill()
        assert ended(killed) in (0, -signal.SIGKILL)
    assert ended(child("run.npz")) == 0
    assert {file.name for file in tmp_path.iterdir()} <= {"whole.npz", "run.npz"}
    found, wanted = (dict(np.load(tmp_path / name)) for name in ("run.npz", "whole.npz"))
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


# ---- Extensions.


def test_an_extended_run_goes_on_where_it_ended(whole):
    first = run(30.0, progress=at_every_step())
    longer = first.extend(60.0).extend(END)
    assert longer.ts.tolist() == [0.0, 30.0, 60.0, END]
    assert float(first.end) == 30.0  # the first part stays as it is
    for a, b in zip(jax.tree.leaves(longer.final), jax.tree.leaves(whole.final), strict=True):
        np.testing.assert_allclose(a, b, atol=of_flow(RTOL))


class Stopping(diffrax.ClipStepSizeController):
    """Tolerances of its own, and step ends where a test says."""

    rtol = property(lambda self: self.controller.rtol)  # pyright: ignore
    atol = property(lambda self: self.controller.atol)  # pyright: ignore


@pytest.mark.slow
def test_an_extended_run_is_one_with_a_step_end_there():
    control = diffrax.PIDController(rtol=1e-8, atol=1e-10)
    stopping = Stopping(control, step_ts=jnp.asarray([1.9]))  # pyright: ignore
    early, late = np.linspace(0, 1.8, 10), np.linspace(2, 4, 10)  # as many times as elsewhere

    def part(t1, ts, control):
        return fl.gradient_flow(RELU, TASK, t1, ts=ts, stepsize_controller=control)

    longer = part(1.9, early, control).extend(4.0, ts=late)
    assert_same(longer, part(4.0, np.append(early, late), stopping), SAME_PROGRAM)


def test_a_run_that_gave_up_goes_on():
    part = run(max_steps=20, throw=False, progress=at_every_step())
    assert part.result == fl.RESULTS.max_steps_reached
    assert int(part.counts["num_steps"]) == 20
    assert part.extend(END).ts.tolist() == [0.0, float(part.end), END]
    with pytest.raises(fl.RunError, match="`max_steps` = 3 reached"):
        part.extend(END, max_steps=3)


@pytest.mark.slow
def test_what_is_told_of_the_start_may_fill_the_first_log():
    """Of weights of zero each pair starts a branch, here 1,500 of them."""
    rng = np.random.default_rng(0)
    task = fl.Task(rng.normal(size=(50, 2)), np.ones((50, 1)))
    network = fl.ReLUNetwork((np.zeros((30, 2)), np.ones((1, 30))), (None, None))
    flow = fl.gradient_flow(network, task, 1.0)
    branches = flow.events.select("branch")
    assert len(set(branches.index)) == len(branches) == len(flow.events) == 1500
    assert np.all(np.asarray(branches.time) == 0)


def ended_by_an_event():
    low = fl.LossBelow(0.45, terminate=True)
    return fl.gradient_descent(LINEAR, TASK, 0.1, 70, events=low)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (run, {"t1": 1.0}, "`t1` must lie beyond"),
        (run, {"t1": 2 * END, "ts": [1.0]}, "`ts` must lie"),
        (lambda: fl.gradient_descent(LINEAR, TASK, 0.1, 3), {"t1": 0.3}, "`t1` must lie beyond"),
        (ended_by_an_event, {"t1": 10.0}, "terminating event"),
    ],
)
def test_what_cannot_be_extended_says_why(make, options, message):
    with pytest.raises(ValueError, match=message):
        make().extend(**options)


# ---- Checkpoints of other versions.

# Of formats, what `state_of` finds. In 5 an implicit solver's eigenvalues are those of the Hessian;
# in 6 walks know which pairs rest at their kinks, and whether these have turned to repel; in 7
# those of modules know which pairs share a kink for now; in 8 small deep walks have fewer slots;
# in 9 walks know since when a slide is held by errors alone.
STATES = {1: "144134e98c0a", 2: "737e77c594bd", 3: "5fffa78eaeda", 4: "3634ab20f183"}
STATES |= {5: STATES[4], 6: "e567b404f586"}
STATES |= {7: STATES[6], 8: STATES[6], 9: "06bab1170f6d"}


def states(path):
    """Shapes and types of the arrays that a walk, an implicit solver and a descent keep."""
    for name, network, solver in (("walk", RELU, None), ("implicit", LINEAR, fl.RecycledBDF())):
        fl.gradient_flow(network, TASK, 1.0, solver=solver, checkpoint=path / name)
        yield name, state_of(path / name)
    how = {"optimiser": optax.adam(1e-2), "checkpoint": path / "descent"}
    fl.gradient_descent(LINEAR, TASK, 0.1, 5, **how)
    yield "descent", state_of(path / "descent")


def state_of(file):
    with np.load(file) as held:
        names = [name for name in held.files if name.startswith("content.state.")]
        arrays = [held[name] for name in sorted(names, key=lambda name: int(name[14:]))]
    return [(array.shape, array.dtype.str) for array in arrays]


@pytest.mark.slow
def test_the_format_of_a_state_changes_with_it(tmp_path):
    found = hashlib.sha256(repr(dict(states(tmp_path))).encode()).hexdigest()[:12]
    assert STATES[max(STATES)] == found, "raise STATE_FORMAT in flowlin/runs/checkpoint.py"
    assert max(STATES) == fl.runs.checkpoint.STATE_FORMAT


def test_a_checkpoint_with_another_state_is_refused(tmp_path, monkeypatch):
    run(checkpoint=tmp_path / "run")
    monkeypatch.setattr(fl.runs.checkpoint, "STATE_FORMAT", 10)
    with pytest.raises(ValueError, match=r"another state .* \(format 9, not 10\); finish the run"):
        run(checkpoint=tmp_path / "run")
