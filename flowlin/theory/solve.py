"""The strongest exact solution that applies to a linear network and a task."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from flowlin._arrays import is_traced
from flowlin.flow import check_fit
from flowlin.network import AbstractNetwork, LinearNetwork
from flowlin.task import Task
from flowlin.theory.hyperbolic import imbalance, unbalanced_strength
from flowlin.theory.modes import Modes, modes
from flowlin.theory.riccati import balanced_product
from flowlin.theory.shallow import single_layer
from flowlin.trajectory import Trajectory


class Certificate(eqx.Module):
    r"""The numbers that decide which solution is exact; all but `balance` and `a0` are relative.

    With a bias the first layer is [b, W_1] and the inputs are [c; x]. Weights' numbers are None
    for a single layer.

    - `commutator`: of Sigma_x with Sigma_yx^T Sigma_yx, and `completeness` of the modes: `Modes`.
    - `condition`: largest over smallest nonzero eigenvalue of Sigma_x.
    - `whiteness`: $\|\Sigma_x^2 - d \Sigma_x\| / \|\Sigma_x\|^2$, 0 where $\Sigma_x$ is a multiple
      d of the identity, or of a projector; `variance` is d.
    - `outside`: share of W_1 that acts on inputs the data do not have.
    - `imbalance`: $\|B\|$ with $B = W_2^T W_2 - W_1 W_1^T$, over $\|W_1\|^2 + \|W_2\|^2$.
    - `balance`: $\lambda = \mathrm{tr} B / H$, and `spread`: $\|B - \lambda I\|$, like `imbalance`.
    - `alignment`: norm of the inner products of hidden vectors $p = W_2^T u$, $q = W_1 v$ of
      different modes, over $\|W_1\|^2 + \|W_2\|^2$; 0 where the weights are aligned to the modes.
    - `coupling`: how far $\Sigma_x$ mixes the modes that the weights have.
    - `a0`: raw strengths $p \cdot q$, (K,), and `negative`: how many of them are below zero.
    """

    commutator: float
    completeness: float
    condition: float
    whiteness: float
    variance: float
    outside: float | None = None
    imbalance: float | None = None
    balance: float | None = None
    spread: float | None = None
    alignment: float | None = None
    coupling: float | None = None
    a0: np.ndarray | None = None
    negative: int | None = None


class Solution(eqx.Module):
    """A closed form of the gradient flow of one network on one task.

    - `name`: which.
    - `exact`: whether it solves the flow, up to `tolerance` of `solve` in its conditions.
    - `why`: what decided.
    - `certificate`: the measured conditions.
    """

    name: str = eqx.field(static=True)
    exact: bool = eqx.field(static=True)
    why: str = eqx.field(static=True)
    certificate: Certificate
    form: Partial

    def product(self, t: Any) -> Float[Array, "... N_out N"]:
        """End-to-end matrix at times `t` (T,): (T, N_out, N_in).

        With a bias (T, N_out, 1 + N_in), to be applied to [c; x]: in front the raw bias, for two
        layers W_2 b, as in `LinearNetwork.balanced`. Any shape of `t` works, inf does, and it can
        be differentiated.
        """
        return self.form(jnp.asarray(t, jnp.result_type(float)))

    def error(self, flow: Trajectory) -> Float[Array, " T"]:
        """Distance from a numerical flow at `flow.ts`, (T,).

        The Frobenius norm of the difference of the products, over the largest norm of the flow's.
        It counts the flow's own error too; tau and task must be those of the solution.

        **Raises:** `ValueError` for a flow of another kind of network, or without networks.
        """
        if not isinstance(flow.final, LinearNetwork):
            raise ValueError(
                f"`flow` is of a {type(flow.final).__name__}, which has no end-to-end matrix; "
                "compare its outputs, or run a fl.LinearNetwork."
            )
        numerical = jax.vmap(lambda network: end_to_end(_matrices(network)))(flow.networks)
        difference = jnp.linalg.norm(self.product(flow.ts) - numerical, axis=(1, 2))
        return difference / jnp.max(jnp.linalg.norm(numerical, axis=(1, 2)))


@dataclasses.dataclass
class _Problem:
    """What the rules look at, in numpy and double precision; the modes in the network's."""

    network: LinearNetwork
    modes: Modes
    weights: list[np.ndarray]  # [b, W_1], W_2
    s_yx: np.ndarray
    s_x: np.ndarray
    u: np.ndarray
    v: np.ndarray
    tau: Any
    tolerance: float
    certificate: Certificate

    def array(self, value: Any) -> Array:
        return jnp.asarray(value, self.network.dtype)

    def lacks(self, **conditions: str) -> str:
        """What the conditions, by their name in the certificate, say where they do not hold."""
        values = {name: getattr(self.certificate, name) for name in conditions}
        failed = [name for name, value in values.items() if value > self.tolerance]
        return ", ".join(f"{conditions[name]} ({values[name]:.2g})" for name in failed)


