r"""The early phase of a ReLU network: each unit by itself, followed exactly through its kinks.

While the outputs are small against the targets, the errors $e_i = -\partial L / \partial \hat y_i$
keep their values at zero outputs ($y_i / P$ for `fl.SquaredError()`), and the units do not see each
other. As long as a unit's gates $g_{ji}$ hold, with $\tilde w = [b; w]$ and $\tilde x = [c; x]$,

$$\tau \frac{d}{dt} \begin{bmatrix} \tilde w_j \\ a_j \end{bmatrix} =
  \begin{bmatrix} 0 & M_j \\ M_j^T & 0 \end{bmatrix}
  \begin{bmatrix} \tilde w_j \\ a_j \end{bmatrix}, \qquad
  M_j = \sum_i g_{ji}\, \tilde x_i e_i^T,$$

in which every singular triple $(u, \sigma, v)$ of $M_j$ moves its own part: $u \cdot \tilde w_j +
v \cdot a_j$ grows and $u \cdot \tilde w_j - v \cdot a_j$ decays, both at the rate $\sigma / \tau$,
and the rest stands still (lead paper Eqs. 8-11, which drop the initial readout and a factor of t;
Maennel et al. 2018 for the limit of small weights). A unit that slides along kinks S does the same
with $\Pi M_j$, $\Pi$ the projector off $\{\tilde x_i\}_{i \in S}$: on S it has $\Pi \tilde w_j =
\tilde w_j$. All this is the exact gradient flow of the loss made linear at zero outputs.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from flowlin._tools.arrays import Parameters
from flowlin._tools.numerics import while_loop
from flowlin.engine.kinks.one_layer import FixedSides, OneLayerFlow
from flowlin.engine.kinks.one_layer_switching import (
    PointState,
    choose_unit_sides,
    initial_sides,
    point_state,
)
from flowlin.engine.kinks.sides import Sides


class Triples(NamedTuple):
    """Singular triples of M = u diag(s) v^T: u (N, K), s (K,), v (N_out, K)."""

    u: Array
    s: Array
    v: Array


def matrix_triples(m: Float[Array, "*H N N_out"]) -> Triples:
    """Return the singular triples of M, constant to derivatives, which are taken by M itself."""
    u, s, vt = jnp.linalg.svd(lax.stop_gradient(m), full_matrices=False)
    return Triples(u, s, jnp.swapaxes(vt, -1, -2))


def split_by_growth(parts: Triples, w: Array, a: Array) -> tuple[Array, Array]:
    """Return half the sum of u.w and v.a, which grows, and half the difference, which decays."""
    left, right = parts.u.T @ w, parts.v.T @ a
    return (left + right) / 2, (left - right) / 2


@jax.custom_jvp
def evolve_unit(m: Array, parts: Triples, w: Array, a: Array, t: Array) -> tuple[Array, Array]:
    r"""Return the unit (w, a) after a time t at constant M: $e^{A t}$ applied to it.

    It goes through the singular triples of M, with no exponential of a matrix; no term cancels, so
    the result is accurate to rounding of its own size, for any t short of overflow. It can be
    differentiated also where singular values coincide, and the derivative of the triples is
    infinite: the derivative is taken by M.
    """
    u, s, v = parts
    grows, decays = split_by_growth(parts, w, a)
    up, down = grows * jnp.expm1(s * t), decays * jnp.expm1(-s * t)
    return w + u @ (up + down), a + v @ (up - down)


@evolve_unit.defjvp
def _evolve_unit_jvp(primals, tangents):
    r"""Differentiate the evolution of a unit by the formula of Daleckii and Krein.

    With $A = Q \Lambda Q^T$ the derivative of $e^{A t}$ along dA is
    $Q\, (\Phi \circ Q^T dA\, Q)\, Q^T$, $\Phi_{kl}$ the divided differences of $e^{\lambda t}$.
    """
    m, parts, w, a, t = primals
    dm, _, dw, da, dt = tangents
    n, (u, s, v) = len(w), parts
    q = jnp.block([[u, u], [v, -v]]) / jnp.sqrt(jnp.asarray(2, m.dtype))
    rates = jnp.concatenate([s, -s])

    def apply_da(z):  # dA z
        return jnp.concatenate([dm @ z[n:], dm.T @ z[:n]])

    start = jnp.concatenate([w, a])
    inside = q.T @ start
    rest = start - q @ inside
    column, row = rates[:, None], rates[None]
    mean, half = (column + row) * t / 2, (column - row) * t / 2
    mixed = t * jnp.exp(mean) * _sinhc(half)
    alone = t * jnp.exp(rates * t / 2) * _sinhc(rates * t / 2)
    turned_q, turned_rest = jax.vmap(apply_da, 1, 1)(q), apply_da(rest)
    moved = q @ ((mixed * (q.T @ turned_q)) @ inside + alone * (q.T @ turned_rest))
    outside = turned_q @ (alone * inside) + t * turned_rest
    moved = moved + outside - q @ (q.T @ outside)
    new_w, new_a = evolve_unit(m, parts, w, a, t)
    start_w, start_a = evolve_unit(m, parts, dw, da, t)
    return (new_w, new_a), (
        start_w + m @ new_a * dt + moved[:n],
        start_a + m.T @ new_w * dt + moved[n:],
    )


def _sinhc(x: Array) -> Array:
    """Return sinh(x) / x; by its series near 0, where the quotient loses its digits."""
    small = jnp.abs(x) < 1e-2
    safe = jnp.where(small, 1.0, x)
    z = jnp.where(small, x, 0.0) ** 2
    return jnp.where(small, 1 + z / 6 * (1 + z / 20 * (1 + z / 42)), jnp.sinh(safe) / safe)


class UnitWeights(NamedTuple):
    """The weights of all units as rows: w is [b; w] (H, N), a is (H, N_out)."""

    w: Array
    a: Array


def units_of(parameters: Parameters) -> UnitWeights:
    """Return the units of a network's parameters, the raw bias in front."""
    (w, readout), (b, _) = parameters
    return UnitWeights(w if b is None else jnp.concatenate([b[:, None], w], axis=1), readout.T)


