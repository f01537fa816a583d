"""The exact walk through the kinks of ReLU networks with one hidden layer.

The first tier walks in one program, whatever the start (`walked`), and compares with a second walk
that shares nothing with it (`tests.numpy_walk`).
"""

import functools
import itertools
import re
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import flowlin as fl
from flowlin._tools.arrays import first_true_indices
from flowlin.engine.kinks.kink_policies import choose_kinks
from flowlin.engine.kinks.margin_curve import MarginCurve, chebyshev_points
from flowlin.engine.kinks.one_layer import OneLayerFlow
from flowlin.engine.kinks.one_layer_switching import may_start_on_either_side
from flowlin.engine.kinks.sides import Hyperplanes, minimise_in_box
from flowlin.engine.kinks.walk import StepPieces, choose_switching
from flowlin.engine.run import Limits
from flowlin.events.path import STEP_PARTS, StepPath
from flowlin.runs.flow_failure import flow_failure
from flowlin.training.problem import Problem
from tests import numpy_walk
from tests.tolerances import ROUNDING, of_flow
from tests.zoo import distance, jit, times

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

FINE = 1e-10  # rtol of walks that are compared with another
SHAPES = (4, 3), (2, 4), (4,)  # four units on five samples of three inputs and two outputs


def gaussian(samples=20, inputs=6, outputs=3):
    keys = jax.random.split(jax.random.key(7))
    x = jax.random.normal(keys[0], (samples, inputs))
    return fl.Task(x, jax.random.normal(keys[1], (samples, outputs)), name="gaussian")


def exact(network, task, t1, rtol=1e-8, solver: Any = diffrax.Tsit5(), slots=16, **options):
    kinks = fl.ExactKinks(slots=slots)
    return fl.gradient_flow(network, task, t1, kinks=kinks, solver=solver, rtol=rtol, **options)


def conserved(network):
    """|w|^2 + b^2 - |a|^2 of every unit."""
    hidden, readout = map(np.asarray, network.weights)
    bias = 0.0 if network.biases[0] is None else np.asarray(network.biases[0]) ** 2
    return np.sum(hidden**2, axis=1) + bias - np.sum(readout**2, axis=0)


