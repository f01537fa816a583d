r"""The coordinates of a linear network's modes, in which a run from tiny weights is computed.

Turn inputs and outputs by orthogonal matrices, $x' = V^T x$ and $y' = U^T y$, and the weights of a
linear network with them, $W_1' = W_1 V$ and $W_2' = U^T W_2$. Under the squared error the loss does
not change, nor does the length of anything, so gradient flow of the turned weights on the turned
task is the same flow (Saxe et al. 2014, Sec. 1.1, for U and V of the singular value decomposition
of $\Sigma_{yx}$).

Rounding is not the same. Let the first mode be learnt, and a later one still be 3e-16 of it. As a
sum of both, every number of W has but the first one's digits, and the later mode is rewritten with
every step. In the modes' coordinates it has a column of $W_1'$ and a row of $W_2'$ for itself, and
keeps all its digits. Errors count against these columns and rows, in place of hidden units.

Where the inputs couple modes ($V^T \Sigma_x V$ is not diagonal) a learnt mode has a part in the
columns of others, and drives them, so that they are not as small. Coordinates are of no use then.

With more layers this is of no use: matrices between hidden layers hold all modes still, and on
plateaus as long as theirs only an implicit method gets on. Implicit methods solve for all columns
at once, to a rounding of the largest number, and creep where they are to resolve the smallest.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from flowlin._tools.arrays import Parameters, is_traced, prepend_constant, replace_fields
from flowlin._tools.numerics import as_tree
from flowlin.engine.method import Method
from flowlin.engine.solvers.rkc import RKC
from flowlin.engine.solvers.wrapped import is_explicit
from flowlin.measures.modes import LARGEST_INPUT, modes_within
from flowlin.networks.network_kinds import LinearNetwork
from flowlin.tasks.task import Task, has_entry_weights, weights_by_sample
from flowlin.training.objective import AbstractObjective, ModifiedLoss, with_decay
from flowlin.training.problem import Problem
from flowlin.training.squared_error import SquaredError
from flowlin.training.statistics import (
    STATISTICS_ARE,
    LinearStatistics,
    QuadraticLoss,
    expand_regression,
)


class ReflectionProduct(eqx.Module):
    r"""An orthogonal matrix $Q = I - Y T Y^T$ as a product of reflections, by rows.

    Of as many reflections as there are modes, so that turning n rows costs n x N x modes and not
    n x N x N (Schreiber and Van Loan 1989).
    """

    y: Float[Array, "N K"]
    t: Float[Array, "K K"]

    @staticmethod
    def from_columns(columns: np.ndarray, dtype: DTypeLike) -> "ReflectionProduct":
        """Make the matrix with these orthonormal first columns (N, K), up to their signs."""
        packed, scales = np.linalg.qr(columns, mode="raw")
        y = np.tril(packed.T, -1) + np.eye(*columns.shape)
        t = np.zeros((len(scales), len(scales)))
        for k, scale in enumerate(scales):
            t[:k, k] = -scale * t[:k, :k] @ (y[:, :k].T @ y[:, k])
            t[k, k] = scale
        return ReflectionProduct(jnp.asarray(y, dtype), jnp.asarray(t, dtype))

    def __call__(self, rows: Float[Array, "*n N"]) -> Float[Array, "*n N"]:
        """Return rows times Q."""
        return rows - ((rows @ self.y) @ self.t) @ self.y.T

    def apply_transpose(self, rows: Float[Array, "*n N"]) -> Float[Array, "*n N"]:
        """Return rows times the transpose of Q."""
        return rows - ((rows @ self.y) @ self.t.T) @ self.y.T


class ModeFrame(eqx.Module):
    """The orthogonal matrices that turn inputs and outputs into modes.

    - `biased`: whether the inputs are [c; x], and the hidden bias is a column of the weights.
    """

    inputs: ReflectionProduct
    outputs: ReflectionProduct
    bias_strength: Array
    biased: bool = eqx.field(static=True)

    def to_modes(self, parameters: Parameters) -> Parameters:
        """Turn the user's weights and biases into these coordinates."""
        (first, last), (bias, _) = parameters
        if self.biased:
            first = jnp.concatenate([bias[:, None], first], axis=1)
        return (self.inputs(first), self.outputs(last.T).T), (None, None)

    def from_modes(self, parameters: Parameters) -> Parameters:
        """Turn weights of these coordinates into the user's weights and biases; linear."""
        (first, last), _ = as_tree(parameters)
        first = self.inputs.apply_transpose(first)
        last = jnp.swapaxes(self.outputs.apply_transpose(jnp.swapaxes(last, -1, -2)), -1, -2)
        if not self.biased:
            return (first, last), (None, None)
        return (first[..., 1:], last), (first[..., 0], None)

    def task_in_modes(self, task: Task) -> Task:
        """Turn the task into these coordinates."""
        x = prepend_constant(task.x, self.bias_strength) if self.biased else task.x
        return replace_fields(task, x=self.inputs(x), y=self.outputs(task.y))


class ProblemInModes(eqx.Module):
    """A problem in its modes' coordinates, with its objective and the frame that leads back."""

    problem: Problem
    objective: AbstractObjective
    frame: ModeFrame

    @property
    def label(self) -> str:
        """The objective's name in `flow.stats`."""
        return f"{self.objective.stats_label}, in the coordinates of the modes"


