"""All watched values of a network, laid end to end."""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from flowlin._tools.types import Parameters
from flowlin.events.watched import AbstractWatched, Watch
from flowlin.log.buffer import Buffer
from flowlin.network.model import AbstractModel

Found = TypeVar("Found")


class Observer(eqx.Module):
    """All watched values of a state, laid end to end: shape (C,)."""

    watches: tuple[Watch, ...]
    network: AbstractModel

    def __call__(self, parameters: Parameters) -> Float[Array, " C"]:
        """The values at these parameters."""
        return self.of(range(len(self.watches)), parameters)

    def of(self, which: range | list[int], parameters: Parameters) -> Float[Array, " c"]:
        """The values of some of the watches."""
        network = self.network.with_parameters(parameters)
        values = [jnp.ravel(self.watches[i].function(network)) for i in which]
        return jnp.concatenate([jnp.zeros(0, network.dtype), *values]).astype(network.dtype)

    @property
    def starts(self) -> list[int]:
        """Where each watch's components begin; one entry more than watches."""
        return np.cumsum([0] + [watch.channel.size for watch in self.watches]).tolist()

    def numbers(self, which: list[int]) -> np.ndarray:
        """The components of some of the watches."""
        starts = self.starts
        return np.concatenate([np.arange(0), *(np.arange(starts[i], starts[i + 1]) for i in which)])

    def switch(self, k: Array, found: Callable[[AbstractWatched, Array], Found]) -> Found:
        """`found` of the watched function that value k belongs to, and of its component."""
        starts = self.starts
        which = jnp.searchsorted(jnp.asarray(starts[1:], jnp.result_type(k)), k, side="right")
        branches = [
            lambda local, watch=watch, start=start: found(watch.function, local - start)
            for watch, start in zip(self.watches, starts[:-1], strict=True)
        ]
        return lax.switch(which, branches, k)

    def each(self, value: Callable[[Watch], bool]) -> Bool[np.ndarray, " C"]:
        """A property of the watches, per component."""
        each = [np.full(w.channel.size, value(w)) for w in self.watches]
        return np.concatenate([np.zeros(0, bool), *each])

    @property
    def directions(self) -> tuple[Array, Array]:
        """Per component: whether rising, and whether falling, counts."""
        up = self.each(lambda watch: watch.direction != "down")
        return jnp.asarray(up), jnp.asarray(self.each(lambda watch: watch.direction != "up"))

    @property
    def terminating(self) -> Bool[Array, " C"]:
        """Per component: whether its event ends the run."""
        return jnp.asarray(self.each(lambda watch: watch.terminate))

    def started(self, found: Buffer, values: Float[Array, " C"]) -> tuple[Buffer, Array]:
        """With an event at t = 0 for all that is watched from there and met; whether it ends then.

        As a time: zero, or inf.
        """
        from_start = np.asarray(self.each(lambda watch: watch.from_start), bool)
        met = from_start & (values <= 0)
        above = jnp.ones(met.shape, jnp.int8)
        found = found.append(0.0, 0.0, jnp.arange(met.size), above, jnp.where(met, -above, above))
        ends = jnp.any(met & self.terminating)
        return found, jnp.where(ends, 0.0, jnp.inf).astype(found.time.dtype)
