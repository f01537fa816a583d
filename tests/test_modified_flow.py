"""The modified flow: descent with a finite step follows it to second order, events included."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin.training import objective as chunks
from flowlin.training.objective import Modified
from flowlin.training.rules import objective

RATES = np.array([0.02, 0.01, 0.005])
NONE = 1e-12  # a rate so small that the flow is the plain one, without compiling that
T1 = 4.0


def flat(parameters):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(parameters)])


def slope(errors):
    return np.polyfit(np.log(RATES), np.log(errors), 1)[0]


def classes(tree):
    return fl.Task(tree.x[:, :4] + 0.1, jax.nn.softmax(tree.y[:, :3]), name="classes")


CASES = {
    "three layers": lambda tree: (
        fl.LinearNetwork, classes(tree), (5, 4), fl.CrossEntropy(), None
    ),
    "rounded ReLU": lambda tree: (
        fl.ReLUNetwork, tree, (5,), fl.SquaredError(), fl.SmoothKinks(3.0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_descent_follows_the_modified_flow_at_second_order(tree, case):
    """Against a plain loop: slope 2 in the parameters, where the plain flow's is 1."""
    kind, task, hidden, loss, kinks = CASES[case](tree)
    network = kind.init(task, hidden, 0.2, key=jax.random.key(1))
    activation = network.rounded_activation(kinks.width if kinks else None)

    def value(parameters):
        h = task.x
        for layer, (w, b) in enumerate(zip(*parameters, strict=True)):
            h = (activation(layer - 1, h) if layer else h) @ w.T
            h = h if b is None else h + b
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


def test_event_times_are_corrected_at_second_order(tree):
    network = fl.LinearNetwork.init(tree, 6, 0.05, key=jax.random.key(0))
    modes = fl.theory.modes(tree, 1.0)
    levels = jnp.append(0.5 * modes.full_strength, 0.5)
    strengths = modes.observable(network, tree)

    @eqx.filter_jit
    def values(network):
        return jnp.append(strengths(network, tree), fl.measures.loss(network, tree)) - levels

    events = (fl.ModeHits(modes, levels[:-1]), fl.LossBelow(levels[-1]))

    def flowed(rate):
        return fl.gradient_flow(
            network, tree, 12.0, events=events, modified_rate=rate, rtol=1e-10,
            solver=diffrax.Tsit5(), dense=True,
        )  # fmt: skip

    def times(log):
        order = np.argsort(np.asarray(log.component), kind="stable")
        return np.asarray(log.time)[order], np.asarray(log.component)[order]

    def read_off(flow, rate):
        """The flow's times on the line between two steps: what that adds depends on the phase."""
        found = []
        for time, k in zip(*times(flow.events), strict=True):
            start = rate * np.floor(time / rate)
            a, b = (float(values(flow.network(t))[k]) for t in (start, start + rate))
            found.append(start + rate * a / (a - b))
        return np.array(found)

    plain, off, near, located = times(flowed(NONE).events)[0], [], [], []
    for rate in RATES:
        steps = round(12.0 / rate)
        run = fl.gradient_descent(network, tree, rate, steps, events=events, interpolate=True)
        found, flow = times(run.events)[0], flowed(rate)
        assert found.shape == plain.shape
        assert len(found) >= 4
        off.append(np.abs(found - plain))
        near.append(np.abs(found - read_off(flow, rate)))
        located.append(np.abs(found - times(flow.events)[0]))
    assert np.allclose([slope(e) for e in np.transpose(off)], 1.0, atol=0.1)
    assert np.allclose([slope(e) for e in np.transpose(near)], 2.0, atol=0.1)
    assert np.all(located[-1] < 0.02 * off[-1])


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


@pytest.mark.parametrize("chunked", [False, True])
def test_modified_gradient_is_that_of_the_modified_loss(tree, monkeypatch, chunked):
    """Sufficient statistics and chunks of samples against the definition, by reverse mode."""
    if chunked:
        monkeypatch.setattr(chunks, "BYTES", {"cpu": 1})
        monkeypatch.setattr(chunks, "ROWS", 3)
    kind = fl.ReLUNetwork if chunked else fl.LinearNetwork
    task = fl.Task(tree.x[:, :3] + 0.2, tree.y)  # more samples than inputs
    network = kind.init(task, 4, 0.3, key=jax.random.key(2))
    plain = objective(network, task, fl.SquaredError(), 0.5)
    assert type(plain).__name__ == ("FullData" if chunked else "Statistics")
    assert (chunks.pieces(8, 4, 8) > 1) == chunked
    activation = network.rounded_activation(0.5)

    def loss(parameters):
        (w1, w2), (b, _) = parameters
        outputs = activation(0, task.x @ w1.T + b) @ w2.T
        return fl.SquaredError()(outputs, task.y)

    def modified(parameters):
        gradient = jax.grad(loss)(parameters)
        return loss(parameters) + 0.3 / 4 * sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient))

    found = eqx.filter_jit(Modified(plain, jnp.asarray(0.3)).gradient)(network)
    assert np.allclose(
        flat(found), flat(jax.jit(jax.grad(modified))(network.parameters)), rtol=1e-10
    )


def test_the_loss_of_a_modified_flow_is_looked_at_inside_steps():
    """Near a maximum with curvature below -2 / eps the modified flow goes uphill: not monotone."""
    network = fl.LinearNetwork((jnp.full((1, 1), 0.1),) * 2)
    task = fl.Task(jnp.ones((1, 1)), jnp.ones((1, 1)))
    plain = objective(network, task, fl.SquaredError(), 1e-4)
    (watch,) = fl.LossBelow(0.3).watches(network, task, plain, fl.SmoothKinks())
    assert watch.monotone
    flow = fl.gradient_flow(
        network, task, 5.0, modified_rate=6.0, ts=np.linspace(0, 5, 9), solver=diffrax.Tsit5()
    )
    assert np.all(np.diff(flow.losses) > 0)
    (watch,) = fl.LossBelow(0.3).watches(
        network, task, flow.reference.run.method.objective, fl.SmoothKinks()
    )
    assert not watch.monotone
    assert flow.stats["objective"] == "FullData, modified"


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
