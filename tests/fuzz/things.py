"""Objects that arguments are made from, by name, each made when it is first asked for."""

import contextlib
import datetime
import decimal
import fractions
import functools
import math
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import flowlin as fl

MODULES = {
    "contextlib": contextlib,
    "datetime": datetime,
    "decimal": decimal,
    "diffrax": diffrax,
    "eqx": eqx,
    "fl": fl,
    "fractions": fractions,
    "jax": jax,
    "jnp": jnp,
    "math": math,
    "np": np,
    "optax": optax,
    "pathlib": pathlib,
    "plt": plt,
    "inf": math.inf,
    "nan": math.nan,
}

T1 = 2.0
MAKERS: dict[str, Callable[[], Any]] = {}


def thing(function: Callable[[], Any]) -> Callable[[], Any]:
    """Make the function's result known by the function's name."""
    MAKERS[function.__name__] = function
    return function


class Things(dict):
    """The namespace in which arguments are evaluated."""

    def __init__(self):
        super().__init__(MODULES)

    def __missing__(self, name: str) -> Any:
        if name not in MAKERS:
            raise KeyError(name)
        self[name] = MAKERS[name]()
        return self[name]


def evaluated(expression: str) -> Any:
    """The value of an expression over the things."""
    return eval(expression, {}, shared())


@functools.cache
def shared() -> Things:
    """One namespace for the process, so that what is slow to make is made once."""
    return Things()


@thing
def key():
    return jax.random.key(0)


@thing
def task():
    return fl.tasks.hierarchy(2)


@thing
def other_task():
    """Other inputs, outputs and samples."""
    return fl.tasks.offset_xor()


@thing
def strange_task():
    """Of the task's shape, with other data."""
    a = evaluated("task")
    return fl.Task(a.x[::-1] + 0.25 * a.x, a.y, name="strange")


@thing
def nan_task():
    return eqx.tree_at(lambda t: t.x, evaluated("task"), evaluated("task").x.at[0, 0].set(jnp.nan))


@thing
def half_task():
    """In a precision that the library refuses to make."""
    return jax.tree.map(lambda a: a.astype(jnp.float16), evaluated("task"))


@thing
def stacked_task():
    return jax.tree.map(lambda a: jnp.stack([a, a]), evaluated("task"))


def _network(kind, own=None, hidden: Any = 4, **options):
    own = evaluated("task") if own is None else own
    return kind.init(own, hidden, 0.05, key=jax.random.key(1), **options)


@thing
def network():
    return _network(fl.LinearNetwork)


@thing
def linear():
    return evaluated("network")


@thing
def relu():
    return _network(fl.ReLUNetwork)


@thing
def single_tree():
    """The README's task, in single precision."""
    return fl.tasks.hierarchy(3).astype(jnp.float32)


@thing
def single_relu():
    kind = fl.ReLUNetwork
    return kind.init(evaluated("single_tree"), 8, 1e-2, key=jax.random.key(0)).astype(jnp.float32)


@thing
def gated():
    return evaluated("relu").frozen(evaluated("task"))


@thing
def always_gated():
    return evaluated("relu").always_on(evaluated("task"))


@thing
def rectifying():
    return eqx.nn.MLP(4, 7, 4, 1, jax.nn.relu, dtype=jnp.float64, key=evaluated("key"))


@thing
def held():
    return fl.GatedModule.frozen(evaluated("rectifying"), evaluated("task"))


@thing
def graph():
    """Two gated ways from a source to a sink."""
    nodes = {"in": 4, "a": 4, "b": 4, "out": 7}
    edges = [("in", "a"), ("in", "b"), ("a", "out"), ("b", "out")]
    gates = {"a": np.array([1, 1, 0, 0]), "b": np.array([0, 0, 1, 1])}
    own = evaluated("task")
    return fl.GatedGraph.init(own, nodes, edges, node_gates=gates, key=evaluated("key"))


@thing
def pathway():
    return evaluated("graph").pathways[0]


@thing
def race():
    return fl.theory.race(evaluated("graph"), evaluated("task"))


@thing
def graph_flow():
    return _flow(evaluated("graph"))


@thing
def global_network():
    gates = np.array([[1, 1, 0, 0], [0, 1, 1, 0]]).T
    own = evaluated("task")
    return fl.GloballyGatedNetwork.init(own, 4, gates=gates, key=evaluated("key"))


@thing
def halves():
    return fl.HalfSpaces.random(evaluated("task"), 2, key=evaluated("key"))


@thing
def rectified():
    return fl.rectified(evaluated("flow"), evaluated("task"))


@thing
def deep():
    return _network(fl.LinearNetwork, hidden=(4, 4))


@thing
def single():
    return fl.LinearNetwork((np.full((7, 4), 0.1),))


@thing
def unbiased():
    return _network(fl.LinearNetwork, bias=False)


@thing
def other_network():
    """Of other inputs and outputs."""
    return _network(fl.LinearNetwork, evaluated("other_task"))


