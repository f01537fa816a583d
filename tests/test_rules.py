"""A rule of training with a memory: a heavy ball of a few lines, through all that a run can do."""

import re

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.typing import ArrayLike
from scipy.integrate import solve_ivp

import flowlin as fl
from tests.zoo import jit


class HeavyBall(fl.AbstractRule):
    r"""$\mu \ddot w + \dot w = -\nabla L$, remembering the velocity (Polyak 1964)."""

    mass: ArrayLike

    def memory(self, parameters):
        return jax.tree.map(jnp.zeros_like, parameters)

    def velocity(self, t, parameters, memory, force):
        return memory, jax.tree.map(lambda f, v: (f - v) / self.mass, force, memory)


MASS = 2.0
RULE = HeavyBall(jnp.asarray(MASS))
TASK = fl.tasks.hierarchy(levels=2)
NETWORK = fl.LinearNetwork.init(TASK, (5,), 1e-2, bias=False, key=jax.random.key(0))
MODES = fl.theory.modes(TASK, NETWORK)
T1 = 16.0
EVENTS = [fl.ModeHits(MODES, share=0.5), fl.LossBelow(0.3)]
TS = np.linspace(0, T1, 161)


def run(t1=T1, rule: fl.AbstractRule = RULE, events=(), **how):
    return fl.gradient_flow(NETWORK, TASK, t1, rule=rule, events=events, rtol=1e-9, **how)


@pytest.fixture(scope="module")
def ball():
    return run(events=EVENTS, ts=TS)


@pytest.fixture(scope="module")
def known():
    """By SciPy, with the gradient in NumPy."""
    x, y = np.asarray(TASK.x), np.asarray(TASK.y)
    start = [np.asarray(w) for w in NETWORK.weights]
    shapes, sizes = [w.shape for w in start], [w.size for w in start]

    def split(flat):
        first, second = np.split(flat, [sizes[0]])
        return first.reshape(shapes[0]), second.reshape(shapes[1])

    def field(t, state):
        w, v = np.split(state, 2)
        w1, w2 = split(w)
        error = (x @ w1.T @ w2.T - y) / len(x)
        force = -np.concatenate([(w2.T @ error.T @ x).ravel(), (error.T @ x @ w1.T).ravel()])
        return np.concatenate([v, (force - v) / MASS])

    flat = np.concatenate([w.ravel() for w in start])
    options = {"method": "DOP853", "rtol": 1e-11, "atol": 1e-13, "dense_output": True}
    found = solve_ivp(field, (0, T1), np.concatenate([flat, 0 * flat]), **options)
    return lambda t: split(np.split(found.sol(t), 2)[0])


@pytest.mark.slow
def test_it_follows_the_equation_of_second_order(ball, known):
    for weights, wanted in zip(ball.final.weights, known(T1), strict=True):
        np.testing.assert_allclose(weights, wanted, atol=1e-7)
    strength = np.max(ball.along(MODES)[:, 0])
    assert strength > 1.05 * MODES.full_strength[0]  # a ball overshoots; gradient flow cannot
    assert ball.stats["solver"] == "Dopri8"


@pytest.mark.slow
def test_dense_output_is_that_of_the_parameters(known):
    for weights, wanted in zip(run(dense=True).network(3.3).weights, known(3.3), strict=True):
        np.testing.assert_allclose(weights, wanted, atol=1e-7)


def test_its_events_are_located(ball, known):
    hit = float(ball.events.first("mode")[0])
    w1, w2 = known(hit)
    strength = MODES.u[:, 0] @ w2 @ w1 @ MODES.v[:, 0]
    assert strength == pytest.approx(float(MODES.full_strength[0]) / 2, rel=1e-6)
    assert float(ball.events.first("loss")) < T1


@pytest.mark.slow
def test_a_checkpoint_resumes_to_the_bit(ball, tmp_path):
    path = tmp_path / "ball.npz"
    part = run(events=EVENTS, ts=TS, checkpoint=path, max_steps=12, throw=False)
    assert int(part.stats["num_steps"]) == 12
    resumed, whole = run(events=EVENTS, ts=TS, checkpoint=path), ball
    assert all(map(np.array_equal, resumed.final.weights, whole.final.weights))
    assert np.array_equal(resumed.events.time, whole.events.time)
    for other in (HeavyBall(jnp.asarray(3.0)), fl.Gradient()):
        with pytest.raises(ValueError, match="of a run with another rule"):
            run(events=EVENTS, ts=TS, checkpoint=path, rule=other)


@pytest.mark.slow
def test_it_extends(ball):
    longer = run(T1 / 2, events=EVENTS, ts=TS / 2).extend(T1)
    for a, b in zip(longer.final.weights, ball.final.weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)


