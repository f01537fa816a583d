"""State of a choice of sides in several layers: the event, the choice pass by pass, who rests."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8, PyTree

from flowlin._tools.arrays import Parameters
from flowlin.engine.kinks import unfed
from flowlin.engine.kinks.shared_kinks import SharedKinks
from flowlin.engine.kinks.sides import OFF, ON, TURNED, LayerSides


class SideChoice(eqx.Module):
    """Sides while they are chosen, pass by pass."""

    codes: Int[Array, "H P"]
    rates: Float[Array, "H P"]  # dz/dt at these sides
    still: Float[Array, "H P"]  # the `slide_bound` of pairs that do not move, else zero
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
    u: Float[Array, "H P"]  # of the sliding pairs, split among those that share a kink
    strength: Float[Array, "H P"]  # C of each kink, split alike
    strength_if_joined: Float[
        Array, "H P"
    ]  # the same, split among all that come to share it at the event
    fired: Bool[Array, "H P"]
    at_kink: Bool[Array, "H P"]  # |z| may be rounding
    is_leader: Bool[Array, "H P"]  # the first pair at each kink that comes to be shared


def rests_of(
    sides: LayerSides, near: Bool[Array, "H P"], before: Int8[Array, "H P"] | None
) -> Int8[Array, "H P"]:
    """Return `rests` of sides just chosen, of the pairs `near` their kinks; what was told stays so.

    A unit dies at its kink up to an error of the step, and does not move: a pair that rested before
    and moves at the new sides neither is as near as ever.
    """
    found = jnp.where(sides.codes == OFF, sides.rests, 0)
    rests = jnp.where(found == TURNED, 0, found)
    if before is None:
        return jnp.where(near, rests, 0)
    still = (found != 0) & (near | (before != 0))
    return jnp.where(still, jnp.where(before == TURNED, before, rests), 0)


def event_at(
    flow: Any,
    parameters: Parameters,
    sides: LayerSides,
    fired: Bool[Array, "H P"],
    near: Bool[Array, "H P"],
    shared: SharedKinks,
) -> KinkEvent:
    """Return the event of the pairs that `fired`, others being `near` their kinks.

    `shared` are the kinks as pairs share them with those at theirs off.
    """
    full, u = flow.pass_with_slides(parameters, flow.fix_sides(sides))
    split, drive = flow.splitter(full, sides.shares), flow.kink_drive(full.drive)
    u, strength = split(u), split(drive)
    joined = strength if shared.split is None else shared.split(drive)
    leads = shared.is_leader
    return KinkEvent(parameters, sides, full, u, strength, joined, fired, near, leads)


def exit_ray(flow: Any, event: KinkEvent, fired: Bool[Array, "H P"]) -> Float[Array, "H P"]:
    """Return the ray along which pairs leave their slides together, zero for all others."""
    margin, ray = flow.joint_exit(event.parameters, event.sides.codes, event.full_pass, event.u)
    alone = jnp.minimum(event.u, flow.slide_bound(event.strength) - event.u)
    leaves = flow.apply_across_layers(unfed.any_in_layer, fired & (margin < alone))
    return jnp.where(leaves, ray, 0.0)


def rates_with_push(
    flow: Any, parameters: Parameters, codes: Array, rates: Array, silent: UnfedAbove
) -> Float[Array, "H P"]:
    """Return dz/dt, where pairs without inputs move as pairs below leave their kinks.

    A pair that leaves its slide starts at rest: it counts as rising at a tiny rate.
    """
    above, least = silent.unfed, jnp.sqrt(jnp.finfo(rates.dtype).tiny)
    rising = jnp.where(silent.exit_ray > 0, least * silent.exit_ray, jnp.maximum(rates, least))
    rising = jnp.where((codes == ON) & ~above, rising, 0.0)
    return jnp.where(above, flow.rates_of_unfed(parameters, above, rising), rates)
