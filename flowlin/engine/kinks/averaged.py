"""Gradient flow of a ReLU network with its gates averaged over every step."""

from typing import Any, ClassVar, TypeVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractClassVar
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arrays import Parameters, replace_fields
from flowlin.engine.kinks.slides import SlideState, StepSlides, slides_after, slides_in_step
from flowlin.engine.solvers.rkc import SecondOrder
from flowlin.engine.solvers.wrapped import AbstractReporting, Report
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.tasks.task import Task
from flowlin.training.loss import Loss
from flowlin.training.objective import Decay, add_decay
from flowlin.training.rules import divide_by_tau
from flowlin.training.schedule import Schedule

# ---- Quadratics in time on [0, 1]: when they are positive, and integrals over that part.

Quadratic = tuple[Array, Array, Array]  # a0 + a1 s + a2 s^2, elementwise


def quadratic_through(start: Array, middle: Array, end: Array) -> Quadratic:
    """The quadratic through its values at s = 0, 1/2 and 1."""
    return start, 4 * middle - 3 * start - end, 2 * (start + end) - 4 * middle


def integral_with_gate(z: Quadratic, force: Quadratic, slope: Array) -> Array:
    r"""$\int_0^1 g(z(s))\, C(s)\, ds$ with the gate g one for z > 0 and `slope` elsewhere."""
    b0, b1, b2 = force

    def force_primitive(s):
        return s * (b0 + s * (b1 / 2 + s * (b2 / 3)))

    first, second = _quadratic_roots(z)
    marks = (jnp.zeros_like(first), first, second, jnp.ones_like(first))
    values = (
        jnp.zeros_like(first),
        force_primitive(first),
        force_primitive(second),
        b0 + b1 / 2 + b2 / 3,
    )
    total = jnp.zeros_like(first)
    for k in range(3):
        gate = jnp.where(_quadratic_at(z, (marks[k] + marks[k + 1]) / 2) > 0, 1.0, slope)
        total = total + gate * (values[k + 1] - values[k])
    return total


def nearest_approach(z0: Array, z1: Array, v0: Array, v1: Array) -> Array:
    """How near z came to zero while it turned back; inf where it did not.

    It turns back if it is on one side at s = 0 and 1, with velocity v0 towards zero and v1 away.
    """
    path = quadratic_through(z0, (z0 + z1) / 2 + (v0 - v1) / 8, z1)
    turn = _quadratic_at(path, _inner_fraction(-path[1], 2 * path[2]))
    turned = (z0 * v0 < 0) & (z1 * v1 > 0) & (z0 * z1 > 0) & (z0 * turn > 0)
    nearest = jnp.minimum(jnp.abs(turn), jnp.minimum(jnp.abs(z0), jnp.abs(z1)))
    return jnp.where(turned, nearest, jnp.inf)


def _quadratic_at(z: Quadratic, s: Array) -> Array:
    return z[0] + s * (z[1] + s * z[2])


def _quadratic_roots(z: Quadratic) -> tuple[Array, Array]:
    """The roots inside (0, 1) in order; 1 stands for those that are not."""
    a0, a1, a2 = z
    discriminant = a1**2 - 4 * a0 * a2
    real, two = discriminant >= 0, discriminant > 0
    root = jnp.where(two, jnp.sqrt(jnp.where(two, discriminant, 1.0)), 0.0)
    # The larger root first, then the other from their product: no difference of close numbers.
    half = -(a1 + jnp.copysign(root, a1)) / 2
    r, s = _inner_fraction(half, a2), _inner_fraction(a0, half)
    r, s = jnp.where(real, r, 1.0), jnp.where(real, s, 1.0)
    return jnp.minimum(r, s), jnp.maximum(r, s)


def _inner_fraction(numerator: Array, denominator: Array) -> Array:
    """The quotient where it lies in (0, 1), else 1; safe to differentiate."""
    inside = (jnp.abs(numerator) < jnp.abs(denominator)) & ((numerator > 0) == (denominator > 0))
    return jnp.where(inside, numerator / jnp.where(inside, denominator, 1.0), 1.0)


# Preactivations z (P, H) and parameters, or their velocities.
ZAndParameters = tuple[Array, Parameters]
Tree = TypeVar("Tree")
SolverState = TypeVar("SolverState")

FINEST_RTOL = 1e-5  # rtol below which the steps creep from switch to switch


class AbstractAveraging(SecondOrder[SolverState]):
    """Base of the solvers whose gates are averages over each step.

    - `evaluations`: of the velocity that a step costs.
    """

    evaluations: AbstractClassVar[int]


