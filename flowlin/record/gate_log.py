"""The log of the gates' changes along a walk, and of its branches."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Int

from flowlin.networks.base import UnitPlace
from flowlin.record.buffer import EventBuffer
from flowlin.record.channel import Channel
from flowlin.record.event_log import EventLog, Unresolved


def gate_log(
    found: EventBuffer, initial: Int[Array, "H P"], places: Mapping[int, UnitPlace], end: Array
) -> EventLog:
    """Make the log of gates' changes until `end`, in channels "gate", one per place of a layer.

    Channels "branch", one per layer, hold where the flow may not have been unique.
    """
    time, count = found.times_until(end)
    gates, branches = (
        [
            Channel(name, (place.units, initial.shape[1]), (layer,), units_at=place)
            for layer, place in places.items()
        ]
        for name in ("gate", "branch")
    )
    sides = initial.astype(int).ravel()
    never = jnp.zeros(sum(channel.size for channel in branches), sides.dtype)
    return EventLog(
        time=time,
        uncertainty=found.uncertainty,
        component=found.component.astype(int),
        old=found.old.astype(int),
        new=found.new.astype(int),
        count=count,
        initial=jnp.concatenate([sides, never]),
        channels=(*gates, *branches),
        unresolved=Unresolved.empty(time.dtype),
        shift=found.shift,
    )
