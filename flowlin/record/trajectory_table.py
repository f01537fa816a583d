"""What a run saved as columns of a table: times, losses, and every number of its observables."""

from typing import Any

import jax
import numpy as np

from flowlin._tools.arrays import is_traced


def trajectory_columns(flow: Any) -> dict[str, np.ndarray]:
    """Return columns by name, (T,) each: `t`, `loss`, and the components of what was observed.

    **Raises:** `ValueError` under `jit`, and for the runs of a batch.
    """
    if is_traced(flow):
        raise ValueError("`to_pandas` holds numbers; call it outside of `jit` and `vmap`.")
    if np.ndim(flow.ts) != 1:
        raise ValueError(
            "`to_pandas` is of one run, and these are stacked; take one out of its batch with "
            "`jax.tree.map`."
        )
    columns = {"t": np.asarray(flow.ts), "loss": np.asarray(flow.losses)}
    for name, observed in flow.observed.items():
        title = f"observed.{name}" if name in ("t", "loss") else name
        for path, leaf in jax.tree_util.tree_flatten_with_path(observed)[0]:
            columns |= _component_columns(title + jax.tree_util.keystr(path), np.asarray(leaf))
    return columns


def _component_columns(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return a column for each component of (T, ...), named as it is indexed: `a`, `a[0, 2]`."""
    shape = values.shape[1:]
    if not shape:
        return {name: values}
    return {
        f"{name}[{', '.join(map(str, index))}]": values[:, *index] for index in np.ndindex(shape)
    }
