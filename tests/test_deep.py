"""The exact walk through networks with several hidden layers."""

import functools
import itertools
import warnings
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import flowlin as fl
from flowlin.engine.kinks import unfed
from flowlin.engine.kinks.blow_up import LATE, Outcome, descend_from
from flowlin.engine.kinks.deep_flow import DeepFlow
from flowlin.engine.kinks.deep_switching import DeepSwitching
from flowlin.engine.kinks.one_layer import OneLayerFlow
from flowlin.engine.kinks.one_layer_switching import OneLayerSwitching
from flowlin.engine.kinks.starts import pairs_that_start_either_way
from tests.test_walk import STARTS_AT_KINK, descended, gaussian, start_at_kink
from tests.test_walk import exact as walk_exactly
from tests.tolerances import ROUNDING
from tests.zoo import deep_walk, distance, jit, times

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

TREE, MEAN = fl.tasks.hierarchy(levels=3), fl.SquaredError()
END = 20.0
# With room for 32 pairs that slide, which is one size of the system that they solve; 64 are two.
exact = functools.partial(walk_exactly, slots=8)


def start(task, hidden, seed, **options):
    return fl.ReLUNetwork.init(task, hidden, key=jax.random.key(seed), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slope", "tau"), [(0.2, ((2.0, 0.5), (None, None))), (0.0, ((None, 3.0), 2.0))]
)
def test_with_one_hidden_layer_it_is_the_walk_unit_by_unit(slope, tau):
    task = gaussian()
    network = start(task, 32, 0, variance=0.3, slope=slope)
    # Three pairs of every unit at their kinks.
    (hidden, readout), (bias, _) = network.parameters
    rows = jnp.concatenate([jnp.ones((20, 1)), task.x], axis=1)[:3]
    full = jnp.concatenate([bias[:, None], hidden], axis=1)
    full = full - full @ rows.T @ jnp.linalg.solve(rows @ rows.T, rows)
    network = network.with_parameters(((full[:, 1:], readout), (full[:, 0], None)))
    tau = jax.tree.map(jnp.asarray, tau)
    loss = fl.SquaredError()
    one = OneLayerSwitching(OneLayerFlow(network, task, loss, tau), 4, "lax")
    all_ = DeepSwitching(DeepFlow(network, task, loss, tau), 100)
    at = all_.flow.select_moving(network.parameters)
    modes: list[Any] = [eqx.filter_jit(rule.start_sides)(at) for rule in (one, all_)]
    assert all(not np.any(m.failure) for m in modes)
    assert np.array_equal(modes[0].codes, modes[1].codes)
    assert np.array_equal(modes[0].rests, modes[1].rests)
    # Where the biases alone move, a unit slides on one kink at most.
    alone = jax.tree.leaves(tau)[0] == 3.0
    assert np.sum(modes[0].codes == 0) > (1 if alone else 3)

    @eqx.filter_jit
    def parts(flow, sides):
        held = flow.fix_sides(sides)
        return flow(None, at, held), flow.margins(at, held), flow.side_distances(at, held)

    found = [parts(rule.flow, m) for rule, m in zip((one, all_), modes, strict=True)]
    for a, b in zip(*(jax.tree.leaves(some[:2]) for some in found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    on_side = np.asarray(modes[0].codes) != 0
    for _, margins, near in found:
        np.testing.assert_allclose(near[on_side], margins[0][on_side], rtol=1e-12)


@eqx.filter_jit
def started(rule, parameters):
    """Sides and velocity at a start, and which pairs there could slide."""
    sides, flow = rule.start_sides(parameters), rule.flow
    near = flow.is_at_kink(parameters)
    tied = flow.fix_sides(rule._layer_sides(jnp.where(near, 0, sides.codes)))
    slidable = near & (flow.drive_bounds(parameters, tied)[0] < 0)
    return sides, flow(None, parameters, flow.fix_sides(sides)), slidable


@eqx.filter_jit
def starts_either_way(kind, network, task):
    flow = kind(network, task, fl.SquaredError(), jnp.ones(()))
    return pairs_that_start_either_way(flow, network.parameters)


@pytest.mark.slow
@pytest.mark.parametrize(("push", "target", "told"), STARTS_AT_KINK)
def test_from_which_kinks_two_flows_start_in_several_layers(push, target, told):
    """Below a layer that adds one to what it is sent; of one layer, by the rule of several."""
    task, weights = start_at_kink(push, target)
    one = fl.ReLUNetwork(weights, (None, None))
    two = fl.ReLUNetwork((*weights, np.ones((1, 1))), (None, np.ones(1), None))
    above = fl.Task(task.x, task.y + 1)
    assert starts_either_way(DeepFlow, one, task).tolist() == [[told, False]]
    assert starts_either_way(DeepFlow, two, above).tolist() == [[told, False], [False, False]]


# By the input of the other sample: sides of both units, velocity of (w1, b1, w2, b2, a).
BY_HAND = {
    # Both slide: w_2 = -1 and w_1 = -3/4 > C_1(w_2) = -1.
    0.5: ([[0, 1], [0, 1]], [-0.25, 0.25, 0.5, 0.0, 0.5]),
    # The lower pair is pushed on, beyond C_1, and pushes the upper one: w_2 = -4/3.
    2.0: ([[1, 1], [0, 1]], [2 / 3, -1 / 3, 1.0, -1 / 3, 1.0]),
}


@pytest.fixture(scope="module")
def pairs_of_units():
    """Sides and velocity at the start of one unit a layer, by the input of the other sample.

    Sample 0 is at both kinks, sample 1 on in both and pushing with signal 1. w_2 + 1 moves z_2 and
    2 w_1 + 1 + x_1 moves z_1, both of sample 0. Gates alone would have C_1 = 0 there, which no
    slide allows.
    """
    found = {}
    for other in BY_HAND:
        weight, h = np.sign(other - 1), abs(other - 1)
        task = fl.Task([[1.0], [other]], [[-3.0], [h + 2.0]])
        network = fl.ReLUNetwork(
            (np.array([[weight]]), np.ones((1, 1)), np.ones((1, 1))),
            (np.array([-weight]), np.zeros(1), None),
        )
        rule = DeepSwitching(DeepFlow(network, task, MEAN, jnp.asarray(1.0)), 4)
        sides, ((w1, w2, a), (b1, b2, _)), _ = started(rule, network.parameters)
        velocity = np.concatenate([np.ravel(v) for v in (w1, b1, w2, b2, a)])
        found[other] = sides.codes.tolist(), velocity
    return found


@pytest.mark.slow
@pytest.mark.parametrize("other", BY_HAND)
def test_two_units_by_hand(pairs_of_units, other):
    (found, velocity), (sides, known) = pairs_of_units[other], BY_HAND[other]
    assert found == sides
    h = abs(other - 1)
    scale = np.array([1.0, 1.0, h, 1.0, h])
    expected = np.array(known) * np.where(scale == h, h / known[2], 1.0)
    np.testing.assert_allclose(velocity, expected, atol=ROUNDING)


def pushed(network, task, sides, signals):
    """Velocity with these gates, sliding pairs sending back `signals`; C and dz/dt, by NumPy.

    Sides and signals may have an axis of choices before those of unit and sample.
    """
    (w1, w2, a), (b1, b2, _) = jax.tree.map(np.asarray, network.parameters)
    x, (on1, on2) = np.asarray(task.x).T, (s > 0 for s in sides)
    z1 = w1 @ x + b1[:, None]
    h1 = on1 * z1
    h2 = on2 * (w2 @ h1 + b2[:, None])
    h1_turned, h2_turned = np.swapaxes(h1, -1, -2), np.swapaxes(h2, -1, -2)
    error = (np.asarray(task.y).T - a @ h2) / task.samples
    c2 = a.T @ error
    s2 = np.where(sides[1] == 0, signals[1], on2 * c2)
    c1 = w2.T @ s2
    s1 = np.where(sides[0] == 0, signals[0], on1 * c1)
    d1 = (s1 @ x.T) @ x + s1.sum(-1)[..., None]
    d2 = (s2 @ h1_turned) @ h1 + s2.sum(-1)[..., None] + w2 @ (on1 * d1)
    velocity = [s1 @ x.T, s2 @ h1_turned, error @ h2_turned, s1.sum(-1), s2.sum(-1)]
    return velocity, [c1, c2], [d1, d2]


def enumerated(network, task, sides, pairs):
    """Velocities of all choices of the pairs' sides that satisfy the rule's conditions.

    Of pairs that slide on one kink only the sum of what they send back is told: equal shares do.
    """
    choices = np.array(list(itertools.product((-1, 0, 1), repeat=len(pairs))))
    sides = [np.repeat(s[None], len(choices), axis=0) for s in sides]
    for (layer, *at), chosen in zip(pairs, choices.T, strict=True):
        sides[layer][:, *at] = chosen

    def outcome(values):
        """Of all choices, with what each of the pairs sends back where it slides."""
        signals = [np.zeros(s.shape) for s in sides]
        for (layer, *at), value in zip(pairs, values.T, strict=True):
            signals[layer][:, *at] = value
        velocity, *rest = pushed(network, task, sides, signals)
        read = [np.stack([q[k][:, u, i] for k, u, i in pairs], axis=1) for q in rest]
        return np.concatenate([v.reshape(len(v), -1) for v in velocity], axis=1), *read

    # dz/dt of the sliding pairs is linear in what they send back.
    nothing = np.zeros(choices.shape)
    base = outcome(nothing)[2]
    columns = [outcome(nothing + one)[2] - base for one in np.eye(len(pairs))]
    signals = nothing.copy()
    for choice, still in enumerate(choices == 0):
        if np.any(still):
            matrix = np.array([column[choice] for column in columns])[np.ix_(still, still)]
            signals[choice, still] = np.linalg.lstsq(matrix.T, -base[choice, still])[0]
    velocity, c, rates = outcome(signals)
    held = (signals <= 1e-9) & (signals >= c - 1e-9) & (np.abs(rates) < 1e-9)
    fine = np.where(choices == 0, held, rates * choices >= -1e-9)
    return list(velocity[np.all(fine, axis=1)])


def starts(trials):
    """Networks with six pairs at kinks, one of every unit, and what the walk makes of them."""
    rng, found = np.random.default_rng(0), []
    for _ in range(trials):
        # Sample 0 pulls down, the others push up.
        x, w1, w2 = (rng.normal(size=shape) for shape in ((2, 3), (3, 2), (3, 3)))
        a, y = rng.exponential(size=(2, 3)), np.array([-4.0, 2.0, 2.0]) + rng.normal(size=(2, 3))
        one, two = (np.where(rng.uniform(size=3) < 0.7, 0, rng.integers(1, 3, 3)) for _ in "12")
        z1 = w1 @ x - (w1 @ x)[range(3), one][:, None]
        z2 = (w2 + 0.5) @ np.maximum(z1, 0)
        biases = (z1 - w1 @ x)[:, 0], -z2[range(3), two], None
        network, task = fl.ReLUNetwork((w1, w2 + 0.5, a), biases), fl.Task(x.T, y.T)
        rule = DeepSwitching(DeepFlow(network, task, MEAN, jnp.asarray(1.0)), 18)
        found.append((network, task, *started(rule, network.parameters)))
    return found


@pytest.fixture(scope="module")
def few_starts():
    return starts(6)


def agrees_with_enumeration(starts):
    """By other formulas, all 729 choices and more; how many slide in both layers at once."""
    slid = 0
    for trial, (network, task, found, velocity, slidable) in enumerate(starts):
        assert found.failure == 0
        codes = np.asarray(found.codes).reshape(2, 3, 3)
        slides = codes == 0
        slid += np.any(slides[0] & slides[1].any(axis=0))
        # Those that repel are on the side that they are on.
        pairs = [tuple(p) for p in np.argwhere(np.asarray(slidable).reshape(2, 3, 3))]
        known = enumerated(network, task, list(codes), pairs)
        velocity = np.concatenate([np.ravel(v) for v in jax.tree.leaves(velocity)])
        assert min(np.abs(velocity - v).max() for v in known) < 1e-9, trial
    return slid


def test_the_rule_against_enumeration(few_starts):
    assert agrees_with_enumeration(few_starts) > 0


@pytest.mark.slow
def test_the_rule_against_enumeration_at_many_starts():
    assert agrees_with_enumeration(starts(25)) > 2


@pytest.fixture(scope="module")
def walked():
    """A walk in which samples slide in two layers for most of the time, with its branches."""
    return deep_walk(END, 1e-10)


def sides_at(flow, t, layers=(16, 16), samples=8):
    """Sides (H, P) of all layers at a time."""
    return np.concatenate([np.asarray(flow.events.sides(t, k)).T for k in range(len(layers))])


@pytest.mark.slow
def test_it_slides_in_two_layers_and_keeps_what_a_flow_keeps(walked):
    network, flow = walked
    assert flow.result == fl.RESULTS.successful
    assert np.max(np.diff(flow.losses)) <= 0
    twice = 0
    for t in np.asarray(flow.ts):
        slides = sides_at(flow, t).reshape(2, 16, 8) == 0
        twice += np.any(slides[0].any(axis=0) & slides[1].any(axis=0))
    assert twice > 75
    # |w|^2 + b^2 - |a|^2 of every unit, lower and upper.
    for layer in (0, 1):
        before, after = (
            np.sum(np.square(n.weights[layer]), 1)
            + np.square(n.biases[layer])
            - np.sum(np.square(n.weights[layer + 1]), 0)
            for n in (network, flow.final)
        )
        assert np.abs(after - before).max() < 1e-12


@pytest.mark.slow
def test_the_velocity_is_steepest_descent_of_the_loss_itself(walked):
    r"""At saved points, by nothing but values of the loss.

    -v is a regular subgradient, $L'(\theta; \delta) \ge -v \cdot \delta$ for every direction, and
    $L'(\theta; v) = -|v|^2$; with any other subgradient g, $-|g| |v| \le g \cdot v \le L'(v)$, so
    that v has the least norm. Both fail for the velocities of neighbouring sides.
    """
    _, flow = walked
    field = DeepFlow(flow.final, TREE, MEAN, jnp.asarray(1.0))
    rule = DeepSwitching(field, 64)
    flat, shaped = jax.flatten_util.ravel_pytree(flow.final.parameters)
    directions = jax.random.normal(jax.random.key(0), (400, flat.size))
    directions = directions / jnp.linalg.norm(directions, axis=1, keepdims=True)

    @eqx.filter_jit
    def gaps(parameters, codes):
        frozen = field.fix_sides(rule._layer_sides(codes))
        velocity, _ = jax.flatten_util.ravel_pytree(field(None, parameters, frozen))
        here, _ = jax.flatten_util.ravel_pytree(parameters)

        def slope(direction):
            step = 1e-6 / jnp.linalg.norm(direction)

            def loss(at):
                network = flow.final.with_parameters(shaped(at))
                return MEAN(jax.vmap(network)(TREE.x), TREE.y)

            return (loss(here + step * direction) - loss(here)) / step

        above = jax.vmap(slope)(directions) + directions @ velocity
        return jnp.min(above), slope(velocity) / (velocity @ velocity) + 1

    told = 0
    for k in (40, 80, 120):
        parameters = jax.tree.map(lambda a, k=k: a[k], flow.networks.parameters)
        codes = sides_at(flow, flow.ts[k]).astype(np.int8)
        lowest, energy = gaps(parameters, codes)
        assert lowest > -1e-6
        assert abs(energy) < 1e-3
        for pair in np.argwhere(codes == 0)[:8]:
            for side in (-1, 1):
                other = codes.copy()
                other[tuple(pair)] = side
                lowest, energy = gaps(parameters, other)
                told += bool(lowest < -1e-5 or abs(energy) > 1e-3)
    assert told > 30  # of 48; a side says little where C is small


@pytest.mark.slow
def test_log_activity_and_linearization_per_layer(walked):
    _, flow = walked
    log = flow.events.select("gate")
    codes = np.asarray(flow.events.initial[: 32 * 8]).copy()
    for component, old, new in zip(
        *map(np.asarray, (log.component, log.old, log.new)), strict=True
    ):
        assert codes[component] == old != new
        codes[component] = new
    assert {index[0] for index in log.index} == {0, 1}
    with pytest.raises(ValueError, match="`name` = 'gate': 2 arrays of such events"):
        flow.events.first("gate")
    with pytest.raises(ValueError, match="`layer` = 2 does not exist"):
        flow.linearization(layer=2)
    assert np.array_equal(codes.reshape(32, 8), sides_at(flow, END))
    z = np.concatenate([np.asarray(z).T for z in flow.final.preactivations(TREE.x)])
    assert np.abs(z.ravel()[codes == 0]).max() < 1e-9
    assert np.all(z.ravel()[codes > 0] > -1e-9)
    assert np.all(z.ravel()[codes < 0] < 1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for layer in (0, 1):
            rows = codes.reshape(2, 16, 8)[layer]
            line = flow.linearization(layer=layer)
            assert 0 <= line.open.time <= END
            assert line.open.fraction <= line.closed.fraction
            activity = line.activity(END)
            assert np.allclose(sum(activity), 1.0)
            assert float(activity.off) == np.mean(np.all(rows <= 0, axis=1))


@pytest.mark.slow
def test_a_checkpointed_walk_goes_on_to_the_bit(walked, tmp_path):
    network, flow = walked
    options = {"ts": times(END), "checkpoint": tmp_path / "state.npz"}
    part = exact(network, TREE, END, 1e-10, None, max_steps=40, throw=False, **options)
    assert part.result != fl.RESULTS.successful
    assert 0 < len(part.events) < len(flow.events)
    whole = exact(network, TREE, END, 1e-10, None, **options)
    for found in ("final", "networks", "losses", "events"):
        a, b = (jax.tree.leaves(getattr(one, found)) for one in (whole, flow))
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True)), found
    assert whole.stats["branch_certificate"] == flow.stats["branch_certificate"]
    flow.save(tmp_path / "deep.npz")
    loaded = fl.load(tmp_path / "deep.npz")
    assert loaded.events.reason == flow.events.reason
    assert np.array_equal(loaded.events.select("branch").time, flow.events.select("branch").time)
    assert loaded.stats["branch_certificate"] == flow.stats["branch_certificate"]


@pytest.mark.slow
def test_a_batch_is_its_single_walks(walked):
    """Over c; within a batch the slides of one run differ in number from those of another."""
    network, _ = walked

    def run(c, **room):
        at = eqx.tree_at(lambda n: n.bias_strength, network, c)
        return exact(at, TREE, END, 1e-10, None, ts=times(END), **room)

    some = jnp.array([0.5, 2.0])
    batch = jit(jax.vmap(lambda c: run(c, throw=False, max_events=1024)))(some)
    for k, c in enumerate(some):
        one, mine = run(c), jax.tree.map(lambda a, k=k: a[k], batch)
        count = len(one.events)
        assert int(mine.events.count) == count
        assert np.array_equal(mine.events.component[:count], one.events.component)
        np.testing.assert_allclose(mine.events.time[:count], one.events.time, rtol=1e-7)
        assert distance(mine.final, one.final) < 1e-8
    assert batch.events.count[0] != batch.events.count[1]


@pytest.mark.slow
def test_sliding_pairs_are_held_whatever_slots_there_are(walked):
    """As few slots as hold those that slide are solved for: of one size, of two, and of three."""
    network, flow = walked
    parameters = flow.final.parameters
    codes = jnp.asarray(sides_at(flow, END))
    sliding = int(jnp.sum(codes == 0))
    assert sliding > 8
    field = DeepFlow(network, TREE, MEAN, jnp.asarray(1.0))
    found = []
    for slots in (sliding, 5 * sliding, codes.size):
        frozen = field.fix_sides(DeepSwitching(field, slots)._layer_sides(codes))
        found.append(eqx.filter_jit(field.margins)(parameters, frozen))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-9, atol=1e-13)


