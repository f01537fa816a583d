"""What a run solves."""

import equinox as eqx
from jaxtyping import Array, PyTree

from flowlin.networks.base import AbstractModel, moving
from flowlin.tasks.task import Task
from flowlin.training.losses import Loss
from flowlin.training.objective import Decay


class Problem(eqx.Module):
    r"""The flow $\tau\, \dot w = -\nabla L$ of a network's weights on a task, from where they are.

    With a `decay` also $-\lambda w$.

    - `tau`: one time constant, or one per layer (L,).
    - `trained`: which of the network's arrays move, in the order of its leaves; None for all.
    - `groups`: whose numbers the arrays hold where it is not the network's hidden units, as
      `AbstractModel.owners` says it.
    """

    network: AbstractModel
    task: Task
    loss: Loss
    tau: Array
    decay: Decay | None = None
    trained: tuple[bool, ...] | None = eqx.field(static=True, default=None)
    groups: tuple[tuple[str, int | None], ...] | None = eqx.field(static=True, default=None)

    @property
    def parameters(self) -> PyTree:
        """What moves, at t = 0; None in place of what does not."""
        return moving(self.network.parameters, self.trained)

    @property
    def owners(self) -> tuple[tuple[str, int | None], ...]:
        """Of each of the network's parameter arrays, whose numbers it holds."""
        return tuple(self.network.owners) if self.groups is None else self.groups

    @property
    def constants(self) -> PyTree:
        """The time constants as a prefix of the parameters' tree, None for what does not move."""
        if self.trained is None and not self.tau.ndim:
            return self.tau
        return moving(self.network.time_constants(self.tau), self.trained)
