r"""The balanced mode of a deep linear network, of any depth.

With L layers of weights of equal strength $a^{1/L}$ a mode obeys (Saxe et al. 2014; Arora et al.
2018)

$$\tau \dot a = L\, a^{2 - 2/L} (s - d a).$$

In the **clock** $\sigma$ of $d a / d\sigma = a (s - d a)$, which is the two-layer flow, all depths
share one solution $a(\sigma)$, `mode_strength` at $\sigma / 2$, and only the clock's rate differs:

$$L\, t / \tau = \int_0^\sigma a(\sigma')^{-b}\, d\sigma', \qquad b = 1 - 2/L \in [0, 1].$$

With $\zeta = s / (d a)$ the integrand is $\zeta^b\, d\zeta / (1 - \zeta)$ up to a factor, an
incomplete beta function. It is summed as a geometric series where a is far below or far above the
fixed point s/d (that also covers d = 0 and s = 0) and, between s/8d and 8s/d, as $\sigma$ plus a
remainder that is analytic there. For L = 1 the flow is linear, for L = 2 the clock is the time
itself, and for $L \to \infty$, where time is counted in units of $\tau / L$,
$u + \log u$ with $u = (s - d a)/(d a)$ falls at the rate $s^2 / d$ (a Lambert W function).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, PyTree

from flowlin._tools.arrays import is_traced
from flowlin._tools.numerics import decay_integral, log_growth, safe_divide, time_over_tau
from flowlin._tools.series import bracket_root
from flowlin.theory.closed_form import ArgumentRange, elementwise
from flowlin.theory.two_layer import strength_at, time_until

_TERMS = 18  # of geometric series with ratio 1/8 at most: the rest is below 1e-16
_NODES, _WEIGHTS = (z / 2 for z in np.polynomial.legendre.leggauss(14))
_NODES = _NODES + 0.5


def require_balanced_sign(name: str, strength: ArrayLike, depth: ArrayLike) -> None:
    """Raise `ValueError` for known strengths below zero, unless of a single layer."""
    if not is_traced((strength, depth)):
        signed = np.where(np.asarray(depth) == 1, 0.0, np.asarray(strength))
        ArgumentRange("zero or positive: no other deep mode is balanced", lambda a: a >= 0)(
            name, signed
        )


def _clock_rate(depth: Array) -> tuple[Array, Array, Array]:
    """Return b = 1 - 2/L, the factor L of time (1 for L = inf), and whether L = 1."""
    shallow = depth == 1
    layers = jnp.where(shallow, 2.0, depth)
    return 1 - 2 / layers, jnp.where(jnp.isinf(layers), 1.0, layers), shallow


@elementwise
def deep_strength(t: Array, a0: Array, s: Array, d: Array, depth: Array, tau: Array) -> Array:
    r"""Solve $\tau \dot a = L a^{2 - 2/L} (s - d a)$ as in the module's docstring.

    Closed for L = 1, 2; otherwise the clock at time t is found by bracketing and Newton's method,
    through which derivatives pass. Without drag (d = 0) and L > 2 the mode diverges at
    $L t / \tau = a_0^{-b} / (b s)$, and is inf from there on.
    """
    t, a0, s, d, depth, tau = jnp.broadcast_arrays(t, a0, s, d, depth, tau)
    b, layers, shallow = _clock_rate(depth)
    time = time_over_tau(t, tau)
    forever = ~(time < jnp.finfo(time.dtype).max ** 0.4)
    finite = jnp.where(forever, 0.0, time)
    sigma = _clock_at(jnp.where(forever, jnp.inf, layers * finite), s, d, a0, b)
    # Where no fixed point is approached exponentially the limit is written down.
    endless = (forever | (~shallow & jnp.isinf(sigma))) & ((s == 0) | (d == 0))
    limit = jnp.where(d > 0, 0.0, a0)
    limit = jnp.where((s > 0) & (d == 0) & (shallow | (a0 > 0)), jnp.inf, limit)
    deep = strength_at(jnp.where(endless, 0.0, sigma) / 2, s, d, a0)
    single = _one_layer(jnp.where(endless, 0.0, time), s, d, a0)
    return jnp.where(endless, limit, jnp.where(shallow, single, deep))


@elementwise
def deep_hitting_time(
    level: Array, a0: Array, s: Array, d: Array, depth: Array, tau: Array
) -> Array:
    """Return the clock's integral up to a level: inf if never there, 0 where level = a0."""
    rho, a0, s, d, depth, tau = jnp.broadcast_arrays(level, a0, s, d, depth, tau)
    b, layers, shallow = _clock_rate(depth)
    change, left = rho - a0, s - d * rho
    ahead = shallow & ((change * left > 0) | ((change == 0) & (left != 0)))
    single = log_growth(d, safe_divide(jnp.where(ahead, change, 0.0), left, 0.0))
    sigma = 2 * time_until(rho, s, d, a0)
    reached = jnp.isfinite(sigma) & (a0 > 0)
    deep = _time_at(jnp.where(reached, sigma, 0.0), s, d, jnp.where(reached, a0, 1.0), b) / layers
    time = tau * jnp.where(shallow, single, deep)
    there = jnp.where(shallow, ahead, reached)
    return jnp.where(there, time, jnp.where(change == 0, 0.0, jnp.inf))


