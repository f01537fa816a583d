"""What every kind of run keeps to: one table, a row per kind, a column per promise.

A new kind of network, loss, event, policy for kinks or solver is tested by a row in `ROWS`, as
short and small a run as shows it at work, with the words that its print must hold. It is of the
second tier; name it in `FIRST` if its one plain run takes no more than a second or two.
"""

import functools
import html
import pickle
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import flowlin as fl
from tests import budget
from tests.tolerances import of_flow, of_slope
from tests.zoo import Killed, jit

# Of a maximum that lasts to the end.
pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

KEY = jax.random.key(0)
STEP = 1e-3
SCALES = (1.0, 1 + STEP, 1 - STEP)
TASK = fl.tasks.xor()
HALF = np.arange(4) < 2


def net(kind, variance=0.5, **options):
    """Two hidden units."""
    return kind.init(TASK, 2, variance=variance, key=KEY, **options)


LINEAR, RELU = net(fl.LinearNetwork), net(fl.ReLUNetwork)
LEAKY = net(fl.ReLUNetwork, slope=0.2)
# Two pairs slide, and t* is at an event, in the middle of its run.
SLIDING = fl.ReLUNetwork.init(TASK, 2, variance=0.3, key=jax.random.key(18))
GATES = np.stack([HALF, ~HALF], axis=1).astype(float)
GATED = fl.GatedLinearNetwork(LINEAR.weights, gates=(GATES,))
GLOBALLY = net(fl.GloballyGatedNetwork, 0.1, gates=GATES)
GRAPH = fl.GatedGraph.init(
    TASK, {"in": 2, "a": 2, "b": 1, "out": 2},
    [("in", "a"), ("in", "b"), ("a", "out"), ("b", "out")],
    node_gates={"a": GATES[:, 0], "b": GATES[:, 1]}, variance=0.5, key=KEY,
)  # fmt: skip


def bent(z):
    return jnp.tanh(z)


def rectify(z):
    return jnp.maximum(z, 0)


def same(z):
    return z


MLP = eqx.nn.MLP(2, 2, 2, 1, bent, same, key=KEY)  # by functions that can be pickled

RECTIFYING = eqx.nn.MLP(2, 2, 2, 1, rectify, same, key=KEY)
MODULE_GATED = fl.GatedModule.frozen(RECTIFYING, TASK)


def quartic(output, target):
    return jnp.sum((output - target) ** 4)


def weight(network, task):
    del task
    return network.weights[0][0, 0]


class Row(NamedTuple):
    """A run, what its print must say, and whether it has derivatives."""

    run: Any
    network: eqx.Module
    ends: tuple  # t1 of a flow, rate and steps of a descent
    options: dict[str, Any]
    says: tuple[str, ...]
    differentiable: bool = True

    def __call__(self, scale: Any = 1.0, **how: Any) -> fl.Trajectory:
        """Its run, from weights and a bias strength so many times as large.

        A flow is as much longer and faster, its events' levels are as much higher, and smooth kinks
        as much wider.
        """
        network = jax.tree.map(
            lambda a: a * scale if eqx.is_inexact_array(a) and a.ndim != 1 else a, self.network
        )
        ends, options = self.ends, self.options
        if self.run is fl.gradient_flow:
            ends, how = (ends[0] * scale,), {"tau": 1 / scale, **how}
            scaled = {name: options[name] for name in ("events", "kinks") if name in options}
            options = options | jax.tree.map(
                lambda a: a * scale if isinstance(a, float) else a, scaled
            )
        return self.run(network, TASK, *ends, **options, **how)

    @property
    def error_of_slopes(self) -> float:
        """Of finite differences between its runs."""
        return of_slope(STEP, of_flow(self.options.get("rtol", 1e-8)))

    def traced(self, scale: Any, adjoint: diffrax.AbstractAdjoint) -> jax.Array:
        """Its `outcome` within other programs, which reserve what they may need."""
        room: dict[str, Any] = {"max_events": 64, "throw": False}
        if self.run is fl.gradient_flow:
            room |= {"max_steps": 2048, "adjoint": adjoint}
        return outcome(self(scale, **room))


