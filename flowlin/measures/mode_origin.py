"""What modes were made from, and whether a network and a task are of it."""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flowlin._tools.arrays import is_traced
from flowlin.networks.base import AbstractModel, AbstractOwnModel
from flowlin.networks.fit import require_fit
from flowlin.networks.graph import AbstractGraph
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.tasks.task import Task, has_entry_weights, weights_by_sample

MODES_ARE = "modes are"  # in errors
CHECK_REMEDY = "or pass `check=False` where other modes are meant, as for a control"


@runtime_checkable
class ModesLike(Protocol):
    """Modes, as far as it is known from them what they were made from; see `Modes`."""

    u: Array
    v: Array
    bias_strength: float
    fingerprint: Array | None


def task_fingerprint(task: Task) -> tuple[np.ndarray, np.ndarray]:
    r"""Return four numbers, (4,), that tell Sigma_yx and Sigma_x of one task from another's.

    Fixed projections, $r^T \Sigma_{yx} q$ and $q^T \Sigma_x q'$: of the samples, but not of their
    order, and the same in every precision up to its rounding.

    **Returns:** the numbers, and what their rounding is relative to, (4,).
    """
    (q, other), (r, another) = _project_rows(task.x), _project_rows(task.y)
    pairs = ((r, q), (another, other), (q, other), (q, q))
    found = weights_by_sample(task, MODES_ARE)
    weights = None if found is None else np.asarray(found)

    def sample_mean(values: np.ndarray) -> np.floating:
        return np.average(values, weights=weights)

    numbers = [sample_mean(a * b) for a, b in pairs]
    sizes = [np.sqrt(sample_mean(a**2) * sample_mean(b**2)) for a, b in pairs]
    return np.array(numbers), np.array(sizes)


def _project_rows(rows: Array) -> np.ndarray:
    """Project rows (P, N) on two fixed directions, (2, P)."""
    values = np.asarray(rows)
    directions = np.cos(np.outer(np.sqrt([2.0, 3.0]), np.arange(1, values.shape[1] + 1)))
    return directions.astype(values.dtype) @ values.T


def require_origin(
    modes: ModesLike, network: AbstractModel, task: Task | None = None, check: bool = True
) -> None:
    """Raise `ValueError` unless modes belong to a network and, where one is given, to a task.

    Shapes are always compared. The bias strength and the task's statistics are where `check` is
    True and the numbers are known, which they are not under `jit` and `vmap`.
    """
    _require_shapes(modes, network, task)
    if check:
        if isinstance(network, AbstractOwnModel):  # others have no bias that is known
            _require_bias_strength(modes, network)
        if task is not None:
            _require_data(modes, task)


def _require_shapes(modes: ModesLike, network: AbstractModel, task: Task | None) -> None:
    """Raise `ValueError` unless modes have the inputs and outputs of the task, or the network."""
    if task is not None:
        require_fit(network, task)
    own = modes.v.shape[-2] - bool(modes.bias_strength), modes.u.shape[-2]
    if task is not None:
        found = task.inputs, task.outputs
    else:
        assert isinstance(network, AbstractNetwork)
        found = network.weights[0].shape[-1], network.weights[-1].shape[-2]
    if found != own:
        raise ValueError(
            f"`modes` are of a task with {own[0]} inputs and {own[1]} outputs, and the network has "
            f"{found[0]} and {found[1]}; use `theory.modes` of the task that it is for."
        )


def own_bias_strength(network: AbstractOwnModel) -> Array | float:
    """Return the c of a network's modes: 0 without a bias where the inputs come in."""
    return network.bias_strength if _has_biases(network)[0] else 0.0


def _has_biases(network: AbstractOwnModel) -> tuple[bool, bool]:
    """Tell whether there are biases where the inputs come in, and whether there are any further on.

    In a graph the first are the biases of nodes that a source goes into.
    """
    if isinstance(network, AbstractGraph):
        sources = {node for node, _, _ in network.sources}
        entered = {b for a, b in network.edges if a in sources}
        return not entered.isdisjoint(network.biases), not entered.issuperset(network.biases)
    return network.biases[0] is not None, any(bias is not None for bias in network.biases[1:])


def _require_bias_strength(modes: ModesLike, network: AbstractOwnModel) -> None:
    """Raise `ValueError` unless the modes' c is the network's, as `own_bias_strength` has it."""
    c, own = modes.bias_strength, network.bias_strength
    first, later = _has_biases(network)
    if c and not (first or later):
        raise ValueError(
            f"`modes` are for c = {c:g} and the network has no bias; use `theory.modes(task, "
            f"network)`, {CHECK_REMEDY}."
        )
    if is_traced(own) or np.ndim(own) or not (first or c):
        return
    if not np.isclose(c, float(own), rtol=1e-6):
        raise ValueError(
            f"`modes` are for c = {c:g} and the network has c = {float(own):g}; use "
            f"`theory.modes(task, network)`, {CHECK_REMEDY}."
        )


def _require_data(modes: ModesLike, task: Task) -> None:
    """Raise `ValueError` unless the task has the statistics of the modes, as far as known."""
    weights_by_sample(task, MODES_ARE)
    known = modes.fingerprint
    if known is None or is_traced((known, task)) or known.ndim != 1:
        return
    if _is_elsewhere(task):
        return
    if not _fingerprint_agrees(known, task):
        named = f" {task.name!r}" if task.name else ""
        raise ValueError(
            f"`modes` are of other data than `task`{named}; use `theory.modes` of this task, "
            f"{CHECK_REMEDY}."
        )


def same_statistics(one: Task, other: Task) -> bool:
    """Tell whether two tasks of one shape have the same statistics, as far as known here.

    Where entries have weights of their own, whether they have the same rows.
    """
    if _is_elsewhere(one) or _is_elsewhere(other):
        return True
    if has_entry_weights(one) or has_entry_weights(other):
        return _rows_agree(one, other)
    return _fingerprint_agrees(jnp.asarray(task_fingerprint(one)[0], one.x.dtype), other)


def _rows_agree(one: Task, other: Task) -> bool:
    """Tell whether two tasks have the same arrays, up to the rounding of the coarser precision."""
    if not has_entry_weights(one) or not has_entry_weights(other):
        return False
    eps = max(np.finfo(task.x.dtype).eps for task in (one, other))
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(a.shape == b.shape and np.allclose(a, b, rtol=eps, atol=0) for a, b in pairs)


def _fingerprint_agrees(known: Array, task: Task) -> bool:
    """Tell whether a fingerprint is a task's, up to the rounding of the coarser precision."""
    # Means that are summed in another order or precision differ by some roundings of their terms.
    numbers, sizes = task_fingerprint(task)
    eps = max(np.finfo(array.dtype).eps for array in (known, task.x))
    return bool(np.all(np.abs(np.asarray(known) - numbers) <= 1e3 * eps * sizes))  # NaN is none


def _is_elsewhere(task: Task) -> bool:
    """Tell whether other processes hold a part of the task."""
    return isinstance(task.x, jax.Array) and not task.x.is_fully_addressable
