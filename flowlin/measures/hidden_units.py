"""Measures of hidden units: activations, and how many are always on."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arguments import checked
from flowlin.measures.along import inputs_of
from flowlin.networks.base import AbstractModel, number_of_layer
from flowlin.networks.kink_program import KinkProgram, preactivations_by_place
from flowlin.networks.modules import (
    ForeignModel,
    any_module,
    as_model,
    module_preactivations_off_kinks,
    unit_places,
)
from flowlin.networks.network_kinds import AbstractNetwork, preactivations_off_kinks
from flowlin.record.linearization import Activity
from flowlin.record.measured import Samples, require_samples
from flowlin.tasks.task import Task
from flowlin.training.objective import sum_over_samples


@checked(network=any_module, task=require_samples)
def hidden(network: eqx.Module, task: Samples, *, layer: int | str = 0) -> Float[Array, "P H"]:
    """Return the activations h = g z of a hidden layer, (P, H): the samples' representations.

    Of a module of ReLUs the layers are its places with kinks, and h = max(z, 0), whatever the
    module makes of it: a leaky ReLU is z less a part of max(-z, 0), for example.

    **Arguments:**

    - `network`, of flowlin, or a module of one sample whose kinks can be found.
    - `task` or inputs (P, N_in).
    - `layer`, 0 the first hidden one, or its part of the model.

    **Returns:** (P, H).

    **Raises:** `ValueError` for a layer that there is not, and a module without known kinks.
    """
    own, x = _with_units(as_model("network", network), task)
    layer = number_of_layer(layer, unit_places(own))
    z = _preactivations(own, x)[layer]
    return own.activation(layer, z) if isinstance(own, AbstractNetwork) else jnp.maximum(z, 0)


@checked(network=any_module, task=require_samples)
def activity(
    network: eqx.Module, task: Samples, *, quantile: float = 0.0, layer: int | str = 0
) -> Activity:
    """Return the always-on, gating and off fractions of a hidden layer's units, by the signs of z.

    A pair is on where z > 0, and z is no rounding: as at its kink, where a pair that slides is off.
    Between the steps of a run of several layers or of a module such a z has an error of the run's
    interpolation, and the numbers to quote are those of `flow.linearization().activity(t)`, which
    knows sides.

    **Arguments:**

    - `network`, of flowlin, or a module of one sample whose kinks can be found.
    - `task` or inputs (P, N_in).
    - `layer`, 0 the first hidden one, or its part of the model.
    - `quantile`: q in [0, 0.5). A unit is always on if at most floor(q P) samples have it off, and
      off if at most so many have it on; 0 is the lead paper's definition (Sec. 5.3).

    **Returns:** `Activity`, a named tuple of the three fractions (scalars), which sum to one.

    **Raises:** `ValueError` for a layer that there is not, a quantile out of range, and a module
    without known kinks.
    """
    own, x = _with_units(as_model("network", network), task)
    layer = number_of_layer(layer, unit_places(own))
    number, units = x.shape[0], jnp.asarray(own.hidden[layer], own.dtype)

    def count_on(rows):
        x, gates = rows
        z = _z_without_rounding(own.with_sample_gates(gates), x)[layer]
        return jnp.sum(z > 0, axis=0)

    shards = task.shards if isinstance(task, Task) else 1
    on = sum_over_samples(count_on, (x, own.sample_gates), max(own.hidden), shards)
    few = math.floor(quantile * number)
    always, never = (
        jnp.sum(u).astype(units.dtype) / units for u in (on >= number - few, on <= few)
    )
    return Activity(always, 1 - always - never, never)


def _with_units(own: AbstractModel, task: Samples) -> tuple[AbstractModel, Array]:
    """Return a model whose hidden units are known, and the inputs (P, N_in) of the task."""
    x = inputs_of(own, task)
    own = own.with_kinks(x.shape[1]) if isinstance(own, ForeignModel) else own
    if not isinstance(own, AbstractNetwork) and not own.hidden:
        raise ValueError(
            "`network` must be one of flowlin whose hidden units stand in layers, or a module of "
            f"ReLUs; {own.facts.kinks_because}."
        )
    return own, x


def _z_without_rounding(own: AbstractModel, x: Array) -> tuple[Array, ...]:
    """Return z (P, H) of every hidden layer or place with kinks, zero where it may be rounding."""
    if isinstance(own, AbstractNetwork):
        return preactivations_off_kinks(own, x)
    assert isinstance(own, ForeignModel)
    return module_preactivations_off_kinks(own, x)


def _preactivations(own: AbstractModel, x: Array) -> tuple[Array, ...]:
    """Return z (P, H) of every hidden layer; of a module, of every place with kinks."""
    if isinstance(own, AbstractNetwork):
        return own.preactivations(x)
    assert isinstance(own, ForeignModel)
    program, leaves = own.kink_program(x.shape[1]), jax.tree.leaves((own.inexact, own.fixed))
    assert isinstance(program, KinkProgram)
    return preactivations_by_place(program, leaves, x)
