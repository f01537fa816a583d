"""Events: functions of the network whose level crossings are located during a run."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractClassVar, AbstractVar
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    checked,
    describe_value,
    finite,
    finite_array,
    function_of,
    instance_of,
    sequence_of,
)
from flowlin._tools.arrays import require_finite
from flowlin._tools.numerics import jit_by_array
from flowlin._tools.printing import Summary, format_count, format_number
from flowlin._tools.printing import print_by as printed
from flowlin._tools.user_functions import shapes_of_result
from flowlin.events.watch import (
    BoundToTask,
    Direction,
    LevelDifference,
    ModeStrengthDifference,
    OrderStatistic,
    Preactivations,
    Watch,
)
from flowlin.measures.modes import Modes, ModeStrengths
from flowlin.networks.base import AbstractModel, trainable_part
from flowlin.networks.kinds import AbstractNetwork
from flowlin.record.event_log import Channel
from flowlin.record.linearization import unit_channel
from flowlin.tasks.task import Task
from flowlin.training.objective import AbstractObjective, tree_norm
from flowlin.training.problem import Problem


def mode_hits_summary(event: Any) -> Summary:
    """Summarise a `ModeHits`: its number of modes and its c, then its other arguments."""
    count, c = event.modes.s.shape[-1], format_number(event.modes.bias_strength)
    return event_summary(event, f"{format_count(count, 'mode')}, c = {c}")


def event_summary(event: Any, about: str) -> Summary:
    """Summarise an event: what it is `of`, then its other arguments but those at their defaults."""
    rows = [("of", about)]
    for field in dataclasses.fields(event)[1:]:
        value = getattr(event, field.name)
        if value is not field.default:
            plain = value is None or isinstance(value, (bool, str))
            rows.append(
                (field.name, f"{field.name}={repr(value) if plain else format_number(value)}")
            )
    return Summary(type(event).__name__, rows, inline=True)


class AbstractKinkTraits(eqx.Module):
    """Base class of the policies for kinks, with what events have to know of one.

    - `width`: a pair counts as off for z < -width, on for z > width, and at its kink in between;
      None where kinks are as they are.
    - `walks`: whether steps end at switches, which the solver then logs itself.
    """

    width: AbstractVar[ArrayLike | None]
    walks: AbstractClassVar[bool]


class AbstractEvent(eqx.Module):
    """Base class of the events that users pass to a run."""

    @abc.abstractmethod
    def watches(
        self, problem: Problem, objective: AbstractObjective, kinks: AbstractKinkTraits
    ) -> list[Watch]:
        """Return what a run has to watch for this event."""


def _level_watch(
    function: Callable[[AbstractModel], Array],
    shape: tuple[int, ...],
    level: ArrayLike,
    dtype: DTypeLike,
    *,
    name: str,
    direction: Direction,
    terminate: bool,
    monotone: bool = False,
    from_start: bool = False,
    quantity: str | None = None,
) -> Watch:
    """Return a watch of a function with values of this shape against a level; see `Watch`."""
    level = jnp.asarray(level, dtype)
    return Watch(
        LevelDifference(function, level, quantity),
        Channel(name, np.broadcast_shapes(shape, level.shape)),
        direction=direction,
        terminate=terminate,
        monotone=monotone,
        from_start=from_start,
    )


def _observable_shape(what: str, function: Any, network: AbstractModel, level: ArrayLike) -> Any:
    """Return shape and dtype of an observable; `ValueError` if the level does not fit to it."""
    found = shapes_of_result(what, function, network)
    if isinstance(found, dict) or (len(jax.tree.leaves(found)) > 1 and not isinstance(found, list)):
        raise ValueError(f"{what} must return one array, and returns {describe_value(found)}.")
    raw = jax.eval_shape(lambda n: jnp.asarray(function(n)), network)
    try:
        shape = np.broadcast_shapes(raw.shape, np.shape(level))
    except ValueError:
        raise ValueError(
            f"{what} returns shape {raw.shape}, which `level` of shape {np.shape(level)} does not "
            "go with; give one level, or one per component."
        ) from None
    if 0 in np.shape(level):
        raise ValueError(f"`level` is empty: its shape is {np.shape(level)}; give one number.")
    if 0 in shape:
        raise ValueError(
            f"{what} returns an empty array, of shape {raw.shape}; return one number or more."
        )
    return raw


@checked(observable=function_of("network", "task"))
class Crossing(AbstractEvent):
    """Every time any component of an observable crosses a level.

    All components, any number of times, located on the solver's dense output to its own
    accuracy (with a non-adaptive solver or a discrete run, to the step). A component that is
    exactly at its level counts as below it; one that touches it within the step's error and
    turns back is logged as two crossings at that time, with the uncertainty that this has.

    Each step is searched for all roots, hundreds of them if need be: the observable is sampled at
    Chebyshev points, and where these do not certify that it has no root, or one, the step is
    halved, again and again (see `flowlin.events.crossings`). Kinks, as of |a - 0.7|, and jumps are
    found as well. What swings so fast that 4096 parts of a step do not resolve it, and what is NaN,
    which has no side, is reported by `flow.events.unresolved`, by
    `flow.stats["unresolved_crossings"]`, and by a `fl.CrossingsWarning`. Under `jit`, `vmap` and
    derivatives all that is the same but for the warning. A feature that is narrower than the
    distance of five points at which everything else is smooth stays unseen, since a function that
    can only be sampled has no other certificate.

    **Arguments:**

    - `observable`: function of (network, task) that returns a real scalar or array.
    - `level`: scalar, or an array that broadcasts against the observable.
    - `direction`: None for both, `"up"` or `"down"`.
    - `terminate`: whether the first such crossing ends the run, at the crossing.
    - `name`: what the log calls it; no two events of a run have the same name.

    **Raises:** `ValueError` for another direction, or a level that is not finite; in a run for a
    name that another of its events has.
    """

    observable: Callable[[Any, Task], Array]
    level: ArrayLike = 0.0
    direction: Direction = eqx.field(static=True, default=None)
    terminate: bool = eqx.field(static=True, default=False)
    name: str = eqx.field(static=True, default="crossing")

    def watches(self, problem, objective, kinks) -> list[Watch]:
        """Return one watch: the observable minus the level."""
        del objective, kinks
        network, task = problem.network, problem.task
        function = BoundToTask(self.observable, task)
        raw = _observable_shape(
            f"`observable` of event {self.name!r}", function, network, self.level
        )
        if not jnp.issubdtype(raw.dtype, jnp.floating):
            raise ValueError(
                f"`observable` of event {self.name!r} returns {raw.dtype}; return a floating-point "
                "array whose components cross the level continuously."
            )
        return [
            _level_watch(
                function,
                raw.shape,
                self.level,
                network.dtype,
                name=self.name,
                direction=self.direction,
                terminate=self.terminate,
            )
        ]


@checked(rho=finite_array, share=finite_array)
@printed(mode_hits_summary)
class ModeHits(AbstractEvent):
    """Hitting times: mode strengths a_alpha reaching a level (lead paper Sec. 5.4).

    `flow.events.first("mode")` are the first times, (K,). Equal modes (`modes.groups`) have one,
    since their strength is the group's. `flow.events.promise` says how surely all are found. Of a
    network that is not linear, on 1,000 samples and more, a step is searched only where a strength
    comes nearer to its level than twice its change in this step, or at the speed of the step
    before; each sample of a strength there is a pass over all samples of the task.

    Hits of several levels in one run are told apart by their names:
    `[ModeHits(modes, share=q, name=f"{q:.0%}") for q in (0.1, 0.9)]`.

    **Arguments:**

    - `modes`: from `theory.modes(task, network)`; component k of the events is mode k.
    - `rho`: level, or one per mode (K,).
    - `direction`, `terminate`, `name`: as for `Crossing`.
    - `check`: False where modes of another c or other data than the run's are meant.
    - `share`: in place of `rho`, the share of each mode's full strength s/d, as in
      `ModeHits(modes, share=0.5)`; one, or one per mode (K,). Modes that the data do not drive have
      none, and no hits. Full strength itself is approached for ever: hits of it are rounding, and
      their `uncertainty` is inf.

    **Raises:** `ValueError` for both `rho` and `share` or neither, and for one of another shape or
    not finite; in a run for modes of another c or other data, unless `check=False`.
    """

    modes: Modes
    rho: ArrayLike | None = None
    direction: Direction = eqx.field(static=True, default=None)
    terminate: bool = eqx.field(static=True, default=False)
    name: str = eqx.field(static=True, default="mode")
    check: bool = eqx.field(static=True, default=True)
    share: ArrayLike | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        if (self.rho is None) == (self.share is None):
            given = "neither" if self.rho is None else "both"
            raise ValueError(f"`rho` or `share` must be given, one of them, got {given}.")

    def watches(self, problem, objective, kinks) -> list[Watch]:
        """Return one watch: the mode strengths minus their levels."""
        del objective, kinks
        network, task = problem.network, problem.task
        name = "rho" if self.share is None else "share"
        level = self._per_mode(name, network.dtype)
        strengths = self.modes.observable(network, task, check=self.check)
        if self.share is not None:
            level, strengths = _full_strength_levels(self.modes, level, strengths)
        channel = Channel(self.name, self.modes.s.shape)
        function = ModeStrengthDifference(strengths, task, level)
        return [Watch(function, channel, direction=self.direction, terminate=self.terminate)]

    def _per_mode(self, name: str, dtype: DTypeLike) -> Array:
        """Return the argument of this name, one number or one per mode (K,), as an array."""
        value, shape = jnp.asarray(getattr(self, name), dtype), self.modes.s.shape
        require_finite(name, value)
        if value.shape not in ((), (1,), shape):
            raise ValueError(
                f"`{name}` must be a number or have shape {shape}, one per mode, got {value.shape}."
            )
        return value


@jit_by_array
def _full_strength_levels(
    modes: Modes, share: Array, strengths: ModeStrengths
) -> tuple[Array, ModeStrengths]:
    """Return levels (K,) at a share of each mode's full strength, and the strengths to compare."""
    full = modes.full_strength.astype(share.dtype)
    # Modes without a strength to reach stay at zero, below the others' levels.
    level = jnp.where(full > 0, share * full, jnp.max(jnp.abs(share * full)))
    seen = jnp.where((full > 0)[None], strengths.u, 0.0)
    return level, eqx.tree_at(lambda s: s.u, strengths, seen)


