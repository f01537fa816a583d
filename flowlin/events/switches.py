"""Events: gates switch, units become linear and cease to be."""

import math
from collections.abc import Iterator

import equinox as eqx

from flowlin._tools.arguments import checked
from flowlin.events.event import AbstractEvent, AbstractKinkTraits
from flowlin.events.watch import OrderStatistic, Preactivations, Watch
from flowlin.networks.base import AbstractModel, UnitPlace
from flowlin.networks.layer_places import layer_places
from flowlin.networks.modules import has_known_kinks, unit_places
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.record.channel import Channel
from flowlin.record.linearization import unit_channel


def _kink_levels(kinks: AbstractKinkTraits) -> list[tuple[int, int, int]]:
    """Return (end of the width, side below, side above): one level at a bare kink, else two."""
    return [(0, -1, 1)] if kinks.width is None else [(-1, -1, 0), (1, 0, 1)]


def _units_and_places(network: AbstractModel) -> Iterator[tuple[int, UnitPlace]]:
    """Return the number of units of each hidden layer, and where they are."""
    return zip(network.hidden, unit_places(network), strict=True)


class GateSwitches(AbstractEvent):
    """Every gate's every change; index (layer, unit, sample), sides -1 off, 0 at kink, +1 on.

    Runs of ReLU networks record these by themselves where there are few enough pairs.
    """

    def watches(self, problem, objective, kinks) -> list[Watch]:
        """Return one watch per layer and level of the preactivations."""
        del objective
        network, task = problem.network, problem.task
        return [
            Watch(
                Preactivations(task, kinks.width, end, layer),
                Channel("gate", (units, task.samples), (layer,), units_at=place),
                below,
                above,
                touches=False,
            )
            for layer, (units, place) in enumerate(_units_and_places(network))
            for end, below, above in _kink_levels(kinks)
        ]


@checked
class UnitSwitches(AbstractEvent):
    """Units becoming and ceasing to be linear, for tasks too large to log every gate.

    A unit is always on with quantile q when it is on for at least a share 1 - q of the samples:
    when its (floor(qP) + 1)-th smallest preactivation is positive. Always off likewise, with the
    largest. These order statistics are watched, H components instead of P x H. Events are named
    `"always_on"` and `"always_off"` with index (layer, unit); `flow.linearization(quantile)`
    reads them.

    **Arguments:**

    - `quantile`: q in [0, 0.5); 0 is the lead paper's definition.
    - `window`: for full-batch descents: count units over windows of so many steps, in which pairs
      that flicker are taken to slide, for `flow.linearization(quantile, window=window)`; see
      there. The window shall be long against 1/g for the shares g of interest, and short as a
      time: with 3 / sqrt(learning_rate) steps both errors vanish with the rate.

    **Raises:** `ValueError` for another quantile or window; `gradient_flow` and
    `stochastic_gradient_descent` raise it for any window.
    """

    quantile: float = eqx.field(static=True, default=0.0)
    window: int | None = eqx.field(static=True, default=None)

    def watches(self, problem, objective, kinks) -> list[Watch]:
        """Return one watch per layer, level and end of the order; none where all gates are logged.

        **Raises:** `ValueError` for a model whose hidden units are not known.
        """
        del objective
        network, task = problem.network, problem.task
        if self.window is not None:
            raise ValueError(
                f"`events` holds UnitSwitches(window={self.window}), which is for full-batch "
                "descents: a flow's log knows what slides, and mini-batches are not looked at "
                "after every step; leave `window` out."
            )
        about, why = network.facts.kinks, network.facts.kinks_because
        if kinks.walks and has_known_kinks(network) and layer_places(network):
            return []
        if not isinstance(network, AbstractNetwork):
            why = why if about == "unknown" else f"a {network.facts.kind} has no gates of their own"
            raise ValueError(
                f"`events` holds {type(self).__name__}, which watches hidden units, and {why}; "
                "watch a function of it by fl.Crossing."
            )
        k = math.floor(self.quantile * task.samples)
        return [
            Watch(
                OrderStatistic(Preactivations(task, kinks.width, end, layer), k, largest),
                Channel(name, (units,), (layer,), units_at=place),
                below,
                above,
                touches=False,
            )
            for layer, (units, place) in enumerate(_units_and_places(network))
            for name, largest in (
                (unit_channel("always_on", self.quantile), False),
                (unit_channel("always_off", self.quantile), True),
            )
            for end, below, above in _kink_levels(kinks)
        ]
