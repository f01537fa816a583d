"""Sides of the (unit, sample) pairs, and the kinks that samples share."""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractVar
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree, Shaped

from flowlin._tools.arrays import Parameters, first_true_indices, replace_fields
from flowlin._tools.numerics import dtype_rounding, pseudo_inverse
from flowlin.record.buffer import EventBuffer

OFF, SLIDING, ON = -1, 0, 1
# Of a pair that is off, at its kink, and does not move, as of a dead unit: the kink attracts it,
# or has turned to repel it, which is told once.
RESTS, TURNED = 1, 2
# Failures at an event: none, too few slots, no sides found.
RESOLVED, NO_SLOTS, NO_SIDES = 0, 1, 2


class Hyperplanes(eqx.Module):
    r"""The hyperplanes z = 0 in the space of a unit's $\tilde w = [b; w]$, one per direction.

    Samples whose inputs $\tilde x = [c; x]$ are multiples of each other, $\tilde x_i = \alpha_i
    \tilde x_r$, share one kink: their gates are not free of each other there. The first sample
    of each direction leads (`leader[i] = r`), the others follow with the side sign(alpha_i) times
    the leader's. The jump of a unit's velocity across the kink is along $\tilde x_r$, with the
    strength $C_r = \sum_i |\alpha_i| C_{ji}$ over the direction's samples.
    """

    x: Float[Array, "P N"]  # rows x~, the constant in front if the hidden layer has a bias
    leader: Int[Array, " P"]
    scale: Float[Array, " P"]  # alpha
    is_leader: Bool[Array, " P"]
    any_shared: Bool[Array, ""]  # whether any kink has more than one sample
    members: Float[Array, "P P"]  # |alpha_i| in row i, at its leader's column

    @staticmethod
    def from_inputs(x: Float[Array, "P N"], share: str = "line") -> "Hyperplanes":
        """Find the kinks of inputs x~; a zero input has none.

        Samples share one where their inputs lie on one `"line"`, or only on one `"ray"` (the
        second layer of a network without biases), or are `"equal"`.
        """
        still = lax.stop_gradient(x)
        gram = still @ still.T
        square = jnp.diagonal(gram)
        ratio = gram / jnp.where(square > 0, square, 1.0)[:, None]  # of k to i: row i, column k
        off = lax.map(  # row by row: all at once would take P x P x N numbers
            lambda row: jnp.max(jnp.abs(still - row[0][:, None] * row[1][None]), axis=-1),
            (ratio, still),
        )
        # Within 64 ulps: exact copies and multiples, as rounding leaves them, and nothing else.
        close = off <= 64 * jnp.finfo(x.dtype).eps * jnp.sqrt(square)[None]
        parallel = close & (square > 0)[:, None] & (square > 0)[None]
        if share == "ray":
            parallel = parallel & (ratio > 0)
        elif share == "equal":
            parallel = parallel & (jnp.abs(ratio - 1) <= 64 * jnp.finfo(x.dtype).eps)
        own = jnp.arange(x.shape[0])
        leader = jnp.where(square > 0, jnp.argmax(parallel, axis=0), own)
        scale = jnp.where(square > 0, ratio[leader, own], 1.0)
        return Hyperplanes(
            x=x,
            leader=leader,
            scale=scale,
            is_leader=(leader == own) & (square > 0),
            any_shared=jnp.any(leader != own),
            members=jnp.where(leader[:, None] == own[None], jnp.abs(scale)[:, None], 0.0),
        )

    def with_moving_inputs(self, moves: list[bool]) -> "Hyperplanes":
        """Return the same kinks where only these coordinates of a unit's weights move.

        The others of x~ are zero; a kink that can then not move has no leader.
        """
        if all(moves):
            return self
        x = self.x * jnp.asarray(moves, self.x.dtype)[None]
        leads = self.is_leader & jnp.any(x != 0, axis=1)
        return replace_fields(self, x=x, is_leader=leads)

    @property
    def is_unshared(self) -> Bool[Array, " P"]:
        """Tell which samples share their kink with no other."""
        return jnp.sum(self.leader[:, None] == self.leader[None], axis=1) == 1

    def kink_drive(self, drive: Float[Array, "H P"]) -> Float[Array, "H P"]:
        """Sum C over the samples of each kink, at its leader."""
        return lax.cond(self.any_shared, lambda c: c @ self.members, lambda c: c, drive)

    def sides_of_followers(self, codes: Int[Array, "... P"]) -> Int[Array, "... P"]:
        """Return the sides of all samples from those of the leaders."""
        sign = jnp.sign(self.scale).astype(codes.dtype)
        return codes[..., self.leader] * jnp.broadcast_to(sign, codes.shape)

    def gates(self, codes: Int[Array, "... P"], slope: ArrayLike) -> Float[Array, "... P"]:
        """Return the gates to the sides. A sliding kink counts as on its leader's off side.

        The rest of its gate acts through the projection of the velocity.
        """
        opposite = jnp.broadcast_to(self.scale < 0, codes.shape)
        on = (codes == ON) | ((codes == SLIDING) & opposite)
        return jnp.where(on, 1.0, jnp.asarray(slope, self.x.dtype))


