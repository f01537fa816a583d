"""Samples with weights: whole numbers stand for repeated rows, quadrature for a population."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin._tools.files import decoded, encoded
from flowlin.engine.kinks.averaged import AveragedGates
from flowlin.training.problem import Problem

COUNTS = np.array([1, 2, 1, 3, 1, 1, 2, 1])
ROWS = np.repeat(np.arange(8), COUNTS)
MEAN, SUM = fl.SquaredError(), fl.SquaredError("sum")


@pytest.fixture(scope="module")
def both(tree):
    """The tree with weights, and with repeated rows."""
    weighted = fl.Task(tree.x, tree.y, weights=COUNTS)
    return weighted, tree.take(ROWS)


def half_square(output, target):
    return 0.5 * jnp.sum((target - output) ** 2)


def close(found, wanted, tolerance=1e-12):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def switches(log, names):
    """(unit, sample, side) and time of every switch, samples renamed and told once."""
    found = {}
    for index, side, time in zip(log.index, np.asarray(log.new), np.asarray(log.time), strict=True):
        found.setdefault((index[1], int(names[index[2]]), int(side)), set()).add(float(time))
    return dict(sorted(found.items()))


@pytest.mark.parametrize(("loss", "tau"), [(MEAN, 1.0), (SUM, 12.0)], ids=["mean", "sum"])
def test_linear_flows_on_weights_are_those_on_repeated_rows(both, loss, tau):
    """By the samples, and by statistics."""
    network = fl.LinearNetwork.init(both[0], 8, 0.1, key=jax.random.key(0))
    weighted, repeated = (
        fl.gradient_flow(network, task, 5.0, loss=loss, tau=tau, rtol=1e-9) for task in both
    )
    close(weighted.final.parameters, repeated.final.parameters)
    close(weighted.losses, repeated.losses)
    assert [f.stats["objective"] for f in (weighted, repeated)] == ["FullData", "Statistics"]
    wide = fl.Task(both[0].x[:, :3], both[0].y, weights=COUNTS)
    network = fl.LinearNetwork.init(wide, 8, 0.1, key=jax.random.key(0))
    flow = fl.gradient_flow(network, wide, 0.5, loss=loss, tau=tau)
    assert flow.stats["objective"] == "Statistics"
    assert float(flow.losses[0]) == pytest.approx(float(fl.measures.loss(network, wide, loss=loss)))
    slope = fl.measures.velocity(network, wide, loss=loss)
    close(flow.reference.run.method.objective.gradient(network), jax.tree.map(lambda v: -v, slope))


@pytest.mark.slow
def test_exact_walks_on_weights_are_those_on_repeated_rows(both):
    """Switches included; by the library's loss, and by a function of one sample."""
    network = fl.ReLUNetwork.init(both[0], 8, 0.3, key=jax.random.key(3))
    weighted, repeated = (
        fl.gradient_flow(network, task, 5.0, loss=loss, ts=[0.0, 1.0, 5.0])
        for task, loss in zip(both, (half_square, MEAN), strict=True)
    )
    close(weighted.networks.parameters, repeated.networks.parameters)
    close(weighted.losses, repeated.losses)
    one, other = switches(weighted.events, np.arange(8)), switches(repeated.events, ROWS)
    assert len(other) > 5
    assert list(one) == list(other)
    for name, times in one.items():
        np.testing.assert_allclose(sorted(times), sorted(other[name]), rtol=1e-10)


def test_averaged_gates_weigh_their_forces(both):
    network = fl.ReLUNetwork.init(both[0], 8, 0.3, key=jax.random.key(3))
    tau = jnp.asarray(1.0)

    @jax.jit
    def found(task):
        solver = AveragedGates(network, task, MEAN, tau)
        (z,) = network.preactivations(task.x)
        return solver._evaluate((z, network.parameters))[1][1]

    close(found(both[0]), found(both[1]))
    close(found(both[0]), fl.measures.velocity(network, both[1]))


def test_descent_on_weights_is_that_on_repeated_rows(both):
    network = fl.ReLUNetwork.init(both[0], 8, 0.3, key=jax.random.key(3))
    weighted, repeated = (fl.gradient_descent(network, task, 0.1, 20) for task in both)
    close(weighted.final.parameters, repeated.final.parameters)
    close(weighted.losses, repeated.losses)
    batches = fl.stochastic_gradient_descent(
        network, both[0], 0.1, 20, batch_size=8, key=jax.random.key(0)
    )
    close(batches.final.parameters, weighted.final.parameters)


