r"""Distances of each mode from a closed form, relative to its own size, for the certificate.

In the modes' bases let $P = W_2^T U$ and $Q = W_1 V$, with columns p_k and q_k. Then

$$\tau \dot P = Q R^T, \quad \tau \dot Q = P R, \quad R = S - P^T Q D, \quad
  S = U^T \Sigma_{yx} V, \quad D = V^T \Sigma_x V,$$

and the isolated modes are the solution while P^T P, Q^T Q, P^T Q, S and D are diagonal. What is not
diagonal moves the pair (k, l) by itself, to first order. In their two planes it falls as
$d_k M_{lk}^2 + d_l M_{kl}^2$ does, M = P^T Q, and grows at most as fast as the modes themselves, at
the rates r_k and r_l. So a part of p_l or q_l in the plane of mode k keeps its size **relative to
that of mode l**, and this relative size is measured here:

- the start, A_l: the part of the weights that grows, $\|p_l + q_l\|^2 / 4$, for balanced modes a_0;
- the reach, m_l: the largest $(\|p_l\|^2 + \|q_l\|^2) / 2 = \sqrt{a_l^2 + \lambda_l^2 / 4}$ of all
  times, with s / d for a mode that is yet to be learnt.

An overlap of weights counts over $2 \sqrt{A_k A_l}$. An entry of D pushes q_l by
$m_k D_{kl} \sqrt{m_k}$ against a damping of $d_l m_k$, and counts over $d_l$ times
$\sqrt{A_l / m_k}$: two small modes that the inputs couple disturb each other only once they are
learnt, but then by their whole size.

Modes of weights that are not aligned start with the part of their vectors that no other mode has.
These are first-order estimates, and no proof: `tests/test_theory_certificates.py` compares them
with the flow of a thousand random networks.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

ABSENT_EPS = 64  # times eps: below this share of the largest, a mode that nothing drives is absent
EQUAL_EPS = 32  # times eps: singular values closer than this share of the largest count as equal

Matrix = np.ndarray


class Moments(NamedTuple):
    """The moments of a task in double precision, with the modes (u, s, v, d) in use."""

    s_yx: Matrix
    s_x: Matrix
    u: Matrix
    s: Matrix
    v: Matrix
    d: Matrix
    smallest_eigenvalue: float  # nonzero eigenvalue of s_x

    @property
    def is_driven(self) -> Matrix:
        """Tell which modes have a singular value above rounding, (K,)."""
        return self.s > EQUAL_EPS * np.finfo(float).eps * np.max(self.s, initial=0.0)


class ModeCourse(NamedTuple):
    """The course of K modes without the others, (K,) each; sizes are those of strengths."""

    start: Matrix  # A; the size of a mode that nothing drives
    reach: Matrix  # m
    is_present: Matrix  # bool: whether a mode is larger than rounding, or driven
    is_driven: Matrix  # bool: whether its singular value is above rounding

    @property
    def growth_time(self) -> Matrix:
        """1 + log(m / A): the time that a mode takes, roughly, in units of 1 over its rate."""
        ratio = ratio_with_limits(self.reach, self.start)
        return 1 + np.log(np.where(ratio > 1, ratio, 1.0))


def ratio_with_limits(value: Matrix | float, scale: Matrix | float) -> Matrix:
    """Return a quotient in which 0 over 0 is 0, and anything else over 0 is inf."""
    value, scale = np.broadcast_arrays(np.asarray(value, float), np.asarray(scale, float))
    none = np.where(value == 0, 0.0, np.inf)
    return np.where(scale > 0, value / np.where(scale > 0, scale, 1.0), none)


def mode_course(start: Matrix, size: Matrix, imbalance: Matrix, data: Moments) -> ModeCourse:
    """Return the course of modes of these sizes and imbalances, (K,), of which `start` grows."""
    full = np.hypot(ratio_with_limits(data.s * data.is_driven, data.d), imbalance / 2)
    reach = np.where(size > 0, np.maximum(size, np.where(data.is_driven, full, 0.0)), 0.0)
    rounding = ABSENT_EPS * np.finfo(float).eps * np.max(reach, initial=0.0)
    there = data.is_driven | (size > rounding)
    return ModeCourse(np.where(data.is_driven, start, size), reach, there, data.is_driven)


# ---- Two layers.


def hidden_mode_vectors(weights: list[Matrix], data: Moments) -> tuple[Matrix, Matrix]:
    """Return P = W_2^T U and Q = W_1 V, (H, K)."""
    return weights[1].T @ data.u, weights[0] @ data.v


def two_layer_course(weights: list[Matrix], data: Moments) -> ModeCourse:
    """Return the course of the modes of two layers, each without the others."""
    p, q = hidden_mode_vectors(weights, data)
    plus, minus = (np.sum(z**2, axis=0) / 4 for z in (p + q, p - q))
    return mode_course(plus, plus + minus, 4 * np.sqrt(plus * minus), data)


def course_outside_others(weights: list[Matrix], data: Moments, own: ModeCourse) -> ModeCourse:
    """Return the course with starts that are distances from the span of the other modes' starts.

    The part that a mode shares with modes that are learnt before it goes to these. Where there
    are fewer units than driven modes, the strongest that fit count; the others keep their starts.
    """
    p, q = hidden_mode_vectors(weights, data)
    first = np.flatnonzero(own.is_driven)[np.argsort(-data.s[own.is_driven], kind="stable")]
    first = first[: len(p)]
    left, sizes, _ = np.linalg.svd((p + q)[:, first].T / 2, full_matrices=False)
    start = own.start.copy()
    start[first] = ratio_with_limits(1.0, np.sum(ratio_with_limits(left**2, sizes**2), axis=1))
    return own._replace(start=start)


def deviation_by_rounding(
    weights: list[Matrix], data: Moments, own: ModeCourse, eps: float
) -> Float[Matrix, " K"]:
    r"""Return the rounding of the weights, $\epsilon \|W\|$, over the part of each mode that grows.

    inf for a driven mode of start zero: rounding decides when, and whether, it starts.
    """
    own = course_outside_others(weights, data, own)
    size = np.sqrt(sum(np.sum(w**2) for w in weights))
    return np.where(own.is_driven, ratio_with_limits(eps * size, 2 * np.sqrt(own.start)), 0.0)


def deviation_by_alignment(
    weights: list[Matrix], data: Moments, own: ModeCourse
) -> Float[Matrix, " K"]:
    """Return overlaps of each mode's hidden vectors with all others', over both starts, (K,).

    The part of the weights outside of the modes counts where it meets the modes, or reaches the
    outputs by itself.
    """
    p, q = hidden_mode_vectors(weights, data)
    rest1, rest2 = weights[0] - q @ data.v.T, weights[1] - data.u @ p.T
    overlaps = np.sqrt((p.T @ p) ** 2 + (q.T @ q) ** 2 + (p.T @ q) ** 2 + (q.T @ p) ** 2)
    beside = [rest2 @ p, rest2 @ q, rest1.T @ p, rest1.T @ q]
    rest = np.sqrt(sum(np.sum(z**2, axis=0) for z in beside))
    static = float(np.linalg.norm(rest2 @ rest1))
    return _combine_deviations(
        ratio_with_limits(overlaps, 2 * _start_scales(own)),
        ratio_with_limits(rest, 2 * np.sqrt(own.start * own.reach)),
        ratio_with_limits(static, np.max(own.reach, initial=0.0)),
        own,
    )


def deviation_by_coupling(data: Moments, own: ModeCourse) -> Float[Matrix, " K"]:
    """Return by how much entries of Sigma_x and Sigma_yx between modes move each mode, (K,)."""
    mixed_d = np.abs(data.v.T @ data.s_x @ data.v)
    mixed_s = np.abs(data.u.T @ data.s_yx @ data.v)
    reach = np.where(own.is_present, own.reach, 0.0)[:, None]
    lift = np.sqrt(
        ratio_with_limits(reach, np.where(own.is_present, own.start, reach))
    )  # sqrt(m_k / A_l)
    varies = data.d > len(data.s_x) * np.finfo(float).eps * np.max(data.d, initial=0.0)
    by_d = np.where(varies, ratio_with_limits(mixed_d, data.d), 0.0)
    apart, fastest = np.abs(data.s[:, None] - data.s), np.maximum(data.s[:, None], data.s)
    gap = np.maximum(apart, fastest / np.maximum(own.growth_time[:, None], own.growth_time))
    damping = np.where(varies, data.d, 0.0) * reach
    by_s = ratio_with_limits(mixed_s, gap) + np.where(
        damping > 0, ratio_with_limits(mixed_s, damping), 0.0
    )
    pairs = _zero_safe_product(lift, by_d + np.where(fastest > 0, by_s, 0.0))
    beside = data.s_x @ data.v
    beside = np.linalg.norm(beside - data.v @ (data.v.T @ beside), axis=0)
    return _combine_deviations(
        pairs + pairs.T, ratio_with_limits(beside, data.smallest_eigenvalue), 0.0, own
    )


def _start_scales(own: ModeCourse) -> Float[Matrix, "K K"]:
    """Return sqrt(A_k A_l); where one mode is absent, sqrt(A_k m_k) of the other."""
    pairs = np.sqrt(own.start[:, None] * own.start)
    alone = np.sqrt(own.start * own.reach)
    pairs = np.where(own.is_present[:, None], pairs, alone)
    return np.where(own.is_present, pairs, alone[:, None])


def _zero_safe_product(a: Matrix | float, b: Matrix | float) -> Matrix:
    """Return a b, where 0 times anything, inf included, is 0."""
    a, b = np.broadcast_arrays(np.asarray(a, float), np.asarray(b, float))
    nothing = (a == 0) | (b == 0)
    return np.where(nothing, 0.0, np.where(nothing, 0.0, a) * np.where(nothing, 0.0, b))


def _combine_deviations(
    pairs: Matrix, beside: Matrix, static: Matrix | float, own: ModeCourse
) -> Float[Matrix, " K"]:
    """Return the norm of all that a mode meets: pairs, `beside`, `static`; 0 for absent modes."""
    pairs = np.where(np.eye(len(pairs), dtype=bool), 0.0, pairs)
    found = np.sqrt(np.sum(pairs**2, axis=1) + beside**2 + np.asarray(static) ** 2)
    return np.where(own.is_present, found, 0.0)


# ---- Two layers whose modes need not be aligned: white inputs.


class RiccatiDeviations(NamedTuple):
    """The deviations that the matrix Riccati solution leaves out, over each mode's size, (K,)."""

    colour: Matrix
    outside: Matrix
    imbalance: Matrix
    spread: Matrix