def velocity_slope(velocity: Tree, earlier: Tree, length: Array) -> Tree:
    """Return the slope of a velocity over the step before; 0 at first, whose length is inf."""
    return jax.tree.map(lambda v, u: (v - u) / length, velocity, earlier)


def extrapolate(start: Tree, velocity: Tree, slope: Tree, time: Array) -> Tree:
    """Return where a point is after a time, by the two-step Adams-Bashforth formula."""
    return jax.tree.map(lambda y, v, a: y + time * (v + time / 2 * a), start, velocity, slope)


class NetworkDrive(eqx.Module):
    """What moves the network at one point, or on average over a step.

    - `strength`: C, or g C where the gates are in, (P, H).
    - `readout`, `offset`: velocities of the last layer, (N_out, H) and (N_out,) or None.
    """

    pair_drive: Float[Array, "P H"]
    readout: Float[Array, "N_out H"]
    offset: Float[Array, " N_out"] | None

    def with_pair_drive(self, strength: Array) -> "NetworkDrive":
        """The same with another one."""
        return NetworkDrive(strength, self.readout, self.offset)


class AveragedState(AbstractReporting):
    """What one step hands to the next.

    - `z`, `drive`, `velocity`: at the step's start; the drive's strength without gates.
    - `slides`: the pairs that slide there, with the gates of a slide in the velocity.
    - `earlier`: the velocity one step before.
    - `length`: of the step before, inf at first.
    - `margin`: the smallest grazing margin so far.
    """

    z: Float[Array, "P H"]
    drive: NetworkDrive
    velocity: ZAndParameters
    slides: SlideState
    earlier_velocity: ZAndParameters
    last_length: Float[Array, ""]
    grazing_margin: Float[Array, ""]

    def report(self, ts: Array) -> Report:
        """The grazing margin."""
        del ts
        return {"grazing_margin": self.grazing_margin}, {}


class Quantities(eqx.Module):
    """What is known of the network along a step, without a pass over the inputs.

    - `z0`, `z1`, `k0`, `k1`: (P, H), preactivations at the step's ends and their velocities times
      its length. They are linear in the first layer, so their Hermite cubic is the one that the
      dense output's weights give.
    """

    network: ReLUNetwork
    task: Task
    loss: Loss
    t0: Array
    t1: Array
    z0: Float[Array, "P H"]
    z1: Float[Array, "P H"]
    k0: Float[Array, "P H"]
    k1: Float[Array, "P H"]

    def __call__(self, t: ArrayLike, parameters: Parameters) -> dict[str, Array]:
        """Return the network's outputs and the loss at time t, where the parameters are these."""
        cubic = diffrax.ThirdOrderHermitePolynomialInterpolation
        z = cubic(t0=self.t0, t1=self.t1, y0=self.z0, y1=self.z1, k0=self.k0, k1=self.k1)
        outputs = _outputs(self.network.with_parameters(parameters), z.evaluate(jnp.asarray(t)))[1]
        return {"outputs": outputs, "loss": self.loss(outputs, self.task.y, self.task.weights)}


def _outputs(network: ReLUNetwork, z: Float[Array, "P H"]) -> tuple[Array, Array]:
    """Return the hidden activations and the outputs for given preactivations."""
    (_, readout), (_, offset) = network.parameters
    h = network.activation(0, z)
    outputs = h @ readout.T
    return h, outputs if offset is None else outputs + network.bias_strength * offset[None]


