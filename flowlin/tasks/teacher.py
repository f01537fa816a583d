"""A linear teacher of chosen spectrum."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from flowlin._tools.arguments import boolean, checked, float_array, integer_from, not_negative
from flowlin._tools.arrays import require_finite
from flowlin._tools.draws import draw_normals
from flowlin._tools.memory import require_memory
from flowlin.tasks.task import Task


@checked(
    samples=integer_from(1),
    spectrum=None,
    inputs=integer_from(1),
    outputs=integer_from(1),
    whiten=boolean,
    noise=not_negative,
)
def teacher(
    samples: int = 100,
    spectrum: Sequence[float] = (2.0, 1.0, 0.5),
    inputs: int | None = None,
    outputs: int | None = None,
    *,
    whiten: bool = False,
    noise: float = 0.0,
    key: PRNGKeyArray | None = None,
) -> Task:
    """Draw a linear teacher of chosen spectrum, and its targets on Gaussian inputs.

    y = W x + noise with W = U diag(spectrum) V^T, U and V random orthonormal, x standard normal.

    **Arguments:**

    - `samples`: P.
    - `spectrum`: the teacher's singular values.
    - `inputs`, `outputs`: sizes; by default as many as singular values.
    - `whiten`: transform the drawn inputs so that X^T X / P is the identity exactly; then the
      task's modes are the teacher's. Needs samples >= inputs.
    - `noise`: standard deviation of Gaussian noise on the targets.
    - `key`: of `jax.random`; None is `jax.random.key(0)`.

    **Returns:** `Task` of x (samples, inputs) and y (samples, outputs).

    **Raises:** `ValueError` for sizes below the number of singular values or beyond the memory, or
    too few samples to whiten.
    """
    values = float_array("spectrum", spectrum).astype(jnp.result_type(float))
    require_finite("spectrum", values)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"`spectrum` must be a list of numbers, got shape {values.shape}.")
    rank = values.shape[0]
    inputs = rank if inputs is None else inputs
    outputs = rank if outputs is None else outputs
    if min(inputs, outputs) < rank:
        raise ValueError(
            f"`spectrum` has {rank} values, more than `inputs` = {inputs} or `outputs` = {outputs} "
            "can carry."
        )
    for name, size, other in (
        ("samples", samples, inputs + outputs),
        ("inputs", inputs, rank),
        ("outputs", outputs, rank),
    ):
        require_memory(name, size, 16 * size * other, "Take fewer")
    if whiten and samples < inputs:
        raise ValueError(f"`whiten=True` needs samples >= inputs, got {samples} < {inputs}.")
    key = jax.random.key(0) if key is None else key
    shapes = (samples, inputs), (outputs, rank), (inputs, rank), (samples, outputs)
    x, left, right, off = draw_normals(key, (4,), shapes, np.ones(4, values.dtype))
    if whiten:
        x = jnp.linalg.qr(x)[0] * jnp.sqrt(samples)
    u, v = jnp.linalg.qr(left)[0], jnp.linalg.qr(right)[0]
    y = x @ (v * values[None]) @ u.T + noise * off
    return Task(x, y, name="teacher")
