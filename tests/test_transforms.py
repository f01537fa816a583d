"""Runs under jit, vmap and derivatives by c, tau, an event's level and t1.

Averaged gates, which have no derivative to speak of on few samples, are in tests/test_averaged.py;
runs over smoothed kinks go the way of the linear ones. Every other kind is differentiated by the
scale of its weights in tests/test_contracts.py.
"""

import warnings
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.zoo import jit

pytestmark = pytest.mark.slow

TASK = fl.tasks.hierarchy(levels=2)
AT = jnp.array([0.9, 1.1, 1.4, 6.0])  # c, tau, level, t1
STEP = 1e-4 * jnp.array([1.0, 1.0, 1.0, 10.0])
# The point itself, and a step to either side along each of the four.
ROWS = jnp.concatenate([AT[None], AT[None] + jnp.diag(STEP), AT[None] - jnp.diag(STEP)])
FORWARD = diffrax.ForwardMode()


class Kind(NamedTuple):
    """A kind of run, and the error of its finite differences: its own tolerance over the step."""

    network: type
    options: dict
    error: float


RELU, LINEAR = fl.ReLUNetwork, fl.LinearNetwork
KINDS = {
    "linear": Kind(LINEAR, {"rtol": 1e-10}, 1e-5),
    "exact": Kind(RELU, {"solver": diffrax.Bosh3(), "rtol": 1e-6}, 2e-2),
}


def size(network, task):
    """Of the first layer, which grows through the level."""
    del task
    return jnp.sum(network.weights[0] ** 2)


def outcome(kind, at, **options):
    """Loss and weights at the end, when the level was crossed, the end, and t*."""
    c, tau, level, t1 = at
    network = kind.network.init(TASK, 4, 0.05, key=jax.random.key(9))
    network = eqx.tree_at(lambda n: n.bias_strength, network, c)
    crossing = fl.Crossing(size, level=level, name="size")
    flow = fl.gradient_flow(
        network, TASK, t1, tau=tau, events=(crossing,), throw=False, **options, **kind.options
    )
    mine = flow.events.channel == len(flow.events.channels) - 1
    hit = jnp.min(jnp.where(mine, flow.events.time, jnp.inf))
    found = [flow.losses[-1], jnp.sum(flow.final.weights[0] ** 3), hit, flow.end]
    if "exact" in flow.stats["kinks"].lower():
        found.append(flow.linearization().open.time)
    return jnp.stack(found)


@pytest.fixture(scope="module", params=KINDS)
def grid(request):
    """A kind of run, its outcomes in all rows, and its derivatives there in forward mode."""
    kind = KINDS[request.param]

    def both(at):
        found, slopes = jax.vmap(
            lambda way: jax.jvp(
                lambda at: outcome(kind, at, adjoint=FORWARD, max_steps=4096, max_events=64),
                (at,),
                (way,),
            )
        )(jnp.eye(4))
        return found[0], slopes.T

    return kind, *jit(jax.vmap(both))(ROWS)


def test_a_batch_is_its_single_runs(grid):
    kind, values, _ = grid
    assert np.all(np.isfinite(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a maximum that stands at the end
        alone = [outcome(kind, row) for row in ROWS[:3]]
    np.testing.assert_allclose(values[:3], alone, rtol=1e-7)


def test_forward_derivatives_are_finite_differences(grid):
    kind, values, slopes = grid
    finite = ((values[1:5] - values[5:]) / (2 * STEP[:, None])).T
    assert np.all(np.max(np.abs(finite), axis=1) > 1e-2)
    np.testing.assert_allclose(slopes[0], finite, atol=kind.error * np.max(np.abs(finite)))


def test_reverse_derivatives_are_those_of_forward_mode(grid):
    kind, values, slopes = grid
    weigh = jnp.linspace(1.0, 2.0, values.shape[1])
    gradient = jit(jax.grad(lambda at: weigh @ outcome(kind, at, max_steps=4096, max_events=64)))(
        AT
    )
    # The slope of a hit is taken in the middle of its bracket, which differs by program: 5e-9.
    np.testing.assert_allclose(gradient, weigh @ slopes[0], rtol=1e-7, atol=1e-9)
