"""Modes of a task: the singular triples of its input-output correlation."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowlin._tools.arguments import (
    ARGUMENT_HINTS,
    CHECKS_BY_NAME,
    argument_error,
    boolean,
    checked,
    instance_of,
    real_array,
)
from flowlin._tools.arrays import (
    Parameters,
    is_traced,
    prepend_constant,
    require_finite,
    sample_correlation,
    sample_mean,
    weight_rows,
)
from flowlin._tools.files import saveable
from flowlin._tools.numerics import jit_by_array
from flowlin._tools.printing import print_by
from flowlin.measures.mode_origin import (
    MODES_ARE,
    own_bias_strength,
    require_origin,
    task_fingerprint,
)
from flowlin.measures.modes_summary import modes_summary
from flowlin.measures.singular_triples import (
    EQUAL_TOLERANCE,
    ZERO_TOLERANCE,
    Group,
    singular_triples,
)
from flowlin.networks.base import AbstractOwnModel
from flowlin.networks.fit import require_fit
from flowlin.networks.modules import any_module, as_model
from flowlin.networks.network_kinds import AbstractNetwork, GatedLinearNetwork, LinearNetwork
from flowlin.record.measured import AbstractPreparedMeasure
from flowlin.tasks.task import Task, weights_by_sample


def mean_over_equal(values: Array, equal: tuple[Group, ...]) -> Array:
    """Give each group of equal modes the mean of its numbers, (K,)."""
    if not equal:
        return values
    which, shares = equal_modes(equal, len(values))
    # In one kernel for all groups; a row's padding is the mode itself, with share zero.
    kept = jnp.where(shares > 0, values[which], 0.0)
    return jnp.sum(kept * shares.astype(values.dtype), axis=1)


def equal_modes(equal: tuple[Group, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for each of `count` modes its equal modes, itself included, and their shares, (K, M).

    Rows of fewer than M are filled up by the mode itself, with share 0.
    """
    most = max(map(len, equal), default=1)
    which = np.repeat(np.arange(count)[:, None], most, axis=1)
    shares = np.eye(1, most).repeat(count, axis=0)
    for group in equal:
        rows = np.asarray(group)
        which[rows, : len(group)], shares[rows, : len(group)] = rows, 1 / len(group)
    return which, shares


# Largest number of a task: its square, a correlation, is within float32, and norms of products of
# correlations are within float64, in which modes are computed.
LARGEST_INPUT = 1e19


