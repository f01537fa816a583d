"""Exact walks through the kinks of a user's own loss: hinge, L1, and others with a maximum."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import flowlin as fl
from tests.tolerances import ROUNDING, of_flow

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")
RTOL, END = 1e-9, 12.0


def l1(output, target):
    return jnp.sum(jnp.abs(target - output))


def hinge(output, target):
    return jnp.sum(jax.nn.relu(1 - target * output))


def chosen(output, target):
    """The absolute value again, by a choice that may be a jump for all that its program shows."""
    return jnp.sum(jnp.where(output > target, output - target, target - output))


class Slope(eqx.Module):
    """One weight: f = w x."""

    w: jax.Array

    def __call__(self, x):
        return self.w * x


def slope(w, dtype=jnp.float64):
    return Slope(jnp.full(1, w, dtype))


ONE = fl.Task(np.array([[2.0]]), np.array([[1.0]]))  # |1 - 2 w|: dw/dt = 2 up to w = 1/2
POINTS = np.array([[1.0], [2.0], [4.0]])


def on_points(weights):
    return fl.Task(np.ones((3, 1)), POINTS, weights=weights)


def walk(model, task, t1, loss=l1, **options):
    return fl.gradient_flow(model, task, t1, loss=loss, **{"rtol": RTOL, **options})


STARTS = [0.0, 1e-20, 0.25, 2.0]
TS = np.array([0.0, 0.1, 0.2, 0.5, 1.0])  # as many in all runs of one weight, which are one program


@pytest.fixture(scope="module")
def slopes():
    return {start: walk(slope(start), ONE, 1.0, ts=TS) for start in STARTS}


@pytest.mark.parametrize("start", STARTS)
def test_one_weight_goes_to_its_kink_at_constant_speed_and_stays(slopes, start):
    flow = slopes[start]
    arrives = abs(0.5 - start) / 2
    np.testing.assert_allclose(flow.losses, 4 * np.maximum(arrives - TS, 0), atol=of_flow(RTOL))
    assert float(flow.final.w[0]) == pytest.approx(0.5, rel=ROUNDING)
    assert flow.stats["kinks"] == "ExactKinks()"
    assert "abs of loss (1)" in flow.stats["kinks_because"]
    log = flow.events.select("gate")
    np.testing.assert_allclose(log.time, [arrives], rtol=of_flow(RTOL))
    assert list(log.new) == [0]
    assert log.place == [("loss", 0, 0)]
    assert float(flow.losses[-1]) < ROUNDING


@pytest.mark.slow
def test_it_stays_where_it_starts_at_the_kink_and_for_ever():
    flow = walk(slope(0.5), ONE, 1.0, ts=TS)
    assert float(flow.final.w[0]) == 0.5
    assert len(flow.events) == 0
    assert flow.events.sides(0.0, 0).tolist() == [[0]]
    zero = walk(slope(0.0), fl.Task(ONE.x, 0 * ONE.y), 1.0, ts=TS)  # no error is small beside it
    assert float(zero.final.w[0]) == 0
    assert int(zero.stats["num_steps"]) < 20
    late = walk(slope(0.0), ONE, 1e6, ts=1e6 * TS)
    assert float(late.final.w[0]) == pytest.approx(0.5, rel=1e-14)
    assert int(late.stats["num_steps"]) < 100


def among_points(task, t1, start=0.0, decay=0.0, **options):
    """With decay in all of them, so that they are one program."""
    return walk(slope(start), task, t1, weight_decay=decay, **options)


@pytest.mark.slow
def test_weight_decay_pulls_it_out_where_it_is_the_stronger():
    """Of dw/dt = 1 - lambda w up to 1, and 1/3 - lambda w beyond it.

    1 / lambda below 1 is where it rests, and the kink at 1 where lambda is between 1/3 and 1.
    """
    task = on_points([1.0, 1.0, 1.0])
    for decay, rests in ((0.5, 1.0), (8.0, 0.125)):
        for start in (0.0, 1.0):
            flow = among_points(task, 10.0, start, decay)
            assert float(flow.final.w[0]) == pytest.approx(rests, rel=of_flow(RTOL))
            if (decay, start) == (0.5, 0.0):
                np.testing.assert_allclose(flow.events.time, 2 * np.log(2), rtol=of_flow(RTOL))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "times", "rests"),
    [
        ([1.0, 1.0, 1.0], [1.0, 4.0], 2.0),  # speeds 1, 1/3
        ([1.0, 1.0, 5.0], [1.0, 2.4, 7.0 + 1 / 15], 4.0),  # 1, 5/7, 3/7
        ([0.0, 3.0, 1.0], [1.0, 2.0], 2.0),  # one that does not count, and its kink does nothing
    ],
)
def test_several_samples_go_to_their_weighted_median(weights, times, rests):
    flow = among_points(on_points(weights), 10.0)
    assert float(flow.final.w[0]) == pytest.approx(rests, rel=of_flow(RTOL))
    log = flow.events.select("gate")
    np.testing.assert_allclose(log.time, times, rtol=of_flow(RTOL))
    assert list(log.new) == [-1] * (len(times) - 1) + [0]
    assert [place[0] for place in log.place] == ["loss"] * len(times)


@pytest.mark.slow
def test_equal_samples_share_a_kink():
    """At w = 1 two of three are pinned as one; their kinks are one, and so is their slide."""
    task = fl.Task(np.ones((3, 1)), POINTS[[0, 0, 2]], weights=np.ones(3))
    flow = among_points(task, 10.0)
    assert float(flow.final.w[0]) == pytest.approx(1.0, rel=of_flow(RTOL))
    assert [row[2] for row in np.asarray(flow.events.index).tolist()] == [0, 1]
    assert list(flow.events.new) == [0, 0]


@pytest.mark.slow
def test_float32():
    flow = walk(slope(0.0, jnp.float32), on_points([1.0, 1.0, 1.0]), 10.0, rtol=1e-5)
    assert flow.final.w.dtype == jnp.float32
    assert float(flow.final.w[0]) == pytest.approx(2.0, rel=1e-5)
    assert list(flow.events.new) == [-1, 0]
    # The forces of an L1 loss do not fall: what rounding leaves of them must not move a pair.
    late = walk(slope(0.0, jnp.float32), on_points([1.0, 1.0, 1.0]), 1e6, rtol=1e-5)
    assert float(late.final.w[0]) == pytest.approx(2.0, rel=1e-5)
    assert list(late.events.new) == [-1, 0]


@pytest.mark.slow
def test_constants_of_kinks_are_told_apart_beside_large_inputs():
    """Those of 1 - x w, 2 - x w and 4 - x w: at w of size one they differ by less than rounding."""
    task = fl.Task(np.full((3, 1), 1e15), POINTS, weights=np.ones(3))
    flow = among_points(task, 1e-29)
    assert 1e15 * float(flow.final.w[0]) == pytest.approx(2.0, rel=of_flow(RTOL))
    assert list(flow.events.new) == [-1, 0]


# ---- A network of ReLUs with hinge loss: kinks of both meet.


def classes(seed):
    rng = np.random.default_rng(seed)
    return fl.Task(rng.normal(size=(6, 2)), rng.choice([-1.0, 1.0], size=(6, 1)))


def perceptron(seed):
    return eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(seed))


@pytest.fixture(scope="module")
def walked():
    model, task = perceptron(3), classes(3)
    return model, task, walk(model, task, END, hinge, ts=np.linspace(0, END, 25))


def apart(a, b):
    """Distance of two modules' arrays."""
    pairs = zip(*(jax.tree.leaves(eqx.filter(m, eqx.is_array)) for m in (a, b)), strict=True)
    return float(np.sqrt(sum(np.sum((np.asarray(x) - np.asarray(y)) ** 2) for x, y in pairs)))


