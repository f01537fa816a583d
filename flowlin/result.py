"""How a run ended."""

import warnings

import diffrax
from jaxtyping import Array

with warnings.catch_warnings():
    # Equinox warns where an inherited outcome is put into other words.
    warnings.simplefilter("ignore")

    class RESULTS(diffrax.RESULTS):  # pyright: ignore
        """How a run ended: diffrax's results and flowlin's own."""

        __module__ = "flowlin"  # prints as fl.RESULTS is known

        successful = "ended at its final time"
        event_occurred = "ended at an event"
        dt_min_reached = (
            "The step size shrank to nothing: the loss is not finite there, or its gradient "
            "jumps; a ReLU flow that slides on its kinks needs `kinks=fl.SmoothKinks(...)`."
        )
        nonlinear_divergence = (
            "The implicit solver's equations were not solved; loosen `rtol`, or use "
            "`solver=fl.RKC()`, which is explicit."
        )
        event_overflow = (
            "More events than `max_events` happened. Those that fit are in the log, in order of "
            "discovery; increase `max_events`, watch fewer components, or end the run earlier."
        )
        slide_overflow = (
            "More pairs slide at once than `ExactKinks` has slots for; increase "
            "`ExactKinks(slots=...)`."
        )
        modes_unsolved = (
            "No modes of the gates were found that satisfy Filippov's rule at an event; use "
            "`kinks=fl.SmoothKinks(...)`."
        )
        slides_in_two_layers = (
            "A sample slides on the kinks of two layers at once, where the exact flow is not "
            "known to be unique; use `kinks=fl.SmoothKinks(...)`."
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