@elementwise
def deep_inflections(s: Array, d: Array, depth: Array) -> tuple[Array, Array]:
    r"""Return both strengths at which $\ddot a = 0$: 0 and $\frac{2L - 2}{3L - 2} \frac sd$.

    The upper one is inf for d = 0; a single layer, which slows down from the start, has NaN.
    """
    b = 1 - 2 / depth
    upper = jnp.where(depth > 1, safe_divide((1 + b) * s, (2 + b) * d, jnp.inf), jnp.nan)
    return jnp.where(depth > 1, jnp.zeros_like(s), jnp.nan), upper


@elementwise
def deep_start(level: Array, t: Array, s: Array, d: Array, depth: Array, tau: Array) -> Array:
    """Return a0 from which the strength is at a level at time t: `deep_hitting_time` inverted.

    Sought in log a0 by bracketing and Newton's method, through which derivatives pass. A start
    below the fixed point exists for every time; above it, inf where a mode from infinity would be
    there earlier.
    """
    rho, t, s, d, depth, tau = jnp.broadcast_arrays(level, t, s, d, depth, tau)
    b, layers, shallow = _clock_rate(depth)
    time = time_over_tau(t, tau)
    forever = ~(time < jnp.finfo(time.dtype).max ** 0.4)
    finite = jnp.where(forever, 0.0, time)
    left = s - d * rho
    deep = _start_before(jnp.where(shallow, 1.0, rho), layers * finite, s, d, b)
    back = jnp.where(shallow, finite, 0.0)
    single = rho - left * back * safe_divide(jnp.expm1(d * back), d * back, 1.0)
    start = jnp.where(shallow, single, deep)
    # Backwards for ever: away from the fixed point.
    below = jnp.where(shallow, -jnp.inf, 0.0)
    first = jnp.where(left > 0, below, jnp.where((left < 0) & (shallow | (rho > 0)), jnp.inf, rho))
    return jnp.where(forever, first, start)


def _one_layer(time: Array, s: Array, d: Array, a0: Array) -> Array:
    """a0 exp(-d t) + s (1 - exp(-d t)) / d, where time is inf only if d > 0."""
    forever = jnp.isinf(time)
    fading = jnp.exp(-d * jnp.where(forever, 0.0, time))
    return a0 * jnp.where(forever, 0.0, fading) + s * decay_integral(d, time)


