"""What objects print: text, notebooks' tables, pandas."""

import html.parser
import re
import sys
import textwrap
import warnings

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin._tools.arguments import an
from flowlin.record.event_log import Channel
from flowlin.record.linearization import linearization_of_log, logged, maximum
from flowlin.record.trajectory import _maxima

jax.config.update("jax_enable_x64", True)

pandas = pytest.importorskip("pandas")

TASK = fl.tasks.xor()
RELU = fl.ReLUNetwork.init(TASK, 6, 1e-2, key=jax.random.key(0))
LINEAR = fl.LinearNetwork.init(TASK, 3, 0.1, key=jax.random.key(0))
BARS = fl.Task(np.eye(2), np.diag([3.0, 1.0]), name="bars")


def lines(text):
    return textwrap.dedent(text).strip("\n")


@pytest.fixture(scope="module")
def walk():
    return fl.gradient_flow(RELU, TASK, 6.0, ts=np.linspace(0, 6, 7))


def until_low(**options):
    """A linear network's run until its loss is low, of a task and an event with bad names."""
    task = fl.Task(TASK.x, TASK.y, name="<script>alert(1)</script> & \"'")
    low = fl.LossBelow(0.3, terminate=True, name="<b>low</b>")
    return fl.gradient_flow(LINEAR, task, 9.0, ts=[0.0, 8.0], events=(low,), **options)


def test_what_is_not_resolved_is_shown():
    flow = until_low()
    assert "unresolved" not in repr(flow)
    count = jnp.asarray(3)
    flow = eqx.tree_at(lambda f: f.events.unresolved.count, flow, count)
    assert "unresolved  crossings may be missing in 3 places" in repr(flow)


def layer(outputs, inputs):
    return jnp.ones((outputs, inputs))


def test_networks_are_one_line():
    two, three = (layer(64, 8), layer(15, 64)), (layer(5, 8), layer(4, 5), layer(2, 4))
    b = jnp.ones(64)
    relu = fl.ReLUNetwork(two, (b, None), slope=0.1)
    cases = {
        "LinearNetwork(8 -> 64 -> 15, no bias, 1,472 parameters, float64)": fl.LinearNetwork(two),
        "LinearNetwork(8 -> 64, bias in layers 0, c = 3, 576 parameters, float32)": (
            fl.LinearNetwork(two[:1], (b,), 3.0).astype(jnp.float32)
        ),
        "ReLUNetwork(8 -> 64 -> 15, bias in hidden layers, c = 1, slope 0.1, 1,536 parameters, "
        "float64)": relu,
        "GatedLinearNetwork(8 -> 5 -> 4 -> 2, bias in layers 1, c = 1, gates (5,), (9, 4), "
        "72 parameters, float64)": fl.GatedLinearNetwork(
            three, (None, jnp.ones(4), None), gates=(jnp.ones(5), jnp.ones((9, 4)))
        ),
    }
    for text, network in cases.items():
        assert repr(network) == str(network) == text
    stacked = jax.tree.map(lambda a: jnp.stack([a, a]), fl.LinearNetwork(two))
    assert repr(stacked).endswith("1,472 parameters, float64, stacked (2,))")
    shapes = jax.eval_shape(lambda: relu)
    assert "c = f64[], slope f64[], 1,536 parameters" in repr(shapes)


def test_tasks_are_one_line():
    assert repr(TASK) == "Task('xor', 4 samples, 2 inputs, 2 outputs, float64)"
    long = fl.Task(np.ones((1, 1)), np.ones((1, 3)), name="a\nname\t" + 99 * "x")
    said = f"a name {50 * 'x'}..."
    assert repr(long) == f"Task('{said}', 1 sample, 1 input, 3 outputs, float64)"
    stacked = jax.tree.map(lambda a: jnp.stack([a, a]), TASK)
    assert repr(stacked).endswith("2 outputs, float64, stacked (2,))")
    assert repr(jax.eval_shape(lambda: TASK)) == repr(TASK)


