"""Checks that a run and a closed form are of one problem, and the distance between the two."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arrays import is_traced
from flowlin._tools.numerics import safe_divide
from flowlin.measures.mode_origin import same_statistics
from flowlin.record.trajectory import Trajectory
from flowlin.tasks.task import Task
from flowlin.training.loss import Loss
from flowlin.training.rules import MOVED_BY
from flowlin.training.squared_error import SquaredError

CHECK_ADVICE = "or pass `check=False` where the comparison is meant"


def relative_distance(closed: Array, numerical: Array) -> Float[Array, " T"]:
    """Return the norm of the difference of matrices (T, N, M) over the run's largest norm, (T,).

    For a run of zeros it is taken over the largest norm of the closed form; 0 of two zeros.

    **Raises:** `ValueError` for a run whose numbers are not as many as those of the closed form.
    """
    if closed.shape != numerical.shape:
        raise ValueError(
            "`flow` is of another network or task than the closed form: it has "
            f"{numerical.shape[1:]} numbers at every time, which has {closed.shape[1:]}."
        )
    difference = jnp.linalg.norm(closed - numerical, axis=(1, 2))
    size, own = (jnp.max(jnp.linalg.norm(z, axis=(1, 2))) for z in (numerical, closed))
    return safe_divide(difference, jnp.where(size > 0, size, own), 0.0)


def require_same_problem(
    flow: Trajectory,
    task: Task,
    tau: ArrayLike,
    loss: SquaredError = SquaredError(),
    trained: tuple[bool, ...] | None = None,
) -> None:
    """Raise `ValueError` unless a run solves the closed form's problem, as far as it is known.

    A loaded run knows neither its task nor which arrays it held fixed, and a traced one no numbers.
    """
    _require_same_loss(flow, task, tau, loss)
    run, own = flow.reference.run, flow.reference.task
    label = dict(flow.labels).get("objective", "")  # known of files, too
    if rule := label.partition(MOVED_BY)[2]:
        raise ValueError(
            f"`flow` is moved by {rule}, and the closed form is gradient flow's; run it without a "
            f"`rule`, {CHECK_ADVICE}."
        )
    altered = label.partition(", ")[2]
    if run is not None and run.problem.decay is not None:
        altered = "with weight decay"
    if altered:
        raise ValueError(
            f"`flow` descends another function than its loss ({altered}), for which the closed "
            f"form is not; run it without, {CHECK_ADVICE}."
        )
    if run is not None and run.problem.trained != trained:
        raise ValueError(
            "`flow` moves other arrays of the network than the closed form does; give both the "
            f"same `trainable`, none for all arrays, {CHECK_ADVICE}."
        )
    if own is None or own is task or is_traced((own, task)):
        return
    if (own.inputs, own.outputs) != (task.inputs, task.outputs) or not same_statistics(own, task):
        named = f" {own.name!r}" if own.name else ""
        raise ValueError(
            f"`flow` is of other data than the closed form, those of its task{named}; give both "
            f"the same task, {CHECK_ADVICE}."
        )


def _require_same_loss(flow: Trajectory, task: Task, tau: ArrayLike, loss: SquaredError) -> None:
    """Raise `ValueError` unless a run descends the squared error at the closed form's speed.

    Sum and mean give one curve: the sum at tau is the mean at tau over the weight of all samples.
    """
    own: Loss = flow.reference.loss
    if not isinstance(own, SquaredError):
        raise ValueError(
            f"`flow` descends {own}, and the closed form is for the squared error; run it with "
            f"`loss=fl.SquaredError()`, {CHECK_ADVICE}."
        )
    if is_traced((flow.tau, tau, task)):
        return
    asked = np.asarray(tau) * own.factor_per_sample(task.mass) / loss.factor_per_sample(task.mass)
    if np.any(np.isnan(flow.tau)):
        raise ValueError(
            "`flow` has a `tau` that depends on time, and the closed form is that of one number; "
            f"run it with `tau={float(asked):.6g}`, {CHECK_ADVICE}."
        )
    if not np.allclose(flow.tau, asked, rtol=1e-5):
        means = f" with {own}" if own != loss else ""
        raise ValueError(
            f"`flow` has tau = {flow.tau}{means}, and the closed form is that of tau = "
            f"{float(asked):.6g}{means}; pass that as `tau` of the run, {CHECK_ADVICE}."
        )


def require_same_start(flow: Trajectory, own: PyTree, part: Callable[..., PyTree]) -> None:
    """Raise `ValueError` unless a run starts where the closed form does, where that is known.

    `part` of the run's first network is compared with `own`, up to half the digits of the coarser
    precision, since products of many numbers lose some.
    """
    if is_traced((flow.ts, own)):
        return
    first = None if flow.reference.run is None else flow.reference.run.network
    if len(flow.ts) and float(flow.ts[0]) == 0:
        first = jax.tree.map(lambda a: a[0], flow.models)
    if first is None:
        return
    for found, wanted in zip(jax.tree.leaves(part(first)), jax.tree.leaves(own), strict=True):
        eps = max(float(jnp.finfo(a.dtype).eps) for a in (found, wanted))
        size = np.linalg.norm(wanted)
        if found.shape != wanted.shape or np.linalg.norm(found - wanted) > eps**0.5 * size:
            raise ValueError(
                "`flow` starts from another network than the closed form; run it from the network "
                f"that this was made of, {CHECK_ADVICE}."
            )