def _time_at(sigma: Array, s: Array, d: Array, a0: Array, b: Array) -> Array:
    """Return L t / tau, the integral of a^-b over the clock from 0 to sigma, for a0 > 0."""
    below = (8 * d * a0 < s) | (d == 0)
    above = ~below & (d * a0 > 8 * s)
    far = below | above
    middle = (s > 0) & (d > 0)
    full = jnp.where(middle, s / jnp.where(middle, d, 1.0), 1.0)
    edge = jnp.where(below, full / 8, 8 * full)
    arrival = jnp.where(middle & far, 2 * time_until(edge, s, d, a0), jnp.inf)
    early = jnp.where(far, jnp.minimum(sigma, arrival), 0.0)
    entry = jnp.where(far, edge, a0)
    start = jnp.where(far, a0, 1.0)
    slow = _far_below(jnp.where(below, early, 0.0), s, jnp.where(below, d, 0.0), start, b)
    fast = _far_above(jnp.where(above, early, 0.0), s, jnp.where(above, d, 1.0), start, b)
    late = jnp.where(middle, sigma - early, 0.0)
    near = _near_full(late, jnp.where(middle, s, 1.0), full, entry, b)
    # Hardly moved, as for s = d = 0: to second order.
    change = (s - d * a0) * sigma
    hardly = jnp.maximum(s, d * a0) * sigma < 1e-9
    little = a0**-b * sigma * (1 - b / 2 * jnp.where(hardly, change, 0.0))
    return jnp.where(hardly, little, jnp.where(below, slow, fast) + near)


def _far_below(sigma: Array, s: Array, d: Array, a0: Array, b: Array) -> Array:
    """Integral of a^-b while a <= s/8d: powers of z = d a / s."""
    z = d * a0 / jnp.where(s > 0, s, 1.0)
    short = jnp.where(s > 0, jnp.minimum(sigma, 600 / jnp.where(s > 0, s, 1.0)), sigma)
    growth = sigma - log_growth(s, z * decay_integral(-s, short))  # log(a / a0) / s
    z = z * jnp.exp(jnp.minimum(s * growth, 600.0))
    n = _on_first_axis(np.arange(1, _TERMS), z).astype(z.dtype)
    rates = (n - b[None]) * s[None]
    rest = jnp.sum(_whole_power(z[None], n) * decay_integral(rates, growth[None]), axis=0)
    return a0**-b * (decay_integral(b * s, growth) + jnp.exp(-b * s * growth) * rest)


def _far_above(sigma: Array, s: Array, d: Array, a0: Array, b: Array) -> Array:
    """Integral of a^-b while a >= 8s/d: powers of s / (d a)."""
    fall = jnp.log1p((d * a0 - s) * decay_integral(s, sigma))
    a = a0 * jnp.exp(-fall)
    n = _on_first_axis(np.arange(_TERMS), a).astype(a.dtype)
    rates = (1 + b)[None] + n
    series = _whole_power((s / (d * a))[None], n) * decay_integral(rates, fall[None])
    return a ** -(1 + b) / d * jnp.sum(series, axis=0)


def _near_full(sigma: Array, s: Array, full: Array, a0: Array, b: Array) -> Array:
    r"""Integral of a^-b while s/8d <= a <= 8s/d, which may take for ever.

    $a_*^{-b} (\sigma + \frac1s \int (\zeta^b - 1) / (\zeta - 1)\, d\zeta)$, by Gauss's rule in
    $\log\zeta$: the integrand's poles are 2 pi i away and the range is at most 2 log 8.
    """
    rise = -jnp.log1p((a0 / full - 1) * s * decay_integral(s, sigma))
    log_zeta = jnp.log(full / a0)[None] - rise[None] * _on_first_axis(_NODES, rise)
    heights = decay_integral(-b[None] * log_zeta, jnp.ones(())) / decay_integral(
        log_zeta, jnp.ones(())
    )
    mean = jnp.sum(_on_first_axis(_WEIGHTS, rise) * heights, axis=0)
    return full**-b * (sigma + safe_divide(b * rise * mean, s, 0.0))


@jax.custom_jvp
def _whole_power(x: Array, n: Array) -> Array:
    """x^n for constant n = 0, 1, 2, ..., in floats; its derivatives at x = 0 are numbers."""
    return x**n


