"""Driving a run: segments between pauses, joined to one trajectory."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowlin._tools.compiled import jit_by_array
from flowlin._tools.result import RESULTS, hand_back
from flowlin.log.buffer import Buffer
from flowlin.runs.run import Allowance, Run
from flowlin.runs.trajectory import Continuation, Trajectory, trimmed

# No limit, and none that is compiled: nothing is reserved for steps that only go forwards.
ROOM = 2**30


class Limits(NamedTuple):
    """Where a run gives up: tried steps, those of an earlier part included, and events."""

    steps: int
    events: int


class AbstractPause(abc.ABC):
    """Something that wants a run to pause now and then.

    `by_clock`: its first pause is not always at the same step.
    """

    by_clock: ClassVar[bool]

    @abc.abstractmethod
    def budget(self, accepted: int) -> int | None:
        """Steps until its next pause, after so many accepted ones; None for no matter how many."""

    @abc.abstractmethod
    def pause(self, run: Run, flow: Trajectory, limits: Limits) -> tuple[Run, Trajectory]:
        """Look at the run so far, which may go on as another one from here."""

    @abc.abstractmethod
    def end(self, run: Run, flow: Trajectory) -> Trajectory:
        """The run has ended."""

    @abc.abstractmethod
    def broken_off(self, run: Run, flow: Trajectory | None) -> None:
        """The run ends here, by Ctrl-C or an error; None before its first pause."""


def driven(
    run: Run,
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
            flow = dataclasses.replace(flow, result=RESULTS.interrupted)
        hand_back(error, None if flow is None else flow.of(run))
        raise
    return flow.of(run)


def _advanced(
    run: Run,
    flow: Trajectory | None,
    start: Continuation | None,
    pauses: Sequence[AbstractPause],
    limits: Limits,
) -> tuple[Run, Trajectory]:
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
    run: Run, before: Trajectory | None, start: Continuation | None, budget: int, limits: Limits
) -> tuple[Run, Trajectory]:
    """One segment joined to what came before, and the run, whose logs may have had to grow."""
    taken = 0 if start is None else int(start.counts["num_steps"])
    allowance = Allowance(jnp.asarray(budget), jnp.asarray(limits.steps - taken), ROOM)
    flow = run.anonymous.solve(start, allowance)
    if run.capacity < limits.events and bool(flow.result == RESULTS.event_overflow):
        run = run.with_capacity(limits.events)
        start = None if start is None else _grown(start, limits.events)
        flow = run.anonymous.solve(start, allowance)
    flow = trimmed(flow)
    wanted = slice(None if before is None else 1, -1 if is_paused(flow, limits) else None)
    if run.ts is None and wanted != slice(None):  # rows at the segment's ends, but not at pauses
        flow = flow.with_rows(lambda a: a[wanted])
    return run, flow if before is None else _joined(before, flow)


started = jit_by_array(Run.begin)


@jit_by_array
def restarted(run: Run, at: Continuation, spent: Array) -> Continuation:
    """Where a run goes on with RKC, after so many evaluations; what was logged goes along."""
    fresh = run.begin(at.t, at.parameters)
    inner = fresh.solver.inner if run.watches else fresh.solver
    whole = (inner.evaluations + spent).astype(inner.evaluations.dtype)
    solver = eqx.tree_at(lambda state: state.evaluations, inner, whole)
    if run.watches:
        solver = eqx.tree_at(lambda state: state.inner, at.solver, solver)
    return dataclasses.replace(fresh, solver=solver, counts=at.counts)


def is_paused(flow: Trajectory, limits: Limits) -> bool:
    """Whether a run stopped because somebody asked for it."""
    stopped = bool(flow.result == RESULTS.max_steps_reached)
    return stopped and int(flow.counts["num_steps"]) < limits.steps


def _joined(before: Trajectory, flow: Trajectory) -> Trajectory:
    """A segment with the rows that were saved before it.

    What only later segments observed is NaN before.
    """

    def rows(old: Any, new: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), old, new)

    def observed(name: str) -> Any:
        new = flow.observed[name]
        if name in before.observed:
            return rows(before.observed[name], new)
        return jnp.concatenate([jnp.full((len(before.ts), *new.shape[1:]), jnp.nan), new])

    return dataclasses.replace(
        flow,
        ts=rows(before.ts, flow.ts),
        losses=rows(before.losses, flow.losses),
        saved=rows(before.saved, flow.saved),
        observed={name: observed(name) for name in flow.observed},
    )


def _grown(start: Continuation, capacity: int) -> Continuation:
    """With room for more events in its logs."""

    def is_log(node: Any) -> bool:
        return isinstance(node, Buffer)

    solver = jax.tree.map(
        lambda node: node.grown(capacity) if is_log(node) else node, start.solver, is_leaf=is_log
    )
    return dataclasses.replace(start, solver=solver)
