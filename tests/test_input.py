"""Bad input: every error is clear, names the argument and says what to do."""

import fractions
import inspect
import subprocess
import sys

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin._tools.arguments import WORDS

TASK = fl.tasks.hierarchy()
NETWORK = fl.LinearNetwork.init(TASK, 4, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones(3), np.ones((3, 1)), "`x` must have one row per sample"),
        (np.ones((3, 2)), np.ones((2, 1)), "rows are samples"),
        (np.ones((0, 2)), np.ones((0, 1)), "`x` is empty"),
        (np.array([[1.0, np.nan]]), np.ones((1, 1)), "NaN or infinite"),
        (np.ones((1, 1)), np.array([[np.inf]]), "`y` holds 1 value"),
    ],
)
def test_tasks(x, y, message):
    with pytest.raises(ValueError, match=message):
        fl.Task(x, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"t1": 0.0}, "`t1` must be finite and positive, got 0.0"),
        ({"t1": -1.0}, "`t1` must be finite and positive"),
        ({"t1": np.inf}, "`t1` must be finite"),
        ({"t1": [1.0]}, "`t1` must be a single number, got a list"),
        ({"tau": np.ones(3)}, r"`tau` must be one number .* per layer, 2 .* got shape \(3,\)"),
        ({"tau": 0.0}, "`tau` must be finite and positive"),
        ({"ts": []}, "`ts` must be a non-empty list"),
        ({"ts": [0.0, 2.0, 1.0]}, "`ts` must be strictly ascending"),
        ({"ts": [0.0, 9.0]}, "`ts` runs from 0 to 9, outside the run's"),
        ({"ts": [-1.0, 2.0]}, "outside the run's"),
        ({"rtol": -1e-3}, "`rtol` must be finite and positive"),
        ({"rtol": 1e-17}, "finer than float64 can hold"),
        ({"atol": 0.0}, "`atol` must be finite and positive"),
        (
            {"events": (fl.Crossing(lambda n, t: jnp.sum(n.weights[0] > 0)),)},
            "return a floating-point",
        ),
        ({"observe": {"a": fl.theory.modes(TASK)}}, "are for c = 0 and the network has c = 1"),
        (
            {"events": (fl.ModeHits(fl.theory.modes(TASK), [0.1, 0.2]),)},
            "`rho` must be a number or have shape",
        ),
        (
            {"events": (fl.ModeHits(fl.theory.modes(TASK, NETWORK), share=[0.1, 0.2]),)},
            "`share` must be a number or have shape",
        ),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_runs(options, message):
    with pytest.raises(ValueError, match=message):
        fl.gradient_flow(NETWORK, TASK, **{"t1": 5.0, **options})


