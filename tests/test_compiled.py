"""Programs are compiled for distinct arrays: what a run holds several times is computed once."""

import diffrax
import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin._tools import numerics as compiled
from flowlin._tools.numerics import earlier, jit_by_array


def test_an_array_that_occurs_twice_is_handed_over_once():
    traced = []

    @jit_by_array
    def function(tree, power):
        traced.append(tree)
        return {name: value**power for name, value in tree.items()}

    a, b = jnp.arange(3.0), jnp.ones(3)
    out = function({"x": a, "y": b, "z": a}, 2)
    assert traced[0]["x"] is traced[0]["z"]
    assert traced[0]["x"] is not traced[0]["y"]
    assert jnp.array_equal(out["z"], a**2)
    assert jnp.array_equal(out["y"], b**2)
    function({"x": b, "y": a, "z": b}, 2)
    assert len(traced) == 1, "compiled again for other arrays in the same places"
    out = function({"x": a, "y": a, "z": b}, 2)
    assert len(traced) == 2
    assert jnp.array_equal(out["z"], b**2)


SMALL = fl.Task([[1.0]], [[1.0]])


def test_small_arrays_have_an_option_and_others_none(monkeypatch):
    """An option that XLA does not know shows where it is handed over."""
    monkeypatch.setattr(compiled, "OLDER_LOOPS", {"xla_unknown": True})
    monkeypatch.setattr(compiled, "_knows_older_loops", lambda: True)
    function = jit_by_array(jnp.sum)
    with pytest.raises(RuntimeError, match="xla_unknown"):
        function(jnp.ones(2))
    assert float(function(jnp.ones(compiled.SMALL + 1))) == compiled.SMALL + 1
    assert float(jax.jit(lambda: function(jnp.ones(2)))()) == 2
    assert float(jax.grad(function)(jnp.ones(2))[0]) == 1
    assert float(jax.vmap(function)(jnp.ones((1, 2)))[0]) == 2


def test_an_option_is_left_out_where_xla_does_not_know_it(monkeypatch):
    monkeypatch.setattr(compiled, "OLDER_LOOPS", {"xla_unknown": True})
    compiled._knows_older_loops.cache_clear()
    assert float(jit_by_array(jnp.sum)(jnp.ones(2))) == 2
    compiled._knows_older_loops.cache_clear()


