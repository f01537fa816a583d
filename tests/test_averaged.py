"""Gates averaged over a step: quadratics, order, agreement with the exact walk, life in a flow."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin.engine.kinks.averaged import (
    AveragedGates,
    integral_with_gate,
    nearest_approach,
    quadratic_through,
)
from flowlin.engine.kinks.averaged_graph import AveragedGraph
from flowlin.engine.kinks.slides import SlideState, slides_after, slides_in_step
from flowlin.networks.kink_program import rectify_with_gate
from flowlin.networks.modules import ForeignModel
from flowlin.training.objective import Decay
from flowlin.training.rules import VectorField, choose_objective
from tests import numpy_walk
from tests.zoo import distance, jit

END, LEVEL = 5.0, 0.498


@pytest.fixture(scope="module")
def digits():
    """Many samples and few units: 2,400 pairs with some 480 switches, small enough to walk."""
    task = fl.tasks.digits(400)
    return task, fl.ReLUNetwork.init(task, 6, key=jax.random.key(0))


@pytest.fixture(scope="module")
def exact(digits):
    task, network = digits
    return fl.gradient_flow(network, task, END, rtol=1e-8, ts=jnp.linspace(0, END, 201))


def averaged(network, task, t1, **options):
    return fl.gradient_flow(network, task, t1, kinks=fl.AveragedKinks(), **options)


class Solve:
    """diffrax alone, averaged gates unless told otherwise: final network of a start."""

    def __init__(self, network, task, t1, solver=None, loss=fl.SquaredError(), tau=1.0):
        self.t1, tau = t1, jnp.asarray(tau, network.dtype)
        goal = choose_objective(network, task, loss)
        self.term = diffrax.ODETerm(VectorField(goal, network, tau))
        self.solver = AveragedGates(network, task, loss, tau) if solver is None else solver

    def fixed(self, network, steps):
        return self._end(network, self.t1 / steps.astype(float), diffrax.ConstantStepSize())

    def adaptive(self, network, rtol, adjoint=diffrax.RecursiveCheckpointAdjoint()):
        controller = diffrax.PIDController(rtol=rtol, atol=rtol / 100)
        return self._end(network, None, controller, adjoint)

    def _end(self, network, dt0, controller, adjoint=diffrax.RecursiveCheckpointAdjoint()):
        ys = diffrax.diffeqsolve(
            self.term, self.solver, 0.0, self.t1, dt0, network.parameters,
            stepsize_controller=controller, max_steps=1024, adjoint=adjoint,
        ).ys  # fmt: skip
        return network.with_parameters(jax.tree.map(lambda a: a[0], ys))


@jax.jit
def integrated(z, force):
    """Integrals over the on-part, and how near the paths come to zero without crossing it."""
    path, push = quadratic_through(*z), quadratic_through(*force)
    near = nearest_approach(path[0], path[0] + path[1] + path[2], path[1], path[1] + 2 * path[2])
    return integral_with_gate(path, push, jnp.asarray(0.2)), near, jnp.stack(path), jnp.stack(push)


def test_integrals_over_the_on_part_and_grazes():
    """Against sums over a fine grid, for no, one and two roots, double and degenerate ones."""
    z = np.random.default_rng(0).normal(size=(3, 400))
    z[:, 0], z[:, 1], z[:, 2] = (1, 0, 1), (0, 0, 0), (-1, -0.5, 0)
    z[:, 3], z[:, 4] = (2, 1, 0), (0, 1, 1)
    force = np.random.default_rng(1).normal(size=(3, 400))
    integral, near, *paths = map(np.asarray, integrated(z, force))
    s = (np.arange(20_000)[:, None] + 0.5) / 20_000
    values, forces = (q[0] + q[1] * s + q[2] * s**2 for q in paths)
    expected = np.mean(np.where(values > 0, 1.0, 0.2) * forces, axis=0)
    np.testing.assert_allclose(integral, expected, atol=3e-4)

    nearest, inside = np.min(np.abs(values), axis=0), np.argmin(np.abs(values), axis=0)
    same = np.all(values > 0, axis=0) | np.all(values < 0, axis=0)
    turns = same & (inside > 0) & (inside < len(s) - 1) & (nearest > 1e-6)
    assert 5 < np.sum(turns) < 100
    np.testing.assert_allclose(near, np.where(turns, nearest, np.inf), atol=1e-6)


@pytest.mark.slow
def test_what_slides_ends_its_step_at_the_kink():
    """Pairs of one sample each, kappa = 2, C = -1, pushed by q: z' = q + 2 g C."""
    h, own = jnp.asarray(0.1), jnp.asarray([[2.0]])
    # Falls and stays; rises and stays; rises and passes; falls and passes; is far away.
    z = jnp.asarray([[0.05, -0.05, -0.05, 0.05, 1.0]])
    q = jnp.asarray([[1.0, 1.0, 2.5, -0.5, 1.0]])
    gates = (z > 0).astype(z.dtype)
    ungated = -jnp.ones_like(z)
    velocity = q + own * gates * ungated
    predicted = z + h * velocity
    before = SlideState.without_slides(gates * ungated)
    now = slides_in_step(
        before, h, h, (ungated, ungated), (predicted, velocity), own, jnp.zeros(())
    )
    assert now.pairs.tolist() == [[True, True, False, False, False]]
    ends = z + h * (q + own * now.mean_signal)
    np.testing.assert_allclose(ends[0, :2], 0, atol=1e-15)
    np.testing.assert_allclose((q + own * now.end_signal)[0, :2], 0, atol=1e-15)

    # What goes on sliding is damped by what the correction has been seen to do.
    moved = jnp.where(now.pairs, 3 * own * (now.mean_signal - now.predicted_signal), 0.0)
    told = slides_after(before, now, h, jnp.where(now.pairs, 0.0, ends), moved, ungated, gates)
    np.testing.assert_allclose(told.signal, jnp.where(now.pairs, now.end_signal, gates * ungated))
    assert told.coupling.tolist() == [1, 1, 1, 1, 1]  # none had been sliding before
    again = slides_in_step(
        told, h, h, (ungated, ungated), (0.01 + 0 * z, 0.1 + 0 * z), own, jnp.zeros(())
    )
    moved = 1.5 * own * (again.mean_signal - again.predicted_signal)
    assert (
        slides_after(told, again, h, 0 * z, moved, ungated, gates).coupling[0] == 1
    )  # of one pair


