"""The sharpness: leading eigenvalues of the loss's Hessian, by products with it."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from flowlin._tools.arguments import checked, integer_from
from flowlin._tools.lanczos import BLOCKS, top_eigenvectors
from flowlin._tools.memory import require_memory
from flowlin._tools.numerics import jit_by_array
from flowlin.networks.base import AbstractModel
from flowlin.networks.modules import any_module, as_model
from flowlin.networks.trainable import trainable_flags, trainable_part
from flowlin.record.measured import require_targets
from flowlin.tasks.task import Task
from flowlin.training.function_loss import AnyLoss, as_loss
from flowlin.training.objective import FullData
from flowlin.training.squared_error import SquaredError

# Up to so many parameters, and so many per eigenvalue, the whole Hessian is made.
WHOLE_SIZE, SIZE_PER_EIGENVALUE = 256, 20
ROWS_AT_ONCE = 16  # of the whole Hessian


@checked(network=any_module, count=integer_from(1))
def sharpness(
    network: eqx.Module,
    task: Task,
    *,
    loss: AnyLoss = SquaredError(),
    count: int | None = None,
    trainable: PyTree = None,
) -> Float[Array, "..."]:
    r"""Return the sharpness, the largest eigenvalue of the Hessian of the loss by the parameters.

    In units of the loss per squared parameter. Descent at a learning rate above 2 / sharpness
    grows along the eigenvector (Cohen et al. 2021, Sec. 2); the Jacobian of the flow at the time
    constant $\tau$ is $-H / \tau$. Eigenvalues count by their sign, not by their size: a Hessian
    with none above zero has a negative sharpness, or zero.

    **Of ReLU networks** it is the Hessian of the smooth function that the loss is between kinks,
    with each gate as the sign of its preactivation has it. What kinks add to the curvature, where
    a step crosses them or a pair slides, is not in it. A pair that slides is at zero up to
    rounding, whose sign is then its gate's: the sharpness is one of several.

    Up to 256 parameters, or 20 per eigenvalue, the whole Hessian is made, and its eigenvalues are
    exact up to rounding. Beyond that they come from a block Lanczos method on products with it, one
    forward derivative of the gradient each, with residuals below the root of eps. They are then
    quotients $v^T H v$, hence lower bounds. Derivatives with respect to the parameters are right
    where the eigenvalue is a simple one.

    **Arguments:**

    - `network`, of flowlin or any Equinox module of one sample; `task` and `loss` of the flow.
    - `count`: None for the largest alone; a number for as many as that, largest first, each as
      often as it occurs.
    - `trainable`: which arrays move, as for `gradient_flow`; others are no parameters here.

    **Returns:** a scalar, or (count,).

    **Raises:** `ValueError` for more eigenvalues than there are, or than fit into memory, and other
    bad input.
    """
    own = as_model("network", network)
    require_targets(own, task)
    flags = trainable_flags(own, trainable)
    size = sum(a.size for a in jax.tree.leaves(trainable_part(own.parameters, flags)))
    if count is not None and count > size:
        raise ValueError(
            f"`count` = {count} is more than the Hessian has eigenvalues, one per parameter that "
            f"moves; ask for at most {size}."
        )
    number = 1 if count is None else count
    rows = size if _is_made_whole(size, number) else (BLOCKS + 1) * number
    require_memory(
        "count", f"{number} of {size} eigenvalues", 2 * rows * size * own.dtype.itemsize,
        "Ask for fewer",
    )  # fmt: skip
    task = task if task.x.dtype == own.dtype else task.astype(own.dtype)
    objective = FullData(task, as_loss(loss), shards=task.shards)
    key = jax.random.key(0)  # handed over: XLA would draw the numbers as it compiles, one by one
    found = _top_eigenvalues((objective, own), flags, number, key)
    return found[0] if count is None else found


@jit_by_array
def _top_eigenvalues(
    parts: tuple[FullData, AbstractModel], flags: tuple[bool, ...] | None, count: int, key: Array
) -> Float[Array, " count"]:
    """Return the largest eigenvalues of an objective's Hessian at a model, `parts`."""
    product, size = _hessian_product(jax.tree.map(lax.stop_gradient, parts), flags)
    start = jax.random.normal(key, (count, size), parts[1].dtype)
    vectors = _eigenvectors_of(product, start)
    # Vectors are constants to derivatives: at first order an eigenvalue does not feel theirs.
    product, _ = _hessian_product(parts, flags)
    return jnp.sum(vectors * jax.vmap(product)(vectors), axis=1)


def _is_made_whole(size: int, count: int) -> bool:
    """Tell whether all of a Hessian of so many parameters is made, for so many eigenvalues."""
    return size <= max(WHOLE_SIZE, SIZE_PER_EIGENVALUE * count)


def _hessian_product(
    parts: tuple[FullData, AbstractModel], flags: tuple[bool, ...] | None
) -> tuple[Callable[[Array], Array], int]:
    """Return the product of the Hessian with a vector (N,) of all that moves, and N."""
    objective, model = parts
    parameters = trainable_part(model.parameters, flags)
    vector, as_parameters = ravel_pytree(parameters)
    product = objective.hessian_product(model, parameters)
    return lambda v: ravel_pytree(product(as_parameters(v)))[0], vector.size


def _eigenvectors_of(
    product: Callable[[Array], Array], start: Float[Array, "count N"]
) -> Float[Array, "count N"]:
    """Return orthonormal eigenvectors of a symmetric matrix's largest eigenvalues, as rows."""
    count, size = start.shape
    if not _is_made_whole(size, count):
        return top_eigenvectors(jax.vmap(product), start)
    whole = lax.map(product, jnp.eye(size, dtype=start.dtype), batch_size=ROWS_AT_ONCE)
    return jnp.linalg.eigh(whole)[1].T[::-1][:count]
