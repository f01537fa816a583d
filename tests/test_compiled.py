"""Programs are compiled for distinct arrays, and compiled anew only for another mathematics."""

from types import SimpleNamespace

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests import budget

TASK = fl.tasks.xor()


def network(kind, seed=0):
    return kind.init(TASK, 3, 0.1, key=jax.random.key(seed))


LINEAR, RELU = fl.LinearNetwork, fl.ReLUNetwork


def programs(run):
    """How many programs it takes to run, and what came out."""
    before = budget.spent["programs"]
    found = run()
    return budget.spent["programs"] - before, found


def weight(network, task):
    return network.weights[0][0, 0]


def watched(run, names, network):
    """A run that calls what it watches and records so."""
    low, grown, seen, other = names
    events = (fl.Crossing(weight, 0.2, name=grown), fl.LossBelow(0.4, name=low))
    return run(network, events=events, observe={seen: fl.measures.loss, other: weight})


# The second has names of the first's, in other places: they stand in the order of the alphabet.
NAMES = ("loss", "crossing", "z", "a"), ("crossing", "grown", "b", "loss")
SMALL = fl.Task([[1.0]], [[1.0]])
GROWING = fl.LinearNetwork((jnp.full((2, 1), 0.1), jnp.full((1, 2), 0.1)))
RUNS = {
    "flow": lambda network, **how: fl.gradient_flow(network, SMALL, 5.0, max_events=8, **how),
    "descent": lambda network, **how: fl.gradient_descent(network, SMALL, 0.1, 50, **how),
    "batches": lambda network, **how: fl.stochastic_gradient_descent(
        network, SMALL, 0.1, 50, batch_size=1, key=jax.random.key(0), **how
    ),
}
FIRST_TIER = [pytest.param("flow", marks=pytest.mark.slow), "descent", "batches"]


@pytest.mark.parametrize("kind", FIRST_TIER)
def test_other_names_compile_nothing_and_are_those_of_the_result(kind):
    for k, names in enumerate(NAMES):
        many, run = programs(lambda names=names: watched(RUNS[kind], names, GROWING))
        assert (many == 0) == (k == 1)
        low, grown, seen, other = names
        assert run.events.name == [grown, low]
        assert float(run.events.first(grown)) < float(run.events.first(low)) < 5
        assert list(run.observed) == sorted([seen, other])
        assert np.allclose(run.observed[seen], run.losses)
        assert float(run.observed[other][0]) == 0.1


@pytest.mark.slow
def test_names_are_right_under_vmap_and_jit():
    both = jax.tree.map(lambda a: jnp.stack([a, a + a]), GROWING)
    first, second = (
        jax.vmap(lambda n, names=names: watched(RUNS["flow"], names, n)) for names in NAMES
    )
    traced, run = jax.eval_shape(first, both), jax.jit(second)(both)
    for names, one in zip(NAMES, (traced, run), strict=True):
        assert [channel.name for channel in one.events.channels] == [names[1], names[0]]
        assert list(one.observed) == sorted(names[2:])
    assert np.allclose(run.observed[NAMES[1][2]], run.losses)


def flow(kind, seed, t1=1.0, **how):
    return fl.gradient_flow(network(kind, seed), TASK, t1, **how)


@pytest.fixture(scope="module")
def plain():
    return flow(LINEAR, 0)


def test_what_equals_the_default_compiles_nothing(plain):
    """Nor do other weights, tolerances, ends and time constants, which are numbers of a run."""
    same = {"solver": diffrax.Dopri8(), "kinks": fl.IgnoreKinks(), "loss": fl.SquaredError()}
    many, named = programs(lambda: flow(LINEAR, 1, 2.0, tau=2.0, rtol=1e-7, **same))
    assert many == 0
    assert named.stats["solver_because"] == "as asked for" != plain.stats["solver_because"]


def controlled(rtol):
    return diffrax.PIDController(rtol=rtol, atol=1e-9)


PAIRS = {
    "tolerances of the user's controller": (
        lambda: flow(LINEAR, 0, stepsize_controller=controlled(1e-6)),
        lambda: flow(LINEAR, 0, stepsize_controller=controlled(1e-7)),
    ),
    "dense output of some steps more": (
        lambda: flow(LINEAR, 0, dense=True),
        lambda: flow(LINEAR, 0, 20.0, dense=True),
    ),
}


@pytest.mark.slow
def test_runs_that_an_event_ends_at_other_rows_compile_nothing():
    def ended(level):
        end, ts = fl.LossBelow(level, terminate=True), np.linspace(0, 6, 13)
        return fl.gradient_flow(network(LINEAR), TASK, 6.0, ts=ts, events=end)

    first = ended(0.45)
    many, later = programs(lambda: ended(0.4))
    assert len(first.ts) < len(later.ts) < 13
    assert many == 0


