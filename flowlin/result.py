"""How a run ended."""

import diffrax
from jaxtyping import Array


class RESULTS(diffrax.RESULTS):  # pyright: ignore
    """How a run ended: diffrax's results and flowlin's own."""

    successful = ""
    event_overflow = (
        "More events than `max_events` happened. Those that fit are in the log, in order of "
        "discovery; increase `max_events`, watch fewer components, or end the run earlier."
    )
    slide_overflow = (
        "More pairs of one unit slide at once than `ExactKinks` has slots for; increase "
        "`ExactKinks(slots=...)`."
    )
    not_finite = (
        "The loss or the parameters became NaN or infinite. Descent: lower `learning_rate`. "
        "Flow: check the loss function."
    )


def okay(result: RESULTS) -> Array:
    """Whether a run ended as it should: at its final time or at a terminating event."""
    return (result == RESULTS.successful) | (result == RESULTS.event_occurred)


class RunError(RuntimeError):
    """A run that did not reach its end.

    `trajectory` holds everything computed until then, as `throw=False` would return it.
    """

    def __init__(self, message: str, trajectory):
        super().__init__(message)
        self.trajectory = trajectory
