"""Event: mode strengths reach a level."""

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike

from flowlin._tools.arguments import checked, finite_array
from flowlin._tools.arrays import require_finite
from flowlin._tools.numerics import jit_by_array
from flowlin._tools.printing import Summary, format_count, format_number
from flowlin._tools.printing import print_by as printed
from flowlin.events.event import AbstractEvent, event_summary
from flowlin.events.watch import Direction, ModeStrengthDifference, Watch
from flowlin.measures.modes import Modes, ModeStrengths
from flowlin.record.channel import Channel


def mode_hits_summary(event: "ModeHits") -> Summary:
    """Summarise a `ModeHits`: its number of modes and its c, then its other arguments."""
    count, c = event.modes.s.shape[-1], format_number(event.modes.bias_strength)
    return event_summary(event, f"{format_count(count, 'mode')}, c = {c}")


@checked(rho=finite_array, share=finite_array)
@printed(mode_hits_summary)
class ModeHits(AbstractEvent):
    """Hitting times: mode strengths a_alpha reaching a level (lead paper Sec. 5.4).

    `flow.events.first("mode")` are the first times, (K,). Equal modes (`modes.groups`) have one,
    since their strength is the group's. `flow.events.promise` says how surely all are found. Of a
    network that is not linear, on 1,000 samples and more, a step is searched only where a strength
    comes nearer to its level than twice its change in this step, or at the speed of the step
    before; each sample of a strength there is a pass over all samples of the task.

    Hits of several levels in one run are told apart by their names:
    `[ModeHits(modes, share=q, name=f"{q:.0%}") for q in (0.1, 0.9)]`.

    **Arguments:**

    - `modes`: from `theory.modes(task, network)`; component k of the events is mode k.
    - `rho`: level, or one per mode (K,).
    - `direction`, `terminate`, `name`: as for `Crossing`.
    - `check`: False where modes of another c or other data than the run's are meant.
    - `share`: in place of `rho`, the share of each mode's full strength s/d, as in
      `ModeHits(modes, share=0.5)`; one, or one per mode (K,). Modes that the data do not drive have
      none, and no hits. Full strength itself is approached for ever: hits of it are rounding, and
      their `uncertainty` is inf.

    **Raises:** `ValueError` for both `rho` and `share` or neither, and for one of another shape or
    not finite; in a run for modes of another c or other data, unless `check=False`.
    """

    modes: Modes
    rho: ArrayLike | None = None
    direction: Direction = eqx.field(static=True, default=None)
    terminate: bool = eqx.field(static=True, default=False)
    name: str = eqx.field(static=True, default="mode")
    check: bool = eqx.field(static=True, default=True)
    share: ArrayLike | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        if (self.rho is None) == (self.share is None):
            given = "neither" if self.rho is None else "both"
            raise ValueError(f"`rho` or `share` must be given, one of them, got {given}.")

    def watches(self, problem, objective, kinks) -> list[Watch]:
        """Return one watch: the mode strengths minus their levels."""
        del objective, kinks
        network, task = problem.network, problem.task
        name = "rho" if self.share is None else "share"
        level = self._per_mode(name, network.dtype)
        strengths = self.modes.observable(network, task, check=self.check)
        if self.share is not None:
            level, strengths = _full_strength_levels(self.modes, level, strengths)
        channel = Channel(self.name, self.modes.s.shape)
        function = ModeStrengthDifference(strengths, task, level)
        return [Watch(function, channel, direction=self.direction, terminate=self.terminate)]

    def _per_mode(self, name: str, dtype: DTypeLike) -> Array:
        """Return the argument of this name, one number or one per mode (K,), as an array."""
        value, shape = jnp.asarray(getattr(self, name), dtype), self.modes.s.shape
        require_finite(name, value)
        if value.shape not in ((), (1,), shape):
            raise ValueError(
                f"`{name}` must be a number or have shape {shape}, one per mode, got {value.shape}."
            )
        return value


@jit_by_array
def _full_strength_levels(
    modes: Modes, share: Array, strengths: ModeStrengths
) -> tuple[Array, ModeStrengths]:
    """Return levels (K,) at a share of each mode's full strength, and the strengths to compare."""
    full = modes.full_strength.astype(share.dtype)
    # Modes without a strength to reach stay at zero, below the others' levels.
    level = jnp.where(full > 0, share * full, jnp.max(jnp.abs(share * full)))
    seen = jnp.where((full > 0)[None], strengths.u, 0.0)
    return level, eqx.tree_at(lambda s: s.u, strengths, seen)
