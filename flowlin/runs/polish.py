"""The critical point of the loss beside a network, to rounding, and the loss's curvature there."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from flowlin._tools.arguments import checked, integer_from
from flowlin._tools.arrays import Numbers, is_traced, require_no_nan
from flowlin._tools.memory import require_memory
from flowlin._tools.numerics import jit_by_array
from flowlin._tools.printing import Summary, format_number, print_by
from flowlin._tools.warn import warn_user
from flowlin.measures.sharpness import ROWS_AT_ONCE
from flowlin.networks.base import AbstractModel
from flowlin.networks.modules import any_module, as_model, as_module
from flowlin.networks.trainable import trainable_flags, trainable_part
from flowlin.record.measured import require_targets
from flowlin.runs.run_options import decay_of
from flowlin.tasks.task import Task
from flowlin.training.function_loss import AnyLoss, as_loss
from flowlin.training.objective import AbstractObjective, FullData, with_decay
from flowlin.training.squared_error import SquaredError

COPIES_OF_HESSIAN = 8  # at once: the Hessian, what is factorised, and its eigenvectors
FIRST_STIFFNESS = 1e3  # of what the solver solves: the Hessian over the root of the first damping
GRADIENT_ROUNDINGS = 64.0  # of Hessian times parameters, below which a gradient is rounding


class PolishWarning(UserWarning):
    """No critical point was found: the gradient that is left is more than rounding."""


def _critical_point_summary(point: "CriticalPoint") -> Summary:
    values = np.asarray(point.eigenvalues)
    if values.ndim > 1:
        return Summary("CriticalPoint", [("points", f"{values.shape[:-1]}")])
    kind = "a saddle" if int(point.index) else "a minimum"
    if not int(point.index) and int(point.nullity):
        kind = "a minimum to second order"
    flat = f", {int(point.nullity)} flat" if int(point.nullity) else ""
    left = "gradient at rounding" if bool(point.converged) else "NOT converged: gradient"
    return Summary(
        f"CriticalPoint: {kind}" if bool(point.converged) else "CriticalPoint: none was found",
        [
            ("loss", format_number(point.loss)),
            (left, format_number(point.gradient_norm, 3)),
            ("directions", f"{values.size}: {int(point.index)} downwards{flat}"),
            ("eigenvalues", f"{format_number(values[0])} ... {format_number(values[-1])}"),
            ("moved", f"{format_number(point.moved, 3)} in {int(point.steps)} steps"),
        ],
    )


@print_by(_critical_point_summary)
class CriticalPoint(eqx.Module):
    """A point where the gradient is zero to rounding, as `fl.polish` finds it.

    - `network`: the network there, of the kind that was given.
    - `loss`: its loss, without weight decay.
    - `gradient_norm`: the Euclidean norm of the gradient of what is descended, decay included.
    - `eigenvalues`: those of the Hessian of what is descended, (N,) ascending, one for each of the
      N numbers that move. Near the point the flow's deviations along their eigenvectors decay as
      $e^{-\\lambda t / \\tau}$.
    - `moved`: the Euclidean distance from the given parameters.
    - `steps`: of the solver, rejected ones included.
    - `converged`: whether the gradient is down to rounding.
    """

    network: Any
    loss: Float[Array, "*batch"]
    gradient_norm: Float[Array, "*batch"]
    eigenvalues: Float[Array, "*batch N"]
    moved: Float[Array, "*batch"]
    steps: Int[Array, "*batch"]
    converged: Bool[Array, "*batch"]

    @property
    def index(self) -> Int[Array, "*batch"]:
        """Return the number of directions in which the loss falls to second order.

        It is 0 at a minimum. Where directions are flat, 0 does not tell one from a saddle: at
        w = 0 of three and more layers the whole Hessian is zero.
        """
        return jnp.sum(self.eigenvalues < -self._zero_size, axis=-1)

    @property
    def nullity(self) -> Int[Array, "*batch"]:
        """Return the number of directions in which the loss is flat to second order."""
        return jnp.sum(jnp.abs(self.eigenvalues) <= self._zero_size, axis=-1)

    @property
    def _zero_size(self) -> Float[Array, "*batch 1"]:
        """Return what rounding makes of an eigenvalue that is zero, as for a matrix's rank."""
        values = self.eigenvalues
        largest = jnp.max(jnp.abs(values), axis=-1, keepdims=True)
        return values.shape[-1] * jnp.finfo(values.dtype).eps * largest


