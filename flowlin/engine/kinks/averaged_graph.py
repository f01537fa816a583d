"""Gradient flow of any graph of ReLUs with its gates averaged over every step."""

import functools
from typing import ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arrays import Parameters
from flowlin.engine.kinks.averaged import (
    AbstractAveraging,
    extrapolate,
    integral_with_gate,
    quadratic_through,
    velocity_slope,
)
from flowlin.networks.fit import numbers_per_sample
from flowlin.networks.kink_program import KinkProgram, rectify_with_gate
from flowlin.networks.maxima import Rectifier
from flowlin.networks.modules import ForeignModel
from flowlin.networks.network_kinds import ReLUNetwork, outputs_by_rectifier
from flowlin.tasks.task import Task
from flowlin.training.loss import Loss
from flowlin.training.loss_kinks import ModelWithLoss, join_loss
from flowlin.training.objective import Decay, add_decay, sum_over_samples
from flowlin.training.problem import Problem
from flowlin.training.rules import divide_by_tau
from flowlin.training.schedule import Schedule


class AveragedGraphState(eqx.Module):
    """The state that one step hands to the next.

    - `velocity`: at the step's start; `earlier_velocity`: one step before.
    - `last_length`: of the step before, inf at first.
    """

    velocity: Parameters
    earlier_velocity: Parameters
    last_length: Float[Array, ""]