def parameters_of(units: UnitWeights, biased: bool) -> Parameters:
    """Return the parameters of a network that has these units."""
    w, b = (units.w[:, 1:], units.w[:, 0]) if biased else (units.w, None)
    return (w, units.a.T), (b, None)


def drive_matrices(flow: OneLayerFlow, sides: Sides) -> Float[Array, "H N N_out"]:
    """Return M over tau of every unit; for units that slide, projected off their kinks."""
    error = -jax.grad(flow.loss)(jnp.zeros_like(flow.task.y), flow.task.y, flow.task.weights)
    frozen = flow.fix_sides(sides)
    m = jnp.einsum("hp,pn,po->hno", frozen.gates, flow.kinks.x, error)
    m = m - jnp.einsum("hmn,hmk,hko->hno", frozen.x, frozen.slide_solver, m)
    return m / flow.tau


class MarginSeries(NamedTuple):
    """Margins on one piece as sums of exponentials: constant + sum_k part_k exp(rate_k t)."""

    constant: Array  # (H, 2P)
    parts: Array  # (H, 2K, 2P)
    rates: Array  # (H, 2K)
    at_kink: Array  # (H, 2P): whether the pair is at its kink already

    def margins_at(self, t: Array, order: int = 0) -> Array:
        """Return the margins' derivative of this order at the units' times t (H,), (H, 2P)."""
        weights = self.rates**order * jnp.exp(self.rates * t[:, None])
        value = jnp.einsum("hk,hkp->hp", weights, self.parts)
        return value if order else value + self.constant


