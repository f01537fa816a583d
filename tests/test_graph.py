"""Gated deep linear networks on a graph: where they are other networks, and as themselves."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin.networks.pathways import count
from flowlin.training.objective import FullData
from flowlin.training.statistics import GraphStatistics, bundles, is_cheaper, leads

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
TREE = fl.tasks.hierarchy(2)
TIMES = (0.0, 1.0, 3.0)


def graph_of(samples=200):
    """Two sources and sinks, shared edges, skips, gates on nodes and edges, biases, weights."""
    task = fl.Task(
        RNG.normal(size=(samples, 7)),
        RNG.normal(size=(samples, 5)),
        weights=RNG.uniform(0.5, 2, samples),
    )
    network = fl.GatedGraph.init(
        task,
        {"i": 4, "j": 3, "a": 5, "b": 6, "c": 4, "o": 3, "p": 2},
        [("i", "a"), ("j", "a"), ("j", "b"), ("a", "c"), ("b", "c"), ("a", "o"), ("c", "o"),
         ("c", "p"), ("i", "p")],
        node_gates={"a": on(samples), "c": on(samples), "p": RNG.normal(size=samples)},
        edge_gates={("a", "c"): on(samples)},
        variance=0.3, bias=("c", "o"), bias_strength=0.7, key=KEY,
        inputs={"i": slice(0, 4), "j": slice(4, 7)}, outputs={"p": slice(0, 2), "o": slice(2, 5)},
    )  # fmt: skip
    return network, task


def on(samples):
    return RNG.integers(0, 2, samples)


@pytest.fixture(scope="module")
def wide():
    return graph_of()


def diamond(task=TREE, **options):
    """A source, two gated ways, a sink."""
    half = np.arange(task.samples) < task.samples // 2
    options = {"node_gates": {"a": half, "b": ~half}, "variance": 0.05} | options
    nodes = {"in": task.inputs, "a": 8, "b": 8, "out": task.outputs}
    edges = [("in", "a"), ("in", "b"), ("a", "out"), ("b", "out")]
    return fl.GatedGraph.init(task, nodes, edges, **options, key=KEY)


def first_output(network, task):
    return network.outputs(task.x)[0, 0]


EVENTS = (fl.Crossing(first_output, 0.2), fl.LossBelow(0.5))


@pytest.fixture(scope="module")
def flow():
    return fl.gradient_flow(diamond(), TREE, 3.0, ts=TIMES, events=EVENTS)


def close(a, b, tolerance=1e-13):
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * float(jnp.abs(y).max()))


def test_a_chain_is_a_linear_network():
    nodes = {"in": TREE.inputs, "h": 8, "out": TREE.outputs}
    edges = [("in", "h"), ("h", "out")]
    chain = fl.GatedGraph.init(TREE, nodes, edges, variance=0.05, bias=True, key=KEY)
    linear = fl.LinearNetwork.init(TREE, 8, 0.05, key=KEY)
    assert np.array_equal(chain.weights["in", "h"], linear.weights[0])
    a, b = (fl.gradient_flow(one, TREE, 3.0, ts=TIMES) for one in (chain, linear))
    np.testing.assert_allclose(a.losses, b.losses, rtol=1e-13)
    close(a.networks.weights["in", "h"], b.networks.weights[0])
    close(a.final.biases["h"], b.final.biases[0])


def test_one_node_per_unit_is_a_gated_linear_network():
    gates = RNG.uniform(0, 1, (TREE.samples, 3))
    units = fl.LinearNetwork.init(TREE, 3, 0.3, key=KEY)
    (w1, w2), (b, _) = units.weights, units.biases
    gated = fl.GatedLinearNetwork(units.weights, units.biases, gates=(gates,))
    names = [f"u{k}" for k in range(3)]
    rows = {("in", name): w1[k : k + 1] for k, name in enumerate(names)}
    columns = {(name, "out"): w2[:, k : k + 1] for k, name in enumerate(names)}
    graph = fl.GatedGraph(
        rows | columns,
        {name: b[k : k + 1] for k, name in enumerate(names)},
        node_gates=dict(zip(names, gates.T, strict=True)),
    )
    a, b = (fl.gradient_flow(one, TREE, 3.0, ts=TIMES) for one in (graph, gated))
    np.testing.assert_allclose(a.losses, b.losses, rtol=1e-12)
    found = np.concatenate([a.final.weights["in", name] for name in names])
    np.testing.assert_allclose(found, b.final.weights[0], rtol=0, atol=1e-12)


def test_statistics_and_samples_agree(wide):
    network, task = wide
    assert is_cheaper(network, task)

    @functools.partial(jax.jit, static_argnums=0)
    def all_of(by_statistics, network):
        def value(gate):
            other = network.with_sample_gates((gate, *network.sample_gates[1:]))
            return goal(other).value(other)

        def goal(network):
            loss = fl.SquaredError()
            if by_statistics:
                return GraphStatistics.of(network, task, loss)
            return FullData(task, loss)

        by_gate = jax.value_and_grad(value)(network.sample_gates[0])
        return goal(network).gradient(network), by_gate

    (gradient, (value, by_gate)), (wanted, (loss, wanted_by_gate)) = (
        all_of(True, network), all_of(False, network)
    )  # fmt: skip
    np.testing.assert_allclose(value, loss, rtol=1e-13)
    close(gradient, wanted)
    close(by_gate, wanted_by_gate, 1e-12)
    # Those of one source, sink and gates are one regressor.
    assert len(bundles(leads(network), network)) == 12 == count(network)


def test_statistics_are_chosen_where_they_are_cheaper(flow):
    assert flow.stats["objective"] == "FullData"
    network, task = graph_of(8)
    assert not is_cheaper(network, task)
    deep = {f"{side}{k}": on(8) for k in range(12) for side in "ab"}
    layers = [("in",), *((f"a{k}", f"b{k}") for k in range(12)), ("out",)]
    pairs = [(s, t) for low, high in itertools.pairwise(layers) for s in low for t in high]
    edges = {pair: np.eye(1) for pair in pairs}
    assert len(bundles(leads(fl.GatedGraph(edges)), fl.GatedGraph(edges))) == 1
    many = fl.GatedGraph(edges, node_gates=deep)
    assert count(many) == 2**12
    assert leads(many) is None
    end = "out"
    for k in range(2):  # two more forks
        ways = (f"c{k}", f"d{k}")
        edges |= {(end, way): np.eye(1) for way in ways} | {(w, f"e{k}"): np.eye(1) for w in ways}
        end = f"e{k}"
    more = fl.GatedGraph(edges)
    with pytest.raises(ValueError, match="has 16,384 pathways, and no more than 10,000"):
        more.pathways  # noqa: B018


def test_the_flow_sees_pathway_statistics_alone(wide):
    network, task = wide
    stats, pathways = network.pathway_statistics(task), network.pathways
    assert len(pathways) == len(set(pathways)) == count(network) == 12
    goal = FullData(task, fl.SquaredError())
    force = jax.tree.map(jnp.negative, jax.jit(lambda n: goal.gradient(n))(network)[0])
    products = {p: along(network, p.edges) for p in pathways}
    for p in pathways[:2]:
        np.testing.assert_allclose(network.product(p), products[p], rtol=1e-13)
    wanted = dict.fromkeys(network.weights, 0.0)
    for p in pathways:
        others = [j for j in pathways if j.target == p.target]
        error = stats.yx[p] - sum(products[j] @ stats.x[j, p] for j in others)
        for k, edge in enumerate(p.edges):
            if edge in wanted:
                before, after = p.edges[:k], p.edges[k + 1 :]
                pushed = along(network, after).T @ error if after else error
                wanted[edge] += pushed @ along(network, before).T if before else pushed
    close(wanted, force)


def along(network, edges):
    """The product of matrices by hand; that of a bias is c b."""
    found = None
    for a, b in edges:
        bias = a == "bias"
        w = np.asarray(0.7 * network.biases[b][:, None] if bias else network.weights[a, b])
        found = w if found is None else w @ found
    return found


def test_pathway_statistics_are_averages_over_samples(wide):
    network, task = wide
    stats = network.pathway_statistics(task)
    columns = {"i": slice(0, 4), "j": slice(4, 7), "p": slice(0, 2), "o": slice(2, 5)}
    share = np.asarray(task.weights / task.weights.sum())

    def of(p):
        x = np.ones((200, 1)) if p.source == "bias" else np.asarray(task.x[:, columns[p.source]])
        gate = np.ones(200)
        for name in {*p.nodes, *p.edges} & {*network.node_gates, *network.edge_gates}:
            gate = gate * network.gate(name)
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


def test_outputs_of_samples_and_of_one(without_type_checks):
    network = diamond()
    y = network.outputs(TREE.x)
    np.testing.assert_allclose(network(TREE.x[0], {"a": 1.0, "b": 0.0}), y[0], atol=1e-14)
    assert set(network.activations(TREE.x)) == {"in", "a", "b", "out"}
    for call, message in (
        (lambda: network(TREE.x[0]), "the gates are for 4 samples and the inputs have 1"),
        (lambda: network(TREE.x[0], {"a": 1.0}), r"`gates` must have one number for each of"),
        (lambda: network(TREE.x[0], {"a": 1.0, "b": [0.0]}), r"`gates\['b'\]` must be a number"),
        (lambda: network.outputs(TREE.x[:3]), "the gates are for 4 samples and the inputs have 3"),
        (lambda: network.outputs(TREE.x[0]), r"`x` must have shape \(P, 4\)"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_run_is_saved_resumed_and_measured(flow, tmp_path):
    assert {"crossing", "loss"} == set(flow.events.name)
    flow.save(tmp_path / "run.npz")
    for loaded in (fl.load(tmp_path / "run.npz"), fl.load(tmp_path / "run.npz", diamond())):
        assert fl.distance(loaded.final, flow.final) == 0
        assert loaded.model.node_gates.keys() == flow.model.node_gates.keys()
    with pytest.raises(ValueError, match="the file holds"):
        fl.load(tmp_path / "run.npz", diamond(node_gates={}))
    np.testing.assert_allclose(flow.along(fl.measures.loss), flow.losses, rtol=1e-12)
    file = tmp_path / "at.npz"
    options = {"ts": TIMES, "events": EVENTS, "checkpoint": file}
    for _ in range(2):
        assert fl.distance(fl.gradient_flow(diamond(), TREE, 3.0, **options).final, flow.final) == 0
    assert float(fl.distance(flow.final, diamond())) > 0.1


@pytest.mark.slow
def test_transformations_and_derivatives():
    network = diamond()
    step = jax.tree.map(lambda w: 1e-4 * w, network.weights)

    def end(share):
        weights = jax.tree.map(lambda w, d: w + share * d, network.weights, step)
        own = network.with_parameters((weights, network.biases))
        return fl.gradient_flow(own, TREE, 3.0, max_steps=64).losses[-1]

    both = jax.jit(jax.vmap(jax.value_and_grad(end)))
    (low, here, high), slopes = both(jnp.array([-1.0, 0.0, 1.0]))
    np.testing.assert_allclose(slopes[1], (high - low) / 2, rtol=1e-5)
    np.testing.assert_allclose(here, fl.gradient_flow(network, TREE, 3.0).losses[-1], rtol=1e-9)


@pytest.mark.parametrize("kind", ["graph", "gated"])
def test_batches_take_their_samples_gates(kind):
    """Whole batches in any order are descent; a batch of other gates would be another one."""
    network = diamond()
    if kind == "gated":
        units = fl.LinearNetwork.init(TREE, 3, 0.3, key=KEY)
        gates = np.random.default_rng(1).uniform(0, 1, (4, 3))
        network = fl.GatedLinearNetwork(units.weights, units.biases, gates=(gates,))
    whole = fl.gradient_descent(network, TREE, 0.1, 20)
    batches = fl.stochastic_gradient_descent(network, TREE, 0.1, 20, batch_size=4, key=KEY)
    assert fl.distance(whole.final, batches.final) < 1e-13


def test_printing():
    assert repr(diamond(bias=["a"])) == (
        "GatedGraph(in -> a, in -> b, a -> out, b -> out, in 4, a 8, b 8, out 7, 2 gates for 4 "
        "samples, bias in a, c = 1, 184 parameters, float64)"
    )
    assert "float32" in repr(diamond().astype(jnp.float32))


def test_float32():
    flow = fl.gradient_flow(diamond().astype(jnp.float32), TREE.astype(jnp.float32), 3.0)
    assert flow.final.dtype == flow.losses.dtype == jnp.float32


EYE = np.eye(2)
BAD = (
    (
        lambda: fl.GatedGraph({("a", "b"): EYE, ("b", "c"): EYE, ("c", "b"): EYE}),
        "in a circle, (b -> c -> b|c -> b -> c)",
    ),
    (lambda: fl.GatedGraph({("a", "a"): EYE}), "go in a circle, a -> a"),
    (lambda: fl.GatedGraph({}), "`weights` is empty"),
    (lambda: fl.GatedGraph([EYE]), "`weights` must be a dictionary"),
    (lambda: fl.GatedGraph({"ab": EYE}), r"must be pairs of nodes, \(from, to\)"),
    (lambda: fl.GatedGraph({("bias", "a"): EYE}), "the name of the constant source"),
    (lambda: fl.GatedGraph({("a", "b"): EYE * np.nan}), r"`weights\[\('a', 'b'\)\]` holds 4"),
    (
        lambda: fl.GatedGraph({("a", "b"): EYE, ("b", "c"): np.eye(3)}),
        "gives node 'b' 3 units, and .* gives it 2",
    ),
    (lambda: fl.GatedGraph({("a", "b"): EYE}, {"c": [1.0]}), "`biases` names 'c', which no edge"),
    (lambda: fl.GatedGraph({("a", "b"): EYE}, {"b": [1.0]}), r"`biases\['b'\]` must have shape"),
    (
        lambda: fl.GatedGraph({("a", "b"): EYE}, node_gates={"c": [1.0]}),
        "`node_gates` names 'c', which is none of",
    ),
    (
        lambda: fl.GatedGraph({("a", "b"): EYE}, edge_gates={("b", "a"): [1.0]}),
        "`edge_gates` names",
    ),
    (
        lambda: fl.GatedGraph(
            {("a", "b"): EYE}, node_gates={"a": [1, 0]}, edge_gates={("a", "b"): [1, 0, 1]}
        ),
        "is for 3 samples and `node_gates",
    ),
    (lambda: fl.GatedGraph({("a", "b"): EYE}, node_gates={"a": 1.0}), r"must have shape \(P,\)"),
    (lambda: fl.GatedGraph({("a", "c"): EYE, ("b", "c"): EYE}), "`inputs` leaves out node 'a'"),
    (
        lambda: fl.GatedGraph(
            {("a", "c"): EYE, ("b", "c"): EYE}, inputs={"a": slice(0, 2), "b": slice(1, 3)}
        ),
        "overlap at column 1 of x",
    ),
    (
        lambda: fl.GatedGraph(
            {("a", "b"): EYE, ("a", "c"): EYE}, outputs={"b": slice(0, 2), "c": slice(2, 3)}
        ),
        r"`outputs\['c'\]` takes 1 of 4 columns of y",
    ),
    (
        lambda: fl.GatedGraph({("a", "b"): EYE, ("b", "c"): EYE}, inputs={"b": slice(0, 2)}),
        "'b', which has edges into it; a source has none",
    ),
    (lambda: fl.GatedGraph({("a", "b"): EYE}, inputs={"x": slice(0, 2)}), "'x', which is no node"),
    (
        lambda: fl.GatedGraph.init(TREE, {"in": 4, "out": 7}, [("in", "x")], key=KEY),
        r"`edges\[0\]` = .* has node 'x', which is none of `nodes`",
    ),
    (
        lambda: fl.GatedGraph.init(TREE, {"in": 4, "x": 3, "out": 7}, [("in", "out")], key=KEY),
        "`nodes` has 'x', which no edge leads to",
    ),
    (
        lambda: fl.GatedGraph.init(TREE, {"in": 3, "out": 7}, [("in", "out")], key=KEY),
        "`network` maps 3 inputs",
    ),
    (lambda: diamond(node_gates={"a": [1.0] * 5}), "the gates are for 5 samples"),
    (lambda: diamond(variance={("in", "a"): 1.0}), "`variance` must be a number, or have one by"),
    (lambda: diamond(bias=["x"]), "`bias` names 'x'"),
    (lambda: fl.theory.solve(diamond(), TREE), "hidden units stand in layers, got a GatedGraph"),
    (lambda: fl.measures.hidden(diamond(), TREE), "hidden units stand in layers"),
    (lambda: fl.gradient_flow(diamond(), TREE, 1.0, tau=[1.0, 2.0]), "`tau` must be one number"),
    (
        lambda: fl.gradient_flow(diamond(), TREE, 1.0, events=fl.UnitSwitches()),
        "a GatedGraph has no gates of their own",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("make", "message"), BAD)
def test_what_is_refused(make, message, without_type_checks):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