@print_by(modes_summary)
@saveable()
class Modes(AbstractPreparedMeasure):
    r"""Singular triples of $\Sigma_{yx} = Y^T X / P$ with the matching variances of the inputs.

    Of weighted samples this and all that follows are the weighted averages.

    Strongest mode first. With a bias the inputs are augmented to [c; x], bias coordinate first
    (Eqs. 3-4 of the lead paper); c = 0 adds no coordinate. K = min(N_out, N), where N counts
    the input coordinates; modes with s = 0 are kept.

    Modes of the same s > 0 and d are *equal*: any rotation among them leaves the task as it is, so
    that single ones mean nothing. The strength of each is the mean of the group's m,
    $\frac{1}{m} tr\, U^T (\hat Y^T X / P) V / d$, which no rotation changes, so that they reach a
    level at one time; a group of which a narrow network learns a part stays below s/d. Directions
    within a group follow from its span alone: of the coordinate axes' projections onto the span
    the longest is the first v, and likewise in what is left.

    - `u`: (N_out, K), orthonormal output directions.
    - `s`: (K,), singular values.
    - `v`: (N, K), orthonormal input directions.
    - `d`: (K,), input variances $v^T \Sigma_x v$, the eigenvalues where Sigma_x commutes.
    - `bias_strength`: c of the augmentation, or 0.
    - `commutator`: $\|[\Sigma_{yx}^T \Sigma_{yx}, \Sigma_x]\|_F$ over the product of the norms. The
      decoupled modes (Eq. 4) are exact only where it is zero up to rounding.
    - `completeness`: the share of tr Sigma_x that the v span, in [0, 1]. Below 1, an input
      direction without a mode takes part in the dynamics of large initial weights.
    - `equal`: the numbers of modes that are equal, such as ((1, 2), (4, 5, 6, 7)).
    - `fingerprint`: (4,), numbers that differ between tasks. Wherever a network or a task meets
      modes of another task or of another c, a `ValueError` is raised, unless `check=False` says
      that they are meant. Under `jit` and `vmap` only shapes are compared.
    """

    u: Float[Array, "N_out K"]
    s: Float[Array, " K"]
    v: Float[Array, "N K"]
    d: Float[Array, " K"]
    bias_strength: float = eqx.field(static=True)
    commutator: Float[Array, ""]
    completeness: Float[Array, ""]
    fingerprint: Float[Array, " 4"] | None = None
    equal: tuple[Group, ...] = eqx.field(static=True, default=())

    @property
    def groups(self) -> tuple[Group, ...]:
        """Return the numbers of all modes in order, equal ones together: ((0,), (1, 2), (3,))."""
        member = {k: group for group in self.equal for k in group}
        return tuple(dict.fromkeys(member.get(k, (k,)) for k in range(self.s.shape[-1])))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the groups, for tables and pictures: ("0", "1-2", "3")."""
        return tuple("-".join(map(str, sorted({g[0], g[-1]}))) for g in self.groups)

    @property
    def full_strength(self) -> Float[Array, " K"]:
        """Return the strength s/d at convergence, (K,); 0 for modes that the data do not drive."""
        return _full_strength(self.s, self.d)

    @checked(x=real_array)
    def augmented(self, x: Float[Array, "P N_in"]) -> Float[Array, "P N"]:
        """Return inputs in the modes' coordinates: [c; x], or x for c = 0."""
        inputs = self.v.shape[-2] - bool(self.bias_strength)
        if np.shape(x)[1:] != (inputs,):
            raise ValueError(f"`x` must have shape (P, {inputs}), got {np.shape(x)}.")
        return prepend_constant(x, self.bias_strength) if self.bias_strength else x

    @checked(network=any_module)
    def strengths(
        self, network: eqx.Module, task: Task, *, check: bool = True
    ) -> Float[Array, " K"]:
        r"""Return the mode strengths $a_\alpha = u^T (\hat Y^T X / P) v / d$ of any network, (K,).

        For a linear network whose modes are aligned to its inputs this is $u^T W v$ with the
        end-to-end matrix W. Modes with d = 0 are not seen by the data and get 0.

        **Raises:** `ValueError` for modes of another c or other data, unless `check=False`.
        """
        own = as_model("network", network)
        return self.observable(own, task, check=check)(own, task)

    @checked
    def hidden_vectors(
        self, network: AbstractNetwork, *, check: bool = True
    ) -> tuple[Float[Array, "K H"], Float[Array, "K H"]]:
        r"""Return hidden vectors $p = W_2^T u$ and $q = \tilde W_1 v$ of every mode, (K, H) each.

        $\tilde W_1 = [b, W_1]$ where the modes have a bias coordinate. Gates (H,) of a gated
        network multiply q; those that differ from sample to sample are left out.

        **Raises:** `ValueError` for another number of hidden layers than one, and for modes of
        another c, unless `check=False`.
        """
        if len(network.weights) != 2:
            raise ValueError(
                f"hidden vectors are defined for one hidden layer; the network has "
                f"{len(network.hidden)}."
            )
        require_origin(self, network, check=check)
        (w1, w2), (b, _) = network.parameters
        if self.bias_strength:
            b = jnp.zeros_like(w1[:, 0]) if b is None else b
            w1 = jnp.concatenate([b[:, None], w1], axis=1)
        p, q = self.u.T @ w2, self.v.T @ w1.T
        if isinstance(network, GatedLinearNetwork) and network.given_gates[0].ndim == 1:
            q = q * network.given_gates[0][None]
        return p, q

    @checked(network=any_module)
    def observable(self, network: eqx.Module, task: Task, *, check: bool = True) -> "ModeStrengths":
        """Return the mode strengths as a function of the network that costs no more than it must.

        **Raises:** `ValueError` for modes of another c or other data, unless `check=False`.
        """
        require_origin(self, as_model("network", network), task, check)
        weights = weights_by_sample(task, MODES_ARE)
        return _mode_strengths(self, task.x, weights, isinstance(network, LinearNetwork))


