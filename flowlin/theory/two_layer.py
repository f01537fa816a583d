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
`mode_strength` (a negative a0 then ends at the saddle); for $|\lambda| \gg |a|$ the mode relaxes
exponentially like a single layer, $s/d + (a_0 - s/d) e^{-|\lambda| d t/\tau}$.

At the level $\rho$ it is $x = (\rho + \sqrt{\rho^2 + 4 A B}) / 2A$. Inverting N / M = x gives the
**hitting time**

$$\hat t = \frac{\tau}{2 R} \log(1 + 2 R Q), \qquad
  Q = \frac{\rho - a_0}{2\, (A x + B)\, (s - d\rho)}\,
      \frac{(R + s) x + 2 d B}{R + s + 2 d B},$$

for s >= 0, and its mirrored form, (a, s, A, B) -> (-a, -s, B, A), otherwise. The curve changes its
curvature, $\ddot a = 0$, where $8 d a^2 - 4 s a + d \lambda^2 = 0$.

Formulas take numbers in range; `theory.Mode` is where users meet them.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike

from flowlin._tools.numerics import (
    decay_integral,
    hypot,
    log_growth,
    safe_divide,
    safe_sqrt,
    time_over_tau,
)
from flowlin.theory.closed_form import elementwise


def _plus_and_minus(a0: Array, imbalance: Array) -> tuple[Array, Array]:
    """Return A and B of A - B = a0, 16 A B = imbalance^2, the smaller one without cancellation."""
    larger = (hypot(imbalance / 2, a0) + jnp.where(a0 >= 0, a0, -a0)) / 2
    smaller = imbalance / 4 * safe_divide(imbalance / 4, larger, 0.0)
    return jnp.where(a0 >= 0, larger, smaller), jnp.where(a0 >= 0, smaller, larger)


def _relaxation_rates(s: Array, d: Array, plus: Array, minus: Array) -> tuple[Array, Array, Array]:
    """Return R, R + s and R - s, R^2 = s^2 + 4 d^2 A B, without cancellation or overflow."""
    scale = lax.stop_gradient(jnp.maximum(jnp.abs(s), jnp.abs(d) * jnp.maximum(plus, minus)))
    scale = jnp.where(scale > 0, scale, 1.0)
    rate = scale * safe_sqrt((s / scale) ** 2 + 4 * (d / scale * plus) * (d / scale * minus))
    size = jnp.where(s >= 0, s, -s)
    some = rate > 0
    small = jnp.where(
        some, 2 * d * plus * (2 * d * minus / jnp.where(some, rate + size, 1.0)), rate - size
    )
    return rate, jnp.where(s >= 0, rate + size, small), jnp.where(s >= 0, small, rate + size)


def _growth_until(
    t: Array, s: Array, d: Array, plus: Array, minus: Array
) -> tuple[Array, Array, Array, Array]:
    """Return by how much p + q has grown and the strength relaxed at time t, in units of tau.

    **Returns:** `(log_x, relaxed, gained, burst)`: log x; E / N M = (s - d a) / (s - d a0);
    (1 - E / N M) / d, a sum of terms of one sign; +1 where x has left the range of floats,
    -1 where 1/x has, else 0.
    """
    rate, up, down = _relaxation_rates(s, d, plus, minus)
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


def _strength_after(t: Array, s: Array, d: Array, a0: Array, imbalance: Array) -> Array:
    """Return the strength at time t in units of tau, in the form that cancels least."""
    plus, minus = _plus_and_minus(a0, imbalance)
    log_x, relaxed, gained, burst = _growth_until(t, s, d, plus, minus)
    grown, shrunk = plus * jnp.exp(log_x), minus * jnp.exp(-log_x)
    towards = jnp.abs(a0) * relaxed + jnp.abs(s) * gained
    steady = towards <= grown + shrunk
    a = jnp.where(steady, a0 * relaxed + s * gained, grown - shrunk)
    a = jnp.where((burst > 0) & (plus > 0), jnp.inf, a)
    return jnp.where((burst < 0) & (minus > 0), -jnp.inf, a)


@elementwise
def two_layer_strength(
    t: Array, a0: Array, s: Array, d: Array, imbalance: Array, tau: Array
) -> Array:
    r"""Solve $\tau \dot a = \sqrt{\lambda^2 + 4 a^2}\, (s - d a)$ as in the module's docstring.

    At a0 = imbalance = 0 the strength has a cone in these variables, and its derivative is set from
    above; it is smooth in the weights (`two_layer_vectors`). Where a mode without drag (d = 0) has
    grown by more than 1e138 (1e17 in float32) it is inf with zero derivative.
    """
    return _strength_after(time_over_tau(t, tau), s, d, a0, imbalance)


