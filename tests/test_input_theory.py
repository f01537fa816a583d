"""Bad input to theory, measures and plots: each is told by name, before anything is computed."""

# pyright: reportArgumentType=false
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

import matplotlib.pyplot as plt

import flowlin as fl

measures, plot, theory = fl.measures, fl.plot, fl.theory
KEY = jax.random.key(0)
TASK = fl.tasks.hierarchy(2)
OTHER = fl.Task(TASK.x, TASK.y[::-1] + 0.5 * TASK.y, name="other")
XOR = fl.tasks.xor()
RELU = fl.ReLUNetwork.init(TASK, 6, variance=2e-2, key=KEY)
LINEAR = fl.LinearNetwork(RELU.weights, RELU.biases)
PLAIN = fl.LinearNetwork(RELU.weights)
UNKNOWN = jax.tree.map(lambda a: a * np.nan, TASK)
MODES, UNBIASED = theory.modes(TASK, 1.0), theory.modes(TASK)
REPRESENTATION = np.arange(12.0).reshape(2, 3, 2)


@pytest.fixture(scope="module")
def descent():
    return fl.gradient_descent(LINEAR, TASK, 1e-2, 4)


@pytest.fixture(autouse=True)
def no_figures():
    yield
    plt.close("all")


def stack(one):
    return jax.tree.map(lambda a: jnp.stack([a, a]), one)


def half(one):
    return jax.tree.map(lambda a: a.astype(jnp.float16), one)


def refused(calls):
    """A table of calls and what the message must say."""
    return pytest.mark.parametrize(("call", "message"), calls)


pytestmark = pytest.mark.usefixtures("without_type_checks")


# --- modes know what they were made from --------------------------------------------------------

FOREIGN = [
    (UNBIASED, TASK, "are for c = 0 and the network has c = 1"),
    (theory.modes(TASK, 2.0), TASK, "are for c = 2 and the network has c = 1"),
    (MODES, OTHER, "of other data than `task` 'other'"),
    (theory.modes(XOR, 1.0), TASK, "of a task with 2 inputs and 2 outputs"),
]
USES = {
    "strengths": lambda modes, task, **how: modes.strengths(RELU, task, **how),
    "observable": lambda modes, task, **how: modes.observable(RELU, task, **how),
    "hits": lambda modes, task, **how: fl.ModeHits(modes, 0.1, **how).watches(
        RELU, task, None, None
    ),
    "mode_matrix": lambda modes, task, **how: measures.mode_matrix(RELU, task, modes, **how),
    "mode_shares": lambda modes, task, **how: measures.mode_shares(RELU, task, modes, **how),
    "hidden_vectors": lambda modes, task, **how: measures.hidden_vectors(RELU, task, modes, **how),
    "alignment": lambda modes, task, **how: measures.alignment(RELU, task, modes, **how),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("modes", "task", "message"), FOREIGN)
def test_modes_of_another_origin_are_refused(use, modes, task, message):
    with pytest.raises(ValueError, match=message):
        USES[use](modes, task)
    if "inputs" in message:  # cannot be meant
        with pytest.raises(ValueError, match=message):
            USES[use](modes, task, check=False)
    else:
        USES[use](modes, task, check=False)


def test_modes_of_a_network_have_its_c():
    readout = fl.LinearNetwork(RELU.weights, (None, np.ones(RELU.widths[-1])), 2.0)
    strong = fl.LinearNetwork(RELU.weights, RELU.biases, 2.0)
    for network, c in ((RELU, 1.0), (strong, 2.0), (PLAIN, 0.0), (readout, 0.0)):
        modes = theory.modes(TASK, network)
        assert eqx.tree_equal(modes, theory.modes(TASK, c))
        modes.strengths(network, TASK)
    with pytest.raises(ValueError, match="`network` maps 4 inputs"):
        theory.modes(XOR, RELU)
    with pytest.raises(ValueError, match="concrete task and bias strength"):
        jax.jit(lambda network: theory.modes(TASK, network).s)(RELU)


