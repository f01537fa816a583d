"""Why a trajectory cannot be carried on or confirmed, and what to do instead."""

from typing import Any

import numpy as np

from flowlin._tools.arrays import is_traced


def extension_error(flow: Any) -> ValueError:
    """Return the error for a trajectory without the state that `extend` goes on with."""
    if flow.reference.extended is None:
        kind = "gradient_descent" if flow.discrete else "gradient_flow"
        return ValueError(
            "this trajectory cannot be extended: it was loaded or unpickled, without the state of "
            f"its run. Go on by a run from its end, fl.{kind}(flow.final, ...), whose time begins "
            "at 0 again. A run with `checkpoint=file` keeps its state: the same call in another "
            "process returns a trajectory that can be extended."
        )
    return ValueError(
        "this trajectory cannot be extended: only runs without `dense=True` and outside of `jit` "
        "and `vmap` can. Rerun it with a later `t1`."
    )


def confirmation_error(flow: Any) -> ValueError:
    """Return the error for a trajectory whose run cannot be repeated at another tolerance."""
    cannot = "this trajectory cannot be confirmed: "
    if flow.discrete:
        return ValueError(
            f"{cannot}descent has no tolerance. `fl.compare` tells how far it is from the flow."
        )
    if is_traced(flow):
        return ValueError(
            f"{cannot}it is traced by `jit`, `vmap` or a derivative, and a second run is checked "
            "by its numbers. Return it from there, and make the run itself outside."
        )
    if np.ndim(flow.ts) != 1:
        return ValueError(
            f"{cannot}it is a stack of runs. Make each by its own fl.gradient_flow, or all by "
            "fl.sweep(..., batch=1), which has `confirm`."
        )
    if flow.reference.confirmed is None:
        return ValueError(
            f"{cannot}it was loaded or unpickled, without its run. Make the run again, and confirm "
            "it before it is saved."
        )
    return ValueError(
        f"{cannot}it was made under `jit` or `vmap`, where a run does not keep what it was made "
        "of. Make it outside of them; a sweep's runs with `batch=1`."
    )