@checked(network=any_module, steps=integer_from(1))
def polish(
    network: eqx.Module,
    task: Task,
    *,
    loss: AnyLoss = SquaredError(),
    weight_decay: Numbers | None = None,
    trainable: PyTree = None,
    steps: int = 256,
) -> CriticalPoint:
    r"""Return the critical point of the loss beside a network, and the Hessian's eigenvalues there.

    A flow comes near the point where it ends, at a rate that its slowest direction sets, and a run
    stops some way before. From there Levenberg and Marquardt's method, as optimistix has it, goes
    on to where the gradient g is zero to rounding. It descends $|g|^2 / 2$ and not the loss, so
    that **saddles are found as well as minima**: the point is one near by, of either kind, and
    `index` says which. Where critical points are not alone (networks of several layers have whole
    surfaces of them) it is not the nearest one exactly, nor where the flow ends: see how far it
    `moved`.

    A gradient counts as rounding up to 64 eps times $|H| |w|$, the size of what it is summed from.

    **Of ReLU networks** the loss is differentiated with each gate as the sign of its preactivation
    has it. A minimum may lie on a kink (pairs slide there to the end), where no gradient is zero on
    either side: then none is found, and a `PolishWarning` says so.

    **Arguments:**

    - `network`, of flowlin or any Equinox module of one sample, near the point: `flow.final`.
    - `task`, `loss`, `weight_decay`, `trainable`: as for `gradient_flow`.
    - `steps`: at most so many steps. Each factorises a matrix (2 N, N) for N numbers that move.

    **Returns:** a `CriticalPoint`. Under `jit` and `vmap` nothing warns; read its `converged`. Its
    derivatives by the task are those of a point that is alone (implicit function theorem).

    **Raises:** `ValueError` for bad input, and where matrices (N, N) do not fit into memory.
    """
    own = as_model("network", network)
    require_no_nan("network", as_module(own))
    require_targets(own, task)
    flags = trainable_flags(own, trainable)
    size = sum(a.size for a in jax.tree.leaves(trainable_part(own.parameters, flags)))
    require_memory(
        "network", f"{size} numbers that move", COPIES_OF_HESSIAN * size**2 * own.dtype.itemsize,
        "Take a smaller one, or fewer `trainable` arrays",
    )  # fmt: skip
    task = task if task.x.dtype == own.dtype else task.astype(own.dtype)
    plain = FullData(task, as_loss(loss), shards=task.shards)
    goal = with_decay(plain, decay_of(own, weight_decay))
    point = _find_critical_point((goal, own), flags, steps)
    if not is_traced(point) and not np.all(point.converged):
        warn_user(
            f"`polish` found no critical point in {int(np.max(point.steps))} steps: the gradient "
            f"left is {float(np.max(point.gradient_norm)):.3g}. Start nearer, from a longer run. "
            "If the network has kinks, its minimum may lie on one, where no gradient is zero.",
            PolishWarning,
        )
    return point


@jit_by_array
def _find_critical_point(
    parts: tuple[AbstractObjective, AbstractModel], flags: PyTree, steps: int
) -> CriticalPoint:
    """Return the critical point of an objective beside a model, the two `parts`."""
    goal, model = parts
    start, as_parameters = ravel_pytree(trainable_part(model.parameters, flags))
    dtype, eps = start.dtype, float(jnp.finfo(start.dtype).eps)
    start = start.astype(float)  # the solver's own numbers have JAX's default precision
    length = lax.stop_gradient(jnp.linalg.norm(start))
    unit = jnp.where(length > 0, length, 1)

    def gradient(vector: Float[Array, " N"]) -> Float[Array, " N"]:
        gradient = goal.gradient(model, as_parameters(vector.astype(dtype)))
        return ravel_pytree(gradient)[0].astype(vector.dtype)

    def whole_hessian(vector: Float[Array, " N"]) -> Float[Array, "N N"]:
        _, product = jax.linearize(gradient, vector)
        return lax.map(product, jnp.eye(vector.size, dtype=vector.dtype), batch_size=ROWS_AT_ONCE)

    rounding = GRADIENT_ROUNDINGS * eps * unit
    size = lax.stop_gradient(jnp.linalg.norm(whole_hessian(start)))
    # So scaled, the solver's first damping is small beside the Hessian's square.
    scale = FIRST_STIFFNESS / jnp.where(size > 0, unit * size, 1)
    # Steps are added to ones: the solver asks for the digits of every number, and zero has none.
    # They shrink quadratically, so that one of eps^(3/4) is the last.
    answer = optx.least_squares(
        lambda place, _: scale * gradient(start + unit * (place - 1)),
        optx.LevenbergMarquardt(
            rtol=eps**0.75, atol=(FIRST_STIFFNESS * GRADIENT_ROUNDINGS * eps) ** 2
        ),
        jnp.ones_like(start),
        adjoint=optx.ImplicitAdjoint(lx.AutoLinearSolver(well_posed=False)),
        max_steps=steps,
        throw=False,
    )
    vector = start + unit * (answer.value - 1)
    left, curvature = gradient(vector), whole_hessian(vector)
    end = model.with_parameters(as_parameters(vector.astype(dtype)))
    norm = jnp.linalg.norm(left)
    return CriticalPoint(
        network=as_module(end),
        loss=goal.loss_value(end),
        gradient_norm=norm.astype(dtype),
        eigenvalues=jnp.linalg.eigvalsh(curvature).astype(dtype),
        moved=jnp.linalg.norm(vector - start).astype(dtype),
        steps=answer.stats["num_steps"],
        converged=norm <= rounding * jnp.linalg.norm(curvature),
    )