def margin_series(
    flow: OneLayerFlow, units: UnitWeights, frozen: FixedSides, parts: Triples
) -> MarginSeries:
    """Return the margins of every unit's kinks over the piece that starts here.

    They are linear in the unit, so each component of its motion has margins of its own. A part
    within rounding of zero is set to zero, since it would grow. Pairs that are at their kinks
    already, because they have just come there, get a head start of the rounding, so that they do
    not fire at once.
    """
    units, frozen = lax.stop_gradient((units, frozen))
    biased = flow.network.biases[0] is not None

    def flat_margins(units):
        both = flow.margins(parameters_of(units, biased), frozen)
        return jnp.concatenate([both[0], both[1]], axis=1)

    def flat_tolerances(units):
        return jnp.tile(flow.margin_tolerances(parameters_of(units, biased), frozen), (1, 2))

    u, s, v = parts
    grows, decays = jax.vmap(split_by_growth)(parts, *units)
    moved = (
        jnp.concatenate([u * grows[:, None], u * decays[:, None]], axis=2),
        jnp.concatenate([v * grows[:, None], -v * decays[:, None]], axis=2),
    )
    fixed = flat_margins(jax.tree.map(jnp.zeros_like, units))
    each = UnitWeights(*(jnp.moveaxis(part, 2, 0) for part in moved))
    moving = jax.vmap(flat_margins)(each) - fixed[None]
    moving = jnp.where(jnp.abs(moving) <= jax.vmap(flat_tolerances)(each), 0.0, moving)
    first, tolerance = flat_margins(units), flat_tolerances(units)
    tied = first < tolerance
    threshold = jnp.where(tied, jnp.minimum(first, 0.0) - tolerance, 0.0)
    constant = first - threshold - jnp.sum(moving, axis=0)
    rates = jnp.concatenate([s, -s], axis=1)
    return lax.stop_gradient(MarginSeries(constant, jnp.moveaxis(moving, 0, 1), rates, tied))


def first_root_time(found: MarginSeries, limit: Float[Array, " H"]) -> Float[Array, " H"]:
    """Return the first time at which a margin of each unit is zero, or `limit`, (H,).

    No step can jump over a root: the second derivative is bounded from below by its negative
    terms, so that the margin stays above a parabola, to whose root the step goes. Near a simple
    root these are Newton's steps from the safe side.
    """
    fastest = jnp.max(found.rates, axis=1, initial=0.0)
    longest = jnp.where(fastest > 0, 0.5 / jnp.where(fastest > 0, fastest, 1.0), jnp.inf)
    eps = jnp.finfo(limit.dtype).eps
    curbed = (
        jnp.minimum(found.parts, 0.0)
        * jnp.exp(
            jnp.maximum(found.rates, 0.0) * jnp.where(jnp.isinf(longest), 0.0, longest)[:, None]
        )[:, :, None]
    )
    bent = found._replace(parts=curbed)

    def take_step(state):
        t, _, number = state
        value, slope = jnp.maximum(found.margins_at(t), 0.0), found.margins_at(t, 1)
        curve = -bent.margins_at(t, 2)
        root = jnp.sqrt(slope**2 + 2 * curve * value)
        below = root - slope
        ahead = below > 0
        step = jnp.where(ahead, 2 * value / jnp.where(ahead, below, 1.0), jnp.inf)
        step = jnp.minimum(jnp.min(step, axis=1), longest)
        done = (t >= limit) | (step <= 4 * eps * (t + jnp.where(fastest > 0, longest, 0.0)))
        return jnp.where(done, t, jnp.minimum(t + step, limit)), done, number + 1

    def is_unfinished(state):
        return ~jnp.all(state[1]) & (state[2] < 10_000)

    start = (jnp.zeros_like(limit), jnp.zeros(limit.shape, bool), jnp.zeros((), int))
    return lax.while_loop(is_unfinished, take_step, start)[0]


class UnitPieces(eqx.Module):
    """The pieces of all units, between changes of a unit's sides; `start` is inf where empty."""

    start: Float[Array, "H *S"]
    w: Float[Array, "H *S N"]
    a: Float[Array, "H *S N_out"]
    m: Float[Array, "H *S N N_out"]
    parts: Triples
    codes: Int[Array, "H *S P"]


# ---- The walk of the early phase: every unit from event to event, all units side by side.


class UnitWalk(NamedTuple):
    """The state of the walk: all units, each at its own time, and their pieces so far."""

    t: Float[Array, " H"]
    units: UnitWeights
    sides: Sides
    pieces: UnitPieces
    number: Array  # the pieces of the unit that has most


