"""The loop over the segments of a run, with pauses between them; one trajectory of all."""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flowlin._tools.arrays import join_rows, replace_fields
from flowlin._tools.numerics import jit_by_array
from flowlin.engine.run import AbstractRun, Limits, is_paused
from flowlin.record.buffer import EventBuffer
from flowlin.record.results import RESULTS, attach_trajectory, result_is
from flowlin.record.trajectory import RunState, Trajectory


class AbstractPause(abc.ABC):
    """A reason to pause a run now and then, and what is done in the pause.

    `by_clock`: whether the step of its first pause differs from run to run.
    """

    goes_by_clock: ClassVar[bool]

    @abc.abstractmethod
    def step_budget(self, accepted: int) -> int | None:
        """Return the steps until its next pause, after `accepted` ones; None if it needs none."""

    @abc.abstractmethod
    def on_pause(
        self, run: AbstractRun, flow: Trajectory, limits: Limits
    ) -> tuple[AbstractRun, Trajectory]:
        """Act in a pause; return the run and trajectory to go on with, which may be others."""

    @abc.abstractmethod
    def on_end(self, run: AbstractRun, flow: Trajectory) -> Trajectory:
        """Act at the end of the run, and return its trajectory."""

    @abc.abstractmethod
    def on_interrupt(self, run: AbstractRun, flow: Trajectory | None) -> None:
        """Act on Ctrl-C or an error; `flow` is the run so far, None before its first pause."""


def drive_run(
    run: AbstractRun,
    limits: Limits,
    pauses: Sequence[AbstractPause],
    start: RunState | None = None,
    before: Trajectory | None = None,
) -> Trajectory:
    """Run to the end, from a `start` with the trajectory `before` it or from t = 0, with pauses.

    An error carries the trajectory so far.
    """
    flow = before
    try:
        if start is None and any(pause.goes_by_clock for pause in pauses):
            # One program then takes all steps, so that no bit depends on when the run paused;
            # without, the start is compiled together with the first segment.
            start = compile_initial_state(run.without_names)
        while flow is None or flow is before or is_paused(flow, limits):
            run, flow = _advance_to_pause(run, flow, start, pauses, limits)
            start = flow.continuation
        for pause in pauses:
            flow = pause.on_end(run, flow)
    except (KeyboardInterrupt, Exception) as error:
        for pause in pauses:
            try:
                pause.on_interrupt(run, flow)
            except OSError as trouble:
                error.add_note(f"{type(pause).__name__}: {trouble}.")
        if flow is not None and is_paused(flow, limits):
            flow = replace_fields(flow, result=RESULTS.interrupted)
        attach_trajectory(error, None if flow is None else flow.with_run(run))
        raise
    return Trajectory.with_run(flow, run)  # a bound method would be a tree


def _advance_to_pause(
    run: AbstractRun,
    flow: Trajectory | None,
    start: RunState | None,
    pauses: Sequence[AbstractPause],
    limits: Limits,
) -> tuple[AbstractRun, Trajectory]:
    """Run to the next pause, and return the run and trajectory as the pauses leave them."""
    accepted = 0 if start is None else int(start.counts["num_accepted_steps"])
    wanted = [pause.step_budget(accepted) for pause in pauses]
    budget = min((steps for steps in wanted if steps is not None), default=limits.steps)
    run, flow = run_segment(run, flow, start, budget, limits)
    for pause in pauses:
        if is_paused(flow, limits):
            run, flow = pause.on_pause(run, flow, limits)
    return run, flow


def run_segment(
    run: AbstractRun,
    before: Trajectory | None,
    start: RunState | None,
    budget: int,
    limits: Limits,
) -> tuple[AbstractRun, Trajectory]:
    """Run one segment; return the run, with larger logs if needed, and the trajectory so far."""
    first = before is None
    flow = run.advance(start, first, budget, limits)
    if run.capacity < limits.events and result_is(flow.result, RESULTS.event_overflow):
        run = run.with_capacity(limits.events)
        start = None if start is None else _with_log_capacity(start, limits.events)
        flow = run.advance(start, first, budget, limits)
    return run, flow if before is None else _join_segments(before, flow)


@jit_by_array
def compile_initial_state(run: AbstractRun) -> RunState:
    """Return the state of a run before its first step, compiled apart from its steps."""
    return run.initial_state()


def _join_segments(before: Trajectory, flow: Trajectory) -> Trajectory:
    """Return a segment with the rows and unit counts of the trajectory before it in front.

    Observables that only the segment has are NaN before it.
    """

    def join_observed(name: str) -> Any:
        new = flow.observed[name]
        if name in before.observed:
            return join_rows(before.observed[name], new)
        return jnp.concatenate([jnp.full((len(before.ts), *new.shape[1:]), jnp.nan), new])

    return replace_fields(
        flow,
        ts=join_rows(before.ts, flow.ts),
        losses=join_rows(before.losses, flow.losses),
        saved=join_rows(before.saved, flow.saved),
        observed={name: join_observed(name) for name in flow.observed},
        step_counts=join_rows(before.step_counts, flow.step_counts),
        window_counts=join_rows(before.window_counts, flow.window_counts),
    )


def _with_log_capacity(start: RunState, capacity: int) -> RunState:
    """Return a state with room for `capacity` events in its logs."""

    def is_log(node: Any) -> bool:
        return isinstance(node, EventBuffer)

    solver = jax.tree.map(
        lambda node: node.with_capacity(capacity) if is_log(node) else node,
        start.solver,
        is_leaf=is_log,
    )
    return replace_fields(start, solver=solver)
