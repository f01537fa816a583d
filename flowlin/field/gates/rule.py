"""What an exact walk needs to know of the sides."""

import abc
from typing import Any

import equinox as eqx
from equinox import AbstractVar
from jaxtyping import Array, Bool, Float, PyTree

from flowlin._tools.types import Parameters
from flowlin.log.buffer import Buffer


class Piece(eqx.Module):
    """A piece from `start` to `end`; sides change at its end where `fired`."""

    start: Array
    end: Array
    y1: Parameters
    error: Parameters  # of the step that was tried, up to the time aimed at
    dense: PyTree
    inner: PyTree  # state of the inner solver
    fired: Bool[Array, "H P"]
    jump: Bool[Array, ""]  # whether the velocity at its end is not the inner solver's
    uncertainty: Float[Array, ""]


class AbstractRule(eqx.Module):
    """Chooses the sides at the start and at every event of `flow`."""

    flow: AbstractVar[Any]  # `GatedFlow` or `DeepFlow`

    @abc.abstractmethod
    def start(self, parameters: Parameters) -> Any:
        """Sides at the start."""

    @abc.abstractmethod
    def switch(self, piece: Piece, sides: Any, log: Buffer) -> tuple[Any, Buffer]:
        """Sides after the event at the end of a piece, and the log with what changed."""
