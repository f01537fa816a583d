"""The gradient flow of a network with one hidden layer at given sides of its gates."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from flowlin._tools.arrays import Parameters, prepend_constant
from flowlin._tools.numerics import dtype_rounding, flatten_like
from flowlin.engine.kinks.sides import (
    OFF,
    RESOLVED,
    RESTS,
    SLIDING,
    TURNED,
    Hyperplanes,
    Sides,
    rows_in_slots,
    slide_constraint,
    slots_of,
)
from flowlin.engine.kinks.sliding_flow import errors_at_zero_outputs
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.tasks.task import Task
from flowlin.training.loss import Loss
from flowlin.training.objective import Decay, add_decay
from flowlin.training.rules import divide_by_tau, layers_that_move, tau_per_array


class FixedSides(eqx.Module):
    """Sides as a vector field reads them, constant along a piece."""

    codes: Int[Array, "H P"]
    gates: Float[Array, "H P"]
    x: Float[Array, "H m N"]  # x~ of each unit's sliding pairs, zero in empty slots
    slide_solver: Float[Array, "H m N"]
    projector: Float[Array, "H N N"] | None
    slot_index: Int[Array, "H P"]  # where a sliding pair's slot is
    rests: Bool[Array, "H P"]  # RESTS in `Sides`
    waits: Bool[Array, "H P"] | None  # pairs that may revive their units; None where none does

    @property
    def has_drive_margin(self) -> Bool[Array, "H P"]:
        """Tell which pairs have a margin in u, its bound or the integral of C, and so in C."""
        rests = self.rests if self.waits is None else self.rests | self.waits
        return (self.codes == SLIDING) | rests


class Forces(eqx.Module):
    """Everything that drives the units at one point."""

    z: Float[Array, "H P"]
    h: Float[Array, "H P"]
    error: Float[Array, "P N_out"]  # e_i = -dL / d yhat_i
    drive: Float[Array, "H P"]  # C_ji = a_j . e_i


class OneLayerFlow(eqx.Module):
    r"""Velocity and switching conditions at given sides, for one hidden layer.

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
    all at a kink: u, its bounds and the rule at events are those without it. Where the weights or
    the bias rest, what decays is a part of z alone, which drifts at a kink: by $\lambda c b$ with a
    bias that rests. This drift is then in q, and is projected with the rest.

    `tau` is a prefix of the parameters' tree, None for what does not move, and velocities are
    trees of the rest; parameters may lack what does not move.

    A unit that is off for all samples, and at the kink of one, rests. With any smooth gates g > 0
    of width w its $u = z / w$ has $\dot u = |\tilde x|^2 C(t)\, g(u) / w$, so that u is back where
    it was as the unit died when $I = \int C\, dt$ since then is zero. Where units are to revive
    (`revives`) a state is the parameters with each unit's I (H,), which moves while it rests: I
    falls while C < 0, and where it is back at zero the pair comes on. Of two kinks of one unit this
    is not known, and it stays off.
    """

    network: ReLUNetwork
    task: Task
    loss: Loss
    tau: PyTree
    decay: Decay | None
    kinks: Hyperplanes
    lengths: Float[Array, " P"]  # |x~|, of all coordinates
    zero_output_errors: Float[Array, "1 P"]  # sizes of e at zero outputs
    drift_rates: Float[Array, " N"] | None  # lambda of what moves of w~; None where z drifts not
    revives: bool = eqx.field(static=True)

    degree = 1  # of z as a polynomial of the parameters
    batches_margins = True  # whether margins at many points are computed in one batch

    def __init__(
        self,
        network: ReLUNetwork,
        task: Task,
        loss: Loss,
        tau: PyTree,
        decay: Decay | None = None,
        revives: bool = False,
    ):
        self.network, self.task, self.loss, self.tau = network, task, loss, tau
        self.decay, self.revives = decay, revives
        biased = network.biases[0] is not None
        x = prepend_constant(task.x, network.bias_strength) if biased else task.x
        weights, bias = layers_that_move(tau, network)[0]
        self.kinks = Hyperplanes.from_inputs(x).with_moving_inputs(
            [bias] * biased + [weights] * task.inputs
        )
        part = decay is not None and biased and weights != bias
        moves = jnp.asarray([bias] + [weights] * task.inputs, x.dtype)
        self.drift_rates = decay.first_rate() * moves if part else None  # pyright: ignore
        self.lengths = jnp.linalg.norm(x, axis=1)
        self.zero_output_errors = errors_at_zero_outputs(task, loss)

    def fix_sides(self, sides: Sides) -> FixedSides:
        """Return the sides as the vector field reads them."""
        slides = (sides.codes == SLIDING) & self.kinks.is_leader[None]
        slot = jnp.clip(jnp.cumsum(slides, axis=1) - 1, 0, sides.slots.shape[1] - 1)
        gates = self.kinks.gates(sides.codes, self.network.slope)
        x = rows_in_slots(self.kinks.x, sides.slots)
        alone = jnp.sum(sides.rests != 0, axis=1, keepdims=True) == 1
        return FixedSides(
            codes=sides.codes,
            gates=gates,
            x=x,
            slide_solver=sides.slide_solver,
            projector=sides.projector,
            slot_index=slot,
            rests=sides.rests == RESTS,
            waits=(sides.rests == TURNED) & alone if self.revives else None,
        )

    def all_parameters(self, state: PyTree) -> Parameters:
        """Return all parameters of a state, with those that do not move."""
        return self.network.with_parameters(self.without_integrals(state)).parameters

    def without_integrals(self, state: PyTree) -> Parameters:
        """Return the parameters of a state, without the integrals of C where it has them."""
        return state[0] if self.revives else state

    def preactivations(self, parameters: Parameters) -> Float[Array, "H P"]:
        """Return z = w . x + c b."""
        (w, *_), (b, *_) = self.all_parameters(parameters)
        z = w @ self.task.x.T
        return z if b is None else z + (self.network.bias_strength * b)[:, None]

    def forces_at(self, parameters: Parameters, gates: Float[Array, "H P"] | None) -> Forces:
        """Return preactivations, activations, errors and C; gates from the signs of z if None."""
        (_, readout), (_, offset) = self.all_parameters(parameters)
        z = self.preactivations(parameters)
        h = z * (jnp.where(z > 0, 1.0, self.network.slope) if gates is None else gates)
        outputs = h.T @ readout.T
        if offset is not None:
            outputs = outputs + (self.network.bias_strength * offset)[None]
        error = -jax.grad(self.loss)(outputs, self.task.y, self.task.weights)
        return Forces(z, h, error, readout.T @ error.T)

    def __call__(
        self, t: ArrayLike | None, parameters: Parameters, frozen: FixedSides | None
    ) -> Parameters:
        """Return the velocity of the parameters; without sides, at those of the signs of z."""
        del t
        forces = self.forces_at(parameters, None if frozen is None else frozen.gates)
        if frozen is None:
            gates = jnp.where(forces.z > 0, 1.0, self.network.slope)
            unit = (gates * forces.drive) @ self.kinks.x
        else:
            unit = (frozen.gates * forces.drive) @ self.kinks.x
            drift = self.drift(parameters)
            free = unit if drift is None else unit + drift
            if frozen.projector is None:
                u = by_unit(frozen.slide_solver, free)
                unit = unit - jnp.sum(u[:, :, None] * frozen.x, axis=1)
            else:
                unit = by_unit(frozen.projector, free) - (0.0 if drift is None else drift)
        b, offset = self.network.biases
        weights = (unit if b is None else unit[:, 1:], forces.error.T @ forces.h.T)
        biases = (
            None if b is None else unit[:, 0],
            None if offset is None else self.network.bias_strength * jnp.sum(forces.error, axis=0),
        )
        force = add_decay((weights, biases), self.decay, self.all_parameters(parameters))
        moving = self.without_integrals(parameters)
        velocity = flatten_like(moving, divide_by_tau(force, self.tau))
        if not self.revives:
            return velocity
        return velocity, self._rest_drive(forces, frozen)

    def _rest_drive(self, forces: Forces, frozen: FixedSides | None) -> Float[Array, " H"]:
        """Return C of the kink on which each unit rests, zero of those that do not."""
        if frozen is None or frozen.waits is None:
            return jnp.zeros(len(forces.drive), forces.drive.dtype)
        own = jnp.where(frozen.rests | frozen.waits, self.kinks.kink_drive(forces.drive), 0.0)
        return jnp.sum(own, axis=1)

    def drift(self, parameters: Parameters) -> Float[Array, "H N"] | None:
        """Return the decay's part of a unit's velocity, where it moves z at a kink; else None."""
        if self.drift_rates is None:
            return None
        (w, *_), (b, *_) = self.all_parameters(parameters)
        return -self.drift_rates[None] * jnp.concatenate([b[:, None], w], axis=1)

    def is_still(self, codes: Int[Array, "*H P"]) -> Bool[Array, "*H 1"]:
        """Tell which units no sample moves: all are off, where that is a gate of zero."""
        off = jnp.all(codes == OFF, axis=-1, keepdims=True) & (self.network.slope == 0)
        return off & (self.drift_rates is None)

    def slide_bound(self, kink_drive: Array) -> Array:
        """Return the largest u: (1 - s) |C| where C < 0; at C > 0 negative, nothing slides."""
        return -(1 - self.network.slope) * kink_drive

    def slide_and_drive(
        self, parameters: Parameters, forces: Forces, frozen: FixedSides
    ) -> tuple[Array, Array]:
        """Return u of the sliding pairs, of no meaning elsewhere, and C of each kink, (H, P)."""
        free, drift = (frozen.gates * forces.drive) @ self.kinks.x, self.drift(parameters)
        free = free if drift is None else free + drift
        u = by_unit(frozen.slide_solver, free)
        strength = self.kinks.kink_drive(forces.drive)
        return jnp.take_along_axis(u, frozen.slot_index, axis=1), strength

    def side_distances(self, parameters: Parameters, frozen: FixedSides) -> Float[Array, "H P"]:
        """Return |z| of pairs on their sides, as `margins` has it."""
        z = self.preactivations(parameters)
        return jnp.where(self.kinks.is_leader[None], jnp.where(frozen.codes == OFF, -z, z), 1.0)

    def margins(self, parameters: Parameters, frozen: FixedSides) -> Float[Array, "2 H P"]:
        """Return each kink's distance from an event, in two smooth functions of the parameters.

        These are |z| and one; for a sliding kink u and its distance from its bound; for one on
        which a unit rests |z| and the bound, which falls to zero where the kink turns to repel,
        and after that, where units are to revive, the integral of C, which then goes to zero.
        Both are one for samples that follow another's kink.
        """
        return self.margins_and_bounds(parameters, frozen)[0]

    def margins_and_bounds(
        self, parameters: Parameters, frozen: FixedSides
    ) -> tuple[Float[Array, "2 H P"], Float[Array, "H P"]]:
        """Return `margins`, and the `slide_bound` of each kink: negative where it repels."""
        forces = self.forces_at(parameters, frozen.gates)
        u, strength = self.slide_and_drive(parameters, forces, frozen)
        bound = self.slide_bound(strength)
        slides = frozen.codes == SLIDING
        side = jnp.where(frozen.codes == OFF, -forces.z, forces.z)
        highest = jnp.where(slides, bound - u, jnp.where(frozen.rests, bound, 1.0))
        if frozen.waits is not None:
            _, integrals = parameters
            highest = jnp.where(frozen.waits, -integrals[:, None], highest)
        margins = jnp.stack([jnp.where(slides, u, side), highest])
        return jnp.where(self.kinks.is_leader[None, None], margins, 1.0), bound

    def project_to_kinks(
        self, parameters: Parameters, frozen: FixedSides
    ) -> tuple[Parameters, Array]:
        """Return the parameters as they are: sliding pairs never leave their kinks here.

        **Returns:** the parameters, and whether they moved.
        """
        del frozen
        return parameters, jnp.asarray(False)

    def pair_scales(self, parameters: Parameters) -> Float[Array, "H P"]:
        """Return |w~| |x~| of each pair, which errors of z count against."""
        (w, *_), (b, *_) = self.all_parameters(lax.stop_gradient(parameters))
        square = jnp.sum(w**2, axis=1) if b is None else jnp.sum(w**2, axis=1) + b**2
        return jnp.sqrt(square)[:, None] * self.lengths[None]

    def drive_scales(self, parameters: Parameters) -> Float[Array, "H 1"]:
        """Return each unit's |C| at zero outputs at most, the scale of its rounding."""
        readout = self.all_parameters(lax.stop_gradient(parameters))[0][1]
        return jnp.max(self.zero_output_errors) * jnp.linalg.norm(readout, axis=0)[:, None]

    def z_rounding(self, parameters: Parameters) -> Float[Array, "H P"]:
        """Return the |z| that may be rounding, told as by `DeepFlow.scales_of_rounding`."""
        (w, *_), (b, *_) = self.all_parameters(lax.stop_gradient(parameters))
        sizes = jnp.sqrt(jnp.sum(w**2, axis=1))[:, None] * self.lengths[None]
        if b is not None:
            sizes = sizes + jnp.abs(self.network.bias_strength * b)[:, None]
        eps, tiny = jnp.finfo(sizes.dtype).eps, jnp.finfo(sizes.dtype).tiny
        return lax.stop_gradient(dtype_rounding(sizes.dtype).z * sizes + tiny / eps)

    def margin_tolerances(self, parameters: Parameters, frozen: FixedSides) -> Float[Array, "H P"]:
        """Return the margins that may be rounding."""
        parameters = lax.stop_gradient(parameters)
        slid = self.drive_rounding(parameters, self.forces_at(parameters, frozen.gates).drive)
        return jnp.where(frozen.has_drive_margin, slid, self.z_rounding(parameters))

    def drive_rounding(
        self, parameters: Parameters, drive: Float[Array, "H P"]
    ) -> Float[Array, "H P"]:
        """Return the C of each kink that may be rounding."""
        eps, strength = jnp.finfo(drive.dtype).eps, self.kinks.kink_drive(jnp.abs(drive))
        slid = dtype_rounding(eps.dtype).u * strength + 5 * eps * self.drive_scales(parameters)
        return slid + jnp.finfo(eps).tiny / eps


