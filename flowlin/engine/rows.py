"""Rows of saved times: which are due, and where one more goes in."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree


def append_row(rows: PyTree, row: PyTree) -> PyTree:
    """Append a row."""
    return jax.tree.map(lambda a, b: jnp.append(a, b[None], axis=0), rows, row)


def insert_row(rows: PyTree, row: PyTree, place: Array) -> PyTree:
    """Insert a row at a place, which loses what was there; the row stands at the end, too."""
    return jax.tree.map(lambda a, b: a.at[place].set(b), append_row(rows, row), row)


def value_or_zeros(skipped: Array, value: Callable[[], PyTree]) -> PyTree:
    """Return a tree of arrays, or zeros in its place where it is skipped."""
    shapes = jax.eval_shape(value)

    def zeros_like_value() -> PyTree:
        return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)

    return lax.cond(skipped, zeros_like_value, value)


def count_due(ts: Array, t: Array) -> Array:
    """Count the times that are not yet saved at t, where the start itself is still due."""
    return jnp.sum(jnp.where(t > 0, ts > t, True))


def times_due(ts: Array, t: Array, t1: Array) -> Array:
    """Return the times that are due at t, filled up with t1."""
    place, due = jnp.arange(len(ts)), count_due(ts, t)
    return jnp.where(place < due, ts[(place - due) % len(ts)], t1)
