"""Measures of the function that a network computes."""

import math
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arguments import checked, float_array, index_from_zero
from flowlin._tools.files import saveable
from flowlin.measures.along import inputs_of, require_layer
from flowlin.networks.base import AbstractModel
from flowlin.networks.kinds import AbstractNetwork
from flowlin.networks.modules import ForeignModel, as_model
from flowlin.record.measured import Samples, require_samples, require_targets
from flowlin.tasks.task import Task, weights_by_sample
from flowlin.training.losses import AnyLoss, Loss, SquaredError
from flowlin.training.objective import FullData, sum_over_samples

MOST_POINTS = 2**22  # points of a grid; more are taken for a mistake


@checked(network=as_model)
def loss(network: eqx.Module, task: Task, *, loss: AnyLoss = SquaredError()) -> Float[Array, ""]:
    """Return the loss of a network on a task, such as held-out samples.

    **Arguments:** `network`, of flowlin or any Equinox module of one sample; `task`, and the `loss`
    function.
    """
    own = cast(AbstractModel, network)  # as `checked` leaves it
    return FullData(require_targets(own, task), cast(Loss, loss), shards=task.shards).loss_value(
        own
    )


@checked(network=as_model)
def error_rate(network: eqx.Module, task: Task) -> Float[Array, ""]:
    """Return the share of samples whose largest output is not their class, the error rate.

    Samples count by their weights. The class is the largest target; of equal outputs or targets
    the first counts.

    **Arguments:** `network`, of flowlin or any Equinox module of one sample; `task` with one
    output per class.

    **Raises:** `ValueError` for a single output.
    """
    if task.outputs < 2:
        raise ValueError(
            "a classification error needs one output per class, and the task has a single output; "
            "give it one-hot targets."
        )
    own = cast(AbstractModel, network)  # as `checked` leaves it
    require_targets(own, task)

    def wrong_weight(rows):
        x, y, gates, weights = rows
        outputs = own.with_sample_gates(gates).outputs(x)
        missed = jnp.argmax(outputs, axis=1) != jnp.argmax(y, axis=1)
        return jnp.sum(missed if weights is None else jnp.where(missed, weights, 0.0))

    rows = (task.x, task.y, own.sample_gates, weights_by_sample(task, "error rates are"))
    wrongs = sum_over_samples(wrong_weight, rows, own.numbers_per_sample(task), task.shards)
    return wrongs.astype(own.dtype) / jnp.asarray(task.mass, own.dtype)


@checked(network=as_model, task=require_samples, axes=None, average=index_from_zero)
def on_grid(
    network: eqx.Module,
    task: Samples = None,
    *,
    axes: Any = None,
    average: int | None = None,
) -> Float[Array, "..."]:
    """Return the network's outputs at all points of a grid in input space.

    Fig. 5C of the lead paper: the network "on all points in the cube", averaged over one
    dimension. The paper does not say which points; by default 21 per coordinate from -1 to 1, ends
    included, equally weighted.

    **Arguments:**

    - `network`, of flowlin or any Equinox module of one sample.
    - `task`: tells how many inputs a module has that is not flowlin's, where `axes` do not; it is
      not used otherwise.
    - `axes`: the points (n,) of every input coordinate, or a tuple of such arrays, one per
      coordinate; taken to the network's precision.
    - `average`: the input coordinate to average over; None for none.

    **Returns:** outputs (n_1, ..., n_N, N_out), without the axis that was averaged over.

    **Raises:** `ValueError` for a wrong number of axes, a coordinate out of range, or more than
    4 million points.
    """
    own = cast(AbstractModel, network)  # as `checked` leaves it
    inputs = _number_of_inputs(own, task, axes)
    axes = jnp.linspace(-1.0, 1.0, 21, dtype=own.dtype) if axes is None else axes
    axes = tuple(axes) if isinstance(axes, (tuple, list)) else (axes,) * inputs
    if len(axes) != inputs:
        raise ValueError(f"`axes` needs one array for each of {inputs} inputs, got {len(axes)}.")
    axes = [float_array("axes", axis).astype(own.dtype) for axis in axes]
    if any(axis.ndim != 1 or not axis.size for axis in axes):
        raise ValueError(
            "`axes` must be one-dimensional and not empty, got shapes "
            f"{[axis.shape for axis in axes]}."
        )
    shape = tuple(axis.shape[0] for axis in axes)
    if math.prod(shape) > MOST_POINTS:
        raise ValueError(
            f"`axes` make a grid of {math.prod(shape):,} points, more than {MOST_POINTS:,}; fix "
            "coordinates by axes of a single point."
        )
    if average is not None and average >= inputs:
        raise ValueError(f"`average` = {average} is none of the {inputs} input coordinates.")
    points = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, inputs)
    values = own.outputs(points).reshape(*shape, -1)
    return values if average is None else jnp.mean(values, axis=average)


def _number_of_inputs(network: AbstractModel, task: Samples, axes: Any) -> int:
    """Count a network's inputs; raise `ValueError` where nothing tells how many it has."""
    if isinstance(network, AbstractNetwork):
        return network.weights[0].shape[1]
    if task is not None:
        found = inputs_of(network, task).shape[1]
    elif isinstance(axes, (tuple, list)):
        found = len(axes)
    else:
        raise ValueError(
            "`axes` must be a tuple, one array per input, or `task` be given: how many inputs a "
            "module takes that is not flowlin's own is not known."
        )
    if isinstance(network, ForeignModel):
        network.sample_output(found, "of the grid")
    return found


@saveable()
class EffectiveMap(NamedTuple):
    """Affine maps of samples: `matrix` (P, N_out, N_in) and `offset` (P, N_out)."""

    matrix: Array
    offset: Array


@checked(network=as_model, task=require_samples)
def effective_map(network: eqx.Module, task: Samples, *, layer: int | None = None) -> EffectiveMap:
    r"""Return the affine map that the network is at each sample, $W_{eff}(x)\, x + b_{eff}(x)$.

    With the gates $D_l = \mathrm{diag}(g_l(x))$ of the hidden layers and the readout L

    $$W_{eff} = W_L D_{L-1} W_{L-1} \cdots D_1 W_1, \qquad
      b_{eff} = c\, b_L + \sum_{l < L} W_L \Big(\prod_{l < k < L} D_k W_k\Big) D_l\, c\, b_l.$$

    Exact at every x; away from kinks W_eff is the Jacobian. On a kink, where h = 0 whatever the
    gate, the map is the one with the gate of z < 0.

    Gated graphs and globally gated networks have such a map by their given gates.

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
        found = _tangent_maps if isinstance(network, ForeignModel) else _maps_from_columns
        return found(cast(Any, network), inputs_of(cast(Any, network), task))
    own = network
    if layer is not None:
        require_layer(own, layer)
    return _maps_from_gates(own, inputs_of(own, task), layer)


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
