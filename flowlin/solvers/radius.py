"""The spectral radius of a vector field's Jacobian, by power iteration."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from flowlin._tools.loops import while_loop

CHANGE = 0.01  # relative change of the radius at which the iteration stops
NOISE = 0.02  # share of the fixed random direction in each start


def norm(tree: PyTree) -> Float[Array, ""]:
    """Euclidean norm of all leaves together."""
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def direction(like: PyTree) -> PyTree:
    """A fixed direction of norm 1 without structure, of the shape of `like`."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    draws = [
        _scrambled(jnp.arange(end - leaf.size, end, dtype=jnp.uint32)).astype(leaf.dtype)
        for leaf, end in zip(leaves, ends, strict=True)
    ]
    draws = [draw.reshape(leaf.shape) for draw, leaf in zip(draws, leaves, strict=True)]
    return jax.tree.unflatten(structure, [draw / norm(draws) for draw in draws])


def _scrambled(index: Array) -> Array:
    """Numbers in (-1/2, 1/2) from a multiplicative hash, which compiles faster than JAX's own."""
    mixed = (index + 1) * jnp.uint32(2654435769)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(2246822519)
    return (mixed ^ (mixed >> 13)).astype(float) / 2.0**32 - 0.5


def spectral_radius(
    velocity: Callable[[PyTree], PyTree],
    y: PyTree,
    f: PyTree,
    vector: PyTree,
    radius: Float[Array, ""],
    max_iterations: int,
    loop: str,
) -> tuple[PyTree, Float[Array, ""], Int[Array, ""]]:
    r"""Power iteration $v \leftarrow (f(y + \delta v) - f(y)) / \delta$, normalised.

    One evaluation of `velocity` where `vector` and `radius`, from a point nearby, still fit. The
    ratio of norms is a lower bound of a symmetric Jacobian's radius, whatever the eigenvalues'
    signs. A little of a fixed random direction enters each start, so that no direction is lost
    for good.

    **Returns:** vector, radius and the number of evaluations.
    """
    size = norm(y)
    delta = jnp.sqrt(jnp.finfo(size.dtype).eps) * jnp.where(size > 0, size, 1)
    start = jax.tree.map(lambda a, b: a + NOISE * b, vector, direction(vector))
    start = jax.tree.map(lambda a: a / norm(start), start)

    def unfinished(carry):
        _, old, new, count = carry
        return (count == 0) | (jnp.abs(new - old) > CHANGE * new)

    def body(carry):
        v, _, old, count = carry
        moved = velocity(jax.tree.map(lambda a, b: a + delta * b, y, v))
        image = jax.tree.map(lambda a, b: (a - b) / delta, moved, f)
        new = norm(image)
        scale = jnp.where(new > 0, new, 1)
        v = jax.tree.map(lambda a, b: jnp.where(new > 0, a / scale, b), image, v)
        return v, old, new, count + 1

    vector, _, radius, count = while_loop(
        unfinished,
        body,
        (start, radius, radius, jnp.zeros((), jnp.int32)),
        kind=loop,  # pyright: ignore
        max_steps=max_iterations,
    )
    return vector, radius, count