@pytest.mark.slow
def test_an_mlp_with_hinge_loss_walks_to_the_end(walked):
    _, _, flow = walked
    assert [site.place for site in flow.model.kinks.sites] == ["layers[0]", "loss"]
    assert float(flow.end) == END
    log = flow.events.select("gate")
    assert {place[0] for place in log.place} == {"layers[0]", "loss"}
    slides = np.asarray(log.new) == 0
    assert any(place[0] == "loss" for place, slid in zip(log.place, slides, strict=True) if slid)
    assert np.all(np.diff(flow.losses) < 1e-14)


@pytest.mark.slow
def test_the_residual_of_a_pair_that_slides_is_pinned(walked):
    _, task, flow = walked
    sides = np.asarray(flow.events.sides(END, 1))[:, 0]
    z = 1 - np.asarray(task.y * jax.vmap(flow.final)(task.x))[:, 0]
    assert np.any(sides == 0)
    assert np.max(np.abs(z[sides == 0])) < 1e-14
    assert np.all(z[sides == 1] > 0)
    assert np.all(z[sides == -1] < 0)


@pytest.mark.slow
def test_a_hidden_unit_conserves_its_difference_of_squares(walked):
    """|w|^2 + b^2 - a^2 of each unit, whatever the loss: ReLU is homogeneous."""
    model, _, flow = walked

    def differences(m):
        inner, outer = m.layers
        return np.sum(inner.weight**2, axis=1) + inner.bias**2 - np.sum(outer.weight**2, axis=0)

    np.testing.assert_allclose(differences(flow.final), differences(model), atol=of_flow(RTOL))


