"""Discrete runs: a loop of steps, its limit, what is seen on the way, failures."""

import itertools
import warnings

import diffrax
import equinox as eqx
import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import flowlin as fl
from tests.by_hand import COUNTS, ByHand, classes, entropy, linear, relu
from tests.tolerances import ROUNDING

QUANTILE = 0.2  # of 7 samples: one may be missed
DECAY = (0.2, 0.05)


@pytest.fixture(scope="module")
def task():
    return classes()


@pytest.fixture(scope="module")
def network(task):
    return linear(task)


def close(found, wanted, tolerance=ROUNDING):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def but_the_first(network):
    """A filter spec that trains all but the first weights."""
    spec = jax.tree.map(lambda _: True, network)
    return eqx.tree_at(lambda n: n.weights[0], spec, False)


# ---- What a step is, by NumPy: with weight decay, weights of samples, and an array that rests.


@pytest.fixture(scope="module")
def everything():
    """Network and task, the options of the library, and the same by hand."""
    weighted = classes(COUNTS)
    network = relu(weighted, seed=6)
    options = {
        "loss": fl.CrossEntropy(),
        "weight_decay": DECAY,
        "trainable": but_the_first(network),
        "save_every": 1,
    }
    return (network, weighted), options, ByHand(network, weighted, entropy, decay=DECAY, rests=(0,))


@pytest.fixture(scope="module")
def stepped(everything):
    (network, task), options, _ = everything
    switches = fl.UnitSwitches(QUANTILE)
    return fl.gradient_descent(network, task, 0.1, 60, tau=0.5, events=switches, **options)


def test_descent_is_a_loop_of_its_gradients(everything, stepped):
    losses, arrays = zip(*everything[2].descent(0.1, 60), strict=True)
    np.testing.assert_allclose(stepped.losses, losses, rtol=ROUNDING)
    rows = [np.stack(rows) for rows in zip(*arrays, strict=True)]
    close(stepped.networks.parameters, rows)
    assert np.array_equal(stepped.final.weights[0], everything[0][0].weights[0])
    np.testing.assert_allclose(stepped.ts, 0.05 * np.arange(61), rtol=ROUNDING)  # tau eps per step


def test_per_step_counts_are_those_of_the_networks(stepped, everything):
    _, task = everything[0]
    w, b = stepped.networks.weights[0], stepped.networks.biases[0]
    z = np.einsum("ti,shi->tsh", np.asarray(task.x), np.asarray(w)) + np.asarray(b)
    for quantile, spare in ((0.0, 0), (QUANTILE, 1)):
        on = np.sum(np.sum(z > 0, axis=0) >= 7 - spare, axis=1)
        assert len(set(on)) > 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = stepped.linearization(quantile)
        assert float(result.open.time) == pytest.approx(0.05 * np.argmax(on))
        assert float(result.open.fraction) == on.max() / 3
        found = result.activity(np.asarray(stepped.ts) + 0.025)
        np.testing.assert_allclose(np.asarray(found.always_on) * 3, on)
    with pytest.raises(ValueError, match=r"events=\(fl.UnitSwitches\(0.4\),\)"):
        stepped.linearization(0.4)


def test_batches_are_disjoint_subsets_of_an_epoch_and_each_step_is_one_of_its_batch(everything):
    """Every step is that of exactly one of all 35 batches of three samples."""
    (network, task), options, by_hand = everything
    run = fl.stochastic_gradient_descent(
        network, task, 0.1, 8, batch_size=3, key=jax.random.key(0), events=fl.LossBelow(1.3),
        **options,
    )  # fmt: skip
    batches, rows = [], [np.asarray(a) for a in jax.tree.leaves(run.networks.parameters)]
    for step in range(8):
        before, after = ([a[k] for a in rows] for k in (step, step + 1))

        def off(batch, before=before, after=after):
            _, velocity = by_hand(before, list(batch))
            steps = zip(before, velocity, after, strict=True)
            return max(np.max(np.abs(a + 0.1 * v - b)) for a, v, b in steps)

        found = [batch for batch in itertools.combinations(range(7), 3) if off(batch) < ROUNDING]
        assert len(found) == 1
        batches += found
    epochs = [first + second for first, second in zip(batches[::2], batches[1::2], strict=True)]
    assert all(len(set(epoch)) == 6 for epoch in epochs)
    assert len({tuple(sorted(epoch)) for epoch in epochs}) > 1  # another one is left out
    # Losses are of all samples, and so are events, at the first saved step beyond.
    losses = [by_hand([a[k] for a in rows])[0] for k in range(9)]
    np.testing.assert_allclose(run.losses, losses, rtol=ROUNDING)
    crossed = [k for k in range(1, 9) if losses[k] < 1.3 <= losses[k - 1]]
    assert crossed
    np.testing.assert_allclose(run.events.time, 0.1 * np.array(crossed))
    np.testing.assert_allclose(run.events.uncertainty, 0.1)


