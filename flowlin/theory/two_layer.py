r"""Any isolated two-layer mode: unbalanced, lambda-balanced, of either sign.

A mode with singular value s and input variance d that no other mode disturbs has one hidden vector
on each side, $p = W_2^T u$ and $q = W_1 v$ (for one hidden unit the scalars w2 and w1), and

$$\tau \dot p = q\, (s - d a), \qquad \tau \dot q = p\, (s - d a), \qquad a = p \cdot q.$$

Their sum and difference keep their directions and grow by inverse factors,
$p \pm q = e^{\pm\theta} (p \pm q)_0$ with $\tau \dot\theta = s - d a$. So with
$A = \|p + q\|_0^2 / 4$, $B = \|p - q\|_0^2 / 4$ and $x = e^{2\theta}$

$$a = A x - B / x, \qquad \tau \dot x = 2\, (d B + s x - d A x^2),$$

a Riccati equation with constant coefficients: the hyperbolic coordinates of Saxe et al. (2014,
supplement), here without the assumption that p and q are parallel. It is solved by a 2 x 2 linear
system of eigenvalues $\pm R$, $R^2 = s^2 + 4 d^2 A B$. In $E = e^{-2 R t/\tau}$ and
$D = (1 - E) / 2R$

$$x = N / M, \quad N = E + D\,(R + s + 2 d B), \quad M = E + D\,(R - s + 2 d A),$$

and, N M being conserved up to the factor $s - d a$,

$$s - d a = (s - d a_0)\, E / N M.$$

The strength obeys $\tau \dot a = \sqrt{\lambda^2 + 4 a^2}\, (s - d a)$ with the conserved
**imbalance** $|\lambda| = 4 \sqrt{A B} = \|p + q\| \|p - q\|$, for parallel vectors
$\big| \|p\|^2 - \|q\|^2 \big|$; it never turns. Zero imbalance is the balanced mode of
`mode_strength`.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import checked
from flowlin._tools.numerics import (
    decay_integral,
    default_floats,
    hypot,
    log_growth,
    safe_divide,
    safe_sqrt,
    time_over_tau,
)
from flowlin.measures.modes import Modes, mean_over_equal, require_origin
from flowlin.networks.kinds import AbstractNetwork
from flowlin.theory.closed_form import FRACTION_RANGE, SIZE_RANGE, START_RANGE, closed_form


def _halves(a0: Array, imbalance: Array) -> tuple[Array, Array]:
    """A and B from A - B = a0 and 16 A B = imbalance^2, the smaller one without cancellation."""
    larger = (hypot(imbalance / 2, a0) + jnp.where(a0 >= 0, a0, -a0)) / 2
    smaller = imbalance / 4 * safe_divide(imbalance / 4, larger, 0.0)
    return jnp.where(a0 >= 0, larger, smaller), jnp.where(a0 >= 0, smaller, larger)


def _rates(s: Array, d: Array, plus: Array, minus: Array) -> tuple[Array, Array, Array]:
    """R, R + s and R - s with R^2 = s^2 + 4 d^2 A B, without cancellation or overflow."""
    scale = lax.stop_gradient(jnp.maximum(jnp.abs(s), jnp.abs(d) * jnp.maximum(plus, minus)))
    scale = jnp.where(scale > 0, scale, 1.0)
    rate = scale * safe_sqrt((s / scale) ** 2 + 4 * (d / scale * plus) * (d / scale * minus))
    size = jnp.where(s >= 0, s, -s)
    some = rate > 0
    small = jnp.where(
        some, 2 * d * plus * (2 * d * minus / jnp.where(some, rate + size, 1.0)), rate - size
    )
    return rate, jnp.where(s >= 0, rate + size, small), jnp.where(s >= 0, small, rate + size)


def _growth(
    t: Array, s: Array, d: Array, plus: Array, minus: Array
) -> tuple[Array, Array, Array, Array]:
    """Growth of p + q and relaxation of the strength at time t, in units of tau.

    **Returns:** `(log_x, relaxed, gained, burst)`: log x; E / N M = (s - d a) / (s - d a0);
    (1 - E / N M) / d, a sum of terms of one sign; +1 where x has left the range of floats,
    -1 where 1/x has, else 0.
    """
    rate, up, down = _rates(s, d, plus, minus)
    info = jnp.finfo(rate.dtype)
    t = jnp.where(rate == 0, jnp.minimum(t, info.max**0.4), t)
    forever = jnp.isinf(t)
    fading = jnp.where(forever, 0.0, jnp.exp(-2 * rate * jnp.where(forever, 0.0, t)))
    drag = decay_integral(2 * rate, t)
    over = fading + drag * (up + 2 * d * minus)
    under = fading + drag * (down + 2 * d * plus)
    floor = info.tiny**0.45  # of which the square, in derivatives, is a number
    log_over, log_under = (jnp.log(jnp.maximum(z, floor)) for z in (over, under))
    inverse = jnp.exp(-log_over - log_under)
    mixed = 8 * d * plus * minus + 2 * plus * up + 2 * minus * down
    gained = (2 * drag * fading * (plus + minus) + drag**2 * mixed) * inverse
    burst = jnp.where(under <= floor, 1, jnp.where(over <= floor, -1, 0))
    return log_over - log_under, fading * inverse, gained, burst


def _strength(t: Array, s: Array, d: Array, a0: Array, plus: Array, minus: Array) -> Array:
    """Strength at time t in units of tau, in the form that cancels least."""
    log_x, relaxed, gained, burst = _growth(t, s, d, plus, minus)
    grown, shrunk = plus * jnp.exp(log_x), minus * jnp.exp(-log_x)
    towards = jnp.abs(a0) * relaxed + jnp.abs(s) * gained
    steady = towards <= grown + shrunk
    a = jnp.where(steady, a0 * relaxed + s * gained, grown - shrunk)
    a = jnp.where((burst > 0) & (plus > 0), jnp.inf, a)
    return jnp.where((burst < 0) & (minus > 0), -jnp.inf, a)


@closed_form
def unbalanced_strength(
    t: ArrayLike,
    s: ArrayLike,
    d: ArrayLike,
    a0: ArrayLike,
    imbalance: ArrayLike,
    tau: ArrayLike = 1.0,
) -> Float[Array, "..."]:
    r"""Strength a(t) of an isolated two-layer mode of any imbalance and sign.

    $$\tau \dot a = \sqrt{\lambda^2 + 4 a^2}\, (s - d a),$$

    solved as in the module's docstring, with $A - B = a_0$ and $16 A B = \lambda^2$. For
    imbalance 0 it is `mode_strength` (a negative a0 then ends at the saddle), for
    $|\lambda| \gg |a|$ the exponential relaxation $s/d + (a_0 - s/d) e^{-|\lambda| d t/\tau}$ of a
    single layer.

    **Arguments:** (arrays that broadcast)

    - `t`: time, >= 0, inf allowed.
    - `s`: singular value of the mode, of either sign; `d`: input variance, >= 0.
    - `a0`: strength at t = 0, of either sign.
    - `imbalance`: conserved $\lambda$ of a lambda-balanced or scalar mode ($w_2^2 - w_1^2$), or
      `imbalance` of two hidden vectors; its sign does not matter.
    - `tau`: time constant.

    At a0 = imbalance = 0 the strength has a cone in these variables, and its derivative is
    set from above; it is smooth in the weights (`mode_weights`). Where a mode without drag (d = 0)
    has grown by more than 1e138 (1e17 in float32) it is inf with zero derivative.

    **Raises:** `ValueError` for concrete t < 0, d < 0 or tau <= 0.

    Source: Saxe et al. (2014), supplement; lead paper, Eq. 20.
    """
    t, s, d, a0, imbalance, tau = default_floats(t, s, d, a0, imbalance, tau)
    return _strength(time_over_tau(t, tau), s, d, a0, *_halves(a0, imbalance))


@closed_form(axes={"p": 1, "q": 1})
def imbalance(p: ArrayLike, q: ArrayLike) -> Float[Array, "..."]:
    r"""Imbalance $|\lambda| = \|p + q\| \|p - q\|$ of hidden vectors (..., H), conserved, (...).

    $\lambda^2 = (\|p\|^2 - \|q\|^2)^2 + 4 (\|p\|^2 \|q\|^2 - (p \cdot q)^2)$: the difference of the
    two sides' norms, and the area between them where they are not parallel. With it and
    $a_0 = p \cdot q$ the strength of the mode is that of a scalar one.

    **Raises:** `ValueError` for hidden vectors of different size.
    """
    p, q = _same_units(*default_floats(p, q))
    return safe_sqrt(jnp.sum((p + q) ** 2, axis=-1)) * safe_sqrt(jnp.sum((p - q) ** 2, axis=-1))


@closed_form(axes={"p": 1, "q": 1})
def mode_vectors(
    t: ArrayLike, s: ArrayLike, d: ArrayLike, p: ArrayLike, q: ArrayLike, tau: ArrayLike = 1.0
) -> tuple[Float[Array, "... H"], Float[Array, "... H"]]:
    r"""Hidden vectors p(t) = W_2^T u and q(t) = W_1 v of an isolated two-layer mode.

    $$p(t) \pm q(t) = x^{\pm 1/2}\, (p \pm q), \qquad x = N / M,$$

    as in the module's docstring; exact for every isolated mode, whatever p and q. Errors are
    relative to the norm of both. The strength is their product; where it is much smaller than the
    norms, `unbalanced_strength(t, s, d, p.q, imbalance(p, q))` keeps its digits.

    **Arguments:** (arrays that broadcast)

    - `t`, `s`, `d`, `tau`: (...), as in `unbalanced_strength`.
    - `p`, `q`: (..., H), the vectors at t = 0.

    **Raises:** `ValueError` for hidden vectors of different size, d < 0, or tau <= 0.
    """
    t, s, d, p, q, tau = default_floats(t, s, d, p, q, tau)
    p, q = _same_units(p, q)
    total, rest = p + q, p - q
    plus, minus = jnp.sum(total**2, axis=-1) / 4, jnp.sum(rest**2, axis=-1) / 4
    log_x = _growth(time_over_tau(t, tau), s, d, plus, minus)[0][..., None]
    total, rest = total * jnp.exp(log_x / 2), rest * jnp.exp(-log_x / 2)
    return (total + rest) / 2, (total - rest) / 2


def _same_units(p: Array, q: Array) -> tuple[Array, Array]:
    """Hidden vectors (..., H) of as many units."""
    if p.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"`p` and `q` must have the same last axis, the hidden units; got {p.shape} and "
            f"{q.shape}."
        )
    return p, q


@closed_form
def mode_weights(
    t: ArrayLike, s: ArrayLike, d: ArrayLike, w1: ArrayLike, w2: ArrayLike, tau: ArrayLike = 1.0
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""Weights (w1, w2) at time t of a scalar two-layer mode, of any signs.

    $\tau \dot w_1 = w_2 (s - d w_1 w_2)$, $\tau \dot w_2 = w_1 (s - d w_1 w_2)$; the imbalance
    $w_2^2 - w_1^2$ is conserved. `mode_vectors` with one hidden unit.

    **Arguments:** (arrays that broadcast) `w1`, `w2` input and output weight at t = 0; the others
    as in `unbalanced_strength`.
    """
    w1, w2 = default_floats(w1, w2)
    p, q = mode_vectors(t, s, d, w2[..., None], w1[..., None], tau)
    return q[..., 0], p[..., 0]


