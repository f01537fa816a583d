"""Pairs that come near their kinks and turn back: the grazing margin of walks, and touches."""

import copy
import pickle
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

FIXED_READOUT: dict[str, Any] = {"trainable": lambda leaf: leaf.shape == (1, 3)}
TURN = 0.4 ** (1 / 3)  # exp(-t) where z turns


def dipping(depth, target, still):
    r"""One unit whose z of the third sample comes to -`depth` and turns back, in closed form.

    Its readout rests at 1, and it is on for the samples (2, 0, 0) and (0, 1, 0), so that
    $w_1 = 2 - u^4$ and $w_2 = f - 1.6 u$, u falling with $e^{-t/3}$: for (1, -1, 0) $z = w_1 - w_2$
    is largest where $4 u^3 = 1.6$. The pair is off and its target is C: above zero the kink repels.
    `still` is the third weight, which rests.
    """
    final = 2.0 + 1.6 * TURN - TURN**4 + depth
    task = fl.Task([[2.0, 0, 0], [0, 1.0, 0], [1.0, -1.0, 0]], [[4.0], [final], [target]])
    network = fl.ReLUNetwork((jnp.array([[1.0, final - 1.6, still]]), jnp.ones((1, 1))))
    size = np.sqrt(2.0 * ((2 - TURN**4) ** 2 + (final - 1.6 * TURN) ** 2 + still**2))
    return network, task, size


def walk(network, task, rtol, **how: Any):
    """A walk to well beyond the turn."""
    how = FIXED_READOUT | {"kinks": fl.ExactKinks(), "solver": diffrax.Tsit5()} | how
    return fl.gradient_flow(network, task, 6.0, rtol=rtol, **how)


@pytest.mark.slow
def test_the_margin_is_that_of_the_closed_form_and_touches_are_marked(tmp_path):
    # The weight that rests is large: the margin counts by the unit's size where the step began.
    for depth in (1e-2, 1e-4):
        network, task, size = dipping(depth, 1.0, 1e3)
        flow = walk(network, task, 1e-12)
        assert len(flow.events) == 0
        np.testing.assert_allclose(flow.stats["grazing_margin"] * size, depth, rtol=1e-6)
        assert "grazing" not in repr(flow)
        assert flow.stats["undecided_touches"] == 0
    network, task, size = dipping(1e-6, 1.0, 0.0)
    near = walk(network, task, 1e-6)
    np.testing.assert_allclose(near.stats["grazing_margin"] * size, 1e-6, rtol=0.7)
    assert "a pair missed a kink that repels by" in repr(near)

    # The other way it crosses, once and for all: nothing turns back and nothing is a touch.
    crossing = walk(*dipping(-1e-4, 1.0, 1e3)[:2], 1e-12)
    assert np.asarray(crossing.events.new).tolist() == [1]
    assert crossing.stats["grazing_margin"] == np.inf
    assert not np.any(crossing.events.is_touch)

    # A kink that attracts: the pair slides for a moment, and a kink like that has no margin.
    touching, deeper = (walk(*dipping(-z, -1.0, 0.0)[:2], 1e-6) for z in (3e-7, 1e-2))
    for flow, touches in ((touching, 1), (deeper, 0)):
        events = flow.events
        assert np.asarray(events.new).tolist() == [0, -1]
        assert events.is_touch.tolist() == [bool(touches)] * 2
        assert events.is_determined.tolist() == [not touches] * 2
        assert flow.stats["undecided_touches"] == touches
        assert flow.stats["grazing_margin"] == np.inf
    assert "1 time a pair switched there and back within the error" in repr(touching)
    assert "touches" not in repr(deeper)
    assert walk(*dipping(1e-2, -1.0, 0.0)[:2], 1e-6).stats["grazing_margin"] == np.inf

    # They have no say in t*, and the side after them is known.
    assert float(deeper.linearization().closed.time) == deeper.events.time[0]
    found = touching.linearization()
    assert float(found.closed.time) == 0
    assert float(found.closed.determined_until) == np.inf
    assert np.array_equal(touching.events.sides(6.0), touching.events.sides(0.0))

    # What was saved, copied and selected says the same.
    touching.save(tmp_path / "flow.npz")
    for same in (
        fl.load(tmp_path / "flow.npz"),
        pickle.loads(pickle.dumps(touching)),
        copy.deepcopy(touching),
    ):
        assert same.events.is_touch.tolist() == [True, True]
        assert repr(same).count("there and back") == 1
    assert len(touching.events.where(~touching.events.is_touch)) == 0


