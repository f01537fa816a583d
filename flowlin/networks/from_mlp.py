"""The layers of an `eqx.nn.MLP` of ReLUs, for a network of flowlin's own."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flowlin._tools.arrays import Biases, Weights

# An activation is taken for max(z, slope z) where it is that at all of these, by hand: kinks of
# others, the bends of smooth ones and their limits lie between them.
SAMPLE_POINTS = np.array([-1e3, -7.0, -2.0, -1.0, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 2.0, 7.0, 1e3])


class ReLULayers(NamedTuple):
    """The layers of a ReLU network: weights (N_l, N_l-1), biases (N_l,), and the slope of all."""

    weights: Weights
    biases: Biases
    slope: float


def relu_layers(mlp: eqx.nn.MLP) -> ReLULayers:
    """Return the layers of a multilayer perceptron of ReLUs, leaky ones too.

    **Raises:** `ValueError` for one with other activations, whose slope is trained, that has no
    hidden layer, or that takes or returns a scalar.
    """
    if "scalar" in (mlp.in_size, mlp.out_size):
        raise ValueError("`mlp` takes or returns a scalar; make it with a size of 1 in its place.")
    if mlp.depth == 0:
        raise ValueError("`mlp` has no hidden layer, and so no ReLU; take fl.LinearNetwork.")
    itself = "pass `mlp` itself to gradient_flow"
    if any(eqx.is_array(leaf) for leaf in jax.tree.leaves(mlp.activation)):
        raise ValueError(f"`mlp.activation` = {mlp.activation} is trained; {itself}.")
    values = _values_at_points(mlp.activation)
    slope = float(-values[SAMPLE_POINTS == -1.0][0]) + 0.0  # no negative zero
    rectified = np.maximum(SAMPLE_POINTS, slope * SAMPLE_POINTS)
    if not (0 <= slope < 1 and np.allclose(values, rectified, 1e-6, 0)):
        raise ValueError(
            f"`mlp.activation` = {mlp.activation} is no ReLU max(z, slope z) with 0 <= slope < 1; "
            f"{itself}."
        )
    if not np.allclose(_values_at_points(mlp.final_activation), SAMPLE_POINTS, 1e-6, 0):
        raise ValueError(
            f"`mlp.final_activation` = {mlp.final_activation} is not the identity; {itself}."
        )
    layers = mlp.layers
    if mlp.scan:  # those of its middle layers are stacked
        first, middle, last = layers
        layers = (
            first,
            *(jax.tree.map(lambda a, k=k: a[k], middle) for k in range(mlp.depth - 1)),
            last,
        )
    return ReLULayers(
        tuple(layer.weight for layer in layers), tuple(layer.bias for layer in layers), slope
    )


def _values_at_points(activation) -> np.ndarray:
    """Return what an activation makes of `SAMPLE_POINTS`, each in an array of its own."""
    values: list[Array] = [activation(jnp.asarray(z)) for z in SAMPLE_POINTS]
    return np.array([float(value) for value in values])
