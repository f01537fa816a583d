"""How far the events of one run lie from those of another run of the same flow."""

from typing import Any, NamedTuple

import numpy as np

ROUNDING = 10  # machine epsilons of its time that an event may be off beside its error
# An event's distance from its counterpart may be small by chance; those of most events before it
# are not, and errors seldom shrink. It counts at least as much as this share of the last so many
# have at most. Later events do not count: after convergence they err by anything.
LAST_EVENTS, SHARE = 20, 0.9


def global_uncertainties(log: Any, other: Any, factor: float) -> np.ndarray:
    """Return the uncertainty of every event's time, (K,), by the log of another run.

    It is `factor` times the distance to the same event of the other log, but at least the event's
    own, and at least what nine tenths of the 20 events before it have; and a rounding of the time.
    Inf, which is not determined, is an event

    - that the other log has not: its counterpart would be the nearest of the same component and
      sides, each being the nearest of the other;
    - that may change places with a neighbour of the same component;
    - and every later one of its component, also where the other log alone has one in between.
    """
    time, found = np.asarray(log.time), np.full(len(log.component), np.inf)
    own, others = np.asarray(log.uncertainty), _by_component(other)
    for k, mine in _by_component(log).items():
        if k in others:
            wide = np.maximum(factor * _distances_to_counterparts(mine, others[k]), own[mine.place])
            found[mine.place] = _until_first_doubt(mine, wide, others[k])
    found = np.maximum(found, _usual_before(found, time))
    return found + ROUNDING * np.finfo(time.dtype).eps * np.abs(time)


def counterparts_in_log(log: Any, other: Any) -> np.ndarray:
    """Return for every event its counterpart's place in another log, -1 where there is none."""
    found, others = np.full(len(log.component), -1), _by_component(other)
    for k, mine in _by_component(log).items():
        if k in others:
            there = _counterparts(mine, others[k])
            found[mine.place] = np.where(there >= 0, others[k].place[there], -1)
    return found


class _Events(NamedTuple):
    """The events of one component in time: their places in the log, times, and sides as a code."""

    place: np.ndarray
    time: np.ndarray
    kind: np.ndarray


def _by_component(log: Any) -> dict[int, _Events]:
    """Split a log by component."""
    component, time = np.asarray(log.component), np.asarray(log.time)
    kind = 3 * np.asarray(log.old) + np.asarray(log.new)
    order = np.lexsort((time, component))
    keys, starts = np.unique(component[order], return_index=True)
    parts = np.split(order, starts[1:])
    return {int(k): _Events(p, time[p], kind[p]) for k, p in zip(keys, parts, strict=False)}


def _counterparts(mine: _Events, others: _Events) -> np.ndarray:
    """Return for each event its counterpart's place among the others, -1 where there is none."""
    found = np.full(len(mine.time), -1)
    for kind in np.unique(mine.kind):
        here, there = np.flatnonzero(mine.kind == kind), np.flatnonzero(others.kind == kind)
        if len(there):
            off = np.abs(mine.time[here][:, None] - others.time[there][None])
            nearest, back = off.argmin(axis=1), off.argmin(axis=0)
            both = back[nearest] == np.arange(len(here))
            found[here[both]] = there[nearest[both]]
    return found


def _distances_to_counterparts(mine: _Events, others: _Events) -> np.ndarray:
    """Return how far each event is from its counterpart; inf where it has none."""
    there = _counterparts(mine, others)
    return np.where(there >= 0, np.abs(mine.time - others.time[there]), np.inf)


def _usual_before(found: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Return what nine tenths of the last events, each included, have at most; zero of none."""
    order = np.argsort(time, kind="stable")
    known = order[np.isfinite(found[order])]
    if not len(known):
        return np.zeros_like(found)
    padded = np.pad(found[known], (LAST_EVENTS, 0), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, LAST_EVENTS + 1)
    usual = np.zeros_like(found)
    usual[known] = np.quantile(windows, SHARE, axis=1, method="higher")
    return usual


def _until_first_doubt(mine: _Events, wide: np.ndarray, others: _Events) -> np.ndarray:
    """Return the uncertainties of one component's events, inf from the first doubtful one on."""
    gap = np.diff(mine.time, prepend=-np.inf, append=np.inf)
    doubtful = ~(wide < np.minimum(gap[:-1], gap[1:]))
    alone = np.setdiff1d(np.arange(len(others.time)), _counterparts(mine, others))
    first = np.min(mine.time[doubtful], initial=np.min(others.time[alone], initial=np.inf))
    return np.where(mine.time >= first, np.inf, wide)
