"""The arguments of the stiff solvers, checked here since `solvers/` imports nothing of the library.

Whoever takes that folder alone does without these checks.
"""

import lineax as lx

from flowlin._tools.arguments import (
    checked,
    choice_of,
    instance_of,
    integer_from,
    positive_at_run_time,
)
from flowlin.engine.solvers import bdf_formulas, recycled_bdf, rkc

RKC = checked(
    max_stages=integer_from(2, "", rkc.MOST_STAGES), loop=choice_of("checkpointed", "lax")
)(rkc.RKC)  # fmt: skip
RecycledBDF = checked(
    max_order=integer_from(1, "", bdf_formulas.MOST),
    eigenvalues=integer_from(0, "", recycled_bdf.VECTORS),
    rtol=positive_at_run_time,
    atol=positive_at_run_time,
    linear_solver=instance_of(
        lx.AbstractLinearSolver, "a linear solver of lineax", "as lineax.LU()"
    ),
)(recycled_bdf.RecycledBDF)
