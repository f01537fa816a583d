"""Events: accuracy, order, direction, termination, overflow, and what the log says of them."""

import dataclasses
import functools
import sys
import warnings
from types import SimpleNamespace

import diffrax
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import flowlin as fl
from tests.tolerances import of_flow, of_time
from tests.zoo import jit

# ---- Against the closed form of hitting times.

RTOLS = (1e-5, 1e-7, 1e-9, 1e-11)
TSIT = diffrax.Tsit5()


@pytest.fixture(scope="module")
def hits(tree, aligned):
    """By rtol: flows that watch when modes have half of their full strength."""
    network, modes = aligned
    event = fl.ModeHits(modes, share=0.5)
    # By name, since a long run would try another solver, in a program of its own.
    options = {"events": (event,), "solver": diffrax.Dopri8()}
    return {r: fl.gradient_flow(network, tree, 60.0, rtol=r, **options) for r in RTOLS}


def test_hitting_times_agree_with_the_closed_form(tree, aligned, hits):
    network, modes = aligned
    driven, rho = np.asarray(modes.full_strength) > 0, 0.5 * modes.full_strength
    exact = fl.theory.hitting_time(rho, modes.s, modes.d, modes.strengths(network, tree))
    errors = []
    for rtol, flow in hits.items():
        found = flow.events.first("mode")
        assert len(flow.events) == 8
        assert np.array_equal(np.isfinite(found), driven)
        errors.append(np.max(np.abs(found / exact - 1)[driven]))
        assert errors[-1] < of_time(rtol)
        assert np.all(np.diff(flow.events.time) >= 0)
        assert np.all(np.asarray(flow.events.new) == 1)
        assert np.all(np.asarray(flow.events.old) == -1)
    assert np.polyfit(np.log(RTOLS), np.log(errors), 1)[0] > 0.7
    assert np.all(np.diff(errors) < 0)


def test_table_and_uncertainty(hits):
    rows = hits[1e-7].events.table()
    columns = {"time", "uncertainty", "name", "index", "old", "new", "promise", "reason"}
    assert set(rows[0]) == columns
    assert all(row["uncertainty"] >= 0 for row in rows)
    assert 1e-14 < max(row["uncertainty"] for row in rows) < 1e-4
    assert {row["promise"] for row in rows} == {"certified"}  # polynomials of the weights


# ---- Events of smooth flows have the error of the method, not that of its dense output.


RISING = fl.Task([[1.0]], [[1.0]])
STRENGTHS = np.linspace(0.1, 0.8, 8)


def rising_time(a):
    """When the strength a of the only mode, 0.01 at first, is so large."""
    return np.log(99 * a / (1 - a)) / 2


def strength(network, task):
    return network.weights[0][0, 0] * network.weights[1][0, 0]


def until_loss(level):
    """Return a run by Dopri8 until the loss is at a level, with its dense output."""
    network = fl.LinearNetwork((np.full((1, 1), 0.1), np.full((1, 1), 0.1)))
    events = (fl.Crossing(strength, level=STRENGTHS), fl.LossBelow(level, terminate=True))
    how = {"rtol": 1e-8, "solver": diffrax.Dopri8(), "dense": True}
    return fl.gradient_flow(network, RISING, 60.0, events=events, **how)


@pytest.fixture(scope="module")
def risen():
    """A run in which the mode passes all strengths."""
    return until_loss(0.005)


def root_on_dense_output(function, guess):
    """Return a function's root by the secant method."""
    times = [guess * (1 - 1e-3), guess]
    values = [function(t) for t in times]
    while values[1] != values[0] and abs(times[1] - times[0]) > 1e-14 * guess:
        slope = (values[1] - values[0]) / (times[1] - times[0])
        times = [times[1], times[1] - values[1] / slope]
        values = [values[1], function(times[1])]
    return times[1]


@pytest.mark.slow
def test_events_are_better_than_the_dense_output(risen):
    *rows, _ = risen.events.table()
    assert [row["index"] for row in rows] == [(k,) for k in range(8)]
    gains = []
    for row, level in zip(rows, STRENGTHS, strict=True):
        dense = root_on_dense_output(
            lambda t, level=level: float(strength(risen.network(t), RISING)) - level, row["time"]
        )
        error = abs(row["time"] - rising_time(level))
        assert error < row["uncertainty"]
        gains.append(abs(dense - rising_time(level)) / error)
    # Measured: 12 to 330. By the dense output's root it would be 1.
    assert min(gains) > 2, gains
    assert np.median(gains) > 5, gains


