"""What modes were made from, and whether a network and a task are of it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flowlin._tools.arrays import is_traced
from flowlin.network.graph_forward import AbstractGraph
from flowlin.network.kinds import AbstractNetwork
from flowlin.network.model import AbstractModel
from flowlin.network.own import AbstractOwn
from flowlin.tasks.task import Task

MEANT = "or pass `check=False` where other modes are meant, as for a control"


def fingerprint(task: Task) -> tuple[np.ndarray, np.ndarray]:
    r"""Four numbers that tell Sigma_yx and Sigma_x of one task from those of another, (4,).

    Fixed projections, $r^T \Sigma_{yx} q$ and $q^T \Sigma_x q'$: of the samples, but not of their
    order, and the same in every precision up to its rounding.

    **Returns:** the numbers, and what their rounding is relative to, (4,).
    """
    (q, other), (r, another) = _projected(task.x), _projected(task.y)
    pairs = ((r, q), (another, other), (q, other), (q, q))
    weights = None if task.weights is None else np.asarray(task.weights)

    def mean(values: np.ndarray) -> np.floating:
        return np.average(values, weights=weights)

    numbers = [mean(a * b) for a, b in pairs]
    sizes = [np.sqrt(mean(a**2) * mean(b**2)) for a, b in pairs]
    return np.array(numbers), np.array(sizes)


def _projected(rows: Array) -> np.ndarray:
    """Rows (P, N) along two fixed directions, (2, P)."""
    values = np.asarray(rows)
    directions = np.cos(np.outer(np.sqrt([2.0, 3.0]), np.arange(1, values.shape[1] + 1)))
    return directions.astype(values.dtype) @ values.T


def require_origin(
    modes: Any, network: AbstractModel, task: Task | None = None, check: bool = True
) -> None:
    """Raise `ValueError` unless modes go with a network and, where it is given, a task.

    Shapes are always compared. The bias strength and the task's statistics are where `check` is
    True and the numbers are known, which they are not under `jit` and `vmap`.
    """
    _require_shapes(modes, network, task)
    if check:
        if isinstance(network, AbstractOwn):  # others have no bias that is known
            _require_bias_strength(modes, network)
        if task is not None:
            _require_data(modes, task)


def _require_shapes(modes: Any, network: AbstractModel, task: Task | None) -> None:
    if task is not None:
        network.require_fit(task)
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


def own_bias_strength(network: AbstractOwn) -> Array | float:
    """The c of a network's modes: 0 without a bias where the inputs come in."""
    return network.bias_strength if _biased(network)[0] else 0.0


def _biased(network: AbstractOwn) -> tuple[bool, bool]:
    """Whether there are biases where the inputs come in, and whether there are any further on.

    Of a graph the first are those of nodes that a source goes into.
    """
    if isinstance(network, AbstractGraph):
        sources = {node for node, _, _ in network.sources}
        entered = {b for a, b in network.edges if a in sources}
        return not entered.isdisjoint(network.biases), not entered.issuperset(network.biases)
    return network.biases[0] is not None, any(bias is not None for bias in network.biases[1:])


def _require_bias_strength(modes: Any, network: AbstractOwn) -> None:
    """The c of the modes is that of the network: 0 without a bias where the inputs come in."""
    c, own = modes.bias_strength, network.bias_strength
    first, later = _biased(network)
    if c and not (first or later):
        raise ValueError(
            f"`modes` are for c = {c:g} and the network has no bias; use `theory.modes(task, "
            f"network)`, {MEANT}."
        )
    if is_traced(own) or np.ndim(own) or not (first or c):
        return
    if not np.isclose(c, float(own), rtol=1e-6):
        raise ValueError(
            f"`modes` are for c = {c:g} and the network has c = {float(own):g}; use "
            f"`theory.modes(task, network)`, {MEANT}."
        )


def _require_data(modes: Any, task: Task) -> None:
    """The task's statistics are those of the modes."""
    known = modes.fingerprint
    if known is None or is_traced((known, task)) or known.ndim != 1:
        return
    if _is_elsewhere(task):
        return
    if not _agree(known, task):
        named = f" {task.name!r}" if task.name else ""
        raise ValueError(
            f"`modes` are of other data than `task`{named}; use `theory.modes` of this task, "
            f"{MEANT}."
        )


def of_data(one: Task, other: Task) -> bool:
    """Whether two tasks of one shape have the same statistics, as far as this process knows."""
    held = [task for task in (one, other) if not _is_elsewhere(task)]
    return len(held) < 2 or _agree(jnp.asarray(fingerprint(one)[0], one.x.dtype), other)


def _agree(known: Array, task: Task) -> bool:
    """Whether a fingerprint is a task's, up to the rounding of the coarser precision."""
    numbers, sizes = fingerprint(task)
    eps = max(np.finfo(array.dtype).eps for array in (known, task.x))
    return bool(np.all(np.abs(np.asarray(known) - numbers) <= 1e3 * eps * sizes))  # NaN is none


def _is_elsewhere(task: Task) -> bool:
    """Whether other processes hold a part of it."""
    return isinstance(task.x, jax.Array) and not task.x.is_fully_addressable
