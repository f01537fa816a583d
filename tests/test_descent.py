"""Discrete runs: convergence to the flow, step-grained timings, mini-batches, failures."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import flowlin as fl


@pytest.fixture(scope="module")
def pair(tree):
    network = fl.LinearNetwork.init(tree, 16, 0.01, key=jax.random.key(0))
    return network, fl.gradient_flow(network, tree, 8.0, dense=True, rtol=1e-10)


def test_descent_is_what_it_says(tree):
    network = fl.LinearNetwork.init(tree, 5, 0.1, key=jax.random.key(0))
    descent = fl.gradient_descent(network, tree, 0.1, 3, save_every=1)
    w1, b, w2 = (np.asarray(a) for a in (network.weights[0], network.biases[0], network.weights[1]))
    x, y = np.asarray(tree.x), np.asarray(tree.y)
    for k in range(3):
        hidden = x @ w1.T + b
        r = (y - hidden @ w2.T) / 8
        assert float(descent.losses[k]) == pytest.approx(4 * np.sum(r**2), rel=1e-12)
        back = r @ w2
        w2, w1, b = w2 + 0.1 * r.T @ hidden, w1 + 0.1 * back.T @ x, b + 0.1 * back.sum(0)
    assert np.allclose(descent.final.weights[0], w1, rtol=1e-12)
    assert np.allclose(descent.final.biases[0], b, rtol=1e-12)
    assert np.allclose(descent.ts, [0, 0.1, 0.2, 0.3])


def test_descent_converges_to_the_flow_at_first_order(tree, pair):
    network, flow = pair
    rates = np.array([1e-2, 5e-3, 2.5e-3, 1.25e-3])
    last = [fl.compare(flow, fl.gradient_descent(network, tree, e, round(8 / e))) for e in rates]
    for field in ("parameters", "function", "loss"):
        errors = [abs(float(getattr(c, field)[-1])) for c in last]
        slope = np.polyfit(np.log(rates), np.log(errors), 1)[0]
        assert slope == pytest.approx(1.0, abs=0.05), field


def test_relu_descent_converges_to_the_smoothed_flow(tree):
    network = fl.ReLUNetwork.init(tree, 16, key=jax.random.key(0))
    flow = fl.gradient_flow(network, tree, 3.0, kinks=fl.SmoothKinks(1e-5), dense=True)
    errors = [
        float(fl.compare(flow, fl.gradient_descent(network, tree, e, round(3 / e))).parameters[-1])
        for e in (1e-2, 1e-3)
    ]
    assert errors[1] < 0.2 * errors[0] < 2e-2


def test_compare_is_zero_for_a_run_with_itself(tree, pair):
    _, flow = pair
    same = fl.compare(flow, flow)
    assert float(jnp.max(jnp.abs(same.parameters))) < 1e-12
    assert float(jnp.max(jnp.abs(same.loss))) < 1e-12


def test_compare_accepts_matching_times_and_refuses_others(tree, pair):
    network, flow = pair
    descent = fl.gradient_descent(network, tree, 1e-2, 800, save_every=100)
    saved = fl.gradient_flow(network, tree, 8.0, ts=descent.ts, rtol=1e-10)
    a, b = fl.compare(flow, descent), fl.compare(saved, descent)
    assert jnp.allclose(a.parameters, b.parameters, rtol=1e-6)
    renamed = fl.Task(tree.x, tree.y, name="other")
    named = fl.gradient_descent(network, renamed, 1e-2, 800, save_every=100)
    assert jnp.array_equal(fl.compare(flow, named).loss, a.loss)
    other = fl.gradient_flow(network, tree, 8.0, ts=[0.0, 3.3, 8.0])
    with pytest.raises(ValueError, match="saved at different times"):
        fl.compare(other, descent)
    with pytest.raises(ValueError, match="different tasks"):
        fl.compare(flow, fl.gradient_descent(
            fl.LinearNetwork.init(fl.tasks.xor(), 4, key=jax.random.key(0)), fl.tasks.xor(), 0.1, 5
        ))  # fmt: skip


def test_event_times_are_the_first_step_beyond(tree, pair):
    network, _ = pair
    modes = fl.theory.modes(tree, 1.0)
    hits = fl.ModeHits(modes, 0.5 * modes.full_strength)
    descent = fl.gradient_descent(network, tree, 1e-2, 800, events=(hits,), save_every=1)
    strengths = np.asarray(jax.vmap(lambda n: modes.strengths(n, tree))(descent.networks))
    for row in descent.events.table():
        (k,) = row["index"]
        first = np.argmax(strengths[:, k] > 0.5 * float(modes.full_strength[k]))
        assert row["time"] == pytest.approx(0.01 * first, rel=1e-12)
        assert row["uncertainty"] == pytest.approx(0.01)
    continuous = fl.gradient_flow(network, tree, 8.0, events=(hits,))
    assert len(descent.events) == len(continuous.events) > 0
    gap = np.asarray(descent.events.time) - np.asarray(continuous.events.time)
    assert np.max(np.abs(gap)) < 0.05


def test_per_step_counts_are_those_of_the_networks(tree):
    network = fl.ReLUNetwork.init(tree, 16, key=jax.random.key(0))
    descent = fl.gradient_descent(
        network, tree, 1e-2, 700, save_every=1, events=(fl.UnitSwitches(0.13),)
    )
    z = jax.vmap(lambda n: n.preactivations(tree.x)[0])(descent.networks)
    for quantile, spare in ((0.0, 0), (0.13, 1)):
        on = np.asarray(jnp.sum(jnp.sum(z > 0, axis=1) >= 8 - spare, axis=1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = descent.linearization(quantile)
        assert float(result.open.time) == pytest.approx(0.01 * np.argmax(on))
        assert float(result.open.fraction) == on.max() / 16
        assert np.allclose(result.activity(descent.ts + 0.005).always_on * 16, on)
    with pytest.raises(ValueError, match=r"events=\(fl.UnitSwitches\(0.3\),\)"):
        descent.linearization(0.3)


def test_terminating_event_ends_descent(tree, pair):
    network, _ = pair
    stop = fl.LossBelow(1.0, terminate=True)
    descent = fl.gradient_descent(network, tree, 1e-2, 800, events=(stop,), save_every=7)
    plain = fl.gradient_descent(network, tree, 1e-2, 800, save_every=1)
    first = int(np.argmax(np.asarray(plain.losses) <= 1.0))
    assert float(descent.end) == pytest.approx(0.01 * first)
    assert float(descent.ts[-1]) == pytest.approx(0.01 * first)
    assert float(descent.losses[-1]) == pytest.approx(float(plain.losses[first]), rel=1e-12)
    assert bool(descent.result == fl.RESULTS.event_occurred)


def test_any_optax_optimiser(tree, pair):
    network, _ = pair
    plain = fl.gradient_descent(network, tree, 0.05, 40)
    same = fl.gradient_descent(network, tree, 0.05, 40, optimiser=optax.sgd(0.05))
    assert jnp.allclose(plain.final.weights[0], same.final.weights[0], rtol=1e-12)
    adam = fl.gradient_descent(network, tree, 1.0, 40, optimiser=optax.adam(1e-2))
    assert float(adam.ts[-1]) == 40.0
    assert float(adam.losses[-1]) < float(adam.losses[0])


def test_batches_cover_every_sample_once_an_epoch():
    """With a linear loss in the single weight, an epoch's steps add up to the full gradient."""
    task = fl.Task(np.zeros((12, 1)), np.arange(12.0)[:, None])
    network = fl.LinearNetwork((jnp.zeros((1, 1)),), (jnp.zeros(1),))
    rate = 1e-9  # so small that the residual does not move within the epoch
    run = fl.stochastic_gradient_descent(
        network, task, rate, 4, batch_size=3, key=jax.random.key(0), save_every=1,
        loss=fl.SquaredError("sum"),
    )  # fmt: skip
    steps = np.diff(np.asarray(run.networks.biases[0])[:, 0]) / rate
    assert steps.sum() == pytest.approx(66.0, rel=1e-6)
    assert len(set(np.round(steps, 3))) > 1
    again = fl.stochastic_gradient_descent(
        network, task, rate, 8, batch_size=3, key=jax.random.key(0), save_every=1,
        loss=fl.SquaredError("sum"),
    )  # fmt: skip
    both = np.diff(np.asarray(again.networks.biases[0])[:, 0]) / rate
    assert np.allclose(both[:4], steps, rtol=1e-6)
    assert both[4:].sum() == pytest.approx(66.0, rel=1e-6)
    assert not np.allclose(both[4:], steps)


