"""The strongest exact solution that applies to a linear network and a task."""

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike, PyTree

from flowlin._tools.arguments import checked, not_negative
from flowlin._tools.arrays import is_traced, with_axes
from flowlin.networks.base import require_task_fit
from flowlin.networks.network_kinds import AbstractNetwork, LinearNetwork
from flowlin.tasks.task import Task
from flowlin.theory.balanced_product import balanced_gram, balanced_product
from flowlin.theory.certificate import (
    LinearProblem,
    examine_problem,
    weights_with_bias,
)
from flowlin.theory.mode import Mode
from flowlin.theory.single_layer import single_layer
from flowlin.theory.solution import Solution, network_product

ROUNDING_REASON = "rounding of the weights decides when a mode is learnt"


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

    **Returns:** `Solution`, which says its `kind`, whether it is `exact`, and why.

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
        start=network_product(network),
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


def riccati_product(t: ArrayLike, **given: ArrayLike) -> Array:
    """Return `balanced_product` without its check, which the certificate has made."""
    return balanced_product(t, check=False, **given)


def riccati_gram(t: ArrayLike, **given: ArrayLike) -> Array:
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


def modewise_gram(t: ArrayLike, **given: PyTree) -> Array:
    """Return Q Q^T of modes that do not interact; the rest of the weights stays."""
    return _mode_gram(t, **given)


@jax.jit
def _mode_gram(t: Array, mode: Mode, u: Array, v: Array, rest1: Array, rest2: Array) -> Array:
    p, q = mode.vectors(t[..., None])
    axes = p.ndim - 2
    u, v, rest1, rest2 = (with_axes(z, axes) for z in (u, v, rest1.T, rest2))
    stacked = jnp.concatenate([v @ q + rest1, u @ p + rest2], axis=-2)
    return stacked @ jnp.swapaxes(stacked, -1, -2)