def test_modes_of_a_graph_have_its_c():
    """A graph's modes had any c: strengths of a biased one were taken by the modes of c = 0."""
    (w1, w2), (b, _) = RELU.parameters
    weights = {("x", "a"): w1, ("a", "y"): w2}
    graph = fl.GatedGraph(weights, {"a": b}, 2.0)
    inner = fl.GatedGraph(weights, {"y": np.ones(7)}, 2.0)
    for network, c in ((graph, 2.0), (inner, 0.0), (fl.GatedGraph(weights), 0.0)):
        modes = theory.modes(TASK, network)
        assert modes.bias_strength == c
        assert len(fl.ModeHits(modes, 0.1).watches(network, TASK, None, None)) == 1
    with pytest.raises(ValueError, match="are for c = 0 and the network has c = 2"):
        fl.ModeHits(UNBIASED, 0.1).watches(graph, TASK, None, None)
    with pytest.raises(ValueError, match="are for c = 1 and the network has no bias"):
        MODES.strengths(fl.GatedGraph(weights), TASK)
    many = fl.GloballyGatedNetwork((w1, w2), (b, None), 2.0, gates=np.ones((TASK.samples, 1)))
    assert theory.modes(TASK, many).bias_strength == 2.0
    with pytest.raises(ValueError, match="are for c = 0 and the network has c = 2"):
        UNBIASED.strengths(many, TASK)
    with pytest.raises(TypeError, match=r"no argument `network`: .*modes\(task, netw"):
        theory.modes(TASK, network=graph)


def test_modes_and_a_network_without_bias():
    with pytest.raises(ValueError, match="are for c = 1 and the network has no bias"):
        MODES.hidden_vectors(PLAIN)
    with pytest.raises(ValueError, match="are for c = 1 and the network has no bias"):
        theory.balanced_strength(PLAIN, MODES)
    with pytest.raises(ValueError, match="are for c = 0 and the network has c = 1"):
        theory.balanced_strength(LINEAR, UNBIASED)
    assert MODES.hidden_vectors(PLAIN, check=False)[0].shape == (5, 6)
    UNBIASED.strengths(PLAIN, TASK)
    UNBIASED.strengths(fl.LinearNetwork(RELU.weights, RELU.biases, 0.0), TASK)


def test_the_fingerprint_survives_precision_order_and_tracing():
    order = np.array([2, 0, 3, 1])
    shuffled = fl.Task(TASK.x[order], TASK.y[order])
    MODES.strengths(RELU, shuffled)
    single = jax.tree.map(lambda a: a.astype(jnp.float32), (MODES, RELU, TASK))
    for modes in (MODES, single[0]):
        modes.strengths(single[1], single[2])
        modes.strengths(RELU, TASK)
        with pytest.raises(ValueError, match="other data"):
            modes.strengths(RELU, OTHER)
    jax.jit(lambda modes, task: modes.strengths(RELU, task))(MODES, TASK)
    with pytest.raises(ValueError, match="other data"):  # known numbers, under jit too
        jax.jit(lambda network: MODES.strengths(network, OTHER))(RELU)
    with pytest.raises(ValueError, match=r"2 inputs and 2 outputs"):
        jax.jit(lambda modes, task: modes.strengths(RELU, task))(theory.modes(XOR, 1.0), TASK)


def test_strengths_of_another_kind_of_network():
    observable = MODES.observable(LINEAR, TASK)
    with pytest.raises(ValueError, match="another kind of network"):
        observable(fl.ReLUNetwork.init(fl.tasks.hierarchy(3), 6, key=KEY), fl.tasks.hierarchy(3))


# --- everything else ----------------------------------------------------------------------------


