"""Pauses of long runs that go by the clock: progress bars, log lines, Ctrl-C."""

import abc
import contextlib
import contextvars
import datetime
import math
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import diffrax
import jax

from flowlin._tools.printing import LogProgress, Progress, tqdm_bar
from flowlin.engine.run import AbstractRun, Limits
from flowlin.networks.base import AbstractModel
from flowlin.record.origin import RunState
from flowlin.record.trajectory import Trajectory
from flowlin.runs.run import AbstractPause


class QuietMeter(diffrax.TqdmProgressMeter):
    """diffrax's tqdm bar, silent where standard error is not a terminal."""

    @staticmethod
    def _init_bar() -> Any:
        return tqdm_bar(
            100, unit="%", bar_format="{percentage:.2f}%|{bar}| [{elapsed}<{remaining}]"
        )


SILENT_METER = diffrax.NoProgressMeter()


def progress_meter(
    progress: Progress | diffrax.AbstractProgressMeter,
) -> diffrax.AbstractProgressMeter:
    """Return the diffrax meter for `progress=` where a run cannot pause: a tqdm bar for True.

    **Raises:** `ValueError` for log lines, which need pauses; `ImportError` if tqdm is missing.
    """
    if isinstance(progress, LogProgress):
        raise ValueError(
            "`progress` = fl.LogProgress() is for runs outside of `jit` and `vmap`, which can "
            "pause; pass True, or a diffrax progress meter."
        )
    if isinstance(progress, diffrax.AbstractProgressMeter):
        return progress
    if not progress:
        return SILENT_METER
    tqdm_bar(None).close()  # before anything is compiled, if tqdm is missing
    return QuietMeter()


class Pace:
    """The number of accepted steps that take about `seconds`, by the last segment's speed."""

    def __init__(self, seconds: float, steps: int = 16):
        self.seconds = seconds
        self.steps = steps  # the first segment's seconds include compilation
        self.seconds_waited = 0.0  # seconds since it was last due
        self.clock, self.accepted = 0.0, 0  # at the segment's start

    def begin_segment(self, accepted: int) -> int:
        """Start the clock of a segment, and return its number of steps."""
        self.clock, self.accepted = time.monotonic(), accepted
        return self.steps

    def end_segment(self, at: RunState) -> bool:
        """Measure the speed of a segment that has ended, and tell whether the seconds are over.

        If so the next ones begin.
        """
        spent = max(time.monotonic() - self.clock, 1e-9)
        speed = (int(at.counts["num_accepted_steps"]) - self.accepted) / spent
        self.steps = int(min(max(speed * self.seconds, 1), 4 * self.steps))
        self.seconds_waited += spent
        if self.seconds_waited < self.seconds / 2:
            return False
        self.seconds_waited = 0.0
        return True


class AbstractTimedPause(AbstractPause):
    """A pause that comes every so many seconds."""

    pace: Pace
    first_pause: tuple[float, float, int] | None = (
        None  # flow time, clock and steps at the first pause
    )

    @abc.abstractmethod
    def report_state(self, run: AbstractRun, flow: Trajectory) -> None:
        """Show or write the state of the run; called when the seconds are over."""

    def step_budget(self, accepted: int) -> int | None:
        """Return the number of steps that the seconds are enough for."""
        return self.pace.begin_segment(accepted)

    def on_pause(
        self, run: AbstractRun, flow: Trajectory, limits: Limits
    ) -> tuple[AbstractRun, Trajectory]:
        """Show or write the state of the run if the seconds are over."""
        assert flow.continuation is not None
        if self.pace.end_segment(flow.continuation):
            self.report_state(run, flow)
        self.first_pause = self.first_pause or (
            float(flow.end),
            float(time.monotonic()),
            _step_count(flow),
        )
        return run, flow