def test_all_parts_of_a_run_hold_the_same_task(key):
    """A copy in one of them would cost a forward pass of its own."""
    task = fl.tasks.teacher(30, (2.0, 1.0), key=key)
    network = fl.ReLUNetwork.init(task, 4, 0.1, key=key)
    events = (fl.UnitSwitches(), fl.LossBelow(0.1))
    flow = fl.gradient_flow(network, task, 0.1, events=events, kinks=fl.AveragedKinks(), rtol=1e-3)
    leaves = jax.tree.leaves(flow.reference.run)
    data = [leaf for leaf in leaves if getattr(leaf, "shape", None) == task.x.shape]
    assert len(data) >= 10
    assert all(leaf is task.x or leaf is task.y for leaf in data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_earlier_floats_are_those_of_numpy(dtype):
    for t in np.asarray([1e-30, 0.3, 1.0, 2.0**-3, 60.0, 1e20], dtype):
        before = [t]
        for _ in range(100):
            before.append(np.nextafter(before[-1], dtype(-np.inf)))
        assert earlier(jnp.asarray(t), 100) == before[100]
        assert jax.jit(lambda t: earlier(t, 100))(t).dtype == dtype


@pytest.fixture(scope="module")
def durations():
    """Durations of all compilations from now on."""
    found = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return found


def test_what_equals_the_default_compiles_nothing(durations, key):
    task = fl.tasks.teacher(30, (2.0, 1.0), key=key)
    network = fl.LinearNetwork.init(task, 4, 0.1, key=key)
    first = fl.gradient_flow(network, task, 1.0)
    assert durations
    durations.clear()
    other = fl.LinearNetwork.init(task, 4, 0.1, key=jax.random.key(1))
    durations.clear()
    named = fl.gradient_flow(other, task, 2.0, solver=diffrax.Dopri8(), kinks=fl.IgnoreKinks())
    assert not durations
    assert named.stats["solver_because"] == "as asked for"
    assert first.stats["solver_because"] != "as asked for"
    # Tolerances are numbers of a run, not of its program, in a controller of the user's too.
    for rtol in (1e-6, 1e-7):
        durations.clear()
        control = diffrax.PIDController(rtol=rtol, atol=1e-9)
        fl.gradient_flow(network, task, 1.0, stepsize_controller=control)
    assert not durations


def test_a_walk_that_equals_the_default_compiles_nothing(durations, key):
    task = fl.tasks.hierarchy(levels=2)
    one, other = (fl.ReLUNetwork.init(task, 4, 0.1, key=jax.random.key(k)) for k in (0, 1))
    fl.gradient_flow(one, task, 1.0)
    assert durations
    durations.clear()
    fl.gradient_flow(other, task, 2.0, solver=diffrax.Tsit5(), kinks=fl.ExactKinks())
    assert not durations


def test_other_widths_of_kinks_compile_nothing(durations, key):
    task = fl.tasks.hierarchy(levels=2)
    network = fl.ReLUNetwork.init(task, 4, 0.1, key=key)

    def final(width):
        flow = fl.gradient_flow(network, task, 5.0, kinks=fl.SmoothKinks(width), rtol=1e-6)
        assert len(flow.events)
        assert flow.stats["kinks"] == f"SmoothKinks(width={width})"
        return flow.final

    wide = final(0.1)
    durations.clear()
    narrow, finer = final(0.01), final(0.005)
    assert not durations
    assert fl.distance(narrow, wide) > 5 * fl.distance(finer, narrow) > 0


def test_initial_weights_and_levels_of_mode_hits_are_a_program_each(durations, key):
    task = fl.tasks.teacher(30, (2.0, 1.0), key=key)
    durations.clear()
    network = fl.ReLUNetwork.init(task, 23, 0.1, key=key)
    assert len(durations) <= 3  # beside it, variance and c become arrays
    hits = fl.ModeHits(fl.theory.modes(task, network), share=0.5)
    durations.clear()
    hits.watches(network, task, None, None)
    assert len(durations) <= 3  # the modes' projections too, and the share becomes an array
    durations.clear()
    other = fl.ReLUNetwork.init(task, 23, 0.2, key=jax.random.key(1))
    fl.ModeHits(hits.modes, share=0.25).watches(other, task, None, None)
    assert not durations


def test_dense_output_of_a_few_steps_more_compiles_nothing(durations, key):
    network, task = fl.LinearNetwork.init(SMALL, 2, 0.1, key=key), SMALL
    short = fl.gradient_flow(network, task, 1.0, dense=True)
    durations.clear()
    longer = fl.gradient_flow(network, task, 20.0, dense=True)
    assert not durations
    # Other powers of two, that is.
    few, more = (int(flow.stats["num_steps"]) + 1 for flow in (short, longer))
    assert (few - 1).bit_length() < (more - 1).bit_length() <= 6


def weight(network, task):
    return network.weights[0][0, 0]


def loss_and_weight(network, names, run):
    """A run that calls what it watches and records so."""
    loss, grown, seen, other = names
    events = (fl.Crossing(weight, 0.2, name=grown), fl.LossBelow(0.4, name=loss))
    return run(network, events=events, observe={seen: fl.measures.loss, other: weight})


NAMES = ("loss", "crossing", "z", "a"), ("crossing", "grown", "b", "loss")
FLOWS = {
    "flow": lambda network, **how: fl.gradient_flow(network, SMALL, 5.0, max_events=8, **how),
    "descent": lambda network, **how: fl.gradient_descent(network, SMALL, 0.1, 50, **how),
    "sgd": lambda network, **how: fl.stochastic_gradient_descent(
        network, SMALL, 0.1, 50, batch_size=1, key=jax.random.key(0), **how
    ),
}


@pytest.mark.parametrize("run", FLOWS.values(), ids=FLOWS)
def test_other_names_compile_nothing_and_are_those_of_the_result(run, durations):
    network = fl.LinearNetwork((jnp.full((2, 1), 0.1), jnp.full((1, 2), 0.1)))
    found = []
    for names in NAMES:
        durations.clear()
        flow = loss_and_weight(network, names, run)
        found.append((flow, names, len(durations)))
    assert found[1][2] == 0 < found[0][2]
    for flow, (loss, grown, seen, other), _ in found:
        assert flow.events.name == [grown, loss]
        assert float(flow.events.first(grown)) < float(flow.events.first(loss)) < 5
        assert list(flow.observed) == sorted([seen, other])
        assert np.allclose(flow.observed[seen], flow.losses)
        assert float(flow.observed[other][0]) == 0.1


def test_names_are_right_under_vmap_and_jit():
    network = fl.LinearNetwork((jnp.full((2, 1), 0.1), jnp.full((1, 2), 0.1)))
    both = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), network)
    run = FLOWS["flow"]
    for names in NAMES:
        batch = jax.jit(jax.vmap(lambda n, names=names: loss_and_weight(n, names, run)))(both)
        assert [channel.name for channel in batch.events.channels] == [names[1], names[0]]
        assert np.allclose(batch.observed[names[2]], batch.losses)
