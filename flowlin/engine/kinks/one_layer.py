"""The gradient flow of a network with one hidden layer at given sides of its gates."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from flowlin._tools.arrays import augment
from flowlin._tools.flat import like
from flowlin._tools.rounding import rounding_in
from flowlin._tools.types import Parameters
from flowlin.field.decay import Decay, slowed
from flowlin.field.gates.sides import OFF, SLIDING, Hyperplanes, Sides, gather
from flowlin.field.pace import layer_moves, paced
from flowlin.loss import Loss
from flowlin.network.kinds import ReLUNetwork
from flowlin.tasks.task import Task


class Frozen(eqx.Module):
    """What a vector field needs of the sides, constant along a piece."""

    codes: Int[Array, "H P"]
    gates: Float[Array, "H P"]
    x: Float[Array, "H m N"]  # x~ of each unit's sliding pairs, zero in empty slots
    solve: Float[Array, "H m N"]
    projector: Float[Array, "H N N"] | None
    slot: Int[Array, "H P"]  # where a sliding pair's slot is


class Forces(eqx.Module):
    """What drives the units at one point."""

    z: Float[Array, "H P"]
    h: Float[Array, "H P"]
    error: Float[Array, "P N_out"]  # e_i = -dL / d yhat_i
    c: Float[Array, "H P"]  # C_ji = a_j . e_i


class GatedFlow(eqx.Module):
    r"""Velocity and switching conditions at given sides.

    With gates g, weights $\tilde w_j = [b_j; w_j]$ and inputs $\tilde x_i = [c; x_i]$,

    $$\tau \dot{\tilde w}_j = \sum_i g_{ji} C_{ji} \tilde x_i, \quad
      \tau \dot a_j = \sum_i e_i h_{ji}, \quad C_{ji} = a_j \cdot e_i, \quad
      e_i = -\partial L / \partial \hat y_i,$$

    for any loss, with one time constant tau per layer. The pairs S of unit j that slide keep
    z = 0: their gates exceed the off gate s by $u_i / |C_{ji}|$, where $K_{SS} u = q$ and q is the
    velocity of z with all of S off. The unit then moves with its free velocity minus the
    projection on their inputs. With a slope s > 0 (leaky ReLU) u lies in $[0, (1 - s) |C|]$, and
    nothing else changes.

    The layer's own tau stands on both sides of $K_{SS} u = q$ and cancels. What does not move, the
    bias or the weights, has no part in K and q: its coordinates of $\tilde x$ are zero in
    `kinks.x`. If neither moves, no kink is ever crossed and none has a leader.

    Weight decay adds $-\lambda \tilde w_j$ and $-\lambda' a_j$. It moves z by $-\lambda z$, not at
    all at a kink: u, its bounds and the rule at events are those without it.

    `tau` is a prefix of the parameters' tree, None for what does not move, and velocities are
    trees of the rest; parameters may lack what does not move.
    """

    network: ReLUNetwork
    task: Task
    loss: Loss
    tau: PyTree
    decay: Decay | None
    kinks: Hyperplanes
    lengths: Float[Array, " P"]  # |x~|, of all coordinates
    error_scale: Array  # size of e at zero outputs

    degree = 1  # of z as a polynomial of the parameters
    at_once = True  # whether margins at many points are computed in one batch

    def __init__(
        self, network: ReLUNetwork, task: Task, loss: Loss, tau: PyTree, decay: Decay | None = None
    ):
        self.network, self.task, self.loss, self.tau = network, task, loss, tau
        self.decay = decay
        biased = network.biases[0] is not None
        x = augment(task.x, network.bias_strength) if biased else task.x
        weights, bias = layer_moves(tau, network)[0]
        self.kinks = Hyperplanes.of(x).within([bias] * biased + [weights] * task.inputs)
        self.lengths = jnp.linalg.norm(x, axis=1)
        at_zero = lax.stop_gradient(jax.grad(loss)(jnp.zeros_like(task.y), task.y, task.weights))
        self.error_scale = jnp.max(jnp.linalg.norm(at_zero, axis=1))

    def freeze(self, sides: Sides) -> Frozen:
        """The sides as the vector field wants them."""
        slides = (sides.codes == SLIDING) & self.kinks.leads
        slot = jnp.clip(jnp.cumsum(slides, axis=1) - 1, 0, sides.slots.shape[1] - 1)
        gates = self.kinks.gates(sides.codes, self.network.slope)
        x = gather(self.kinks.x, sides.slots)
        return Frozen(
            codes=sides.codes,
            gates=gates,
            x=x,
            solve=sides.solve,
            projector=sides.projector,
            slot=slot,
        )

    def whole(self, parameters: Parameters) -> Parameters:
        """With the parameters that do not move."""
        return self.network.with_parameters(parameters).parameters

    def preactivations(self, parameters: Parameters) -> Float[Array, "H P"]:
        """z = w . x + c b."""
        (w, *_), (b, *_) = self.whole(parameters)
        z = w @ self.task.x.T
        return z if b is None else z + (self.network.bias_strength * b)[:, None]

    def forces(self, parameters: Parameters, gates: Float[Array, "H P"] | None) -> Forces:
        """Preactivations, activations, errors and C; gates from the signs of z if None."""
        (_, readout), (_, offset) = self.whole(parameters)
        z = self.preactivations(parameters)
        h = z * (jnp.where(z > 0, 1.0, self.network.slope) if gates is None else gates)
        outputs = h.T @ readout.T
        if offset is not None:
            outputs = outputs + self.network.bias_strength * offset
        error = -jax.grad(self.loss)(outputs, self.task.y, self.task.weights)
        return Forces(z, h, error, readout.T @ error.T)

    def __call__(
        self, t: ArrayLike | None, parameters: Parameters, frozen: Frozen | None
    ) -> Parameters:
        """Velocity of the parameters; without sides, that of the signs of z."""
        del t
        forces = self.forces(parameters, None if frozen is None else frozen.gates)
        if frozen is None:
            gates = jnp.where(forces.z > 0, 1.0, self.network.slope)
            unit = (gates * forces.c) @ self.kinks.x
        else:
            unit = (frozen.gates * forces.c) @ self.kinks.x
            if frozen.projector is None:
                u = by_unit(frozen.solve, unit)
                unit = unit - jnp.sum(u[:, :, None] * frozen.x, axis=1)
            else:
                unit = by_unit(frozen.projector, unit)
        b, offset = self.network.biases
        weights = (unit if b is None else unit[:, 1:], forces.error.T @ forces.h.T)
        biases = (
            None if b is None else unit[:, 0],
            None if offset is None else self.network.bias_strength * jnp.sum(forces.error, axis=0),
        )
        force = slowed((weights, biases), self.decay, self.whole(parameters))
        return like(parameters, paced(force, self.tau))

    def bound(self, strength: Array) -> Array:
        """Largest u: (1 - s) |C| where C < 0; at C > 0 negative, nothing slides."""
        return -(1 - self.network.slope) * strength

    def fractions(self, forces: Forces, frozen: Frozen) -> tuple[Array, Array]:
        """u of the sliding pairs and its bound, (H, P); of no meaning elsewhere."""
        free = (frozen.gates * forces.c) @ self.kinks.x
        u = by_unit(frozen.solve, free)
        bound = self.bound(self.kinks.strength(forces.c))
        return jnp.take_along_axis(u, frozen.slot, axis=1), bound

    def distances(self, parameters: Parameters, frozen: Frozen) -> Float[Array, "H P"]:
        """|z| of pairs on their sides, as `margins` has it."""
        z = self.preactivations(parameters)
        return jnp.where(self.kinks.leads, jnp.where(frozen.codes == OFF, -z, z), 1.0)

    def margins(self, parameters: Parameters, frozen: Frozen) -> Float[Array, "2 H P"]:
        """How far each kink is from an event, in two smooth functions of the parameters.

        |z| and one; for a sliding kink u and its distance from its bound. Both are one for
        samples that follow another's.
        """
        forces = self.forces(parameters, frozen.gates)
        u, bound = self.fractions(forces, frozen)
        slides = frozen.codes == SLIDING
        side = jnp.where(frozen.codes == OFF, -forces.z, forces.z)
        margins = jnp.stack([jnp.where(slides, u, side), jnp.where(slides, bound - u, 1.0)])
        return jnp.where(self.kinks.leads, margins, 1.0)

    def settle(self, parameters: Parameters, frozen: Frozen) -> tuple[Parameters, Array]:
        """The sliding pairs brought back to their kinks, which they never leave here.

        **Returns:** the parameters, and whether they moved.
        """
        del frozen
        return parameters, jnp.asarray(False)

    def rounding(self, parameters: Parameters) -> Float[Array, "H P"]:
        """|z| that may be rounding."""
        (w, *_), (b, *_) = self.whole(parameters)
        square = jnp.sum(w**2, axis=1) if b is None else jnp.sum(w**2, axis=1) + b**2
        sizes = jnp.sqrt(square)[:, None] * self.lengths
        eps, tiny = jnp.finfo(sizes.dtype).eps, jnp.finfo(sizes.dtype).tiny
        return lax.stop_gradient(rounding_in(sizes.dtype).z * sizes + tiny / eps)

    def tolerances(self, parameters: Parameters, frozen: Frozen) -> Float[Array, "H P"]:
        """Margins that may be rounding."""
        parameters = lax.stop_gradient(parameters)
        forces = self.forces(parameters, frozen.gates)
        eps = jnp.finfo(forces.c.dtype).eps
        strength = self.kinks.strength(jnp.abs(forces.c))
        scale = self.error_scale * jnp.linalg.norm(self.whole(parameters)[0][1], axis=0)[:, None]
        slid = rounding_in(eps.dtype).u * strength + 5 * eps * scale
        tiny = jnp.finfo(eps).tiny / eps
        return jnp.where(frozen.codes == SLIDING, slid + tiny, self.rounding(parameters))


def by_unit(matrices: Float[Array, "H n m"], vectors: Float[Array, "H m"]) -> Float[Array, "H n"]:
    """Every unit's matrix times its vector; on a CPU faster as a product than as a sum."""
    return jnp.einsum("hnm,hm->hn", matrices, vectors, precision="highest")
