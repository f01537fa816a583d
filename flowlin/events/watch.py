"""Watched functions of the network, whose signs a run follows and whose roots it locates."""

import abc
from collections.abc import Callable
from typing import Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float

from flowlin._tools.arrays import Parameters, replace_fields
from flowlin.events.path import StepPath
from flowlin.measures.modes import ModeStrengths
from flowlin.networks.base import AbstractModel
from flowlin.networks.layered import forward_pass
from flowlin.networks.modules import as_module
from flowlin.networks.network_kinds import AbstractNetwork, LinearNetwork
from flowlin.record.buffer import EventBuffer
from flowlin.record.channel import Channel
from flowlin.record.event_log import EventLog
from flowlin.tasks.task import Task

Direction = Literal["up", "down"] | None
Known = dict[str, Array]  # quantities by name, see `StepPath`


class AbstractWatched(eqx.Module):
    """An array-valued function of the network whose components' signs are watched."""

    @abc.abstractmethod
    def __call__(self, network: AbstractModel) -> Array:
        """Return all components; nothing but their signs is used."""

    @abc.abstractmethod
    def degree(self, network: AbstractModel) -> int | None:
        """Return the degree as a polynomial in the parameters; None for other functions."""

    @property
    @abc.abstractmethod
    def is_slow(self) -> bool:
        """Tell whether it moves no faster than the run's own loss, which the steps resolve."""

    @property
    @abc.abstractmethod
    def level_scale(self) -> ArrayLike:
        """The size of the level that was taken off, whose rounding values near zero have."""

    @abc.abstractmethod
    def sample_along(self, network: AbstractModel, path: StepPath, times: Array) -> Array | None:
        """Return all components (n, C) along a step; None where time by time is as cheap."""

    @abc.abstractmethod
    def component(self, network: AbstractModel, k: Array) -> Array:
        """Return component k of the flattened array, continuous."""

    @abc.abstractmethod
    def function_of_time(
        self, network: AbstractModel, path: StepPath, k: Array
    ) -> Callable[[ArrayLike], Array]:
        """Return component k as a function of time, for locating its root within a step."""

    @abc.abstractmethod
    def from_known(self, known: Known) -> Array | None:
        """Return all components from what `StepPath` says is known, or None if they need more."""


class AbstractOpaque(AbstractWatched):
    """Base class of functions that are not known to be polynomials in the parameters."""

    @property
    def is_slow(self) -> bool:
        """False: nothing is known of how fast it moves."""
        return False

    def degree(self, network: AbstractModel) -> int | None:
        """Return None: it is not known to be a polynomial."""
        del network
        return None

    def sample_along(self, network: AbstractModel, path: StepPath, times: Array) -> Array | None:
        """Return None: it is evaluated time by time."""
        del network, path, times
        return None


def _evaluate_along(
    watched: AbstractWatched, network: AbstractModel, path: StepPath, k: Array
) -> Callable[[ArrayLike], Array]:
    """Return component k as a function of time, by evaluating the whole network at each time."""

    def component(t: ArrayLike) -> Array:
        parameters = path(t)
        values = watched.from_known(path.quantities_at(t, parameters))
        if values is None:
            return watched.component(network.with_parameters(parameters), k)
        return jnp.ravel(values)[k]

    return component


class Watch(eqx.Module):
    """A watched function of the network; the sign changes of its components are the events.

    `below` and `above` are the sides of the channel's component that the signs stand for. Two
    watches of one event with sides (-1, 0) and (0, 1) enclose a kink and share a channel; no two
    events do. A function that is `monotone` along a flow is not sampled inside a step: its signs at
    the ends tell all. With `touches`, a dip into the step's error that comes out on the same side
    counts as a pair of crossings. With `from_start`, not being above at t = 0 is an event there.
    """

    function: AbstractWatched
    channel: Channel
    below: int = eqx.field(static=True, default=-1)
    above: int = eqx.field(static=True, default=1)
    direction: Direction = eqx.field(static=True, default=None)
    terminate: bool = eqx.field(static=True, default=False)
    monotone: bool = eqx.field(static=True, default=False)
    touches: bool = eqx.field(static=True, default=True)
    from_start: bool = eqx.field(static=True, default=False)


def _place_names(watches: tuple[Watch, ...]) -> dict[str, str]:
    """Map each channel's name to the place that stands for it in compiled programs."""
    names = dict.fromkeys(watch.channel.name for watch in watches)
    return {name: f"#{k}" for k, name in enumerate(names)}


