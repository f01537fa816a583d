"""The gradient flow of any module made of ReLUs, at given sides of its gates."""

import math
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from flowlin._tools.arrays import Parameters
from flowlin.engine.kinks.probes import random_signs, root_mean_square
from flowlin.engine.kinks.shared_kinks import (
    SharedKinks,
    first_with_same_values,
    mean_of_sharers,
)
from flowlin.engine.kinks.sides import (
    OFF,
    ON,
    SLIDING,
    FixedLayerSides,
    read_slots,
    slots_of,
)
from flowlin.engine.kinks.sliding_flow import (
    MOST_MEETING,
    AbstractSlidingFlow,
    errors_at_zero_outputs,
    gram_cosines,
)
from flowlin.networks.base import AbstractModel
from flowlin.networks.kink_program import KinkProgram, outputs_and_preactivations
from flowlin.networks.modules import ForeignModel
from flowlin.tasks.task import Task
from flowlin.training.loss import Loss
from flowlin.training.loss_kinks import ModelWithLoss, join_loss
from flowlin.training.objective import Decay, add_decay

DEPENDENT = 1e4  # rounding errors of the least eigenvalue of gradients' cosines that count as zero


class ModulePass(eqx.Module):
    """A forward pass at given gates; z and gates are (H, P), z in a list as of several layers."""

    z: list[Array]
    gates: Float[Array, "H P"]


class FullModulePass(ModulePass):
    """A forward and a backward pass at given gates."""

    drive: list[Array]  # C = -dL/dh of all pairs, one array
    force: Parameters  # -dL/d parameters, with what sliding pairs send back
    output_error: Float[Array, "N_out P"]  # -dL/d outputs