def by_unit(matrices: Float[Array, "H n m"], vectors: Float[Array, "H m"]) -> Float[Array, "H n"]:
    """Multiply every unit's vector by its matrix; on a CPU faster as a product than as a sum."""
    return jnp.einsum("hnm,hm->hn", matrices, vectors, precision="highest")


# ---- Gates of one hidden layer with the fractions of its sliding pairs; each unit's dissipation.
#
# A pair that slides is on for the share $u / |C|$ of its gate's range, which Filippov's rule above
# fixes. With these gates the exact flow is the flow of a gated linear network whose gates depend on
# time.


def sides_with_slots(kinks: Hyperplanes, codes: Int[Array, "H P"], slots: int) -> Sides:
    """Return sides to these codes, with room for so many sliding pairs of a unit; none rests."""
    codes = codes.astype(jnp.int8)
    chosen = jax.vmap(lambda row: slots_of((row == SLIDING) & kinks.is_leader, slots))(codes)
    solve, projector = jax.vmap(lambda some: slide_constraint(rows_in_slots(kinks.x, some)))(chosen)
    fine = jnp.full(codes.shape[0], RESOLVED, jnp.int8)
    return Sides(codes, chosen, solve, projector, jnp.zeros(codes.shape, jnp.int8), fine)


def effective_gates(
    flow: OneLayerFlow, parameters: Parameters, sides: Sides
) -> Float[Array, "H P"]:
    """Return the gates of all pairs, those that slide by their fractions.

    A sample that follows another's kink against its direction is off where that one is on.
    """
    frozen = flow.fix_sides(sides)
    forces = flow.forces_at(parameters, frozen.gates)
    u, strength = flow.slide_and_drive(parameters, forces, frozen)
    bound = flow.slide_bound(strength)
    share = (1 - flow.network.slope) * u / jnp.where(bound > 0, bound, 1.0)
    moved = share[:, flow.kinks.leader] * jnp.sign(flow.kinks.scale)[None]
    return frozen.gates + jnp.where(sides.codes == SLIDING, moved, 0.0)


def dissipation_per_unit(
    flow: OneLayerFlow, parameters: Parameters, sides: Sides
) -> Float[Array, "H1"]:
    r"""Return each unit's part of $-dL/dt = \sum \tau |\dot w|^2$, and the readout's bias last.

    A unit's part is that of its weights from the inputs, its bias and its weights to the outputs.
    With weight decay L includes it.
    """
    velocity = flow(None, parameters, flow.fix_sides(sides))
    power = jax.tree.map(lambda tau, v: tau * v**2, tau_per_array(flow.tau, parameters), velocity)
    (inward, outward), (bias, offset) = power
    units = jnp.zeros(sides.codes.shape[0], flow.kinks.x.dtype)
    for part in (None if inward is None else jnp.sum(inward, axis=1), bias):
        units = units if part is None else units + part
    units = units if outward is None else units + jnp.sum(outward, axis=0)
    last = jnp.zeros((), units.dtype) if offset is None else jnp.sum(offset)
    return jnp.append(units, last)
