"""Flows from small weights: as exact as from ordinary ones, by every solver and kind of network."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

import flowlin as fl
from tests.tolerances import of_time

STARTS = [1e-6, 1e-12, 1e-20]
ONE = fl.Task([[1.0]], [[1.0]])


def half_time(start, depth=2):
    """Of a balanced mode with s = d = 1 and this strength, by its closed form."""
    return float(fl.theory.Mode(1.0, 1.0, start, depth).half_time)


def weights(start, layers=2):
    return [np.full((1, 1), start ** (1 / layers))] * layers


def two_ways(start):
    w = np.full((1, 1), (start / 2) ** 0.5)
    return fl.GatedGraph({("in", "a"): w, ("a", "out"): w, ("in", "b"): w, ("b", "out"): w})


class Product(eqx.Module):
    """Two weights, as a module of the user's."""

    weights: list

    def __call__(self, x):
        return self.weights[1] @ (self.weights[0] @ x)


def module(start):
    return Product([jnp.asarray(w) for w in weights(start)])


def linear(start):
    return fl.LinearNetwork(weights(start))


def relu(start):
    return fl.ReLUNetwork(weights(start))


KINDS = {
    "linear": (linear, {}, of_time()),
    "graph": (two_ways, {}, of_time()),
    "module": (module, {}, of_time()),
    "exact walk": (relu, {"kinks": fl.ExactKinks(), "solver": diffrax.Tsit5()}, of_time()),
    "smooth kinks": (relu, {"kinks": fl.SmoothKinks(1e-30), "solver": diffrax.Tsit5()}, of_time()),
}  # averaged gates: `test_pairs_that_slide_do_not_bound_the_steps`; stiff solvers: hidden modes
FIRST = ("linear",)


@pytest.fixture(
    scope="module",
    params=[k if k in FIRST else pytest.param(k, marks=pytest.mark.slow) for k in KINDS],
)
def times(request):
    """Found and exact times from all starts, and their allowed error; one program."""
    make, options, error = KINDS[request.param]
    exact = [half_time(start) for start in STARTS]
    runs = [
        fl.gradient_flow(make(start), ONE, 1.5 * t, events=fl.LossBelow(0.125), **options)
        for start, t in zip(STARTS, exact, strict=True)
    ]
    return [float(run.events.first("loss")) for run in runs], exact, error


def test_half_times_are_those_of_the_closed_form(times):
    """Where the loss is an eighth, a quarter of its start."""
    found, exact, error = times
    np.testing.assert_allclose(found, exact, rtol=error)


@pytest.mark.slow
@pytest.mark.parametrize("start", [1e-40, 1e-100, 1e-200])
def test_a_scalar_mode_of_any_size(start):
    exact = half_time(start)
    run = fl.gradient_flow(linear(start), ONE, 1.5 * exact, events=fl.LossBelow(0.125))
    assert float(run.events.first("loss")) == pytest.approx(exact, rel=of_time())
    assert int(run.stats["num_steps"]) < 2000


@pytest.mark.slow
def test_an_atol_counts_against_single_numbers():
    """Below it nothing is controlled."""
    exact = half_time(1e-20)
    run = fl.gradient_flow(linear(1e-20), ONE, 1.5 * exact, events=fl.LossBelow(0.125), atol=1e-10)
    assert abs(float(run.events.first("loss")) / exact - 1) > 1e-4


# ---- No size at the start.


@pytest.mark.parametrize(
    "solver",
    [
        pytest.param(None, id="default"),
        pytest.param(fl.RKC(), id="RKC", marks=pytest.mark.slow),
        pytest.param(fl.RecycledBDF(), id="RecycledBDF", marks=pytest.mark.slow),
    ],
)
def test_a_regression_from_zero_follows_the_matrix_exponential(solver, seed):
    """W = M (1 - exp(-Sigma_x t)) with the solution M: of any size, nothing else says how large."""
    rng = np.random.default_rng(seed)
    x, rtol = rng.normal(size=(12, 3)), 1e-8 if solver is None else 1e-5
    solution, sigma_x, start = rng.normal(size=(2, 3)), x.T @ x / 12, np.zeros((2, 3))
    exact = solution @ (np.eye(3) - expm(-2.0 * sigma_x))
    for size in (1e-100, 1e-20, 1.0, 1e6):
        task = fl.Task(x, x @ solution.T * size)
        run = fl.gradient_flow(fl.LinearNetwork([start]), task, 2.0, solver=solver, rtol=rtol)
        off = run.final.weights[0] / size - exact
        assert np.max(np.abs(off)) < 10 * rtol * np.max(np.abs(exact))


