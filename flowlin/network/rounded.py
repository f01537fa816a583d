"""ReLU with its kink rounded off."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from flowlin._tools.types import Activation


def rounded_off(slope: Array, width: ArrayLike) -> Activation:
    r"""(Leaky) ReLU with each kink rounded off over |z| < width by a quadratic.

    $$\sigma_w(z) = \frac{(z + w)^2}{4 w} \quad (|z| < w), \qquad \max(z, 0) \text{ outside},$$

    plus the slope's part where the network is leaky.
    """

    def smooth(layer: int, z: Array) -> Array:
        del layer
        rounded = jnp.where(z > 0, z, 0.0)
        inside = jnp.abs(z) < width
        rounded = jnp.where(inside, (jnp.where(inside, z, 0.0) + width) ** 2 / (4 * width), rounded)
        return slope * z + (1 - slope) * rounded

    return smooth