@_whole_power.defjvp
def _whole_power_jvp(primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    x, n = primals
    return _whole_power(x, n), tangents[0] * (n * _whole_power(x, jnp.maximum(n - 1, 0.0)))


def _on_first_axis(values: np.ndarray, array: Array) -> Array:
    """Put constants on a leading axis, to broadcast against `array`."""
    return jnp.asarray(values).reshape((-1,) + (1,) * array.ndim)


@jax.custom_jvp
def _clock_at(time: Array, s: Array, d: Array, a0: Array, b: Array) -> Array:
    """Return the clock sigma at L t / tau: bracketed, and finished by Newton's method.

    inf if it never comes to rest before `time`, or at time = inf.
    """
    forever, moving, (time_, s_, d_, a_) = _safe_numbers(time, s, d, a0)
    low, high = _clock_bounds(time_, s_, d_, a_, b)
    lost = jnp.isinf(high)
    low, high, time_ = (jnp.where(lost, 0.0, z) for z in (low, high, time_))
    sigma = _approximate_clock(low, high, time_, s_, d_, a_, b)

    def newton(_, sigma):
        late = _time_at(sigma, s_, d_, a_, b) - time_
        return sigma - late * strength_at(sigma / 2, s_, d_, a_) ** b

    sigma = lax.fori_loop(0, 3, newton, sigma)
    resting = jnp.where(b == 0, time, 0.0)  # at the saddle
    end = jnp.where((s == 0) & (d == 0), 0.0, jnp.inf)  # or anything, where nothing ever moves
    sigma = jnp.where(moving, jnp.where(lost, jnp.inf, sigma), resting)
    return jnp.where(forever, end, sigma)


@_clock_at.defjvp
def _clock_at_jvp(primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    """By the implicit function theorem: d sigma = a^b (d time - what the clock changes by)."""
    time, s, d, a0, b = primals
    sigma = _clock_at(*primals)
    _, moving, (_, *mode) = _safe_numbers(time, s, d, a0)
    moving &= jnp.isfinite(sigma)
    finite = jnp.where(moving, sigma, 0.0)
    _, late = jax.jvp(lambda *z: _time_at(finite, *z), (*mode, b), tuple(tangents[1:]))
    change = strength_at(finite / 2, *mode) ** b * (tangents[0] - late)
    resting = jnp.where((a0 == 0) & (b == 0), tangents[0], 0.0)
    return sigma, jnp.where(moving, change, resting)


def _safe_numbers(
    time: Array, s: Array, d: Array, a0: Array
) -> tuple[Array, Array, tuple[Array, Array, Array, Array]]:
    """Tell whether time ends, whether the clock is to be sought, and numbers harmless if not."""
    forever = ~(time < jnp.finfo(time.dtype).max ** 0.4)
    moving = (a0 > 0) & ~forever
    s, d, a0 = (jnp.where(moving, z, 1.0) for z in (s, d, a0))
    return forever, moving, (jnp.where(moving, time, 0.0), s, d, a0)


def _clock_bounds(time: Array, s: Array, d: Array, a0: Array, b: Array) -> tuple[Array, Array]:
    """Bound the clock: its rate is monotone, and slower with drag, faster with a drive."""
    initial = time * a0**b
    final = time * safe_divide(s, d, jnp.inf) ** b
    # Rising without drag (d = 0), perhaps to infinity; falling without a drive (s = 0).
    bounded = b * s * initial < 1
    free = jnp.where(bounded, log_growth(-b * s, jnp.where(bounded, initial, 0.0)), jnp.inf)
    pull = jnp.where(d > 0, d * a0, 1.0)
    idle = jnp.expm1(jnp.log1p((1 + b) * pull * initial) / (1 + b)) / pull
    rising = s >= d * a0
    final = jnp.where(time == 0, 0.0, final)
    return (
        jnp.where(rising, initial, jnp.maximum(final, idle)),
        jnp.where(rising, jnp.maximum(jnp.minimum(final, free), initial), initial),
    )


def _approximate_clock(
    low: Array, high: Array, time: Array, s: Array, d: Array, a0: Array, b: Array
) -> Array:
    """Bracket the clock to 1e-6 of the mode's own scale, from where Newton's method finishes."""
    fastest = jnp.maximum(s, d * a0)
    tolerance = 1e-6 / jnp.where(fastest > 0, fastest, 1.0)
    tolerance = jnp.maximum(tolerance, 4 * jnp.finfo(high.dtype).eps * high)

    def one(low, high, tolerance, time, s, d, a0, b):
        return bracket_root(
            lambda sigma: _time_at(sigma, s, d, a0, b) - time, low, high, True, tolerance
        )

    found = jax.vmap(one)(*(jnp.ravel(z) for z in (low, high, tolerance, time, s, d, a0, b)))
    return jnp.reshape(sum(found) / 2, low.shape)


def _time_between(rho: Array, s: Array, d: Array, a0: Array, b: Array) -> Array:
    """Return L t / tau from a0 to rho, which lies before the fixed point."""
    return _time_at(2 * time_until(rho, s, d, a0), s, d, a0, b)


@jax.custom_jvp
def _start_before(rho: Array, time: Array, s: Array, d: Array, b: Array) -> Array:
    """Return a0 from which it takes `time` to rho: inf if none is so late, 0 below all floats."""
    left = s - d * rho
    moving = (rho > 0) & (left != 0) & (time > 0)
    rho_, time_, s_, d_ = (jnp.where(moving, z, 1.0) for z in (rho, time, s, d))
    s_ = jnp.where(moving, s_, 2.0)
    rising = s_ > d_ * rho_
    info = jnp.finfo(rho.dtype)
    end = jnp.log(rho_)
    # Without drag a mode may start lower, without a drive not as high.
    lowest = end - log_growth(b, s_ * time_ * rho_**b)
    fall = (1 + b) * d_ * time_ * rho_ ** (1 + b)
    bounded = fall < 1
    highest = end - jnp.log1p(-jnp.where(bounded, fall, 0.0)) / (1 + b)
    highest = jnp.where(bounded, highest, jnp.maximum(end, 0.3 * jnp.log(info.max)))
    low = jnp.where(rising, jnp.maximum(lowest, jnp.log(info.tiny)), end)
    high = jnp.where(rising, end, highest)

    def late(y, rho, time, s, d, b):
        return _time_between(rho, s, d, jnp.exp(y), b) - time

    def one(low, high, rising, *mode):
        return bracket_root(
            lambda y: late(y, *mode), low, high, ~rising, jnp.asarray(1e-6, rho.dtype)
        )

    mode = rho_, time_, s_, d_, b
    found = jax.vmap(one)(*(jnp.ravel(z) for z in (low, high, rising, *mode)))
    y = jnp.reshape(sum(found) / 2, low.shape)

    def newton(_, y):
        a0 = jnp.exp(y)
        moved = y + late(y, *mode) * a0**b * (s_ - d_ * a0)
        return jnp.clip(moved, low, high)

    y = lax.fori_loop(0, 3, newton, y)
    never = ~rising & ~bounded & (late(high, *mode) < 0)
    always = rising & (late(low, *mode) < 0)
    start = jnp.where(never, jnp.inf, jnp.where(always, 0.0, jnp.exp(y)))
    return jnp.where(moving, start, rho)


@_start_before.defjvp
def _start_before_jvp(primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    """By the implicit function theorem; at the fixed point by the flow's linearisation."""
    rho, time, s, d, b = primals
    a0 = _start_before(*primals)
    moving = (a0 > 0) & jnp.isfinite(a0) & (s != d * rho) & (rho > 0)
    mode = [jnp.where(moving, z, 1.0) for z in (rho, s, d, a0)]
    mode[1] = jnp.where(moving, mode[1], 2.0)
    rho_, s_, d_, a_ = mode
    by = tuple(tangents[k] for k in (0, 2, 3, 4))
    _, late = jax.jvp(lambda r, s, d, b: _time_between(r, s, d, a_, b), (rho_, s_, d_, b), by)
    change = a_ ** (1 + b) * (s_ - d_ * a_) * (late - tangents[1])
    # At rest the distance from s/d grows by exp(d a^(1 + b) L t / tau) going back.
    rest = (rho > 0) & (s == d * rho)
    still, turnover = jnp.where(rest, rho, 1.0), jnp.where(rest, rho ** (1 + b), 0.0)
    later = tangents[0] * jnp.exp(d * turnover * jnp.where(rest, time, 0.0))
    pushed = turnover * (tangents[2] - still * tangents[3]) * decay_integral(-d * turnover, time)
    return a0, jnp.where(moving, change, jnp.where(rest, later - pushed, 0.0))