@closed_form
def unbalanced_hitting_time(
    rho: ArrayLike,
    s: ArrayLike,
    d: ArrayLike,
    a0: ArrayLike,
    imbalance: ArrayLike,
    tau: ArrayLike = 1.0,
) -> Float[Array, "..."]:
    r"""Time at which an isolated two-layer mode of any imbalance reaches `rho`.

    With $x = (\rho + \sqrt{\rho^2 + 4 A B}) / 2A$ there, from inverting N / M = x:

    $$\hat t = \frac{\tau}{2 R} \log(1 + 2 R Q), \qquad
      Q = \frac{\rho - a_0}{2\, (A x + B)\, (s - d\rho)}\,
          \frac{(R + s) x + 2 d B}{R + s + 2 d B},$$

    for s >= 0, and the mirrored form (a, s, A, B) -> (-a, -s, B, A) otherwise. A mode never turns,
    so the time is unique: inf where it never gets there, 0 where rho = a0.

    **Arguments:** (arrays that broadcast) `rho` the level, the others as in `unbalanced_strength`.

    **Raises:** `ValueError` for concrete t < 0, d < 0 or tau <= 0.
    """
    rho, s, d, a0, lam, tau = default_floats(rho, s, d, a0, imbalance, tau)
    # Mirrored, so that s >= 0.
    sign = jnp.where(s < 0, -1.0, 1.0)
    rho, s, a0 = sign * rho, sign * s, sign * a0
    plus, minus = _halves(a0, lam)
    rate, up, _ = _rates(s, d, plus, minus)
    known = jnp.isfinite(rho)
    rho = jnp.where(known, rho, 0.0)
    change, left = rho - a0, s - d * rho
    # Moving towards rho, which lies before the fixed point and, if balanced, before the saddle.
    reached = (change * left > 0) | ((change == 0) & (left != 0))
    reached &= known & ((lam != 0) | (jnp.sign(a0) * jnp.sign(rho) > 0))
    rho = jnp.where(reached, rho, 0.0)
    level = hypot(lam / 2, rho)
    x = jnp.where(
        rho >= 0, safe_divide(level + rho, 2 * plus, 1.0), safe_divide(2 * minus, level - rho, 1.0)
    )
    ahead = safe_divide(up * x + 2 * d * minus, up + 2 * d * minus, x)
    steep = jnp.where(reached, 2 * (plus * x + minus) * left, 0.0)
    q = safe_divide(jnp.where(reached, change, 0.0) * ahead, steep, 0.0)
    time = tau * log_growth(2 * rate, q)
    return jnp.where(reached, time, jnp.where(known & (change == 0), 0.0, jnp.inf))


