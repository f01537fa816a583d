"""What the library's own solvers carry from step to step and say of a run."""

import abc

import equinox as eqx
from jaxtyping import Array, Int

Report = tuple[dict[str, Array], dict[str, Array]]


class AbstractReporting(eqx.Module):
    """A state that knows more of a run than how many steps it took."""

    @abc.abstractmethod
    def report(self, ts: Array, tau: Array) -> Report:
        """Counts, and observables (T, ...) at the saved times, of a flow with this tau."""


class AbstractCounting(AbstractReporting):
    """One that counts, since steps differ in what they cost.

    - `evaluations`: of the vector field so far, by accepted steps.
    """

    evaluations: eqx.AbstractVar[Int[Array, ""]]
