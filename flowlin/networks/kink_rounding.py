"""The z of hidden units less what may be rounding, by which gates are told at a kink.

A pair that slides along an exact walk has z = 0 but for rounding, of either sign. Whoever asks for
gates is to be told the off one there, as by the sides of the walk, so that such a z is made zero.
The passes of the flows themselves do not ask: they know sides, or need none.

Rounding is relative to the sizes of the terms in z, never absolute: networks of weights 1e-20 and
inputs of 1e8 keep their gates. A weight in it counts with its own size, or with what its row and
its column have it be, if that is larger,

$$\\max\\bigl(|w_{ji}|, \\; \\|w_{j \\cdot}\\| \\|w_{\\cdot i}\\| / \\|w\\|_F \\bigr):$$

where z = w_ji x_i is all, w_ji itself is the rounding. By norms alone, $\\|w\\| \\|x\\|$, a feature
of 1e8 with weights of 1e-8 would hide all others.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from flowlin._tools.arrays import Activation, Parameters
from flowlin._tools.numerics import dtype_rounding
from flowlin.networks.kink_program import KinkProgram, preactivations_by_place
from flowlin.networks.layered import forward_pass

SIZE_DRAWS = 4  # random directions by which the sizes of a module's z are estimated


def preactivations_off_rounding(
    parameters: Parameters, bias_strength: Array, x: Float[Array, "P N_in"], activation: Activation
) -> tuple[Float[Array, "P H"], ...]:
    """Return the z of each hidden layer, zero where it may be rounding.

    **Arguments:** those of `forward_pass`.
    """
    h, found = x, []
    all_z = forward_pass(parameters, bias_strength, x, activation)[1]
    for layer, (z, w, b) in enumerate(zip(all_z, *parameters, strict=False)):
        inputs = jnp.abs(h)
        if b is not None:  # one more column, of a constant input
            inputs = jnp.pad(inputs, ((0, 0), (0, 1)), constant_values=1.0)
            w = jnp.concatenate([w, (bias_strength * b)[:, None]], axis=1)
        found.append(_zero_within_rounding(z, inputs @ _entry_sizes(w).T))
        h = activation(layer, z)
    return tuple(found)


def place_preactivations_off_rounding(
    program: KinkProgram, arguments: Sequence[Array], x: Float[Array, "P N_in"]
) -> tuple[Float[Array, "P H"], ...]:
    r"""Return the z of each site of a module, zero where it may be rounding.

    The size of z is the root mean square of $\sum_k r_k \rho_k \partial z / \partial \theta_k$
    over normal r, with the sizes rho of the arrays' numbers: by signs, +1 and -1, the two equal
    terms of a z that is zero would cancel in half of the draws.

    **Arguments:** those of `preactivations_by_place`.
    """
    arguments = lax.stop_gradient([*arguments])
    rng, real = np.random.default_rng(0), [jnp.issubdtype(a.dtype, jnp.floating) for a in arguments]
    moving = [a for a, moves in zip(arguments, real, strict=True) if moves]

    def z_of(moving: list[Array]) -> tuple[Array, ...]:
        values = iter(moving)
        merged = [next(values) if moves else a for a, moves in zip(arguments, real, strict=True)]
        return preactivations_by_place(program, merged, x)

    def change_along(draw: list[Array]) -> tuple[Array, ...]:
        way = [r * _entry_sizes(a) for r, a in zip(draw, moving, strict=True)]
        return jax.jvp(z_of, (moving,), (way,))[1]

    draws = [jnp.asarray(rng.normal(size=(SIZE_DRAWS, *a.shape)), a.dtype) for a in moving]
    changes = jax.vmap(change_along)(draws)
    return tuple(
        _zero_within_rounding(z, _size_of_changes(change))
        for z, change in zip(z_of(moving), changes, strict=True)
    )


def _entry_sizes(array: Array) -> Array:
    """Return the size of each number, by its row and its column where there are several.

    Rows are along the first axis, columns along all others, as of filters.
    """
    sizes = jnp.abs(array)
    if sizes.ndim < 2 or not sizes.size:
        return sizes
    # Relative to the largest, or the squares of small weights would be zero.
    largest = jnp.max(sizes)
    unit = jnp.where(largest > 0, largest, 1.0)
    square = (sizes / unit).reshape(sizes.shape[0], -1) ** 2
    rows, columns = (jnp.sum(square, axis=k, keepdims=True) for k in (1, 0))
    whole = jnp.sum(rows)
    share = jnp.sqrt(rows) * jnp.sqrt(columns / jnp.where(whole > 0, whole, 1.0))
    return jnp.maximum(sizes, unit * share.reshape(sizes.shape))


def _size_of_changes(changes: Float[Array, "n P H"]) -> Float[Array, "P H"]:
    """Return the root mean square of changes over their draws, those of weights 1e-20 as well."""
    largest = jnp.max(jnp.abs(changes), axis=0, keepdims=True)
    unit = jnp.where(largest > 0, largest, 1.0)
    return (unit * jnp.sqrt(jnp.mean((changes / unit) ** 2, axis=0, keepdims=True)))[0]


def _zero_within_rounding(z: Array, sizes: Array) -> Array:
    """Return z, zero where it is so small beside its terms that a walk has it on its kink."""
    rounding = lax.stop_gradient(dtype_rounding(z.dtype).z * sizes)
    return jnp.where(jnp.abs(z) <= rounding, 0.0, z)
