"""Small helpers for arrays: dtypes, tracers, rows of samples, and checks of user input."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Int, PyTree

if TYPE_CHECKING:
    from pandas import DataFrame as DataFrame
else:  # pandas is optional
    DataFrame = object

# ---- Types that several rooms share.

Weights = tuple[Array, ...]
Biases = tuple[Array | None, ...]
# (Weights, Biases) of flowlin's networks, a tree of arrays of others; None for what does not move.
Parameters = PyTree
Activation = Callable[[int, Array], Array]  # of a layer, for its preactivations (P, H)
# One, an array of them, or lists: by layer, by time, or a matrix row by row.
Numbers = ArrayLike | Sequence[ArrayLike] | Sequence[Sequence[ArrayLike]]
PathLike = str | os.PathLike[str]
Real = int | float | Array | np.ndarray | np.floating  # numbers that may be traced
AnyArray = Array | np.ndarray
Scalar = int | float | Array  # one number that may be traced
SameKind = TypeVar("SameKind", Array, np.ndarray)
Product = Callable[[Array, Array], Array]  # of h (P, N) and W (M, N): h W^T


ENABLE_X64 = 'jax.config.update("jax_enable_x64", True)'


def is_traced(tree: PyTree) -> bool:
    """Tell whether any leaf is a tracer, so that its values cannot be looked at."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def as_float_array(value: object) -> Array:
    """Return `value` as a floating-point array; integers and booleans take JAX's default float."""
    array = jnp.asarray(value)
    return array.astype(float_dtype(array))


def float_dtype(value: ArrayLike) -> np.dtype:
    """Return the dtype of a number as floating point; not of a float takes JAX's default one."""
    dtype = jnp.result_type(value)
    return dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.result_type(float)


def as_dtype(number: Numbers, dtype: DTypeLike) -> Array:
    """Return `jnp.asarray(number, dtype)`; of what is no array yet, without a program for it."""
    array = isinstance(number, jax.Array)
    return jnp.asarray(number, dtype) if array else jax.device_put(np.asarray(number, dtype))


def widest_dtype(*arrays: Array) -> np.dtype:
    """Return the dtype that holds the numbers of all arrays, also where JAX promotes strictly."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*arrays)


def with_axes(array: SameKind, number: int) -> SameKind:
    """Put so many axes of length one in front of an array, to meet one of more axes."""
    return array.reshape((1,) * number + array.shape)


def first_true_indices(chosen: Bool[Array, " n"], size: int, fill: int) -> Int[Array, " size"]:
    """Return the indices of the first `size` true entries, ascending, padded with `fill`.

    It does what `jnp.nonzero` does by a fourth of the operations, which XLA compiles at every use.
    """
    rank = jnp.where(chosen, jnp.cumsum(chosen, dtype=jnp.int32) - 1, size)
    numbers = jnp.arange(chosen.shape[0], dtype=jnp.int32)
    empty = jnp.full(size, fill, jnp.int32)
    return empty.at[rank].set(numbers, mode="drop", wrap_negative_indices=False)


def remedy_for_kind(name: str, value: Any) -> str:
    """Return what makes an array of numbers of a table or a sparse array; "" for other things."""
    for method in ("toarray", "todense"):  # of SciPy, of JAX
        if hasattr(value, method):
            return f"make it dense by `{name}.{method}()`"
    for column in value.columns if hasattr(value, "dtypes") else ():  # a table
        dtype = np.asarray(value[column]).dtype
        if dtype.kind not in "iuf":
            return (
                f"its column {column!r} is of {dtype}: leave it out, or make numbers of it, by "
                "`astype(float)` or one column per word"
            )
    return ""


def require_finite(
    name: str,
    array: Array | np.ndarray,
    remedy: str = "remove those samples or repair the values first",
) -> None:
    """Raise `ValueError`, with a remedy, if a concrete array holds a NaN or an infinity."""
    bad = 0 if is_traced(array) else _count_where(array, lambda a, np: ~np.isfinite(a))
    if bad:
        raise ValueError(f"`{name}` holds {bad} value(s) that are NaN or infinite; {remedy}.")


def require_no_nan(name: str, module: PyTree) -> None:
    """Raise `ValueError` that names the first concrete array of a module that holds a NaN.

    Constructors check their arrays, but a tree map does not, nor need a user's own module.
    Infinities pass: a mask may be made of them.
    """
    for place, leaf in jax.tree_util.tree_flatten_with_path(module)[0]:
        real = eqx.is_inexact_array(leaf) and not is_traced(leaf)
        bad = _count_where(leaf, lambda a, np: np.isnan(a)) if real else 0
        if bad:
            raise ValueError(
                f"`{name}{jax.tree_util.keystr(place)}` holds {bad} NaN among {leaf.size} numbers; "
                "start from a network without, since a run cannot leave it."
            )


def _count_where(array: Array | np.ndarray, odd: Callable[[AnyArray, ModuleType], AnyArray]) -> int:
    """Count the numbers of a concrete array that are `odd`, by JAX only if processes share it."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return int(jnp.sum(odd(array, jnp)))
    return int(np.sum(odd(np.asarray(array), np)))


def smallest_value(array: Array | np.ndarray) -> float:
    """Return the smallest number of a concrete array that this process holds whole; else inf."""
    if is_traced(array) or _is_distributed(array) or not array.size:
        return float("inf")
    return float(np.min(np.asarray(array)))


def rms_size(array: Array | np.ndarray) -> float:
    """Return the root mean square of a concrete array, by JAX only if processes share it."""
    xp = jnp if _is_distributed(array) else np
    return float(xp.sqrt(xp.mean(xp.square(xp.asarray(array, float)))))


