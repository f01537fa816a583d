"""The numbers that decide which closed form is exact for a linear network and a task."""

import dataclasses
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from flowlin._tools.arrays import Real, SameKind, sample_correlation
from flowlin._tools.printing import Summary, concrete_array, format_first, format_number, print_by
from flowlin.measures.modes import modes_within
from flowlin.networks.network_kinds import LinearNetwork
from flowlin.tasks.task import Task
from flowlin.theory.deviations import (
    Moments,
    deep_deviations,
    deviation_by_alignment,
    deviation_by_coupling,
    deviation_by_rounding,
    hidden_mode_vectors,
    riccati_deviations,
    two_layer_course,
)


def certificate_summary(found: "Certificate") -> Summary:
    """Print the conditions of the task and of the weights, and the strengths at t = 0."""

    def values_text(*names: str) -> str:
        values = {name: getattr(found, name) for name in names}
        said = [f"{name} {_largest_text(x)}" for name, x in values.items() if x is not None]
        return ", ".join(said)

    rows = [
        ("task", values_text("commutator", "completeness", "condition", "whiteness", "variance"))
    ]
    parts = {
        "inputs": ("colour", "outside"),
        "weights": ("imbalance", "balance", "spread", "inner"),
        "modes": ("alignment", "coupling", "rounding", "negative"),
    }
    rows += [(title, said) for title, names in parts.items() if (said := values_text(*names))]
    if found.a0 is not None:
        rows.append(("a0", format_first(found.a0, 4)))
    return Summary("Certificate", rows)


def _largest_text(value: ArrayLike) -> str:
    """Return a number as text, or the largest of one per mode with the mode's number."""
    if np.ndim(value) == 0:
        return format_number(value, 4)
    found = concrete_array(value, 1)
    if found is None or not len(found):
        return format_number(value, 4)
    return f"{format_number(np.max(found), 4)} ({np.argmax(found)})"


@print_by(certificate_summary)
class Certificate(eqx.Module):
    r"""The numbers that decide which solution is exact; all but `balance` and `a0` are relative.

    With a bias the first layer is [b, W_1] and the inputs are [c; x]. Weights' numbers are None for
    a single layer.

    Of the task:

    - `commutator`: of Sigma_x with Sigma_yx^T Sigma_yx, and `completeness` of the modes: `Modes`.
    - `condition`: largest over smallest nonzero eigenvalue of Sigma_x.
    - `whiteness`: $\|\Sigma_x^2 - d \Sigma_x\| / \|\Sigma_x\|^2$, 0 where $\Sigma_x$ is a multiple
      d of the identity, or of a projector; `variance` is d.

    Of the weights, one number per mode, (K,): the share of its own size by which a condition that
    fails moves that mode, to first order over its whole course (`flowlin.theory.deviations`). 0
    where the condition holds, and for a mode that is absent; inf where it alone decides the mode.

    - `colour`, for two layers: inputs that are not white.
    - `outside`, for two layers: the part of W_1 that acts on inputs that the data do not have.
    - `imbalance`: all $B_l = W_{l+1}^T W_{l+1} - W_l W_l^T$.
    - `spread`, for two layers: $B_1 - \lambda I$, with the `balance`
      $\lambda = \mathrm{tr} B_1 / H$, a number.
    - `alignment`: overlaps of the hidden vectors $p = W_2^T u$, $q = W_1 v$ of different modes; of
      more layers entries of the product, $W_1^T W_1$ and $W_L W_L^T$ beside their diagonals.
    - `coupling`: entries of $\Sigma_x$ and $\Sigma_{yx}$ that mix modes, once these are learnt.
    - `rounding`: rounding of the weights; above 1 for a mode that is to be learnt from nothing.

    And

    - `inner`: largest commutator of $W_{l+1}^T W_{l+1}$ and $W_l W_l^T$, over the product of their
      norms; 0 where neighbours share their inner singular vectors, as balanced ones do.
    - `a0`: raw strengths $u^T W_L \cdots W_1 v$, (K,), among modes of equal s and d in the basis
      that suits the weights, and `negative`: the number of those below zero.
    """

    commutator: float
    completeness: float
    condition: float
    whiteness: float
    variance: float
    colour: np.ndarray | None = None
    outside: np.ndarray | None = None
    imbalance: np.ndarray | None = None
    balance: float | None = None
    spread: np.ndarray | None = None
    inner: float | None = None
    alignment: np.ndarray | None = None
    coupling: np.ndarray | None = None
    rounding: np.ndarray | None = None
    a0: np.ndarray | None = None
    negative: int | None = None


@dataclasses.dataclass
class LinearProblem:
    """A network and a task as `solve` compares them, in NumPy and double precision."""

    network: LinearNetwork
    task: Task  # in the network's precision
    weights: list[np.ndarray]  # [b, W_1], W_2, ...
    s_yx: np.ndarray
    s_x: np.ndarray
    u: np.ndarray  # modes of equal s and d in the basis that suits the weights
    s: np.ndarray
    v: np.ndarray
    d: np.ndarray
    tau: ArrayLike
    tolerance: float
    certificate: Certificate

    def as_array(self, value: object) -> Array:
        """Return an array of JAX in the network's precision."""
        return jnp.asarray(value, self.network.dtype)

    def unmet_conditions(self, **conditions: str) -> str:
        """Return the words of those conditions that do not hold, with their numbers; "" of none.

        `conditions` are words by the name in the certificate. Of numbers per mode the largest
        counts, and the mode is named.
        """
        said = []
        for name, words in conditions.items():
            values = np.atleast_1d(getattr(self.certificate, name))
            worst = int(np.argmax(values)) if len(values) else 0
            if not np.all(values <= self.tolerance):
                of = f", mode {worst}" if len(values) > 1 else ""
                said.append(f"{words} ({values[worst]:.2g}{of})")
        return ", ".join(said)


