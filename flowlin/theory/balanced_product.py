r"""Two-layer linear networks with white inputs: a matrix Riccati equation and its solution.

For $\Sigma_x = d\, I$ and weights with the conserved $W_2^T W_2 - W_1 W_1^T = \lambda I$ the
stacked $Q = [W_1^T; W_2]$, shape (N, H) with N = N_in + N_out, obeys (Fukumizu 1998; Braun et al.
2022; with lambda Domine et al. 2024)

$$\tau \dot Q = F Q - \tfrac d2 Q Q^T Q, \quad
  F = \begin{pmatrix} -\tfrac{d\lambda}2 I & \Sigma_{yx}^T \\
                      \Sigma_{yx} & \tfrac{d\lambda}2 I \end{pmatrix},$$

so that with time in units of tau and $\Phi(t) = \int_0^t e^{2Fs} ds$

$$Q Q^T(t) = e^{Ft} Q_0\, [I + d\, Q_0^T \Phi(t)\, Q_0]^{-1} Q_0^T e^{Ft}.$$

The inverse is that of a matrix $\geq I$: no alignment, no full rank and no equal sizes are needed.
What remains is to avoid overflow. In the eigenbasis of F, with eigenvalues f and $P = V^T Q_0$, the
rows of $e^{Ft} P$ grow at different rates. Gram-Schmidt with the longest grown row first gives
$P = L U^T$, U orthonormal; scaling each column of L to the length of its pivot row leaves entries
that are at most one, and the exponentials only ever appear divided by larger ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import boolean, checked, real_array
from flowlin._tools.arrays import as_float_array, is_traced
from flowlin._tools.numerics import decay_integral
from flowlin.theory.closed_form import ArgumentRange, closed_form

MATRICES = {"w1": 2, "w2": 2, "s_yx": 2}
SINGLE = {
    "variance": ArgumentRange(
        "zero or positive: it is that of the inputs", lambda d: d >= 0, single=True
    ),
    "balance": ArgumentRange("finite", np.isfinite, single=True),
}


@checked(balance=real_array, check=boolean)
def balanced_product(
    t: ArrayLike,
    w1: ArrayLike,
    w2: ArrayLike,
    s_yx: ArrayLike,
    *,
    variance: ArrayLike = 1.0,
    balance: ArrayLike | None = None,
    tau: ArrayLike = 1.0,
    check: bool = True,
) -> Float[Array, "... N_out N_in"]:
    r"""Return the matrix $W_2 W_1(t)$ of a (lambda-)balanced two-layer network, white inputs.

    It is the lower left block of `balanced_gram`, which has the arguments and the source.

    **Returns:** (..., N_out, N_in), with the axes of `t` in front.
    """
    balance = _choose_balance(w1, w2, balance, check)
    return _product_form(t, w1, w2, s_yx, variance=variance, balance=balance, tau=tau)


@checked(balance=real_array, check=boolean)
def balanced_gram(
    t: ArrayLike,
    w1: ArrayLike,
    w2: ArrayLike,
    s_yx: ArrayLike,
    *,
    variance: ArrayLike = 1.0,
    balance: ArrayLike | None = None,
    tau: ArrayLike = 1.0,
    check: bool = True,
) -> Float[Array, "... N N"]:
    r"""Return $Q Q^T(t)$, $Q = [W_1^T; W_2]$, of a (lambda-)balanced network with white inputs.

    Its blocks are $W_1^T W_1$, $W_2 W_1$ and its transpose, $W_2 W_2^T$: everything but a rotation
    of the hidden units. Formula and derivation: see the module. Solves the flow for

    $$\Sigma_x = d\, I, \qquad W_2^T W_2 - W_1 W_1^T = \lambda I$$

    at t = 0, and is not the flow where these do not hold. The second is measured here, the first
    by `theory.solve`.

    **Arguments:**

    - `t`: times of any shape, >= 0, inf allowed.
    - `w1`, `w2`: weights at t = 0, (H, N_in) and (N_out, H); any sizes and ranks.
    - `s_yx`: $\Sigma_{yx}$, (N_out, N_in).
    - `variance`: d.
    - `balance`: lambda, of either sign; None takes that of the weights,
      $\mathrm{tr}(W_2^T W_2 - W_1 W_1^T) / H$.
    - `tau`: time constant.
    - `check`: whether concrete weights of another balance are refused: the norm of
      $W_2^T W_2 - W_1 W_1^T - \lambda I$ may be half the digits of $\|W_1\|^2 + \|W_2\|^2$.

    Differentiable in all but `s_yx`. Components of the weights along modes that are below their
    rounding, 64 eps, count as zero (they would stay so), and singular values of `s_yx` that are
    equal up to rounding count as equal.

    **Returns:** (..., N_in + N_out, N_in + N_out), with the axes of `t` in front.

    **Raises:** `ValueError` for shapes that do not chain, and for weights that are not balanced so.

    Source: Fukumizu (1998); Braun et al. (2022), Theorem 3.1, whose $F^{-1}$ exists for square
    targets of full rank alone, while the integral always does; Domine et al. (2024) for lambda.
    """
    balance = _choose_balance(w1, w2, balance, check)
    return _gram_form(t, w1, w2, s_yx, variance=variance, balance=balance, tau=tau)


@closed_form(axes=MATRICES, **SINGLE)
def _product_form(t, w1, w2, s_yx, *, variance, balance, tau) -> Array:
    """Return `balanced_product` for a balance that is a number."""
    inner, outer = _weight_factors(t, w1, w2, s_yx, variance, balance, tau)
    return outer @ jnp.swapaxes(inner, -1, -2)


@closed_form(axes=MATRICES, **SINGLE)
def _gram_form(t, w1, w2, s_yx, *, variance, balance, tau) -> Array:
    """Return `balanced_gram` for a balance that is a number."""
    inner, outer = _weight_factors(t, w1, w2, s_yx, variance, balance, tau)
    q = jnp.concatenate([inner, outer], axis=-2)
    return q @ jnp.swapaxes(q, -1, -2)


def _choose_balance(
    w1: ArrayLike, w2: ArrayLike, balance: ArrayLike | None, check: bool
) -> ArrayLike:
    """Return lambda, measured where it is None.

    **Raises:** `ValueError` for concrete weights with another one, if `check`.
    """
    first, second = (as_float_array(real_array(name, w)) for name, w in (("w1", w1), ("w2", w2)))
    if first.ndim != 2 or second.ndim != 2 or first.shape[0] != second.shape[1]:
        return 0.0 if balance is None else balance  # the formula says what is wrong
    if balance is None:
        measured, rounding = _measure_balance(first, second)
        balance = jnp.where(jnp.abs(measured) > rounding, measured, 0 * measured)
    if check and not np.ndim(balance) and not is_traced((first, second, balance)):
        _require_balanced(np.asarray(first), np.asarray(second), float(np.asarray(balance)))
    return balance


@jax.jit
def _measure_balance(w1: Array, w2: Array) -> tuple[Array, Array]:
    """Return the lambda of weights, and the size below which it is rounding."""
    noise = 64 * jnp.finfo(w1.dtype).eps * (jnp.sum(w1**2) + jnp.sum(w2**2))
    return (jnp.sum(w2**2) - jnp.sum(w1**2)) / w1.shape[0], noise


def _require_balanced(w1: np.ndarray, w2: np.ndarray, balance: float) -> None:
    """Raise `ValueError` for weights whose balance is another, up to half of their digits."""
    off = np.linalg.norm(w2.T @ w2 - w1 @ w1.T - balance * np.eye(len(w1)))
    size = np.sum(w1**2) + np.sum(w2**2)
    if off > np.finfo(w1.dtype).eps ** 0.5 * size:
        raise ValueError(
            f"`w1` and `w2` are not balanced: W2^T W2 - W1 W1^T is off {balance:.6g} times the "
            f"identity by {off / size:.2g} of the squared weights. Leave `balance` out to have it "
            "measured; if it was, use `theory.solve(network, task)`, which takes the solution that "
            "applies, or `fl.gradient_flow`; or pass `check=False` where the formula is meant."
        )


@jax.jit
def _weight_factors(t, w1, w2, s_yx, variance, balance, tau) -> tuple[Array, Array]:
    """Return W_1(t)^T, W_2(t) up to a common rotation, (..., N_in, k) and (..., N_out, k)."""
    w1, w2, s_yx = (as_float_array(z) for z in (w1, w2, s_yx))
    if w2.shape[1] != w1.shape[0] or s_yx.shape != (w2.shape[0], w1.shape[1]):
        raise ValueError(
            f"`w1` {w1.shape}, `w2` {w2.shape} and `s_yx` {s_yx.shape} do not chain; they must be "
            "(H, N_in), (N_out, H) and (N_out, N_in)."
        )
    f, into, out = _eigenbasis(s_yx, jnp.asarray(variance * balance / 2, s_yx.dtype))
    rows = into.T @ w1.T + out.T @ w2
    # Past the cap nothing moves by more than rounding, and exponents f t would have no digits left.
    fastest, info = jnp.max(jnp.abs(f)), jnp.finfo(s_yx.dtype)
    cap = jnp.minimum(1 / (info.eps * fastest), jnp.sqrt(info.max) / (1 + variance))
    times = jnp.minimum(jnp.asarray(t, s_yx.dtype) / tau, lax.stop_gradient(cap))
    z = jax.vmap(lambda time: _gram_factor(time, f, rows, variance))(times.ravel())
    z = z.reshape(*times.shape, *z.shape[1:])
    return into @ z, out @ z


def _eigenbasis(s_yx: Array, beta: Array) -> tuple[Array, Array, Array]:
    r"""Return the eigenvalues (N,) of F, and the upper and lower parts of its eigenvectors.

    A singular triple (s, u, v) gives $\pm\rho = \pm\sqrt{s^2 + \beta^2}$ with
    $(v \sin\theta, u \cos\theta)$ and $(v \cos\theta, -u \sin\theta)$, $\tan 2\theta = s/\beta$;
    beta = d lambda / 2. Where s = 0 the two sides do not meet: -beta with v and beta with u.
    """
    u, s, vt = jnp.linalg.svd(s_yx)
    k = s.shape[0]
    noise = 32 * jnp.finfo(s.dtype).eps * s[0]
    # Values equal up to rounding take that of the first of their group.
    starts = jnp.concatenate([jnp.ones(1, bool), s[:-1] - s[1:] > noise])
    s = s[lax.cummax(jnp.where(starts, jnp.arange(k), 0))]
    driven = s > noise
    safe = jnp.where(driven, s, 1.0)
    rho = jnp.where(driven, jnp.sqrt(safe**2 + beta**2), beta)
    theta = jnp.where(driven, jnp.arctan2(safe, beta) / 2, 0.0)
    sine, cosine = jnp.sin(theta), jnp.cos(theta)
    u, u_rest, v, v_rest = u[:, :k], u[:, k:], vt[:k].T, vt[k:].T
    ins, outs = v_rest.shape[1], u_rest.shape[1]
    into = [v * sine[None], v * cosine[None], v_rest, jnp.zeros((v.shape[0], outs), s.dtype)]
    out = [u * cosine[None], -u * sine[None], jnp.zeros((u.shape[0], ins), s.dtype), u_rest]
    f = jnp.concatenate([rho, -rho, jnp.repeat(-beta, ins), jnp.repeat(beta, outs)])
    return f, jnp.concatenate(into, axis=1), jnp.concatenate(out, axis=1)


def _gram_factor(t: Array, f: Array, rows: Array, variance: ArrayLike) -> Float[Array, "N k"]:
    """Return a factor Z of V^T Q Q^T V = Z Z^T at one time; `rows` is P = V^T Q_0."""
    up, down = jnp.maximum(f, 0), jnp.minimum(f, 0)  # f = 0 is both, half each to derivatives
    growth, fading = up * t, jnp.exp(down * t)
    drag = variance * decay_integral(2 * (up - down), t)  # d Phi = drag e^{2 growth}
    length = growth + jnp.log(drag + jnp.exp(-2 * growth)) / 2  # log of sqrt(1 + d Phi)
    lower, scale = _triangular_factor(rows, lax.stop_gradient(length))
    most = jnp.log(jnp.finfo(t.dtype).max) / 2  # no entry that is not zero comes near
    grown = lower * jnp.exp(jnp.minimum(growth[:, None] - scale[None], most))
    inside = jnp.diag(jnp.exp(-2 * scale)) + grown.T @ (drag[:, None] * grown)
    root = jnp.linalg.cholesky(inside)
    return lax.linalg.triangular_solve(root, fading[:, None] * grown, transpose_a=True, lower=True)


def _triangular_factor(
    rows: Array, length: Array
) -> tuple[Float[Array, "N k"], Float[Array, " k"]]:
    """Return L of P = L U^T, and the log of each pivot row's grown length.

    `length` is the log of the factors by which the rows have grown. Every choice of pivots gives
    the same solution, so they are constants to derivatives.
    """
    n, hidden = rows.shape
    k = min(n, hidden)
    noise = 64 * jnp.finfo(rows.dtype).eps * jnp.linalg.norm(lax.stop_gradient(rows))

    def add_pivot(carry, index):
        left, basis = carry
        sizes = jnp.linalg.norm(lax.stop_gradient(left), axis=1)
        there = sizes > noise
        # A row that is zero up to rounding must not grow, or rounding would; its derivative grows.
        left = jnp.where(there[:, None], left, left - lax.stop_gradient(left))
        grown = jnp.where(there, length + jnp.log(jnp.where(there, sizes, 1.0)), -jnp.inf)
        pivot, some = jnp.argmax(grown), jnp.any(there)
        u = left[pivot] - (basis @ left[pivot]) @ basis  # once more, against rounding
        u = jnp.where(some, u / jnp.linalg.norm(jnp.where(some, u, 1.0)), 0.0)
        along = left @ u
        left = (left - along[:, None] * u[None]).at[pivot].set(0.0)
        return (left, basis.at[index].set(u)), (along, jnp.where(some, grown[pivot], 0.0))

    start = rows, jnp.zeros((k, hidden), rows.dtype)
    _, (columns, scale) = lax.scan(add_pivot, start, jnp.arange(k))
    return columns.T, scale
