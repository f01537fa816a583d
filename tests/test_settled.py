"""Walks after convergence: they end at held sides, lose no later change, and can be carried on."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

pytestmark = pytest.mark.slow  # for their programs; `test_confirm` has the first tier's
LATE = 1e6  # of a flow whose time constants are of size one


def start(task):
    return fl.ReLUNetwork.init(task, 6, 1e-2, key=jax.random.key(1))


@pytest.fixture(scope="module")
def xor():
    return fl.tasks.offset_xor(0.5)


@pytest.fixture(scope="module")
def settled(xor):
    """A walk that has converged long before its end, with the rows in between."""
    ts = np.asarray([0.0, 20.0, 1e3, 1e5, LATE])
    return fl.gradient_flow(start(xor), xor, LATE, ts=ts, events=fl.LossBelow(1e-6))


def test_a_million_after_convergence_take_a_hundred_steps(settled, xor):
    converged = float(settled.stats["converged"])
    ts = np.asarray([0.0, 20.0, 30.0, 40.0, converged])
    walk = fl.gradient_flow(start(xor), xor, converged, ts=ts, events=fl.LossBelow(1e-6))
    assert converged < 500
    assert int(settled.stats["num_steps"]) - int(walk.stats["num_steps"]) <= 100
    assert float(walk.stats["converged"]) == np.inf
    # Until then it is the same walk, to the bit, and from there on it hardly moves.
    assert np.array_equal(settled.losses[:2], walk.losses[:2])
    same = settled.events.time[: len(walk.events)] == walk.events.time
    assert np.all(same[walk.events.time < converged])
    assert np.all(np.asarray(settled.events.time) <= converged)
    for end, there in zip(jax.tree.leaves(settled.final), jax.tree.leaves(walk.final), strict=True):
        assert np.allclose(end, there, rtol=0, atol=1e-6)


def test_it_says_so(settled):
    assert "no later event is determined" in repr(settled)
    assert settled.losses[-1] < 1e-12
    assert settled.losses.shape == (5,)


@pytest.mark.filterwarnings("error::flowlin.LinearizationWarning")
def test_t_star_is_not_said_to_move(settled):
    found = settled.linearization()
    assert found.open.time < settled.stats["converged"]


def test_it_is_kept_and_carried_on(settled, tmp_path):
    settled.save(tmp_path / "flow.npz")
    again = fl.load(tmp_path / "flow.npz")
    assert again.stats["converged"] == settled.stats["converged"]
    longer = settled.extend(2 * LATE, ts=LATE * np.linspace(1.2, 2.0, 5))
    assert longer.end == 2 * LATE
    assert longer.losses[-1] < 1e-12
    assert len(longer.events) == len(settled.events)


def test_a_walk_in_float32_settles_too(xor):
    """And one in two layers: `tests.test_resting`."""
    network = fl.ReLUNetwork.init(xor, (6,), 1e-2, key=jax.random.key(3)).astype(jnp.float32)
    flow = fl.gradient_flow(network, xor.astype(jnp.float32), 1e4)
    assert flow.stats["converged"] < 2e3
    assert int(flow.stats["num_steps"]) < 4e3


def test_what_comes_late_is_not_lost():
    """A sample of weight 1e-6 is learned long after the others: w' = 1e-6 (1 - w) at the end."""
    x = np.eye(2)
    task = fl.Task(x, np.ones((2, 1)), weights=np.asarray([1.0, 1e-6]))
    network = fl.ReLUNetwork((np.asarray([[0.5, 0.5]]), np.asarray([[1.0]])), (None, None), 0.0)
    moves = eqx.tree_at(lambda n: n.weights[1], jax.tree.map(lambda _: True, network), False)
    flow = fl.gradient_flow(network, task, 5e4, rtol=1e-4, trainable=moves)
    assert flow.stats["converged"] == np.inf
    exact = 1 - 0.5 * np.exp(-0.05)
    assert flow.final.weights[0][0, 1] == pytest.approx(exact, abs=1e-4)


def switches(flow):
    """Every pair's new sides one after another."""
    found = {}
    gates = flow.events.select("gate")
    for pair, side in zip(gates.index, np.asarray(gates.new), strict=True):
        found.setdefault(pair, []).append(int(side))
    return found