@pytest.mark.slow
def test_slots_of_all_layers_grow(walked):
    """A walk that comes to need more room, see `tests.test_slots`, is that with room at once.

    It grows once, since every size is a program.
    """
    network, flow = walked
    few, ts = fl.ExactKinks(slots=4), times(END)
    grown = fl.gradient_flow(network, TREE, END, kinks=few, rtol=1e-10, ts=ts)
    assert (grown.stats["slots"], flow.stats["slots"]) == (8, 8)
    assert np.array_equal(grown.events.component, flow.events.component)
    assert np.array_equal(grown.events.new, flow.events.new)
    np.testing.assert_allclose(grown.events.time, flow.events.time, rtol=1e-9)
    np.testing.assert_allclose(grown.losses, flow.losses, rtol=1e-9)
    assert grown.stats["branch_certificate"] == pytest.approx(flow.stats["branch_certificate"])


@pytest.mark.slow
def test_branches_are_told(walked):
    _, flow = walked
    branches = flow.events.select("branch")
    assert len(branches) >= 1
    assert flow.stats["branch_certificate"] > 0
    assert all("leaves its slide to on" in why for why in branches.reason)
    assert not any(flow.events.select("gate").reason)
    for row, place in zip(branches.table(), branches.place, strict=True):
        layer, unit, sample = row["index"]
        assert place == (f"weights[{layer}]", unit, sample)
        assert layer == 0
        before, after = (
            flow.events.sides(t, layer)[sample, unit]
            for t in (np.nextafter(row["time"], 0), row["time"])
        )
        assert (before, after) == (0, 1)