@checked(level=finite)
class LossBelow(AbstractEvent):
    """The run's own loss falling to a level; with weight decay that on the data alone.

    A loss that is there at t = 0 is an event at t = 0 (its `old` equals its `new`), and ends the
    run there if it terminates.

    **Arguments:** `level` of the loss, `terminate` and `name` as for `Crossing`; for several levels
    in one run, give each a name.
    """

    level: ArrayLike
    terminate: bool = eqx.field(static=True, default=False)
    name: str = eqx.field(static=True, default="loss")

    def watches(self, problem, objective, kinks) -> list[Watch]:
        """Return one watch: the run's loss minus the level, falling."""
        del kinks
        # The loss of a gradient flow never rises, so it is monotone; a modified flow's may,
        # and so may the loss on the data where weights decay.
        return [_downward_watch(self, objective.loss_value, problem, "loss", objective.is_monotone)]


def _downward_watch(
    event: "LossBelow | GradientBelow",
    function: Callable[[AbstractModel], Array],
    problem: Problem,
    quantity: str,
    monotone: bool = False,
) -> Watch:
    """Return a watch of a number that falls to the event's level, or begins below it."""
    return _level_watch(
        function,
        (),
        event.level,
        problem.network.dtype,
        name=event.name,
        direction="down",
        terminate=event.terminate,
        monotone=monotone,
        from_start=True,
        quantity=quantity,
    )