def outcome(run):
    """The end, the last loss, a number of the last weights, and when events were; t* of a walk."""
    found = [run.losses[-1], sum(jnp.sum(a**3) for a in jax.tree.leaves(run.model.parameters))]
    if run.events.channels:
        times = run.events.time
        found.append(jnp.sum(jnp.where(jnp.isfinite(times), times, 0.0)))
    if "ExactKinks" in run.stats.get("kinks", ""):
        found.append(run.linearization().open.time)
    return jnp.stack([run.end, *found])


def flow(network, says, t1=20.0, differentiable=True, **options):
    return Row(fl.gradient_flow, network, (t1,), options, says, differentiable)


def descent(network, *says, **options):
    return Row(fl.gradient_descent, network, (0.1, 30), options, says)


LOW = fl.LossBelow(0.4)
MODES = fl.theory.modes(TASK, LINEAR)
HITS = fl.ModeHits(MODES, share=0.5, check=False)  # since rows vary the bias strength
EVENTS = (LOW, HITS, fl.Crossing(weight, -0.3), fl.GradientBelow(0.05))
UNITS = fl.UnitSwitches(0.25)
BATCHES = {"batch_size": 2, "key": KEY, "optimiser": optax.adam(0.1), "events": LOW}
ROWS = {
    # Networks and losses.
    "LinearNetwork": descent(
        LINEAR, "LinearNetwork(2 -> 2 -> 2", "SquaredError()", loss=fl.SquaredError()
    ),
    "ReLUNetwork": descent(RELU, "ReLUNetwork(", "t*(0.25)", events=UNITS),
    "GatedLinearNetwork": descent(GATED, "GatedLinearNetwork(", loss=fl.CrossEntropy()),
    "GloballyGatedNetwork": descent(GLOBALLY, "GloballyGatedNetwork(", "quartic", loss=quartic),
    "GatedGraph": descent(GRAPH, "GatedGraph(", "loss 1", events=LOW),
    "any module": descent(MLP, "MLP(", "loss 1", events=LOW),
    "GatedModule": descent(MODULE_GATED, "GatedModule(MLP, gates (4, 2)", "loss 1", events=LOW),
    "mini-batches": Row(
        fl.stochastic_gradient_descent, LINEAR, (0.1, 30), BATCHES, ("stochastic descent", "loss 1")
    ),
    # Flows: events, solvers, policies for kinks.
    "events": flow(
        LINEAR, ("crossing 1", "mode 1", "loss 1", "gradient 1", "Dopri8"), events=EVENTS,
        rtol=1e-10,
    ),
    "Tsit5": flow(LINEAR, ("Tsit5",), solver=diffrax.Tsit5(), events=LOW, rtol=1e-10),
    "Kvaerno3": flow(LINEAR, ("Kvaerno3",), solver=diffrax.Kvaerno3(), rtol=1e-6, loss=quartic),
    "RKC": flow(MLP, ("RKC",), solver=fl.RKC(), rtol=1e-7, events=LOW),
    "RecycledBDF": flow(LINEAR, ("RecycledBDF",), solver=fl.RecycledBDF(), events=LOW),
    "ExactKinks": flow(
        SLIDING, ("ExactKinks()", "gate", "t* open"), 6.0, kinks=fl.ExactKinks(), events=LOW,
        rtol=1e-10,
    ),
    "module walk": flow(
        RECTIFYING, ("MLP(", "ExactKinks()", "max of layers[0] (2)", "gate"), 3.2,
        kinks=fl.ExactKinks(), rtol=1e-10,
    ),
    "AveragedKinks": flow(
        LEAKY, ("AveragedKinks(", "always_on(0.25)"), 4.0, False,
        kinks=fl.AveragedKinks(), events=UNITS,
    ),
    "averaged module": flow(
        RECTIFYING, ("AveragedKinks(", "AveragedGraph", "loss 1"), 4.0, False, rtol=1e-3,
        kinks=fl.AveragedKinks(), events=LOW,
    ),
    "SmoothKinks": flow(
        RELU, ("SmoothKinks(", "always_on(0.25)"), kinks=fl.SmoothKinks(0.3), events=UNITS
    ),
    "IgnoreKinks": flow(
        LEAKY, ("IgnoreKinks(", "gate", "Bosh3"), 2.0, False,
        kinks=fl.IgnoreKinks(), solver=diffrax.Bosh3(), rtol=1e-6,
    ),
}  # fmt: skip
DESCENTS = [name for name, row in ROWS.items() if row.run is not fl.gradient_flow]
FIRST = DESCENTS  # whose plain runs are of the first tier
FIRST_TRACED = ("GatedGraph",)  # and whose runs within other programs


