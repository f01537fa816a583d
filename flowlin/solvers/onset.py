"""Quadratics in time on [0, 1]: when they are positive, and integrals over that part."""

import jax.numpy as jnp
from jaxtyping import Array

Quadratic = tuple[Array, Array, Array]  # a0 + a1 s + a2 s^2, elementwise


def quadratic(start: Array, middle: Array, end: Array) -> Quadratic:
    """The quadratic through its values at s = 0, 1/2 and 1."""
    return start, 4 * middle - 3 * start - end, 2 * (start + end) - 4 * middle


def gated_integral(z: Quadratic, force: Quadratic, slope: Array) -> Array:
    r"""$\int_0^1 g(z(s))\, C(s)\, ds$ with the gate g one for z > 0 and `slope` elsewhere."""
    b0, b1, b2 = force

    def primitive(s):
        return s * (b0 + s * (b1 / 2 + s * (b2 / 3)))

    first, second = _roots(z)
    marks = (jnp.zeros_like(first), first, second, jnp.ones_like(first))
    values = (jnp.zeros_like(first), primitive(first), primitive(second), b0 + b1 / 2 + b2 / 3)
    total = jnp.zeros_like(first)
    for k in range(3):
        gate = jnp.where(_at(z, (marks[k] + marks[k + 1]) / 2) > 0, 1.0, slope)
        total = total + gate * (values[k + 1] - values[k])
    return total


def grazes(z0: Array, z1: Array, v0: Array, v1: Array) -> Array:
    """How near z came to zero while it turned back; inf where it did not.

    It turns back if it is on one side at s = 0 and 1, with velocity v0 towards zero and v1 away.
    """
    path = quadratic(z0, (z0 + z1) / 2 + (v0 - v1) / 8, z1)
    turn = _at(path, _fraction(-path[1], 2 * path[2]))
    turned = (z0 * v0 < 0) & (z1 * v1 > 0) & (z0 * z1 > 0) & (z0 * turn > 0)
    nearest = jnp.minimum(jnp.abs(turn), jnp.minimum(jnp.abs(z0), jnp.abs(z1)))
    return jnp.where(turned, nearest, jnp.inf)


def _at(z: Quadratic, s: Array) -> Array:
    return z[0] + s * (z[1] + s * z[2])


def _roots(z: Quadratic) -> tuple[Array, Array]:
    """The roots inside (0, 1) in order; 1 stands for those that are not."""
    a0, a1, a2 = z
    discriminant = a1**2 - 4 * a0 * a2
    real, two = discriminant >= 0, discriminant > 0
    root = jnp.where(two, jnp.sqrt(jnp.where(two, discriminant, 1.0)), 0.0)
    # The larger root first, then the other from their product: no difference of close numbers.
    half = -(a1 + jnp.copysign(root, a1)) / 2
    r, s = _fraction(half, a2), _fraction(a0, half)
    r, s = jnp.where(real, r, 1.0), jnp.where(real, s, 1.0)
    return jnp.minimum(r, s), jnp.maximum(r, s)


def _fraction(numerator: Array, denominator: Array) -> Array:
    """The quotient where it lies in (0, 1), else 1; safe to differentiate."""
    inside = (jnp.abs(numerator) < jnp.abs(denominator)) & ((numerator > 0) == (denominator > 0))
    return jnp.where(inside, numerator / jnp.where(inside, denominator, 1.0), 1.0)