def test_full_batches_are_gradient_descent(tree, pair):
    network, _ = pair
    full = fl.gradient_descent(network, tree, 1e-2, 50)
    batch = fl.stochastic_gradient_descent(
        network, tree, 1e-2, 50, batch_size=8, key=jax.random.key(1)
    )
    assert jnp.allclose(full.final.weights[0], batch.final.weights[0], rtol=1e-10)


def test_stochastic_runs_time_the_same_events(tree):
    network = fl.ReLUNetwork.init(tree, 16, key=jax.random.key(0))
    modes = fl.theory.modes(tree, 1.0)
    hits = fl.ModeHits(modes, 0.5 * modes.full_strength)
    run = fl.stochastic_gradient_descent(
        network, tree, 5e-3, 1600, batch_size=4, key=jax.random.key(1), save_every=10,
        events=(hits,), observe={"modes": modes},
    )  # fmt: skip
    flow = fl.gradient_flow(network, tree, 8.0, events=(hits,))
    first = float(flow.events.select("mode").time[0])
    assert float(run.events.time[0]) == pytest.approx(first, abs=0.15)
    assert float(run.events.uncertainty[0]) == pytest.approx(0.05)
    assert run.observed["modes"].shape == (len(run.ts), 9)
    assert np.allclose(run.observed["modes"][-1], modes.strengths(run.final, tree), rtol=1e-12)


