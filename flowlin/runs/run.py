"""Driving a run: segments between pauses, joined to one trajectory."""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flowlin._tools.arrays import copied, end_to_end
from flowlin._tools.numerics import jit_by_array
from flowlin.engine.run import AbstractRun, Limits, is_paused
from flowlin.record.buffer import Buffer
from flowlin.record.results import RESULTS, hand_back, is_one_of
from flowlin.record.trajectory import Continuation, Trajectory


class AbstractPause(abc.ABC):
    """Something that wants a run to pause now and then.

    `by_clock`: its first pause is not always at the same step.
    """

    by_clock: ClassVar[bool]

    @abc.abstractmethod
    def budget(self, accepted: int) -> int | None:
        """Steps until its next pause, after so many accepted ones; None for no matter how many."""

    @abc.abstractmethod
    def pause(
        self, run: AbstractRun, flow: Trajectory, limits: Limits
    ) -> tuple[AbstractRun, Trajectory]:
        """Look at the run so far, which may go on as another one from here."""

    @abc.abstractmethod
    def end(self, run: AbstractRun, flow: Trajectory) -> Trajectory:
        """The run has ended."""

    @abc.abstractmethod
    def broken_off(self, run: AbstractRun, flow: Trajectory | None) -> None:
        """The run ends here, by Ctrl-C or an error; None before its first pause."""


def driven(
    run: AbstractRun,
    limits: Limits,
    pauses: Sequence[AbstractPause],
    start: Continuation | None = None,
    before: Trajectory | None = None,
) -> Trajectory:
    """Run to the end, pausing where somebody wants to, from a `start` or from t = 0."""
    flow = before
    try:
        if start is None and any(pause.by_clock for pause in pauses):
            # One program then takes all steps, so that no bit depends on when the run paused;
            # without, the start is compiled together with the first segment.
            start = started(run.anonymous)
        while flow is None or flow is before or is_paused(flow, limits):
            run, flow = _advanced(run, flow, start, pauses, limits)
            start = flow.continuation
        for pause in pauses:
            flow = pause.end(run, flow)
    except (KeyboardInterrupt, Exception) as error:
        for pause in pauses:
            try:
                pause.broken_off(run, flow)
            except OSError as trouble:
                error.add_note(f"{type(pause).__name__}: {trouble}.")
        if flow is not None and is_paused(flow, limits):
            flow = copied(flow, result=RESULTS.interrupted)
        hand_back(error, None if flow is None else flow.of(run))
        raise
    return Trajectory.of(flow, run)  # a bound method would be a tree


def _advanced(
    run: AbstractRun,
    flow: Trajectory | None,
    start: Continuation | None,
    pauses: Sequence[AbstractPause],
    limits: Limits,
) -> tuple[AbstractRun, Trajectory]:
    """The run up to its next pause, and what those who pause it made of it."""
    accepted = 0 if start is None else int(start.counts["num_accepted_steps"])
    wanted = [pause.budget(accepted) for pause in pauses]
    budget = min((steps for steps in wanted if steps is not None), default=limits.steps)
    run, flow = segment(run, flow, start, budget, limits)
    for pause in pauses:
        if is_paused(flow, limits):
            run, flow = pause.pause(run, flow, limits)
    return run, flow


def segment(
    run: AbstractRun,
    before: Trajectory | None,
    start: Continuation | None,
    budget: int,
    limits: Limits,
) -> tuple[AbstractRun, Trajectory]:
    """One segment joined to what came before, and the run, whose logs may have had to grow."""
    first = before is None
    flow = run.ahead(start, first, budget, limits)
    if run.capacity < limits.events and is_one_of(flow.result, RESULTS.event_overflow):
        run = run.with_capacity(limits.events)
        start = None if start is None else _grown(start, limits.events)
        flow = run.ahead(start, first, budget, limits)
    return run, flow if before is None else _joined(before, flow)


@jit_by_array
def started(run: AbstractRun) -> Continuation:
    """Where a run stands before its first step, compiled apart from its steps."""
    return run.begin()


def _joined(before: Trajectory, flow: Trajectory) -> Trajectory:
    """A segment with the rows, and the counts of units, that there were before it.

    What only later segments observed is NaN before.
    """

    def observed(name: str) -> Any:
        new = flow.observed[name]
        if name in before.observed:
            return end_to_end(before.observed[name], new)
        return jnp.concatenate([jnp.full((len(before.ts), *new.shape[1:]), jnp.nan), new])

    return copied(
        flow,
        ts=end_to_end(before.ts, flow.ts),
        losses=end_to_end(before.losses, flow.losses),
        saved=end_to_end(before.saved, flow.saved),
        observed={name: observed(name) for name in flow.observed},
        step_counts=end_to_end(before.step_counts, flow.step_counts),
        window_counts=end_to_end(before.window_counts, flow.window_counts),
    )


def _grown(start: Continuation, capacity: int) -> Continuation:
    """With room for more events in its logs."""

    def is_log(node: Any) -> bool:
        return isinstance(node, Buffer)

    solver = jax.tree.map(
        lambda node: node.grown(capacity) if is_log(node) else node, start.solver, is_leaf=is_log
    )
    return copied(start, solver=solver)
