"""Kinks of hidden units: where they are, and how fast they move."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowlin._tools.arguments import argument_error, checked, function_of
from flowlin._tools.arrays import Numbers, Parameters
from flowlin._tools.numerics import safe_sqrt
from flowlin.networks.base import number_of_layer
from flowlin.networks.modules import unit_places
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.record.measured import Samples, require_samples, require_targets
from flowlin.tasks.task import Task
from flowlin.training.function_loss import AnyLoss, as_loss
from flowlin.training.objective import FullData
from flowlin.training.rules import VectorField
from flowlin.training.squared_error import SquaredError


@checked(task=require_samples)
def kink_positions(
    network: AbstractNetwork, task: Samples = None, *, layer: int | str = 0
) -> Float[Array, " H"]:
    r"""Return the distance $k_j = -c\, b_j / \|w_j\|$ of every unit's kink from the origin, (H,).

    Lead paper Sec. 5.3 and Fig. 12, with the bias strength c that is missing there: the kink is
    the plane w_j . h + c b_j = 0, and distance counts along w_j. Negative where the unit is on at
    the origin. 0 without a bias; -+inf (0/0: nan) for w_j = 0.

    **Arguments:** `network`; `task` is not used; `layer`, 0 the first hidden one.

    **Returns:** (H,), in units of the layer's inputs.

    **Raises:** `ValueError` for a layer out of range.
    """
    del task
    layer = number_of_layer(layer, unit_places(network))
    w, b = network.weights[layer], network.biases[layer]
    if b is None:
        return jnp.zeros_like(w[:, 0])
    return -network.bias_strength * b / safe_sqrt(jnp.sum(w**2, axis=1))


@checked
def velocity(
    network: AbstractNetwork, task: Task, *, loss: AnyLoss = SquaredError(), tau: Numbers = 1.0
) -> Parameters:
    r"""Return the velocity $-\nabla L / \tau$ of the parameters by gradient flow, at given gates.

    The gates of a ReLU network follow from the signs of z. A pair that slides on its kink has a
    gate in between, which only the exact walk knows.

    **Arguments:** `network`, `task`, `loss` and time constant `tau` of the flow.

    **Returns:** (weights, biases) of the network's shapes, per unit of flow time; None where
    there is no bias.
    """
    objective = FullData(require_targets(network, task), as_loss(loss), shards=task.shards)
    field = VectorField(objective, network, jnp.asarray(tau, network.dtype))
    return field(None, network.parameters, None)


@checked(velocity=function_of("network", "task"))
def kink_rates(
    network: AbstractNetwork,
    task: Task,
    *,
    layer: int | str = 0,
    velocity: Callable[[AbstractNetwork, Task], Parameters] = velocity,
) -> Float[Array, " H"]:
    r"""Return the velocity of every unit's kink, (H,), per unit of flow time.

    $$\dot k_j = -\frac{c\, \dot b_j}{\|w_j\|} + \frac{c\, b_j\, w_j \cdot \dot w_j}{\|w_j\|^3}$$

    (Eq. 12 of the lead paper, with c), for the velocities that the flow gives the parameters.

    **Arguments:**

    - `network`, `task`; `layer`, 0 the first hidden one.
    - `velocity`: function of (network, task) that returns the velocities of weights and biases;
      by default `measures.velocity`, whose loss and tau are bound with `functools.partial`.

    **Returns:** (H,), in units of the layer's inputs per unit of flow time.

    **Raises:** `ValueError` for a layer out of range, and for velocities that do not go with the
    network's parameters.
    """
    layer = number_of_layer(layer, unit_places(network))
    k = kink_positions(network, layer=layer)
    weights, biases = _require_velocity(velocity(network, task), network)
    w, dw, db = network.weights[layer], weights[layer], biases[layer]
    if db is None:
        return k
    size = safe_sqrt(jnp.sum(w**2, axis=1))
    return -(network.bias_strength * db + k * jnp.sum(w * dw, axis=1) / size) / size


def _require_velocity(found: PyTree, network: AbstractNetwork) -> Parameters:
    """Accept velocities of a user's function, (weights, biases), of the network's shapes."""
    pair = isinstance(found, tuple) and len(found) == 2
    shapes = [[np.shape(a) for a in jax.tree.leaves(t)] for t in (found, network.parameters)]
    if not pair or shapes[0] != shapes[1]:
        wanted = "a function that returns (weights, biases), of the network's shapes"
        raise argument_error("velocity", wanted, found)
    return found
