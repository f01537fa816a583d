"""Parts that no run shows alone: of solvers, of the field behind them, of compiling."""

import functools
import sys
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin._tools import numerics
from flowlin._tools.function_code import function_parts
from flowlin._tools.numerics import jit_by_array, previous_float
from flowlin._tools.smooth_operations import has_only_smooth_operations
from flowlin.engine import mode_frame, signals
from flowlin.engine.solvers.bdf_formulas import NordsieckInterpolation, step_polynomial
from flowlin.engine.solvers.newton_krylov import Ritz
from flowlin.engine.solvers.rkc import stability_interval
from flowlin.engine.solvers.wrapped import ROWS, Explicit, History
from flowlin.networks.modules import ForeignModel
from flowlin.runs.hidden_modes import mode_size_between
from flowlin.runs.progress import Forecast
from flowlin.training import objective as chunks
from flowlin.training.problem import Problem
from flowlin.training.rules import VectorField, choose_objective
from tests.tolerances import of_flow

# ---- Which functions are surely smooth, and where the others have kinks.


class Applied(eqx.Module):
    first: eqx.nn.Linear
    function: Any = eqx.field(static=True)

    def __call__(self, x):
        return jnp.atleast_1d(self.function(self.first(x)))


SMOOTH = (jnp.tanh, jax.nn.gelu, jax.nn.silu, jnp.sin, jnp.square)
KINKS = (  # functions of eight numbers, and how many units their kinks have; None: not known
    *((function, ()) for function in SMOOTH),
    *((function, None) for function in (jnp.sign, lambda z: (z > 0).astype(z.dtype) * z)),
    *((function, (8,)) for function in (jax.nn.relu, jax.nn.leaky_relu, jnp.abs, jax.nn.selu)),
    (lambda z: jnp.where(z < 0, 0.5 * z, z) + jnp.clip(z, -0.5, 0.5), (8, 8, 8)),
    (lambda z: eqx.nn.MaxPool1d(3, 2)(-jnp.min(z.reshape(4, 2), axis=1)[None]).ravel(), (4, 1, 1)),
    (lambda z: jnp.where(jnp.arange(8) > 2, jax.nn.softmax(z), jnp.sinc(jax.nn.celu(z, 2.0))), ()),
    (lambda z: jax.nn.hard_tanh(z) + jax.nn.elu(z, jnp.asarray(0.5)), (8, 8, 8)),
    (lambda z: jax.nn.elu(z) + jax.nn.logsumexp(jax.nn.sparse_plus(z)) + jnp.logaddexp(z, 1.0), ()),
)


@pytest.mark.parametrize(("function", "sizes"), KINKS)
def test_kinks_are_found_and_rectified(function, sizes):
    module = Applied(eqx.nn.Linear(8, 8, key=jax.random.key(0)), jax.checkpoint(function))
    x = jax.random.normal(jax.random.key(1), (5, 8))
    smooth = function in SMOOTH
    assert has_only_smooth_operations(jax.jit(jax.vmap(module)), x) == smooth or sizes == ()
    model = ForeignModel.from_module("network", module).with_kinks(8)
    assert (model.facts.kinks == "unknown", model.hidden) == (sizes is None, sizes or ())
    if sizes is not None:
        found = model.outputs_by_rectifier(x, lambda z: jnp.where(z > 0, z, 0.0))
        np.testing.assert_allclose(found, jax.vmap(module)(x), rtol=1e-12, atol=1e-14)


# ---- Stability of Runge-Kutta-Chebyshev.


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_the_stability_interval_is_that_of_the_theory(dtype):
    """P_s(z), by the method's own stages on y' = z y with h = 1."""

    def polynomial(stages, z):
        def one(z):
            term = diffrax.ODETerm(lambda t, y, args: z * y)
            none, one = jnp.zeros((), z.dtype), jnp.ones((), z.dtype)
            return fl.RKC(30)._stages(term, none, one, one, z, None, stages)

        return jax.vmap(one)(z)

    run, own = jax.jit(polynomial), np.dtype(dtype)
    for s in (2, 3, 5, 12, 30):
        beta = stability_interval(30)[s - 2]
        assert beta == pytest.approx(0.653 * (s**2 - 1), rel=3e-3)
        z = np.concatenate([np.linspace(-beta, 0, 2001), -beta * np.array([1.2, 1.5]), [-1e-3]])
        found = np.asarray(run(s, z.astype(own)))
        assert np.max(np.abs(found[:2001])) < 1 + 20 * np.finfo(own).eps
        # Damped by a third of epsilon, away from the end points.
        assert np.max(np.abs(found[50:1000])) < 1 - 0.04
        # |P| reaches 1 where w0 + w1 z = -w0 at the earliest, just beyond beta.
        assert np.all(np.abs(found[2001:2003]) > 1)
        if s == 12 and dtype == "float64":
            assert abs(found[-1] - (1 - 1e-3 + 1e-6 / 2)) < 1e-9 / 6  # order two