def rows(first):
    return [pytest.param(row, marks=() if row in first else pytest.mark.slow) for row in ROWS]


FLOWS = [row for row in rows(FIRST) if row.values[0] not in DESCENTS]
# Runs over smoothed kinks go the way of those of other smooth networks, one explicit or implicit
# method that of another, with one event or several, and averaged gates of a module that of a
# network's. RKC is in other programs in tests/solvers.
LIKE_OTHERS = ("SmoothKinks", "Tsit5", "Kvaerno3", "averaged module", "RKC")
TRACED = [row for row in rows(FIRST_TRACED) if row.values[0] not in LIKE_OTHERS]
DIFFERENTIABLE = [row for row in TRACED if ROWS[str(row.values[0])].differentiable]
# In reverse mode, which is dear, beside descents two walks; solvers alone are in tests/solvers.
WALKS = "ExactKinks", "module walk"
REVERSED = [row for row in DIFFERENTIABLE if row.values[0] in (*DESCENTS, *WALKS)]


@pytest.fixture(scope="module", params=rows(FIRST))
def row(request):
    return ROWS[request.param]


@pytest.fixture(scope="module")
def whole(row, tmp_path_factory):
    """Its run, never interrupted. With a checkpoint, since the one that is resumed has one."""
    return row(checkpoint=tmp_path_factory.mktemp("whole") / "run.npz")


@pytest.fixture(scope="module")
def forward(row):
    """Outcomes at all scales, in one program, and their derivatives by the scale."""
    if not row.differentiable:
        values = jit(jax.vmap(lambda s: row.traced(s, diffrax.RecursiveCheckpointAdjoint())))
        return values(jnp.asarray(SCALES)), None
    traced = functools.partial(row.traced, adjoint=diffrax.ForwardMode())
    # The derivative of a batch takes less to trace and compile than a batch of derivatives.
    ways = jit(lambda s: jax.jvp(jax.vmap(traced), (s,), (jnp.ones_like(s),)))
    return ways(jnp.asarray(SCALES))


