"""Brackets of the crossings within one step, and stretches where they stay unknown."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flowlin.eventlog import Unresolved

SPARE = 1024  # crossings within one step, besides one per component


class Directions(eqx.Module):
    """Per component: whether rising, and whether falling, counts."""

    up: Bool[Array, " C"]
    down: Bool[Array, " C"]

    def of(self, number: Any) -> "Directions":
        """Of components of these numbers."""
        return Directions(self.up[number], self.down[number])

    def counts(self, rising: Any) -> Array:
        """Whether crossings in these directions count."""
        return jnp.where(rising, self.up, self.down)


class Brackets(eqx.Module):
    """Crossings found so far within a step, each between two times.

    `spread` is an uncertainty that is known beforehand, 0 where it is not.
    """

    low: Float[Array, " R"]
    high: Float[Array, " R"]
    spread: Float[Array, " R"]
    component: Int[Array, " R"]
    rising: Bool[Array, " R"]
    count: Int[Array, ""]
    doubts: Unresolved

    @staticmethod
    def empty(components: int, doubts: Unresolved) -> "Brackets":
        """No crossings yet."""
        room, dtype = components + SPARE, doubts.start.dtype
        zeros = jnp.zeros(room, dtype)
        return Brackets(
            zeros,
            zeros,
            zeros,
            jnp.zeros(room, jnp.int32),
            jnp.zeros(room, bool),
            jnp.zeros((), jnp.int32),
            doubts,
        )

    def put(
        self, wanted: Array, low: Any, high: Any, component: Any, rising: Any, spread: Any = 0.0
    ) -> "Brackets":
        """Those that are `wanted`; arrays of one shape, or what broadcasts to it."""
        flat = wanted.ravel()
        at = jnp.where(flat, self.count + jnp.cumsum(flat) - 1, self.low.shape[0])

        def into(column: Array, values: Any) -> Array:
            values = jnp.broadcast_to(jnp.asarray(values).astype(column.dtype), wanted.shape)
            return column.at[at].set(values.ravel(), mode="drop")

        return Brackets(
            into(self.low, low),
            into(self.high, high),
            into(self.spread, spread),
            into(self.component, component),
            into(self.rising, rising),
            self.count + jnp.sum(flat, dtype=jnp.int32),
            self.doubts,
        )

    def doubted(self, wanted: Array, low: Array, high: Array, component: Any) -> "Brackets":
        """With stretches of time in which the crossings of components are not known."""
        doubts = self.doubts.put(wanted, low, high, component)
        return eqx.tree_at(lambda b: b.doubts, self, doubts)