@pytest.mark.parametrize(
    ("dtype", "start"), [("float32", 1e-20), ("float32", 1e-36), ("float64", 1e-160)]
)
def test_a_regression_from_next_to_nothing(dtype, start):
    """The square of its velocity relative to the weights is no number of this precision."""
    task = fl.Task(np.eye(2), np.eye(2)).astype(dtype)
    network = fl.LinearNetwork([np.full((2, 2), start)]).astype(dtype)
    run = fl.gradient_flow(network, task, 2.0)
    off = 1e-4 if dtype == "float32" else 1e-9
    np.testing.assert_allclose(run.final.weights[0], np.eye(2) * (1 - np.exp(-1)), atol=off)


# ---- Modes of which each is less than a rounding of those before it.


def of_a_tree(start, hidden=(16,)):
    """Eight aligned modes of this strength, and their half times by the closed form."""
    task = fl.tasks.hierarchy()
    modes = fl.theory.modes(task)
    half = 0.5 * modes.full_strength
    product, key = (modes.u * start) @ modes.v.T, jax.random.key(1)
    network = fl.LinearNetwork.balanced(task, hidden, bias=False, product=product, key=key)
    depth = len(network.weights)
    exact = np.asarray(fl.theory.Mode(modes.s, modes.d, start, depth).hitting_time(half))
    return network, task, fl.ModeHits(modes, half), exact


@pytest.mark.slow
@pytest.mark.parametrize("start", [1e-20, 1e-40, 1e-100])
def test_hidden_modes_keep_their_digits_in_coordinates_of_their_own(start):
    network, task, events, exact = of_a_tree(start)
    run = fl.gradient_flow(network, task, 1.2 * np.max(exact), events=events)
    np.testing.assert_allclose(run.events.first("mode"), exact, rtol=of_time())
    assert run.stats["objective"].endswith("in the coordinates of the modes")
    assert int(run.stats["num_steps"]) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("start", [1e-20, 1e-40])
def test_modes_that_the_inputs_couple_have_no_coordinates_of_their_own(start, seed):
    """Steps that kept their digits would creep: a learnt one is a part of the others."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, 5)) * np.linspace(1, 0.3, 5)
    task = fl.Task(x, x @ rng.normal(size=(5, 2)))
    network = fl.LinearNetwork.init(task, 6, start, bias=False, key=jax.random.key(seed))
    run = fl.gradient_flow(network, task, 400.0, solver=diffrax.Dopri8())
    assert "coordinates" not in run.stats["objective"]
    assert int(run.stats["num_steps"]) < 5000


@pytest.mark.slow
def test_modes_that_rounding_hides_are_named():
    """An implicit method keeps hidden units' coordinates: there they are sums of all modes."""
    network, task, events, exact = of_a_tree(1e-40)
    how = {"solver": fl.RecycledBDF(), "rtol": 1e-6, "events": events}
    with pytest.warns(fl.PrecisionWarning, match=r"'mode': modes 4, 5, 6, 7 had about 4e-16"):
        run = fl.gradient_flow(network, task, 1.2 * np.max(exact), **how)
    off = np.abs(run.events.first("mode") / exact - 1)
    assert np.max(off[4:]) > 3 * np.max(off[:4])


@pytest.mark.slow
def test_modes_that_rounding_hides_between_layers_are_named():
    network, task, events, exact = of_a_tree(1e-20, (16, 16))
    with pytest.warns(fl.PrecisionWarning, match="few digits or none with 3 layers"):
        run = fl.gradient_flow(network, task, 1.2 * np.max(exact), events=events)
    assert np.max(np.abs(run.events.first("mode") / exact - 1)) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("layers", [3, 4])
