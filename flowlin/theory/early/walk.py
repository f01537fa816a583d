"""The walk of the early phase: every unit from event to event, all units side by side."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from flowlin._tools.loops import while_loop
from flowlin.field.gates.one_layer import Frozen, GatedFlow
from flowlin.field.gates.one_layer_rule import Situation, decide, initial_sides, situation
from flowlin.field.gates.sides import Sides
from flowlin.theory.early.unit import (
    Pieces,
    Search,
    Triples,
    Units,
    drives,
    evolved,
    first_event,
    parameters_of,
    search,
    triples,
    units_of,
)


class Walk(NamedTuple):
    """Where the units have got to, each at its own time."""

    t: Float[Array, " H"]
    units: Units
    sides: Sides
    pieces: Pieces
    number: Array  # of pieces, of the unit that has most


def walked(flow: GatedFlow, t1: Array, slots: int, max_pieces: int) -> Walk:
    """The units of `flow.network` up to t1, or up to their piece number `max_pieces`."""
    network = flow.network
    units = units_of(network.parameters)
    sides = initial_sides(flow, network.parameters, slots)
    h, n, n_out = *units.w.shape, units.a.shape[1]
    pieces = Pieces(
        start=jnp.full((h, max_pieces), jnp.inf, network.dtype),
        w=jnp.zeros((h, max_pieces, n), network.dtype),
        a=jnp.zeros((h, max_pieces, n_out), network.dtype),
        m=jnp.zeros((h, max_pieces, n, n_out), network.dtype),
        parts=Triples(
            jnp.zeros((h, max_pieces, n, min(n, n_out)), network.dtype),
            jnp.zeros((h, max_pieces, min(n, n_out)), network.dtype),
            jnp.zeros((h, max_pieces, n_out, min(n, n_out)), network.dtype),
        ),
        codes=jnp.zeros((h, max_pieces, flow.task.samples), sides.codes.dtype),
    )
    start = Walk(
        t=jnp.zeros(h, network.dtype),
        units=units,
        sides=sides,
        pieces=pieces,
        number=jnp.zeros((), int),
    )
    return while_loop(
        lambda state: jnp.any(state.t < t1),
        lambda state: _next(flow, state, t1),
        start,
        kind="bounded",
        max_steps=max_pieces,
    )


def _next(flow: GatedFlow, state: Walk, t1: Array) -> Walk:
    """Every unit that is not there yet up to its next event, and its sides after it."""
    t, units, sides = state.t, state.units, state.sides
    m = drives(flow, sides)
    frozen, parts = flow.freeze(sides), triples(m)
    found = search(flow, units, frozen, parts)
    left = jnp.maximum(lax.stop_gradient(t1 - t), 0.0)
    far = first_event(found, left)
    event, going = far < left, left > 0
    length, which = _located(flow, found, units, frozen, m, parts, far)
    length = jnp.where(event, length, far)
    end = Units(*jax.vmap(evolved)(m, parts, *units, length))
    parameters = parameters_of(end, flow.network.biases[0] is not None)
    close = found.at(far) <= jnp.tile(flow.tolerances(parameters, frozen), (1, 2))
    first = jnp.arange(close.shape[1]) == which[:, None]
    fired = jnp.any((first | (close & ~found.tied)).reshape(len(t), 2, -1), axis=1)
    at = lax.stop_gradient(situation(flow, parameters, sides))
    decided = _decided(flow, at, fired & event[:, None], sides.slots.shape[1])

    def switched(new, old):
        return jnp.where(event.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    k = state.number
    begun = Pieces(
        start=jnp.where(going, t, jnp.inf),
        w=units.w,
        a=units.a,
        m=m,
        parts=parts,
        codes=sides.codes,
    )
    return Walk(
        t=jnp.where(event, t + length, jnp.where(going, t1, t)),
        units=end,
        sides=jax.tree.map(switched, decided, sides),
        pieces=jax.tree.map(lambda all_, new: all_.at[:, k].set(new), state.pieces, begun),
        number=k + 1,
    )


def _decided(flow: GatedFlow, at: Situation, fired: Bool[Array, "H P"], slots: int) -> Sides:
    """Filippov's rule for every unit."""
    units = jnp.arange(fired.shape[0])
    return jax.vmap(lambda unit, row: decide(flow, at, unit, row, slots))(units, fired)


def _located(
    flow: GatedFlow, found: Search, units: Units, frozen: Frozen, m: Array, parts: Triples, far
) -> tuple[Array, Array]:
    """The event's time with its derivative, by one Newton step, and which margin it is of."""
    biased = flow.network.biases[0] is not None
    which = jnp.argmin(found.at(far), axis=1)
    near = Units(*jax.vmap(evolved)(m, parts, *units, far))
    speed = Units(jnp.einsum("hno,ho->hn", m, near.a), jnp.einsum("hno,hn->ho", m, near.w))

    def margin(units):
        both = flow.margins(parameters_of(units, biased), frozen)
        flat = jnp.concatenate([both[0], both[1]], axis=1)
        return jnp.take_along_axis(flat, which[:, None], axis=1)[:, 0]

    value = margin(near)
    _, slope = jax.jvp(margin, (lax.stop_gradient(near),), (lax.stop_gradient(speed),))
    slope = lax.stop_gradient(slope)
    # Where the pair had a head start it fires below zero; only the derivative moves it.
    tied = jnp.take_along_axis(found.tied, which[:, None], axis=1)[:, 0]
    value = jnp.where(tied, value - lax.stop_gradient(value), value)
    safe = slope < 0
    return far - jnp.where(safe, value / jnp.where(safe, slope, 1.0), 0.0), which
