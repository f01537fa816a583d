"""State of a choice of sides in several layers: the event, the choice pass by pass, who rests."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8, PyTree

from flowlin._tools.arrays import Parameters
from flowlin.engine.kinks.sides import OFF, TURNED, LayerSides


class SideChoice(eqx.Module):
    """Sides while they are chosen, pass by pass."""

    codes: Int[Array, "H P"]
    rates: Float[Array, "H P"]  # dz/dt at these sides
    held: Bool[Array, "H P"]  # pairs that do not move, at kinks that would attract them
    settled: Bool[Array, ""]
    count: Int[Array, ""]


class UnfedAbove(eqx.Module):
    """Pairs without inputs, above pairs at their kinks in a layer that sends nothing."""

    unfed: Bool[Array, "H P"]  # the pairs without inputs
    feeds: Bool[Array, "H P"]  # pairs at their kinks, below the former
    first_sides: Int[Array, "H P"]  # sides that a choice begins with
    pushed_apart: Bool[Array, "H P"]  # pairs above that may slide
    exit_ray: Float[Array, "H P"]  # along which pairs leave their slides together


class KinkEvent(eqx.Module):
    """An event: the point at which some pairs had it, and all that held before it."""

    parameters: Parameters
    sides: LayerSides
    full_pass: PyTree
    u: Float[Array, "H P"]  # of the sliding pairs
    fired: Bool[Array, "H P"]
    at_kink: Bool[Array, "H P"]  # |z| may be rounding


def rests_of(
    sides: LayerSides, near: Bool[Array, "H P"], before: Int8[Array, "H P"] | None
) -> Int8[Array, "H P"]:
    """Return `rests` of new sides, of the pairs `near` their kinks; what was told stays so."""
    rests = jnp.where(near & (sides.codes == OFF), sides.rests, 0)
    if before is None:
        return rests
    return jnp.where((before == TURNED) & near & (sides.codes == OFF), before, rests)