CHECKS_BY_NAME["modes"] = instance_of(Modes, "modes, as `theory.modes(task, network)` returns them")
CHECKS_BY_NAME["check"] = boolean


@jax.jit
def _full_strength(s: Float[Array, "*K"], d: Float[Array, "*K"]) -> Float[Array, "*K"]:
    """Return s/d, or 0 where either is not positive."""
    driven = (s > 0) & (d > 0)
    return jnp.where(driven, s / jnp.where(driven, d, 1.0), 0.0)


# Compiled, since every call of `gradient_flow` with mode hits comes here.
@jit_by_array
def _mode_strengths(modes: Modes, x: Array, weights: Array | None, linear: bool) -> "ModeStrengths":
    """Multiply the task's part of the strengths out, X v / (P d), once for all networks."""
    d = modes.d[None]
    scaled = jnp.where(d > 0, modes.v / jnp.where(d > 0, d, 1.0), 0.0)
    mass = len(x) if weights is None else weights.sum()
    projected = weight_rows(modes.augmented(x) @ scaled, weights) / mass
    projected = prepend_constant(x, 1.0).T @ projected if linear else projected
    return ModeStrengths(modes.u, projected, modes.equal)


class ModeStrengths(eqx.Module):
    """Mode strengths of a network, with the task's part multiplied out beforehand.

    `projected` is X v / (P d), shape (P, K); for linear networks, whose function is affine, it is
    [1; X]^T X v / (P d), shape (1 + N_in, K), so that no sample is needed again. `equal` is that
    of `Modes`.
    """

    u: Float[Array, "N_out K"]
    projected: Float[Array, "... K"]
    equal: tuple[Group, ...] = eqx.field(static=True, default=())

    def output_correlation(self, network: eqx.Module, task: Task) -> Float[Array, "N_out K"]:
        """Return the correlation of outputs and modes' inputs, (Yhat^T X / P) v / d, (N_out, K)."""
        linear = isinstance(network, LinearNetwork)
        rows = 1 + network.weights[0].shape[-1] if linear else task.samples
        if len(self.projected) != rows:
            raise ValueError(
                f"these mode strengths are of another kind of network, or of other samples: they "
                f"hold {len(self.projected)} rows for {rows}; make them by "
                "`modes.observable(network, task)`."
            )
        if linear:
            matrix, offset = network.affine()
            return offset[:, None] * self.projected[:1] + matrix @ self.projected[1:]
        return as_model("network", network).outputs(task.x).T @ self.projected

    def of_outputs(self, outputs: Float[Array, "P N_out"]) -> Float[Array, " K"]:
        """Strengths (K,) of a network that is not linear, from its outputs on the task."""
        return mean_over_equal(jnp.sum(self.u * (outputs.T @ self.projected), axis=0), self.equal)

    def __call__(self, network: eqx.Module, task: Task) -> Float[Array, " K"]:
        """Return the strengths (K,) of the network's modes; equal modes have the mean of theirs."""
        return mean_over_equal(
            jnp.sum(self.u * self.output_correlation(network, task), axis=0), self.equal
        )

    @property
    def equal_modes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return for every mode its equal modes and their shares; see `equal_modes`."""
        return equal_modes(self.equal, self.u.shape[-1])

    def parameters_along(self, parameters: Parameters, k: int | Array) -> Parameters:
        """Reduce a linear network to one input and one output, those of mode k.

        The result is linear in the parameters; its output for the input 1 is the strength along u_k
        and v_k.
        """
        weights, biases = parameters
        u, scale, direction = self.u[:, k], self.projected[0, k], self.projected[1:, k]
        own = [None if b is None else scale * b for b in biases]
        last = None if own[-1] is None else u[None] @ own[-1]
        seen = (weights[0] @ direction[:, None], *weights[1:])
        return (*seen[:-1], u[None] @ seen[-1]), (*own[:-1], last)


def _strength_or_network(name: str, value: object) -> object:
    """Accept a bias strength, or the network whose own it is."""
    if isinstance(value, AbstractOwnModel):
        return as_model("network", value)
    if isinstance(value, eqx.Module):
        wanted = "a number c, or a flowlin network with a c of its own"
        raise argument_error(name, wanted, value, "give c itself, 0 for inputs without a bias")
    return CHECKS_BY_NAME["bias_strength"](name, value)


ARGUMENT_HINTS["modes.network"] = (
    "bias_strength",
    "the network that modes are for stands in the place of `bias_strength`, as in "
    "`theory.modes(task, network)`.",
)


@checked(bias_strength=_strength_or_network)
def modes(task: Task, bias_strength: float | AbstractOwnModel = 0.0) -> Modes:
    """Return the task's modes, strongest first.

    Within a group of equal singular values the basis is free; the one that diagonalises Sigma_x
    there is taken, so that modes decouple wherever Sigma_x commutes with Sigma_yx^T Sigma_yx.
    Where Sigma_x is alike in the group as well (orthonormal inputs, say) modes are equal, and what
    is reported of them is the group's: see `Modes`. Numbers are alike that are closer than 1e-10 of
    the largest (1e-4 of it in float32) and than a thousandth of themselves. Singular values below
    1e-10 of the largest are zero.

    **Arguments:**

    - `task`: inputs and targets.
    - `bias_strength`: the network that the modes are for, as in `theory.modes(task, network)`, or
      c of the augmented inputs [c; x]. A network without a bias on its first layer has c = 0, and
      so has a graph without one on a node that a source goes into.

    **Returns:** `Modes`, K = min(N_in, N_out) of them, one more column of v with a bias.

    **Raises:** `ValueError` for a network of another task's shapes, and under `jit`: the grouping
    needs concrete numbers. Compute the modes first and pass them in.

    Source: lead paper Eqs. 3-4 and 16; Saxe et al. (2014, 2019).
    """
    return modes_within(
        task, bias_strength, EQUAL_TOLERANCE[jnp.dtype(task.x.dtype).name], ZERO_TOLERANCE
    )


def modes_within(task: Task, bias_strength: Any, same: float = 0.0, zero: float = 0.0) -> Modes:
    """Return modes that are equal within `same` of the largest, and zero below `zero` of it.

    Singular values below rounding are zero in any case.
    """
    c = bias_strength
    if isinstance(c, AbstractOwnModel):
        require_fit(c, task)
        c = own_bias_strength(c)
    if is_traced((task, c)):
        raise ValueError(
            "`theory.modes` needs a concrete task and bias strength; call it outside jit and "
            "vmap and pass the modes in."
        )
    require_finite("task.x", task.x)
    require_finite("task.y", task.y)
    c = float(c)
    x, y = np.asarray(task.x, np.float64), np.asarray(task.y, np.float64)
    if max(abs(c), np.max(np.abs(x)), np.max(np.abs(y))) > LARGEST_INPUT:
        raise ValueError(
            f"`task` or `bias_strength` = {c:g} has numbers above {LARGEST_INPUT:g}, whose "
            "correlations overflow; scale it down."
        )
    if c:
        x = np.concatenate([np.full((len(x), 1), c, x.dtype), x], axis=1)
    weights = weights_by_sample(task, MODES_ARE)
    weights = None if weights is None else np.asarray(weights, np.float64)
    syx, sx = sample_correlation(y, x, weights), sample_correlation(x, x, weights)
    rounding = 32 * float(jnp.finfo(task.x.dtype).eps)
    noise = rounding * np.sqrt(np.trace(sx) * sample_mean(np.sum(y**2, axis=1), weights))
    u, s, v, d, groups = singular_triples(syx, sx, noise, same, zero)
    d = np.where(d > rounding * np.trace(sx), d, 0.0)
    square = (v * s**2) @ v.T
    scale = np.linalg.norm(square) * np.linalg.norm(sx)
    commutator = np.linalg.norm(square @ sx - sx @ square) / scale if scale else 0.0
    total = np.trace(sx)
    completeness = np.sum(d) / total if total else 1.0
    arrays: list[Array] = [jnp.asarray(a, task.x.dtype) for a in (u, s, v, d)]
    return Modes(
        *arrays,
        bias_strength=c,
        commutator=jnp.asarray(commutator, task.x.dtype),
        completeness=jnp.asarray(completeness, task.x.dtype),
        fingerprint=jnp.asarray(task_fingerprint(task)[0], task.x.dtype),
        equal=tuple(group for group in groups if len(group) > 1),
    )
