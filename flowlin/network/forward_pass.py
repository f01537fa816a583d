"""The forward pass that all networks share."""

from collections.abc import Callable

from jaxtyping import Array, ArrayLike

from flowlin._tools.types import Activation, Parameters


def product(h: Array, w: Array) -> Array:
    """h W^T."""
    return h @ w.T


def forward(
    parameters: Parameters,
    bias_strength: ArrayLike,
    x: Array,
    activation: Activation,
    product: Callable[[Array, Array], Array] = product,
) -> tuple[Array, tuple[Array, ...]]:
    """Outputs (P, N_out) and the hidden layers' preactivations (P, H) of inputs (P, N_in).

    Every network of the library runs through here; they differ in their gates g alone:
    `activation(layer, z)` is g z, or what a policy for kinks puts in its place.
    """
    h, preactivations = x, []
    for layer, (w, b) in enumerate(zip(*parameters, strict=True)):
        if layer:
            preactivations.append(h)
            h = activation(layer - 1, h)
        h = product(h, w)
        if b is not None:
            h = h + bias_strength * b
    return h, tuple(preactivations)
