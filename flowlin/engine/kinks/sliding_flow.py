"""The gradient flow of a network whose pairs slide on kinks in several places at once."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractVar
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from flowlin._tools.arrays import Parameters
from flowlin._tools.numerics import dtype_rounding
from flowlin.engine.kinks.sides import (
    RESTS,
    RIDGE,
    SLIDING,
    FixedLayerSides,
    LayerSides,
    map_used_slots,
    read_slots,
    slots_of,
    solve_gram,
    write_slots,
)
from flowlin.tasks.task import Task
from flowlin.training.loss import Loss
from flowlin.training.loss_kinks import ModelWithLoss
from flowlin.training.objective import Decay
from flowlin.training.rules import is_none, tau_per_array

MOST_MEETING = 32  # pairs that meet at an event whose gradients are compared


class AbstractSlidingFlow(eqx.Module):
    r"""Base of flows at given sides in which sliding pairs push each other's z.

    The pair p of a unit and a sample contributes $g_p C_p \phi_p$ to the velocity, with its gate
    g, $C_p = -\partial L / \partial h_p$ and $\phi_p = \partial z_p / \partial \theta$. Sliding
    pairs S have h = 0 whatever their gates, so their phi may be taken with all of S off; their
    unknown is what they send back, s C_p - u_p in the mean, in which all below is linear:

    $$\dot\theta = D (f - \Phi^T u), \quad \Phi D \Phi^T u = \Phi D f, \quad
      0 \le u_p \le -(1 - s) C_p(u),$$

    with f minus the gradient with all of S off, and D the diagonal of 1/tau: what is left of f
    beside the span of the sliding pairs' gradients, in the metric of D. C_p depends on the u of
    the layers above (`flowlin.engine.kinks.deep_switching` has the derivation). D is zero for what
    does not move. A pass holds z and the drive C of all pairs, in arrays (H_l, P) per layer.
    """

    network: AbstractVar[PyTree]
    task: AbstractVar[Task]
    tau: AbstractVar[PyTree]  # a prefix of the parameters' tree
    decay: AbstractVar[Decay | None]

    @property
    @abc.abstractmethod
    def slope(self) -> Array:
        """The slope of the off side."""

    @property
    @abc.abstractmethod
    def is_leader(self) -> Bool[Array, "H P"]:
        """Flags (H, P) of pairs that lead their kinks."""

    @property
    @abc.abstractmethod
    def feeds_all(self) -> bool:
        """Tell whether no pair is ever without inputs, as biases see to."""

    @abc.abstractmethod
    def gates(self, codes: Int[Array, "H P"]) -> Float[Array, "H P"]:
        """Return the gates to the sides, those of sliding pairs off."""

    @abc.abstractmethod
    def kink_drive(self, drive: list[Array]) -> Float[Array, "H P"]:
        """Sum C over the samples of each kink, at its leader."""

    @abc.abstractmethod
    def forward_pass(self, parameters: Parameters, gates: Array | None) -> PyTree:
        """Run the forward pass; without gates, with those of the signs of z."""

    @abc.abstractmethod
    def both_passes(self, parameters: Parameters, gates: Array | None) -> PyTree:
        """Run both passes; without gates, with those of the signs of z."""

    @abc.abstractmethod
    def backward_pass(
        self, parameters: Parameters, at: PyTree, error: Array, u: Float[Array, "H P"] | None
    ) -> PyTree:
        """Run the backward pass of the outputs' errors, with the u of the sliding pairs."""

    @abc.abstractmethod
    def velocity(
        self, parameters: Parameters, at: PyTree, decay: Decay | None = None
    ) -> Parameters:
        """Return the velocity of all parameters that a pass makes, with a decay's."""

    @abc.abstractmethod
    def preactivation_rates(self, parameters: Parameters, at: PyTree) -> Float[Array, "H P"]:
        """Return dz/dt along the velocity of a pass."""

    @abc.abstractmethod
    def gram_matrix(self, parameters: Parameters, at: PyTree, slots: Int[Array, " m"]) -> Array:
        r"""Return $\Phi D \Phi^T$ (m, m) of the pairs in the slots, zero in empty ones."""

    @abc.abstractmethod
    def pair_scales(self, parameters: Parameters) -> Float[Array, "H P"]:
        """Return the scale of each pair's z, which errors of it count against."""

    @abc.abstractmethod
    def scales_of_rounding(
        self, parameters: Parameters, widely: bool = False
    ) -> Float[Array, "H P"]:
        """Return the scale of the rounding of each pair's z, of which its kink is told.

        Without the bias times the inputs: inputs of 1e8 round nothing of it off.
        """

    @abc.abstractmethod
    def drive_scales(self, parameters: Parameters) -> Float[Array, "H 1"]:
        """Return each unit's |C| at zero outputs at most, the scale of its rounding."""

    @property
    def batches_margins(self) -> bool:
        """Tell whether margins along a step are evaluated at once.

        Batches of Cholesky factors, in two programs at a time, can wait for each other for ever:
        XLA's kernel on CPUs shares a batch out among threads that both programs hold.
        """
        return False

    @property
    def inverse_tau(self) -> Parameters:
        """1 / tau of every array, zero for arrays that do not move."""

        def one_inverse(tau: Any) -> Any:
            return jnp.zeros((), self.task.x.dtype) if tau is None else 1.0 / tau

        speeds = jax.tree.map(one_inverse, self.tau, is_leaf=is_none)  # of a prefix: few divisions
        return tau_per_array(speeds, self.network.parameters)

    @property
    def may_drift(self) -> bool:
        """Tell whether decay may move the z of a unit from its kink: where a part of it rests."""
        rests = any(one is None for one in jax.tree.leaves(self.tau, is_leaf=is_none))
        return self.decay is not None and rests

    def select_moving(self, parameters: Parameters) -> Parameters:
        """Return a tree like the parameters, without the arrays that do not move."""
        constants = tau_per_array(self.tau, self.network.parameters)

        def keep_moving(tau: Any, own: Any) -> Any:
            return None if tau is None else own

        return jax.tree.map(keep_moving, constants, parameters, is_leaf=is_none)

    def all_parameters(self, parameters: Parameters) -> Parameters:
        """Return all parameters, with those that do not move."""
        return self.network.with_parameters(parameters).parameters

    def slide_bound(self, strength: Array) -> Array:
        """Return the largest u of each kink, negative where nothing slides."""
        return -(1 - self.slope) * strength

    def fix_sides(self, sides: LayerSides) -> FixedLayerSides:
        """Return the sides as the vector field reads them."""
        gates, rests = self.gates(sides.codes), sides.rests == RESTS
        return FixedLayerSides(sides.codes, gates, sides.slots, rests, sides.shares)

    def solve_slides(
        self,
        parameters: Parameters,
        at: PyTree,
        slots: Int[Array, " m"],
        q: Float[Array, "H P"],
    ) -> Float[Array, "H P"]:
        r"""Solve $\Phi D \Phi^T u = q$ for the u of the sliding pairs; zero elsewhere."""

        def solve_slots(slots):
            return solve_gram(self.gram_matrix(parameters, at, slots), read_slots(q, slots))

        return write_slots(map_used_slots(solve_slots, slots, q.size), slots, q.shape)

    def pass_with_slides(
        self, parameters: Parameters, frozen: FixedLayerSides
    ) -> tuple[PyTree, Float[Array, "H P"]]:
        """Return the pass of the projected velocity, and u (H, P) of sliding pairs, else zero."""
        free = self.both_passes(parameters, frozen.gates)
        rates = self.preactivation_rates(parameters, free)
        u = self.solve_slides(parameters, free, frozen.slots, rates)
        return self.backward_pass(parameters, free, free.output_error, u), u

    def __call__(
        self, t: ArrayLike | None, parameters: Parameters, frozen: FixedLayerSides | None
    ) -> Parameters:
        """Return the velocity of the parameters; without sides, at those of the signs of z."""
        del t
        at = (
            self.both_passes(parameters, None)
            if frozen is None
            else self.pass_with_slides(parameters, frozen)[0]
        )
        velocity = self.velocity(parameters, at, self.decay)
        if frozen is not None and isinstance(self.network, ModelWithLoss):
            rates = self.preactivation_rates(parameters, at)
            back = self._motion_back(parameters, at, frozen.slots, rates)
            velocity = jax.tree.map(_add_beyond_rounding, velocity, back)
        return self.select_moving(velocity)

    def _motion_back(
        self,
        parameters: Parameters,
        at: PyTree,
        slots: Int[Array, " m"],
        z: Float[Array, "H P"],
    ) -> Parameters:
        r"""Return $-D \Phi^T u$ that takes away `z` of the pairs in the slots, or a rate of it.

        Of a velocity it takes away what rounding has left. That is relative to the forces, and the
        pairs of an L1 loss hold forces that never end: over 1e6 units of time in float32 they would
        drift from their kinks. What is left after it is relative to the velocity.
        """
        u = self.solve_slides(parameters, at, slots, z)
        still = jnp.zeros((self.task.outputs, self.task.samples), u.dtype)
        return self.velocity(parameters, self.backward_pass(parameters, at, still, u))

    def project_to_kinks(
        self, parameters: Parameters, frozen: FixedLayerSides
    ) -> tuple[Parameters, Array]:
        """Move the sliding pairs back to their kinks by one Gauss-Newton step.

        And those at which a unit has died up to an error of its last step: else it would seem to
        come on again where a layer below sends something for a while, and z comes back. A decay may
        move such a z, and they are left where they are.

        **Returns:** the parameters, and whether sliding pairs moved.
        """
        at = self.forward_pass(parameters, frozen.gates)
        z = jnp.concatenate(at.z)
        rounding = 64 * jnp.finfo(z.dtype).eps * jnp.max(jnp.abs(z))
        slides = (frozen.codes == SLIDING) & self.is_leader
        rests = frozen.rests & (self.decay is None)
        off = slides | (rests & (jnp.abs(z) > rounding))
        off = jnp.where(jnp.sum(off) > frozen.slots.size, slides, off)
        slots = slots_of(off.ravel(), frozen.slots.size)
        back = self._motion_back(parameters, at, slots, z)
        moved = jnp.any(frozen.slots < frozen.codes.size)
        return jax.tree.map(jnp.add, parameters, self.select_moving(back)), moved

    def is_at_kink(self, parameters: Parameters, widely: bool = False) -> Bool[Array, "H P"]:
        """Tell where a leader's |z| may be rounding; nowhere for units without any input.

        `widely` counts the weights that a unit sends with as weights that it receives with: w
        that is zero is then told from w that is merely small, and so are all its z.
        """
        z = jnp.concatenate(self.forward_pass(parameters, None).z)
        size = self.scales_of_rounding(parameters, widely)
        return (jnp.abs(z) <= self.z_rounding(size)) & (size > 0) & self.is_leader

    def z_rounding(self, sizes: Float[Array, "H P"]) -> Float[Array, "H P"]:
        """Return the |z| of pairs of these sizes that may be rounding."""
        eps = jnp.finfo(self.task.x.dtype).eps
        tiny = jnp.finfo(self.task.x.dtype).tiny / eps
        return dtype_rounding(self.task.x.dtype).z * sizes + tiny

    def drive_rounding(self, parameters: Parameters) -> Float[Array, "H 1"]:
        """Return the |C| of every unit's pairs that may be rounding, however small the loss."""
        return 5 * jnp.finfo(self.task.x.dtype).eps * self.drive_scales(parameters)

    def meet_another_kink(
        self, parameters: Parameters, at: PyTree, pairs: Bool[Array, "H P"]
    ) -> Bool[Array, "H P"]:
        """Tell which of the pairs meet another kink of their unit.

        Samples to which the layers below send the same share one for as long as that lasts: the
        gradients of their z are parallel, and starts beside meet it with all of them as well.
        """
        slots = slots_of(pairs.ravel(), min(MOST_MEETING, pairs.size))
        cosines = gram_cosines(self.gram_matrix(parameters, at, slots))
        unit, there = slots // pairs.shape[1], jnp.diagonal(cosines) > 0
        parallel = cosines**2 >= 1 - 64 * jnp.finfo(cosines.dtype).eps
        apart = there[None] & there[:, None] & ~parallel & (unit[:, None] == unit[None])
        found = jnp.any(apart, axis=1).astype(cosines.dtype)
        return write_slots(found, slots, pairs.shape) > 0

    def margin_tolerances(
        self, parameters: Parameters, frozen: FixedLayerSides
    ) -> Float[Array, "H P"]:
        """Return the margins that may be rounding."""
        parameters = lax.stop_gradient(parameters)
        at = self.both_passes(parameters, frozen.gates)
        eps = jnp.finfo(self.task.x.dtype).eps
        strength = self.kink_drive([jnp.abs(c) for c in at.drive])
        slid = dtype_rounding(eps.dtype).u * strength + self.drive_rounding(parameters)
        tiny = jnp.finfo(eps).tiny / eps
        # Without biases weights of zero, but for rounding, are at all their kinks, off as well.
        of_z = self.z_rounding(self.scales_of_rounding(parameters, widely=not self.feeds_all))
        return jnp.where(frozen.has_drive_margin, slid + tiny, of_z)


def gram_cosines(gram: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """Return the cosines of gradients with this Gram matrix; of one that is zero they are zero."""
    square = jnp.diagonal(gram)
    inverse = jnp.where(square > 0, 1 / jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
    return inverse[:, None] * gram * inverse[None]


def errors_at_zero_outputs(task: Task, loss: Loss) -> Float[Array, "1 P"]:
    """Return |dL/d outputs| of each sample where all outputs are zero."""
    at_zero = lax.stop_gradient(jax.grad(loss)(jnp.zeros_like(task.y), task.y, task.weights))
    return jnp.linalg.norm(at_zero, axis=1)[None]


def _add_beyond_rounding(velocity: Array, back: Array) -> Array:
    """Return the sum of both, or zero where it may be what the ridge of `solve_gram` has left.

    Of what `back` takes away the ridge leaves about `RIDGE` roundings. Where a kink holds weights
    of zero that would be all that moves, and no step's error is small beside it.
    """
    moves, eps = velocity + back, jnp.finfo(velocity.dtype).eps
    return jnp.where(jnp.abs(moves) > 10 * RIDGE * eps * jnp.abs(back), moves, 0)