@pytest.fixture(scope="module")
def parting():
    """A flow that is not unique: one lower unit, two upper ones; sample 0 slides in both layers.

    The second upper unit, on, sends the first layer A = 0.31 > 0, the first, sliding, w_2 < 0: in
    the mean C_1 = A + w_2 rises to w_1, and the lower pair leaves to on at t = 0.0051. Gates that
    are on together reach down to p (A - 3.37) with p = w_2 / -3.37, below w_1: descent may stay.
    """
    push, pull, error, weight, readout, bias = 1.286, -3.372, 1.233, 0.254, 0.489, 0.89
    network = fl.ReLUNetwork(
        (np.array([[-1.0]]), np.array([[1.0], [weight]]), np.diag([1.0, readout])),
        (np.ones(1), np.array([0.0, bias]), None),
    )
    below = np.array([2 * pull, readout * bias + 2 * error / readout])
    above = np.array([0.5 + 2 * push, readout * (bias + 0.5 * weight)])
    task = fl.Task(np.array([[1.0], [0.5]]), np.stack([below, above]))
    return network, task, exact(network, task, 0.3, 1e-10, ts=np.linspace(0, 0.3, 31))


@pytest.mark.slow
def test_where_the_flow_is_not_unique_the_walk_goes_where_smooth_gates_go(parting):
    network, task, flow = parting
    (branch,) = flow.events.select("branch").table()
    assert branch["index"] == (0, 0, 0)
    assert branch["time"] == pytest.approx(0.00510, abs=1e-5)
    assert flow.stats["branch_certificate"] == pytest.approx(0.31, abs=0.02)
    widths = (1e-3, 1e-4)
    options = {"solver": diffrax.Tsit5(), "rtol": 1e-7}
    smooth = [
        fl.gradient_flow(network, task, 0.3, kinks=fl.SmoothKinks(w), **options) for w in widths
    ]
    errors = [distance(one.final, flow.final) for one in smooth]
    assert errors[0] > 5 * errors[1]
    assert errors[1] < 1e-4


