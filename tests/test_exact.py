"""The exact walk through the kinks of ReLU networks with one hidden layer."""

import functools
import itertools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import flowlin as fl
from flowlin.engine.kinks.sides import Hyperplanes, box_qp
from flowlin.networks.layered import forward
from tests.zoo import distance, times

jax.config.update("jax_enable_x64", True)

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")


def gaussian(samples=20, inputs=6, outputs=3):
    keys = jax.random.split(jax.random.key(7))
    x = jax.random.normal(keys[0], (samples, inputs))
    return fl.Task(x, jax.random.normal(keys[1], (samples, outputs)), name="gaussian")


def exact(network, task, t1, rtol=1e-8, solver=diffrax.Tsit5(), **options):
    return fl.gradient_flow(
        network, task, t1, kinks=fl.ExactKinks(), solver=solver, rtol=rtol, **options
    )


def conserved(network):
    hidden, readout = network.weights
    bias = 0.0 if network.biases[0] is None else network.biases[0] ** 2
    return np.asarray(jnp.sum(hidden**2, axis=1) + bias - jnp.sum(readout**2, axis=0))


@functools.partial(jax.jit, static_argnums=2)
def descended(network, task, loss, rate, steps):
    def objective(parameters):
        outputs, _ = forward(parameters, network.bias_strength, task.x, network.activation)
        return loss(outputs, task.y)

    def step(_, parameters):
        gradient = jax.grad(objective)(parameters)
        return jax.tree.map(lambda p, g: p - rate * g, parameters, gradient)

    return network.with_parameters(jax.lax.fori_loop(0, steps, step, network.parameters))


