"""Residual networks with a bias after ReLU, as modules: teacher and student of the source B."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _paper import fl


def _leaky(z: jax.Array) -> jax.Array:
    return jax.nn.leaky_relu(z, 0.5)


def _identity(z: jax.Array) -> jax.Array:
    return z


# By name, and the mean over that of ReLU for symmetric preactivations: how much they shift.
ACTIVATIONS = {
    "|z|": (jnp.abs, 2.0),
    "ReLU": (jax.nn.relu, 1.0),
    "leaky ReLU of slope .5": (_leaky, 0.5),
    "tanh": (jnp.tanh, 0.0),
    "identity": (_identity, 0.0),
}


class Residual(eqx.Module):
    r"""Residual blocks, $h \leftarrow N(h + W_2 (\mathrm{ReLU}(W_1 h) - b))$, N after the sum.

    N divides by the root mean square over units. Another `activation` may stand for ReLU.

    - `inner`: (depth, hidden, width), and `outer`: (depth, width, hidden).
    - `b`: the bias after ReLU, one number that is not trained.
    """

    inner: jax.Array
    outer: jax.Array
    b: jax.Array
    activation: Any = eqx.field(static=True, default=jax.nn.relu)

    def __call__(self, x: jax.Array) -> jax.Array:
        """One sample (width,)."""

        def block(h: jax.Array, weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            inner, outer = weights
            h = h + outer @ (self.activation(inner @ h) - self.b)
            return h / jnp.sqrt(jnp.mean(h**2) + 1e-6), None

        return jax.lax.scan(block, x, (self.inner, self.outer))[0]


def residual(depth: int, width: int, hidden: int, seed: Any, b: float = 0.0, gain: float = 1.0):
    """PyTorch's initial weights, uniform within 1 / sqrt(inputs), those before ReLU times `gain`.

    A preactivation then has the variance gain^2 / 3, whatever the width.
    """
    rng = np.random.default_rng(seed)
    inner = gain * rng.uniform(-1, 1, (depth, hidden, width)) / np.sqrt(width)
    outer = rng.uniform(-1, 1, (depth, width, hidden)) / np.sqrt(hidden)
    return Residual(*(jnp.asarray(a, jnp.float32) for a in (inner, outer, b)))


def is_weight(leaf: Any) -> bool:
    """Whether an array is trained: all but the bias."""
    return np.ndim(leaf) > 1


def taught(teacher: Residual, samples: int, seed: Any) -> fl.Task:
    """Normal inputs and what the teacher makes of them."""
    x = np.random.default_rng(seed).normal(size=(samples, teacher.inner.shape[2]))
    x = jnp.asarray(x, jnp.float32)
    return fl.Task(x, outputs_of(teacher, x), name="teacher")


@eqx.filter_jit
def outputs_of(network: Residual, x: jax.Array) -> jax.Array:
    """Of all samples."""
    return jax.vmap(network)(x)


def offset(network: Any, task: fl.Task) -> jax.Array:
    """The source's Delta: standard deviation over units of the outputs' mean over samples."""
    return jnp.std(jnp.mean(jax.vmap(network)(task.x), axis=0))