def test_adam_is_a_loop_by_hand(everything):
    (network, task), options, by_hand = everything
    descent = fl.gradient_descent(
        network, task, 1.0, 20, optimiser=optax.adam(0.01),
        observe={"readout": lambda n, _: n.weights[1]}, **options,
    )  # fmt: skip
    arrays = by_hand.start
    first, second = ([np.zeros_like(a) for a in arrays] for _ in range(2))
    for k in range(1, 21):
        gradient = [-v for v in by_hand(arrays)[1]]
        first = [0.9 * m + 0.1 * g for m, g in zip(first, gradient, strict=True)]
        second = [0.999 * v + 0.001 * g**2 for v, g in zip(second, gradient, strict=True)]
        moments = zip(arrays, first, second, strict=True)
        arrays = [
            a - 0.01 * (m / (1 - 0.9**k)) / (np.sqrt(v / (1 - 0.999**k)) + 1e-8)
            for a, m, v in moments
        ]
        np.testing.assert_allclose(descent.observed["readout"][k], arrays[1], rtol=ROUNDING)
    close(descent.final.parameters, arrays)
    assert float(descent.end) == 20.0  # `learning_rate` sets the unit of time alone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimiser", "batches", "dtype"),
    [
        (optax.lbfgs(), False, jnp.float64),
        (optax.polyak_sgd(0.1, 0.5), True, jnp.float64),
        (optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()), False, jnp.float32),
    ],
    ids=["lbfgs", "polyak", "plateau"],
)
def test_optimisers_that_ask_for_the_value_are_given_what_is_descended(optimiser, batches, dtype):
    task = classes().astype(dtype)
    network = relu(task)
    options = {"steps": 8, "weight_decay": 0.05, "optimiser": optimiser}
    if batches:  # of all samples, in another order
        options |= {"batch_size": task.samples, "key": jax.random.key(0)}
    descend = fl.stochastic_gradient_descent if batches else fl.gradient_descent
    descent = descend(network, task, 0.01, **options)

    def descended(w):
        squares = sum(jnp.sum(a**2) for a in jax.tree.leaves(w))
        outputs = network.with_parameters(w).outputs(task.x)
        return fl.SquaredError()(outputs, task.y) + 0.05 / 2 * squares

    @jax.jit
    def step(w, state):
        value, grad = jax.value_and_grad(descended)(w)
        with jax.numpy_dtype_promotion("standard"):  # which optax needs
            updates, state = optimiser.update(
                grad, state, w, value=value, grad=grad, value_fn=descended
            )
        return optax.apply_updates(w, updates), state

    w, state = network.parameters, optimiser.init(network.parameters)
    for _ in range(8):
        w, state = step(w, state)
    close(descent.final.parameters, w, ROUNDING if dtype == jnp.float64 else 1e-6)


# ---- Descent beside the flow


@pytest.fixture(scope="module")
def flow(network, task):
    """Saved where all descents here are."""
    ts = np.linspace(0, 4, 5)
    return fl.gradient_flow(network, task, 4.0, ts=ts, solver=diffrax.Dopri8(), rtol=1e-10)


RATES = np.array([2e-2, 1e-2, 5e-3])


@pytest.fixture(scope="module")
def last(network, task, flow):
    """How descents at these rates compare with the flow."""
    runs = [
        fl.gradient_descent(network, task, rate, round(4 / rate), save_every=round(1 / rate))
        for rate in RATES
    ]
    return [fl.compare(flow, run) for run in runs]


