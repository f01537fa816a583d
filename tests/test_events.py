"""Events: accuracy, order, direction, double crossings, termination, overflow, derivatives."""

import dataclasses
import functools
from itertools import pairwise

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin.record.event_log import Channel, EventLog


def hitting_error(tree, aligned, rtol):
    network, modes = aligned
    hits, rho = fl.ModeHits(modes, share=0.5), 0.5 * modes.full_strength
    flow = fl.gradient_flow(network, tree, 60.0, events=(hits,), rtol=rtol)
    exact = fl.theory.hitting_time(rho, modes.s, modes.d, modes.strengths(network, tree))
    found = flow.events.first("mode")
    assert len(flow.events) == 8
    driven = modes.full_strength > 0
    assert np.array_equal(np.isfinite(found), driven)
    return np.max(np.abs(found / exact - 1)[driven]), flow


def test_hitting_times_agree_with_the_closed_form(tree, aligned):
    error, flow = hitting_error(tree, aligned, 1e-10)
    assert error < 1e-9
    assert np.all(np.diff(np.asarray(flow.events.time)) >= 0)
    assert np.all(np.asarray(flow.events.new) == 1)
    assert np.all(np.asarray(flow.events.old) == -1)


def test_event_error_falls_with_the_tolerance(tree, aligned):
    rtols = np.array([1e-5, 1e-7, 1e-9, 1e-11])
    errors = [hitting_error(tree, aligned, r)[0] for r in rtols]
    assert np.polyfit(np.log(rtols), np.log(errors), 1)[0] > 0.7
    assert np.all(np.diff(errors) < 0)


# A network with one weight per layer and known motion, to build observables of time: with x = y = 0
# nothing moves; with a single layer and x = 1 the weight relaxes as w = exp(-t).
RELAXING = fl.Task([[1.0]], [[0.0]])


def clock(network):
    """Flow time read off the relaxing weight."""
    return -jnp.log(network.weights[0][0, 0])


@functools.cache  # one function each, for one program
def of_clock(observable):
    return lambda n, task: observable(clock(n))


def passed(t):
    return t


def wave(t):
    return jnp.sin(2 * t + 0.3)


def relaxing_flow(observable, t1=6.0, **options):
    network = fl.LinearNetwork((jnp.ones((1, 1)),))
    event = fl.Crossing(
        of_clock(observable),
        **{k: options.pop(k) for k in ("level", "direction", "terminate") if k in options},
    )
    return fl.gradient_flow(network, RELAXING, t1, events=(event,), rtol=1e-10, **options)


@pytest.mark.usefixtures("without_type_checks")
def test_every_component_every_time_in_order():
    rates = jnp.array([1.0, 2.0, 3.5])
    flow = relaxing_flow(lambda t: jnp.sin(rates * t + 0.3))
    expected = sorted(
        ((k * np.pi - 0.3) / r, i)
        for i, r in enumerate([1.0, 2.0, 3.5])
        for k in range(1, 20)
        if (k * np.pi - 0.3) / r < 6.0
    )
    assert len(flow.events) == len(expected)
    assert np.allclose(np.asarray(flow.events.time), [t for t, _ in expected], atol=1e-8)
    assert flow.events.index == [(i,) for _, i in expected]
    assert np.allclose(flow.events.first("crossing"), (np.pi - 0.3) / rates, atol=1e-8)
    times = jnp.array([0.5, 4.0])
    sides = np.sign(np.sin(rates * times[:, None] + 0.3))
    assert np.array_equal(flow.events.sides(4.0), sides[1])
    assert np.array_equal(jax.vmap(flow.events.sides)(times), sides)
    with pytest.raises(ValueError, match=r"`t` must be a single number, got shape \(2,\)"):
        flow.events.sides(times)