def test_divergence_is_reported_and_kept(tree, pair):
    network, _ = pair
    with pytest.raises(fl.RunError, match="lower `learning_rate`") as caught:
        fl.gradient_descent(network, tree, 50.0, 400)
    kept = caught.value.trajectory
    assert jnp.isfinite(kept.losses[0])
    quiet = fl.gradient_descent(network, tree, 50.0, 400, throw=False)
    assert bool(quiet.result == fl.RESULTS.not_finite)


def test_descent_under_vmap_and_jit(tree):
    keys = jax.random.split(jax.random.key(0), 3)
    networks = jax.vmap(lambda k: fl.LinearNetwork.init(tree, 8, key=k))(keys)

    def run(network):
        return fl.gradient_descent(network, tree, 1e-2, 100)

    batch = jax.vmap(run)(networks)
    one = jax.jit(run)(jax.tree.map(lambda a: a[1], networks))
    assert jnp.allclose(batch.final.weights[0][1], one.final.weights[0], rtol=1e-10)
    assert batch.losses.shape[0] == 3


def test_time_in_place_of_steps(tree):
    """The nearest whole number of steps, at least one; times to save fall on the nearest steps."""
    network = fl.LinearNetwork.init(tree, 8, key=jax.random.key(0))
    options = {"tau": 2.0, "save_every": 1}
    steps = fl.gradient_descent(network, tree, 0.1, 10, **options)
    timed = fl.gradient_descent(network, tree, 0.1, t1=2.09, **options)
    assert timed.ts.tolist() == steps.ts.tolist()
    assert jnp.array_equal(timed.losses, steps.losses)
    assert float(fl.gradient_descent(network, tree, 0.1, t1=1e-9).end) == 0.1
    saved = fl.gradient_descent(network, tree, 0.1, t1=2.09, tau=2.0, ts=[0.31, 1.9, 2.05])
    assert saved.ts.tolist() == steps.ts[jnp.array([2, 9, 10])].tolist()
    assert jnp.array_equal(saved.losses, steps.losses[jnp.array([2, 9, 10])])
    longer = saved.extend(3.0, ts=[2.6, 2.8])
    assert np.allclose(longer.ts, [0.4, 1.8, 2.0, 2.6, 2.8])
    assert float(longer.end) == pytest.approx(3.0)
    assert float(longer.extend(3.01).end) == pytest.approx(3.2)  # at least a step
    traced = jax.jit(lambda n: fl.gradient_descent(n, tree, 0.1, 10, tau=2.0, ts=[0.31, 2.0]))
    assert np.allclose(traced(network).losses, steps.losses[jnp.array([2, 10])], rtol=1e-12)


