"""Which sides all layers take up at an event: Filippov's rule where layers do not mix."""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from flowlin._tools.types import Parameters
from flowlin.field.gates.box import box_qp
from flowlin.field.gates.layers import DeepFlow, LayerSides, take
from flowlin.field.gates.one_layer_rule import side_of
from flowlin.field.gates.rule import AbstractRule, Piece
from flowlin.field.gates.sides import (
    FINE,
    NO_SLOTS,
    OFF,
    ON,
    SLIDING,
    TWO_LAYERS,
    UNSOLVED,
    slots_of,
)
from flowlin.log.buffer import Buffer

PASSES = 8  # before a choice of sides counts as unsolved


class _Choice(eqx.Module):
    """Sides under way: `open_` pairs are still to be chosen among each other."""

    codes: Int[Array, "H P"]
    open_: Bool[Array, "H P"]
    trouble: Int[Array, ""]
    count: Int[Array, ""]
    again: Bool[Array, ""]


class NetworkRule(AbstractRule):
    """Filippov's rule for all layers together.

    All pairs at their kinks, of any unit, push each other's z; their gates solve one
    box-constrained quadratic program. It is one as long as no sample slides in two layers: there
    the fractions of gates multiply, and the run stops.
    """

    flow: DeepFlow
    slots: int = eqx.field(static=True)  # of the network

    def start(self, parameters: Parameters) -> LayerSides:
        """Sides at the start: the signs of z; what starts at its kink as for one layer."""
        flow, parameters = self.flow, lax.stop_gradient(parameters)
        z, near = jnp.concatenate(flow.run(parameters, None).z), flow.near(parameters)
        codes = flow.follow(jnp.where((z > 0) & ~near, ON, OFF).astype(jnp.int8))
        sides = self._sides(codes, jnp.asarray(FINE, jnp.int8))
        frozen = flow.freeze(sides)
        at = flow.run(parameters, frozen.gates)
        strength = flow.strength(at.c)
        rises = flow.rates(at, parameters, frozen.gates, at.velocity) > 0
        codes = jnp.where(near & (strength >= 0) & rises, ON, codes).astype(jnp.int8)
        none = jnp.zeros_like(near)
        open_, _ = self._apart(none, none, near & (strength < 0))
        return lax.cond(
            jnp.any(open_),
            lambda: self._settled(parameters, flow.follow(codes), open_),
            lambda: self._sides(flow.follow(codes), sides.trouble),
        )

    def switch(self, piece: Piece, sides: LayerSides, log: Buffer) -> tuple[LayerSides, Buffer]:
        """New sides after the event at the end of a piece, and the log of what changed."""

        def changed():
            new = self._decide(lax.stop_gradient(piece.y1), sides, piece.fired)
            old_codes, codes = sides.codes.ravel(), new.codes.ravel()
            return new, log.append(
                piece.end, piece.uncertainty, jnp.arange(codes.size), old_codes, codes
            )

        return lax.cond(jnp.any(piece.fired), changed, lambda: (sides, log))

    def _decide(self, parameters: Parameters, sides: LayerSides, fired: Array) -> LayerSides:
        flow = self.flow
        frozen = flow.freeze(sides)
        at, u = flow.pressed(parameters, frozen)
        strength, slides = flow.strength(at.c), sides.codes == SLIDING
        near = flow.near(parameters) & ~slides
        left = jnp.where(2 * u > flow.bound(strength), ON, OFF).astype(jnp.int8)
        wanted = fired & ~slides & (strength < 0)
        open_, clash = self._apart(
            slides & ~fired & flow.leads, wanted, near & ~fired & (strength < 0)
        )
        crosses = fired & ~slides & ~open_
        codes = jnp.where(fired & slides, left, jnp.where(crosses, -sides.codes, sides.codes))
        new = self._settled(parameters, flow.follow(codes), open_)
        return lax.cond(
            jnp.any(crosses & clash),
            lambda: self._verified(parameters, new, crosses & clash),
            lambda: new,
        )

    def _apart(self, held: Array, wanted: Array, near: Array) -> tuple[Array, Array]:
        """The pairs that can be chosen together: no sample at kinks of two layers.

        Pairs that are `near` only stand back behind the `wanted` and those `held` already.

        **Returns:** the pairs (H, P), and those wanted whose sample is at another layer's kink.
        """
        clash = wanted & self._elsewhere(held | wanted)
        chosen = held | (wanted & ~clash)
        return chosen | (near & ~self._elsewhere(chosen | near)), clash

    def _elsewhere(self, open_: Bool[Array, "H P"]) -> Bool[Array, "H P"]:
        """Whether a kink's samples are at open kinks of other layers."""
        layers = list(zip(self.flow.kinks, self.flow.split(open_), strict=True))
        busy = jnp.stack([jnp.any(one, axis=0)[kinks.leader] for kinks, one in layers])
        others = jnp.sum(busy, axis=0) - busy > 0
        found = []
        for (kinks, one), other in zip(layers, others, strict=True):
            at_leader = jnp.zeros_like(other).at[kinks.leader].max(other)
            found.append(jnp.broadcast_to(at_leader, one.shape))
        return jnp.concatenate(found)

    def _settled(self, parameters: Parameters, codes: Array, open_: Array) -> LayerSides:
        """The open pairs' sides, by the quadratic program.

        Other pairs' changes may have turned the C of some of them: those cannot slide. They go
        where their velocity takes them, and the rest settles anew.
        """
        flow = self.flow
        flat = codes.size

        def once(choice: _Choice) -> _Choice:
            base = flow.follow(jnp.where(choice.open_, SLIDING, choice.codes).astype(jnp.int8))
            frozen = flow.freeze(self._sides(base, choice.trouble))
            at = flow.run(parameters, frozen.gates)
            chosen = slots_of(choice.open_.ravel(), self.slots)
            gram = flow.gram(at, parameters, frozen.gates, chosen)
            q = take(flow.rates(at, parameters, frozen.gates, at.velocity), chosen)
            bound = take(flow.bound(flow.strength(at.c)), chosen)
            there = chosen < flat
            u, settled = box_qp(gram, q, jnp.maximum(bound, 0.0), there)
            side = side_of(u, bound)
            lost = there & (bound <= 0)
            side = jnp.where(lost, jnp.where(q - gram @ u > 0, ON, OFF), side)
            codes = choice.codes.ravel().at[chosen].set(side.astype(jnp.int8), mode="drop")
            open_ = choice.open_.ravel().at[chosen].set(~lost, mode="drop")
            full = jnp.sum(choice.open_) > self.slots
            trouble = jnp.where(full, NO_SLOTS, jnp.where(settled, FINE, UNSOLVED))
            return _Choice(
                codes=flow.follow(codes.reshape(base.shape)),
                open_=open_.reshape(base.shape),
                trouble=jnp.maximum(choice.trouble, trouble.astype(jnp.int8)),
                count=choice.count + 1,
                again=jnp.any(lost),
            )

        zero = jnp.zeros((), jnp.int8)
        start = _Choice(
            codes=codes, open_=open_, trouble=zero, count=jnp.zeros((), int), again=jnp.any(open_)
        )
        end = lax.while_loop(lambda c: c.again & (c.count < PASSES), once, start)
        trouble = jnp.where(end.again, jnp.maximum(end.trouble, UNSOLVED), end.trouble)
        return self._sides(end.codes, trouble.astype(jnp.int8))

    def _sides(self, codes: Array, trouble: Array) -> LayerSides:
        slides = (codes == SLIDING) & self.flow.leads
        return LayerSides(codes, slots_of(slides.ravel(), self.slots), trouble)

    def _verified(self, parameters: Parameters, sides: LayerSides, crossed: Array) -> LayerSides:
        """Stops unless the pairs that `crossed` while their sample slides elsewhere move on.

        If they do not, both sides push back: the sample slides in two layers.
        """
        frozen = self.flow.freeze(sides)
        at, _ = self.flow.pressed(parameters, frozen)
        rates: Float[Array, "H P"] = self.flow.rates(at, parameters, frozen.gates, at.velocity)
        stuck = jnp.any(crossed & (rates * sides.codes <= 0))
        trouble = jnp.where(stuck & (sides.trouble == FINE), TWO_LAYERS, sides.trouble)
        return LayerSides(sides.codes, sides.slots, trouble.astype(jnp.int8))