@pytest.mark.slow
def test_there_descent_may_stay_but_follows_from_past_the_exit(parting):
    network, task, flow = parting
    rates = (1e-3, 1e-5)
    stays = [
        distance(fl.gradient_descent(network, task, rate, t1=0.3).final, flow.final)
        for rate in rates
    ]
    past = jax.tree.map(lambda a: a[4], flow.networks)  # t = 0.04
    follows = [
        distance(fl.gradient_descent(past, task, rate, t1=0.26).final, flow.final) for rate in rates
    ]
    assert min(stays) > 1e-3
    assert follows[0] > 30 * follows[1]
    assert follows[1] < 2e-5


def converges(network, task, t1, final, rates=(1e-3, 1e-5)):
    errors = [distance(descended(network, task, MEAN, r, round(t1 / r)), final) for r in rates]
    slope = np.diff(np.log(errors)) / np.diff(np.log(rates))
    return float(slope[0]), errors[-1]


@pytest.mark.slow
def test_descent_converges_to_the_walk(walked):
    network, flow = walked
    k = 75
    there = jax.tree.map(lambda a: a[k], flow.networks)
    slope, error = converges(network, TREE, float(flow.ts[k]), there, (1e-3, 1e-4))
    assert slope == pytest.approx(1.0, abs=0.05)
    assert error < 3e-5


