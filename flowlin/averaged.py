"""Gradient flow of a ReLU network with its gates averaged over every step."""

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from flowlin.loss import Loss
from flowlin.network import Parameters, ReLUNetwork
from flowlin.onset import Quadratic, gated_integral, grazes, quadratic
from flowlin.task import Task

Moving = tuple[Array, Parameters]  # preactivations z (P, H) and parameters, or their velocities

EVALUATIONS = 3  # pairs of large products per step
FINEST = 1e-5  # rtol below which the steps creep from switch to switch


class Drive(eqx.Module):
    """What moves the network at one point, or on average over a step.

    - `strength`: C, or g C where the gates are in, (P, H).
    - `readout`, `offset`: velocities of the last layer, (N_out, H) and (N_out,) or None.
    """

    strength: Float[Array, "P H"]
    readout: Float[Array, "N_out H"]
    offset: Float[Array, " N_out"] | None


class AveragedState(eqx.Module):
    """What one step hands to the next.

    - `z`, `drive`, `velocity`: at the step's start; the drive's strength without gates.
    - `earlier`: the velocity one step before.
    - `length`: of the step before, inf at first.
    - `margin`: the smallest grazing margin so far.
    """

    z: Float[Array, "P H"]
    drive: Drive
    velocity: Moving
    earlier: Moving
    length: Float[Array, ""]
    margin: Float[Array, ""]


