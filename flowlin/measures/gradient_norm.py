"""The Euclidean norm of the loss's gradient."""

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from flowlin._tools.arguments import checked
from flowlin.networks.modules import any_module, as_model
from flowlin.networks.trainable import trainable_flags, trainable_part
from flowlin.record.measured import require_targets
from flowlin.tasks.task import Task
from flowlin.training.function_loss import AnyLoss, as_loss
from flowlin.training.objective import FullData, tree_norm
from flowlin.training.squared_error import SquaredError


@checked(network=any_module)
def gradient_norm(
    network: eqx.Module,
    task: Task,
    *,
    loss: AnyLoss = SquaredError(),
    trainable: PyTree = None,
) -> Float[Array, ""]:
    r"""Return the Euclidean norm $\|\nabla L\|$ of the gradient of the loss by the parameters.

    In units of the loss per parameter. Along gradient flow at one time constant $\tau$ the loss
    falls at the rate $-\dot L = \|\nabla L\|^2 / \tau$; the norm is zero at minima and saddles
    alike. `GradientBelow` ends a run where it falls to a level, and adds weight decay, which is not
    in here. Where the norm is zero its derivatives are zero too.

    **Of ReLU networks** each gate is as the sign of its preactivation has it, off at z = 0. A pair
    that slides on its kink has a gate in between, which only the exact walk knows; here it is on or
    off as rounding has it.

    **Arguments:**

    - `network`, of flowlin or any Equinox module of one sample; `task` and `loss` of the flow.
    - `trainable`: which arrays move, as for `gradient_flow`; others are no parameters here.

    **Returns:** the norm, a scalar.

    **Raises:** `ValueError` for a `trainable` that does not fit or leaves nothing to train, and
    other bad input.
    """
    own = as_model("network", network)
    require_targets(own, task)
    flags = trainable_flags(own, trainable)
    task = task if task.x.dtype == own.dtype else task.astype(own.dtype)
    objective = FullData(task, as_loss(loss), shards=task.shards)
    return tree_norm(trainable_part(objective.gradient(own), flags))
