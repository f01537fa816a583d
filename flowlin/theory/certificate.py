"""The numbers that decide which closed form is exact for a linear network and a task."""

import dataclasses
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from flowlin._tools.arrays import mean_product
from flowlin._tools.printing import Summary, first, number, shown
from flowlin.measures.modes import modes
from flowlin.networks.kinds import LinearNetwork
from flowlin.tasks.task import Task


def certificate(found: Any) -> Summary:
    """The conditions, of the task and of the weights, and the strengths at t = 0."""

    def numbers(*names: str) -> str:
        values = {name: getattr(found, name) for name in names}
        return ", ".join(f"{name} {number(x, 4)}" for name, x in values.items() if x is not None)

    rows = [("task", numbers("commutator", "completeness", "condition", "whiteness", "variance"))]
    if weights := numbers("outside", "imbalance", "balance", "spread", "inner"):
        rows.append(("weights", weights))
    if modewise := numbers("alignment", "coupling", "negative"):
        rows.append(("modes", modewise))
    if found.a0 is not None:
        rows.append(("a0", first(found.a0, 4)))
    return Summary("Certificate", rows)


@shown(certificate)
class Certificate(eqx.Module):
    r"""The numbers that decide which solution is exact; all but `balance` and `a0` are relative.

    With a bias the first layer is [b, W_1] and the inputs are [c; x]. Sizes are
    $\sum_l \|W_l\|^2$. Weights' numbers are None for a single layer, `outside`, `balance` and
    `spread` for three and more.

    - `commutator`: of Sigma_x with Sigma_yx^T Sigma_yx, and `completeness` of the modes: `Modes`.
    - `condition`: largest over smallest nonzero eigenvalue of Sigma_x.
    - `whiteness`: $\|\Sigma_x^2 - d \Sigma_x\| / \|\Sigma_x\|^2$, 0 where $\Sigma_x$ is a multiple
      d of the identity, or of a projector; `variance` is d.
    - `outside`: share of W_1 that acts on inputs the data do not have.
    - `imbalance`: norm of all $B_l = W_{l+1}^T W_{l+1} - W_l W_l^T$, over the size.
    - `balance`: $\lambda = \mathrm{tr} B_1 / H$, and `spread`: $\|B_1 - \lambda I\|$, like
      `imbalance`.
    - `inner`: largest commutator of $W_{l+1}^T W_{l+1}$ and $W_l W_l^T$, over the product of their
      norms; 0 where neighbours share their inner singular vectors, as balanced ones do.
    - `alignment`: 0 where the weights are aligned to the modes. For two layers the norm of the
      inner products of hidden vectors $p = W_2^T u$, $q = W_1 v$ of different modes, over the size;
      for more what the product, $W_1^T W_1$ and $W_L W_L^T$ are beside $\sum_k a_k u_k v_k^T$,
      $\sum_k \|W_1 v_k\|^2 v_k v_k^T$ and $\sum_k \|W_L^T u_k\|^2 u_k u_k^T$, each over its norm.
    - `coupling`: how far $\Sigma_x$ mixes the modes that the weights have.
    - `a0`: raw strengths $u^T W_L \cdots W_1 v$, (K,), among modes of equal s and d in the basis
      that suits the weights, and `negative`: how many are below zero.
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
    inner: float | None = None
    alignment: float | None = None
    coupling: float | None = None
    a0: np.ndarray | None = None
    negative: int | None = None


@dataclasses.dataclass
class Problem:
    """What the rules look at, in numpy and double precision."""

    network: LinearNetwork
    task: Task  # in the network's precision
    weights: list[np.ndarray]  # [b, W_1], W_2, ...
    s_yx: np.ndarray
    s_x: np.ndarray
    u: np.ndarray  # the modes, turned as far as the weights leave it open
    s: np.ndarray
    v: np.ndarray
    d: np.ndarray
    tau: ArrayLike
    tolerance: float
    certificate: Certificate

    def array(self, value: Any) -> Array:
        return jnp.asarray(value, self.network.dtype)

    def lacks(self, **conditions: str) -> str:
        """What the conditions, by their name in the certificate, say where they do not hold."""
        values = {name: getattr(self.certificate, name) for name in conditions}
        failed = [name for name, value in values.items() if value > self.tolerance]
        return ", ".join(f"{conditions[name]} ({values[name]:.2g})" for name in failed)


def end_to_end(matrices: list[Any]) -> Any:
    """W_L ... W_1."""
    product = matrices[0]
    for matrix in matrices[1:]:
        product = matrix @ product
    return product


def matrices(network: LinearNetwork) -> list[Array]:
    """The weights, the first with its raw bias as the first column."""
    first, bias = network.weights[0], network.biases[0]
    if bias is not None:
        first = jnp.concatenate([bias[:, None], first], axis=1)
    return [first, *network.weights[1:]]


def examined(network: LinearNetwork, task: Task, tau: ArrayLike, tolerance: float) -> Problem:
    """The modes and moments of a task, and the certificate of a network on it."""
    c = 0.0 if network.biases[0] is None else float(network.bias_strength)
    task = task.astype(network.dtype)
    found = modes(task, c)
    x, y = np.asarray(task.x, np.float64), np.asarray(task.y, np.float64)
    u, s, v, d = (np.asarray(z, np.float64) for z in (found.u, found.s, found.v, found.d))
    if network.biases[0] is not None:
        x = np.concatenate([np.full((len(x), 1), c), x], axis=1)
        v = v if c else np.concatenate([np.zeros((1, v.shape[1])), v])  # modes leave c = 0 out
    sampled = None if task.weights is None else np.asarray(task.weights, np.float64)
    s_yx, s_x = mean_product(y, x, sampled), mean_product(x, x, sampled)
    weights = [np.asarray(w, np.float64) for w in matrices(network)]
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
    if len(weights) > 1:
        u, v = _turned(u, s, v, d, end_to_end(weights), float(jnp.finfo(network.dtype).eps))
        numbers |= _weight_numbers(weights, s_x, u, v, d)
    if len(weights) == 2:
        numbers |= _balance_numbers(weights[0], weights[1], s_x, variance)
    certificate = Certificate(**numbers)
    return Problem(
        network=network,
        task=task,
        weights=weights,
        s_yx=s_yx,
        s_x=s_x,
        u=u,
        s=s,
        v=v,
        d=d,
        tau=tau,
        tolerance=tolerance,
        certificate=certificate,
    )


def _turned(
    u: np.ndarray, s: np.ndarray, v: np.ndarray, d: np.ndarray, product: np.ndarray, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """Modes (u, v) whose basis, among modes with the same s and d, suits the product.

    Modes of the same s > 0 and d can be turned together, which diagonalises the symmetric part of
    the product among them; where s = 0 both sides can be turned by themselves.
    """
    u, v = u.copy(), v.copy()
    steps = (np.abs(np.diff(s)) > 1e3 * eps * s[0]) | (np.abs(np.diff(d)) > 1e3 * eps * np.max(d))
    for group in np.split(np.arange(len(s)), np.flatnonzero(steps) + 1):
        if len(group) > 1:
            among = u[:, group].T @ product @ v[:, group]
            left, _, right = np.linalg.svd(among)
            right = right.T
            if s[group[0]] > 0:
                left = right = np.linalg.eigh(among + among.T)[1][:, ::-1]
            u[:, group], v[:, group] = u[:, group] @ left, v[:, group] @ right
    return u, v


def _weight_numbers(
    weights: list[np.ndarray], s_x: np.ndarray, u: np.ndarray, v: np.ndarray, d: np.ndarray
) -> dict[str, Any]:
    """The part of the certificate that two and more layers of weights decide."""
    norm, first, last, product = np.linalg.norm, weights[0], weights[-1], end_to_end(weights)
    size = sum(np.sum(w**2) for w in weights)
    grams = [(b.T @ b, a @ a.T) for a, b in pairwise(weights)]
    p, q = last.T @ u, first @ v
    a0 = np.sum(u * (product @ v), axis=0)
    sizes = np.sum(p**2, axis=0) + np.sum(q**2, axis=0)
    mixing = sizes[:, None] * (v.T @ s_x - d[:, None] * v.T)
    if len(weights) == 2:
        alignment = _ratio(_overlap(p, q, last - u @ p.T, first - q @ v.T), size)
    else:
        inputs, outputs = first.T @ first, last @ last.T
        alignment = np.linalg.norm(
            [
                _ratio(norm(product - (u * a0) @ v.T), norm(product)),
                _ratio(norm(inputs - (v * np.sum(q**2, axis=0)) @ v.T), norm(inputs)),
                _ratio(norm(outputs - (u * np.sum(p**2, axis=0)) @ u.T), norm(outputs)),
            ]
        )
    numbers = {
        "imbalance": _ratio(norm([norm(after - before) for after, before in grams]), size),
        "inner": max(_ratio(norm(b @ a - a @ b), norm(a) * norm(b)) for a, b in grams),
        "alignment": alignment,
        "coupling": _ratio(norm(mixing), norm(sizes) * norm(s_x)),
        "negative": int(np.sum(a0 < 0)),
    }
    return {name: np.asarray(value).item() for name, value in numbers.items()} | {"a0": a0}


def _balance_numbers(
    w1: np.ndarray, w2: np.ndarray, s_x: np.ndarray, variance: float
) -> dict[str, float]:
    """What the matrix Riccati solution asks of two layers."""
    norm, conserved = np.linalg.norm, w2.T @ w2 - w1 @ w1.T
    balance = float(np.trace(conserved)) / len(w1)
    spread = norm(conserved - balance * np.eye(len(w1)))
    return {
        "outside": float(_ratio(norm(w1 - _ratio(w1 @ s_x, variance)), norm(w1))),
        "balance": balance,
        "spread": float(_ratio(spread, np.sum(w1**2) + np.sum(w2**2))),
    }


def _overlap(p: np.ndarray, q: np.ndarray, rest2: np.ndarray, rest1: np.ndarray) -> Any:
    """Norm of the inner products of hidden vectors (H, K) of different modes.

    The rests are what W_2 and W_1 do beside the modes; among themselves they may do anything that
    does not reach the outputs.
    """
    off = 1 - np.eye(p.shape[1])
    products = [off * (p.T @ p), off * (q.T @ q), off * (p.T @ q)]
    products += [rest2 @ p, rest2 @ q, p.T @ rest1, q.T @ rest1, rest2 @ rest1]
    return np.linalg.norm([np.linalg.norm(one) for one in products])


def _ratio(value: Any, scale: ArrayLike) -> Any:
    return value / scale if scale else value
