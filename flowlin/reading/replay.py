"""The flow of a gated linear network whose gates, and when they switch, are those of a ReLU run."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from flowlin._tools.flat import as_tree
from flowlin._tools.types import Parameters
from flowlin.field.gates.fractions import effective_gates, sides_of
from flowlin.field.gates.one_layer import GatedFlow
from flowlin.field.problem import Problem
from flowlin.field.vector_field import GradientField, objective
from flowlin.reading.history import History


def replayed(
    problem: Problem, flow: GatedFlow, dense: Any, history: History, slots: int, rtol: float
) -> Parameters:
    r"""Parameters at the end, from those at the start, through all intervals.

    Nothing of the weights is handed over, only the gates g(t) of the run's own weights: the field
    is that of a `GatedLinearNetwork`, by automatic differentiation. Where pairs slide their z is
    zero in the run, and here only as exactly as g(t) makes it.
    """
    parameters = problem.parameters
    spans = zip(history.times[:-1], history.times[1:], history.sides[0], strict=True)
    for start, end, codes in spans:
        parameters = _through(
            problem, flow, dense, jnp.asarray(start), jnp.asarray(end), parameters,
            jnp.asarray(codes), slots, jnp.asarray(rtol),
        )  # fmt: skip
    return parameters


@eqx.filter_jit
def _through(problem, flow, dense, start, end, parameters, codes, slots, rtol):
    """From the beginning of an interval to its end."""
    sides = sides_of(flow.kinks, codes, slots)
    network = problem.network
    blank = network.frozen(problem.task)
    descended = objective(blank, problem.task, problem.loss, decay=problem.decay)

    def velocity(t, y, args):
        gates = effective_gates(flow, lax.stop_gradient(as_tree(dense.evaluate(t))), sides)
        gated = blank.with_sample_gates((gates.T,))
        return GradientField(descended, gated, problem.constants)(t, y, args)

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),  # pyright: ignore
        diffrax.Dopri8(),
        start,
        end,
        None,
        parameters,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol / 100),
        saveat=diffrax.SaveAt(t1=True),
        max_steps=None,
        adjoint=diffrax.ForwardMode(),
    )
    assert solution.ys is not None
    return jax.tree.map(lambda a: a[0], solution.ys)
