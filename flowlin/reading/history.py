"""The sides of all pairs between the switches of a run, and which units share theirs."""

from typing import NamedTuple

import numpy as np

from flowlin.log.eventlog import EventLog

SLIDING = 0  # a side in the log: 1 on, 0 sliding, -1 off


class History(NamedTuple):
    """The gates of a run, interval by interval.

    - `times`: (K + 1,), t = 0, the times of the switches, the end.
    - `sides`: per hidden layer (K, H, P), on each interval 1 on, 0 sliding, -1 off.
    """

    times: np.ndarray
    sides: tuple[np.ndarray, ...]

    @staticmethod
    def of(log: EventLog, layers: int, end: float) -> "History":
        """Of a log that holds the gates of all hidden layers.

        **Raises:** `ValueError` if it does not.
        """
        channels = [log.gate_channel(layer) for layer in range(layers)]
        time, component, new = (np.asarray(a) for a in (log.time, log.component, log.new))
        gate = np.isin(np.asarray(log.channel), channels) & (time < end)
        time, component, new = time[gate], component[gate], new[gate]
        times = np.unique(np.r_[0.0, time, end].astype(log.time.dtype))
        codes = np.empty((len(times) - 1, len(log.initial)), np.int8)
        now, done = np.asarray(log.initial).astype(np.int8), 0
        # Of several events of a pair at one time the last one counts.
        for k, past in enumerate(np.searchsorted(time, times[:-1], side="right")):
            for event in range(done, past):
                now[component[event]] = new[event]
            codes[k], done = now, past
        places = [(log.offsets[c], log.offsets[c + 1], log.channels[c].shape) for c in channels]
        return History(times, tuple(codes[:, i:j].reshape(-1, *shape) for i, j, shape in places))

    def interval(self, t: float) -> int:
        """Which interval a time lies in; a switch belongs to the one that it begins."""
        k = int(np.searchsorted(self.times, t, side="right")) - 1
        return min(max(k, 0), len(self.times) - 2)

    def groups(self, layer: int) -> tuple[tuple[int, ...], ...]:
        """Units of a layer whose gates agree at all times, by their first unit.

        A unit with a pair that slides is alone: the fractions of two of them differ.
        """
        found: dict[tuple, list[int]] = {}
        for unit in range(self.sides[layer].shape[1]):
            own = self.sides[layer][:, unit]
            alone = unit if np.any(own == SLIDING) else -1
            found.setdefault((alone, own.tobytes()), []).append(unit)
        return tuple(tuple(units) for units in found.values())
