"""The modified flow: descent with a finite step follows it to second order, events included."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import flowlin as fl
from tests.tolerances import of_flow

RATES = np.array([0.02, 0.01, 0.005])
NONE = 1e-12  # a rate so small that the flow is the plain one, without compiling that
T1 = 4.0


def flat(parameters):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(parameters)])


def slope(errors):
    return np.polyfit(np.log(RATES), np.log(errors), 1)[0]


def classes(tree):
    return fl.Task(tree.x[:, :4] + 0.1, jax.nn.softmax(tree.y[:, :3]), name="classes")


# ---- Against the definition.

SMALL = fl.tasks.hierarchy(2)


@pytest.fixture(scope="module")
def modified():
    """Flows of one program, at a rate."""
    network = fl.LinearNetwork.init(SMALL, 3, 0.2, key=jax.random.key(1))

    def run(rate):
        return fl.gradient_flow(network, SMALL, T1, modified_rate=rate, rtol=1e-10)

    run(NONE)
    return network, run


def velocity(w, rate):
    """Minus the gradient of L + rate / 4 |grad L|^2, whose Hessian is taken by a complex step."""
    x, y = np.asarray(SMALL.x), np.asarray(SMALL.y)
    (n_in, n_out), h = (x.shape[1], y.shape[1]), 3

    def gradient(w):
        w1, w2 = w[: h * n_in].reshape(h, n_in), w[h * n_in : h * (n_in + n_out)].reshape(n_out, h)
        hidden = x @ w1.T + w[h * (n_in + n_out) :]
        off = (hidden @ w2.T - y) / len(x)
        return np.concatenate(
            [np.ravel(a) for a in ((off @ w2).T @ x, off.T @ hidden)] + [w2.T @ off.sum(0)]
        )

    slope = gradient(w)
    return -slope - rate / 2 * np.imag(gradient(w + 1e-30j * slope)) / 1e-30


@pytest.mark.parametrize("rate", [NONE, 0.05, 0.4])
def test_the_modified_flow_descends_the_modified_loss(modified, rate):
    network, run = modified
    tight = {"method": "DOP853", "rtol": 1e-11, "atol": 1e-13}
    exact = solve_ivp(lambda _, w: velocity(w, rate), (0.0, T1), flat(network.parameters), **tight)
    flow = run(rate)
    np.testing.assert_allclose(flat(flow.final.parameters), exact.y[:, -1], atol=of_flow(1e-10))
    assert flow.stats["objective"].endswith(", modified")


def hessian(network):
    """Eigenvalues of the loss's Hessian, by central differences."""
    w, h = flat(network.parameters), 1e-5
    moves = [velocity(w - h * e, 0.0) - velocity(w + h * e, 0.0) for e in np.eye(len(w))]
    return np.linalg.eigvalsh(np.array(moves) / (2 * h))


def test_a_rate_past_the_edge_of_stability_warns(modified):
    """At the start, or at the end, with the number that is measured."""
    network, run = modified
    radius = np.max(np.abs(hessian(network)))
    with pytest.warns(
        fl.RateWarning, match=r"`modified_rate` = 0.6 times .* at t = 0, past"
    ) as told:
        run(0.6)
    (one,) = told
    size = float(str(one.message).split("Hessian is ")[1].split()[0])
    assert size == pytest.approx(0.6 * radius, rel=0.02)
    small = network.with_parameters(jax.tree.map(lambda a: a / 10, network.parameters))
    assert 1.2 * np.max(np.abs(hessian(small))) < 2
    with pytest.warns(fl.RateWarning, match="at the end, t = 16, past") as told:
        fl.gradient_flow(small, SMALL, 4 * T1, modified_rate=1.2, rtol=1e-10)
    assert len(told) == 1


# ---- The second tier: descent against the modified flow.


@pytest.mark.slow
def test_descent_follows_the_modified_flow_at_second_order(tree):
    """Of rounded ReLUs by the cross-entropy, against a plain loop.

    Slope 2 in the parameters, where the plain flow's is 1.
    """
    task, loss, kinks = classes(tree), fl.CrossEntropy(), fl.SmoothKinks(3.0)
    network = fl.ReLUNetwork.init(task, 5, 0.2, key=jax.random.key(1))
    activation = network.smooth_activation(kinks.width)

    def value(parameters):
        h = task.x
        for layer, (w, b) in enumerate(zip(*parameters, strict=True)):
            h = (activation(layer - 1, h) if layer else h) @ w.T
            h = h if b is None else h + b[None]
        return loss(h, task.y)

    @jax.jit
    def descended(rate, steps):
        def step(_, p):
            return jax.tree.map(lambda a, g: a - rate * g, p, jax.grad(value)(p))

        return jax.lax.fori_loop(0, steps, step, network.parameters)

    def flowed(rate):
        flow = fl.gradient_flow(
            network, task, 2 * T1, loss=loss, tau=2.0, kinks=kinks, modified_rate=rate, rtol=1e-10,
            solver=diffrax.Tsit5(),
        )  # fmt: skip
        return flat(flow.final.parameters)

    plain, off, near = flowed(NONE), [], []
    for rate in RATES:
        end = flat(descended(rate, round(T1 / rate)))
        off.append(np.linalg.norm(end - plain))
        near.append(np.linalg.norm(end - flowed(rate)))
    assert slope(off) == pytest.approx(1.0, abs=0.1)
    assert slope(near) == pytest.approx(2.0, abs=0.1)