def watches_without_names(watches: tuple[Watch, ...]) -> tuple[Watch, ...]:
    """Replace the channels' names by places, so that other names compile no other program."""
    places = _place_names(watches)

    def rename_channel(watch: Watch) -> Watch:
        channel = replace_fields(watch.channel, name=places[watch.channel.name])
        return replace_fields(watch, channel=channel)

    return tuple(rename_channel(watch) for watch in watches)


def log_with_names(log: EventLog, watches: tuple[Watch, ...]) -> EventLog:
    """Give the channels of a log their names back, by the watches that were run without them."""
    names = {place: name for name, place in _place_names(watches).items()}
    channels = [replace_fields(c, name=names.get(c.name, c.name)) for c in log.channels]
    return replace_fields(log, channels=tuple(channels))


class LevelDifference(AbstractOpaque):
    """A function of the network minus a level.

    `quantity` is the function's name where all watches of a run that say it have the same one.
    """

    function: Callable[[AbstractModel], Array]
    level: Array
    quantity: str | None = eqx.field(static=True, default=None)

    def __call__(self, network: AbstractModel) -> Array:
        return jnp.asarray(self.function(network)) - self.level

    def from_known(self, known: Known) -> Array | None:
        """Return the quantity minus the level, if it is known."""
        return None if self.quantity not in known else known[self.quantity] - self.level

    @property
    def level_scale(self) -> ArrayLike:
        """The size of the largest level."""
        return jnp.max(jnp.abs(self.level), initial=0.0)

    def component(self, network: AbstractModel, k: Array) -> Array:
        """Return component k of all."""
        return jnp.ravel(self(network))[k]

    def function_of_time(
        self, network: AbstractModel, path: StepPath, k: Array
    ) -> Callable[[ArrayLike], Array]:
        """Evaluate the whole function time by time."""
        return _evaluate_along(self, network, path, k)


class BoundToTask(eqx.Module):
    """A user's function of network and task with the task filled in."""

    function: Callable[[AbstractModel, Task], Array]
    task: Task

    def __call__(self, network: AbstractModel) -> Array:
        return self.function(as_module(network), self.task)


MANY_SAMPLES = 1000  # in the task, from which on mode strengths count as slow despite of kinks


class ModeStrengthDifference(AbstractWatched):
    """Mode strengths minus a level, shape (K,)."""

    strengths: ModeStrengths
    task: Task
    level: Array

    def __call__(self, network: AbstractModel) -> Array:
        return self.strengths(network, self.task) - self.level

    def from_known(self, known: Known) -> Array | None:
        """Return the gaps from the network's outputs, if they are known."""
        if "outputs" not in known:
            return None
        return self.strengths.of_outputs(known["outputs"]) - self.level

    @property
    def level_scale(self) -> ArrayLike:
        """The largest level's size: weak modes are differences of what strong ones are made of."""
        return jnp.max(jnp.abs(self.level), initial=0.0)

    @property
    def is_slow(self) -> bool:
        """Tell whether one sample's kink is nothing to an average over all samples."""
        return self.task.samples >= MANY_SAMPLES

    def degree(self, network: AbstractModel) -> int | None:
        """Return a linear network's number of layers, whose product it follows; else None."""
        return len(network.weights) if isinstance(network, LinearNetwork) else None

    def sample_along(self, network: AbstractModel, path: StepPath, times: Array) -> Array | None:
        """Return the differences of a linear network, at all times in one product; else None."""
        if not isinstance(network, LinearNetwork):
            return None
        return jax.vmap(lambda t: self(network.with_parameters(path(t))))(times)

    def component(self, network: AbstractModel, k: Array) -> Array:
        """Return component k of all."""
        return jnp.ravel(self(network))[k]

    def function_of_time(
        self, network: AbstractModel, path: StepPath, k: Array
    ) -> Callable[[ArrayLike], Array]:
        """Return one mode's difference as a function of time.

        In a linear network one input and one output matter: two vectors instead of matrices, and as
        many pairs of them as there are modes that are equal to this one.
        """
        if not isinstance(network, LinearNetwork):
            return _evaluate_along(self, network, path, k)
        which, shares = (jnp.asarray(table)[k] for table in self.strengths.equal_modes)

        def mode_vectors(part: Parameters) -> Parameters:
            parameters = network.with_parameters(part).parameters
            return jax.vmap(lambda j: self.strengths.parameters_along(parameters, j))(which)

        seen = path.map_affine(mode_vectors)
        one = jnp.ones((1, 1), network.dtype)
        level = jnp.broadcast_to(self.level, self.strengths.u.shape[1:])[k]

        def one_strength(parameters: Parameters) -> Array:
            outputs, _ = forward_pass(parameters, network.bias_strength, one, network.activation)
            return outputs[0, 0]

        def level_difference(t):
            return jnp.sum(shares.astype(network.dtype) * jax.vmap(one_strength)(seen(t))) - level

        return level_difference


