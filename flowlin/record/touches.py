r"""Touches: switches there and back of a pair that are within the run's error.

A pair that touches its kink and turns back switches twice, or not at all. What vanishes at the kink
is a parabola near it: between the two switches, a time d apart, it goes as deep as v d / 4, with
the velocity v at both. A pair that begins to slide with the velocity v would without it go as deep
as v d / 2. Where one ends its slide and comes back, u falls with the velocity v and goes as deep as
v d / 6. An error e decides about all of them where it is of that size: where d is of the size of
e / v, by which the error shifts each of the two switches. `EventLog.shift` is e / v for an e of
`rtol` relative to the unit. A run errs by less, since a step errs less than it may and errors are
spread over a unit's numbers: `SHARE` tells well what is spurious (`benchmarks/grazing.py`).
"""

from typing import Any

import numpy as np

from flowlin._tools.printing import concrete_array

Places = np.ndarray | np.integer | int  # of events in a log
SHARE = 0.1  # of both switches' shifts, within which they are a touch


def mask_of_touches(log: Any) -> np.ndarray:
    """Return which events are touches, (K,): two by two, so that all sides stay consistent.

    Of switches to and fro several times in a row the last one stays if their number is odd. In a
    confirmed log there are none.
    """
    mask = np.zeros(len(log.component), bool)
    if log.confirmed or log.shift is None:
        return mask
    columns = (log.component, log.time, log.old, log.new, log.shift)
    component, time, old, new, shift = (np.asarray(column) for column in columns)

    def is_return(first: Places, second: Places) -> np.ndarray | np.bool_:
        back = (old[first] == new[second]) & (new[first] == old[second])
        near = time[second] - time[first] < SHARE * (shift[first] + shift[second])
        return back & near & (component[first] == component[second])

    order = np.lexsort((time, component))
    order = order[np.isfinite(time[order])]  # without the padding of a log made under `jit`
    for k in np.unique(component[order[1:]][is_return(order[:-1], order[1:])]):
        open_: list[int] = []  # switches of the pair that may still be the first of two
        for event in order[component[order] == k]:
            if open_ and is_return(open_[-1], event):
                mask[[open_.pop(), event]] = True
            else:
                open_.append(int(event))
    return mask


def count_touches(log: Any) -> int | None:
    """Count the times that pairs switched there and back; None where that is not known."""
    if log.shift is None or concrete_array(log.time, 1) is None:
        return None
    return int(np.sum(mask_of_touches(log))) // 2