@pytest.mark.parametrize(("direction", "sign"), [("up", 1), ("down", -1)])
def test_direction(direction, sign):
    both = relaxing_flow(wave).events
    one = relaxing_flow(wave, direction=direction).events
    wanted = np.asarray(both.time)[np.asarray(both.new) == sign]
    assert 0 < len(one) < len(both)
    assert np.allclose(np.asarray(one.time), wanted, rtol=1e-12)
    assert np.all(np.asarray(one.new) == sign)


def test_two_crossings_within_one_step_are_found():
    # Steps of 1.0; the parabola is negative for 0.26 around t = 2.55, inside the third step.
    network = fl.LinearNetwork((jnp.ones((1, 1)),))
    event = fl.Crossing(lambda n, task: (clock(n) - 2.55) ** 2 - 0.13**2)
    from flowlin.engine.kinks.policies import IgnoreKinks
    from flowlin.engine.recorder import Recorder
    from flowlin.events.watch import Observer
    from flowlin.training.objective import FullData
    from flowlin.training.rules import GradientField

    goal = FullData(RELAXING, fl.SquaredError())
    watches = tuple(event.watches(network, RELAXING, goal, IgnoreKinks()))
    recorder = Recorder(diffrax.Dopri8(), Observer(watches, network), 8, "lax")
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(GradientField(goal, network, jnp.ones(()))),
        recorder, 0.0, 4.0, 1.0, network.parameters,
        saveat=diffrax.SaveAt(solver_state=True),
        stepsize_controller=diffrax.ConstantStepSize(),
    )  # fmt: skip
    log = solution.solver_state.log
    assert solution.stats["num_steps"] == 4
    assert int(log.count) == 2
    assert np.allclose(np.sort(log.time[:2]), [2.42, 2.68], atol=1e-4)


def test_rejected_steps_leave_no_events():
    flow = relaxing_flow(lambda t: jnp.sin(7 * t + 0.3), solver=diffrax.Tsit5())
    expected = [(k * np.pi - 0.3) / 7 for k in range(1, 14)]
    assert int(flow.stats["num_rejected_steps"]) >= 0
    assert np.allclose(np.asarray(flow.events.time), expected, atol=1e-8)


def test_array_levels_and_names():
    flow = relaxing_flow(passed, level=jnp.array([0.7, 1.9, 30.0]))
    assert np.allclose(np.asarray(flow.events.time), [0.7, 1.9], rtol=1e-9)
    assert flow.events.index == [(0,), (1,)]
    assert flow.events.name == ["crossing"] * 2
    with pytest.raises(ValueError, match="`name` = 'loss': no such events were watched"):
        flow.events.select("loss")


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
    network = fl.LinearNetwork((jnp.ones((1, 1)),))
    modes = fl.theory.modes(RELAXING, network)
    first = fl.Crossing(of_clock(passed))
    for events, said in (
        (
            (fl.LossBelow(1.0), fl.LossBelow(0.5)),
            r"'loss', LossBelow and LossBelow.*name=\"loss 2\"",
        ),
        ((fl.ModeHits(modes, 0.1), fl.ModeHits(modes, 0.9)), "'mode', ModeHits and ModeHits"),
        ((first, fl.Crossing(of_clock(wave))), "'crossing', Crossing and Crossing"),
        ((first, fl.LossBelow(1.0, name="crossing")), "'crossing', Crossing and LossBelow"),
        ((fl.LossBelow(1.0, name="gate"),), "'gate', a run's gates and LossBelow"),
    ):
        with pytest.raises(ValueError, match=rf"`events`: two are named {said}"):
            run(network, RELAXING, 0.1, events=events)


def test_units_that_are_asked_for_twice_are_to_be_asked_for_once():
    network = fl.ReLUNetwork((jnp.ones((1, 1)), jnp.ones((1, 1))))
    units = fl.UnitSwitches(0.2)
    with pytest.raises(ValueError, match=r"'always_off\(0.2\)', UnitSwitches and .*leave one out"):
        fl.gradient_flow(
            network, RELAXING, 0.1, events=(units, fl.UnitSwitches(0.2)), kinks=fl.IgnoreKinks()
        )