def walk_units(flow: OneLayerFlow, t1: Array, slots: int, max_pieces: int) -> UnitWalk:
    """Walk the units of `flow.network` up to t1, or over at most `max_pieces` pieces."""
    network = flow.network
    units = units_of(network.parameters)
    sides = initial_sides(flow, network.parameters, slots)
    h, n, n_out = *units.w.shape, units.a.shape[1]
    pieces = UnitPieces(
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
    start = UnitWalk(
        t=jnp.zeros(h, network.dtype),
        units=units,
        sides=sides,
        pieces=pieces,
        number=jnp.zeros((), int),
    )
    return while_loop(
        lambda state: jnp.any(state.t < t1),
        lambda state: _walk_next_piece(flow, state, t1),
        start,
        kind="bounded",
        max_steps=max_pieces,
    )


def _walk_next_piece(flow: OneLayerFlow, state: UnitWalk, t1: Array) -> UnitWalk:
    """Walk every unit that is not at t1 yet to its next event, and choose its sides there."""
    t, units, sides = state.t, state.units, state.sides
    m = drive_matrices(flow, sides)
    frozen, parts = flow.fix_sides(sides), matrix_triples(m)
    found = margin_series(flow, units, frozen, parts)
    left = jnp.maximum(lax.stop_gradient(t1 - t), 0.0)
    far = first_root_time(found, left)
    event, going = far < left, left > 0
    length, which = _locate_event(flow, found, units, frozen, m, parts, far)
    length = jnp.where(event, length, far)
    end = UnitWeights(*jax.vmap(evolve_unit)(m, parts, *units, length))
    parameters = parameters_of(end, flow.network.biases[0] is not None)
    close = found.margins_at(far) <= jnp.tile(flow.margin_tolerances(parameters, frozen), (1, 2))
    first = jnp.arange(close.shape[1])[None] == which[:, None]
    fired = jnp.any((first | (close & ~found.at_kink)).reshape(len(t), 2, -1), axis=1)
    at = lax.stop_gradient(point_state(flow, parameters, sides))
    decided = _switch_units(flow, at, fired & event[:, None], sides.slots.shape[1])

    def take_where_event(new, old):
        return jnp.where(event.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    k = state.number
    begun = UnitPieces(
        start=jnp.where(going, t, jnp.inf),
        w=units.w,
        a=units.a,
        m=m,
        parts=parts,
        codes=sides.codes,
    )
    return UnitWalk(
        t=jnp.where(event, t + length, jnp.where(going, t1, t)),
        units=end,
        sides=jax.tree.map(take_where_event, decided, sides),
        pieces=jax.tree.map(lambda all_, new: all_.at[:, k].set(new), state.pieces, begun),
        number=k + 1,
    )


def _switch_units(
    flow: OneLayerFlow, at: PointState, fired: Bool[Array, "H P"], slots: int
) -> Sides:
    """Choose by Filippov's rule the sides of every unit, whose pairs have `fired`."""
    units = jnp.arange(fired.shape[0])
    return jax.vmap(lambda unit, row: choose_unit_sides(flow, at, unit, row, slots))(units, fired)


def _locate_event(
    flow: OneLayerFlow,
    found: MarginSeries,
    units: UnitWeights,
    frozen: FixedSides,
    m: Array,
    parts: Triples,
    far,
) -> tuple[Array, Array]:
    """Return the event's time with its derivative, by one Newton step, and its margin's number."""
    biased = flow.network.biases[0] is not None
    which = jnp.argmin(found.margins_at(far), axis=1)
    near = UnitWeights(*jax.vmap(evolve_unit)(m, parts, *units, far))
    speed = UnitWeights(jnp.einsum("hno,ho->hn", m, near.a), jnp.einsum("hno,hn->ho", m, near.w))

    def event_margin(units):
        both = flow.margins(parameters_of(units, biased), frozen)
        flat = jnp.concatenate([both[0], both[1]], axis=1)
        return jnp.take_along_axis(flat, which[:, None], axis=1)[:, 0]

    value = event_margin(near)
    _, slope = jax.jvp(event_margin, (lax.stop_gradient(near),), (lax.stop_gradient(speed),))
    slope = lax.stop_gradient(slope)
    # A pair with a head start fires below zero: its value must not move the time, its derivative
    # must.
    tied = jnp.take_along_axis(found.at_kink, which[:, None], axis=1)[:, 0]
    value = jnp.where(tied, value - lax.stop_gradient(value), value)
    safe = slope < 0
    return far - jnp.where(safe, value / jnp.where(safe, slope, 1.0), 0.0), which