def solve(
    network: AbstractNetwork, task: Task, tau: Any = 1.0, *, tolerance: float | None = None
) -> Solution:
    r"""The strongest exact solution that applies, or a labelled approximation.

    For the flow $\tau \dot w = -\nabla L$ of the mean half squared error (`fl.SquaredError()`; for
    the sum divide tau by P). In this order:

    1. `single layer`: exact for every task (`single_layer`).
    2. `Riccati`: two layers, white inputs, (lambda-)balanced weights (`balanced_product`).
    3. `modes`: two layers of weights aligned to modes that decouple, balanced or not, for inputs of
       any covariance (`unbalanced_strength`).
    4. `isolated modes`: not exact. Every mode as if the others were not there.

    **Arguments:**

    - `network`: a `fl.LinearNetwork` with one or two layers, without a bias on the readout.
    - `task`: inputs and targets.
    - `tau`: time constant.
    - `tolerance`: of the relative conditions; None is eps^(2/3), 4e-11 in float64. Deviations
      grow like the weights do.

    **Raises:** `ValueError` for other networks, and under `jit`: the choice needs numbers. The
    solution itself can be passed to functions under `jit`, and differentiated.
    """
    _check(network, task)
    assert isinstance(network, LinearNetwork)
    rounding = float(jnp.finfo(network.dtype).eps)
    problem = _problem(network, task, tau, rounding ** (2 / 3) if tolerance is None else tolerance)
    if len(network.weights) == 1:
        form = Partial(
            single_layer,
            w0=_matrices(network)[0],
            s_yx=problem.array(problem.s_yx),
            s_x=problem.array(problem.s_x),
            tau=tau,
        )
        return Solution("single layer", True, "the flow is linear", problem.certificate, form)
    solution, lacks = _riccati(problem)
    return _modewise(problem, lacks) if solution is None else solution


def end_to_end(matrices: list[Array]) -> Array:
    """W_L ... W_1."""
    product = matrices[0]
    for matrix in matrices[1:]:
        product = matrix @ product
    return product


def _matrices(network: LinearNetwork) -> list[Array]:
    """The weights, the first with its raw bias as the first column."""
    first, bias = network.weights[0], network.biases[0]
    if bias is not None:
        first = jnp.concatenate([bias[:, None], first], axis=1)
    return [first, *network.weights[1:]]


def _check(network: AbstractNetwork, task: Task) -> None:
    check_fit(network, task)
    if not isinstance(network, LinearNetwork):
        raise ValueError(
            f"`network` is a {type(network).__name__}; closed forms are for linear ones. For the "
            "linear counterpart pass fl.LinearNetwork(network.weights, network.biases, "
            "network.bias_strength)."
        )
    if is_traced((network, task)):
        raise ValueError(
            "`solve` needs a concrete network and task to choose by; call it outside jit and vmap, "
            "and pass the solution in."
        )
    layers = len(network.weights)
    if layers > 2:
        raise ValueError(
            f"`network` has {layers} layers; there are closed forms for one and two. Use "
            "fl.gradient_flow."
        )
    if layers == 2 and network.biases[1] is not None:
        raise ValueError(
            "`network` has a bias on its readout, for which there is no closed form; leave it out "
            "(`biases=(b, None)`), or use fl.gradient_flow."
        )


def _problem(network: LinearNetwork, task: Task, tau: Any, tolerance: float) -> _Problem:
    c = 0.0 if network.biases[0] is None else float(network.bias_strength)
    found = modes(task.astype(network.dtype), c)
    x, y = np.asarray(task.x, np.float64), np.asarray(task.y, np.float64)
    u, v = np.asarray(found.u, np.float64), np.asarray(found.v, np.float64)
    if network.biases[0] is not None:
        x = np.concatenate([np.full((len(x), 1), c), x], axis=1)
        v = v if c else np.concatenate([np.zeros((1, v.shape[1])), v])  # modes leave c = 0 out
    s_yx, s_x = y.T @ x / len(x), x.T @ x / len(x)
    weights = [np.asarray(w, np.float64) for w in _matrices(network)]
    eigenvalues = np.linalg.eigvalsh(s_x)
    kept = eigenvalues[eigenvalues > len(s_x) * np.finfo(np.float64).eps * eigenvalues[-1]]
    variance = float(_ratio(np.sum(s_x**2), np.trace(s_x)))
    numbers: dict[str, Any] = {
        "commutator": float(found.commutator),
        "completeness": float(found.completeness),
        "condition": float(kept[-1] / kept[0]) if len(kept) else 1.0,
        "whiteness": float(_ratio(np.linalg.norm(s_x @ s_x - variance * s_x), np.sum(s_x**2))),
        "variance": variance,
    }
    if len(weights) == 2:
        w1, w2 = weights
        numbers |= _weight_numbers(w1, w2, s_x, variance, u, v, np.asarray(found.d, np.float64))
    certificate = Certificate(**numbers)
    return _Problem(network, found, weights, s_yx, s_x, u, v, tau, tolerance, certificate)


