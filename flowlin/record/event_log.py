"""The log of everything that crossed its level during a run."""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Float, Int, ScalarLike

from flowlin._tools.arguments import argument_error, checked, time_or_inf
from flowlin._tools.arrays import DataFrame, data_frame, is_traced
from flowlin._tools.files import saveable
from flowlin._tools.moved import moved_attributes
from flowlin._tools.printing import print_by
from flowlin._tools.warn import warn_user
from flowlin.networks.base import UnitPlace, number_of_layer
from flowlin.record.branch_reason import REASONS
from flowlin.record.channel import Channel
from flowlin.record.event_log_summary import event_log_summary, mask_of_determined
from flowlin.record.touches import mask_of_touches

# Of a table of events.
EVENT_COLUMNS = ("time", "uncertainty", "name", "index", "old", "new", "promise", "reason")


class CrossingsWarning(UserWarning):
    """Not every crossing of an event is known to be in the log."""


@saveable()
class Unresolved(eqx.Module):
    """Stretches of time in which it is not certain that all crossings of a component were found.

    It swings too fast there, or it is NaN.

    - `start`, `end`: (U,), the first ones' times; slots beyond `count` hold inf.
    - `component`: (U,), as in the log.
    - `count`: number of stretches, which may exceed U.
    """

    start: Float[Array, " U"]
    end: Float[Array, " U"]
    component: Int[Array, " U"]
    count: Int[Array, ""]

    @staticmethod
    def empty(dtype: DTypeLike, room: int = 16) -> "Unresolved":
        """Make a list of no stretches, with room for some."""
        far = jnp.full(room, jnp.inf, dtype)
        return Unresolved(far, far, jnp.zeros(room, jnp.int32), jnp.zeros((), jnp.int32))

    def shift_components(self, first: int) -> "Unresolved":
        """Return the stretches with components counted on from `first`."""
        return eqx.tree_at(lambda u: u.component, self, self.component + first)

    def append(
        self, wanted: Array, start: ArrayLike, end: ArrayLike, component: ArrayLike
    ) -> "Unresolved":
        """Append a stretch for each that is `wanted` (n,); beyond the room they are only counted.

        A stretch that begins where another of its component ends makes that one longer.
        """
        dtype, shape = self.start.dtype, wanted.shape
        start = jnp.broadcast_to(jnp.asarray(start).astype(dtype), shape)
        end = jnp.broadcast_to(jnp.asarray(end).astype(dtype), shape)
        component = jnp.broadcast_to(jnp.asarray(component).astype(jnp.int32), shape)
        before = self.end[None]
        # The end of one step and the start of the next may differ by a few roundings of the time.
        off = jnp.abs(start[:, None] - before) / jnp.maximum(jnp.abs(before), 1e-30)
        follows = (off <= 8 * jnp.finfo(dtype).eps) & (component[:, None] == self.component[None])
        follows = follows & wanted[:, None]
        longer = jnp.max(jnp.where(follows, end[:, None], -jnp.inf), axis=0, initial=-jnp.inf)
        new = wanted & ~jnp.any(follows, axis=1)
        at = self.count + jnp.cumsum(new, dtype=self.count.dtype) - 1
        at = jnp.where(new, at, self.start.shape[0])
        return Unresolved(
            start=self.start.at[at].set(start, mode="drop"),
            end=jnp.where(jnp.any(follows, axis=0), longer, self.end).at[at].set(end, mode="drop"),
            component=self.component.at[at].set(component, mode="drop"),
            count=self.count + jnp.sum(new, dtype=jnp.int32),
        )


