"""Driving a run: segments between pauses, joined to one trajectory."""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from flowlin._tools.arrays import copied, end_to_end
from flowlin._tools.numerics import jit_by_array
from flowlin.networks.base import AbstractModel
from flowlin.record.buffer import Buffer
from flowlin.record.results import RESULTS, hand_back, is_one_of
from flowlin.record.trajectory import Continuation, Reference, Trajectory
from flowlin.tasks.task import Task
from flowlin.training.objective import AbstractObjective

# No limit, and none that is compiled: nothing is reserved for steps that only go forwards.
ROOM = 2**30

Driven = TypeVar("Driven", bound="AbstractRun")


class Limits(NamedTuple):
    """Where a run gives up: tried steps, those of an earlier part included, and events."""

    steps: int
    events: int


class Effort(NamedTuple):
    """What a step costs: the samples that it sees, and the seconds that it takes at least."""

    samples: int
    least: float


class AbstractRun(eqx.Module):
    """What can be driven from pause to pause: a flow, or a descent.

    - `capacity`: of its logs.
    - `reference`: what travels with the trajectory.
    """

    capacity: eqx.AbstractVar[int]
    reference: eqx.AbstractVar[Reference]

    def __getattribute__(self, name: str) -> Any:
        """As of any object. Equinox makes a tree of every method, which no run needs."""
        return object.__getattribute__(self, name)

    @property
    @abc.abstractmethod
    def network(self) -> AbstractModel:
        """The network at t = 0."""

    @property
    @abc.abstractmethod
    def parameters(self) -> Any:
        """What moves, at t = 0."""

    @property
    @abc.abstractmethod
    def task(self) -> Task:
        """What it is trained on."""

    @property
    @abc.abstractmethod
    def objective(self) -> AbstractObjective:
        """What it descends."""

    @property
    @abc.abstractmethod
    def observables(self) -> Any:
        """The user's, see `flowlin.engine.integrate.Observables`."""

    @property
    @abc.abstractmethod
    def horizon(self) -> float:
        """The time at which it ends."""

    @property
    @abc.abstractmethod
    def anonymous(self) -> "AbstractRun":
        """The same run without what must not be compiled: whose it is, and how long."""

    @property
    @abc.abstractmethod
    def effort(self) -> Effort:
        """What a step costs."""

    @property
    @abc.abstractmethod
    def switched(self) -> bool:
        """Whether it has gone over to another solver than it began with."""

    @abc.abstractmethod
    def begin(self) -> Continuation:
        """Where it stands before its first step."""

    @abc.abstractmethod
    def ahead(
        self, start: Continuation | None, first: bool, budget: int, limits: Limits
    ) -> Trajectory:
        """The next steps, at most `budget`, with those rows that an earlier part has not saved."""

    @abc.abstractmethod
    def resumed(self, capacity: int, switched: bool) -> "AbstractRun":
        """The run as it was when it was written to a file.

        **Raises:** `ValueError` for what this run cannot have been.
        """

    @abc.abstractmethod
    def arguments(self) -> dict[str, Any]:
        """By name what it was asked for: trees of arrays and strings."""

    def with_capacity(self: Driven, capacity: int) -> Driven:
        """The same run with room for so many events."""
        return copied(self, capacity=capacity)

    def told(self: Driven, **changed: str) -> Driven:
        """The same run, with something else said of what was chosen; see `Reference`."""
        choice = self.reference.choice._replace(**changed)
        return copied(self, reference=self.reference.told(choice=choice))


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


def is_paused(flow: Trajectory, limits: Limits) -> bool:
    """Whether a run stopped because somebody asked for it."""
    stopped = is_one_of(flow.result, RESULTS.max_steps_reached)
    return stopped and int(flow.counts["num_steps"]) < limits.steps


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
