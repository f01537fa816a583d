"""Measures of hidden units: activations, and how many are always on."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arguments import checked
from flowlin.measures.along import inputs_of, require_layer
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.record.linearization import Activity
from flowlin.record.measured import Samples, require_samples
from flowlin.tasks.task import Task
from flowlin.training.objective import sum_over_samples


@checked(task=require_samples)
def hidden(network: AbstractNetwork, task: Samples, *, layer: int = 0) -> Float[Array, "P H"]:
    """Return the activations h = g z of a hidden layer, (P, H): the samples' representations.

    **Arguments:** `network`; `task` or inputs (P, N_in); `layer`, 0 the first hidden one.

    **Raises:** `ValueError` for a layer out of range.
    """
    require_layer(network, layer)
    return network.activation(layer, network.preactivations(inputs_of(network, task))[layer])


@checked(task=require_samples)
def activity(
    network: AbstractNetwork, task: Samples, *, quantile: float = 0.0, layer: int = 0
) -> Activity:
    """Return the always-on, gating and off fractions of a hidden layer's units, by the signs of z.

    A pair is on where z > 0. On its kink z is zero up to rounding, of either sign, so where pairs
    slide the numbers to quote are those of `flow.linearization().activity(t)`, which knows sides.

    **Arguments:**

    - `network`; `task` or inputs (P, N_in); `layer`, 0 the first hidden one.
    - `quantile`: q in [0, 0.5). A unit is always on if at most floor(q P) samples have it off, and
      off if at most so many have it on; 0 is the lead paper's definition (Sec. 5.3).

    **Raises:** `ValueError` for a layer or a quantile out of range.
    """
    require_layer(network, layer)
    x = inputs_of(network, task)
    number, units = x.shape[0], jnp.asarray(network.hidden[layer], network.dtype)

    def count_on(rows):
        x, gates = rows
        z = network.with_sample_gates(gates).preactivations(x)[layer]
        return jnp.sum(z > 0, axis=0)

    shards = task.shards if isinstance(task, Task) else 1
    on = sum_over_samples(count_on, (x, network.sample_gates), max(network.hidden), shards)
    few = math.floor(quantile * number)
    always, never = (
        jnp.sum(u).astype(units.dtype) / units for u in (on >= number - few, on <= few)
    )
    return Activity(always, 1 - always - never, never)