def test_descent_converges_to_the_flow_at_first_order(last):
    for field in ("parameters", "function", "loss"):
        errors = [abs(float(getattr(c, field)[-1])) for c in last]
        slope = np.polyfit(np.log(RATES), np.log(errors), 1)[0]
        assert slope == pytest.approx(1.0, abs=0.05), field


def test_compare_takes_runs_saved_at_the_same_times_and_refuses_others(network, task, flow):
    descent = fl.gradient_descent(network, task, 1e-2, 400, save_every=100)
    fine = fl.gradient_descent(network, task, 5e-3, 800, save_every=200)
    gap = fl.compare(fine, descent).parameters
    assert float(gap[0]) == 0.0
    np.testing.assert_allclose(gap[1:], fl.compare(flow, descent).parameters[1:] / 2, rtol=0.1)
    renamed = fl.Task(task.x, task.y, name="other")
    named = fl.gradient_descent(network, renamed, 1e-2, 400, save_every=100)
    np.testing.assert_array_equal(fl.compare(fine, named).parameters, gap)
    with pytest.raises(ValueError, match="saved at different times"):
        fl.compare(fl.gradient_descent(network, task, 1e-2, 400, save_every=150), descent)
    other = fl.Task(task.x, 2 * np.asarray(task.y))
    with pytest.raises(ValueError, match="different tasks"):
        fl.compare(flow, fl.gradient_descent(network, other, 1e-2, 400, save_every=100))


@pytest.mark.slow
def test_stochastic_runs_time_the_same_events(tree):
    network = fl.LinearNetwork.init(tree, 8, key=jax.random.key(0))
    modes = fl.theory.modes(tree, 1.0)
    hits = fl.ModeHits(modes, 0.5 * modes.full_strength)
    run = fl.stochastic_gradient_descent(
        network, tree, 5e-3, 1600, batch_size=4, key=jax.random.key(1), save_every=10,
        events=(hits,), observe={"modes": modes},
    )  # fmt: skip
    descent = fl.gradient_descent(network, tree, 5e-3, 1600, events=(hits,))
    assert float(run.events.time[0]) == pytest.approx(float(descent.events.time[0]), abs=0.15)
    assert float(run.events.uncertainty[0]) == pytest.approx(0.05)
    assert run.observed["modes"].shape == (len(run.ts), 9)
    np.testing.assert_allclose(
        run.observed["modes"][-1], modes.strengths(run.final, tree), rtol=ROUNDING
    )


@pytest.mark.data
@pytest.mark.slow
def test_descent_converges_to_the_flow_on_real_images(data_folder):
    task = fl.tasks.mnist(100)
    network = fl.LinearNetwork.init(task, 16, bias_strength=10.0, key=jax.random.key(0))
    flow = fl.gradient_flow(network, task, 1.6, solver=diffrax.Dopri8(), rtol=1e-9)
    rates = (4e-3, 2e-3)
    gaps = [
        float(fl.distance(fl.gradient_descent(network, task, r, t1=1.6).final, flow.final))
        for r in rates
    ]
    slope = np.polyfit(np.log(rates), np.log(gaps), 1)[0]
    assert slope == pytest.approx(1.0, abs=0.05)


# ---- How far it goes, and what is seen of it


def test_events_fall_on_the_first_step_beyond_and_may_end_it(network, task):
    plain = fl.gradient_descent(network, task, 0.1, 100, save_every=1)
    weights, losses = np.asarray(plain.networks.weights[1])[:, 0], np.asarray(plain.losses)
    level = (weights[3] + weights[4]) / 2
    crossing = fl.Crossing(lambda n, _: n.weights[1][0], level)
    events = (crossing, fl.LossBelow(0.2, terminate=True))
    descent = fl.gradient_descent(network, task, 0.1, 100, events=events, save_every=7)
    last = int(np.argmax(losses <= 0.2))
    assert last % 7
    assert float(descent.end) == float(descent.ts[-1]) == pytest.approx(0.1 * last)
    assert float(descent.losses[-1]) == pytest.approx(losses[last], rel=ROUNDING)
    assert bool(descent.result == fl.RESULTS.event_occurred)
    above = weights[: last + 1] > level
    wanted = [(0.1 * (step + 1), k) for step, k in np.argwhere(above[1:] != above[:-1])]
    found = [(e["time"], *e["index"]) for e in descent.events.select("crossing").table()]
    assert len(found) >= 3
    np.testing.assert_allclose(found, wanted, rtol=ROUNDING)
    np.testing.assert_allclose(descent.events.uncertainty, 0.1)