@pytest.mark.slow
def test_so_is_the_state_at_an_event(risen):
    level = 0.5 * float(risen.losses[0])  # while the mode is learnt
    flow = until_loss(level)
    assert flow.losses[-1] == pytest.approx(level, rel=1e-13)

    def time_off(there):
        a = float(strength(there, RISING))
        assert 0.1 < a < 0.9
        return abs(rising_time(a) - float(flow.end))

    there, dense = time_off(flow.final), time_off(flow.network(flow.end))
    assert there < dense / 4, (there, dense)
    # There the dense output ends, and the rows, where no times were asked for.
    with pytest.raises(ValueError, match="outside the run"):
        flow.network(1.001 * flow.end)
    assert flow.ts.tolist() == [0.0, float(flow.end)]


def test_shares_are_of_each_modes_full_strength(tree, aligned):
    network, modes = aligned
    shares = np.linspace(0.1, 0.9, 9)
    event = fl.ModeHits(modes, share=shares)
    (watch,) = event.watches(SimpleNamespace(network=network, task=tree), None, None)  # pyright: ignore
    gaps, full = np.asarray(watch.function(network)), np.asarray(modes.full_strength)
    expected = np.asarray(modes.strengths(network, tree)) - shares * full
    assert np.allclose(gaps[:8], expected[:8], rtol=1e-13)
    assert full[8] == 0
    assert gaps[8] == -np.max(shares * full)  # always below: what is not driven has no hits


# ---- A clock: with x = 1 and y = 0 the only weight relaxes as w = exp(-t), and tells the time.

RELAXING = fl.Task([[1.0]], [[0.0]])
RATES = np.array([1.0, 2.0, 7.0])
LEVELS = np.array([0.7, 1.9, 30.0])
ONE = fl.LinearNetwork((np.ones((1, 1)),))


def passed(network, task):
    """The time."""
    return -jnp.log(network.weights[0][0, 0])


def waves(network, task):
    """Three sines of it."""
    return jnp.sin(RATES * passed(network, task) + 0.3)


EVENTS = (
    fl.Crossing(waves),
    fl.Crossing(waves, direction="up", name="up"),
    fl.Crossing(waves, direction="down", name="down"),
    fl.Crossing(passed, level=LEVELS, name="passed"),
    fl.LossBelow(0.05),
)


def relaxing(events=EVENTS, network=ONE, **options):
    return fl.gradient_flow(network, RELAXING, 6.0, events=events, rtol=1e-10, **options)


def passing(network=ONE, **options):
    """With three events, of which there are as many programs as there are rooms for events."""
    return relaxing(EVENTS[-2:], network, solver=TSIT, **options)


@pytest.fixture(scope="module")
def watched():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        return relaxing()


def test_every_component_every_time_in_order(watched):
    log = watched.events.select("crossing")
    zeros = [((k * np.pi - 0.3) / r, i) for i, r in enumerate(RATES) for k in range(1, 15)]
    expected = sorted((t, i) for t, i in zeros if t < 6.0)
    assert log.index == [(i,) for _, i in expected]
    np.testing.assert_allclose(log.time, [t for t, _ in expected], rtol=of_time(1e-10))
    assert np.all(np.diff(watched.events.time) >= 0)


@pytest.mark.parametrize(("direction", "sign"), [("up", 1), ("down", -1)])
def test_direction(watched, direction, sign):
    both, one = (watched.events.select(name) for name in ("crossing", direction))
    wanted = np.asarray(both.time)[np.asarray(both.new) == sign]
    assert 0 < len(one) < len(both)
    np.testing.assert_allclose(one.time, wanted, rtol=1e-12)
    assert np.all(np.asarray(one.new) == sign)


def test_levels_names_and_the_loss(watched):
    log = watched.events.select("passed")
    np.testing.assert_allclose(log.time, LEVELS[:2], rtol=of_time(1e-10))
    assert log.index == [(0,), (1,)]
    assert log.name == ["passed"] * 2
    (loss,) = watched.events.select("loss").table()
    assert loss["time"] == pytest.approx(np.log(10) / 2, rel=of_time(1e-10))  # exp(-2 t) / 2
    with pytest.raises(ValueError, match="`name` = 'mode': no such events were watched"):
        watched.events.select("mode")


