"""A ReLU network after its linearization time: the linear model of its always-on units."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from flowlin._tools.arguments import argument_error, checked, float_array, not_negative
from flowlin._tools.arrays import Numbers, is_traced
from flowlin._tools.printing import (
    LONGEST_ADVICE,
    Summary,
    concrete_array,
    format_count,
    format_number,
    print_by,
    shorten_text,
)
from flowlin.networks.base import require_task_fit
from flowlin.networks.network_kinds import LinearNetwork, ReLUNetwork
from flowlin.record.trajectory import Trajectory
from flowlin.tasks.task import Task
from flowlin.theory.certificate import Certificate
from flowlin.theory.closed_form import TIME_RANGE
from flowlin.theory.flow_checks import relative_distance, require_same_problem
from flowlin.theory.solution import Solution, solution_summary, solution_title
from flowlin.theory.solve import solve


def after_linearization_summary(found: "AfterLinearization") -> Summary:
    """Print the number of always-on units, the solution, whether it is exact, and why."""
    on = concrete_array(found.always_on, 1)
    units = format_count(found.always_on.shape[-1], "unit")
    count = format_number(found.always_on) if on is None else str(np.sum(on))
    rows = [
        ("trained on", shorten_text(found.task, LONGEST_ADVICE)),
        ("solution", solution_title(found.solution)),
    ]
    if found.bias_strength is not None:
        rows.insert(1, ("bias", f"c = {format_number(found.bias_strength)}"))
    rows += solution_summary(found.solution).rows
    return Summary(f"AfterLinearization: {count} of {units} always on", rows)


@print_by(after_linearization_summary)
class AfterLinearization(eqx.Module):
    r"""The closed form of $\hat y = W_2 G \tilde W_1 \tilde x$ (lead paper Eq. 15).

    Times count from the network that it was made from.

    - `solution`: that of the always-on units as a linear network; its `why` says whether it is
      exact for that network.
    - `always_on`: (H,), the diagonal of G.
    """

    solution: Solution
    always_on: Bool[Array, " H"]

    @property
    def task(self) -> Task:
        """The task that the network is trained on."""
        return self.solution.task

    @property
    def bias_strength(self) -> Array | None:
        """The constant c, scalar; None without biases."""
        return self.solution.bias_strength

    @property
    def certificate(self) -> Certificate:
        """The measured conditions of the solution."""
        return self.solution.certificate

    @checked(t=TIME_RANGE)
    def product(self, t: ArrayLike) -> Float[Array, "... N_out N"]:
        """Return $W_2 G W_1$ at times t after the start, (T, N_out, N), as `Solution.product`."""
        return self.solution.product(t)

    @checked(t=TIME_RANGE)
    def outputs(self, t: ArrayLike) -> Float[Array, "... P N_out"]:
        """Return outputs on the task's samples at times t, (T, P, N_out)."""
        return self.solution.outputs(t)

    @checked(t=TIME_RANGE)
    def loss(self, t: ArrayLike) -> Float[Array, "..."]:
        """Return half the mean squared error at times t, of their shape."""
        return self.solution.loss(t)

    @checked
    def error(self, flow: Trajectory, *, check: bool = True) -> Float[Array, " T"]:
        """Return how far the outputs are from a flow's that starts at t*, at `flow.ts`, (T,).

        The Frobenius norm of the difference over the largest norm of the flow's outputs. `flow`
        may be of the ReLU network itself, of its `always_on` network, or of any other on the task,
        with the tau and the loss of `solution`; `check=False` compares with any.

        **Raises:** `ValueError` for a flow without networks, or of another task, tau or loss.
        """
        if check:
            require_same_problem(flow, self.task, self.solution.tau)
        numerical = jax.vmap(lambda network: network.outputs(self.task.x))(flow.networks)
        return relative_distance(self.outputs(flow.ts), numerical)


def _truth_values(name: str, value: object) -> object:
    """Check for truth values, or numbers that are zero or one."""
    given = float_array(name, value)
    if not is_traced(given) and not np.isin(np.asarray(given), (0, 1)).all():
        raise argument_error(name, "an array of True and False", value)
    return value


@checked(always_on=_truth_values, tolerance=not_negative)
def after_linearization(
    network: ReLUNetwork,
    task: Task,
    tau: ArrayLike = 1.0,
    *,
    always_on: Numbers | None = None,
    tolerance: float | None = None,
) -> AfterLinearization:
    r"""Return the gated linear model of a ReLU network that starts at its linearization time.

    The units that are on for every sample are a linear network as long as they stay on; the
    others are left out. Of each mode, $p = G W_2^T u$ and $q = G \tilde W_1 v$ give the exact
    solution of an isolated mode, imbalance included (`Mode`); the paper starts a
    balanced mode from $a(t^*) = u^T W_2 G \tilde W_1 v$, which may be negative, and also drops what
    the modes have in common off the diagonal.

    **Arguments:**

    - `network`: the ReLU network at t*, with one hidden layer.
    - `always_on`: (H,) bool, G. None takes the signs of the preactivations, which are rounding for
      pairs that slide, and for the unit that is just coming on at t* itself: of an exact walk pass
      `jnp.all(flow.events.sides(t) > 0, axis=0)` (open), or with `>= 0` (closed).
    - `task`, `tau`, `tolerance`: as in `theory.solve`.

    **Returns:** `AfterLinearization`, with products, strengths and losses at all times since
    t*.

    **Raises:** `ValueError` for other networks, or one without an always-on unit.

    Source: lead paper Sec. 5.4, Eq. 15.
    """
    require_task_fit(network, task)
    if not isinstance(network, ReLUNetwork) or len(network.weights) != 2:
        raise ValueError("`network` must be a fl.ReLUNetwork with one hidden layer.")
    if is_traced((network, task, always_on)):
        raise ValueError(
            "`after_linearization` chooses a solution by the numbers; call it outside jit and vmap."
        )
    task = task if task.x.dtype == network.dtype else task.astype(network.dtype)
    on = jnp.all(network.preactivations(task.x)[0] > 0, axis=0)
    if always_on is not None:
        given = float_array("always_on", always_on).astype(bool)
        if given.shape != on.shape:
            raise ValueError(
                f"`always_on` must have one entry for each of the {on.shape[0]} hidden units, got "
                f"shape {given.shape}."
            )
        on = given
    if not bool(jnp.any(on)):
        raise ValueError(
            "no unit of `network` is on for every sample, so there is no linear model; take the "
            "network at its linearization time."
        )
    (w1, w2), (b1, b2) = network.parameters
    bias = None if b1 is None else jnp.where(on, b1, 0.0)
    w1, w2 = jnp.where(on[:, None], w1, 0.0), w2 * on.astype(w2.dtype)[None]
    masked = LinearNetwork((w1, w2), (bias, b2))
    masked = eqx.tree_at(lambda n: n.bias_strength, masked, network.bias_strength)
    found = solve(masked, task, tau, tolerance=tolerance)
    return AfterLinearization(found, on)
