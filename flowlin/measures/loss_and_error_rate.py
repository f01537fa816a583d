"""Loss and error rate of a network on a task."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arguments import checked
from flowlin.networks.fit import numbers_per_sample
from flowlin.networks.modules import any_module, as_model
from flowlin.record.measured import require_targets
from flowlin.tasks.task import Task, weights_by_sample
from flowlin.training.function_loss import AnyLoss, as_loss
from flowlin.training.objective import FullData, sum_over_samples
from flowlin.training.squared_error import SquaredError


@checked(network=any_module)
def loss(network: eqx.Module, task: Task, *, loss: AnyLoss = SquaredError()) -> Float[Array, ""]:
    """Return the loss of a network on a task, such as held-out samples.

    **Arguments:** `network`, of flowlin or any Equinox module of one sample; `task`, and the `loss`
    function.

    **Returns:** the loss, a scalar.
    """
    own = as_model("network", network)
    objective = FullData(require_targets(own, task), as_loss(loss), shards=task.shards)
    return objective.loss_value(own)


@checked(network=any_module)
def error_rate(network: eqx.Module, task: Task) -> Float[Array, ""]:
    """Return the share of samples whose largest output is not their class, the error rate.

    Samples count by their weights. The class is the largest target; of equal outputs or targets
    the first counts.

    **Arguments:** `network`, of flowlin or any Equinox module of one sample; `task` with one
    output per class.

    **Returns:** the share, a scalar in [0, 1].

    **Raises:** `ValueError` for a single output.
    """
    own = as_model("network", network)
    if task.outputs < 2:
        raise ValueError(
            "a classification error needs one output per class, and the task has a single output; "
            "give it one-hot targets."
        )
    require_targets(own, task)

    def wrong_weight(rows):
        x, y, gates, weights = rows
        outputs = own.with_sample_gates(gates).outputs(x)
        missed = jnp.argmax(outputs, axis=1) != jnp.argmax(y, axis=1)
        return jnp.sum(missed if weights is None else jnp.where(missed, weights, 0.0))

    rows = (task.x, task.y, own.sample_gates, weights_by_sample(task, "error rates are"))
    wrongs = sum_over_samples(wrong_weight, rows, numbers_per_sample(own, task), task.shards)
    return wrongs.astype(own.dtype) / jnp.asarray(task.mass, own.dtype)