# A call and how its error begins. The tests' type checker would speak before the library does, so
# these run without it, all in one child, and none of them compiles a run.
REFUSED = {
    # networks
    "fl.LinearNetwork(None)": "`weights` must be a list, one matrix (N_out, N_in) per layer, got",
    "fl.LinearNetwork('ab')": "`weights` must be a list",
    "fl.LinearNetwork(2.5)": "`weights` must be a list",
    "fl.LinearNetwork([[[1.0, 2.0], [3.0]]])": "`weights[0]` must be an array of numbers, got a li",
    "fl.LinearNetwork([[['a']]])": "`weights[0]` must be an array of real numbers",
    "fl.LinearNetwork([W + 1j])": "`weights[0]` must be an array of real numbers",
    "fl.LinearNetwork([W.astype('float16')])": "`weights[0]` must be of float32 or float64, got",
    "fl.LinearNetwork([W], inf)": "`biases` must be a list",
    "fl.LinearNetwork([W], ['a'])": "`biases[0]` must be an array of real numbers, got 'a'",
    "fl.LinearNetwork([W], bias_strength=1j)": "`bias_strength` must be a number, finite, got 1j",
    "fl.LinearNetwork([W], bias_strength=None)": "`bias_strength` must be a number",
    "fl.LinearNetwork([W], bias=None)": "LinearNetwork() has no argument `bias`; did you mean `b",
    "fl.ReLUNetwork([W], slope='a')": "`slope` must lie in [0, 1), got 'a'",
    "fl.ReLUNetwork([W], slope=np.zeros((3, 0)))": "`slope` must lie in [0, 1), got an array of",
    "fl.GatedLinearNetwork([W, W], gates=None)": "`gates` must be a list, one array per hidden",
    "fl.GatedLinearNetwork([W, W], gates=['a'])": "`gates[0]` must be an array of real numbers",
    "network([1.0, 2.0])": "`x` must be an array, got a list; pass jnp.asarray(x)",
    "network(np.ones(3))": "`x` must have shape (2,), one sample, got (3,)",
    "network(task.x)": "`x` must have shape (2,), one sample, got (4, 2); inputs of shape (P, 2)",
    "network(np.array(['a', 'b']))": "`x` must be an array of numbers",
    "network.outputs(np.ones(2))": "`x` must have shape (P, 2), one row per sample, got (2,); inp",
    "network.preactivations(np.ones((4, 3)))": "`x` must have shape (P, 2)",
    "network.gates(task)": "`x` must be an array, got a Task",
    "network.frozen(task).gates(np.ones((4, 3)))": "`x` must have shape (P, 2)",
    "network.frozen(other)": "`task.x` must have shape (P, 2), one row per sample, got (8, 8)",
    "network.always_on(other)": "`task.x` must have shape (P, 2)",
    "network.frozen(task.x)": "`task` must be an fl.Task, got an array of shape (4, 2)",
    "network.frozen(task)(np.ones(2), np.ones(9))": "`gates` needs one array (H,) per hidden layer",
    "network.astype(int)": "`dtype` must be float32 or float64, got the class int",
    "network.astype('float16')": "`dtype` must be float32 or float64",
    "stack.outputs(task.x)": "`network` is a stack of networks; take one",
    "fl.gradient_flow(stack, task, 1.0)": "`network` is a stack of networks",
    # their initial weights
    "init(task)": "ReLUNetwork.init(): missing a required argument: 'key'; it has task, hidden",
    "init(task, key=7)": "`key` must be a key of jax.random, got 7; pass jax.random.key(7)",
    "init(task, key=None)": "`key` must be a key of jax.random, got None",
    "init((1, 2), key=key)": "`task` must be an fl.Task, got a tuple; make one by fl.Task(x, y)",
    "init(task, '8', key=key)": "`hidden` must hold at least one width of 1 or more, got '8'",
    "init(task, 2.5, key=key)": "`hidden` must hold at least one width of 1 or more, got 2.5",
    "init(task, 10**10, key=key)": "`hidden` = 10000000000 asks for ",
    "balanced(task, 10**6, key=key)": "`hidden` = 1000000 asks for ",
    "init(task, 8, 'x', key=key)": "`variance` must be a number, finite and zero or positive",
    "init(task, 8, bias=1, key=key)": "`bias` must be True or False, got 1",
    "init(task, 8, bias='yes', key=key)": "`bias` must be True or False, got 'yes'",
    "init(task, 8, bias=[1, 0], key=key)": "`bias` must be True or False, got 1",
    "init(task, 8, hiden=3, key=key)": "ReLUNetwork.init() has no argument `hiden`; did you mean `",
    "balanced(task, 8, product='x', key=key)": "`product` must be an array of real numbers",
    "balanced(task, 8, balance=nan, key=key)": "`balance` must be finite, got nan",
    # tasks
    "fl.Task('a', task.y)": "`x` must be an array of real numbers, got 'a'",
    "fl.Task(task.x, [[1.0, 2.0], [3.0]])": "`y` must be an array of numbers, got a list; rows of",
    "fl.Task(task.x + 1j, task.y)": "`x` must be an array of real numbers",
    "fl.Task(task.x, task.y, name=3)": "`name` must be a string, got 3",
    "task.take([0, 99])": "`indices` must be a list of whole numbers from -4 to 3, one per",
    "task.take([-5])": "`indices` must be",
    "task.take([0.5])": "`indices` must be",
    "task.take(3)": "`indices` must be",
    "task.take([True])": "`indices` must be a mask of shape (4,) that keeps a sample",
    "task.astype(None)": "`dtype` must be float32 or float64",
    "task.sharded('cpu')": "`mesh` must be a jax.sharding.Mesh, got 'cpu'",
    # losses and units
    "fl.SquaredError('median')": '`reduction` must be "mean" or "sum", got \'median\'',
    "fl.SquaredError(np.ones(4))": "`reduction` must be",
    "fl.SquaredError()(np.ones(3), np.ones((3, 1)))": "`outputs` and `targets` must have one sh",
    "fl.CrossEntropy(3)": "CrossEntropy(): too many positional arguments; it has no arguments",
    "fl.StepClock(0.1, 'HALF_SUM')": "`convention` must be an fl.Convention, got 'HALF_SUM'; pass",
    "fl.StepClock('1')": "`learning_rate` must be a number, finite and positive, got '1'",
    "fl.StepClock(0.1, samples='3')": "`samples` must be a whole number of 1 or more, got '3'",
    "fl.StepClock(0.1, outputs=-1)": "`outputs` must be a whole number of 1 or more, got -1",
    "fl.StepClock(0.1).time('a')": "`steps` must be an array of real numbers",
    # kinks and solvers
    "fl.SmoothKinks('a')": "`width` must be a number, finite and positive, got 'a'",
    "fl.ExactKinks(2.5)": "`slots` must be a whole number of 1 or more, got 2.5",
    "fl.ExactKinks(slot=3)": "ExactKinks() has no argument `slot`; did you mean `slots`",
    "fl.RKC(2.5)": "`max_stages` must be a whole number from 2 to 2048, got 2.5",
    "fl.RKC(10**9)": "`max_stages` must be a whole number from 2 to 2048",
    "fl.RKC(loop=W)": '`loop` must be "checkpointed" or "lax"',
    "fl.RecycledBDF(6)": "`max_order` must be a whole number from 1 to 5, got 6",
    "fl.RecycledBDF(eigenvalues=17)": "`eigenvalues` must be a whole number from 0 to 16, got 17",
    "fl.RecycledBDF(rtol=0)": "`rtol` must be finite and positive, got 0",
    # events
    "fl.Crossing(3)": "`observable` must be a function of (network, task), got 3",
    "fl.Crossing(max, 'a')": "`level` must be an array of real numbers, got 'a'",
    "fl.Crossing(max, direction='sideways')": '`direction` must be None, "up" or "down", got',
    "fl.Crossing(max, terminate=1)": "`terminate` must be True or False, got 1",
    "fl.Crossing(max, directon='up')": "Crossing() has no argument `directon`; did you mean `direc",
    "fl.LossBelow(nan)": "`level` must be finite, got nan",
    "fl.LossBelow('a')": "`level` must be a number",
    "fl.LossBelow(0.1, name=3)": "`name` must be a string, got 3",
    "fl.UnitSwitches('a')": "`quantile` must lie in [0, 0.5), got 'a'",
    # runs
    "flow(1.0, loss='mse')": "`loss` must be a loss of flowlin or a function of (output, target) "
    "of one sample, got 'mse'; pass fl.SquaredError(), fl.CrossEntropy() or a function.",
    "flow(1.0, loss=fl.SquaredError)": "`loss` must be a loss of flowlin or a function of (output, "
    "target) of one sample, got the class SquaredErr",
    "flow(1.0, solver='Tsit5')": "`solver` must be a diffrax solver, got 'Tsit5'; pass one such as",
    "flow(1.0, solver=diffrax.Tsit5)": "`solver` must be a diffrax solver, got the class Tsit5; ma",
    "flow(1.0, solver=diffrax.SemiImplicitEuler())": "`solver` must be a solver of an ordinary",
    "flow(1.0, solver=diffrax.KenCarp4())": "`solver` must be a solver of an ordinary differential",
    "flow(1.0, solver=diffrax.ItoMilstein())": "`solver` must be a solver of an ordinary",
    "flow(1.0, stepsize_controller=diffrax.ConstantStepSize())": "`stepsize_controller` must be an",
    "flow(1.0, stepsize_controller=diffrax.PIDController(1, 1), rtol=1)": "`stepsize_controller`",
    "flow(1.0, solver=diffrax.Euler())": "`solver` must be a solver that estimates its error, got",
    "flow(1.0, rtoll=1e-3)": "gradient_flow() has no argument `rtoll`; did you mean `rtol`?",
    "flow()": "gradient_flow(): missing a required argument: 't1'; it has network, task",
    "flow('1')": "`t1` must be a number, finite and positive, got '1'",
    "flow(True)": "`t1` must be a number",
    "flow(1.0, ts=[nan])": "`ts` holds 1 NaN among 1 times",
    "flow(1.0, ts=['a'])": "`ts` must be an array of real numbers",
    "flow(1.0, ts=[1.0 + 1e-12])": "`ts` runs from 1 to 1, outside the run's",
    "flow(1.0, tau=None)": "`tau` must be a number",
    "flow(1.0, dense=1)": "`dense` must be True or False, got 1",
    "flow(1.0, progress='yes')": "`progress` must be True, False, fl.LogProgress() or a",
    "fl.LogProgress(0)": "`every` must be finite and positive, got 0",
    "fl.LogProgress(stream='run.log')": "`stream` must be None or an open text file",
    "flow(1.0, kinks='exact')": "`kinks` must be an object such as fl.ExactKinks(), got 'exact'",
    "fl.gradient_flow(linear, task, 1.0, kinks='exact')": "`kinks` must be an object such as",
    "flow(1.0, adjoint=diffrax.BacksolveAdjoint())": "`adjoint` must be diffrax.RecursiveCheckpoi",
    "flow(1.0, observe=max)": "`observe` must be a dictionary of functions of (network, task)",
    "descent(9, observe={'a': lambda n, t: 'x'})": "`observe['a']` must return numbers or arrays",
    "descent(9, observe={'a': lambda n, t: None})": "`observe['a']` must return numbers or arrays",
    "flow(1.0, events=(max,))": "`events[0]` must be an event, got a builtin_function_or_method; w",
    "flow(1.0, events='loss')": "`events` must be an event, got 'loss'; wrap a function as fl.Cros",
    "flow(1.0, events=fl.Crossing(lambda n, t: 'x'))": "`observable` of event 'crossing' must retu",
    "flow(1.0, events=fl.Crossing(lambda n, t: {'a': 1.0}))": "`observable` of event 'crossing' mu",
    "flow(1.0, events=fl.Crossing(lambda n, t: W[0], W[:, 0, None][:, [0] * 5]))": "`observable` o",
    "flow(1.0, max_events=0)": "`max_events` must be a whole number of 1 or more, got 0",
    "flow(1.0, max_events=10**15)": "`max_events` = 1000000000000000 asks for ",
    "flow(1.0, max_steps=2.5)": "`max_steps` must be a whole number from 1 to 1073741824, got 2.5;",
    "flow(1.0, max_steps=10**10)": "`max_steps` must be a whole number from 1 to 1073741824, got",
    "flow(1.0, checkpoint=3)": "`checkpoint` must be a path, as a string or a pathlib.Path, got 3",
    "fl.gradient_flow('relu', task, 1.0)": "`network` must be a network of flowlin, or an Equinox",
    "fl.gradient_flow(network, (task.x, task.y), 1.0)": "`task` must be an fl.Task, got a tuple",
    "descent(2.5)": "`steps` must be a whole number from 1 to 1073741824, got 2.5; to reach a time",
    "descent('10')": "`steps` must be a whole number",
    "descent(2**30)": "`steps` = 1073741824 asks for ",
    "descent(2**30, save_every=1)": "`save_every` = 1, 1073741824 rows, asks for ",
    "descent(9, save_every=2.5)": "`save_every` must be a whole number of 1 or more, got 2.5",
    "descent(9, optimiser='adam')": "`optimiser` must be an optax optimiser, got 'adam'",
    "descent(9, optimizer=3)": "gradient_descent() has no argument `optimizer`; did you mean `op",
    "sgd(9, batch_size=2.5, key=key)": "`batch_size` must be a whole number of 1 or more, got 2.5",
    "sgd(9, batch_size=2, key=0)": "`key` must be a key of jax.random, got 0",
    "fl.sweep([network, 'a'], task, 1.0)": "`networks[1]` must be a network of flowlin, or an",
    "fl.sweep([network], 'a', 1.0)": "`tasks` must be an fl.Task, got 'a'",
    "fl.sweep([network], task, 1.0, workers=1.5)": "`workers` must be a whole number of 1 or more",
    "fl.sweep([network], task, 1.0, worker=2)": "sweep() has no argument `worker`; did you mean `w",
    "flow(1.0, learning_rate=1)": "gradient_flow() has no argument `learning_rate`: a flow has no",
    "fl.sweep([network], task, 1.0, learning_rate=1)": "sweep() has no argument `learning_rate`: a",
    "fl.sweep([network], task, 1.0, rtoll=2)": "sweep() has no argument `rtoll`; did you mean `rt",
    "network.frozen(unknown)": "`task.x` holds 8 value(s) that are NaN or infinite; remove",
    "network.always_on(unknown)": "`task.x` holds 8 value(s) that are NaN or infinite; remove",
    "network.frozen(task)(task.x[0], 8.0)": "`gates` must be a list, one array (H,) per hidden lay",
    "init(task, {2}, key=key)": "`hidden` must hold at least one width of 1 or more",
    "fl.Sweep(3)": "`flows` must be a trajectory, which runs return, got 3",
    "fl.compare(network, network)": "`flow` must be a trajectory, which runs return, got a ReLUN",
    "fl.largest_learning_rate(network, task, 1.0, within=nan)": "`within` must be finite and posit",
    "fl.largest_learning_rate(network, task, 1.0, events=max)": "`events` must be an event, got",
    "fl.load(3)": "`path` must be a path, as a string or a pathlib.Path, got 3",
}
CHILD = """
import functools, sys
import diffrax, jax, numpy as np
jax.config.update("jax_enable_x64", True)
import flowlin as fl
from flowlin._tools import arguments as memory
memory.available_memory = lambda: 2**34  # of a small machine
inf, nan, W = np.inf, np.nan, np.ones((2, 2))
key, task, other = jax.random.key(0), fl.tasks.xor(), fl.tasks.hierarchy()
init, balanced = fl.ReLUNetwork.init, fl.LinearNetwork.balanced
network, linear = init(task, 2, key=key), fl.LinearNetwork.init(task, 2, key=key)
stack = jax.tree.map(lambda a: a[None], network)
unknown = jax.tree.map(lambda a: a * nan, task)
flow = functools.partial(fl.gradient_flow, network, task)
descent = functools.partial(fl.gradient_descent, network, task, 0.1)
sgd = functools.partial(fl.stochastic_gradient_descent, network, task, 0.1)
for call, message in eval(sys.stdin.read()).items():
    try:
        eval(call)
        print(call, "raised nothing")
    except Exception as error:
        if type(error) not in (TypeError, ValueError) or not str(error).startswith(message):
            print(call, repr(error))
"""