def automatic_mesh(mesh: Mesh) -> Mesh:
    """Return a mesh whose axes XLA partitions by itself.

    `jax.make_mesh` makes explicit ones, which ask for a sharding of every intermediate array.
    """
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def first_rows(tree: PyTree, rows: int) -> PyTree:
    """Cut every array of a tree to its first rows, as `rows_within` does."""
    return rows_within(tree, slice(rows))


def rows_within(tree: PyTree, kept: slice) -> PyTree:
    """Return of every array of a tree the rows of a slice.

    By NumPy, since JAX compiles a program for every number of them; not so for an array of which
    other processes hold a part.
    """
    return jax.tree.map(lambda a: a[kept] if _is_distributed(a) else np.asarray(a)[kept], tree)


def join_rows(*trees: PyTree) -> PyTree:
    """Join the arrays of trees of one structure along their rows; by NumPy, as `first_rows`."""

    def join_arrays(*arrays: AnyArray) -> Array:
        if any(map(_is_distributed, arrays)):
            return jnp.concatenate(arrays)
        return jax.device_put(np.concatenate([np.asarray(a) for a in arrays]))

    return jax.tree.map(join_arrays, *trees)


def take_rows(tree: PyTree, rows: np.ndarray) -> PyTree:
    """Take rows, by number or by a mask, of every array of a tree; by NumPy, as `first_rows`."""
    return _map_by_numpy(lambda a, _: a[rows], tree)


def repeat_as_rows(tree: PyTree, number: int) -> PyTree:
    """Repeat every array of a tree along a new first axis; by NumPy, as `first_rows`."""
    return _map_by_numpy(lambda a, xp: xp.broadcast_to(a, (number, *a.shape)), tree)


def _map_by_numpy(function: Callable[[Any, Any], Any], tree: PyTree) -> PyTree:
    """Apply a function of an array and a module, NumPy or `jax.numpy`, to the arrays of a tree.

    JAX has those whose numbers this process does not know, and keys of `jax.random`.
    """
    traced = is_traced((tree, jax.lax.full((), 0)))

    def map_array(array: Any) -> Any:
        if traced or _is_distributed(array) or jnp.issubdtype(array.dtype, jax.dtypes.extended):
            return function(array, jnp)
        return jax.device_put(function(np.asarray(array), np))

    return jax.tree.map(map_array, tree)


def _is_distributed(array: object) -> bool:
    """Tell whether other processes hold a part of an array that this one does not."""
    if not isinstance(array, Array):
        return False
    return not (array.is_fully_addressable or array.is_fully_replicated)


def prepend_constant(x: Array, bias_strength: ArrayLike) -> Array:
    """Put the constant in front of the inputs (P, N_in): rows `[c; x]`, shape (P, 1 + N_in)."""
    constant = jnp.full((x.shape[0], 1), bias_strength, dtype=x.dtype)
    return jnp.concatenate([constant, x], axis=1)


def weight_rows(rows: Any, weights: Any) -> Any:
    """Multiply rows of samples, (P,) or (P, N), by weights (P,); None leaves them as they are.

    Weights (P, N_out) of entries are for rows of outputs alone: each number has its own.
    """
    if weights is None:
        return rows
    return rows * weights.reshape(weights.shape + (1,) * (rows.ndim - weights.ndim))


def total_weight(weights: Any) -> Any:
    """Sum weights (P,) over samples; of (P, N_out) a sample's weight is its entries' mean."""
    return weights.sum() if weights.ndim == 1 else weights.sum() / weights.shape[1]


def fill_missing(targets: Array, weights: Array | None) -> Array:
    """Return targets (P, N_out) with 0 for NaN where the weight, of sample or entry, is 0."""
    if weights is None:
        return targets
    absent = (weights if weights.ndim == 2 else weights[:, None]) == 0
    return jnp.where(absent & jnp.isnan(targets), 0, targets)


def sample_mean(rows: Any, weights: Any) -> Any:
    """Average the samples' rows, (P,) or (P, N), by their weights (P,), or evenly without."""
    return rows.mean(axis=0) if weights is None else weights @ rows / weights.sum()


def sample_correlation(a: Any, b: Any, weights: Any) -> Any:
    r"""Average $a_p b_p^T$ over samples p, the rows of a (P, M) and b (P, N), by their weights."""
    return weight_rows(a, weights).T @ b / (len(a) if weights is None else weights.sum())


def as_parameters(
    to_parameters: Callable[[Parameters], Parameters] | None, state: Parameters
) -> Parameters:
    """Return the parameters of a solver's state, by the way `back` from its coordinates, if any."""
    return state if to_parameters is None else to_parameters(state)


# ---- Copies of Equinox modules.

Module = TypeVar("Module", bound=eqx.Module)


def replace_fields(module: Module, **fields: object) -> Module:
    """Copy a module with other `fields`, as `dataclasses.replace` without the constructor.

    The fields of a module have passed its constructor already, which takes a tenth of a millisecond
    for the larger modules of a run.
    """
    assert fields.keys() <= {field.name for field in dataclasses.fields(module)}, fields.keys()
    copy = object.__new__(type(module))
    for name, value in (vars(module) | fields).items():
        object.__setattr__(copy, name, value)
    return copy


# ---- Tables for pandas, which is optional.


def data_frame(
    rows: list[dict[str, object]] | dict[str, np.ndarray], columns: Sequence[str]
) -> DataFrame:
    """Make a `pandas.DataFrame` of rows, or of arrays by column.

    It has these columns even where there are no rows.

    **Raises:** `ImportError` if pandas is missing, which says how to get it.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("`to_pandas` needs pandas: pip install 'flowlin[pandas]'.") from error
    return pandas.DataFrame(rows, columns=list(columns))
