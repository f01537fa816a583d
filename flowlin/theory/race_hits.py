"""The event that a pathway of a race reaches a level."""

import abc

import equinox as eqx
import jax.numpy as jnp
from equinox import AbstractVar
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import checked, finite_array
from flowlin._tools.printing import Summary, format_count, print_by
from flowlin.events.event import AbstractEvent, event_summary
from flowlin.events.watch import Direction, LevelDifference, Watch
from flowlin.networks.base import AbstractModel
from flowlin.networks.graph import AbstractGraph, GatedGraph
from flowlin.record.channel import Channel


class AbstractRace(eqx.Module):
    """The part of a `Race` that the event needs; arrays are (n, K), by pathways and modes."""

    network: AbstractVar[GatedGraph]
    s: AbstractVar[Float[Array, "n K"]]

    @property
    @abc.abstractmethod
    def lone_strengths(self) -> Float[Array, "n K"]:
        """Strengths at which pathways would end alone; 0 where none drives."""

    @abc.abstractmethod
    def strengths(self, network: AbstractGraph) -> Float[Array, "n K"]:
        """Strengths of all pathways and modes."""


def race_hits_summary(found: "RaceHits") -> Summary:
    """Print the numbers of pathways and modes, and the options of the event."""
    pathways, modes = found.race.s.shape[-2:]
    return event_summary(
        found, f"{format_count(pathways, 'pathway')} for {format_count(modes, 'mode')}"
    )


class StrengthShares(eqx.Module):
    """Strengths of pathways over those at which they would end alone, (n, K)."""

    race: AbstractRace

    def __call__(self, network: AbstractModel) -> Array:
        assert isinstance(network, AbstractGraph)
        alone = self.race.lone_strengths
        driven = alone != 0
        return jnp.where(driven, self.race.strengths(network) / jnp.where(driven, alone, 1.0), 0.0)


@checked(rho=finite_array)
@print_by(race_hits_summary)
class RaceHits(AbstractEvent):
    """Hitting times of a race: strengths of pathways reaching a share of what each has alone.

    `race.hits(rho)` is `RaceHits(race, rho)`, and says what is counted.

    **Arguments:**

    - `race`: from `theory.race(network, task)`, of the run's network.
    - `rho`: a share, or an array (n, K) of them, by pathways and modes.
    - `direction`, `terminate`, `name`: as for `Crossing`.

    **Raises:** `ValueError` for a share that is not finite; in a run of another graph, or for a
    share of another shape.
    """

    race: AbstractRace
    rho: ArrayLike
    direction: Direction = eqx.field(static=True, default=None)
    terminate: bool = eqx.field(static=True, default=False)
    name: str = eqx.field(static=True, default="race")

    def watches(self, problem, objective, kinks) -> list[Watch]:
        """Return one watch: the shares minus their levels, (n, K)."""
        del objective, kinks
        network = problem.network
        edges = getattr(network, "edges", None)
        if edges != self.race.network.edges:
            raise ValueError(
                f"`events` holds hits of a race of {self.race.network!r}, and `network` is "
                f"{network!r}; make the race of this one."
            )
        shape = self.race.s.shape
        level = jnp.asarray(self.rho, network.dtype)
        if level.shape not in ((), shape):
            raise ValueError(
                f"`rho` must be a number or have shape {shape}, by pathways and modes, got "
                f"{level.shape}."
            )
        channel = Channel(self.name, shape)
        function = LevelDifference(StrengthShares(self.race), level)
        return [Watch(function, channel, direction=self.direction, terminate=self.terminate)]
