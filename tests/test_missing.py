"""Weights of entries, (P, N_out), and targets that are missing: those of weight zero."""

import functools

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp
from scipy.linalg import expm

import flowlin as fl
from tests.by_hand import COUNTS, ByHand, classes, linear, relu
from tests.tolerances import ROUNDING
from tests.zoo import jit

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

PLAIN = classes()  # 7 samples, 2 inputs, 3 outputs
X, Y = PLAIN.x, PLAIN.y
WEIGHTS = np.random.default_rng(6).integers(0, 3, size=(7, 3)).astype(float)
WEIGHTS[2] = 0.0  # a sample of which nothing is known
HOLES = jnp.where(WEIGHTS == 0, jnp.nan, Y)
TASK = fl.Task(X, HOLES, weights=WEIGHTS)
MEAN, SUM = fl.SquaredError(), fl.SquaredError("sum")
TAU, DECAY, STEP = (2.0, 0.5), (0.2, 0.05), 2e-4


def masked(outputs, y):
    """Loss and slope of every sample, as `ByHand` takes them: it divides by P."""
    share = WEIGHTS * WEIGHTS.size / WEIGHTS.sum()
    return np.sum(share * (outputs - y) ** 2, axis=1) / 2, share * (outputs - y)


def by_hand(network, tau=(1.0, 1.0), decay=(0.0, 0.0)):
    return ByHand(network, PLAIN, masked, tau, decay)


def apart(a, b):
    return float(fl.distance(a, b, relative=True))


def entry_by_entry(network, loss):
    """The loss as a sum over the entries that are there, one by one."""
    total = 0.0
    for p, k in zip(*np.nonzero(WEIGHTS), strict=True):
        total += WEIGHTS[p, k] * (network(X[p])[k] - Y[p, k]) ** 2 / 2
    return float(total) / (1.0 if loss is SUM else WEIGHTS.sum() / 3)


# ---- The loss


@pytest.mark.parametrize("loss", [MEAN, SUM], ids=["mean", "sum"])
def test_the_loss_is_a_sum_over_entries(loss):
    network = relu(TASK)
    wanted = entry_by_entry(network, loss)
    assert float(fl.measures.loss(network, TASK, loss=loss)) == pytest.approx(wanted, rel=1e-13)
    found, slope = jax.jit(jax.value_and_grad(loss))(
        network.outputs(X), HOLES, jnp.asarray(WEIGHTS)
    )
    assert float(found) == pytest.approx(wanted, rel=1e-13)
    factor = 1.0 if loss is SUM else 3 / WEIGHTS.sum()
    wanted = factor * WEIGHTS * (np.asarray(network.outputs(X)) - Y)
    np.testing.assert_allclose(slope, wanted, atol=1e-15)  # no NaN of what is missing


def test_missing_targets_are_seen_by_nothing():
    np.testing.assert_array_equal(TASK.y, np.where(WEIGHTS == 0, 0.0, Y))
    np.testing.assert_array_equal(fl.Task(X, Y, weights=WEIGHTS).y, Y)  # finite ones stay
    rows = fl.Task(X, np.where(np.arange(7)[:, None] == 2, np.nan, Y), weights=np.arange(7) != 2)
    np.testing.assert_array_equal(rows.y[2], 0.0)  # of a whole sample
    network = relu(TASK)
    filled = fl.Task(X, jnp.where(WEIGHTS == 0, 1e9, Y), weights=WEIGHTS)
    runs = [fl.gradient_descent(network, task, 0.1, 9) for task in (TASK, filled)]
    assert apart(runs[0].final, runs[1].final) == 0
    *_, (loss, arrays) = by_hand(network).descent(0.1, 9)
    assert float(runs[0].losses[-1]) == pytest.approx(loss, rel=1e-13)
    assert apart(runs[0].final, by_hand(network).at(arrays)) < 1e-13
    with pytest.raises(ValueError, match=r"`y` holds 1 value.*`weights=~np.isnan\(y\)`"):
        fl.Task(X, np.where(np.arange(21).reshape(7, 3) == 4, np.nan, Y), weights=np.ones((7, 3)))
    with pytest.raises(ValueError, match="`y` holds 1 value"):  # an infinity is a mistake
        fl.Task(X, np.where(np.arange(21).reshape(7, 3) == 6, np.inf, Y), weights=WEIGHTS)


