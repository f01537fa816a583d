"""Outputs of a network on a grid in input space."""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flowlin._tools.arguments import checked, float_array, index_from_zero
from flowlin.measures.along import inputs_of
from flowlin.networks.base import AbstractModel
from flowlin.networks.modules import ForeignModel, any_module, as_model
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.record.measured import Samples, require_samples

MOST_POINTS = 2**22  # points of a grid; more are taken for a mistake


@checked(network=any_module, task=require_samples, axes=None, average=index_from_zero)
def on_grid(
    network: eqx.Module,
    task: Samples = None,
    *,
    axes: PyTree = None,
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
    own = as_model("network", network)
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


def _number_of_inputs(network: AbstractModel, task: Samples, axes: PyTree) -> int:
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