@thing
def nan_network():
    return jax.tree.map(lambda a: a * jnp.nan, evaluated("network"))


@thing
def half_network():
    return jax.tree.map(lambda a: a.astype(jnp.float16), evaluated("network"))


@thing
def whole_network():
    return jax.tree.map(lambda a: a.astype(jnp.int32), evaluated("network"))


@thing
def stacked_network():
    return jax.tree.map(lambda a: jnp.stack([a, a]), evaluated("network"))


@thing
def emptied_network():
    return jax.tree.map(lambda a: None, evaluated("network"))


@thing
def modes():
    return fl.theory.modes(evaluated("task"), 1.0)


@thing
def other_modes():
    """Of another shape."""
    return fl.theory.modes(evaluated("other_task"), 1.0)


@thing
def strange_modes():
    """Of the task's shape, from other data."""
    return fl.theory.modes(evaluated("strange_task"), 1.0)


@thing
def bare_modes():
    """Without the bias coordinate."""
    return fl.theory.modes(evaluated("task"))


@thing
def stronger_modes():
    """Of another c."""
    return fl.theory.modes(evaluated("task"), 3.0)


def _flow(network, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fl.gradient_flow(network, evaluated("task"), T1, ts=[0.0, 1.0, T1], **options)


@thing
def flow():
    """With gates and networks."""
    return _flow(evaluated("relu"))


@thing
def plain_flow():
    return _flow(evaluated("network"))


@thing
def dense_flow():
    return _flow(evaluated("network"), dense=True)


@thing
def observed_flow():
    return _flow(evaluated("network"), observe={"loss": fl.measures.loss})


@thing
def loaded():
    path = pathlib.Path("loaded.npz").absolute()
    evaluated("flow").save(path)
    return fl.load(path)


@thing
def descent():
    """At the flow's times."""
    return fl.gradient_descent(evaluated("relu"), evaluated("task"), 0.5, 4, save_every=2)


@thing
def other_flow():
    """Of another architecture."""
    other = evaluated("other_task")
    return fl.gradient_flow(evaluated("other_network"), other, T1, ts=[0.0, 1.0, T1])


@thing
def traced_flow():
    """What comes out of `vmap`."""
    two = evaluated("stacked_network")
    own = evaluated("task")
    return jax.vmap(lambda n: fl.gradient_flow(n, own, T1, ts=jnp.array([0.0, 1.0, T1])))(two)


@thing
def log():
    return evaluated("flow").events


@thing
def line():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return evaluated("flow").linearization()


@thing
def sweep():
    return fl.Sweep([evaluated("plain_flow"), evaluated("plain_flow")])


@thing
def recorded():
    return fl.Sweep([], rows=[{"end": T1, "failed": ""}])


@thing
def grid():
    return fl.grid(a=[0.1, 0.2])


@thing
def comparison():
    return fl.compare(evaluated("flow"), evaluated("descent"))


@thing
def critical_point():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fl.polish(evaluated("network"), evaluated("task"))


@thing
def rates():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fl.largest_learning_rate(evaluated("network"), evaluated("task"), 1.0, 0.1)


@thing
def early():
    return fl.theory.early_phase(evaluated("relu"), evaluated("task"), t1=T1)


@thing
def clock():
    return fl.theory.slowed_clock(evaluated("early"), evaluated("modes"))


@thing
def solution():
    return fl.theory.solve(evaluated("network"), evaluated("task"))


@thing
def lazy():
    return fl.theory.lazy(evaluated("network"), evaluated("task"))


@thing
def after():
    relu = evaluated("relu")
    on = jnp.ones(relu.hidden, bool)
    return fl.theory.after_linearization(relu, evaluated("task"), always_on=on)


@thing
def bias_mode():
    return fl.theory.bias_mode(evaluated("task"), 1.0)


@thing
def step_clock():
    return fl.StepClock(0.1)


@thing
def mesh():
    return jax.make_mesh((1,), ("samples",))


@thing
def hidden():
    """A representation (P, H)."""
    return evaluated("relu").preactivations(evaluated("task").x)[0]


@thing
def axes():
    return plt.figure().add_subplot()


@thing
def points():
    """Positions over time (T, P, 2)."""
    return np.random.default_rng(0).normal(size=(3, 4, 2))


@thing
def cube_values():
    return np.random.default_rng(0).normal(size=(3, 3, 3))


@thing
def file():
    """A saved trajectory."""
    evaluated("loaded")
    return "loaded.npz"


@thing
def torn_file():
    """A saved trajectory of which half was written."""
    whole = pathlib.Path(evaluated("file")).read_bytes()
    pathlib.Path("torn.npz").write_bytes(whole[: len(whole) // 2])
    return "torn.npz"


@thing
def text_file():
    pathlib.Path("text.npz").write_text("no archive")
    return "text.npz"


@thing
def w1():
    return np.asarray(evaluated("network").weights[0])


@thing
def w2():
    return np.asarray(evaluated("network").weights[1])