@closed_form
def unbalanced_start(
    rho: ArrayLike,
    t: ArrayLike,
    s: ArrayLike,
    d: ArrayLike,
    imbalance: ArrayLike,
    tau: ArrayLike = 1.0,
) -> Float[Array, "..."]:
    r"""Strength a0 whose mode reaches `rho` at time t: the flow backwards, (s, d) -> (-s, -d).

    Where the backward flow diverges before t, as every unbalanced one does if d > 0, no finite
    start arrives that late: -inf below the fixed point s/d, inf above it. With rho = s/2d it is the
    start of a wanted `half_time`, with `inflection_levels` that of a wanted inflection; with
    imbalance 0 that of a balanced mode.

    **Arguments:** (arrays that broadcast) as in `unbalanced_hitting_time`, with `t` the time, >= 0.

    **Raises:** `ValueError` for concrete t < 0, d < 0 or tau <= 0.
    """
    rho, t, s, d, lam, tau = default_floats(rho, t, s, d, imbalance, tau)
    return _strength(time_over_tau(t, tau), -s, -d, rho, *_halves(rho, lam))


@closed_form
def inflection_levels(s: ArrayLike, d: ArrayLike, imbalance: ArrayLike) -> tuple[Array, Array]:
    r"""Strengths (lower, upper) at which a two-layer mode's learning curve changes its curvature.

    $\ddot a = 0$ at $8 d a^2 - 4 s a + d \lambda^2 = 0$:

    $$a = \frac{s \pm \sqrt{s^2 - 2 d^2 \lambda^2}}{4 d}.$$

    Between them the curve accelerates. They exist for $d |\lambda| \le s / \sqrt 2$ only: a more
    unbalanced mode learns like a single layer, slowing down from the start. Otherwise NaN; for
    d = 0 the upper one is inf. Balanced: 0 and s/2d. Measured along the sign of s.
    """
    s, d, lam = default_floats(s, d, imbalance)
    sign = jnp.where(s < 0, -1.0, 1.0)
    square = s**2 - 2 * d**2 * lam**2
    there = square >= 0
    spread = jnp.where(s < 0, -s, s) + safe_sqrt(jnp.where(there, square, 0.0))
    upper = sign * safe_divide(spread, 4 * d, jnp.inf)
    lower = sign * safe_divide(d * lam**2, 2 * spread, 0.0)
    return jnp.where(there, lower, jnp.nan), jnp.where(there, upper, jnp.nan)


