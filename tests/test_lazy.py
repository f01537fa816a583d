"""The flow of a linearised model in closed form: exact where a model is linear in its weights."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.flatten_util import ravel_pytree

import flowlin as fl

jax.config.update("jax_enable_x64", True)

lazy = fl.theory.lazy
TREE = fl.tasks.hierarchy(2)
TIMES = np.array([0.0, 0.3, 2.0, 15.0])
KEY = jax.random.key(0)
TSIT = diffrax.Tsit5()  # by name: no other one is tried, which is another program


def mlp(seed=0):
    """A smooth module of the tree's shape."""
    made = eqx.nn.MLP(4, 7, 5, 1, activation=jnp.tanh, key=jax.random.key(seed))
    return jax.tree.map(lambda a: a.astype(float) if eqx.is_inexact_array(a) else a, made)


def linearised(network, spec, task, factors, t):
    """Weights and outputs at time t by the exponential of the whole matrix of the linear flow."""
    moves, rest = eqx.partition(network, spec)
    w0, back = ravel_pytree(moves)

    def outputs(w):
        return jnp.ravel(jax.vmap(eqx.combine(back(w), rest))(task.x))

    f0, j = np.asarray(outputs(w0)), np.asarray(jax.jacrev(outputs)(w0))
    rates = np.repeat(np.asarray(factors), task.outputs)
    pull = -j.T * rates[None]
    whole = np.zeros((len(w0) + 1,) * 2)
    whole[:-1, :-1], whole[:-1, -1] = pull @ j, pull @ (f0 - np.ravel(task.y))
    step = scipy.linalg.expm(whole * t)[:-1, -1]
    return np.asarray(w0) + step, (f0 + j @ step).reshape(task.y.shape)


def readout(leaf):
    return np.shape(leaf) == (7, 5)


HIDDEN = fl.ReLUNetwork.init(TREE, 5, 0.3, key=KEY)
WEIGHTED = fl.Task(TREE.x + 0.1, TREE.y, weights=[1.0, 2.0, 0.0, 0.5])
CASES = {
    "one layer": (
        fl.LinearNetwork((np.full((7, 4), 0.1),), (np.full(7, 0.2),), 2.0),
        lambda leaf: np.ndim(leaf) > 0,
        TREE,
        fl.SquaredError(),
    ),
    "random features": (HIDDEN, readout, WEIGHTED, fl.SquaredError()),
    "smooth": (mlp(), eqx.is_inexact_array, TREE, fl.SquaredError("sum")),
}


DEAR = [pytest.param(name, marks=pytest.mark.slow) for name in ("one layer", "smooth")]


@pytest.fixture(scope="module", params=["random features", *DEAR])
def solved(request):
    """A case, its limit, and outputs, networks and losses of that."""
    case = network, spec, task, loss = CASES[request.param]
    found = lazy(network, task, 2.0, loss=loss, trainable=spec)
    return case, found, found.outputs(TIMES), found.network(TIMES), found.loss(TIMES)


def test_against_the_exponential_of_the_whole_linear_flow(solved):
    (network, spec, task, loss), found, outputs, networks, losses = solved
    counted = np.ones(4) if task.weights is None else np.asarray(task.weights)
    for k, t in enumerate(TIMES):
        w, y = linearised(network, spec, task, loss.factor_per_sample(task.mass) * counted, t / 2.0)
        own = jax.tree.map(lambda a, k=k: np.asarray(a[k]), eqx.filter(networks, eqx.is_array))
        leaves = jax.tree.leaves(eqx.filter(own, spec))
        np.testing.assert_allclose(np.concatenate([np.ravel(a) for a in leaves]), w, atol=1e-12)
        np.testing.assert_allclose(outputs[k], y, atol=1e-12)
        np.testing.assert_allclose(
            losses[k], loss(jnp.asarray(y), task.y, task.weights), atol=1e-12
        )
    some = found.outputs(1.0, task.x[:2])
    np.testing.assert_allclose(some, found.outputs(1.0)[:2], atol=1e-14)
    np.testing.assert_allclose(found.loss(TIMES, task), losses, atol=1e-12)


@pytest.mark.slow
def test_the_flow_itself_where_outputs_are_linear_in_the_weights():
    """A gated linear network whose readout rests, and the closed form of one layer."""
    gated = HIDDEN.frozen(TREE)
    rest = jax.tree.map(lambda _: False, gated)
    first = eqx.tree_at(lambda n: (n.weights[0], n.biases[0]), rest, (True, True))
    ts = TIMES[:3]
    flow = fl.gradient_flow(gated, TREE, 2.0, ts=ts, rtol=1e-12, trainable=first, solver=TSIT)
    found = lazy(gated, TREE, trainable=first)
    error = found.error(flow)
    assert float(error[-1]) < 1e-10
    assert float(jnp.max(error)) < 1e-9  # inside of steps, where the order is lower
    assert float(jnp.max(jax.vmap(fl.distance)(found.network(ts), flow.networks))) < 1e-9
    assert found.certificate.exact
    single = fl.LinearNetwork((np.full((7, 4), 0.1),))
    closed, found = fl.theory.solve(single, WEIGHTED), lazy(single, WEIGHTED)
    ends = np.append(TIMES, np.inf)
    np.testing.assert_allclose(found.network(ends).weights[0], closed.product(ends), atol=1e-13)


