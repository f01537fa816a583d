"""Kinds of arguments: what is certainly bad for each, and odd values near to valid ones."""

import dataclasses
import decimal
import inspect
import math
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from matplotlib.axes import Axes

import flowlin as fl
from tests.fuzz.things import shared

Test = Callable[[Any], bool]


def _base(kind: type, name: str) -> type:
    """The class behind a public one that others of its kind have, too."""
    return next(base for base in kind.__mro__ if base.__name__ == name)


AbstractEvent = _base(fl.LossBelow, "AbstractEvent")
AbstractKinks = _base(fl.ExactKinks, "AbstractKinks")
AbstractNetwork = _base(fl.LinearNetwork, "AbstractNetwork")
Loss = _base(fl.SquaredError, "Loss")


@dataclasses.dataclass(frozen=True)
class Kind:
    """What an argument is.

    - `good`: false for values that are certainly bad: accepted, they are a silent mistake.
    - `near`: expressions of odd values of which some are good.
    - `formula`: an argument of a closed form or measure, out of which NaN stays NaN.
    """

    good: Test
    near: tuple[str, ...] = ()
    formula: bool = False


def _plain(value: Any) -> np.ndarray | None:
    """The value as an array of real numbers, or None."""
    if isinstance(value, (str, bytes, Mapping, set)) or value is None:
        return None
    try:
        array = np.asarray(value)
    except Exception:
        return None
    real = array.dtype.kind in "fiub" or array.dtype == jnp.bfloat16
    return array if real else None


def real(value: Any) -> bool:
    """One real number, NaN and infinities apart."""
    if isinstance(value, (numbers.Real, decimal.Decimal)):  # however large, and fractions too
        return not isinstance(value, (float, decimal.Decimal)) or math.isfinite(value)
    array = _plain(value)
    return array is not None and array.ndim == 0 and bool(np.isfinite(array))


def positive(value: Any) -> bool:
    return real(value) and value > 0


def not_negative(value: Any) -> bool:
    return real(value) and value >= 0


def whole(value: Any) -> bool:
    return real(value) and value == int(value)


def count(value: Any) -> bool:
    return whole(value) and value >= 1


def flag(value: Any) -> bool:
    """A boolean; 0 and 1 pass for one."""
    return real(value) and value in (0, 1)


def numeric(value: Any) -> bool:
    """Real numbers of any shape, NaN included: those of closed forms."""
    return _plain(value) is not None or real(value)


def finite(value: Any) -> bool:
    """Finite real numbers of any shape."""
    array = _plain(value)
    return array is not None and bool(np.all(np.isfinite(array)))


def of(*types: type) -> Test:
    """Instances of one of the types."""
    return lambda value: isinstance(value, types)


def either(*tests: Test) -> Test:
    return lambda value: any(test(value) for test in tests)


def listed(test: Test) -> Test:
    """A sequence whose entries all pass."""

    def entries(value: Any) -> bool:
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
            return False
        array_like = isinstance(value, (Sequence, np.ndarray, jax.Array))
        return array_like and getattr(value, "ndim", 1) != 0 and all(test(entry) for entry in value)

    return entries


def among(*allowed: Any) -> Test:
    return lambda value: any(value is one or (_same(value, one)) for one in allowed)


def _same(value: Any, one: Any) -> bool:
    return isinstance(value, (str, int, np.integer)) and value == one


def within(low: float, high: float) -> Test:
    return lambda value: real(value) and low <= value <= high


def but(test: Test, *names: str) -> Test:
    """What passes, but for these things."""
    return lambda value: (
        test(value) and not any(value is shared()[name] for name in names if name in shared())
    )


def only(name: str) -> Test:
    """This one thing."""
    return lambda value: name in shared() and value is shared()[name]


def matrix(value: Any) -> bool:
    """Finite numbers in rows."""
    array = _plain(value)
    return array is not None and array.ndim == 2 and 0 not in array.shape and finite(array)


def classes(value: Any) -> bool:
    """Rows of numbers that are not negative, one for each of several classes."""
    return matrix(value) and np.shape(value)[1] > 1 and bool(np.min(np.asarray(value)) >= 0)


def rows(value: Any) -> bool:
    """A representation (..., P, H)."""
    array = _plain(value)
    return array is not None and array.ndim >= 2


def times(value: Any) -> bool:
    array = _plain(value)
    if array is None or array.ndim != 1 or array.size == 0 or not finite(array):
        return False
    return bool(np.all(np.diff(array) > 0) and array[0] >= 0)


