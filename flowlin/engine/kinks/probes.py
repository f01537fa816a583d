"""Estimates of scales by random directions, of which a few are tried."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

PROBES = 4  # random directions by which scales are estimated


def random_signs(tree: PyTree) -> PyTree:
    """Return `PROBES` arrays of random signs for each array, always the same ones."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: rng.choice(np.array([-1, 1], np.int8), (PROBES, *a.shape)), tree)


def root_mean_square(probes: Float[Array, "n H P"]) -> Float[Array, "H P"]:
    """Return the root mean square over probes, without a derivative."""
    return lax.stop_gradient(jnp.sqrt(jnp.mean(probes**2, axis=0)))
