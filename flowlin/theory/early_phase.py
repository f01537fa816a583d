"""The early phase of a ReLU network, for users: its weights, fates of units, and t*."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    checked,
    instance_of,
    integer_from,
    not_negative,
    real_array,
)
from flowlin._tools.arrays import is_traced, weight_rows
from flowlin._tools.moved import moved_attributes
from flowlin._tools.printing import (
    LONGEST_ADVICE,
    Summary,
    concrete_array,
    format_count,
    format_number,
    format_range,
    print_by,
    shorten_text,
)
from flowlin.engine.kinks.one_layer import OneLayerFlow
from flowlin.engine.kinks.one_layer_switching import initial_sides
from flowlin.engine.kinks.sides import ON, RESOLVED
from flowlin.networks.base import require_task_fit
from flowlin.networks.network_kinds import AbstractNetwork, ReLUNetwork
from flowlin.record.linearization import Linearization, UnitCounts, linearization_time
from flowlin.tasks.task import Task
from flowlin.theory.early_units import (
    UnitPieces,
    UnitWeights,
    drive_matrices,
    evolve_unit,
    matrix_triples,
    parameters_of,
    split_by_growth,
    units_of,
    walk_units,
)
from flowlin.training.linearized_loss import LinearizedLoss
from flowlin.training.squared_error import SquaredError


def early_phase_summary(found: "EarlyPhase") -> Summary:
    """Print network, task, the fates of the units, and the times at which their gates change."""
    rows = [
        ("network", shorten_text(found.start, LONGEST_ADVICE)),
        ("task", shorten_text(found.task, LONGEST_ADVICE)),
    ]
    fate, change = concrete_array(found.fate, 1), concrete_array(found.first_change, 1)
    if fate is not None and change is not None:
        on, off, split = (np.sum(fate == side) for side in (1, -1, 0))
        rows.append(("fate", f"{on} on for all samples, {off} for none, {split} for some"))
        changing = change[np.isfinite(change)]
        when = f", first at t = {format_range(changing)}" if len(changing) else ""
        rows.append(("gates", f"change in {format_count(len(changing), 'unit')}{when}"))
    units = format_count(found.fate.shape[-1], "unit")
    return Summary(f"EarlyPhase of {units} up to t = {format_number(found.t1)}", rows)


def compile_method(method: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Decorate a method of a module whose arguments are numbers: compile it once for all."""
    inner = eqx.filter_jit(method)

    @functools.wraps(method)
    def call_compiled(self, *args, **kwargs):
        return inner(self, *map(jnp.asarray, args), **jax.tree.map(jnp.asarray, kwargs))

    return call_compiled


