"""What is said of a flow that did not reach its end."""

import math

import jax
import numpy as np

from flowlin._tools.numerics import dtype_rounding
from flowlin._tools.printing import format_count
from flowlin.engine.integrate import FlowRun
from flowlin.engine.kinks.kink_places import kink_places, walks_through_loss
from flowlin.engine.kinks.loss_warning import trouble_of_loss
from flowlin.engine.run import Limits
from flowlin.networks.kink_program import KinkProgram, preactivations_by_place
from flowlin.networks.modules import ForeignModel
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.record.results import RESULTS, result_is
from flowlin.record.trajectory import Trajectory
from flowlin.training.loss_kinks import join_loss
from flowlin.training.problem import Problem

MOST_PAIRS = 4  # named one by one


def flow_failure(flow: Trajectory, limits: Limits, run: FlowRun) -> str:
    """Return in words what went wrong and what to do about it."""
    kinks, schedule = run.method.kinks, run.problem.schedule
    reached = f"t = {float(flow.end):.6g} after {int(flow.counts['num_steps'])} steps"
    remedy = f"{kinks.remedy(flow.model)}{trouble_of_loss(run.problem, kinks)}"
    if result_is(flow.result, RESULTS.max_steps_reached):
        if flow.reference.run.horizon == math.inf:
            return (
                f"`max_steps` = {limits.steps} reached at {reached}, and no event has ended the "
                "run. Watch for one that happens, give a finite `t1`, or increase `max_steps`."
            )
        return (
            f"`max_steps` = {limits.steps} reached at {reached}. Increase it, or loosen "
            f"`rtol`{remedy}."
        )
    if result_is(flow.result, RESULTS.dt_min_reached):
        if schedule is not None and (why := schedule.trouble_after(flow.end, run.t1)):
            return f"the run stopped at {reached}: {why}"
        return (
            f"the step size shrank to nothing at {reached}: the loss is not finite there, or its "
            f"gradient jumps{remedy}."
        )
    if result_is(flow.result, RESULTS.event_overflow):
        return (
            f"{int(flow.events.count)} events happened and `max_events` = {limits.events}. "
            "Increase it, watch fewer components, or end the run earlier."
        )
    if result_is(flow.result, RESULTS.sides_unsolved):
        return f"{RESULTS[flow.result]} At {reached} {_pairs_at_kinks(flow, run.problem)}{remedy}."
    return f"{RESULTS[flow.result]}, at {reached}{remedy if kinks.walks else ''}."


def _pairs_at_kinks(flow: Trajectory, problem: Problem) -> str:
    """Say which pairs are at their kinks where a walk ended undecided.

    These are those whose z is rounding beside the others of their place, and those that the log
    has at this very time.
    """
    near = dtype_rounding(problem.network.dtype).snap
    found = set()
    for layer, z in enumerate(_kink_values(flow, problem)):
        sizes = np.abs(z)
        rounding = np.argwhere(sizes <= near * np.max(sizes, initial=0.0))
        found |= {(layer, int(unit), int(sample)) for sample, unit in rounding}
    log = flow.events.select("gate")
    late = np.asarray(log.time) >= float(flow.end) * (1 - near)
    found |= {index for index, there in zip(log.index, late, strict=True) if there}
    places = kink_places(problem)
    names = [places[layer].pair_name(*pair) for layer, *pair in sorted(found)[:MOST_PAIRS]]
    rest = f"; and {len(found) - MOST_PAIRS} more" if len(found) > MOST_PAIRS else ""
    are = "is at its kink" if len(found) == 1 else "are at their kinks"
    named = f": {'; '.join(names)}{rest}" if names else ""
    return f"{format_count(len(found), 'pair')} {are}{named}"


def _kink_values(flow: Trajectory, problem: Problem) -> list[np.ndarray]:
    """Return the z of each place with kinks at a run's end, those of the loss last, (P, H) each."""
    network, task = flow.model, problem.task
    if isinstance(network, ReLUNetwork) and not walks_through_loss(problem):
        return [np.asarray(z) for z in network.preactivations(task.x)]
    if isinstance(network, ForeignModel) or walks_through_loss(problem):
        model, task, _ = join_loss(network, task, problem.loss)
        program = model.kink_program(task.inputs)
        if isinstance(program, KinkProgram):
            leaves = jax.tree.leaves((model.parameters, model.buffers))
            return [np.asarray(z) for z in preactivations_by_place(program, leaves, task.x)]
    return []