def chain_product(matrices: list[SameKind]) -> SameKind:
    """Return the product W_L ... W_1 of [W_1, ..., W_L]."""
    product = matrices[0]
    for matrix in matrices[1:]:
        product = matrix @ product
    return product


def weights_with_bias(network: LinearNetwork) -> list[Array]:
    """Return the weights, the first with its raw bias as the first column."""
    first, bias = network.weights[0], network.biases[0]
    if bias is not None:
        first = jnp.concatenate([bias[:, None], first], axis=1)
    return [first, *network.weights[1:]]


def examine_problem(
    network: LinearNetwork, task: Task, tau: ArrayLike, tolerance: float
) -> LinearProblem:
    """Return modes and moments of a task, with the certificate of a network on it."""
    c = 0.0 if network.biases[0] is None else float(network.bias_strength)
    task = task.astype(network.dtype)
    found = modes_within(task, c)  # a weak mode is judged by its own size, so to rounding
    x, y = np.asarray(task.x, np.float64), np.asarray(task.y, np.float64)
    u, s, v, d = (np.asarray(z, np.float64) for z in (found.u, found.s, found.v, found.d))
    if network.biases[0] is not None:
        x = np.concatenate([np.full((len(x), 1), c), x], axis=1)
        v = v if c else np.concatenate([np.zeros((1, v.shape[1])), v])  # modes leave c = 0 out
    sampled = None if task.weights is None else np.asarray(task.weights, np.float64)
    s_yx, s_x = sample_correlation(y, x, sampled), sample_correlation(x, x, sampled)
    weights = [np.asarray(w, np.float64) for w in weights_with_bias(network)]
    eigenvalues = np.linalg.eigvalsh(s_x)
    kept = eigenvalues[eigenvalues > len(s_x) * np.finfo(np.float64).eps * eigenvalues[-1]]
    variance = float(_relative_size(np.sum(s_x**2), np.trace(s_x)))
    numbers: dict[str, Any] = {
        "commutator": float(found.commutator),
        "completeness": float(found.completeness),
        "condition": float(kept[-1] / kept[0]) if len(kept) else 1.0,
        "whiteness": float(
            _relative_size(np.linalg.norm(s_x @ s_x - variance * s_x), np.sum(s_x**2))
        ),
        "variance": variance,
    }
    eps = float(jnp.finfo(network.dtype).eps)
    if len(weights) > 1:
        u, v = _align_degenerate(u, s, v, d, chain_product(weights), eps)
        smallest = float(kept[0]) if len(kept) else 0.0
        data = Moments(s_yx, s_x, u, s, v, d, smallest)
        numbers |= _weight_numbers(weights, data, eps, variance)
    certificate = Certificate(**numbers)
    return LinearProblem(
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


def _align_degenerate(
    u: np.ndarray, s: np.ndarray, v: np.ndarray, d: np.ndarray, product: np.ndarray, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return modes (u, v) in the basis, among modes of the same s and d, that suits the product.

    Modes of the same s > 0 and d can be rotated together, which diagonalises the symmetric part
    of the product among them; where s = 0 each side can be rotated by itself.
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
    weights: list[np.ndarray], data: Moments, eps: float, variance: float
) -> dict[str, np.ndarray | float | bool | None]:
    """Return the numbers of the certificate that networks of two and more layers have."""
    norm = np.linalg.norm
    grams = [(b.T @ b, a @ a.T) for a, b in pairwise(weights)]
    inner = max(_relative_size(norm(b @ a - a @ b), norm(a) * norm(b)) for a, b in grams)
    if len(weights) > 2:
        found = deep_deviations(weights, data, eps)
        own, a0 = found.course, found.a0
        numbers = {name: getattr(found, name) for name in ("rounding", "imbalance", "alignment")}
    else:
        own, (p, q) = two_layer_course(weights, data), hidden_mode_vectors(weights, data)
        a0 = np.sum(p * q, axis=0)
        balance = float(np.trace(grams[0][0] - grams[0][1])) / len(weights[0])
        numbers = riccati_deviations(weights, data, own, variance, balance)._asdict() | {
            "balance": balance,
            "rounding": deviation_by_rounding(weights, data, own, eps),
            "alignment": deviation_by_alignment(weights, data, own),
        }
    return numbers | {
        "inner": float(inner),
        "coupling": deviation_by_coupling(data, own),
        "a0": a0,
        "negative": int(np.sum(a0 < 0)),
    }


def _relative_size(value: Real, scale: Real) -> Real:
    """Return value over scale; the value itself, which is then zero, for a scale of zero."""
    return value / scale if scale else value