def test_equal_columns_are_weights_of_samples():
    one, other = (fl.Task(X, Y, weights=w) for w in (COUNTS, np.repeat(COUNTS[:, None], 3, 1)))
    assert float(one.mass) == float(other.mass) == 11
    network = relu(one, seed=7)
    for measure in (fl.measures.loss, fl.measures.velocity):
        for a, b in zip(*(jax.tree.leaves(measure(network, t)) for t in (one, other)), strict=True):
            np.testing.assert_allclose(a, b, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.slow
def test_equal_columns_run_from_samples_as_weights_of_samples_from_statistics():
    tasks = [fl.Task(X, Y, weights=w) for w in (COUNTS, np.repeat(COUNTS[:, None], 3, 1))]
    flows = [fl.gradient_flow(linear(task), task, 2.0, rtol=1e-10) for task in tasks]
    assert [flow.stats["objective"] for flow in flows] == ["LinearStatistics", "FullData"]
    assert apart(flows[0].final, flows[1].final) < ROUNDING


# ---- Runs


START = relu(TASK, seed=12)


@functools.cache
def in_small_steps(step):
    """The network at t = 4."""
    return by_hand(START, TAU, DECAY).limit(4.0, step)


@pytest.mark.slow
def test_a_walk_is_the_limit_of_small_steps():
    flow = fl.gradient_flow(START, TASK, 4.0, tau=TAU, weight_decay=DECAY, rtol=1e-10)
    assert len(flow.events) > 0
    errors = [apart(flow.final, in_small_steps(step)) for step in (10 * STEP, STEP)]
    assert errors[1] < 0.2 * errors[0] < 1e-3
    assert float(flow.losses[-1]) == pytest.approx(entry_by_entry(flow.final, MEAN), rel=1e-10)


@pytest.mark.slow
def test_averaged_kinks():
    how = {"tau": TAU, "weight_decay": DECAY, "kinks": fl.AveragedKinks()}
    flow = fl.gradient_flow(START, TASK, 4.0, **how)
    assert apart(flow.final, in_small_steps(STEP)) < 3e-4


@pytest.mark.slow
def test_a_deep_linear_network_completes_a_matrix():
    """Entries of a matrix of rank one, against SciPy on the velocity written by hand."""
    size, rng = 4, np.random.default_rng(0)
    matrix = np.outer(rng.normal(size=size), rng.normal(size=size))
    known = rng.uniform(size=(size, size)) < 0.6
    there = known.astype(float)
    task = fl.Task(np.eye(size), np.where(known, matrix, np.nan).T, weights=known.T)
    network = fl.LinearNetwork.init(task, (size, size), 0.1, bias=False, key=jax.random.key(1))
    flow = fl.gradient_flow(network, task, 8.0, rtol=1e-10, ts=[2.0, 8.0])

    def velocity(_, flat):
        a, b, c = flat.reshape(3, size, size)
        slope = there * (c @ b @ a - matrix) / (there.sum() / size)
        return -np.stack([b.T @ c.T @ slope, c.T @ slope @ a.T, slope @ a.T @ b.T]).ravel()

    known = solve_ivp(
        velocity, (0, 8.0), np.stack(network.weights).ravel(), "DOP853", t_eval=[2.0, 8.0],
        rtol=1e-11, atol=1e-13,
    ).y.T.reshape(2, 3, size, size)  # fmt: skip
    for k, weights in enumerate(flow.networks.weights):
        np.testing.assert_allclose(weights, known[:, k], atol=1e-8)


@pytest.mark.slow
def test_batches_count_what_is_there():
    """A batch is divided by its own weight, and one of nothing moves nothing."""
    network, rate, key = linear(TASK), 0.1, jax.random.key(0)
    run = fl.stochastic_gradient_descent(
        network, TASK, rate, 7, batch_size=1, key=key, save_every=1
    )
    order = []
    for before, after in zip(*(
        [jax.tree.map(lambda a, k=k: a[k], run.networks) for k in range(j, 7 + j)] for j in (0, 1)
    ), strict=True):  # fmt: skip
        steps = []
        for p in range(7):
            hand = jax.grad(
                lambda n, p=p: jnp.sum(WEIGHTS[p] * (n(X[p]) - Y[p]) ** 2)
                / 2 / max(WEIGHTS[p].sum() / 3, 1e-300)
            )(before)  # fmt: skip
            moved = before.with_parameters(
                jax.tree.map(lambda a, g: a - rate * g, before.parameters, hand.parameters)
            )
            steps.append(float(fl.distance(moved, after)))
        order.append(int(np.argmin(steps)))
        assert steps[order[-1]] < 1e-14
    assert sorted(order) == list(range(7))  # sample 2, without entries, among them


# ---- Closed forms and measures


def test_the_lazy_limit_is_each_output_by_itself():
    """One layer is its own lazy limit: a regression per output, by SciPy's exponential."""
    network = fl.LinearNetwork((np.full((3, 2), 0.1),))
    found = fl.theory.lazy(network, TASK)
    ends = np.array([0.0, 1.5, 20.0])
    matrices, mass = np.asarray(found.network(ends).weights[0]), WEIGHTS.sum() / 3
    for k in range(3):
        counted = WEIGHTS[:, k : k + 1] * X / mass
        sigma, pull = counted.T @ X, counted.T @ Y[:, k]
        end = np.linalg.solve(sigma, pull)
        for t, matrix in zip(ends, matrices, strict=True):
            wanted = end + expm(-t * sigma) @ (0.1 - end)
            np.testing.assert_allclose(matrix[k], wanted, atol=1e-12)


@pytest.mark.slow
def test_the_lazy_limit_knows_the_runs_of_its_task():
    network = fl.LinearNetwork((np.full((3, 2), 0.1),))
    flow = fl.gradient_flow(network, TASK, 2.0, rtol=1e-10)
    again = fl.Task(X, HOLES, weights=WEIGHTS)
    assert float(jnp.max(fl.theory.lazy(network, again).error(flow))) < 1e-8
    other = fl.Task(X, HOLES, weights=WEIGHTS * (1 + np.eye(7, 3)))
    with pytest.raises(ValueError, match="`flow` is of other data"):
        fl.theory.lazy(network, other).error(flow)


@pytest.mark.slow
def test_sharpness_is_that_of_the_hessian():
    network = relu(TASK)
    flat, shape = ravel_pytree(network.parameters)

    def loss(w):
        outputs = network.with_parameters(shape(w)).outputs(X)
        return jnp.sum(WEIGHTS * (outputs - Y) ** 2) / 2 / (WEIGHTS.sum() / 3)

    wanted = np.linalg.eigvalsh(jax.jit(jax.hessian(loss))(flat))[-1]
    np.testing.assert_allclose(fl.measures.sharpness(network, TASK), wanted, 1e-6)


@pytest.mark.slow
def test_the_early_phase_is_that_of_small_weights():
    """By SciPy, in units of the start: the steps of its error control find the kinks."""
    size, key = 1e-5, jax.random.key(3)
    network = fl.ReLUNetwork.init(TASK, 4, size**2, bias=(True, False), key=key)
    early = fl.theory.early_phase(network, TASK, t1=1.0, slots=4)
    flat, shape = ravel_pytree(network.parameters)
    hand = by_hand(network)

    def velocity(_, y):
        arrays = jax.tree.leaves(shape(size * y))
        return np.concatenate([v.ravel() for v in hand(arrays)[1]]) / size

    found = solve_ivp(velocity, (0, 1.0), flat / size, "DOP853", rtol=1e-11, atol=1e-11)
    end = network.with_parameters(shape(size * found.y[:, -1]))
    assert apart(early.network(1.0), end) < 1e-8
    assert float(early.overlap(1.0)) == pytest.approx(
        float(np.sum(WEIGHTS * Y * end.outputs(X)) / np.sum(WEIGHTS * Y**2)), rel=1e-7
    )


CROSS = fl.CrossEntropy()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda n: fl.measures.loss(n, TASK, loss=CROSS), "sums over outputs.*CrossEntropy"),
        (lambda n: fl.gradient_flow(n, TASK, 1.0, loss=CROSS), r"give `weights` of shape \(7,\)"),
        (lambda n: fl.gradient_flow(n, TASK, 1.0, loss=lambda o, y: jnp.sum((o - y) ** 4)), "sums"),
        (lambda n: fl.gradient_descent(n, TASK, 0.1, 1, loss=CROSS), "sums over outputs"),
        (lambda n: CROSS(n.outputs(X), Y, jnp.asarray(WEIGHTS)), "sums over outputs"),
        (lambda n: fl.theory.modes(TASK, n), "modes are made of averages over samples"),
        (lambda n: fl.theory.bias_mode(TASK, 1.0), "modes are made of averages"),
        (lambda n: fl.theory.solve(n, TASK), "modes are made of averages"),
        (lambda n: fl.measures.error_rate(n, TASK), "error rates are made of averages"),
        (lambda n: fl.theory.modes(PLAIN, n).strengths(n, TASK, check=False), "modes are made"),
        (lambda n: fl.measures.mode_matrix(n, TASK, fl.theory.modes(PLAIN, n)), "modes are made"),
        (lambda n: fl.Task(X, HOLES, weights=np.zeros((7, 3))), "`weights` are all zero"),
        (lambda n: fl.Task(X, Y, weights=-WEIGHTS), "`weights` must be zero or positive"),
        (lambda n: fl.Task(X, Y, weights=WEIGHTS.T), r"\(7, 3\), one per entry.*got \(3, 7\)"),
    ],
)  # fmt: skip
def test_what_has_no_weights_of_entries_says_so(call, said):
    network = fl.LinearNetwork.init(TASK, 3, 0.1, key=jax.random.key(0))
    with pytest.raises(ValueError, match=said):
        call(network)


