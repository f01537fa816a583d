"""What a run solves."""

import equinox as eqx
from jaxtyping import Array

from flowlin.field.decay import Decay
from flowlin.loss import Loss
from flowlin.network.kinds import AbstractNetwork
from flowlin.tasks.task import Task


class Problem(eqx.Module):
    r"""The flow $\tau\, \dot w = -\nabla L$ of a network's weights on a task, from where they are.

    With a `decay` also $-\lambda w$.
    """

    network: AbstractNetwork
    task: Task
    loss: Loss
    tau: Array
    decay: Decay | None = None
