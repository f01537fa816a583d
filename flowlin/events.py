"""Events: functions of the network whose level crossings are located during a run."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from flowlin._arrays import require_finite
from flowlin.eventlog import Channel
from flowlin.field import AbstractObjective
from flowlin.kinks import MANY_PAIRS, AbstractKinks, ExactKinks
from flowlin.network import AbstractNetwork, ReLUNetwork, forward
from flowlin.task import Task
from flowlin.theory.modes import Modes

Direction = Literal["up", "down"] | None


class AbstractWatched(eqx.Module):
    """An array-valued function of the network whose components' signs are watched."""

    def __call__(self, network: AbstractNetwork) -> Array:
        """All components; nothing but their signs is used."""
        raise NotImplementedError

    def component(self, network: AbstractNetwork, k: Array) -> Array:
        """Component k of the flattened array, continuous, for locating its root.

        Overridden where one costs less than all.
        """
        return jnp.ravel(self(network))[k]


class Watch(eqx.Module):
    """An array-valued function of the network; its components' sign changes are the events.

    `below` and `above` are the sides of the channel's component that the signs stand for. Two
    watches with sides (-1, 0) and (0, 1) enclose a kink and share a channel. What is `monotone`
    along a flow needs no look inside a step: its sign at the step's ends tells all.
    """

    function: AbstractWatched
    channel: Channel
    below: int = eqx.field(static=True, default=-1)
    above: int = eqx.field(static=True, default=1)
    direction: Direction = eqx.field(static=True, default=None)
    terminate: bool = eqx.field(static=True, default=False)
    monotone: bool = eqx.field(static=True, default=False)


class AbstractEvent(eqx.Module):
    """Base class of the events that users pass to a run."""

    def watches(
        self,
        network: AbstractNetwork,
        task: Task,
        objective: AbstractObjective,
        kinks: AbstractKinks,
    ) -> list[Watch]:
        """What a run has to watch for this event."""
        raise NotImplementedError


class _Minus(AbstractWatched):
    """A function of the network minus a level."""

    function: Callable[[AbstractNetwork], Array]
    level: Array

    def __call__(self, network: AbstractNetwork) -> Array:
        return jnp.asarray(self.function(network)) - self.level


class _OnTask(eqx.Module):
    """A function of network and task with the task filled in."""

    function: Callable[[AbstractNetwork, Task], Array]
    task: Task

    def __call__(self, network: AbstractNetwork) -> Array:
        return self.function(network, self.task)


def _watch(function, shape, level, network, name, direction, terminate, monotone=False) -> Watch:
    """Watch a function with values of a shape against a level."""
    level = jnp.asarray(level, network.dtype)
    channel = Channel(name, np.broadcast_shapes(shape, level.shape))
    function = _Minus(function, level)
    return Watch(function, channel, direction=direction, terminate=terminate, monotone=monotone)


class Crossing(AbstractEvent):
    """Every time any component of an observable crosses a level.

    All components, any number of times, located on the solver's dense output to its own
    accuracy (with a non-adaptive solver or a discrete run, to the step). A component that is
    exactly at its level counts as below it.

    **Arguments:**

    - `observable`: function of (network, task) that returns a real scalar or array.
    - `level`: scalar, or an array that broadcasts against the observable.
    - `direction`: None for both, `"up"` or `"down"`.
    - `terminate`: whether the first such crossing ends the run, at the crossing.
    - `name`: what the log calls it.

    **Raises:** `ValueError` for another direction, or a level that is not finite.
    """

    observable: Callable[[AbstractNetwork, Task], Array]
    level: Any = 0.0
    direction: Direction = eqx.field(static=True, default=None)
    terminate: bool = eqx.field(static=True, default=False)
    name: str = eqx.field(static=True, default="crossing")

    def __check_init__(self):
        if self.direction not in (None, "up", "down"):
            raise ValueError(f'`direction` must be None, "up" or "down", got {self.direction!r}.')
        require_finite("level", jnp.asarray(self.level))

    def watches(self, network, task, objective, kinks) -> list[Watch]:
        """One watch: the observable minus the level."""
        del objective, kinks
        function = _OnTask(self.observable, task)
        raw = jax.eval_shape(lambda n: jnp.asarray(function(n)), network)
        if not jnp.issubdtype(raw.dtype, jnp.floating):
            raise ValueError(
                f"`observable` of event {self.name!r} returns {raw.dtype}; return a floating-point "
                "array whose components cross the level continuously."
            )
        how = self.name, self.direction, self.terminate
        return [_watch(function, raw.shape, self.level, network, *how)]


