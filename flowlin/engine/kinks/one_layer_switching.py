"""Choose sides of the units of one hidden layer at an event: Filippov's rule, unit by unit."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flowlin._tools.arrays import Parameters, replace_fields
from flowlin._tools.numerics import dtype_rounding, largest_number, while_loop
from flowlin.engine.kinks.one_layer import Forces, OneLayerFlow, sides_with_slots
from flowlin.engine.kinks.sides import (
    NO_SIDES,
    NO_SLOTS,
    OFF,
    ON,
    RESOLVED,
    RESTS,
    SLIDING,
    TURNED,
    AbstractSwitching,
    Piece,
    Sides,
    minimise_in_box,
    rows_in_slots,
    slide_constraint,
    slots_of,
)
from flowlin.engine.kinks.starts import log_starts
from flowlin.record.branch_reason import CROSSES, MEETS, REVIVES, SLIDE_TURNS
from flowlin.record.buffer import EventBuffer


class PointState(eqx.Module):
    """The point at which sides are chosen: all that the choice reads, for all units."""

    codes: Int[Array, "H P"]
    drive: Float[Array, "H P"]
    kink_drive: Float[Array, "H P"]  # C of each kink
    at_kink: Bool[Array, "H P"]  # |z| may be rounding
    nearer_bound: Bool[Array, "H P"]  # u is nearer to its bound than to zero
    drift: Float[Array, "H N"] | None  # as `OneLayerFlow.drift`
    rests: Int[Array, "H P"]  # as in `Sides`
    turns: Bool[Array, "H P"]  # the kink attracts no more and does not repel yet: C = 0


def point_state(flow: OneLayerFlow, parameters: Parameters, sides: Sides) -> PointState:
    """Return the situation at these parameters, with the sides up to now."""
    parameters = lax.stop_gradient(parameters)
    frozen = lax.stop_gradient(flow.fix_sides(sides))
    forces: Forces = flow.forces_at(parameters, frozen.gates)
    u, strength = flow.slide_and_drive(parameters, forces, frozen)
    near = jnp.abs(forces.z) <= flow.z_rounding(parameters)
    return PointState(
        codes=sides.codes,
        drive=forces.drive,
        kink_drive=strength,
        at_kink=near,
        nearer_bound=2 * u > flow.slide_bound(strength),
        drift=flow.drift(parameters),
        rests=sides.rests,
        turns=drive_vanishes(strength, forces.error, parameters),
    )


def drive_vanishes(
    drive: Float[Array, "H P"], error: Float[Array, "A B"], parameters: Parameters
) -> Bool[Array, "H P"]:
    """Tell where C is zero but for rounding, beside the errors and the weights as they are.

    A slide that ends there has u and its bound at zero at once, as where its readout passes zero.
    After convergence all C are small, and so are the errors.
    """
    largest = largest_number(jax.tree.leaves(parameters))
    scale = dtype_rounding(drive.dtype).snap * jnp.max(jnp.abs(error)) * largest
    return jnp.abs(drive) <= scale


def meets_by_chance(meets: Bool[Array, "H P"], codes: Int[Array, "H P"]) -> Bool[Array, "H P"]:
    """Tell which of the leaders at their kinks are met at once though nothing leads there.

    Weights along an axis or symmetric samples do this, where pairs of the unit that slide do not
    hold its weights. Starts beside meet the kinks one by one, in one order or another. Where all
    attract, the loss nearby is convex and they go the same way; where one repels they may not.
    """
    alone = (jnp.sum(meets, axis=1) > 1) & ~jnp.any(codes == SLIDING, axis=1)
    return meets & alone[:, None]


def side_from_signal(u: Float[Array, " m"], bound: Float[Array, " m"]) -> Int[Array, " m"]:
    """Return the sides that u says, in the range from zero to its bound."""
    snap = dtype_rounding(u.dtype).snap
    return jnp.where(u <= snap * bound, OFF, jnp.where(u >= (1 - snap) * bound, ON, SLIDING))


def choose_unit_sides(
    flow: OneLayerFlow, at: PointState, unit: Array, fired: Bool[Array, " P"], slots: int
) -> Sides:
    """Choose new sides of one unit, of which the leaders under `fired` had their event.

    A pair that ends its slide leaves at the end that its u reached. Where C >= 0 nothing slides:
    a fired pair crosses in the direction it came from, another one keeps its side. All others at
    their kinks settle among each other by the box-constrained quadratic program. A pair at whose
    kink a unit rests fires where that turns to repel (C > 0). There are then two flows. In
    descent's, relu'(0) = 0, the unit stays dead; in that of smooth gates the pair fires once more,
    where it comes on.

    **Returns:** the unit's row of `Sides`.
    """
    still = lax.stop_gradient
    codes, c, strength = at.codes[unit], at.drive[unit], at.kink_drive[unit]
    slides, x = codes == SLIDING, still(flow.kinks.x)
    left, turns = jnp.where(at.nearer_bound[unit], ON, OFF), fired & (at.rests[unit] == RESTS)
    crossed = jnp.where((strength < 0) | turns, codes, -codes)
    codes = jnp.where(fired, jnp.where(slides, left, crossed), codes).astype(codes.dtype)
    open_ = jnp.where(slides, ~fired, (fired | at.at_kink[unit]) & (strength < 0))
    open_ = open_ & flow.kinks.is_leader

    # The open pairs on their off sides, the others as they are.
    at_base = flow.kinks.sides_of_followers(jnp.where(open_, SLIDING, codes).astype(codes.dtype))
    velocity = (flow.kinks.gates(at_base, still(flow.network.slope)) * c) @ x
    velocity = velocity if at.drift is None else velocity + at.drift[unit]
    chosen = slots_of(open_, slots)
    rows, there = rows_in_slots(x, chosen), chosen < codes.shape[0]
    bound = still(flow.slide_bound(rows_in_slots(strength, chosen)))
    u, settled = minimise_in_box(rows @ rows.T, rows @ velocity, jnp.maximum(bound, 0.0), there)
    side = side_from_signal(u, bound).astype(codes.dtype)
    codes = codes.at[chosen].set(side, mode="drop")
    codes = flow.kinks.sides_of_followers(codes)

    sliding = slots_of((codes == SLIDING) & flow.kinks.is_leader, slots)
    trouble = jnp.where(jnp.sum(open_) > slots, NO_SLOTS, jnp.where(settled, RESOLVED, NO_SIDES))
    rows = slide_constraint(rows_in_slots(flow.kinks.x, sliding))
    # A pair that has just fired is at its kink up to an error of the step.
    still_there = flow.is_still(codes) & (at.at_kink[unit] | fired) & flow.kinks.is_leader
    turned = turns | (at.rests[unit] == TURNED)
    rests = jnp.where(still_there, jnp.where(turned, TURNED, jnp.where(strength < 0, RESTS, 0)), 0)
    return Sides(codes, sliding, *rows, rests.astype(jnp.int8), trouble.astype(jnp.int8))


class _Start(NamedTuple):
    """A start whose pairs at their kinks, `near`, are off: its sides and the point."""

    sides: Sides
    at: PointState
    near: Bool[Array, "H P"]
    rates: Float[Array, "H P"]  # tau times dz/dt


def _start_below_kinks(flow: OneLayerFlow, parameters: Parameters, slots: int) -> _Start:
    """Return the situation at the start, with the pairs that are at their kinks off."""
    z = lax.stop_gradient(flow.preactivations(parameters))
    near = (jnp.abs(z) <= flow.z_rounding(parameters)) & flow.kinks.is_leader[None]
    codes = jnp.where((z > 0) & ~near, ON, OFF).astype(jnp.int8)
    codes = flow.kinks.sides_of_followers(codes)
    sides = Sides.none_sliding(codes, slots, flow.kinks.x)
    at = point_state(flow, parameters, sides)
    gates = flow.kinks.gates(codes, lax.stop_gradient(flow.network.slope))
    velocity = (gates * at.drive) @ flow.kinks.x
    velocity = velocity if at.drift is None else velocity + at.drift
    return _Start(sides, at, near, velocity @ flow.kinks.x.T)


def initial_sides(flow: OneLayerFlow, parameters: Parameters, slots: int) -> Sides:
    """Choose sides at the start: the signs of z, and Filippov's rule for pairs at their kinks.

    Where C >= 0 a pair at its kink is on if its z rises while it is off, else off
    (relu'(0) = 0): several flows may start there, and this is the one that descent takes.
    """
    sides, at, near, rates = _start_below_kinks(flow, parameters, slots)
    ups = near & (at.kink_drive >= 0) & (rates > 0)
    codes = jnp.where(ups, ON, sides.codes).astype(jnp.int8)
    codes = flow.kinks.sides_of_followers(codes)
    at = replace_fields(at, codes=codes)

    def choose_unit(unit):
        none = jnp.zeros(codes.shape[1], bool)
        return choose_unit_sides(flow, at, unit, none, slots)

    tied = jnp.any(near & (at.kink_drive < 0))
    units = jnp.arange(codes.shape[0])
    sides = replace_fields(sides, codes=codes)
    return lax.cond(tied, lambda: lax.map(choose_unit, units), lambda: sides)


def may_start_on_either_side(
    flow: OneLayerFlow, parameters: Parameters, slots: int
) -> Bool[Array, "H P"]:
    r"""Tell from which pairs two flows start: at kinks that repel, where both sides go on.

    At z = 0 the rate of z is r with the pair off and $r + (1 - s) C |\tilde x|^2$ with it on, all
    others at their kinks off. With C > 0, the first not positive and the second positive, the pair
    may stay off, as in descent (relu'(0) = 0), or come on, as with smooth gates.
    """
    _, at, near, rates = _start_below_kinks(flow, parameters, slots)
    steeper = 1 - lax.stop_gradient(flow.network.slope)
    on = rates + steeper * at.kink_drive * jnp.sum(flow.kinks.x**2, axis=1)[None]
    repels = at.kink_drive > lax.stop_gradient(flow.drive_rounding(parameters, at.drive))
    return near & repels & (rates <= 0) & (on > 0)


class OneLayerSwitching(AbstractSwitching):
    """Filippov's rule, unit by unit: one hidden layer, whose units do not push each other's z."""

    flow: OneLayerFlow
    slots: int = eqx.field(static=True)  # sliding pairs of one unit at most
    loop_kind: str = eqx.field(static=True)  # kind of loops, see `flowlin._tools.numerics`
    starts_at_kink: bool = eqx.field(static=True, default=True)  # as in `Method`

    def start_sides(self, parameters: Parameters) -> Sides:
        """Return the sides at the start."""
        slots = min(self.slots, self.flow.task.samples)
        if self.starts_at_kink:
            return initial_sides(self.flow, parameters, slots)
        z = lax.stop_gradient(self.flow.preactivations(parameters))
        codes = self.flow.kinks.sides_of_followers(jnp.where(z > 0, ON, OFF).astype(jnp.int8))
        return Sides.none_sliding(codes, slots, self.flow.kinks.x)

    def log_start(self, parameters: Parameters, t0: ArrayLike, log: EventBuffer) -> EventBuffer:
        """Return the log with a branch for each pair that may start on either side."""
        if not self.starts_at_kink:
            return log
        slots = min(self.slots, self.flow.task.samples)
        return log_starts(may_start_on_either_side(self.flow, parameters, slots), t0, log)

    def switch_sides(
        self, piece: Piece, sides: Sides, log: EventBuffer
    ) -> tuple[Sides, EventBuffer]:
        """Return new sides for every unit with a fired pair, and the log of what changed.

        A branch is logged as a change of the component that is H P beyond its pair's: where a kink
        turns to repel a unit that rests on it or a pair that slides on it, and where a unit crosses
        kinks that repel where more of its kinks meet than it has inputs, as at weights of zero, or
        several by chance.
        """
        at = point_state(self.flow, piece.y1, sides)
        crosses = self._why_crossing_may_branch(piece, at)
        crosses = jnp.where(sides.rests == TURNED, 0, crosses)
        reasons = jnp.where(sides.rests == RESTS, REVIVES, crosses)
        slid = sides.codes == SLIDING
        reasons = jnp.where(slid & at.turns, SLIDE_TURNS, reasons).astype(jnp.int8)

        def switch_unit(carry):
            left, sides, log = carry
            unit = jnp.argmax(left)
            row = choose_unit_sides(self.flow, at, unit, piece.fired[unit], sides.slots.shape[1])
            pairs = unit * row.codes.size + jnp.arange(row.codes.size)
            branch = jnp.where(piece.fired[unit], reasons[unit], 0).astype(jnp.int8)
            log = log.append(
                piece.end,
                piece.uncertainty,
                jnp.concatenate([pairs, pairs + sides.codes.size]),
                jnp.concatenate([sides.codes[unit], jnp.zeros_like(branch)]),
                jnp.concatenate([row.codes, branch]),
                piece.shift,
            )
            sides = jax.tree.map(lambda all_, one: all_.at[unit].set(one), sides, row)
            return left.at[unit].set(False), sides, log

        _, sides, log = while_loop(
            lambda carry: jnp.any(carry[0]),
            switch_unit,
            (jnp.any(piece.fired, axis=1), sides, log),
            kind=self.loop_kind,  # pyright: ignore
            max_steps=sides.codes.shape[0],
        )
        return sides, log

    def _why_crossing_may_branch(self, piece: Piece, at: PointState) -> Int[Array, "H P"]:
        """Return reasons of pairs at kinks that repel, where several kinks of their unit meet.

        If there are more than inputs, their gradients depend on each other, and the loss nearby is
        not convex: descent may leave the point on another ray, or stay with the unit off.
        """
        kinks = self.flow.kinks
        meet = (at.at_kink | piece.fired) & kinks.is_leader[None]
        many = jnp.sum(meet, axis=1, keepdims=True) > kinks.x.shape[1]
        rounding = self.flow.drive_rounding(lax.stop_gradient(piece.y1), at.drive)
        repels = (at.codes != SLIDING) & (at.kink_drive > rounding)
        chance = meets_by_chance(meet & (at.rests == 0), at.codes)
        return jnp.where(repels, jnp.where(many, CROSSES, jnp.where(chance, MEETS, 0)), 0)

    def in_own_slots(self, sides: Sides) -> Sides:
        """Return sides that were found with fewer slots in as many as this rule has."""
        slots = min(self.slots, self.flow.task.samples)
        own = sides_with_slots(self.flow.kinks, sides.codes, slots)
        return replace_fields(own, rests=sides.rests)
