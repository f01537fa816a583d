"""The race of pathways: exact where its certificate says so, its events, its winners."""

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

import flowlin as fl

pytestmark = pytest.mark.slow  # flows of graphs, and of their modes
KEY = jax.random.key(0)
TREE = fl.tasks.hierarchy(2)
TIMES = (0.0, 4.0, 8.0, 16.0)
EDGES = [("in", "a"), ("in", "b"), ("a", "out"), ("b", "out")]
AHEAD = {("in", "a"): 0.1, ("a", "out"): 0.1, ("in", "b"): 0.03, ("b", "out"): 0.05}


def diamond(**options):
    """Two ways from a source to a sink, of random weights."""
    nodes = {"in": 4, "a": 8, "b": 8, "out": 7}
    return fl.GatedGraph.init(TREE, nodes, EDGES, variance=1e-3, key=KEY, **options)


@pytest.fixture(scope="module")
def race():
    """Of a network with aligned weights, of which the way through a is ahead."""
    start = fl.theory.race(diamond(), TREE).aligned(AHEAD, key=KEY)
    return fl.theory.race(start, TREE)


def run(race, full):
    options = {"ts": TIMES, "events": (race.hits(0.5),), "rtol": 1e-11}
    if full:
        return fl.gradient_flow(race.network, TREE, 16.0, **options)
    return race.flow(16.0, **options)


@pytest.fixture(scope="module")
def both(race):
    """The network's flow, and the race's."""
    return run(race, True), run(race, False)


def turned(race, flow, p):
    """The product along a pathway in the modes' bases, (T, K)."""
    left, right = race.bases[p.target], race.bases[p.source]
    return np.einsum("ik,tij,jk->tk", left, flow.product(p), right)


def test_an_exact_race_is_the_networks_flow(race, both, tmp_path):
    full, reduced = both
    assert race.exact
    assert race.certificate.commutator < 1e-14
    for p in race.pathways:
        np.testing.assert_allclose(turned(race, full, p), reduced.product(p), rtol=0, atol=1e-8)
        assert reduced.product(p).shape == (4, 4)
        for flow in both:
            np.testing.assert_allclose(race.product(p, flow), full.product(p), rtol=0, atol=1e-8)
        np.testing.assert_allclose(race.product(p), race.network.product(p), rtol=0, atol=1e-14)
    np.testing.assert_allclose(full.losses, reduced.losses + race.unexplained_loss, rtol=1e-8)
    other = fl.GatedGraph({("in", "c"): np.ones((2, 4)), ("c", "out"): np.ones((7, 2))})
    with pytest.raises(ValueError, match=r"`pathway` must be one of `race.pathways`"):
        race.product(other.pathways[0])
    reduced.save(tmp_path / "race.npz")
    loaded = fl.load(tmp_path / "race.npz")
    assert fl.distance(loaded.final, reduced.final) == 0
    strengths = race.strengths(loaded.final)
    np.testing.assert_allclose(race.strengths(full.final), strengths, atol=1e-8)


def test_the_winner_is_first_at_half_of_what_it_would_have_alone(race, both):
    times = [flow.events.first("race") for flow in both]
    np.testing.assert_allclose(*times, rtol=1e-8)
    ahead = race.pathways.index(fl.theory.race(diamond(), TREE).pathways[0])
    assert np.all(np.isfinite(times[0][ahead]))
    assert np.all(np.isinf(times[0][1 - ahead]))  # never there
    # Strong modes first; the last two are equally strong, and their order is rounding.
    assert np.all(np.diff(times[0][ahead][:3]) > 1)
    np.testing.assert_allclose(times[0][ahead][3], times[0][ahead][2], rtol=1e-10)
    for flow in both:
        lead = race.winner(flow)
        assert lead.pathways == (race.pathways[ahead],) * 4
        assert np.all(lead.share > 0.8)
        assert np.all(lead.since == 0)


