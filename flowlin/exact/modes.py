"""Modes of the (unit, sample) pairs, and the kinks that samples share."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

OFF, SLIDING, ON = -1, 0, 1
# What can go wrong at an event.
FINE, NO_SLOTS, UNSOLVED, TWO_LAYERS = 0, 1, 2, 3


class Kinks(eqx.Module):
    r"""The hyperplanes z = 0 in the space of a unit's $\tilde w = [b; w]$, one per direction.

    Samples whose inputs $\tilde x = [c; x]$ are multiples of each other, $\tilde x_i = \alpha_i
    \tilde x_r$, share one kink: their gates are not free of each other there. The first sample
    of each direction leads (`leader[i] = r`), the others follow with mode sign(alpha_i) times
    the leader's. The jump of a unit's velocity across the kink is along $\tilde x_r$, with the
    strength $C_r = \sum_i |\alpha_i| C_{ji}$ over the direction's samples.
    """

    x: Float[Array, "P N"]  # rows x~, the constant in front if the hidden layer has a bias
    leader: Int[Array, " P"]
    scale: Float[Array, " P"]  # alpha
    leads: Bool[Array, " P"]
    shared: Bool[Array, ""]  # whether any kink has more than one sample

    @staticmethod
    def of(x: Float[Array, "P N"], share: str = "line") -> "Kinks":
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
        return Kinks(x, leader, scale, (leader == own) & (square > 0), jnp.any(leader != own))

    def strength(self, c: Float[Array, "H P"]) -> Float[Array, "H P"]:
        """C summed over the samples of each kink, at its leader."""

        def summed(c):
            member = self.leader[:, None] == jnp.arange(self.leader.shape[0])
            return (c * jnp.abs(self.scale)) @ member.astype(c.dtype)

        return lax.cond(self.shared, summed, lambda c: c, c)

    def follow(self, codes: Int[Array, "... P"]) -> Int[Array, "... P"]:
        """Modes of all samples from those of the leaders."""
        return codes[..., self.leader] * jnp.sign(self.scale).astype(codes.dtype)

    def gates(self, codes: Int[Array, "... P"], slope: Any) -> Float[Array, "... P"]:
        """Gates to the modes. A sliding kink counts as on its leader's off side.

        The rest of its gate acts through the projection of the velocity.
        """
        on = (codes == ON) | ((codes == SLIDING) & (self.scale < 0))
        return jnp.where(on, 1.0, jnp.asarray(slope, self.x.dtype))


class Modes(eqx.Module):
    """The mode of every pair, and the sliding pairs of each unit in m slots.

    - `codes`: OFF, SLIDING or ON.
    - `slots`: leaders that slide, in ascending order; P in empty slots.
    - `inverse`: pseudo-inverse of the slots' Gram matrix, zero in empty slots.
    - `trouble`: what went wrong, FINE as long as nothing did.
    """

    codes: Int[Array, "H P"]
    slots: Int[Array, "H m"]
    inverse: Float[Array, "H m m"]
    trouble: Int[Array, ""]

    @staticmethod
    def of(codes: Int[Array, "H P"], slots: int, dtype: Any) -> "Modes":
        """Modes of which none slides."""
        units, samples = codes.shape
        return Modes(
            codes.astype(jnp.int8),
            jnp.full((units, slots), samples, jnp.int32),
            jnp.zeros((units, slots, slots), dtype),
            jnp.asarray(FINE, jnp.int8),
        )


def slots_of(chosen: Bool[Array, " P"], slots: int) -> Int[Array, " m"]:
    """The chosen samples in ascending order, padded with P."""
    return jnp.nonzero(chosen, size=slots, fill_value=chosen.shape[0])[0].astype(jnp.int32)


def gather(rows: Float[Array, "P ..."], slots: Int[Array, "*s"]) -> Array:
    """The slots' rows, zero in empty slots."""
    return rows.at[slots].get(mode="fill", fill_value=0)


def pseudo_inverse(gram: Float[Array, "m m"]) -> Float[Array, "m m"]:
    r"""Moore-Penrose inverse of a positive semi-definite matrix, constant to derivatives.

    Eigenvalues below 1e-10 of the largest are dropped.
    """
    values, vectors = jnp.linalg.eigh(lax.stop_gradient(gram))
    keep = values > 1e-10 * jnp.maximum(values[-1], jnp.finfo(gram.dtype).tiny)
    return (vectors * jnp.where(keep, 1 / jnp.where(keep, values, 1.0), 0.0)) @ vectors.T


def slot_inverse(x: Float[Array, "m N"]) -> Float[Array, "m m"]:
    """Pseudo-inverse B of K = x x^T with the derivative of an inverse, as 2B - B K B."""
    b = pseudo_inverse(x @ x.T)
    return 2 * b - b @ (x @ x.T) @ b