@pytest.mark.parametrize("c", [0.0, 1.0])
def test_closed_forms_take_weights(both, c):
    x, y = jax.random.normal(jax.random.key(5), (8, 3)) + 0.5, both[0].y[:, 5:8]
    tasks = fl.Task(x, y, weights=COUNTS), fl.Task(x, y).take(ROWS)
    weighted, repeated = (fl.theory.modes(task, c) for task in tasks)
    close((weighted.s, weighted.d), (repeated.s, repeated.d))
    close((weighted.u * weighted.s) @ weighted.v.T, (repeated.u * repeated.s) @ repeated.v.T)
    close(weighted.fingerprint, repeated.fingerprint)
    close(*(fl.theory.bias_mode(task, c) for task in tasks), tolerance=1e-7)
    network = fl.LinearNetwork.init(tasks[0], 4, 0.1, bias=bool(c), key=jax.random.key(0))
    close(weighted.strengths(network, tasks[0]), weighted.strengths(network, tasks[1]))
    close(*(fl.measures.mode_shares(network, task, weighted) for task in tasks))
    close(*(fl.measures.error_rate(network, task) for task in tasks))
    close(*(fl.theory.solve(network, task).product(3.0) for task in tasks), tolerance=1e-10)


@pytest.mark.slow
def test_the_early_phase_takes_weights(both):
    network = fl.ReLUNetwork.init(both[0], 8, 0.01, bias=(True, False), key=jax.random.key(3))
    weighted, repeated = (fl.theory.early_phase(network, task, loss=SUM) for task in both)
    close(weighted.t1, repeated.t1)
    close(weighted.rates, repeated.rates)
    close(weighted.mode_tau, repeated.mode_tau)
    close(weighted.overlap(weighted.t1), repeated.overlap(repeated.t1))


def test_a_population_by_quadrature():
    r"""x ~ N(0, 1) and y = x^3: Sigma_yx = E x^4 = 3 and Sigma_x = 1, by eight nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    task = fl.Task(nodes[:, None], nodes[:, None] ** 3, weights=weights)
    modes = fl.theory.modes(task)
    close((modes.s, modes.d), (np.array([3.0]), np.array([1.0])))
    network = fl.LinearNetwork((jnp.full((1, 1), 0.5),))
    ts = np.linspace(0, 2, 5)
    flow = fl.gradient_flow(network, task, 2.0, ts=ts, rtol=1e-12)
    slope = 3 - 2.5 * np.exp(-ts)
    np.testing.assert_allclose(flow.networks.weights[0][:, 0, 0], slope, rtol=1e-9)
    np.testing.assert_allclose(flow.losses, (15 - 6 * slope + slope**2) / 2, rtol=1e-9)


def test_weights_travel_with_the_samples(both):
    weighted = both[0]
    assert "weighted" in repr(weighted)
    np.testing.assert_array_equal(weighted.take([3, 1]).weights, [3, 2])
    assert weighted.astype("float32").weights.dtype == jnp.float32
    assert float(weighted.mass) == 12
    arrays = {}
    node = encoded(weighted, arrays, "task")
    np.testing.assert_array_equal(decoded(node, arrays).weights, COUNTS)
    plain = fl.Task(weighted.x, weighted.y)
    assert len(jax.tree.leaves(plain)) == 2
    node = encoded(plain, arrays, "task")
    del node["fields"]["weights"]  # as files of an earlier version
    assert decoded(node, arrays).weights is None
    network = fl.LinearNetwork.init(plain, 4, 0.1, key=jax.random.key(0))
    runs = fl.sweep([network] * 2, [plain, weighted], 1.0)
    alone = fl.gradient_flow(network, weighted, 1.0)
    np.testing.assert_array_equal(runs[1].losses, alone.losses)
    assert not np.allclose(runs[0].losses, alone.losses)
    assert Problem(network, plain, MEAN, jnp.asarray(1.0)).decay is None


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 1.0], r"`weights` must have shape \(4,\), one per sample, got \(2,\)"),
        ([1.0, -1.0, 1.0, 1.0], "`weights` must be zero or positive, got -1.0"),
        ([1.0, np.nan, 1.0, 1.0], r"`weights` holds 1 value\(s\) that are NaN"),
        (np.zeros(4), "`weights` are all zero"),
        (["a"] * 4, "`weights` must be an array of real numbers"),
    ],
)
def test_bad_weights(weights, message):
    task = fl.tasks.xor()
    with pytest.raises(ValueError, match=message):
        fl.Task(task.x, task.y, weights=weights)


@pytest.mark.usefixtures("without_type_checks")
def test_nothing_but_samples_without_weight_is_no_task(both):
    task = fl.Task(both[0].x, both[0].y, weights=np.arange(8.0))
    with pytest.raises(ValueError, match="`indices` take samples of weight zero only"):
        task.take([0])
    with pytest.raises(ValueError, match=r"`weights` must have shape \(2,\), one per sample"):
        MEAN(jnp.ones((2, 1)), jnp.ones((2, 1)), jnp.ones(3))