def drawn(seed, bias=True, shared=False, **options):
    """A network and its task; `shared`: two samples whose inputs are multiples of each other."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    if shared:
        x[3] = -2 * x[0]
    hidden, readout, b = (0.3 * rng.normal(size=shape) for shape in SHAPES)
    return fl.ReLUNetwork((hidden, readout), (b if bias else None, None), **options), fl.Task(x, y)


# ---- Against a second walk.

END = 10.0


def first_weights(network, task):
    return network.weights[0][0]


def walked(network, task, loss=0.0):
    """To the end, or to where the loss is; one program for all networks with biases."""
    level = fl.Crossing(first_weights, level=0.05, name="weight")
    events = (level, fl.LossBelow(loss, terminate=True))
    return exact(network, task, END, FINE, ts=times(END), events=events)


DRAWS: dict[str, tuple[int, dict[str, Any]]] = {
    "one pair slides": (7, {}),
    "several slide": (6, {}),
    "leaky": (2, {"slope": 0.2}),
    # With c = 0 biases are as if there were none.
    "without biases": (2, {"bias_strength": 0.0}),
    "without biases, a kink of two samples": (7, {"bias_strength": 0.0, "shared": True}),
}


@pytest.fixture(scope="module")
def walks():
    """By name: network, task, the flow, and the second walk at the same times."""
    found = {}
    for name, (seed, options) in DRAWS.items():
        network, task = drawn(seed, **options)
        second = numpy_walk.walk(network, task, END, times(END))
        found[name] = network, task, walked(network, task), second
    return found


def by_pair(rows):
    """Switches (time, unit, sample, old, new) by the pair: sides, and times."""
    found = {}
    for time, unit, sample, old, new in rows:
        found.setdefault((int(unit), int(sample)), []).append((time, int(old), int(new)))
    sides = {pair: [row[1:] for row in rows] for pair, rows in found.items()}
    return sides, {pair: [row[0] for row in rows] for pair, rows in found.items()}


def logged(log):
    rows = log.select("gate").table()
    return [(row["time"], *row["index"][1:], row["old"], row["new"]) for row in rows]


def agree(flow, second):
    """That all switches and the weights at all times are those of the second walk."""
    (sides, when), (others, known) = by_pair(logged(flow.events)), by_pair(second.switches)
    assert sides == others
    for pair, found in when.items():
        # A unit may come to a kink a hundred times as slowly as it moves.
        np.testing.assert_allclose(found, known[pair], rtol=0, atol=of_flow(100 * FINE))
    (hidden, readout), (bias, _) = flow.networks.parameters
    np.testing.assert_allclose(hidden, second.hidden, rtol=0, atol=of_flow(FINE))
    np.testing.assert_allclose(readout, second.readout, rtol=0, atol=of_flow(FINE))
    if bias is not None:
        np.testing.assert_allclose(bias, second.biases, rtol=0, atol=of_flow(FINE))


@pytest.mark.parametrize("name", DRAWS)
def test_switches_and_weights_are_those_of_a_second_walk(walks, name):
    _, _, flow, second = walks[name]
    assert len(second.switches) > 2
    assert second.slides > 0
    agree(flow, second)


@pytest.mark.parametrize("name", DRAWS)
def test_a_walk_keeps_what_a_flow_keeps_and_its_log_tells_the_sides(walks, name):
    network, task, flow, _ = walks[name]
    assert np.max(np.diff(flow.losses)) <= 0
    assert np.abs(conserved(flow.final) - conserved(network)).max() < of_flow(FINE)
    assert np.all(np.diff(flow.events.time) >= 0)
    assert np.all(np.asarray(flow.events.uncertainty) >= 0)
    sides = np.where(np.asarray(network.preactivations(task.x)[0]).T > 0, 1, -1)
    for _, unit, sample, old, new in logged(flow.events):
        assert sides[unit, sample] == old != new
        sides[unit, sample] = new
    z = np.asarray(flow.final.preactivations(task.x)[0]).T
    assert np.all(np.abs(z[sides == 0]) < ROUNDING)
    assert np.all(z[sides > 0] > -ROUNDING)
    assert np.all(z[sides < 0] < ROUNDING)


def test_events_of_the_user_and_the_end_of_a_walk(walks):
    network, task, whole, _ = walks["several slide"]
    rows = whole.events.select("weight").table()
    assert rows
    second = numpy_walk.walk(network, task, END, [row["time"] for row in rows])
    for row, hidden in zip(rows, second.hidden, strict=True):
        assert hidden[0, row["index"][0]] == pytest.approx(0.05, abs=of_flow(FINE))
    level = float(whole.losses[70])
    flow = walked(network, task, level)
    assert flow.result == fl.RESULTS.event_occurred
    assert float(flow.end) == pytest.approx(times(END)[70], abs=of_flow(100 * FINE))
    assert float(flow.losses[-1]) == pytest.approx(level, rel=of_flow(FINE))


# ---- Starts at kinks, and copies: ties of all sorts.


def test_copied_units_stay_equal():
    network, task = drawn(0)
    (hidden, readout), (bias, _) = jax.tree.map(np.asarray, network.parameters)
    twice = [0, 1, 0, 1]
    copied = fl.ReLUNetwork((hidden[twice], readout[:, twice]), (bias[twice], None))
    flow = walked(copied, task)
    assert len(flow.events.select("gate")) > 4
    for leaf in (flow.final.weights[0], flow.final.weights[1].T, flow.final.biases[0]):
        np.testing.assert_allclose(leaf[:2], leaf[2:], atol=ROUNDING)


@pytest.fixture(scope="module")
def dead():
    """The walk of weights of zero: all pairs are at their kinks, as in the tests below."""
    hidden, readout, bias = map(np.zeros, SHAPES)
    return walked(fl.ReLUNetwork((hidden, readout), (bias, None)), drawn(0)[1])


@pytest.mark.slow
def test_all_zero_stays(dead):
    assert len(dead.events) == 0
    assert all(not np.any(w) for w in dead.final.weights)


@pytest.mark.slow
def test_weights_of_zero_stay_and_it_is_told_that_a_flow_leaves():
    """Of the flows that start there the walk is descent's, for which relu'(0) = 0."""
    task = drawn(0)[1]
    hidden, readout, bias = map(np.zeros, SHAPES)
    readout[:, 0] = 1.0  # the samples of which the targets' sum is > 0 would drive its unit
    flow = walked(fl.ReLUNetwork((hidden, readout), (bias, None)), task)
    assert flow.losses[-1] == flow.losses[0]
    branches = flow.events.select("branch")
    driven = np.flatnonzero(np.sum(np.asarray(task.y), axis=1) > 0)
    assert 0 < len(driven) < task.samples
    found = [(row["time"], row["index"]) for row in branches.table()]
    assert found == [(0.0, (0, 0, sample)) for sample in driven]
    assert "starts on its kink" in branches.reason[0]
    assert "from t = 0 on this flow is one of several" in repr(flow)
    hidden[0] = 1e-6 * np.asarray(task.x)[driven[0]]
    left = walked(fl.ReLUNetwork((hidden, readout), (bias, None)), task)
    assert left.losses[-1] < 0.9 * flow.losses[-1]


# Of a unit of z = 0 on sample 0, where C is the target, and on for sample 1, which pushes z: push,
# target, and whether two flows start. They do where the rate with the pair off, the push, is not
# positive, and that with it on, push + C, is.
STARTS_AT_KINK = [
    pytest.param(0.5, 1, False, id="it comes on"),
    pytest.param(0.0, 1, True, id="at rest"),
    pytest.param(-0.5, 1, True, id="it could come on"),
    pytest.param(-2.0, 1, False, id="it is pushed off"),
    pytest.param(0.0, -1, False, id="it slides"),
]


def start_at_kink(push, target):
    """The task of this, and the unit's weights."""
    task = fl.Task([[1.0, 0.0], [1.0, 1.0]], [[target], [1.0 + push]])
    return task, (np.array([[0.0, 1.0]]), np.ones((1, 1)))