@moved_attributes(codes="sides", final_codes="final_sides")
@print_by(early_phase_summary)
class EarlyPhase(eqx.Module):
    r"""A ReLU network's flow as if its outputs stayed zero, from t = 0 to `t1`; see `early_phase`.

    Of the start, while the first gates hold:

    - `rates`: (H, K), $\sigma / \tau$ of $M_j$, largest first.
    - `component`: (H,), $(u \cdot \tilde w_j + v \cdot a_j) / 2$ along the top singular pair, with
      its sign taken such that u points to the active side: $\sum_i u \cdot \tilde x_i > 0$ over the
      active samples. Positive ones grow into their half-space, negative ones are turned out of it.
    - `fate`: (H,), the side that this direction leads to, with the gates as they are: 1 is on for
      all samples, -1 for none (dead units too), 0 for some. Gates that change on the way change
      the direction: `final_sides` has the sides in the end.
    - `first_change`: (H,), time at which the unit's first gate changes; inf if none does.

    Of the whole walk:

    - `final_sides`: (H, P), 1 on, 0 sliding, -1 off, at the end.
    - `trouble`: (H,), nonzero where more pairs slid than there are slots.
    - `reached`: (H,), the time up to which each unit was followed: t1, or earlier where the pieces
      were too few.
    - `pieces`, `t1`, `start`, `task`, `tau`, `loss`: the parts that it is made of.

    Times outside [0, t1] give nan.
    """

    rates: Float[Array, "H K"]
    component: Float[Array, " H"]
    fate: Int[Array, " H"]
    first_change: Float[Array, " H"]
    final_sides: Int[Array, "H P"]
    trouble: Int[Array, " H"]
    reached: Float[Array, " H"]
    pieces: UnitPieces
    t1: Float[Array, ""]
    start: ReLUNetwork
    task: Task
    tau: Array
    loss: SquaredError

    @property
    def mode_tau(self) -> Array:
        """Time constant of the modes, whose s and d are means: tau, or tau/P for a sum; scalar."""
        mass = self.task.mass
        return self.tau / (mass * self.loss.factor_per_sample(mass))

    @checked(t=real_array)
    @compile_method
    def network(self, t: ArrayLike) -> ReLUNetwork:
        """Return the network at time t in [0, t1]; for an array of times (T,), stacked."""
        t = jnp.asarray(t, self.start.dtype)
        if t.ndim:
            return jax.vmap(self.network)(t)
        k = self._piece_number(t)
        rows = jnp.arange(len(k))
        piece = jax.tree.map(lambda all_: all_[rows, k], self.pieces)
        inside = (t >= 0) & (t <= self.t1 * (1 + 4 * jnp.finfo(t.dtype).eps))
        passed = jnp.where(inside, t - piece.start, jnp.nan)
        now = jax.vmap(evolve_unit)(piece.m, piece.parts, piece.w, piece.a, passed)
        biased = self.start.biases[0] is not None
        return self.start.with_parameters(parameters_of(UnitWeights(*now), biased))

    @checked(t=not_negative)
    def sides(self, t: ArrayLike) -> Int[Array, "H P"]:
        """Return the sides of the pairs at a time t, (H, P): 1 on, 0 sliding, -1 off.

        **Raises:** `ValueError` for a known time outside [0, t1].
        """
        self._require_inside("t", t)
        return self._sides_at(t)

    @compile_method
    def _sides_at(self, t: ArrayLike) -> Int[Array, "H P"]:
        k = self._piece_number(jnp.asarray(t, self.start.dtype))
        return self.pieces.codes[jnp.arange(len(k)), k]

    @checked(t=not_negative)
    def last_change(self, t: ArrayLike) -> Float[Array, " H"]:
        """Return each unit's last change of a gate up to a time t, (H,); 0 if none has changed.

        **Raises:** `ValueError` for a known time outside [0, t1].
        """
        self._require_inside("t", t)
        return self._last_change_at(t)

    def _require_inside(self, name: str, t: Any) -> None:
        """Raise `ValueError` for a known time after t1."""
        if not is_traced((t, self.t1)) and t > self.t1 * (1 + 4 * jnp.finfo(self.t1.dtype).eps):
            raise ValueError(
                f"`{name}` = {float(t):g} lies outside the early phase, [0, {float(self.t1):.6g}]."
            )

    @compile_method
    def _last_change_at(self, t: ArrayLike) -> Float[Array, " H"]:
        k = self._piece_number(jnp.asarray(t, self.start.dtype))
        return self.pieces.start[jnp.arange(len(k)), k]

    def _piece_number(self, t: Array) -> Array:
        """Return the number of each unit's piece at time t, (H,)."""
        after = jnp.sum(self.pieces.start <= t, axis=1) - 1
        return jnp.maximum(after, 0)

    @checked(t=real_array)
    @compile_method
    def overlap(self, t: ArrayLike) -> Float[Array, "..."]:
        r"""Return the share of the targets that the outputs have reached, of the shape of t.

        $\sum_i y_i \cdot \hat y_i / \sum_i |y_i|^2$. It never falls. The early phase neglects terms
        of its order, and means nothing any more where it is one.
        """
        t = jnp.asarray(t, self.start.dtype)
        if t.ndim:
            return jax.vmap(self.overlap)(t)
        outputs, counted = self.network(t).outputs(self.task.x), _weight_targets(self.task)
        return jnp.sum(counted * outputs) / jnp.sum(counted * self.task.y)

    @checked(end=not_negative)
    def linearization(self, end: ArrayLike | None = None) -> Linearization:
        """Return the predicted t*, as `flow.linearization()` gives the measured one.

        **Arguments:** `end`, the end of the time over which the maximum is taken; None is t1.

        **Raises:** `ValueError` for a known end outside [0, t1].
        """
        if end is not None:
            self._require_inside("end", end)
        end = self.t1 if end is None else jnp.asarray(end, self.start.dtype)
        counts = [self._unit_counts(lowest, end) for lowest in (1, 0)]
        opened, closed = (linearization_time(c, end) for c in counts)
        return Linearization(opened, closed, *counts)

    def _unit_counts(self, lowest: int, end: Array) -> UnitCounts:
        """Return the numbers of units on for all and for no samples, after every change.

        A pair counts as on from the side `lowest` on.
        """
        start = jnp.where(self.pieces.start <= end, self.pieces.start, jnp.inf)
        sides = self.pieces.codes >= lowest
        states = [jnp.all(sides, axis=2), ~jnp.any(sides, axis=2)]
        first = [jnp.sum(state[:, 0]) for state in states]
        time = start[:, 1:].ravel()
        order = jnp.argsort(time)
        numbers = []
        for state, known_first in zip(states, first, strict=True):
            change = (state[:, 1:].astype(int) - state[:, :-1].astype(int)).ravel()
            change = jnp.where(jnp.isfinite(time), change, 0)[order]
            numbers.append(jnp.concatenate([known_first[None], known_first + jnp.cumsum(change)]))
        time = jnp.concatenate([jnp.zeros(1, time.dtype), time[order]])
        on, off = numbers
        return UnitCounts(time, jnp.zeros_like(time), on, off, units=len(start))