def test_weights_of_entries_travel_with_the_samples(tmp_path):
    assert "weighted by entry" in repr(TASK)
    np.testing.assert_array_equal(TASK.take([3, 1]).weights, WEIGHTS[[3, 1]])
    assert TASK.astype("float32").weights.dtype == jnp.float32
    run = fl.gradient_descent(linear(TASK), TASK, 0.1, 1, observe={"task": lambda n, task: task})
    run.save(tmp_path / "run.npz")
    np.testing.assert_array_equal(
        fl.load(tmp_path / "run.npz").observed["task"].weights[0], WEIGHTS
    )


@pytest.mark.slow
def test_weights_of_entries_can_be_mapped_over_and_differentiated():
    network = linear(TASK)

    def end(weights, **how):
        task = fl.Task(X, Y, weights=weights)
        return fl.gradient_flow(network, task, 1.0, rtol=1e-9, max_steps=64, **how).losses[-1]

    along = np.random.default_rng(1).normal(size=WEIGHTS.shape)
    stacked = jnp.stack([WEIGHTS + 1.0, WEIGHTS + 1.0 + 1e-5 * along, WEIGHTS + 1.0 - 1e-5 * along])

    @jit
    @jax.vmap
    def value_and_slope(weights):
        forward = functools.partial(end, adjoint=diffrax.ForwardMode())
        return jax.jvp(forward, (weights,), (jnp.asarray(along),))

    together, slopes = value_and_slope(stacked)
    alone = [float(end(one)) for one in stacked]
    np.testing.assert_allclose(together, alone, rtol=1e-12)
    assert float(slopes[0]) == pytest.approx((alone[1] - alone[2]) / 2e-5, rel=1e-6)