def _weight_numbers(w1, w2, s_x, variance, u, v, d) -> dict[str, Any]:
    """The part of the certificate that two layers of weights decide."""
    size = np.sum(w1**2) + np.sum(w2**2)
    conserved = w2.T @ w2 - w1 @ w1.T
    balance = np.trace(conserved) / len(w1)
    norm = np.linalg.norm
    p, q = w2.T @ u, w1 @ v
    a0, sizes = np.sum(p * q, axis=0), np.sum(p**2 + q**2, axis=0)
    mixing = sizes[:, None] * (v.T @ s_x - d[:, None] * v.T)
    numbers = {
        "outside": _ratio(norm(w1 - _ratio(w1 @ s_x, variance)), norm(w1)),
        "imbalance": _ratio(norm(conserved), size),
        "balance": balance,
        "spread": _ratio(norm(conserved - balance * np.eye(len(w1))), size),
        "alignment": _ratio(_overlap(p, q, w2 - u @ p.T, w1 - q @ v.T), size),
        "coupling": _ratio(norm(mixing), norm(sizes) * norm(s_x)),
        "negative": np.sum(a0 < 0),
    }
    return {name: value.item() for name, value in numbers.items()} | {"a0": a0}


def _overlap(p: np.ndarray, q: np.ndarray, rest2: np.ndarray, rest1: np.ndarray) -> Any:
    """Norm of the inner products of hidden vectors (H, K) of different modes.

    The rests are what W_2 and W_1 do beside the modes; among themselves they may do anything that
    does not reach the outputs.
    """
    off = 1 - np.eye(p.shape[1])
    products = [off * (p.T @ p), off * (q.T @ q), off * (p.T @ q)]
    products += [rest2 @ p, rest2 @ q, p.T @ rest1, q.T @ rest1, rest2 @ rest1]
    return np.linalg.norm([np.linalg.norm(one) for one in products])


def _ratio(value: Any, scale: Any) -> Any:
    return value / scale if scale else value


def _riccati(problem: _Problem) -> tuple[Solution | None, str]:
    """The matrix Riccati solution, or None and what it lacks."""
    found = problem.certificate
    lacks = problem.lacks(
        whiteness="the inputs are not white",
        outside="the first layer acts on inputs that the data do not have",
        spread="the weights are neither balanced nor lambda-balanced",
    )
    if lacks:
        return None, lacks
    balanced = not problem.lacks(imbalance="not balanced")
    w1, w2 = _matrices(problem.network)
    form = Partial(
        balanced_product,
        w1=w1,
        w2=w2,
        s_yx=problem.array(problem.s_yx),
        variance=problem.array(found.variance),
        balance=problem.array(0.0 if balanced else found.balance),
        tau=problem.tau,
    )
    name = "balanced" if balanced else f"lambda-balanced, lambda = {found.balance:.6g}"
    why = f"the inputs are white and the weights {name}"
    return Solution("Riccati", True, why, found, form), ""


def _modewise(problem: _Problem, first: str) -> Solution:
    """Every mode by itself: exact for weights aligned to modes that decouple."""
    lacks = problem.lacks(
        alignment="the weights are not aligned to the modes",
        coupling="the inputs couple the modes",
    )
    w1, w2 = _matrices(problem.network)
    u, v = problem.modes.u, problem.array(problem.v)
    p, q = w2.T @ u, w1 @ v
    form = Partial(
        modewise,
        u=u,
        s=problem.modes.s,
        v=v,
        d=problem.modes.d,
        a0=jnp.sum(p * q, axis=0),
        imbalance=imbalance(p.T, q.T),
        tau=problem.tau,
    )
    if lacks:
        why = f"no exact solution: {first}; {lacks}"
        return Solution("isolated modes", False, why, problem.certificate, form)
    why = f"{first}, but the modes decouple and the weights are aligned to them"
    return Solution("modes", True, why, problem.certificate, form)


def modewise(t: Any, u: Any, s: Any, v: Any, d: Any, a0: Any, imbalance: Any, tau: Any) -> Array:
    """The product u diag(a(t)) v^T of modes that do not see each other, (..., N_out, N)."""
    strength = unbalanced_strength(jnp.asarray(t)[..., None], s, d, a0, imbalance, tau)
    return (u * strength[..., None, :]) @ v.T