@pytest.mark.slow
def test_descent_converges_to_deeper_walks():
    task = gaussian()
    network = start(task, (16, 16, 16), 0, variance=0.1, bias=(True,) * 4, slope=0.1)
    flow = exact(network, task, 2.0, 1e-10)
    slope, error = converges(network, task, 2.0, flow.final)
    assert slope == pytest.approx(1.0, abs=0.05)
    assert error < 5e-6


def replayed(network, log, t1):
    """Parameters at t1 by NumPy and SciPy, from the times and sides in the log alone.

    The velocity is minus the gradient at the gates, less its projection on the gradients of the
    sliding pairs' z.
    """
    flat, shaped = jax.flatten_util.ravel_pytree(network.parameters)
    x, y = np.asarray(TREE.x).T, np.asarray(TREE.y).T
    sizes = [np.shape(w) for w in network.weights]
    cuts = np.cumsum([np.prod(s) for s in sizes])
    codes = np.asarray(log.initial)[: 32 * 8].reshape(2, 16, 8).copy()

    def velocity(_, state, on, spans):
        w1, w2, a = (p.reshape(s) for p, s in zip(np.split(state, cuts)[:3], sizes, strict=True))
        b1, b2 = state[cuts[-1] :].reshape(2, 16)
        h1 = on[0] * (w1 @ x + b1[:, None])
        h2 = on[1] * (w2 @ h1 + b2[:, None])
        error = (y - a @ h2) / TREE.samples
        s2 = on[1] * (a.T @ error)
        s1 = on[0] * (w2.T @ s2)
        parts = [s1 @ x.T, s2 @ h1.T, error @ h2.T, s1.sum(1), s2.sum(1)]
        free = np.concatenate([p.ravel() for p in parts])
        rows = []
        for layer, unit, sample in spans:
            one, two = np.zeros(16), np.zeros(16)
            (two if layer else one)[unit] = 1.0
            one = one + on[0][:, sample] * (w2.T @ two)
            parts = [np.outer(one, x[:, sample]), np.outer(two, h1[:, sample]), 0 * a, one, two]
            rows.append(np.concatenate([p.ravel() for p in parts]))
        if not rows:
            return free
        basis, values, _ = np.linalg.svd(np.array(rows).T, full_matrices=False)
        basis = basis[:, values > 1e-7 * values[0]]
        return free - basis @ (basis.T @ free)

    state, gate = np.asarray(flat), log.select("gate")
    early = np.asarray(gate.time) < t1
    moments = np.append(np.asarray(gate.time)[early], t1)
    changes = zip(np.asarray(gate.component), np.asarray(gate.new), strict=True)
    for since, until in itertools.pairwise(np.append(0.0, moments)):
        if until > since:
            args = ((codes > 0).astype(float), np.argwhere(codes == 0))
            state = scipy.integrate.solve_ivp(
                velocity, (since, until), state, "DOP853", rtol=1e-10, atol=1e-12, args=args
            ).y[:, -1]
        for component, new in itertools.islice(changes, 1):
            codes.flat[component] = new
    return shaped(jnp.asarray(state))


