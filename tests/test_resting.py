"""Units that die at their kinks: where these turn to repel, the flow is one of two, and it is said.

The second flow is the limit of smooth gates. For any of them, g(z / width) > 0, a unit that is off
but at the kink of one pair has du/dt = |x~|^2 C(t) g(u) / width for u = z / width, so u is back
where it was at its death when the integral of C since then is zero: the unit comes on again.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
from scipy.interpolate import CubicSpline

import flowlin as fl
from tests.tolerances import ROUNDING, of_flow
from tests.zoo import jit

TASK = fl.tasks.hierarchy(levels=2)
END, ROWS = 1.5, 1501
RTOL = 1e-9
TSIT = diffrax.Tsit5()  # by name: no other one is tried at rest, which is another program
REVIVE = fl.ExactKinks(revive=True)


def start(seed):
    return fl.ReLUNetwork.init(TASK, 4, variance=0.5, key=jax.random.key(seed))


def walk(network, end=END, rtol=RTOL, solver: Any = TSIT, **options):
    times = np.linspace(0, end, ROWS)
    how = {"ts": times, "rtol": rtol, "solver": solver}
    return fl.gradient_flow(network, TASK, end, **how, **options)


def along(flow, layer=0):
    """Preactivations z and drives C of a layer, (T, H, P) at the saved times, and what feeds it."""

    @jax.jit
    @jax.vmap
    def at_once(parameters):
        weights, biases = parameters

        def loss(more):
            h, zs = TASK.x.T, []
            for w, b in zip(weights[:-1], biases[:-1], strict=True):
                zs = [*zs, w @ h + b[:, None]]
                h = jax.nn.relu(zs[-1]) + (more if len(zs) == layer + 1 else 0.0)
            below = jax.nn.relu(zs[layer - 1]) if layer else TASK.x.T
            return jnp.sum((TASK.y - (weights[-1] @ h).T) ** 2) / (2 * TASK.samples), (zs, below)

        shape = weights[layer].shape[0], TASK.samples
        gradient, (zs, below) = jax.grad(loss, has_aux=True)(jnp.zeros(shape))
        return zs[layer], -gradient, below

    return [np.asarray(a) for a in at_once(flow.saved)]


def turns_of_resting_pairs(flow, layer=0):
    """Pairs of dead units at kinks whose C turns positive, with the times, by all saved rows.

    A unit above the first layer rests at the kinks of samples for which all below it are off: these
    share one kink, where its bias is zero, and the sum of their C counts.
    """
    z, drive, below = along(flow, layer)
    dead = np.all(z <= ROUNDING, axis=2, keepdims=True)
    rests = dead & (np.abs(z) <= ROUNDING)
    if layer:
        alike = np.all(below == 0, axis=1, keepdims=True)
        rests, drive = rests & alike, np.sum(drive * alike, axis=2, keepdims=True) * alike
    turns = rests[:-1] & rests[1:] & (drive[:-1] < 0) & (drive[1:] > 0)
    found = {}
    for row, unit, sample in np.argwhere(turns):
        near = slice(max(row - 3, 0), row + 5)
        curve = CubicSpline(flow.ts[near], drive[near, unit, sample])
        times = curve.roots(extrapolate=False)
        pair = layer, int(unit), int(sample)
        found.setdefault(pair, float(times[np.argmin(np.abs(times - flow.ts[row]))]))
    return found


def branches(flow):
    return {row["index"]: row["time"] for row in flow.events.select("branch").table()}


@pytest.fixture(scope="module")
def resting():
    return walk(start(1))


@pytest.mark.slow
def test_a_kink_that_turns_to_repel_a_dead_unit_is_a_branch(resting):
    logged = branches(resting)
    assert len(logged) == 1
    assert logged == pytest.approx(turns_of_resting_pairs(resting), abs=of_flow(RTOL))
    ((_, unit, _), time), z = next(iter(logged.items())), along(resting)[0]
    late = resting.ts > time
    assert np.all(z[late, unit] <= ROUNDING)
    assert np.ptp(z[late, unit], axis=0).max() == 0
    assert f"from t = {time:.6g} on this flow is one of several" in repr(resting)
    found = resting.events.select("branch")
    why = "the kink on which a dead unit rests turns to repel it"
    assert found.reason == [why]
    assert resting.stats["branch_because"] == why
    assert why in repr(found)
    assert resting.stats["branches"] == {why: 1}
    (part, *unit, sample), *_ = found.place
    assert f"because    {why}: unit {unit[0]} of {part}, sample {sample}\n" in repr(resting)
    assert "branch 1" in repr(resting)


@pytest.mark.slow
@pytest.mark.parametrize(("rtol", "solver"), [(1e-4, diffrax.Bosh3()), (1e-6, TSIT)])
def test_it_is_told_at_every_tolerance(resting, rtol, solver):
    flow = walk(start(1), rtol=rtol, solver=solver)
    assert branches(flow) == pytest.approx(branches(resting), abs=of_flow(rtol))


@pytest.mark.slow
def test_no_branch_is_no_word():
    quiet = walk(start(0))
    assert not branches(quiet)
    assert "branch" not in repr(quiet)


@pytest.mark.slow
def test_branches_are_the_turns_of_all_resting_pairs():
    count = 0
    for seed in range(40):
        flow = walk(start(seed), 8.0)
        expected, logged = turns_of_resting_pairs(flow), branches(flow)
        assert logged == pytest.approx(expected, abs=1e-5), seed  # a spline of rows .005 apart
        count += len(logged)
    assert count > 3


def deep_start(seed):
    return fl.ReLUNetwork.init(TASK, (3, 3), variance=0.5, key=jax.random.key(seed))


@pytest.mark.slow
@pytest.mark.parametrize("decay", [0.0, 0.02])
def test_branches_of_deep_networks_are_the_turns_of_both_layers(decay):
    """And long after it has settled, as a walk of two layers does, none is told."""
    count = {0: 0, 1: 0}
    for seed in [*range(56), 130]:  # that one has turns in its second layer
        flow = walk(deep_start(seed), 8.0, solver=None, weight_decay=decay)
        assert flow.result == fl.RESULTS.successful
        expected = turns_of_resting_pairs(flow) | turns_of_resting_pairs(flow, layer=1)
        assert branches(flow) == pytest.approx(expected, abs=1e-5), seed
        for layer, _, _ in expected:
            count[layer] += 1
        if seed in (8, 18, 23):  # C ends at zero there, and is an error of either sign
            late = walk(deep_start(seed), 1e3, solver=None, weight_decay=decay)
            assert all(time < 100 for time in branches(late).values())
            if not decay:
                assert late.stats["converged"] < 900
                assert int(late.stats["num_steps"]) < 4e3
    assert count[0] > 5
    assert count[1] > 1 or decay


@pytest.mark.slow
def test_a_deep_unit_that_died_up_to_an_error_is_told_whatever_happens_between():
    """Other switches come between its death and the turn, and a layer below wakes and sleeps."""
    for seed in (25, 95, 130, 148, 166):
        flows = [walk(deep_start(seed), 8.0, rtol=rtol, solver=None) for rtol in (1e-6, RTOL)]
        rough, fine = map(branches, flows)
        assert rough == pytest.approx(fine, abs=1e-3), seed  # C is slow where it turns
        assert len(fine) > 0
        ends = [float(flow.losses[-1]) for flow in flows]
        assert ends[0] == pytest.approx(ends[1], rel=1e-5), seed


class Layered(eqx.Module):
    """A network of one hidden layer as a module."""

    w: jax.Array
    b: jax.Array
    a: jax.Array

    def __call__(self, x):
        return self.a @ jax.nn.relu(self.w @ x + self.b)


@pytest.mark.slow
def test_a_module_has_the_branch_of_the_network_of_its_weights(resting):
    (hidden, readout), (bias, _) = start(1).parameters
    module = Layered(hidden, bias, readout)
    flow = walk(module)
    assert branches(flow) == pytest.approx(branches(resting), abs=of_flow(RTOL))
    assert flow.events.select("branch").reason == resting.events.select("branch").reason


def softplus_flow(network, width, times):
    """Readouts (T, N_out, H) and weights of biased inputs (T, H, 1 + N), by SciPy; h = softplus."""
    x = np.c_[np.ones(TASK.samples), np.asarray(TASK.x)]
    y = np.asarray(TASK.y)
    (weights, readout), (bias, _) = jax.tree.map(np.asarray, network.parameters)
    first = np.c_[bias, weights]

    def velocity(_, flat):
        w, a = flat[: first.size].reshape(first.shape), flat[first.size :].reshape(readout.shape)
        z = w @ x.T / width
        error = (y - (width * np.logaddexp(0, z)).T @ a.T) / len(x)
        hidden = (a.T @ error.T * scipy.special.expit(z)) @ x
        return np.concatenate([hidden.ravel(), (error.T @ (width * np.logaddexp(0, z)).T).ravel()])

    flat = np.concatenate([first.ravel(), readout.ravel()])
    how = {"method": "LSODA", "rtol": 1e-10, "atol": 1e-13, "t_eval": times}
    found = scipy.integrate.solve_ivp(velocity, (0, times[-1]), flat, **how).y.T
    shape = (-1, *first.shape), (-1, *readout.shape)
    return found[:, first.size :].reshape(shape[1]), found[:, : first.size].reshape(shape[0])


@pytest.mark.slow
def test_smooth_gates_revive_the_unit_when_the_integral_of_its_drive_is_zero(resting):
    (_, unit, sample), time = next(iter(branches(resting).items()))
    _, drive, _ = along(resting)
    gates = resting.events.select("gate").table()
    death = max(row["time"] for row in gates if row["index"][1] == unit)
    since = resting.ts >= death
    total = CubicSpline(resting.ts[since], drive[since, unit, sample]).antiderivative()
    (revival,) = [t for t in total.solve(total(death), extrapolate=False) if t > time]
    again = walk(start(1), kinks=REVIVE).events
    (on,) = [
        row["time"]
        for row in again.select("gate").table()
        if row["index"][1:] == (unit, sample) and row["new"] == 1
    ]
    assert on == pytest.approx(revival, abs=of_flow(RTOL))
    inputs, late = np.r_[1.0, np.asarray(TASK.x[sample])], []
    for width in (1e-2, 1e-3):
        readout, hidden = softplus_flow(start(1), width, resting.ts)
        above = (hidden[:, unit] @ inputs > 0) & (resting.ts > time)
        assert np.any(above)
        late.append(resting.ts[np.argmax(above)] - revival)
        off = np.abs(readout - resting.saved[0][1]).max(axis=(1, 2))
        assert off[resting.ts < revival].max() < width / 10
    # It then goes another way, the further the thinner the gate, at the time that the rule has.
    assert off[-1] > 5e-3
    assert abs(late[1]) < late[0] / 10


class SoftGates(eqx.Module):
    """A network of one hidden layer with h = width softplus(z / width)."""

    w: jax.Array
    b: jax.Array
    a: jax.Array
    width: jax.Array

    def __call__(self, x):
        width = jax.lax.stop_gradient(self.width)
        return self.a @ (width * jax.nn.softplus((self.w @ x + self.b) / width))


@pytest.mark.slow
def test_the_walk_that_revives_is_the_limit_of_smooth_gates():
    revived = []
    for seed in (0, 1, 5, 7):
        network = start(seed)
        ends = [walk(network, 6.0, kinks=kinks) for kinks in (None, REVIVE)]
        dead, alive = (flow.final.outputs(TASK.x) for flow in ends)
        off = []
        for width in (1e-3, 1e-4):
            (hidden, readout), (bias, _) = network.parameters
            gates = SoftGates(hidden, bias, readout, jnp.asarray(width))
            soft = fl.gradient_flow(gates, TASK, 6.0, rtol=RTOL, solver=TSIT).final
            off.append(float(jnp.abs(jax.vmap(soft)(TASK.x) - alive).max()))
        assert off[1] < off[0] / 5
        if float(jnp.abs(dead - alive).max()) > 100 * off[1]:
            revived.append(seed)
    assert revived == [1, 5]


@pytest.mark.slow
def test_the_times_of_a_branch_and_of_a_revival_have_derivatives(resting):
    def loss_and_times(scale):
        at = start(1)
        at = at.with_parameters(jax.tree.map(lambda w: scale * w, at.parameters))
        how: Any = {"adjoint": diffrax.ForwardMode(), "throw": False, "max_events": 64}
        flow = fl.gradient_flow(at, TASK, 1.0, rtol=RTOL, kinks=REVIVE, **how)
        (place,) = (k for k, one in enumerate(flow.events.channels) if one.name == "branch")
        branch = jnp.where(flow.events.channel == place, flow.events.time, jnp.inf)
        return jnp.stack([flow.losses[-1], jnp.min(branch), jnp.sort(flow.events.time)[4]])

    step = 1e-4
    value_and_slope = jit(lambda s: jax.jvp(loss_and_times, (s,), (1.0,)))  # one program
    value, slope = value_and_slope(1.0)
    ends = [value_and_slope(1.0 + way * step)[0] for way in (1, -1)]
    assert value[1] == pytest.approx(next(iter(branches(resting).values())), abs=of_flow(RTOL))
    assert value[2] == pytest.approx(0.879003, abs=1e-6)  # of the pair that comes on
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-5)
    assert abs(slope[1]) > 0.05


@pytest.mark.parametrize(
    ("network", "loss"),
    [
        (fl.ReLUNetwork.init(TASK, (2, 2), key=jax.random.key(0)), fl.SquaredError()),
        (eqx.nn.MLP(4, 7, 2, 1, dtype=float, key=jax.random.key(0)), fl.SquaredError()),
        (start(0), lambda output, target: jnp.sum(jnp.abs(output - target))),
    ],
)
def test_revival_is_of_one_layer_and_a_smooth_loss(network, loss):
    with pytest.raises(ValueError, match=r"`kinks` = ExactKinks\(revive=True\) is for an fl.ReLU"):
        fl.gradient_flow(network, TASK, 1.0, loss=loss, kinks=REVIVE)


@pytest.mark.slow
def test_a_run_with_revival_goes_on_and_is_saved(tmp_path):
    whole = walk(start(1), kinks=REVIVE)
    part = walk(start(1), 0.6, kinks=REVIVE, checkpoint=tmp_path / "run")  # it waits
    longer = part.extend(END, ts=np.linspace(0.7, END, ROWS))
    assert longer.losses[-1] == pytest.approx(float(whole.losses[-1]), rel=of_flow(RTOL))
    again = walk(start(1), kinks=REVIVE, checkpoint=tmp_path / "other")
    assert float(fl.distance(again.final, whole.final)) == 0
    whole.save(tmp_path / "run.npz")
    assert float(fl.distance(fl.load(tmp_path / "run.npz").final, whole.final)) == 0


@pytest.mark.slow
def test_a_unit_that_passes_through_zero_weights_may_go_on_or_die():
    """Without biases: smooth gates lead to where the walk goes, descent leaves the unit dead."""
    rng = np.random.default_rng(6)
    task = fl.Task(rng.normal(size=(4, 2)), rng.normal(size=(4, 1)))
    for shape in ((2, 2), (2, 2), (1, 2)):  # drawn before, for another network
        rng.normal(size=shape)
    network = fl.ReLUNetwork((rng.normal(size=(3, 2)), rng.normal(size=(1, 3))), None)
    flow = fl.gradient_flow(network, task, 10.0, rtol=RTOL, solver=TSIT)
    found = flow.events.select("branch")
    branches = found.table()
    assert branches
    assert all("more kinks of the unit meet than it has inputs" in why for why in found.reason)
    assert all(row["time"] == pytest.approx(0.52678, abs=1e-5) for row in branches)
    assert all(row["index"][:2] == (0, 0) for row in branches)
    stays = fl.gradient_descent(network, task, 1e-4, t1=10.0)
    smooth = fl.gradient_flow(network, task, 10.0, kinks=fl.SmoothKinks(1e-4), solver=TSIT)
    assert float(stays.losses[-1]) > 1.05 * float(flow.losses[-1])
    assert float(smooth.losses[-1]) == pytest.approx(float(flow.losses[-1]), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("above", [(), (np.ones((1, 1)),)], ids=["one layer", "two layers"])
def test_kinks_that_a_special_start_meets_at_once_are_a_branch(above):
    """Weights along the first input: both kinks of the unit are at w = 0, and the second repels.

    Beside it the sample (-1/2, 1) comes on before (1, 0) goes off, and is fitted, or never does.
    """
    task = fl.Task([[1.0, 0.0], [-0.5, 1.0]], [[-2.0], [2.0]])

    def walk_from(second):
        weights = (np.array([[0.3, second]]), *above, np.ones((1, 1)))
        network = fl.ReLUNetwork(weights, (None,) * len(weights))
        return fl.gradient_flow(network, task, 10.0, rtol=RTOL, solver=TSIT)

    tie, *beside = (walk_from(second) for second in (0.0, 1e-3, -1e-3))
    (branch,) = tie.events.select("branch").table()
    assert branch["index"] == (0, 0, 1)
    assert "met at once" in branch["reason"]
    assert "met at once" in str(tie)
    assert not any(flow.events.select("branch").table() for flow in beside)
    assert [float(f.losses[-1]) for f in beside] == pytest.approx([1.0, 2.0], abs=1e-6)


@pytest.mark.slow
def test_kinks_that_are_met_at_once_and_attract_are_no_branch():
    """By the symmetry of a task: two samples, mirror images, pull the unit down alike."""
    task = fl.Task([[1.0, 0.4], [1.0, -0.4]], [[-1.0], [-1.0]])
    network = fl.ReLUNetwork((np.array([[0.3, 0.0]]), np.ones((1, 1))), (None, None))
    flow = fl.gradient_flow(network, task, 10.0, rtol=RTOL, solver=TSIT)
    times = np.asarray(flow.events.select("gate").time)
    assert len(times) >= 2
    assert np.ptp(times[:2]) == 0
    assert not flow.events.select("branch").table()


@pytest.mark.slow
def test_a_slide_whose_readout_passes_zero_is_a_branch():
    """C = a e of all its pairs turns there, and rounding alone decides where the walk goes."""
    rng = np.random.default_rng([16, 3, 5, 1])
    task = fl.Task(rng.normal(size=(4, 3)), rng.normal(size=(4, 1)))
    weights = tuple(0.5 * rng.normal(size=shape) for shape in ((5, 3), (1, 5)))
    network = fl.ReLUNetwork(weights, (None, None))
    how = {"kinks": fl.ExactKinks(), "solver": TSIT, "rtol": 1e-7}
    flow = fl.gradient_flow(network, task, 5.0, **how)
    (branch,) = (row for row in flow.events.table() if row["name"] == "branch")
    assert branch["index"] == (0, 3, 2)
    assert branch["reason"] == "the kink on which the pair slides turns to repel it"
    there = fl.gradient_flow(network, task, branch["time"], **how)
    assert abs(float(there.final.weights[1][0, 3])) < 1e-6 < abs(weights[1][0, 3])
