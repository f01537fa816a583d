"""Small helpers for arrays: dtypes, tracers, and checks of user input."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Int, PyTree

from flowlin._tools.types import Numbers

ENABLE_X64 = 'jax.config.update("jax_enable_x64", True)'


def is_traced(tree: PyTree) -> bool:
    """Whether any leaf is a tracer, so that its values cannot be looked at."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def floating(value: Any) -> Array:
    """`value` as a floating-point array; integers and booleans take JAX's default float."""
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(jnp.result_type(float))
    return array


def in_dtype(number: Numbers, dtype: DTypeLike) -> Array:
    """`jnp.asarray(number, dtype)`, at half the cost for what is no array yet."""
    array = isinstance(number, jax.Array)
    return jnp.asarray(number, dtype) if array else jnp.asarray(np.asarray(number, dtype))


def places(chosen: Bool[Array, " n"], size: int, fill: int) -> Int[Array, " size"]:
    """The first places that are `chosen`, in ascending order, padded with `fill`.

    As `jnp.nonzero`, in a fourth of its operations: they are compiled at every place of its use.
    """
    rank = jnp.where(chosen, jnp.cumsum(chosen, dtype=jnp.int32) - 1, size)
    numbers = jnp.arange(chosen.shape[0], dtype=jnp.int32)
    empty = jnp.full(size, fill, jnp.int32)
    return empty.at[rank].set(numbers, mode="drop", wrap_negative_indices=False)


def require_finite(name: str, array: Array | np.ndarray) -> None:
    """Raise `ValueError` if a concrete array holds a NaN or an infinity."""
    bad = 0 if is_traced(array) else _count(array, lambda a, np: ~np.isfinite(a))
    if bad:
        raise ValueError(
            f"`{name}` holds {bad} value(s) that are NaN or infinite; "
            "remove those samples or repair the values first."
        )


def require_numbers(name: str, module: PyTree) -> None:
    """Raise `ValueError` that names the first concrete array of a module that holds a NaN.

    Constructors look at what they are given; a tree map, and modules of somebody's own, need not.
    Infinities pass: a mask may be made of them.
    """
    for place, leaf in jax.tree_util.tree_flatten_with_path(module)[0]:
        real = eqx.is_inexact_array(leaf) and not is_traced(leaf)
        bad = _count(leaf, lambda a, np: np.isnan(a)) if real else 0
        if bad:
            raise ValueError(
                f"`{name}{jax.tree_util.keystr(place)}` holds {bad} NaN among {leaf.size} numbers; "
                "start from a network without, since a run cannot leave it."
            )


def _count(array: Array | np.ndarray, odd: Callable[[Any, Any], Any]) -> int:
    """How many numbers of a concrete array are `odd`, by NumPy, or by JAX across processes."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return int(jnp.sum(odd(array, jnp)))
    return int(np.sum(odd(np.asarray(array), np)))


def lowest(array: Array | np.ndarray) -> float:
    """The smallest number of a concrete array that this process holds whole; else infinity."""
    if is_traced(array) or _is_apart(array) or not array.size:
        return float("inf")
    return float(np.min(np.asarray(array)))


def automatic(mesh: Mesh) -> Mesh:
    """The mesh with axes that XLA partitions by itself; `jax.make_mesh` makes explicit ones."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def first_rows(tree: PyTree, rows: int) -> PyTree:
    """Every array of a tree cut to its first rows.

    By NumPy, since JAX compiles a program for every number of them; not so for an array of which
    other processes hold a part.
    """
    return jax.tree.map(lambda a: a[:rows] if _is_apart(a) else np.asarray(a)[:rows], tree)


def end_to_end(*trees: PyTree) -> PyTree:
    """Arrays of trees of one structure, joined along their rows; as `first_rows`."""

    def joined(*arrays: Any) -> Array:
        if any(map(_is_apart, arrays)):
            return jnp.concatenate(arrays)
        return jax.device_put(np.concatenate([np.asarray(a) for a in arrays]))

    return jax.tree.map(joined, *trees)


def _is_apart(array: Any) -> bool:
    """Whether other processes hold what this one does not."""
    if not isinstance(array, Array):
        return False
    return not (array.is_fully_addressable or array.is_fully_replicated)


def augment(x: Array, bias_strength: ArrayLike) -> Array:
    """Inputs with the constant in front: rows `[c; x]`, shape (P, 1 + N_in)."""
    constant = jnp.full((x.shape[0], 1), bias_strength, dtype=x.dtype)
    return jnp.concatenate([constant, x], axis=1)


def weighted(rows: Any, weights: Any) -> Any:
    """Rows of samples, (P,) or (P, N), times the samples' weights (P,); themselves without."""
    return rows if weights is None else (rows.T * weights).T


def average(rows: Any, weights: Any) -> Any:
    """Average over samples, the rows, by their weights."""
    return rows.mean(axis=0) if weights is None else weights @ rows / weights.sum()


def mean_product(a: Any, b: Any, weights: Any) -> Any:
    r"""Average $a_p b_p^T$ over samples p, the rows of a (P, M) and b (P, N), by their weights."""
    return weighted(a, weights).T @ b / (len(a) if weights is None else weights.sum())