@pytest.mark.parametrize(("push", "target", "told"), STARTS_AT_KINK)
def test_from_which_kinks_two_flows_start(push, target, told):
    task, weights = start_at_kink(push, target)
    network = fl.ReLUNetwork(weights, (None, None))
    flow = OneLayerFlow(network, task, fl.SquaredError(), jnp.ones(()))
    found = eqx.filter_jit(may_start_on_either_side)(flow, network.parameters, 2)
    assert found.tolist() == [[told, False]]


def test_samples_of_one_input_act_through_the_mean_of_their_labels():
    network, task = drawn(5)
    x, y = np.array(task.x), np.array(task.y)
    x[2:4] = x[:2]
    flow = walked(network, fl.Task(x, y))
    assert np.max(np.diff(flow.losses)) <= 0
    of_means = y.copy()
    of_means[:2] = of_means[2:4] = (y[:2] + y[2:4]) / 2
    second = numpy_walk.walk(network, fl.Task(x, of_means), END)
    np.testing.assert_allclose(flow.final.weights[0], second.hidden[-1], rtol=0, atol=of_flow(FINE))
    for (unit, sample), found in by_pair(logged(flow.events))[1].items():
        if sample < 2:
            assert found == by_pair(logged(flow.events))[1][unit, sample + 2]


