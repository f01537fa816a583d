"""Letting a run be interrupted: a compiled program hears nothing until it returns."""

import contextlib
import contextvars
import threading
from collections.abc import Iterator

import jax

from flowlin._tools.bar import LogProgress, Progress
from flowlin.network.model import AbstractModel
from flowlin.runs.driving import AbstractPause, AbstractRun, Limits
from flowlin.runs.progress import Bar, Lines, Pace
from flowlin.runs.trajectory import Trajectory

SECONDS = 2.0  # between two pauses, about
# Until the first pause; what pauses is compiled anew, so a run of a few seconds does not.
FIRST_SECONDS = 4.0

_asked: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("asked")


class Interruptible(AbstractPause):
    """Comes back to Python every other second, where Ctrl-C is heard.

    The first pause is after a number of steps that takes a few seconds by an estimate of their
    work, so always the same one; the later ones go by the clock.
    """

    by_clock = False

    def __init__(self, run: AbstractRun):
        step = seconds(run.network, *run.effort)
        self.pace = Pace(SECONDS, max(int(FIRST_SECONDS / step), 1))

    def budget(self, accepted: int) -> int | None:
        """Steps that take about two seconds, unless another thread wants the run to end."""
        asked = _asked.get(None)
        if asked is not None and asked.is_set():
            raise KeyboardInterrupt
        return self.pace.budget(accepted)

    def pause(
        self, run: AbstractRun, flow: Trajectory, limits: Limits
    ) -> tuple[AbstractRun, Trajectory]:
        """See how fast it goes."""
        assert flow.continuation is not None
        self.pace.due(flow.continuation)
        return run, flow

    def end(self, run: AbstractRun, flow: Trajectory) -> Trajectory:
        """As it is."""
        return flow

    def broken_off(self, run: AbstractRun, flow: Trajectory | None) -> None:
        """Nothing to do."""


def by_clock(run: AbstractRun, progress: Progress, t: float) -> list[AbstractPause]:
    """What looks at a run from time t on every now and then, whatever its steps."""
    pauses: list[AbstractPause] = []
    if jax.process_count() == 1:  # several would pause at different steps
        pauses.append(Interruptible(run))
    if isinstance(progress, LogProgress):
        pauses.append(Lines(run, t, progress))
    elif progress:
        pauses.append(Bar(run, t))
    return pauses


@contextlib.contextmanager
def broken_off_by(event: threading.Event) -> Iterator[None]:
    """Runs within, in this thread, break off at their next pause once the event is set.

    Python tells a Ctrl-C to its main thread alone.
    """
    token = _asked.set(event)
    try:
        yield
    finally:
        _asked.reset(token)


def seconds(network: AbstractModel, samples: int, least: float) -> float:
    """About how long a step takes: what it costs however small, and products with the samples."""
    products = sum(a.size for a in jax.tree.leaves(network.parameters) if a.ndim > 1) * samples
    if jax.default_backend() != "cpu":
        return 1e-3 + 1e-11 * products
    return least + 2e-10 * products