SMALL = fl.tasks.teacher(60, (1.0, 0.5, 0.2), key=jax.random.key(2))


SPAN = np.linspace(0, 3.0, 151)


@pytest.fixture(scope="module")
def small():
    """A network, and its second walk."""
    rng = np.random.default_rng(1)
    inputs, outputs = SMALL.inputs, SMALL.outputs
    network = fl.ReLUNetwork(
        (0.5 * rng.normal(size=(4, inputs)), 0.5 * rng.normal(size=(outputs, 4))),
        (0.3 * rng.normal(size=4), None),
    )
    return network, numpy_walk.walk(network, SMALL, 3.0, SPAN)


def test_it_is_the_second_walk_up_to_its_tolerance(small):
    network, second = small
    flow = averaged(network, SMALL, 3.0, ts=SPAN)
    assert flow.stats["solver"] == "AveragedGates"
    assert flow.stats["accepted_evaluations"] == 1 + 2 * flow.stats["num_accepted_steps"]
    (w, a), (b, _) = jax.tree.map(np.asarray, flow.networks.parameters)
    np.testing.assert_allclose(w, second.hidden, rtol=0, atol=1e-4)
    np.testing.assert_allclose(a, second.readout, rtol=0, atol=1e-4)
    assert np.all(np.diff(flow.losses) < 0)
    conserved = np.sum(w**2, axis=2) + b**2 - np.sum(a**2, axis=1)
    assert np.max(np.abs(conserved - conserved[0])) < 1e-5 * np.max(np.sum(w**2, axis=2))
    # Pairs that cross once, without sliding.
    assert len(second.switches) > 10
    found = [(*row["index"][1:], row["time"]) for row in flow.events.select("gate").table()]
    times: dict[tuple[int, int], list[float]] = {}
    for unit, sample, time in found:
        times.setdefault((unit, sample), []).append(time)
    for time, unit, sample, old, new in second.switches:
        if 0 not in (old, new):
            assert np.min(np.abs(np.array(times[unit, sample]) - time)) < 5e-3


