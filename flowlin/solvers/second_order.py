"""What the library's own second-order solvers have in common."""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import diffrax

State = TypeVar("State")


class SecondOrder(diffrax.AbstractAdaptiveSolver[State]):
    """Order 2, a local error estimate of order 3, cubic Hermite dense output."""

    term_structure: ClassVar = diffrax.ODETerm
    interpolation_cls: ClassVar[Callable[..., Any]] = (
        diffrax.ThirdOrderHermitePolynomialInterpolation
    )

    def order(self, terms):
        """Global order."""
        del terms
        return 2

    def error_order(self, terms):
        """Order of the local error estimate."""
        del terms
        return 3

    def func(self, terms, t0, y0, args):
        """The vector field."""
        return terms.vf(t0, y0, args)
