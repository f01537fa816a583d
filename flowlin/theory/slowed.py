r"""The early phase on a slowed clock: ReLU networks up to their leading mode's plateau.

What ends the early phase is its leading mode. While the outputs are $\kappa$ times that mode's
targets, and only they drive the units, every error is $(1 - \kappa)$ times its initial value,
whatever a unit's gates: **all units run through their early phase at the rate $1 - \kappa$**,

$$\frac{d\theta}{dt} = 1 - \kappa(\theta), \qquad
  \kappa(\theta) = \frac{d_0}{s_0}\, a_0(\theta), \qquad
  t(\theta) = \int_0^\theta \frac{d\theta'}{1 - \kappa(\theta')},$$

with $a_0(\theta)$ the strength that the leading mode has at $\theta$ in the early phase. It is
exact where the targets have one mode, for linear networks too, whose early phase it turns into
the exact mode solution. With more modes their part is slowed where it should not be: the error
is of their rate against the leading one's, and grows as $\kappa$ comes to one.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from flowlin._arrays import is_traced
from flowlin.task import Task
from flowlin.theory.early_phase import EarlyPhase, early_phase
from flowlin.theory.hyperbolic import imbalance, unbalanced_hitting_time
from flowlin.theory.modes import Modes

CELLS = 64  # of the integral, each with four Gauss points


class SlowedClock(eqx.Module):
    """Time t of a ReLU network's flow at the clock reading theta of its early phase.

    The network at `clock.time(theta)` is `early.network(theta)`: plot one against the other.
    """

    early: EarlyPhase
    modes: Modes

    def share(self, theta: Any) -> Float[Array, "..."]:
        """Share kappa of the leading mode that is learned at readings `theta` of any shape."""
        theta = jnp.asarray(theta, self.early.t1.dtype)
        if theta.ndim:
            return jax.vmap(self.share)(theta)
        task = self.early.task
        strengths = self.modes.strengths(self.early.network(theta), task)
        return strengths[0] * self.modes.d[0] / self.modes.s[0]

    def time(self, theta: Any) -> Float[Array, "..."]:
        """Time t(theta), for readings of any shape in [0, t1]; inf once the share reaches one."""
        theta = jnp.asarray(theta, self.early.t1.dtype)
        if theta.ndim:
            return jax.vmap(self.time)(theta)
        nodes, weights = np.polynomial.legendre.leggauss(4)
        x = ((np.arange(CELLS)[:, None] + (nodes + 1) / 2) / CELLS).ravel()
        # Finer towards the end, where the clock slows down.
        reading = theta * jnp.asarray(1 - (1 - x) ** 3, theta.dtype)
        weight = jnp.asarray(np.tile(weights, CELLS) / (2 * CELLS) * 3 * (1 - x) ** 2, theta.dtype)
        left = 1 - self.share(reading)
        fine = jnp.all(left > 0)
        whole = theta * jnp.sum(weight / jnp.where(left > 0, left, 1.0))
        return jnp.where(fine, whole, jnp.inf)

    def reading(self, share: Any) -> Float[Array, ""]:
        """The first reading theta at which the share of the leading mode is `share`; inf if none.

        Found between 257 readings, in which a share that only touches the level is missed.
        """
        share = jnp.asarray(share, self.early.t1.dtype)
        still = lax.stop_gradient(self)
        grid = jnp.linspace(0.0, still.early.t1, 257)
        over = still.share(grid) >= lax.stop_gradient(share)
        k = jnp.argmax(over)
        bounds = grid[jnp.maximum(k - 1, 0)], grid[k]

        def halve(_, bounds):
            low, high = bounds
            middle = (low + high) / 2
            above = still.share(middle) >= lax.stop_gradient(share)
            return jnp.where(above, low, middle), jnp.where(above, middle, high)

        theta = lax.stop_gradient(lax.fori_loop(0, 50, halve, bounds)[1])
        slope = jax.jvp(still.share, (theta,), (jnp.ones_like(theta),))[1]
        rising = jnp.any(over) & (k > 0) & (slope > 0)
        newton = (share - self.share(theta)) / jnp.where(rising, slope, 1.0)
        theta = jnp.where(rising, theta + newton, theta)
        return jnp.where(jnp.any(over), theta, jnp.inf)

    def hitting_time(self, rho: Any) -> Float[Array, ""]:
        """Time at which the leading mode's strength reaches `rho`; inf beyond the early phase."""
        theta = self.reading(jnp.asarray(rho) * self.modes.d[0] / self.modes.s[0])
        there = jnp.isfinite(theta)
        return jnp.where(there, self.time(jnp.where(there, theta, 0.0)), jnp.inf)


def slowed_clock(early: EarlyPhase, modes: Modes) -> SlowedClock:
    """The clock of a network's early phase.

    **Arguments:**

    - `early`: from `theory.early_phase`, far enough: where its `overlap` is one all is over.
    - `modes`: from `theory.modes(task, bias_strength)` with the network's c.

    **Raises:** `ValueError` for modes whose leading one has s = 0 or d = 0.
    """
    if not is_traced(modes) and not (float(modes.s[0]) > 0 and float(modes.d[0]) > 0):
        raise ValueError("`modes` has no leading mode: its s and d must be positive.")
    return SlowedClock(early, modes)
