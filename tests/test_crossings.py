"""Every crossing within a step: fast and kinked observables, even roots, what is not resolved."""

import warnings

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import flowlin as fl
from flowlin.engine.kinks.policies import IgnoreKinks
from flowlin.events.crossings import Step
from flowlin.events.events import GateSwitches, user_watches
from flowlin.events.search import Brackets, Part
from flowlin.events.watch import Observer, Path
from flowlin.record.event_log import Unresolved
from flowlin.training.objective import FullData

# One mode whose strength a(t) rises from 0.01 to 1.
RISING = fl.Task([[1.0]], [[1.0]])
T1 = 30.0


def strength(network):
    """The network's only mode strength."""
    return network.weights[0][0, 0] * network.weights[1][0, 0]


def small():
    """A network with a(0) = 0.01."""
    return fl.LinearNetwork((jnp.full((1, 1), 0.1), jnp.full((1, 1), 0.1)))


class Swing(eqx.Module):
    """sin(k a), whose k is data: one compilation serves all."""

    k: Array

    def __call__(self, network, task):
        """A number between -1 and 1."""
        return jnp.sin(self.k * strength(network))


def swinging(k, **options):
    event = fl.Crossing(Swing(jnp.asarray(k, float)))
    return fl.gradient_flow(small(), RISING, T1, events=(event,), **options)


def number_of_roots(k, flow):
    return int(np.floor(k * float(strength(flow.final)) / np.pi) - np.floor(k * 0.01 / np.pi))


@pytest.mark.parametrize(("k", "number"), [(100, 31), (200, 63), (2000, 630)])
def test_every_crossing_of_a_fast_observable_is_found(k, number):
    flow = swinging(k)
    assert int(flow.stats["num_accepted_steps"]) < 40
    assert len(flow.events) == number == number_of_roots(k, flow)
    assert int(flow.stats["unresolved_crossings"]) == 0
    signs = np.asarray(flow.events.new)
    assert np.all(signs[1:] == -signs[:-1])
    # a = 1 / (1 + 99 exp(-2 t)): the closed form of a mode.
    first = int(k * 0.01 / np.pi) + 1
    levels = np.pi * np.arange(first, first + number) / k
    levels = levels[levels < 0.99]
    exact = np.log(levels * 99 / (1 - levels)) / 2
    assert np.allclose(np.asarray(flow.events.time)[: len(levels)], exact, rtol=1e-6, atol=1e-5)


def test_what_is_too_fast_is_reported_in_log_stats_and_by_a_warning(tmp_path):
    with pytest.warns(fl.CrossingsWarning, match="crossings may be missing from the log"):
        flow = swinging(1e9, max_events=2**18)
    doubts = flow.events.unresolved
    assert int(flow.stats["unresolved_crossings"]) == int(doubts.count) > 0
    start, end = np.asarray(doubts.start), np.asarray(doubts.end)
    real = np.isfinite(start)
    assert np.all((start < end)[real])
    assert np.all(end[real] <= T1)
    flow.save(tmp_path / "flow.npz")
    again = fl.load(tmp_path / "flow.npz").events.unresolved
    assert np.array_equal(again.start, doubts.start)


