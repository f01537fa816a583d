"""The loop over the segments of a run, with pauses between them; one trajectory of all."""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from flowlin._tools.arrays import join_rows, replace_fields
from flowlin._tools.numerics import jit_by_array
from flowlin.engine.integrate import FlowRun
from flowlin.engine.run import AbstractRun, Limits, is_paused
from flowlin.record.buffer import EventBuffer
from flowlin.record.observed import ObservedRows
from flowlin.record.origin import RunState
from flowlin.record.results import RESULTS, attach_trajectory, result_is
from flowlin.record.trajectory import Trajectory


class AbstractPause(abc.ABC):
    """A reason to pause a run now and then, and what is done in the pause."""

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


class Outset(NamedTuple):
    """A run, its pauses, and from where it goes on.

    - `start`: the state, with the trajectory `before` it; from t = 0 there are none. A trajectory
      without a state has come to its end.
    """

    run: AbstractRun
    pauses: Sequence[AbstractPause]
    start: RunState | None = None
    before: Trajectory | None = None


def drive_run(outset: Outset, limits: Limits) -> Trajectory:
    """Run to the end, with pauses; an error carries the trajectory so far."""
    run, pauses, start, before = outset
    if before is not None and start is None:
        return before.with_run(run)
    flow = before
    try:
        if start is None:
            # Compiled apart, so that all segments are one program, wherever the run pauses: no bit
            # depends on that. In one program with the first segment, which then no other shares,
            # a run of one segment would compile for up to a tenth less.
            start = compile_initial_state(run.without_names)
        larger = run  # with more room, once a segment has come to its end in that
        ahead = None
        while flow is None or flow is before or is_paused(flow, limits):
            budget = _steps_to_pause(pauses, start, limits) if ahead is None else ahead
            segment = larger.advance(start, flow is None, budget, limits)
            if (room := _with_more_room(larger, start, segment, limits)) is not None:
                larger, start, ahead = room
                continue  # the segment is taken again
            run, flow = larger, segment if flow is None else _join_segments(flow, segment)
            for pause in pauses:
                if is_paused(flow, limits):
                    run, flow = pause.on_pause(run, flow, limits)
            # A segment that was taken again ends before the step that needs more slots.
            needs_slots, larger, ahead = ahead is not None, run, None
            if is_paused(flow, limits):
                start = flow.continuation
                assert start is not None
                if needs_slots:
                    larger, start, ahead = _with_more_slots(run, start)
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


def _steps_to_pause(pauses: Sequence[AbstractPause], start: RunState, limits: Limits) -> int:
    """Return the steps from a state to the next pause."""
    accepted = _step_number(start)
    wanted = [pause.step_budget(accepted) for pause in pauses]
    return min((steps for steps in wanted if steps is not None), default=limits.steps)


def run_segment(
    run: AbstractRun,
    before: Trajectory | None,
    start: RunState,
    budget: int,
    limits: Limits,
) -> tuple[AbstractRun, Trajectory]:
    """Run one segment; return the run, with more room if needed, and the trajectory so far.

    It may come back earlier, see `_with_more_room`.
    """
    ahead: int = budget
    while True:
        flow = run.advance(start, before is None, ahead, limits)
        room = _with_more_room(run, start, flow, limits)
        if room is None:
            return run, flow if before is None else _join_segments(before, flow)
        run, start = room.run, room.start
        ahead = budget if room.ahead is None else room.ahead


class _Room(NamedTuple):
    """A run with room for what did not fit into it, from where it takes a segment again, how far.

    - `ahead`: steps at most; None for those that were asked for.
    """

    run: AbstractRun
    start: RunState
    ahead: int | None


def _with_more_room(
    run: AbstractRun, start: RunState, segment: Trajectory, limits: Limits
) -> _Room | None:
    """Return how a segment is taken again for which there was too little room; None if none was.

    One whose logs became full gets larger ones. One with too few slots for sliding pairs is taken
    again up to the step before, and, if that was its first step, with more slots. So the
    steps are the same, to the bit, wherever the run paused.
    """
    if run.capacity < limits.events and result_is(segment.result, RESULTS.event_overflow):
        larger = run.with_capacity(limits.events)
        if any(bool(log.has_overflowed) for log in _logs_of(start)):  # by what is told of t = 0
            return _Room(larger, compile_initial_state(larger.without_names), None)
        return _Room(larger, _with_log_capacity(start, limits.events), None)
    if not (run.slots and result_is(segment.result, RESULTS.slide_overflow)):
        return None
    before = int(segment.counts["num_accepted_steps"]) - _step_number(start) - 1
    return _Room(run, start, before) if before > 0 else _with_more_slots(run, start)


def _step_number(start: RunState) -> int:
    """Return the steps up to a state."""
    return int(start.counts["num_accepted_steps"])


def _with_more_slots(run: AbstractRun, start: RunState) -> _Room:
    """Return a run with twice the slots, and its state in these."""
    assert isinstance(run, FlowRun)
    run = run.with_slots(2 * run.slots)
    because = (
        f"{run.reference.choice.kinks_because}; {run.slots} slots from t = {float(start.t):.4g} on"
    )
    run = run.with_choice(kinks_because=because)
    if not _step_number(start):  # the sides at t = 0 are those that did not fit
        return _Room(run, compile_initial_state(run.without_names), None)
    return _Room(run, _compile_state_in_slots(run.without_names, start), None)


@jit_by_array
def _compile_state_in_slots(run: FlowRun, start: RunState) -> RunState:
    """Return a state that was found with fewer slots as the run goes on from it."""
    return run.state_in_slots(start)


@jit_by_array
def compile_initial_state(run: AbstractRun) -> RunState:
    """Return the state of a run before its first step, compiled apart from its steps."""
    return run.initial_state()


def _join_segments(before: Trajectory, flow: Trajectory) -> Trajectory:
    """Return a segment with the rows and unit counts of the trajectory before it in front.

    Observables that only the segment has are NaN before it.
    """

    def join_observed(name: str) -> PyTree:
        new = flow.observed[name]
        if name in before.observed:
            return join_rows(before.observed[name], new)
        return jnp.concatenate([jnp.full((len(before.ts), *new.shape[1:]), jnp.nan), new])

    return replace_fields(
        flow,
        ts=join_rows(before.ts, flow.ts),
        losses=join_rows(before.losses, flow.losses),
        saved=join_rows(before.saved, flow.saved),
        observed=ObservedRows({name: join_observed(name) for name in flow.observed}),
        step_counts=join_rows(before.step_counts, flow.step_counts),
        window_counts=join_rows(before.window_counts, flow.window_counts),
    )


def _is_log(node: object) -> bool:
    """Tell whether a part of a state is a log."""
    return isinstance(node, EventBuffer)


def _logs_of(state: RunState) -> list[EventBuffer]:
    """Return the logs that a state holds."""
    return [part for part in jax.tree.leaves(state.solver, is_leaf=_is_log) if _is_log(part)]


def _with_log_capacity(start: RunState, capacity: int) -> RunState:
    """Return a state with room for `capacity` events in its logs."""
    solver = jax.tree.map(
        lambda node: node.with_capacity(capacity) if _is_log(node) else node,
        start.solver,
        is_leaf=_is_log,
    )
    return replace_fields(start, solver=solver)