def riccati_deviations(
    weights: list[Matrix], data: Moments, own: ModeCourse, variance: float, balance: float
) -> RiccatiDeviations:
    r"""Return by how much inputs that are not white, and unbalanced weights, move each mode.

    With $C = W_2^T W_2 - W_1 W_1^T - \lambda I$ hidden vectors move at rates that are off by
    d C / 2, for the time that a mode takes: (1 + log(m / A)) over its rate. Where there are fewer
    units than driven modes these compete, at the difference of their rates.
    """
    norm, (w1, w2) = _spectral_norm, weights
    conserved = w2.T @ w2 - w1 @ w1.T
    spread = conserved - balance * np.eye(len(w1))
    off = ratio_with_limits(data.s_x @ data.s_x - variance * data.s_x, variance)
    beside = norm(w1 - ratio_with_limits(w1 @ data.s_x, variance))
    own = course_outside_others(weights, data, own)
    time = own.growth_time * ratio_with_limits(1.0, _mode_rates(len(w1), data, own, variance))
    lift = np.sqrt(ratio_with_limits(np.max(own.reach, initial=0.0), own.start)) * own.growth_time
    static = ratio_with_limits(beside, np.sqrt(own.start))
    found = (
        _zero_safe_product(lift, ratio_with_limits(norm(off), variance)),
        static + _zero_safe_product(variance * beside**2, time),
        _zero_safe_product(variance * norm(conserved) / 2, time),
        _zero_safe_product(variance * norm(spread) / 2, time),
    )
    return RiccatiDeviations(*(np.where(own.is_present, one, 0.0) for one in found))


