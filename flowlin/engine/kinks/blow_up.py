r"""Follow descent through a point at which kinks meet: the point blown up.

Near a point $\theta_0$ descent at rate $\epsilon$ is, in $\delta = (\theta - \theta_0) / \epsilon$,
descent at rate one on the directional derivative $L'(\theta_0; \delta)$, up to $O(\epsilon)$. This
is one forward pass of tangents in which a pair at its kink passes on $\max(\dot z, 0)$: continuous,
piecewise linear and homogeneous. Pairs without inputs are in it, fed by the pairs below; pairs that
share a kink are in it, with drives that add up by themselves. Descent comes in along the velocity
before the event, and leaves, but for its chatter, along a ray: the velocity after the event, a
local minimum of $L'(\theta_0; \delta) + |\delta|^2 / 2$ (in the metric of tau).

It says what becomes of all pairs at once, whatever their number, where `deep_switching` chooses
them one by one; but only in digits that its chatter leaves. So it is asked where pairs without
inputs or more kinks than dimensions meet, and what it says is judged by the velocity of the sides
that it leads to.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from flowlin._tools.arrays import Parameters
from flowlin.engine.kinks.deep_flow import DeepFlow, FullPass
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
    flow: DeepFlow,
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
    masks = still.split_layers(pairs)
    step = jax.vmap(lambda delta: _step_and_tangents(still, parameters, at, masks, delta))

    def advance(state):
        count, deltas, half, last, chatter = state
        moved, tangents = step(deltas)
        late = count > STEPS_IN + STEPS_OUT // 2
        change = jnp.where(late, jnp.abs(tangents - last), 0.0)
        half = jnp.where(late, half, tangents)
        deltas = jax.tree.map(jnp.add, deltas, moved)
        return count + 1, deltas, half, tangents, jnp.maximum(chatter, change)

    phases = STEPS_IN + jnp.arange(PHASES, dtype=still.task.x.dtype) / PHASES
    start = jax.tree.map(lambda v: -phases.reshape(-1, *[1] * v.ndim) * v[None], before)
    none = jnp.zeros((PHASES, *pairs.shape), still.task.x.dtype)
    steps = jnp.where(wanted, STEPS_IN + STEPS_OUT, 0)
    state = jnp.zeros((), steps.dtype), start, none, none, none
    _, _, half, last, chatter = lax.while_loop(lambda s: s[0] < steps, advance, state)
    rates = (last - half) / (STEPS_OUT - STEPS_OUT // 2 - 1)
    size = jnp.max(chatter, axis=0)
    apart = jnp.abs(rates[:, None] - rates[None]) > 2 * SAME * size[None, None]
    others = jnp.sum(jnp.any(apart & pairs[None, None], axis=(2, 3)), axis=1)
    return Outcome(rates[jnp.argmin(others)], size, jnp.all(others == 0))


def _step_and_tangents(
    flow: DeepFlow, parameters: Parameters, at: FullPass, pairs: list[Array], delta: Parameters
) -> tuple[Parameters, Float[Array, "H P"]]:
    """Return a step of descent on L' at delta, and dz (H, P) there."""
    (*weights, readout), (*biases, offset) = flow.all_parameters(parameters)
    del offset

    def slope(delta):
        (*moved, out), (*shifts, last) = delta
        below, tangents = None, []
        layers = zip(weights, biases, moved, shifts, at.h, at.gates, pairs, strict=False)
        for w, b, dw, db, h, gate, own in layers:
            dz = dw @ h if below is None else dw @ h + w @ below
            dz = dz if b is None else dz + (flow.network.bias_strength * db)[:, None]
            below = jnp.where(own, jnp.where(dz > 0, dz, flow.network.slope * dz), gate * dz)
            tangents.append(dz)
        outputs = out @ at.h[-1] + readout @ below
        if last is not None:
            outputs = outputs + (flow.network.bias_strength * last)[:, None]
        return -jnp.sum(at.output_error * outputs), jnp.concatenate(tangents)

    gradient, tangents = jax.grad(slope, has_aux=True)(delta)
    force = jax.tree.map(jnp.negative, gradient)
    force = add_decay(force, flow.decay, flow.all_parameters(parameters))
    return jax.tree.map(jnp.multiply, force, flow.inverse_tau), tangents