def test_what_is_known_along_a_step_is_what_a_pass_over_the_inputs_finds(digits):
    """Outputs and loss from the preactivations at the step's ends, biases and decay included."""
    task, network = digits
    decay = Decay(jnp.asarray(0.1))
    solver = AveragedGates(network, task, fl.SquaredError(), jnp.asarray(2.0), decay)
    t0, t1 = jnp.asarray(0.0), jnp.asarray(0.5)

    @jax.jit
    def both(fraction):
        before = solver.init(None, t0, t1, network.parameters, None)
        *_, dense, after, _ = solver.step(None, t0, t1, network.parameters, None, before, False)
        t = t0 + fraction * (t1 - t0)
        parameters = solver.interpolation_cls(t0=t0, t1=t1, **dense).evaluate(t)
        known = solver.quantities_along(t0, t1, before, after)(t, parameters)
        outputs = network.with_parameters(parameters).outputs(task.x)
        return known, {"outputs": outputs, "loss": solver.loss(outputs, task.y)}

    for fraction in 0.0, 0.3, 1.0:
        known, expected = both(jnp.asarray(fraction))
        for name, value in expected.items():
            np.testing.assert_allclose(known[name], value, rtol=1e-12, atol=1e-15)


@pytest.mark.slow
def test_second_order_where_ordinary_methods_are_of_first(digits, exact):
    task, network = digits
    steps = np.array([16, 32, 64, 128, 256])

    def order(solver):
        solve = jit(Solve(network, task, END, solver).fixed)
        errors = [distance(solve(network, n), exact.final) for n in steps]
        return -np.polyfit(np.log(steps), np.log(errors), 1)[0], errors[-1]

    slope, finest = order(None)
    assert slope == pytest.approx(2.0, abs=0.2)
    ordinary, error = order(diffrax.Heun())
    assert ordinary < 1.4
    assert error > 10 * finest


@pytest.mark.slow
def test_error_falls_with_the_tolerance(digits, exact):
    task, network = digits
    solve = jit(Solve(network, task, END).adaptive)
    errors = [distance(solve(network, rtol), exact.final) for rtol in (1e-3, 1e-4, 1e-5)]
    assert errors[0] < 5e-4
    assert errors[1] < errors[0] / 3
    assert errors[2] < errors[1] / 3