@pytest.mark.slow
def test_the_log_is_the_trajectory(walked):
    network, flow = walked
    k = 75
    final = jax.tree.map(lambda a: a[k], flow.networks.parameters)
    found = replayed(network, flow.events, float(flow.ts[k]))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(final), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


@pytest.mark.slow
def test_derivatives_through_slides_in_two_layers():
    """Of event times and final weights by a turn of the weights and by c, in forward mode."""
    task = fl.tasks.hierarchy(levels=2)
    base = start(task, (6, 6), 6, variance=5e-2)
    keys = jax.random.split(jax.random.key(11), 3)
    turn = [0.03 * jax.random.normal(k, w.shape) for k, w in zip(keys, base.weights, strict=True)]

    def run(at, **options):
        weights = tuple(w + at[0] * d for w, d in zip(base.weights, turn, strict=True))
        network = fl.ReLUNetwork(weights, base.biases, at[1])
        options = {"throw": False, "max_events": 64, "max_steps": 512} | options
        options = {"kinks": fl.ExactKinks(), "solver": diffrax.Tsit5()} | options
        flow = fl.gradient_flow(network, task, 12.0, rtol=1e-11, **options)
        final = jnp.concatenate([w.ravel() for w in flow.final.weights])
        return flow.events.time, final, flow.events.component, flow.events.new

    @jit
    def forward(at, way):
        return jax.jvp(lambda at: run(at, adjoint=diffrax.ForwardMode()), (at,), (way,))

    at, step = jnp.asarray([0.0, 1.0]), 1e-5
    (time, _, component, _), _ = forward(at, jnp.eye(2)[0])
    there = np.isfinite(time)
    assert there.sum() > 20
    for way in jnp.eye(2):
        _, (slope_time, slope_final, *_) = forward(at, way)
        near = [forward(at + k * step * way, way)[0] for k in (-2, -1, 1, 2)]
        assert all(np.array_equal(one[2], component) for one in near)
        weigh = np.array([1.0, -8.0, 8.0, -1.0]) / (12 * step)
        finite = [sum(w * one[k] for w, one in zip(weigh, near, strict=True)) for k in (0, 1)]
        off = np.abs(slope_time[there] / finite[0][there] - 1)  # pyright: ignore
        assert np.median(off) < 3e-9
        assert np.max(off) < 1e-5
        assert np.linalg.norm(slope_final - finite[1]) < 1e-8 * np.linalg.norm(finite[1])


@pytest.mark.slow
def test_the_velocity_of_sliding_pairs_has_a_transpose(walked):
    """In reverse mode a walk of two layers is that of one, but for the velocity."""
    _, flow = walked
    field = DeepFlow(flow.final, TREE, MEAN, jnp.asarray(1.0))
    codes = sides_at(flow, END).astype(np.int8)
    assert np.sum(codes == 0) > 8
    flat, shaped = jax.flatten_util.ravel_pytree(flow.final.parameters)

    def velocity(at):
        frozen = field.fix_sides(DeepSwitching(field, 64)._layer_sides(jnp.asarray(codes)))
        return jax.flatten_util.ravel_pytree(field(None, shaped(at), frozen))[0]

    along, weight = jax.random.normal(jax.random.key(0), (2, flat.size))
    _, forward = jax.jit(lambda at: jax.jvp(velocity, (at,), (along,)))(flat)
    backward = jax.jit(jax.grad(lambda at: weight @ velocity(at)))(flat)
    np.testing.assert_allclose(weight @ forward, backward @ along, rtol=1e-9)


