"""Brackets of the crossings within one step, and stretches where they stay unknown."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flowlin.log.eventlog import Unresolved

SPARE = 1024  # crossings within one step, besides one per component


class Directions(eqx.Module):
    """Per component: whether rising, and whether falling, counts."""

    up: Bool[Array, " C"]
    down: Bool[Array, " C"]

    def of(self, number: ArrayLike) -> "Directions":
        """Of components of these numbers."""
        return Directions(self.up[number], self.down[number])

    def counts(self, rising: ArrayLike) -> Array:
        """Whether crossings in these directions count."""
        return jnp.where(rising, self.up, self.down)


class Brackets(eqx.Module):
    """Crossings found so far within a step, each between two times.

    - `spans`: (R, 3), the times, and an uncertainty that is known beforehand (0: it is not).
    - `marks`: (R, 2), the component, and 1 where it rises.
    """

    spans: Float[Array, "R 3"]
    marks: Int[Array, "R 2"]
    count: Int[Array, ""]
    doubts: Unresolved

    @staticmethod
    def empty(components: int, doubts: Unresolved) -> "Brackets":
        """No crossings yet."""
        room = components + SPARE
        spans, marks = jnp.zeros((room, 3), doubts.start.dtype), jnp.zeros((room, 2), jnp.int32)
        return Brackets(spans, marks, jnp.zeros((), jnp.int32), doubts)

    @property
    def room(self) -> int:
        """How many there is room for."""
        return self.spans.shape[0]

    def put(
        self,
        wanted: Array,
        low: ArrayLike,
        high: ArrayLike,
        component: ArrayLike,
        rising: ArrayLike,
        spread: ArrayLike = 0.0,
    ) -> "Brackets":
        """Those that are `wanted`; arrays of one shape, or what broadcasts to it."""
        flat = wanted.ravel()
        at = jnp.where(flat, self.count + jnp.cumsum(flat, dtype=jnp.int32) - 1, self.room)

        def into(table: Array, *columns: Any) -> Array:
            rows = [
                jnp.broadcast_to(jnp.asarray(c).astype(table.dtype), wanted.shape).ravel()
                for c in columns
            ]
            return table.at[at].set(jnp.stack(rows, axis=1), mode="drop")

        return Brackets(
            into(self.spans, low, high, spread),
            into(self.marks, component, rising),
            self.count + jnp.sum(flat, dtype=jnp.int32),
            self.doubts,
        )

    def doubted(self, wanted: Array, low: Array, high: Array, component: ArrayLike) -> "Brackets":
        """With stretches of time in which the crossings of components are not known."""
        doubts = lax.cond(
            jnp.any(wanted),
            lambda: self.doubts.put(wanted, low, high, component),
            lambda: self.doubts,
        )
        return Brackets(self.spans, self.marks, self.count, doubts)

    def closed(self, start: ArrayLike, end: ArrayLike) -> Unresolved:
        """The doubts, with the whole step among them if there was no room for its crossings."""
        full = jnp.asarray(self.count > self.room)[None]
        return self.doubts.put(full, start, end, self.marks[-1, 0])
