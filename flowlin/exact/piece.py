"""One piece of an exact walk: a Runge-Kutta step at fixed modes, cut at its first event."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from flowlin.exact.gated import Frozen, GatedFlow
from flowlin.network import Parameters
from flowlin.roots import bracketed_root

CHECKS = 4  # points per step at which margins are looked at


class Piece(eqx.Module):
    """A piece from `start` to `end`; modes change at its end where `fired`."""

    start: Array
    end: Array
    y1: Parameters
    error: Parameters  # of the step that was tried, up to the time aimed at
    dense: Any
    inner: Any  # state of the inner solver
    fired: Bool[Array, "H P"]
    uncertainty: Float[Array, ""]


def walk_piece(
    flow: GatedFlow,
    solver: diffrax.AbstractSolver,
    terms: Any,
    t: Array,
    t1: Array,
    y: Parameters,
    frozen: Frozen,
    inner: Any,
    made_jump: Any,
) -> Piece:
    """One step of `solver` from t towards t1 with frozen modes, ended by the first event in it.

    The event is found on the dense output. The state there is that of a second step which ends
    at it (the dense output has fewer digits), moved onto the kink by one Newton correction along
    the flow; the correction also carries the derivative of the event's time.
    """

    def step(end):
        y1, error, dense, state, _ = solver.step(terms, t, end, y, frozen, inner, made_jump)
        # FSAL solvers return a Python bool, which no branch can.
        return y1, error, dense, jax.tree.map(jnp.asarray, state)

    y1, error, dense, state = step(t1)
    slack = _slack(flow, y, frozen)
    path = lax.stop_gradient(solver.interpolation_cls(t0=t, t1=t1, **dense))
    still = lax.stop_gradient((flow, frozen))

    def slack_margins(at):
        return still[0].margins(path.evaluate(at), still[1]) + slack

    times = lax.stop_gradient(t + (t1 - t) * jnp.arange(CHECKS + 1) / CHECKS).at[-1].set(t1)
    lowest = jax.vmap(lambda at: jnp.min(slack_margins(at)))(times)
    found = jnp.any(lowest[1:] <= 0)

    def to_event():
        k = jnp.argmax(lowest[1:] <= 0)
        tolerance = 1e-12 * (times[-1] - times[0]) + 4 * jnp.finfo(t.dtype).eps * times[-1]
        low, high = bracketed_root(
            lambda at: jnp.min(slack_margins(at)),
            times[k], times[k + 1], lowest[k], lowest[k + 1], tolerance,
        )  # fmt: skip
        high = lax.stop_gradient(high)
        there = slack_margins(high)
        # Who fires is read off the dense output: after the second step a dead pair, which waits
        # at its tolerance for ever, could be lowest.
        first = jnp.argmin(there) == jnp.arange(there.size).reshape(there.shape)
        tied = (slack <= 0) & (there <= flow.tolerances(y, frozen))
        ye, error_e, dense_e, state_e = step(high)
        shift, ye, spread = _correct(flow, frozen, ye, error_e, first, slack, high - times[0])
        return high + shift, ye, dense_e, state_e, first | tied, high - low + spread

    def to_end():
        none = jnp.zeros(frozen.codes.shape, bool)
        return t1 + jnp.zeros_like(t), y1, dense, state, none, jnp.zeros_like(t)

    end, y1, dense, state, fired, uncertainty = lax.cond(found, to_event, to_end)
    return Piece(t, end, y1, error, dense, state, fired, lax.stop_gradient(uncertainty))


def _slack(flow: GatedFlow, y: Parameters, frozen: Frozen) -> Float[Array, "H P"]:
    """How far below zero each margin has to fall to count.

    Zero, but for pairs within rounding of their kinks (they have just switched, or belong to a
    dead unit): those have to leave by more than rounding.
    """
    margins, tolerance = lax.stop_gradient((flow.margins(y, frozen), flow.tolerances(y, frozen)))
    return jnp.where(margins < tolerance, tolerance - jnp.minimum(margins, 0.0), 0.0)


def _correct(flow, frozen, y, error, first, slack, length) -> tuple[Array, Parameters, Array]:
    """Newton's step along the flow onto the kink of the pair `first`.

    **Returns:** the change of time, the state there, and the uncertainty of the time.
    """

    def margin(y):
        return jnp.sum(jnp.where(first, flow.margins(y, frozen) + slack, 0.0))

    velocity = flow(None, y, frozen)
    value, slope = jax.jvp(margin, (y,), (velocity,))
    slope = lax.stop_gradient(jnp.where(slope < 0, slope, -jnp.inf))
    fixed = lax.stop_gradient(value)
    # A tangential event could send Newton far off.
    shift = jnp.clip(-fixed / slope, -1e-2 * length, 1e-2 * length) - (value - fixed) / slope
    off = jax.tree.map(jnp.add, y, error)
    spread = jnp.abs((margin(off) - fixed) / slope)
    y = jax.tree.map(lambda a, v: a + shift * v, y, velocity)
    return shift, y, spread
