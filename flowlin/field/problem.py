"""What a run solves."""

import equinox as eqx
from jaxtyping import Array

from flowlin.loss import Loss
from flowlin.network.kinds import AbstractNetwork
from flowlin.tasks.task import Task


class Problem(eqx.Module):
    """The flow tau dw/dt = -grad L(w) of a network's weights on a task, from where they are."""

    network: AbstractNetwork
    task: Task
    loss: Loss
    tau: Array
