r"""Follow descent through a point at which kinks meet: the point blown up.

Near a point $\theta_0$ descent at rate $\epsilon$ is, in $\delta = (\theta - \theta_0) / \epsilon$,
descent at rate one on the directional derivative $L'(\theta_0; \delta)$, up to $O(\epsilon)$. This
is one forward pass of tangents in which a pair at its kink passes on $\max(\dot z, 0)$: continuous,
piecewise linear and homogeneous. Pairs without inputs are in it, fed by the pairs below; pairs that
share a kink are in it, with drives that add up by themselves. Descent comes in along the velocity
before the event, and leaves, but for its chatter, along a ray: the velocity after the event, a
local minimum of $L'(\theta_0; \delta) + |\delta|^2 / 2$ (in the metric of tau).

In a network of layers all that $L'$ reads of $\delta$ are the changes that each layer's own weights
make in its z, $\delta W_k h_k + c\, \delta b_k$ (H_k, P). A step of descent adds its signals times
$(h_k^T h_k + c^2) / \tau$ to them: all is done in these, however many inputs there are. Of any
other module all weights move.

It says what becomes of all pairs at once, whatever their number, where `deep_switching` chooses
them one by one; but only in digits that its chatter leaves. So it is asked where pairs without
inputs or more kinks than dimensions meet, and what it says is judged by the velocity of the sides
that it leads to.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from flowlin._tools.arrays import Parameters
from flowlin._tools.numerics import dtype_rounding
from flowlin.engine.kinks.deep_flow import DeepFlow, FullPass, Layers
from flowlin.engine.kinks.module_flow import ModuleFlow
from flowlin.engine.kinks.sides import OFF, ON, SLIDING
from flowlin.training.objective import add_decay

PHASES = 12  # of the steps' lattice, in which descent comes to the point
STEPS_IN, STEPS_OUT = 40, 400  # of descent, before the point and after it
LATE = STEPS_OUT - STEPS_OUT // 2 - 1  # steps that are looked at
SAME = 0.05  # rates closer than this share of a step's chatter are the same
CHATTER_ULPS = 64  # of the largest scale: rates of units that die are rounding
STILL = 0.02  # below this share of the scale a pair near its kink stays there
SLOWEST = 1e-8  # of the scale of rates: a pair that is slower does not move


class Outcome(eqx.Module):
    """Tells how pairs leave a point, by the second half of the steps out.

    - `rates`: dz/dt in the mean.
    - `chatter`: the largest change of z in a step.
    - `scale`: of rates: `chatter`, or the change in a step with the pair on.
    - `place`: z after the last step, in units of the steps' rate.
    - `on`, `off`: the numbers of steps with z > 0 and z < 0, of `LATE`.
    - `agrees`: whether descent leaves so whatever the phase of its steps.
    """

    rates: Float[Array, "H P"]
    chatter: Float[Array, "H P"]
    scale: Float[Array, "H P"]
    place: Float[Array, "H P"]
    on: Int[Array, "H P"]
    off: Int[Array, "H P"]
    agrees: Bool[Array, ""]

    @property
    def _comes_back(self) -> Bool[Array, "H P"]:
        """Tell which pairs are on the way to their kinks.

        It takes more steps than are taken here where a pair came fast and goes on slowly, and where
        one slides that is on in one step of very many.
        """
        return (self.place * self.rates < 0) & self._moves

    @property
    def _moves(self) -> Bool[Array, "H P"]:
        """Tell which pairs move, however slowly, beyond rounding."""
        rounding = CHATTER_ULPS * float(jnp.finfo(self.rates.dtype).eps)
        return jnp.abs(self.rates) > max(SLOWEST, rounding) * self.scale

    @property
    def _ways(self) -> Int[Array, "H P"]:
        """The sides that pairs have left to; SLIDING of those that stay, or are on the way back."""
        side = jnp.where(self.on == LATE, ON, jnp.where(self.on == 0, OFF, SLIDING))
        slow = self._moves & (jnp.abs(self.rates) <= STILL * self.scale)
        stays = slow & (jnp.abs(self.place) <= 2 * self.scale)
        return jnp.where(stays | self._comes_back, SLIDING, side)

    def tells_all(
        self, codes: Int[Array, "H P"], rates: Float[Array, "H P"], pairs: Bool[Array, "H P"]
    ) -> Bool[Array, ""]:
        """Tell whether nothing is left open of pairs at these sides, which move at these rates.

        Their rates are told up to a share of what a step has moved them. And who is on whenever a
        pair below is, which chatters, has the side on: its rate is zero on either.
        """
        same = jnp.abs(rates - self.rates) <= SAME * self.chatter + self._rate_noise(pairs)
        follows = (self.on > 0) & (self.off == 0) & (self.place == 0)
        return jnp.all((same & ~(follows & (codes != ON))) | ~pairs)

    def _rate_noise(self, pairs: Bool[Array, "H P"]) -> Float[Array, ""]:
        """Return what may be rounding of a rate."""
        eps = jnp.finfo(self.rates.dtype).eps
        return CHATTER_ULPS * eps * jnp.max(jnp.where(pairs, self.scale, 0.0))

    def leads_to(
        self,
        codes: Int[Array, "H P"],
        rates: Float[Array, "H P"],
        pairs: Bool[Array, "H P"],
        exits: Bool[Array, "H P"],
    ) -> Bool[Array, ""]:
        """Tell whether descent leaves as pairs at these sides do, which move at these rates.

        Rates are the same within their scale, and rounding of the largest one. Who has gone to a
        side has it, and a pair that comes back may slide. None moves off its side, over its kink,
        but for `exits`: pairs whose slides have just ended, at rest up to an error of the step.
        Of pairs whose rates and places are both rounding nothing is told: those of units that die.
        """
        rounding = self._rate_noise(pairs)
        same = jnp.abs(rates - self.rates) <= SAME * self.scale + rounding
        nothing = (jnp.abs(self.rates) <= rounding) & (jnp.abs(self.place) <= STEPS_OUT * rounding)
        fits = nothing | (self._ways == SLIDING) | (self._ways == codes)
        # A pair of another event may be this close to an end of its range and leave with it.
        ends = dtype_rounding(rates.dtype).snap * jnp.max(jnp.where(pairs, self.scale, 0.0))
        moves_off = rates * codes.astype(rates.dtype) < -jnp.maximum(ends, STEPS_OUT * rounding)
        fine = (same & fits & (~moves_off | exits)) | (self._comes_back & (codes == SLIDING))
        return jnp.all(fine | ~pairs)

    def sides(self, pairs: Bool[Array, "H P"], codes: Int[Array, "H P"]) -> Int[Array, "H P"]:
        """Return the sides that the pairs leave to; SLIDING where they stay, or come back."""
        return jnp.where(pairs, self._ways, codes).astype(codes.dtype)


def descend_from(
    flow: DeepFlow | ModuleFlow,
    parameters: Parameters,
    codes: Int[Array, "H P"],
    pairs: Bool[Array, "H P"],
    rests: Int[Array, "H P"],
    before: Parameters,
    wanted: Bool[Array, ""],
) -> Outcome:
    """Descend through the point `parameters`, at which these pairs have z = 0.

    Of a dead unit that `rests` at its kinks (as in `LayerSides`) descent crossed the kink in the
    middle of a step: it starts off, by a part of what a step moves it, and no rounding wakes it.

    **Arguments:** `codes` are the sides of all others, `before` the velocity (of all parameters)
    that leads there. No step is taken unless `wanted`.
    """
    still: Any = lax.stop_gradient(flow)
    own = jnp.where(pairs, OFF, codes).astype(codes.dtype)
    at = still.both_passes(parameters, still.gates(own))
    space: Any = ParameterChanges if isinstance(flow, ModuleFlow) else PreactivationChanges
    changes = space(still, parameters, at, pairs)
    nothing = jax.tree.map(jnp.zeros_like, before)
    decayed = add_decay(nothing, still.decay, still.all_parameters(parameters))
    drift = changes.of(jax.tree.map(jnp.multiply, decayed, still.inverse_tau))
    step = jax.vmap(changes.step_and_tangents)

    def advance(state):
        count, moved, half, last, chatter, on, off = state
        more, tangents = step(moved)
        late = count > STEPS_IN + STEPS_OUT // 2
        change = jnp.where(late, jnp.abs(tangents - last), 0.0)
        half = jnp.where(late, half, tangents)
        on = on + (late & (tangents > 0)).astype(on.dtype)
        off = off + (late & (tangents < 0)).astype(off.dtype)
        moved = jax.tree.map(lambda z, dz, d: z + dz + d[None], moved, more, drift)
        return count + 1, moved, half, tangents, jnp.maximum(chatter, change), on, off

    phases = STEPS_IN + jnp.arange(PHASES, dtype=still.task.x.dtype) / PHASES
    parts = (1 + jnp.arange(PHASES, dtype=phases.dtype)) / PHASES
    start = jax.tree.map(
        lambda came, back: -jnp.tensordot(phases, came, 0) - jnp.tensordot(parts, back, 0),
        changes.of(before),
        changes.of_one_step(still.with_followers(rests != 0) & pairs),
    )
    none = jnp.zeros((PHASES, *pairs.shape), still.task.x.dtype)
    steps = jnp.where(wanted, STEPS_IN + STEPS_OUT, 0)
    never = jnp.zeros(none.shape, jnp.int32)
    state = jnp.zeros((), steps.dtype), start, none, none, none, never, never
    _, _, half, last, chatter, on, off = lax.while_loop(lambda s: s[0] < steps, advance, state)
    rates = (last - half) / LATE
    size = jnp.max(chatter, axis=0)
    scale = jnp.maximum(size, changes.kicks())
    apart = jnp.abs(rates[:, None] - rates[None]) > 2 * SAME * scale[None, None]
    others = jnp.sum(jnp.any(apart & pairs[None, None], axis=(2, 3)), axis=1)
    first = jnp.argmin(others)
    own = [one[first] for one in (last, on, off)]
    return Outcome(rates[first], size, scale, own[0], own[1], own[2], jnp.all(others == 0))


class ParameterChanges:
    """Changes of the weights themselves, of any module."""

    def __init__(self, flow: ModuleFlow, parameters: Parameters, at: PyTree, pairs: Array):
        self.flow, self.parameters, self.at = flow, flow.all_parameters(parameters), at
        self.pairs = pairs

    def of(self, delta: Parameters) -> Parameters:
        """Return the change of all parameters as it is."""
        return delta

    def of_one_step(self, pairs: Bool[Array, "H P"]) -> Parameters:
        """Return the change that raises z of these pairs by what one step moves them if on."""
        signals = jnp.where(pairs, -jnp.abs(self.at.drive[0]), 0.0)
        error = jnp.zeros_like(self.at.output_error)
        back = self.flow.backward_pass(self.parameters, self.at, error, signals)
        return self.flow.velocity(self.parameters, back)

    def kicks(self) -> Float[Array, "H P"]:
        """Return zeros: a pair's own effect on its z is no part of a pass of all."""
        return jnp.zeros_like(self.at.gates)

    def step_and_tangents(self, delta: Parameters) -> tuple[Parameters, Float[Array, "H P"]]:
        """Return what a step of descent on L' adds to a change, and dz (H, P) there."""
        flow, at = self.flow, self.at

        def values(parameters: Parameters) -> tuple[Array, Array]:
            none = jnp.zeros_like(at.gates)
            return flow.values_with_kinks(parameters, at.gates, none, self.pairs)

        def loss_change(delta: Parameters) -> tuple[Array, Array]:
            _, (outputs, tangents) = jax.jvp(values, (self.parameters,), (delta,))
            return -jnp.sum(at.output_error * outputs), tangents

        gradient, tangents = jax.grad(loss_change, has_aux=True)(delta)
        return jax.tree.map(lambda g, speed: -g * speed, gradient, flow.inverse_tau), tangents