@pytest.mark.slow
def test_a_run_that_pauses_is_two_programs(tree):
    """Its state before the first step, and its steps; its rows and pauses compile nothing."""
    narrow, wide = (
        fl.LinearNetwork.init(tree, width, 1e-3, key=jax.random.key(0)) for width in (7, 11)
    )
    fl.gradient_flow(narrow, tree, 60.0)  # compiles what any run does once
    many, run = programs(lambda: fl.gradient_flow(wide, tree, 60.0))
    assert int(run.stats["num_steps"]) > 64
    assert many == 2


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_other_numbers_compile_nothing(pair):
    first, second = PAIRS[pair]
    one = first()
    many, other = programs(second)
    assert many == 0
    assert fl.distance(one.final, other.final) > 0


def levels(share):
    """A watch of mode hits."""
    problem = SimpleNamespace(network=RELU_23, task=TASK)
    return fl.ModeHits(MODES, share=share).watches(problem, None, None)  # pyright: ignore


@pytest.mark.parametrize(
    ("make", "most"),
    [
        # Beside the one program, variance and c become arrays.
        (lambda variance: fl.ReLUNetwork.init(TASK, 23, variance, key=jax.random.key(0)), 3),
        (levels, 3),
    ],
    ids=["initial weights", "levels of mode hits"],
)
def test_it_is_one_program_whatever_the_numbers(make, most):
    assert programs(lambda: make(0.2))[0] <= most
    assert programs(lambda: make(0.3))[0] == 0


@pytest.mark.slow
def test_an_early_phase_is_one_program_whatever_its_end():
    fl.theory.early_phase(RELU_23, TASK, t1=0.2)
    assert programs(lambda: fl.theory.early_phase(RELU_23, TASK, t1=0.3))[0] == 0


RELU_23 = fl.ReLUNetwork.init(TASK, 23, 0.1, key=jax.random.key(0))
MODES = fl.theory.modes(TASK, RELU_23)


class Own(diffrax.Tsit5):
    """A solver of a user's, who may look at the weights."""

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        assert [a.shape for a in jax.tree.leaves(y0)] == [(3, 2), (2, 3), (3,)]
        return super().step(terms, t0, t1, y0, args, solver_state, made_jump)


def norm_of_trees(tree):
    assert len(jax.tree.leaves(tree)) == 3
    return jnp.sqrt(sum(jnp.sum(a * a) for a in jax.tree.leaves(tree)))


@pytest.mark.parametrize(
    "how",
    [
        {"solver": Own()},
        {"stepsize_controller": diffrax.PIDController(rtol=1e-3, atol=1e-6, norm=norm_of_trees)},
    ],
    ids=["solver", "controller"],
)
def test_what_users_write_themselves_sees_the_arrays_of_a_network(how):
    """Where the library's own solvers and norms see one vector."""
    jax.eval_shape(lambda n: fl.gradient_flow(n, TASK, 1.0, **how).end, network(LINEAR))


@pytest.mark.slow
def test_a_log_has_less_room_where_it_cannot_grow():
    """Under `jit` diffrax copies all of it in every step."""

    def room(hidden, **how):
        start = RELU.init(TASK, hidden, 0.1, key=jax.random.key(0))
        how = {"kinks": fl.ExactKinks(), **how}
        return jax.eval_shape(lambda n: fl.gradient_flow(n, TASK, 1.0, **how).events.time, start)

    pairs = TASK.samples * 400
    assert room(3).shape == (4096,)
    assert room(400).shape == (8 * pairs,)
    assert room(3, max_events=5).shape == (5,)


MOST_KERNELS = 620


@pytest.fixture(scope="module")
def compiled_walk():
    """The README's walk with few units, as the text of the program that a CPU runs."""
    task = fl.tasks.hierarchy(levels=3)
    start = fl.ReLUNetwork.init(task, 8, 2e-4, key=jax.random.key(0))
    half = fl.ModeHits(fl.theory.modes(task, start), share=0.5)
    walk = jax.jit(lambda network: fl.gradient_flow(network, task, 30.0, events=half).events.time)
    # As the library compiles small runs.
    options: dict = {"xla_cpu_use_fusion_emitters": False}
    return walk.lower(start).compile(compiler_options=options).as_text()


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="kernels are counted for a CPU")
def test_a_walk_does_not_grow(compiled_walk):
    """A first run waits for the compiler, by about 7 ms for each kernel, however small."""
    kernels = compiled_walk.count(" fusion(")
    assert MOST_KERNELS * 0.7 < kernels < MOST_KERNELS


@pytest.mark.slow
@pytest.mark.skipif(not budget.PROCESS_MAPS.exists(), reason="maps of memory are told by Linux")
def test_programs_are_forgotten_before_their_maps_of_memory_run_out(monkeypatch):
    """A process may have 65,530: at the next one it is aborted, with all that it has computed."""

    def grow(units):
        start = fl.LinearNetwork((jnp.full((units, 1), 0.1), jnp.full((1, units), 0.1)))
        return fl.gradient_flow(start, SMALL, 5.0)

    grow(2)
    grow(3)
    many, before = programs(lambda: grow(2))
    assert many == 0
    monkeypatch.setattr("flowlin._tools.memory.MAPS_SHARE", 0.0)
    grow(4)  # programs are counted by the next run after one has compiled
    many, after = programs(lambda: grow(2))
    assert many > 0
    assert after.losses.tolist() == before.losses.tolist()