def test_modes_are_a_table():
    assert repr(fl.theory.modes(BARS)) == lines(
        """
        Modes: 2 of 2 inputs and 2 outputs, c = 0
          mode          s    d    s/d
          0             1.5  0.5  3
          1             0.5  0.5  1
          commutator    0, 0 where modes decouple
          completeness  1, 1 where modes span the inputs
        """
    )
    many = repr(fl.theory.modes(fl.tasks.hierarchy(), 1.0)).splitlines()
    assert many[0] == "Modes: 9 of 9 inputs and 15 outputs, c = 1"
    assert many[10] == "  ..."
    assert len(many) == 13


def test_trajectory_says_what_a_person_wants(walk):
    found = repr(walk).splitlines()
    expected = [
        r"Trajectory",
        r"  network    ReLUNetwork\(2 -> 6 -> 2, bias in hidden layers, c = 1, 30 parameters, "
        r"float64\)",
        r"  task       Task\('xor', 4 samples, 2 inputs, 2 outputs, float64\)",
        r"  saved      7 times from 0 to 6: networks",
        r"  loss       0\.\d{4,6} -> 0\.\d{4,6}, SquaredError\(\)",
        rf"  events     gate {len(walk.events)}",
        r"  t\* open    [\d.]+( ± \de-\d+)? \(fraction 0.\d+.*\)",
        r"  t\* closed  [\d.]+( ± \de-\d+)? \(fraction 0.\d+.*\)",
        r"  kinks      ExactKinks\(\): 24 \(unit, sample\) pairs, no more than 10000",
        r"  solver     \w+: the default; stiffness was not measured",
        rf"  end        t = 6 after {walk.stats['num_steps']} steps: ended at its final time",
    ]
    assert len(found) == len(expected)
    for line, pattern in zip(found, expected, strict=True):
        assert re.fullmatch(pattern, line), line


def test_printed_linearization_times_are_those_of_linearization(walk):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        t_star = walk.linearization()
        found = _maxima(walk)
        for side, one in (("open", t_star.open), ("closed", t_star.closed)):
            assert found[f"t* {side}"].time == one.time
            assert found[f"t* {side}"].fraction == one.fraction
    for side, text in zip(("open", "closed"), repr(t_star).splitlines()[1:], strict=True):
        assert text.startswith(f"  {side:6}  t* = {found[f't* {side}'].time:.6g}")
    assert repr(t_star).splitlines()[0] == "Linearization of 6 units"
    assert repr(t_star.open).startswith(f"LinearizationTime(t* = {found['t* open'].time:.6g}")


def test_printing_compiles_nothing(walk, caplog):
    with jax.log_compiles():
        jnp.arange(13) + jnp.arange(13)
        heard = len(caplog.records)
        repr(walk), walk._repr_html_(), repr(walk.events), repr(fl.Sweep([walk]))
    assert 0 < heard == len(caplog.records)


def random_log(rng, events=40):
    """A log of gates (5, 3) of layer 0 between units of layer 1 and another event."""
    channels = (
        Channel("other", ()), Channel("gate", (5, 3), (0,)),
        Channel("always_on", (5,), (1,)), Channel("always_off", (5,), (1,)),
    )  # fmt: skip
    side = rng.integers(-1, 2, 26)
    initial, rows = side.copy(), []
    for k in rng.integers(0, 26, events):
        new = int(rng.choice([s for s in (-1, 0, 1) if s != side[k]]))
        rows.append((k, side[k], new))
        side[k] = new
    component, old, new = (jnp.asarray(column) for column in zip(*rows, strict=True))
    time = jnp.asarray(np.sort(rng.uniform(0, 1, events)))
    count = jnp.asarray(events)
    return fl.EventLog(
        time, 1e-9 * time, component, old, new, count, jnp.asarray(initial), channels
    )


