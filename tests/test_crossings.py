"""Every crossing within a step: fast and kinked observables, even roots, what is not resolved."""

import io
from itertools import pairwise
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax import Array

import flowlin as fl
from flowlin._tools.series import bracket_root
from flowlin.engine.kinks.kink_policies import IgnoreKinks
from flowlin.events import watch
from flowlin.events.crossings import StepCrossings
from flowlin.events.path import StepPath
from flowlin.events.search import Brackets, StepPart
from flowlin.events.switches import GateSwitches
from flowlin.events.user_events import user_watches
from flowlin.events.watch import Observer
from flowlin.record.event_log import Unresolved
from flowlin.training.objective import FullData
from flowlin.training.problem import Problem

# One mode whose strength a(t) rises from 0.01 to 1: a = 1 / (1 + 99 exp(-2 t)).
RISING = fl.Task([[1.0]], [[1.0]])
T1 = 30.0


def strength(network):
    """The network's only mode strength."""
    return network.weights[0][0, 0] * network.weights[1][0, 0]


def at(a):
    """The time at which the strength is a."""
    return np.log(a * 99 / (1 - a)) / 2


def small():
    """A network with a(0) = 0.01."""
    return fl.LinearNetwork((np.full((1, 1), 0.1), np.full((1, 1), 0.1)))


def posed(network, task):
    """What an event is asked to watch."""
    return Problem(network, task, fl.SquaredError(), jnp.ones(()))


def test_what_several_events_ask_of_a_network_is_computed_once():
    """Four levels of one loss cost no more products than one."""
    network, objective = small(), FullData(RISING, fl.SquaredError())

    def products(*levels):
        events = [fl.LossBelow(level, name=str(level)) for level in levels]
        seen = user_watches(events, posed(network, RISING), objective, IgnoreKinks())
        return str(jax.make_jaxpr(Observer(tuple(seen), network))(network.parameters)).count("dot_")

    assert products(0.4, 0.3, 0.2, 0.1) == products(0.4) > 0


class Swing(eqx.Module):
    """sin(k a), whose k is data: one compilation serves all."""

    k: Array

    def __call__(self, network, task):
        """A number between -1 and 1."""
        return jnp.sin(self.k * strength(network))


def swinging(k, t1=T1, **options):
    """All of these runs are one program, in logs of 1,024 events."""
    options |= {"events": fl.Crossing(Swing(jnp.asarray(k, float))), "solver": diffrax.Dopri8()}
    return fl.gradient_flow(small(), RISING, t1, **options)


def gaps(network, task):
    """Twice NaN until a = 0.1 and from 0.4 to 0.6, once -inf until 0.2, once never a number."""
    a = strength(network)
    known = (a > 0.1) & ((a < 0.4) | (a > 0.6))
    late = jnp.log(jnp.maximum(a - 0.2, 0.0) / 0.1)
    return jnp.stack(
        [jnp.where(known, a - 0.3, jnp.nan), jnp.where(known, a - 0.5, jnp.nan), late, a * jnp.nan]
    )


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


FAST = {100: 31, 200: 63, 2000: 630}  # k of a swing, and how often it crosses zero