class Sides(eqx.Module):
    r"""The side of every pair, and the sliding pairs of each unit in m slots.

    - `codes`: OFF, SLIDING or ON.
    - `slots`: leaders that slide, in ascending order; P in empty slots.
    - `slide_solver`: $K_{SS}^+ \tilde X_S$ of the slots, zero in empty ones: takes the free
      velocity of a unit to its u.
    - `projector`: onto what sliding leaves of the velocity, $1 - \tilde X_S^T K_{SS}^+ \tilde X_S$;
      None where inputs have so many components that it is cheaper in two factors.
    - `rests`: RESTS or TURNED of leaders at whose kinks a unit is that is off for all samples and
      does not move, else 0.
    - `failure`: what went wrong with a unit, RESOLVED as long as nothing did.

    One row per unit; indexed, the row of one.
    """

    codes: Int[Array, "*H P"]
    slots: Int[Array, "*H m"]
    slide_solver: Float[Array, "*H m N"]
    projector: Float[Array, "*H N N"] | None
    rests: Int[Array, "*H P"]
    failure: Int[Array, "*H"]

    @property
    def report(self) -> dict[str, Array]:
        """Return what a run's `stats` have of the sides: nothing."""
        return {}

    @staticmethod
    def none_sliding(codes: Int[Array, "H P"], slots: int, x: Float[Array, "P N"]) -> "Sides":
        """Return sides of which none slides, for inputs x~."""
        (units, samples), inputs = codes.shape, x.shape[1]
        # `slide_constraint` of zeros, which would be compiled once more.
        free = jnp.broadcast_to(jnp.eye(inputs, dtype=x.dtype), (units, inputs, inputs))
        return Sides(
            codes=codes.astype(jnp.int8),
            slots=jnp.full((units, slots), samples, jnp.int32),
            slide_solver=jnp.zeros((units, slots, inputs), x.dtype),
            projector=free if has_projector(slots, inputs) else None,
            rests=jnp.zeros((units, samples), jnp.int8),
            failure=jnp.full(units, RESOLVED, jnp.int8),
        )


def slots_of(chosen: Bool[Array, " P"], slots: int) -> Int[Array, " m"]:
    """Return the chosen samples in ascending order, padded with P."""
    return first_true_indices(chosen, slots, chosen.shape[0])


def rows_in_slots(rows: Float[Array, "P ..."], slots: Int[Array, "*s"]) -> Array:
    """Return the slots' rows, zero in empty slots."""
    return rows.at[slots].get(mode="fill", fill_value=0)


def slide_constraint(
    x: Float[Array, "m N"],
) -> tuple[Float[Array, "m N"], Float[Array, "N N"] | None]:
    """Return `solve` and `projector` of a unit whose sliding pairs have the inputs x (see `Sides`).

    The pseudo-inverse B of K = x x^T gets the derivative of an inverse as 2B - B K B.
    """
    slots, inputs = x.shape
    b = pseudo_inverse(x @ x.T)
    solve = (2 * b - b @ (x @ x.T) @ b) @ x
    free = jnp.eye(inputs, dtype=x.dtype)
    return solve, free - x.T @ solve if has_projector(slots, inputs) else None


def has_projector(slots: int, inputs: int) -> bool:
    """Tell whether velocities are projected by one matrix, which costs less than two factors."""
    return inputs <= 2 * slots


# ---- Sides of the pairs of all layers, and the equations of those that slide, in slots.

FEWEST_SLOTS = 16  # slots of the smallest system that is solved


class LayerSides(eqx.Module):
    """The side of every pair of all layers, and the leaders that slide, in m slots.

    - `codes`: OFF, SLIDING or ON; the units of all layers, first layer first.
    - `slots`: positions of the sliding leaders in the flattened codes; H P in empty slots.
    - `rests`: of leaders RESTS, TURNED or 0.
    - `failure`: what went wrong, RESOLVED as long as nothing did.
    - `certificate`: the upper bound of C (`DeepFlow.drive_bounds`) of the pair that left at the
      run's first exit of this kind, NaN without one.
    - `shares`: of a module, as in `FixedLayerSides`.
    """

    codes: Int[Array, "H P"]
    slots: Int[Array, " m"]
    rests: Int[Array, "H P"]
    failure: Int[Array, ""]
    certificate: Float[Array, ""]
    shares: Int[Array, " n"] | None = None

    @property
    def report(self) -> dict[str, Array]:
        """Statistics for a run's `stats`."""
        return {"branch_certificate": self.certificate}