def gaps(network, task):
    """Twice NaN until a = 0.1 and from 0.4 to 0.6, once -inf until 0.2, once never a number."""
    a = strength(network)
    known = (a > 0.1) & ((a < 0.4) | (a > 0.6))
    late = jnp.log(jnp.maximum(a - 0.2, 0.0) / 0.1)
    return jnp.stack(
        [jnp.where(known, a - 0.3, jnp.nan), jnp.where(known, a - 0.5, jnp.nan), late, a * jnp.nan]
    )


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("run", "grain"),
    [
        (fl.gradient_flow, 1e-6),
        (lambda *run, **how: fl.gradient_descent(*run[:2], 0.1, t1=run[2], **how), 0.2),
    ],
    ids=["flow", "descent"],
)
def test_where_an_observable_is_nan_nothing_crosses_and_all_is_told(run, grain):
    with pytest.warns(fl.CrossingsWarning, match=r"first those of comp.* it is NaN there"):
        flow = run(small(), RISING, T1, events=(fl.Crossing(gaps),))

    def at(a):
        return np.log(99 * a / (1 - a)) / 2

    assert sorted(flow.events.index) == [(0,), (2,)]
    assert np.allclose(np.asarray(flow.events.time), at(0.3), atol=grain)
    doubts = flow.events.unresolved
    assert int(flow.stats["unresolved_crossings"]) == int(doubts.count) == 5
    rows = np.stack([doubts.component, doubts.start, doubts.end], axis=1)[:5]
    told = [(k, *span) for k in (0, 1) for span in ((0, at(0.1)), (at(0.4), at(0.6)))]
    assert np.allclose(sorted(rows.tolist()), [*told, (3, 0, T1)], atol=grain)


def test_a_file_without_the_field_still_loads():
    log = object.__new__(fl.EventLog)
    assert log.unresolved is None


def test_the_same_under_jit():
    flow = jax.jit(lambda k: swinging(k, max_events=128, max_steps=64))(200.0)
    assert int(flow.events.count) == 63
    assert int(flow.stats["unresolved_crossings"]) == 0


def several(network, task):
    """A pair, a kink off its level, touches from above and from below, a jump, steps at zero."""
    a = strength(network)
    return jnp.stack(
        [
            jnp.abs(a - 0.7) - 0.01,
            jnp.abs(a - 0.7) + 0.01,
            (a - 0.45) ** 2,
            -jnp.abs(a - 0.3),
            jnp.where(a > 0.6, 1.0, -1.0),
            jnp.where(a > 0.6, 3.0, 1.0),
        ]
    )


@pytest.mark.usefixtures("without_type_checks")
def test_kinks_touches_and_jumps():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flow = fl.gradient_flow(small(), RISING, T1, events=(fl.Crossing(several),))
    found = {k: [] for k in range(6)}
    for row in flow.events.table():
        found[row["index"][0]].append(row)

    def at(a):
        return np.log(a * 99 / (1 - a)) / 2

    times = [[row["time"] for row in found[k]] for k in range(6)]
    assert times[0] == pytest.approx([at(0.69), at(0.71)], rel=1e-7)
    assert [row["new"] for row in found[0]] == [-1, 1]
    assert times[1] == []
    for k, level, sides in ((2, 0.45, [-1, 1]), (3, 0.3, [1, -1])):
        assert [row["new"] for row in found[k]] == sides
        for row in found[k]:
            assert abs(row["time"] - at(level)) <= 2 * row["uncertainty"] < 1e-2
    assert times[4] == pytest.approx([at(0.6)], rel=1e-7)
    assert found[4][0]["uncertainty"] < 1e-6
    assert times[5] == []


def test_hits_of_an_asymptote_are_told_from_others_by_their_uncertainty(tree, aligned):
    network, modes = aligned
    hits = fl.ModeHits(modes, modes.full_strength)
    flow = fl.gradient_flow(network, tree, 150.0, events=(hits,))
    assert 0 < len(flow.events) < 300
    assert np.mean(np.isinf(np.asarray(flow.events.uncertainty))) > 0.8
    assert np.min(np.asarray(flow.events.uncertainty)) > 1e-5
    assert int(flow.stats["unresolved_crossings"]) == 0


@pytest.mark.parametrize("terminate", [False, True])
def test_a_loss_that_is_met_from_the_start(terminate):
    event = fl.LossBelow(0.6, terminate=terminate)
    flow = fl.gradient_flow(small(), RISING, 2.0, events=(event,))
    descent = fl.gradient_descent(small(), RISING, 0.1, 20, events=(event,))
    for run in (flow, descent):
        (row,) = run.events.table()
        assert (row["time"], row["old"], row["new"]) == (0.0, -1, -1)
        assert int(run.events.sides(0.0)[0]) == -1
        assert float(run.end) == (0.0 if terminate else pytest.approx(2.0))
        assert bool(run.result == fl.RESULTS.event_occurred) == terminate
        if terminate:
            assert jnp.array_equal(run.final.weights[0], small().weights[0])