def test_modes_that_wait_between_layers(layers):
    """They stay as small as they began while an implicit method takes the plateau in long steps."""
    network, task, events, exact = of_a_tree(1e-12, (16,) * (layers - 1))
    run = fl.gradient_flow(network, task, 1.2 * np.max(exact), events=events)
    assert run.stats["solver"] == "Dopri8, then RecycledBDF"
    np.testing.assert_allclose(run.events.first("mode"), exact, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [fl.RKC(), fl.RecycledBDF()])
def test_modes_hidden_in_units_that_have_grown(solver):
    """Each in turn is 1e-6 to 1e-8 of those before it, and the last 1e-15 of the first."""
    network, task, events, exact = of_a_tree(1e-20)
    how = {"solver": solver, "rtol": 1e-6, "events": events}
    run = fl.gradient_flow(network, task, 1.2 * np.max(exact), **how)
    np.testing.assert_allclose(run.events.first("mode"), exact, rtol=of_time(1e-6))


class Diagonal(eqx.Module):
    """u^2 - v^2 as the weights of a linear model."""

    u: jax.Array
    v: jax.Array

    def __call__(self, x):
        return jnp.sum((self.u**2 - self.v**2) * x, keepdims=True)


def first_weight(model, task):
    del task
    return model.u[0] ** 2 - model.v[0] ** 2


@pytest.mark.slow
@pytest.mark.parametrize("start", [*STARTS, 1e-40])
def test_a_diagonal_network_in_logarithms(start):
    """Against SciPy's Radau of log u and log v, (log u)' = 2 g and (log v)' = -2 g."""
    x, beta = np.random.default_rng(0).normal(size=(6, 3)), np.array([1.0, -0.5, 0.7])
    task, alpha, s = fl.Task(x, (x @ beta)[:, None]), start**0.5, x.T @ x / 6

    def velocity(_, z):
        g = s @ (beta - np.exp(2 * z[:3]) + np.exp(2 * z[3:]))
        return np.concatenate([2 * g, -2 * g])

    def jacobian(_, z):
        slope = s @ np.c_[np.diag(-2 * np.exp(2 * z[:3])), np.diag(2 * np.exp(2 * z[3:]))]
        return np.r_[2 * slope, -2 * slope]

    def first(_, z):
        return np.exp(2 * z[0]) - np.exp(2 * z[3]) - 0.5

    begin, tight = np.full(6, np.log(alpha)), {"rtol": 1e-11, "atol": 1e-11, "jac": jacobian}
    span = 0, 40 - 20 * np.log(alpha)
    with np.errstate(over="ignore", invalid="ignore"):  # in steps that Radau takes back
        found = solve_ivp(velocity, span, begin, "Radau", events=first, **tight)
    exact = found.t_events[0][0]

    model = Diagonal(jnp.full(3, alpha), jnp.full(3, alpha))
    run = fl.gradient_flow(model, task, 1.2 * exact, events=fl.Crossing(first_weight, 0.5))
    assert float(run.events.first("crossing")) == pytest.approx(exact, rel=of_time())


@pytest.mark.slow
def test_no_step_is_too_short_long_after_convergence(tree):
    """Nor where units are zero, or all of them are."""
    bias = np.zeros(3), None  # of one shape: one program
    one_unit = np.r_[np.zeros((2, 8)), 0.1 * np.ones((1, 8))]
    for network in (
        fl.LinearNetwork.init(tree, 3, 1e-2, bias=True, key=jax.random.key(0)),
        fl.LinearNetwork((np.zeros((3, 8)), np.zeros((15, 3))), bias),
        fl.LinearNetwork((one_unit, 0.1 * np.ones((15, 3))), bias),
    ):
        run = fl.gradient_flow(network, tree, 1e6)
        assert float(run.end) == 1e6
        assert int(run.stats["num_steps"]) < 5000