@pytest.mark.slow
def test_units_that_start_at_their_kinks_and_dead_units():
    network, task = drawn(4)
    x = np.c_[np.ones(5), np.asarray(task.x)]
    full = np.c_[np.asarray(network.biases[0]), np.asarray(network.weights[0])]
    for unit, pairs in ((0, 2), (1, 1)):  # at their kinks
        rows = x[:pairs]
        full[unit] -= rows.T @ np.linalg.solve(rows @ rows.T, rows @ full[unit])
    full[2] = [-9.0, 0.1, 0.1, 0.1]  # dead
    start = fl.ReLUNetwork((full[:, 1:], network.weights[1]), (full[:, 0], None))
    flow = walked(start, task)
    assert np.max(np.diff(flow.losses)) <= ROUNDING
    assert np.array_equal(flow.final.weights[0][2], full[2, 1:])
    assert np.array_equal(flow.final.weights[1][:, 2], network.weights[1][:, 2])


# ---- The rule, and the parts of a step.


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
    solve = jax.jit(minimise_in_box)
    for trial in range(120):
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


def test_parallel_inputs_share_a_kink():
    x = np.array([[1.0, 2.0], [0.0, 0.0], [-2.0, -4.0], [2.0, -1.0], [1.0, 2.0]])
    kinks = jax.jit(Hyperplanes.from_inputs)(x)
    assert kinks.leader.tolist() == [0, 1, 0, 3, 0]
    assert kinks.scale.tolist() == [1.0, 1.0, -2.0, 1.0, 1.0]
    assert kinks.is_leader.tolist() == [True, False, False, True, False]
    strength = kinks.kink_drive(jnp.asarray([[1.0, 7.0, 3.0, 5.0, -2.0]]))
    assert strength[0, [0, 3]].tolist() == [5.0, 5.0]


def test_other_solvers_are_refused(without_type_checks):
    task = fl.tasks.xor()
    shallow = fl.ReLUNetwork((np.ones((4, 2)), np.ones((2, 4))))
    with pytest.raises(ValueError, match="explicit Runge-Kutta"):
        fl.gradient_flow(shallow, task, 1.0, kinks=fl.ExactKinks(), solver=diffrax.Kvaerno5())


def margins(at):
    """Two of three pairs' margins fall to zero, at arccos(.2) / 9 and .9 of the step."""
    at = np.asarray(at)[..., None, None, None]
    own = np.concatenate([np.cos(9 * at) - 0.2, 0.9 - at, 2 + np.sin(20 * at)], axis=-1)
    return np.concatenate([own, np.ones_like(own)], axis=-3)


# Five and eight hidden layers.
@pytest.mark.parametrize("count", [30, pytest.param(65, marks=pytest.mark.slow)])
def test_polynomials_of_high_degree_keep_their_digits(count):
    points = chebyshev_points(count)
    curve = MarginCurve.through_points(points, jnp.asarray(margins(points)))
    for at in (0.0, 0.1234, 0.5, 0.97, 1.0):
        np.testing.assert_allclose(curve(jnp.asarray(at)), margins(at), atol=1e-12)
    found, before, after = curve.first_fall(*curve.on_grid())
    assert found
    low, high = curve.first_root(before, after)
    assert float(low) <= np.arccos(0.2) / 9 + 1e-13
    np.testing.assert_allclose(high, np.arccos(0.2) / 9, atol=1e-11)


def test_a_dip_between_grid_points_is_found_and_a_miss_is_not():
    points = chebyshev_points(9)
    for deep, found in ((1e-4, True), (-1e-4, False)):  # the bottom, at .537, lies so far below
        values = 20 * (points - 0.537) ** 2 - deep
        curve = MarginCurve.through_points(
            points, jnp.asarray(values[:, None, None, None] + np.zeros((2, 1, 1)))
        )
        fell, before, after = curve.first_fall(*curve.on_grid())
        assert bool(fell) is found
        if found:
            _, high = curve.first_root(before, after)
            np.testing.assert_allclose(high, 0.537 - np.sqrt(deep / 20), atol=1e-11)


