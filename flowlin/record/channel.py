"""One array of watched components in a log of events."""

import math

import equinox as eqx

from flowlin._tools.files import saveable
from flowlin.networks.base import UnitPlace

# How surely all crossings are in the log: a bound shows that a part of a step has none or one, for
# polynomials in time and monotone functions, and every step of a descent is looked at; else a step
# is sampled at five points, and at five of each half of it where these leave a doubt, and so on; a
# function of integers has no slope to go by.
CERTIFIED, SAMPLED, BISECTED = "certified", "sampled", "bisected"


@saveable(promise=SAMPLED, units_at=None)
class Channel(eqx.Module):
    """Name and shape of one array whose components have a side: below, at, or above their level.

    `prefix` goes in front of a component's index: the layer, for gates. `promise` says how surely
    all its crossings are found; see `EventLog.promise`. `units_at`: where in the model the units
    are that its first axis counts; None where it counts none.
    """

    name: str = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    prefix: tuple[int, ...] = eqx.field(static=True, default=())
    promise: str = eqx.field(static=True, default=SAMPLED)
    units_at: UnitPlace | None = eqx.field(static=True, default=None)

    @property
    def size(self) -> int:
        """Return the number of components."""
        return math.prod(self.shape)