CHECKS_BY_NAME["early"] = instance_of(
    EarlyPhase, "an early phase, as `theory.early_phase` returns it"
)


@checked(loss=None, slots=integer_from(1), max_pieces=integer_from(1))
def early_phase(
    network: ReLUNetwork,
    task: Task,
    tau: ArrayLike = 1.0,
    *,
    t1: ArrayLike | None = None,
    loss: SquaredError = SquaredError(),
    slots: int = 16,
    max_pieces: int = 64,
) -> EarlyPhase:
    r"""Follow a ReLU network with one hidden layer through its early phase, exactly.

    It is the gradient flow with the outputs left out of the errors, which decouples the units
    (`flowlin.theory.early_units`), followed through every change of a gate and along kinks
    (Filippov's rule, as in `fl.ExactKinks`). Between two changes it is the exponential of a matrix
    in closed form; the changes are roots of sums of exponentials, none of which is missed. No
    solver is involved, and nothing depends on the scale of the weights: for weights half as large
    everything is the same but for `overlap`, which says how long the phase lasts.

    **Arguments:**

    - `network`: a `fl.ReLUNetwork` with one hidden layer, without a bias on the readout.
    - `task`: inputs and targets.
    - `tau`: time constant.
    - `t1`: the time up to which the units are followed; None is that at which `overlap` would be
      one if all gates held.
    - `loss`: `fl.SquaredError`, mean or sum.
    - `slots`: the number of pairs of a unit that may slide at once, as in `fl.ExactKinks`.
    - `max_pieces`: the number of pieces that a unit may have, one more than its changes.

    **Returns:** an `EarlyPhase`. Works under `jit` and `vmap` (where a walk that does not get to t1
    ends before it, with `reached` below it), and can be differentiated in either mode.

    **Raises:** `ValueError` for other networks or losses, for a walk that needs more slots or
    pieces, and, with `t1` left out, for units that never grow, or are so large that their outputs
    are the targets' size at t = 0.

    Source: lead paper Sec. 5.3, with W_2(0) and the factor of time that its Eq. 11 lacks.
    """
    _require_early_network(network, task, loss)
    task = task if task.x.dtype == network.dtype else task.astype(network.dtype)
    tau = jnp.asarray(tau, network.dtype)
    flow = eqx.filter_jit(OneLayerFlow)(network, task, LinearizedLoss(loss), tau)
    end = None if t1 is None else jnp.asarray(t1, network.dtype)  # a number would be a program each
    walked, t1 = _walk_to_end(flow, end, min(slots, task.samples), max_pieces)
    found = EarlyPhase(
        *_describe_start(flow, walked.pieces),
        final_sides=walked.sides.codes,
        trouble=walked.sides.failure,
        pieces=walked.pieces,
        reached=walked.t,
        t1=t1,
        start=network,
        task=task,
        tau=tau,
        loss=loss,
    )
    if not is_traced(found):
        _require_finished_walk(found, slots, max_pieces)
    return found


def _weight_targets(task: Task) -> Array:
    """Return the targets times the samples' weights, (P, N_out)."""
    return weight_rows(task.y, task.weights)


@eqx.filter_jit
def _walk_to_end(flow: OneLayerFlow, t1: Array | None, slots: int, max_pieces: int):
    """Walk the units to t1, or to the end of the phase if that is None; return walk and end."""
    target = jnp.sum(_weight_targets(flow.task) * flow.task.y)
    end = _end_of_phase(flow, target) if t1 is None else t1
    return walk_units(flow, end, slots, max_pieces), end