@pytest.fixture(scope="module")
def runs():
    """By k: a run that watches a swing, what has kinks and jumps, and what is not always a number.

    With the warnings that it gave.
    """
    found: dict[int, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        for k in FAST:
            swing = fl.Crossing(Swing(jnp.asarray(k, float)), name="swing")
            events = (fl.Crossing(gaps), fl.Crossing(several, name="kinks"), swing)
            with pytest.warns(fl.CrossingsWarning) as told:
                flow = fl.gradient_flow(small(), RISING, T1, events=events)
            found[k] = flow, [str(one.message) for one in told]
    return found


@pytest.mark.parametrize(("k", "number"), FAST.items())
def test_every_crossing_of_a_fast_observable_is_found(runs, k, number):
    flow, _ = runs[k]
    log = flow.events.select("swing")
    assert int(flow.stats["num_accepted_steps"]) < 40
    assert len(log) == number
    signs = np.asarray(log.new)
    assert np.all(signs[1:] == -signs[:-1])
    levels = np.pi * (int(k * 0.01 / np.pi) + 1 + np.arange(number)) / k
    levels = levels[levels < 0.99]
    np.testing.assert_allclose(log.time[: len(levels)], at(levels), rtol=1e-6, atol=1e-5)


def nothing_crosses_where_it_is_nan(flow, grain):
    """And all of that is told."""
    log = flow.events.select("crossing")
    assert sorted(log.index) == [(0,), (2,)]
    np.testing.assert_allclose(log.time, at(0.3), atol=grain)
    doubts = flow.events.unresolved
    assert int(flow.stats["unresolved_crossings"]) == int(doubts.count) == 5
    rows = np.stack([doubts.component, doubts.start, doubts.end], axis=1)[:5]
    told = [(k, *span) for k in (0, 1) for span in ((0, at(0.1)), (at(0.4), at(0.6)))]
    np.testing.assert_allclose(sorted(rows.tolist()), [*told, (3, 0, T1)], atol=grain)


def test_where_an_observable_is_nan_nothing_crosses_and_all_is_told(runs):
    for flow, (told,) in runs.values():
        assert "first those of comp" in told
        assert "it is NaN there" in told
        nothing_crosses_where_it_is_nan(flow, 1e-6)


@pytest.mark.usefixtures("without_type_checks")
def test_the_same_of_a_descent():
    with pytest.warns(fl.CrossingsWarning, match=r"first those of comp.* it is NaN there"):
        descent = fl.gradient_descent(small(), RISING, 0.1, t1=T1, events=(fl.Crossing(gaps),))
    nothing_crosses_where_it_is_nan(descent, 0.2)


def test_kinks_touches_and_jumps(runs):
    flow, _ = runs[100]
    found = {k: [] for k in range(6)}
    for row in flow.events.select("kinks").table():
        found[row["index"][0]].append(row)
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


@pytest.mark.slow
def test_what_is_too_fast_is_reported_in_log_stats_and_by_a_warning(tmp_path):
    with pytest.warns(fl.CrossingsWarning, match="crossings may be missing from the log"):
        flow = swinging(1e9, t1=1.0)
    doubts = flow.events.unresolved
    assert int(flow.stats["unresolved_crossings"]) == int(doubts.count) > 0
    start, end = np.asarray(doubts.start), np.asarray(doubts.end)
    real = np.isfinite(start)
    assert np.all((start < end)[real])
    assert np.all(end[real] <= 1.0)
    flow.save(tmp_path / "flow.npz")
    again = fl.load(tmp_path / "flow.npz").events.unresolved
    assert np.array_equal(again.start, doubts.start)


def test_a_file_without_the_field_still_loads():
    assert not fl.EventLog._fields_from_file({"unresolved": None})["unresolved"].count


@pytest.mark.slow
def test_hits_of_an_asymptote_are_told_from_others_by_their_uncertainty(tree, aligned):
    network, modes = aligned
    hits = fl.ModeHits(modes, modes.full_strength)
    flow = fl.gradient_flow(network, tree, 150.0, events=(hits,))
    assert 0 < len(flow.events) < 300
    assert np.mean(np.isinf(np.asarray(flow.events.uncertainty))) > 0.8
    assert np.min(np.asarray(flow.events.uncertainty)) > 1e-5
    assert int(flow.stats["unresolved_crossings"]) == 0


def flow_to_two(**options):
    return fl.gradient_flow(small(), RISING, 2.0, **options)


def descent_to_two(**options):
    return fl.gradient_descent(small(), RISING, 0.1, 20, **options)


@pytest.mark.parametrize("run", [descent_to_two, pytest.param(flow_to_two, marks=pytest.mark.slow)])
@pytest.mark.parametrize("terminate", [False, True])
def test_a_loss_that_is_met_from_the_start(run, terminate):
    found = run(events=(fl.LossBelow(0.6, terminate=terminate),))
    (row,) = found.events.table()
    assert (row["time"], row["old"], row["new"]) == (0.0, -1, -1)
    assert int(found.events.component_sides(0.0)[0]) == -1
    assert float(found.end) == (0.0 if terminate else pytest.approx(2.0))
    assert bool(found.result == fl.RESULTS.event_occurred) == terminate
    if terminate:
        assert np.array_equal(found.final.weights[0], small().weights[0])


def test_parts_follow_each_other_without_gaps():
    """Whatever is split, the parts that are not cover [0, 1] from left to right."""
    rng, end, part = np.random.default_rng(0), 0.0, StepPart.whole_step()
    while bool(part.is_inside):
        split = bool(part.level < 6) and rng.random() < 0.6
        low, high = part.part_ends(jnp.float64)
        assert float(low) == end
        end = end if split else float(high)
        part = part.next_part(jnp.asarray(split))
    assert end == 1.0


# ---- The search within one step.


def test_bracketed_root_is_tight_and_cheap():
    for f, root in (
        (lambda t: jnp.tanh(30 * (t - 0.3)), 0.3),
        (lambda t: (t - 0.7) ** 3, 0.7),
        (lambda t: jnp.where(t > 0.123, 1.0, -1e-9), 0.123),
        (lambda t: 0.3 - t, 0.3),
    ):
        rises = bool(f(1.0) > 0)
        found = jax.jit(lambda a, b, f=f, r=rises: bracket_root(f, a, b, r, 1e-12))(0.0, 1.0)
        low, high = map(float, found)
        assert 0 <= high - low <= 1e-12
        assert low - 1e-12 <= root <= high + 1e-12


def one_step(network, solver):
    """The path of one step along some smooth field, from t = 0 to 0.1."""
    field = diffrax.ODETerm(lambda t, y, args: jax.tree.map(lambda a: jnp.cos(9 * a + t), y))
    span = jnp.array(0.0), jnp.array(0.1)
    state = solver.init(field, *span, network.parameters, None)
    dense = solver.step(field, *span, network.parameters, None, state, False)[2]
    return StepPath(solver.interpolation_cls, *span, dense, network.parameters)


# Each depth and each interpolation once.
QUICK = ((5,), diffrax.Dopri8())
WAYS = [((), diffrax.Euler()), ((5, 4), diffrax.Dopri8()), ((5,), fl.RKC())]


@pytest.mark.parametrize(
    ("hidden", "solver"), [QUICK, *(pytest.param(*way, marks=pytest.mark.slow) for way in WAYS)]
)
def test_a_mode_strength_along_a_step_needs_no_matrices(tree, hidden, solver):
    """Reduced to one input and one output the network has the strength that it has in full."""
    widths, rng = (8, *hidden, 15), np.random.default_rng(0)
    weights = [rng.normal(size=n[::-1]) for n in pairwise(widths)]
    biases = [rng.normal(size=n) for n in widths[1:]]
    network, modes = fl.LinearNetwork(weights, biases), fl.theory.modes(tree, 1.0)
    nothing: Any = None
    (watch,) = fl.ModeHits(modes, 0.3).watches(posed(network, tree), nothing, nothing)

    @jax.jit
    def both(t):
        path = one_step(network, solver)
        full = modes.strengths(network.with_parameters(path(t)), tree) - 0.3
        along = watch.function.function_of_time
        return full, jax.vmap(lambda k: along(network, path, k)(t))(jnp.arange(9))

    for t in (0.0, 0.07, 0.1):
        full, along = both(t)
        assert jnp.allclose(full, along, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_one_component_agrees_with_all():
    """The cheap single component has the sign of the full array, and its value where it has one.

    Of a network without rounded kinks `test_all_crossings_of_a_wild_step` finds the same crossings.
    """
    kinks = fl.SmoothKinks(1e-2)
    task = fl.tasks.teacher(9, (2.0, 1.0, 0.5), key=jax.random.key(4))
    network = fl.ReLUNetwork.init(task, (6, 5), 0.3, key=jax.random.key(5))
    modes = fl.theory.modes(task, 1.0)
    events = (
        GateSwitches(),
        fl.UnitSwitches(0.0),
        fl.UnitSwitches(0.3),
        fl.ModeHits(modes, 0.1),
        fl.LossBelow(0.4),
    )
    goal = FullData(task, fl.SquaredError(), kinks.width)
    observer = Observer(tuple(user_watches(events, posed(network, task), goal, kinks)), network)

    @jax.jit
    def values():
        path = one_step(network, diffrax.Bosh3())
        there = network.with_parameters(path(0.03))
        every = observer(path(0.03))

        def component(k):
            return observer.select_watch(k, lambda watched, k: watched.component(there, k))

        def along(k):
            at = lambda watched, k: watched.function_of_time(network, path, k)(0.03)  # noqa: E731
            return observer.select_watch(k, at)

        return every, *(jax.vmap(f)(jnp.arange(len(every))) for f in (component, along))

    every, one, other = values()
    assert jnp.array_equal(every > 0, one > 0)
    assert 0 < int(jnp.sum(one > 0)) < len(every)
    gates = 2 * sum(network.hidden) * 9
    assert jnp.allclose(every[:gates], one[:gates], rtol=1e-12)
    assert jnp.allclose(one, other, rtol=1e-11, atol=1e-14)


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
    path = StepPath(kind, jnp.asarray(1.0), jnp.asarray(3.0), dense, y0)
    before = observer(y0)
    return StepCrossings(observer, path, y1, None, before, jnp.full_like(before, jnp.inf))


def found_and_true(events, network, keys, grid=2001):
    """By event: numbers of crossings per component, found and on a grid, (K, C) each."""
    goal, kinks = FullData(SAMPLES, fl.SquaredError()), IgnoreKinks()
    watches = tuple(user_watches(events, posed(network, SAMPLES), goal, kinks))
    observer = Observer(watches, network)

    @jax.jit
    def one(key):
        step = wild_step(observer, network, key)
        empty = Brackets.empty(step.start_values.shape[0], Unresolved.empty(jnp.float64))
        found, _ = step.find_crossings(empty)
        real = jnp.arange(found.capacity, dtype=found.count.dtype) < found.count
        none = jnp.zeros(step.start_values.shape[0])
        numbers = none.at[found.marks[:, 0]].add(real.astype(float))
        above = jax.lax.map(lambda t: observer(step.path(t)) > 0, jnp.linspace(1.0, 3.0, grid))
        return numbers, jnp.sum(above[1:] != above[:-1], axis=0), found.unresolved.count

    numbers, true, doubts = jax.lax.map(one, keys)
    assert int(jnp.sum(doubts)) == 0
    ends = np.cumsum([seen.channel.size for seen in watches])[:-1]
    return zip(*(np.split(np.asarray(a), ends, axis=1) for a in (numbers, true)), strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["relu", "linear"])
def test_all_crossings_of_a_wild_step(kind, monkeypatch):
    """Of gates, of units and of modes, where they are polynomials and where they are not."""
    monkeypatch.setattr("flowlin.events.order_statistics.UNIT_BATCH", 4)  # below their number
    hits = fl.ModeHits(fl.theory.modes(SAMPLES, 1.0), 0.1)
    units = fl.UnitSwitches(0.0), fl.UnitSwitches(0.3)
    events, network = {
        "relu": (
            (GateSwitches(), *units, hits),
            fl.ReLUNetwork.init(SAMPLES, 6, key=jax.random.key(5)),
        ),
        "linear": ((hits,), fl.LinearNetwork.init(SAMPLES, 6, key=jax.random.key(5))),
    }[kind]
    kinds = list(found_and_true(events, network, jax.random.split(jax.random.key(0), 40)))
    assert len(kinds) >= len(events)
    for found, true in kinds:
        assert np.max(true) > 1  # double crossings within a step
        # A pair of crossings closer than the grid is not on it.
        assert np.all(found >= true)
        assert np.mean(found != true) < 0.01


@pytest.mark.slow
def test_the_log_of_a_run_that_pauses_grows():
    """Some 1,260 crossings, where there is room for 1,024 at first."""
    plain = swinging(4000.0)
    paused = swinging(4000.0, progress=fl.LogProgress(1e-12, io.StringIO()))
    assert len(plain.events) > 1200
    assert np.array_equal(plain.events.time, paused.events.time)


# ---- Modes over many samples, which are looked at within a step only where they are near.


@pytest.mark.slow
def test_looks_where_modes_are_near_find_what_looks_everywhere_find(monkeypatch, seed):
    """On 1,200 samples; steps as large as a loose tolerance makes them, levels up and down."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1200, 5)) + 0.5
    task = fl.Task(x, np.maximum(x @ rng.normal(size=(5, 3)), 0) + 0.1 * rng.normal(size=(1200, 3)))
    network = fl.ReLUNetwork.init(task, 12, 1e-2, key=jax.random.key(seed))
    modes = fl.theory.modes(task, network)
    shares = {"one": np.array([0.1, 0.5, 0.9]), "other": np.array([0.9, 0.1, 0.5])}
    events = [fl.ModeHits(modes, share=share, name=name) for name, share in shares.items()]

    def run(**how):
        return fl.gradient_flow(
            network, task, 20.0, kinks=fl.IgnoreKinks(), solver=diffrax.Bosh3(), rtol=1e-3,
            events=events, **how,
        )  # fmt: skip

    near = run()
    monkeypatch.setattr(watch, "MANY_SAMPLES", 10**9)
    everywhere = run(max_events=3000)  # another room is another program
    assert len(everywhere.events) > 4
    assert near.events.index == everywhere.events.index
    np.testing.assert_allclose(near.events.time, everywhere.events.time, rtol=1e-9)


@pytest.mark.slow
def test_a_calm_mode_is_looked_at_by_its_speed_before():
    """A step at whose ends it is equal, with a peak beyond the level in between."""
    task = fl.Task(np.ones((1000, 1)), np.ones((1000, 1)))
    network = fl.ReLUNetwork((jnp.ones((1, 1)), jnp.ones((1, 1))))
    hits = fl.ModeHits(fl.theory.modes(task), 1.2)
    watches = tuple(hits.watches(posed(network, task), None, None))  # pyright: ignore
    observer = Observer(watches, network)

    def moved(a):
        return jax.tree.map(lambda z: a * jnp.ones_like(z), network.parameters)

    dense = {"y0": moved(1.0), "y1": moved(1.0), "k0": moved(1.0), "k1": moved(-1.0)}
    kind = diffrax.ThirdOrderHermitePolynomialInterpolation
    path = StepPath(kind, jnp.asarray(0.0), jnp.asarray(1.0), dense, moved(1.0))
    before = observer(moved(1.0))

    @jax.jit
    def found(speed):
        step = StepCrossings(observer, path, moved(1.0), None, before, jnp.full_like(before, speed))
        return step.find_crossings(Brackets.empty(1, Unresolved.empty(before.dtype)))[0].count

    # a = w^2 with w = 1 + t (1 - t): 1.56 in the middle, slope 2 at the ends.
    assert found(2.0) == 2
    assert found(0.0) == 0