def test_terminating_event_stops_the_run_at_the_event():
    ts = jnp.linspace(0, 6, 601)
    flow = relaxing_flow(passed, level=1.2345, terminate=True, ts=ts, dense=True)
    assert float(flow.end) == pytest.approx(1.2345, rel=1e-9)
    assert bool(flow.result == fl.RESULTS.event_occurred)
    assert flow.ts.shape == (124,)
    assert float(flow.final.weights[0][0, 0]) == pytest.approx(np.exp(-1.2345), rel=1e-9)
    assert float(flow.network(flow.end).weights[0][0, 0]) == pytest.approx(
        np.exp(-1.2345), rel=1e-9
    )
    with pytest.raises(ValueError, match="outside the run"):
        flow.network(1.3)


def test_terminating_run_with_default_rows_ends_at_the_event():
    flow = relaxing_flow(passed, level=1.2345, terminate=True)
    assert np.allclose(np.asarray(flow.ts), [0.0, 1.2345], rtol=1e-9)
    assert float(flow.losses[-1]) == pytest.approx(0.5 * np.exp(-2.469), rel=1e-8)


def test_the_earliest_of_several_terminating_components_wins_and_later_events_go():
    levels = jnp.array([1.9, 1.85, 1.95])
    flow = relaxing_flow(passed, level=levels, terminate=True)
    assert float(flow.end) == pytest.approx(1.85, rel=1e-8)
    assert flow.events.index == [(1,)]


def test_loss_below_uses_the_runs_loss(tree, key):
    network = fl.LinearNetwork.init(tree, 16, key=key)
    event = fl.LossBelow(0.5, terminate=True)
    for loss, level in ((fl.SquaredError(), 0.5), (fl.SquaredError("sum"), 0.5)):
        flow = fl.gradient_flow(network, tree, 60.0, events=(event,), loss=loss)
        assert float(flow.losses[-1]) == pytest.approx(level, rel=1e-7)
        value = loss(flow.final.outputs(tree.x), tree.y)
        assert float(value) == pytest.approx(level, rel=1e-7)


def test_overflow_raises_and_keeps_what_fits(tree, aligned):
    network, modes = aligned
    hits = fl.ModeHits(modes, 0.5 * modes.full_strength)
    with pytest.raises(fl.RunError, match="8 events happened and `max_events` = 3") as caught:
        fl.gradient_flow(network, tree, 60.0, events=(hits,), max_events=3)
    assert len(caught.value.trajectory.events) == 3
    flow = fl.gradient_flow(network, tree, 60.0, events=(hits,), max_events=3, throw=False)
    assert bool(flow.result == fl.RESULTS.event_overflow)
    assert int(flow.events.count) == 8
    assert float(flow.end) == 60.0


def test_small_buffers_grow_on_their_own():
    phases = np.linspace(0.1, 3.0, 600)
    flow = relaxing_flow(lambda t: jnp.sin(2 * t + phases))
    expected = sum(int(np.floor((12.0 + phase) / np.pi)) for phase in phases)
    assert expected > 2048  # more than the first attempt's capacity
    assert len(flow.events) == expected


