"""Measures of hidden units: activations, activity, kinks and norms."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import argument_error, checked, finite_array, float_array, function_of
from flowlin._tools.arrays import Numbers, Parameters
from flowlin._tools.files import saveable
from flowlin._tools.numerics import safe_sqrt
from flowlin.measures.along import inputs_of, require_layer
from flowlin.networks.kinds import AbstractNetwork
from flowlin.record.linearization import Activity
from flowlin.record.measured import Samples, require_samples, require_targets
from flowlin.tasks.task import Task
from flowlin.training.losses import AnyLoss, Loss, SquaredError
from flowlin.training.objective import FullData, sum_over_samples
from flowlin.training.rules import VectorField


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


@checked(task=require_samples)
def kink_positions(
    network: AbstractNetwork, task: Samples = None, *, layer: int = 0
) -> Float[Array, " H"]:
    r"""Return the distance $k_j = -c\, b_j / \|w_j\|$ of every unit's kink from the origin, (H,).

    Lead paper Sec. 5.3 and Fig. 12, with the bias strength c that is missing there: the kink is
    the plane w_j . h + c b_j = 0, and distance counts along w_j. Negative where the unit is on at
    the origin. 0 without a bias; -+inf (0/0: nan) for w_j = 0.

    **Arguments:** `network`; `task` is not used; `layer`, 0 the first hidden one.

    **Raises:** `ValueError` for a layer out of range.
    """
    del task
    require_layer(network, layer)
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
    """
    objective = FullData(require_targets(network, task), cast(Loss, loss), shards=task.shards)
    field = VectorField(objective, network, jnp.asarray(tau, network.dtype))
    return field(None, network.parameters, None)


@checked(velocity=function_of("network", "task"))
def kink_rates(
    network: AbstractNetwork,
    task: Task,
    *,
    layer: int = 0,
    velocity: Callable[[AbstractNetwork, Task], Parameters] = velocity,
) -> Float[Array, " H"]:
    r"""Return the velocity of every unit's kink, (H,), per unit of flow time.

    $$\dot k_j = -\frac{c\, \dot b_j}{\|w_j\|} + \frac{c\, b_j\, w_j \cdot \dot w_j}{\|w_j\|^3}$$

    (Eq. 12 of the lead paper, with c), for the velocities that the flow gives the parameters.

    **Arguments:**

    - `network`, `task`; `layer`, 0 the first hidden one.
    - `velocity`: function of (network, task) that returns the velocities of weights and biases;
      by default `measures.velocity`, whose loss and tau are bound with `functools.partial`.

    **Raises:** `ValueError` for a layer out of range, and for velocities that do not go with the
    network's parameters.
    """
    k = kink_positions(network, layer=layer)
    weights, biases = _require_velocity(velocity(network, task), network)
    w, dw, db = network.weights[layer], weights[layer], biases[layer]
    if db is None:
        return k
    size = safe_sqrt(jnp.sum(w**2, axis=1))
    return -(network.bias_strength * db + k * jnp.sum(w * dw, axis=1) / size) / size


def _require_velocity(found: Any, network: AbstractNetwork) -> Parameters:
    """Accept velocities of a user's function, (weights, biases), of the network's shapes."""
    pair = isinstance(found, tuple) and len(found) == 2
    shapes = [[np.shape(a) for a in jax.tree.leaves(t)] for t in (found, network.parameters)]
    if not pair or shapes[0] != shapes[1]:
        wanted = "a function that returns (weights, biases), of the network's shapes"
        raise argument_error("velocity", wanted, found)
    return found


@saveable()
class Norms(NamedTuple):
    """Frobenius norms of a network's parameters, first layer first; None where there is no bias."""

    weights: tuple[Array, ...]
    biases: tuple[Array | None, ...]


@checked(task=require_samples)
def norms(network: AbstractNetwork, task: Samples = None) -> Norms:
    """Return the norm of every weight matrix (Frobenius) and of every raw bias vector (Euclidean).

    Lead paper Fig. 3A. The bias that acts is c b: its norm is c times as large.

    **Arguments:** `network`; `task` is not used.
    """
    del task
    return Norms(*jax.tree.map(lambda a: safe_sqrt(jnp.sum(a**2)), network.parameters))


# ---- What gradient flow conserves, and how far a run departs from it.


@checked(task=require_samples, tau=finite_array)
def conserved(
    network: AbstractNetwork, task: Samples = None, *, layer: int = 0, tau: Numbers = 1.0
) -> Float[Array, " H"]:
    r"""Return the conserved $\|w_j\|^2 + b_j^2 - \|a_j\|^2$ of every unit of a hidden layer, (H,).

    w_j are the weights into unit j, b_j its raw bias, a_j the weights out of it. Conserved by the
    gradient flow of every loss, for linear, (leaky) ReLU and gated networks of any depth and
    any c, sliding included: with the gradient delta_j of the loss with respect to z_j

    $$w_j \cdot \frac{\partial L}{\partial w_j} + b_j \frac{\partial L}{\partial b_j}
      = \sum_p \delta_{jp} z_{jp}
      = \sum_p h_{jp}\, \frac{\partial L}{\partial h_{jp}}
      = a_j \cdot \frac{\partial L}{\partial a_j}.$$

    Source: Du et al. (2018), with biases. With one time constant per layer the squares of layer l
    count tau_l times; nothing is conserved where only one of the two layers moves.

    **Arguments:** `network`; `task` is not used; `layer`, 0 the first hidden one; `tau` of the
    flow, where it is one per layer (L,).

    **Raises:** `ValueError` for a layer out of range, or another number of time constants.
    """
    del task
    require_layer(network, layer)
    taus = network.time_constants(float_array("tau", tau))[0]
    b = network.biases[layer]
    into = jnp.sum(network.weights[layer] ** 2, axis=1)
    out_of = jnp.sum(network.weights[layer + 1] ** 2, axis=0)
    into = into if b is None else into + b**2
    return taus[layer] * into - taus[layer + 1] * out_of


@checked(task=require_samples)
def conserved_matrix(
    network: AbstractNetwork, task: Samples = None, *, layer: int = 0
) -> Float[Array, "H H"]:
    r"""Return $W_l W_l^T + b_l b_l^T - W_{l+1}^T W_{l+1}$ of a hidden layer, (H, H).

    Conserved by the flow of linear networks (Arora et al. 2018), zero for balanced weights and
    $-\lambda I$ for lambda-balanced ones (`LinearNetwork.balanced`). Its diagonal, `conserved`, is
    what other networks conserve of it.

    **Arguments:** `network`; `task` is not used; `layer`, 0 the first hidden one.

    **Raises:** `ValueError` for a layer out of range.
    """
    del task
    require_layer(network, layer)
    w, b, above = network.weights[layer], network.biases[layer], network.weights[layer + 1]
    difference = w @ w.T - above.T @ above
    return difference if b is None else difference + jnp.outer(b, b)


@checked
def drift(values: ArrayLike) -> Float[Array, " T"]:
    """Return the largest departure of any component from its value at the first time, (T,).

    **Arguments:** `values` (T, ...), such as `along(flow, conserved)`.

    **Raises:** `ValueError` for a single number, or no times.
    """
    values = float_array("values", values)
    if not values.ndim or 0 in values.shape:
        raise ValueError(f"`values` must have a first axis of times, got shape {values.shape}.")
    return jnp.max(jnp.abs(values - values[:1]), axis=tuple(range(1, values.ndim)))
