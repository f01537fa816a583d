"""Weights, biases and gates as somebody gives them: arrays of one precision that fit together."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from flowlin._tools.arrays import is_traced, require_finite
from flowlin._tools.checks import finite, floating, refuse, within
from flowlin._tools.types import Numbers


def off_gate(name: str, value: Any) -> Any:
    """The gate of a unit that is off."""
    check = finite if is_traced(value) else within(0.0, 1.0, "0 is plain ReLU")
    return check(name, value)


def per_layer(name: str, value: Any, wanted: str) -> list[Any]:
    """The entries of a list, one per layer."""
    if isinstance(value, (list, tuple)) or np.ndim(value) > 2:
        return list(value)
    remedy = f"wrap it, as in {name}=[...]" if hasattr(value, "dtype") else ""
    raise refuse(name, f"a list, {wanted}", value, remedy)


def layers(
    weights: Any, biases: Any, bias_strength: ArrayLike, copies: int = 1
) -> tuple[tuple, tuple, Array]:
    """Weights, biases and c as arrays of one precision, with shapes that chain.

    A layer may take several `copies` of what the one below gives, each with its own gate.
    """
    weights = matrices(weights, copies)
    dtype = jnp.result_type(*weights)
    if biases is None:
        biases = (None,) * len(weights)
    biases = per_layer("biases", biases, "one array (H,) or None per layer")
    if len(biases) != len(weights):
        raise ValueError(
            f"`biases` has {len(biases)} entries for {len(weights)} layers; use None for a "
            "layer without bias."
        )
    checked = []
    for layer, (w, b) in enumerate(zip(weights, biases, strict=True)):
        if b is not None:
            b = floating(f"biases[{layer}]", b).astype(dtype)
            if b.shape != (w.shape[0],):
                raise ValueError(
                    f"`biases[{layer}]` must have shape ({w.shape[0]},), got {b.shape}."
                )
            require_finite(f"biases[{layer}]", b)
        checked.append(b)
    c = jnp.asarray(bias_strength, dtype=dtype)
    return tuple(w.astype(dtype) for w in weights), tuple(checked), c


def matrices(weights: Any, copies: int = 1) -> list[Array]:
    """Weights as matrices that chain."""
    listed = per_layer("weights", weights, "one matrix (N_out, N_in) per layer")
    found = [floating(f"weights[{k}]", w, exact=True) for k, w in enumerate(listed)]
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


def given_gates(gates: Numbers, hidden: tuple[int, ...], dtype: np.dtype) -> tuple[Array, ...]:
    """Gates (H,) or (P, H) of the hidden layers, as arrays of a precision."""
    listed = per_layer("gates", gates, "one array per hidden layer")
    found = tuple(floating(f"gates[{k}]", g).astype(dtype) for k, g in enumerate(listed))
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