def test_divergence_is_reported_and_kept(network, task):
    with pytest.raises(fl.RunError, match="lower `learning_rate`") as caught:
        fl.gradient_descent(network, task, 50.0, 400)
    assert np.isfinite(caught.value.trajectory.losses[0])
    quiet = fl.gradient_descent(network, task, 50.0, 400, throw=False)
    assert bool(quiet.result == fl.RESULTS.not_finite)


def test_time_in_place_of_steps(network, task):
    """The nearest whole number of steps, at least one; times to save fall on the nearest steps."""
    steps = fl.gradient_descent(network, task, 0.1, 10, tau=2.0, save_every=1)
    timed = fl.gradient_descent(network, task, 0.1, t1=2.09, tau=2.0, save_every=1)
    assert timed.ts.tolist() == steps.ts.tolist()
    np.testing.assert_array_equal(timed.losses, steps.losses)
    assert float(fl.gradient_descent(network, task, 0.1, t1=1e-9).end) == 0.1
    saved = fl.gradient_descent(network, task, 0.1, t1=2.09, tau=2.0, ts=[0.31, 1.9, 2.05])
    ts, losses = np.asarray(steps.ts), np.asarray(steps.losses)
    assert saved.ts.tolist() == ts[[2, 9, 10]].tolist()
    np.testing.assert_array_equal(saved.losses, losses[[2, 9, 10]])
    longer = saved.extend(3.0, ts=[2.6, 2.8])
    np.testing.assert_allclose(longer.ts, [0.4, 1.8, 2.0, 2.6, 2.8])
    assert float(longer.end) == pytest.approx(3.0)
    assert float(longer.extend(3.01).end) == pytest.approx(3.2)  # at least a step


@pytest.mark.slow
def test_times_to_save_under_jit_and_vmap(network, task):
    @jax.jit
    @jax.vmap
    def traced(factor):
        scaled = jax.tree.map(lambda w: factor * w, network.parameters)
        start = network.with_parameters(scaled)
        return fl.gradient_descent(start, task, 0.1, 10, tau=2.0, ts=[0.31, 2.0])

    found = traced(np.array([1.0, 2.0]))
    steps = fl.gradient_descent(network, task, 0.1, 10, tau=2.0, save_every=1)
    losses = np.asarray(steps.losses)
    np.testing.assert_allclose(found.losses[0], losses[[2, 10]], rtol=ROUNDING)
    twice = network.with_parameters(jax.tree.map(lambda w: 2 * w, network.parameters))
    wanted = fl.gradient_descent(twice, task, 0.1, 10, tau=2.0)
    close(jax.tree.map(lambda a: a[1], found.final.parameters), wanted.final.parameters)


def test_nothing_is_compiled_anew_for_another_length_rate_or_seed(task):
    programs = []

    def compiled(event, duration_secs, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            programs.append(duration_secs)

    def run(seed, rate, **length):
        network = relu(task, width=5, seed=seed)
        jax.block_until_ready(network.weights)
        programs.clear()
        fl.gradient_descent(network, task, rate, **length)
        return len(programs)

    jax.monitoring.register_event_duration_secs_listener(compiled)
    try:
        assert run(0, 1e-2, steps=30) >= 1
        again = [run(1, 1e-2, steps=500), run(0, 2e-2, t1=3.0), run(0, 1e-2, steps=5123)]
        assert again == [0, 0, 0]
    finally:
        jax.monitoring.unregister_event_duration_listener(compiled)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"t1": 1.0}, "give one of `steps` and `t1`, which say where the run ends; got both"),
        ({"ts": [0.5, 2.0]}, "`ts` runs from 0.5 to 2, outside the run's \\[0, t1 = 1\\]"),
        ({"learning_rate": 0.0}, "`learning_rate` must be finite and positive"),
        ({"tau": [1.0, 2.0]}, "`tau` must be"),
    ],
)
def test_bad_input(network, task, options, message):
    with pytest.raises(ValueError, match=message):
        fl.gradient_descent(network, task, **{"learning_rate": 0.1, "steps": 10, **options})
