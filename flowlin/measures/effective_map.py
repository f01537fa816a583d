"""The affine map that a network is at each sample."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arguments import checked, real_array
from flowlin._tools.arrays import Numbers, require_finite
from flowlin._tools.files import saveable
from flowlin.measures.along import inputs_of
from flowlin.networks.base import AbstractModel, number_of_layer
from flowlin.networks.kink_program import KinkProgram, outputs_and_preactivations
from flowlin.networks.layered import list_per_layer
from flowlin.networks.modules import (
    ForeignModel,
    any_module,
    as_model,
    has_known_kinks,
    module_preactivations_off_kinks,
    unit_places,
)
from flowlin.networks.network_kinds import AbstractNetwork, preactivations_off_kinks
from flowlin.record.measured import Samples, require_samples


@saveable()
class EffectiveMap(NamedTuple):
    """Affine maps of samples: `matrix` (P, N_out, N_in) and `offset` (P, N_out)."""

    matrix: Array
    offset: Array


@checked(network=any_module, task=require_samples, sides=None)
def effective_map(
    network: eqx.Module,
    task: Samples,
    *,
    layer: int | str | None = None,
    sides: Sequence[Numbers] | None = None,
) -> EffectiveMap:
    r"""Return the affine map that the network is at each sample, $W_{eff}(x)\, x + b_{eff}(x)$.

    With the gates $D_l = \mathrm{diag}(g_l(x))$ of the hidden layers and the readout L

    $$W_{eff} = W_L D_{L-1} W_{L-1} \cdots D_1 W_1, \qquad
      b_{eff} = c\, b_L + \sum_{l < L} W_L \Big(\prod_{l < k < L} D_k W_k\Big) D_l\, c\, b_l.$$

    Exact at every x; away from kinks W_eff is the Jacobian. On a kink, where h = 0 whatever the
    gate, the map is the one with the gate of z < 0, in modules that of $\max(z, 0)$; so it is where
    z is zero up to the rounding of its terms, as of pairs that slide along a walk, at its end and
    at the ends of its steps. Between those the saved networks of several layers and of modules have
    an error of the run's interpolation in such a z, and `sides` tell the gates.

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
    - `sides`: of each hidden layer, or place with kinks, (P, H), as `flow.events.sides(t, layer)`
      has them: a gate is on where its side is positive. None tells them by z.

    **Returns:** `EffectiveMap`, a named tuple (matrix, offset).

    **Raises:** `ValueError` for a layer out of range, per-sample gates of other samples, sides of
    other shapes or with NaN, or of a network without kinks that are known.
    """
    own = as_model("network", network)
    x = inputs_of(own, task)
    if isinstance(own, ForeignModel):
        own.sample_output(x.shape[1], "of `task`")
        own, x = own.with_kinks(x.shape[1]), x.astype(own.dtype)
    found = None if sides is None else _require_sides(own, x, sides)
    if not isinstance(own, AbstractNetwork):
        if layer is not None:
            raise ValueError(
                f"`layer` must be None for a network whose units do not stand in layers of "
                f"flowlin's own, got {layer}; pass the module of its layers up to there."
            )
        if not isinstance(own, ForeignModel):
            return _maps_from_columns(own, x)
        return _tangents_at_gates(own, x, found) if own.hidden else _tangent_maps(own, x)
    top = None if layer is None else number_of_layer(layer, unit_places(own))
    # The sign is all that a gate asks of z, and a side is one.
    signs = preactivations_off_kinks(own, x) if found is None else found
    gates = tuple(jnp.broadcast_to(own.gate(k, z), z.shape) for k, z in enumerate(signs))
    return _maps_from_gates(own, x, gates, top)


def _require_sides(
    own: AbstractModel, x: Array, sides: Sequence[Numbers]
) -> tuple[Float[Array, "P H"], ...]:
    """Return sides as real arrays of the model's precision, one for each of its hidden layers.

    **Raises:** `ValueError` for another number of them, for other shapes, or without kinks.
    """
    if not has_known_kinks(own):
        raise ValueError(
            f"`sides` must be None for a network without sides: {own.facts.kinks_because}."
        )
    listed = list_per_layer("sides", sides, "(P, H) per hidden layer")
    found = tuple(
        jnp.asarray(real_array(f"sides[{k}]", a), own.dtype) for k, a in enumerate(listed)
    )
    for k, one in enumerate(found):
        require_finite(f"sides[{k}]", one)
    wanted = [(len(x), width) for width in own.hidden]
    if [a.shape for a in found] != wanted:
        raise ValueError(
            f"`sides` must have shapes {wanted}, one (P, H) per hidden layer, got "
            f"{[a.shape for a in found]}; take [flow.events.sides(t, k) for k in "
            f"range({len(wanted)})]."
        )
    return found


@eqx.filter_jit
def _maps_from_gates(
    network: AbstractNetwork, x: Array, gates: tuple[Array, ...], layer: int | None
) -> EffectiveMap:
    """Return the maps to a hidden layer, or to the outputs, from the gates of the samples."""
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


@eqx.filter_jit
def _tangent_maps(network: ForeignModel, x: Array) -> EffectiveMap:
    """Return the tangents of a module without known kinks at the samples."""
    return _tangents_of(network, x, lambda sample, _: network.module(sample), ())


@eqx.filter_jit
def _tangents_at_gates(
    network: ForeignModel, x: Array, sides: tuple[Array, ...] | None
) -> EffectiveMap:
    """Return the tangents of a module of ReLUs at the samples, at the gates of z, or of sides."""
    program = network.kink_program(x.shape[1])
    assert isinstance(program, KinkProgram)
    leaves = jax.tree.leaves((network.inexact, network.fixed))
    signs = jnp.concatenate(sides or module_preactivations_off_kinks(network, x), axis=1)

    def output_of(sample: Array, gates: Array) -> Array:
        nothing = jnp.zeros_like(gates)
        return outputs_and_preactivations(program, [*leaves, sample], gates, nothing)[0]

    return _tangents_of(network, x, output_of, (signs > 0).astype(network.dtype))


def _tangents_of(
    network: ForeignModel, x: Array, output_of: Callable[[Array, Any], Array], gates: Any
) -> EffectiveMap:
    """Return the tangents of a function of sample and gates, per output or per input."""
    outputs = network.sample_output(x.shape[1], "of `task`").shape[0]
    jacobian = jax.jacrev if outputs <= x.shape[1] else jax.jacfwd

    def output_twice(x: Array, gates: Any) -> tuple[Array, Array]:
        value = output_of(x, gates)
        return value, value

    def tangent_of_sample(x: Array, gates: Any) -> EffectiveMap:
        matrix, value = jacobian(output_twice, has_aux=True)(x, gates)
        return EffectiveMap(matrix, value - matrix @ x)

    return jax.vmap(tangent_of_sample)(x, gates)


@eqx.filter_jit
def _maps_from_columns(network: AbstractModel, x: Array) -> EffectiveMap:
    """Return the maps of a network whose gates belong to samples, column by column."""

    def jacobian_column(direction: Array) -> Array:
        along = jnp.broadcast_to(direction, x.shape)
        return jax.jvp(network.outputs, (x,), (along,))[1]

    matrix = jax.vmap(jacobian_column, out_axes=-1)(jnp.eye(x.shape[1], dtype=x.dtype))
    return EffectiveMap(matrix, network.outputs(x) - jnp.einsum("poi,pi->po", matrix, x))