@pytest.mark.slow
def test_the_kinks_of_the_loss_are_no_hidden_layer(walked):
    _, _, flow = walked
    assert flow.linearization(layer=0).open_counts.units == 4
    with pytest.raises(ValueError, match=r"`layer` = 1 does not exist; the network has 1 hidden"):
        flow.linearization(layer=1)
    assert "layer 1" not in repr(flow)
    with pytest.raises(ValueError, match="all kinks are the loss's, of Slope: abs of loss"):
        among_points(on_points([1.0, 1.0, 1.0]), 10.0).linearization()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_descent_comes_to_such_walks_at_first_order(seed):
    model, task = perceptron(seed), classes(seed)
    flow: Any = walk(model, task, END, hinge, ts=np.linspace(0, END, 25))
    rates = 4e-3, 1e-4
    far, near = (
        apart(fl.gradient_descent(model, task, rate, t1=END, loss=hinge).final, flow.final)
        for rate in rates
    )
    assert near < 1e-3
    assert np.log(far / near) / np.log(rates[0] / rates[1]) == pytest.approx(1.0, abs=0.25)


def two_units(first, second):
    """An MLP of two units without biases and with these weights."""
    model = eqx.nn.MLP(2, 1, 2, 1, use_bias=False, use_final_bias=False, key=jax.random.key(0))
    weights = [jnp.asarray(first), jnp.asarray(second)]
    return eqx.tree_at(lambda m: [one.weight for one in m.layers], model, weights)


@pytest.mark.slow
def test_a_readout_of_zeros_begins_at_the_kinks_of_targets_that_are_zero():
    rng = np.random.default_rng(0)
    model = two_units(rng.normal(size=(2, 2)), np.zeros((1, 2)))
    task = fl.Task(rng.normal(size=(4, 2)), np.eye(4, 1))
    flow = walk(model, task, 4.0)
    assert np.any(np.asarray(flow.events.sides(0.0, 1)) == 0)
    near = fl.gradient_descent(model, task, 1e-4, t1=4.0, loss=l1).final
    assert apart(near, flow.final) < 2e-3


@pytest.mark.slow
def test_no_walk_from_whole_numbers_is_silently_elsewhere():
    """Ties of all kinds: weights, inputs and targets are whole numbers."""
    walks = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        first, second, x, y = (
            rng.integers(-2, 3, size=shape).astype(float)
            for shape in ((2, 2), (1, 2), (4, 2), (4, 1))
        )
        model, task = two_units(first, second), fl.Task(x, y)
        flow = walk(model, task, 4.0, throw=False)
        ended = float(flow.end) == 4.0
        assert ended or flow.result == fl.RESULTS.sides_unsolved
        walks += ended
        if ended and not len(flow.events.select("branch")):
            near = fl.gradient_descent(model, task, 2e-4, t1=4.0, loss=l1).final
            assert apart(near, flow.final) < 1e-2, seed
    assert walks > 35


