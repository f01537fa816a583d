"""What gradient flow conserves, and how far a run departs from it."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import checked, finite_array, float_array
from flowlin._tools.arrays import Numbers
from flowlin.networks.base import number_of_layer, time_constants
from flowlin.networks.modules import unit_places
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.record.measured import Samples, require_samples


@checked(task=require_samples, tau=finite_array)
def conserved(
    network: AbstractNetwork, task: Samples = None, *, layer: int | str = 0, tau: Numbers = 1.0
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

    **Returns:** (H,), in units of squared weights, times tau where it is one per layer.

    **Raises:** `ValueError` for a layer out of range, or another number of time constants.
    """
    del task
    layer = number_of_layer(layer, unit_places(network))
    taus = time_constants(network, float_array("tau", tau))[0]
    b = network.biases[layer]
    into = jnp.sum(network.weights[layer] ** 2, axis=1)
    out_of = jnp.sum(network.weights[layer + 1] ** 2, axis=0)
    into = into if b is None else into + b**2
    return taus[layer] * into - taus[layer + 1] * out_of


@checked(task=require_samples)
def conserved_matrix(
    network: AbstractNetwork, task: Samples = None, *, layer: int | str = 0
) -> Float[Array, "H H"]:
    r"""Return $W_l W_l^T + b_l b_l^T - W_{l+1}^T W_{l+1}$ of a hidden layer, (H, H).

    Conserved by the flow of linear networks (Arora et al. 2018), zero for balanced weights and
    $-\lambda I$ for lambda-balanced ones (`LinearNetwork.balanced`). Its diagonal, `conserved`, is
    what other networks conserve of it.

    **Arguments:** `network`; `task` is not used; `layer`, 0 the first hidden one.

    **Returns:** (H, H), symmetric, in units of squared weights.

    **Raises:** `ValueError` for a layer out of range.
    """
    del task
    layer = number_of_layer(layer, unit_places(network))
    w, b, above = network.weights[layer], network.biases[layer], network.weights[layer + 1]
    difference = w @ w.T - above.T @ above
    return difference if b is None else difference + jnp.outer(b, b)


@checked
def drift(values: ArrayLike) -> Float[Array, " T"]:
    """Return the largest departure of any component from its value at the first time, (T,).

    **Arguments:** `values` (T, ...), such as `along(flow, conserved)`.

    **Returns:** (T,), in the units of the values, 0 at the first time.

    **Raises:** `ValueError` for a single number, or no times.
    """
    values = float_array("values", values)
    if not values.ndim or 0 in values.shape:
        raise ValueError(f"`values` must have a first axis of times, got shape {values.shape}.")
    return jnp.max(jnp.abs(values - values[:1]), axis=tuple(range(1, values.ndim)))
