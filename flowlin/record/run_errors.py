"""The global errors of a run, as a second run at another tolerance shows them."""

from collections.abc import Callable

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowlin._tools.files import saveable
from flowlin._tools.printing import Summary, concrete_array, format_number, print_by


def run_errors_summary(found: "RunErrors") -> Summary:
    """Summarise the largest errors, and the run that shows them."""
    rows = [("losses", _largest(found.losses))]
    if found.parameters is not None:
        rows.insert(0, ("parameters", f"{_largest(found.parameters)} of their norm"))
    rows += [(name, _largest(error)) for name, error in found.observed.items()]
    return Summary(f"RunErrors: largest, by a run at rtol = {format_number(found.rtol)}", rows)


def _largest(error: PyTree) -> str:
    """Format the largest of some errors."""
    values = concrete_array(error, np.ndim(error))
    if values is None or not np.size(values):
        return format_number(error)
    return f"{np.max(values):.1e}"


@print_by(run_errors_summary)
@saveable()
class RunErrors(eqx.Module):
    """Estimates of a run's global errors at its saved times, by `Trajectory.confirm`.

    - `parameters`: (T,), norm of the error of all weights and biases over the norm of these; None
      where observables were saved in place of networks.
    - `losses`: (T,), of the losses.
    - `observed`: by name, (T, ...), of the observables that are arrays.
    - `rtol`: of the run that was compared with.
    """

    parameters: Float[Array, " T"] | None
    losses: Float[Array, " T"]
    observed: dict[str, PyTree]
    rtol: Float[Array, ""]

    def with_rows(self, select: Callable[[Array], Array]) -> "RunErrors":
        """Apply a function to everything that is of the saved times."""
        parameters = None if self.parameters is None else select(self.parameters)
        observed = {name: select(error) for name, error in self.observed.items()}
        return RunErrors(parameters, select(self.losses), observed, self.rtol)