MODE_GROUPS = (("input", -1), ("output", -2))  # columns and rows, as `AbstractModel.owners` says it
MOST_INPUTS = 1024  # inputs: their correlations are held as a matrix
CORRELATION_NOISE = 64.0  # roundings of the largest number, below which correlations are zero


def problem_in_modes(problem: Problem, method: Method) -> ProblemInModes | None:
    r"""Return the problem in its modes' coordinates, where rounding would hide some; else None.

    This holds for a linear network of two layers without an output bias, all of which moves, under
    the squared error, on a task whose inputs couple no modes, from weights below
    $\sqrt\epsilon$ of what they come to: a mode is then less than a rounding of the product. Not
    with weights of entries, which modes do not have, with implicit solvers or with an `atol`, nor
    for more than 1024 inputs, nor under `jit` and `vmap`, which do not know how small the weights
    are.
    """
    network, task, loss = problem.network, problem.task, problem.loss
    if not isinstance(network, LinearNetwork) or not isinstance(loss, SquaredError):
        return None
    if not problem.is_gradient_flow or has_entry_weights(task):
        return None
    if len(network.weights) != 2 or network.biases[1] is not None or problem.trained is not None:
        return None
    solver, asked = method.solver, method.objective
    explicit = is_explicit(solver) or isinstance(solver, RKC)
    if not explicit or not method.error_by_unit or is_traced((problem, method)):
        return None
    if (
        task.inputs > MOST_INPUTS
        or not task.x.is_fully_addressable
        or not _weights_are_tiny(network, task)
    ):
        return None
    own = modes_within(task, network)  # modes however weak
    biased = network.biases[0] is not None
    inputs, outputs = (
        ReflectionProduct.from_columns(np.asarray(a, float), network.dtype) for a in (own.v, own.u)
    )
    frame = ModeFrame(inputs, outputs, network.bias_strength, biased)
    weights, there, goal = _convert_to_modes(frame, network, task, loss)
    if not _inputs_decouple(goal.expansion.sigma_x[1:, 1:], own.s):
        return None
    moved = LinearNetwork(weights, None, network.bias_strength)
    goal = with_decay(goal, problem.decay)
    if isinstance(asked, ModifiedLoss):
        goal = replace_fields(asked, plain=goal)
    return ProblemInModes(
        replace_fields(problem, network=moved, task=there, groups=MODE_GROUPS), goal, frame
    )


def _inputs_decouple(sigma_x: Array, strength: Array) -> bool:
    """Tell whether the inputs couple no mode, the first ones, to anything else."""
    rows = np.array(sigma_x)[: int(np.sum(np.asarray(strength) > 0))]
    np.fill_diagonal(rows, 0.0)
    return not np.any(rows)


def _weights_are_tiny(network: LinearNetwork, task: Task) -> bool:
    """Tell whether the weights are below about the root of a rounding of what they come to."""
    largest = max(float(np.max(np.abs(np.asarray(w)))) for w in network.weights)
    biased, c = network.biases[0] is not None, float(network.bias_strength)
    if largest > 1e-2 or (biased and c == 0):  # most networks: spares the pass over the task
        return False
    inputs, targets = (np.mean(np.asarray(a, float) ** 2) for a in (task.x, task.y))
    if not 0 < inputs < LARGEST_INPUT or not targets < LARGEST_INPUT or c > LARGEST_INPUT:
        return False
    return largest < float(np.finfo(network.dtype).eps ** 0.5 * (targets / inputs) ** 0.25)


@eqx.filter_jit
def _convert_to_modes(
    frame: ModeFrame, network: LinearNetwork, task: Task, loss: SquaredError
) -> tuple[PyTree, Task, LinearStatistics]:
    """Return the weights, the task and the loss's statistics in the frame."""
    there = frame.task_in_modes(task)
    return frame.to_modes(network.parameters)[0], there, _statistics_in_modes(there, loss)


def _statistics_in_modes(task: Task, loss: SquaredError) -> LinearStatistics:
    """Return the statistics of a task in the frame, without the rounding of its correlations.

    Correlations of the size of a rounding would drive modes that are smaller than one.
    """

    def regression_rows(rows: PyTree) -> tuple[Array, Array, Array | None]:
        x, y, weights = rows
        return x, y, weights

    rows = (task.x, task.y, weights_by_sample(task, STATISTICS_ARE))
    weight = loss.factor_per_sample(task.mass)
    found = expand_regression(regression_rows, rows, weight, task.inputs, task.shards)
    x, m = (_without_noise(a, jnp.max(jnp.abs(a))) for a in (found.sigma_x, found.solution))
    slope = _without_noise(found.gradient_at_solution, jnp.max(jnp.abs(m @ x)))

    def pad_zero_column(a: Array) -> Array:
        return jnp.pad(a, ((0, 0), (1, 0)))  # no biases, no offset

    sigma_x = jnp.pad(x, ((1, 0), (1, 0)))
    return LinearStatistics(
        QuadraticLoss(sigma_x, pad_zero_column(m), pad_zero_column(slope), found.loss_at_solution)
    )


def _without_noise(a: Array, largest: Array) -> Array:
    """Replace by zero what is a few roundings of the largest number."""
    return jnp.where(jnp.abs(a) > CORRELATION_NOISE * jnp.finfo(a.dtype).eps * largest, a, 0.0)
