"""Exact walks of very small networks without biases, where kinks and silent layers meet."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import flowlin as fl
from tests.cells import LocalProblem, local_minima, local_problem, velocity
from tests.test_walk import exact
from tests.zoo import jit

END, SAMPLES = 10.0, 4
# One to five units in one to three hidden layers; the first is of the first tier, too. A shape is
# a program of up to 40 s of compiling: `benchmarks/deep_walk.py --shapes` has others.
SHAPES = ("1-1-1-1", "2-2-1-2-1", "1-3-2-2", "3-5-1")
TRACED = SHAPES[1:3]


def draw(shape, seed):
    """Standard normal inputs, targets and weights; another draw where the first layer is still."""
    sizes = [int(size) for size in shape.split("-")]
    for k in range(100):
        rng = np.random.default_rng([seed, k, *sizes])
        x, y = rng.normal(size=(SAMPLES, sizes[0])), rng.normal(size=(SAMPLES, sizes[-1]))
        pairs = itertools.pairwise(sizes)
        weights = tuple(rng.normal(size=(after, before)) for before, after in pairs)
        h = x.T
        for w in weights[:-1]:
            h = np.maximum(w @ h, 0)
        if np.any(h):
            break
    return fl.ReLUNetwork(weights, (None,) * len(weights)), fl.Task(x, y)


@jax.jit
def descents(networks, tasks, rate, steps):
    """Final parameters of descent from all draws, in one program."""

    def descend(network, task):
        def objective(parameters):
            outputs = network.with_parameters(parameters).outputs(task.x)
            return fl.SquaredError()(outputs, task.y)

        def step(_, parameters):
            gradient = jax.grad(objective)(parameters)
            return jax.tree.map(lambda p, g: p - rate * g, parameters, gradient)

        return jax.lax.fori_loop(0, steps, step, network.parameters)

    return jax.vmap(descend)(networks, tasks)


def flattened(weights, k=None):
    return np.concatenate([np.ravel(w if k is None else w[k]) for w in weights])


def ends_of_descent(draws, rate, end=END):
    """Final weights of descent from each of these draws, a row each."""
    both = [jax.tree.map(lambda *a: jnp.stack(a), *these) for these in zip(*draws, strict=True)]
    weights = descents(*both, rate, round(end / rate))[0]
    return [flattened(weights, k) for k in range(len(draws))]


def walk(network, task):
    """The walk of a draw, whatever comes of it."""
    return exact(network, task, END, 1e-9, throw=False)


@jit
def _walk_to(network, task, end):
    kinks = fl.ExactKinks(slots=16)
    return fl.gradient_flow(network, task, end, kinks=kinks, rtol=1e-9, throw=False, max_steps=4096)


def traced_walk(network, task, end=END):
    """The same in one program for all draws of a shape, and all ends.

    Outside of `jit` a run whose pairs are at their kinks at the start has another than one whose
    pairs are not. Where others have compiled both, or with one hidden layer, that is less.
    """
    return _walk_to(network, task, float(end))


def has_branch(flow):
    """Whether the log says that the walk is one of several."""
    names = [channel.name for channel in flow.events.channels]
    return "branch" in names and bool(np.any(np.isfinite(flow.events.select("branch").time)))


def silently_off(shape, seeds, walk=walk):
    """Draws that end elsewhere than descent without a word; distances of those that follow.

    Descent comes nearer in proportion to its rate, but for the fraction of a step at which it
    crosses a kink: where a tenth of the rate leaves more than a third of the distance, a hundredth
    must leave less than a tenth.
    """
    some = [draw(shape, seed) for seed in seeds]
    flows = [walk(network, task) for network, task in some]
    slow, fast = (ends_of_descent(some, rate) for rate in (1e-3, 1e-4))
    silent, distances = [], []
    for k, flow in enumerate(flows):
        if not bool(flow.result == fl.RESULTS.successful) or has_branch(flow):
            continue
        end = flattened(flow.final.weights)
        off = [np.abs(ends[k] - end).max() for ends in (slow, fast)]
        distances.append(off)
        if off[1] > max(off[0] / 3, 1e-4):
            finest = np.abs(ends_of_descent(some[k : k + 1], 1e-5)[0] - end).max()
            if finest > 0.1 * off[0]:
                silent.append((k, off, finest))
    return silent, np.array(distances)


@pytest.fixture(scope="module")
def first_draws():
    """Forty draws of one shape, which share a program."""
    return silently_off(SHAPES[0], range(40))


def test_no_walk_is_silently_elsewhere(first_draws):
    silent, distances = first_draws
    assert not silent
    assert len(distances) > 37  # all but two: with a branch, or undecided
    # First order: a tenth of the rate, a tenth of the distance.
    slow, fast = np.sum(distances, axis=0)
    assert fast < 0.2 * slow


@pytest.mark.slow
def test_a_unit_whose_weights_have_gone_to_zero_stays_dead_and_its_turn_is_told():
    """Its z is w h of the one unit below, and w is rounding: what the unit would learn turns sign.

    Under `jit` rounding once woke it at a later event, without a word.
    """
    network, task = draw("2-2-1-2-1", 18)
    flow = traced_walk(network, task)
    log = flow.events.select("branch")
    times = np.asarray(log.time)[np.isfinite(log.time)]
    assert {tuple(one) for one in log.index[: len(times)]} == {(2, 1, k) for k in (0, 1, 2)}
    assert set(log.reason[: len(times)]) == {
        "the kink on which a dead unit rests turns to repel it"
    }
    np.testing.assert_allclose(times, 1.285378, atol=1e-5)
    end = flattened(flow.final.weights)
    off = [np.abs(ends_of_descent([(network, task)], rate)[0] - end).max() for rate in (1e-3, 1e-4)]
    assert off[0] < 1e-3
    assert off[1] < 0.2 * off[0]

    @jax.jit
    def pull(weights):
        """What would move w, were the unit on."""
        first, second, third, last = weights

        def loss(w):
            h = jax.nn.relu(second @ jax.nn.relu(first @ task.x.T))
            outputs = last[:, :1] @ jax.nn.relu(third[:1] @ h) + last[:, 1:] @ (w * h)
            return fl.SquaredError()(outputs.T, task.y)

        return -jax.grad(loss)(jnp.zeros(()))

    before, at, after = (
        float(pull(traced_walk(network, task, t).final.weights)) for t in (1.2, times[0], 1.4)
    )
    assert before < 0 < after
    assert abs(at) < 1e-5 * min(-before, after)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_no_walk_of_many_is_silently_elsewhere(shape):
    silent, distances = silently_off(shape, range(20, 80), traced_walk if shape in TRACED else walk)
    assert not silent
    assert len(distances) > 56
    slow, fast = np.sum(distances, axis=0)
    assert fast < 0.2 * slow


@pytest.mark.parametrize(
    ("pull", "prices", "minima"),
    [(1, (2, 3), {0}), (1, (-2, 3), {3}), (0, (-2, -3), {2, -3}), (5, (2, -3), {3})],
    ids=["it stays", "it goes on", "there are two", "a price is paid"],
)
def test_minima_by_hand(pull, prices, minima):
    """Two pairs, s = y and s = -y: Psi + y^2 / 2 has a parabola on either side."""
    lines, nothing = np.array([[1.0], [-1.0]]), np.zeros((2, 2))
    problem = LocalProblem([(0, 0, 0), (0, 0, 1)], np.array([pull]), lines, nothing, prices)
    found, _ = local_minima(problem)
    assert {round(float(y[0]), 9) for y in found} == minima


def test_minima_by_hand_where_a_pair_feeds_another():
    """s' = -2 max(s, 0), with the slope 1: y is pushed up by 1, and by 3 less where s' counts."""
    feeds = np.array([[0.0, 0.0], [-2.0, 0.0]])
    problem = LocalProblem(
        [(0, 0, 0), (1, 0, 0)], np.ones(1), np.array([[1.0], [0.0]]), feeds, np.array([-0.5, 9.0])
    )
    assert [float(y[0]) for y in local_minima(problem)[0]] == [1.5]  # s' < 0 sends nothing
    found, _ = local_minima(problem._replace(feeds=-feeds / 6))  # s' = s / 3: 1 + 1/2 - 3 < 0
    assert [float(y[0]) for y in found] == [0.0]


def decisions(network, task, walk):
    """Velocities after each event at which pairs meet: the walk's, and all that are minima.

    Where these differ, once more with the pairs off that were off before: relu'(0) = 0.
    """
    log = walk(network, task, END).events
    times = np.unique(np.asarray(log.select("gate").time))
    for t in times[np.isfinite(times)]:
        leaves = jax.tree.leaves(walk(network, task, t).final)
        weights = [np.asarray(leaf) for leaf in leaves if np.ndim(leaf) == 2]
        layers = range(len(weights) - 1)
        before, now = ([np.asarray(log.sides(u, k)).T for k in layers] for u in (0.999999 * t, t))
        rest = [(one < 0) & (after < 0) for one, after in zip(before, now, strict=True)]
        stay = {(k, h, i) for k in layers for h, i in np.argwhere(rest[k]).tolist()}
        for again, off in enumerate((set(), stay)):
            problem = local_problem(weights, task.x, task.y, 1e-6, off)
            if not 2 <= len(problem.pairs) <= 8:
                break
            minima, scale = local_minima(problem)
            own = velocity(problem, np.array([now[k][h, i] for k, h, i in problem.pairs]))
            away = [np.linalg.norm(own - y) / scale for y in minima]
            if min(away) < 1e-5 or again:
                yield len(minima), min(away)
                break


@pytest.mark.slow
@pytest.mark.parametrize("shape", TRACED)
def test_sides_are_those_of_the_only_minimum(shape):
    """Of the local problem at each event, over all cells: nothing of it is in the rule."""
    found = [one for seed in range(30) for one in decisions(*draw(shape, seed), traced_walk)]
    assert len(found) > 10
    assert all(count == 1 and away < 1e-5 for count, away in found), found


@pytest.mark.slow
@pytest.mark.parametrize("rtol", [1e-8, 1e-10])
def test_a_dead_unit_is_not_waked_where_the_layer_below_goes_silent(rtol):
    """Its weights are errors of the step in which it died, and so is the side of one of its pairs.

    At these two the unit came on with it, and no branch was told.
    """
    network, task = draw("2-2-1-2-1", 18)
    flow = exact(network, task, END, rtol, throw=False)
    ends = ends_of_descent([(network, task)], 2.5e-4)[0]
    assert np.abs(ends - flattened(flow.final.weights)).max() < 5e-4
    assert not np.any(np.asarray(flow.events.select("gate").new) > 0)
    assert "the kink on which a dead unit rests turns" in flow.stats["branch_because"]


@pytest.mark.slow
def test_so_are_those_of_a_module():
    def as_module(network):
        mlp = eqx.nn.MLP(1, 1, 2, 2, use_bias=False, use_final_bias=False, key=jax.random.key(0))
        weights = lambda m: [layer.weight for layer in m.layers]  # noqa: E731
        return eqx.tree_at(weights, mlp, list(network.weights))

    @eqx.filter_jit
    def walk_to(module, task, end):
        how: dict = {"rtol": 1e-9, "throw": False, "max_steps": 4096}
        return fl.gradient_flow(module, task, end, kinks=fl.ExactKinks(slots=16), **how)

    def walk(module, task, end):
        return walk_to(module, task, jnp.asarray(end, float))

    found = []
    for seed in range(20):
        network, task = draw("1-2-2-1", seed)
        found += decisions(as_module(network), task, walk)
    assert len(found) > 10
    assert all(count == 1 and away < 1e-5 for count, away in found), found


@pytest.fixture(scope="module")
def of_eight_units():
    """Two layers of four units on ten samples: draws by their seed, in one program."""
    x, y = jax.random.split(jax.random.key(7))
    task = fl.Task(jax.random.normal(x, (10, 3)), jax.random.normal(y, (10, 3)))

    def start(seed):
        key = jax.random.key(seed)
        return fl.ReLUNetwork.init(task, (4, 4), 0.3, bias=False, key=key), task

    return start


@pytest.mark.slow
def test_walks_go_on_where_400_steps_of_descent_do_not_tell_all(of_eight_units):
    """A pair slides that is on in one of thousands of steps, or comes back slowly from before.

    And the z of units that die are rounding. What is left open has a branch.
    """
    draws = [of_eight_units(seed) for seed in (13, 14, 15, 16, 22, 39)]
    flows = [exact(network, task, 2 * END, 1e-8, throw=False) for network, task in draws]
    assert all(bool(flow.result == fl.RESULTS.successful) for flow in flows)
    slow, fast = (ends_of_descent(draws, rate, 2 * END) for rate in (1e-3, 1e-4))
    ends = [flattened(flow.final.weights) for flow in flows]
    far, near = (np.abs(np.array(found) - ends).max(axis=1) for found in (slow, fast))
    follows = near < np.maximum(0.2 * far, 1e-4)
    assert np.sum(follows) >= 5, (far, near)
    assert all(has_branch(flow) for flow, same in zip(flows, follows, strict=True) if not same)


@pytest.mark.slow
def test_a_walk_that_ends_undecided_names_the_pairs_at_their_kinks(of_eight_units):
    network, task = of_eight_units(8)
    said = (
        r"At t = 7.87.* 17 pairs are at their kinks: unit 2 of weights\[0\], sample 6; "
        r"unit 0 of weights\[1\], sample 5; .*, sample 9; and 13 more"
    )
    with pytest.raises(fl.RunError, match=said):
        exact(network, task, 2 * END, 1e-8)


@pytest.mark.slow
def test_weights_that_are_zero_but_for_rounding_are_at_their_kinks():
    """A unit is switched off where its only weight passes zero, and keeps 9e-17 of it.

    Its z, on the wrong side by rounding, grows with its input: no event, over and over again.
    """
    rng = np.random.default_rng([125, 2, 2, 1, 2, 1])
    task = fl.Task(rng.normal(size=(SAMPLES, 2)), rng.normal(size=(SAMPLES, 1)))
    shapes = (2, 2), (1, 2), (2, 1), (1, 2)
    network = fl.ReLUNetwork(tuple(rng.normal(size=shape) for shape in shapes), (None,) * 4)
    flow = traced_walk(network, task)
    assert bool(flow.result == fl.RESULTS.successful)
    assert 0 < abs(float(flow.final.weights[2][1, 0])) < 1e-15
    assert int(flow.stats["num_steps"]) < 100
    (end,) = ends_of_descent([(network, task)], 1e-4)
    assert np.max(np.abs(flattened(flow.final.weights) - end)) < 1e-3


@pytest.fixture(scope="module")
def passed():
    """A walk of one unit a layer, from w = -0.3, on 1 and -1, each twice, with themselves."""
    x = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    network = fl.ReLUNetwork((np.array([[-0.3]]), np.ones((1, 1)), np.ones((1, 1))), (None,) * 3)
    return exact(network, fl.Task(x, x), END, 1e-9, throw=False)


def test_a_unit_passes_through_zero_with_all_that_it_feeds(passed):
    """On x = -1 the target -1 pushes it to w = 0, whence x = 1 pulls it on.

    All pairs of both layers turn there at once; the loss ends at that of the samples that no
    positive output fits.
    """
    assert passed.losses[-1] == pytest.approx(0.25, abs=1e-4)
    log = passed.events
    turns = {(i, int(new)) for i, new in zip(log.index, log.new, strict=True)}
    assert len(set(np.asarray(log.time).tolist())) == 1
    assert {((0, 0, 0), 1), ((0, 0, 2), -1), ((1, 0, 0), 1)} <= turns
    w1, w2, a = (float(w[0, 0]) for w in passed.final.weights)
    assert w1 > 0
    np.testing.assert_allclose([w1**2 - w2**2, w2**2 - a**2], [0.09 - 1.0, 0.0], atol=1e-8)


@pytest.fixture(scope="module")
def held_together():
    """Of a biased unit, at its kink for two samples to which nothing is sent; by descent, too.

    Only its bias b and the output's offset o move. At b = 0 the drives of these two are -4 - o and
    1 - o, and 2 - o of a third one pulls b up: they let go together where -1 - 3 o = 0. The first
    one alone, whose drive exceeds it until o = -1, would hold on.
    """
    x = np.array([[-1.0, -1.0], [-2.0, -1.0], [1.0, 0.0], [0.0, 1.0]])
    task = fl.Task(x, np.array([[-4.0], [1.0], [3.0], [-5.0]]))
    network = fl.ReLUNetwork(
        (np.eye(2), np.array([[1.0, -3.0]]), np.ones((1, 1))),
        (np.zeros(2), np.array([0.01]), np.zeros(1)),
    )
    moves = eqx.tree_at(
        lambda n: n.biases[1:], jax.tree.map(lambda _: False, network), (True, True)
    )
    flow = exact(network, task, 4.0, 1e-9, trainable=moves)
    descent = fl.gradient_descent(network, task, 1e-3, t1=4.0, trainable=moves)
    return flow, descent.final


@pytest.mark.slow
def test_samples_that_get_nothing_share_the_kink_of_a_biased_unit(held_together):
    flow, descended = held_together
    log = flow.events.select("gate")
    turns = list(zip(log.index, np.asarray(log.old), np.asarray(log.new), strict=True))
    pairs = [(1, 0, 0), (1, 0, 1)]
    assert turns == [*((p, 1, 0) for p in pairs), *((p, 0, 1) for p in pairs)]
    # o' = (2 - 8 - 4 o) / 4 while they slide.
    entered, left = (float(log.time[k]) for k in (0, 2))
    o = -1.5 + (1.5 - 1 / 3) * np.exp(left - entered)
    assert o == pytest.approx(offset_at(entered), abs=1e-7)
    for bias, other in zip(flow.final.biases[1:], descended.biases[1:], strict=True):
        np.testing.assert_allclose(bias, other, atol=1e-3)


def offset_at(t):
    """o before the unit is at its kink, where all four samples are as at the start.

    (b, o)' = (-1 - 3 b - 3 o, -6 - 3 b - 4 o) / 4, by the matrix exponential.
    """
    matrix = np.array([[-3.0, -3.0, -1.0], [-3.0, -4.0, -6.0], [0.0, 0.0, 0.0]]) / 4
    return (scipy.linalg.expm(matrix * t) @ np.array([0.01, 0.0, 1.0]))[1]