class FixedLayerSides(eqx.Module):
    """Sides as a vector field reads them, constant along a piece."""

    codes: Int[Array, "H P"]
    gates: Float[Array, "H P"]
    slots: Int[Array, " m"]
    rests: Bool[Array, "H P"]  # RESTS in `LayerSides`
    shares: Int[Array, " n"] | None  # the first pair at each one's kink, as layers below send now

    @property
    def has_drive_margin(self) -> Bool[Array, "H P"]:
        """Tell which pairs have a margin in u or its bound, and so in C."""
        return (self.codes == SLIDING) | self.rests


def read_slots(pairs: Shaped[Array, "H P"], slots: Int[Array, " m"]) -> Shaped[Array, " m"]:
    """Return the slots' entries, zero in empty slots."""
    there = pairs.ravel().at[slots].get(mode="clip", wrap_negative_indices=False)
    return jnp.where(slots < pairs.size, there, jnp.zeros((), pairs.dtype))


def matrix_columns(matrix: Shaped[Array, "n P"], which: Int[Array, " m"]) -> Shaped[Array, "n m"]:
    """Return the columns of these numbers, all of which exist."""
    return matrix.at[:, which].get(mode="promise_in_bounds", wrap_negative_indices=False)


def write_slots(
    values: Float[Array, " m"], slots: Int[Array, " m"], shape: tuple[int, ...]
) -> Float[Array, "H P"]:
    """Return zeros but for the slots' entries."""
    flat = jnp.zeros(math.prod(shape), values.dtype).at[slots]
    return flat.set(values, mode="drop", wrap_negative_indices=False).reshape(shape)


def map_used_slots(function: Any, slots: Int[Array, " m"], empty: int) -> PyTree:
    """Apply a function to as few slots as hold all in use, and pad its results with zeros.

    Slots in use come first, the others are `empty`. Mostly few pairs slide, and what their Gram
    matrix costs grows with the cube of its size: `FEWEST_SLOTS`, four times as many, and so on, as
    long as that is less than half of all: every size is one more copy of the function to compile.
    """
    most, counts = slots.size, [slots.size]
    while 2 * (few := FEWEST_SLOTS * 4 ** (len(counts) - 1)) < most:
        counts.insert(-1, few)

    def over_first_slots(count: int) -> Any:
        def result_with_padding():
            pad = (0, most - count)
            return jax.tree.map(lambda a: jnp.pad(a, pad), function(slots[:count]))

        return result_with_padding

    more = sum((slots[count] < empty).astype(int) for count in counts[:-1])
    return lax.switch(more, [over_first_slots(count) for count in counts])


RIDGE = 100.0  # roundings of the largest number of the diagonal, which are added to it


def solve_gram(gram: Float[Array, "m m"], q: Float[Array, " m"]) -> Float[Array, " m"]:
    """Solve gram u = q, for q in its range; zero in empty slots.

    A little is added to the diagonal, so that dependent gradients do no harm; what that changes
    of gram u is of the size of rounding.
    """
    eps = jnp.finfo(gram.dtype).eps
    diagonal = jnp.diagonal(gram)
    ridge = jnp.where(diagonal > 0, RIDGE * eps * jnp.max(diagonal), 1.0)
    factor = jax.scipy.linalg.cho_factor(gram + jnp.diag(lax.stop_gradient(ridge)), lower=True)
    return jax.scipy.linalg.cho_solve(factor, q)


# ---- The box-constrained quadratic program that chooses gates at a kink.

BLOCK_PIVOTS = 10  # block pivots before single ones


