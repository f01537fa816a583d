"""Distance of two networks in their parameters."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flowlin._tools.arguments import CHECKS_BY_NAME, argument_error, boolean, checked
from flowlin._tools.arrays import widest_dtype
from flowlin._tools.numerics import safe_sqrt
from flowlin.networks.graph import GatedGraph
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.record.trajectory import Trajectory


def _arrays_to_compare(name: str, value: PyTree) -> PyTree:
    """Return the weights and biases of a network, or any pytree's floating-point arrays."""
    if isinstance(value, AbstractNetwork):
        return CHECKS_BY_NAME["network"](name, value).parameters
    if isinstance(value, GatedGraph):
        return CHECKS_BY_NAME["graph"](name, value).parameters
    if isinstance(value, Trajectory):
        raise argument_error(name, "a network, or a tree of parameters", value, "pass `flow.final`")
    found = jax.tree.map(lambda leaf: leaf if _holds_floats(leaf) else None, value)
    if not jax.tree.leaves(found):
        raise ValueError(f"`{name}` holds no arrays of floats; pass a network, or its parameters.")
    return found


def _holds_floats(leaf: PyTree) -> bool:
    """Tell whether a leaf is an array of floating-point numbers."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


@checked(a=None, b=None, relative=boolean)
def distance(a: PyTree, b: PyTree, *, relative: bool = False) -> Float[Array, ""]:
    r"""Return the Euclidean distance $\|w_a - w_b\|$ of the parameters of two networks.

    Works under `jit` and `vmap` (`jax.vmap(fl.distance)` for stacked networks); its derivatives at
    a = b are zero.

    **Arguments:**

    - `a`, `b`: two networks with parameters of the same shapes, or two pytrees of one structure, of
      which floating-point arrays count. c, slopes and gates are no parameters.
    - `relative`: whether to divide by the norm of b, the reference; nothing is no distance from
      nothing.

    **Returns:** the distance, a scalar; with `relative` in units of the norm of b.

    **Raises:** `ValueError` for parameters of different structure or shapes, and for trajectories.
    """
    a, b = _arrays_to_compare("a", a), _arrays_to_compare("b", b)
    shapes = [[leaf.shape for leaf in jax.tree.leaves(given)] for given in (a, b)]
    if shapes[0] != shapes[1] or jax.tree.structure(a) != jax.tree.structure(b):
        got = f"arrays of shapes {shapes[0]} and {shapes[1]}"
        if shapes[0] == shapes[1]:
            got = "trees with other fields around arrays of the same shapes; pass those alone"
        raise ValueError(f"`a` and `b` must have parameters of one structure, got {got}.")
    off, size = _difference_norms(jax.tree.leaves(a), jax.tree.leaves(b))
    return jnp.where(off == 0, 0.0, off / jnp.where(off == 0, 1.0, size)) if relative else off


@jax.jit
def _difference_norms(a: list[Array], b: list[Array]) -> tuple[Array, Array]:
    """Return the norms of the difference and of b."""
    dtype = widest_dtype(*a, *b)
    off = sum(jnp.sum((x.astype(dtype) - y.astype(dtype)) ** 2) for x, y in zip(a, b, strict=True))
    return safe_sqrt(jnp.asarray(off)), safe_sqrt(jnp.asarray(sum(jnp.sum(y**2) for y in b)))
