"""The gradient flow of a network with any number of hidden layers at given sides of its gates."""

import itertools
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from flowlin._tools.arrays import Parameters, prepend_constant
from flowlin._tools.numerics import dtype_rounding
from flowlin.engine.kinks import unfed
from flowlin.engine.kinks.shared_kinks import SharedKinks
from flowlin.engine.kinks.sides import (
    OFF,
    ON,
    SLIDING,
    FixedLayerSides,
    Hyperplanes,
    matrix_columns,
)
from flowlin.engine.kinks.sliding_flow import AbstractSlidingFlow, errors_at_zero_outputs
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.tasks.task import Task
from flowlin.training.loss import Loss
from flowlin.training.objective import Decay, add_decay
from flowlin.training.rules import layers_that_move

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


class DeepFlow(AbstractSlidingFlow):
    r"""Velocity and switching conditions at given sides, for any number of layers.

    Each layer has its own tau, and a unit whose z cannot move has no kinks. For one hidden layer
    this is `OneLayerFlow`, where Phi does not change along a piece and units do not
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
    zero_output_errors: Float[Array, "1 P"]  # sizes of e at zero outputs

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
        self.zero_output_errors = errors_at_zero_outputs(task, loss)

    @property
    def slope(self) -> Array:
        """The slope of the network's off side."""
        return self.network.slope

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

    def first_of_sharers(self, gates: Float[Array, "H P"]) -> None:
        """Return None: who shares a kink is told by a pass (`splitter`)."""
        del gates

    def sharers_at(self, codes: Int[Array, "H P"], pairs: Bool[Array, "H P"]) -> SharedKinks:
        """Return the kinks as pairs share them where `pairs` at theirs are off.

        With biases: where all units below are off, or have just come to their kinks, z is the bias
        alone. Without, None is said of who shares.
        """
        if not self.feeds_all:
            return SharedKinks(pairs, self.is_leader, None)
        found, off, empty = [], [], jnp.zeros((1, self.task.samples), bool)
        for own, at_kink in zip(self.split_layers(codes), self.split_layers(pairs), strict=True):
            found.append(at_kink | (jnp.any(at_kink & empty, axis=1, keepdims=True) & empty))
            off.append((own != ON) | found[-1])
            empty = jnp.all(off[-1], axis=0, keepdims=True) & (self.network.slope == 0)
        gates = self.split_layers(self.gates(jnp.where(jnp.concatenate(off), OFF, ON)))
        at = ForwardPass([], [self.task.x.T, *gates], gates)
        return SharedKinks(jnp.concatenate(found), self.is_leader, self.splitter(at))

    def joint_drive(self, at: FullPass) -> Float[Array, "H P"]:
        """Return `kink_drive` of a pass, split by `splitter`."""
        return self.splitter(at)(self.kink_drive(at.drive))

    def splitter(self, at: ForwardPass, shares: None = None) -> Callable[[Array], Array]:
        """Return what splits values among the pairs that share a kink by what is sent to them.

        With biases that depends on the pass's gates alone. `shares` is of modules.
        """
        del shares
        leads = [kinks.is_leader for kinks in self.kinks]

        def split(pairs: Array) -> Array:
            own = self.split_layers(pairs)
            parts = unfed.among_sharers(self.network, at.gates, at.h[1:-1], leads, own)
            return jnp.concatenate(parts)

        return split

    def gates(self, codes: Int[Array, "H P"]) -> Float[Array, "H P"]:
        """Return the gates to the sides, those of sliding pairs off."""
        return self.apply_by_layer(lambda kinks, one: kinks.gates(one, self.network.slope), codes)

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

    def own_rates(self, drive: Float[Array, "H P"], at: ForwardPass) -> Float[Array, "H P"]:
        r"""Return what being on adds to |dz/dt| of each pair by its own layer's weights.

        With the drive C, what the layer below sends h, and the slope s of the off side it is
        $(1 - s)\, (|h|^2 + c^2)\, |C| / \tau$; without a bias c is zero.
        """
        (weights, biases), found = self.inverse_tau, []
        strength = self.split_layers(jnp.abs(drive))
        for k in range(len(strength)):
            speed = weights[k] * jnp.sum(at.h[k] ** 2, axis=0)
            if self.network.biases[k] is not None:
                speed = speed + biases[k] * self.network.bias_strength**2
            found.append((1 - self.network.slope) * speed[None] * strength[k])
        return jnp.concatenate(found)

    def has_no_weights(self, parameters: Parameters) -> Bool[Array, "H P"]:
        """Tell whose unit has weights of zero but for rounding, beside those that it sends with.

        Its z is then rounding whatever the layers below send. Units with a bias are not told.
        """
        (weights, biases), found = self.all_parameters(parameters), []
        rounding = dtype_rounding(self.task.x.dtype).z
        for w, after, b in zip(weights, weights[1:], biases, strict=False):
            least = rounding**2 * jnp.sum(after**2, axis=0)
            none = jnp.sum(w**2, axis=1) <= least if b is None else jnp.zeros(len(w), bool)
            found.append(jnp.broadcast_to(none[:, None], (len(w), self.task.samples)))
        return jnp.concatenate(found)

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
        low, high = map(self.splitter(at), bounds)
        return low, high

    def is_unfed(self, codes: Int[Array, "H P"]) -> Bool[Array, "H P"]:
        """Tell which pairs have inputs of zero at these sides (`flowlin.engine.kinks.unfed`)."""
        return jnp.concatenate(unfed.is_unfed(self.network, self.split_layers(codes)))

    def rest_unfed(self, parameters: Parameters, codes: Int[Array, "H P"]) -> Int[Array, "H P"]:
        """Return sides in which pairs without inputs are off where they would slide."""
        del parameters
        return jnp.where(self.is_unfed(codes) & (codes == SLIDING), OFF, codes)

    def pairs_that_meet(
        self,
        parameters: Parameters,
        codes: Int[Array, "H P"],
        at_event: Bool[Array, "H P"],
        counted: Bool[Array, "H P"],
    ) -> tuple[Bool[Array, "H P"], Bool[Array, ""]]:
        """Return the pairs that meet at an event, and whether their sides have to be proven.

        They have where pairs without inputs meet others at their kinks, or one unit's kinks depend
        on each other; also those at which a dead unit rests, as pairs below can wake it.
        """
        del parameters, counted
        pairs = self.with_followers(at_event | (codes == SLIDING))
        base = jnp.where(pairs, SLIDING, codes)
        idle = self.is_unfed(base)
        at_kinks = pairs & ~idle
        pairs = at_kinks | (idle & self.apply_across_layers(unfed.any_below, at_kinks))
        inputs, sides = self.task.x.shape[1], self.split_layers(base)
        depends = self.apply_across_layers(
            lambda own: unfed.depend_on_each_other(sides, own, inputs), at_kinks & self.is_leader
        )
        return pairs, jnp.any(pairs & idle) | jnp.any(depends)

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
        u = self.splitter(at)(u)
        highest = bound - u
        if not self.feeds_all:
            highest = jnp.minimum(highest, self.joint_exit(parameters, frozen.codes, at, u)[0])
        highest = jnp.where(slides, highest, jnp.where(frozen.rests, bound, 1.0))
        margins = jnp.stack([jnp.where(slides, u, side), highest])
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

    def pair_scales(self, parameters: Parameters) -> Float[Array, "H P"]:
        """Return the size of each pair's weights times its inputs', |w~| |x~|."""
        parameters = lax.stop_gradient(parameters)
        weights, biases = self.all_parameters(parameters)
        at, sizes = self.forward_pass(parameters, None), []
        for w, b, h in zip(weights[:-1], biases[:-1], at.h[:-1], strict=False):
            square, inputs = jnp.sum(w**2, axis=1), jnp.sum(h**2, axis=0)
            if b is not None:
                square, inputs = square + b**2, inputs + self.network.bias_strength**2
            sizes.append(jnp.sqrt(square[:, None] * inputs[None]))
        return jnp.concatenate(sizes)

    def scales_of_rounding(
        self, parameters: Parameters, widely: bool = False
    ) -> Float[Array, "H P"]:
        """Return |w| |h~| + c |b|: what is behind a bias of zero is told by the weights.

        `widely` is as for `is_at_kink`.
        """
        parameters = lax.stop_gradient(parameters)
        weights, biases = self.all_parameters(parameters)
        at, sizes = self.forward_pass(parameters, None), []
        for w, after, b, h in zip(weights, weights[1:], biases, at.h[:-1], strict=False):
            square, inputs, of_bias = jnp.sum(w**2, axis=1), jnp.sum(h**2, axis=0), 0.0
            square = square + jnp.sum(after**2, axis=0) if widely else square
            if b is not None:
                inputs = inputs + self.network.bias_strength**2
                of_bias = jnp.abs(self.network.bias_strength * b)[:, None]
            sizes.append(jnp.sqrt(square[:, None] * inputs[None]) + of_bias)
        return jnp.concatenate(sizes)

    def drive_scales(self, parameters: Parameters) -> Float[Array, "H 1"]:
        """Return each unit's |C| at zero outputs at most, the scale of its rounding."""
        scale, scales = jnp.full(self.task.outputs, jnp.max(self.zero_output_errors)), []
        for w in reversed(self.all_parameters(lax.stop_gradient(parameters))[0][1:]):
            scale = jnp.sqrt(jnp.sum((w * scale[:, None]) ** 2, axis=0))
            scales = [scale, *scales]
        return jnp.concatenate(scales)[:, None]
