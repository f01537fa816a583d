"""The arguments of the stiff solvers, checked here since `solvers/` imports nothing of the library.

Whoever takes that folder alone does without these checks.
"""

import lineax as lx

from flowlin._tools.arguments import checked, instance, one_of, positive_at_run_time, whole
from flowlin.engine.solvers import bdf_formulas, recycled_bdf, rkc

RKC = checked(
    max_stages=whole(2, "", rkc.MOST_STAGES), loop=one_of("checkpointed", "lax")
)(rkc.RKC)  # fmt: skip
RecycledBDF = checked(
    max_order=whole(1, "", bdf_formulas.MOST),
    eigenvalues=whole(0, "", recycled_bdf.VECTORS),
    rtol=positive_at_run_time,
    atol=positive_at_run_time,
    linear_solver=instance(lx.AbstractLinearSolver, "a linear solver of lineax", "as lineax.LU()"),
)(recycled_bdf.RecycledBDF)