class _GradientNorm(eqx.Module):
    """Euclidean norm of the gradient by the parameters that move, as a function of the network."""

    objective: AbstractObjective
    trainable_flags: tuple[bool, ...] | None = eqx.field(static=True)

    def __call__(self, network: AbstractModel) -> Array:
        return tree_norm(trainable_part(self.objective.gradient(network), self.trainable_flags))


@checked(level=finite)
class GradientBelow(AbstractEvent):
    """The gradient's norm falling to a level: the run comes to rest, at a minimum or at a saddle.

    The Euclidean norm of the gradient of what is descended, weight decay included, by all numbers
    that move. A gradient that is so small at t = 0 is an event at t = 0, and ends the run there if
    it terminates; so does a run from a saddle point. Every step and every location takes a gradient
    more. A plateau can be as flat as the end: a level below its gradient tells the two apart. The
    gradient of a ReLU network jumps at kinks, over a level too.

    The steps' errors leave a gradient of their own, of about `rtol` times the weights times the
    curvature. When a level as low as that is reached is not determined, and its `uncertainty` is
    inf; take a smaller `rtol` or a higher level.

    **Arguments:** `level` of the norm, `terminate` and `name` as for `Crossing`; for several levels
    in one run, give each a name. With `terminate=True` a run needs no other end:
    `fl.gradient_flow(network, task, None, events=fl.GradientBelow(1e-4, terminate=True))`.
    """

    level: ArrayLike
    terminate: bool = eqx.field(static=True, default=False)
    name: str = eqx.field(static=True, default="gradient")

    def watches(self, problem, objective, kinks) -> list[Watch]:
        """Return one watch: the gradient's norm minus the level, falling."""
        del kinks
        return [
            _downward_watch(
                self, _GradientNorm(objective, problem.trained), problem, "gradient norm"
            )
        ]


def _kink_levels(kinks: AbstractKinkTraits) -> list[tuple[int, int, int]]:
    """Return (end of the width, side below, side above): one level at a bare kink, else two."""
    return [(0, -1, 1)] if kinks.width is None else [(-1, -1, 0), (1, 0, 1)]


