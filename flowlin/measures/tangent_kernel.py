"""The neural tangent kernel of a model, column by column, without its Jacobian."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from flowlin._tools.arguments import boolean, checked
from flowlin._tools.memory import require_memory
from flowlin._tools.numerics import jit_by_array
from flowlin.measures.along import inputs_of
from flowlin.networks.base import AbstractModel
from flowlin.networks.fit import numbers_per_sample
from flowlin.networks.modules import ForeignModel, any_module, as_model
from flowlin.networks.trainable import trainable_flags, trainable_part
from flowlin.record.measured import Samples, require_samples
from flowlin.tasks.task import Task

DERIVATIVE_BYTES = 2**28  # bytes for derivatives that are taken at once


@checked(network=any_module, task=require_samples, by_output=boolean)
def tangent_kernel(
    network: eqx.Module, task: Samples, *, by_output: bool = False, trainable: PyTree = None
) -> Float[Array, "P P"] | Float[Array, "P N_out P N_out"]:
    r"""Return the neural tangent kernel of a network on samples, summed over outputs.

    $$\Theta_{pq} = \sum_o \nabla f_o(x_p) \cdot \nabla f_o(x_q)$$

    with gradients by the network's parameters, $J J^T$ of its Jacobian. Outputs of a gradient flow
    move as $\tau \dot f = -\Theta\, \partial L / \partial f$ at all times, with the kernel of the
    time. It says nothing of the loss, and weights of samples do not enter. Of ReLU networks each
    gate counts as the sign of its preactivation has it.

    It takes one backward and one forward derivative for every sample and output. The flow for
    which this kernel does not change is `fl.theory.lazy`.

    **Arguments:**

    - `network`, of flowlin or any Equinox module of one sample; `task` or inputs (P, N_in).
    - `by_output`: True for the kernel of each pair of outputs, with entry [p, o, q, u] for output o
      of sample p and output u of sample q.
    - `trainable`: which arrays move, as for `gradient_flow`; others are no parameters here.

    **Returns:** (P, P), or (P, N_out, P, N_out) by output; symmetric.

    **Raises:** `ValueError` for bad input, or a kernel beyond the memory.

    Source: Jacot, Gabriel and Hongler (2018), Sec. 4.
    """
    own = as_model("network", network)
    x = inputs_of(own, task).astype(own.dtype)
    if isinstance(own, ForeignModel):
        own.sample_output(x.shape[1], "of `task`")
    shape = jax.eval_shape(own.outputs, x)
    samples = Task(x, jnp.zeros(shape.shape, shape.dtype))
    number = samples.samples * samples.outputs
    require_memory(
        "task", f"{samples.samples} samples of {samples.outputs} outputs",
        2 * number * (number if by_output else samples.samples) * x.dtype.itemsize,
        "Take fewer, by `task.take`",
    )  # fmt: skip
    return _kernel_of_parts((own, samples), trainable_flags(own, trainable), by_output)


@jit_by_array
def _kernel_of_parts(
    parts: tuple[AbstractModel, Task], flags: tuple[bool, ...] | None, by_output: bool
) -> Array:
    """Return the kernel of `parts`, a model and samples."""
    model, samples = parts
    weights, sizes = trainable_part(model.parameters, flags), samples.y.shape
    if by_output:
        return kernel_matrix(model, weights, samples).reshape(*sizes, *sizes)
    # Of each column only the rows of its own output are kept.
    number = sizes[1]
    column = _column_function(model, weights, samples)
    columns = lax.map(
        lambda k: column(k)[:, k % number],
        jnp.arange(samples.y.size),
        batch_size=derivatives_at_once(model, weights, samples, samples.samples),
    )
    found = jnp.sum(columns.reshape(*sizes, sizes[0]), axis=1)
    return (found + found.T) / 2


def kernel_matrix(model: AbstractModel, weights: PyTree, task: Task) -> Float[Array, "n n"]:
    """Return J J^T at the weights, n = P N_out, computed a few columns at a time.

    Weights that are None are the model's, and have no derivatives.
    """
    column = _column_function(model, weights, task)
    beside = derivatives_at_once(model, weights, task, task.samples)
    gram = lax.map(lambda k: jnp.ravel(column(k)), jnp.arange(task.y.size), batch_size=beside)
    return (gram + gram.T) / 2


def _column_function(
    model: AbstractModel, weights: PyTree, task: Task
) -> Callable[[Array], Float[Array, "P N_out"]]:
    """Return a function of k = p N_out + o: column k of the kernel, of output o of sample p."""
    function = output_function(model, task.x)
    outputs, back = jax.vjp(function, weights)

    def kernel_column(k: Array) -> Array:
        one = jax.nn.one_hot(k, outputs.size, dtype=outputs.dtype).reshape(outputs.shape)
        return jax.jvp(function, (weights,), back(one))[1]

    return kernel_column


def output_function(model: AbstractModel, x: Array) -> Callable[[PyTree], Array]:
    """Return the outputs (P, N_out) as a function of the weights that move."""
    return lambda weights: model.with_parameters(weights).outputs(x)


def derivatives_at_once(model: AbstractModel, weights: PyTree, task: Task, samples: int) -> int:
    """Return the number of derivatives, of so many samples each, that fit into memory at once."""
    numbers = sum(a.size for a in jax.tree.leaves(weights)) + samples * numbers_per_sample(
        model, task
    )
    return max(1, DERIVATIVE_BYTES // (numbers * model.dtype.itemsize))