@pytest.mark.slow
def test_event_times_are_corrected_at_second_order(tree):
    network = fl.LinearNetwork.init(tree, 6, 0.05, key=jax.random.key(0))
    modes = fl.theory.modes(tree, 1.0)
    levels = jnp.append(0.5 * modes.full_strength, 0.5)
    strengths = modes.observable(network, tree)
    ts = np.linspace(0.0, 12.0, round(12.0 / RATES[-1]) + 1)  # steps of all rates among them
    events = (fl.ModeHits(modes, levels[:-1]), fl.LossBelow(levels[-1]))

    @jax.jit
    @jax.vmap
    def values(network):
        return jnp.append(strengths(network, tree), fl.measures.loss(network, tree)) - levels

    def flowed(rate):
        return fl.gradient_flow(
            network, tree, 12.0, ts=ts, events=events, modified_rate=rate, rtol=1e-10,
            solver=diffrax.Tsit5(),
        )  # fmt: skip

    def times(log):
        order = np.argsort(np.asarray(log.component), kind="stable")
        return np.asarray(log.time)[order], np.asarray(log.component)[order]

    def read_off(flow, rate):
        """The flow's times on the line between two steps: what that adds depends on the phase."""
        found, at_steps = [], np.asarray(values(flow.networks))[:: round(rate / RATES[-1])]
        for time, k in zip(*times(flow.events), strict=True):
            step = int(time / rate)
            a, b = at_steps[step : step + 2, k]
            found.append(rate * (step + a / (a - b)))
        return np.array(found)

    plain, off, near, located = times(flowed(NONE).events)[0], [], [], []
    for rate in RATES:
        steps = round(12.0 / rate)
        run = fl.gradient_descent(network, tree, rate, steps, events=events, interpolate=True)
        found, flow = times(run.events)[0], flowed(rate)
        assert found.shape == plain.shape
        assert len(found) >= 3
        off.append(np.abs(found - plain))
        near.append(np.abs(found - read_off(flow, rate)))
        located.append(np.abs(found - times(flow.events)[0]))
    assert np.allclose([slope(e) for e in np.transpose(off)], 1.0, atol=0.1)
    assert np.allclose([slope(e) for e in np.transpose(near)], 2.0, atol=0.1)
    assert np.all(located[-1] < 0.02 * off[-1])


@pytest.mark.slow
def test_interpolated_times_lie_on_the_line_between_the_steps(tree):
    network = fl.LinearNetwork.init(tree, 6, 0.05, key=jax.random.key(0))
    events = (fl.LossBelow(1.0, terminate=True),)
    run = fl.gradient_descent(network, tree, 0.1, 70, events=events, interpolate=True, save_every=1)
    before, after = np.asarray(run.losses)[-2:]
    share = (before - 1.0) / (before - after)
    assert float(run.events.time[0]) == pytest.approx(float(run.ts[-2]) + 0.1 * share, rel=1e-12)
    assert float(run.end) == float(run.ts[-1])
    key = jax.random.key(0)
    same = fl.stochastic_gradient_descent(
        network, tree, 0.1, 70, batch_size=8, key=key, events=events, interpolate=True, save_every=1
    )
    assert float(same.events.time[0]) == pytest.approx(float(run.events.time[0]), rel=1e-9)


@pytest.mark.slow
def test_what_has_no_modified_flow_says_so(tree, tmp_path):
    network = fl.ReLUNetwork.init(tree, 4, key=jax.random.key(0))
    for kinks in (None, fl.ExactKinks(), fl.AveragedKinks(), fl.IgnoreKinks()):
        with pytest.raises(ValueError, match=r"kinks=fl.SmoothKinks\(width\)"):
            fl.gradient_flow(network, tree, 1.0, kinks=kinks, modified_rate=0.1)
    linear = fl.LinearNetwork.init(tree, 4, key=jax.random.key(0))
    with pytest.raises(ValueError, match="`modified_rate` must be finite and positive"):
        fl.gradient_flow(linear, tree, 1.0, modified_rate=-0.1)
    options = {"solver": diffrax.Tsit5(), "checkpoint": tmp_path / "run"}
    fl.gradient_flow(linear, tree, 1.0, modified_rate=0.1, **options)
    with pytest.raises(ValueError, match="another modified_rate"):
        fl.gradient_flow(linear, tree, 1.0, modified_rate=0.2, **options)