def test_nothing_is_compiled_anew_for_another_length_rate_or_seed(tree):
    programs = []

    def compiled(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            programs.append(seconds)

    def run(seed, rate, **length):
        network = fl.ReLUNetwork.init(tree, 16, key=jax.random.key(seed))
        jax.block_until_ready(network.weights)
        programs.clear()
        fl.gradient_descent(network, tree, rate, **length)
        return len(programs)

    jax.monitoring.register_event_duration_secs_listener(compiled)
    try:
        run(0, 1e-2, steps=500)
        again = [run(1, 1e-2, steps=500), run(0, 2e-2, t1=3.0), run(0, 1e-2, steps=5123)]
        assert again == [0, 0, 0]
        jax.clear_caches()
        assert 1 <= run(0, 1e-2, steps=30) <= 5  # the test of the result, in two, included
    finally:
        jax.monitoring.unregister_event_duration_listener(compiled)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"t1": 1.0}, "give one of `steps` and `t1`, which say where the run ends; got both"),
        (
            {"steps": None},
            "give one of `steps` and `t1`, which say where the run ends; got neither",
        ),
        ({"steps": None, "t1": -1.0}, "`t1` must be finite and positive, got -1.0"),
        ({"steps": None, "t1": 1e9}, "`t1` = 1e.09 takes 1e.10 steps of 0.1 each, more than the"),
        ({"ts": [0.5], "save_every": 2}, "`ts` and `save_every` both say what is saved"),
        ({"ts": [0.5, 2.0]}, "`ts` runs from 0.5 to 2, outside the run's \\[0, t1 = 1\\]"),
        ({"ts": [0.51, 0.52]}, "`ts` must fall on steps that are not saved yet, each 0.1 long"),
        ({"checkpoint": "no/such/run.npz"}, "there is no folder 'no/such'"),
        ({"learning_rate": 0.0}, "`learning_rate` must be finite and positive"),
        ({"steps": 0}, "`steps` must be a whole number from 1"),
        ({"save_every": 50}, "`save_every` must lie between 1 and `steps` = 10"),
        ({"tau": -1.0}, "`tau` must be finite and positive"),
    ],
)
def test_bad_input(tree, pair, options, message):
    arguments = {"learning_rate": 0.1, "steps": 10, **options}
    with pytest.raises(ValueError, match=message):
        fl.gradient_descent(pair[0], tree, **arguments)


def test_bad_batch_size(tree, pair):
    with pytest.raises(ValueError, match="`batch_size` must lie between 1 and"):
        fl.stochastic_gradient_descent(pair[0], tree, 0.1, 10, batch_size=9, key=jax.random.key(0))


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("load", [fl.tasks.mnist, fl.tasks.cifar10])
def test_descent_converges_to_the_flow_on_real_images(data_folder, load):
    task = load(100)
    network = fl.LinearNetwork.init(task, 16, bias_strength=10.0, key=jax.random.key(0))
    modes = fl.theory.modes(task, 10.0)
    hits = fl.ModeHits(modes, 0.25 * modes.full_strength)
    flow = fl.gradient_flow(network, task, 1.6, events=(hits,), dense=True, rtol=1e-9)
    assert len(flow.events) >= 1
    gaps, delays = [], []
    for rate in (4e-3, 2e-3, 1e-3):
        descent = fl.gradient_descent(network, task, rate, round(1.6 / rate), events=(hits,))
        gaps.append(float(fl.compare(flow, descent).parameters[-1]))
        assert descent.events.index == flow.events.index
        delays.append(float(jnp.max(jnp.abs(descent.events.time - flow.events.time))) / rate)
    slope = np.polyfit(np.log([4e-3, 2e-3, 1e-3]), np.log(gaps), 1)[0]
    assert slope == pytest.approx(1.0, abs=0.05)
    assert max(delays) < 5  # hitting times agree to a few steps