def event(value: Any) -> bool:
    """An event, of modes that are the task's if it is about modes."""
    own = of(fl.theory.Modes, type(None))
    modes = getattr(value, "modes", None)
    return isinstance(value, AbstractEvent) and but(own, "other_modes", "strange_modes")(modes)


def random_key(value: Any) -> bool:
    """A key of `jax.random`, new or raw."""
    if not isinstance(value, (jax.Array, np.ndarray)):
        return False
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value.ndim == 0
    return value.dtype == np.uint32 and value.shape in {(2,), (4,)}


def loss(value: Any) -> bool:
    """A loss, or a function that makes one number of one sample."""
    if isinstance(value, Loss):
        return True
    if not callable(value) or inspect.isclass(value):
        return False
    found: Any = value(np.ones(7), np.ones(7))
    return np.ndim(found) == 0


def counts(value: Any) -> bool:
    """Weights of samples, or of entries."""
    return finite(value) and np.ndim(value) in (1, 2) and bool(np.all(np.asarray(value) >= 0))


def named(test: Test) -> Test:
    """A dictionary from names to what passes."""
    return lambda value: (
        isinstance(value, Mapping)
        and all(isinstance(name, str) for name in value)
        and all(map(test, value.values()))
    )


def given_by(test: Test) -> Test:
    """A dictionary, by nodes or edges, of what passes."""
    return lambda value: isinstance(value, Mapping) and all(map(test, value.values()))


NUMBERS = ("'1'", "1j", "[1.0]", "np.ones((2,))", "jnp.array(1.0)", "fractions.Fraction(1, 3)",
           "decimal.Decimal('0.5')", "np.float16(1)", "1e308", "5e-324", "-0.0")  # fmt: skip
COUNTS = ("'3'", "2.5", "0", "-1", "10**10", "10**400", "True", "np.int64(2)", "jnp.array(2)",
          "[1]", "np.array([1, 2])", "1e300", "2.0")  # fmt: skip
ARRAYS = ("np.ones((2, 2))", "np.zeros((0, 4))", "np.ones((4, 4, 4))", "np.array('text')",
          "np.ones(3, complex)", "np.array([1, 'a'], object)", "[[1.0], [1.0, 2.0]]", "[nan]",
          "[None]", "np.full((4, 4), nan)", "np.ones(4, np.float16)", "jnp.zeros(4, int)",
          "np.full(4, inf)")  # fmt: skip
# Of few shapes, since a closed form is compiled for each.
VECTORS = ("np.ones(4)", "np.zeros(0)", "np.array('text')", "np.ones(4, complex)",
           "np.array([1, 'a'], object)", "[[1.0], [1.0, 2.0]]", "[None]", "np.full(4, nan)",
           "np.ones(4, np.float16)", "jnp.zeros(4, int)", "np.full(4, inf)", "-np.ones(4)",
           "np.array([1.0, nan, 1.0, 1.0])", "np.array(nan)", "'nan'")  # fmt: skip
MASKS = (*VECTORS, "np.ones(task.y.shape)", "task.y > 0", "np.ones((4, 4, 4))")
TASKS = ("other_task", "(task.x, task.y)", "stacked_task", "nan_task", "task.x", "fl.Task",
         "half_task", "strange_task")  # fmt: skip
NETWORKS = ("other_network", "half_network", "whole_network", "stacked_network", "nan_network",
            "emptied_network", "relu", "gated", "always_gated", "deep", "single", "unbiased",
            "relu.astype(jnp.float32)", "fl.LinearNetwork", "eqx.nn.Linear(4, 7, key=key)",
            "network.parameters", "network(jnp.ones(4))")  # fmt: skip
BAD_NETWORKS = ("half_network", "whole_network", "stacked_network", "nan_network",
                "emptied_network", "other_network")  # fmt: skip
OBSERVES = (
    "fl.measures.loss", "lambda: 1.0", "lambda n, t: 'text'", "lambda n, t: None",
    "lambda n, t: 1 / 0", "lambda n, t: n", "lambda n, t: object()", "lambda n, t: 1.0",
)  # fmt: skip

