"""A closed form with its certificate, as `solve` returns it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import checked, with_article
from flowlin._tools.arrays import prepend_constant, with_axes
from flowlin._tools.printing import LONGEST_ADVICE, Summary, print_by, shorten_text
from flowlin.networks.network_kinds import LinearNetwork
from flowlin.record.trajectory import Trajectory
from flowlin.tasks.task import Task
from flowlin.theory.certificate import (
    Certificate,
    certificate_summary,
    chain_product,
    weights_with_bias,
)
from flowlin.theory.closed_form import TIME_RANGE
from flowlin.theory.flow_checks import relative_distance, require_same_problem, require_same_start


def solution_summary(found: "Solution") -> Summary:
    """Print the solution's name, whether it is exact, why, and the conditions."""
    why = ("why", shorten_text(found.why, LONGEST_ADVICE))
    return Summary(
        f"Solution: {solution_title(found)}", [why, *certificate_summary(found.certificate).rows]
    )


def solution_title(found: Any) -> str:
    """Return the name of a solution, and whether it is exact, as text."""
    return f"{found.name}, {'exact' if found.exact else 'not exact'}"


@print_by(solution_summary)
class Solution(eqx.Module):
    """A closed form of the gradient flow of one network on one task, exact or labelled otherwise.

    The error of an approximation is measured by a numerical flow of the same network:

    ```python
    solution = fl.theory.solve(network, task)
    flow = fl.gradient_flow(network, task, 10.0, ts=jnp.linspace(0, 10, 101), rtol=1e-10)
    print(solution.name, solution.exact, solution.error(flow).max())
    ```

    - `name`: the name of the solution, one of those of `solve`.
    - `exact`: whether it solves the flow of every mode, for all times: no condition moves a mode by
      more than the `tolerance` of `solve`.
    - `why`: the conditions that decided.
    - `certificate`: the measured conditions.
    - `task`: the task that the network is trained on; `bias_strength` c, None without biases.
    - `tau`: the time constant; `start`, (N_out, N), the network's end-to-end matrix.
    """

    name: str = eqx.field(static=True)
    exact: bool = eqx.field(static=True)
    why: str = eqx.field(static=True)
    certificate: Certificate
    form: Partial
    gram_form: Partial | None
    task: Task
    bias_strength: Array | None
    tau: Array
    start: Float[Array, "N_out N"]

    @checked(t=TIME_RANGE)
    def product(self, t: ArrayLike) -> Float[Array, "... N_out N"]:
        """Return the end-to-end matrix at times `t` (T,): (T, N_out, N_in).

        With a bias it is (T, N_out, 1 + N_in), to be applied to [c; x]: its first column is the raw
        bias as the later layers pass it on, W_L ... W_2 b, as in `LinearNetwork.balanced`. Times
        may have any shape and be inf, and it can be differentiated.

        **Raises:** `ValueError` for concrete times below zero.
        """
        return self.form(jnp.asarray(t, jnp.result_type(float)))

    @checked(t=TIME_RANGE)
    def gram(self, t: ArrayLike) -> Float[Array, "... M M"]:
        r"""Return $Q Q^T(t)$, $Q = [W_1^T; W_2]$, at times `t` (T,): (T, M, M), M = N + N_out.

        Its blocks are $W_1^T W_1$, the product $W_2 W_1$ and its transpose, and $W_2 W_2^T$: all of
        a network of two layers but a rotation of its hidden units. With a bias N is 1 + N_in, the
        raw bias in front. As exact as the solution; see `product` for times.

        **Raises:** `ValueError` for a network that has not two layers, and for concrete times below
        zero.

        Source: `balanced_gram`, and `Mode.vectors` mode by mode.
        """
        if self.gram_form is None:
            raise ValueError(
                "`gram` is of two layers of weights, and this solution is of "
                f"{'one' if self.name == 'single layer' else 'more'}; use `product`."
            )
        return self.gram_form(jnp.asarray(t, jnp.result_type(float)))

    @checked(t=TIME_RANGE)
    def outputs(self, t: ArrayLike) -> Float[Array, "... P N_out"]:
        """Return outputs on the task's samples at times `t` (T,): (T, P, N_out); see `product`."""
        x = self.task.x
        x = x if self.bias_strength is None else prepend_constant(x, self.bias_strength)
        product = self.product(t)
        return jnp.einsum("...on,pn->...po", product, x.astype(product.dtype))

    @checked(t=TIME_RANGE)
    def loss(self, t: ArrayLike) -> Float[Array, "..."]:
        """Return half the mean squared error on the task at times `t` (T,): (T,); see `product`."""
        outputs, weights = self.outputs(t), self.task.weights
        y = with_axes(self.task.y.astype(outputs.dtype), outputs.ndim - 2)
        squares = jnp.sum((outputs - y) ** 2, axis=-1)
        if weights is not None:
            squares = squares * with_axes(weights.astype(outputs.dtype), squares.ndim - 1)
        return jnp.sum(squares, axis=-1) / (2 * self.task.mass)

    @checked
    def error(self, flow: Trajectory, *, check: bool = True) -> Float[Array, " T"]:
        """Return the distance from a numerical flow, a `fl.Trajectory`, at `flow.ts`, (T,).

        The Frobenius norm of the difference of the products, over the largest norm of the flow's;
        where that is zero throughout, over the largest of the closed form, and 0 where both are.
        It counts the flow's own error too. The flow must be of the same problem as far as that is
        known: task, tau, loss (a sum at the speed of the mean is one), weights at t = 0, nothing
        added to the loss and no array held fixed. `check=False` compares with any other.

        **Raises:** `ValueError` for a flow of another kind of network, without networks, or of
        another problem.
        """
        if not isinstance(flow.final, LinearNetwork):
            raise ValueError(
                f"`flow` is of {with_article(type(flow.final).__name__)}, which has no end-to-end "
                "matrix; compare its outputs, or run a fl.LinearNetwork."
            )
        numerical = jax.vmap(network_product)(flow.networks)
        found = relative_distance(self.product(flow.ts), numerical)
        if check:
            require_same_problem(flow, self.task, self.tau)
            require_same_start(flow, self.start, network_product)
        return found


def network_product(network: LinearNetwork) -> Float[Array, "N_out N"]:
    """Return the end-to-end matrix of a network, the raw bias in front."""
    return chain_product(weights_with_bias(network))