class AveragedGates(AbstractAveraging[AveragedState]):
    r"""Steps whose gates are averages over the step, for ReLU networks with one hidden layer.

    With errors $e = -\partial L / \partial \hat y$ and $C = e A$ (A the readout) the flow is

    $$\tau \dot W = (g \circ C)^T X, \quad \tau \dot A = e^T h, \quad
      \dot z = X \dot W^T + c\, \dot b, \quad g = 1[z > 0],$$

    and each of the many gates that switch within a step costs an ordinary method an error of
    first order in its length. Here a step is predicted by the two-step Adams-Bashforth formula,
    whose dense output gives z, linear in W and b, and C as quadratics in time without a large
    product. Each pair's part of the step during which it is on then follows in closed form, and

    $$\tau\, \Delta W = M^T X, \qquad M = \int_0^h g(z(s))\, C(s)\, ds;$$

    the readout moves by Simpson's rule. Two evaluations a step (pairs of large products, X W^T and
    M^T X): for this correction, and of the velocity at the corrected end. The error estimate is
    the correction minus the prediction, dense output is cubic Hermite.

    Pairs that slide are told apart, see `flowlin.engine.kinks.slides`. With their gates off or on
    the prediction, and with it the error estimate, would be off by $h\, \kappa\, C$ in every step
    for as long as they slide, while the correction is right.

    Order 2 while a pair's velocity changes little within the step in which it switches; that
    change is of order 1/P, and for steps so short that the rest is smaller, the order is 1 again.

    Weight decay adds $-\lambda$ times W and A to their velocities, and with that $-\lambda z$ to
    that of z; its average over a step is by Simpson's rule on the prediction.

    **Arguments:** `network`, `task`, `loss`, time constants `tau` of the flow, a prefix of the
    parameters' tree (one per layer is fine), None for what does not move, its `decay`, and the
    `schedule` of tau or None, by which drives, and what decays, are divided at each of a step's
    three points; the vector field of the terms is used for the first step's length alone.
    """

    network: ReLUNetwork
    task: Task
    loss: Loss
    tau: PyTree
    decay: Decay | None = None
    schedule: Schedule | None = None

    evaluations: ClassVar[int] = 2

    def init(self, terms, t0, t1, y0, args) -> AveragedState:
        """Preactivations and velocity at the start."""
        del terms, t1, args
        (z,) = self.network.with_parameters(y0).preactivations(self.task.x)
        drive = self._drive_at(t0, (z, y0))
        slides = SlideState.without_slides(self.network.gate(0, z) * drive.pair_drive)
        pull = self._divide_by_schedule(t0, (z, y0))
        velocity = self._velocity_of(drive.with_pair_drive(slides.signal), pull)
        far = jnp.full((), jnp.inf, jnp.result_type(t0, z))
        return AveragedState(
            z=z,
            drive=drive,
            velocity=velocity,
            slides=slides,
            earlier_velocity=velocity,
            last_length=far,
            grazing_margin=far.astype(z.dtype),
        )

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """Predict, correct, evaluate."""
        state = self._state_after_jump(terms, t0, y0, solver_state, made_jump)
        del terms, args, made_jump
        h = jnp.asarray(t1 - t0)
        times = t0, t0 + h / 2, t1
        start, v0 = (state.z, y0), state.velocity
        slope = velocity_slope(v0, state.earlier_velocity, state.last_length)
        middle, end = (extrapolate(start, v0, slope, part * h) for part in (0.5, 1.0))
        drives = state.drive, self._drive_at(times[1], middle), self._drive_at(t1, end)
        path = quadratic_through(state.z, middle[0], end[0])
        mean = start
        if self.decay is not None:
            mean = _simpson_average(*map(self._divide_by_schedule, times, (start, middle, end)))
        now = self._slides_in_step(state, h, drives, (end[0], v0[0] + h * slope[0]))
        average = self._velocity_of(self._average_drive(path, drives, now), mean)
        corrected = jax.tree.map(lambda y, v: y + h * v, start, average)
        error = jax.tree.map(jnp.subtract, corrected[1], end[1])
        drive, z1 = self._drive_at(t1, corrected), corrected[0]
        gates, moved = self.network.gate(0, z1), (z1 - end[0]) / h
        slides = slides_after(state.slides, now, h, z1, moved, drive.pair_drive, gates)
        pull = self._divide_by_schedule(t1, corrected)
        v1 = self._velocity_of(drive.with_pair_drive(slides.signal), pull)
        near = nearest_approach(state.z, z1, h * v0[0], h * v1[0])
        margin = jnp.minimum(
            state.grazing_margin, self._graze_margin(near, drives[1].pair_drive, y0)
        )
        reached = AveragedState(
            z=z1,
            drive=drive,
            velocity=v1,
            slides=slides,
            earlier_velocity=v0,
            last_length=h,
            grazing_margin=margin,
        )
        k0, k1 = (jax.tree.map(lambda v: h * v, v[1]) for v in (v0, v1))
        dense = {"y0": y0, "y1": corrected[1], "k0": k0, "k1": k1}
        return corrected[1], error, dense, reached, diffrax.RESULTS.successful

    def quantities_along(
        self, t0: Array, t1: Array, start: AveragedState, end: AveragedState
    ) -> Quantities:
        """Return what is known of the network along a step, from its states at both ends."""
        k0, k1 = ((t1 - t0) * state.velocity[0] for state in (start, end))
        return Quantities(self.network, self.task, self.loss, t0, t1, start.z, end.z, k0, k1)

    def _state_after_jump(self, terms, t0, y0, state: AveragedState, made_jump) -> AveragedState:
        """The state at the start of a step, anew where a schedule of tau may have jumped."""
        if self.schedule is None:
            return state
        margin = state.grazing_margin

        def begin_anew() -> AveragedState:
            return replace_fields(self.init(terms, t0, t0, y0, None), grazing_margin=margin)

        return lax.cond(made_jump, begin_anew, lambda: state)

    def _divide_by_schedule(self, t: ArrayLike, tree: Tree) -> Tree:
        """A tree divided by tau at time t, where that depends on time."""
        if self.schedule is None:
            return tree
        tau = self.schedule(jnp.asarray(t))
        return jax.tree.map(lambda a: a / tau.astype(a.dtype), tree)

    def _drive_at(self, t: ArrayLike, point: ZAndParameters) -> NetworkDrive:
        """At a point, without gates in the strength. No large product."""
        z, parameters = point
        network = self.network.with_parameters(parameters)
        (_, readout), (_, offset) = network.parameters
        h, outputs = _outputs(network, z)
        error = -jax.grad(self.loss)(outputs, self.task.y, self.task.weights)
        pull = None if offset is None else network.bias_strength * jnp.sum(error, axis=0)
        drive = NetworkDrive(error @ readout, error.T @ h, pull)
        return self._divide_by_schedule(t, drive)

    def _velocity_of(self, drive: NetworkDrive, point: ZAndParameters) -> ZAndParameters:
        """Return the velocity of z and the parameters under a drive with gates, by two products.

        `point` is where weight decay pulls from, over a schedule of tau.
        """
        x, c = self.task.x, self.network.bias_strength
        b = None if self.network.biases[0] is None else c * jnp.sum(drive.pair_drive, axis=0)
        force = (drive.pair_drive.T @ x, drive.readout), (b, drive.offset)
        parameters = self.network.with_parameters(point[1]).parameters
        velocity = divide_by_tau(add_decay(force, self.decay, parameters), self.tau)
        (w, _), (b, _) = velocity
        z = jnp.zeros_like(drive.pair_drive) if w is None else x @ w.T
        return z if b is None else z + (c * b)[None], velocity

    def _slides_in_step(
        self,
        state: AveragedState,
        h: Array,
        drives: tuple[NetworkDrive, NetworkDrive, NetworkDrive],
        predicted: Any,
    ) -> StepSlides:
        """The pairs that slide in a step, from z and its velocity as `predicted` for the end."""
        ungated = _simpson_average(*drives).pair_drive, drives[2].pair_drive
        own, slope = self._own_response(state.z.dtype), self.network.slope
        return slides_in_step(state.slides, h, state.last_length, ungated, predicted, own, slope)

    def _own_response(self, dtype: Any) -> Array:
        """Return how fast a pair of strength one moves its z, (P, H) or (1, 1) where none does."""
        ones = jax.tree.map(jnp.ones_like, self.network.parameters)
        (w, _), (b, _) = divide_by_tau(ones, self.tau)
        own = jnp.zeros((1, 1), dtype)
        if w is not None:
            samples = jnp.sum(self.task.x**2, axis=1)
            own = own + samples[:, None] * jnp.mean(w, axis=1)[None]
        return own if b is None else own + self.network.bias_strength**2 * b[None]

    def _average_drive(
        self,
        path: Quadratic,
        drives: tuple[NetworkDrive, NetworkDrive, NetworkDrive],
        now: StepSlides,
    ) -> NetworkDrive:
        """Over a step, from the drives at its start, middle and end."""
        strength = quadratic_through(*(drive.pair_drive for drive in drives))
        simpson = _simpson_average(*drives)
        gated = integral_with_gate(path, strength, self.network.slope)
        gated = jnp.where(now.pairs, now.mean_signal, gated)
        return NetworkDrive(gated, simpson.readout, simpson.offset)

    def _graze_margin(self, near: Array, strength: Array, parameters: Parameters) -> Array:
        """The smallest |z| / (|w~| |x~|) of the pairs with C > 0 that turned back."""
        (w, _), (b, _) = self.network.with_parameters(parameters).parameters
        units, samples = jnp.sum(w**2, axis=1), jnp.sum(self.task.x**2, axis=1)
        if b is not None:
            units, samples = units + b**2, samples + self.network.bias_strength**2
        scale = jnp.sqrt(samples[:, None] * units[None])
        return lax.stop_gradient(jnp.min(jnp.where(strength > 0, near / scale, jnp.inf)))


def _simpson_average(start: PyTree, middle: PyTree, end: PyTree) -> Any:
    """The average over a step."""
    return jax.tree.map(lambda a, b, c: (a + 4 * b + c) / 6, start, middle, end)