@pytest.mark.slow
def test_files_keep_the_places(walked, tmp_path):
    model, _, flow = walked
    flow.save(tmp_path / "flow.npz")
    kept = fl.load(tmp_path / "flow.npz", like=model)
    assert kept.events.place == flow.events.place
    models: Any = kept.model, flow.model
    assert models[0].kinks == models[1].kinks
    assert np.array_equal(kept.events.sides(END, 1), flow.events.sides(END, 1))


# ---- Of networks of flowlin's own.

LINEAR = fl.LinearNetwork((np.full((1, 1), 0.5), np.full((1, 1), 0.5)))


@pytest.mark.slow
def test_a_linear_network_walks_to_the_kink_of_its_loss_by_the_closed_form():
    """|1 - 2 p| of the balanced product p: dp/dt = 4 p up to p = 1/2."""
    flow = walk(LINEAR, ONE, 1.0, ts=TS)
    arrives = np.log(2) / 4
    known = np.maximum(1 - np.exp(4 * TS) / 2, 0)
    np.testing.assert_allclose(flow.losses, known, atol=of_flow(RTOL))
    assert flow.stats["kinks"] == "ExactKinks()"
    assert "(abs of loss (1)), which this run walks through as well" in flow.stats["kinks_because"]
    (gate,) = flow.events.table()
    assert gate["time"] == pytest.approx(arrives, rel=of_flow(RTOL))
    assert (gate["index"], gate["new"]) == ((1, 0, 0), 0)
    assert flow.events.place == [("loss", 0, 0)]
    assert flow.events.sides(1.0, 1).tolist() == [[0]]
    assert isinstance(flow.final, fl.LinearNetwork)
    with pytest.raises(ValueError, match="none that are known, since the network has no kinks"):
        flow.linearization()


@pytest.mark.slow
def test_layers_with_time_constants_of_their_own_walk_by_the_closed_form():
    """w_1' = 2 w_2 / tau_1 and w_2' = 2 w_1 / tau_2 up to w_1 w_2 = 1/2, from 1/2 both."""
    a, b = 2.0, 1.0  # 2 / tau
    flow = walk(LINEAR, ONE, 1.0, tau=2 / np.array([a, b]))

    def product(t):
        c, s = np.cosh(np.sqrt(a * b) * t), np.sinh(np.sqrt(a * b) * t)
        return (c + np.sqrt(a / b) * s) * (c + np.sqrt(b / a) * s) / 4

    arrives = scipy.optimize.brentq(lambda t: product(t) - 0.5, 0.0, 1.0, xtol=1e-14)
    assert float(flow.events.time[0]) == pytest.approx(arrives, rel=of_flow(RTOL))
    assert float(flow.losses[-1]) < ROUNDING


@pytest.mark.slow
def test_a_network_walks_as_the_module_of_its_weights(walked, tmp_path):
    model, task, flow = walked
    own = walk(fl.ReLUNetwork.of(model), task, END, hinge, weight_decay=np.zeros(2))
    assert [row["index"] for row in own.events.table()] == [
        row["index"] for row in flow.events.table()
    ]
    np.testing.assert_allclose(own.events.time, flow.events.time, atol=of_flow(RTOL))
    for layer, w in zip(flow.final.layers, own.final.weights, strict=True):
        np.testing.assert_allclose(layer.weight, w, atol=of_flow(RTOL))
    assert {place[0] for place in own.events.place} == {"weights[0]", "loss"}
    own.save(tmp_path / "own.npz")
    assert fl.load(tmp_path / "own.npz").events.place == own.events.place


@pytest.mark.slow
def test_descent_comes_to_a_leaky_network_with_decay_and_a_bias_strength():
    task = classes(3)
    network = fl.ReLUNetwork.init(
        task, 4, 0.5, (True, True), bias_strength=0.7, slope=0.2, key=jax.random.key(3)
    )
    how: Any = {"loss": hinge, "weight_decay": np.array([0.1, 0.0])}
    flow = walk(network, task, 4.0, **how)
    assert np.any(np.asarray(flow.events.new) == 0)
    rates = 4e-3, 1e-4
    far, near = (
        fl.distance(fl.gradient_descent(network, task, rate, t1=4.0, **how).final, flow.final)
        for rate in rates
    )
    assert near < 1e-3
    assert np.log(far / near) / np.log(rates[0] / rates[1]) == pytest.approx(1.0, abs=0.25)