def test_what_is_refused_and_how():
    child = [sys.executable, "-c", CHILD]
    told = subprocess.run(child, input=repr(REFUSED), text=True, check=True, capture_output=True)
    assert told.stdout == ""


def test_network_and_task_must_fit():
    with pytest.raises(ValueError, match="maps 8 inputs to 15 outputs, but `task` 'xor'"):
        fl.gradient_flow(NETWORK, fl.tasks.xor(), 1.0)


def test_float32_refuses_tolerances_that_it_cannot_hold():
    single = NETWORK.astype(jnp.float32)
    with pytest.raises(ValueError, match=r'jax.config.update\("jax_enable_x64", True\)'):
        fl.gradient_flow(single, TASK, 1.0, rtol=1e-12)


def test_max_steps_keeps_what_was_computed():
    with pytest.raises(fl.RunError, match="`max_steps` = 7 reached at t = ") as caught:
        fl.gradient_flow(NETWORK, TASK, 60.0, max_steps=7, ts=np.linspace(0, 60, 601))
    partial = caught.value.trajectory
    assert 0 < float(partial.end) < 60
    assert 1 < len(partial.ts) < 601
    assert float(partial.ts[-1]) <= float(partial.end)
    assert jnp.all(jnp.isfinite(partial.losses))
    quiet = fl.gradient_flow(NETWORK, TASK, 60.0, max_steps=7, throw=False)
    assert bool(quiet.result == fl.RESULTS.max_steps_reached)
    assert float(quiet.end) == float(partial.end)


