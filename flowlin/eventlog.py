"""The log of everything that crossed its level during a run."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flowlin._arrays import is_traced


class Channel(eqx.Module):
    """Name, shape and meaning of one watched array.

    `below` and `above` are what the log calls the two sides of the level: -1 and +1, or with 0
    for "at the kink" where two levels enclose one.
    """

    name: str = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    prefix: tuple[int, ...] = eqx.field(static=True, default=())
    below: int = eqx.field(static=True, default=-1)
    above: int = eqx.field(static=True, default=1)

    @property
    def size(self) -> int:
        """Number of components."""
        return math.prod(self.shape)


class EventLog(eqx.Module):
    """Crossings, sorted by time.

    Outside `jit` and `vmap` the arrays hold exactly the `len(log)` events; inside they are padded
    with `time = inf`, and `count` says how many are real.

    - `time`: (K,), in units of flow time.
    - `uncertainty`: (K,), the width of the root's bracket plus what the step's error estimate
      shifts it by. It is local: errors carried along from earlier steps are not in it.
    - `component`: (K,), position in all watched arrays laid end to end; see `index`.
    - `rising`: (K,), whether the level was crossed upwards.
    - `initial`: which side every component was on at t = 0 (True is above).
    - `count`: number of events found, which exceeds K after an overflow.
    """

    time: Float[Array, " K"]
    uncertainty: Float[Array, " K"]
    component: Int[Array, " K"]
    rising: Bool[Array, " K"]
    count: Int[Array, ""]
    initial: Bool[Array, " C"]
    channels: tuple[Channel, ...] = eqx.field(static=True)

    def __len__(self) -> int:
        if is_traced(self.time):
            raise ValueError("`len(events)` is not known under jit or vmap; use `events.count`.")
        return int(np.sum(np.isfinite(np.asarray(self.time))))

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each channel starts among the components; one entry more than channels."""
        return (0, *np.cumsum([channel.size for channel in self.channels]).tolist())

    @property
    def channel(self) -> Int[Array, " K"]:
        """(K,), which channel each event belongs to."""
        starts = jnp.asarray(self.offsets[1:], dtype=self.component.dtype)
        found = jnp.searchsorted(starts, self.component, side="right")
        return jnp.minimum(found, len(self.channels) - 1)

    @property
    def name(self) -> list[str]:
        """What crossed, per event (outside `jit`)."""
        return [self.channels[k].name for k in np.asarray(self.channel)]

    @property
    def index(self) -> list[tuple[int, ...]]:
        """Which component crossed, per event; for gates (layer, unit, sample) (outside `jit`)."""
        rows = []
        for k, component in zip(
            np.asarray(self.channel), np.asarray(self.component), strict=True
        ):
            channel, local = self.channels[k], int(component) - self.offsets[k]
            inner = np.unravel_index(local, channel.shape) if channel.shape else ()
            rows.append((*channel.prefix, *(int(i) for i in inner)))
        return rows

    @property
    def old(self) -> Int[Array, " K"]:
        """(K,), the side before: -1 below (off), +1 above (on), 0 at the kink."""
        return self._side(~self.rising)

    @property
    def new(self) -> Int[Array, " K"]:
        """(K,), the side after: -1 below (off), +1 above (on), 0 at the kink."""
        return self._side(self.rising)

    def _side(self, upper: Array) -> Array:
        above = jnp.asarray([c.above for c in self.channels] or [1])
        below = jnp.asarray([c.below for c in self.channels] or [-1])
        return jnp.where(upper, above[self.channel], below[self.channel])

    def select(self, name: str) -> "EventLog":
        """The events of one name.

        **Raises:** `ValueError` if nothing of that name was watched.
        """
        known = sorted({channel.name for channel in self.channels})
        if name not in known:
            raise ValueError(f"no events named {name!r} were watched; the log has {known}.")
        wanted = jnp.asarray([channel.name == name for channel in self.channels])
        mask = wanted[self.channel] & jnp.isfinite(self.time)
        return self.where(mask)

    def where(self, mask: Bool[Array, " K"]) -> "EventLog":
        """The events under a mask; others are dropped, or padded with inf under `jit`."""
        time = jnp.where(mask, self.time, jnp.inf)
        order = jnp.argsort(time)
        rows = tuple(a[order] for a in (time, self.uncertainty, self.component, self.rising))
        log = EventLog(*rows, jnp.sum(mask), self.initial, self.channels)
        return log.trimmed()

    def trimmed(self) -> "EventLog":
        """Without the padding, where the number of events is known."""
        if is_traced(self.time):
            return self
        k = len(self)
        rows = (self.time[:k], self.uncertainty[:k], self.component[:k], self.rising[:k])
        return EventLog(*rows, self.count, self.initial, self.channels)

    def table(self) -> list[dict[str, Any]]:
        """One dictionary per event, for `pandas.DataFrame` or `csv.DictWriter`."""
        columns = (self.time, self.uncertainty, self.name, self.index, self.old, self.new)
        names = ("time", "uncertainty", "name", "index", "old", "new")
        plain = [c if isinstance(c, list) else np.asarray(c).tolist() for c in columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*plain, strict=True)]