@moved_attributes(gates="sides")
@print_by(event_log_summary)
@saveable(unresolved=None, confirmed=False, shift=None)
class EventLog(eqx.Module):
    """Crossings, sorted by time.

    Outside `jit` and `vmap` the arrays hold exactly the `len(log)` events; inside they are padded
    with `time = inf`, and `count` says how many are real.

    - `time`: (K,), in units of flow time.
    - `uncertainty`: (K,), the width of the root's bracket plus what the step's error estimate
      shifts it by, and no less than by what a second step moved it. It is local: errors carried
      along from earlier steps are not in it. Where a value touches its level within that error, it
      is half of the time that it spends there; inf where the value stays within the error for a
      whole step, as near an asymptote: whether and when it crosses is then rounding. In a flow that
      is `confirmed`, `Trajectory.confirm` says what it is: global.
    - `component`: (K,), position in all channels laid end to end; see `index`.
    - `old`, `new`: (K,), the side before and after: -1 below its level (a gate: off), +1 above
      (on), 0 at the kink (gates only). Of a branch `new` numbers its `reason`.
    - `count`: number of events found, which exceeds K after an overflow.
    - `initial`: (C,), the side of every component at t = 0.
    - `unresolved`: where crossings may be missing (`Unresolved`).
    - `confirmed`: whether `uncertainty` is of the whole run, not of a step.
    - `shift`: (K,), of gates in exact walks: by what an error of `rtol` in what vanishes at the
      event would shift it. On a side that is z, relative to |w~| |x~|; at the end of a slide its
      u, relative to |a| times the largest error at zero outputs. Zero of other
      events; None in a log without exact walks. `is_touch` goes by it.

    A level met from the start (`LossBelow`) is an event at t = 0 with `old` equal to `new`. A NaN
    has no side: nothing is logged on the way into it or out of it, and the time between is
    unresolved. At t = 0 its `initial` is -1.
    """

    time: Float[Array, " K"]
    uncertainty: Float[Array, " K"]
    component: Int[Array, " K"]
    old: Int[Array, " K"]
    new: Int[Array, " K"]
    count: Int[Array, ""]
    initial: Int[Array, " C"]
    channels: tuple[Channel, ...] = eqx.field(static=True)
    unresolved: Unresolved = eqx.field(default_factory=lambda: _no_doubts())
    confirmed: bool = eqx.field(static=True, default=False)
    shift: Float[Array, " K"] | None = None

    @staticmethod
    def _fields_from_file(fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a log from those of a file, which may not say what is unresolved."""
        unresolved = fields["unresolved"]
        return {**fields, "unresolved": unresolved or _no_doubts()}

    def __len__(self) -> int:
        if is_traced(self.time):
            raise ValueError("`len(events)` is not known under jit or vmap; use `events.count`.")
        _require_single_log(self, "len(events)")
        return int(np.sum(np.isfinite(np.asarray(self.time))))

    def _require_known(self, what: str) -> None:
        """Raise `ValueError` unless this is one log whose events are known."""
        if is_traced(self.time):
            raise ValueError(f"`{what}` is not known under jit or vmap; call it outside.")
        _require_single_log(self, what)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return where each channel starts among the components; one entry more than channels."""
        return (0, *np.cumsum([channel.size for channel in self.channels]).tolist())

    @property
    def channel(self) -> Int[Array, " K"]:
        """Return which channel each event belongs to, (K,)."""
        last = len(self.channels) - 1
        if not is_traced(self.component):  # By NumPy, which compiles nothing.
            found = np.searchsorted(self.offsets[1:], np.asarray(self.component), side="right")
            return jax.device_put(np.minimum(found, last).astype(np.int32))
        starts = jnp.asarray(self.offsets[1:], dtype=self.component.dtype)
        return jnp.minimum(jnp.searchsorted(starts, self.component, side="right"), last)

    @property
    def name(self) -> list[str]:
        """Return the name of what crossed, per event (outside `jit`)."""
        self._require_known("events.name")
        return [self.channels[k].name for k in np.asarray(self.channel)]

    @property
    def index(self) -> list[tuple[int, ...]]:
        """Return the index of each event; of gates (layer, unit, sample) (outside `jit`)."""
        self._require_known("events.index")
        return [(*channel.prefix, *inner) for channel, inner in self._channels_and_indices()]

    @property
    def place(self) -> list[tuple[str | int, ...]]:
        """Return where in the model each event is (outside `jit`).

        Of gates and units: the part of the model that gives z, such as `weights[0]` or
        `blocks[2].conv`; the unit's index there, such as channel and position; of gates the sample.
        Of other events, and in files of older versions, their index.
        """
        self._require_known("events.place")
        rows = []
        for channel, inner in self._channels_and_indices():
            if channel.units_at is None:
                rows.append((*channel.prefix, *inner))
                continue
            part, shape = channel.units_at
            unit = np.unravel_index(inner[0], shape) if shape else ()
            rows.append((part, *(int(i) for i in unit), *inner[1:]))
        return rows

    def _channels_and_indices(self) -> Iterator[tuple[Channel, tuple[int, ...]]]:
        """Return the channel of each event, and its index in that channel's array."""
        for k, component in zip(np.asarray(self.channel), np.asarray(self.component), strict=True):
            channel, local = self.channels[k], int(component) - self.offsets[k]
            inner = np.unravel_index(local, channel.shape) if channel.shape else ()
            yield channel, tuple(int(i) for i in inner)

    @property
    def reason(self) -> list[str]:
        """Return why each event named "branch" is one (outside `jit`); of others, "".

        The pair starts on its kink and may leave it to either side; the kink on which a dead unit
        rests turns to repel it. With one hidden layer: more kinks of a unit meet than it has
        inputs. With several, and in modules: the pair leaves its slide to on where the loss may
        not be convex; small steps of descent leave the point in more than one way, or do not tell
        all of how pairs leave it. In files of
        older versions, which did not keep it, "" as well.
        """
        self._require_known("events.reason")
        pairs = zip(self.name, np.asarray(self.new), strict=True)
        return [REASONS.get(int(new), "") if name == "branch" else "" for name, new in pairs]

    @property
    def promise(self) -> list[str]:
        """Return how surely all crossings like each event are in the log (outside `jit`).

        "certified": a bound shows that none is missing, for functions that are polynomials in time
        within a step and those that are monotone; and in a descent, whose every step is looked at.
        "sampled": a step is looked at in five points, and in five of each half of it where these
        leave a doubt, and so on; what swings faster may be missed. "bisected": the same of a
        function that jumps, as an accuracy does, which has no slope to go by.
        """
        self._require_known("events.promise")
        return [self.channels[k].promise for k in np.asarray(self.channel)]

    @checked(t=time_or_inf)
    def component_sides(self, t: ScalarLike) -> Int[Array, " C"]:
        """Return the side of every component at time t, right-continuous; see `initial`.

        **Raises:** `ValueError` for several times; use `jax.vmap`.
        """
        _require_single_log(self, "events.component_sides")
        if not is_traced((self.time, t)):  # By NumPy, which compiles nothing.
            return jax.device_put(self._sides_by_numpy(np.asarray(t).astype(self.time.dtype)))
        k = jnp.where(
            (self.time <= t) & jnp.isfinite(self.time), jnp.arange(self.time.shape[0]), -1
        )
        last = jnp.full(self.initial.shape, -1).at[self.component].max(k)
        return jnp.where(last >= 0, self.new[last], self.initial) if k.size else self.initial

    def _sides_by_numpy(self, t: np.ndarray) -> np.ndarray:
        """Return the side of every component at time t of a log whose numbers are known, (C,)."""
        sides, time = np.array(self.initial), np.asarray(self.time)
        before = np.flatnonzero((time <= t) & np.isfinite(time))
        sides[np.asarray(self.component)[before]] = np.asarray(self.new)[before]  # the last counts
        return sides

    @checked(t=time_or_inf)
    def sides(self, t: ScalarLike, layer: int | str = 0) -> Int[Array, "P H"]:
        """Return sides of a hidden layer's (sample, unit) pairs at t: 1 on, 0 sliding, -1 off.

        Exact where the signs of stored preactivations are not: those of sliding pairs are rounding.

        **Arguments:** `t`, a time; `layer`, 0 the first hidden one, or its part of the model.

        **Raises:** `ValueError` if the run did not log the gates of that layer, or for several
        times.
        """
        k = self.gate_channel(layer)
        sides, mine = self.component_sides(t), slice(*self.offsets[k : k + 2])
        if is_traced(sides):
            return sides[mine].reshape(self.channels[k].shape).T
        return jax.device_put(np.asarray(sides)[mine].reshape(self.channels[k].shape).T)

    def gate_channel(self, layer: int | str) -> int:
        """Return which channel holds the gates of a layer, of shape (H, P)."""
        gates = [k for k, channel in enumerate(self.channels) if channel.name == "gate"]
        if isinstance(layer, str) and gates:
            places = [self.channels[k].units_at or UnitPlace("", ()) for k in gates]
            return gates[number_of_layer(layer, places)]
        found = [k for k in gates if self.channels[k].prefix == (layer,)]
        if not found:
            raise ValueError(
                f"`layer` = {layer}: the run logged no gates of it; only flows of ReLU "
                "networks with few (unit, sample) pairs do, in layers counted from 0."
            )
        return found[0]

    @checked
    def select(self, name: str) -> "EventLog":
        """Return the events of one name.

        **Raises:** `ValueError` if nothing of that name was watched.
        """
        named = self._channels_named(name)
        wanted = np.asarray([k in named for k in range(len(self.channels))])
        if is_traced((self.component, self.time)):
            return self.where(jnp.asarray(wanted)[self.channel] & jnp.isfinite(self.time))
        mask = wanted[np.asarray(self.channel)] & np.isfinite(np.asarray(self.time))
        return self.where(jax.device_put(mask))

    def _channels_named(self, name: str) -> list[int]:
        """Return which channels have a name."""
        found = [k for k, channel in enumerate(self.channels) if channel.name == name]
        if not found:
            known = sorted({channel.name for channel in self.channels})
            raise ValueError(
                f"`name` = {name!r}: no such events were watched; the log has {known}."
            )
        return found

    @checked
    def first(self, name: str) -> Float[Array, "..."]:
        """Return the first time of every component of one name's events; inf where none happened.

        In the shape of what was watched: (K,) for the hits of K modes, () for a loss, the
        observable's for a `Crossing`, (H, P) for the gates of one hidden layer. Works under `jit`
        and `vmap`.

        **Raises:** `ValueError` if nothing of that name was watched, or several things were.
        """
        _require_single_log(self, "events.first")
        k, *more = self._channels_named(name)
        if more:
            raise ValueError(
                f"`name` = {name!r}: {1 + len(more)} arrays of such events were watched, as gates "
                "of several layers are; read `events.select(name)`."
            )
        size, rows = self.offsets[-1], self.time.shape[0]
        if is_traced(self.time):
            row = jnp.full(size, rows).at[self.component].min(jnp.arange(rows))
            times = jnp.append(self.time, jnp.inf)[row]
        else:  # By NumPy, which takes microseconds.
            times = np.full(size, np.inf, self.time.dtype)
            np.minimum.at(times, np.asarray(self.component), np.asarray(self.time))
        own = times[self.offsets[k] : self.offsets[k + 1]].reshape(self.channels[k].shape)
        return jnp.asarray(own) if is_traced(own) else jax.device_put(own)

    @checked(mask=None)
    def where(self, mask: Bool[Array, " K"]) -> "EventLog":
        """Return the events under a mask; others are dropped, or padded with inf under `jit`.

        **Raises:** `ValueError` for what is no mask of truth values (K,).
        """
        _require_single_log(self, "events.where")
        if np.shape(mask) != self.time.shape or getattr(mask, "dtype", 0) != jnp.bool_:
            raise argument_error(
                "mask", f"an array of truth values of shape {self.time.shape}", mask
            )
        if not is_traced((self.time, mask)):  # By NumPy, which compiles nothing.
            rows = np.flatnonzero(np.asarray(mask))
            count = jax.device_put(np.asarray(len(rows), self.count.dtype))
            return self.map_columns(lambda a: jax.device_put(np.asarray(a)[rows]), count)
        order = jnp.argsort(jnp.where(mask, self.time, jnp.inf))
        kept = mask[order]
        log = self.map_columns(lambda a: a[order], jnp.sum(mask))
        padded = jnp.where(kept, log.time, jnp.inf)
        return eqx.tree_at(lambda log: log.time, log, padded)

    def map_columns(self, f: Callable[[Array], Array], count: Array) -> "EventLog":
        """Apply a function to every column (K,)."""
        return EventLog(
            time=f(self.time),
            uncertainty=f(self.uncertainty),
            component=f(self.component),
            old=f(self.old),
            new=f(self.new),
            count=count,
            initial=self.initial,
            channels=self.channels,
            unresolved=self.unresolved,
            confirmed=self.confirmed,
            shift=None if self.shift is None else f(self.shift),
        )

    @property
    def is_touch(self) -> Bool[Array, " K"]:
        """Tell which switches are undecided: there and back within the run's error (outside `jit`).

        A pair that touches its kink and turns back switches twice, or not at all, and an error of
        the size of `rtol` decides. See `flowlin.record.touches` for the rule, which was measured.
        Without them a log is consistent: `events.where(~events.is_touch)`. In a log that is
        `confirmed` there are none, since a second run has decided.
        """
        self._require_known("events.is_touch")
        return jax.device_put(mask_of_touches(self))

    @property
    def is_determined(self) -> Bool[Array, " K"]:
        """Tell which events are determined: with a finite uncertainty, as all before of their kind.

        After one of its component that is not, nobody knows on which side that component is. Nor
        are those that `is_touch` marks (which under `jit` are not looked for), after which the side
        is known again.
        """
        if is_traced((self.time, self.uncertainty)):
            doubtful = jnp.where(jnp.isfinite(self.uncertainty), jnp.inf, self.time)
            first = jnp.full(self.offsets[-1], jnp.inf, self.time.dtype)
            return self.time < first.at[self.component].min(doubtful)[self.component]
        return jax.device_put(mask_of_determined(self) & ~mask_of_touches(self))

    def merge_with(self, other: "EventLog") -> "EventLog":
        """Join the events of both, whose channels are distinct; the other's channels come last."""
        shift, walks = self.offsets[-1], not (self.shift is None and other.shift is None)
        order = jnp.argsort(jnp.concatenate([self.time, other.time]))

        def join_columns(mine: Array, others: Array) -> Array:
            return jnp.concatenate([mine, others])[order]

        return EventLog(
            time=join_columns(self.time, other.time),
            uncertainty=join_columns(self.uncertainty, other.uncertainty),
            component=join_columns(self.component, other.component + shift),
            old=join_columns(self.old, other.old),
            new=join_columns(self.new, other.new),
            count=self.count.astype(int) + other.count.astype(int),
            initial=jnp.concatenate([self.initial, other.initial]),
            channels=self.channels + other.channels,
            unresolved=other.unresolved.shift_components(shift),
            shift=None if not walks else join_columns(*(_shifts(log) for log in (self, other))),
        )

    def without_padding(self) -> "EventLog":
        """Return the log without its padding, where the number of events is known."""
        if is_traced(self.time):
            return self
        k = len(self)
        if k == self.time.shape[0]:
            return self
        # Cut by NumPy, which takes microseconds; `jnp.asarray` would compile a program.
        return self.map_columns(lambda a: jax.device_put(np.asarray(a)[:k].copy()), self.count)

    def table(self) -> list[dict[str, Any]]:
        """Return one dictionary per event, for `pandas.DataFrame` or `csv.DictWriter`.

        Of an event named "branch" the column `reason` says why it is one, and sides mean nothing.
        """
        self._require_known("events.table")
        columns = (getattr(self, name) for name in EVENT_COLUMNS)
        plain = [c if isinstance(c, list) else np.asarray(c).tolist() for c in columns]
        return [dict(zip(EVENT_COLUMNS, row, strict=True)) for row in zip(*plain, strict=True)]

    def to_pandas(self) -> DataFrame:
        """Return `table()` as a `pandas.DataFrame`, one row per event (outside `jit`).

        **Raises:** `ImportError` if pandas is missing.
        """
        return data_frame(self.table(), EVENT_COLUMNS)


def _shifts(log: EventLog) -> Array:
    """Return the shifts of a log's events, zero where they are not known."""
    return jnp.zeros_like(log.time) if log.shift is None else log.shift


def _no_doubts() -> Unresolved:
    """Return what a log has where all crossings are known, in JAX's default precision."""
    return Unresolved.empty(jnp.result_type(float))


def _require_single_log(log: EventLog, what: str) -> None:
    """Raise `ValueError` for the logs of several runs, as `vmap` stacks them."""
    if np.ndim(log.time) != 1:
        raise ValueError(
            f"`{what}` is of one log, and these are stacked, with times of shape "
            f"{np.shape(log.time)}; take one, as in jax.tree.map(lambda a: a[0], events)."
        )


def warn_unresolved(log: EventLog) -> None:
    """Warn (`CrossingsWarning`) if crossings may be missing from a log."""
    doubts = log.unresolved
    if not int(doubts.count):
        return
    component = int(doubts.component[0])
    channel = int(np.searchsorted(log.offsets[1:], component, side="right"))
    name, index = log.channels[channel].name, component - log.offsets[channel]
    warn_user(
        f"crossings may be missing from the log, first those of component {index} of event "
        f"{name!r} between t = {float(doubts.start[0]):.9g} and {float(doubts.end[0]):.9g} "
        f"({int(doubts.count)} such stretches; see `flow.events.unresolved`): it is NaN there, or "
        "swings or jumps faster than a step can be searched. Watch a function that is a number "
        "throughout, or a smoother one, or lower `rtol`.",
        CrossingsWarning,
    )