class ModeHits(AbstractEvent):
    """Hitting times: mode strengths a_alpha reaching rho (lead paper Sec. 5.4).

    **Arguments:**

    - `modes`: from `theory.modes(task, bias_strength)`; component k of the events is mode k.
    - `rho`: level, or one per mode (K,). A share of each mode's full strength is
      `rho=0.5 * modes.full_strength`.
    - `direction`, `terminate`, `name`: as for `Crossing`.
    """

    modes: Modes
    rho: Any
    direction: Direction = eqx.field(static=True, default=None)
    terminate: bool = eqx.field(static=True, default=False)
    name: str = eqx.field(static=True, default="mode")

    def watches(self, network, task, objective, kinks) -> list[Watch]:
        """One watch: the mode strengths minus rho."""
        del objective, kinks
        require_finite("rho", jnp.asarray(self.rho))
        function = _OnTask(self.modes.observable(network, task), task)
        how = self.name, self.direction, self.terminate
        return [_watch(function, self.modes.s.shape, self.rho, network, *how)]


class LossBelow(AbstractEvent):
    """The run's own loss falling to a level.

    **Arguments:** `level` of the loss, `terminate` and `name` as for `Crossing`.
    """

    level: Any
    terminate: bool = eqx.field(static=True, default=False)
    name: str = eqx.field(static=True, default="loss")

    def watches(self, network, task, objective, kinks) -> list[Watch]:
        """One watch: the run's loss minus the level, falling."""
        del task, kinks
        # The loss of a gradient flow never rises, so it is monotone; a modified flow's may.
        how = self.name, "down", self.terminate, objective.falls
        return [_watch(objective.value, (), self.level, network, *how)]