class Breaking(fl.SquaredError):
    """A loss that is NaN below a level, gradient included if `hard`."""

    hard: bool = False

    def total(self, outputs, targets, weights=None):
        total, level = super().total(outputs, targets, weights), targets.shape[0]
        if self.hard:
            return jnp.where(total < level, jnp.sqrt(total - level), total)
        return jnp.where(total < level, jnp.nan, total)


@pytest.mark.parametrize("hard", [False, True])
def test_nan_in_the_loss_leaves_what_was_computed(hard):
    relu = fl.LinearNetwork.init(TASK, 4, 0.05, key=jax.random.key(0)).frozen(TASK)
    ts = jnp.linspace(0, 30, 301)
    flow = fl.gradient_flow(relu, TASK, 30.0, loss=Breaking(hard=hard), ts=ts, throw=False)
    good = int(jnp.sum(jnp.isfinite(flow.losses)))
    assert good > 3
    assert float(flow.losses[good - 1]) >= 1.0
    expected = fl.RESULTS.dt_min_reached if hard else fl.RESULTS.not_finite
    assert bool(flow.result == expected)
    with pytest.raises(fl.RunError):
        fl.gradient_flow(relu, TASK, 30.0, loss=Breaking(hard=hard), ts=ts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.SmoothKinks(0.0), "`width` must be finite and positive"),
        (lambda: fl.Crossing(lambda n, t: 0.0, level=np.nan), "`level` must be finite, got nan"),
        (lambda: fl.theory.bias_mode(TASK, np.nan), "`bias_strength` must be finite, got nan"),
        (lambda: fl.UnitSwitches(0.5), r"`quantile` must lie in \[0, 0.5\)"),
    ],
)
def test_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# What runs hand to each other, with arguments of their own making.
INNER = {"activation", "with_parameters", "with_sample_gates", "watches", "weight", "total", "of"}
INNER |= {"held", "require_fit", "time_constants", "packed", "unpacked", "restored", "rounded"}
INNER |= {"rounded_activation", "parameters_of", "model_at"}
INNER |= {"with_rows", "mapped", "merged", "gate_channel", "gate", "method", "walk", "remedy"}
RETURNED = (fl.Accuracy, fl.Comparison, fl.EventLog, fl.Linearization, fl.RateCertificate)
RETURNED = (
    *RETURNED,
    fl.Grid,
    fl.Pathway,
    fl.Rectified,
    fl.RectifiedPathway,
    fl.Trajectory,
    fl.Convention,
    fl.RESULTS,
    Exception,
)


