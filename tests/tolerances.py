"""How closely things must agree, by what it is that keeps them apart."""

import numpy as np

EPS = float(np.finfo(np.float64).eps)
RTOL = 1e-8  # of a flow in float64 with default arguments
ROUNDING = 1e-12  # the same number by another order of operations: some thousand eps
SAME_PROGRAM = 1e-13  # the same operations, fused otherwise by the compiler


def of_flow(rtol: float = RTOL, steps: float = 100.0) -> float:
    """The global error of a flow whose steps have a relative error of `rtol` each.

    Local errors add up over the steps; `steps` is how many of them count, which is fewer than are
    made where the flow contracts.
    """
    return steps * rtol


def of_time(rtol: float = RTOL) -> float:
    """The relative error of an event's time in such a flow."""
    return of_flow(rtol)


def of_slope(step: float, error: float = ROUNDING) -> float:
    """The error of a central difference over `step` of numbers of size one known to `error`."""
    return step**2 + error / step