NETWORK = Kind(but(of(AbstractNetwork, eqx.nn.Linear), *BAD_NETWORKS), NETWORKS)
TASK = Kind(but(of(fl.Task), "other_task", "stacked_task", "nan_task", "half_task"), TASKS)
# Where no network, and no modes, must fit the task; where its numbers are not looked at either.
TASK_ALONE = Kind(but(of(fl.Task), "stacked_task", "nan_task", "half_task"), TASKS)
TASK_SHAPE = Kind(but(of(fl.Task), "stacked_task", "half_task"), TASKS)
NETWORK_ALONE = Kind(but(of(AbstractNetwork, eqx.nn.Linear), *BAD_NETWORKS[:-1]), NETWORKS)
PARAMETERS = Kind(NETWORK_ALONE.good, NETWORKS, formula=True)
UNSEEN = Kind(lambda value: True, TASKS)  # an argument that is not looked at, as is said
MODES = Kind(of(fl.theory.Modes), ("bare_modes", "fl.theory.Modes", "modes.s", "modes.u"))
FLOW = Kind(
    of(fl.Trajectory),
    ("descent", "plain_flow", "observed_flow", "loaded", "other_flow", "traced_flow",
     "fl.Trajectory", "network", "sweep", "flow.losses"),
)  # fmt: skip
PATH = Kind(of(str, os.PathLike),
            ("'no/such/folder/x.npz'", "'.'", "''", "'\\0'", "pathlib.Path('y.npz')", "b'x.npz'",
             "torn_file", "text_file", "'/proc/x'", "'x' * 5000"))  # fmt: skip
FLAG = Kind(flag, ("'yes'", "2", "[]", "[True, False]", "np.True_", "jnp.array(True)", "'False'"))
TEXT = Kind(of(str), ("''", "'a' * 1000", "b'a'", "'\\0'", "'$'", "['a']", "'\\n'", "'<b>'"))
NUMBER = Kind(real, NUMBERS)
POSITIVE = Kind(positive, NUMBERS)
NOT_NEGATIVE = Kind(not_negative, NUMBERS)
COUNT = Kind(count, COUNTS)
WHOLE = Kind(whole, COUNTS)
# A run of so many steps is long, and what was asked for.
STEPS = Kind(count, tuple(c for c in COUNTS if c not in {"10**10", "10**400", "1e300"}))
LAYER = Kind(lambda v: whole(v) and v == 0, (*COUNTS, "99"))
QUANTILE = Kind(lambda v: real(v) and 0 <= v < 0.5, (*NUMBERS, "0.5", "0.49", "1"))
KEY = Kind(random_key, ("0", "jax.random.split(key)", "np.array([0, 1], np.uint32)",
                        "jnp.zeros(2)", "np.zeros(2, np.uint32)", "jax.random.key_data(key)",
                        "42"))  # fmt: skip
LOSS = Kind(loss, ("'mse'", "fl.SquaredError", "fl.CrossEntropy()", "lambda a, b: 0.0",
                       "fl.SquaredError('sum')", "optax.l2_loss"))  # fmt: skip
SOLVER = Kind(
    of(diffrax.AbstractSolver),
    ("'Tsit5'", "diffrax.Tsit5", "diffrax.Euler()", "diffrax.SemiImplicitEuler()",
     "diffrax.ItoMilstein()", "diffrax.KenCarp4()", "diffrax.Dopri5()", "fl.RKC()",
     "fl.RecycledBDF()", "diffrax.PIDController(1e-3, 1e-6)", "diffrax.HalfSolver(diffrax.Euler())",
     "diffrax.ReversibleHeun()", "diffrax.LeapfrogMidpoint()"),
)  # fmt: skip
CONTROLLER = Kind(
    of(diffrax.AbstractAdaptiveStepSizeController),
    ("'PID'", "diffrax.PIDController", "diffrax.ConstantStepSize()", "diffrax.Tsit5()",
     "diffrax.PIDController(1e-3, 1e-6)", "diffrax.StepTo(np.array([0.0, 1.0]))"),
)  # fmt: skip
KINKS = Kind(
    of(AbstractKinks),
    ("'exact'", "fl.ExactKinks", "fl.SmoothKinks(1e-2)", "fl.IgnoreKinks()", "fl.AveragedKinks()"),
)
EVENTS = Kind(
    lambda value: event(value) or listed(event)(value),
    ("fl.LossBelow(0.1)", "(max,)", "[None]", "(fl.LossBelow,)", "[fl.LossBelow(0.1)]", "'loss'",
     "(fl.ModeHits(modes, 0.1),)", "(fl.ModeHits(other_modes, 0.1),)", "(fl.UnitSwitches(0.1),)",
     "(fl.ModeHits(strange_modes, 0.1),)", "{'loss': fl.LossBelow(0.1)}",
     *(f"(fl.Crossing({o}),)" for o in OBSERVES if not o.startswith("lambda:"))),
)  # fmt: skip
OBSERVE = Kind(named(either(callable, of(fl.theory.Modes))), (
    "{'a': modes}", "{'a': other_modes}", *(f"{{'a': {o}}}" for o in OBSERVES), "[max]", "{1: max}",
                                 "{'a': None}", "{'a': 1}", "fl.measures.loss"))  # fmt: skip