def test_padding_under_vmap_and_jit(tree):
    keys = jax.random.split(jax.random.key(0), 3)
    networks = jax.vmap(lambda k: fl.LinearNetwork.init(tree, 8, key=k))(keys)
    modes = fl.theory.modes(tree, 1.0)
    hits = fl.ModeHits(modes, 0.5 * modes.full_strength)

    def run(network):
        return fl.gradient_flow(network, tree, 15.0, events=(hits,), max_events=20)

    batch = jax.vmap(run)(networks)
    assert batch.events.time.shape == (3, 20)
    first = jax.vmap(lambda log: log.first("mode"))(batch.events)
    for i in range(3):
        single = run(jax.tree.map(lambda a, i=i: a[i], networks))
        count = int(batch.events.count[i])
        assert count == len(single.events)
        assert np.allclose(batch.events.time[i, :count], single.events.time, rtol=1e-9)
        assert np.allclose(first[i], single.events.first("mode"), rtol=1e-9)
        assert np.all(np.isinf(np.asarray(batch.events.time[i, count:])))
        assert np.allclose(batch.final.weights[0][i], single.final.weights[0], rtol=1e-8)
    jitted = jax.jit(run)(jax.tree.map(lambda a: a[0], networks))
    assert jitted.events.time.shape == (20,)
    assert int(jitted.events.count) == int(batch.events.count[0])
    assert jitted.events.select("mode").time.shape[0] <= 20


def test_shares_are_of_each_modes_full_strength(tree, aligned):
    network, modes = aligned
    shares = np.linspace(0.1, 0.9, 9)
    (watch,) = fl.ModeHits(modes, share=shares).watches(network, tree, None, None)
    gaps, full = watch.function(network), modes.full_strength
    expected = modes.strengths(network, tree) - shares * full
    assert np.allclose(gaps[:8], expected[:8], rtol=1e-13)
    assert full[8] == 0
    assert gaps[8] == -np.max(shares * full)  # always below: what is not driven has no hits


def test_first_times_by_component():
    channels = (
        Channel("gate", (2, 3), (0,)), Channel("gate", (2, 3), (1,)),
        Channel("mode", (2, 2)), Channel("loss", ()),
    )  # fmt: skip
    log = EventLog(
        time=jnp.array([1.0, 2.0, 3.0, 4.0]), uncertainty=jnp.zeros(4),
        component=jnp.array([13, 4, 13, 12]), old=jnp.array([-1, -1, 1, -1]),
        new=jnp.array([1, 1, -1, 1]), count=jnp.array(4), initial=jnp.zeros(17, int),
        channels=channels,
    )  # fmt: skip
    assert np.array_equal(log.first("mode"), [[4.0, 1.0], [np.inf, np.inf]])
    assert log.first("loss").shape == ()
    assert np.isinf(log.first("loss"))
    single = dataclasses.replace(log, time=log.time.astype(jnp.float32)).first("mode")
    assert single.dtype == jnp.float32
    none = log.where(log.time > 9)
    assert np.all(np.isinf(none.first("mode")))
    with pytest.raises(ValueError, match="`name` = 'gate': 2 arrays of such events"):
        log.first("gate")
    with pytest.raises(ValueError, match="`name` = 'hit': no such events were watched"):
        log.first("hit")
    with pytest.raises(ValueError, match=r"`events\.first` is of one log, and these are stacked"):
        jax.tree.map(lambda a: jnp.stack([a, a]), log).first("mode")


def test_table_and_uncertainty(tree, aligned):
    _, flow = hitting_error(tree, aligned, 1e-8)
    rows = flow.events.table()
    assert set(rows[0]) == {"time", "uncertainty", "name", "index", "old", "new"}
    assert all(row["uncertainty"] >= 0 for row in rows)
    assert 1e-14 < max(row["uncertainty"] for row in rows) < 1e-5


