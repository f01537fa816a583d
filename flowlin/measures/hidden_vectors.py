"""Hidden vectors of a task's modes in a network, and their alignment."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arguments import checked
from flowlin._tools.files import saveable
from flowlin._tools.numerics import safe_sqrt
from flowlin.measures.along import task_or_none
from flowlin.measures.mode_origin import require_origin
from flowlin.measures.modes import Modes, mean_over_equal
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.tasks.task import Task


@saveable()
class HiddenVectors(NamedTuple):
    """Hidden vectors (K, H) of the modes, as `theory.Mode.of_vectors` takes them."""

    p: Array
    q: Array


@checked(task=task_or_none)
def hidden_vectors(
    network: AbstractNetwork, task: Task | None, modes: Modes, *, check: bool = True
) -> HiddenVectors:
    r"""Return the hidden vectors $p = W_2^T u$ and $q = \tilde W_1 v$ of every mode, (K, H) each.

    The mode's strength in a linear network is p . q, its balanced part $\|p + q\|^2 / 4$.
    $\tilde W_1 = [b, W_1]$ where the modes have a bias coordinate. Gates (H,) of a gated network,
    such as `network.always_on(task)`, multiply q (erratum to Fig. 4 of the lead paper); gates that
    differ from sample to sample have no place here and are left out.

    **Arguments:** `network` with one hidden layer; `task`, which may be None and only serves to
    check that the modes are its own; `modes`; `check=False` where those of another c or of other
    data are meant.

    **Returns:** `HiddenVectors`, a named tuple (p, q), (K, H) each.

    **Raises:** `ValueError` for another number of hidden layers, and for such modes otherwise.
    """
    found = HiddenVectors(*modes.hidden_vectors(network, check=False))
    require_origin(modes, network, task, check)
    return found


@checked(task=task_or_none)
def alignment(
    network: AbstractNetwork, task: Task | None, modes: Modes, *, check: bool = True
) -> Float[Array, " K"]:
    r"""Return the cosine $p \cdot q / \|p\| \|q\|$ of the two hidden vectors of every mode, (K,).

    Near 0 at a random start, 1 once the mode has grown from small weights: p + q grows while p - q
    decays. Equal modes have that of their group, with sums over it in place of each product. nan
    for a zero vector.

    **Arguments:** as for `hidden_vectors`.

    **Returns:** (K,), in [-1, 1].

    **Raises:** `ValueError` as `hidden_vectors` does.
    """
    p, q = hidden_vectors(network, task, modes, check=check)
    product, first, second = (
        mean_over_equal(jnp.sum(a * b, axis=1), modes.equal) for a, b in ((p, q), (p, p), (q, q))
    )
    return product / (safe_sqrt(first) * safe_sqrt(second))
