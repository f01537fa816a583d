"""What solvers that wrap another solver have in common."""

from typing import Any, TypeVar

from diffrax import AbstractWrappedSolver

State = TypeVar("State")


class Forwarding(AbstractWrappedSolver[State]):
    """Forwards what diffrax reads off a solver, but for its dense output.

    Subclasses define `init`, `step` and `interpolation_cls`.
    """

    @property
    def term_structure(self):  # pyright: ignore
        """Forwarded."""
        return self.solver.term_structure

    @property
    def term_compatible_contr_kwargs(self):  # pyright: ignore
        """Forwarded."""
        return self.solver.term_compatible_contr_kwargs

    # diffrax reads these three off anything that passes for a Runge-Kutta or implicit solver.

    @property
    def scan_kind(self) -> Any:
        """Forwarded."""
        return self.solver.scan_kind  # pyright: ignore

    @property
    def root_finder(self) -> Any:
        """Forwarded."""
        return self.solver.root_finder  # pyright: ignore

    @property
    def root_find_max_steps(self) -> Any:
        """Forwarded."""
        return self.solver.root_find_max_steps  # pyright: ignore

    def order(self, terms):
        """Forwarded."""
        return self.solver.order(terms)

    def strong_order(self, terms):
        """Forwarded."""
        return self.solver.strong_order(terms)

    def error_order(self, terms):
        """Forwarded."""
        return self.solver.error_order(terms)

    def func(self, terms, t0, y0, args):
        """Forwarded."""
        return self.solver.func(terms, t0, y0, args)


class Wrapped(Forwarding[State]):
    """Forwards the dense output as well."""

    @property
    def interpolation_cls(self):  # pyright: ignore
        """Forwarded."""
        return self.solver.interpolation_cls
