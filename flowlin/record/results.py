"""The ways in which a run ends."""

import functools
import operator
import warnings

import diffrax
from jaxtyping import Array, PyTree

from flowlin._tools.files import register_results

with warnings.catch_warnings():
    # Equinox warns where a subclass words an inherited outcome anew, as is done here.
    warnings.simplefilter("ignore")

    class RESULTS(diffrax.RESULTS):  # pyright: ignore
        """The ways in which a run ends: diffrax's results and flowlin's own."""

        __module__ = "flowlin"  # printed as flowlin.RESULTS

        successful = "ended at its final time"
        event_occurred = "ended at an event"
        dt_min_reached = (
            "The step size shrank to nothing: the loss is not finite there, or its gradient jumps."
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
            "More pairs slide at once than `ExactKinks` has slots for, which do not grow under jit "
            "and vmap; increase `ExactKinks(slots=...)`."
        )
        sides_unsolved = (
            "No sides were found that satisfy Filippov's rule at an event; use "
            "`kinks=fl.SmoothKinks(...)`."
        )
        interrupted = (
            "The run was interrupted. What was computed until then is there, and `extend` goes on."
        )
        not_finite = (
            "The loss or the parameters became NaN or infinite. Descent: lower `learning_rate`. "
            "Flow: check the loss function."
        )


SUCCESSES = RESULTS.successful, RESULTS.event_occurred


def is_success(result: RESULTS) -> Array:
    """Tell whether a run ended as it should: at its final time or at a terminating event."""
    return functools.reduce(operator.or_, [result == one for one in SUCCESSES])


def result_is(result: PyTree, *outcomes: PyTree) -> bool:
    """Tell whether a known result is one of these; compiles no program for every `==`."""
    return int(result._value) in [int(one._value) for one in outcomes]


def result_name(result: RESULTS) -> str:
    """Return the name of a result, such as "successful"."""
    names, value = RESULTS._name_to_item, int(result._value)
    return next(name for name, item in names.items() if int(item._value) == value)


def result_from_name(name: object) -> RESULTS:
    """Return the result of a name.

    **Raises:** `ValueError` if there is none.
    """
    if not isinstance(name, str) or name not in RESULTS._name_to_item:
        raise ValueError(f"{name!r} is no result of a run")
    return RESULTS._name_to_item[name]  # pyright: ignore


register_results(type(RESULTS.successful), result_name, result_from_name)


class RunError(RuntimeError):
    """A run that did not reach its end.

    `trajectory` holds everything computed until then, as `throw=False` would return it.
    """

    def __init__(self, message: str, trajectory):
        super().__init__(message)
        self.trajectory = trajectory

    def __reduce__(self):
        return RunError, (str(self), self.trajectory)


def attach_trajectory(error: BaseException, trajectory: PyTree) -> None:
    """Attach what was computed before a run broke off to the error, as `.trajectory`.

    Without a trajectory an error stays as it is, but for an interrupt: there it is None.
    """
    if trajectory is not None:
        error.trajectory = trajectory  # pyright: ignore
        steps = int(trajectory.counts["num_steps"])
        error.add_note(
            f"What was computed until t = {float(trajectory.end):.6g}, in {steps} steps, is in the "
            "`.trajectory` of this error."
        )
    elif isinstance(error, KeyboardInterrupt):
        error.trajectory = None  # pyright: ignore
        error.add_note("The run had not come to its first pause: there is no trajectory yet.")
