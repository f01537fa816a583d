r"""The gates of one hidden layer with the fractions of its sliding pairs, and what each unit does.

A pair that slides is on for the share $u / |C|$ of its gate's range, which Filippov's rule fixes
(`flowlin.field.gates.one_layer`). With these gates the exact flow is the flow of a gated linear
network whose gates depend on time.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flowlin._tools.types import Parameters
from flowlin.field.gates.one_layer import GatedFlow
from flowlin.field.gates.sides import FINE, SLIDING, Hyperplanes, Sides, gather, held, slots_of
from flowlin.field.pace import spread


def sides_of(kinks: Hyperplanes, codes: Int[Array, "H P"], slots: int) -> Sides:
    """The sides that codes say, with room for so many sliding pairs of a unit."""
    codes = codes.astype(jnp.int8)
    chosen = jax.vmap(lambda row: slots_of((row == SLIDING) & kinks.leads, slots))(codes)
    solve, projector = jax.vmap(lambda some: held(gather(kinks.x, some)))(chosen)
    fine = jnp.full(codes.shape[0], FINE, jnp.int8)
    return Sides(codes, chosen, solve, projector, fine)


def effective_gates(flow: GatedFlow, parameters: Parameters, sides: Sides) -> Float[Array, "H P"]:
    """Gates of all pairs, those that slide by their fractions.

    A sample that follows another's kink against its direction is off where that one is on.
    """
    frozen = flow.freeze(sides)
    u, bound = flow.fractions(flow.forces(parameters, frozen.gates), frozen)
    share = (1 - flow.network.slope) * u / jnp.where(bound > 0, bound, 1.0)
    moved = share[:, flow.kinks.leader] * jnp.sign(flow.kinks.scale)
    return frozen.gates + jnp.where(sides.codes == SLIDING, moved, 0.0)


def powers(flow: GatedFlow, parameters: Parameters, sides: Sides) -> Float[Array, "H1"]:
    r"""What each unit contributes to $-dL/dt = \sum \tau |\dot w|^2$, and the readout's bias last.

    A unit's are its weights from the inputs, its bias and its weights to the outputs. With weight
    decay L includes it.
    """
    velocity = flow(None, parameters, flow.freeze(sides))
    power = jax.tree.map(lambda tau, v: tau * v**2, spread(flow.tau, parameters), velocity)
    (inward, outward), (bias, offset) = power
    units = jnp.zeros(sides.codes.shape[0], flow.kinks.x.dtype)
    for part in (None if inward is None else jnp.sum(inward, axis=1), bias):
        units = units if part is None else units + part
    units = units if outward is None else units + jnp.sum(outward, axis=0)
    last = jnp.zeros((), units.dtype) if offset is None else jnp.sum(offset)
    return jnp.append(units, last)