# ---- What solvers carry along.


def test_a_log_that_is_full_thins_itself():
    steps = 3 * ROWS + 5
    times = jnp.arange(float(steps))

    @jax.jit
    def logged(times):
        empty = History.empty(0.0, 0.0)
        log, _ = jax.lax.scan(lambda log, t: (log.append(t, 2 * t), None), empty, times)
        return log, log.at(jnp.array([0.0, 10.0, 3000.5]))

    log, between = logged(times)
    known = np.asarray(log.time)[np.isfinite(log.time)]
    assert int(log.stride) == 4
    np.testing.assert_array_equal(known, np.arange(0.0, steps, 4))
    np.testing.assert_allclose(between, [0.0, 20.0, 6001.0])


def test_dense_output_begins_and_ends_at_the_states():
    start, table = np.array([0.5, -0.2, 1.0]), jnp.arange(18.0).reshape(6, 3)

    @jax.jit
    def looked_at(start):
        dense = NordsieckInterpolation(t0=1.0, t1=1.5, **step_polynomial(start, table, lambda v: v))
        end, slope = jax.jvp(dense.evaluate, (1.5,), (1.0,))
        return dense.evaluate(1.0), end, slope, dense.evaluate(1.0, 1.5)

    first, last, slope, increment = looked_at(start)
    np.testing.assert_allclose(first, start, rtol=1e-14)
    np.testing.assert_array_equal(last, table[0])
    np.testing.assert_allclose(slope, table[1] / 0.5, rtol=1e-14)
    np.testing.assert_allclose(increment, table[0] - start, rtol=1e-14)


def test_vectors_stay_orthonormal_from_update_to_update(seed):
    """What they lack, a thousandth at first, is gone to rounding; 6e-5 would be left by itself."""
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(40, 40)))
    jacobian = -(turn * np.geomspace(300, 1e-3, 40)) @ turn.T
    some = Ritz.arbitrary(6, jnp.zeros(40))
    some = Ritz(1.001 * some.vectors, some.values)
    update = eqx.filter_jit(lambda some, rows: some.update(rows, rows @ jacobian))
    for _ in range(50):
        rows = rng.normal(size=(3, 40))
        some = update(some, rows / np.linalg.norm(rows, axis=1, keepdims=True))
    np.testing.assert_allclose(some.vectors @ some.vectors.T, np.eye(6), atol=2e-6)


# ---- Explicit Runge-Kutta steps against diffrax's own.

TERM = diffrax.ODETerm(lambda t, y, args: (jnp.sin(t) * y[1], t - y[0] ** 2 * args))
START = (np.arange(1.0, 4.0), np.array([0.3, -0.2, 1.0]))
slow = pytest.mark.slow
SOLVERS = [
    diffrax.Tsit5(),
    *(pytest.param(s, marks=slow) for s in (diffrax.Heun(), diffrax.Bosh3(), diffrax.Dopri8())),
]


def stepped(solver, rate):
    """A step after a first one, with everything that it gives."""
    start = jax.tree.map(jnp.asarray, START)
    state, y = solver.init(TERM, 0.1, 0.3, start, rate), start
    for t0, t1 in ((0.1, 0.3), (0.3, 0.8)):
        y, error, dense, state, _ = solver.step(TERM, t0, t1, y, rate, state, False)
    between = solver.interpolation_cls(t0=0.3, t1=0.8, **dense).evaluate(0.55)
    return y, error, between, state


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_a_step_is_that_of_diffrax(solver):
    found, known = (jax.jit(lambda r, s=s: stepped(s, r))(1.3) for s in (Explicit(solver), solver))
    assert jax.tree.structure(found) == jax.tree.structure(known)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(known), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15)


@pytest.mark.slow
def test_its_derivatives_are_finite_differences_in_both_modes():
    solver = Explicit(diffrax.Tsit5())

    def total(rate):
        y, _, between, _ = stepped(solver, rate)
        return jnp.sum(y[0]) + jnp.sum(between[1] ** 2)

    value = jax.jit(total)
    finite = (value(1.3 + 1e-5) - value(1.3 - 1e-5)) / 2e-5
    for derivative in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(jax.jit(derivative(total))(1.3), finite, rtol=1e-8)


