r"""The early phase on a slowed clock: ReLU networks up to their leading mode's plateau.

The early phase is ended by its leading mode. While the outputs are $\kappa$ times that mode's
targets, and only they drive the units, every error is $(1 - \kappa)$ times its initial value,
whatever a unit's gates: **all units run through their early phase at the rate $1 - \kappa$**,

$$\frac{d\theta}{dt} = 1 - \kappa(\theta), \qquad
  \kappa(\theta) = \frac{d_0}{s_0}\, a_0(\theta), \qquad
  t(\theta) = \int_0^\theta \frac{d\theta'}{1 - \kappa(\theta')},$$

with $a_0(\theta)$ the strength that the leading mode has at $\theta$ in the early phase. It is
exact where the outputs stay in proportion to the targets. Otherwise the other modes are slowed
too, and should not be: the error is of the order of their rate over the leading one's, and grows
as $\kappa$ comes to one.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import checked, number_where, real_array
from flowlin._tools.arrays import is_traced
from flowlin._tools.moved import moved_attributes
from flowlin._tools.printing import Summary, format_first, print_by
from flowlin.engine.kinks.sides import ON
from flowlin.measures.mode_origin import require_origin
from flowlin.measures.modes import Modes, mean_over_equal
from flowlin.record.linearization import LinearizationTime
from flowlin.theory.closed_form import TIME_RANGE, any_nan, restore_nan
from flowlin.theory.early_phase import EarlyPhase, compile_method, early_phase_summary
from flowlin.theory.mode import Mode
from flowlin.theory.mode_starts import mode_starts


def clock_summary(found: "SlowedClock") -> Summary:
    """Print the leading mode, and the early phase whose clock it slows down."""
    s, d = format_first(found.modes.s, most=1), format_first(found.modes.d, most=1)
    s, d = (word.removesuffix(", ...") for word in (s, d))
    title = f"SlowedClock by the leading mode, s = {s}, d = {d}"
    early = early_phase_summary(found.early)
    return Summary(title, [("early phase", early.title), *early.rows])


INTEGRAL_CELLS = 64  # of the integral, each with four Gauss points

_share_argument = number_where(
    "a number in [0, 1)", lambda share: math.isnan(share) or 0 <= share < 1
)


@moved_attributes(reading="reading_at")
@print_by(clock_summary)
class SlowedClock(eqx.Module):
    """Time t of a ReLU network's flow at the clock reading theta of its early phase.

    The network at `clock.time(theta)` is `early.network(theta)`: plot one against the other.
    """

    early: EarlyPhase
    modes: Modes

    @checked(theta=TIME_RANGE)
    @compile_method
    def share(self, theta: ArrayLike) -> Float[Array, "..."]:
        """Return the share kappa of the leading mode learned at readings, of `theta`'s shape."""
        theta = jnp.asarray(theta, self.early.t1.dtype)
        if theta.ndim:
            return jax.vmap(self.share)(theta)
        task = self.early.task
        strengths = self.modes.strengths(self.early.network(theta), task)
        return strengths[0] * self.modes.d[0] / self.modes.s[0]

    @checked(theta=TIME_RANGE)
    @compile_method
    def time(self, theta: ArrayLike) -> Float[Array, "..."]:
        """Return t(theta), of the shape of `theta` in [0, t1]; inf once the share reaches one.

        NaN outside. It is computed by Gauss's rule in 64 cells, to about 1e-6; cells in which gates
        change limit the accuracy.
        """
        theta = jnp.asarray(theta, self.early.t1.dtype)
        if theta.ndim:
            return jax.vmap(self.time)(theta)
        nodes, weights = np.polynomial.legendre.leggauss(4)
        x = ((np.arange(INTEGRAL_CELLS)[:, None] + (nodes + 1) / 2) / INTEGRAL_CELLS).ravel()
        # Finer towards the end, where the clock slows down.
        reading = theta * jnp.asarray(1 - (1 - x) ** 3, theta.dtype)
        weight = jnp.asarray(
            np.tile(weights, INTEGRAL_CELLS) / (2 * INTEGRAL_CELLS) * 3 * (1 - x) ** 2, theta.dtype
        )
        left = 1 - self.share(reading)
        fine = jnp.all(left > 0)
        outside = jnp.any(jnp.isnan(left))
        whole = theta * jnp.sum(weight / jnp.where(left > 0, left, 1.0))
        return restore_nan(outside, jnp.where(fine, whole, jnp.inf))

    @checked(share=number_where("a number", lambda share: True))
    @compile_method
    def reading_at(self, share: ArrayLike) -> Float[Array, ""]:
        """Return the first reading theta at which the leading mode has `share`; inf if none.

        It is searched for between 257 readings: a share that only touches the level between two of
        them is missed.
        """
        share = jnp.asarray(share, self.early.t1.dtype)
        still = lax.stop_gradient(self)
        grid = jnp.linspace(0.0, still.early.t1, 257)
        over = still.share(grid) >= lax.stop_gradient(share)
        k = jnp.argmax(over)
        bounds = grid[jnp.maximum(k - 1, 0)], grid[k]

        def halve_bracket(_, bounds):
            low, high = bounds
            middle = (low + high) / 2
            above = still.share(middle) >= lax.stop_gradient(share)
            return jnp.where(above, low, middle), jnp.where(above, middle, high)

        theta = lax.stop_gradient(lax.fori_loop(0, 50, halve_bracket, bounds)[1])
        slope = jax.jvp(still.share, (theta,), (jnp.ones_like(theta),))[1]
        rising = jnp.any(over) & (k > 0) & (slope > 0)
        newton = (share - self.share(theta)) / jnp.where(rising, slope, 1.0)
        theta = jnp.where(rising, theta + newton, theta)
        return restore_nan(jnp.isnan(share), jnp.where(jnp.any(over), theta, jnp.inf))

    @checked(rho=real_array, share=_share_argument)
    @compile_method
    def hitting_times(self, rho: ArrayLike, *, share: ArrayLike = 0.9) -> Float[Array, " K"]:
        r"""Return when the modes' strengths reach `rho`, one level or one per mode, (K,).

        The leading mode follows the clock. The others start from the units that are always on
        when the leading one is learned to `share`: since the last gate of such a unit opened, each
        mode's hidden vectors in it grow by themselves, not slowed by the clock; from there on they
        are isolated modes (`theory.Mode`). Units that are on for some samples are left
        out, and so are gates that close later on. inf where the early phase ends before.

        **Arguments:** `rho`, levels, (K,) or scalar; `share`, the share above, below one.
        """
        modes, nan = self.modes, any_nan(rho, share)
        rho = self._mode_levels(rho)
        first = self._finite_time(self.reading_at(rho[0] * modes.d[0] / modes.s[0]))
        theta = self.reading_at(share)
        there = jnp.isfinite(theta)
        a, lam = self._always_on_start(jnp.where(there, theta, 0.0))
        later = Mode(modes.s, modes.d, a, imbalance=lam, tau=self.early.mode_tau)
        rest = later.hitting_time(rho)
        rest = jnp.where(there, self._finite_time(theta) + rest, jnp.inf)
        return restore_nan(nan, jnp.where(jnp.arange(len(rho)) == 0, first, rest))

    def _mode_levels(self, rho: ArrayLike) -> Array:
        """Return one level for every mode, (K,)."""
        rho, shape = jnp.asarray(rho, self.early.t1.dtype), self.modes.s.shape
        if rho.shape not in ((), (1,), shape):
            raise ValueError(
                f"`rho` must be a number or have shape {shape}, one per mode, got {rho.shape}."
            )
        return jnp.broadcast_to(rho, shape)

    def _finite_time(self, theta: Array) -> Array:
        """Return the time at a reading; inf, with no derivative, at inf."""
        there = jnp.isfinite(theta)
        return jnp.where(there, self.time(jnp.where(there, theta, 0.0)), jnp.inf)

    def _always_on_start(self, theta: Array) -> tuple[Array, Array]:
        """Return strength and imbalance of every mode at a reading, of the always-on units."""
        p, q = self.modes.hidden_vectors(self.early.network(theta))
        on = jnp.all(self.early.sides(theta) == ON, axis=1)
        since = jnp.minimum(self.early.last_change(theta), theta)
        # The time that the clock was slow since then, in which the other modes grew.
        held = self.time(theta) - self.time(since) - (theta - since)
        growth = jnp.exp(jnp.outer(self.modes.s, held) / self.early.mode_tau)
        plus = jnp.sum(jnp.where(on[None], (p + q) / 2 * growth, 0.0) ** 2, axis=1)
        minus = jnp.sum(jnp.where(on[None], (p - q) / 2 / growth, 0.0) ** 2, axis=1)
        plus, minus = (mean_over_equal(part, self.modes.equal) for part in (plus, minus))
        return plus - minus, 4 * jnp.sqrt(plus * minus)

    @checked(rho=real_array, share=_share_argument)
    @compile_method
    def delays(self, rho: ArrayLike, *, share: ArrayLike = 0.9) -> Float[Array, " K"]:
        """Return the modes' delays against the linear network with the same weights, (K,).

        They are `hitting_times` minus those of the linear network's isolated modes; NaN where
        neither reaches `rho`. `gating_delay` takes live units for always-on ones, this does not.
        """
        rho = self._mode_levels(rho)
        a0, lam = mode_starts(self.early.start, self.modes)
        linear = Mode(self.modes.s, self.modes.d, a0, imbalance=lam, tau=self.early.mode_tau)
        return self.hitting_times(rho, share=share) - linear.hitting_time(rho)

    @checked(share=_share_argument)
    @compile_method
    def linearization(self, share: ArrayLike = 0.9) -> tuple[LinearizationTime, LinearizationTime]:
        """Return the predicted t*, open and closed, as `flow.linearization()` has the measured.

        It is the always-on fraction's maximum over the time in which the leading mode is learned up
        to `share`; beyond it other modes turn units off again. `bracket` is not an uncertainty
        here: the predicted time is exact, and its distance from the flow's is not known.
        """
        reading = self.reading_at(share)
        end = jnp.minimum(reading, self.early.t1)
        line = self.early.linearization(end)

        def in_flow_time(found: LinearizationTime) -> LinearizationTime:
            begin, stop = self.time(jnp.stack([found.time, found.time + found.lasts]))
            begin, stop = restore_nan(jnp.isnan(share), jnp.stack([begin, stop]))
            return LinearizationTime(begin, found.fraction, jnp.stack([begin, begin]), stop - begin)

        return in_flow_time(line.open), in_flow_time(line.closed)


@checked
def slowed_clock(early: EarlyPhase, modes: Modes) -> SlowedClock:
    """Make the slowed clock of a network's early phase.

    **Arguments:**

    - `early`: from `theory.early_phase`, long enough: up to an `overlap` of one, beyond which it
      says nothing.
    - `modes`: from `theory.modes(task, network)`.

    **Returns:** `SlowedClock`, between times of the closed forms and times of the flow.

    **Raises:** `ValueError` for modes of another c or other data, or whose leading one has s = 0 or
    d = 0.
    """
    require_origin(modes, early.start, early.task)
    if not is_traced(modes) and min(np.asarray(modes.s)[0], np.asarray(modes.d)[0]) <= 0:
        raise ValueError("`modes` has no leading mode: its s and d must be positive.")
    return SlowedClock(early, modes)