@pytest.mark.parametrize(
    ("hidden", "rtol", "solver"),
    [
        (16, 1e-10, diffrax.Tsit5),
        ((4, 4), 1e-5, diffrax.Bosh3),
        ((4, 4), 1e-8, diffrax.Tsit5),
        ((4, 4), 1e-9, diffrax.Dopri8),
    ],
)
def test_solver_of_a_walk(tree, hidden, rtol, solver):
    widths = tree.inputs, *np.atleast_1d(hidden), tree.outputs
    weights = [np.ones(shape) for shape in zip(widths[1:], widths, strict=False)]
    network = fl.ReLUNetwork(weights)
    problem = Problem(network, tree, fl.SquaredError(), jnp.asarray(1.0))
    assert isinstance(fl.ExactKinks().choose_solver(problem, None, rtol)[0], solver)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_places_are_those_of_nonzero(share):
    chosen = np.random.default_rng(0).random(20) < share
    for size in (4, 30):
        expected = np.append(np.flatnonzero(chosen), np.full(size, 99))[:size]
        np.testing.assert_array_equal(first_true_indices(jnp.asarray(chosen), size, 99), expected)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_times_along_a_step_of_several_pieces(count):
    """Every piece has slots of its own, of equal length; an end of a piece is an end of a slot."""
    ends = np.sort(np.random.default_rng(count).uniform(3.0, 5.0, count))
    starts, far = np.append(3.0, ends[:-1]), np.full(8 - count, np.inf)
    pieces = StepPieces(jnp.append(starts, far), jnp.append(ends, far), {})
    path = StepPath(
        diffrax.LocalLinearInterpolation,
        jnp.asarray(3.0),
        jnp.asarray(ends[-1]),
        {"pieces": pieces},
        (),
    )
    owners = [slot * count // STEP_PARTS for slot in range(STEP_PARTS)]
    marks = [np.linspace(starts[k], ends[k], owners.count(k), endpoint=False) for k in range(count)]
    marks = np.append(np.concatenate(marks), ends[-1])
    fractions = np.linspace(0, 1, 81)
    expected = np.interp(fractions, np.linspace(0, 1, STEP_PARTS + 1), marks)
    np.testing.assert_allclose(path.part_times(fractions), expected, rtol=1e-15)


# ---- The second tier: larger networks, the descent limit, derivatives.


def unbiased(network, task, **options):
    """A walk without biases; one program for all that start at other weights."""
    return exact(network, task, rtol=FINE, **{"t1": END, "ts": times(END), **options})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("options", [{"bias": False}, {"bias": False, "shared": True}])
def test_without_biases_it_is_the_second_walk(options, seed):
    network, task = drawn(seed, **options)
    agree(unbiased(network, task), numpy_walk.walk(network, task, END, times(END)))


@pytest.mark.slow
def test_dense_output_of_a_walk_and_a_slower_one():
    """Both are those of the second walk; tau stretches time."""
    network, task = drawn(0, bias=False)
    second = numpy_walk.walk(network, task, END, times(END))
    assert second.slides > 2
    dense = unbiased(network, task, dense=True)
    for k in (3, 60, 140):
        there = dense.network(times(END)[k])
        np.testing.assert_allclose(there.weights[0], second.hidden[k], rtol=0, atol=of_flow(FINE))
    slow = unbiased(network, task, t1=3 * END, ts=times(3 * END), tau=3.0)
    np.testing.assert_allclose(slow.networks.weights[0], second.hidden, rtol=0, atol=of_flow(FINE))


@functools.partial(jax.jit, static_argnums=2)
def descended(network, task, loss, rate, steps):
    """Plain gradient descent; one program for all rates and numbers of steps."""

    def objective(parameters):
        return loss(network.with_parameters(parameters).outputs(task.x), task.y)

    def step(_, parameters):
        gradient = jax.grad(objective)(parameters)
        return jax.tree.map(lambda p, g: p - rate * g, parameters, gradient)

    return network.with_parameters(jax.lax.fori_loop(0, steps, step, network.parameters))


def classes():
    """Twelve samples, x and -x, in three classes."""
    x = gaussian(6).x
    return fl.Task(jnp.concatenate([x, -x]), jax.nn.one_hot(jnp.arange(12) % 3, 3))


# Task, hidden units, variance, options, loss, horizon. Descent chatters where the flow slides, and
# so its distance scatters about its trend; wide layers and two decades average that out.
CASES = {
    "biases": (fl.tasks.offset_xor, 64, 2e-4, {}, fl.SquaredError(), 4.0),
    "x and -x share a kink, leaky, cross-entropy": (
        classes, 32, 1e-2, {"slope": 0.2, "bias": False}, fl.CrossEntropy(), 4.0,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_descent_converges_to_the_flow_and_other_seeds_run(case):
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
    for seed in range(3):
        network = start(seed)
        flow = exact(network, task, t1, 1e-6, ts=ts, loss=loss)
        assert np.max(np.diff(flow.losses)) <= 1e-12
        assert np.abs(conserved(flow.final) - conserved(network)).max() < 1e-6


def of_xor(seed):
    """64 units on the four points of the extended XOR: one program for all of them."""
    task = fl.tasks.offset_xor()
    return fl.ReLUNetwork.init(task, (64,), variance=2e-4, key=jax.random.key(seed)), task


@pytest.fixture(scope="module")
def by_rtol():
    """A network, its task, and its walks by rtol."""
    network, task = of_xor(0)
    rtols = (1e-6, 1e-8, 1e-10)
    return network, task, {r: exact(network, task, 8.0, r, ts=times(8.0)) for r in rtols}


@pytest.mark.slow
def test_loss_never_rises_and_conserved_quantities_hold(by_rtol):
    network, _, flows = by_rtol
    for rtol, flow in flows.items():
        assert np.max(np.diff(flow.losses)) <= 0
        drift = np.abs(conserved(flow.final) - conserved(network)).max()
        assert drift < rtol / 10
    assert 80 < len(flows[1e-8].events) < 120
    assert np.all(np.diff(flows[1e-8].events.time) >= 0)
    assert np.all(np.asarray(flows[1e-8].events.uncertainty) >= 0)


@pytest.mark.slow
def test_linearization_times_agree_between_tolerances(by_rtol):
    lines = {rtol: flow.linearization() for rtol, flow in by_rtol[2].items()}
    for side in ("open", "closed"):
        times = {rtol: float(getattr(line, side).time) for rtol, line in lines.items()}
        assert times[1e-8] == pytest.approx(times[1e-10], rel=1e-7)
        assert times[1e-6] == pytest.approx(times[1e-10], rel=1e-5)
    t = np.linspace(0.1, 7.9, 7)
    assert np.allclose(sum(lines[1e-8].activity(t)), 1.0)


@pytest.mark.slow
def test_a_graze_between_two_looks_is_not_missed():
    # Unit 45 dips below a repelling kink at t = 0.46 and goes off for good; a walk that does not
    # see the dip leaves it on.
    network, task = of_xor(39)
    loose, tight = (exact(network, task, 8.0, rtol, ts=times(8.0)) for rtol in (1e-6, 1e-10))
    for flow in (loose, tight):
        (row,) = [r for r in flow.events.table() if r["index"] == (0, 45, 3)][:1]
        assert (row["old"], row["new"]) == (1, -1)
        assert row["time"] == pytest.approx(0.46005, abs=1e-4)
    assert np.array_equal(loose.events.component, tight.events.component)
    assert distance(loose.final, tight.final) < 1e-6
    slow = descended(network, task, fl.SquaredError(), 1e-4, 80_000)
    assert distance(slow, tight.final) < 1e-3


# Samples, inputs and outputs, hidden units, what is chosen; borders are where a walk takes long.
SIZES = (
    ((8, 8, 15), (64,), "ExactKinks()"),
    ((3, 10, 3), (300,), "ExactKinks()"),
    ((3, 10, 3), (1000,), "ExactKinks()"),
    ((3, 10, 3), (3000,), "AveragedKinks()"),
    ((10, 10, 3), (300,), "ExactKinks()"),
    ((10, 10, 3), (1000,), "AveragedKinks()"),
    ((80, 10, 3), (110,), "ExactKinks()"),
    ((80, 10, 3), (126,), "AveragedKinks()"),
    ((10, 784, 10), (100,), "ExactKinks()"),
    ((100, 784, 10), (90,), "AveragedKinks()"),
    ((3, 10, 3), (1500, 1500), "ExactKinks()"),  # of several layers the pairs alone count
    ((3, 10, 3), (1700, 1700), "AveragedKinks()"),
)


@pytest.mark.filterwarnings("ignore::flowlin.KinksWarning")
@pytest.mark.parametrize(("data", "hidden", "chosen"), SIZES)
def test_the_default_counts_events_and_what_they_move(data, hidden, chosen):
    samples, inputs, outputs = data

    def shapes():
        task = fl.Task(jnp.zeros((samples, inputs)), jnp.zeros((samples, outputs)))
        return fl.ReLUNetwork.init(task, hidden, 1e-4, key=jax.random.key(0)), task

    network, task = eqx.filter_eval_shape(shapes)  # compiles nothing
    problem = Problem(network, task, fl.SquaredError(), jnp.ones(()))
    kinks, why = choose_kinks(problem, None)
    assert repr(kinks) == chosen
    assert f"{samples * sum(hidden)} (unit, sample) pairs" in why
    # Where averaged gates cannot take over, the pairs alone count.
    explicit, _ = choose_kinks(problem, diffrax.Tsit5())
    few = samples * sum(hidden) <= 10_000
    assert repr(explicit) == ("ExactKinks()" if few else "IgnoreKinks()")


@pytest.mark.parametrize(
    ("samples", "at_kink", "room"),
    [(10, False, 16), (10, True, 64), (11, False, 64), (2, True, 32)],
)
def test_few_pairs_of_several_layers_have_room_for_a_tenth_to_slide(samples, at_kink, room):
    """16 units; each size of the slides' equations is compiled."""

    def slots_of_switching():
        task = fl.Task(jnp.zeros((samples, 3)), jnp.zeros((samples, 1)))
        network = fl.ReLUNetwork.init(task, (8, 8), 1e-4, key=jax.random.key(0))
        problem = Problem(network, task, fl.SquaredError(), jnp.ones(()))
        return choose_switching(problem, 16, "lax", at_kink)

    assert eqx.filter_eval_shape(slots_of_switching).slots == room


def replayed(network, task, log, t1):
    """Final weights [b, w] and readout by NumPy and SciPy from the log's times and modes alone."""
    x = np.concatenate([np.ones((task.samples, 1)), np.asarray(task.x)], axis=1)
    y, samples = np.asarray(task.y), task.samples
    (hidden, readout), (bias, _) = jax.tree.map(np.asarray, network.parameters)
    units, inputs = bias.size, x.shape[1]
    state = np.concatenate([np.c_[bias, hidden].ravel(), readout.ravel()])
    codes = np.asarray(log.initial)[: units * samples].reshape(units, samples).copy()

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


@pytest.mark.slow
def test_the_log_is_the_trajectory(by_rtol):
    network, task, flows = by_rtol
    flow = flows[1e-10]
    assert int(jnp.sum(flow.events.new == 0)) > 10
    weights, readout = replayed(network, task, flow.events, 8.0)
    np.testing.assert_allclose(weights[:, 0], flow.final.biases[0], atol=1e-8)
    np.testing.assert_allclose(weights[:, 1:], flow.final.weights[0], atol=1e-8)
    np.testing.assert_allclose(readout, flow.final.weights[1], atol=1e-8)


def by_component(time, component):
    """Event times by (component, how many before it)."""
    found, seen = {}, {}
    for t, c in zip(np.asarray(time), np.asarray(component), strict=True):
        if np.isfinite(t):
            found[int(c), seen.setdefault(int(c), 0)] = t
            seen[int(c)] += 1
    return found


@pytest.mark.slow
def test_derivatives_of_event_times_t_star_and_final_state():
    task = fl.tasks.hierarchy(levels=3)
    base = fl.ReLUNetwork.init(task, hidden=(12,), variance=1e-3, key=jax.random.key(3))
    keys = jax.random.split(jax.random.key(11), 3)
    turn = [0.03 * jax.random.normal(k, w.shape) for k, w in zip(keys, base.weights, strict=False)]
    bend = jax.random.normal(keys[2], task.x.shape)

    def run(at):
        weights = tuple(w + at[0] * d for w, d in zip(base.weights, turn, strict=True))
        network = fl.ReLUNetwork(weights, base.biases, at[1])
        options = {"throw": False, "adjoint": diffrax.ForwardMode(), "max_events": 256}
        flow = exact(network, fl.Task(task.x + at[2] * bend, task.y), 8.0, 1e-12, **options)
        line = flow.linearization()
        final = jnp.concatenate([w.ravel() for w in flow.final.weights])
        stars = jnp.stack([line.open.time, line.closed.time])
        return flow.events.time, flow.events.component, final, stars

    run_and_slopes = jit(lambda at, way: jax.jvp(run, (at,), (way,)))  # one program
    at, step = jnp.asarray([0.0, 1.0, 0.0]), 1e-5
    (time, component, _, stars), _ = run_and_slopes(at, jnp.eye(3)[0])
    pairs = by_component(time, component)
    assert len(pairs) > 40
    assert np.all(stars > 0)
    for direction in jnp.eye(3):
        _, (slopes, _, *others) = run_and_slopes(at, direction)
        tangent = dict(zip(pairs, np.asarray(slopes), strict=False))
        near = [run_and_slopes(at + k * step * direction, direction)[0] for k in (-2, -1, 1, 2)]
        table = [by_component(*one[:2]) for one in near]
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


@pytest.fixture(scope="module")
def reporting():
    """A walk whose log becomes full, and how many of its evaluations reported themselves."""
    calls, velocity = [], OneLayerFlow.__call__

    def reported(self, t, parameters, frozen):
        jax.debug.callback(lambda: calls.append(1))
        return velocity(self, t, parameters, frozen)

    task = gaussian(8)
    network = fl.ReLUNetwork.init(task, 5, 0.1, key=jax.random.key(3))
    options = {"solver": diffrax.Bosh3(), "max_events": 6, "throw": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OneLayerFlow, "__call__", reported)
        flow = exact(network, task, 3.0, rtol=1e-3, **options)
        jax.effects_barrier()
    return flow, len(calls)


@pytest.mark.slow
def test_evaluations_are_counted(reporting):
    """As many as there are when each reports itself, but for those of rejected steps."""
    flow, calls = reporting
    stats = {name: int(flow.stats[name]) for name in flow.stats if name.startswith(("num", "acc"))}
    share = stats["num_steps"] / stats["num_accepted_steps"]
    first = 2  # of the first step's length
    assert stats["accepted_evaluations"] == pytest.approx((calls - first) / share, rel=0.05)
    assert share > 1 or stats["accepted_evaluations"] == calls - first


@pytest.mark.slow
def test_a_full_log_is_a_named_result(reporting):
    flow, _ = reporting
    assert flow.result == fl.RESULTS.event_overflow
    assert len(flow.events) == 6


@pytest.mark.slow
def test_a_run_that_ends_undecided_says_which_pairs_are_at_their_kinks():
    """As if its sides had not been found where 2 w is the target, in |1 - 2 w|, and before."""
    task = fl.Task([[2.0]], [[1.0]])
    network = fl.LinearNetwork((np.zeros((1, 1)),))
    for t1, said in ((0.5, "1 pair is at its kink: unit 0 of loss, sample 0"), (0.2, "0 pairs")):
        flow = fl.gradient_flow(network, task, t1, loss=lambda a, b: jnp.sum(jnp.abs(a - b)))
        torn = eqx.tree_at(lambda f: f.result, flow, fl.RESULTS.sides_unsolved)
        message = flow_failure(torn, Limits(9, 9), flow.reference.run)
        assert re.search(f"at an event; .* At t = {t1} after .* steps {said}", message)