@pytest.mark.parametrize(
    ("hidden", "kinks"), [((6,), fl.IgnoreKinks()), ((6, 5), fl.SmoothKinks(1e-2))]
)
def test_one_component_agrees_with_all(hidden, kinks):
    """The cheap single component has the sign of the full array, and its value where it has one."""
    from flowlin.events.events import GateSwitches, user_watches
    from flowlin.events.watch import Observer
    from flowlin.training.objective import FullData

    task = fl.tasks.teacher(9, (2.0, 1.0, 0.5), key=jax.random.key(4))
    network = fl.ReLUNetwork.init(task, hidden, 0.3, key=jax.random.key(5))
    modes = fl.theory.modes(task, 1.0)
    events = (
        GateSwitches(),
        fl.UnitSwitches(0.0),
        fl.UnitSwitches(0.3),
        fl.ModeHits(modes, 0.1),
        fl.LossBelow(0.4),
    )
    goal = FullData(task, fl.SquaredError(), kinks.width)
    observer = Observer(tuple(user_watches(events, network, task, goal, kinks)), network)

    @jax.jit
    def values():
        path = one_step(network, diffrax.Bosh3())
        there = network.with_parameters(path(0.03))
        every = observer(path(0.03))

        def component(k):
            return observer.switch(k, lambda watched, k: watched.component(there, k))

        def along(k):
            return observer.switch(k, lambda watched, k: watched.along(network, path, k)(0.03))

        return every, *(jax.vmap(f)(jnp.arange(len(every))) for f in (component, along))

    every, one, other = values()
    assert jnp.array_equal(every > 0, one > 0)
    assert 0 < int(jnp.sum(one > 0)) < len(every)
    gates = sum(network.hidden) * 9 * (1 if kinks.width is None else 2)
    assert jnp.allclose(every[:gates], one[:gates], rtol=1e-12)
    assert jnp.allclose(one, other, rtol=1e-11, atol=1e-14)


def one_step(network, solver):
    """The path of one step along some smooth field, from t = 0 to 0.1."""
    from flowlin.events.watch import Path

    field = diffrax.ODETerm(lambda t, y, args: jax.tree.map(lambda a: jnp.cos(9 * a + t), y))
    span = jnp.array(0.0), jnp.array(0.1)
    state = solver.init(field, *span, network.parameters, None)
    dense = solver.step(field, *span, network.parameters, None, state, False)[2]
    return Path(solver.interpolation_cls, *span, dense, network.parameters)


@pytest.mark.parametrize("solver", [diffrax.Euler(), diffrax.Dopri8(), fl.RKC()])
@pytest.mark.parametrize("hidden", [(), (5,), (5, 4)])
def test_a_mode_strength_along_a_step_needs_no_matrices(tree, hidden, solver):
    """Reduced to one input and one output the network has the strength that it has in full."""
    widths, keys = (8, *hidden, 15), jax.random.split(jax.random.key(0), 2 * len(hidden) + 2)
    weights = [jax.random.normal(k, n[::-1]) for k, n in zip(keys, pairwise(widths), strict=False)]
    biases = [jax.random.normal(k, (n,)) for k, n in zip(keys[::-1], widths[1:], strict=False)]
    network, modes = fl.LinearNetwork(weights, biases), fl.theory.modes(tree, 1.0)
    (watch,) = fl.ModeHits(modes, 0.3).watches(network, tree, None, None)

    @jax.jit
    def both(t):
        path = one_step(network, solver)
        full = modes.strengths(network.with_parameters(path(t)), tree) - 0.3
        return full, jax.vmap(lambda k: watch.function.along(network, path, k)(t))(jnp.arange(9))

    for t in (0.0, 0.07, 0.1):
        full, along = both(t)
        assert jnp.allclose(full, along, rtol=1e-12, atol=1e-14)


def test_bracketed_root_is_tight_and_cheap():
    from flowlin._tools.series import bracketed_root

    for f, root in (
        (lambda t: jnp.tanh(30 * (t - 0.3)), 0.3),
        (lambda t: (t - 0.7) ** 3, 0.7),
        (lambda t: jnp.where(t > 0.123, 1.0, -1e-9), 0.123),
    ):
        low, high = bracketed_root(f, jnp.array(0.0), jnp.array(1.0), True, 1e-12)
        assert 0 <= high - low <= 1e-12
        assert low - 1e-12 <= root <= high + 1e-12
    low, high = bracketed_root(lambda t: 0.3 - t, jnp.array(0.0), jnp.array(1.0), False, 1e-12)
    assert low <= 0.3 <= high
