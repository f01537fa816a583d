"""What objects print, one golden text per class: text, notebooks' tables, pandas.

That every kind of run prints what it is, and compiles nothing for it, is in
tests/test_contracts.py.
"""

import dataclasses
import html.parser
import pathlib
import re
import textwrap
import warnings

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

pytest.importorskip("pandas")

TASK = fl.tasks.xor()
RELU = fl.ReLUNetwork.init(TASK, 6, 1e-2, key=jax.random.key(0))
LINEAR = fl.LinearNetwork.init(TASK, 3, 0.1, key=jax.random.key(0))
BARS = fl.Task(np.eye(2), np.diag([3.0, 1.0]), name="bars")
WALK = fl.load(pathlib.Path(__file__).parent / "data" / "flow-0.1.npz")


@pytest.fixture(scope="module")
def low():
    """A run until its loss is low, of a task and an event with bad names."""
    task = fl.Task(TASK.x, TASK.y, name="<script>alert(1)</script> & \"'")
    event = fl.LossBelow(0.4, terminate=True, name="<b>low</b>")
    return fl.gradient_descent(LINEAR, task, 0.1, 99, events=event)


def says(thing, text):
    assert repr(thing) == textwrap.dedent(text).strip("\n")


def layer(outputs, inputs):
    return np.ones((outputs, inputs))


def test_networks_are_one_line():
    two, three = (layer(64, 8), layer(15, 64)), (layer(5, 8), layer(4, 5), layer(2, 4))
    relu = fl.ReLUNetwork(two, (np.ones(64), None), slope=0.1)
    cases = {
        "LinearNetwork(8 -> 64 -> 15, no bias, 1,472 parameters, float64)": fl.LinearNetwork(two),
        "LinearNetwork(8 -> 64, bias in layers 0, c = 3, 576 parameters, float32)": (
            fl.LinearNetwork(two[:1], (np.ones(64),), 3.0).astype(jnp.float32)
        ),
        "ReLUNetwork(8 -> 64 -> 15, bias in hidden layers, c = 1, slope 0.1, 1,536 parameters, "
        "float64)": relu,
        "GatedLinearNetwork(8 -> 5 -> 4 -> 2, bias in layers 1, c = 1, gates (5,), (9, 4), "
        "72 parameters, float64)": fl.GatedLinearNetwork(
            three, (None, np.ones(4), None), gates=(np.ones(5), np.ones((9, 4)))
        ),
    }
    for text, network in cases.items():
        assert repr(network) == str(network) == text
    shapes = jax.eval_shape(lambda: relu)
    assert "c = f64[], slope f64[], 1,536 parameters" in repr(shapes)
    stacked = jax.eval_shape(lambda: jax.tree.map(lambda a: jnp.stack([a, a]), relu))
    assert repr(stacked).endswith("1,536 parameters, float64, stacked (2,))")


def test_tasks_are_one_line():
    says(TASK, "Task('xor', 4 samples, 2 inputs, 2 outputs, float64)")
    long = fl.Task(np.ones((1, 1)), np.ones((1, 3)), name="a\nname\t" + 99 * "x")
    says(long, f"Task('a name {50 * 'x'}...', 1 sample, 1 input, 3 outputs, float64)")
    stacked = jax.eval_shape(lambda: jax.tree.map(lambda a: jnp.stack([a, a]), TASK))
    assert repr(stacked).endswith("2 outputs, float64, stacked (2,))")
    assert repr(jax.eval_shape(lambda: TASK)) == repr(TASK)


def test_modes_are_a_table():
    says(
        fl.theory.modes(BARS),
        """
        Modes: 2 of 2 inputs and 2 outputs, c = 0
          mode          s    d    s/d
          0             1.5  0.5  3
          1             0.5  0.5  1
          commutator    0, 0 where modes decouple
          completeness  1, 1 where modes span the inputs
        """,
    )
    many = repr(fl.theory.modes(fl.Task(np.eye(9), np.diag(np.arange(1.0, 10.0))))).splitlines()
    assert many[0] == "Modes: 9 of 9 inputs and 9 outputs, c = 0"
    assert many[10] == "  ..."
    assert len(many) == 13
    equal = repr(fl.theory.modes(fl.tasks.hierarchy(), 1.0)).splitlines()
    assert [line.split()[0] for line in equal[2:7]] == ["0", "1", "2-3", "4-7", "8"]


