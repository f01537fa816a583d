"""A task: the inputs and targets that a network is trained on."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    argument_error,
    checked,
    float_array,
    instance_of,
    require_float_array,
    require_single,
    string,
)
from flowlin._tools.arrays import (
    Numbers,
    automatic_mesh,
    fill_missing,
    is_traced,
    require_finite,
    total_weight,
    widest_dtype,
)
from flowlin._tools.files import saveable
from flowlin._tools.printing import Summary, format_count, print_by, shorten_text

MISSING_TARGETS_REMEDY = (
    "remove those samples or repair the values first, or give missing targets the weight zero, by "
    "`weights=~np.isnan(y)`"
)


def task_summary(task: "Task") -> Summary:
    """Summarise a task: name, numbers of samples, inputs and outputs, precision, devices."""
    *stack, samples, inputs = task.x.shape
    rows = [
        ("name", repr(shorten_text(task.name))),
        ("samples", format_count(samples, "sample")),
        ("inputs", format_count(inputs, "input")),
        ("outputs", format_count(task.y.shape[-1], "output")),
        *([] if task.weights is None else [("weights", _weights_text(task))]),
        ("precision", str(task.x.dtype)),
    ]
    if stack:
        rows.append(("stacked", f"stacked {tuple(stack)}"))
    elif isinstance(task.x, jax.Array) and task.shards > 1:
        rows.append(("devices", f"split among {task.shards} devices"))
    return Summary("Task", rows, inline=True)


def _weights_text(task: "Task") -> str:
    """Say whether samples are weighted, or entries."""
    return "weighted by entry" if has_entry_weights(task) else "weighted"


@checked(x=None, y=None, weights=None)
@print_by(task_summary)
@saveable(weights=None)
class Task(eqx.Module):
    r"""Inputs and targets, one **row** per sample (the papers put samples in columns).

    **Arguments:**

    - `x`: inputs, shape (P, N_in).
    - `y`: targets, shape (P, N_out). Whole numbers, truth values and half precision are taken to
      JAX's default float.
    - `name`: what figures and messages call the task.
    - `weights`: how much each sample counts, (P,), zero or positive; None is one each. Losses and
      averages over the task become $\sum_p v_p \ell_p / \sum_p v_p$ (without the denominator where
      a loss sums): a population's by quadrature, or classes of unequal size balanced. Whole
      numbers stand for repeated rows. Counts of samples, such as that on which a unit is always on,
      take each row as one. Or how much each entry of `y` counts, (P, N_out): the squared error
      becomes $\sum_{pk} v_{pk} (y_{pk} - \hat y_{pk})^2 / 2V$ with
      $V = \sum_{pk} v_{pk} / N_{out}$, the entries' mean weight summed over samples. Other losses
      and what is made of correlations (modes, `theory.solve`, the race) have no such weights.

    A target of weight zero is missing: it may be NaN, and is 0 in `y` then.

    **Raises:** `ValueError` for arrays that are not two-dimensional, that disagree on P, that
    are empty, or that hold NaN or infinities; for weights that are negative, or all zero.
    """

    x: Float[Array, "P N_in"]
    y: Float[Array, "P N_out"]
    name: str = eqx.field(static=True)
    weights: Float[Array, " P"] | Float[Array, "P N_out"] | None

    def __init__(
        self, x: Numbers, y: Numbers, name: str = "task", *, weights: Numbers | None = None
    ):
        x, y = float_array("x", x), float_array("y", y)
        for label, array in (("x", x), ("y", y)):
            if array.ndim != 2:
                remedy = f"reshape a single feature with `{label}[:, None]`"
                if array.ndim > 2:
                    remedy = f"flatten samples with `{label}.reshape(len({label}), -1)`"
                elif label == "y":
                    remedy += ", and make labels of classes one-hot by `jax.nn.one_hot(y, classes)`"
                raise ValueError(
                    f"`{label}` must have one row per sample, shape (P, N), got shape "
                    f"{array.shape}; {remedy}."
                )
            if 0 in array.shape:
                raise ValueError(f"`{label}` is empty: its shape is {array.shape}.")
        require_finite("x", x)
        if x.shape[0] != y.shape[0]:
            raise ValueError(
                f"`x` has {x.shape[0]} samples and `y` has {y.shape[0]}; rows are samples, "
                "transpose arrays that hold samples in columns."
            )
        dtype = widest_dtype(x, y)
        own = None if weights is None else _sample_or_entry_weights(weights, y.shape).astype(dtype)
        y = fill_missing(y, own)
        require_finite("y", y, MISSING_TARGETS_REMEDY)
        self.x, self.y, self.name, self.weights = x.astype(dtype), y.astype(dtype), name, own

    @property
    def samples(self) -> int:
        """Number of samples P."""
        return self.x.shape[0]

    @property
    def inputs(self) -> int:
        """Number of inputs N_in, without the bias coordinate."""
        return self.x.shape[1]

    @property
    def outputs(self) -> int:
        """Number of outputs N_out."""
        return self.y.shape[1]

    @property
    def mass(self) -> Array | int:
        """Sum of the samples' weights, or P without; 1 for a batch whose weights are all zero.

        With weights of entries, (P, N_out), a sample has the mean of its entries'.
        """
        if self.weights is None:
            return self.samples
        mass = total_weight(self.weights)
        return jnp.where(mass > 0, mass, 1.0)

    @property
    def shards(self) -> int:
        """Number of devices among which the samples are split; 1 where that is not known."""
        if is_traced(self.x):
            return 1
        return self.samples // self.x.sharding.shard_shape(self.x.shape)[0]

    @checked(axis=string)
    def sharded(self, mesh: Mesh, axis: str | None = None) -> "Task":
        """Return the same task with its samples split among a mesh's devices (data parallel).

        Runs on it are ordinary ones: XLA splits the work over the samples and adds up what the
        devices have. With several processes (`jax.distributed`) every process gives the same whole
        task, or no more than its own rows: `x` and `y` made with
        `jax.make_array_from_process_local_data`, and then `fl.Task(x, y).sharded(mesh)`.

        **Arguments:**

        - `mesh`: a `jax.sharding.Mesh`, such as `jax.make_mesh((8,), ("samples",))`.
        - `axis`: the mesh's axis to split along; None is its first.

        **Raises:** `ValueError` for an axis that the mesh does not have, or that does not divide
        the number of samples.
        """
        axis = mesh.axis_names[0] if axis is None else axis
        if axis not in mesh.axis_names:
            raise ValueError(f"`axis` = {axis!r} is none of the mesh's axes, {mesh.axis_names}.")
        devices = mesh.shape[axis]
        if self.samples % devices:
            raise ValueError(
                f"`mesh` has {devices} devices along {axis!r}, which do not divide the "
                f"{self.samples} samples; take {self.samples - self.samples % devices} of them, or "
                "use fewer devices."
            )
        placed = NamedSharding(automatic_mesh(mesh), PartitionSpec(axis))
        return jax.tree.map(lambda array: jax.device_put(array, placed), self)

    @checked
    def astype(self, dtype: DTypeLike) -> "Task":
        """Return the same task in another floating-point precision, float32 or float64."""
        return jax.tree.map(lambda array: array.astype(dtype), self)

    @checked(indices=None)
    def take(self, indices: ArrayLike | Sequence[int] | slice) -> "Task":
        """Return the task on some of its samples (a mini-batch, a subset).

        **Arguments:** `indices`, whole numbers (B,) in [-P, P), or truth values (P,). Under `jit`
        what lies outside is clamped.

        **Raises:** `ValueError` for samples that are not there, or none.
        """
        indices = _sample_indices(indices, self.samples)
        taken = jax.tree.map(lambda array: array[indices], self)
        weights = taken.weights
        if weights is not None and not is_traced(weights) and not bool(jnp.any(weights > 0)):
            raise ValueError("`indices` take samples of weight zero only; take one that counts.")
        return taken


def labels_remedy(task: Task, outputs: int) -> str:
    """Return how class labels become targets of a network with several outputs; else ""."""
    if task.outputs > 1 or outputs < 2:
        return ""
    return f" If `task.y` holds labels of classes, make them jax.nn.one_hot(labels, {outputs})."


def has_entry_weights(task: Task) -> bool:
    """Tell whether a task, or each of a stack, has weights (P, N_out) of the entries of `y`."""
    return task.weights is not None and task.weights.ndim == task.y.ndim


def weights_by_sample(task: Task, user: str) -> Array | None:
    """Return a task's weights (P,) of samples, None without; raise `ValueError` for (P, N_out).

    `user` says who needs them: "modes are", of correlations that all outputs have in common.
    """
    if not has_entry_weights(task):
        return task.weights
    raise ValueError(
        f"`task` has `weights` of shape {task.y.shape}, one per entry of `y`, and {user} made of "
        f"averages over samples that count for all outputs alike; give `weights` of shape "
        f"({task.samples},), or none."
    )


def _sample_or_entry_weights(value: object, shape: tuple[int, ...]) -> Array:
    """Check for weights (P,) of samples, or (P, N_out), none negative and not all zero."""
    found = float_array("weights", value)
    if found.shape not in (shape[:1], shape):
        raise ValueError(
            f"`weights` must have shape {shape[:1]}, one per sample, or {shape}, one per entry of "
            f"`y`, got {found.shape}."
        )
    require_finite("weights", found)
    if not is_traced(found) and bool(jnp.any(found < 0)):
        raise argument_error("weights", "zero or positive", float(jnp.min(found)))
    if not is_traced(found) and not bool(jnp.any(found > 0)):
        raise ValueError("`weights` are all zero; at least one sample or entry must count.")
    return found


def _sample_indices(
    indices: ArrayLike | Sequence[int] | slice, samples: int
) -> ArrayLike | Sequence[int] | slice:
    """Return indices (B,) of samples, checked where they are known."""
    if is_traced(indices):
        return indices
    if isinstance(indices, slice):
        indices = range(samples)[indices]
    found = np.asarray(indices)
    wanted = f"a list of whole numbers from {-samples} to {samples - 1}, one per sample taken"
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iub":
        raise argument_error("indices", wanted, indices, "one sample k is taken by [k]")
    if found.dtype.kind == "b":
        if found.shape != (samples,) or not found.any():
            raise argument_error(
                "indices", f"a mask of shape ({samples},) that keeps a sample", indices
            )
        return np.flatnonzero(found)
    odd = found[(found < -samples) | (found >= samples)]
    if odd.size:
        raise argument_error("indices", wanted, int(odd[0]))
    return found


CHECKS_BY_NAME["mesh"] = instance_of(Mesh, "a jax.sharding.Mesh", "make one by jax.make_mesh")


def _single_task(name: str, value: object) -> Task:
    """Check for one task, and no stack of tasks."""
    value = instance_of(Task, "an fl.Task", "make one by fl.Task(x, y)")(name, value)
    for part, rows in ((f"{name}.x", value.x), (f"{name}.y", value.y)):
        require_float_array(part, rows)
        require_single(name, rows.ndim, 2, "tasks")
    return value


CHECKS_BY_NAME["task"] = _single_task
