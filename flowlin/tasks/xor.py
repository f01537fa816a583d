"""XOR and its relatives, on the four corners of a square."""

import jax.numpy as jnp
import numpy as np

from flowlin._tools.arguments import boolean, checked, not_negative, static_value
from flowlin.tasks.task import Task


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

    **Returns:** `Task` of x (4, 2) and y (4, 2).
    """
    x = _square_corners(binary)
    name = "xor 0/1" if binary else "xor"
    return Task(x, _one_hot((x[:, 0] != x[:, 1]).astype(int), 2), name=name)


@checked(delta=static_value(not_negative), binary=boolean)
def offset_xor(delta: float = 0.5, binary: bool = False) -> Task:
    """Make the extended XOR, which a third coordinate +-delta makes linearly separable.

    Lead paper Figs. 5 and 11 (after Jarvis et al. 2025). Margin 2 delta; the linear solution
    exists for delta > 0. `binary` as in `xor`.

    **Returns:** `Task` of x (4, 3) and y (4, 2).

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

    **Returns:** `Task` of x (4, 2) and y (4, 4), or (4, 2).
    """
    simple, complex_ = np.array([1.0, 1, 0, 0]), np.array([1.0, 0, 0, 1])
    columns = [simple, 1 - simple, complex_, 1 - complex_] if one_hot else [simple, complex_]
    return Task(_square_corners(binary), np.stack(columns, axis=1), name="parallel")
