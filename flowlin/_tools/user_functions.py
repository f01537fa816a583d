"""Functions that a user hands in: how their failures read, and what they may return."""

import contextlib
from collections.abc import Callable, Iterator

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
from jaxtyping import PyTree

from flowlin._tools.arguments import describe_value


@contextlib.contextmanager
def user_function_errors(what: str, remedy: str = "mend the function") -> Iterator[None]:
    """Turn whatever a user's own function raises within into a `ValueError` that says `what`."""
    try:
        yield
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        why = why if len(why) <= 300 else f"{why[:297]}..."
        if isinstance(error, jax.errors.JAXTypeError):
            remedy = "it is traced: compute with jax.numpy, and choose with jnp.where"
        raise ValueError(f"{what}: {why}; {remedy}.") from error


def shapes_of_result(what: str, function: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """Return the shapes and types of what a user's function returns, without running it.

    They are checked as `require_recordable` checks values.

    **Raises:** `ValueError` for a function that fails, too.
    """
    with user_function_errors(f"{what} fails"):
        found = eqx.filter_eval_shape(function, *args)
    return require_recordable(what, found)


def require_recordable(what: str, value: PyTree) -> PyTree:
    """Return what a user's function gave, if it is numbers, arrays, or a tree of them.

    **Raises:** `ValueError` for something else, or nothing.
    """
    leaves = jax.tree.leaves(value)
    odd = [leaf for leaf in leaves if not _is_recordable(leaf)]
    if odd or not leaves:
        found = describe_value(odd[0]) if odd else "nothing"
        # Of a module, say, that holds functions besides its arrays.
        more = odd and len(odd) < len(leaves)
        remedy = "; of a module return eqx.filter(module, eqx.is_array)" if more else ""
        raise ValueError(f"{what} must return numbers or arrays, and returns {found}{remedy}.")
    return value


def _is_recordable(leaf: object) -> bool:
    """Tell whether a leaf is a number, a truth value, or an array of either."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return isinstance(leaf, (bool, int, float))
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)