class ProgressBar(AbstractTimedPause):
    """A tqdm bar over flow time: loss, steps, speed, and the time that is left.

    Silent where standard error is not a terminal.
    """

    def __init__(self, run: AbstractRun, start: float):
        self.pace = Pace(0.5)
        end, ends = run.horizon, math.isfinite(run.horizon)
        until = "{percentage:3.0f}%|{bar}| t = {n:.4g}/{total:.4g} [{elapsed}<{remaining}{postfix}]"
        self.bar = tqdm_bar(
            end if ends else None,
            initial=start,
            bar_format=until if ends else "t = {n:.4g} [{elapsed}{postfix}]",
            dynamic_ncols=True,
        )

    def on_end(self, run: AbstractRun, flow: Trajectory) -> Trajectory:
        """Show the end of the run, and close the bar."""
        self.report_state(run, flow)
        self.bar.close()
        return flow

    def on_interrupt(self, run: AbstractRun, flow: Trajectory | None) -> None:
        """Close the bar where it is."""
        self.bar.close()

    def report_state(self, run: AbstractRun, flow: Trajectory) -> None:
        """Move the bar, and show loss, steps and speed."""
        at = flow.continuation
        assert at is not None
        steps = int(at.counts["num_steps"])
        speed = steps / max(self.bar.format_dict["elapsed"] or 0, 1e-9)
        self.bar.set_postfix_str(f"{_loss_text(flow)}, {steps} steps, {speed:.3g}/s", refresh=False)
        self.bar.update(float(flow.end) - self.bar.n)


STEEPEST_GROWTH = 0.5  # power of t with which speed is expected to grow


class Forecast:
    r"""The time that is left, from the speeds in flow time so far.

    The steps of a flow grow with t until stability bounds them. If its speed goes on growing as
    t^p, with the p of the last two stretches, from r at time t on, there is left

    $$\int_t^T \frac{ds}{r\, (s / t)^p}
      = \frac{t}{(1 - p)\, r} \big( (T / t)^{1 - p} - 1 \big).$$

    p is at most a half, between steps that are bounded from now on (p = 0) and steps that grow as t
    (p = 1): which of the two will happen is not known, so the time may be up to four times off.
    Descent has p = 0.
    """

    def __init__(self, t: float, clock: float):
        self.t, self.clock = t, clock
        self.middle, self.speed = 0.0, 0.0  # of the stretch before; none yet

    def seconds_left(self, t: float, clock: float, horizon: float, steady: bool) -> float:
        """Return the seconds to the horizon, inf if t has not moved, and begin a new stretch."""
        middle, speed = (self.t + t) / 2, (t - self.t) / max(clock - self.clock, 1e-9)
        power = 0.0 if steady else STEEPEST_GROWTH
        if self.speed > 0 and speed > 0 and middle > self.middle:
            seen = math.log(speed / self.speed) / math.log(middle / self.middle)
            power = min(max(seen, 0.0), power)
        self.t, self.clock, self.middle, self.speed = t, clock, middle, speed
        if speed <= 0:
            return math.inf
        now = speed * (t / middle) ** power
        return t / ((1 - power) * now) * ((horizon / t) ** (1 - power) - 1)


class LogLines(AbstractTimedPause):
    """Lines of a log, as `LogProgress` asks for them, one every so many seconds.

    The time that is left does not count the first segment, in which the run is compiled.
    """

    def __init__(self, run: AbstractRun, start: float, log: LogProgress):
        self.log, self.horizon, self.pace = log, run.horizon, Pace(log.every)
        self.began = self.clock = float(time.monotonic())
        self.forecast, self.steps, self.has_begun = Forecast(start, self.began), 0, False

    def report_state(self, run: AbstractRun, flow: Trajectory) -> None:
        """Write a line with time, loss, steps, speed and the time that is left."""
        self._write_line(self._progress_line(flow))

    def on_end(self, run: AbstractRun, flow: Trajectory) -> Trajectory:
        """Write a line that says that the run has ended."""
        self._write_line(f"{self._progress_line(flow)}, ended")
        return flow

    def on_interrupt(self, run: AbstractRun, flow: Trajectory | None) -> None:
        """Write a line that says where the run was broken off."""
        if flow is not None:
            self._write_line(f"{self._progress_line(flow)}, broken off")

    def _write_line(self, line: str) -> None:
        stream = sys.stderr if self.log.stream is None else self.log.stream
        print(line, file=stream, flush=True)

    def _progress_line(self, flow: Trajectory) -> str:
        now, t, steps = float(time.monotonic()), float(flow.end), _step_count(flow)
        if not self.has_begun and self.first_pause is not None:
            at, self.clock, self.steps = self.first_pause
            self.forecast = Forecast(at, self.clock)
        self.has_begun = True
        speed, left, share = (steps - self.steps) / max(now - self.clock, 1e-9), "unknown", ""
        self.clock, self.steps = now, steps
        if math.isfinite(self.horizon):
            share = f" of {self.horizon:.4g} ({t / self.horizon:.0%})"
            seconds = self.forecast.seconds_left(t, now, self.horizon, flow.discrete)
            left = _duration_text(seconds) if math.isfinite(seconds) else left
        return (
            f"t = {t:.4g}{share}, {_loss_text(flow)}, {steps:,} steps, {speed:.3g}/s, "
            f"{_duration_text(now - self.began)} passed, {left} left"
        )