def entrances(module):
    """Public functions, constructors and methods of a module, by name."""
    for name, thing in vars(module).items():
        if name.startswith("_") or not callable(thing):
            continue
        if not inspect.isclass(thing):
            yield name, thing
            continue
        if not issubclass(thing, RETURNED):
            yield name, thing.__init__
        for word, method in inspect.getmembers(thing, callable):
            method = inspect.unwrap(getattr(method, "__func__", method))
            own = str(getattr(method, "__module__", "")).startswith("flowlin")
            hidden = word in INNER or (word.startswith("_") and word != "__call__")
            if own and not hidden and not issubclass(thing, diffrax.AbstractSolver):
                yield f"{name}.{word}", getattr(thing, word)


@pytest.mark.parametrize("module", [fl, fl.tasks, fl.plot], ids=lambda module: module.__name__)
def test_every_argument_is_checked(module):
    """Every public callable is entered through `checked`, and knows what its arguments may be."""
    found = dict(entrances(module))
    assert len(found) > 5
    for name, function in found.items():
        parameters = inspect.signature(function).parameters.values()
        words = [p.name for p in parameters if p.name != "self" and p.kind != p.VAR_KEYWORD]
        checks = getattr(function, "checks", None)
        assert checks is not None or not words, f"{name} is not decorated with `checked`"
        unknown = [word for word in words if word not in checks and word not in WORDS]
        assert not unknown, f"{name} does not say what {unknown} may be"