@refused(
    [
        (lambda: fl.ModeHits(MODES, 0.1, direction="Down"), '`direction` must be None, "up" or'),
        (lambda: fl.ModeHits("modes", 0.1), "`modes` must be modes, as `theory.modes"),
        (lambda: fl.ModeHits(MODES), "`rho` or `share` must be given, one of them, got neither"),
        (lambda: fl.ModeHits(MODES, 0.1, share=0.5), "one of them, got both"),
        (lambda: fl.ModeHits(MODES, share="half"), "`share` must be an array of real numbers"),
        (lambda: fl.ModeHits(MODES, np.nan), "`rho` must be finite"),
        (lambda: fl.ModeHits(MODES, 0.1, check=None), "`check` must be True or False"),
        (lambda: theory.modes((TASK.x, TASK.y)), "`task` must be an fl.Task"),
        (lambda: theory.modes(TASK, np.nan), "`bias_strength` must be finite"),
        (lambda: theory.modes(TASK, "1"), "`bias_strength` must be a number"),
        (lambda: theory.modes(TASK, eqx.nn.Linear(3, 2, key=KEY)), "or a flowlin network with a c"),
        (lambda: theory.bias_mode(TASK, np.inf), "`bias_strength` must be finite"),
        (lambda: theory.bias_mode(TASK.x, 1.0), "`task` must be an fl.Task"),
        (lambda: theory.solve(LINEAR, TASK, tolerance=np.nan), "`tolerance` must be finite"),
        (lambda: theory.solve(LINEAR, TASK, tolerance=-1), "`tolerance` must be finite and zero"),
        (lambda: theory.solve(LINEAR, TASK, -1.0), "`tau` must be finite and positive"),
        (lambda: theory.solve(LINEAR, TASK, 0), "`tau` must be finite and positive"),
        (lambda: theory.solve(LINEAR, TASK, np.nan), "`tau` must be finite and positive"),
        (lambda: theory.solve("linear", TASK), "`network` must be a flowlin network"),
        (lambda: theory.solve(LINEAR, XOR), "`network` maps 4 inputs to 7 outputs"),
        (lambda: theory.solve(LINEAR, TASK).product(-1.0), "`t` must be zero or positive"),
        (lambda: theory.solve(LINEAR, TASK).product("1"), "`t` must be an array"),
        (lambda: theory.solve(LINEAR, TASK).error(LINEAR), "`flow` must be a trajectory"),
        (lambda: MODES.augmented(XOR.x), r"`x` must have shape \(P, 4\)"),
        (
            lambda: theory.balanced_gram(0.1, *LINEAR.weights, np.ones((7, 4)), balance=[1, 2]),
            r"`balance` must be a single number, got shape \(2,\)",
        ),
        (lambda: theory.after_linearization(RELU, TASK, 0.0), "`tau` must be finite and positive"),
        (lambda: theory.after_linearization(RELU, TASK, always_on=[2] * 6), "`always_on` must be"),
        (lambda: theory.after_linearization(RELU, TASK, always_on="x"), "`always_on` must be"),
        (lambda: theory.early_phase(RELU, TASK, np.nan), "`tau` must be finite and positive"),
        (lambda: theory.early_phase(RELU, TASK, t1=-1), "`t1` must be finite and positive"),
        (lambda: theory.early_phase(RELU, TASK, slots=0), "`slots` must be a whole number of 1"),
        (lambda: theory.early_phase(RELU, TASK, max_pieces=2.5), "`max_pieces` must be a whole"),
        (lambda: theory.early_phase(RELU, TASK, loss="mse"), r"`loss` must be fl\.SquaredError"),
        (lambda: theory.slowed_clock("early", MODES), "`early` must be an early phase"),
        (lambda: theory.balanced_strength(RELU, "modes"), "`modes` must be modes"),
        (lambda: theory.modes(stack(TASK)), "`task` is a stack of tasks; take one"),
        (
            lambda: theory.bias_mode(stack(TASK), 1.0),
            r"stack of tasks; take one, as in jax\.tree",
        ),
        (lambda: theory.modes(UNKNOWN), r"`task\.x` holds 16 value"),
        (lambda: theory.modes(TASK, 1e100), r"`bias_strength` = 1e\+100 has numbers above 1e\+19"),
        (lambda: theory.modes(half(TASK)), r"`task\.x` must be an array of float32 or float64, go"),
        (
            lambda: MODES.strengths(half(RELU), TASK),
            r"`network\.weights\[0\]` must be an array of f",
        ),
    ]
)
def test_theory(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@refused(
    [
        (lambda: measures.hidden("network", TASK), "`network` must be a flowlin network"),
        (lambda: measures.hidden(RELU, XOR), r"`task\.x` must have shape \(P, 4\)"),
        (lambda: measures.hidden(RELU, "task"), "`task` must be an array"),
        (lambda: measures.hidden(RELU, np.full((2, 4), np.nan)), "`task` holds 8 value"),
        (lambda: measures.hidden(RELU, None), "pass a `task`"),
        (lambda: measures.hidden(RELU, TASK, layer=0.5), "`layer` must be a whole number"),
        (lambda: measures.activity(RELU, XOR), r"`task\.x` must have shape \(P, 4\)"),
        (lambda: measures.activity(RELU, TASK, quantile=np.nan), "`quantile` must lie in"),
        (lambda: measures.conserved(None), "`network` must be a flowlin network"),
        (lambda: measures.drift(1.0), "`values` must have a first axis"),
        (lambda: measures.drift("values"), "`values` must be an array"),
        (lambda: measures.loss(RELU, XOR), "`network` maps 4 inputs to 7 outputs"),
        (lambda: measures.loss(RELU, TASK, loss="mse"), "`loss` must be a loss of flowlin"),
        (lambda: measures.error_rate(RELU, XOR), "`network` maps 4 inputs to 7 outputs"),
        (lambda: measures.on_grid(RELU, axes="x"), "`axes` must be an array"),
        (lambda: measures.on_grid(RELU, average=0.5), "`average` must be a whole number"),
        (lambda: measures.effective_map(RELU, XOR), r"`task\.x` must have shape \(P, 4\)"),
        (lambda: measures.velocity(RELU, XOR), "`network` maps 4 inputs to 7 outputs"),
        (lambda: measures.velocity(RELU, TASK, tau=-1), "`tau` must be finite and positive"),
        (lambda: measures.kink_rates(RELU, TASK, velocity=1), "`velocity` must be a function"),
        (lambda: measures.mode_matrix(RELU, TASK, None), "`modes` must be modes"),
        (lambda: measures.alignment(RELU, "task", MODES), "`task` must be an fl.Task"),
        (lambda: measures.effective_rank("matrix"), "`matrix` must be an array"),
        (lambda: measures.effective_rank(np.zeros((0, 2))), "`matrix` is empty"),
        (lambda: measures.effective_rank_of_gram([1.0]), "`hidden` must have one row per sample"),
        (lambda: measures.gram([[1.0], [1.0, 2.0]]), "`hidden` must be an array of numbers"),
        (lambda: measures.mds(REPRESENTATION, 1.5), "`dimensions` must be a whole number"),
        (lambda: measures.mds(REPRESENTATION, 0), "`dimensions` must be a whole number"),
        (lambda: measures.distance_ratio(REPRESENTATION, ["a", "b", "c"]), "`classes` must be num"),
        (lambda: measures.linear_cka(REPRESENTATION, None), "`b` must be an array"),
        (lambda: measures.linear_cka(REPRESENTATION, REPRESENTATION, debiased=1), "`debiased`"),
        (lambda: measures.variance_explained(REPRESENTATION, "x"), "`features` must be an array"),
        (lambda: measures.along(RELU, measures.norms), "`flow` must hold networks stacked"),
        (lambda: measures.along("flow", measures.norms), "`flow` must be a trajectory, or"),
        (lambda: measures.OnTask("loss", TASK), "`measure` must be a function"),
        (lambda: measures.OnTask(lambda: 1.0, TASK), r"`measure` must be a function of \(network,"),
        (lambda: measures.along(LINEAR_STACK, lambda: 1.0), r"`measure` must be a function of \("),
        (lambda: measures.kink_rates(RELU, TASK, velocity=lambda: 1), "and takes \\(\\)"),
        (lambda: measures.kink_rates(RELU, TASK, velocity=lambda n, t: object()), "`velocity` mus"),
        (lambda: measures.kink_rates(RELU, TASK, velocity=lambda n, t: t), "returns .weights, bia"),
        (lambda: measures.error_rate(RELU, UNKNOWN), r"`task\.x` holds 16 value"),
        (lambda: measures.hidden(RELU, UNKNOWN), r"`task\.x` holds 16 value"),
        (lambda: measures.norms(LINEAR_STACK), "`network` is a stack of networks; take one"),
        (
            lambda: measures.norms(half(RELU)),
            r"`network\.weights\[0\]` must be an array of float32",
        ),
        (lambda: measures.norms(jax.tree.map(lambda a: None, RELU)), "`network` holds no arrays"),
        (lambda: measures.OnTask(measures.loss, TASK.x), "`task` must be an fl.Task"),
    ]
)
def test_measures(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_flow_of_another_network_is_no_error(descent):
    with pytest.raises(ValueError, match="`flow` is of another network or task"):
        theory.solve(PLAIN, TASK).error(descent)
    with pytest.raises(ValueError, match="`flow` is a stack of runs; take one"):
        theory.solve(LINEAR, TASK).error(stack(descent))


def descended(network=LINEAR, task=TASK, rate=1e-2, **options):
    return fl.gradient_descent(network, task, rate, 4, **options)


FIRST = eqx.tree_at(lambda n: n.weights[1], jax.tree.map(lambda _: True, LINEAR), False)
SHIFTED = fl.LinearNetwork([1.1 * w for w in LINEAR.weights], LINEAR.biases)


@refused(
    [
        ({"tau": 2.0}, r"`flow` has tau = 2.0, and the closed form is that of tau = 1; pass that"),
        ({"loss": fl.SquaredError("sum")}, r"tau = 1.0 with SquaredError.*that of tau = 4 with"),
        ({"loss": fl.CrossEntropy()}, r"`flow` descends CrossEntropy\(\), .*`loss=fl.Squared"),
        ({"weight_decay": 0.1}, r"another function than its loss \(with weight decay\)"),
        ({"trainable": FIRST}, "`flow` moves other arrays of the network"),
        ({"task": OTHER}, "`flow` is of other data than the closed form, .* task 'other'"),
        ({"network": SHIFTED}, "`flow` starts from another network than the closed form"),
    ]
)
def test_a_closed_form_is_compared_with_a_flow_of_its_problem(call, message):
    """Each of these gave a number that looked like the form's error."""
    flow, solution = descended(**call), theory.solve(LINEAR, TASK)
    lazy = theory.lazy(LINEAR, TASK)
    for found in (solution, lazy):
        with pytest.raises(ValueError, match=f"{message}.*`check=False` where"):
            found.error(flow)
        assert found.error(flow, check=False).shape == flow.ts.shape
    if "network" not in call:  # the model after t* is also for other networks
        after = theory.AfterLinearization(solution, np.ones(6, bool))
        with pytest.raises(ValueError, match=message):
            after.error(flow)
        assert after.error(flow, check=False).shape == flow.ts.shape


def test_a_sum_at_the_speed_of_the_mean_is_of_the_same_problem(descent, tmp_path):
    solution = theory.solve(LINEAR, TASK)
    quick = descended(rate=2.5e-3, loss=fl.SquaredError("sum"), tau=4.0)
    np.testing.assert_allclose(solution.error(quick), solution.error(descent), rtol=1e-9)
    jitted = jax.jit(lambda found, run: found.error(run))(solution, descent)
    np.testing.assert_allclose(jitted, solution.error(descent), rtol=1e-9)
    # A file knows the loss and what was added to it, and so says more than nothing.
    flow = fl.gradient_flow(LINEAR, TASK, 0.05, weight_decay=0.1, max_steps=64)
    flow.save(tmp_path / "flow.npz")
    with pytest.raises(ValueError, match="with weight decay"):
        solution.error(fl.load(tmp_path / "flow.npz"))
    narrow = TASK.astype("float32")
    assert solution.error(descended(LINEAR, narrow)).shape == descent.ts.shape


def test_a_measure_returns_arrays(descent):
    with pytest.raises(ValueError, match="`measure` must return numbers or arrays"):
        measures.along(LINEAR_STACK, lambda network, task: "text")
    with pytest.raises(ValueError, match="`measure` must be a function"):
        measures.along(descent, 1.0)


LINEAR_STACK = stack(LINEAR)
TIMES, ROWS = np.linspace(0, 1, 3), np.ones((3, 2))
CUBE = np.zeros((2, 2, 2))


@refused(
    [
        (lambda f: plot.losses({"a": f}, ax="x"), "`ax` must be matplotlib Axes, got 'x'"),
        (lambda f: plot.losses([f]), "`runs` must be a dictionary"),
        (lambda f: plot.losses({"a": "f"}), r"`runs\['a'\]` must be a trajectory"),
        (lambda f: plot.losses({"a": []}), r"`runs\['a'\]` must be a trajectory"),
        (lambda f: plot.modes("flow", MODES), "`flow` must be a trajectory"),
        (lambda f: plot.modes(f, "modes"), "`modes` must be modes"),
        (lambda f: plot.modes(f, MODES, rho="x"), "`rho` must be an array"),
        (lambda f: plot.modes(f, MODES, rho=np.ones(2)), r"`rho` must be a number or have shape"),
        (lambda f: plot.modes(f, MODES, closed="x"), "`closed` must be an array"),
        (lambda f: plot.modes(f, MODES, shown="ab"), "`shown` must be a whole number"),
        (lambda f: plot.modes(f, MODES, share=1), "`share` must be True or False"),
        (lambda f: plot.modes(f, MODES, label=3), "`label` must be a string"),
        (lambda f: plot.kinks("x", ROWS), "`ts` must be an array"),
        (lambda f: plot.kinks(TIMES, np.zeros((3, 0))), "`positions` is empty"),
        (lambda f: plot.kinks(TIMES, ROWS, color="nope"), "`look` must hold keywords.*nope"),
        (lambda f: plot.kinks(TIMES, ROWS, colur="C0"), "`look` must hold keywords.*colur"),
        (lambda f: plot.activity(f, parts="dead"), "`parts` must be some of"),
        (lambda f: plot.activity(f, conventions=3), "`conventions` must be some of"),
        (lambda f: plot.activity(f, colour="nope"), "`colour` must be a colour"),
        (lambda f: plot.activity(f, layer=-1), "`layer` must be a whole number"),
        (lambda f: plot.gates(f, np.nan), "`t` must be finite"),
        (lambda f: plot.gates(f, "t"), "`t` must be a number"),
        (lambda f: plot.gate_history(f, units="a"), "`units` must be a whole number"),
        (lambda f: plot.representations(ROWS), "`points` must have shape"),
        (lambda f: plot.representations(REPRESENTATION, labels="abc"), "`labels` must have 3"),
        (lambda f: plot.representations(REPRESENTATION, colours=["x"] * 3), r"`colours\[0\]` must"),
        (lambda f: plot.cube(CUBE, [0, 1], axis="x"), "`axis` must be a whole number"),
        (lambda f: plot.cube(CUBE, [0, 1], axis=0, limits=1), "`limits` must be two numbers"),
        (lambda f: plot.cube("x", [0, 1]), "`values` must be an array"),
        (lambda f: plot.sweep_map([0], [1], [["x"]], names="abc"), "`names` must be three names"),
        (lambda f: plot.sweep_line([0], [["x"]], names=("a", "b")), "`values` must be an array"),
        (lambda f: plot.sweep_line([0], [[1]], names=("a", 1)), r"`names\[1\]` must be a string"),
        (lambda f: plot.work_precision({}), "`contenders` is empty"),
        (lambda f: plot.work_precision([1]), "`contenders` must be a dictionary"),
        (lambda f: plot.work_precision({"a": 1}), r"`contenders\['a'\]` must be a pair"),
        (lambda f: plot.work_precision({"a": ([1], [1])}, unit=1), "`unit` must be a string"),
        (lambda f: plot.look(1), "`kind` = 1 is unknown"),
        (lambda f: plot.look("relu", -1), "`n` must be a whole number"),
        (lambda f: plot.shades("nope", 3), "`colour` must be a colour"),
        (lambda f: plot.shades("relu", 2.5), "`number` must be a whole number"),
        (lambda f: plot.animate(1, 3, "a.gif"), "`draw` must be a function"),
        (
            lambda f: plot.animate(lambda k: k, 3, "a.gif"),
            r"`draw` must be a function of \(figure,",
        ),
        (lambda f: plot.animate(lambda f, k: np.int64("x"), 3, "a.gif"), "invalid literal for int"),
        (lambda f: plot.animate(print, 0, "a.gif"), "`frames` must be a whole number of 1"),
        (lambda f: plot.animate(print, 3, 7), "`path` must be a path"),
        (lambda f: plot.animate(print, 3, "a.gif", fps=0), "`fps` must be finite and positive"),
        (lambda f: plot.animate(print, 3, "a.gif", size=3), "`size` must be two numbers"),
    ]
)
def test_pictures(call, message, descent):
    with pytest.raises(ValueError, match=message):
        call(descent)


def test_a_misspelt_keyword_suggests_the_right_one():
    with pytest.raises(TypeError, match="did you mean `tolerance`"):
        theory.solve(LINEAR, TASK, tolerence=1e-3)  # pyright: ignore
    with pytest.raises(TypeError, match="did you mean `quantile`"):
        measures.activity(RELU, TASK, quantil=0.1)  # pyright: ignore
    with pytest.raises(TypeError, match="did you mean `binary`"):
        fl.tasks.xor(binry=True)  # pyright: ignore
