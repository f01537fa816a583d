"""The base class of runs that are driven from pause to pause, and the limits of a run."""

import abc
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
from jaxtyping import PyTree

from flowlin._tools.arrays import replace_fields
from flowlin.events.watch import Observer
from flowlin.networks.base import AbstractModel
from flowlin.record.origin import Origin, RunState
from flowlin.record.results import RESULTS, result_is
from flowlin.record.trajectory import Trajectory
from flowlin.tasks.task import Task
from flowlin.training.objective import AbstractObjective

# No limit on tried steps. As a constant it compiles no other program, and forward steps reserve
# no memory for it.
UNLIMITED_STEPS = 2**30

AnyRun = TypeVar("AnyRun", bound="AbstractRun")


class Limits(NamedTuple):
    """Numbers of tried steps, those of an earlier part included, and of events that end a run."""

    steps: int
    events: int


class StepCost(NamedTuple):
    """The cost of a step: the samples that it sees, and the seconds that it takes at least."""

    samples: int
    least_seconds: float


class AbstractRun(eqx.Module):
    """A run that can be driven from pause to pause: a flow, or a descent.

    - `capacity`: of its logs.
    - `reference`: facts of the run that travel with the trajectory.
    """

    capacity: eqx.AbstractVar[int]
    reference: eqx.AbstractVar[Origin]

    def __getattribute__(self, name: str) -> Any:
        """Look up an attribute as for any object.

        Equinox makes a tree of every method, which no run needs.
        """
        return object.__getattribute__(self, name)

    @property
    @abc.abstractmethod
    def network(self) -> AbstractModel:
        """The network at t = 0."""

    @property
    @abc.abstractmethod
    def parameters(self) -> PyTree:
        """The parameters that move, at t = 0."""

    @property
    @abc.abstractmethod
    def task(self) -> Task:
        """The task that it is trained on."""

    @property
    @abc.abstractmethod
    def objective(self) -> AbstractObjective:
        """The objective that it descends."""

    @property
    @abc.abstractmethod
    def observables(self) -> PyTree:
        """The user's observables, see `flowlin.engine.observables.Observables`."""

    @property
    @abc.abstractmethod
    def observer(self) -> Observer:
        """The watched values as one function of the parameters."""

    @property
    @abc.abstractmethod
    def horizon(self) -> float:
        """The time at which it ends."""

    @property
    @abc.abstractmethod
    def without_names(self) -> "AbstractRun":
        """The same run without names and reference, which must not be compiled."""

    @property
    @abc.abstractmethod
    def step_cost(self) -> StepCost:
        """The cost of a step."""

    @property
    @abc.abstractmethod
    def has_switched_solver(self) -> bool:
        """Tell whether it has gone over to another solver than it began with."""

    @abc.abstractmethod
    def initial_state(self) -> RunState:
        """Return the state before the first step."""

    @abc.abstractmethod
    def advance(self, start: RunState, first: bool, budget: int, limits: Limits) -> Trajectory:
        """Take at most `budget` steps from `start`, and return them with their rows.

        Rows that an earlier part has saved are left out: `first` tells that there is none.
        """

    @property
    @abc.abstractmethod
    def slots(self) -> int:
        """The slots of an exact walk for sliding pairs, see `ExactKinks`; 0 without one."""

    @abc.abstractmethod
    def as_saved(self, capacity: int, switched: bool, slots: int) -> "AbstractRun":
        """Return the run as it was when it was written to a file.

        **Raises:** `ValueError` for what this run cannot have been.
        """

    @abc.abstractmethod
    def arguments_by_name(self) -> dict[str, object]:
        """Return what the run was asked for by name, as trees of arrays and strings."""

    def with_capacity(self: AnyRun, capacity: int) -> AnyRun:
        """Return the same run with room for so many events."""
        return replace_fields(self, capacity=capacity)

    def with_choice(self: AnyRun, **changed: str) -> AnyRun:
        """Return the same run with other words about what was chosen; see `Origin`."""
        choice = self.reference.choice._replace(**changed)
        return replace_fields(self, reference=self.reference.with_changes(choice=choice))


def is_paused(flow: Trajectory, limits: Limits) -> bool:
    """Tell whether a run stopped because its budget was spent, and may go on."""
    stopped = result_is(flow.result, RESULTS.max_steps_reached)
    return stopped and int(flow.counts["num_steps"]) < limits.steps