@pytest.mark.slow
@pytest.mark.parametrize("start", [1e-20, 1e-36])
def test_hidden_modes_in_float32(start):
    """Squares of the smallest columns are 0 beside the largest."""
    network, task, _, exact = of_a_tree(start)
    network, task = network.astype("float32"), task.astype("float32")
    events = fl.ModeHits(fl.theory.modes(task), share=0.5)
    run = fl.gradient_flow(network, task, 1.2 * np.max(exact), events=events)
    np.testing.assert_allclose(run.events.first("mode"), exact, rtol=1e-3)
    assert int(run.stats["num_steps"]) < 1000


def aligning(n=10, d=20, m=16, start=1e-6):
    """More inputs than samples and no biases: pairs slide while the units align."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d)) * 0.1
    directions = rng.normal(size=(6, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    y = np.maximum(x @ directions.T, 0) @ rng.choice([-1.0, 1.0], 6)
    y /= np.linalg.norm(x.T @ y) / n
    w = rng.normal(size=(m, d)) * start / np.sqrt(m * d)
    a = np.linalg.norm(w, axis=1) * rng.choice([-1.0, 1.0], m)
    return fl.Task(x, y[:, None]), fl.ReLUNetwork((w, a[None]))


def aligned(start, t1, **options):
    """When the loss is 0.9, 0.5 and 0.25 of its start, and the run."""
    task, network = aligning(start=start)
    first = float(fl.measures.loss(network, task))
    events = [fl.LossBelow(k * first, name=f"{k}") for k in (0.9, 0.5, 0.25)]
    run = fl.gradient_flow(network, task, t1, events=events, **options)
    return np.array([float(run.events.first(e.name)) for e in events]), run


# By the exact walk, as it was found before.
ALIGNED = np.array([16.14313985, 17.27083003, 17.86245821])


@pytest.mark.slow
@pytest.mark.parametrize("start", [1e-6, 1e-10, 1e-20])
def test_pairs_that_slide_do_not_bound_the_steps(start):
    """Against the exact walk; errors fall with the tolerance.

    From 1e-6 on 40,000 steps were too few before slides had gates of their own.
    """
    end = 5 - 1.08 * np.log(start)
    exact, _ = aligned(start, end, kinks=fl.ExactKinks(), solver=diffrax.Tsit5())
    assert np.all(np.isfinite(exact))
    if start == 1e-6:
        np.testing.assert_allclose(exact, ALIGNED, rtol=1e-8)
    errors = []
    for rtol in (1e-3, 1e-5):
        found, run = aligned(start, end, kinks=fl.AveragedKinks(), rtol=rtol)
        errors.append(np.max(np.abs(found / exact - 1)))
        assert int(run.stats["num_steps"]) < (2000 if start == 1e-6 else 4000)
    assert errors[0] < 1e-3
    assert errors[1] < min(errors[0] / 10, 1e-4)
    if start == 1e-6:
        assert int(run.stats["num_rejected_steps"]) < int(run.stats["num_steps"]) / 3


@pytest.mark.slow
def test_averaged_gates_long_after_convergence(tree):
    """Without switches a solver for stiff flows takes over."""
    network = fl.ReLUNetwork.init(tree, 16, 1e-12, key=jax.random.key(0))
    run = fl.gradient_flow(network, tree, 1e6, kinks=fl.AveragedKinks(), events=fl.UnitSwitches())
    assert run.stats["solver"] == "AveragedGates, then RKC"
    assert int(run.stats["num_steps"]) < 20_000


def test_a_variance_that_float32_does_not_hold_is_refused():
    task = ONE.astype("float32")
    with pytest.raises(ValueError, match=r"`variance` = 1e-40 is below 1\.2e-38"):
        fl.ReLUNetwork.init(task, 2, variance=1e-40, key=jax.random.key(0))
    nodes = {"x": task.inputs, "h": 2, "y": task.outputs}
    pairs = [("x", "h"), ("h", "y")]
    with pytest.raises(ValueError, match="`variance` = 1e-40"):
        fl.GatedGraph.init(task, nodes, pairs, variance=1e-40, key=jax.random.key(0))
    network = fl.ReLUNetwork.init(task, 2, variance=1e-36, key=jax.random.key(0))
    assert np.all(network.weights[0] != 0)
    assert np.all(fl.ReLUNetwork.init(ONE, 2, variance=1e-40, key=jax.random.key(0)).weights[0])
