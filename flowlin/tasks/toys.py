"""Toy tasks: a few points, a tree, a linear teacher."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from flowlin._tools.arguments import (
    boolean,
    checked,
    float_array,
    integer_from,
    not_negative,
    static_value,
)
from flowlin._tools.arrays import require_finite
from flowlin._tools.draws import draw_normals
from flowlin._tools.memory import require_memory
from flowlin.tasks.task import Task


@checked(levels=integer_from(1), branching=integer_from(2))
def hierarchy(levels: int = 3, branching: int = 2) -> Task:
    """Make the semantic tree (lead paper Fig. 2A; Saxe et al. 2019), whose items are its leaves.

    One-hot inputs, one per leaf; one feature per node of the tree, which is 1 for the leaves below
    that node (the leaf itself and the root included). Three binary levels: 8 inputs, 15 features.

    The paper shows P and Y only as a picture; this tree gives, with c = 1, the singular values
    1.452, 0.331, 0.2165 (twice), 0.125 (four times). Other trees by `levels` and `branching`.

    **Raises:** `ValueError` for levels < 1 or branching < 2, and for more leaves than the memory
    holds.
    """
    number = branching**levels if levels * math.log2(branching) < 64 else 2**64
    needed = 40 * number**2  # inputs and two branches' features, and the mask they are made of
    require_memory("levels", levels, needed, "Take fewer levels or branches")
    leaves = np.arange(number)
    features = [
        leaves[:, None] // branching ** (levels - level) == np.arange(branching**level)
        for level in range(levels + 1)
    ]
    y = np.concatenate(features, axis=1)
    return Task(np.eye(len(leaves)), y.astype(float), name=f"hierarchy {levels} x {branching}")


def _square_corners(binary: bool) -> np.ndarray:
    """Return the four points 00, 01, 10, 11, (4, 2), as 0/1 or as -1/+1."""
    corners = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=float)
    return corners if binary else 2 * corners - 1


def _one_hot(classes: np.ndarray, number: int) -> np.ndarray:
    """Return rows (P, number) with a one in the column of each class."""
    return (classes[:, None] == np.arange(number)).astype(float)


@checked(binary=boolean)
def xor(binary: bool = False) -> Task:
    """Make XOR on four points with one-hot labels (lead paper Fig. 2C).

    Inputs in the order 00, 01, 10, 11; targets [1, 0] where the coordinates agree, [0, 1] where
    they differ. (App. E lists the labels as [1,0], [1,0], [0,1], [0,1], which in this order is a
    linear problem; they belong to the order 00, 11, 01, 10.)

    **Arguments:** `binary` for coordinates 0/1; the paper does not say, the default is -1/+1,
    whose mean is zero.
    """
    x = _square_corners(binary)
    name = "xor 0/1" if binary else "xor"
    return Task(x, _one_hot((x[:, 0] != x[:, 1]).astype(int), 2), name=name)


@checked(delta=static_value(not_negative), binary=boolean)
def offset_xor(delta: float = 0.5, binary: bool = False) -> Task:
    """Make the extended XOR, which a third coordinate +-delta makes linearly separable.

    Lead paper Figs. 5 and 11 (after Jarvis et al. 2025). Margin 2 delta; the linear solution
    exists for delta > 0. `binary` as in `xor`.

    **Raises:** `ValueError` for a negative delta.
    """
    plain = xor(binary)
    third = delta * (plain.y[:, 1:] - plain.y[:, :1])
    return Task(jnp.concatenate([plain.x, third], axis=1), plain.y, name=f"offset xor {delta:g}")


@checked(one_hot=boolean, binary=boolean)
def parallel(one_hot: bool = True, binary: bool = False) -> Task:
    """Put a linear and a non-linear task on the same points (lead paper Fig. 6A, App. D).

    Points in the order 00, 01, 10, 11; the linear (simple) label is s = 1, 1, 0, 0, the non-linear
    (complex) one c = 1, 0, 0, 1.

    **Arguments:**

    - `one_hot`: four outputs, both labels one-hot, [s, 1 - s, c, 1 - c]; False for the two
      outputs [s, c]. The labels that App. E prints ([1,0], [1,0], [0,1], [0,1]) fit only one of
      the two tasks.
    - `binary`: coordinates as in `xor`.
    """
    simple, complex_ = np.array([1.0, 1, 0, 0]), np.array([1.0, 0, 0, 1])
    columns = [simple, 1 - simple, complex_, 1 - complex_] if one_hot else [simple, complex_]
    return Task(_square_corners(binary), np.stack(columns, axis=1), name="parallel")


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
