"""A warning where a modified flow is no longer descent: its rate is past the edge of stability."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arrays import Parameters, is_traced
from flowlin._tools.warn import warn_user
from flowlin.engine.integrate import FlowRun
from flowlin.engine.solvers.rkc import direction, spectral_radius
from flowlin.networks.trainable import trainable_part
from flowlin.record.trajectory import Trajectory
from flowlin.training.objective import ModifiedLoss
from flowlin.training.problem import Problem

STABILITY_EDGE = 2.0  # rate times curvature; from here on descent does not go down a parabola
EDGE_ITERATIONS = 100  # of the power iteration


class RateWarning(UserWarning):
    """A modified flow is not that of descent: its rate is past the edge of stability."""


def warn_past_edge(run: FlowRun, flow: Trajectory | None = None) -> bool:
    r"""Warn (`RateWarning`) of a modified flow whose rate is past the edge of stability.

    The modified loss is an expansion in eps h, h the curvature. Along a direction of curvature h a
    step of descent multiplies by 1 - eps h, and the modified flow in that time by
    $e^{-\epsilon h - (\epsilon h)^2 / 2}$: at eps h = 2 by -1 and by 0.02. It is measured at the
    start, or at the end of `flow`; under `jit` and `vmap` not at all.

    **Returns:** whether it warned.
    """
    goal = run.method.objective
    if not isinstance(goal, ModifiedLoss) or is_traced((run, flow)):
        return False
    network = run.problem.network if flow is None else flow.model
    size = float(goal.learning_rate * _plain_hessian_radius(run.problem, goal, network.parameters))
    if size >= STABILITY_EDGE:
        at = "t = 0" if flow is None else f"the end, t = {float(flow.end):.6g}"
        rate = float(goal.learning_rate)
        warn_user(
            f"`modified_rate` = {rate:.6g} times the spectral radius of the Hessian is {size:.3g} "
            f"at {at}, past the edge of stability at 2. The modified flow is an expansion in this "
            "number, and there it is not what descent does. Take a rate well below "
            f"{STABILITY_EDGE * rate / size:.3g}, or run `fl.gradient_descent` itself.",
            RateWarning,
        )
    return size >= STABILITY_EDGE


@eqx.filter_jit
def _plain_hessian_radius(
    problem: Problem, goal: ModifiedLoss, parameters: Parameters
) -> Float[Array, ""]:
    """Return a lower bound on the spectral radius of the plain loss's Hessian in what moves."""
    at = trainable_part(parameters, problem.trained)

    def plain_gradient(part: Parameters) -> Parameters:
        return goal.plain.gradient(problem.network, part)

    _, product = jax.linearize(plain_gradient, at)
    nothing = jax.tree.map(jnp.zeros_like, at)
    start = direction(at), jnp.zeros((), problem.network.dtype)
    return spectral_radius(product, nothing, nothing, *start, EDGE_ITERATIONS, "lax")[1]
