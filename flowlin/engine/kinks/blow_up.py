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
from flowlin.engine.kinks.deep_flow import DeepFlow, FullPass, Layers
from flowlin.engine.kinks.module_flow import ModuleFlow
from flowlin.engine.kinks.sides import OFF, ON, SLIDING
from flowlin.training.objective import add_decay

PHASES = 12  # of the steps' lattice, in which descent comes to the point
STEPS_IN, STEPS_OUT = 40, 400  # of descent, before the point and after it
SAME = 0.05  # rates closer than this share of a step's chatter are the same
STILL = 0.02  # below this share of the chatter a pair stays at its kink


class Outcome(eqx.Module):
    """Tells how pairs leave a point: dz/dt in the mean over the second half of the steps out.

    - `chatter`: the largest change of z in one of these steps, the scale of `rates`.
    - `agrees`: whether descent leaves so whatever the phase of its steps.
    """

    rates: Float[Array, "H P"]
    chatter: Float[Array, "H P"]
    agrees: Bool[Array, ""]

    def is_rate(self, rates: Float[Array, "H P"], pairs: Bool[Array, "H P"]) -> Bool[Array, ""]:
        """Tell whether these rates of the pairs are the same."""
        return jnp.all(jnp.where(pairs, jnp.abs(rates - self.rates), 0.0) <= SAME * self.chatter)

    def sides(self, pairs: Bool[Array, "H P"], codes: Int[Array, "H P"]) -> Int[Array, "H P"]:
        """Return the sides that the pairs leave to; SLIDING where they stay."""
        stays = jnp.abs(self.rates) <= STILL * self.chatter
        left = jnp.where(stays, SLIDING, jnp.where(self.rates > 0, ON, OFF))
        return jnp.where(pairs, left, codes).astype(codes.dtype)


def descend_from(
    flow: DeepFlow | ModuleFlow,
    parameters: Parameters,
    codes: Int[Array, "H P"],
    pairs: Bool[Array, "H P"],
    before: Parameters,
    wanted: Bool[Array, ""],
) -> Outcome:
    """Descend through the point `parameters`, at which these pairs have z = 0.

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
        count, moved, half, last, chatter = state
        more, tangents = step(moved)
        late = count > STEPS_IN + STEPS_OUT // 2
        change = jnp.where(late, jnp.abs(tangents - last), 0.0)
        half = jnp.where(late, half, tangents)
        moved = jax.tree.map(lambda z, dz, d: z + dz + d[None], moved, more, drift)
        return count + 1, moved, half, tangents, jnp.maximum(chatter, change)

    phases = STEPS_IN + jnp.arange(PHASES, dtype=still.task.x.dtype) / PHASES
    start = jax.tree.map(lambda one: -jnp.tensordot(phases, one, 0), changes.of(before))
    none = jnp.zeros((PHASES, *pairs.shape), still.task.x.dtype)
    steps = jnp.where(wanted, STEPS_IN + STEPS_OUT, 0)
    state = jnp.zeros((), steps.dtype), start, none, none, none
    _, _, half, last, chatter = lax.while_loop(lambda s: s[0] < steps, advance, state)
    rates = (last - half) / (STEPS_OUT - STEPS_OUT // 2 - 1)
    size = jnp.max(chatter, axis=0)
    apart = jnp.abs(rates[:, None] - rates[None]) > 2 * SAME * size[None, None]
    others = jnp.sum(jnp.any(apart & pairs[None, None], axis=(2, 3)), axis=1)
    return Outcome(rates[jnp.argmin(others)], size, jnp.all(others == 0))


class ParameterChanges:
    """Changes of the weights themselves, of any module."""

    def __init__(self, flow: ModuleFlow, parameters: Parameters, at: PyTree, pairs: Array):
        self.flow, self.parameters, self.at = flow, flow.all_parameters(parameters), at
        self.pairs = pairs

    def of(self, delta: Parameters) -> Parameters:
        """Return the change of all parameters as it is."""
        return delta

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