@pytest.mark.slow
def test_agrees_with_the_exact_walk(digits, exact):
    task, network = digits
    flow = averaged(network, task, END, ts=jnp.linspace(0, END, 501))
    assert flow.stats["solver"] == "AveragedGates"
    assert flow.stats["accepted_evaluations"] == 1 + 2 * flow.stats["num_accepted_steps"]
    assert distance(flow.final, exact.final) < 1e-5
    assert jnp.all(jnp.diff(flow.losses) < 0)
    # |w|^2 + b^2 - |a|^2 is conserved per unit.
    (w, a), (b, _) = flow.networks.parameters
    conserved = jnp.sum(w**2, axis=2) + b**2 - jnp.sum(a**2, axis=1)
    assert jnp.max(jnp.abs(conserved - conserved[:1])) < 1e-6 * jnp.max(jnp.sum(w**2, axis=2))

    # Every gate switches as often as in the exact walk, at the same times.
    found, known = (f.events.select("gate") for f in (flow, exact))
    assert len(known) > 400
    assert np.array_equal(np.sort(found.component), np.sort(known.component))
    for k in np.unique(known.component):
        pair = [np.asarray(e.time)[np.asarray(e.component) == k] for e in (found, known)]
        assert np.allclose(*pair, atol=5e-3)

    # The grazing margin, from the saved networks.
    z = np.asarray(jax.vmap(lambda n: n.preactivations(task.x)[0])(flow.networks))
    errors = task.y[None] - jax.vmap(lambda n: n.outputs(task.x))(flow.networks)
    strength = np.asarray(jnp.einsum("tpo,toh->tph", errors, a))
    size = (
        np.asarray(jnp.sqrt(jnp.sum(w**2, 2) + b**2))[:, None]
        * np.sqrt(1 + np.sum(np.asarray(task.x) ** 2, 1))[:, None]
    )
    near, side = np.abs(z), np.sign(z)
    turns = (near[1:-1] < near[:-2]) & (near[1:-1] < near[2:]) & (strength[1:-1] > 0)
    turns &= (side[1:-1] == side[:-2]) & (side[1:-1] == side[2:])
    expected = np.min((near / size)[1:-1][turns])
    assert float(flow.stats["grazing_margin"]) == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_unit_switches_and_terminating_events(digits, exact):
    task, network = digits
    events = (fl.UnitSwitches(0.3), fl.LossBelow(LEVEL, terminate=True))
    with pytest.warns(fl.KinksWarning, match="`rtol` = 1e-08 is finer .* 1e-05 is used instead"):
        flow = averaged(network, task, END, events=events, rtol=1e-8)
    assert int(flow.stats["num_steps"]) < 1000
    crossed = float(np.interp(-LEVEL, -exact.losses, exact.ts))
    assert flow.result == fl.RESULTS.event_occurred
    assert float(flow.end) == pytest.approx(crossed, rel=1e-3)
    assert float(flow.losses[-1]) == pytest.approx(LEVEL, abs=1e-9)
    # Units on for more than 0.7, or not on for 0.7, of the samples, by replaying the gates.
    on = np.asarray(exact.events.initial[: 6 * 400]).reshape(6, 400) > 0
    known = {"always_on(0.3)": [], "always_off(0.3)": []}
    for row in exact.events.select("gate").table():
        _, unit, sample = row["index"]
        before = np.sum(on[unit])
        on[unit, sample] = row["new"] > 0
        between = (before + np.sum(on[unit])) / 2
        for name, level in (("always_on(0.3)", 279.5), ("always_off(0.3)", 120.5)):
            if between == level and row["time"] < crossed:
                known[name].append((unit, row["time"]))
    assert sum(map(len, known.values())) > 1
    for name, rows in known.items():
        found = flow.events.select(name)
        assert [index[1] for index in found.index] == [unit for unit, _ in rows]
        assert np.allclose(found.time, [time for _, time in rows], atol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "bias", "slope", "tau"),
    [
        (fl.CrossEntropy(), True, 0.1, 1.0),
        (fl.SquaredError("sum"), False, 0.3, 40.0),
    ],
)
def test_every_loss_bias_and_slope(loss, bias, slope, tau):
    """Against plain integration at a tolerance that resolves the few kinks."""
    task = fl.Task(SMALL.x, jax.nn.softmax(SMALL.y))
    network = fl.ReLUNetwork.init(
        task, 4, 0.2, bias, bias_strength=2.0, slope=slope, key=jax.random.key(1)
    )
    ways = (Solve(network, task, 2.0, s, loss, tau) for s in (diffrax.Bosh3(), None))
    plain, found = (
        jit(way.adaptive)(network, rtol) for way, rtol in zip(ways, (1e-7, 1e-5), strict=True)
    )
    assert jnp.any((network.preactivations(task.x)[0] > 0) != (plain.preactivations(task.x)[0] > 0))
    assert distance(plain, network) > 0.05
    assert distance(found, plain) < 3e-5


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [(4,), (4, 3)], ids=["one layer", "two layers"])
def test_derivatives(hidden):
    """Forward and reverse agree with finite differences."""
    network = fl.ReLUNetwork.init(SMALL, hidden, 0.2, slope=0.2, key=jax.random.key(1))
    one, mean = len(hidden) == 1, fl.SquaredError()
    graph = None if one else AveragedGraph(network, SMALL, mean, jnp.ones(()), None, None, 1, 1)
    solve = Solve(network, SMALL, 2.0, graph)

    def loss(scale, adjoint):
        start = network.with_parameters(jax.tree.map(lambda a: a * scale, network.parameters))
        end = solve.adaptive(start, 1e-4, adjoint)
        return fl.SquaredError()(end.outputs(SMALL.x), SMALL.y)

    forward = jit(lambda s: jax.jvp(lambda s: loss(s, diffrax.ForwardMode()), (s,), (1.0,)))
    for scale in (0.8, 1.1):
        value, slope = forward(scale)
        known = (forward(scale + 1e-3)[0] - forward(scale - 1e-3)[0]) / 2e-3
        np.testing.assert_allclose(slope, known, rtol=1e-2)
    reverse = jit(jax.value_and_grad(lambda s: loss(s, diffrax.RecursiveCheckpointAdjoint())))
    np.testing.assert_allclose(reverse(1.1), (value, slope), rtol=1e-9)


@pytest.mark.slow
def test_a_flow_in_float32(small):
    """Against the second walk."""
    network, second = small
    single = averaged(network.astype(jnp.float32), SMALL, 3.0, rtol=1e-4, ts=SPAN)
    assert single.final.dtype == single.stats["grazing_margin"].dtype == jnp.float32
    for row in (50, -1):
        found = jax.tree.map(lambda a, row=row: a[row], single.networks).astype(jnp.float64)
        weights = second.hidden[row], second.readout[row]
        known = network.with_parameters((weights, (second.biases[row], None)))
        assert distance(found, known) < 1e-3


def test_what_cannot_work_says_so():
    shallow = fl.ReLUNetwork((np.ones((3, SMALL.inputs)), np.ones((SMALL.outputs, 3))))
    with pytest.raises(ValueError, match="leave out `solver` = Bosh3"):
        averaged(shallow, SMALL, 1.0, solver=diffrax.Bosh3())