@pytest.mark.slow
def test_flows_become_lazy_as_one_over_alpha():
    ts, errors, weights = np.array([0.0, 1e-3, 2e-3, 3.0]), [], []
    for alpha in (8.0, 64.0):
        found = lazy(mlp(), TREE, 0.5, alpha=alpha)
        how = {"ts": ts, "rtol": 1e-11, "solver": TSIT}
        flow = fl.gradient_flow(found.scaled, TREE, 3.0, tau=alpha**2 / 2, **how)
        errors.append(found.error(flow))
        moved = found.network(ts)
        weights.append(eqx.filter_vmap(fl.distance)(moved, flow.networks.network))
    assert 7.5 < errors[0][-1] / errors[1][-1] < 8.5
    assert 55 < weights[0][-1] / weights[1][-1] < 75  # of motion that goes as 1 / alpha itself
    # At small times both move alike to first order.
    assert 3.9 < weights[0][2] / weights[0][1] < 4.1
    with pytest.raises(ValueError, match=r"`flow` has tau = 2048.0, .* that of tau = 4096"):
        lazy(mlp(), TREE, alpha=64.0).error(flow)
    with pytest.raises(ValueError, match=r"`flow` is of a ScaledModel.*, and this is the limit of"):
        lazy(mlp(), TREE).error(flow)


@pytest.mark.slow
def test_a_certificate_says_how_far_the_linear_model_is():
    """Zero where outputs are linear in the weights; else as 1 / alpha, like the flow's distance."""
    near, far = (lazy(mlp(), TREE, alpha=alpha).certificate for alpha in (64.0, 8.0))
    assert not far.exact
    for name in ("outputs", "kernel"):
        assert 7.0 < getattr(far, name) / getattr(near, name) < 9.0
    values = np.asarray(lazy(mlp(), TREE).eigenvalues)
    values = values[values > 0]
    assert (far.rank, far.condition) == (len(values), pytest.approx(values[0] / values[-1]))
    # Against the model itself, at the weights that the lazy flow ends at.
    found = lazy(mlp(), TREE)
    end, linear, first = found.network(np.inf), found.outputs(np.inf), found.outputs(0.0)
    off = np.linalg.norm(jax.vmap(end)(TREE.x) - linear) / np.linalg.norm(linear - first)
    assert found.certificate.outputs == pytest.approx(float(off), rel=1e-9)
    kernel = lazy(end, TREE).kernel - found.kernel
    off = np.linalg.norm(kernel) / np.linalg.norm(found.kernel)
    assert found.certificate.kernel == pytest.approx(float(off), rel=1e-9)
    with pytest.raises(ValueError, match="outside of `jit`"):
        jax.jit(lambda a: lazy(mlp(), TREE, alpha=a).certificate.kernel)(1.0)


@pytest.mark.slow
def test_what_weights_cannot_change_moves_none():
    """Samples twice, with other targets: the least squares, of the least motion."""
    x = np.concatenate([np.asarray(TREE.x)] * 2)
    y = np.concatenate([np.asarray(TREE.y), 0.5 * np.asarray(TREE.y)])
    start, task = mlp(), fl.Task(x, y)
    found = lazy(start, task)
    rank = int(np.sum(found.eigenvalues > 0))
    assert rank == int(np.sum(lazy(start, TREE).eigenvalues > 0)) < found.kernel.shape[0]
    w0, back = ravel_pytree(eqx.filter(start, eqx.is_inexact_array))
    rest = eqx.filter(start, eqx.is_inexact_array, inverse=True)

    def outputs(w):
        return jnp.ravel(jax.vmap(eqx.combine(back(w), rest))(task.x))

    f0, j = outputs(w0), jax.jacrev(outputs)(w0)
    np.testing.assert_allclose(found.kernel, j @ j.T, atol=1e-13)
    least = np.linalg.lstsq(j, np.ravel(y) - f0, rcond=1e-12)[0]
    for t in (1e6, np.inf):
        ravelled = ravel_pytree(eqx.filter(found.network(t), eqx.is_inexact_array))[0]
        np.testing.assert_allclose(ravelled - w0, least, atol=1e-8)
    left = np.sum((f0 + j @ least - np.ravel(y)) ** 2) / (2 * len(x))
    assert float(found.loss(np.inf)) == pytest.approx(float(left), abs=1e-12)
    assert "rank" in repr(found)


def test_messages(without_type_checks):
    network = fl.LinearNetwork((np.full((7, 4), 0.1),))
    other: Any = fl.CrossEntropy()
    for refused, words in (
        (lambda: lazy(network, TREE, loss=other), "`loss` must be fl.SquaredError()"),
        (lambda: lazy(network, TREE, alpha=0.0), "`alpha` must be finite and positive, got 0.0"),
        (lambda: lazy(network, fl.tasks.xor()), "`network` maps 4 inputs to 7 outputs, but"),
        (lambda: lazy(network, TREE).outputs(-1.0), "`t` must be zero or positive"),
        (lambda: lazy(network, TREE).outputs(1.0, TREE.y), r"`x` must be of shape \(P, 4\), one"),
        (lambda: lazy(network, TREE).outputs(1.0, TREE.x[0]), "`x` must be an array .P, N_in., on"),
        (lambda: lazy(HIDDEN.frozen(TREE), TREE, alpha=2.0).scaled, "gates that belong to samp"),
    ):
        with pytest.raises(ValueError, match=words):
            refused()
