"""Reading trajectories that `flow.save` has written; `flowlin._tools.files` has the format."""

import itertools
import math
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from flowlin._tools.arguments import ARGUMENT_HINTS, checked, with_article
from flowlin._tools.arrays import PathLike
from flowlin._tools.files import file_errors, read_file, require_type
from flowlin.networks.gated_module import GatedModule
from flowlin.networks.globally_gated import GloballyGatedNetwork
from flowlin.networks.graph import GatedGraph
from flowlin.networks.layered import AbstractLayered
from flowlin.networks.modules import ForeignModel, any_module, as_model
from flowlin.record.branch_reason import REASONS
from flowlin.record.event_log import EventLog
from flowlin.record.results import RESULTS
from flowlin.record.trajectory import Trajectory
from flowlin.training.loss import Loss

ARGUMENT_HINTS["load.task"] = (
    "path",
    "a file has no part for it. A loaded run goes on by a run of its last network, "
    "fl.gradient_flow(flow.final, task, t1); one with `checkpoint=file` by the same call.",
)


@checked(like=any_module)
def load(path: PathLike, like: eqx.Module | None = None) -> Trajectory:
    """Read a trajectory that `flow.save(path)` has written.

    It has everything but dense output, the task, and what `extend` needs; of a function that was
    its loss it has the name. NumPy arrays and JSON alone are read; nothing in the file is
    executed. Files of earlier versions of flowlin are read too.

    **Arguments:**

    - `path`: of the file.
    - `like`: for a run of an Equinox module that is not flowlin's own, a module of the same
      kind, whatever the values of its arrays: those of the file take their places, by their
      order in the tree, and functions and other fields are this module's. Its class, numbers and
      functions are compared with those that were saved, functions by name; of files of flowlin
      0.2.0 and before the class alone.

    **Returns:** `Trajectory`, with its times, networks, losses, events and observations.

    **Raises:** `ValueError` for a missing `like`, one of another kind or with other arrays; for a
    file that is damaged, of another kind or of a later version, or in float64 while JAX is set to
    float32; `FileNotFoundError` if there is none.
    """
    own = None if like is None else as_model("like", like)
    found = read_file("path", path).content
    if not isinstance(found, Trajectory):
        raise ValueError(
            f"`path` = {os.fspath(path)!r} holds no trajectory but a {type(found).__name__}; give "
            "a file that `flow.save` has written."
        )
    if own is None and isinstance(found.model, (ForeignModel, GatedModule)):
        raise ValueError(
            f"`path` = {os.fspath(path)!r} holds a run of {with_article(found.model.name)}, of "
            "which a file keeps the arrays only; pass `like`, a module of the same kind."
        )
    if own is not None:
        found = found.with_module(own, "like")
    with file_errors("path", path):
        check_trajectory(found)
    return found


def check_trajectory(flow: Trajectory) -> None:
    """Raise `ValueError` unless the fields of a trajectory from a file fit each other."""
    require_type(flow, Trajectory, "trajectory")
    if not isinstance(flow.result, type(RESULTS.successful)):
        raise ValueError("`trajectory.result` is no result of a run")
    require_type(flow.counts, dict[str, jax.Array], "trajectory.counts")
    require_type(flow.reference.loss, Loss, "trajectory.reference")
    counts = flow.counts.values()
    numbers = all(count.ndim == 0 and count.dtype.kind in "iuf" for count in counts)
    _require_fits("counts", "num_steps" in flow.counts and numbers)
    _require_fits("labels", "solver" in dict(flow.labels))
    if isinstance(flow.model, AbstractLayered):
        _check_network(flow.model, flow.samples)
    if isinstance(flow.model, GatedGraph):
        _check_graph(flow.model, flow.samples)
    length = flow.ts.shape[0]
    rows = [a.shape[:1] for a in jax.tree.leaves(flow.observed) if isinstance(a, jax.Array)]
    if any(row != (length,) for row in rows):
        raise ValueError(f"`trajectory.observed` does not have a row for each of {length} times")
    if flow.saved is not None:
        _require_fits("saved", _is_saved(flow.saved, flow.model.parameters, length))
    _check_events(flow.events, flow.model.hidden, flow.samples)
    for (layer, _), counts in (flow.step_counts or {}).items():
        hidden = dict(enumerate(flow.model.hidden))
        _require_fits("step_counts", hidden.get(layer) == counts.units)
    for (layer, *_), pair in (flow.window_counts or {}).items():
        hidden = dict(enumerate(flow.model.hidden))
        _require_fits("window_counts", {hidden.get(layer)} == {counts.units for counts in pair})