# Task, hidden units, variance, options, loss, horizon. Descent chatters where the flow slides, and
# so its distance scatters about its trend; wide layers and two decades average that out.
CASES = {
    "hierarchy": (fl.tasks.hierarchy, 64, 2e-4, {}, fl.SquaredError(), 3.0),
    "xor, x and -x share a kink": (fl.tasks.xor, 32, 1e-2, {"bias": False}, fl.SquaredError(), 4.0),
    "xor": (fl.tasks.xor, 32, 1e-2, {}, fl.SquaredError(), 8.0),
    "offset xor": (fl.tasks.offset_xor, 64, 1e-2, {"bias_strength": 2.0}, fl.SquaredError(), 6.0),
    "gaussian": (gaussian, 32, 1e-2, {"bias": (True, True)}, fl.SquaredError(), 6.0),
    "gaussian, leaky, cross-entropy": (
        lambda: fl.Task(gaussian().x, jax.nn.one_hot(jnp.arange(20) % 3, 3)),
        32, 1e-2, {"slope": 0.2}, fl.CrossEntropy(), 10.0,
    ),
}  # fmt: skip
QUICK = ("hierarchy", "xor, x and -x share a kink")
marked = [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize("case", marked)
def test_descent_converges_to_the_flow_and_ten_seeds_run(case):
    make, hidden, variance, options, loss, t1 = CASES[case]
    task, ts = make(), times(t1)

    def start(seed):
        return fl.ReLUNetwork.init(
            task, (hidden,), **{"variance": variance, "key": jax.random.key(seed), **options}
        )

    network = start(1)
    flow = exact(network, task, t1, rtol=1e-10, loss=loss, ts=ts)
    assert int(jnp.sum(flow.events.new == 0)) > 0  # some pair slid
    rates = np.array([1e-3, 1e-5])
    errors = [
        distance(descended(network, task, loss, rate, round(t1 / rate)), flow.final)
        for rate in rates
    ]
    slope = np.diff(np.log(errors)) / np.diff(np.log(rates))
    np.testing.assert_allclose(slope, 1.0, atol=0.05)
    assert errors[-1] < 3e-6
    for seed in range(10):
        network = start(seed)
        flow = exact(network, task, t1, 1e-6, ts=ts, loss=loss)
        assert np.max(np.diff(flow.losses)) <= 1e-12
        assert np.abs(conserved(flow.final) - conserved(network)).max() < 1e-6


@pytest.fixture(scope="module")
def hierarchy_flows():
    task = fl.tasks.hierarchy(levels=3)
    network = fl.ReLUNetwork.init(task, hidden=(64,), variance=2e-4, key=jax.random.key(0))
    ts, rtols = times(30.0), (1e-6, 1e-8, 1e-10)
    return network, {rtol: exact(network, task, 30.0, rtol, ts=ts) for rtol in rtols}


def test_loss_never_rises_and_conserved_quantities_hold(hierarchy_flows):
    network, flows = hierarchy_flows
    for rtol, flow in flows.items():
        assert np.max(np.diff(flow.losses)) <= 0
        drift = np.abs(conserved(flow.final) - conserved(network)).max()
        assert drift < rtol / 10
    assert 300 < len(flows[1e-8].events) < 500
    assert np.all(np.diff(flows[1e-8].events.time) >= 0)
    assert np.all(np.asarray(flows[1e-8].events.uncertainty) >= 0)


def test_linearization_times_agree_between_tolerances(hierarchy_flows):
    _, flows = hierarchy_flows
    lines = {rtol: flow.linearization() for rtol, flow in flows.items()}
    for side in ("open", "closed"):
        times = {rtol: float(getattr(line, side).time) for rtol, line in lines.items()}
        assert times[1e-8] == pytest.approx(times[1e-10], rel=1e-7)
        assert times[1e-6] == pytest.approx(times[1e-10], rel=1e-5)
    t = np.linspace(0.1, 29.9, 7)
    assert np.allclose(sum(lines[1e-8].activity(t)), 1.0)


def test_log_is_consistent_with_itself_and_the_final_network(hierarchy_flows):
    network, flows = hierarchy_flows
    task, flow = fl.tasks.hierarchy(levels=3), flows[1e-8]
    modes = np.asarray(flow.events.initial).copy()
    assert np.array_equal(
        modes.reshape(64, 8) > 0, np.asarray(network.preactivations(task.x)[0]).T > 0
    )
    log = flow.events
    for component, old, new in zip(
        *map(np.asarray, (log.component, log.old, log.new)), strict=True
    ):
        assert modes[component] == old != new
        modes[component] = new
    z = np.asarray(flow.final.preactivations(task.x)[0]).T.ravel()
    assert np.abs(z[modes == 0]).max() < 1e-13
    assert np.all(z[modes > 0] > -1e-13)
    assert np.all(z[modes < 0] < 1e-13)


def test_saved_times_dense_output_and_user_events_agree():
    task = fl.tasks.hierarchy(levels=3)
    network = fl.ReLUNetwork.init(task, hidden=(16,), variance=1e-2, key=jax.random.key(3))
    ts = np.linspace(0, 6, 13)
    level = fl.Crossing(lambda network, task: network.weights[0][:3, 0], level=0.05, name="weight")
    events = (level, fl.LossBelow(1.0, terminate=True))
    flow = exact(network, task, 6.0, rtol=1e-10, ts=ts, dense=True, events=events)
    assert flow.result == fl.RESULTS.event_occurred
    assert {"gate", "loss"} <= set(flow.events.name)
    assert flow.losses[-1] > 1.0
    end = exact(network, task, float(flow.end), rtol=1e-10)
    assert distance(flow.final, end.final) < 1e-8
    assert distance(flow.network(ts[3]), exact(network, task, ts[3], rtol=1e-10).final) < 1e-8
    np.testing.assert_allclose(end.losses[-1], 1.0, rtol=1e-8)
    for event in flow.events.select("weight").table():
        weight = flow.network(event["time"]).weights[0][event["index"][0], 0]
        assert float(weight) == pytest.approx(0.05, abs=1e-9)


def test_without_events_it_is_the_gated_linear_flow():
    task = fl.tasks.hierarchy(levels=3)
    # Of seed 106, whose first event comes at t = 0.0387.
    network = fl.ReLUNetwork.init(task, hidden=(16,), variance=1.0, key=jax.random.key(106))
    flow = exact(network, task, 0.02, rtol=1e-10)
    frozen = fl.gradient_flow(network.frozen(task), task, 0.02, rtol=1e-10)
    assert len(flow.events) == 0
    assert distance(flow.final, frozen.final) < 1e-11
    slow = exact(network, task, 0.06, rtol=1e-10, tau=3.0)
    assert distance(slow.final, flow.final) < 1e-12


def brute_force(k, q, bound):
    """Velocities q - K u of all u that satisfy the conditions, by enumeration."""
    found = []
    for sides in itertools.product((-1, 0, 1), repeat=len(q)):
        sides = np.array(sides)
        free = sides == 0
        u = np.where(sides == 1, bound, 0.0)
        if free.any():
            inner = np.linalg.pinv(k[np.ix_(free, free)], rcond=1e-9)
            u[free] = inner @ (q - k @ u)[free]
        v = q - k @ u
        good = np.all(u >= -1e-9) and np.all(u <= bound + 1e-9)
        good &= np.all(np.abs(v[free]) < 1e-9)
        if good and np.all(v[sides == -1] <= 1e-9) and np.all(v[sides == 1] >= -1e-9):
            found.append(v)
    return found


def test_box_program_against_enumeration():
    rng = np.random.default_rng(0)
    solve = jax.jit(box_qp)
    for trial in range(300):
        n, m = rng.integers(1, 6), 6
        x = rng.normal(size=(n, rng.integers(1, 5)))  # often singular
        if trial % 3 == 0:
            x[-1] = x[0]
        k, q, bound = x @ x.T, x @ rng.normal(size=x.shape[1]), rng.exponential(size=n)
        padded = np.zeros((m, m)), np.zeros(m), np.zeros(m)
        padded[0][:n, :n], padded[1][:n], padded[2][:n] = k, q, bound
        u, settled = solve(*map(jnp.asarray, padded), jnp.arange(m) < n)
        assert settled
        v, known = q - k @ np.asarray(u)[:n], brute_force(k, q, bound)
        assert known
        assert min(np.abs(v - w).max() for w in known) < 1e-7


def test_a_graze_between_two_looks_is_not_missed():
    # Unit 45 dips below a repelling kink at t = 0.46 and goes off for good; a walk that does not
    # see the dip leaves it on.
    task = fl.tasks.offset_xor()
    network = fl.ReLUNetwork.init(task, hidden=(64,), variance=2e-4, key=jax.random.key(39))
    loose, tight = (exact(network, task, 8.0, rtol, ts=times(8.0)) for rtol in (1e-6, 1e-10))
    for flow in (loose, tight):
        (row,) = [r for r in flow.events.table() if r["index"] == (0, 45, 3)][:1]
        assert (row["old"], row["new"]) == (1, -1)
        assert row["time"] == pytest.approx(0.46005, abs=1e-4)
    assert np.array_equal(loose.events.component, tight.events.component)
    assert distance(loose.final, tight.final) < 1e-6
    slow = descended(network, task, fl.SquaredError(), 1e-4, 80_000)
    assert distance(slow, tight.final) < 1e-3


def test_parallel_inputs_share_a_kink():
    x = jnp.asarray([[1.0, 2.0], [0.0, 0.0], [-2.0, -4.0], [2.0, -1.0], [1.0, 2.0]])
    kinks = Hyperplanes.of(x)
    assert kinks.leader.tolist() == [0, 1, 0, 3, 0]
    assert kinks.scale.tolist() == [1.0, 1.0, -2.0, 1.0, 1.0]
    assert kinks.leads.tolist() == [True, False, False, True, False]
    strength = kinks.strength(jnp.asarray([[1.0, 7.0, 3.0, 5.0, -2.0]]))
    assert strength[0, [0, 3]].tolist() == [5.0, 5.0]


def test_copied_units_stay_equal():
    task = fl.tasks.hierarchy(levels=3)
    half = fl.ReLUNetwork.init(task, hidden=(8,), variance=1e-2, key=jax.random.key(5))
    copied = fl.ReLUNetwork(
        (jnp.repeat(half.weights[0], 2, axis=0), jnp.repeat(half.weights[1], 2, axis=1)),
        (jnp.repeat(half.biases[0], 2), None),
    )
    flow = exact(copied, task, 15.0)
    assert len(flow.events) > 20
    for leaf in (flow.final.weights[0], flow.final.weights[1].T, flow.final.biases[0]):
        np.testing.assert_allclose(leaf[::2], leaf[1::2], atol=1e-12)


def test_zero_initialisation_stays():
    task = gaussian()
    biases = (jnp.zeros(32), jnp.zeros(3))
    zero = fl.ReLUNetwork((jnp.zeros((32, 6)), jnp.zeros((3, 32))), biases)
    flow = exact(zero, task, 5.0, ts=times(5.0))
    assert len(flow.events) == 0
    assert all(not np.any(w) for w in flow.final.weights)
    relaxed = jnp.mean(task.y, axis=0) * (1 - np.exp(-5.0))
    np.testing.assert_allclose(flow.final.biases[1], relaxed, rtol=1e-7)


def test_duplicated_samples_with_different_labels():
    rng = np.random.default_rng(1)
    x, key = rng.normal(size=(10, 6)), jax.random.key(1)
    task = fl.Task(np.concatenate([x, x]), rng.normal(size=(20, 3)))
    network = fl.ReLUNetwork.init(task, 32, variance=3e-2, bias=(True, True), key=key)
    flow = exact(network, task, 10.0, rtol=1e-10, ts=times(10.0))
    assert np.max(np.diff(flow.losses)) <= 1e-14
    # The two samples of a pair act through the mean of their labels alone.
    once = fl.Task(x, (task.y[:10] + task.y[10:]) / 2)
    assert distance(flow.final, exact(network, once, 10.0, rtol=1e-10).final) < 1e-8
    modes = np.asarray(flow.events.initial).reshape(32, 20)
    assert np.array_equal(modes[:, :10], modes[:, 10:])


def test_units_that_start_at_their_kinks_and_dead_units():
    task = fl.tasks.hierarchy(levels=3)
    network = fl.ReLUNetwork.init(task, hidden=(64,), variance=1e-2, key=jax.random.key(4))
    hidden, bias = network.weights[0], network.biases[0]
    hidden = hidden.at[0].set(-bias[0])  # all of unit 0 at z = 0
    hidden = hidden.at[1, :2].set(-bias[1])
    hidden, bias = hidden.at[2].set(-0.3), bias.at[2].set(-0.1)  # dead
    start = eqx.tree_at(lambda n: (n.weights[0], n.biases[0]), network, (hidden, bias))
    flow = exact(start, task, 20.0, ts=times(20.0))
    assert np.max(np.diff(flow.losses)) <= 1e-14
    assert np.array_equal(flow.final.weights[0][2], hidden[2])
    assert np.array_equal(flow.final.weights[1][:, 2], network.weights[1][:, 2])


def test_one_dimensional_regression():
    x = np.linspace(-1, 1, 12)[:, None]
    task = fl.Task(x, np.abs(x) - 0.4)
    network = fl.ReLUNetwork.init(task, hidden=(24,), variance=1e-1, key=jax.random.key(0))
    coarse, fine = (exact(network, task, 20.0, rtol) for rtol in (1e-7, 1e-10))
    assert distance(coarse.final, fine.final) < 1e-5
    assert np.abs(conserved(fine.final) - conserved(network)).max() < 1e-10


def test_too_few_slots_are_a_named_result():
    task = fl.tasks.hierarchy(levels=3)
    network = fl.ReLUNetwork.init(task, hidden=(16,), variance=1e-2, key=jax.random.key(3))
    options = {"kinks": fl.ExactKinks(slots=1), "solver": diffrax.Tsit5()}
    flow = fl.gradient_flow(network, task, 30.0, throw=False, **options)
    assert flow.result == fl.RESULTS.slide_overflow
    assert 0 < float(flow.end) < 30.0
    with pytest.raises(fl.RunError, match="slots"):
        fl.gradient_flow(network, task, 30.0, **options)


def test_a_full_log_is_a_named_result():
    task = fl.tasks.hierarchy(levels=3)
    network = fl.ReLUNetwork.init(task, hidden=(16,), variance=1e-2, key=jax.random.key(3))
    flow = exact(network, task, 10.0, throw=False, max_events=5)
    assert flow.result == fl.RESULTS.event_overflow
    assert len(flow.events) == 5


def test_other_solvers_are_refused(without_type_checks):
    task = fl.tasks.xor()
    shallow = fl.ReLUNetwork.init(task, hidden=(4,), key=jax.random.key(0))
    with pytest.raises(ValueError, match="explicit Runge-Kutta"):
        fl.gradient_flow(shallow, task, 1.0, kinks=fl.ExactKinks(), solver=diffrax.Kvaerno5())


def replayed(network, task, log, t1):
    """Final weights [b, w] and readout by NumPy and SciPy from the log's times and modes alone."""
    x = np.concatenate([np.ones((task.samples, 1)), np.asarray(task.x)], axis=1)
    y, samples = np.asarray(task.y), task.samples
    (hidden, readout), (bias, _) = jax.tree.map(np.asarray, network.parameters)
    units, inputs = bias.size, x.shape[1]
    state = np.concatenate([np.c_[bias, hidden].ravel(), readout.ravel()])
    codes = np.asarray(log.initial).reshape(units, samples).copy()

    def velocity(_, state, gates, spans):
        w, a = state[: units * inputs].reshape(units, inputs), state[units * inputs :]
        a = a.reshape(-1, units)
        h = gates * (w @ x.T)
        error = (y - (a @ h).T) / samples
        dw = (gates * (a.T @ error.T)) @ x
        for unit, span in spans:
            dw[unit] -= span @ (span.T @ dw[unit])
        return np.concatenate([dw.ravel(), (error.T @ h.T).ravel()])

    times = np.append(np.asarray(log.time), t1)
    changes = zip(np.asarray(log.component), np.asarray(log.new), strict=True)
    for start, end in itertools.pairwise(np.append(0.0, times)):
        if end > start:
            spans = [
                (unit, np.linalg.qr(x[row == 0].T)[0])
                for unit, row in enumerate(codes)
                if np.any(row == 0)
            ]
            args = ((codes > 0).astype(float), spans)
            state = scipy.integrate.solve_ivp(
                velocity, (start, end), state, "DOP853", rtol=1e-11, atol=1e-13, args=args
            ).y[:, -1]
        for component, new in itertools.islice(changes, 1):
            codes.flat[component] = new
    return state[: units * inputs].reshape(units, inputs), state[units * inputs :].reshape(
        -1, units
    )


def test_the_log_is_the_trajectory():
    task = fl.tasks.hierarchy(levels=3)
    network = fl.ReLUNetwork.init(task, hidden=(16,), variance=1e-2, key=jax.random.key(3))
    flow = exact(network, task, 10.0, rtol=1e-11)
    assert int(jnp.sum(flow.events.new == 0)) > 10
    weights, readout = replayed(network, task, flow.events, 10.0)
    np.testing.assert_allclose(weights[:, 0], flow.final.biases[0], atol=1e-8)
    np.testing.assert_allclose(weights[:, 1:], flow.final.weights[0], atol=1e-8)
    np.testing.assert_allclose(readout, flow.final.weights[1], atol=1e-8)


def by_pair(time, component):
    """Event times by (component, how many before it)."""
    found, seen = {}, {}
    for t, c in zip(np.asarray(time), np.asarray(component), strict=True):
        if np.isfinite(t):
            found[int(c), seen.setdefault(int(c), 0)] = t
            seen[int(c)] += 1
    return found


def test_derivatives_of_event_times_t_star_and_final_state():
    task = fl.tasks.hierarchy(levels=3)
    base = fl.ReLUNetwork.init(task, hidden=(32,), variance=1e-3, key=jax.random.key(3))
    keys = jax.random.split(jax.random.key(11), 3)
    turn = [0.03 * jax.random.normal(k, w.shape) for k, w in zip(keys, base.weights, strict=False)]
    bend = jax.random.normal(keys[2], task.x.shape)

    @jax.jit
    def run(at):
        weights = tuple(w + at[0] * d for w, d in zip(base.weights, turn, strict=True))
        network = fl.ReLUNetwork(weights, base.biases, at[1])
        options = {"throw": False, "adjoint": diffrax.ForwardMode(), "max_events": 256}
        flow = exact(network, fl.Task(task.x + at[2] * bend, task.y), 8.0, 1e-12, **options)
        line = flow.linearization()
        final = jnp.concatenate([w.ravel() for w in flow.final.weights])
        stars = jnp.stack([line.open.time, line.closed.time])
        return flow.events.time, flow.events.component, final, stars

    at, step = jnp.asarray([0.0, 1.0, 0.0]), 1e-5
    time, component, _, stars = run(at)
    pairs = by_pair(time, component)
    assert len(pairs) > 100
    assert np.all(stars > 0)
    for direction in jnp.eye(3):
        _, (slopes, _, *others) = jax.jvp(run, (at,), (direction,))
        tangent = dict(zip(pairs, np.asarray(slopes), strict=False))
        near = [run(at + k * step * direction) for k in (-2, -1, 1, 2)]
        table = [by_pair(*one[:2]) for one in near]
        common = [key for key in pairs if all(key in one for one in table)]
        assert len(common) == len(pairs)  # no event came or went
        weigh = np.array([1.0, -8.0, 8.0, -1.0]) / (12 * step)
        finite = np.array([[one[key] for key in common] for one in table]).T @ weigh
        off = np.abs(np.array([tangent[key] for key in common]) / finite - 1)
        assert np.median(off) < 1e-8
        assert np.max(off) < 1e-6
        for value, tangent_ in zip((2, 3), others, strict=True):
            finite = sum(w * one[value] for w, one in zip(weigh, near, strict=True))
            assert np.linalg.norm(tangent_ - finite) < 1e-6 * np.linalg.norm(finite)


def test_evaluations_are_counted(monkeypatch):
    """As many as there are when each reports itself, but for those of rejected steps."""
    from flowlin.engine.kinks.one_layer import GatedFlow

    calls, velocity = [], GatedFlow.__call__

    def reported(self, t, parameters, frozen):
        jax.debug.callback(lambda: calls.append(1))
        return velocity(self, t, parameters, frozen)

    monkeypatch.setattr(GatedFlow, "__call__", reported)
    task = gaussian(8)
    network = fl.ReLUNetwork.init(task, 5, 0.1, key=jax.random.key(3))
    flow = exact(network, task, 3.0, rtol=1e-3, solver=diffrax.Bosh3())
    jax.effects_barrier()
    stats = {name: int(flow.stats[name]) for name in flow.stats if name.startswith(("num", "acc"))}
    assert len(flow.events) > 5
    share = stats["num_steps"] / stats["num_accepted_steps"]
    first = 2  # of the first step's length
    assert stats["accepted_evaluations"] == pytest.approx((len(calls) - first) / share, rel=0.05)
    assert share > 1 or stats["accepted_evaluations"] == len(calls) - first