# ---- Deep networks and modules.


def one_step(network, task, width=1):
    """The parameters after two steps, the second one with a step before it."""
    model = network if isinstance(network, fl.ReLUNetwork) else as_module(network, task)
    solver = AveragedGraph(
        model, task, fl.SquaredError(), jnp.ones(()), None, None, width, shards=1
    )
    field = VectorField(choose_objective(model, task, fl.SquaredError()), model, jnp.ones(()))

    @jit
    def steps(y, h):
        terms = diffrax.ODETerm(field)
        state = solver.init(terms, 0.0 * h, h, y, None)
        for k in 0, 1:
            y, *_, state, _ = solver.step(terms, k * h, (k + 1) * h, y, None, state, False)
        return y

    return steps(model.parameters, jnp.asarray(0.3))


def as_module(module, task):
    return ForeignModel.from_module("network", module).with_kinks(task.inputs)


def test_a_gate_is_the_derivative_and_has_one_itself():
    """The gradient is g; its own derivatives are those of max(z, 0) and of g."""

    def gradient(z, gate):
        return jax.grad(lambda z: jnp.sum(rectify_with_gate(z, gate) ** 2 / 2))(z)

    z, gate = jnp.asarray([-1.0, 0.5, 2.0]), jnp.asarray([0.3, 0.2, 0.0])
    np.testing.assert_allclose(rectify_with_gate(z, gate), [0, 0.5, 2])
    np.testing.assert_allclose(gradient(z, gate), [0, 0.1, 0])
    ways = jnp.asarray([1.0, 1.0, 1.0]), jnp.asarray([1.0, 2.0, 3.0])
    np.testing.assert_allclose(jax.jvp(gradient, (z, gate), ways)[1], [0, 0.2 + 1.0, 6.0])


@pytest.mark.slow
def test_a_step_is_that_of_the_same_function_however_it_is_written():
    """An MLP and the network of its weights; rows in chunks and at once; a leaky slope."""
    mlp = eqx.nn.MLP(SMALL.inputs, SMALL.outputs, 5, 2, key=jax.random.key(0))
    weights, biases = one_step(fl.ReLUNetwork.of(mlp), SMALL)
    stepped = one_step(mlp, SMALL)
    for layer, w, b in zip(stepped.layers, weights, biases, strict=True):
        np.testing.assert_allclose(layer.weight, w, rtol=0, atol=1e-13)
        np.testing.assert_allclose(layer.bias, b, rtol=0, atol=1e-13)

    many = fl.tasks.teacher(1100, (1.0, 0.5), key=jax.random.key(1))
    network = fl.ReLUNetwork.init(many, (3, 3), 0.3, slope=0.2, key=jax.random.key(1))
    at_once, in_chunks = (one_step(network, many, width) for width in (1, 10**6))
    for a, b in zip(*map(jax.tree.leaves, (at_once, in_chunks)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.slow
def test_second_order_in_two_layers():
    task = fl.tasks.digits(200)
    network = fl.ReLUNetwork.init(task, (5, 4), 0.1, key=jax.random.key(0))
    walk = fl.gradient_flow(network, task, 3.0, rtol=1e-8, events=())
    assert len(walk.events.select("gate")) > 100
    exact = walk.final
    field = VectorField(choose_objective(network, task, fl.SquaredError()), network, jnp.ones(()))
    own = AveragedGraph(network, task, fl.SquaredError(), jnp.ones(()), None, None, 1, 1)

    def errors(solver, counts):
        @jit
        def end(parameters, steps):
            return diffrax.diffeqsolve(
                diffrax.ODETerm(field), solver, 0.0, 3.0, 3.0 / steps, parameters, max_steps=512
            ).ys

        ends = [end(network.parameters, jnp.asarray(float(n))) for n in counts]
        found = [network.with_parameters(jax.tree.map(lambda a: a[0], ys)) for ys in ends]
        return [distance(one, exact) for one in found]

    steps = np.array([16, 32, 64, 128, 256])
    ours, others = errors(own, steps), errors(diffrax.Heun(), steps)
    slope, ordinary = (-np.polyfit(np.log(steps), np.log(e), 1)[0] for e in (ours, others))
    assert slope == pytest.approx(2.0, abs=0.25)
    assert ordinary < 1.5
    assert others[-1] > 5 * ours[-1]
