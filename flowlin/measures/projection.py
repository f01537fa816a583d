"""A network in the coordinates of a task's modes; their strengths are `Modes.strengths`."""

from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowlin._tools.arguments import CHECKS_BY_NAME, argument_error, boolean, checked
from flowlin._tools.arrays import sample_mean, widest_dtype
from flowlin._tools.files import saveable
from flowlin._tools.numerics import safe_sqrt
from flowlin.measures.along import task_or_none
from flowlin.measures.mode_origin import require_origin
from flowlin.measures.modes import Modes, mean_over_equal
from flowlin.networks.base import AbstractModel
from flowlin.networks.graph import GatedGraph
from flowlin.networks.kinds import AbstractNetwork
from flowlin.networks.modules import as_model
from flowlin.record.measured import require_targets
from flowlin.record.trajectory import Trajectory
from flowlin.tasks.task import Task


@checked(network=as_model)
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

    **Raises:** `ValueError` for such modes otherwise.
    """
    own = cast(AbstractModel, network)  # as `checked` leaves it
    observable = modes.observable(own, require_targets(own, task), check=check)
    return modes.u.T @ observable.output_correlation(own, task)


@saveable()
class ModeShares(NamedTuple):
    """Shares of the outputs' sum of squares; they add up to one where modes decouple."""

    diagonal: Array
    off_diagonal: Array
    outside: Array


@checked(network=as_model)
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

    **Raises:** `ValueError` for such modes otherwise.
    """
    matrix = mode_matrix(network, task, modes, check=check)
    outputs = cast(AbstractModel, network).outputs(task.x)
    squares, total = (
        matrix**2 * modes.d[None],
        sample_mean(jnp.sum(outputs**2, axis=1), task.weights),
    )
    own = np.eye(len(squares), dtype=bool)
    for group in modes.equal:
        own[np.ix_(group, group)] = True
    diagonal = jnp.sum(jnp.where(own, squares, 0.0))
    rest = outputs - modes.augmented(task.x) @ modes.v @ matrix.T @ modes.u.T
    outside = sample_mean(jnp.sum(rest**2, axis=1), task.weights)
    off = jnp.sum(jnp.where(own, 0.0, squares))
    return ModeShares(diagonal / total, off / total, outside / total)


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

    **Raises:** `ValueError` as `hidden_vectors` does.
    """
    p, q = hidden_vectors(network, task, modes, check=check)
    product, first, second = (
        mean_over_equal(jnp.sum(a * b, axis=1), modes.equal) for a, b in ((p, q), (p, p), (q, q))
    )
    return product / (safe_sqrt(first) * safe_sqrt(second))


# ---- How far apart two networks are in their parameters.


def _arrays_to_compare(name: str, value: Any) -> Any:
    """Accept a network, and return weights and biases, or any pytree's floating-point arrays."""
    if isinstance(value, AbstractNetwork):
        return CHECKS_BY_NAME["network"](name, value).parameters
    if isinstance(value, GatedGraph):
        return CHECKS_BY_NAME["graph"](name, value).parameters
    if isinstance(value, Trajectory):
        raise argument_error(name, "a network, or a tree of parameters", value, "pass `flow.final`")
    found = jax.tree.map(lambda leaf: leaf if _holds_floats(leaf) else None, value)
    if not jax.tree.leaves(found):
        raise ValueError(f"`{name}` holds no arrays of floats; pass a network, or its parameters.")
    return found


def _holds_floats(leaf: Any) -> bool:
    """Tell whether a leaf is an array of floating-point numbers."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


@checked(a=_arrays_to_compare, b=_arrays_to_compare, relative=boolean)
def distance(a: Any, b: Any, *, relative: bool = False) -> Float[Array, ""]:
    r"""Return the Euclidean distance $\|w_a - w_b\|$ of the parameters of two networks.

    Works under `jit` and `vmap` (`jax.vmap(fl.distance)` for stacked networks); its derivatives at
    a = b are zero.

    **Arguments:**

    - `a`, `b`: two networks with parameters of the same shapes, or two pytrees of one structure, of
      which floating-point arrays count. c, slopes and gates are no parameters.
    - `relative`: whether to divide by the norm of b, the reference; nothing is no distance from
      nothing.

    **Raises:** `ValueError` for parameters of different structure or shapes, and for trajectories.
    """
    shapes = [[leaf.shape for leaf in jax.tree.leaves(given)] for given in (a, b)]
    if shapes[0] != shapes[1] or jax.tree.structure(a) != jax.tree.structure(b):
        got = f"arrays of shapes {shapes[0]} and {shapes[1]}"
        if shapes[0] == shapes[1]:
            got = "trees with other fields around arrays of the same shapes; pass those alone"
        raise ValueError(f"`a` and `b` must have parameters of one structure, got {got}.")
    off, size = _difference_norms(jax.tree.leaves(a), jax.tree.leaves(b))
    return jnp.where(off == 0, 0.0, off / jnp.where(off == 0, 1.0, size)) if relative else off


@jax.jit
def _difference_norms(a: list[Array], b: list[Array]) -> tuple[Array, Array]:
    """Return the norms of the difference and of b."""
    dtype = widest_dtype(*a, *b)
    off = sum(jnp.sum((x.astype(dtype) - y.astype(dtype)) ** 2) for x, y in zip(a, b, strict=True))
    return safe_sqrt(jnp.asarray(off)), safe_sqrt(jnp.asarray(sum(jnp.sum(y**2) for y in b)))
