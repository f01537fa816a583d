"""Gates averaged over a step in deep networks and modules: order, agreement with the walk, use."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import flowlin as fl

SMALL = fl.tasks.teacher(60, (1.0, 0.5, 0.2), key=jax.random.key(2))


def averaged(network, task, t1, **options):
    return fl.gradient_flow(network, task, t1, kinks=fl.AveragedKinks(), **options)


def passed(x, weights, biases):
    """Preactivations of both hidden layers and the outputs, by NumPy."""
    (w1, w2, w3), (b1, b2) = weights, biases
    z1 = x @ w1.T + b1
    z2 = np.maximum(z1, 0) @ w2.T + b2
    return z1, z2, np.maximum(z2, 0) @ w3.T


def by_scipy(network, task, t1):
    """Weights and biases of plain integration, which goes across the kinks."""
    start = [np.asarray(a) for a in jax.tree.leaves(network.parameters)]
    cuts = np.cumsum([a.size for a in start])[:-1]
    x, y = np.asarray(task.x), np.asarray(task.y)

    def split(flat):
        parts = [p.reshape(a.shape) for p, a in zip(np.split(flat, cuts), start, strict=True)]
        return parts[:3], parts[3:]

    def velocity(_, flat):
        weights, biases = split(flat)
        z1, z2, outputs = passed(x, weights, biases)
        s3 = (y - outputs) / len(x)
        s2 = (z2 > 0) * (s3 @ weights[2])
        s1 = (z1 > 0) * (s2 @ weights[1])
        moved = [s1.T @ x, s2.T @ np.maximum(z1, 0), s3.T @ np.maximum(z2, 0), s1.sum(0), s2.sum(0)]
        return np.concatenate([m.ravel() for m in moved])

    flat = np.concatenate([a.ravel() for a in start])
    return split(solve_ivp(velocity, (0, t1), flat, "RK23", rtol=1e-7, atol=1e-9).y[:, -1])


def relative(found, known):
    """Distance of arrays, relative to the known ones."""
    one, other = (np.concatenate([np.ravel(a) for a in jax.tree.leaves(p)]) for p in (found, known))
    return np.linalg.norm(one - other) / np.linalg.norm(other)


@pytest.mark.slow
def test_it_is_the_default_on_large_tasks_and_near_plain_integration():
    task = fl.tasks.digits(1200)
    network = fl.ReLUNetwork.init(task, (5, 4), 0.1, key=jax.random.key(0))
    with pytest.warns(fl.KinksWarning, match="but by AveragedKinks.*10800 .unit, sample. pairs"):
        flow = fl.gradient_flow(network, task, 2.0, ts=jnp.linspace(0, 2.0, 21), rtol=1e-4)
    plain = by_scipy(network, task, 2.0)
    assert flow.stats["solver"] == "AveragedGraph"
    assert flow.stats["accepted_evaluations"] == 1 + 3 * flow.stats["num_accepted_steps"]
    assert "grazing_margin" not in flow.stats
    first = jax.device_get((network.weights, network.biases[:2]))
    last = jax.device_get((flow.final.weights, flow.final.biases[:2]))
    sides = [passed(np.asarray(task.x), *one)[:2] for one in (first, plain)]
    assert all(np.sum((a > 0) != (b > 0)) > 100 for a, b in zip(*sides, strict=True))
    assert relative(first, plain) > 0.05
    assert relative(last, plain) < 1e-4
    assert np.all(np.diff(flow.losses) < 0)


class Pooled(eqx.Module):
    """Filters along a line, the largest of each two, rectified before or after."""

    filters: eqx.nn.Conv1d
    readout: eqx.nn.Linear
    pool_first: bool = eqx.field(static=True)

    def __init__(self, pool_first):
        self.filters = eqx.nn.Conv1d(1, 3, 3, key=jax.random.key(0))
        self.readout = eqx.nn.Linear(9, 2, key=jax.random.key(1))
        self.pool_first = pool_first

    def __call__(self, x):
        z = self.filters(x[None])
        if self.pool_first:
            return self.readout(jax.nn.relu(jnp.max(z.reshape(3, 3, 2), axis=2)).ravel())
        return self.readout(jnp.max(jax.nn.relu(z).reshape(3, 3, 2), axis=2).ravel())


@pytest.mark.slow
def test_a_maximum_of_what_is_rectified_costs_an_order():
    """As the docstring says, and the same function with the maximum first does not pay it."""
    rng = np.random.default_rng(0)
    task = fl.Task(rng.normal(size=(150, 8)), rng.normal(size=(150, 2)))
    across = {"kinks": fl.IgnoreKinks(), "rtol": 1e-8, "solver": diffrax.Tsit5()}
    known = fl.gradient_flow(Pooled(True), task, 3.0, events=(), **across).final

    def error(pool_first):
        end = averaged(Pooled(pool_first), task, 3.0, rtol=1e-4, events=()).final
        parts = [(one.filters, one.readout) for one in (end, known)]
        return fl.distance(*parts, relative=True)

    before, after = error(True), error(False)
    assert before < 3e-5
    assert after > 2 * before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["everything", "hinge loss of a module"])
def test_it_follows_other_flows(kind):
    rng, options = np.random.default_rng(0), {}
    y = np.where(rng.normal(size=(40, 2)) > 0, 1.0, -1.0)
    task = fl.Task(rng.normal(size=(40, 4)), y, weights=rng.uniform(0.5, 2, size=40))
    network = fl.ReLUNetwork.init(
        task, (4, 3), 0.3, (True, False, True), 1.5, slope=0.1, key=jax.random.key(1)
    )
    if kind == "everything":
        options = {
            "tau": (1.0, 0.5, 2.0), "weight_decay": 0.05,
            "trainable": eqx.tree_at(
                lambda n: n.weights[1], jax.tree.map(lambda _: True, network), False
            ),
        }  # fmt: skip
    else:
        network = eqx.nn.MLP(4, 2, 4, 2, key=jax.random.key(0))
        options = {
            "loss": lambda out, y: jnp.sum(jnp.maximum(0.0, 1 - out * y)),
            "tau": lambda t: 1 + jnp.sin(t) / 2,
        }
    flow = averaged(network, task, 2.0, events=(), **options)
    options |= {"kinks": fl.IgnoreKinks(), "rtol": 1e-8, "solver": diffrax.Tsit5()}
    known = fl.gradient_flow(network, task, 2.0, events=(), **options)
    assert flow.stats["solver"] == "AveragedGraph"
    assert fl.distance(known.final, network, relative=True) > 0.05
    assert fl.distance(flow.final, known.final, relative=True) < 5e-5


@pytest.mark.filterwarnings("ignore::flowlin.KinksWarning")
def test_what_cannot_work_says_so():
    deep = fl.ReLUNetwork.init(SMALL, (3, 3), key=jax.random.key(0))
    with pytest.raises(ValueError, match="leave out `solver` = Bosh3"):
        averaged(deep, SMALL, 1.0, solver=diffrax.Bosh3())
    linear = fl.LinearNetwork.init(SMALL, 3, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"is for an fl.ReLUNetwork or a module of ReLUs, got a L"):
        averaged(linear, SMALL, 1.0, loss=lambda out, y: jnp.sum(jnp.abs(out - y)))
