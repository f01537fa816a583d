r"""The balanced two-layer mode: strength, hitting time, delay by gating.

One mode of a balanced two-layer linear network obeys $\tau \dot a = 2 a (s - d a)$ (Saxe et al.
2014; lead paper Eq. 21 with its missing d restored). Everything here is array-valued, broadcasts,
and is differentiable, also where s or d is zero.
"""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.checks import checked
from flowlin._tools.numerics import arrays, decayed, log_growth
from flowlin.network.kinds import AbstractNetwork
from flowlin.theory._form import FRACTION, SIZE, START, closed_form
from flowlin.theory.origin import require_origin
from flowlin.theory.task_modes import Modes


@closed_form(s=SIZE, a0=START)
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
    return strength_at(*arrays(t, s, d, a0, tau))


def strength_at(t: Array, s: Array, d: Array, a0: Array, tau: ArrayLike = 1.0) -> Array:
    """`mode_strength` of arrays that are in range."""
    rate = 2 * s / tau
    forever = jnp.isinf(t)
    fading = jnp.exp(-rate * jnp.where(forever, 0.0, t))
    decay = jnp.where(forever & (rate != 0), 0.0, fading)
    pull = 2 * d * a0 / tau
    idle = pull == 0
    drag = pull * jnp.where(idle & ~jnp.isfinite(t), 0.0, decayed(rate, t))
    whole = decay + drag
    empty = (a0 == 0) & (whole == 0)  # stays there; 0/0 once the exponential underflows
    return a0 / jnp.where(empty, 1.0, whole)


@closed_form(s=SIZE)
def hitting_time(
    rho: ArrayLike, s: ArrayLike, d: ArrayLike, a0: ArrayLike, tau: ArrayLike = 1.0
) -> Float[Array, "..."]:
    r"""Time at which a balanced two-layer mode reaches `rho` (lead paper Eq. 13).

    $$\hat t = \frac{\tau}{2s} \log \frac{\rho (s - d a_0)}{a_0 (s - d \rho)}
             = \frac{\tau}{2s} \log\Big(1 + s\, \frac{\rho - a_0}{a_0 (s - d\rho)}\Big).$$

    Needs rho between a0 and s/d, from either side (errata B.10: rho >= a0 alone is not enough);
    returns inf where the mode never gets there, as for every a0 <= 0, and 0 where rho = a0. At
    s = 0 the limit
    $\tau (a_0 - \rho) / (2 d a_0 \rho)$ holds, a mode that decays.

    **Arguments:** (arrays that broadcast) `rho` the level, the others as in `mode_strength`.

    **Raises:** `ValueError` as `mode_strength` does.
    """
    return time_until(*arrays(rho, s, d, a0, tau))


def time_until(rho: Array, s: Array, d: Array, a0: Array, tau: ArrayLike = 1.0) -> Array:
    """`hitting_time` of arrays that are in range."""
    gap = a0 * (s - d * rho)
    change = rho - a0
    # Reached iff the mode moves towards rho and rho lies before the fixed point s/d.
    reached = (a0 > 0) & ((change * gap > 0) | ((change == 0) & (gap != 0)))
    q = jnp.where(reached, change, 0.0) / jnp.where(reached, gap, 1.0)
    return jnp.where(reached, tau / 2 * log_growth(s, q), jnp.where(change == 0, 0.0, jnp.inf))


@closed_form(s=SIZE, a0=START, g=FRACTION)
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
    s, d, a0, g, tau = arrays(s, d, a0, g, tau)
    return tau / (2 * s) * (-jnp.log(g) + jnp.log1p(d * a0 * (1 - g) / (s - d * a0)))


@checked
def balanced_strength(network: AbstractNetwork, modes: Modes) -> Float[Array, " K"]:
    r"""Balanced part of a two-layer network's mode strengths, $\frac14 \|W_2^T u + W_1 v\|^2$.

    The a0 to start the closed forms from. The raw strength $u^T W_2 W_1 v$ of a random
    initialisation is negative for about half of the modes, and Eq. 7 then blows up; the balanced
    part is what grows. With a bias, W_1 is [b, W_1].

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
    return jnp.sum(halves**2, axis=0)