class AveragedGates(diffrax.AbstractAdaptiveSolver[AveragedState]):
    r"""Hermite-Simpson steps whose gates are averages over the step, for one hidden layer.

    With errors $e = -\partial L / \partial \hat y$ and $C = e A$ (A the readout) the flow is

    $$\tau \dot W = (g \circ C)^T X, \quad \tau \dot A = e^T h, \quad
      \dot z = X \dot W^T + c\, \dot b, \quad g = 1[z > 0],$$

    and each of the many gates that switch within a step costs an ordinary method an error of
    first order in its length h. Here a step predicts its end from the last two velocities, takes
    z there and C as quadratics in time through start, (Hermite) middle and end, and integrates
    over the part of the step during which each pair is on, which is known in closed form:

    $$\tau\, \Delta W = M^T X, \qquad M = \int_0^h g(z(s))\, C(s)\, ds.$$

    The readout moves by Simpson's rule. z is linear in W and b, so it is carried along, and all of
    this takes three evaluations (pairs of large products): at the prediction, for the correction,
    and at the corrected end. Order 2; the error estimate is the correction itself. Dense output
    is the cubic Hermite interpolant.

    **Arguments:** `network`, `task`, `loss` and time constant `tau` of the flow; the vector field
    of the terms is used for the first step's length alone.

    **Raises:** `ValueError` for several hidden layers.
    """

    network: ReLUNetwork
    task: Task
    loss: Loss
    tau: Array

    term_structure: ClassVar = diffrax.ODETerm
    interpolation_cls: ClassVar[Callable[..., Any]] = (
        diffrax.ThirdOrderHermitePolynomialInterpolation
    )

    def __check_init__(self):
        if len(self.network.hidden) != 1:
            raise ValueError(
                f"`AveragedKinks` is for one hidden layer, got {len(self.network.hidden)}; use "
                "`kinks=fl.SmoothKinks(...)`."
            )

    def order(self, terms):
        """Global order."""
        del terms
        return 2

    def error_order(self, terms):
        """Order of the local error estimate."""
        del terms
        return 3

    def func(self, terms, t0, y0, args):
        """The vector field."""
        return terms.vf(t0, y0, args)

    def init(self, terms, t0, t1, y0, args) -> AveragedState:
        """Preactivations and velocity at the start."""
        del terms, t1, args
        (z,) = self.network.with_parameters(y0).preactivations(self.task.x)
        drive, velocity = self._evaluate((z, y0))
        far = jnp.full((), jnp.inf, jnp.result_type(t0, z))
        return AveragedState(z, drive, velocity, velocity, far, far.astype(z.dtype))

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """Predict, evaluate, correct, evaluate."""
        del terms, args, made_jump  # the field does not depend on time
        state, h = solver_state, t1 - t0
        start, v0 = (state.z, y0), state.velocity
        # Along the line through the last two velocities; at first along the velocity.
        lean = h / (2 * state.length)
        predicted = jax.tree.map(
            lambda y, k, k_: y + h * (k + lean * (k - k_)), start, v0, state.earlier
        )
        end, v1 = self._evaluate(predicted)
        middle = jax.tree.map(
            lambda a, b, ka, kb: (a + b) / 2 + h / 8 * (ka - kb), start, predicted, v0, v1
        )
        drives = (state.drive, self._drive(middle), end)
        path = quadratic(state.z, middle[0], predicted[0])
        average = self._average(path, drives)
        corrected = jax.tree.map(lambda y, v: y + h * v, start, self._velocity(average, y0))
        error = jax.tree.map(jnp.subtract, corrected[1], predicted[1])
        drive, velocity = self._evaluate(corrected)
        margin = jnp.minimum(state.margin, self._margin(path, drives[1].strength, y0))
        after = AveragedState(corrected[0], drive, velocity, v0, h, margin)
        k0, k1 = (jax.tree.map(lambda v: h * v, k[1]) for k in (v0, velocity))
        dense = {"y0": y0, "y1": corrected[1], "k0": k0, "k1": k1}
        return corrected[1], error, dense, after, diffrax.RESULTS.successful

    def _drive(self, point: Moving) -> Drive:
        """At a point, without gates in the strength. No large product."""
        z, ((_, readout), (_, offset)) = point
        c, h = self.network.bias_strength, self.network.activation(0, z)
        outputs = h @ readout.T
        if offset is not None:
            outputs = outputs + c * offset
        error = -jax.grad(self.loss)(outputs, self.task.y) / self.tau
        pull = None if offset is None else c * jnp.sum(error, axis=0)
        return Drive(error @ readout, error.T @ h, pull)

    def _velocity(self, drive: Drive, parameters: Parameters) -> Moving:
        """Of z and the parameters, for a drive with gates: one pair of large products."""
        x, c = self.task.x, self.network.bias_strength
        w = drive.strength.T @ x
        z, b = x @ w.T, None
        if parameters[1][0] is not None:
            b = c * jnp.sum(drive.strength, axis=0)
            z = z + c * b
        return z, ((w, drive.readout), (b, drive.offset))

    def _evaluate(self, point: Moving) -> tuple[Drive, Moving]:
        """The drive without gates, and the velocity."""
        drive = self._drive(point)
        gates = jnp.where(point[0] > 0, 1.0, self.network.slope)
        gated = Drive(gates * drive.strength, drive.readout, drive.offset)
        return drive, self._velocity(gated, point[1])

    def _average(self, path: Quadratic, drives: tuple[Drive, Drive, Drive]) -> Drive:
        """Over a step, from the drives at its start, middle and end."""
        strength = quadratic(*(drive.strength for drive in drives))
        simpson = jax.tree.map(lambda a, b, c: (a + 4 * b + c) / 6, *drives)
        gated = gated_integral(path, strength, self.network.slope)
        return Drive(gated, simpson.readout, simpson.offset)

    def _margin(self, path: Quadratic, strength: Array, parameters: Parameters) -> Array:
        """The smallest |z| / (|w~| |x~|) at which a pair with C > 0 turns back from its kink."""
        (w, _), (b, _) = parameters
        units, samples = jnp.sum(w**2, axis=1), jnp.sum(self.task.x**2, axis=1)
        if b is not None:
            units, samples = units + b**2, samples + self.network.bias_strength**2
        scale = jnp.sqrt(samples[:, None] * units)
        margins = jnp.where(strength > 0, grazes(path) / scale, jnp.inf)
        return lax.stop_gradient(jnp.min(margins))