def _mode_rates(units: int, data: Moments, own: ModeCourse, variance: float) -> Float[Matrix, " K"]:
    """Return each mode's rate, (K,), at most that of the slowest competition for units."""
    rates = np.where(own.is_driven, data.s, variance * own.start)
    s = np.sort(data.s[own.is_driven])
    if units >= len(s):
        return rates
    gaps = np.diff(s)
    gaps = gaps[gaps > EQUAL_EPS * np.finfo(float).eps * s[-1]]
    return np.minimum(rates, np.min(gaps, initial=s[0]))


def _spectral_norm(matrix: Matrix) -> float:
    """Return the largest singular value; 0 for a matrix without entries."""
    return float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0


# ---- Three and more layers.


class DeepDeviations(NamedTuple):
    """Numbers of a deep network, (K,), and the modes' course."""

    a0: Matrix
    course: ModeCourse
    rounding: Matrix
    imbalance: Matrix
    alignment: Matrix


def deep_deviations(weights: list[Matrix], data: Moments, eps: float) -> DeepDeviations:
    """Measure how far deep weights are from balanced modes, each over its own size.

    Vectors go through the layers one by one: in a product of matrices a weak mode's strength
    would drown in the rounding of the strongest. A mode that starts late by a share x of its time
    is off by about (m / a_0)^b x, b = 1 - 2/L, while it is learnt.
    """
    stages = [data.v]
    for matrix in weights:
        stages.append(matrix @ stages[-1])
    a0 = np.sum(data.u * stages[-1], axis=0)
    own = mode_course(np.abs(a0), np.abs(a0), np.zeros(len(a0)), data)
    layers = len(weights)
    late = np.where(own.is_driven, ratio_with_limits(own.reach, own.start) ** (1 - 2 / layers), 1.0)
    root = own.start ** (1 / layers)
    largest = max(_spectral_norm(matrix) for matrix in weights)
    rounding = np.where(
        own.is_driven,
        _zero_safe_product(late, layers * ratio_with_limits(eps * largest, root)),
        0.0,
    )
    return DeepDeviations(
        a0=a0,
        course=own,
        rounding=rounding,
        imbalance=_zero_safe_product(late, _imbalance_norms(weights, stages, own)),
        alignment=_deep_misalignment(weights, stages[-1], data, own),
    )