# ---- Runs.


def test_a_trajectory_says_what_a_person_wants():
    says(
        WALK,
        """
        Trajectory
          network    ReLUNetwork(8 -> 6 -> 15, bias in hidden layers, c = 1, 144 parameters, float64)
          task       unknown, 8 samples
          saved      10 times from 0 to 4: gram, pair
          loss       2.02338 -> 1.02706, SquaredError()
          events     gate 7, loss 1; ± of their steps
          t* open    1.075 ± 3e-09 (fraction 0.5, still so at the end)
          t* closed  1.075 ± 3e-09 (fraction 0.5, still so at the end)
          kinks      ExactKinks(): one hidden layer and 48 (unit, sample) pairs
          solver     Tsit5: the default; stiffness was not measured
          end        t = 4 after 51 steps: ended at its final time
        """,  # noqa: E501
    )
    nothing = repr(WALK.with_rows(lambda rows: rows[:0]))
    assert "  saved      no time: gram, pair\n" in nothing


def test_what_is_not_resolved_is_shown(low):
    assert "unresolved" not in repr(low)
    doubtful = eqx.tree_at(lambda f: f.events.unresolved.count, low, jnp.asarray(3))
    assert "unresolved  crossings may be missing in 3 places" in repr(doubtful)


@pytest.mark.filterwarnings("ignore::flowlin.LinearizationWarning")
def test_a_linearization_is_a_line_each():
    says(
        WALK.linearization(),
        """
        Linearization of 6 units
          open    t* = 1.075 ± 3e-09  fraction 0.5  lasts 2.925
          closed  t* = 1.075 ± 3e-09  fraction 0.5  lasts 2.925
        """,
    )
    assert repr(WALK.linearization().open).startswith("LinearizationTime(t* = 1.075 ± 3e-09")


def random_log(rng, names, shape, events=40):
    """A log of so many changes of the sides of the loss, and of gates or units."""
    gate, loss = WALK.events.channels
    channels = (loss, *(dataclasses.replace(gate, name=name, shape=shape) for name in names))
    side = rng.choice([-1, 0, 1, 1, 1, 1], 1 + len(names) * int(np.prod(shape)))
    initial, rows = side.copy(), []
    for k in rng.integers(0, len(side), events):
        new = int(rng.choice([s for s in (-1, 0, 1) if s != side[k]]))
        rows.append((k, side[k], new))
        side[k] = new
    component, old, new = np.array(rows).T
    time = np.sort(rng.uniform(0, 1, events))
    log = time, 1e-9 * time, component, old, new, np.array(events), initial
    return fl.EventLog(*map(jnp.asarray, log), channels)  # pyright: ignore


@pytest.mark.filterwarnings("ignore::flowlin.LinearizationWarning")
@pytest.mark.parametrize(
    ("names", "shape"), [(["gate"], (6, 2)), (["always_on", "always_off"], (6,))]
)
def test_printed_linearization_times_are_those_of_linearization(names, shape, seed):
    """The one counts by NumPy, the other by a scan."""
    rng, line = np.random.default_rng(seed), r"\n  t\* {} +([\d.e-]+).* \(fraction ([\d.]+)(.*)\)"
    for _ in range(5):
        log = random_log(rng, names, shape)
        run = dataclasses.replace(WALK, events=log, samples=2, end=jnp.ones(()))
        t_star, text = run.linearization(), repr(run)
        for side in ("open", "closed"):
            found, one = re.search(line.format(side), text), getattr(t_star, side)
            assert found is not None
            assert float(found[1]) == pytest.approx(float(one.time), rel=1e-5)
            assert float(found[2]) == pytest.approx(float(one.fraction), rel=1e-3)
            assert bool(found[3]) == (one.time > 0 and one.time + one.lasts >= 1.0)