def assert_same(a, b):
    """To the last bit, in all that a trajectory holds but what only its own process can."""

    def numbers(run):
        rows = run.ts, run.losses, run.observed, run.saved, run.counts, run.labels
        return *rows, run.events, run.end, run.result, eqx.filter(run.final, eqx.is_array)

    leaves = jax.tree.leaves_with_path(numbers(a))
    assert jax.tree.structure(numbers(a)) == jax.tree.structure(numbers(b))
    for (path, x), y in zip(leaves, jax.tree.leaves(numbers(b)), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


def test_it_prints_what_it_is_and_compiles_nothing(row, whole):
    before = budget.spent["programs"]
    text, table = repr(whole), whole._repr_html_()
    assert budget.spent["programs"] == before
    for word in row.says:
        assert word in text
        assert html.escape(word) in table
    assert "ended at its final time" in text


def test_it_is_saved_and_loaded_to_the_bit(row, whole, tmp_path):
    whole.save(tmp_path / "run.npz")
    mine = isinstance(row.network, (eqx.nn.MLP, fl.GatedModule))
    assert_same(fl.load(tmp_path / "run.npz", like=row.network if mine else None), whole)


def test_it_can_be_pickled(whole):
    again = pickle.loads(pickle.dumps(whole))
    assert_same(again, whole)
    assert eqx.tree_equal(again.reference.task, TASK)


def test_it_is_resumed_to_the_bit(row, whole, tmp_path):
    """Broken off where a line of the log is written, which is after any step here."""
    path = tmp_path / "run.npz"
    with pytest.raises(KeyboardInterrupt) as stopped:
        row(checkpoint=path, progress=fl.LogProgress(1e-12, Killed()))
    assert 0 < stopped.value.trajectory.end < whole.end  # pyright: ignore
    assert_same(row(checkpoint=path), whole)


@pytest.fixture(scope="module")
def alone(row, whole, tmp_path_factory):
    """Outcomes of its single runs at all scales, and how many programs those of others took."""
    folder, before = tmp_path_factory.mktemp("alone"), budget.spent["programs"]
    others = [row(s, checkpoint=folder / f"{s}.npz") for s in SCALES[1:]]
    spent = budget.spent["programs"] - before
    return np.stack([outcome(run) for run in (whole, *others)]), spent


@pytest.mark.parametrize("row", TRACED, indirect=True)
def test_under_jit_and_vmap_it_is_its_single_runs(alone, forward):
    assert np.all(np.isfinite(alone[0]))
    np.testing.assert_allclose(forward[0], alone[0], rtol=1e-7)


@pytest.mark.parametrize("row", DIFFERENTIABLE, indirect=True)
def test_derivatives_in_forward_mode_are_finite_differences(row, forward):
    values, slopes = forward
    finite = (values[1] - values[2]) / (2 * STEP)
    assert np.max(np.abs(finite)) > 1e-2
    error = row.error_of_slopes
    np.testing.assert_allclose(slopes[0], finite, rtol=error, atol=error)


@pytest.mark.parametrize("row", REVERSED, indirect=True)
def test_derivatives_in_reverse_mode_are_those_in_forward_mode(row, forward):
    _, slopes = forward
    weigh = jnp.arange(1.0, 1.0 + len(slopes[0]))
    adjoint = diffrax.RecursiveCheckpointAdjoint()
    found = jit(jax.grad(lambda s: weigh @ row.traced(s, adjoint)))(1.0)
    np.testing.assert_allclose(found, weigh @ slopes[0], rtol=1e-7)


@pytest.mark.parametrize("row", FLOWS, indirect=True)
def test_other_numbers_compile_nothing(alone):
    """Weights, ends, time constants, levels and widths."""
    assert alone[1] == 0


def test_all_parts_of_it_hold_the_same_task(whole):
    """A copy in one of them would cost a forward pass of its own."""
    parts = [leaf for leaf in jax.tree.leaves(whole.reference.run) if np.shape(leaf) == (4, 2)]
    for data in (TASK.x, TASK.y):
        same = [part is data for part in parts if np.array_equal(part, data)]
        assert same
        assert all(same)


def test_every_kind_has_a_row():
    """Whatever a user can pass to a run is in the table."""
    kinds = fl.LinearNetwork, fl.Crossing, fl.ExactKinks, fl.SquaredError, fl.RKC
    bases = tuple(base for kind in kinds for base in kind.__mro__ if base.__name__ in BASES)
    public = {kind for kind in vars(fl).values() if isinstance(kind, type)}
    parts = [(row.network, *row.options.values()) for row in ROWS.values()]
    used = {type(part) for part in jax.tree.leaves(parts, is_leaf=lambda p: isinstance(p, bases))}
    assert len(bases) == len(kinds)
    missing = {kind for kind in public if issubclass(kind, bases)} - used - {ELSEWHERE}
    names = sorted(kind.__name__ for kind in missing)
    assert not names, "give each a row of ROWS, or add it to one, as events to EVENTS"
    assert ELSEWHERE not in used


ELSEWHERE = fl.RaceHits  # needs a task that drives modes: tests/test_race.py
BASES = "AbstractOwnModel", "AbstractEvent", "AbstractKinks", "Loss", "AbstractSolver"