class _Preactivations(AbstractWatched):
    """z - level of one hidden layer, shape (H, P), as the run's activation makes it."""

    task: Task
    kinks: AbstractKinks
    level: float = eqx.field(static=True)
    layer: int = eqx.field(static=True)

    def __call__(self, network: AbstractNetwork) -> Array:
        _, preactivations = forward(
            network.parameters, network.bias_strength, self.task.x, self.kinks.activation(network)
        )
        return preactivations[self.layer].T - self.level

    def unit(self, network: AbstractNetwork, j: Array) -> Array:
        """The row (P,) of unit j; in the first layer without the other units."""
        if self.layer:
            return self(network)[j]
        weights, biases, x = network.weights[0][j], network.biases[0], self.task.x
        bias = 0.0 if biases is None else network.bias_strength * biases[j]
        return x @ weights + bias - self.level

    def component(self, network: AbstractNetwork, k: Array) -> Array:
        """One pair's preactivation."""
        samples = self.task.samples
        return self.unit(network, k // samples)[k % samples]


class _OrderStatistic(AbstractWatched):
    """The (k+1)-th smallest or largest preactivation of every unit, minus a level, shape (H,)."""

    preactivations: _Preactivations
    k: int = eqx.field(static=True)
    largest: bool = eqx.field(static=True)

    def __call__(self, network: AbstractNetwork) -> Array:
        # Its sign, by counting: sorting all units would cost several times the forward pass.
        above = jnp.sum(self.preactivations(network) > 0, axis=1).astype(network.dtype)
        samples = self.preactivations.task.samples
        return above - (self.k if self.largest else samples - self.k - 1) - 0.5

    def component(self, network: AbstractNetwork, k: Array) -> Array:
        """One unit's order statistic."""
        sign = 1.0 if self.largest else -1.0
        z = sign * self.preactivations.unit(network, k)
        return sign * lax.top_k(z, self.k + 1)[0][-1]


def _levels(kinks: AbstractKinks) -> list[tuple[float, int, int]]:
    """(level, side below, side above): one level at a bare kink, two around a smoothed one."""
    w = kinks.width
    return [(-w, -1, 0), (w, 0, 1)] if w else [(0.0, -1, 1)]


class GateSwitches(AbstractEvent):
    """Every gate's every change; index (layer, unit, sample), sides -1 off, 0 at kink, +1 on.

    Runs of ReLU networks record these by themselves where there are few enough pairs.
    """

    def watches(self, network, task, objective, kinks) -> list[Watch]:
        """One watch per layer and level of the preactivations."""
        del objective
        return [
            Watch(
                _Preactivations(task, kinks, level, layer),
                Channel("gate", (width, task.samples), (layer,)),
                below,
                above,
            )
            for layer, width in enumerate(network.hidden)
            for level, below, above in _levels(kinks)
        ]


class UnitSwitches(AbstractEvent):
    """Units becoming and ceasing to be linear, for tasks too large to log every gate.

    A unit is always on with quantile q when it is on for at least a share 1 - q of the samples:
    when its (floor(qP) + 1)-th smallest preactivation is positive. Always off likewise, with the
    largest. These order statistics are watched, H components instead of P x H. Events are named
    `"always_on"` and `"always_off"` with index (layer, unit); `flow.linearization(quantile)`
    reads them.

    **Arguments:** `quantile` q in [0, 0.5); 0 is the lead paper's definition.

    **Raises:** `ValueError` for another quantile.
    """

    quantile: float = eqx.field(static=True, default=0.0)

    def __check_init__(self):
        require_quantile(self.quantile)

    def watches(self, network, task, objective, kinks) -> list[Watch]:
        """One watch per layer, level and end of the order; none where all gates are logged."""
        del objective
        if isinstance(kinks, ExactKinks):
            return []
        k = math.floor(self.quantile * task.samples)
        return [
            Watch(
                _OrderStatistic(_Preactivations(task, kinks, level, layer), k, largest),
                Channel(name, (width,), (layer,)),
                below,
                above,
            )
            for layer, width in enumerate(network.hidden)
            for name, largest in (
                (unit_channel("always_on", self.quantile), False),
                (unit_channel("always_off", self.quantile), True),
            )
            for level, below, above in _levels(kinks)
        ]


def unit_channel(name: str, quantile: float) -> str:
    """Channel name of unit switches, which tells quantiles apart."""
    return name if quantile == 0 else f"{name}({quantile:g})"


def require_quantile(quantile: float) -> None:
    """Raise `ValueError` unless the quantile lies in [0, 0.5)."""
    if not 0 <= quantile < 0.5:
        raise ValueError(f"`quantile` must lie in [0, 0.5), got {quantile}.")


def user_watches(
    events: Sequence[AbstractEvent],
    network: AbstractNetwork,
    task: Task,
    objective: AbstractObjective,
    kinks: AbstractKinks,
) -> list[Watch]:
    """What a run watches for the user's events.

    **Raises:** `ValueError` for something that is no event.
    """
    for event in events:
        if not isinstance(event, AbstractEvent):
            raise ValueError(f"`events` holds {event!r}; wrap a function as fl.Crossing(function).")
    return [w for event in events for w in event.watches(network, task, objective, kinks)]


def logs_gates(
    network: AbstractNetwork, task: Task, events: Sequence[AbstractEvent], kinks: AbstractKinks
) -> bool:
    """Whether a run watches every gate: a ReLU network with few pairs, unless units are asked for.

    An exact walk logs its gates itself.
    """
    few = sum(network.hidden) * task.samples <= MANY_PAIRS
    units = any(isinstance(event, UnitSwitches) for event in events)
    watched = isinstance(network, ReLUNetwork) and not isinstance(kinks, ExactKinks)
    return watched and few and not units
