r"""Gates of pairs that slide, in steps whose gates are averages.

A pair of unit j and sample i moves its own preactivation by $\kappa\, m$, with its strength m = g C
and

$$\kappa = |x_i|^2 / \tau_W + c^2 / \tau_b .$$

The rest of its velocity, $q = \dot z - \kappa m$, is due to all others. Where $C < 0$ and

$$q + \kappa\, s\, C > 0 > q + \kappa\, C$$

(s the slope of a gate that is off) it is pushed back from both sides of its kink, and slides. Its
gate is then the fraction with $q + \kappa m = 0$ (Filippov), and over a step of length h that ends
in a slide its mean strength is the one with which the step ends at z = 0, whenever it got there.

The others of the unit that slide do the same at the same time, so that in all one step is one of
Jacobi's method for the unit's sliding pairs, which goes on from step to step. It would diverge
where the largest eigenvalue $\rho$ of their $\kappa^{-1} K$, $K = \tilde X \tilde X^T$, is above
4/3, and is damped by $1 / \rho$. This is the largest Rayleigh quotient that the steps have shown,
and comes at no cost: with a correction $\delta$ of the strengths, that of z is $h K \delta$. An
unstable direction grows until the quotient shows it.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

DAMPING_DECAY = 0.95  # factor per step of damping that no Rayleigh quotient shows to be needed


class SlideState(eqx.Module):
    """Sliding pairs as one step hands them to the next.

    - `strength`, `earlier`: with gates, at the step's start and one step before.
    - `held`: pairs whose gates there are those of a slide.
    - `coupling`: rho of the units.
    """

    signal: Float[Array, "P H"]
    earlier_signal: Float[Array, "P H"]
    sliding: Bool[Array, "P H"]
    coupling: Float[Array, " H"]

    @staticmethod
    def without_slides(signal: Array) -> "SlideState":
        """Return what there is before the first step, with this strength."""
        return SlideState(
            signal=signal,
            earlier_signal=signal,
            sliding=jnp.zeros_like(signal, bool),
            coupling=jnp.ones_like(signal[0]),
        )


class StepSlides(NamedTuple):
    """Sliding pairs over one step.

    - `pairs`: which slide at its end, or have at its start; `old`: the latter.
    - `predicted`, `mean`: their mean strength in the prediction, and as it should be.
    - `end`: their strength at the end.
    - `own`: kappa.
    """

    pairs: Array
    sliding_before: Array
    predicted_signal: Array
    mean_signal: Array
    end_signal: Array
    own_response: Array


def slides_in_step(
    before: SlideState,
    h: Array,
    length: Array,
    drive: tuple[Array, Array],
    predicted: tuple[Array, Array],
    own_response: Array,
    slope: Array,
) -> StepSlides:
    """Find the pairs that slide in a step of length h after one of this length.

    - `ungated`: C, its mean over the step and at the end.
    - `predicted`: z and its velocity at the end.
    """
    (mean, end), (z, velocity) = drive, predicted
    rate = (before.signal - before.earlier_signal) / length
    during, last = before.signal + h / 2 * rate, before.signal + h * rate
    rest, free = z - h * own_response * during, velocity - own_response * last
    stays = (end < 0) & (free + own_response * slope * end > 0) & (free + own_response * end < 0)
    reached = (rest + h * own_response * slope * mean > 0) & (rest + h * own_response * mean < 0)
    old = before.sliding & (end < 0)
    damping = jnp.where(old, 1 / before.coupling, 1.0)
    return StepSlides(
        pairs=old | stays & reached,
        sliding_before=old,
        predicted_signal=during,
        mean_signal=jnp.clip(
            during - damping * _ratio_or_zero(z, h * own_response), mean, slope * mean
        ),
        end_signal=jnp.clip(
            last - damping * _ratio_or_zero(velocity, own_response), end, slope * end
        ),
        own_response=own_response,
    )


def slides_after(
    before: SlideState,
    now: StepSlides,
    h: Array,
    z: Array,
    moved: Array,
    drive: Array,
    gates: Array,
) -> SlideState:
    """Return the sliding pairs that the next step begins with.

    - `z`, `ungated`, `gates`: at the step's end, with C and the gates of pairs that do not slide.
    - `moved`: by which the correction has moved z, per time.
    """
    pairs = now.pairs & (jnp.abs(z) < h * now.own_response * jnp.abs(drive))
    delta = jnp.where(now.sliding_before, now.mean_signal - now.predicted_signal, 0.0)
    quotient = _ratio_or_zero(
        jnp.sum(delta * moved, axis=0), jnp.sum(now.own_response * delta**2, axis=0)
    )
    trace = jnp.sum(now.pairs, axis=0, dtype=quotient.dtype)  # bounds the eigenvalue
    shown = jnp.clip(quotient, 1.0, jnp.maximum(trace, 1.0))
    coupling = jnp.maximum(shown, 1 + DAMPING_DECAY * (before.coupling - 1))
    return SlideState(
        signal=jnp.where(pairs, now.end_signal, gates * drive),
        earlier_signal=before.signal,
        sliding=pairs,
        coupling=lax.stop_gradient(coupling),
    )


def _ratio_or_zero(numerator: Array, denominator: Array) -> Array:
    """Return the quotient, 0 where the denominator is."""
    none = denominator == 0
    return jnp.where(none, 0.0, numerator / jnp.where(none, 1.0, denominator))