def _end_of_phase(flow: OneLayerFlow, target: Array) -> Array:
    """Return the time at which outputs would reach targets if all gates held; inf if never."""
    units = units_of(flow.network.parameters)
    at_start = initial_sides(flow, flow.network.parameters, 1)
    parts = matrix_triples(drive_matrices(flow, at_start))
    s, (grows, _) = parts.s, jax.vmap(split_by_growth)(parts, *units)
    size = (s * grows**2).ravel() * flow.tau / flow.loss.factor_per_sample(flow.task.mass)
    rate = 2 * s.ravel()
    there = (size > 0) & (rate > jnp.finfo(rate.dtype).eps * jnp.max(rate))
    size, rate = jnp.where(there, size, 1.0), jnp.where(there, rate, 1.0)
    level = jnp.log(target) - jnp.log(size)
    # The sum of exponentials reaches the level before any one term does alone, and not before
    # the first one reaches an equal share of it: the root lies between the two.
    high = jnp.min(jnp.where(there, level / rate, jnp.inf))
    low = jnp.min(jnp.where(there, (level - jnp.log(len(level))) / rate, jnp.inf))

    def halve_bracket(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        over = logsumexp(jnp.where(there, rate * middle - level, -jnp.inf)) > 0
        return jnp.where(over, low, middle), jnp.where(over, middle, high)

    end = lax.fori_loop(0, 60, halve_bracket, (low, high))[1]
    # Not zero: the walk then has a first piece, from which the start is read.
    end = jnp.maximum(end, jnp.finfo(end.dtype).tiny)
    return lax.stop_gradient(jnp.where(jnp.any(there), end, jnp.inf))


def _describe_start(flow: OneLayerFlow, pieces: UnitPieces) -> tuple[Array, Array, Array, Array]:
    """Return the fields `rates`, `component`, `fate` and `first_change` of an early phase."""
    parts = jax.tree.map(lambda all_: all_[:, 0], pieces.parts)
    u, s = parts.u, parts.s
    grows, _ = jax.vmap(split_by_growth)(parts, pieces.w[:, 0], pieces.a[:, 0])
    z = u[:, :, 0] @ flow.kinks.x.T  # (H, P): preactivations along the top pair
    active = pieces.codes[:, 0] == ON
    side = jnp.where(jnp.sum(jnp.where(active, z, 0.0), axis=1) >= 0, 1.0, -1.0)
    component, z = side * grows[:, 0], side[:, None] * z
    z = jnp.where(component[:, None] >= 0, z, -z)
    rounding = 64 * jnp.finfo(z.dtype).eps * jnp.linalg.norm(flow.kinks.x, axis=1)[None]
    all_on = jnp.all(z > rounding, axis=1)
    all_off = jnp.all(z < -rounding, axis=1)
    dead = ~jnp.any(active, axis=1) & (s[:, 0] == 0)
    fate = jnp.where(dead, -1, jnp.where(all_on, 1, jnp.where(all_off, -1, 0)))
    return s, jnp.where(dead, 0.0, component), fate, pieces.start[:, 1]


def _require_early_network(network: AbstractNetwork, task: Task, loss: object) -> None:
    """Raise `ValueError` for a network or a loss that has no early phase here."""
    require_task_fit(network, task)
    if not isinstance(loss, SquaredError):
        raise ValueError(f"`loss` must be fl.SquaredError(), got {type(loss).__name__}.")
    if not isinstance(network, ReLUNetwork) or len(network.weights) != 2:
        raise ValueError(
            f"`network` is a {type(network).__name__} with {len(network.hidden)} hidden layers; "
            "the early phase is for a fl.ReLUNetwork with one."
        )
    if network.biases[1] is not None:
        raise ValueError(
            "`network` has a bias on its readout, which grows whatever the units do; leave it out "
            "(`biases=(b, None)`)."
        )


def _require_finished_walk(found: EarlyPhase, slots: int, max_pieces: int) -> None:
    """Raise `ValueError` for a walk without an end, or with too few slots or pieces."""
    if not bool(jnp.isfinite(found.t1)):
        raise ValueError("no unit of `network` grows on this `task`; pass `t1`.")
    if float(found.t1) <= jnp.finfo(found.t1.dtype).tiny:
        raise ValueError(
            "`network` is too large for an early phase: its outputs are the targets' size at "
            "t = 0. Give smaller weights, or pass `t1`."
        )
    if bool(jnp.any(found.trouble != RESOLVED)):
        raise ValueError(f"more than `slots` = {slots} pairs of a unit slide at once; raise it.")
    if bool(jnp.any(found.reached < found.t1)):
        raise ValueError(
            f"a unit has more than `max_pieces` = {max_pieces} pieces before t1 = "
            f"{float(found.t1):.6g}; raise it, or end earlier."
        )