# ---- The balanced two-layer mode: strength, hitting time, delay by gating.
#
# One mode of a balanced two-layer linear network obeys $\tau \dot a = 2 a (s - d a)$ (Saxe et al.
# 2014; lead paper Eq. 21 with its missing d restored). Everything here is array-valued, broadcasts,
# and is differentiable, also where s or d is zero.


@closed_form(s=SIZE_RANGE, a0=START_RANGE)
def mode_strength(
    t: ArrayLike, s: ArrayLike, d: ArrayLike, a0: ArrayLike, tau: ArrayLike = 1.0
) -> Float[Array, "..."]:
    r"""Strength a(t) of a balanced two-layer mode (lead paper Eq. 7 / 22).

    $$a(t) = \frac{s/d}{1 - (1 - \frac{s}{d a_0}) e^{-2 s t / \tau}}
           = \frac{a_0}{e^{-2st/\tau} + a_0 d\, (1 - e^{-2st/\tau}) / s},$$

    the second form having no quotient that vanishes: at s = 0 it is $a_0 / (1 + 2 a_0 d t/\tau)$,
    at s = d = 0 the constant a0, at t = inf the fixed point s/d (errata B.7).

    **Arguments:** (arrays that broadcast)

    - `t`: time, >= 0, inf allowed.
    - `s`, `d`: singular value and input variance of the mode, >= 0.
    - `a0`: strength at t = 0, >= 0; a negative one is not a balanced mode and blows up.
    - `tau`: time constant.

    **Raises:** `ValueError` for concrete values outside these ranges.
    """
    return strength_at(*default_floats(t, s, d, a0, tau))


