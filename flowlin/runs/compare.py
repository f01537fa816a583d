"""Distances between a continuous and a discrete run over time."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowlin._tools.arguments import checked
from flowlin._tools.arrays import Real, is_traced, replace_fields, take_rows, weight_rows
from flowlin._tools.files import saveable
from flowlin._tools.printing import Summary, concrete_array, format_number, format_times, print_by
from flowlin.networks.base import AbstractModel
from flowlin.record.trajectory import Trajectory
from flowlin.tasks.task import Task
from flowlin.training.loss import Loss


def comparison_summary(found: "Comparison") -> Summary:
    """Print each distance at the last time, and the largest."""
    times, rows = concrete_array(found.ts, 1), []
    for name in ("parameters", "function", "loss"):
        values = concrete_array(getattr(found, name), 1)
        if values is None or times is None:
            rows.append((name, format_number(getattr(found, name))))
            continue
        largest = values[np.argmax(np.abs(values))]
        rows.append(
            (name, f"{format_number(values[-1])} at the end", f"largest {format_number(largest)}")
        )
    when = format_number(found.ts) if times is None else format_times(times)
    return Summary(f"Comparison at {when}", rows)


@print_by(comparison_summary)
@saveable()
class Comparison(eqx.Module):
    """Distances between two runs at the times `ts` (T,) of the second, as `compare` returns them.

    - `parameters`: norm of the difference of all weights and biases over the first run's norm.
    - `function`: root mean square of the difference of the outputs over that of the first run's
      outputs, on the task.
    - `loss`: second run's loss minus the first's.
    """

    ts: Float[Array, " T"]
    parameters: Float[Array, " T"]
    function: Float[Array, " T"]
    loss: Float[Array, " T"]


@checked
def compare(flow: Trajectory, descent: Trajectory) -> Comparison:
    """Measure how far two runs of one task are apart over time: parameters, function and loss.

    The two are usually a flow and a descent from the same network; any trajectories will do.

    **Arguments:** `flow` with `dense=True`, or saved at the times of `descent`
    (`ts=descent.ts`); `descent` with saved networks. Times of `descent` after the end of `flow`
    are left out.

    **Returns:** `Comparison` at those times, (T,) each.

    **Raises:** `ValueError` if the times do not match, the runs have other tasks (but for their
    names) or networks of other shapes, or one was made under `jit` with the task as an argument,
    so that the task is not known.
    """
    task, loss = descent.reference.task, descent.reference.loss
    if task is None or flow.reference.task is None or is_traced((flow, descent)):
        raise ValueError("`compare` needs runs made outside jit and vmap, which know their task.")
    # A name is no part of what is trained on.
    tasks = [replace_fields(one, name="") for one in (flow.reference.task, task)]
    if not eqx.tree_equal(*tasks) or loss != flow.reference.loss:
        raise ValueError("`flow` and `descent` were trained on different tasks or losses.")
    shapes = [[a.shape for a in jax.tree.leaves(r.model.parameters)] for r in (flow, descent)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "`flow` and `descent` are of networks of other shapes, with parameters "
            f"{shapes[0]} and {shapes[1]}; compare runs from one network."
        )
    # Both runs may have rounded the same times otherwise.
    kept = np.asarray(descent.ts) <= float(flow.end) * (1 + 1e-12)
    ts = jax.device_put(np.minimum(np.asarray(descent.ts)[kept], np.asarray(flow.end)))
    others = take_rows(descent.models, kept)
    networks = flow.model_at(ts) if flow.dense is not None else _networks_at(flow, ts)

    return Comparison(ts, *run_distances(networks, others, task, loss))


@eqx.filter_jit
def run_distances(
    networks: AbstractModel, others: AbstractModel, task: Task, loss: Loss
) -> tuple[Float[Array, " T"], Float[Array, " T"], Float[Array, " T"]]:
    """Return distances (T,) of parameters, function, loss of stacked networks; 0 of two zeros."""

    def relative_norm(off: Real, size: Real) -> Array:
        return jnp.where(off == 0, 0.0, jnp.sqrt(off / jnp.where(off == 0, 1.0, size)))

    @jax.vmap
    def network_distances(
        first: AbstractModel, second: AbstractModel
    ) -> tuple[Array, Array, Array]:
        pairs = list(
            zip(jax.tree.leaves(first.parameters), jax.tree.leaves(second.parameters), strict=True)
        )
        off = sum(jnp.sum((a - b) ** 2) for a, b in pairs)
        size = sum(jnp.sum(a**2) for a, _ in pairs)
        f, g = first.outputs(task.x), second.outputs(task.x)
        gap, whole = (jnp.sum(weight_rows(a**2, task.weights)) for a in (f - g, f))
        before, after = (loss(a, task.y, task.weights) for a in (f, g))
        return relative_norm(off, size), relative_norm(gap, whole), after - before

    return network_distances(networks, others)


def _networks_at(flow: Trajectory, ts: Array):
    """Return the saved networks of a flow at times (T,), stacked; `ValueError` if not saved."""
    saved = np.asarray(flow.ts)
    place = np.searchsorted(saved, np.asarray(ts) * (1 - 1e-12))
    place = np.minimum(place, len(saved) - 1)
    if not len(saved) or not np.allclose(saved[place], ts, rtol=1e-9, atol=0):
        raise ValueError(
            "the runs were saved at different times; run the flow with `dense=True` or with "
            "`ts=descent.ts`."
        )
    return take_rows(flow.models, place)
