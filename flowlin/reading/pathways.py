"""The pathways of a rectified linear network: which samples go through which units, and when."""

import dataclasses

import numpy as np

from flowlin._tools.show import shown
from flowlin.reading import summary
from flowlin.reading.history import SLIDING, History


@shown(summary.pathway)
@dataclasses.dataclass(frozen=True, eq=False)
class RectifiedPathway:
    """Units whose gates agree, as long as they do.

    - `sides`: (P,), of the units' pairs with the samples: 1 on, 0 sliding, -1 off.
    - `units`: those that were in it at some time of its life.
    - `start`, `end`: its life, in units of flow time: while any unit has these sides.
    - `share`: of the fall of the loss over the whole run, what these units carry in that time.
    """

    sides: np.ndarray
    units: tuple[int, ...]
    start: float
    end: float
    share: float

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples that go through it: those on which its units are on or slide."""
        return tuple(np.flatnonzero(self.sides >= SLIDING).tolist())

    @property
    def lifetime(self) -> float:
        """`end - start`."""
        return self.end - self.start


class _Living:
    """A pathway that has not ended yet."""

    def __init__(self, start: float):
        self.start, self.units, self.work = start, set(), 0.0

    def over(self, sides: np.ndarray, end: float, whole: float) -> RectifiedPathway:
        """What became of it; `whole` is the fall of the loss."""
        units = tuple(sorted(self.units))
        return RectifiedPathway(sides, units, self.start, end, self.work / whole)


def pathways_of(history: History, work: np.ndarray) -> tuple[RectifiedPathway, ...]:
    """All of a run, the largest share first; `work` (K, H + 1) as of `flowlin.reading.shares`."""
    whole, sides = float(np.sum(work)) or 1.0, history.sides[0]  # at rest all shares are zero
    living: dict[bytes, _Living] = {}
    found: list[RectifiedPathway] = []

    def ended(names, end):
        for name in names:
            found.append(living.pop(name).over(np.frombuffer(name, np.int8), end, whole))

    for k, start in enumerate(history.times[:-1]):
        names = [row.tobytes() for row in sides[k]]
        ended([name for name in living if name not in set(names)], float(start))
        for unit, name in enumerate(names):
            one = living.setdefault(name, _Living(float(start)))
            one.units.add(unit)
            one.work += work[k, unit]
    ended(list(living), float(history.times[-1]))
    return tuple(sorted(found, key=lambda one: -one.share))