def strength_at(t: Array, s: Array, d: Array, a0: Array, tau: ArrayLike = 1.0) -> Array:
    """`mode_strength` of arrays that are in range."""
    rate = 2 * s / tau
    forever = jnp.isinf(t)
    fading = jnp.exp(-rate * jnp.where(forever, 0.0, t))
    decay = jnp.where(forever & (rate != 0), 0.0, fading)
    pull = 2 * d * a0 / tau
    idle = pull == 0
    drag = pull * jnp.where(idle & ~jnp.isfinite(t), 0.0, decay_integral(rate, t))
    whole = decay + drag
    empty = (a0 == 0) & (whole == 0)  # stays there; 0/0 once the exponential underflows
    return a0 / jnp.where(empty, 1.0, whole)


@closed_form(s=SIZE_RANGE)
def hitting_time(
    rho: ArrayLike, s: ArrayLike, d: ArrayLike, a0: ArrayLike, tau: ArrayLike = 1.0
) -> Float[Array, "..."]:
    r"""Time at which a balanced two-layer mode reaches `rho` (lead paper Eq. 13).

    $$\hat t = \frac{\tau}{2s} \log \frac{\rho (s - d a_0)}{a_0 (s - d \rho)}
             = \frac{\tau}{2s} \log\Big(1 + s\, \frac{\rho - a_0}{a_0 (s - d\rho)}\Big).$$

    Needs rho between a0 and s/d, from either side (errata B.10); returns inf where the mode never
    gets there, as for every a0 <= 0, and 0 where rho = a0. At s = 0 the limit
    $\tau (a_0 - \rho) / (2 d a_0 \rho)$ holds, a mode that decays.

    **Arguments:** (arrays that broadcast) `rho` the level, the others as in `mode_strength`.

    **Raises:** `ValueError` as `mode_strength` does.
    """
    return time_until(*default_floats(rho, s, d, a0, tau))


