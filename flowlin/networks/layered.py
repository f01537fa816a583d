"""Networks of layers: the forward pass that they share; their weights, biases, gates checked."""

import abc
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arguments import argument_error, finite, float_array, number_in
from flowlin._tools.arrays import (
    Activation,
    Biases,
    Numbers,
    Parameters,
    Product,
    Real,
    Weights,
    is_traced,
    require_finite,
    widest_dtype,
)
from flowlin._tools.printing import Summary, format_count, format_number
from flowlin.networks.base import (
    AbstractOwnModel,
    ModelFacts,
    apply_weights,
    require_inputs,
)


def network_summary(network: Any) -> Summary:
    """Summarise a network: kind, widths, bias, number of parameters, precision."""
    weights, biases = network.weights, network.biases
    stack = weights[0].shape[:-2]
    rows = [("widths", " -> ".join(map(str, network.widths))), ("bias", _bias_in_words(biases))]
    if any(b is not None for b in biases):
        rows[-1] = ("bias", f"{rows[-1][1]}, c = {format_number(network.bias_strength)}")
    slope, gates = getattr(network, "slope", 0), getattr(network, "given_gates", None)
    if format_number(slope) != "0":
        rows.append(("slope", f"slope {format_number(slope)}"))
    if gates is not None:
        shapes = [gate.shape[len(stack) :] for gate in gates]
        rows.append(("gates", f"gates {', '.join(map(str, shapes))}"))
    elif network.sample_gates:
        shared = next(gate for gate in network.sample_gates if gate is not None)
        rows.append(("gates", format_count(shared.shape[-1], "global gate")))
    sizes = [math.prod(a.shape[len(stack) :]) for a in jax.tree.leaves((weights, biases))]
    rows.append(("parameters", format_count(sum(sizes), "parameter")))
    rows.append(("precision", str(weights[0].dtype)))
    if stack:
        rows.append(("stacked", f"stacked {stack}"))
    return Summary(type(network).__name__, rows, inline=True)


def _bias_in_words(biases: tuple[Any, ...]) -> str:
    """Write which layers have a bias."""
    having = [layer for layer, b in enumerate(biases) if b is not None]
    if not having:
        return "no bias"
    if having == list(range(len(biases) - 1)):
        return "bias in hidden layers"
    return f"bias in layers {', '.join(map(str, having))}"


# ---- The forward pass that all networks share.


def forward_pass(
    parameters: Parameters,
    bias_strength: ArrayLike,
    x: Array,
    activation: Activation,
    product: Callable[[Array, Array], Array] = apply_weights,
) -> tuple[Array, tuple[Array, ...]]:
    """Compute outputs (P, N_out) and hidden preactivations (P, H) of inputs (P, N_in).

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
            h = h + (bias_strength * b)[None]
    return h, tuple(preactivations)


def owners_of_layers(weights: PyTree, biases: PyTree) -> tuple[tuple[str, int | None], ...]:
    """Return units by layers, from arrays or their shapes alone.

    The output bias, and a single layer's weights, own themselves.
    """
    last = len(weights) - 1
    owners: list[tuple[str, int | None]] = [(f"layer {k}", -2) for k in range(last)]
    # Units of which every gate has a readout of its own are not counted with these.
    alone = not last or weights[-1].shape[-1] != weights[-2].shape[-2]
    owners.append(("readout", None) if alone else (f"layer {last - 1}", -1))
    of_biases = [("bias", None) if k == last else (f"layer {k}", -1) for k in range(last + 1)]
    given = (own for own, b in zip(of_biases, biases, strict=True) if b is not None)
    return (*owners, *given)


class AbstractLayered(AbstractOwnModel):
    """Networks of layers: weights (N_out_l, N_in_l), biases (N_out_l,) or None, and c in front."""

    weights: AbstractVar[Weights]
    biases: AbstractVar[Biases]
    bias_strength: AbstractVar[Array]

    @abc.abstractmethod
    def smooth_activation(self, width: ArrayLike | None) -> Activation:
        """Return the activation with kinks rounded off over |z| < width, its own without one."""

    def smooth_outputs(
        self, x: Float[Array, "P N_in"], width: ArrayLike | None, product: Product
    ) -> Float[Array, "P N_out"]:
        """Compute the outputs with kinks rounded off over a width, if any; h W^T by `product`."""
        require_inputs(self, x)
        activation = self.smooth_activation(width)
        return forward_pass(self.parameters, self.bias_strength, x, activation, product)[0]

    @property
    def facts(self) -> ModelFacts:
        """Its widths, and units by layers; it has no kinks, or always a policy for them."""
        weights, biases = self.weights, self.biases
        name, layers = type(self).__name__, range(len(weights))
        of_biases = (k for k in layers if biases[k] is not None)
        widest = max((w.shape[-1] for w in weights[1:]), default=weights[-1].shape[-2])
        return ModelFacts(
            name=name, kind=name, hidden=tuple(w.shape[-2] for w in weights[:-1]),
            owners=owners_of_layers(weights, biases), layers=(*layers, *of_biases),
            kinks="none", kinks_because="the network has no kinks", numbers_per_sample=widest,
        )  # fmt: skip

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of all layers, from N_in over the hidden ones to N_out."""
        return (self.weights[0].shape[-1], *(w.shape[-2] for w in self.weights))


