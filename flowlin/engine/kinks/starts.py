"""Starts of walks: whether a pair may be at its kink there, and where several flows begin."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool

from flowlin._tools.arrays import Parameters, is_traced
from flowlin._tools.numerics import dtype_rounding
from flowlin.engine.kinks.kink_places import walks_through_loss
from flowlin.engine.kinks.module_flow import ModuleFlow
from flowlin.engine.kinks.sides import OFF, ON
from flowlin.networks.modules import ForeignModel
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.record.branch_reason import STARTS_EITHER_WAY
from flowlin.record.buffer import EventBuffer
from flowlin.tasks.task import Task
from flowlin.training.problem import Problem

WIDER = 4  # times the walks' own bound on what may be rounding


def may_be_at_kink(problem: Problem) -> bool:
    """Tell whether a pair's |z| may be rounding at the start; also where arrays are traced.

    On the host and by a larger bound than the walks' own, so that a run that surely has no such
    pair at its start is compiled without the choice of sides there.
    """
    network, task = problem.network, problem.task
    if is_traced(problem):
        return True
    if isinstance(network, ForeignModel) or walks_through_loss(problem):
        return bool(_module_may_be_at_kink(problem))
    return not isinstance(network, ReLUNetwork) or _network_may_be_at_kink(network, task)


def _network_may_be_at_kink(network: ReLUNetwork, task: Task) -> bool:
    """Tell whether a pair of a network of flowlin's may be at its kink."""
    rounding, c = dtype_rounding(network.dtype), float(network.bias_strength)
    tiny = np.finfo(network.dtype).tiny / np.finfo(network.dtype).eps
    slope, h = float(network.slope), np.asarray(task.x)
    for w, b in zip(network.weights[:-1], network.biases[:-1], strict=True):
        w = np.asarray(w)
        z, inputs, of_bias = h @ w.T, np.sum(h**2, axis=1), 0.0
        if b is not None:
            inputs, of_bias = inputs + c**2, c * np.asarray(b)
        sizes = np.sqrt(inputs)[:, None] * np.linalg.norm(w, axis=1)[None] + np.abs(of_bias)
        z = z + of_bias
        if not np.all(np.abs(z) > WIDER * (rounding.z * sizes + tiny)):
            return True
        h = np.where(z > 0, z, slope * z)
    return False


@eqx.filter_jit
def _module_may_be_at_kink(problem: Problem) -> Bool[Array, ""]:
    """Tell whether a pair of a module, or of a network with a kinked loss, may be at its kink."""
    what = problem.loss, problem.time_constants
    flow = ModuleFlow(problem.network, problem.task, *what, shares=False)
    z = flow.forward_pass(problem.parameters, None).z[0]
    sizes = flow.scales_of_rounding(problem.parameters)
    return ~jnp.all(jnp.abs(z) > WIDER * flow.z_rounding(sizes))


def pairs_that_start_either_way(flow: Any, parameters: Parameters) -> Bool[Array, "H P"]:
    r"""Tell from which pairs two flows start: at kinks that repel, where both sides go on.

    At z = 0 the rate of z is r with the pair off and $r + (1 - s) C\, \phi^T D \phi$ with it on,
    all others at their kinks off, with $\phi = \partial z / \partial \theta$. With C > 0, the first
    not positive and the second positive, the pair may stay off, as in descent (relu'(0) = 0), or
    come on, as with smooth gates. For one hidden layer that is `may_start_on_either_side`.

    Pairs that come on only together with others above or below them are not told.

    **Arguments:** `flow` is a `DeepFlow` or a `ModuleFlow`.
    """
    parameters = lax.stop_gradient(parameters)
    z = jnp.concatenate(flow.forward_pass(parameters, None).z)
    # Pairs of zero weights, too, which have no scale. What no weight moves has no gradient.
    near = (jnp.abs(z) <= flow.z_rounding(flow.scales_of_rounding(parameters))) & flow.is_leader
    codes = flow.sides_of_followers(jnp.where((z > 0) & ~near, ON, OFF).astype(jnp.int8))
    at = flow.both_passes(parameters, flow.gates(codes))
    rates, drive = flow.preactivation_rates(parameters, at), flow.joint_drive(at)
    repels = near & (drive > flow.drive_rounding(parameters)) & (rates <= 0)

    def gradient_square(pair: Array) -> Array:
        return flow.gram_matrix(parameters, at, pair[None])[0, 0]

    def comes_on() -> Bool[Array, "H P"]:
        squares = lax.map(gradient_square, jnp.arange(z.size)).reshape(z.shape)
        return repels & (rates + (1 - flow.slope) * drive * squares > 0)

    return lax.cond(jnp.any(repels), comes_on, lambda: repels)


def log_starts(either: Bool[Array, "H P"], t0: ArrayLike, log: EventBuffer) -> EventBuffer:
    """Return the log with a branch for each pair from which two flows start."""
    branches = either.size + jnp.arange(either.size)
    reason = jnp.where(either.ravel(), STARTS_EITHER_WAY, 0).astype(jnp.int8)
    return log.append(t0, 0.0, branches, jnp.zeros_like(reason), reason)