FUNCTION = Kind(callable, OBSERVES)
ADJOINT = Kind(of(diffrax.AbstractAdjoint), ("diffrax.ForwardMode()", "diffrax.DirectAdjoint()",
                                             "diffrax.BacksolveAdjoint()", "'forward'",
                                             "diffrax.DirectAdjoint"))  # fmt: skip
TRAINABLE = Kind(
    lambda v: callable(v) or v is True,
    (
        "True",
        "False",
        "'w'",
        "3",
        "[True]",
        "lambda leaf: False",
        "jnp.ones(3)",
        "lambda leaf: 'yes'",
        "lambda: True",
        "(True, False)",
        "{'weights': True}",
    ),
)
OPTIMISER = Kind(of(optax.GradientTransformation), ("optax.adam(0.1)", "optax.adam", "'adam'",
                                                    "(max, max)"))  # fmt: skip
MESH = Kind(of(Mesh), ("jax.devices()", "'samples'", "mesh"))
AXES = Kind(of(Axes), ("plt", "plt.figure()", "[axes]", "plt.Axes"))
TIMES = Kind(times, ("[nan]", "[]", "[0.2, 0.1]", "[0.1, 0.1]", "[0.1, 9.0]", "[-1.0, 0.1]",
                     "[[0.1]]", "['a']", "0.1", "[0.1, 0.2]", "[0.1, nan]", "[0, inf]",
                     "[0.1, None]", "np.linspace(0, 0.5, 3)", "range(1)", "'0.1'"))  # fmt: skip
FORMULA = Kind(numeric, (*NUMBERS, *VECTORS), formula=True)
TIME_CONSTANT = Kind(
    lambda v: numeric(v) and not np.any(np.asarray(v) <= 0),
    (*NUMBERS, *VECTORS, "abs", "lambda: 1.0", "lambda t: -1.0", "lambda t: np.ones(2)"),
    formula=True,
)
ARRAY = Kind(finite, ARRAYS)
ROWS = Kind(rows, ARRAYS, formula=True)
MATRIX = Kind(matrix, ARRAYS)
SAMPLES = Kind(either(TASK.good, matrix), (*TASKS, *ARRAYS))
WEIGHTS = Kind(
    listed(matrix),
    ("(w1,)", "(w2, w1)", "w1", "(w1, 'a')", "(w1 * nan, w2)", "(w1, w2.T)", "(w1[0], w2)",
     "(w1.astype(np.float16), w2)", "(w1 + 1j, w2)", "(w1 > 0, w2)", "[]", "(None, None)",
     "(np.zeros((0, 4)), np.zeros((7, 0)))"),
)  # fmt: skip
BIASES = Kind(
    listed(lambda b: b is None or (finite(b) and np.ndim(b) == 1)),
    ("(None,)", "(None, None)", "np.ones(4)", "(np.ones(3), None)", "(1.0, None)", "('a', None)",
     "(np.full(4, nan), None)", "(np.ones(4), np.ones(7))", "True"),
)  # fmt: skip
GATES = Kind(
    either(
        listed(lambda g: finite(g) and np.ndim(g) in (1, 2)),
        lambda v: finite(v) and np.shape(v) != (),
    ),
    ("np.ones(4)", "(np.ones(3),)", "(np.ones((4, 4)),)", "(np.ones((3, 4)),)", "(None,)",
     "('a',)", "(np.full(4, nan),)", "(np.ones(4), np.ones(4))"),
)  # fmt: skip


def optional(kind: Kind) -> Kind:
    """None is good too."""
    return dataclasses.replace(kind, good=either(lambda value: value is None, kind.good))


def one_or_many(kind: Kind) -> Kind:
    """One value, or a sequence of them."""
    near = (*kind.near, "[]", "[0.1, 0.1]", "[[1]]", "['a', 'b']", "[2, 2.5]", "(1, 2, 3)", "[nan]")
    return Kind(either(kind.good, listed(kind.good)), near)