def test_an_event_log_lists_names_and_the_first_events():
    log = random_log(np.random.default_rng(1), ["gate"], (5, 3), 4)
    fields = (
        [4, 0, 15, 6],
        [-1, -1, 0, 0],
        [1, 1, 1, -1],
        [0.5, 1, 1.5, 2.25],
        [1e-9, 2e-9, 0, np.inf],
    )
    places = lambda e: (e.component, e.old, e.new, e.time, e.uncertainty)  # noqa: E731
    log = eqx.tree_at(places, log, tuple(map(jnp.asarray, fields)))
    says(
        log,
        """
        EventLog: 4 events, ± of their steps
          loss           1  of 1 component    t = 1
          gate           3  of 15 components  t = 0.5 to 2.25
          gate[0, 1, 0]  t = 0.5 ± 1e-09  -1 -> +1
          loss           t = 1 ± 2e-09    -1 -> +1
          gate[0, 4, 2]  t = 1.5          +0 -> +1
          gate[0, 1, 2]  t = 2.25 ± inf   +0 -> -1
        """,
    )
    assert log.index[0] == (0, 1, 0)
    full = eqx.tree_at(lambda e: e.count, log, jnp.asarray(9))
    assert (
        repr(full).splitlines()[0] == "EventLog: 4 events, ± of their steps, the first found of 9"
    )
    assert repr(WALK.events).splitlines()[-1] == "  ..."


def test_a_sweep_counts_failures_and_gives_ranges():
    failed = eqx.tree_at(
        lambda f: f.result, WALK, fl.RESULTS.max_steps_reached, is_leaf=lambda r: r is WALK.result
    )
    other = fl.gradient_descent(LINEAR, TASK, 0.1, 2)
    text = repr(fl.Sweep([failed, WALK, other])).splitlines()
    assert text[0] == "Sweep of 3 runs"
    assert " ".join(" ".join(text[1:4]).split()).startswith(f"networks {WALK.final!r}; {LINEAR!r}")
    joined = "\n".join(text)
    assert "  failed    1 (run 0): The maximum number of solver steps was" in joined
    assert re.search(r"\n  end +t = 0\.2 to 4\n", joined)
    assert re.search(r"\n  events +0 to 8 per run", joined)
    unsaved = fl.Sweep([WALK.with_rows(lambda rows: rows[:0])])
    assert re.search(r"\n  loss +not saved\n", repr(unsaved))
    says(fl.Sweep([]), "Sweep of 0 runs")


def test_advice_about_kinks_is_for_networks_that_have_some(low):
    runs = fl.Sweep(
        [
            eqx.tree_at(
                lambda f: f.result,
                flow,
                fl.RESULTS.dt_min_reached,
                is_leaf=lambda r, of=flow: r is of.result,
            )
            for flow in (WALK, low)
        ]
    )
    relu, linear = runs.failed.values()
    assert linear.endswith("or its gradient jumps.")
    assert (
        relu == f"{linear} A ReLU flow that slides on its kinks needs `kinks=fl.SmoothKinks(...)`."
    )
    assert ["SmoothKinks" in repr(flow) for flow in runs] == [True, False]


def test_shapes_are_shown_within_other_programs():
    said = []

    def run(network):
        found = fl.gradient_descent(network, TASK, 0.1, 10, events=fl.LossBelow(0.4), throw=False)
        said.append((repr(network), repr(found), repr(found.events)))
        return found

    stacked = jax.tree.map(lambda a: np.stack([a, a]), LINEAR)
    many, shapes = jax.eval_shape(jax.vmap(run), stacked), jax.eval_shape(run, LINEAR)
    for network, text, log in said:
        assert network.startswith("LinearNetwork(2 -> 3 -> 2, bias in hidden layers, c = f64[], ")
        assert "  loss     f64[11], SquaredError()\n" in text
        assert "  events   loss of 1 component\n" in text
        assert re.search(r"\n  end +t = f64\[\] after .* steps: outcome i32\[\]$", text)
        assert log.startswith("EventLog: times f64[")
    assert repr(shapes) == said[1][1]
    assert "stacked (2,)" in repr(many)
    assert "  end      t = f64[2] after " in repr(many)