@pytest.mark.slow
def test_a_second_run_decides_about_touches():
    flow = walk(*dipping(-3e-7, -1.0, 0.0)[:2], 1e-6, events=fl.LossBelow(0.5))
    assert flow.events.shift.shape == flow.events.time.shape
    assert flow.events.select("gate").is_touch.tolist() == [True, True]
    assert not np.any(flow.events.select("loss").is_touch)
    confirmed = flow.confirm()
    assert confirmed.stats["undecided_touches"] == 0
    with pytest.raises(ValueError, match="not known under jit"):
        jax.jit(lambda events: events.is_touch)(flow.events)


@pytest.mark.slow
def test_margins_under_vmap_and_in_parts():
    depths = (1e-2, 1e-4)
    starts = [dipping(depth, 1.0, 10.0)[:2] for depth in depths]
    alone = [walk(*start, 1e-8).stats["grazing_margin"] for start in starts]
    both = jax.tree.map(lambda *a: jnp.stack(a), *starts)
    found = jax.vmap(lambda network, task: walk(network, task, 1e-8))(*both)
    np.testing.assert_allclose(found.stats["grazing_margin"], alone, rtol=1e-9)
    assert "undecided_touches" not in found.stats
    # The turn is at t = 0.916: before it there is no margin, and one after it keeps that.
    network, task = starts[1]
    how = FIXED_READOUT | {"kinks": fl.ExactKinks(), "solver": diffrax.Tsit5(), "rtol": 1e-8}
    part = fl.gradient_flow(network, task, 0.2, **how)
    assert part.stats["grazing_margin"] == np.inf
    whole = part.extend(6.0)
    np.testing.assert_allclose(whole.stats["grazing_margin"], alone[1], rtol=1e-2)
    assert whole.extend(7.0).stats["grazing_margin"] == whole.stats["grazing_margin"]


def nearest_turn(flow, task):
    """The margin from many saved networks: pairs with C > 0 whose |z| is least in between."""
    (*weights, readout), (*biases, _) = jax.tree.map(np.asarray, flow.networks.parameters)
    zs, h = [], [np.asarray(task.x)[None]]
    for w, b in zip(weights, biases, strict=True):
        zs.append(h[-1] @ np.swapaxes(w, 1, 2) + b[:, None])
        h.append(np.maximum(zs[-1], 0))
    sent = (np.asarray(task.y)[None] - h[-1] @ np.swapaxes(readout, 1, 2)) / task.samples
    found = np.inf
    for k in reversed(range(len(zs))):
        c = sent @ [*weights, readout][k + 1]
        sent = c * (zs[k] > 0)
        size = np.sqrt(np.sum(weights[k] ** 2, 2) + biases[k] ** 2)
        ratio = np.abs(zs[k]) / (size[:, None] * np.sqrt(1 + np.sum(h[k] ** 2, 2))[:, :, None])
        side = zs[k] > 0
        turns = (ratio[1:-1] < ratio[:-2]) & (ratio[1:-1] < ratio[2:]) & (c[1:-1] > 0)
        turns &= (side[1:-1] == side[:-2]) & (side[1:-1] == side[2:]) & (ratio[1:-1] > 1e-9)
        found = min(found, np.min(ratio[1:-1][turns], initial=np.inf))
    return found


@pytest.mark.slow
def test_the_margin_is_that_of_many_saved_networks():
    """Of two hidden layers; with one it is that of the closed form above."""
    keys = jax.random.split(jax.random.key(5))
    x, y = (jax.random.normal(key, (8, n)) for key, n in zip(keys, (3, 2), strict=True))
    task, many, ts = fl.Task(x, y), 0, np.linspace(0, 6.0, 4001)
    for seed in range(4):
        network = fl.ReLUNetwork.init(task, (6, 5), 0.3, key=jax.random.key(seed))
        flow = fl.gradient_flow(network, task, 6.0, ts=ts, kinks=fl.ExactKinks(slots=8))
        expected = nearest_turn(flow, task)
        margin = float(flow.stats["grazing_margin"])
        many += expected < np.inf
        assert margin == pytest.approx(expected, rel=0.02)
    assert many >= 2
