"""Logs that grow during a run: what crossed its level, and the gates' changes."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from flowlin.log.eventlog import Channel, EventLog


class Log(eqx.Module):
    """Events found so far; slots beyond `count` hold time = inf."""

    time: Float[Array, " K"]
    uncertainty: Float[Array, " K"]
    component: Int[Array, " K"]
    rising: Bool[Array, " K"]
    count: Int[Array, ""]
    end: Float[Array, ""]  # time of the first terminating event, else inf

    @staticmethod
    def empty(capacity: int, dtype: DTypeLike) -> "Log":
        """A log with room for `capacity` events."""
        return Log(
            time=jnp.full(capacity, jnp.inf, dtype),
            uncertainty=jnp.zeros(capacity, dtype),
            component=jnp.zeros(capacity, jnp.int32),
            rising=jnp.zeros(capacity, bool),
            count=jnp.zeros((), jnp.int32),
            end=jnp.asarray(jnp.inf, dtype),
        )

    def grown(self, capacity: int) -> "Log":
        """The same log with more room; after an overflow what did not fit is missing."""
        more = Log.empty(capacity - self.time.shape[0], self.time.dtype)
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]) if a.ndim else a, self, more)

    def append(self, time, uncertainty, component, rising, stops) -> "Log":
        """One event more; beyond the capacity it is counted and dropped."""
        k = self.count
        return Log(
            time=self.time.at[k].set(time, mode="drop"),
            uncertainty=self.uncertainty.at[k].set(uncertainty, mode="drop"),
            component=self.component.at[k].set(component.astype(jnp.int32), mode="drop"),
            rising=self.rising.at[k].set(rising, mode="drop"),
            count=k + 1,
            end=jnp.where(stops, jnp.minimum(self.end, time), self.end),
        )


class GateLog(eqx.Module):
    """Changes found so far; slots beyond `count` hold time = inf."""

    time: Float[Array, " K"]
    uncertainty: Float[Array, " K"]
    component: Int[Array, " K"]
    old: Int[Array, " K"]
    new: Int[Array, " K"]
    count: Int[Array, ""]
    initial: Int[Array, "H P"]

    @staticmethod
    def empty(initial: Int[Array, "H P"], capacity: int, dtype: DTypeLike) -> "GateLog":
        """A log with room for `capacity` changes."""
        return GateLog(
            time=jnp.full(capacity, jnp.inf, dtype),
            uncertainty=jnp.zeros(capacity, dtype),
            component=jnp.zeros(capacity, jnp.int32),
            old=jnp.zeros(capacity, jnp.int8),
            new=jnp.zeros(capacity, jnp.int8),
            count=jnp.zeros((), jnp.int32),
            initial=initial.astype(jnp.int8),
        )

    def grown(self, capacity: int) -> "GateLog":
        """The same log with more room; after an overflow what did not fit is missing."""
        more = GateLog.empty(self.initial, capacity - self.time.shape[0], self.time.dtype)
        # Columns alone have one axis.
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]) if a.ndim == 1 else a, self, more)

    def append(self, time, uncertainty, first, old, new) -> "GateLog":
        """Changes of sides from component `first` on; beyond the capacity counted and dropped."""
        changed = old != new
        rank = self.count + jnp.cumsum(changed) - 1
        at = jnp.where(changed, rank, self.time.shape[0])
        component = first + jnp.arange(old.shape[0])
        return GateLog(
            time=self.time.at[at].set(time, mode="drop"),
            uncertainty=self.uncertainty.at[at].set(uncertainty, mode="drop"),
            component=self.component.at[at].set(component.astype(jnp.int32), mode="drop"),
            old=self.old.at[at].set(old, mode="drop"),
            new=self.new.at[at].set(new, mode="drop"),
            count=self.count + jnp.sum(changed, dtype=jnp.int32),
            initial=self.initial,
        )

    def events(self, end: Array, hidden: tuple[int, ...]) -> EventLog:
        """The log in channels "gate", one per layer, without what happened after `end`."""
        time = jnp.where(self.time <= end, self.time, jnp.inf)
        late = jnp.sum(jnp.isfinite(self.time)) - jnp.sum(jnp.isfinite(time))
        return EventLog(
            time=time,
            uncertainty=self.uncertainty,
            component=self.component.astype(int),
            old=self.old.astype(int),
            new=self.new.astype(int),
            count=self.count - late,
            initial=self.initial.astype(int).ravel(),
            channels=tuple(
                Channel("gate", (width, self.initial.shape[1]), (layer,))
                for layer, width in enumerate(hidden)
            ),
        )