class AveragedGraph(AbstractAveraging[AveragedGraphState]):
    r"""Steps whose gates are averages over the step, for any graph of ReLUs.

    Every kink of the graph is a rectifier $h = \max(z, 0)$, and a backward pass sends back g times
    what comes from above, with the gate $g = 1[z > 0]$. A gate that switches within a step costs
    an ordinary method an error of first order in its length. Here a step of length h is predicted
    by the two-step Adams-Bashforth formula, forward passes give every pair's z at its start, its
    middle and its end, and the quadratic through the three the part $\bar g$ of the step during
    which the pair is on. One gradient at the middle, with $\bar g$ in place of g in the backward
    pass alone, is the average velocity up to second order:

    $$\theta_1 = \theta_0 - h\, \tau^{-1} \nabla L(\theta_{1/2}; \bar g).$$

    For a pair that switches, $\bar g\, C(\theta_{1/2})$ differs from the average of g C by O(h),
    and the share of the pairs that switch is O(h), too; where two gates of a sample do, their
    product is off, but of such pairs the share is O(h^2). The error estimate is the correction
    minus the prediction, dense output is cubic Hermite. A step takes two gradients, the other one
    at its end, and two forward passes more.

    Of first order where a z has kinks at the zeros of another one, as the maximum of values that
    are rectified already: there no quadratic is near z where it matters. Pairs that slide are not
    told apart, and bound the steps.

    **Arguments:** `network`, `task` and `loss` as `join_loss` returns them, time constants `tau` of
    the flow, a prefix of the parameters' tree, None for what does not move, its `decay`, and the
    `schedule` of tau or None. Sums over samples go in chunks for `width` numbers per sample, among
    `shards` devices.
    """

    network: ReLUNetwork | ForeignModel | ModelWithLoss
    task: Task
    loss: Loss
    tau: PyTree
    decay: Decay | None
    schedule: Schedule | None
    width: int = eqx.field(static=True)
    shards: int = eqx.field(static=True)

    evaluations: ClassVar[int] = 3

    @staticmethod
    def from_problem(problem: Problem) -> "AveragedGraph":
        """Return the solver of a problem whose network is a ReLU network or a module of ReLUs."""
        network, task, loss = problem.network, problem.task, problem.loss
        width = max(numbers_per_sample(network, task), sum(network.hidden))
        shards = task.shards
        if isinstance(network, ForeignModel):
            network, task, loss = join_loss(network, task, loss)
        assert isinstance(network, ReLUNetwork | ForeignModel | ModelWithLoss)
        return AveragedGraph(
            network,
            task,
            loss,
            problem.time_constants,
            problem.decay,
            problem.schedule,
            width,
            shards,
        )

    def init(self, terms, t0, t1, y0, args) -> AveragedGraphState:
        """Return the velocity at the start."""
        del t1
        velocity = terms.vf(t0, y0, args)
        far = jnp.full((), jnp.inf, jnp.result_type(t0, *jax.tree.leaves(y0)))
        return AveragedGraphState(velocity, velocity, far)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """Predict, correct, evaluate."""
        state = solver_state
        if self.schedule is not None:  # which may jump
            begin_anew = functools.partial(self.init, terms, t0, t0, y0, args)
            state = lax.cond(made_jump, begin_anew, lambda: solver_state)
        h = jnp.asarray(t1 - t0, state.last_length.dtype)
        v0 = state.velocity
        slope = velocity_slope(v0, state.earlier_velocity, state.last_length)
        middle, end = (extrapolate(y0, v0, slope, part * h) for part in (0.5, 1.0))
        average = self._average_velocity(t0 + h / 2, middle, y0, end)
        y1 = jax.tree.map(lambda y, v: y + h * v, y0, average)
        v1 = terms.vf(t1, y1, args)
        error = jax.tree.map(jnp.subtract, y1, end)
        k0, k1 = (jax.tree.map(lambda v: h * v, v) for v in (v0, v1))
        dense = {"y0": y0, "y1": y1, "k0": k0, "k1": k1}
        reached = AveragedGraphState(v1, v0, h)
        return y1, error, dense, reached, diffrax.RESULTS.successful

    def _average_velocity(
        self, t: ArrayLike, middle: Parameters, start: Parameters, end: Parameters
    ) -> Parameters:
        """Return the average over a step from `start` to `end` with this middle, at time t."""

        def gradient_of_rows(rows: PyTree) -> Parameters:
            x, y, weights = rows
            ends = self._preactivations(start, x), self._preactivations(end, x)

            def loss_of(parameters: Parameters) -> Array:
                outputs = jax.vmap(lambda row, *own: self._sample_pass(parameters, row, own)[0])(
                    x, *ends
                )
                factor = self.loss.factor_per_sample(self.task.mass)
                return factor * self.loss.total_loss(outputs, y, weights)

            return jax.grad(loss_of)(middle)

        rows = self.task.x, self.task.y, self.task.weights
        gradient = sum_over_samples(gradient_of_rows, rows, self.width, self.shards)
        force = add_decay(jax.tree.map(jnp.negative, gradient), self.decay, middle)
        velocity = divide_by_tau(force, self.tau)
        if self.schedule is None:
            return velocity
        tau = self.schedule(jnp.asarray(t))
        return jax.tree.map(lambda v: v / tau.astype(v.dtype), velocity)

    def _preactivations(self, parameters: Parameters, x: Array) -> Float[Array, "P H"]:
        """Return the z of all kinks for some samples, one place after another."""
        return jax.vmap(lambda row: self._sample_pass(parameters, row)[1])(x)

    def _sample_pass(
        self, parameters: Parameters, x: Array, ends: tuple[Array, ...] = ()
    ) -> tuple[Float[Array, " N_out"], Float[Array, " H"]]:
        """Return outputs and z of one sample (N_in,).

        With the z (H,) at both `ends` of a step, derivatives are by the gates' averages over it.
        """
        found: list[Array] = []

        def rectify(z: Array) -> Array:
            first = sum(one.size for one in found)
            found.append(jnp.ravel(z))
            if not ends:
                return jnp.where(z > 0, z, 0.0)
            start, end = (a[first : first + z.size].reshape(z.shape) for a in ends)
            return rectify_with_gate(z, _part_on(start, z, end))

        output = self._output_by_rectifier(parameters, x, rectify)
        return output, jnp.concatenate(found)

    def _output_by_rectifier(self, parameters: Parameters, x: Array, rectify: Rectifier) -> Array:
        """Return the outputs (N_out,) of one sample, with a function in place of max(z, 0)."""
        network = self.network.with_parameters(parameters)
        if isinstance(network, ReLUNetwork):
            return outputs_by_rectifier(network, x[None], rectify)[0]
        program = network.kink_program(x.size)
        assert isinstance(program, KinkProgram)
        leaves = jax.tree.leaves((network.parameters, network.buffers))
        return program.evaluate([*leaves, x], rectify)


def _part_on(start: Array, middle: Array, end: Array) -> Array:
    """Return the part of a step on which the quadratic through three values is positive."""
    none = jnp.zeros_like(middle)
    return integral_with_gate(
        quadratic_through(start, middle, end), (none + 1, none, none), jnp.zeros((), middle.dtype)
    )