def routed(domains, active, key=KEY):
    """Domains of inputs and outputs with a middle for all, and ways of their own; their task."""
    pairs = [(i, (i + k) % domains) for i in range(domains) for k in range(active)]
    block, target = np.eye(4), np.asarray(TREE.y[:, 1:4]) * 2
    rows = len(pairs) * 4
    x, y = np.zeros((rows, 4 * domains)), np.zeros((rows, 3 * domains))
    gates = np.zeros((domains, rows))
    own = {pair: np.zeros(rows) for pair in pairs}
    for n, (i, j) in enumerate(pairs):
        here = slice(4 * n, 4 * n + 4)
        x[here, 4 * i : 4 * i + 4], y[here, 3 * j : 3 * j + 3] = block, target
        gates[j, here] = own[i, j][here] = 1
    task = fl.Task(x, y, name="routing")
    nodes = {"low": 5, "high": 4}
    edges = [("low", "high")]
    for i in range(domains):
        nodes |= {f"in{i}": 4, f"out{i}": 3}
        edges += [(f"in{i}", "low"), ("high", f"out{i}")]
    for i, j in pairs:
        nodes |= {f"own{i}{j}": 4}
        edges += [(f"in{i}", f"own{i}{j}"), (f"own{i}{j}", f"out{j}")]
    return task, fl.GatedGraph.init(
        task, nodes, edges, variance=1e-3, key=key,
        node_gates={f"out{j}": gates[j] for j in range(domains)}
        | {f"own{i}{j}": gate for (i, j), gate in own.items()},
        inputs={f"in{i}": slice(4 * i, 4 * i + 4) for i in range(domains)},
        outputs={f"out{j}": slice(3 * j, 3 * j + 3) for j in range(domains)},
    )  # fmt: skip


@eqx.filter_jit
@eqx.filter_grad
def slopes(network, task):
    return fl.SquaredError()(network.outputs(task.x), task.y)


def gradient(network, task):
    """Of the loss, by the edge."""
    return slopes(network, task).weights


@pytest.mark.slow
@pytest.mark.parametrize("active", [1, 2])
def test_routing_is_exact_mode_by_mode(active, both):
    """Shared edges, sources and sinks that meet in pairs or not at all: force against force."""
    task, network = routed(2, active)
    strength = {edge: 0.1 + 0.05 * n for n, edge in enumerate(network.edges)}
    network = fl.theory.race(network, task).aligned(strength, key=KEY)
    race = fl.theory.race(network, task)
    assert race.exact, race
    force, reduced = gradient(network, task), gradient(race.start, race.reduced)
    for (a, b), g in force.items():
        g = np.asarray(g)
        modes = np.asarray(race.bases[b]).T @ g @ np.asarray(race.bases[a])
        np.testing.assert_allclose(modes, np.diag(reduced[a, b]), atol=1e-14)
        outside = g - race.bases[b] @ modes @ race.bases[a].T
        np.testing.assert_allclose(outside, 0, atol=1e-14)
    with pytest.raises(ValueError, match="`source` and `target` must be those of pathways"):
        race.winner(both[1])


def test_what_is_not_exact_is_said():
    network = diamond()
    found = fl.theory.race(network, TREE)
    assert not found.exact
    assert found.certificate.outputs < 1e-12
    assert 0.5 < found.certificate.alignment < 1
    # The bases of hidden nodes hold more of the weights than random ones do.
    kept = sum(float(jnp.sum(b**2)) for b in found.start.weights.values())
    drawn = fl.theory.race(found.aligned(1.0, key=KEY), TREE).bases
    for a, b in EDGES:
        kept -= float(jnp.sum(jnp.sum(drawn[b] * (network.weights[a, b] @ drawn[a]), axis=0) ** 2))
    assert kept > 0
    mixed = fl.Task(
        np.random.default_rng(0).normal(size=(9, 4)), np.random.default_rng(1).normal(size=(9, 7))
    )
    found = fl.theory.race(network, mixed)
    assert found.certificate.inputs > 0.01
    assert found.certificate.commutator > 0.01
    assert "exact" in repr(found)
    assert "no" in repr(found).split("\n")[1]