class ModuleFlow(AbstractSlidingFlow):
    r"""Velocity and switching conditions at given sides, for any graph of ReLUs.

    Every kink is $h = g z + e$ in the module's program (`flowlin.networks.module_kinks`), with its
    gate g, 1 for a pair that is on and 0 for others, and $e = 0$, which only derivatives see. With
    the u of the sliding pairs

    $$F(\theta, e, u) = L(\theta, e) + \sum_{p \in S} u_p z_p(\theta, e)$$

    gives the velocity $-\partial F / \partial \theta$ and the drive $C = -\partial F / \partial e$
    of all pairs by one backward pass. $\Phi$ is one backward pass of one sample for each sliding
    pair, dz/dt a forward pass of tangents. Weights that pairs share need nothing of their own.

    Scales of z and C, by which rounding is told, are root mean squares over random signs s:
    $|\sum_k s_k \rho_k \partial z / \partial \theta_k|$ for z, with the root mean square rho of the
    array that a number belongs to, and the drive of outputs' errors of random signs for C.
    """

    network: ForeignModel | ModelWithLoss
    task: Task  # of rows [x, y] where the loss is in the graph
    loss: Loss
    tau: PyTree
    decay: Decay | None
    zero_output_errors: Float[Array, "n P"]  # sizes of e at zero outputs, of all or of each
    leader: Int[Array, " n"]  # of each pair's kink, the first pair with the same z

    def __init__(
        self,
        network: AbstractModel,
        task: Task,
        loss: Loss,
        tau: PyTree,
        decay: Decay | None = None,
        shares: bool = True,
    ):
        self.network, self.task, self.loss = join_loss(network, task, loss)
        self.tau, self.decay = tau, decay
        errors = errors_at_zero_outputs(task, loss)
        if self.task is not task:  # the last output is the sample's loss
            of_loss = errors_at_zero_outputs(self.task, self.loss)
            errors = jnp.concatenate([errors] * task.outputs + [of_loss])
        self.zero_output_errors = errors
        pairs = sum(self.network.hidden) * task.samples
        self.leader = self._first_forever() if shares else jnp.arange(pairs)

    def _first_with_same_z(self, gates: Float[Array, "H P"]) -> tuple[Int[Array, " n"], Array]:
        """Return each pair's first one with the same z, and which pairs stay at zero."""

        def z_of(weights: Parameters) -> Array:
            return lax.stop_gradient(self._values(weights, gates, jnp.zeros_like(gates))[1])

        return first_with_same_values(z_of, self.network.parameters, self.network.hidden)

    def _first_forever(self) -> Int[Array, " n"]:
        """Return for each pair the first one with the same z, whatever the gates of its place.

        Patches that are alike, as of an empty background, share a kink in this way, or one z that
        is rectified twice. The gates of each place are one number that is neither zero nor one.
        """
        places = len(self.network.hidden)
        slopes = np.repeat(0.3 + 0.4 * (0.5 + np.arange(places)) / places, self.network.hidden)
        gates = slopes[:, None].repeat(self.task.samples, 1)
        return self._first_with_same_z(jnp.asarray(gates, self.task.x.dtype))[0]

    def first_of_sharers(self, gates: Float[Array, "H P"]) -> Int[Array, " n"] | None:
        """Return for each pair the first one at its kink, as the places below send at these gates.

        Samples to which they send the same share a kink for as long as that lasts. Pairs without
        inputs share nothing. None where no place is above another.
        """
        if len(self.network.hidden) == 1:
            return None
        first, unfed = self._first_with_same_z(gates)
        return jnp.where(unfed, jnp.arange(first.size), first)

    @property
    def program(self) -> KinkProgram:
        """The module's call on one sample."""
        found = self.network.kink_program(self.task.inputs)
        assert isinstance(found, KinkProgram)
        return found

    @property
    def slope(self) -> Array:
        """Zero: what a kink has on its off side is a part of its own in the program."""
        return jnp.zeros((), self.task.x.dtype)

    @property
    def units(self) -> int:
        """The units of all places with kinks."""
        return sum(self.network.hidden)

    @property
    def degree(self) -> int:
        """The degree that z is taken to have in the parameters along a step: that of a network."""
        return len(self.network.hidden)

    @property
    def feeds_all(self) -> bool:
        """True: pairs without inputs are told by derivatives, not by a network's layers."""
        return True

    @property
    def is_leader(self) -> Bool[Array, "H P"]:
        """Flags of the pairs that lead their kinks."""
        first = self.leader == np.arange(self.leader.size, dtype=self.leader.dtype)
        return first.reshape(self.units, self.task.samples)

    def sides_of_followers(self, codes: Int[Array, "H P"]) -> Int[Array, "H P"]:
        """Return the sides of all pairs from those of the leaders."""
        return jnp.ravel(codes)[self.leader].reshape(codes.shape)

    def kink_drive(self, drive: list[Array]) -> Float[Array, "H P"]:
        """Sum C over the pairs of each kink, at its leader."""
        flat = jnp.ravel(drive[0])
        return jnp.zeros_like(flat).at[self.leader].add(flat).reshape(drive[0].shape)

    def joint_drive(self, at: FullModulePass) -> Float[Array, "H P"]:
        """Return `kink_drive` of a pass, split by `splitter`."""
        return self.splitter(at)(self.kink_drive(at.drive))

    def splitter(self, at: ModulePass, shares: Array | None = None) -> Callable[[Array], Array]:
        """Return what takes the mean of leaders' values among those that share a kink for now.

        `shares` is `first_of_sharers` of the pass's gates where that is known.
        """
        first = self.first_of_sharers(at.gates) if shares is None else shares
        return partial(mean_of_sharers, first, self.is_leader)

    def gates(self, codes: Int[Array, "H P"]) -> Float[Array, "H P"]:
        """Return the gates to the sides, those of sliding pairs off."""
        return (codes == ON).astype(self.task.x.dtype)

    def _values_of_sample(
        self,
        parameters: Parameters,
        x: Array,
        gates: Array | None,
        extra: Array | None,
        at_kink: Array | None = None,
    ) -> tuple[Array, Array]:
        """Return outputs (N_out,) and z (H,) of one sample; without gates, by the signs of z."""
        leaves = jax.tree.leaves((parameters, self.network.buffers))
        return outputs_and_preactivations(self.program, [*leaves, x], gates, extra, at_kink)

    def _values(self, parameters: Parameters, gates: Array, extra: Array) -> tuple[Array, Array]:
        """Return outputs (N_out, P) and z (H, P) of all samples."""
        over_samples = jax.vmap(self._values_of_sample, in_axes=(None, 0, 1, 1), out_axes=1)
        return over_samples(parameters, self.task.x, gates, extra)

    def forward_pass(self, parameters: Parameters, gates: Array | None) -> ModulePass:
        """Run the forward pass; without gates, with those of the signs of z."""
        parameters = self.all_parameters(parameters)
        if gates is None:
            free = jax.vmap(lambda x: self._values_of_sample(parameters, x, None, None), out_axes=1)
            z = free(self.task.x)[1]
            return ModulePass([z], (z > 0).astype(z.dtype))
        return ModulePass([self._values(parameters, gates, jnp.zeros_like(gates))[1]], gates)

    def both_passes(self, parameters: Parameters, gates: Array | None) -> FullModulePass:
        """Run both passes; without gates, with those of the signs of z."""
        if gates is None:
            gates = self.forward_pass(parameters, None).gates

        def error_of(outputs: Array) -> Array:
            return -jax.grad(self.loss)(outputs.T, self.task.y, self.task.weights).T

        return self._pass_of_error(parameters, gates, error_of, None)

    def backward_pass(
        self,
        parameters: Parameters,
        at: ModulePass,
        error: Float[Array, "N_out P"],
        u: Float[Array, "H P"] | None,
    ) -> FullModulePass:
        """Run the backward pass of the outputs' errors, with the u of the sliding pairs."""
        return self._pass_of_error(parameters, at.gates, lambda outputs: error, u)

    def _pass_of_error(
        self,
        parameters: Parameters,
        gates: Array,
        error_of: Callable[[Array], Array],
        u: Array | None,
    ) -> FullModulePass:
        """Run both passes, with a function of the outputs that gives their errors."""
        parameters, none = self.all_parameters(parameters), jnp.zeros_like(gates)
        (outputs, z), pull = jax.vjp(
            lambda p, extra: self._values(p, gates, extra), parameters, none
        )
        error = error_of(outputs)
        force, drive = pull((error, none if u is None else -u))
        return FullModulePass([z], gates, [drive], force, error)

    def velocity(
        self, parameters: Parameters, at: FullModulePass, decay: Decay | None = None
    ) -> Parameters:
        """Return the velocity of all parameters that a pass makes, with a decay's."""
        force = add_decay(at.force, decay, self.all_parameters(parameters))
        return jax.tree.map(jnp.multiply, force, self.inverse_tau)

    def preactivation_rates(self, parameters: Parameters, at: FullModulePass) -> Array:
        """Return dz/dt (H, P) along the velocity of a pass."""
        return self._z_tangent(parameters, at.gates, self.velocity(parameters, at, self.decay))

    def has_no_weights(self, parameters: Parameters) -> Bool[Array, "H P"]:
        """Tell of none that it has no weights: a module's are not known apart."""
        return jnp.zeros((self.units, self.task.samples), bool)

    def _z_tangent(self, parameters: Parameters, gates: Array, way: Parameters) -> Array:
        """Return the derivative of z (H, P) along a way of all parameters."""

        def z_of(parameters: Parameters) -> Array:
            return self._values(parameters, gates, jnp.zeros_like(gates))[1]

        return jax.jvp(z_of, (self.all_parameters(parameters),), (way,))[1]

    def _pulls_of_slots(
        self, parameters: Parameters, gates: Array, slots: Int[Array, " m"]
    ) -> tuple[Parameters, Float[Array, "m H"]]:
        """Return the derivatives of the slots' z to all parameters and to their samples' h."""
        parameters, samples = self.all_parameters(parameters), self.task.samples
        unit, sample = slots // samples, slots % samples

        def pull_one(unit: Array, x: Array, gate: Array) -> tuple[Parameters, Array]:
            def z_of(parameters: Parameters, extra: Array) -> Array:
                return self._values_of_sample(parameters, x, gate, extra)[1]

            z, pull = jax.vjp(z_of, parameters, jnp.zeros_like(gate))
            return pull((unit == np.arange(z.size, dtype=unit.dtype)).astype(z.dtype))

        return jax.vmap(pull_one)(unit, self.task.x[sample], gates.T[sample])

    def gram_matrix(
        self, parameters: Parameters, at: ModulePass, slots: Int[Array, " m"]
    ) -> Float[Array, "m m"]:
        r"""Return $\Phi D \Phi^T$ of the pairs in the slots, zero in empty ones."""
        rows = self._pulls_of_slots(parameters, at.gates, slots)[0]
        gram = jnp.zeros((slots.size, slots.size), self.task.x.dtype)
        for row, speed in zip(
            jax.tree.leaves(rows), jax.tree.leaves(self.inverse_tau), strict=True
        ):
            flat = row.reshape(slots.size, math.prod(row.shape[1:]))
            gram = gram + speed * (flat @ flat.T)
        return gram

    def drive_bounds(self, parameters: Parameters, frozen: FixedLayerSides) -> tuple[Array, Array]:
        """Bound each kink's C from below and above over all gates of the sliding pairs above it.

        By interval arithmetic, place by place down: a sliding pair sends back g C with any g from
        zero to one. Where the upper bound is negative for all sliding pairs of a sample, the flow
        is unique.
        """
        drive = self.both_passes(parameters, frozen.gates).drive[0]
        slots, samples = frozen.slots, self.task.samples
        reach = self._pulls_of_slots(parameters, frozen.gates, slots)[1]  # dz of slots to h
        sample = jnp.where(slots < drive.size, slots % samples, samples)
        there = jax.nn.one_hot(sample, samples, dtype=reach.dtype)
        plus, minus = jnp.maximum(reach, 0), jnp.minimum(reach, 0)

        def tighten(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = (read_slots(self.kink_drive([one]), slots) for one in bounds)
            least, most = jnp.minimum(low, 0)[:, None], jnp.maximum(high, 0)[:, None]
            low = (plus * least + minus * most).T @ there
            high = (plus * most + minus * least).T @ there
            return drive + low, drive + high

        # A place depends on those above it alone: exact after as many rounds as there are places.
        bounds = lax.fori_loop(0, len(self.network.hidden), tighten, (drive, drive))
        mean = partial(mean_of_sharers, frozen.shares, self.is_leader)
        return mean(self.kink_drive([bounds[0]])), mean(self.kink_drive([bounds[1]]))

    def side_distances(
        self, parameters: Parameters, frozen: FixedLayerSides
    ) -> Float[Array, "H P"]:
        """Return |z| of leaders on their sides."""
        z = self.forward_pass(parameters, frozen.gates).z[0]
        return jnp.where(self.is_leader, jnp.where(frozen.codes == ON, z, -z), 1.0)

    def margins(self, parameters: Parameters, frozen: FixedLayerSides) -> Float[Array, "2 H P"]:
        """Return each kink's distance from an event, as `OneLayerFlow.margins`."""
        return self.margins_and_bounds(parameters, frozen)[0]

    def margins_and_bounds(
        self, parameters: Parameters, frozen: FixedLayerSides
    ) -> tuple[Float[Array, "2 H P"], Float[Array, "H P"]]:
        """Return `margins`, and the `slide_bound` of each kink: negative where it repels."""
        at, u = self.pass_with_slides(parameters, frozen)
        z, slides = at.z[0], frozen.codes == SLIDING
        mean = self.splitter(at, frozen.shares)
        u, bound = mean(u), self.slide_bound(mean(self.kink_drive(at.drive)))
        side = jnp.where(frozen.codes == ON, z, -z)
        highest = jnp.where(slides, bound - u, jnp.where(frozen.rests, bound, 1.0))
        margins = jnp.stack([jnp.where(slides, u, side), highest])
        return jnp.where(self.is_leader[None], margins, 1.0), bound

    def sharers_at(self, codes: Int[Array, "H P"], pairs: Bool[Array, "H P"]) -> SharedKinks:
        """Return the kinks as pairs share them where `pairs` at theirs are off."""
        first = self.first_of_sharers(self.gates(jnp.where(pairs, OFF, codes)))
        if first is None:
            return SharedKinks(pairs, self.is_leader, None)
        joined = jax.ops.segment_max(jnp.ravel(pairs).astype(int), first, first.size)[first] > 0
        leads = self.is_leader & (first == np.arange(first.size)).reshape(pairs.shape)
        mean = partial(mean_of_sharers, first, self.is_leader)
        return SharedKinks(joined.reshape(pairs.shape), leads, mean)

    def rest_unfed(self, parameters: Parameters, codes: Int[Array, "H P"]) -> Int[Array, "H P"]:
        """Return sides in which pairs without inputs are off where they would slide."""
        unfed = self._is_unfed(parameters, self.gates(codes))
        return jnp.where(unfed & (codes == SLIDING), OFF, codes)

    def sides_above(
        self, parameters: Parameters, codes: Int[Array, "H P"], pairs: Bool[Array, "H P"]
    ) -> tuple[Bool[Array, "H P"], Int[Array, "H P"]]:
        """Return the pairs that only `pairs` at their kinks feed, and all sides once these rise.

        Pairs without inputs are told by z that no weight moves.
        """
        gates = self.gates(jnp.where(pairs, OFF, codes))
        # One with a constant, as 1 - y f of a hinge, is not at its kink, and stays on its side.
        at_zero = self.forward_pass(parameters, gates).z[0] == 0
        unfed = self._is_unfed(parameters, gates) & at_zero
        rising = self._rise_above(parameters, gates, pairs & ~unfed, unfed)
        above = unfed & (rising != 0)
        return above, jnp.where(above, jnp.sign(rising).astype(codes.dtype), codes)

    def _rise_above(
        self, parameters: Parameters, gates: Array, rising: Array, unfed: Array
    ) -> Float[Array, "H P"]:
        """Return dz of unfed pairs where pairs `rising` send more, at equal rates."""
        parameters = self.all_parameters(parameters)

        def z_of(extra: Array) -> Array:
            return self.values_with_kinks(parameters, gates, extra, unfed)[1]

        more = rising.astype(gates.dtype)
        return jax.jvp(z_of, (jnp.zeros_like(gates),), (more,))[1]

    def pairs_that_meet(
        self,
        parameters: Parameters,
        codes: Int[Array, "H P"],
        at_event: Bool[Array, "H P"],
        counted: Bool[Array, "H P"],
    ) -> tuple[Bool[Array, "H P"], Bool[Array, ""]]:
        """Return the pairs that meet at an event, and whether their sides have to be proven.

        They have where two pairs of one sample feed others that nothing else feeds, and where the
        kinks depend on each other: more of the `counted` meet than there are directions.
        """
        pairs = self.with_followers(at_event | (codes == SLIDING))
        above, _ = self.sides_above(parameters, codes, pairs)
        at_kinks = pairs & ~above
        several = jnp.sum(at_kinks, axis=0) > 1
        torn = jnp.any(above & several[None])
        return at_kinks | above, torn | self._depend_on_each_other(
            parameters, codes, at_kinks & counted
        )

    def with_followers(self, leaders: Bool[Array, "H P"]) -> Bool[Array, "H P"]:
        """Return flags of all pairs that share a flagged leader's kink."""
        return self.sides_of_followers(leaders.astype(jnp.int8)) != 0

    def _depend_on_each_other(
        self, parameters: Parameters, codes: Int[Array, "H P"], pairs: Bool[Array, "H P"]
    ) -> Bool[Array, ""]:
        """Tell whether the gradients of pairs at their kinks are linearly dependent."""
        slots = slots_of(pairs.ravel(), min(MOST_MEETING, pairs.size))
        gates = self.gates(jnp.where(pairs, OFF, codes))
        cosines = gram_cosines(self.gram_matrix(parameters, ModulePass([], gates), slots))
        missing = jnp.where(jnp.diagonal(cosines) > 0, 0.0, 1.0).astype(cosines.dtype)
        least = jnp.linalg.eigvalsh(cosines + jnp.diag(missing))[0]
        return (least < DEPENDENT * jnp.finfo(cosines.dtype).eps) | (jnp.sum(pairs) > slots.size)

    def values_with_kinks(
        self, parameters: Parameters, gates: Array, extra: Array, at_kink: Array
    ) -> tuple[Array, Array]:
        """Return outputs (N_out, P) and z (H, P), with tangents that pairs at their kinks rectify.

        The tangent of such a pair's h is the larger one of zero and that of its z: the directional
        derivative at a point where kinks meet.
        """
        flags = at_kink.astype(gates.dtype)
        over_samples = jax.vmap(self._values_of_sample, in_axes=(None, 0, 1, 1, 1), out_axes=1)
        return over_samples(parameters, self.task.x, gates, extra, flags)

    def scales_of_rounding(
        self, parameters: Parameters, widely: bool = False
    ) -> Float[Array, "H P"]:
        """Return `pair_scales`, to which arrays add one by one."""
        del widely
        return self.pair_scales(parameters)

    def pair_scales(self, parameters: Parameters) -> Float[Array, "H P"]:
        """Return the scale of each pair's z, see the class."""
        gates = self.forward_pass(lax.stop_gradient(parameters), None).gates
        sizes = self._scales_at(parameters, gates)
        if not isinstance(self.network, ModelWithLoss):
            return sizes
        # From a readout of zeros z = y - f is at its kink where y = 0, and has no size yet.
        of_loss = np.arange(self.units)[:, None] >= self.units - self.network.loss_units
        fed = of_loss & ~self._is_unfed(parameters, gates)
        return jnp.where(fed, jnp.maximum(sizes, jnp.finfo(sizes.dtype).tiny), sizes)

    def _scales_at(self, parameters: Parameters, gates: Array) -> Float[Array, "H P"]:
        """Return the scale of each pair's z at these gates."""
        parameters = self.all_parameters(lax.stop_gradient(parameters))
        sizes = jax.tree.map(lambda a: jnp.sqrt(jnp.mean(a**2)), parameters)
        return self._response(parameters, gates, sizes)

    def _is_unfed(self, parameters: Parameters, gates: Array) -> Bool[Array, "H P"]:
        """Tell whose z no weight moves at these gates: derivatives are then zero exactly."""
        parameters = self.all_parameters(lax.stop_gradient(parameters))
        one = jnp.ones((), self.task.x.dtype)
        return self._response(parameters, gates, jax.tree.map(lambda _: one, parameters)) == 0

    def _response(self, parameters: Parameters, gates: Array, sizes: PyTree) -> Float[Array, "H P"]:
        """Return the size of each z's change where all numbers change by such sizes."""

        def tangent(signs: PyTree) -> Array:
            way = jax.tree.map(lambda size, s: size * s.astype(size.dtype), sizes, signs)
            return self._z_tangent(parameters, gates, way)

        return root_mean_square(jax.vmap(tangent)(random_signs(parameters)))

    def drive_scales(self, parameters: Parameters) -> Float[Array, "H 1"]:
        """Return each unit's largest scale of C, see the class; with all gates on."""
        parameters, samples = lax.stop_gradient(parameters), self.task.samples
        gates = jnp.ones((self.units, samples), self.task.x.dtype)
        at, sizes = ModulePass([], gates), jnp.max(self.zero_output_errors, axis=1, keepdims=True)

        def drive(signs: Array) -> Array:
            error = sizes * signs.astype(gates.dtype)
            return self.backward_pass(parameters, at, error, None).drive[0]

        shape = jnp.zeros((self.task.outputs, samples), gates.dtype)
        scales = root_mean_square(jax.vmap(drive)(random_signs(shape)))
        return lax.stop_gradient(jnp.max(scales, axis=1, keepdims=True))
