"""How far apart two networks are in their parameters."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.checks import WORDS, checked, flag, refuse
from flowlin._tools.numerics import root
from flowlin.network.graph import GatedGraph
from flowlin.network.kinds import AbstractNetwork


def _parameters(name: str, value: Any) -> Any:
    """Weights and biases of a network, or the floating-point arrays of any other pytree."""
    if isinstance(value, AbstractNetwork):
        return WORDS["network"](name, value).parameters
    if isinstance(value, GatedGraph):
        return WORDS["graph"](name, value).parameters
    if hasattr(type(value), "networks"):  # a trajectory, whose class lies above measures
        raise refuse(name, "a network, or a tree of parameters", value, "pass `flow.final`")
    found = jax.tree.map(lambda leaf: leaf if _floats(leaf) else None, value)
    if not jax.tree.leaves(found):
        raise ValueError(f"`{name}` holds no arrays of floats; pass a network, or its parameters.")
    return found


def _floats(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


@checked(a=_parameters, b=_parameters, relative=flag)
def distance(a: Any, b: Any, *, relative: bool = False) -> Float[Array, ""]:
    r"""Euclidean distance $\|w_a - w_b\|$ of all weights and biases of two networks.

    Works under `jit` and `vmap` (`jax.vmap(fl.distance)` for stacked networks); its derivatives at
    a = b are zero.

    **Arguments:**

    - `a`, `b`: two networks with parameters of the same shapes, or two pytrees of one structure, of
      which floating-point arrays count. c, slopes and gates are no parameters.
    - `relative`: whether to divide by the norm of b, the reference; nothing is no distance from
      nothing.

    **Raises:** `ValueError` for parameters of different structure or shapes, and for trajectories.
    """
    shapes = [[leaf.shape for leaf in jax.tree.leaves(given)] for given in (a, b)]
    if shapes[0] != shapes[1] or jax.tree.structure(a) != jax.tree.structure(b):
        got = f"arrays of shapes {shapes[0]} and {shapes[1]}"
        if shapes[0] == shapes[1]:
            got = "trees with other fields around arrays of the same shapes; pass those alone"
        raise ValueError(f"`a` and `b` must have parameters of one structure, got {got}.")
    off, size = _norms(jax.tree.leaves(a), jax.tree.leaves(b))
    return jnp.where(off == 0, 0.0, off / jnp.where(off == 0, 1.0, size)) if relative else off


@jax.jit
def _norms(a: list[Array], b: list[Array]) -> tuple[Array, Array]:
    """Norms of the difference and of b."""
    off = sum(jnp.sum((x - y) ** 2) for x, y in zip(a, b, strict=True))
    return root(jnp.asarray(off)), root(jnp.asarray(sum(jnp.sum(y**2) for y in b)))