@pytest.mark.slow
def test_common_modes_are_found_up_to_order():
    """Planted bases, with strengths of any sign and equal modes, and rounding when disturbed."""
    rng = np.random.default_rng(0)
    sizes = {"s": 5, "t": 4, "y": 6}
    rows, *bases = (np.linalg.qr(rng.normal(size=(n, n)))[0][:, :4] for n in (12, *sizes.values()))
    planted = dict(zip(sizes, bases, strict=True))
    strengths = {node: rng.normal(size=4) for node in sizes}
    for strength in strengths.values():
        strength[1] = strength[0]  # equal modes
    data = {node: (rows * strengths[node]) @ planted[node].T for node in sizes}

    def raced(data):
        """The race's bases, and all matrices between its nodes."""
        task = fl.Task(np.concatenate([data["s"], data["t"]], axis=1), data["y"])
        network = fl.GatedGraph.init(
            task, sizes, [("s", "y"), ("t", "y")], variance=1e-3, key=KEY,
            inputs={"s": slice(0, 5), "t": slice(5, 9)},
        )  # fmt: skip
        found = {node: np.asarray(b) for node, b in fl.theory.race(network, task).bases.items()}
        pairs = [("y", "s"), ("y", "t"), ("s", "s"), ("t", "t"), ("s", "t")]
        return found, [(a, b, data[a].T @ data[b] / len(rows)) for a, b in pairs]

    def diagonals(bases, blocks):
        return [np.einsum("ik,ij,jk->k", bases[a], m, bases[b]) for a, b, m in blocks]

    found, blocks = raced(data)
    for (a, b, m), diagonal in zip(blocks, diagonals(found, blocks), strict=True):
        assert np.abs(m - (found[a] * diagonal) @ found[b].T).max() < 1e-12
    noisy = {node: x + 0.02 * rng.normal(size=x.shape) for node, x in data.items()}
    found, blocks = raced(noisy)
    # What is found holds more of the matrices than what was planted.
    gain = [sum(np.sum(d**2) for d in diagonals(b, blocks)) for b in (planted, found)]
    assert gain[1] > gain[0]


def test_pathways_are_drawn(race, both):
    """Curves are the strengths, markers the hits, the graph has every node once."""
    _, (ax, graph) = plt.subplots(1, 2)
    assert fl.plot.pathways(both[1], race, ax, mode=1, graph=graph) is ax
    strengths = np.stack([turned(race, both[0], p)[:, 1] for p in race.pathways])
    drawn = np.stack([ax.lines[3 * n].get_ydata() for n in range(2)])
    np.testing.assert_allclose(drawn, strengths, atol=1e-7)
    hits = [line.get_xdata() for line in (ax.lines[2], ax.lines[5])]
    times = both[0].events.first("race")[:, 1]
    np.testing.assert_allclose(np.concatenate(hits), times[np.isfinite(times)], rtol=1e-7)
    assert sorted(text.get_text() for text in graph.texts) == ["a", "b", "in", "out"]
    assert len(fl.plot.pathways(both[1], race).figure.axes) == 2
    with pytest.raises(ValueError, match=r"`mode` must be one of 0 \.\.\. 3, got 4"):
        fl.plot.pathways(both[1], race, mode=4)
    with pytest.raises(ValueError, match="`shown` must be some of the pathways"):
        fl.plot.pathways(both[1], race, shown=[2])
    plt.close("all")


BAD = (
    (
        lambda _: fl.theory.race(fl.LinearNetwork.init(TREE, 4, key=KEY), TREE),  # pyright: ignore
        "an fl.GatedGraph",
    ),
    (lambda race: fl.theory.race(diamond(bias=["a"]), TREE), "`network` has biases"),
    (lambda race: fl.theory.race(diamond(), fl.tasks.xor()), "`network` maps 4 inputs"),
    (
        lambda race: fl.theory.race(diamond(), fl.Task(TREE.x, 0 * TREE.y)),
        "`task` drives no mode",
    ),
    (lambda race: race.aligned({("in", "a"): 1.0}, key=KEY), "one entry by each edge"),
    (lambda race: race.aligned([1.0, 2.0], key=KEY), r"`strength` must be a number or have shape"),
    (lambda race: race.hits(np.nan), "`rho` must be finite"),
    (
        lambda race: fl.gradient_flow(race.network, TREE, 1.0, events=race.hits([0.1, 0.2])),
        r"`rho` must be a number or have shape \(2, 4\)",
    ),
    (
        lambda race: fl.gradient_flow(
            fl.LinearNetwork.init(TREE, 4, key=KEY), TREE, 1.0, events=race.hits(0.5)
        ),
        "make the race of this one",
    ),
    (lambda race: race.winner(race), "`flow` must be a trajectory"),
    (lambda race: race.strengths(fl.GatedGraph({("x", "y"): np.eye(2)})), "the race's edges"),
)  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD)
def test_what_is_refused(race, call, message, without_type_checks):
    with pytest.raises(ValueError, match=message):
        call(race)
