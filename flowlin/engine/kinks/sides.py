"""Sides of the (unit, sample) pairs, and the kinks that samples share."""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flowlin._tools.arrays import places
from flowlin._tools.copies import copied
from flowlin._tools.numerics import pseudo_inverse

OFF, SLIDING, ON = -1, 0, 1
# What can go wrong at an event.
FINE, NO_SLOTS, UNSOLVED = 0, 1, 2


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
    leads: Bool[Array, " P"]
    shared: Bool[Array, ""]  # whether any kink has more than one sample

    @staticmethod
    def of(x: Float[Array, "P N"], share: str = "line") -> "Hyperplanes":
        """The kinks of inputs x~; a zero input has none.

        Samples share one where their inputs lie on one `"line"`, or only on one `"ray"` (the
        second layer of a network without biases), or are `"equal"`.
        """
        still = lax.stop_gradient(x)
        gram = still @ still.T
        square = jnp.diagonal(gram)
        ratio = gram / jnp.where(square > 0, square, 1.0)[:, None]  # of k to i: row i, column k
        off = lax.map(  # row by row, for memory's sake
            lambda row: jnp.max(jnp.abs(still - row[0][:, None] * row[1]), axis=-1), (ratio, still)
        )
        # 64 ulps: exact copies and multiples, as rounding leaves them.
        close = off <= 64 * jnp.finfo(x.dtype).eps * jnp.sqrt(square)
        parallel = close & (square > 0)[:, None] & (square > 0)
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
            leads=(leader == own) & (square > 0),
            shared=jnp.any(leader != own),
        )

    def within(self, moves: list[bool]) -> "Hyperplanes":
        """The same kinks where only these coordinates of a unit's weights move.

        The others of x~ are zero; a kink that can then not move has no leader.
        """
        if all(moves):
            return self
        x = self.x * jnp.asarray(moves, self.x.dtype)
        leads = self.leads & jnp.any(x != 0, axis=1)
        return copied(self, x=x, leads=leads)

    @property
    def single(self) -> Bool[Array, " P"]:
        """Whether a sample shares its kink with no other."""
        return jnp.sum(self.leader[:, None] == self.leader, axis=1) == 1

    def strength(self, c: Float[Array, "H P"]) -> Float[Array, "H P"]:
        """C summed over the samples of each kink, at its leader."""

        def summed(c):
            member = self.leader[:, None] == jnp.arange(self.leader.shape[0])
            return (c * jnp.abs(self.scale)) @ member.astype(c.dtype)

        return lax.cond(self.shared, summed, lambda c: c, c)

    def follow(self, codes: Int[Array, "... P"]) -> Int[Array, "... P"]:
        """Sides of all samples from those of the leaders."""
        return codes[..., self.leader] * jnp.sign(self.scale).astype(codes.dtype)

    def gates(self, codes: Int[Array, "... P"], slope: ArrayLike) -> Float[Array, "... P"]:
        """Gates to the sides. A sliding kink counts as on its leader's off side.

        The rest of its gate acts through the projection of the velocity.
        """
        on = (codes == ON) | ((codes == SLIDING) & (self.scale < 0))
        return jnp.where(on, 1.0, jnp.asarray(slope, self.x.dtype))


class Sides(eqx.Module):
    r"""The side of every pair, and the sliding pairs of each unit in m slots.

    - `codes`: OFF, SLIDING or ON.
    - `slots`: leaders that slide, in ascending order; P in empty slots.
    - `solve`: $K_{SS}^+ \tilde X_S$ of the slots, zero in empty ones: takes the free velocity of a
      unit to its u.
    - `projector`: onto what sliding leaves of the velocity, $1 - \tilde X_S^T K_{SS}^+ \tilde X_S$;
      None where inputs have so many components that it is cheaper in two factors.
    - `trouble`: what went wrong with a unit, FINE as long as nothing did.

    One row per unit; indexed, the row of one.
    """

    codes: Int[Array, "*H P"]
    slots: Int[Array, "*H m"]
    solve: Float[Array, "*H m N"]
    projector: Float[Array, "*H N N"] | None
    trouble: Int[Array, "*H"]

    @property
    def report(self) -> dict[str, Array]:
        """What a run's `stats` say of them: nothing, since with one layer the flow is unique."""
        return {}

    @staticmethod
    def of(codes: Int[Array, "H P"], slots: int, x: Float[Array, "P N"]) -> "Sides":
        """Sides of which none slides, for inputs x~."""
        units, samples = codes.shape
        solve, projector = held(jnp.zeros((slots, x.shape[1]), x.dtype))
        if projector is not None:
            projector = jnp.broadcast_to(projector, (units, *projector.shape))
        return Sides(
            codes=codes.astype(jnp.int8),
            slots=jnp.full((units, slots), samples, jnp.int32),
            solve=jnp.broadcast_to(solve, (units, *solve.shape)),
            projector=projector,
            trouble=jnp.full(units, FINE, jnp.int8),
        )


def slots_of(chosen: Bool[Array, " P"], slots: int) -> Int[Array, " m"]:
    """The chosen samples in ascending order, padded with P."""
    return places(chosen, slots, chosen.shape[0])


def gather(rows: Float[Array, "P ..."], slots: Int[Array, "*s"]) -> Array:
    """The slots' rows, zero in empty slots."""
    return rows.at[slots].get(mode="fill", fill_value=0)


def held(x: Float[Array, "m N"]) -> tuple[Float[Array, "m N"], Float[Array, "N N"] | None]:
    """`solve` and `projector` of a unit whose sliding pairs have the inputs x (see `Sides`).

    The pseudo-inverse B of K = x x^T gets the derivative of an inverse as 2B - B K B.
    """
    slots, inputs = x.shape
    b = pseudo_inverse(x @ x.T)
    solve = (2 * b - b @ (x @ x.T) @ b) @ x
    small = inputs <= 2 * slots
    return solve, jnp.eye(inputs, dtype=x.dtype) - x.T @ solve if small else None
