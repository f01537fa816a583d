"""Slots of exact walks grow by themselves: whatever a walk began with, nothing is lost."""

import io
import time

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.tolerances import of_flow
from tests.zoo import jit

pytestmark = pytest.mark.slow  # every growth is another program

TASK, RTOL, END = fl.tasks.hierarchy(levels=2), 1e-6, 15.0
ROWS = 6  # of every run, so that those with as many slots share a program
TIMES = np.linspace(0, END, ROWS)


def with_unit_of_zeros(network):
    """The same function; one unit starts and stays at its kinks.

    A run with pairs that start there has programs of its own: so all runs here share theirs.
    """
    hidden, readout = network.weights
    weights = jnp.pad(hidden, ((0, 1), (0, 0))), jnp.pad(readout, ((0, 0), (0, 1)))
    return fl.ReLUNetwork(weights, (jnp.pad(network.biases[0], (0, 1)), None))


# Two pairs of a unit slide from 3.95 on.
NETWORK = with_unit_of_zeros(fl.ReLUNetwork.init(TASK, 3, 1e-2, key=jax.random.key(7)))


def rows(since, until):
    """Times after `since`, up to `until`."""
    return np.linspace(since, until, ROWS + 1)[1:]


def walk(slots, t1=END, network=NETWORK, **how):
    kinks, ts = fl.ExactKinks(slots=slots), np.linspace(0, t1, ROWS)
    return fl.gradient_flow(
        network, TASK, t1, ts=ts, kinks=kinks, solver=diffrax.Bosh3(), rtol=RTOL, **how
    )


def assert_alike(a, b, rtol):
    """Two walks have the same events and rows, within a tolerance."""
    for part in ("component", "old", "new", "initial"):
        np.testing.assert_array_equal(getattr(a.events, part), getattr(b.events, part))
    np.testing.assert_array_equal(a.ts, b.ts)
    pairs = zip(
        jax.tree.leaves((a.events.time, a.losses, a.saved, a.final)),
        jax.tree.leaves((b.events.time, b.losses, b.saved, b.final)),
        strict=True,
    )
    for x, y in pairs:
        np.testing.assert_allclose(x, y, rtol, rtol)


@pytest.fixture(scope="module")
def roomy():
    return walk(4)


def test_a_walk_that_outgrows_its_slots_is_that_with_room(roomy, monkeypatch):
    traced, solve = [], diffrax.diffeqsolve
    monkeypatch.setattr(diffrax, "diffeqsolve", lambda *a, **k: traced.append(1) or solve(*a, **k))
    grown = walk(1)
    assert len(traced) <= 2  # one program with its slots, and one with more
    assert_alike(grown, roomy, 1e-9)
    assert len(grown.events) > 5
    for name in ("num_steps", "evaluations", "accepted_evaluations"):
        assert grown.stats[name] == roomy.stats[name]
    assert (grown.stats["slots"], roomy.stats["slots"]) == (2, 4)
    assert grown.stats["kinks"] == "ExactKinks(slots=2)"
    assert "as asked for; 2 slots from t = 3.8" in grown.stats["kinks_because"]
    assert "slots" not in roomy.stats["kinks_because"]


class Breaks(io.StringIO):
    """A log that breaks the run off at one of its lines."""

    def __init__(self, line):
        super().__init__()
        self.left = line

    def write(self, text):
        if text == "\n":
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
        return len(text)


def test_it_is_resumed_to_the_bit_before_and_after_it_grew(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    whole = walk(1, checkpoint=tmp_path / "whole")
    slots = []
    for line in (1, 120):
        file = tmp_path / f"{line}"
        with pytest.raises(KeyboardInterrupt) as caught:
            walk(1, checkpoint=file, progress=fl.LogProgress(1e-12, Breaks(line)))
        broken: fl.Trajectory = caught.value.trajectory  # pyright: ignore
        slots.append(int(broken.stats["slots"]))
        resumed = walk(1, checkpoint=file)
        extended = broken.extend(END, ts=rows(float(broken.end), END))
        for again in (resumed, walk(1, checkpoint=file)):
            ends = [(f.events, f.ts, f.losses, f.saved, f.final, f.counts) for f in (whole, again)]
            assert jax.tree.structure(ends[0]) == jax.tree.structure(ends[1])
            for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
                np.testing.assert_array_equal(a, b)
            assert again.stats["kinks"] == "ExactKinks(slots=2)"
            assert again.stats["kinks_because"] == whole.stats["kinks_because"]
        np.testing.assert_array_equal(extended.events.time, whole.events.time)
        assert int(extended.stats["slots"]) == 2
    assert slots == [1, 2]
    with pytest.raises(ValueError, match="kinks"):
        walk(2, checkpoint=tmp_path / "whole")


def test_an_extension_grows_and_another_goes_on(roomy):
    first = walk(1, 2.0)
    second = first.extend(9.0, ts=rows(2.0, 9.0))
    assert [int(f.stats["slots"]) for f in (first, second)] == [1, 2]
    third = second.extend(END, ts=rows(9.0, END))
    whole = np.linspace(0, 2.0, ROWS), rows(2.0, 9.0), rows(9.0, END)
    np.testing.assert_array_equal(third.ts, np.concatenate(whole))
    np.testing.assert_array_equal(third.events.component, roomy.events.component)
    np.testing.assert_allclose(third.events.time, roomy.events.time, rtol=of_flow(RTOL))


def test_it_grows_at_the_start():
    """All pairs are at their kinks at t = 0, where those of some units slide."""
    hidden, readout = NETWORK.weights
    zero = NETWORK.with_parameters(((0 * hidden, -jnp.abs(readout)), (jnp.zeros(4), None)))
    grown, room = (walk(slots, 2.0, zero) for slots in (1, 4))
    assert_alike(grown, room, 1e-9)
    assert grown.stats["slots"] == 4
    assert "2 slots from t = 0 on; 4 slots from t = 0 on" in grown.stats["kinks_because"]


def test_traced_walks_end_by_name():
    flow = jit(lambda n: walk(1, network=n, max_events=64, throw=False))(NETWORK)
    assert flow.result == fl.RESULTS.slide_overflow
    assert 3.9 < flow.end < 4.0
    assert flow.stats["slots"] == 1
    assert "do not grow under jit" in fl.RESULTS[flow.result]