def _step_count(flow: Trajectory) -> int:
    """Return the number of tried steps."""
    assert flow.continuation is not None
    return int(flow.continuation.counts["num_steps"])


def _loss_text(flow: Trajectory) -> str:
    """Return the loss as text; a descent's is that of its last saved step, whose time is named."""
    assert flow.continuation is not None
    text = f"loss {float(flow.continuation.loss):.4g}"
    saved = float(flow.ts[-1]) if len(flow.ts) else 0.0
    return f"{text} at t = {saved:.4g}" if flow.discrete and saved < float(flow.end) else text


def _duration_text(seconds: float) -> str:
    """Return a duration as text, such as 1:02:03."""
    return str(datetime.timedelta(seconds=round(min(seconds, 1e9))))


# ---- Ctrl-C in a run: a compiled program hears nothing until it returns.

PAUSE_SECONDS = 2.0  # about so long between two pauses
# About so long until the first pause. What comes after a pause is another program, whose compiling
# is not worth it in a run of a few seconds.
FIRST_PAUSE_SECONDS = 4.0

_stop_request: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("asked")


class InterruptPause(AbstractPause):
    """A pause every other second, in which Python hears Ctrl-C.

    The first pause is after a number of steps that take a few seconds by an estimate of their
    work, so it is the same in every run; the later ones go by the clock.
    """

    def __init__(self, run: AbstractRun):
        step = step_seconds(run.network, *run.step_cost)
        self.pace = Pace(PAUSE_SECONDS, max(int(FIRST_PAUSE_SECONDS / step), 1))

    def step_budget(self, accepted: int) -> int | None:
        """Return the steps of about two seconds; raise if another thread wants the run to end."""
        asked = _stop_request.get(None)
        if asked is not None and asked.is_set():
            raise KeyboardInterrupt
        return self.pace.begin_segment(accepted)

    def on_pause(
        self, run: AbstractRun, flow: Trajectory, limits: Limits
    ) -> tuple[AbstractRun, Trajectory]:
        """Measure the speed of the run."""
        assert flow.continuation is not None
        self.pace.end_segment(flow.continuation)
        return run, flow

    def on_end(self, run: AbstractRun, flow: Trajectory) -> Trajectory:
        """Return the trajectory as it is."""
        return flow

    def on_interrupt(self, run: AbstractRun, flow: Trajectory | None) -> None:
        """Nothing to do."""


def clock_pauses(run: AbstractRun, progress: Progress, t: float) -> list[AbstractPause]:
    """Return the pauses of a run from time t on that go by the clock: Ctrl-C and progress."""
    pauses: list[AbstractPause] = []
    if jax.process_count() == 1:  # several would pause at different steps
        pauses.append(InterruptPause(run))
    if isinstance(progress, LogProgress):
        pauses.append(LogLines(run, t, progress))
    elif progress:
        pauses.append(ProgressBar(run, t))
    return pauses


@contextlib.contextmanager
def interrupt_when_set(stop: threading.Event) -> Iterator[None]:
    """Break off the runs within, in this thread, at their next pause once the event is set.

    It hands a Ctrl-C on to threads: Python raises it in the main thread alone.
    """
    token = _stop_request.set(stop)
    try:
        yield
    finally:
        _stop_request.reset(token)


def step_seconds(network: AbstractModel, samples: int, least_seconds: float) -> float:
    """Estimate the seconds of a step: at least `least`, and products of weights and samples."""
    products = sum(a.size for a in jax.tree.leaves(network.parameters) if a.ndim > 1) * samples
    if jax.default_backend() != "cpu":
        return 1e-3 + 1e-11 * products
    return least_seconds + 2e-10 * products