@pytest.mark.usefixtures("without_type_checks")
def test_sides_at_a_time(watched):
    t = np.array([0.5, 4.0])
    sides = np.sign(np.sin(RATES * t[:, None] + 0.3))
    assert np.array_equal(watched.events.component_sides(4.0)[:3], sides[1])
    assert np.array_equal(jax.vmap(watched.events.component_sides)(t)[:, :3], sides)
    with pytest.raises(ValueError, match=r"`t` must be a single number, got shape \(2,\)"):
        watched.events.component_sides(t)


def test_first_times_by_component(watched):
    log = watched.events
    np.testing.assert_allclose(log.first("crossing"), (np.pi - 0.3) / RATES, rtol=of_time(1e-10))
    assert np.isinf(log.first("passed")[2])
    assert log.first("loss").shape == ()
    narrow = dataclasses.replace(log, time=jnp.asarray(log.time, np.float32))
    assert narrow.first("passed").dtype == np.float32
    none = log.where(log.time > 9)
    assert np.all(np.isinf(none.first("passed")))
    with pytest.raises(ValueError, match="`name` = 'hit': no such events were watched"):
        log.first("hit")
    with pytest.raises(ValueError, match=r"`events\.first` is of one log, and these are stacked"):
        jax.tree.map(lambda a: jnp.stack([a, a]), log).first("passed")


@pytest.fixture(scope="module")
def stopped():
    event = fl.Crossing(passed, level=np.array([1.9, 1.2345, 1.95]), terminate=True)
    return relaxing((event,), ts=np.linspace(0, 6, 601))


def test_the_earliest_terminating_component_stops_the_run_there_and_later_events_go(stopped):
    flow, end = stopped, 1.2345
    assert float(flow.end) == pytest.approx(end, rel=of_time(1e-10))
    assert bool(flow.result == fl.RESULTS.event_occurred)
    assert flow.events.index == [(1,)]
    assert flow.ts.shape == (125,)
    assert float(flow.ts[-1]) == float(flow.end)
    assert float(flow.final.weights[0][0, 0]) == pytest.approx(np.exp(-end), rel=of_flow(1e-10))


@pytest.mark.slow
def test_overflow_raises_and_keeps_what_fits():
    overflown = passing(max_events=2, throw=False)
    assert bool(overflown.result == fl.RESULTS.event_overflow)
    assert int(overflown.events.count) == 3
    assert float(overflown.end) == 6.0
    with pytest.raises(fl.RunError, match="3 events happened and `max_events` = 2") as caught:
        passing(max_events=2)
    assert len(caught.value.trajectory.events) == 2


@pytest.mark.slow
def test_small_buffers_grow_on_their_own(monkeypatch):
    """The steps are taken again with more room, here from the third event on."""
    begun = sys.modules["flowlin.runs.gradient_flow"]
    monkeypatch.setattr(begun, "initial_capacity", lambda watches, most: 2)
    flow = passing(max_events=8)
    times = [LEVELS[0], np.log(10) / 2, LEVELS[1]]
    np.testing.assert_allclose(flow.events.time, times, rtol=of_time(1e-10))
    assert flow.events.name == ["passed", "loss", "passed"]


@pytest.mark.parametrize(
    "run",
    [
        fl.gradient_flow,
        functools.partial(fl.gradient_descent, steps=1),
        functools.partial(
            fl.stochastic_gradient_descent, steps=1, batch_size=1, key=jax.random.key(0)
        ),
    ],
    ids=["flow", "descent", "sgd"],
)
def test_no_two_events_of_a_run_share_a_name(run):
    modes = fl.theory.modes(RELAXING, ONE)
    first = fl.Crossing(passed)
    for events, said in (
        (
            (fl.LossBelow(1.0), fl.LossBelow(0.5)),
            r"'loss', LossBelow and LossBelow.*name=\"loss 2\"",
        ),
        ((fl.ModeHits(modes, 0.1), fl.ModeHits(modes, 0.9)), "'mode', ModeHits and ModeHits"),
        ((first, fl.Crossing(waves)), "'crossing', Crossing and Crossing"),
        ((first, fl.LossBelow(1.0, name="crossing")), "'crossing', Crossing and LossBelow"),
        ((fl.LossBelow(1.0, name="gate"),), "'gate', a run's gates and LossBelow"),
    ):
        with pytest.raises(ValueError, match=rf"`events`: two are named {said}"):
            run(ONE, RELAXING, 0.1, events=events)


