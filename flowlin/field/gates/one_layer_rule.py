"""Which sides the units of one hidden layer take up at an event: Filippov's rule."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from flowlin._tools.copies import copied
from flowlin._tools.loops import while_loop
from flowlin._tools.rounding import rounding_in
from flowlin._tools.types import Parameters
from flowlin.field.gates.box import box_qp
from flowlin.field.gates.one_layer import Forces, GatedFlow
from flowlin.field.gates.rule import AbstractRule, Piece
from flowlin.field.gates.sides import (
    FINE,
    NO_SLOTS,
    OFF,
    ON,
    SLIDING,
    UNSOLVED,
    Sides,
    gather,
    held,
    slots_of,
)
from flowlin.log.buffer import Buffer


class Situation(eqx.Module):
    """All that decisions at one point read, for all units."""

    codes: Int[Array, "H P"]
    c: Float[Array, "H P"]
    strength: Float[Array, "H P"]  # C of each kink
    near: Bool[Array, "H P"]  # |z| may be rounding
    upper: Bool[Array, "H P"]  # u is nearer to its bound than to zero


def situation(flow: GatedFlow, parameters: Parameters, sides: Sides) -> Situation:
    """The situation at these parameters, with the sides up to now."""
    parameters = lax.stop_gradient(parameters)
    frozen = lax.stop_gradient(flow.freeze(sides))
    forces: Forces = flow.forces(parameters, frozen.gates)
    u, bound = flow.fractions(forces, frozen)
    strength = flow.kinks.strength(forces.c)
    near = jnp.abs(forces.z) <= flow.rounding(parameters)
    return Situation(
        codes=sides.codes, c=forces.c, strength=strength, near=near, upper=2 * u > bound
    )


def side_of(u: Float[Array, " m"], bound: Float[Array, " m"]) -> Int[Array, " m"]:
    """Sides that u says, in the range from zero to its bound."""
    snap = rounding_in(u.dtype).snap
    return jnp.where(u <= snap * bound, OFF, jnp.where(u >= (1 - snap) * bound, ON, SLIDING))


def decide(
    flow: GatedFlow, at: Situation, unit: Array, fired: Bool[Array, " P"], slots: int
) -> Sides:
    """New sides of one unit, of which the leaders under `fired` had their event.

    A pair that ends its slide leaves at the end that its u reached. Where C >= 0 nothing slides:
    a fired pair crosses in the direction it came from, another one keeps its side. All others at
    their kinks settle among each other by the box-constrained quadratic program.

    **Returns:** the unit's row of `Sides`.
    """
    still = lax.stop_gradient
    codes, c, strength = at.codes[unit], at.c[unit], at.strength[unit]
    slides, x = codes == SLIDING, still(flow.kinks.x)
    left = jnp.where(at.upper[unit], ON, OFF).astype(codes.dtype)
    codes = jnp.where(fired, jnp.where(slides, left, jnp.where(strength < 0, codes, -codes)), codes)
    open_ = jnp.where(slides, ~fired, (fired | at.near[unit]) & (strength < 0))
    open_ = open_ & flow.kinks.leads

    # The open pairs on their off sides, the others as they are.
    at_base = flow.kinks.follow(jnp.where(open_, SLIDING, codes).astype(codes.dtype))
    velocity = (flow.kinks.gates(at_base, still(flow.network.slope)) * c) @ x
    chosen = slots_of(open_, slots)
    rows, there = gather(x, chosen), chosen < codes.shape[0]
    bound = still(flow.bound(gather(strength, chosen)))
    u, settled = box_qp(rows @ rows.T, rows @ velocity, jnp.maximum(bound, 0.0), there)
    side = side_of(u, bound).astype(codes.dtype)
    codes = codes.at[chosen].set(side, mode="drop")
    codes = flow.kinks.follow(codes)

    sliding = slots_of((codes == SLIDING) & flow.kinks.leads, slots)
    trouble = jnp.where(jnp.sum(open_) > slots, NO_SLOTS, jnp.where(settled, FINE, UNSOLVED))
    rows = held(gather(flow.kinks.x, sliding))
    return Sides(codes, sliding, *rows, trouble.astype(jnp.int8))


def initial_sides(flow: GatedFlow, parameters: Parameters, slots: int) -> Sides:
    """Sides at the start: the signs of z, and Filippov's rule for what starts at its kink.

    Where C >= 0 a pair at its kink is on if its z rises while it is off, else off
    (relu'(0) = 0): several flows may start there, and this is the one that descent takes.
    """
    z = lax.stop_gradient(flow.preactivations(parameters))
    near = (jnp.abs(z) <= flow.rounding(parameters)) & flow.kinks.leads
    codes = jnp.where((z > 0) & ~near, ON, OFF).astype(jnp.int8)
    codes = flow.kinks.follow(codes)
    sides = Sides.of(codes, slots, flow.kinks.x)
    at = situation(flow, parameters, sides)
    gates = flow.kinks.gates(codes, lax.stop_gradient(flow.network.slope))
    rises = (gates * at.c) @ flow.kinks.x @ flow.kinks.x.T > 0
    ups = near & (at.strength >= 0) & rises
    codes = jnp.where(ups, ON, codes).astype(jnp.int8)
    codes = flow.kinks.follow(codes)
    at = copied(at, codes=codes)

    def one(unit):
        none = jnp.zeros(codes.shape[1], bool)
        return decide(flow, at, unit, none, slots)

    tied = jnp.any(near & (at.strength < 0))
    units = jnp.arange(codes.shape[0])
    sides = copied(sides, codes=codes)
    return lax.cond(tied, lambda: lax.map(one, units), lambda: sides)


class UnitRule(AbstractRule):
    """Filippov's rule, unit by unit: one hidden layer, whose units do not push each other's z."""

    flow: GatedFlow
    slots: int = eqx.field(static=True)  # of one unit
    loop: str = eqx.field(static=True)  # kind of loops, see `flowlin._tools.loops`

    def start(self, parameters: Parameters) -> Sides:
        """Sides at the start."""
        return initial_sides(self.flow, parameters, min(self.slots, self.flow.task.samples))

    def switch(self, piece: Piece, sides: Sides, log: Buffer) -> tuple[Sides, Buffer]:
        """New sides for every unit with a fired pair, and the log of what changed."""
        at = situation(self.flow, piece.y1, sides)

        def body(carry):
            left, sides, log = carry
            unit = jnp.argmax(left)
            row = decide(self.flow, at, unit, piece.fired[unit], sides.slots.shape[1])
            first, old = unit * row.codes.size, sides.codes[unit]
            component = first + jnp.arange(old.size)
            log = log.append(piece.end, piece.uncertainty, component, old, row.codes)
            sides = jax.tree.map(lambda all_, one: all_.at[unit].set(one), sides, row)
            return left.at[unit].set(False), sides, log

        _, sides, log = while_loop(
            lambda carry: jnp.any(carry[0]),
            body,
            (jnp.any(piece.fired, axis=1), sides, log),
            kind=self.loop,  # pyright: ignore
            max_steps=sides.codes.shape[0],
        )
        return sides, log