# ---- Weights, biases and gates as somebody gives them: arrays of one precision that fit together.


def slope_value(name: str, value: object) -> Real:
    """Check for a slope, the gate of a unit that is off, in [0, 1)."""
    check = finite if is_traced(value) else number_in(0.0, 1.0, "0 is plain ReLU")
    return check(name, value)


def list_per_layer(name: str, value: Any, wanted: str) -> list[Any]:
    """Check for a list with one entry per layer."""
    if isinstance(value, (list, tuple)) or np.ndim(value) > 2:
        return list(value)
    remedy = f"wrap it, as in {name}=[...]" if hasattr(value, "dtype") else ""
    raise argument_error(name, f"a list, {wanted}", value, remedy)


def layer_arrays(
    weights: object, biases: object, bias_strength: ArrayLike, copies: int = 1
) -> tuple[tuple, tuple, Array]:
    """Check weights, biases and c, and return them as arrays of one precision.

    A layer may take several `copies` of what the one below gives, each with its own gate.
    """
    weights = weight_matrices(weights, copies)
    dtype = widest_dtype(*weights)
    if biases is None:
        biases = (None,) * len(weights)
    biases = list_per_layer("biases", biases, "one array (H,) or None per layer")
    if len(biases) != len(weights):
        raise ValueError(
            f"`biases` has {len(biases)} entries for {len(weights)} layers; use None for a "
            "layer without bias."
        )
    checked = []
    for layer, (w, b) in enumerate(zip(weights, biases, strict=True)):
        if b is not None:
            b = float_array(f"biases[{layer}]", b).astype(dtype)
            if b.shape != (w.shape[0],):
                raise ValueError(
                    f"`biases[{layer}]` must have shape ({w.shape[0]},), got {b.shape}."
                )
            require_finite(f"biases[{layer}]", b)
        checked.append(b)
    c = jnp.asarray(bias_strength, dtype=dtype)
    return tuple(w.astype(dtype) for w in weights), tuple(checked), c


def weight_matrices(weights: object, copies: int = 1) -> list[Array]:
    """Check that weights are matrices whose shapes chain, and return them as arrays."""
    listed = list_per_layer("weights", weights, "one matrix (N_out, N_in) per layer")
    found = [float_array(f"weights[{k}]", w, exact=True) for k, w in enumerate(listed)]
    if not found:
        raise ValueError("`weights` is empty; give at least one matrix (N_out, N_in).")
    for layer, w in enumerate(found):
        if w.ndim != 2 or 0 in w.shape:
            raise ValueError(f"`weights[{layer}]` must be a matrix (N_out, N_in), got {w.shape}.")
        if layer and w.shape[1] != copies * found[layer - 1].shape[0]:
            times = f", {copies} times" if copies > 1 else ""
            raise ValueError(
                f"`weights[{layer}]` takes {w.shape[1]} inputs and `weights[{layer - 1}]` gives "
                f"{found[layer - 1].shape[0]} outputs{times}; matrices have shape (N_out, N_in)."
            )
        require_finite(f"weights[{layer}]", w)
    return found


def gate_arrays(gates: Numbers, hidden: tuple[int, ...], dtype: np.dtype) -> tuple[Array, ...]:
    """Check gates (H,) or (P, H) of the hidden layers, and return them as arrays of a precision."""
    listed = list_per_layer("gates", gates, "one array per hidden layer")
    found = tuple(float_array(f"gates[{k}]", g).astype(dtype) for k, g in enumerate(listed))
    if len(found) != len(hidden):
        raise ValueError(
            f"`gates` needs one array per hidden layer, {len(hidden)}, got {len(found)}."
        )
    for layer, (g, width) in enumerate(zip(found, hidden, strict=True)):
        if g.ndim not in (1, 2) or g.shape[-1] != width:
            raise ValueError(
                f"`gates[{layer}]` must have shape ({width},) or (P, {width}), got {g.shape}."
            )
        require_finite(f"gates[{layer}]", g)
    return found


# ---- ReLU with its kink rounded off.


def smooth_relu(slope: Array, width: ArrayLike) -> Activation:
    r"""Return (leaky) ReLU with each kink rounded off over |z| < width by a quadratic.

    $$\sigma_w(z) = \frac{(z + w)^2}{4 w} \quad (|z| < w), \qquad \max(z, 0) \text{ outside},$$

    plus the slope's part where the network is leaky.
    """

    def activate_layer(layer: int, z: Array) -> Array:
        del layer
        rounded = jnp.where(z > 0, z, 0.0)
        inside = jnp.abs(z) < width
        rounded = jnp.where(inside, (jnp.where(inside, z, 0.0) + width) ** 2 / (4 * width), rounded)
        return slope * z + (1 - slope) * rounded

    return activate_layer
