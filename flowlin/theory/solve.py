"""The strongest exact solution that applies to a linear network and a task."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import checked, not_negative, with_article
from flowlin._tools.arrays import is_traced, prepend_constant, with_axes
from flowlin._tools.printing import LONGEST_ADVICE, Summary, print_by, shorten_text
from flowlin.networks.base import require_task_fit
from flowlin.networks.kinds import AbstractNetwork, LinearNetwork
from flowlin.record.trajectory import Trajectory
from flowlin.tasks.task import Task
from flowlin.theory.certificate import (
    Certificate,
    LinearProblem,
    certificate_summary,
    chain_product,
    examine_problem,
    weights_with_bias,
)
from flowlin.theory.closed_form import TIME_RANGE
from flowlin.theory.flow_checks import relative_distance, require_same_problem, require_same_start
from flowlin.theory.mode import Mode
from flowlin.theory.riccati import balanced_gram, balanced_product, single_layer

ROUNDING_REASON = "rounding of the weights decides when a mode is learnt"


def solution_summary(found: Any) -> Summary:
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
        """End-to-end matrix at times `t` (T,): (T, N_out, N_in).

        With a bias it is (T, N_out, 1 + N_in), to be applied to [c; x]: its first column is the raw
        bias as the later layers pass it on, W_L ... W_2 b, as in `LinearNetwork.balanced`. Times
        may have any shape and be inf, and it can be differentiated.

        **Raises:** `ValueError` for concrete times below zero.
        """
        return self.form(jnp.asarray(t, jnp.result_type(float)))

    @checked(t=TIME_RANGE)
    def gram(self, t: ArrayLike) -> Float[Array, "... M M"]:
        r"""$Q Q^T(t)$ with $Q = [W_1^T; W_2]$, at times `t` (T,): (T, M, M), M = N + N_out.

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
        """Outputs on the task's samples at times `t` (T,): (T, P, N_out); see `product`."""
        x = self.task.x
        x = x if self.bias_strength is None else prepend_constant(x, self.bias_strength)
        product = self.product(t)
        return jnp.einsum("...on,pn->...po", product, x.astype(product.dtype))

    @checked(t=TIME_RANGE)
    def loss(self, t: ArrayLike) -> Float[Array, "..."]:
        """Half the mean squared error on the task at times `t` (T,): (T,); see `product`."""
        outputs, weights = self.outputs(t), self.task.weights
        y = with_axes(self.task.y.astype(outputs.dtype), outputs.ndim - 2)
        squares = jnp.sum((outputs - y) ** 2, axis=-1)
        if weights is not None:
            squares = squares * with_axes(weights.astype(outputs.dtype), squares.ndim - 1)
        return jnp.sum(squares, axis=-1) / (2 * self.task.mass)

    @checked
    def error(self, flow: Trajectory, *, check: bool = True) -> Float[Array, " T"]:
        """Distance from a numerical flow, a `fl.Trajectory`, at `flow.ts`, (T,).

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
        numerical = jax.vmap(_network_product)(flow.networks)
        found = relative_distance(self.product(flow.ts), numerical)
        if check:
            require_same_problem(flow, self.task, self.tau)
            require_same_start(flow, self.start, _network_product)
        return found


def _network_product(network: LinearNetwork) -> Float[Array, "N_out N"]:
    """Return the end-to-end matrix of a network, the raw bias in front."""
    return chain_product(weights_with_bias(network))


@checked(tolerance=not_negative)
def solve(
    network: AbstractNetwork, task: Task, tau: ArrayLike = 1.0, *, tolerance: float | None = None
) -> Solution:
    r"""Return the strongest exact solution that applies, or a labelled approximation.

    It is for the flow $\tau \dot w = -\nabla L$ of the mean half squared error
    (`fl.SquaredError()`; for the sum divide tau by P). The first of these that applies is taken:

    1. `single layer`: exact for every task (`single_layer`).
    2. `Riccati`: two layers, white inputs, (lambda-)balanced weights (`balanced_product`). Not
       exact where rounding of the weights decides when a mode is learnt.
    3. `modes`: two layers of weights aligned to modes that decouple, balanced or not, of either
       sign, for inputs of any covariance (`Mode`).
    4. `deep modes`: three and more layers, balanced and aligned to modes that decouple, none of
       them of negative strength (`Mode`).
    5. `isolated modes`: not exact. Every mode as if there were no others; of three and more layers,
       as if the layers were balanced, and a mode of negative strength as if it were zero.
       `Solution.error` of a numerical flow measures its error.

    Where modes have the same s and d the basis that the weights are aligned to is taken, if there
    is one.

    **Arguments:**

    - `network`: a `fl.LinearNetwork` of any depth, with a bias on the first layer or none.
    - `task`: inputs and targets.
    - `tau`: time constant.
    - `tolerance`: of the conditions; None is eps^(2/3), 4e-11 in float64. A condition that fails
      for one mode, over that mode's own size, fails: see `Certificate`.

    **Raises:** `ValueError` for other networks, for a tau that is not positive or a tolerance below
    zero, NaN or infinite, and under `jit`: the choice needs numbers. The
    solution itself can be passed to functions under `jit`, and differentiated.
    """
    _require_linear(network, task)
    assert isinstance(network, LinearNetwork)
    rounding = float(jnp.finfo(network.dtype).eps)
    found = examine_problem(
        network, task, tau, rounding ** (2 / 3) if tolerance is None else tolerance
    )
    if len(network.weights) == 1:
        form = Partial(
            single_layer,
            w0=weights_with_bias(network)[0],
            s_yx=found.as_array(found.s_yx),
            s_x=found.as_array(found.s_x),
            tau=tau,
        )
        return _label_solution(found, "single layer", True, "the flow is linear", form)
    if len(network.weights) > 2:
        return _solve_deep(found)
    solution, lacks = _solve_riccati(found)
    return _solve_modewise(found, lacks) if solution is None else solution


def _require_linear(network: AbstractNetwork, task: Task) -> None:
    """Raise `ValueError` for a network without closed forms, or one that is traced."""
    require_task_fit(network, task)
    if not isinstance(network, LinearNetwork):
        raise ValueError(
            f"`network` is a {type(network).__name__}; closed forms are for linear ones; pass "
            "its linear counterpart, network.linear()."
        )
    if is_traced((network, task)):
        raise ValueError(
            "`solve` needs a concrete network and task to choose by; call it outside jit and vmap, "
            "and pass the solution in."
        )
    if any(bias is not None for bias in network.biases[1:]):
        raise ValueError(
            "`network` has a bias beyond its first layer, for which there is no closed form; leave "
            "it out (`biases=(b, None)` for two layers), or use fl.gradient_flow."
        )


def _label_solution(
    problem: LinearProblem,
    name: str,
    exact: bool,
    why: str,
    form: Partial,
    gram_form: Partial | None = None,
) -> Solution:
    """Make the solution of a problem from its form, under a name."""
    network = problem.network
    return Solution(
        name=name,
        exact=exact,
        why=why,
        certificate=problem.certificate,
        form=form,
        gram_form=gram_form,
        task=problem.task,
        bias_strength=None if network.biases[0] is None else network.bias_strength,
        tau=problem.as_array(problem.tau),
        start=_network_product(network),
    )


def _solve_riccati(problem: LinearProblem) -> tuple[Solution | None, str]:
    """Return the matrix Riccati solution, or None with the conditions that do not hold."""
    found = problem.certificate
    lacks = problem.unmet_conditions(
        colour="the inputs are not white",
        outside="the first layer acts on inputs that the data do not have",
        spread="the weights are neither balanced nor lambda-balanced",
    )
    if lacks:
        return None, lacks
    balanced = not problem.unmet_conditions(imbalance="not balanced")
    w1, w2 = weights_with_bias(problem.network)
    given = {
        "w1": w1,
        "w2": w2,
        "s_yx": problem.as_array(problem.s_yx),
        "variance": problem.as_array(found.variance),
        "balance": problem.as_array(0.0 if balanced else found.balance),
        "tau": problem.tau,
    }
    forms = [Partial(one, **given) for one in (riccati_product, riccati_gram)]
    name = "balanced" if balanced else f"lambda-balanced, lambda = {found.balance:.6g}"
    why = f"the inputs are white and the weights {name}"
    unsure = problem.unmet_conditions(rounding=ROUNDING_REASON)
    why = f"{why}, but {unsure}" if unsure else why
    return _label_solution(problem, "Riccati", not unsure, why, *forms), ""


def riccati_product(t: ArrayLike, **given: Any) -> Array:
    """Return `balanced_product` without its check, which the certificate has made."""
    return balanced_product(t, check=False, **given)


def riccati_gram(t: ArrayLike, **given: Any) -> Array:
    """Return `balanced_gram` without its check, which the certificate has made."""
    return balanced_gram(t, check=False, **given)


def _solve_modewise(problem: LinearProblem, first: str) -> Solution:
    """Solve mode by mode: exact for weights aligned to modes that decouple.

    `first` says why no earlier solution applies.
    """
    lacks = problem.unmet_conditions(
        alignment="the weights are not aligned to the modes",
        coupling="the inputs couple the modes",
        rounding=ROUNDING_REASON,
    )
    w1, w2 = weights_with_bias(problem.network)
    u, s, v, d = (problem.as_array(z) for z in (problem.u, problem.s, problem.v, problem.d))
    p, q = w2.T @ u, w1 @ v
    mode = Mode.of_vectors(s, d, p.T, q.T, problem.tau)
    form = Partial(modewise_product, mode=mode, u=u, v=v)
    rest1, rest2 = w1 - q @ v.T, w2 - u @ p.T
    whole = Partial(modewise_gram, mode=mode, u=u, v=v, rest1=rest1, rest2=rest2)
    if lacks:
        why = f"no exact solution: {first}; {lacks}"
        return _label_solution(problem, "isolated modes", False, why, form, whole)
    why = f"{first}, but the modes decouple and the weights are aligned to them"
    return _label_solution(problem, "modes", True, why, form, whole)


def _solve_deep(problem: LinearProblem) -> Solution:
    """Solve three and more layers mode by mode: exact for balanced and aligned weights."""
    found = problem.certificate
    lacks = problem.unmet_conditions(
        imbalance="the layers are not balanced",
        inner="neighbouring layers are not aligned",
        alignment="the weights are not aligned to the modes",
        coupling="the inputs couple the modes",
        rounding=ROUNDING_REASON,
    )
    assert found.a0 is not None
    # The strength of a mode that the weights do not have is zero up to rounding, of either sign.
    if problem.tolerance * max(abs(found.a0)) < -min(found.a0):
        lacks += ", " * bool(lacks) + f"{found.negative} modes start with negative strength"
    u, s, v, d = (problem.as_array(z) for z in (problem.u, problem.s, problem.v, problem.d))
    a0 = jnp.maximum(problem.as_array(found.a0), 0.0)
    mode = Mode(s, d, a0, len(problem.weights), tau=problem.tau)
    form = Partial(modewise_product, mode=mode, u=u, v=v)
    if lacks:
        return _label_solution(
            problem, "isolated modes", False, f"no exact solution: {lacks}", form
        )
    why = "the layers are balanced and aligned to modes that decouple"
    return _label_solution(problem, "deep modes", True, why, form)


def modewise_product(t: ArrayLike, mode: Mode, u: Array, v: Array) -> Array:
    """Return the product u diag(a(t)) v^T of modes that do not interact, (..., N_out, N)."""
    return _mode_product(
        t, mode, u, v
    )  # a plain function by name, so that solutions can be pickled


@jax.jit
def _mode_product(t: ArrayLike, mode: Mode, u: Array, v: Array) -> Array:
    a = mode.strength(jnp.asarray(t)[..., None])
    return (with_axes(u, a.ndim - 1) * a[..., None, :]) @ v.T


def modewise_gram(t: ArrayLike, **given: Any) -> Array:
    """Return Q Q^T of modes that do not interact; the rest of the weights stays."""
    return _mode_gram(t, **given)


@jax.jit
def _mode_gram(t: Array, mode: Mode, u: Array, v: Array, rest1: Array, rest2: Array) -> Array:
    p, q = mode.vectors(t[..., None])
    axes = p.ndim - 2
    u, v, rest1, rest2 = (with_axes(z, axes) for z in (u, v, rest1.T, rest2))
    stacked = jnp.concatenate([v @ q + rest1, u @ p + rest2], axis=-2)
    return stacked @ jnp.swapaxes(stacked, -1, -2)
