r"""Choose sides in all layers at an event: Filippov's rule for any number of layers.

**The set.** Near its kinks the loss is, but for a smooth part, a piecewise-linear function $\ell$
of the z of the pairs there. Let $w_p$ be the mean signal that a pair p sends back, its gate times
$C_p = -\partial L / \partial h_p$, as descent's chatter averages it, or as the smoothed ReLU has
it. Lower layers are sent w, so $C_p(w) = A_p + \sum_q W_{qp} w_q$, over the pairs q of the next
layer in the same sample and the chains through units that are on, is *linear* in w. The origin is
a local minimum of $\ell + \sum_p w_p z_p$ if and only if

$$C_p(w) \le w_p \le s\, C_p(w) \quad \text{for every pair } p,$$

s being the slope of the off side (0 for ReLU). For the top layer, with $\gamma = -C > 0$ and $r =
\sum_j W_j \sigma(y_j)$ of the pairs below, $\min_z (\gamma \sigma(z + r) - b z) = b r$ if $s
\gamma \le b \le \gamma$, else minus infinity: the top pair drops out and adds $b W_j$ to the
coefficient of each $\sigma(y_j)$ below. Layer by layer this gives the product polytope above, the
regular (Frechet) subgradients of the loss: a convex set.

**The velocity** is -1 times its element of least norm, $f + \Phi^T w$ (`DeepFlow`; metric of
1/tau). The conditions of Karush, Kuhn and Tucker of that quadratic program are the rule: dz/dt > 0
goes with $w = C$ (on), dz/dt < 0 with $w = s C$ (off), and dz/dt = 0 with w in between (sliding):
one unknown and one condition per pair, whatever the depth. In the code $u = s C - w \ge 0$.

**Uniqueness.** Clarke's subdifferential lets the gates of one sample's layers be correlated, as
descent's are; then C has no single value. If $C_p(g) \le 0$ for every choice g of the gates above,
for each p, then $-C_p \sigma(z_p) = \max_{g_p} (-g_p C_p z_p)$ layer by layer; $\ell$ is a maximum
of linear functions, so convex, and the two sets are one: the flow is unique.
`DeepFlow.drive_bounds` bounds C over all those choices. Where the upper bound of a pair that leaves
its slide to on is positive, descent can stay on the kink though the origin is no minimum any more.
The walk takes the exit, as the smoothed ReLU does in the limit, and notes a *branch*.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Int8

from flowlin._tools.arrays import Parameters, replace_fields
from flowlin._tools.numerics import dtype_rounding
from flowlin.engine.kinks import unfed
from flowlin.engine.kinks.blow_up import descend_from
from flowlin.engine.kinks.module_flow import ModuleFlow
from flowlin.engine.kinks.one_layer_switching import (
    drive_vanishes,
    meets_by_chance,
    side_from_signal,
)
from flowlin.engine.kinks.side_choice import (
    KinkEvent,
    SideChoice,
    UnfedAbove,
    event_at,
    exit_ray,
    rates_with_push,
    rests_of,
)
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
    LayerSides,
    Piece,
    read_slots,
    slots_of,
    solve_gram,
    write_slots,
)
from flowlin.engine.kinks.starts import log_starts, pairs_that_start_either_way
from flowlin.record.branch_reason import (
    COARSE_DESCENT,
    LEAVES_SLIDE,
    MEETS,
    REVIVES,
    SLIDE_TURNS,
    UNDECIDED_DESCENT,
)
from flowlin.record.buffer import EventBuffer

BLOCK_PASSES = 12  # in which all wrong sides change at once, before the last one alone
MAX_STARTS = 32  # of one choice at most, each with another selection of rising pairs
EMPTY_RANGE_PASSES = 100  # passes in which a pair with an empty range has to be off before it is on
MAX_PASSES = 300  # before a choice of sides counts as unsolved


class DeepSwitching(AbstractSwitching):
    """Filippov's rule for all layers together, since all pairs at kinks push each other's z."""

    flow: Any  # `DeepFlow` or `ModuleFlow`
    slots: int = eqx.field(static=True)  # sliding pairs of all layers at most
    starts_at_kink: bool = eqx.field(static=True, default=True)  # as in `Method`

    def start_sides(self, parameters: Parameters) -> LayerSides:
        """Return the sides at the start: signs of z; what starts at its kink as for one layer."""
        flow, parameters = self.flow, lax.stop_gradient(parameters)
        z = jnp.concatenate(flow.forward_pass(parameters, None).z)
        if not self.starts_at_kink:
            return self._with_sharers(
                self._layer_sides(flow.sides_of_followers(jnp.where(z > 0, ON, OFF)))
            )
        near = flow.is_at_kink(parameters)
        codes = flow.sides_of_followers(jnp.where((z > 0) & ~near, ON, OFF).astype(jnp.int8))
        tied = flow.fix_sides(self._layer_sides(jnp.where(near, SLIDING, codes)))
        can_slide = flow.drive_bounds(parameters, tied)[0] < 0  # for some gates above it
        passes = flow.both_passes(parameters, flow.gates(codes))
        rises = flow.preactivation_rates(parameters, passes) > 0
        codes = jnp.where(near & ~can_slide & rises, ON, codes).astype(jnp.int8)
        sides = lax.cond(
            jnp.any(near & can_slide),
            lambda: self._choose_open_sides(parameters, codes, near & can_slide)[0],
            lambda: self._layer_sides(flow.sides_of_followers(codes)),
        )
        return self._with_sharers(replace_fields(sides, rests=rests_of(sides, near, None)))

    def log_start(self, parameters: Parameters, t0: ArrayLike, log: EventBuffer) -> EventBuffer:
        """Return the log with a branch for each pair that may start on either side."""
        if not self.starts_at_kink:
            return log
        return log_starts(pairs_that_start_either_way(self.flow, parameters), t0, log)

    def switch_sides(
        self, piece: Piece, sides: LayerSides, log: EventBuffer
    ) -> tuple[LayerSides, EventBuffer]:
        """Return the sides after the event at the end of a piece, and the log of what changed.

        A branch is logged as a change of the component that is H P beyond its pair's.
        """
        pairs = jnp.arange(sides.codes.size)

        def log_changes():
            new, reasons = self._decide_sides(lax.stop_gradient(piece.y1), sides, piece.fired)
            branch = reasons.ravel()
            more = log.append(
                piece.end,
                piece.uncertainty,
                jnp.concatenate([pairs, pairs + pairs.size]),
                jnp.concatenate([sides.codes.ravel(), jnp.zeros_like(branch)]),
                jnp.concatenate([new.codes.ravel(), branch]),
                piece.shift,
            )
            return new, more

        return lax.cond(jnp.any(piece.fired), log_changes, lambda: (sides, log))

    def in_own_slots(self, sides: LayerSides) -> LayerSides:
        """Return sides that were found with fewer slots in as many as this rule has."""
        own = self._layer_sides(sides.codes, rests=sides.rests)
        return replace_fields(own, certificate=sides.certificate, shares=sides.shares)

    def _decide_sides(
        self, parameters: Parameters, sides: LayerSides, fired: Array
    ) -> tuple[LayerSides, Int8[Array, "H P"]]:
        """Return the new sides, and why the flow may not be unique from here on at a pair, or 0.

        A pair at whose kink a dead unit rests fires where that turns to repel. There are then two
        flows, and this is descent's: relu'(0) = 0, and the unit stays dead.
        """
        flow = self.flow
        near = flow.is_at_kink(parameters, widely=not flow.feeds_all)
        at_kinks = near | fired | (sides.codes == SLIDING)
        shared = flow.sharers_at(sides.codes, at_kinks)
        near = near | (shared.pairs & flow.is_leader)
        rests, here = sides.rests == RESTS, near | fired  # fired: up to an error of the step
        turns, fired = fired & rests, fired & ~rests
        at, doubt = (sides, fired, near), jnp.zeros((), jnp.int8)
        if isinstance(flow, ModuleFlow):
            at = self._with_pairs_above(parameters, *at)
        event = event_at(flow, parameters, *at, shared)
        if isinstance(flow, ModuleFlow):
            new, doubt = self._check_by_descent(event, self._new_sides(event))
        elif flow.feeds_all:
            new = self._new_sides(event)
        else:
            new, doubt = self._check_by_descent(event, self._choose_with_unfed(event))
        # Nothing has changed, and the event would come again after the shortest of steps.
        stuck = (doubt != 0) & jnp.all(new.codes == sides.codes)
        new = replace_fields(new, failure=jnp.where(stuck, NO_SIDES, new.failure))
        slides = (sides.codes == SLIDING) & flow.is_leader
        highest, strength = flow.drive_bounds(parameters, flow.fix_sides(sides))[1], event.strength
        doubtful = highest > dtype_rounding(highest.dtype).snap * jnp.abs(strength)
        reasons = jnp.where(slides & (new.codes == ON) & doubtful, LEAVES_SLIDE, 0)
        if isinstance(flow, ModuleFlow) or not flow.feeds_all:
            reasons = jnp.where(fired & flow.is_leader & (reasons == 0), doubt, reasons)
        chance = meets_by_chance(here & flow.is_leader & (sides.rests == 0), sides.codes)
        chance = chance & fired & flow.meet_another_kink(parameters, event.full_pass, chance)
        chance = chance & (strength > flow.drive_rounding(parameters)) & (reasons == 0)
        reasons = jnp.where(chance, MEETS, reasons)
        vanishes = drive_vanishes(strength, event.full_pass.output_error, parameters)
        reasons = jnp.where(slides & fired & vanishes, SLIDE_TURNS, reasons)
        branch = reasons != 0
        first = jnp.max(jnp.where(branch, highest, -jnp.inf))
        first = jnp.where(jnp.any(branch) & jnp.isnan(sides.certificate), first, sides.certificate)
        if not (isinstance(flow, ModuleFlow) or flow.feeds_all):
            turns = turns & ~flow.is_unfed(new.codes)  # whose C is no pull on its unit any more
        told, switches = jnp.where(turns, TURNED, sides.rests).astype(jnp.int8), jnp.any(fired)
        new = replace_fields(new, certificate=first, rests=rests_of(new, here, told))
        new = self._with_sharers(new)
        sides = replace_fields(sides, rests=told)
        new = jax.tree.map(lambda a, b: jnp.where(switches, a, b), new, sides)
        turns = turns & near if flow.may_drift else turns
        reasons = jnp.where(turns, REVIVES, jnp.where(switches, reasons, 0))
        return new, reasons.astype(jnp.int8)

    def _with_pairs_above(
        self, parameters: Parameters, sides: LayerSides, fired: Array, near: Array
    ) -> tuple[LayerSides, Array, Array]:
        """Give pairs that only pairs at their kinks feed the sides that these would send them to.

        Such a pair has z = 0 until one below it rises, and its gate counts from then on alone: the
        drive below is that with the gate that a rise would give it.

        **Returns:** the sides, and which pairs fired and which are near their kinks beside these.
        """
        flow = self.flow
        pairs = flow.with_followers(fired | near | (sides.codes == SLIDING))
        above, codes = flow.sides_above(parameters, sides.codes, pairs)
        own = self._layer_sides(codes, sides.failure, sides.rests)
        own = replace_fields(own, certificate=sides.certificate, shares=sides.shares)
        return own, fired & ~above, near & ~above

    def _new_sides(self, event: KinkEvent, silent: UnfedAbove | None = None) -> LayerSides:
        """Return the new sides after an event."""
        flow, sides, u = self.flow, event.sides, event.u
        fired, near = event.fired, event.at_kink
        strength, slides = event.strength, (sides.codes == SLIDING) & flow.is_leader
        left = jnp.where(2 * u > flow.slide_bound(strength), ON, OFF).astype(jnp.int8)
        open_ = (
            jnp.where(slides, ~fired, (fired | near) & (event.strength_if_joined < 0))
            & flow.is_leader
        )
        if silent is not None:
            left = jnp.where(silent.exit_ray > 0, ON, left)
            open_ = open_ | (
                (silent.pushed_apart | silent.feeds & ~(fired & slides)) & flow.is_leader
            )
        crosses = fired & ~slides & ~open_
        codes = jnp.where(fired & slides, left, jnp.where(crosses, -sides.codes, sides.codes))
        return self._choose_around_fixed(event.parameters, codes, open_, crosses, silent)

    def _choose_with_unfed(self, event: KinkEvent) -> LayerSides:
        """Return the new sides where inputs of pairs may be zero (`flowlin.engine.kinks.unfed`).

        A pair that only pairs at their kinks feed reaches z = 0 with them: the event is theirs, and
        it chooses with them, unless its weights are rounding. The loss is not convex there, and the
        choice may circle; it then begins again where a selection of feeding pairs rises.
        """
        flow, parameters, codes = self.flow, event.parameters, event.sides.codes
        tied = flow.with_followers(event.fired | event.at_kink)
        idle = flow.is_unfed(jnp.where(tied, SLIDING, codes))
        left = flow.apply_across_layers(unfed.any_above, event.fired & idle)
        reached = flow.any_of_kink(tied & left & (codes == ON))
        fired = (event.fired | (event.at_kink & reached)) & ~idle
        near = event.at_kink & ~idle
        at_kinks = flow.with_followers(fired | near | (codes == SLIDING)) & ~idle
        above = flow.apply_across_layers(unfed.any_below, at_kinks)
        above = above & idle & ~flow.has_no_weights(parameters)
        feeds = at_kinks & flow.apply_across_layers(unfed.any_above, above)
        ranks = flow.apply_across_layers(unfed.rank_in_layer, feeds)
        ray = exit_ray(flow, event, fired)
        together = flow.apply_across_layers(unfed.several_in_sample, ray > 0)
        event = dataclasses.replace(event, fired=fired | (ray > 0), at_kink=near)
        torn = self._is_pushed_apart(parameters, codes, above, feeds)

        def choose_once(state):
            _, count = state
            rises = feeds & ((count == 0) | ((count >> jnp.maximum(ranks, 0)) % 2 == 1))
            along = jnp.where(together, ray, rises.astype(ray.dtype))
            push = flow.rates_of_unfed(parameters, above, along)
            first = jnp.where((count > 0) & rises, ON, jnp.sign(push)).astype(codes.dtype)
            silent = UnfedAbove(above, feeds, first, torn & ((count > 0) | together), ray)
            new = self._new_sides(event, silent)
            holds = self._choice_holds(parameters, new) | (new.failure == NO_SLOTS)
            trouble = jnp.where(holds, new.failure, NO_SIDES).astype(new.failure.dtype)
            return replace_fields(new, failure=trouble), count + 1

        def is_unsolved(state):
            new, count = state
            return (count == 0) | ((new.failure == NO_SIDES) & (count < MAX_STARTS))

        new = lax.while_loop(is_unsolved, choose_once, (event.sides, jnp.zeros((), int)))[0]
        # A pair that slid and has no inputs any more cannot slide.
        codes = flow.rest_unfed(parameters, new.codes).astype(jnp.int8)
        return self._layer_sides(flow.sides_of_followers(codes), new.failure, new.rests)

    def _check_by_descent(
        self, event: KinkEvent, new: LayerSides
    ) -> tuple[LayerSides, Int8[Array, ""]]:
        """Hold new sides against descent through the point (`flowlin.engine.kinks.blow_up`).

        Only where pairs without inputs meet others at their kinks, or one unit's kinks depend on
        each other: elsewhere the choice is that of a convex set, and proven.

        **Returns:** sides that descent leaves to: the new ones, or else its own; NO_SIDES where
        these do not lead there either. And the reason why another flow may be as good, or zero:
        descent has left a slide to where the rule of its margins does not say, or does as its
        lattice has it; or it does not tell all of how pairs leave.
        """
        flow, parameters, codes = self.flow, event.parameters, event.sides.codes
        here = event.fired | event.at_kink
        rests = rests_of(new, here, event.sides.rests) != 0
        pairs, wanted = flow.pairs_that_meet(parameters, codes, here, event.is_leader & ~rests)
        wanted = wanted & (new.failure != NO_SLOTS)
        exits = flow.with_followers(event.fired & (codes == SLIDING))

        def compare_with_descent():
            before = flow.velocity(parameters, event.full_pass, flow.decay)
            end = descend_from(flow, parameters, codes, pairs, event.sides.rests, before, wanted)

            def leads_there(sides):
                at, _ = flow.pass_with_slides(parameters, flow.fix_sides(sides))
                rates = flow.preactivation_rates(parameters, at)
                leads = end.leads_to(sides.codes, rates, pairs, exits)
                return leads, end.tells_all(sides.codes, rates, pairs), rates == 0

            own = flow.rest_unfed(parameters, end.sides(pairs, new.codes))
            other = self._layer_sides(flow.sides_of_followers(own.astype(jnp.int8)))
            # In a loop, which compiles the pass once.
            leads, is_told, still = lax.map(
                leads_there, jax.tree.map(lambda *both: jnp.stack(both), new, other)
            )
            holds = leads[0] & (new.failure == RESOLVED)
            trouble = jnp.where(leads[1], RESOLVED, NO_SIDES).astype(jnp.int8)
            rests = jnp.where(still[1], new.rests, 0)
            other = replace_fields(other, failure=trouble, rests=rests)
            chosen = jax.tree.map(lambda a, b: jnp.where(holds, a, b), new, other)
            coarse = jnp.where(jnp.where(holds, *is_told), 0, COARSE_DESCENT)
            doubt = jnp.where(~end.agrees | (~holds & jnp.any(exits)), UNDECIDED_DESCENT, coarse)
            return chosen, doubt.astype(jnp.int8)

        return lax.cond(wanted, compare_with_descent, lambda: (new, jnp.zeros((), jnp.int8)))

    def _choose_around_fixed(
        self,
        parameters: Parameters,
        codes: Array,
        open_: Array,
        fixed: Array,
        silent: UnfedAbove | None,
    ) -> LayerSides:
        """Let the open pairs choose among each other, after the pairs that are `fixed`.

        The sides chosen may push one of the latter back to where it came from: then it is opened,
        too, and all choose again.
        """

        def choose_once(state):
            sides, open_, _ = state
            sides, rates = self._choose_open_sides(parameters, sides.codes, open_, silent)
            returns = rates * sides.codes.astype(rates.dtype) <= 0
            back = fixed & ~open_ & self.flow.is_leader & returns
            return sides, open_ | back, jnp.any(back)

        start = self._layer_sides(codes), open_, jnp.asarray(True)
        return lax.while_loop(lambda state: state[2], choose_once, start)[0]

    def _choose_open_sides(
        self, parameters: Parameters, codes: Array, open_: Array, silent: UnfedAbove | None = None
    ) -> tuple[LayerSides, Float[Array, "H P"]]:
        """Choose the open pairs' sides among each other; return them, and dz/dt of all there.

        All of them slide at first; then every pair on a wrong side changes it, after
        `BLOCK_PASSES` the last one alone, until none is. Bounds depend on the layers above alone:
        one by one from below, pairs of two layers can chase each other for ever. Pairs without
        inputs that are not open follow what those below them do.
        """
        flow, chosen = self.flow, slots_of(open_.ravel(), self.slots)
        follow: Any = False if silent is None else silent.unfed & ~open_
        base = jnp.where(open_, SLIDING, codes)
        if silent is not None:
            given = open_ | (follow & (silent.first_sides != SLIDING))
            base = jnp.where(given, silent.first_sides, base)
        base = flow.sides_of_followers(base.astype(jnp.int8))
        # With z = 0 exactly: else the rest of a pair's h counts where the loss is all rounding.
        parameters, _ = flow.project_to_kinks(parameters, flow.fix_sides(self._layer_sides(base)))

        def turn_once(choice: SideChoice) -> SideChoice:
            side, moved, rates, still = self._turn_wrong_sides(
                parameters, choice.codes, chosen, choice.count, silent
            )
            # The last one is of the highest layer: bounds below depend on it, none above does.
            last = jnp.arange(moved.size) == moved.size - 1 - jnp.argmax(moved[::-1])
            stays = moved & ~last & (choice.count >= BLOCK_PASSES)
            side = jnp.where(stays, read_slots(choice.codes, chosen), side)
            new = choice.codes.ravel().at[chosen].set(side, mode="drop").reshape(base.shape)
            pushed = follow & (rates != 0)
            new = jnp.where(pushed, jnp.sign(rates).astype(new.dtype), new)
            settled = ~jnp.any(moved) & ~jnp.any(pushed & (new != choice.codes))
            new = flow.sides_of_followers(new)
            return SideChoice(new, rates, still, settled, choice.count + 1)

        zero = jnp.zeros(base.shape, flow.task.x.dtype)
        start = SideChoice(base, zero, zero, jnp.asarray(False), jnp.zeros((), int))
        end = lax.while_loop(lambda c: ~c.settled & (c.count < MAX_PASSES), turn_once, start)
        full = jnp.sum(open_) > self.slots
        trouble = jnp.where(full, NO_SLOTS, jnp.where(end.settled, RESOLVED, NO_SIDES))
        rests = jnp.where(end.still > 0, RESTS, jnp.where(end.still < 0, TURNED, 0))
        return self._layer_sides(end.codes, trouble, rests), end.rates

    def _turn_wrong_sides(
        self,
        parameters: Parameters,
        codes: Array,
        chosen: Int[Array, " m"],
        count: Array,
        silent: UnfedAbove | None,
    ) -> tuple[Int[Array, " m"], Bool[Array, " m"], Float[Array, "H P"], Float[Array, "H P"]]:
        """Return the sides that the chosen pairs want, flags of changes, and of all pairs dz/dt.

        And the `slide_bound` of those that do not move while they are off, zero for others.

        A pair whose range is empty (C >= 0) leaves its slide to off first and, if its z then rises,
        from there to on: sent on at once, it could revive a unit that is dead. Its range may be
        empty while it slides, and not while it is off: after `EMPTY_RANGE_PASSES` passes it may go
        on.

        Where no side changes, pairs at an end of their ranges get the side of that end.
        """
        flow, slack = self.flow, dtype_rounding(self.flow.task.x.dtype).slack
        free = flow.both_passes(parameters, flow.gates(codes))
        gram = flow.gram_matrix(parameters, free, chosen)
        freely = flow.preactivation_rates(parameters, free)
        q = read_slots(freely, chosen)
        there, side = chosen < codes.size, read_slots(codes, chosen)
        slides = there & (side == SLIDING)
        both = slides[:, None] & slides[None]
        u = solve_gram(jnp.where(both, gram, 0.0), jnp.where(slides, q, 0.0))
        split = flow.splitter(free)
        pressed = split(write_slots(u, chosen, codes.shape))
        at = flow.backward_pass(parameters, free, free.output_error, pressed)
        u, bounds = read_slots(pressed, chosen), flow.slide_bound(split(flow.kink_drive(at.drive)))
        bound, rate = read_slots(bounds, chosen), q - gram @ u
        noise = read_slots(jnp.broadcast_to(flow.drive_rounding(parameters), codes.shape), chosen)
        # A sum: for a product with |gram| XLA compiles a transposed copy of it.
        slack_rate = jnp.sum(jnp.abs(gram) * (slack * jnp.abs(u) + noise)[None], axis=1)
        slack_rate = slack_rate + slack * jnp.abs(q)
        slack_u = slack * jnp.abs(bound) + noise
        rates = flow.preactivation_rates(parameters, at)
        if flow.decay is not None:  # what decays of z is rounding at a kink
            undecayed = replace_fields(flow, decay=None)
            freely = undecayed.preactivation_rates(parameters, free)
        if silent is not None:
            rates = rates_with_push(flow, parameters, codes, rates, silent)
            above = read_slots(silent.unfed, chosen)
            rate = jnp.where(above, read_slots(rates, chosen), rate)
            slack_rate = jnp.where(above, 0.0, slack_rate)
        empty = bound <= 0
        low = slides & ((empty & (count < EMPTY_RANGE_PASSES)) | (u < -slack_u))
        high = slides & ~low & (u > bound + slack_u)
        rises = there & (side == OFF) & (rate > slack_rate)
        falls = there & (side == ON) & (rate < -slack_rate)
        moved = low | high | rises | falls
        off, on = low | (falls & empty), high | (rises & empty)
        wanted = jnp.where(off, OFF, jnp.where(on, ON, SLIDING))
        end = jnp.where(slides, side_from_signal(u, bound), side)
        side = jnp.where(moved, wanted, jnp.where(jnp.any(moved), side, end))
        dead = jnp.all(codes != ON, axis=1, keepdims=True) & flow.has_no_weights(parameters)
        still = jnp.where((freely == 0) | dead, bounds, 0.0)
        return side.astype(codes.dtype), moved, rates, still

    def _is_pushed_apart(
        self, parameters: Parameters, codes: Array, above: Array, feeds: Array
    ) -> Bool[Array, "H P"]:
        """Tell which of the pairs `above` may slide: those that are pushed both ways."""
        flow = self.flow
        tied = flow.fix_sides(self._layer_sides(jnp.where(above, SLIDING, codes)))
        several = flow.apply_across_layers(unfed.several_in_sample, feeds)
        return above & several & (flow.drive_bounds(parameters, tied)[0] < 0)

    def _choice_holds(self, parameters: Parameters, sides: LayerSides) -> Bool[Array, ""]:
        """Tell whether no two sliding pairs would rather rise together."""
        frozen = self.flow.fix_sides(sides)
        at, u = self.flow.pass_with_slides(parameters, frozen)
        margin = self.flow.joint_exit(parameters, sides.codes, at, u)[0]
        return jnp.all(margin > -self.flow.margin_tolerances(parameters, frozen))

    def _with_sharers(self, sides: LayerSides) -> LayerSides:
        """Return sides that know which pairs share a kink at them."""
        first = self.flow.first_of_sharers(self.flow.gates(sides.codes))
        return replace_fields(sides, shares=first)

    def _layer_sides(
        self, codes: Array, trouble: ArrayLike = RESOLVED, rests: Array | None = None
    ) -> LayerSides:
        """Return the sides to these codes, with the slots of the pairs that slide."""
        codes, trouble = codes.astype(jnp.int8), jnp.asarray(trouble, jnp.int8)
        slides = (codes == SLIDING) & self.flow.is_leader
        never = jnp.full((), jnp.nan, self.flow.task.x.dtype)
        rests = jnp.zeros(codes.shape, jnp.int8) if rests is None else rests.astype(jnp.int8)
        return LayerSides(codes, slots_of(slides.ravel(), self.slots), rests, trouble, never)