@pytest.mark.slow
def test_float32(walked):
    network, flow = walked
    narrow, task = jax.tree.map(lambda a: a.astype(jnp.float32), (network, TREE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # once a process, of float32
        found = fl.gradient_flow(narrow, task, END, kinks=fl.ExactKinks(slots=8))
    assert found.result == fl.RESULTS.successful
    assert distance(found.final, flow.final) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "t1", "at", "turns"),
    [
        (31, 8.0, 6.983, {(0, 0, 10): 1, (0, 1, 10): 1, (1, 1, 10): 0}),
        (15, 16.5, 15.566, {(0, 2, 3): 1, (0, 4, 3): 1, (1, 4, 3): 0}),
    ],
)
def test_without_biases_two_units_rise_together(seed, t1, at, turns):
    """They leave a layer that sent nothing, one above sliding between them.

    In the first run each by itself would leave later, one of them at 7.368; in the second one of
    them only comes to its kink.
    """
    task = gaussian(12, 4)
    network = start(task, (6, 6), seed, variance=0.2, bias=False)
    flow = exact(network, task, t1, rtol=1e-6)
    log = flow.events.select("gate")
    there = np.abs(np.asarray(log.time) - at) < 1e-3  # only one event is as near
    found = {i: int(n) for i, n, hit in zip(log.index, log.new, there, strict=True) if hit}
    assert {i: found.get(i) for i in turns} == turns
    off = []
    for rate in (1e-3, 1e-4):
        descent = fl.gradient_descent(network, task, rate, round(t1 / rate))
        off.append(float(distance(descent.final, flow.final)))
    assert off[0] < 1e-3
    assert off[1] < 0.15 * off[0]


def test_two_units_rise_together_where_the_local_loss_falls():
    """Against the local loss along all directions: none falls while `alone` and `joint` hold."""
    rng = np.random.default_rng(0)
    samples, units, above, outputs = 400, 3, 4, 2
    weights = [rng.normal(size=s) for s in ((units, 5), (above, units), (outputs, above))]
    error = rng.normal(size=(outputs, samples))
    alone = -(weights[2] @ np.maximum(weights[1], 0)).T @ error  # loss along each unit
    u = rng.uniform(0.6, 1.05, (units, samples)) * np.abs(alone)  # most hold alone
    feeds = np.zeros((units, samples), bool)
    for p in range(samples):
        feeds[rng.choice(units, 2, replace=False), p] = True
    none = np.zeros((above, samples))
    layers, signals = [feeds, none.astype(bool)], [u, none]
    joint = jax.jit(lambda *arrays: unfed.joint_exit(arrays[0], (None,) * 3, *arrays[1:]))
    margins, rays = joint(tuple(weights), layers, signals, error)

    def slope(y):  # of loss less pressure along y (units, P)
        sent = weights[2] @ np.maximum(weights[1] @ y, 0)
        return -np.sum(error * sent, axis=0) - np.sum(u * y, axis=0)

    ray, margin = np.asarray(rays[0]), np.min(np.asarray(margins[0]), axis=0)
    torn = np.isfinite(margin)
    assert np.sum(torn) > 100
    np.testing.assert_allclose(slope(ray)[torn], margin[torn], atol=1e-13)
    first, second = np.argmax(feeds, axis=0), units - 1 - np.argmax(feeds[::-1], axis=0)
    eye, least = np.eye(units), np.full(samples, np.inf)
    for angle in np.linspace(0, np.pi / 2, 2001):
        y = np.cos(angle) * eye[:, first] + np.sin(angle) * eye[:, second]
        least = np.minimum(least, slope(y))
    axes = np.minimum(slope(eye[:, first]), slope(eye[:, second]))
    clear = np.abs(np.minimum(axes, margin)) > 1e-2  # between two directions of the grid
    assert np.array_equal((least < 0)[clear], (np.minimum(axes, margin) < 0)[clear])
    assert np.sum((margin < 0) & (axes > 0)) > 5  # it fails first along the ray


@pytest.mark.slow
def test_without_biases_descent_converges_where_off_units_send_something():
    task = gaussian(12, 4)
    network = start(task, (6, 6), 0, variance=0.2, bias=False, slope=0.1)
    flow = exact(network, task, 10.0)
    descents = [fl.gradient_descent(network, task, 10.0 / n, n) for n in (10_000, 100_000)]
    off = [float(distance(descent.final, flow.final)) for descent in descents]
    assert off[0] < 1e-3
    assert off[1] < 0.15 * off[0]


# Of one pair each, which moves by 0.3 while it is on: dz/dt, z and the steps with z > 0, as descent
# has left them; and by sides the dz/dt that go with it, or None.
WAYS = {
    "chatters": (1e-4, 0.1, 90, {0: 0.0, -1: None, 1: None}),
    "slides, on in one step of 300": (1e-3, -0.1, 0, {0: 0.0, -1: None, 1: None}),
    "slides, and was not on": (-3e-4, -0.1, 0, {0: 0.0, -1: -3e-4, 1: None}),
    "comes back slowly": (2e-5, -4.0, 0, {0: 0.0, 1: None, -1: None}),
    "has gone on": (0.1, 20.0, LATE, {1: 0.1, 0: None, -1: None}),
    "has gone on slowly": (0.01, 2.0, LATE, {1: 0.01, 0: None, -1: None}),
    "is on, and stays where it is": (-1e-13, 0.1, LATE, {1: 0.0, 0: None, -1: None}),
    "has gone off": (-0.1, -20.0, 0, {-1: -0.1, 0: None, 1: None}),
}