def test_parts_follow_each_other_without_gaps():
    """Whatever is split, the parts that are not cover [0, 1] from left to right."""
    rng, end, part = np.random.default_rng(0), 0.0, Part.whole()
    while bool(part.is_inside):
        split = bool(part.level < 6) and rng.random() < 0.6
        low, high = part.ends(jnp.float64)
        assert float(low) == end
        end = end if split else float(high)
        part = part.following(jnp.asarray(split))
    assert end == 1.0


# Steps along cubics that turn back within them, against a dense grid.

SAMPLES = fl.tasks.teacher(9, (2.0, 1.0, 0.5), key=jax.random.key(4))


def wild_step(observer, network, key):
    """A Hermite step from the network to one of its size, at velocities that overshoot."""
    ends = jax.random.split(key, 4)

    def like(k, scale):
        leaves, tree = jax.tree.flatten(network.parameters)
        keys = jax.random.split(k, len(leaves))
        made = [scale * jax.random.normal(a, b.shape) for a, b in zip(keys, leaves, strict=True)]
        return jax.tree.unflatten(tree, made)

    y0, y1, k0, k1 = (like(k, s) for k, s in zip(ends, (0.5, 0.5, 4.0, 4.0), strict=True))
    dense = {"y0": y0, "y1": y1, "k0": k0, "k1": k1}
    kind = diffrax.ThirdOrderHermitePolynomialInterpolation
    path = Path(kind, jnp.asarray(1.0), jnp.asarray(3.0), dense, y0)
    return Step(observer, path, y1, None, observer(y0))


def found_and_true(events, network, keys, grid=2001):
    """Numbers of crossings per component, found and on a grid, (K, C) each; and all brackets."""
    goal, kinks = FullData(SAMPLES, fl.SquaredError()), IgnoreKinks()
    watches = tuple(user_watches(events, network, SAMPLES, goal, kinks))
    observer = Observer(watches, network)

    @jax.jit
    def one(key):
        step = wild_step(observer, network, key)
        empty = Brackets.empty(step.before.shape[0], Unresolved.none(jnp.float64))
        found, _ = step.looked_through(empty)
        real = jnp.arange(found.room) < found.count
        numbers = jnp.zeros(step.before.shape[0]).at[found.marks[:, 0]].add(real)
        above = jax.lax.map(lambda t: observer(step.path(t)) > 0, jnp.linspace(1.0, 3.0, grid))
        return numbers, jnp.sum(above[1:] != above[:-1], axis=0), found.doubts.count

    numbers, true, doubts = jax.lax.map(one, keys)
    assert int(jnp.sum(doubts)) == 0
    return np.asarray(numbers), np.asarray(true)


@pytest.mark.parametrize("kind", ["gates", "units", "modes", "smooth"])
def test_all_crossings_of_a_wild_step(kind, monkeypatch):
    monkeypatch.setattr("flowlin.events.order_statistics.BATCH", 4)  # less than there are units
    modes = fl.theory.modes(SAMPLES, 1.0)
    relu = fl.ReLUNetwork.init(SAMPLES, 6, key=jax.random.key(5))
    linear = fl.LinearNetwork.init(SAMPLES, (6, 5), key=jax.random.key(5))
    units = (fl.UnitSwitches(0.0), fl.UnitSwitches(0.3))
    events, network = {
        "gates": ((GateSwitches(),), relu),
        "units": (units, relu),
        "modes": ((fl.ModeHits(modes, 0.1),), linear),
        "smooth": ((fl.ModeHits(modes, 0.1),), relu),
    }[kind]
    found, true = found_and_true(events, network, jax.random.split(jax.random.key(0), 40))
    assert np.max(true) > 1  # double crossings within a step
    # A pair of crossings closer than the grid is not on it.
    assert np.all(found >= true)
    assert np.mean(found != true) < 0.01
