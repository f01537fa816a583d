"""Matching of the events of two runs of one flow: what each is off, and what is not determined."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin.record.channel import Channel
from flowlin.record.event_match import LAST_EVENTS, ROUNDING, global_uncertainties


def log_of(rows, uncertainty=0.0):
    """A log of three gates from rows (time, component, new side); old sides are the others."""
    time, component, new = map(np.array, zip(*rows, strict=True))
    return fl.EventLog(
        time=jnp.asarray(time, float),
        uncertainty=jnp.full(len(time), uncertainty),
        component=jnp.asarray(component),
        old=jnp.asarray(-new),
        new=jnp.asarray(new),
        count=jnp.asarray(len(time)),
        initial=-jnp.ones(3, int),
        channels=(Channel("gate", (3, 1), (0,)),),
    )


def test_events_are_matched_by_component_and_sides():
    eps = np.finfo(float).eps
    coarse = log_of([(1.0, 0, 1), (2.0, 1, 1), (3.0, 0, -1)])
    finer = log_of([(1.1, 0, 1), (2.01, 1, 1), (3.2, 0, -1)])
    own = ROUNDING * eps * np.array([1.0, 2.0, 3.0])
    # The second event is no better known than the first: nine tenths of few are all of them.
    found = global_uncertainties(coarse, finer, 3.0)
    np.testing.assert_allclose(found, np.array([0.3, 0.3, 0.6]) + own, rtol=1e-12)
    assert np.all(global_uncertainties(coarse, coarse, 3.0) == own)
    assert np.all(global_uncertainties(log_of([(1.0, 0, 1)], 0.5), coarse, 3.0) >= 0.5)


def test_one_large_distance_is_forgotten():
    times = np.arange(1.0, 42.0)
    rows = [(t, k % 3, 1 - 2 * (k // 3 % 2)) for k, t in enumerate(times)]
    off = np.full(41, 1e-6)
    off[0] = 1e-2
    finer = [(t + d, *rest) for (t, *rest), d in zip(rows, off, strict=True)]
    found = global_uncertainties(log_of(rows), log_of(finer), 3.0)
    assert found[0] > 2e-2
    assert np.all(found[LAST_EVENTS:] < 1e-5)


@pytest.mark.parametrize(
    ("finer", "known"),
    [
        ([(1.0, 0, 1), (2.0, 0, -1), (5.0, 1, 1)], [True, True, False, False, True]),
        ([(1.0, 0, 1), (5.0, 1, 1)], [True, False, False, False, True]),
        # One that the finer run alone has stands between the first and the second.
        (
            [(1.0, 0, 1), (1.5, 0, -1), (1.6, 0, 1), (2.0, 0, -1), (3.0, 0, 1), (4.0, 0, -1)],
            [True, False, False, False, False],
        ),
        # The distance is larger than that to the neighbour.
        ([(1.0, 0, 1), (2.5, 0, -1), (5.0, 1, 1)], [True, False, False, False, True]),
    ],
)
def test_what_the_other_run_has_not_is_not_determined(finer, known):
    rows = [(1.0, 0, 1), (2.0, 0, -1), (3.0, 0, 1), (4.0, 0, -1), (5.0, 1, 1)]
    found = global_uncertainties(log_of(rows), log_of(finer), 3.0)
    assert np.isfinite(found).tolist() == known


def test_events_that_are_not_determined_have_no_say():
    """Gate 0 comes on and off for good; then 1 and 2 come on, of which 2 is not determined."""
    rows = [(1.0, 0, 1), (2.0, 0, -1), (3.0, 1, 1), (4.0, 2, 1), (5.0, 2, -1)]
    log = log_of(rows, 0.1)
    log = dataclasses.replace(log, uncertainty=log.uncertainty.at[3].set(jnp.inf))
    assert log.is_determined.tolist() == [True, True, True, False, False]
    assert jax.jit(lambda log: log.is_determined)(log).tolist() == log.is_determined.tolist()