class PreactivationChanges:
    """Changes that each layer's own weights make in its z, the layers below at rest."""

    def __init__(self, flow: DeepFlow, parameters: Parameters, at: FullPass, pairs: Array):
        self.flow, self.parameters, self.at = flow, parameters, at
        self.pairs = flow.split_layers(pairs)
        self.responses = [_response_of_layer(flow, k, h) for k, h in enumerate(at.h[:-1])]

    def of(self, delta: Parameters) -> Layers:
        """Return by how much a change of all parameters moves each z."""
        (*weights, _), (*biases, _) = delta
        own = [dw @ h for dw, h in zip(weights, self.at.h, strict=False)]
        return [
            z if db is None else z + (self.flow.network.bias_strength * db)[:, None]
            for z, db in zip(own, biases, strict=True)
        ]

    def of_one_step(self, pairs: Bool[Array, "H P"]) -> Layers:
        """Return the changes that raise z of these pairs by what one step moves them if on."""
        by_itself = self.flow.own_rates(jnp.concatenate(self.at.drive), self.at)
        return self.flow.split_layers(jnp.where(pairs, by_itself, 0.0))

    def kicks(self) -> Float[Array, "H P"]:
        """Return what a step in which a pair is on adds to its z by its own layer's weights."""
        return self.flow.own_rates(self.flow.kink_drive(self.at.drive), self.at)

    def step_and_tangents(self, own: Layers) -> tuple[Layers, Float[Array, "H P"]]:
        """Return what a step of descent on L' adds to the changes, and dz (H, P) there."""
        flow, at = self.flow, self.at
        weights, slope = flow.all_parameters(self.parameters)[0], flow.network.slope

        def loss_change(own):
            below, tangents = jnp.zeros_like(flow.task.x.T), []
            for dz, w, gate, at_kink in zip(own, weights, at.gates, self.pairs, strict=False):
                dz = dz + w @ below if tangents else dz
                below = jnp.where(at_kink, jnp.where(dz > 0, dz, slope * dz), gate * dz)
                tangents.append(dz)
            return -jnp.sum(at.output_error * (weights[-1] @ below)), jnp.concatenate(tangents)

        gradient, tangents = jax.grad(loss_change, has_aux=True)(own)
        return [by(-back) for by, back in zip(self.responses, gradient, strict=True)], tangents


def _response_of_layer(flow: DeepFlow, k: int, h: Array) -> Callable[[Array], Array]:
    """Return the function of a layer's signals (H, P) that says by how much they move its z."""
    weights, biases = flow.inverse_tau
    few_inputs = h.shape[0] < h.shape[1]  # the smaller of two matrices: by inputs or by samples
    gram = None if few_inputs else weights[k] * (h.T @ h)

    def respond(signals: Float[Array, "H P"]) -> Float[Array, "H P"]:
        moved = weights[k] * ((signals @ h.T) @ h) if gram is None else signals @ gram
        if flow.network.biases[k] is None:
            return moved
        sums = jnp.sum(signals, axis=1, keepdims=True)
        return moved + biases[k] * flow.network.bias_strength**2 * sums

    return respond