# ---- Where no walk knows them.


@pytest.mark.slow
@pytest.mark.filterwarnings("error::flowlin.KinksWarning")
def test_smooth_kinks_round_those_of_the_loss_too():
    """To within the width of z = 1 - 2 w, at whose middle the rounded |z| has its bottom."""
    flow = walk(LINEAR, ONE, 3.0, kinks=fl.SmoothKinks(1e-3), rtol=1e-6)
    assert flow.stats["kinks"] == "SmoothKinks(width=0.001)"
    assert float(flow.final.outputs(ONE.x)[0, 0]) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_run_that_does_not_walk_says_what_becomes_of_them():
    across = "the loss has kinks (abs of loss (1)), which this run goes across"
    flow = walk(LINEAR, ONE, 0.1, kinks=fl.IgnoreKinks())
    assert across in flow.stats["kinks_because"]
    walk(LINEAR, ONE, 0.1, loss=lambda output, target: jnp.sum((output - target) ** 4))
    gated = fl.GatedLinearNetwork(LINEAR.weights, gates=[np.ones(1)])
    said = r"`loss` = l1 has kinks \(abs of loss \(1\)\): a run of a GatedLinearNetwork by Ignore"
    with pytest.warns(fl.KinksWarning, match=said) as told:
        eqx.filter_eval_shape(lambda n: walk(n, ONE, 0.1).losses, gated)
    assert "ExactKinks" not in str(told[0].message)
    with pytest.raises(ValueError, match=r"`modified_rate` asks for .* or of a loss with kinks"):
        walk(LINEAR, ONE, 0.1, modified_rate=0.1)


def test_a_loss_that_is_not_known_is_named_where_its_steps_shrink():
    flow = walk(slope(0.0), ONE, 0.1, loss=chosen)
    assert flow.stats["kinks"] == "none"
    because = "kinks of the loss are not known: `loss` = chosen: `where` in loss on what is trained"
    assert because in flow.stats["kinks_because"]
    with pytest.raises(fl.RunError, match=f"`max_steps` = 300.*{because}.*jnp.maximum"):
        walk(slope(0.0), ONE, 1.0, loss=chosen, max_steps=300)


@pytest.mark.slow
def test_a_root_in_the_loss_is_no_smooth_operation():
    """|z| as sqrt(z**2) was told as smooth, so that its flow crept at the kink for no reason."""
    because = r"`loss` = rooted: `sqrt` in loss has a kink at zero, .* write \|z\| as jnp.abs"
    for rooted in (
        lambda output, target: jnp.sum(jnp.sqrt((output - target) ** 2)),
        lambda output, target: jnp.linalg.norm(output - target),
    ):
        rooted.__name__ = "rooted"
        flow = walk(slope(0.0), ONE, 0.1, loss=rooted)
        assert re.search(because, flow.stats["kinks_because"])
    with pytest.raises(fl.RunError, match=f"shrank to nothing at t = 0.25 .*{because}"):
        walk(slope(0.0), ONE, 1.0, loss=rooted)
    smooth = walk(slope(0.0), ONE, 1.0, loss=lambda a, b: jnp.sqrt(jnp.sum((a - b) ** 2) + 1e-2))
    assert "not known" not in smooth.stats["kinks_because"]


def test_a_loss_compares_with_an_array_that_it_holds():
    """As `jnp.nan_to_num` and masks do: an array has no hash."""
    holes = np.array([True, False, False])

    def known(output, target):
        return jnp.sum(
            jnp.where(jnp.asarray(holes) != jnp.array([1, 1, 1], bool), output - target, 0) ** 2
        )

    task = fl.Task(np.ones((2, 2)), np.ones((2, 3)))
    network = fl.LinearNetwork.init(task, 2, 0.1, key=jax.random.key(0))
    assert float(fl.gradient_flow(network, task, 0.1, loss=known).end) == pytest.approx(0.1)
