"""What can be driven from pause to pause, and how far at most."""

import abc
from typing import Any, NamedTuple, TypeVar

import equinox as eqx

from flowlin._tools.arrays import copied
from flowlin.networks.base import AbstractModel
from flowlin.record.results import RESULTS, is_one_of
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


def is_paused(flow: Trajectory, limits: Limits) -> bool:
    """Whether a run stopped because somebody asked for it."""
    stopped = is_one_of(flow.result, RESULTS.max_steps_reached)
    return stopped and int(flow.counts["num_steps"]) < limits.steps
