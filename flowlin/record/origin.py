"""Where a trajectory comes from, and the state from which its run goes on."""

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from flowlin._tools.arrays import Parameters, is_traced
from flowlin.tasks.task import Task
from flowlin.training.loss import Loss


class Origin:
    """A task and a loss that travel with a trajectory without becoming its arrays.

    It compares by the task's identity, so that a batch of trajectories does not hold a batch of
    tasks. `task` is None where it is not known: under `jit` with the task as an argument. `run` is
    what defines a run, `extended` the function that carries it on, `confirmed` the one that repeats
    it at another tolerance, and `choice` says what was chosen for it and why; `exchangeable` says
    whether another solver may take over where the run becomes stiff, and `unswitched` is the run as
    it was before one did.
    """

    def __init__(
        self,
        task: Task | None,
        loss: Loss,
        run: PyTree = None,
        extended: Callable[..., PyTree] | None = None,
        choice: PyTree = None,
        exchangeable: bool = False,
        unswitched: PyTree = None,
        confirmed: Callable[..., PyTree] | None = None,
    ):
        self.task = None if is_traced(task) else task
        self.loss = loss
        self.run = run
        self.extended = extended
        self.choice = choice
        self.exchangeable = exchangeable
        self.unswitched = unswitched
        self.confirmed = confirmed

    @property
    def has_switched(self) -> bool:
        """Tell whether the run has gone over to a solver for stiff flows."""
        return self.unswitched is not None

    def with_changes(self, **changed: object) -> "Origin":
        """Return a copy with other values of some fields."""
        return Origin(**{**vars(self), **changed})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin) and self.task is other.task and self.loss == other.loss

    def __hash__(self) -> int:
        return id(self.task)

    def __reduce__(self):
        return Origin, (self.task, self.loss)  # without the run, which may hold functions


class RunState(eqx.Module):
    """The state of a run between two steps: all that the next one needs.

    - `t`, `parameters`: time and state.
    - `solver`, `controller`: the states of the solver, logs included, and of the step size
      controller.
    - `counts`: steps so far.
    - `loss`: the run's own loss.
    """

    t: Float[Array, ""]
    parameters: Parameters
    solver: PyTree
    controller: PyTree
    counts: dict[str, PyTree]
    loss: Float[Array, ""]
