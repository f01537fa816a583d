"""Base class of events: functions of the network whose level crossings a run locates."""

import abc
import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from equinox import AbstractClassVar, AbstractVar
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike

from flowlin._tools.printing import Summary, format_number
from flowlin.events.watch import Direction, LevelDifference, Watch
from flowlin.networks.base import AbstractModel
from flowlin.record.channel import Channel
from flowlin.training.objective import AbstractObjective
from flowlin.training.problem import Problem


def event_summary(event: eqx.Module, about: str) -> Summary:
    """Summarise an event: what it is `of`, then its other arguments but those at their defaults."""
    rows = [("of", about)]
    for field in dataclasses.fields(event)[1:]:
        value = getattr(event, field.name)
        if value is not field.default:
            plain = value is None or isinstance(value, (bool, str))
            rows.append(
                (field.name, f"{field.name}={repr(value) if plain else format_number(value)}")
            )
    return Summary(type(event).__name__, rows, inline=True)


class AbstractKinkTraits(eqx.Module):
    """Base class of the policies for kinks, with what events have to know of one.

    - `width`: a pair counts as off for z < -width, on for z > width, and at its kink in between;
      None where kinks are as they are.
    - `walks`: whether steps end at switches, which the solver then logs itself.
    """

    width: AbstractVar[ArrayLike | None]
    walks: AbstractClassVar[bool]


class AbstractEvent(eqx.Module):
    """Base class of the events that users pass to a run."""

    @abc.abstractmethod
    def watches(
        self, problem: Problem, objective: AbstractObjective, kinks: AbstractKinkTraits
    ) -> list[Watch]:
        """Return what a run has to watch for this event."""


def level_watch(
    function: Callable[[AbstractModel], Array],
    shape: tuple[int, ...],
    level: ArrayLike,
    dtype: DTypeLike,
    *,
    name: str,
    direction: Direction,
    terminate: bool,
    monotone: bool = False,
    from_start: bool = False,
    quantity: str | None = None,
) -> Watch:
    """Return a watch of a function with values of this shape against a level; see `Watch`."""
    level = jnp.asarray(level, dtype)
    return Watch(
        LevelDifference(function, level, quantity),
        Channel(name, np.broadcast_shapes(shape, level.shape)),
        direction=direction,
        terminate=terminate,
        monotone=monotone,
        from_start=from_start,
    )
