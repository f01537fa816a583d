"""A network's function in the coordinates of a task's modes; strengths are `Modes.strengths`."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowlin._tools.arguments import checked
from flowlin._tools.arrays import sample_mean
from flowlin._tools.files import saveable
from flowlin.measures.modes import Modes
from flowlin.networks.modules import any_module, as_model
from flowlin.record.measured import require_targets
from flowlin.tasks.task import Task


@checked(network=any_module)
def mode_matrix(
    network: eqx.Module, task: Task, modes: Modes, *, check: bool = True
) -> Float[Array, "K K"]:
    r"""Return the network's function between the modes, the matrix A (K, K).

    $A_{\alpha\beta} = u_\alpha^T (\hat Y^T X / P) v_\beta / d_\beta$, with $\hat Y$ the outputs.

    For a linear network on modes that decouple it is $U^T W V$ with the end-to-end matrix W. Its
    diagonal are the strengths, which the closed forms speak of; what is off it they drop. Among
    equal modes it depends on their basis, but for its trace: their mean is `modes.strengths`. Zero
    in columns with d = 0.

    **Arguments:** `network`, of flowlin or any Equinox module of one sample; `task` and its `modes`
    (bind them with `functools.partial`);
    `check=False` where modes of another c or other data are meant.

    **Returns:** (K, K), row alpha and column beta in the order of `modes`.

    **Raises:** `ValueError` for such modes otherwise.
    """
    own = as_model("network", network)
    observable = modes.observable(own, require_targets(own, task), check=check)
    return modes.u.T @ observable.output_correlation(own, task)


@saveable()
class ModeShares(NamedTuple):
    """Shares of the outputs' sum of squares; they add up to one where modes decouple."""

    diagonal: Array
    off_diagonal: Array
    outside: Array


@checked(network=any_module)
def mode_shares(network: eqx.Module, task: Task, modes: Modes, *, check: bool = True) -> ModeShares:
    r"""Measure how much of the network's function on the task lies in the modes.

    With A of `mode_matrix`, $\hat Y$ (P, N_out) and $S = \|\hat Y\|_F^2 / P$:

    - `diagonal`: $\sum_\alpha A_{\alpha\alpha}^2 d_\alpha / S$, the modes by themselves, a group of
      equal modes as a block;
    - `off_diagonal`: $\sum_{\alpha \ne \beta} A_{\alpha\beta}^2 d_\beta / S$, one mode's input in
      another's output;
    - `outside`: $\|\hat Y - X V A^T U^T\|_F^2 / P S$, other outputs and inputs, and what is not
      linear.

    They add up to one if the v are eigenvectors of Sigma_x (`modes.commutator` zero). A
    network of output zero has none: nan.

    **Arguments:** `network`, of flowlin or any Equinox module of one sample; `task` and its `modes`
    (bind them with `functools.partial`);
    `check=False` where modes of another c or other data are meant.

    **Returns:** `ModeShares`, a named tuple (diagonal, off_diagonal, outside) of numbers.

    **Raises:** `ValueError` for such modes otherwise.
    """
    own = as_model("network", network)
    matrix = mode_matrix(own, task, modes, check=check)
    outputs = own.outputs(task.x)
    squares, total = (
        matrix**2 * modes.d[None],
        sample_mean(jnp.sum(outputs**2, axis=1), task.weights),
    )
    within = np.eye(len(squares), dtype=bool)
    for group in modes.equal:
        within[np.ix_(group, group)] = True
    diagonal = jnp.sum(jnp.where(within, squares, 0.0))
    rest = outputs - modes.augmented(task.x) @ modes.v @ matrix.T @ modes.u.T
    outside = sample_mean(jnp.sum(rest**2, axis=1), task.weights)
    off = jnp.sum(jnp.where(within, 0.0, squares))
    return ModeShares(diagonal / total, off / total, outside / total)
