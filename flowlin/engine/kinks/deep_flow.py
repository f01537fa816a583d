"""The gradient flow of a network with any number of hidden layers at given sides of its gates."""

import itertools
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from flowlin._tools.arrays import Parameters, prepend_constant
from flowlin._tools.numerics import dtype_rounding
from flowlin.engine.kinks import unfed
from flowlin.engine.kinks.sides import (
    OFF,
    SLIDING,
    FixedLayerSides,
    Hyperplanes,
    LayerSides,
    map_used_slots,
    matrix_columns,
    read_slots,
    solve_gram,
    write_slots,
)
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.tasks.task import Task
from flowlin.training.loss import Loss
from flowlin.training.objective import Decay, add_decay
from flowlin.training.rules import is_none, layers_that_move, tau_per_array

Layers = list[Array]  # one array (H_l, P) per hidden layer


class ForwardPass(eqx.Module):
    """A forward pass at given gates, (H_l, P) per layer."""

    z: Layers
    h: Layers  # inputs of each layer, the task's first
    gates: Layers


class FullPass(ForwardPass):
    """A forward and a backward pass at given gates, (H_l, P) per layer."""

    drive: Layers  # C = -dL/dh of each hidden layer
    signals: Layers  # what each layer sends back, -dL/dz; that of the outputs last
    output_error: Float[Array, "N_out P"]  # -dL/d outputs


