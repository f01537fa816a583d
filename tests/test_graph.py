"""Gated deep linear networks on a graph: where they are other networks, and as themselves."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import flowlin as fl
from tests.by_hand import ByHand
from tests.tolerances import ROUNDING

KEY = jax.random.key(0)
TREE = fl.tasks.hierarchy(2)
TIMES = (0.0, 1.0, 3.0)


def graph_of(samples):
    """Two sources and sinks, shared edges, skips, gates on nodes and edges, biases, weights."""
    rng = np.random.default_rng(0)

    def on():
        return rng.integers(0, 2, samples)

    task = fl.Task(
        rng.normal(size=(samples, 7)),
        rng.normal(size=(samples, 5)),
        weights=rng.uniform(0.5, 2, samples),
    )
    network = fl.GatedGraph.init(
        task,
        {"i": 4, "j": 3, "a": 5, "b": 6, "c": 4, "o": 3, "p": 2},
        [("i", "a"), ("j", "a"), ("j", "b"), ("a", "c"), ("b", "c"), ("a", "o"), ("c", "o"),
         ("c", "p"), ("i", "p")],
        node_gates={"a": on(), "c": on(), "p": rng.normal(size=samples)},
        edge_gates={("a", "c"): on()},
        variance=0.3, bias=("c", "o"), bias_strength=0.7, key=KEY,
        inputs={"i": slice(0, 4), "j": slice(4, 7)}, outputs={"p": slice(0, 2), "o": slice(2, 5)},
    )  # fmt: skip
    return network, task


def diamond(task=TREE, **options):
    """A source, two gated ways, a sink."""
    half = np.arange(task.samples) < task.samples // 2
    options = {"node_gates": {"a": half, "b": ~half}, "variance": 0.05} | options
    nodes = {"in": task.inputs, "a": 8, "b": 8, "out": task.outputs}
    edges = [("in", "a"), ("in", "b"), ("a", "out"), ("b", "out")]
    return fl.GatedGraph.init(task, nodes, edges, **options, key=KEY)


EVENTS = fl.LossBelow(0.5)


@pytest.fixture(scope="module")
def flow():
    return fl.gradient_flow(diamond(), TREE, 3.0, ts=TIMES, events=EVENTS)


def by_scipy(t1):
    """The weights of the diamond at any time, in the order of its edges by name."""
    start, x, y = diamond().weights, np.asarray(TREE.x), np.asarray(TREE.y)
    edges = sorted(start)
    gates = {"a": np.array([1.0, 1, 0, 0])[:, None], "b": np.array([0.0, 0, 1, 1])[:, None]}
    ends = np.cumsum([start[edge].size for edge in edges])[:-1]

    def weights(flat):
        parts = zip(edges, np.split(flat, ends), strict=True)
        return {edge: part.reshape(start[edge].shape) for edge, part in parts}

    def outputs(w):
        a, b = (gates[k] * (x @ w["in", k].T) @ w[k, "out"].T for k in "ab")
        return a + b

    def field(_, flat):
        w = weights(flat)
        error = (y - outputs(w)) / 4
        velocity = {("in", k): (gates[k] * error @ w[k, "out"]).T @ x for k in "ab"}
        velocity |= {(k, "out"): (gates[k] * error).T @ x @ w["in", k].T for k in "ab"}
        return np.concatenate([velocity[edge].ravel() for edge in edges])

    flat = np.concatenate([np.ravel(start[edge]) for edge in edges])
    found = solve_ivp(field, (0, t1), flat, "DOP853", dense_output=True, rtol=1e-12, atol=1e-13)
    return lambda t: weights(found.sol(t)), outputs


def test_a_flow_is_that_of_scipy(flow):
    assert flow.stats["objective"] == "FullData"
    at, outputs = by_scipy(3.0)
    for edge, wanted in at(3.0).items():
        np.testing.assert_allclose(flow.final.weights[edge], wanted, rtol=0, atol=1e-7)
    found = outputs(at(float(flow.events.time[0])))
    assert np.sum((found - np.asarray(TREE.y)) ** 2) / 8 == pytest.approx(0.5, abs=1e-6)


def test_a_chain_is_a_linear_network():
    nodes = {"in": TREE.inputs, "h": 8, "out": TREE.outputs}
    edges = [("in", "h"), ("h", "out")]
    chain = fl.GatedGraph.init(TREE, nodes, edges, variance=0.05, bias=True, key=KEY)
    by_hand = ByHand(fl.LinearNetwork.init(TREE, 8, 0.05, key=KEY), TREE)
    assert np.array_equal(chain.weights["in", "h"], by_hand.start[0])
    losses, arrays = zip(*by_hand.descent(0.1, 20), strict=True)
    descent = fl.gradient_descent(chain, TREE, 0.1, 20)
    np.testing.assert_allclose(descent.losses, losses, rtol=ROUNDING)
    final = descent.final
    found = final.weights["in", "h"], final.weights["h", "out"], final.biases["h"]
    for a, b in zip(found, arrays[-1], strict=True):
        np.testing.assert_allclose(a, b, rtol=ROUNDING, atol=ROUNDING)


def as_units():
    """A gated linear network, and the graph with a node for each of its hidden units."""
    gates = np.random.default_rng(0).uniform(0, 1, (TREE.samples, 3))
    units = fl.LinearNetwork.init(TREE, 3, 0.3, key=KEY)
    w1, w2, b = jax.tree.leaves(units.parameters)
    gated = fl.GatedLinearNetwork(units.weights, units.biases, gates=(gates,))
    names = [f"u{k}" for k in range(3)]
    rows = {("in", name): w1[k : k + 1] for k, name in enumerate(names)}
    columns = {(name, "out"): w2[:, k : k + 1] for k, name in enumerate(names)}
    graph = fl.GatedGraph(
        rows | columns,
        {name: b[k : k + 1] for k, name in enumerate(names)},
        node_gates=dict(zip(names, gates.T, strict=True)),
    )
    return gated, graph, names


@pytest.fixture(scope="module")
def descents():
    """Of a gated linear network, and of its units as nodes."""
    gated, graph, _ = as_units()
    return [fl.gradient_descent(one, TREE, 0.1, 20) for one in (gated, graph)]


def test_one_node_per_unit_is_a_gated_linear_network(descents):
    b, a = descents
    names = as_units()[2]
    np.testing.assert_allclose(a.losses, b.losses, rtol=ROUNDING)
    found = np.concatenate([a.final.weights["in", name] for name in names])
    np.testing.assert_allclose(found, b.final.weights[0], rtol=0, atol=ROUNDING)
    found = np.concatenate([a.final.weights[name, "out"] for name in names], axis=1)
    np.testing.assert_allclose(found, b.final.weights[1], rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(
    "kind", [pytest.param(0, marks=pytest.mark.slow), 1], ids=["gated", "graph"]
)
def test_batches_take_their_samples_gates(kind, descents):
    """Whole batches in any order are descent; a batch of other gates would be another one."""
    network = as_units()[kind]
    batches = fl.stochastic_gradient_descent(network, TREE, 0.1, 20, batch_size=4, key=KEY)
    assert fl.distance(descents[kind].final, batches.final) < ROUNDING


def test_too_many_pathways_are_told():
    layers = [("in",), *((f"a{k}", f"b{k}") for k in range(14)), ("out",)]
    pairs = [(s, t) for low, high in itertools.pairwise(layers) for s in low for t in high]
    many = fl.GatedGraph({pair: np.eye(1) for pair in pairs})
    with pytest.raises(ValueError, match="has 16,384 pathways, and no more than 10,000"):
        many.pathways  # noqa: B018


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_flow_sees_pathway_statistics_alone(many):
    network, task = graph_of(40) if many else (diamond(), TREE)
    # A step of length one is the force.
    after = fl.gradient_descent(network, task, 1.0, 1).final.weights
    forces = {edge: np.asarray(after[edge] - w) for edge, w in network.weights.items()}
    stats, pathways = network.pathway_statistics(task), network.pathways
    assert len(pathways) == len(set(pathways)) == (12 if many else 2)
    products = {p: along(network, p.edges) for p in pathways}
    for p in pathways[:2]:
        np.testing.assert_allclose(network.product(p), products[p], rtol=1e-13)
    wanted = {edge: np.zeros(w.shape) for edge, w in network.weights.items()}
    for p in pathways:
        others = [j for j in pathways if j.target == p.target]
        of_others = sum(products[j] @ np.asarray(stats.x[j, p]) for j in others)
        error = np.asarray(stats.yx[p]) - of_others
        for k, edge in enumerate(p.edges):
            if edge in wanted:
                before, after = p.edges[:k], p.edges[k + 1 :]
                pushed = along(network, after).T @ error if after else error
                wanted[edge] += pushed @ along(network, before).T if before else pushed
    for edge, one in wanted.items():
        np.testing.assert_allclose(forces[edge], one, rtol=0, atol=ROUNDING * np.abs(one).max())


def along(network, edges):
    """The product of matrices by hand; that of a bias is c b."""
    product = np.ones(1)
    for k, (a, b) in enumerate(edges):
        w = 0.7 * network.biases[b][:, None] if a == "bias" else network.weights[a, b]
        product = np.asarray(w) @ product if k else np.asarray(w)
    return product


@pytest.mark.slow
def test_pathway_statistics_are_averages_over_samples():
    network, task = graph_of(40)
    stats = network.pathway_statistics(task)
    columns = {"i": slice(0, 4), "j": slice(4, 7), "p": slice(0, 2), "o": slice(2, 5)}
    share = np.asarray(task.weights / task.weights.sum())

    def of(p):
        x = np.ones((40, 1)) if p.source == "bias" else np.asarray(task.x[:, columns[p.source]])
        gate = np.ones(40)
        for name in {*p.nodes, *p.edges} & {*network.node_gates, *network.edge_gates}:
            gate = gate * network.gate(name)  # pyright: ignore
        np.testing.assert_allclose(p.gate, gate)
        return gate[:, None] * x

    for p in network.pathways:
        y = np.asarray(task.y[:, columns[p.target]])
        np.testing.assert_allclose(stats.yx[p], (share * y.T) @ of(p), atol=1e-14)
        j = network.pathways[-1]
        np.testing.assert_allclose(stats.x[j, p], (share * of(j).T) @ of(p), atol=1e-14)
    assert len(stats.x) == 144
    assert 0.1 < stats.commutator <= 2
    whitened = fl.Task(np.eye(4), np.diag([4.0, 3, 2, 1]))
    assert diamond(whitened).pathway_statistics(whitened).commutator < 1e-15


def test_pathways_are_known_by_their_edges():
    a, b = diamond().pathways
    assert (a.source, a.target, a.nodes) == ("in", "out", ("in", "a", "out"))
    assert a != b
    assert a in diamond(node_gates={}).pathways
    assert {a: 1}[diamond(variance=1.0).pathways[0]] == 1
    assert repr(a) == "Pathway(in -> a -> out, open for 2 of 4 samples)"
    assert diamond(node_gates={}).pathways[0].gate.shape == (1,)
    chain = fl.GatedGraph({("in", "out"): np.eye(2)})
    with pytest.raises(ValueError, match=r"`pathway` must be one of `network\.pathways`"):
        chain.product(a)


def test_outputs_of_samples_and_of_one():
    network = diamond()
    y = network.outputs(TREE.x)
    np.testing.assert_allclose(network(TREE.x[0], {"a": 1.0, "b": 0.0}), y[0], atol=1e-14)
    assert set(network.activations(TREE.x)) == {"in", "a", "b", "out"}


def test_a_run_is_saved_and_measured(flow, tmp_path):
    flow.save(tmp_path / "run.npz")
    for loaded in (fl.load(tmp_path / "run.npz"), fl.load(tmp_path / "run.npz", diamond())):
        assert fl.distance(loaded.final, flow.final) == 0
        assert loaded.final.node_gates.keys() == {"a", "b"}
    with pytest.raises(ValueError, match="the file holds"):
        fl.load(tmp_path / "run.npz", diamond(node_gates={}))
    np.testing.assert_allclose(flow.along(fl.measures.loss), flow.losses, rtol=1e-12)
    assert float(fl.distance(flow.final, diamond())) > 0.1


def test_printing():
    assert repr(diamond(bias=["a"])) == (
        "GatedGraph(in -> a, in -> b, a -> out, b -> out, in 4, a 8, b 8, out 7, 2 gates for 4 "
        "samples, bias in a, c = 1, 184 parameters, float64)"
    )
    assert "float32" in repr(diamond().astype(jnp.float32))


@pytest.mark.slow
def test_float32():
    flow = fl.gradient_flow(diamond().astype(jnp.float32), TREE.astype(jnp.float32), 3.0)
    assert flow.final.dtype == flow.losses.dtype == jnp.float32


EYE = np.eye(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.GatedGraph({("a", "a"): EYE}), "go in a circle, a -> a"),
        (lambda: fl.GatedGraph({("a", "b"): EYE * np.nan}), r"`weights\[\('a', 'b'\)\]` holds 4"),
        (
            lambda: fl.GatedGraph(
                {("a", "b"): EYE, ("a", "c"): EYE}, outputs={"b": slice(0, 2), "c": slice(2, 3)}
            ),
            r"`outputs\['c'\]` takes 1 of 4 columns of y",
        ),
        (lambda: diamond(node_gates={"a": [1.0] * 5}), "the gates are for 5 samples"),
        (
            lambda: fl.measures.hidden(diamond(), TREE),  # pyright: ignore
            "hidden units stand in layers",
        ),
    ],
)
def test_what_is_refused(make, message, without_type_checks):
    with pytest.raises(ValueError, match=message):
        make()