@elementwise
def two_layer_start(
    level: Array, t: Array, s: Array, d: Array, imbalance: Array, tau: Array
) -> Array:
    """Return a0 from which the strength is at a level at time t: the flow of (-s, -d) from there.

    Where the backward flow diverges before t, as every unbalanced one does if d > 0, no finite
    start arrives that late: -inf below the fixed point s/d, inf above it.
    """
    return _strength_after(time_over_tau(t, tau), -s, -d, level, imbalance)


@elementwise
def two_layer_hitting_time(
    level: Array, a0: Array, s: Array, d: Array, imbalance: Array, tau: Array
) -> Array:
    """Return the hitting time, unique as a mode never turns: inf if never, 0 where level = a0."""
    # Mirrored, so that s >= 0.
    sign = jnp.where(s < 0, -1.0, 1.0)
    rho, s, a0 = sign * level, sign * s, sign * a0
    plus, minus = _plus_and_minus(a0, imbalance)
    rate, up, _ = _relaxation_rates(s, d, plus, minus)
    known = jnp.isfinite(rho)
    rho = jnp.where(known, rho, 0.0)
    change, left = rho - a0, s - d * rho
    # Moving towards rho, which lies before the fixed point and, if balanced, before the saddle.
    reached = (change * left > 0) | ((change == 0) & (left != 0))
    reached &= known & ((imbalance != 0) | (jnp.sign(a0) * jnp.sign(rho) > 0))
    rho = jnp.where(reached, rho, 0.0)
    half = hypot(imbalance / 2, rho)
    x = jnp.where(
        rho >= 0, safe_divide(half + rho, 2 * plus, 1.0), safe_divide(2 * minus, half - rho, 1.0)
    )
    ahead = safe_divide(up * x + 2 * d * minus, up + 2 * d * minus, x)
    steep = jnp.where(reached, 2 * (plus * x + minus) * left, 0.0)
    q = safe_divide(jnp.where(reached, change, 0.0) * ahead, steep, 0.0)
    time = tau * log_growth(2 * rate, q)
    return jnp.where(reached, time, jnp.where(known & (change == 0), 0.0, jnp.inf))


@elementwise
def two_layer_inflections(s: Array, d: Array, imbalance: Array) -> tuple[Array, Array]:
    """Return the lower and the upper inflection, along the sign of s; NaN where there are none."""
    sign = jnp.where(s < 0, -1.0, 1.0)
    square = s**2 - 2 * d**2 * imbalance**2
    there = square >= 0
    spread = jnp.where(s < 0, -s, s) + safe_sqrt(jnp.where(there, square, 0.0))
    upper = sign * safe_divide(spread, 4 * d, jnp.inf)
    lower = sign * safe_divide(d * imbalance**2, 2 * spread, 0.0)
    return jnp.where(there, lower, jnp.nan), jnp.where(there, upper, jnp.nan)


@elementwise(axes={"p": 1, "q": 1})
def two_layer_vectors(
    t: Array, s: Array, d: Array, p: Array, q: Array, tau: Array
) -> tuple[Array, Array]:
    r"""Return the hidden vectors (..., H) at time t, $p(t) \pm q(t) = x^{\pm 1/2}\, (p \pm q)$."""
    total, rest = p + q, p - q
    plus, minus = jnp.sum(total**2, axis=-1) / 4, jnp.sum(rest**2, axis=-1) / 4
    log_x = _growth_until(time_over_tau(t, tau), s, d, plus, minus)[0][..., None]
    total, rest = total * jnp.exp(log_x / 2), rest * jnp.exp(-log_x / 2)
    return (total + rest) / 2, (total - rest) / 2


# ---- The balanced one, $\tau \dot a = 2 a (s - d a)$, whose clock all depths share.


def strength_at(t: Array, s: Array, d: Array, a0: Array, tau: ArrayLike = 1.0) -> Array:
    """Return `mode_strength` of arrays that are in range."""
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


def time_until(rho: Array, s: Array, d: Array, a0: Array, tau: ArrayLike = 1.0) -> Array:
    """Return `hitting_time` of arrays that are in range."""
    gap = a0 * (s - d * rho)
    change = rho - a0
    # Reached iff the mode moves towards rho and rho lies before the fixed point s/d.
    reached = (a0 > 0) & ((change * gap > 0) | ((change == 0) & (gap != 0)))
    q = jnp.where(reached, change, 0.0) / jnp.where(reached, gap, 1.0)
    return jnp.where(reached, tau / 2 * log_growth(s, q), jnp.where(change == 0, 0.0, jnp.inf))
