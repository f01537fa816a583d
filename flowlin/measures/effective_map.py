"""The affine map that a network is at each sample."""

from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowlin._tools.arguments import checked
from flowlin._tools.files import saveable
from flowlin.measures.along import inputs_of
from flowlin.networks.base import AbstractModel, number_of_layer
from flowlin.networks.modules import ForeignModel, as_model, unit_places
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.record.measured import Samples, require_samples


@saveable()
class EffectiveMap(NamedTuple):
    """Affine maps of samples: `matrix` (P, N_out, N_in) and `offset` (P, N_out)."""

    matrix: Array
    offset: Array


@checked(network=as_model, task=require_samples)
def effective_map(
    network: eqx.Module, task: Samples, *, layer: int | str | None = None
) -> EffectiveMap:
    r"""Return the affine map that the network is at each sample, $W_{eff}(x)\, x + b_{eff}(x)$.

    With the gates $D_l = \mathrm{diag}(g_l(x))$ of the hidden layers and the readout L

    $$W_{eff} = W_L D_{L-1} W_{L-1} \cdots D_1 W_1, \qquad
      b_{eff} = c\, b_L + \sum_{l < L} W_L \Big(\prod_{l < k < L} D_k W_k\Big) D_l\, c\, b_l.$$

    Exact at every x; away from kinks W_eff is the Jacobian. On a kink, where h = 0 whatever the
    gate, the map is the one with the gate of z < 0.

    Gated graphs, globally gated networks and gated modules have such a map by their given gates.

    Of any other Equinox module, such as a residual network, it is the tangent at the sample: W_eff
    the Jacobian there, $b_{eff} = f(x) - W_{eff}\, x$. Where the module is piecewise linear that is
    the same map; where it is smooth (GELU) or has norms it is the first order, still equal to f at
    the sample itself, with an offset even in a network without biases.

    Source: Ye (2025), Eqs. 3-4, which put a gate on the output as well: right for the features
    of a hidden layer (`layer`), not for the outputs. Offset, residual networks and the Jacobian
    are their stated future work.

    **Arguments:**

    - `network`, of flowlin or any Equinox module of one sample; `task` or inputs (P, N_in).
    - `layer`: None for the outputs, otherwise the hidden layer whose activations are mapped to; of
      flowlin's networks alone, as other modules' layers are not known.

    **Returns:** `EffectiveMap`, a named tuple (matrix, offset).

    **Raises:** `ValueError` for a layer out of range, or per-sample gates of other samples.
    """
    if not isinstance(network, AbstractNetwork):
        if layer is not None:
            raise ValueError(
                f"`layer` must be None for a network whose units do not stand in layers of "
                f"flowlin's own, got {layer}; pass the module of its layers up to there."
            )
        own = cast(AbstractModel, network)  # as `checked` leaves it
        x = inputs_of(own, task)
        return (
            _tangent_maps(own, x) if isinstance(own, ForeignModel) else _maps_from_columns(own, x)
        )
    own = network
    top = None if layer is None else number_of_layer(layer, unit_places(own))
    return _maps_from_gates(own, inputs_of(own, task), top)


def _maps_from_gates(network: AbstractNetwork, x: Array, layer: int | None) -> EffectiveMap:
    """Return the maps to a hidden layer, or to the outputs, from the gates of the samples."""
    gates = network.gates(x)
    top = len(network.weights) - 1 if layer is None else layer

    def map_of_sample(gates: tuple[Array, ...]) -> EffectiveMap:
        first = jnp.eye(network.weights[top].shape[0], dtype=network.dtype)
        matrix, offset = first, jnp.zeros_like(first[0])
        for k in range(top, -1, -1):
            if k < len(gates):
                matrix = matrix * gates[k][None]
            b = network.biases[k]
            if b is not None:
                offset = offset + matrix @ (network.bias_strength * b)
            matrix = matrix @ network.weights[k]
        return EffectiveMap(matrix, offset)

    if not gates:  # a single layer: one map for all
        return jax.tree.map(
            lambda a: jnp.broadcast_to(a, (x.shape[0], *a.shape)), map_of_sample(())
        )
    return jax.vmap(map_of_sample)(gates)


def _tangent_maps(network: ForeignModel, x: Array) -> EffectiveMap:
    """Return the tangents at the samples, by one derivative per output, or per input."""
    outputs = network.sample_output(x.shape[1], "of `task`").shape[0]
    jacobian = jax.jacrev if outputs <= x.shape[1] else jax.jacfwd

    def output_twice(x: Array) -> tuple[Array, Array]:
        value = network.module(x)
        return value, value

    def tangent_of_sample(x: Array) -> EffectiveMap:
        matrix, value = jacobian(output_twice, has_aux=True)(x)
        return EffectiveMap(matrix, value - matrix @ x)

    return jax.vmap(tangent_of_sample)(x)


def _maps_from_columns(network: AbstractModel, x: Array) -> EffectiveMap:
    """Return the maps of a network whose gates belong to samples, column by column."""

    def jacobian_column(direction: Array) -> Array:
        along = jnp.broadcast_to(direction, x.shape)
        return jax.jvp(network.outputs, (x,), (along,))[1]

    matrix = jax.vmap(jacobian_column, out_axes=-1)(jnp.eye(x.shape[1], dtype=x.dtype))
    return EffectiveMap(matrix, network.outputs(x) - jnp.einsum("poi,pi->po", matrix, x))
