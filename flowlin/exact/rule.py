"""What an exact walk needs to know of the modes."""

from typing import Any

import equinox as eqx
from equinox import AbstractVar

from flowlin.exact.gatelog import GateLog
from flowlin.exact.piece import Piece
from flowlin.forward import Parameters


class AbstractRule(eqx.Module):
    """Chooses the modes at the start and at every event of `flow`."""

    flow: AbstractVar[Any]  # `GatedFlow` or `DeepFlow`

    def start(self, parameters: Parameters) -> Any:
        """Modes at the start."""
        raise NotImplementedError

    def switch(self, piece: Piece, modes: Any, log: GateLog) -> tuple[Any, GateLog]:
        """Modes after the event at the end of a piece, and the log with what changed."""
        raise NotImplementedError