# ---- Theory, comparisons, certificates.


def test_a_comparison_has_the_last_distance_and_the_largest():
    rows = (jnp.asarray([0.0, 1.0, 2.0]), *(jnp.asarray([0.0, -0.25, 0.125]) for _ in range(3)))
    says(
        fl.Comparison(*rows),
        """
        Comparison at 3 times from 0 to 2
          parameters  0.125 at the end  largest -0.25
          function    0.125 at the end  largest -0.25
          loss        0.125 at the end  largest -0.25
        """,
    )


def test_a_solution_says_whether_it_is_exact_and_why():
    network = fl.LinearNetwork((jnp.asarray([[0.5, 0.0], [0.0, 0.25]]),))
    says(
        fl.theory.solve(network, BARS),
        """
        Solution: single layer, exact
          why   the flow is linear
          task  commutator 0, completeness 1, condition 1, whiteness 0, variance 0.5
        """,
    )
    found = fl.theory.solve(LINEAR, TASK)
    text = repr(found).splitlines()
    assert text[0] == "Solution: isolated modes, not exact"
    assert text[1].startswith("  why      no exact solution: the weights are neither")
    rows = repr(found.certificate).splitlines()
    titles = ["Certificate", "task", "inputs", "weights", "modes", "a0"]
    assert [row.split()[0] for row in rows] == titles
    assert all(len(row) <= 100 for row in text + rows)


@pytest.mark.slow
def test_a_bias_mode_says_its_rank_and_whether_conditions_hold():
    says(
        fl.theory.bias_mode(TASK, 2.0),
        """
        BiasMode: s = 1.41421, d = 4
          rank         1, overlap 1
          ties         1 of this strength
          margin       inf, at least 1 from c = 0
          residuals    input 0, target 0, eigen 0, singular 0, 0 where conditions hold
          bias         most of it in rank 1
          mean target  most of it in rank 1
        """,
    )
    assert repr(fl.theory.bias_mode(TASK, 0.0)).startswith("BiasMode: none, ")
    stacked = jax.eval_shape(jax.vmap(lambda c: fl.theory.bias_mode(BARS, c)), np.ones(2))
    assert repr(stacked).startswith("BiasMode: s = f64[2], d = f64[2]")