def stack(run):
    """What `vmap` makes of two runs."""
    return jax.tree.map(lambda a: jnp.stack([a, a]), run)


@pytest.fixture(scope="module")
def lenient():
    """A run of what users write: one event, a time past the end by rounding, plain numbers."""
    return fl.gradient_flow(
        NETWORK, TASK, 0.3, ts=[0.1, 0.1 + 0.2], max_steps=None, events=fl.LossBelow(1.0),
        observe={"one": lambda network, task: 1, "half": lambda network, task: 0.5},
    )  # fmt: skip


def test_what_is_accepted(lenient):
    assert float(lenient.ts[-1]) == 0.3
    np.testing.assert_array_equal(lenient.observed["one"], [1, 1])
    np.testing.assert_array_equal(lenient.observed["half"], [0.5, 0.5])
    assert lenient.events.channels[0].name == "loss"
    losses = fl.gradient_descent(NETWORK, TASK, 0.1, 2, observe={})  # and nothing else
    assert losses.observed == {}
    assert losses.saved is None
    np.testing.assert_array_equal(TASK.take([-1, 0]).x, TASK.x[np.array([-1, 0])])
    np.testing.assert_array_equal(
        TASK.take(TASK.y[:, 0] > 0).y[:, 0], TASK.y[:, 0][TASK.y[:, 0] > 0]
    )
    assert fl.Task(np.ones((2, 1), "float16"), np.ones((2, 1), bool)).x.dtype == jnp.float64
    assert fl.LinearNetwork([[[1, 2]]]).dtype == jnp.float64