def time_until(rho: Array, s: Array, d: Array, a0: Array, tau: ArrayLike = 1.0) -> Array:
    """`hitting_time` of arrays that are in range."""
    gap = a0 * (s - d * rho)
    change = rho - a0
    # Reached iff the mode moves towards rho and rho lies before the fixed point s/d.
    reached = (a0 > 0) & ((change * gap > 0) | ((change == 0) & (gap != 0)))
    q = jnp.where(reached, change, 0.0) / jnp.where(reached, gap, 1.0)
    return jnp.where(reached, tau / 2 * log_growth(s, q), jnp.where(change == 0, 0.0, jnp.inf))


@closed_form(s=SIZE_RANGE, a0=START_RANGE, g=FRACTION_RANGE)
def gating_delay(
    s: ArrayLike, d: ArrayLike, a0: ArrayLike, g: ArrayLike, tau: ArrayLike = 1.0
) -> Float[Array, "..."]:
    r"""Delay of a ReLU mode behind the linear one when a fraction g of the units is live.

    Lead paper Eq. 14 / 27, in which rho cancels (errata B.11):

    $$\Delta t = \frac{\tau}{2 s} \log \frac{s - d a_0 g}{g\, (s - d a_0)}.$$

    Positive exactly for g < 1; the paper's further condition s > d rho is not needed. `g` is the
    **live** fraction, the mean of g_j (the text calls it the rate of dead neurons). This is the
    delay if live units are always on; partly active ones add to it, so it underestimates.

    **Arguments:** (arrays that broadcast)

    - `s`, `d`, `a0`: of the mode, with 0 < a0 < s/d.
    - `g`: live fraction in [0, 1]; inf where none is.
    - `tau`: time constant.

    **Raises:** `ValueError` for concrete values outside these ranges.
    """
    s, d, a0, g, tau = default_floats(s, d, a0, g, tau)
    return tau / (2 * s) * (-jnp.log(g) + jnp.log1p(d * a0 * (1 - g) / (s - d * a0)))


@checked
def balanced_strength(network: AbstractNetwork, modes: Modes) -> Float[Array, " K"]:
    r"""Balanced part of a two-layer network's mode strengths, $\frac14 \|W_2^T u + W_1 v\|^2$.

    The a0 to start the closed forms from. The raw strength $u^T W_2 W_1 v$ of a random
    initialisation is negative for about half of the modes, and Eq. 7 then blows up; the balanced
    part is what grows. With a bias, W_1 is [b, W_1]. Equal modes have the mean of theirs.

    **Raises:** `ValueError` for a network that has not exactly one hidden layer, or modes of
    another c.
    """
    if len(network.weights) != 2 or network.biases[1] is not None:
        raise ValueError("`balanced_strength` needs one hidden layer and no bias on the readout.")
    w1, b1 = network.weights[0], network.biases[0]
    require_origin(modes, network)
    if modes.bias_strength:
        w1 = jnp.concatenate([b1[:, None], w1], axis=1)  # pyright: ignore
    halves = (network.weights[1].T @ modes.u + w1 @ modes.v) / 2
    return mean_over_equal(jnp.sum(halves**2, axis=0), modes.equal)


@checked
def mode_starts(
    network: AbstractNetwork, modes: Modes, *, check: bool = True
) -> tuple[Float[Array, " K"], Float[Array, " K"]]:
    r"""Strength $a_0 = p \cdot q$ and imbalance of a two-layer network's modes, (K,) each.

    What `unbalanced_strength` and its kin start from, of the hidden vectors $p = W_2^T u$ and
    $q = W_1 v$. Of equal modes squares and products are means over the group, which no basis
    changes: $\lambda^2 = \langle \|p + q\|^2 \rangle \langle \|p - q\|^2 \rangle$.

    **Raises:** `ValueError` for a network that has not exactly one hidden layer, and for modes of
    another c, unless `check=False`.
    """
    p, q = modes.hidden_vectors(network, check=check)
    plus, minus, strength = (
        mean_over_equal(jnp.sum(a * b, axis=1), modes.equal)
        for a, b in ((p + q, p + q), (p - q, p - q), (p, q))
    )
    return strength, safe_sqrt(plus) * safe_sqrt(minus)