def _imbalance_norms(
    weights: list[Matrix], stages: list[Matrix], own: ModeCourse
) -> Float[Matrix, " K"]:
    """Return the norm over layers of B_l = W_{l+1}^T W_{l+1} - W_l W_l^T in the modes, (K,).

    B_l is taken in the modes' hidden directions, each entry over the sizes of its two modes.
    """
    found = np.zeros(len(own.start))
    for (before, after), stage in zip(pairwise(weights), stages[1:-1], strict=True):
        there = own.is_present & np.any(stage != 0, axis=0)
        hidden = stage / np.where(there, np.linalg.norm(stage, axis=0), 1.0) * there
        moved = (after.T @ after - before @ before.T) @ hidden
        size = np.linalg.norm(after @ hidden, axis=0)
        among = hidden.T @ moved
        beside = np.linalg.norm(moved - hidden @ among, axis=0)
        pairs = np.sum(ratio_with_limits(np.abs(among), size[:, None] * size) ** 2 * there, axis=1)
        found += np.where(there, pairs + ratio_with_limits(beside, size**2) ** 2, 0.0)
    return np.sqrt(found)


def _deep_misalignment(
    weights: list[Matrix], ends: Matrix, data: Moments, own: ModeCourse
) -> Float[Matrix, " K"]:
    """Return off-diagonal entries of the product, W_1^T W_1 and W_L W_L^T, over diagonal ones."""
    q, p = weights[0] @ data.v, weights[-1].T @ data.u
    rows = data.u.T
    for matrix in reversed(weights):
        rows = rows @ matrix
    product = np.sqrt((data.u.T @ ends) ** 2 + (rows @ data.v).T ** 2)
    ends, rows = ends - data.u @ (data.u.T @ ends), rows - (rows @ data.v) @ data.v.T
    beside = np.hypot(np.linalg.norm(ends, axis=0), np.linalg.norm(rows, axis=1))
    inputs, outputs = (weights[0] - q @ data.v.T).T @ q, (weights[-1] - data.u @ p.T) @ p
    return np.sqrt(
        _entry_norms(product, beside, own) ** 2
        + _entry_norms(q.T @ q, np.linalg.norm(inputs, axis=0), own) ** 2
        + _entry_norms(p.T @ p, np.linalg.norm(outputs, axis=0), own) ** 2
    )


def _entry_norms(matrix: Matrix, beside: Matrix, own: ModeCourse) -> Float[Matrix, " K"]:
    """Return norms of off-diagonal entries over roots of diagonal ones, `beside` over its own."""
    size = np.abs(np.diag(matrix))
    scale = np.where(own.is_present, np.sqrt(size[:, None] * size), size[:, None])
    return _combine_deviations(
        ratio_with_limits(np.abs(matrix), scale), ratio_with_limits(beside, size), 0.0, own
    )