@pytest.mark.slow
def test_its_mass_has_a_derivative_and_a_batch_is_its_single_runs(ball):
    """In one program: of runs with several masses, values and derivatives by the mass."""

    def outcome(mass):
        flow = run(rule=HeavyBall(mass), adjoint=diffrax.ForwardMode())
        return flow.losses[-1], flow.final.weights

    masses = jnp.array([MASS, 0.5, MASS + 1e-4, MASS - 1e-4])
    along = jax.vmap(lambda mass: jax.jvp(outcome, (mass,), (jnp.ones_like(mass),)))
    (losses, weights), (slopes, _) = jit(along)(masses)
    other = run(rule=HeavyBall(jnp.asarray(0.5)), events=EVENTS, ts=TS)  # the program of `ball`
    for k, alone in enumerate((ball, other)):
        for stacked, single in zip(weights, alone.final.weights, strict=True):
            np.testing.assert_allclose(stacked[k], single, atol=1e-8)
    difference = (losses[2] - losses[3]) / 2e-4
    assert float(slopes[0]) == pytest.approx(float(difference), rel=1e-4)


@pytest.mark.slow
def test_it_does_not_creep_long_after_convergence():
    """What it remembers is then below the roundings of the force; steps are as stability allows."""
    flow = fl.gradient_flow(NETWORK, TASK, 1000.0, rule=RULE)
    assert flow.losses[-1] < 1e-12
    assert int(flow.stats["num_steps"]) < 1000


@pytest.mark.slow
def test_relu_networks_are_smoothed_for_it():
    network = fl.ReLUNetwork.init(TASK, (5,), 1e-2, key=jax.random.key(0))
    flow = fl.gradient_flow(network, TASK, 2.0, rule=RULE, solver=diffrax.Tsit5())
    assert "SmoothKinks" in flow.stats["kinks"]
    assert "no gradient flow" in flow.stats["kinks_because"]
    with pytest.raises(ValueError, match=r"`kinks` = ExactKinks\(.*is another one"):
        fl.gradient_flow(network, TASK, 2.0, rule=RULE, kinks=fl.ExactKinks())


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"rule": "heavy ball"}, r"`rule` must be a rule of training.*fl\.Gradient\(\)"),
        ({"tau": [1.0, 2.0]}, "`tau` goes with gradient flow alone"),
        ({"modified_rate": 0.1}, "`modified_rate` goes with gradient flow alone"),
        ({"solver": fl.RecycledBDF()}, "RecycledBDF is for the symmetric"),
    ],
)
def test_what_does_not_go_with_a_memory_says_so(how, text):
    with pytest.raises(ValueError, match=text):
        fl.gradient_flow(NETWORK, TASK, 1.0, **({"rule": RULE} | how))


class Fast(fl.AbstractRule):
    """Gradient flow at twice the speed, with nothing to remember."""

    def memory(self, parameters):
        return ()

    def velocity(self, t, parameters, memory, force):
        return jax.tree.map(lambda f: 2 * f, force), memory


@pytest.fixture(scope="module")
def half():
    """The gradient flow at half the time constant."""
    return fl.gradient_flow(NETWORK, TASK, 2.0, tau=0.5)


@pytest.mark.slow
def test_a_rule_without_a_memory_is_followed(half):
    fast = fl.gradient_flow(NETWORK, TASK, 2.0, rule=Fast())
    for a, b in zip(fast.final.weights, half.final.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7)


def test_a_run_says_by_which_rule_it_moved(ball, tmp_path):
    """Printed, saved, and where it is held against what is gradient flow's."""
    assert ball.stats["objective"] == "FullData, moved by HeavyBall"
    ball.save(tmp_path / "ball.npz")
    solution = fl.theory.solve(NETWORK, TASK)
    for flow in (ball, fl.load(tmp_path / "ball.npz")):
        assert re.search(r"rule +HeavyBall", str(flow))
        with pytest.raises(ValueError, match="moved by HeavyBall, and the closed form is gradient"):
            solution.error(flow)


class NoPair(HeavyBall):
    def velocity(self, t, parameters, memory, force):
        return memory


class NoArray(HeavyBall):
    def memory(self, parameters):
        return 0.0


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (NoPair(MASS), r"`velocity` a pair of trees like"),
        (NoArray(MASS), "must return arrays from `memory`"),
    ],
)
def test_a_rule_that_does_not_fit_says_how(rule, text):
    with pytest.raises(ValueError, match=text):
        fl.gradient_flow(NETWORK, TASK, 1.0, rule=rule)


def test_a_gradient_is_the_flow_to_the_bit():
    """It adds nothing to the program."""
    plain = fl.gradient_flow(NETWORK, TASK, 2.0)
    ruled = fl.gradient_flow(NETWORK, TASK, 2.0, rule=fl.Gradient())
    assert all(map(np.array_equal, plain.final.weights, ruled.final.weights))
    assert not jax.tree.leaves(eqx.filter(fl.Gradient().memory(NETWORK.parameters), eqx.is_array))