@pytest.mark.usefixtures("without_type_checks")
def test_an_early_phase_and_its_clock_say_where_units_go():
    fate = jnp.asarray([1, -1, 0, 1, -1, -1])
    change = jnp.asarray([0.5, np.inf, 2.0, np.inf, np.inf, np.inf])
    early = fl.theory.EarlyPhase(
        rates=None, component=None, final_sides=None, trouble=None,  # pyright: ignore
        reached=None, pieces=None, fate=fate, first_change=change,  # pyright: ignore
        t1=jnp.asarray(2.5), start=RELU, task=TASK, tau=jnp.asarray(1.0), loss=fl.SquaredError(),
    )  # fmt: skip
    says(
        early,
        """
        EarlyPhase of 6 units up to t = 2.5
          network  ReLUNetwork(2 -> 6 -> 2, bias in hidden layers, c = 1, 30 parameters, float64)
          task     Task('xor', 4 samples, 2 inputs, 2 outputs, float64)
          fate     2 on for all samples, 3 for none, 1 for some
          gates    change in 2 units, first at t = 0.5 to 2
        """,
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


def test_a_rate_certificate_is_its_table():
    def accuracy(*errors, rate=0.02, slope=1.0):
        return fl.Accuracy(rate, np.array(errors), slope)

    nowhere = accuracy(0.1, 0.2, 0.4, rate=np.nan)
    found = fl.RateCertificate(
        np.array([0.01, 0.02, 0.04]), np.array([400, 200, 100]), 0.01, 4.0, 0.25,
        accuracy(0.005, 0.01, 0.02), nowhere, accuracy(0.0, 0.0, 0.0, rate=0.04), None,
        accuracy(1e-4, 2e-4, 4e-4, rate=np.nan),
    )  # fmt: skip
    says(
        found,
        """
        RateCertificate: descent within 1 % of the flow up to t = 4
          tried              3 rates, 0.01 to 0.04 (100 to 400 steps)
          edge of stability  0.25
          parameters         rate 0.02  slope 1  1 % of the flow
          function           rate nan   slope 1  no rate from 0.01 on is within 1 % of the flow
          loss               rate 0.04  slope 1  largest rate tried, 100 step(s) to t1
          chattering         |z| = 0.0001 to 0.0004, slope 1
        """,
    )
    says(nowhere, "Accuracy(rate nan, slope 1, errors 0.1 to 0.4)")


def test_events_of_modes_print_what_they_are_of():
    modes = fl.theory.modes(BARS)
    says(fl.ModeHits(modes, 0.1), "ModeHits(2 modes, c = 0, rho=0.1)")
    several = fl.ModeHits(modes, share=np.array([0.1, 0.2]), direction="up", check=False)
    words = "direction='up', check=False, share=f64[2](numpy)"
    says(several, f"ModeHits(2 modes, c = 0, {words})")
    weights = {("in", "a"): np.eye(2), ("a", "out"): np.eye(2)}
    hits = fl.theory.race(fl.GatedGraph(weights), BARS).hits(0.5, name="half")
    says(hits, "RaceHits(1 pathway for 2 modes, rho=0.5, name='half')")


def test_results_are_words():
    successful = fl.RESULTS.successful
    assert str(successful) == "flowlin.RESULTS<ended at its final time>"
    assert str(fl.RESULTS.event_occurred) == "flowlin.RESULTS<ended at an event>"
    messages = [fl.RESULTS[item] for item in fl.RESULTS._name_to_item.values()]
    assert all(messages)
    assert len(set(messages)) == len(messages)
    assert fl.RESULTS.promote(diffrax.RESULTS.successful) == successful


# ---- What must not break, notebooks, pandas.


class Reader(html.parser.HTMLParser):
    """Checks that every tag is closed in order, and collects tags and text."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.words = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)

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


def broken(tree):
    """The same tree with other things for leaves."""
    for leaf in (None, "leaf", object(), np.zeros((0, 2))):
        yield jax.tree.map(lambda _, leaf=leaf: leaf, tree)
    yield object.__new__(type(tree))


def test_broken_objects_print():
    modes, certificate = fl.theory.modes(BARS), fl.theory.solve(LINEAR, TASK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        t_star = WALK.linearization()
    for whole in (WALK, WALK.events, TASK, RELU, modes, certificate, t_star, t_star.open):
        for tree in broken(whole):
            assert type(whole).__name__ in repr(tree)
            assert html_of(tree).words
    for kind in (fl.Sweep, fl.RateCertificate, fl.Comparison, fl.theory.Certificate):
        assert kind.__name__ in repr(object.__new__(kind))


def test_notebooks_get_an_escaped_table(low):
    assert repr(low).endswith("steps: ended at an event, '<b>low</b>'")
    task = low.reference.task
    for whole in (low, low.events, task, LINEAR, fl.theory.modes(task), fl.Sweep([low])):
        reader = html_of(whole)
        assert reader.tags <= {"table", "caption", "tbody", "tr", "th", "td"}
        assert reader.words[0] in repr(whole)
    words = html_of(low).words
    assert any("'<script>alert(1)</script> & \"\\''" in word for word in words)
    assert "<b>low</b> 1" in words
    assert low._repr_html_().count("<tr>") == len(repr(low).splitlines()) - 1
