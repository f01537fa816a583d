"""A buffer that a run fills: changes of whatever is watched, in order of discovery."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Float, Int


class EventBuffer(eqx.Module):
    """Changes from a side `old` to a side `new`; slots beyond `count` hold time = inf.

    `shift` is for walks, see `EventLog`.
    """

    time: Float[Array, " K"]
    uncertainty: Float[Array, " K"]
    component: Int[Array, " K"]
    old: Int[Array, " K"]
    new: Int[Array, " K"]
    count: Int[Array, ""]
    shift: Float[Array, " K"] | None = None

    @staticmethod
    def empty(capacity: int, dtype: DTypeLike, with_shift: bool = False) -> "EventBuffer":
        """Make a buffer with room for `capacity` changes."""
        return EventBuffer(
            time=jnp.full(capacity, jnp.inf, dtype),
            uncertainty=jnp.zeros(capacity, dtype),
            component=jnp.zeros(capacity, jnp.int32),
            old=jnp.zeros(capacity, jnp.int8),
            new=jnp.zeros(capacity, jnp.int8),
            count=jnp.zeros((), jnp.int32),
            shift=jnp.zeros(capacity, dtype) if with_shift else None,
        )

    @property
    def has_overflowed(self) -> Bool[Array, ""]:
        """Tell whether more has happened than there is room for."""
        return self.count > self.time.shape[0]

    def with_capacity(self, capacity: int) -> "EventBuffer":
        """Return the buffer with more room; after an overflow what did not fit is missing."""
        room, dtype = capacity - self.time.shape[0], self.time.dtype
        more = EventBuffer.empty(room, dtype, self.shift is not None)
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]) if a.ndim else a, self, more)

    def append(
        self,
        time: ArrayLike,
        uncertainty: ArrayLike,
        component: Int[Array, " m"],
        old: Int[Array, " m"],
        new: Int[Array, " m"],
        shift: ArrayLike = 0.0,
    ) -> "EventBuffer":
        """Append those of m components that change; beyond the capacity they are only counted.

        Times, uncertainties and shifts are one for all, or one each.
        """
        changed = old != new
        rank = self.count + jnp.cumsum(changed, dtype=self.count.dtype) - 1
        at = jnp.where(changed, rank, self.time.shape[0])

        def put_column(column: Array, values: ArrayLike) -> Array:
            values = jnp.asarray(values).astype(column.dtype)
            return column.at[at].set(values, mode="drop", wrap_negative_indices=False)

        return EventBuffer(
            time=put_column(self.time, time),
            uncertainty=put_column(self.uncertainty, uncertainty),
            component=put_column(self.component, component),
            old=put_column(self.old, old),
            new=put_column(self.new, new),
            count=self.count + jnp.sum(changed, dtype=jnp.int32),
            shift=None if self.shift is None else put_column(self.shift, shift),
        )

    def times_until(self, end: Array) -> tuple[Float[Array, " K"], Int[Array, ""]]:
        """Return times and count without what happened after `end`."""
        time = jnp.where(self.time <= end, self.time, jnp.inf)
        late = jnp.sum(jnp.isfinite(self.time)) - jnp.sum(jnp.isfinite(time))
        return time, self.count.astype(int) - late