def test_a_step_holds_the_evaluation_once():
    def program(function):
        return str(jax.make_jaxpr(function)(START)).count("= sin")

    solver, options = Explicit(diffrax.Dopri8()), (TERM, 0.1, 0.3)
    state = solver.init(*options, jax.tree.map(jnp.asarray, START), 1.0)
    assert program(lambda y: solver.step(*options, y, 1.0, state, False)[0]) == 1
    assert program(lambda y: solver.step_from(y, None, *options, y, 1.0)[1][0]) == 1


# ---- What diffrax makes of a step that says that it failed: the ends of runs rest on it.


class Signalling(diffrax.Euler):
    """Says so in the step that ends at t = 0.5."""

    signal: Any

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        *taken, _ = super().step(terms, t0, t1, y0, args, solver_state, made_jump)
        result = diffrax.RESULTS.where(t1 == 0.5, self.signal, diffrax.RESULTS.successful)
        return *taken, result


@eqx.filter_jit
def signalled(signal):
    """The result, how many steps were taken, and where the run is then."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -y), Signalling(signal), 0.0, 1.0, 0.25, jnp.ones(()),
        stepsize_controller=diffrax.ConstantStepSize(), throw=False,
    )  # fmt: skip
    return solution.result, solution.stats["num_steps"], solution.ts[-1], solution.ys[-1]


def test_a_signal_ends_the_run_and_keeps_its_step():
    several = [signals.EVENT, signals.UNDECIDED, signals.PAUSED]
    assert len({int(signal._value) for signal in several}) == 3
    for signal in several:
        result, steps, end, y = signalled(signal)
        assert bool(result == signal)
        assert (int(steps), float(end), float(y)) == (2, 0.5, 0.75**2)


def test_an_event_of_diffrax_own_would_not_be_heard():
    result, _, end, _ = signalled(diffrax.RESULTS.event_occurred)
    assert bool(result == diffrax.RESULTS.successful)
    assert float(end) == 1.0


# ---- The field: how often it is evaluated, and the gradients behind it.


@pytest.mark.slow
def test_every_evaluation_is_counted(tree, monkeypatch):
    """Before the solver changes, to measure stiffness, in steps that were rejected, and after.

    Those of RKC are counted in tests/solvers/test_rkc.py.
    """
    calls, velocity = [], VectorField.__call__

    def reported(self, t, parameters, args):
        jax.debug.callback(lambda: calls.append(1))
        return velocity(self, t, parameters, args)

    monkeypatch.setattr(VectorField, "__call__", reported)
    network = fl.LinearNetwork.init(tree, 6, variance=1e-2, key=jax.random.key(0))
    flow = fl.gradient_flow(network, tree, 3e3, rtol=1e-6)
    jax.effects_barrier()
    assert flow.stats["solver"] == "Dopri8, then RecycledBDF"
    assert int(flow.stats["evaluations"]) == len(calls)
    assert int(flow.stats["num_rejected_steps"]) > 0


def flat(parameters):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(parameters)])


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [False, True])
def test_the_modified_gradient_is_that_of_the_modified_loss(tree, monkeypatch, chunked):
    """Sufficient statistics and chunks of samples against the definition, by reverse mode."""
    if chunked:
        monkeypatch.setattr(chunks, "CHUNK_BYTES", {"cpu": 1})
        monkeypatch.setattr(chunks, "MIN_CHUNK_ROWS", 3)
    kind = fl.ReLUNetwork if chunked else fl.LinearNetwork
    task = fl.Task(tree.x[:, :3] + 0.2, tree.y)  # more samples than inputs
    network = kind.init(task, 4, 0.3, key=jax.random.key(2))
    plain = choose_objective(network, task, fl.SquaredError(), 0.5)
    assert type(plain).__name__ == ("FullData" if chunked else "LinearStatistics")
    assert (chunks.number_of_chunks(8, 4, 8) > 1) == chunked
    activation = network.smooth_activation(0.5)

    def loss(parameters):
        (w1, w2), (b, _) = parameters
        outputs = activation(0, task.x @ w1.T + b[None]) @ w2.T
        return fl.SquaredError()(outputs, task.y)

    def modified(parameters):
        gradient = jax.grad(loss)(parameters)
        return loss(parameters) + 0.3 / 4 * sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient))

    found = eqx.filter_jit(chunks.ModifiedLoss(plain, jnp.asarray(0.3)).gradient)(network)
    expected = jax.jit(jax.grad(modified))(network.parameters)
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-10)


@pytest.mark.slow
def test_the_loss_of_a_modified_flow_is_looked_at_inside_steps():
    """Near a maximum with curvature below -2 / eps the modified flow goes uphill: not monotone."""
    network = fl.LinearNetwork((np.full((1, 1), 0.1),) * 2)
    task = fl.Task(np.ones((1, 1)), np.ones((1, 1)))
    plain = choose_objective(network, task, fl.SquaredError(), 1e-4)
    problem = Problem(network, task, fl.SquaredError(), jnp.asarray(1.0))
    (watch,) = fl.LossBelow(0.3).watches(problem, plain, fl.SmoothKinks())
    assert watch.monotone
    with pytest.warns(fl.RateWarning):
        flow = fl.gradient_flow(
            network, task, 5.0, modified_rate=6.0, ts=np.linspace(0, 5, 9), solver=diffrax.Tsit5()
        )
    assert np.all(np.diff(flow.losses) > 0)
    changed = chunks.ModifiedLoss(plain, jnp.asarray(6.0))
    (watch,) = fl.LossBelow(0.3).watches(problem, changed, fl.SmoothKinks())
    assert not watch.monotone
    assert flow.stats["objective"] == "FullData, modified"


# ---- The coordinates of a linear network's modes.

RTOL = 1e-12
TURNED = {
    "dense": (3, 6, {"tau": [1.0, 2.0], "weight_decay": [0.1, 0.2]}),
    "watched": (5, 3, {"modified_rate": 0.01, "loss": fl.SquaredError("sum"), "tau": 20.0}),
}


@pytest.mark.slow
@pytest.mark.parametrize("which", TURNED)
def test_the_flow_in_the_coordinates_of_its_modes_is_the_same(which, monkeypatch):
    """From ordinary weights both keep all digits."""
    inputs, outputs, how = TURNED[which]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, inputs)) + 0.3, rng.normal(size=(20, outputs))
    task = fl.Task(x, y, weights=rng.uniform(0.5, 1.5, 20))
    key, ts = jax.random.key(1), np.array([0.0, 3.0, 7.3, 14.0, 20.0])
    network = fl.LinearNetwork.init(task, 7, 0.05, [True, False], 1.5, key=key)
    if which == "watched":
        how = how | {"events": fl.ModeHits(fl.theory.modes(task, network), share=0.3)}

    def run(**more):
        options = {"ts": ts, "rtol": RTOL, "solver": diffrax.Dopri8()} | how | more
        return fl.gradient_flow(network, task, 20.0, **options)

    def assert_alike(one, other):
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=bound, atol=bound)

    plain, bound = run(), of_flow(RTOL, 1000)
    monkeypatch.setattr(mode_frame, "_weights_are_tiny", lambda network, task: True)
    monkeypatch.setattr(mode_frame, "_inputs_decouple", lambda sigma_x, strength: True)
    turned = run(dense=which == "dense")
    assert "coordinates" in turned.stats["objective"]
    assert "coordinates" not in plain.stats["objective"]
    assert_alike(turned.networks, plain.networks)
    np.testing.assert_allclose(turned.losses, plain.losses, rtol=bound)
    if which == "dense":
        assert_alike(turned.network(7.3), jax.tree.map(lambda a: a[2], plain.networks))
    else:
        found, expected = (flow.events.first("mode") for flow in (turned, plain))
        assert np.any(np.isfinite(expected))
        np.testing.assert_allclose(found, expected, rtol=10 * bound)


def test_a_turn_is_orthogonal_and_has_the_columns_given(seed):
    columns = np.linalg.qr(np.random.default_rng(seed).normal(size=(7, 3)))[0]
    turn = mode_frame.ReflectionProduct.from_columns(columns, np.float64)
    q = np.asarray(turn(jnp.eye(7)))
    np.testing.assert_allclose(q @ q.T, np.eye(7), atol=1e-14)
    np.testing.assert_allclose(np.abs(np.sum(q[:, :3] * columns, axis=0)), 1, rtol=1e-13)
    np.testing.assert_allclose(turn.apply_transpose(jnp.asarray(q)), np.eye(7), atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [2, 3])
def test_the_size_of_a_mode_between_its_start_and_its_hit(layers):
    """Against the closed form of a mode far below its full strength."""
    a0, full, s = 1e-12, 1e6, 1.0
    late, early = (
        fl.theory.Mode(s, s / full, a0, layers).hitting_time(level) for level in (1e-3, 1e-8)
    )
    size = mode_size_between(a0 ** (1 / layers), 1e-3 ** (1 / layers), float(early / late), layers)
    assert size == pytest.approx(1e-8 ** (1 / layers), rel=1e-6)
    assert mode_size_between(1e-200, 1.0, 0.5, layers + 2) < 1e-100


# ---- How programs are compiled.


def test_an_array_that_occurs_twice_is_handed_over_once():
    traced = []

    @jit_by_array
    def function(tree, power):
        traced.append(tree)
        return {name: value**power for name, value in tree.items()}

    a, b = jnp.arange(3.0), jnp.ones(3)
    out = function({"x": a, "y": b, "z": a}, 2)
    assert traced[0]["x"] is traced[0]["z"] is not traced[0]["y"]
    assert np.array_equal(out["z"], np.asarray(a) ** 2)
    function({"x": b, "y": a, "z": b}, 2)
    assert len(traced) == 1, "compiled again for other arrays in the same places"
    out = function({"x": a, "y": a, "z": b}, 2)
    assert len(traced) == 2
    assert np.array_equal(out["z"], np.asarray(b) ** 2)


def test_runs_take_full_products_unless_told_otherwise():
    """JAX rounds the factors of float32 products to 11 bits on a GPU by default."""

    @jit_by_array
    def product(x):
        return jax.config.jax_default_matmul_precision, x @ x  # pyright: ignore

    assert product(jnp.ones((2, 2)))[0] == "highest"
    with jax.default_matmul_precision("tensorfloat32"):
        assert product(jnp.ones((2, 2)))[0] == "tensorfloat32"


def test_small_arrays_have_an_option_and_others_none(monkeypatch):
    """An option that XLA does not know shows where it is handed over, and is left out there."""
    monkeypatch.setattr(numerics, "OLDER_LOOPS", {"xla_unknown": True})
    numerics._knows_older_loops.cache_clear()
    assert float(jit_by_array(jnp.sum)(jnp.ones(2))) == 2
    numerics._knows_older_loops.cache_clear()
    monkeypatch.setattr(numerics, "_knows_older_loops", lambda: True)
    function = jit_by_array(jnp.sum)
    with pytest.raises(RuntimeError, match="xla_unknown"):
        function(jnp.ones(2))
    assert float(function(jnp.ones(numerics.SMALL_TREE + 1))) == numerics.SMALL_TREE + 1
    assert float(jax.jit(lambda: function(jnp.ones(2)))()) == 2
    assert float(jax.vmap(jax.grad(function))(jnp.ones((1, 2)))[0, 0]) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_earlier_floats_are_those_of_numpy(dtype):
    back = jax.jit(lambda t: previous_float(t, 100))
    for t in np.asarray([1e-30, 0.3, 1.0, 2.0**-3, 60.0, 1e20], dtype):
        before = t
        for _ in range(100):
            before = np.nextafter(before, dtype(-np.inf))
        assert back(t) == before
        assert back(t).dtype == dtype


# ---- The time that is left.


@pytest.mark.parametrize(
    ("step", "steady"),
    [
        (lambda t: 0.01, True),
        (lambda t: 0.01, False),
        (lambda t: 0.02 * max(t, 1e-3) ** 0.5, False),
    ],
)
def test_the_time_left_is_right_within_a_factor_of_two(step, steady):
    """From the first hundredth on, however steps grow with time: a step takes a second."""
    t, clock, horizon = step(0.0), 1.0, 10.0
    forecast, told = Forecast(t, clock), []
    while t < horizon - step(t):
        t, clock = t + step(t), clock + 1.0
        if clock % 8 == 0:
            told.append((t, clock, forecast.seconds_left(t, clock, horizon, steady)))
    for at, when, left in told:
        if 0.01 * horizon < at < 0.95 * horizon:
            assert 0.5 < left / (clock - when) < 2


# ---- Functions that are known by their code.

SCALE = 2.0


def tell_apart(function):
    return [np.asarray(part).tolist() for part in function_parts(function)]


def times(size, more=1.0):
    def product(x, *, also=more):
        """Multiply."""
        return SCALE * size * x + also

    return product


def test_functions_are_told_apart_by_their_code_and_the_values_they_use(monkeypatch):
    def other(size):
        return lambda x: size + x

    own = tell_apart(times(1.0))
    assert own == tell_apart(times(1.0))
    different = [times(3.0), times(1.0, 2.0), times(np.ones(2)), other(1.0), times(times(1.0))]
    assert all(tell_apart(function) != own for function in different)
    for wrap in (jax.jit, jax.vmap, eqx.filter_jit, functools.partial, eqx.Partial):
        assert tell_apart(wrap(times(1.0))) == own
        assert tell_apart(wrap(times(3.0))) != own
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 4.0)
    assert tell_apart(times(1.0)) != own
    assert tell_apart(fl.distance) == []