def test_slides_that_have_decayed_to_errors_switch_no_more():
    """u and C of a slide go to zero where the loss converges; a finer run has the same log.

    Seven of these twelve draws had not, with up to 1,700 switches.
    """
    same = slide = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        task = fl.Task(rng.normal(size=(4, 2)), rng.normal(size=(4, 1)))
        first, last, bias = (rng.normal(size=shape) for shape in ((4, 2), (1, 4), (4,)))
        network = fl.ReLUNetwork((0.4 * first, 0.4 * last), (0.3 * bias, np.zeros(1)))
        coarse, fine = (
            switches(fl.gradient_flow(network, task, 2e3, rtol=rtol)) for rtol in (1e-8, 1e-11)
        )
        same += coarse == fine
        slide += any(0 in sides for sides in fine.values())
    assert slide > 8
    assert same >= 11


@pytest.mark.parametrize("as_module", [False, True])
def test_so_do_those_of_several_layers(as_module):
    """Without biases: its sides and branches after t = 84 were those of errors."""
    rng = np.random.default_rng(0)
    task = fl.Task(rng.normal(size=(4, 2)), rng.normal(size=(4, 1)))
    key = jax.random.key(0)
    module = eqx.nn.MLP(2, 1, 3, 2, use_bias=False, use_final_bias=False, key=key)
    network = module if as_module else fl.ReLUNetwork.of(module)
    flow = fl.gradient_flow(network, task, 1e5)
    assert flow.losses[-1] == pytest.approx(0.262280, abs=1e-6)
    assert switches(flow) == {(1, 0, 2): [-1, 0]}
    assert not len(flow.events.select("branch"))
    # Its drive falls by the same share in every unit of time, and below the bound here.
    assert flow.stats["slides_decayed"] == pytest.approx(60, abs=3)
    assert "on a pair slides by a drive within the error" in repr(flow)


def test_a_slide_of_samples_of_little_weight_ends_in_time():
    """One unit of readout 1, w_1 held at 0 by the second sample until u has fallen to zero.

    Three samples of weight e on (w_1, w_2) alone. In the slide w_2' = e (4.1 - 1.25 w_2) / M and
    u = e (.8 - .5 w_2) / M, with M the sum of the weights: the exit is at w_2 = 1.6.
    """
    e, mass = 1e-4, 1 + 3e-4
    x = np.asarray([[0.0, 0, 1], [1, 0, 0], [1, 1, 0], [-1, 0.5, 0]])
    y = np.asarray([[1.0], [-1], [3], [2.2]])
    network = fl.ReLUNetwork((np.asarray([[0.2, 0.5, 0.5]]), np.ones((1, 1))), (None, None))
    moves = eqx.tree_at(lambda n: n.weights[1], jax.tree.map(lambda _: True, network), False)
    task = fl.Task(x, y, weights=np.asarray([1, e, e, e]))
    gates = fl.gradient_flow(network, task, 5e3, trainable=moves).events.select("gate")
    assert gates.index == [(0, 0, 1)] * 2
    start, end = np.asarray(gates.time)
    at_start = fl.gradient_flow(network, task, start, trainable=moves).final.weights[0][0, 1]
    rest = 4.1 / 1.25
    exact = start + np.log((rest - at_start) / (rest - 1.6)) * mass / (1.25 * e)
    assert end == pytest.approx(exact, rel=1e-8)


def test_slides_from_tiny_weights_end_in_time():
    """On the plateau before a mode all drives are tiny, and known to the error of what moves."""
    tree = fl.tasks.hierarchy(levels=3)
    network = fl.ReLUNetwork.init(tree, 12, 1e-24, key=jax.random.key(3))
    coarse, fine = (fl.gradient_flow(network, tree, 130.0, rtol=rtol) for rtol in (1e-6, 1e-9))
    ends = [log.time[np.asarray(log.old) == 0] for log in (coarse.events, fine.events)]
    assert len(ends[0]) == len(ends[1]) > 10
    assert np.allclose(*ends, rtol=0, atol=1e-3)