@pytest.mark.usefixtures("without_type_checks")
def test_numbers_in_other_clothes_are_accepted():
    init, key = fl.LinearNetwork.init, jax.random.key(0)
    assert init(TASK, jnp.array(2), key=key).hidden == (2,)
    assert (
        float(init(TASK, 2, bias_strength=fractions.Fraction(1, 4), key=key).bias_strength) == 0.25
    )
    assert NETWORK.outputs(TASK.x[:0]).shape == (0, TASK.outputs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f.linearization("a"), r"`quantile` must lie in \[0, 0.5\), got 'a'"),
        (lambda f: f.linearization(layer=-1), "`layer` must be a whole number counted from 0"),
        (lambda f: f.extend("a"), "`t1` must be a number, finite and positive, got 'a'"),
        (lambda f: f.extend(1.0, max_steps=0.5), "`max_steps` must be a whole number from 1 to"),
        (lambda f: f.network("a"), "`t` must be an array of real numbers, got 'a'"),
        (lambda f: f.save(3), "`path` must be a path, as a string"),
        (lambda f: f.events.select(3), "`name` must be a string, got 3"),
        (lambda f: f.events.sides([0.1]), "`t` must be a single number"),
        (lambda f: f.events.sides(-np.inf), "`t` must be a time, or inf for the end, got -inf"),
        (lambda f: fl.compare(stack(f), f), "`flow` is a stack of runs; take one, as in"),
        (lambda f: f.events.sides(np.nan), "`t` must be a time, or inf for the end, got nan"),
        (lambda f: f.events.gates(0.1, "a"), "`layer` must be a whole number counted from 0"),
        (lambda f: f.events.where([True]), "`mask` must be an array of truth values of shape"),
        (lambda f: stack(f).events.name, r"`events\.name` is of one log, and these are stacked"),
        (lambda f: stack(f).events.index, r"times of shape \(2, \d+\); take one, as in jax\.tree"),
        (lambda f: stack(f).events.table(), r"`events\.\w+` is of one log, and these are stacked"),
        (lambda f: stack(f).events.sides(0.1), r"`events\.sides` is of one log, and these are"),
        (lambda f: stack(f).events.where(f.events.time > 0), r"`events\.where` is of one log"),
        (lambda f: len(stack(f).events), r"`len\(events\)` is of one log"),
        (lambda f: jax.jit(lambda log: log.name)(f.events), r"`events\.name` is not known under j"),
        (lambda f: fl.Sweep([f]).map(3), r"`function` must be a function of \(flow\), got 3"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_what_runs_return_checks_its_arguments(lenient, call, message):
    with pytest.raises(ValueError, match=message):
        call(lenient)


@pytest.mark.usefixtures("without_type_checks")
def test_networks_of_other_shapes_are_not_compared(lenient):
    other = fl.gradient_descent(fl.LinearNetwork.init(TASK, 3, key=jax.random.key(1)), TASK, 0.1, 2)
    with pytest.raises(ValueError, match="are of networks of other shapes"):
        fl.compare(lenient, other)


def losses(tau):
    return fl.gradient_flow(NETWORK, TASK, 0.3, tau=tau, max_steps=64).losses


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    "derivative",
    [
        lambda: jax.jvp(losses, (1.0,), (1.0,)),
        lambda: jax.jvp(jax.jit(losses), (1.0,), (1.0,)),
        lambda: jax.jit(jax.jacfwd(losses))(1.0),
        lambda: jax.hessian(lambda tau: losses(tau)[-1])(1.0),
    ],
    ids=["jvp", "jvp of jit", "jit of jacfwd", "hessian"],
)
def test_forward_derivatives_name_the_adjoint(derivative):
    with pytest.raises(ValueError, match=r"`adjoint=diffrax.ForwardMode\(\)`"):
        derivative()


@pytest.mark.usefixtures("without_type_checks")
def test_traced_values_are_checked_when_the_program_runs():
    run = jax.jit(lambda tau, t1: fl.gradient_flow(NETWORK, TASK, t1, tau=tau, max_steps=64).losses)
    assert jnp.all(jnp.isfinite(run(1.0, 0.3)))
    told = (ValueError, jax.errors.JaxRuntimeError)
    for tau, t1, name in ((-1.0, 0.3, "tau"), (0.0, 0.3, "tau"), (1.0, np.nan, "t1")):
        with pytest.raises(told, match=f"`{name}` must be finite and positive"):
            jax.block_until_ready(run(tau, t1))
    pulled = jax.jit(
        lambda decay: fl.gradient_descent(NETWORK, TASK, 0.1, 2, weight_decay=decay).losses
    )
    assert jnp.all(jnp.isfinite(pulled(0.0)))
    for decay in (-1.0, np.nan, np.inf):
        with pytest.raises(told, match="`weight_decay` must be finite and zero or positive"):
            jax.block_until_ready(pulled(decay))