def _is_saved(saved: PyTree, parameters: PyTree, length: int) -> bool:
    """Tell whether saved rows fit the parameters; those that did not move have no rows."""
    structure = jax.tree.structure(parameters)
    try:
        found = structure.flatten_up_to(saved)
    except ValueError:
        return False
    pairs = list(zip(found, structure.flatten_up_to(parameters), strict=True))
    rows = [(new, own) for new, own in pairs if new is not None]
    return bool(rows or not pairs) and all(
        isinstance(new, jax.Array) and new.shape == (length, *own.shape) for new, own in rows
    )


def _check_network(network: AbstractLayered, samples: int) -> None:
    """Raise `ValueError` unless the shapes of a network chain."""
    weights, biases, copies = network.weights, network.biases, 1
    if isinstance(network, GloballyGatedNetwork):
        _require_fits("final.gates", network.gates.ndim == 2 and len(network.gates) == samples)
        copies = network.gates.shape[1]
    chain = all(w.ndim == 2 and w.size for w in weights) and all(
        w.shape[1] == copies * v.shape[0] for v, w in itertools.pairwise(weights)
    )
    fine = len(weights) > 0 and chain and len(biases) == len(weights)
    _require_fits("final.weights", fine)
    for w, b in zip(weights, biases, strict=True):
        _require_fits("final.biases", b is None or b.shape == w.shape[:1])
    numbers = network.bias_strength, getattr(network, "slope", network.bias_strength)
    _require_fits("final", not any(map(np.ndim, numbers)))
    for gate, width in zip(getattr(network, "given_gates", ()), network.hidden, strict=False):
        _require_fits("final.given_gates", gate.shape in ((width,), (samples, width)))
    dtypes = {a.dtype for a in jax.tree.leaves(network)}
    _require_fits("final", len(dtypes) == 1 and jnp.issubdtype(dtypes.pop(), jnp.floating))


def _check_graph(network: GatedGraph, samples: int) -> None:
    """Raise `ValueError` unless the parts of a graph fit each other and the samples."""
    slices = [
        {name: slice(a, b) for name, a, b in part} for part in (network.sources, network.sinks)
    ]
    GatedGraph(
        network.weights, network.biases, network.bias_strength, node_gates=network.node_gates,
        edge_gates=network.edge_gates, inputs=slices[0], outputs=slices[1],
    )  # fmt: skip
    _require_fits("final.node_gates", network.gated_samples in (None, samples))
    _require_fits("final", len({a.dtype for a in jax.tree.leaves(network)}) == 1)


def _check_events(log: EventLog, hidden: tuple[int, ...], samples: int) -> None:
    """Raise `ValueError` unless all events belong to components that exist."""
    sizes = [channel.shape for channel in log.channels]
    fine = all(size >= 0 for shape in sizes for size in shape)
    fine = fine and log.initial.shape == (sum(math.prod(shape) for shape in sizes),)
    _require_fits("events.channels", fine)
    component = np.asarray(log.component)[np.isfinite(np.asarray(log.time))]
    _require_fits("events.component", np.all((component >= 0) & (component < log.initial.shape[0])))
    for side, most in (("old", 1), ("new", max(REASONS)), ("initial", 1)):
        _require_fits(f"events.{side}", np.all(np.abs(np.asarray(getattr(log, side))) <= most))
    for channel in log.channels:
        if channel.name == "gate":
            units = dict(enumerate(hidden)).get(*channel.prefix) if channel.prefix else None
            if units is None and channel.units_at:  # of the loss, behind all layers
                units = channel.units_at.units
            _require_fits("events.channels", channel.shape == (units, samples))


def _require_fits(field: str, fine: object) -> None:
    if not fine:
        raise ValueError(f"`trajectory.{field}` does not fit the rest of the run")