class Preactivations(AbstractWatched):
    """z minus a level of a hidden layer, shape (H, P), with kinks rounded off over a width."""

    task: Task
    width: ArrayLike | None
    width_end: int = eqx.field(static=True)  # level = end * width: -1, 1, or 0 without a width
    layer: int = eqx.field(static=True)

    @property
    def level(self) -> ArrayLike:
        """The level that is taken off: zero, or an end of the width."""
        return 0.0 if self.width is None else self.width_end * self.width

    def __call__(self, network: AbstractModel) -> Array:
        assert isinstance(network, AbstractNetwork)
        _, preactivations = forward_pass(
            network.parameters,
            network.bias_strength,
            self.task.x,
            network.smooth_activation(self.width),
        )
        return preactivations[self.layer].T - self.level

    @property
    def is_slow(self) -> bool:
        """False: each sample moves by itself."""
        return False

    def degree(self, network: AbstractModel) -> int | None:
        """Return 1 for the first layer; None for others, which have gates below them."""
        del network
        return None if self.layer else 1

    @property
    def level_scale(self) -> ArrayLike:
        """Zero, for its level is zero or a narrow width."""
        return 0.0

    def sample_along(self, network: AbstractModel, path: StepPath, times: Array) -> Array | None:
        """Return None: it is evaluated time by time."""
        del network, path, times
        return None

    def unit_row(self, network: AbstractModel, j: Array) -> Array:
        """Return the row (P,) of unit j, in the first layer without the other units."""
        if self.layer:
            return self(network)[j]
        return _first_layer_preactivation(network, self.task.x, j) - self.level

    def unit_over_time(
        self, network: AbstractModel, path: StepPath, j: Array
    ) -> Callable[[ArrayLike], Array]:
        """Return the row (P,) of unit j as a function of time; the first layer's is linear."""
        if self.layer:
            return lambda t: self.unit_row(network.with_parameters(path(t)), j)
        row = path.map_affine(
            lambda p: _first_layer_preactivation(network.with_parameters(p), self.task.x, j)
        )
        return lambda t: row(t) - self.level

    def from_known(self, known: Known) -> None:
        """None: a pass over the inputs is needed."""
        del known

    def component(self, network: AbstractModel, k: Array) -> Array:
        """Return one pair's preactivation."""
        samples = self.task.samples
        return self.unit_row(network, k // samples)[k % samples]

    def function_of_time(
        self, network: AbstractModel, path: StepPath, k: Array
    ) -> Callable[[ArrayLike], Array]:
        """Return one pair's preactivation in time; in the first layer by that sample alone."""
        if self.layer:
            return _evaluate_along(self, network, path, k)
        j, x = k // self.task.samples, self.task.x[k % self.task.samples]
        z = path.map_affine(lambda p: _first_layer_preactivation(network.with_parameters(p), x, j))
        return lambda t: z(t) - self.level


def _first_layer_preactivation(network: AbstractModel, x: Array, j: Array) -> Array:
    """Return unit j's preactivation for inputs (..., N_in), affine in the moving parameters."""
    assert isinstance(network, AbstractNetwork)
    biases = network.biases[0]
    bias = 0.0 if biases is None else network.bias_strength * biases[j]
    return x @ network.weights[0][j] + bias


class OrderStatistic(AbstractOpaque):
    """The (k+1)-th smallest or largest preactivation of every unit, minus a level, shape (H,)."""

    preactivations: Preactivations
    k: int = eqx.field(static=True)
    largest: bool = eqx.field(static=True)

    def __call__(self, network: AbstractModel) -> Array:
        # Its sign, by counting: sorting all units would cost several times the forward pass.
        return self.excess_count(self.preactivations(network))

    @property
    def level_scale(self) -> ArrayLike:
        """The size of the preactivations' level."""
        return self.preactivations.level_scale

    def excess_count(self, preactivations: Array) -> Array:
        """Return a number per unit with the sign of its statistic, from preactivations (H, P)."""
        return (
            jnp.sum(preactivations > 0, axis=1).astype(preactivations.dtype)
            - self.count_threshold
            - 0.5
        )

    @property
    def count_threshold(self) -> int:
        """The count of positive preactivations of a unit above which its statistic is positive."""
        samples = self.preactivations.task.samples
        return self.k if self.largest else samples - self.k - 1

    def from_known(self, known: Known) -> None:
        """None: a pass over the inputs is needed."""
        del known

    def component(self, network: AbstractModel, k: Array) -> Array:
        """Return one unit's order statistic."""
        return self._select_statistic(self.preactivations.unit_row(network, k))

    def function_of_time(
        self, network: AbstractModel, path: StepPath, k: Array
    ) -> Callable[[ArrayLike], Array]:
        """Return one unit's order statistic in time; its samples are mapped once for all times."""
        z = self.preactivations.unit_over_time(network, path, k)
        return lambda t: self._select_statistic(z(t))

    def _select_statistic(self, z: Array) -> Array:
        """Select the order statistic from a unit's preactivations (P,)."""
        sign = 1.0 if self.largest else -1.0
        return sign * lax.top_k(sign * z, self.k + 1)[0][-1]


# ---- All watched values of a network, end to end in one array.


Selected = TypeVar("Selected")


class Observer(eqx.Module):
    """All watched values of a network's parameters, end to end: shape (C,)."""

    watches: tuple[Watch, ...]
    network: AbstractModel

    def __call__(self, parameters: Parameters) -> Float[Array, " C"]:
        """Return the values (C,) at these parameters."""
        return self.flat_values(range(len(self.watches)), parameters)

    def flat_values(
        self, which: range | list[int], parameters: Parameters, known: Known | None = None
    ) -> Float[Array, " c"]:
        """Return the values of some of the watches, end to end; `known` as for `values`."""
        none = jnp.zeros(0, self.network.dtype)
        return jnp.concatenate([none, *self.watch_values(which, parameters, known)])

    def watch_values(
        self, which: range | list[int], parameters: Parameters, known: Known | None = None
    ) -> list[Array]:
        """Return the values of some of the watches, from `known` quantities where these suffice.

        A quantity that several watches compare with their own levels, as several `LossBelow` do, is
        computed once: on many samples it costs as much as half an evaluation of the gradient, and
        XLA does not merge their loops over chunks.
        """
        network = self.network.with_parameters(parameters)
        known = dict(known or {})
        values = []
        for i in which:
            function = self.watches[i].function
            if isinstance(function, LevelDifference) and function.quantity not in {None, *known}:
                known[str(function.quantity)] = jnp.asarray(function.function(network))
            value = function.from_known(known)
            value = function(network) if value is None else value
            values.append(jnp.ravel(value).astype(network.dtype))
        return values

    @property
    def component_starts(self) -> list[int]:
        """The number of each watch's first component, and the number of all components last."""
        return np.cumsum([0] + [watch.channel.size for watch in self.watches]).tolist()

    def component_numbers(self, which: list[int]) -> np.ndarray:
        """Return the numbers of the components of some of the watches."""
        starts = self.component_starts
        return np.concatenate([np.arange(0), *(np.arange(starts[i], starts[i + 1]) for i in which)])

    def select_watch(
        self, k: Array, function: Callable[[AbstractWatched, Array], Selected]
    ) -> Selected:
        """Apply `found` to the watched function of value k, and to that function's component."""
        starts = self.component_starts
        which = jnp.searchsorted(jnp.asarray(starts[1:], jnp.result_type(k)), k, side="right")
        branches = [
            lambda local, watch=watch, start=start: function(watch.function, local - start)
            for watch, start in zip(self.watches, starts[:-1], strict=True)
        ]
        return lax.switch(which, branches, k)

    def per_component(self, value: Callable[[Watch], bool]) -> Bool[np.ndarray, " C"]:
        """Repeat a property of each watch for all its components."""
        each = [np.full(w.channel.size, value(w)) for w in self.watches]
        return np.concatenate([np.zeros(0, bool), *each])

    @property
    def direction_flags(self) -> tuple[Array, Array]:
        """Two flags per component: whether its rising, and whether its falling, counts."""
        up = self.per_component(lambda watch: watch.direction != "down")
        return jnp.asarray(up), jnp.asarray(
            self.per_component(lambda watch: watch.direction != "up")
        )

    @property
    def ends_run(self) -> Bool[Array, " C"]:
        """A flag per component: whether its event ends the run."""
        return jnp.asarray(self.per_component(lambda watch: watch.terminate))

    def log_initial_events(
        self, buffer: EventBuffer, values: Float[Array, " C"]
    ) -> tuple[EventBuffer, Array]:
        """Log an event at t = 0 for every component that is watched from there and not above.

        **Returns:** the log, and when such an event ends the run: at zero, or at inf.
        """
        from_start = np.asarray(self.per_component(lambda watch: watch.from_start), bool)
        met = from_start & (values <= 0)
        above = jnp.ones(met.shape, jnp.int8)
        buffer = buffer.append(0.0, 0.0, jnp.arange(met.size), above, jnp.where(met, -above, above))
        ends = jnp.any(met & self.ends_run)
        return buffer, jnp.where(ends, 0.0, jnp.inf).astype(buffer.time.dtype)