class GateSwitches(AbstractEvent):
    """Every gate's every change; index (layer, unit, sample), sides -1 off, 0 at kink, +1 on.

    Runs of ReLU networks record these by themselves where there are few enough pairs.
    """

    def watches(self, problem, objective, kinks) -> list[Watch]:
        """Return one watch per layer and level of the preactivations."""
        del objective
        network, task = problem.network, problem.task
        return [
            Watch(
                Preactivations(task, kinks.width, end, layer),
                Channel("gate", (units, task.samples), (layer,)),
                below,
                above,
                touches=False,
            )
            for layer, units in enumerate(network.hidden)
            for end, below, above in _kink_levels(kinks)
        ]


@checked
class UnitSwitches(AbstractEvent):
    """Units becoming and ceasing to be linear, for tasks too large to log every gate.

    A unit is always on with quantile q when it is on for at least a share 1 - q of the samples:
    when its (floor(qP) + 1)-th smallest preactivation is positive. Always off likewise, with the
    largest. These order statistics are watched, H components instead of P x H. Events are named
    `"always_on"` and `"always_off"` with index (layer, unit); `flow.linearization(quantile)`
    reads them.

    **Arguments:**

    - `quantile`: q in [0, 0.5); 0 is the lead paper's definition.
    - `window`: for full-batch descents: count units over windows of so many steps, in which pairs
      that flicker are taken to slide, for `flow.linearization(quantile, window=window)`; see
      there. The window shall be long against 1/g for the shares g of interest, and short as a
      time: with 3 / sqrt(learning_rate) steps both errors vanish with the rate.

    **Raises:** `ValueError` for another quantile or window; `gradient_flow` and
    `stochastic_gradient_descent` raise it for any window.
    """

    quantile: float = eqx.field(static=True, default=0.0)
    window: int | None = eqx.field(static=True, default=None)

    def watches(self, problem, objective, kinks) -> list[Watch]:
        """Return one watch per layer, level and end of the order; none where all gates are logged.

        **Raises:** `ValueError` for a model whose hidden units are not known.
        """
        del objective
        network, task = problem.network, problem.task
        if self.window is not None:
            raise ValueError(
                f"`events` holds UnitSwitches(window={self.window}), which is for full-batch "
                "descents: a flow's log knows what slides, and mini-batches are not looked at "
                "after every step; leave `window` out."
            )
        about, why = network.kinks_and_reason
        if not isinstance(network, AbstractNetwork):
            why = why if about == "unknown" else f"a {network.kind} has no gates of their own"
            raise ValueError(
                f"`events` holds {type(self).__name__}, which watches hidden units, and {why}; "
                "watch a function of it by fl.Crossing."
            )
        if kinks.walks:
            return []
        k = math.floor(self.quantile * task.samples)
        return [
            Watch(
                OrderStatistic(Preactivations(task, kinks.width, end, layer), k, largest),
                Channel(name, (units,), (layer,)),
                below,
                above,
                touches=False,
            )
            for layer, units in enumerate(network.hidden)
            for name, largest in (
                (unit_channel("always_on", self.quantile), False),
                (unit_channel("always_off", self.quantile), True),
            )
            for end, below, above in _kink_levels(kinks)
        ]


# Names of what a run logs without being asked, which no event may have.
RESERVED_NAMES = {"gate": "a run's gates", "branch": "a run's branches"}

_event = instance_of(AbstractEvent, "an event", "wrap a function as fl.Crossing(function)")
CHECKS_BY_NAME["events"] = sequence_of(_event, "a sequence of events")


def user_watches(
    events: Sequence[AbstractEvent],
    problem: Problem,
    objective: AbstractObjective,
    kinks: AbstractKinkTraits,
) -> list[Watch]:
    """Return what a run watches for the user's events.

    **Raises:** `ValueError` for two events of one name.
    """
    found: list[Watch] = []
    owners = dict(RESERVED_NAMES)
    for event in events:
        watches = event.watches(problem, objective, kinks)
        if not isinstance(event, GateSwitches):
            _take_names(owners, event, {watch.channel.name for watch in watches})
        found += watches
    return found


def _take_names(owners: dict[str, str], event: AbstractEvent, names: set[str]) -> None:
    """Enter an event as the owner of names; `ValueError` for a name that another event owns."""
    kind = type(event).__name__
    for name in sorted(names & owners.keys()):
        remedy = "leave one out"
        if hasattr(event, "name"):
            remedy = f'give each a name of its own, as in {kind}(..., name="{name} 2")'
        raise ValueError(
            f"`events`: two are named {name!r}, {owners[name]} and {kind}, and the log could not "
            f"tell them apart; {remedy}."
        )
    owners.update(dict.fromkeys(names, kind))