class DeepFlow(eqx.Module):
    r"""Velocity and switching conditions at given sides, for any number of layers.

    The pair p of a unit and a sample contributes $g_p C_p \phi_p$ to the velocity, with its gate
    g, $C_p = -\partial L / \partial h_p$ and $\phi_p = \partial z_p / \partial \theta$. Sliding
    pairs S have h = 0 whatever their gates, so their phi may be taken with all of S off; their
    unknown is what they send back, s C_p - u_p in the mean, in which all below is linear:

    $$\dot\theta = D (f - \Phi^T u), \quad \Phi D \Phi^T u = \Phi D f, \quad
      0 \le u_p \le -(1 - s) C_p(u),$$

    with f minus the gradient with all of S off, and D the diagonal of 1/tau: what is left of f
    beside the span of the sliding pairs' gradients, in the metric of D. C_p depends on the u of
    the layers above (`flowlin.engine.kinks.deep_switching` has the derivation). Each layer has its
    own tau; D is zero for what does not move, and a unit whose z cannot move has no kinks. For one
    hidden layer this is `OneLayerFlow`, where Phi does not change along a piece and units do not
    mix. Here it does: z is no linear function of the parameters, and steps leave the kinks by
    their own errors; `project_to_kinks` brings them back.

    Weight decay is part of f. In the first layer, and with one rate in layers without biases, it
    moves z in proportion to z, not at all at a kink; a bias behind lower layers decays more slowly
    than what they send, and its kinks drift: q counts that.

    `tau` is a prefix of the parameters' tree, as for `OneLayerFlow`.
    """

    network: ReLUNetwork
    task: Task
    loss: Loss
    tau: PyTree
    decay: Decay | None
    kinks: tuple[Hyperplanes, ...]  # per hidden layer
    zero_output_error: Array  # size of e at zero outputs

    # Batches of Cholesky factors, in two programs at a time, can wait for each other for ever:
    # XLA's kernel on CPUs shares a batch out among threads that both programs hold.
    batches_margins = False

    def __init__(
        self, network: ReLUNetwork, task: Task, loss: Loss, tau: PyTree, decay: Decay | None = None
    ):
        self.network, self.task, self.loss, self.tau = network, task, loss, tau
        self.decay = decay
        biased = [b is not None for b in network.biases]
        x = prepend_constant(task.x, network.bias_strength) if biased[0] else task.x
        shares = ["equal" if any(biased[: k + 1]) else "ray" for k in range(len(network.hidden))]
        # A pair moves if anything does in its layer or below.
        moves = itertools.accumulate((any(m) for m in layers_that_move(tau, network)), operator.or_)
        self.kinks = tuple(
            Hyperplanes.from_inputs(x, share).with_moving_inputs([any_moves] * x.shape[1])
            for share, any_moves in zip(["line", *shares[1:]], moves, strict=False)
        )
        at_zero = lax.stop_gradient(jax.grad(loss)(jnp.zeros_like(task.y), task.y, task.weights))
        self.zero_output_error = jnp.max(jnp.linalg.norm(at_zero, axis=1))

    @property
    def inverse_tau(self) -> Parameters:
        """1 / tau of every array, zero for arrays that do not move."""

        def one_inverse(tau: Any) -> Any:
            return jnp.zeros((), self.task.x.dtype) if tau is None else 1.0 / tau

        speeds = jax.tree.map(one_inverse, self.tau, is_leaf=is_none)  # of a prefix: few divisions
        return tau_per_array(speeds, self.network.parameters)

    def select_moving(self, parameters: Parameters) -> Parameters:
        """Return a tree like the parameters, without the arrays that do not move."""
        constants = tau_per_array(self.tau, self.network.parameters)

        def keep_moving(tau: Any, own: Any) -> Any:
            return None if tau is None else own

        return jax.tree.map(keep_moving, constants, parameters, is_leaf=is_none)

    def all_parameters(self, parameters: Parameters) -> Parameters:
        """Return all parameters, with those that do not move."""
        return self.network.with_parameters(parameters).parameters

    @property
    def degree(self) -> int:
        """The degree of z as a polynomial of the parameters."""
        return len(self.network.hidden)

    @property
    def is_leader(self) -> Bool[Array, "H P"]:
        """Flags (H, P) of pairs that lead their kinks."""
        pairs = zip(self.kinks, self.network.hidden, strict=True)
        return jnp.concatenate(
            [jnp.broadcast_to(k.is_leader, (h, k.is_leader.size)) for k, h in pairs]
        )

    def split_layers(self, pairs: Array) -> Layers:
        """Split (H, P) into layers (H_l, P)."""
        return jnp.split(pairs, np.cumsum(self.network.hidden)[:-1].tolist())

    def apply_across_layers(self, function: Any, pairs: Array) -> Array:
        """Apply a function that maps the list of layers' pairs to such a list."""
        return jnp.concatenate(function(self.split_layers(pairs)))

    def apply_by_layer(self, function: Any, pairs: Array) -> Array:
        """Apply a function of (kinks, layer's pairs) layer by layer."""
        layers = zip(self.kinks, self.split_layers(pairs), strict=True)
        return jnp.concatenate([function(kinks, one) for kinks, one in layers])

    def sides_of_followers(self, codes: Int[Array, "H P"]) -> Int[Array, "H P"]:
        """Return the sides of all samples from those of the leaders."""
        return self.apply_by_layer(lambda kinks, one: kinks.sides_of_followers(one), codes)

    def with_followers(self, leaders: Bool[Array, "H P"]) -> Bool[Array, "H P"]:
        """Return flags of all samples that share a flagged leader's kink."""
        return self.sides_of_followers(leaders.astype(jnp.int8)) != 0

    def any_of_kink(self, pairs: Bool[Array, "H P"]) -> Bool[Array, "H P"]:
        """Tell, at each kink's leader, whether any of its samples is flagged."""
        return self.kink_drive(self.split_layers(pairs.astype(self.task.x.dtype))) > 0

    def kink_drive(self, drive: Layers) -> Float[Array, "H P"]:
        """Sum C over the samples of each kink, at its leader."""
        return jnp.concatenate(
            [k.kink_drive(one) for k, one in zip(self.kinks, drive, strict=True)]
        )

    def joint_drive(self, at: FullPass) -> Float[Array, "H P"]:
        """Return `kink_drive` of a pass, `among_sharers`."""
        return self.among_sharers(at, self.kink_drive(at.drive))

    def among_sharers(self, at: ForwardPass, pairs: Float[Array, "H P"]) -> Float[Array, "H P"]:
        """Split values among the pairs that share a kink by what is sent to them."""
        leads, own = [kinks.is_leader for kinks in self.kinks], self.split_layers(pairs)
        return jnp.concatenate(unfed.among_sharers(self.network, at.gates, at.h[1:-1], leads, own))

    def slide_bound(self, strength: Array) -> Array:
        """Return the largest u of each kink, negative where nothing slides."""
        return -(1 - self.network.slope) * strength

    def gates(self, codes: Int[Array, "H P"]) -> Float[Array, "H P"]:
        """Return the gates to the sides, those of sliding pairs off."""
        return self.apply_by_layer(lambda kinks, one: kinks.gates(one, self.network.slope), codes)

    def fix_sides(self, sides: LayerSides) -> FixedLayerSides:
        """Return the sides as the vector field reads them."""
        return FixedLayerSides(sides.codes, self.gates(sides.codes), sides.slots)

    def forward_pass(self, parameters: Parameters, gates: Array | None) -> ForwardPass:
        """Run the forward pass; without gates, with those of the signs of z."""
        (*weights, _), (*biases, _) = self.all_parameters(parameters)
        below, split = self.task.x.T, None if gates is None else self.split_layers(gates)
        zs, hs, used = [], [below], []
        for k, (w, b) in enumerate(zip(weights, biases, strict=True)):
            z = w @ below if b is None else w @ below + (self.network.bias_strength * b)[:, None]
            gate = jnp.where(z > 0, 1.0, self.network.slope) if split is None else split[k]
            below = gate * z
            zs, hs, used = [*zs, z], [*hs, below], [*used, gate]
        return ForwardPass(zs, hs, used)

    def both_passes(self, parameters: Parameters, gates: Array | None) -> FullPass:
        """Run both passes; without gates, with those of the signs of z."""
        at = self.forward_pass(parameters, gates)
        (*_, readout), (*_, offset) = self.all_parameters(parameters)
        outputs = at.h[-1].T @ readout.T
        if offset is not None:
            outputs = outputs + (self.network.bias_strength * offset)[None]
        error = -jax.grad(self.loss)(outputs, self.task.y, self.task.weights).T
        return self.backward_pass(parameters, at, error, None)

    def backward_pass(
        self,
        parameters: Parameters,
        at: ForwardPass,
        error: Float[Array, "N_out P"],
        u: Float[Array, "H P"] | None,
    ) -> FullPass:
        """Run the backward pass of the outputs' errors, with the u of the sliding pairs."""
        weights, (*biases, _) = self.all_parameters(parameters)
        pushes = None if u is None else self.split_layers(u)
        cs, sent = [], [error]
        for k in reversed(range(len(at.z))):
            c = weights[k + 1].T @ sent[0]
            back = at.gates[k] * c
            cs, sent = [c, *cs], [back if pushes is None else back - pushes[k], *sent]
        cs = unfed.drive_if_alone(weights, biases, cs, at.gates, error)
        return FullPass(at.z, at.h, at.gates, cs, sent, error)

    def velocity(
        self, parameters: Parameters, at: FullPass, decay: Decay | None = None
    ) -> Parameters:
        """Return the velocity of all parameters that a pass makes, with a decay's."""
        biases, strength = self.all_parameters(parameters)[1], self.network.bias_strength
        force = (
            tuple(sent @ h.T for sent, h in zip(at.signals, at.h, strict=True)),
            tuple(
                None if b is None else strength * jnp.sum(sent, 1)
                for sent, b in zip(at.signals, biases, strict=True)
            ),
        )
        force = add_decay(force, decay, self.all_parameters(parameters))
        return jax.tree.map(jnp.multiply, force, self.inverse_tau)

    def preactivation_rates(self, parameters: Parameters, at: FullPass) -> Float[Array, "H P"]:
        """Return dz/dt along the velocity of a pass."""
        below, rates = None, []
        velocity = self.velocity(parameters, at, self.decay)
        layers = zip(*self.all_parameters(parameters), *velocity, at.gates, strict=False)
        for k, (w, _, dw, db, gate) in enumerate(layers):
            rate = dw @ at.h[k]
            rate = rate if below is None else rate + w @ below
            rate = rate if db is None else rate + (self.network.bias_strength * db)[:, None]
            rates, below = [*rates, rate], gate * rate
        return jnp.concatenate(rates)

    def gram_matrix(
        self, parameters: Parameters, at: ForwardPass, slots: Int[Array, " m"]
    ) -> Array:
        r"""Return $\Phi D \Phi^T$ (m, m) of the pairs in the slots, zero in empty ones.

        A pair's gradient is, layer by layer, the outer product of dz/dz_k, found backwards from
        its unit, and the layer's inputs.
        """
        samples, units = self.task.samples, sum(self.network.hidden)
        # By counting: XLA makes twenty operations of a division, and compiles them at every site.
        starts = samples * np.arange(1, units + 1, dtype=slots.dtype)
        unit = jnp.sum(slots[:, None] >= starts[None], axis=1, dtype=slots.dtype)
        sample = slots - samples * unit
        pull, gram = None, jnp.zeros((slots.size, slots.size), self.task.x.dtype)
        firsts = np.cumsum((0, *self.network.hidden)).tolist()
        weights, depth = self.all_parameters(parameters)[0], len(at.z)
        # Of all layers at once, since a gather is dear to compile.
        rows = [*at.h[:depth], *at.gates[:-1]]
        ends = np.cumsum([len(row) for row in rows])[:-1].tolist()
        columns = jnp.split(matrix_columns(jnp.concatenate(rows), sample), ends)
        for k in reversed(range(depth)):
            own = np.arange(self.network.hidden[k], dtype=unit.dtype)
            here = (unit[:, None] - firsts[k] == own[None]).astype(gram.dtype)
            if pull is not None:
                here = here + (pull @ weights[k + 1]) * columns[depth + k].T
            pull, inputs = here, columns[k]
            inner = self.inverse_tau[0][k] * (inputs.T @ inputs)
            if self.network.biases[k] is not None:
                inner = inner + self.inverse_tau[1][k] * self.network.bias_strength**2
            gram = gram + (pull @ pull.T) * inner
        return gram

    def solve_slides(
        self,
        parameters: Parameters,
        at: ForwardPass,
        slots: Int[Array, " m"],
        q: Float[Array, "H P"],
    ) -> Float[Array, "H P"]:
        r"""Solve $\Phi D \Phi^T u = q$ for the u of the sliding pairs; zero elsewhere."""

        def solve_slots(slots):
            return solve_gram(self.gram_matrix(parameters, at, slots), read_slots(q, slots))

        return write_slots(map_used_slots(solve_slots, slots, q.size), slots, q.shape)

    def pass_with_slides(
        self, parameters: Parameters, frozen: FixedLayerSides
    ) -> tuple[FullPass, Array]:
        """Return the pass of the projected velocity, and u (H, P) of sliding pairs, else zero."""
        free = self.both_passes(parameters, frozen.gates)
        rates = self.preactivation_rates(parameters, free)
        u = self.solve_slides(parameters, free, frozen.slots, rates)
        return self.backward_pass(parameters, free, free.output_error, u), u

    def drive_bounds(self, parameters: Parameters, frozen: FixedLayerSides) -> tuple[Array, Array]:
        """Bound each kink's C from below and above over all gates of the sliding pairs above it.

        By interval arithmetic, layer by layer down: a sliding pair sends back g C with any g from
        the slope to one. Where the upper bound is negative for all sliding pairs of a sample, the
        flow is unique.
        """
        at, slope = self.both_passes(parameters, frozen.gates), self.network.slope
        readouts = self.all_parameters(parameters)[0][1:]
        codes, gates = self.split_layers(frozen.codes), self.split_layers(frozen.gates)
        low = high = at.drive[-1]
        reach = [(low, high)]
        for k in reversed(range(1, len(codes))):
            slides = codes[k] == SLIDING
            least = jnp.where(slides, jnp.minimum(slope * low, low), gates[k] * low)
            most = jnp.where(slides, jnp.maximum(slope * high, high), gates[k] * high)
            plus, minus = jnp.maximum(readouts[k - 1], 0).T, jnp.minimum(readouts[k - 1], 0).T
            low, high = plus @ least + minus @ most, plus @ most + minus @ least
            reach = [(low, high), *reach]
        bounds = [self.kink_drive([one[end] for one in reach]) for end in (0, 1)]
        return self.among_sharers(at, bounds[0]), self.among_sharers(at, bounds[1])

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
        return self.select_moving(self.velocity(parameters, at, self.decay))

    def is_unfed(self, codes: Int[Array, "H P"]) -> Bool[Array, "H P"]:
        """Tell which pairs have inputs of zero at these sides (`flowlin.engine.kinks.unfed`)."""
        return jnp.concatenate(unfed.is_unfed(self.network, self.split_layers(codes)))

    def rates_of_unfed(
        self, parameters: Parameters, unfed_: Bool[Array, "H P"], rising: Float[Array, "H P"]
    ) -> Float[Array, "H P"]:
        """Return dz/dt of unfed pairs where pairs below leave their kinks at the rates `rising`.

        It is zero for fed pairs, for pairs below which none rises, and where it is rounding.
        """
        weights = self.all_parameters(parameters)[0]
        return jnp.concatenate(
            unfed.rates_of_unfed(weights, self.split_layers(unfed_), self.split_layers(rising))
        )

    @property
    def feeds_all(self) -> bool:
        """Tell whether biases keep every pair fed."""
        return all(b is not None for b in self.network.biases[1:-1])

    def side_distances(
        self, parameters: Parameters, frozen: FixedLayerSides
    ) -> Float[Array, "H P"]:
        """Return |z| of pairs on their sides that have a margin, as `margins` has it."""
        z = jnp.concatenate(self.forward_pass(parameters, frozen.gates).z)
        return jnp.where(self.has_margin(frozen.codes), jnp.where(frozen.codes == OFF, -z, z), 1.0)

    def has_margin(self, codes: Int[Array, "H P"]) -> Bool[Array, "H P"]:
        """Tell which pairs have a margin: leaders of their kinks, if fed."""
        return self.is_leader if self.feeds_all else self.is_leader & ~self.is_unfed(codes)

    def margins(self, parameters: Parameters, frozen: FixedLayerSides) -> Float[Array, "2 H P"]:
        """Return each kink's distance from an event, as `OneLayerFlow.margins`; none of unfed."""
        return self.margins_and_bounds(parameters, frozen)[0]

    def margins_and_bounds(
        self, parameters: Parameters, frozen: FixedLayerSides
    ) -> tuple[Float[Array, "2 H P"], Float[Array, "H P"]]:
        """Return `margins`, and the `slide_bound` of each kink: negative where it repels."""
        at, u = self.pass_with_slides(parameters, frozen)
        z, slides = jnp.concatenate(at.z), frozen.codes == SLIDING
        side = jnp.where(frozen.codes == OFF, -z, z)
        bound = self.slide_bound(self.joint_drive(at))
        u = self.among_sharers(at, u)
        highest = bound - u
        if not self.feeds_all:
            highest = jnp.minimum(highest, self.joint_exit(parameters, frozen.codes, at, u)[0])
        margins = jnp.stack([jnp.where(slides, u, side), jnp.where(slides, highest, 1.0)])
        return jnp.where(self.has_margin(frozen.codes)[None], margins, 1.0), bound

    def joint_exit(
        self, parameters: Parameters, codes: Int[Array, "H P"], at: FullPass, u: Float[Array, "H P"]
    ) -> tuple[Float[Array, "H P"], Float[Array, "H P"]]:
        """Return margin and ray of slides that would rise together; see `unfed.joint_exit`."""
        weights, biases = self.all_parameters(parameters)
        idle = self.is_unfed(codes)
        silent = self.apply_by_layer(
            lambda kinks, own: (
                (jnp.all(own <= SLIDING, axis=0) & kinks.is_unshared)[None] & (own == SLIDING)
            ),
            codes,
        )
        feeds = silent & ~idle & (self.network.slope == 0)
        feeds = feeds & self.apply_across_layers(unfed.several_in_sample, feeds)

        def exit_margins():
            both = unfed.joint_exit(
                weights, biases, self.split_layers(feeds), self.split_layers(u), at.output_error
            )
            return jnp.concatenate(both[0]), jnp.concatenate(both[1])

        def no_exit():
            return jnp.full(u.shape, jnp.inf, u.dtype), jnp.zeros_like(u)

        return lax.cond(jnp.any(feeds), exit_margins, no_exit)

    def project_to_kinks(
        self, parameters: Parameters, frozen: FixedLayerSides
    ) -> tuple[Parameters, Array]:
        """Move the sliding pairs back to their kinks by one Gauss-Newton step.

        **Returns:** the parameters, and whether they moved.
        """
        at = self.forward_pass(parameters, frozen.gates)
        u = self.solve_slides(parameters, at, frozen.slots, jnp.concatenate(at.z))
        still = jnp.zeros((self.task.outputs, self.task.samples), u.dtype)
        back = self.velocity(parameters, self.backward_pass(parameters, at, still, u))  # -Phi^T u
        moved = jnp.any(frozen.slots < frozen.codes.size)
        return jax.tree.map(jnp.add, parameters, self.select_moving(back)), moved

    def is_at_kink(self, parameters: Parameters, widely: bool = False) -> Bool[Array, "H P"]:
        """Tell where a leader's |z| may be rounding; nowhere for units without any input.

        `widely` counts the weights that a unit sends with as weights that it receives with: w
        that is zero is then told from w that is merely small, and so are all its z.
        """
        z = jnp.concatenate(self.forward_pass(parameters, None).z)
        size = self.pair_scales(parameters, widely)
        return (jnp.abs(z) <= self.z_rounding(size)) & (size > 0) & self.is_leader

    def pair_scales(self, parameters: Parameters, widely: bool = False) -> Float[Array, "H P"]:
        """Return the size of each pair's weights times its inputs', the scale of z's rounding.

        `widely` is as for `is_at_kink`.
        """
        parameters = lax.stop_gradient(parameters)
        weights, biases = self.all_parameters(parameters)
        at, sizes = self.forward_pass(parameters, None), []
        for w, after, b, h in zip(weights, weights[1:], biases, at.h[:-1], strict=False):
            square, inputs = jnp.sum(w**2, axis=1), jnp.sum(h**2, axis=0)
            square = square + jnp.sum(after**2, axis=0) if widely else square
            if b is not None:
                square, inputs = square + b**2, inputs + self.network.bias_strength**2
            sizes.append(jnp.sqrt(square[:, None] * inputs[None]))
        return jnp.concatenate(sizes)

    def z_rounding(self, sizes: Float[Array, "H P"]) -> Float[Array, "H P"]:
        """Return the |z| of pairs of these sizes that may be rounding."""
        eps = jnp.finfo(self.task.x.dtype).eps
        tiny = jnp.finfo(self.task.x.dtype).tiny / eps
        return dtype_rounding(self.task.x.dtype).z * sizes + tiny

    def drive_scales(self, parameters: Parameters) -> Float[Array, "H 1"]:
        """Return each unit's |C| at zero outputs at most, the scale of its rounding."""
        scale, scales = self.zero_output_error * jnp.ones(self.task.outputs, self.task.x.dtype), []
        for w in reversed(self.all_parameters(lax.stop_gradient(parameters))[0][1:]):
            scale = jnp.sqrt(jnp.sum((w * scale[:, None]) ** 2, axis=0))
            scales = [scale, *scales]
        return jnp.concatenate(scales)[:, None]

    def drive_rounding(self, parameters: Parameters) -> Float[Array, "H 1"]:
        """Return the |C| of every unit's pairs that may be rounding, however small the loss."""
        return 5 * jnp.finfo(self.task.x.dtype).eps * self.drive_scales(parameters)

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
        return jnp.where(
            frozen.codes == SLIDING, slid + tiny, self.z_rounding(self.pair_scales(parameters))
        )