@pytest.mark.parametrize("case", WAYS)
def test_descent_leads_to_the_sides_that_pairs_have_gone_to(case):
    """Sides that do not fit (None) are tried with the rate back to the kink, or with zero."""
    rate, place, on, fits = WAYS[case]
    array = functools.partial(jnp.full, (1, 1))
    scales, steps = (array(0.1), array(0.3)), (array(on), array(LATE - on))
    found = Outcome(array(rate), *scales, array(place), *steps, jnp.asarray(True))
    for code, own in fits.items():
        moves = -0.3 * code if code else 0.0
        rates = array(moves if own is None else own)
        leads = found.leads_to(array(code), rates, array(True), array(False))
        assert bool(leads) == (own is not None), (code, own)


def test_rounding_of_a_unit_that_dies_is_no_way():
    rates, both, on = jnp.array([[0.1, 3e-17]]), jnp.ones((1, 2), bool), jnp.full((1, 2), LATE)
    found = Outcome(rates, rates, rates, 200 * rates, on, 0 * on, jnp.asarray(True))
    sides = jnp.array([[1, -1]])
    assert found.leads_to(sides, jnp.array([[0.1, -2e-17]]), both, ~both)
    assert not found.leads_to(sides, jnp.array([[0.1, -2e-3]]), both, ~both)


@pytest.mark.parametrize("moves", [1e-9, 1e-3])
def test_who_has_just_left_its_slide_is_at_rest_up_to_an_error_of_the_step(moves):
    """At the end of its slide the rate off its new side is zero, and may have the other sign."""
    array = functools.partial(jnp.full, (1, 1))
    rates, one, none = array(1e-4), array(0.1), array(0)
    found = Outcome(rates, one, one, -one, none, none + LATE, jnp.asarray(True))
    sides, pair = array(-1), array(True)
    assert found.leads_to(sides, array(moves), pair, pair)
    assert not found.leads_to(sides, array(moves), pair, ~pair)


@pytest.mark.slow
def test_kinks_that_samples_share_are_one_where_one_of_them_repels():
    """Of samples 7 and 11 unit 5 alone is on below: they share the kink of unit 1 above.

    For 11 C < 0, for 7 C > 0. The two slide together and leave at about t = 9.1, when the sum of
    what they are driven by does not hold them any more; 11 alone would stay.
    """
    task = gaussian(12, 4)
    network = start(task, (6, 6), 14, variance=0.2, bias=False)
    flow = exact(network, task, 10.0, rtol=1e-6)
    assert not flow.events.select("branch")
    for rtol in (1.004e-6, 1e-5):  # events are elsewhere in their steps; none may be given up
        assert float(distance(exact(network, task, 10.0, rtol=rtol).final, flow.final)) < 30 * rtol
    off = [
        float(distance(fl.gradient_descent(network, task, 10.0 / n, n).final, flow.final))
        for n in (10_000, 100_000)
    ]
    assert off[0] < 1e-3
    assert off[1] < 0.3 * off[0]
    log = flow.events.select("gate")
    columns = np.asarray(log.time).tolist(), log.index, np.asarray(log.old)
    ends = {i: t for t, i, old in zip(*columns, strict=True) if old == 0}
    assert ends[1, 1, 7] == pytest.approx(ends[1, 1, 11], abs=1e-9)
    assert 9.0 < ends[1, 1, 11] < 9.2


@pytest.fixture(scope="module")
def at_zero():
    """Outcomes at w = 0 in two dimensions, come to along (-1, -1), and the sides they mean.

    Of two samples, along the axes: one with the drive -1, the other with -1 or 1.
    """
    network = fl.ReLUNetwork((np.zeros((1, 2)), np.ones((1, 1)), np.ones((1, 1))), (None,) * 3)
    zeros = jax.tree.map(jnp.zeros_like, network.parameters)
    before = ((jnp.full((1, 2), -0.5), *zeros[0][1:]), zeros[1])
    pairs, codes = jnp.ones((2, 2), bool), jnp.ones((2, 2), jnp.int8)

    @jax.jit
    def leave(pull):
        task = fl.Task(jnp.eye(2), jnp.stack([jnp.full(1, -2.0), 2 * pull[None]]))
        flow = DeepFlow(network, task, fl.SquaredError(), jnp.asarray(1.0))
        wanted = jnp.asarray(True)
        end = descend_from(flow, network.parameters, codes, pairs, 0 * codes, before, wanted)
        return end, end.sides(pairs, codes)

    return leave(jnp.asarray(-1.0)), leave(jnp.asarray(1.0))


def test_descent_through_a_point_by_hand(at_zero):
    (stays, _), (leaves, sides) = at_zero
    # Both pull it down to zero from above, where it stays: nothing pushes on.
    assert bool(stays.agrees)
    np.testing.assert_allclose(stays.rates, 0.0, atol=1e-2)
    # One repels: the pair of the second sample leaves at rate one, and with it what it feeds.
    np.testing.assert_allclose(np.asarray(leaves.rates)[:, 1], 1.0, atol=ROUNDING)
    assert np.array_equal(np.asarray(sides)[:, 1], [1, 1])


def test_pairs_that_depend_on_each_other():
    codes = [jnp.asarray([[1, 1, 0], [-1, 1, 0]]), jnp.asarray([[0, 0, 0]])]
    at_kinks = [jnp.asarray([[False, False, True], [False, False, True]]), jnp.ones((1, 3), bool)]
    below, above = unfed.depend_on_each_other(codes, at_kinks, inputs=1)
    assert not np.any(below)
    assert np.all(above)  # three pairs, two active inputs
    assert not np.any(unfed.depend_on_each_other(codes, [at_kinks[0], at_kinks[1] & False], 1)[1])