def test_always_on_units_counted_by_numpy_are_those_of_the_scan():
    rng = np.random.default_rng(0)
    for _ in range(20):
        log = random_log(rng)
        for level, channel in ((0, 1), (1, 2)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = linearization_of_log(log, level, 3, 0.0, jnp.asarray(1.0))
            for lowest, one in ((1, found.open), (0, found.closed)):
                mine = maximum(logged(log, channel, lowest))
                assert (mine.time, mine.fraction) == (one.time, one.fraction)
                assert mine.lasting == (one.time > 0 and one.time + one.lasts >= 1.0)


def test_event_log_lists_names_and_the_first_events(walk):
    log = random_log(np.random.default_rng(1), 4)
    fields = (jnp.asarray([4, 0, 16, 1]), jnp.asarray([-1, -1, 0, 0]), jnp.asarray([1, 1, 1, -1]))
    log = eqx.tree_at(lambda e: (e.component, e.old, e.new), log, fields)
    log = eqx.tree_at(lambda e: e.time, log, jnp.asarray([0.5, 1.0, 1.5, 2.25]))
    log = eqx.tree_at(lambda e: e.uncertainty, log, jnp.asarray([1e-9, 2e-9, 0.0, jnp.inf]))
    assert repr(log) == lines(
        """
        EventLog: 4 events
          other            1  of 1 component    t = 1
          gate             2  of 15 components  t = 0.5 to 2.25
          always_on        1  of 5 components   t = 1.5
          always_off       0  of 5 components
          gate[0, 1, 0]    t = 0.5 ± 1e-09  -1 -> +1
          other            t = 1 ± 2e-09    -1 -> +1
          always_on[1, 0]  t = 1.5          +0 -> +1
          gate[0, 0, 0]    t = 2.25 ± inf   +0 -> -1
        """
    )
    assert log.index[0] == (0, 1, 0)
    text = repr(walk.events).splitlines()
    assert text[0] == f"EventLog: {len(walk.events)} events"
    assert text[-1] == "  ..."
    assert len(text) == 1 + 1 + 5 + 1


def test_a_full_log_says_so():
    log = random_log(np.random.default_rng(0), 4)
    log = eqx.tree_at(lambda e: e.count, log, jnp.asarray(9))
    assert repr(log).splitlines()[0] == "EventLog: 4 events, the first found of 9"


def test_comparison_has_the_last_distance_and_the_largest():
    rows = (jnp.asarray([0.0, 1.0, 2.0]), *(jnp.asarray([0.0, -0.25, 0.125]) for _ in range(3)))
    assert repr(fl.Comparison(*rows)) == lines(
        """
        Comparison at 3 times from 0 to 2
          parameters  0.125 at the end  largest -0.25
          function    0.125 at the end  largest -0.25
          loss        0.125 at the end  largest -0.25
        """
    )


def test_solution_says_whether_it_is_exact_and_why():
    network = fl.LinearNetwork((jnp.asarray([[0.5, 0.0], [0.0, 0.25]]),))
    assert repr(fl.theory.solve(network, BARS)) == lines(
        """
        Solution: single layer, exact
          why   the flow is linear
          task  commutator 0, completeness 1, condition 1, whiteness 0, variance 0.5
        """
    )
    found = fl.theory.solve(LINEAR, TASK)
    text = repr(found).splitlines()
    assert text[0] == "Solution: isolated modes, not exact"
    assert text[1].startswith("  why      no exact solution: the weights are neither")
    assert len(text) <= 15
    rows = repr(found.certificate).splitlines()
    assert [row.split()[0] for row in rows] == ["Certificate", "task", "weights", "modes", "a0"]
    assert all(len(row) <= 100 for row in text + rows)


def test_bias_mode_says_its_rank_and_whether_conditions_hold():
    assert repr(fl.theory.bias_mode(TASK, 2.0)) == lines(
        """
        BiasMode: s = 1.41421, d = 4
          rank         1, overlap 1
          ties         1 of this strength
          margin       inf, at least 1 from c = 0
          residuals    input 0, target 0, eigen 0, singular 0, 0 where conditions hold
          bias         most of it in rank 1
          mean target  most of it in rank 1
        """
    )
    assert repr(fl.theory.bias_mode(TASK, 0.0)).startswith("BiasMode: none, ")
    stacked = jax.eval_shape(jax.vmap(lambda c: fl.theory.bias_mode(BARS, c)), jnp.ones(2))
    assert repr(stacked).startswith("BiasMode: s = f64[2], d = f64[2]")


@pytest.mark.usefixtures("without_type_checks")
def test_early_phase_and_its_clock_say_where_units_go():
    fate = jnp.asarray([1, -1, 0, 1, -1, -1])
    change = jnp.asarray([0.5, np.inf, 2.0, np.inf, np.inf, np.inf])
    early = fl.theory.EarlyPhase(
        rates=None, component=None, fate=fate, first_change=change, final_codes=None, trouble=None,
        reached=None, pieces=None, t1=jnp.asarray(2.5), start=RELU, task=TASK, tau=jnp.asarray(1.0),
        loss=fl.SquaredError(),
    )  # fmt: skip
    assert repr(early) == lines(
        """
        EarlyPhase of 6 units up to t = 2.5
          network  ReLUNetwork(2 -> 6 -> 2, bias in hidden layers, c = 1, 30 parameters, float64)
          task     Task('xor', 4 samples, 2 inputs, 2 outputs, float64)
          fate     2 on for all samples, 3 for none, 1 for some
          gates    change in 2 units, first at t = 0.5 to 2
        """
    )
    clock = repr(fl.theory.SlowedClock(early, fl.theory.modes(BARS))).splitlines()
    assert clock[0] == "SlowedClock by the leading mode, s = 1.5, d = 0.5"
    assert clock[1] == "  early phase  EarlyPhase of 6 units up to t = 2.5"
    assert len(clock) == 6
    assert "units" not in "".join(repr(jax.eval_shape(lambda: early)).splitlines()[1:])


def test_after_linearization_says_of_which_units_and_whether_it_is_exact():
    rows = np.array([[0.5, 0.25, 0.0], [0.25, 0.25, 0.0]])
    network = fl.ReLUNetwork((np.abs(rows).T, rows))
    text = repr(fl.theory.after_linearization(network, BARS, always_on=[1, 1, 0])).splitlines()
    assert text[0] == "AfterLinearization: 2 of 3 units always on"
    assert text[1] == "  trained on  Task('bars', 2 samples, 2 inputs, 2 outputs, float64)"
    assert text[2] == "  solution    Riccati, exact"
    assert text[3].startswith("  why         the inputs are white and the weights balanced")
    biased = fl.theory.after_linearization(RELU, TASK, always_on=np.ones(6, bool))
    assert "\n  bias        c = 1\n" in repr(biased)


def test_rate_certificate_is_its_table():
    def accuracy(*errors, rate=0.02, slope=1.0):
        return fl.Accuracy(rate, np.array(errors), slope)

    nowhere = accuracy(0.1, 0.2, 0.4, rate=np.nan)
    found = fl.RateCertificate(
        np.array([0.01, 0.02, 0.04]), np.array([400, 200, 100]), 0.01, 4.0, 0.25,
        accuracy(0.005, 0.01, 0.02), nowhere, accuracy(0.0, 0.0, 0.0, rate=0.04), None,
        accuracy(1e-4, 2e-4, 4e-4, rate=np.nan),
    )  # fmt: skip
    assert repr(found) == lines(
        """
        RateCertificate: descent within 1 % of the flow up to t = 4
          tried              3 rates, 0.01 to 0.04 (100 to 400 steps)
          edge of stability  0.25
          parameters         rate 0.02  slope 1  1 % of the flow
          function           rate nan   slope 1  no rate from 0.01 on is within 1 % of the flow
          loss               rate 0.04  slope 1  largest rate tried, 100 step(s) to t1
          chattering         |z| = 0.0001 to 0.0004, slope 1
        """
    )
    assert repr(nowhere) == "Accuracy(rate nan, slope 1, errors 0.1 to 0.4)"


def test_events_of_modes_print_what_they_are_of():
    """They printed as trees of arrays."""
    modes = fl.theory.modes(BARS)
    assert repr(fl.ModeHits(modes, 0.1)) == "ModeHits(2 modes, c = 0, rho=0.1)"
    several = fl.ModeHits(modes, share=np.array([0.1, 0.2]), direction="up", check=False)
    assert (
        repr(several)
        == "ModeHits(2 modes, c = 0, direction='up', check=False, share=f64[2](numpy))"
    )
    weights = {("in", "a"): np.eye(2), ("a", "out"): np.eye(2)}
    hits = fl.theory.race(fl.GatedGraph(weights), BARS).hits(0.5, name="half")
    assert repr(hits) == "RaceHits(1 pathway for 2 modes, rho=0.5, name='half')"


def test_a_loaded_run_prints_its_loss_like_a_fresh_one(tmp_path):
    run = fl.gradient_descent(LINEAR, TASK, 0.1, 2)
    run.save(tmp_path / "run.npz")
    assert repr(fl.load(tmp_path / "run.npz").reference.loss) == repr(run.reference.loss)


def test_articles():
    words = ("MLP", "RKC", "UNet", "Task", "EventLog", "ReLUNetwork", "int")
    said = "an MLP, an RKC, a UNet, a Task, an EventLog, a ReLUNetwork, an int"
    assert ", ".join(map(an, words)) == said


def test_sweep_names_its_kinds_of_networks():
    runs = [fl.gradient_descent(net, TASK, 0.1, 2) for net in (LINEAR, RELU, LINEAR)]
    text = " ".join(repr(fl.Sweep(runs)).split())
    assert f"networks {LINEAR!r}; {RELU!r} task" in text


def test_sweep_counts_failures_and_gives_ranges(walk):
    failed, ended = until_low(max_steps=2, throw=False), until_low()
    text = repr(fl.Sweep([failed, ended])).splitlines()
    assert text[0] == "Sweep of 2 runs"
    assert text[3].strip() == "others"  # the tasks are equal, but two
    assert text[4].startswith("  failed    1 (run 0): The maximum number of solver steps was")
    assert re.fullmatch(r"  end +t = 0\.\d+ to \d\.\d+", text[5])
    assert re.fullmatch(r"  events +0 to 1 per run", text[-1])
    nothing = failed.with_rows(lambda rows: rows[:0])
    assert "  saved    no time: networks\n" in repr(nothing)
    assert "  loss      not saved\n" in repr(fl.Sweep([nothing]))
    text = repr(fl.Sweep([walk, walk])).splitlines()
    assert text[3] == "  failed     none"
    assert text[-1].startswith("  t* closed  ")
    assert repr(fl.Sweep([])) == "Sweep of 0 runs"


def test_descent_prints():
    descent = fl.gradient_descent(RELU, TASK, 0.1, 20, observe={"norms": fl.measures.norms})
    text = repr(descent)
    assert "  saved    21 times from 0 to 2: norms\n" in text
    assert re.search(r"\n  t\* .*\(fraction ", text)
    assert text.endswith("  end      t = 2 after 20 steps: ended at its final time")


def test_under_transformations_shapes_are_shown(walk):
    said = []

    def run(network):
        flow = fl.gradient_flow(network, TASK, 1.0, max_steps=64)
        said.append((repr(network), repr(flow), repr(flow.events)))
        return flow

    stacked = jax.tree.map(lambda a: jnp.stack([a, a]), LINEAR)
    flows = jax.jit(jax.vmap(run))(stacked)
    shapes = jax.eval_shape(run, LINEAR)
    for network, text, log in said:
        assert network.startswith("LinearNetwork(2 -> 3 -> 2, bias in hidden layers, c = f64[], ")
        assert "  loss     f64[2], SquaredError()\n" in text
        assert text.endswith("  end      t = f64[] after i64[] steps: outcome i32[]")
        assert log == "EventLog: times f64[0]"
    assert repr(shapes) == said[1][1]
    assert "stacked (2,)" in repr(flows)
    assert repr(flows).endswith("  end      t = f64[2] after i64[2] steps: outcome i32[2]")
    traced = []
    jax.jit(lambda flow: traced.append(repr(flow)) or flow.end)(walk)
    assert "  events   gate of 24 components\n" in traced[0]
    assert len(traced[0].splitlines()) < 15


def broken(tree):
    """The same tree with other things for leaves."""
    yield jax.tree.map(lambda leaf: None, tree)
    yield jax.tree.map(lambda leaf: "leaf", tree)
    yield jax.tree.map(lambda leaf: object(), tree)
    yield jax.tree.map(lambda leaf: jnp.zeros((0, 2)), tree)
    yield object.__new__(type(tree))


def test_broken_objects_print(walk):
    modes, certificate = fl.theory.modes(BARS), fl.theory.solve(LINEAR, TASK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        t_star = walk.linearization()
    for whole in (walk, walk.events, TASK, RELU, modes, certificate, t_star, t_star.open):
        for tree in broken(whole):
            assert type(whole).__name__ in repr(tree)
            assert html_of(tree)
    for kind in (fl.Sweep, fl.RateCertificate, fl.Comparison, fl.theory.Certificate):
        assert kind.__name__ in repr(object.__new__(kind))


def test_results_are_words():
    successful = fl.RESULTS.successful
    assert str(successful) == "flowlin.RESULTS<ended at its final time>"
    assert str(fl.RESULTS.event_occurred) == "flowlin.RESULTS<ended at an event>"
    messages = [fl.RESULTS[item] for item in fl.RESULTS._name_to_item.values()]
    assert all(messages)
    assert len(set(messages)) == len(messages)
    assert fl.RESULTS.promote(diffrax.RESULTS.successful) == successful
    assert fl.RESULTS.promote(diffrax.RESULTS.event_occurred) == fl.RESULTS.event_occurred


class Reader(html.parser.HTMLParser):
    """Checks that every tag is closed in order, and collects tags and text."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.words = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def html_of(thing):
    reader = Reader()
    reader.feed(thing._repr_html_())
    reader.close()
    assert reader.open == []
    return reader


def test_notebooks_get_an_escaped_table():
    flow = until_low()
    assert repr(flow).endswith("steps: ended at an event, '<b>low</b>'")
    task = flow.reference.task
    modes = fl.theory.modes(task)
    for whole in (flow, flow.events, task, LINEAR, modes, fl.Sweep([flow]), fl.Sweep([])):
        reader = html_of(whole)
        assert set(reader.tags) <= {"table", "caption", "tbody", "tr", "th", "td"}
        assert reader.words[0] in repr(whole)
    words = html_of(flow).words
    assert any("'<script>alert(1)</script> & \"\\''" in word for word in words)
    assert "<b>low</b> 1" in words
    rows = flow._repr_html_().count("<tr>")
    assert rows == len(repr(flow).splitlines()) - 1


def test_to_pandas_is_the_table(walk):
    frame = walk.events.to_pandas()
    assert list(frame.columns) == ["time", "uncertainty", "name", "index", "old", "new"]
    assert frame.to_dict("records") == walk.events.table()
    frame = fl.Sweep([walk, walk]).to_pandas()
    assert list(frame.columns) == ["run", "time", "uncertainty", "name", "index", "old", "new"]
    assert frame.to_dict("records") == fl.Sweep([walk, walk]).table()
    empty = walk.events.where(jnp.zeros(len(walk.events), bool))
    assert list(empty.to_pandas().columns) == list(walk.events.to_pandas().columns)
    assert len(empty.to_pandas()) == 0
    assert list(fl.Sweep([]).to_pandas().columns) == list(frame.columns)


def test_to_pandas_without_pandas_says_how_to_get_it(walk, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    for table in (walk.events, fl.Sweep([walk])):
        with pytest.raises(ImportError, match=r"pip install 'flowlin\[pandas\]'"):
            table.to_pandas()