def minimise_in_box(
    k: Float[Array, "m m"],
    q: Float[Array, " m"],
    bound: Float[Array, " m"],
    active: Bool[Array, " m"],
    max_steps: int = 500,
) -> tuple[Float[Array, " m"], Bool[Array, ""]]:
    r"""Minimise $\tfrac12 u^T K u - q^T u$ over $0 \le u \le \beta$; K is positive semi-definite.

    Its optimality conditions are Filippov's rule for the velocity $v = q - K u$ of several pairs
    at their kinks: v < 0 with u = 0 (off), v > 0 with u = beta (on), or v = 0 in between
    (sliding). v is unique; u is where K is regular.

    Block principal pivoting (Judice and Pires, Comput. Oper. Res. 1994): every variable on the
    wrong side changes its set at once. If that does not settle, Murty's rule, the first wrong
    variable alone, which ends for every positive definite matrix.

    Where K is singular, each u is found with a small multiple of the identity added to K, and
    corrected once for it; v then has all its digits.

    **Arguments:** `active` marks the variables there are; u = 0 for the others.

    **Returns:** u, and whether it satisfies the conditions.
    """
    q, bound = jnp.where(active, q, 0.0), jnp.where(active, bound, 0.0)
    k = jnp.where(active[:, None] & active[None], k, 0.0)
    rounding = dtype_rounding(k.dtype)
    slack_u = rounding.slack * bound
    slack_v = rounding.slack * (jnp.abs(q) + jnp.abs(k) @ bound)
    largest = jnp.max(jnp.diagonal(k))
    ridge = jnp.where(largest > 0, rounding.cut * largest, 1.0)

    def solve_free(free, upper):
        fixed = jnp.where(upper, bound, 0.0)
        inner = jnp.where(free[:, None] & free[None], k, 0.0)
        factor = jax.scipy.linalg.cho_factor(inner + jnp.diag(jnp.where(free, ridge, 1.0)))

        def refine_once(u):
            return u + jax.scipy.linalg.cho_solve(factor, jnp.where(free, q - k @ u, 0.0))

        # The first solve errs by the ridge; the second one corrects for it.
        u = refine_once(refine_once(fixed))
        return u, q - k @ u

    def pivot_once(state):
        free, upper, _, step, _ = state
        single = step >= BLOCK_PIVOTS
        u, v = solve_free(free, upper)
        low, high = free & (u < -slack_u), free & (u > bound + slack_u)
        freed = active & ~free & jnp.where(upper, v < -slack_v, v > slack_v)
        wrong = low | high | freed
        first = jnp.arange(wrong.shape[0]) == jnp.argmax(wrong)
        moved = wrong & jnp.where(single, first, True)
        free = (free & ~moved) | (freed & moved)
        upper = jnp.where(moved, high, upper)
        return free, upper, jnp.clip(u, 0.0, bound), step + 1, ~jnp.any(wrong)

    none = jnp.zeros_like(active)
    start = (active, none, jnp.zeros_like(q), jnp.zeros((), int), jnp.asarray(False))
    *_, u, _, settled = lax.while_loop(lambda s: ~s[-1] & (s[-2] < max_steps), pivot_once, start)
    return u, settled


# ---- The interface between an exact walk and the rule that chooses sides.


class Approach(eqx.Module):
    """Knows how near pairs came to kinks that repel, and turned back.

    - `margin`: the smallest |z| of one that did, relative to its unit; inf if none did.
    - `nears`: which pairs on a side now move towards their kinks.
    """

    margin: Float[Array, ""]
    nears: Bool[Array, "H P"]

    @staticmethod
    def none_so_far(codes: Int[Array, "H P"], dtype: Any) -> "Approach":
        """Return that of a run before its first step."""
        return Approach(jnp.full((), jnp.inf, dtype), jnp.zeros(codes.shape, bool))


class Piece(eqx.Module):
    """A piece of a step from `start` to `end`; sides change at its end where `fired`.

    - `shift`: by what an error of `rtol` in what changes there moves the end, see `EventLog.shift`.
    - `undecided`: whether a slide is held by so small a drive that its end would not be seen.
    - `approach`: how pairs came near their kinks and turned back, up to its end.
    """

    start: Array
    end: Array
    y1: Parameters
    error: Parameters  # of the step that was tried, up to the time aimed at
    dense: PyTree
    inner: PyTree  # state of the inner solver
    fired: Bool[Array, "H P"]
    jump: Bool[Array, ""]  # whether the velocity at its end is not the inner solver's
    uncertainty: Float[Array, ""]
    shift: Float[Array, ""]
    undecided: Bool[Array, ""]
    approach: "Approach"


class AbstractSwitching(eqx.Module):
    """Base class of Filippov's rule, which chooses sides at the start and every event of `flow`."""

    flow: AbstractVar[Any]  # `OneLayerFlow`, `DeepFlow` or `ModuleFlow`

    @abc.abstractmethod
    def start_sides(self, parameters: Parameters) -> Any:
        """Return the sides at the start."""

    @abc.abstractmethod
    def log_start(self, parameters: Parameters, t0: ArrayLike, log: EventBuffer) -> EventBuffer:
        """Return the log with what may be said of the start: where several flows begin."""

    @abc.abstractmethod
    def switch_sides(self, piece: Piece, sides: Any, log: EventBuffer) -> tuple[Any, EventBuffer]:
        """Return the sides after the event at the end of a piece, and the log with what changed."""

    @abc.abstractmethod
    def in_own_slots(self, sides: Any) -> Any:
        """Return sides that were found with fewer slots in as many as this rule has."""