def test_units_that_are_asked_for_twice_are_to_be_asked_for_once():
    network = fl.ReLUNetwork((np.ones((1, 1)), np.ones((1, 1))))
    units = fl.UnitSwitches(0.2)
    with pytest.raises(ValueError, match=r"'always_off\(0.2\)', UnitSwitches and .*leave one out"):
        fl.gradient_flow(
            network, RELAXING, 0.1, events=(units, fl.UnitSwitches(0.2)), kinks=fl.IgnoreKinks()
        )


@pytest.mark.slow
def test_loss_below_uses_the_runs_loss():
    """The sum over three samples, 3 w^2 / 2."""
    task = fl.Task(np.ones((3, 1)), np.zeros((3, 1)))
    event = fl.LossBelow(0.5, terminate=True)
    options = {"events": (event,), "loss": fl.SquaredError("sum"), "solver": TSIT}
    flow = fl.gradient_flow(ONE, task, 60.0, **options)
    assert float(flow.losses[-1]) == pytest.approx(0.5, rel=1e-7)
    assert float(flow.final.weights[0][0, 0]) == pytest.approx(3**-0.5, rel=1e-7)


@pytest.mark.slow
def test_padding_under_jit_and_vmap():
    """Of three starts: one passes two levels, one the second alone, one neither."""
    starts = np.exp(-np.array([0.0, 1.0, 2.5]))[:, None, None]

    def run(w):
        return passing(fl.LinearNetwork((w,)), max_events=8)

    batch = jit(jax.vmap(run))(starts)
    assert batch.events.time.shape == (3, 8)
    first = jax.vmap(lambda log: log.first("passed"))(batch.events)
    counts = []
    for i, start in enumerate(starts):
        single = run(start)
        counts.append(int(batch.events.count[i]))
        assert counts[i] == len(single.events)
        assert np.allclose(batch.events.time[i, : counts[i]], single.events.time, rtol=1e-9)
        assert np.allclose(first[i], single.events.first("passed"), rtol=1e-9)
        assert np.all(np.isinf(np.asarray(batch.events.time[i, counts[i] :])))
        assert np.allclose(batch.final.weights[0][i], single.final.weights[0], rtol=1e-8)
    assert counts == [3, 2, 1]


@pytest.fixture(scope="module")
def opaque():
    """An event that swings, and a flow that watches it, one that jumps, and a flat root."""

    def share_above(network, task):
        return jnp.mean((network.outputs(task.x) > 0.5).astype(float))

    swing = fl.Crossing(lambda n, t: jnp.sin(50 * n.weights[0][0, 0]), name="swing")
    flat = fl.Crossing(lambda n, t: (fl.measures.loss(n, t) - 0.1) ** 5, name="flat")
    events = swing, fl.Crossing(share_above, 0.1, name="share"), flat
    # Beside a root of fifth order a search sees nothing, and may say so of the steps next to it.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "crossings may be missing.* event 'flat'")
        return swing, fl.gradient_flow(ONE, RELAXING, 6.0, events=events, solver=TSIT)


@pytest.mark.slow
def test_promises_say_how_surely_crossings_are_found(opaque):
    """A share of outputs has no slope; every step of a descent is looked at."""
    swing, flow = opaque
    promises = {channel.name: channel.promise for channel in flow.events.channels}
    assert promises == {"swing": "sampled", "share": "bisected", "flat": "sampled"}
    rows = flow.events.table()
    assert {(row["name"], row["promise"]) for row in rows} >= {("share", "bisected")}
    descent = fl.gradient_descent(ONE, RELAXING, 1e-2, 9, events=(swing,))
    assert descent.events.channels[0].promise == "certified"


@pytest.mark.slow
def test_a_flat_root_is_known_to_a_step(opaque):
    """Of fifth order: its value over its slope would be any number, 5e40 in one case."""
    (row,) = opaque[1].events.select("flat").table()
    assert row["uncertainty"] < 10
