"""A valid value for every parameter of every public callable: by its annotation, or its name.
What says enough of itself, a `bool` or a `Task`, needs nothing here, and a parameter of a known
name neither. Another needs a line: its valid value, and what kind of thing it is. What stands
behind `callable.parameter` goes before `parameter`, and that before the annotation.
"""

import dataclasses
import inspect
import re

from tests.fuzz import kinds as k
from tests.fuzz.names import Target


@dataclasses.dataclass(frozen=True)
class Word:
    """A valid value, as an expression over the things, and its kind.

    - `given`: whether calls give it although it has a default.
    """

    value: str
    kind: k.Kind
    given: bool = False


BIAS_LIKE = k.one_or_many(k.FLAG)
NAMES = k.Kind(k.listed(k.of(str)), ("'text'", "['a']", "['a', 'b', 'c', 'd']", "[1, 2]"))
COLOUR = k.Kind(k.of(str, tuple), ("'no colour'", "'red'", "''", "(1, 0, 0)", "b'red'"))
DTYPE = k.Kind(
    k.either(k.of(type, k.np.dtype), k.of(str)),
    ("'float32'", "jnp.float16", "'text'", "int", "complex", "jnp.float32", "bool", "object"),
)
INDICES = k.Kind(
    lambda v: isinstance(v, slice) or (k.numeric(v) and not k.np.any(k.np.asarray(v) >= 4)),
    ("[0, 2]", "[0, 99]", "[-1]", "[0, 0]", "[True, False, True, False]", "slice(0, 2)", "[]",
     "2.5", "[0.5]", "99", "np.array([99])", "'a'", "[[0, 1]]"),
)  # fmt: skip
PAIR = k.Kind(k.listed(k.real), ("(1.0,)", "(1, 2, 3)", "('a', 'b')", "(nan, 1.0)", "(2, 1)"))
RUNS = k.Kind(
    k.named(lambda v: isinstance(v, (k.fl.Trajectory, k.fl.Sweep, list, tuple))),
    ("flow", "[flow]", "{'relu': 1}", "{'strange': flow}", "{1: flow}", "{'relu': []}",
     "{'relu': [descent, flow]}", "{'relu': sweep}", "{'relu': None}"),
)  # fmt: skip

GRAPH_GATES = k.optional(k.Kind(
    k.given_by(lambda v: k.finite(v) and k.np.shape(v) == (4,)),
    ("{'x': np.ones(4)}", "{'in': np.ones(3)}", "{'in': 1.0}", "{'in': 'a'}", "[np.ones(4)]",
     "{}", "np.ones(4)", "{'in': np.full(4, nan)}", "{('in', 'x'): np.ones(4)}", "{1: np.ones(4)}"),
))  # fmt: skip
SLICES = k.optional(k.Kind(
    k.given_by(k.of(slice)),
    ("{'in': slice(0, 3)}", "{'in': [0, 1]}", "slice(0, 4)", "{'x': slice(0, 4)}", "{}", "3",
     "{'in': slice(0, 4, 2)}", "{'in': slice(None)}", "{'out': slice(None)}"),
))  # fmt: skip
GRAPH_WEIGHTS = k.Kind(k.given_by(k.matrix), (
    "(w1, w2)", "{}", "{'a': w1}", "{('a', 'a'): np.eye(2)}", "{('in', 'out'): w1[0]}",
    "{('in', 'out'): w1 * nan}", "{('in', 'h'): w1, ('h', 'out'): w1[:, :2]}", "{('in', 1): w1}",
    "{('bias', 'out'): w1}", "{('a', 'b'): np.eye(2), ('b', 'a'): np.eye(2)}"))  # fmt: skip
GRAPH_BIASES = k.optional(k.Kind(k.given_by(k.finite), (
    "{'in': np.ones(4)}", "{'out': 1.0}", "{'out': np.ones(3)}", "{'x': np.ones(4)}", "[None]",
    "{'out': np.full(7, nan)}")))  # fmt: skip
GLOBAL_GATES = k.Kind(lambda v: k.finite(v) and k.np.ndim(v) == 2, (*k.ARRAYS, "fl.HalfSpaces"))
CENTRES = k.Kind(lambda v: k.finite(v) and k.np.ndim(v) == 2, k.ARRAYS)
GRAPH_X = k.Kind(lambda v: k.numeric(v) and k.np.ndim(v) == 2, k.ARRAYS, formula=True)
PATHWAY = k.Kind(k.of(k.fl.Pathway), ("'in -> a'", "(('in', 'a'), ('a', 'out'))", "graph"))
MODES = k.Kind(
    k.but(k.MODES.good, "other_modes", "strange_modes", "stronger_modes"),
    (*k.MODES.near, "other_modes", "strange_modes", "stronger_modes"),
)
NODE = k.Kind(k.among("in", "out"), ("'x'", "1", "['in']", "''"))

# What an annotation says of itself, and of a valid value.
ANNOTATED = {
    r"^bool$": Word("True", k.FLAG),
    r"^str\b(?!.*PathLike)": Word("'text'", k.TEXT),
    r"PathLike": Word("'saved.npz'", k.PATH),
    r"^int\b(?!.*Sequence)": Word("2", k.COUNT),
    r"^float\b(?!.*(Sequence|Own))": Word("0.1", k.POSITIVE),
    r"^Union\[jax\.(jaxlib\._jax\.)?Array.*complex": Word("0.5", k.FORMULA),
    r"^jax\.(jaxlib\._jax\.)?Array \| numpy": Word("[1.0, 2.0]", k.ARRAY),
    r"'P N_in'": Word("task.x", GRAPH_X),
    r"'N_in'": Word("task.x[0]", k.Kind(lambda v: k.finite(v) and k.np.ndim(v) == 1, k.ARRAYS)),
    r"'P N_out'": Word("task.y", k.MATRIX),
    r"'P'": Word("np.ones(len(task.x))", k.Kind(k.numeric, k.VECTORS)),
    r"\bKey\[": Word("key", k.KEY, given=True),
    r"SupportsDType": Word("jnp.float32", DTYPE),
    r"\bPyTree$": Word("lambda leaf: leaf.ndim == 2", k.TRAINABLE),
    r"AbstractNetwork$|Module$": Word("network", k.NETWORK),
    r"GatedGraph$|AbstractGraph$": Word("graph", k.Kind(k.of(k.fl.GatedGraph), k.NETWORKS)),
    r"ReLUNetwork$": Word("relu", k.NETWORK),
    r"\.Task( \| None)?$": Word("task", k.TASK),
    r"\.Modes$": Word("modes", MODES),
    r"Trajectory$": Word("flow", k.FLOW),
    r"\.loss\.Loss\b": Word("fl.SquaredError()", k.LOSS),
    r"AbstractEvent\b": Word("(fl.LossBelow(0.1),)", k.EVENTS),
    r"Axes \| None$": Word("axes", k.AXES),
    r"Mesh\b": Word("mesh", k.MESH),
    r"Pathway$": Word("pathway", PATHWAY),
    r"Race$": Word("race", k.Kind(k.of(k.fl.theory.Race), ("graph", "fl.theory.Race", "modes"))),
    r"Rectified$": Word("rectified", k.Kind(k.of(k.fl.Rectified), ("flow", "fl.Rectified", "1"))),
    r"EarlyPhase$": Word("early", k.Kind(k.of(k.fl.theory.EarlyPhase), ("relu",))),
}  # fmt: skip

WORDS = {
    # what is trained, and on what
    "network": Word("network", k.NETWORK),
    "networks": Word("[network, network]", k.Kind(k.listed(k.NETWORK.good), (
        "[]", "network", "[network, deep]", "[network, None]", "[network, other_network]",
        "{'a': network}", "stacked_network", "(n for n in [network])"))),
    "task": Word("task", k.TASK),
    "tasks": Word("task", k.one_or_many(k.TASK)),
    "x": Word("task.x", k.Kind(k.matrix, (*k.ARRAYS, "jnp.ones((3, 5))", "other_task.x"))),
    "y": Word("task.y", k.MATRIX),
    "weights": Word("(w1, w2)", k.WEIGHTS),
    "biases": Word("(np.ones(4), None)", k.optional(k.BIASES)),
    "gates": Word("(np.ones(4),)", k.optional(k.GATES)),
    "bias_strength": Word("1.0", k.NUMBER),
    "slope": Word("0.1", k.NUMBER),
    "hidden": Word("(4,)", k.one_or_many(k.COUNT)),
    "widths": Word("(4, 3, 3)", k.Kind(
        lambda v: k.listed(k.count)(v) and len(v) > 1, ("(4,)", "4", "(4, 0)", "[3, 2.5]", "()"))),
    "rank": Word("1", k.Kind(lambda v: k.whole(v) and 0 <= v <= 3, k.COUNTS)),
    "variance": Word("0.05", k.one_or_many(k.NOT_NEGATIVE)),
    "bias": Word("True", BIAS_LIKE),
    "balance": Word("0.1", k.NUMBER),
    "product": Word("np.ones((7, 5))", k.optional(k.MATRIX)),
    "indices": Word("np.array([0, 2])", INDICES),
    # tasks
    "branching": Word("2", k.Kind(lambda v: k.whole(v) and v >= 2, k.COUNTS)),
    "delta": Word("0.5", k.NOT_NEGATIVE),
    "samples": Word("20", k.optional(k.COUNT), given=True),
    "spectrum": Word("(2.0, 1.0)", k.Kind(k.listed(k.real), k.ARRAYS)),
    "noise": Word("0.1", k.NOT_NEGATIVE),
    "seed": Word("0", k.WHOLE),
    "test": Word("True", k.FLAG, given=True),
    "center": Word("False", k.FLAG, given=True),
    "standardise": Word("False", k.FLAG),
    # runs
    "t1": Word("0.5", k.POSITIVE),
    "ts": Word("[0.1, 0.5]", k.optional(k.TIMES)),
    "loss": Word("fl.SquaredError()", k.LOSS),
    "rule": Word("fl.Gradient()", k.Kind(k.of(k.fl.AbstractRule), ("'ball'", "fl.Gradient"))),
    "tau": Word("1.0", k.TIME_CONSTANT),
    "weight_decay": Word("0.1", k.optional(k.one_or_many(k.NOT_NEGATIVE))),
    "modified_rate": Word("0.1", k.optional(k.POSITIVE)),
    "steps": Word("4", k.STEPS),
    "like": Word("flow.final", k.optional(k.NETWORK)),
    "optimiser": Word("optax.sgd(0.1)", k.optional(k.OPTIMISER)),
    "observe": Word("{'loss': fl.measures.loss}", k.optional(k.OBSERVE)),
    "kinks": Word("fl.SmoothKinks(1e-2)", k.optional(k.KINKS)),
    "solver": Word("diffrax.Tsit5()", k.optional(k.SOLVER)),
    "rtol": Word("1e-4", k.optional(k.POSITIVE)),
    "atol": Word("1e-6", k.optional(k.POSITIVE)),
    "stepsize_controller": Word(
        "diffrax.PIDController(rtol=1e-4, atol=1e-6)", k.optional(k.CONTROLLER)
    ),
    "max_steps": Word("4096", k.optional(k.COUNT), given=True),
    "max_events": Word("64", k.COUNT),
    "adjoint": Word("diffrax.RecursiveCheckpointAdjoint()", k.ADJOINT),
    "progress": Word("False", k.FLAG),
    "record": Word("lambda flow: {'end': flow.end}", k.optional(k.FUNCTION)),
    "checkpoint": Word("'checkpoint.npz'", k.optional(k.PATH)),
    "workers": Word("1", k.optional(k.COUNT), given=True),
    "function": Word("lambda flow: flow.losses", k.FUNCTION),
    "index": Word("0", k.Kind(lambda v: isinstance(v, slice) or k.whole(v), k.COUNTS)),
    # events and kinks
    "observable": Word("fl.measures.loss", k.FUNCTION),
    "level": Word("0.1", k.ARRAY),
    "direction": Word("'up'", k.Kind(k.among(None, "up", "down"), ("'Down'", "'both'", "-1"))),
    "quantile": Word("0.1", k.QUANTILE),
    "window": Word("None", k.optional(k.Kind(lambda v: k.whole(v) and v >= 2, k.COUNTS))),
    "stream": Word("None", k.Kind(lambda v: v is None, ("'run.log'", "1", "[]"))),
    "eigenvalues": Word("2", k.WHOLE),
    "linear_solver": Word("None", k.Kind(lambda v: v is None, ("'LU'", "1", "[]"))),
    "loop": Word("'checkpointed'", k.Kind(k.among("checkpointed", "bounded", "lax"), k.TEXT.near)),
    "reduction": Word("'sum'", k.Kind(k.among("mean", "sum"), ("'Mean'", "'none'"))),
    "convention": Word("fl.LossConvention.MEAN", k.Kind(
        k.of(k.fl.LossConvention), ("'HALF_SUM'", "'MEAN'", *(
            f"fl.LossConvention{name}" for name in ("", ".HALF_SUM", ".TORCH_MEAN", ".MEAN.value")
        )))),
    # trajectories
    "flow": Word("flow", k.FLOW),
    "descent": Word("descent", k.FLOW),
    "layer": Word("0", k.LAYER),
    # closed forms
    **{name: Word(value, k.FORMULA) for name, value in {
        "a0": "0.01", "imbalance": "0.1", "p": "np.ones(4)", "q": "np.ones(4)", "rho": "0.1",
        "w0": "np.ones((7, 4))",
    }.items()},
    "depth": Word("3", k.Kind(lambda v: k.numeric(v), k.COUNTS, formula=True)),
    "w1": Word("w1", k.FORMULA),
    "w2": Word("w2", k.FORMULA),
    "s_yx": Word("np.ones((7, 4))", k.FORMULA),
    "s_x": Word("np.eye(4)", k.FORMULA),
    "alpha": Word("2.0", k.POSITIVE),
    "tolerance": Word("1e-8", k.optional(k.POSITIVE)),
    "end": Word("0.5", k.optional(k.NUMBER)),
    "mode": Word("0", k.LAYER),
    "source": Word("'in'", k.optional(NODE)),
    "target": Word("'out'", k.optional(NODE)),
    "strength": Word("0.1", k.optional(k.ARRAY)),
    # measures
    "measure": Word("fl.measures.loss", k.FUNCTION),
    "velocity": Word("fl.measures.velocity", k.FUNCTION),
    "matrix": Word("np.eye(4)", k.ROWS),
    "classes": Word("[0, 0, 1, 1]", k.Kind(k.numeric, k.ARRAYS)),
    "values": Word("np.ones((3, 2))", k.FORMULA),
    "a": Word("hidden", k.ROWS),
    "b": Word("hidden", k.ROWS),
    "axes": Word("np.linspace(-1, 1, 3)", k.optional(k.one_or_many(k.ARRAY))),
    "average": Word("0", k.optional(k.LAYER)),
    # pictures
    "parts": Word("('always_on',)", NAMES),
    "conventions": Word("('open',)", NAMES),
    "colour": Word("'red'", k.optional(COLOUR)),
    "colours": Word("['red'] * 4", k.optional(NAMES)),
    "labels": Word("['a'] * 4", k.optional(NAMES)),
    "names": Word("('a', 'b')", NAMES),
    "draw": Word("lambda figure, frame: None", k.FUNCTION),
    "frames": Word("1", k.STEPS),
    "size": Word("(1.0, 1.0)", PAIR),
    "limits": Word("(-1.0, 1.0)", k.optional(PAIR)),
    "fps": Word("10.0", k.POSITIVE),
    "dpi": Word("20", k.POSITIVE),
    "grid": Word("np.linspace(-1, 1, 3)", k.ARRAY),
    "at": Word("0", k.optional(k.WHOLE)),
    "units": Word("[0, 1]", k.optional(k.Kind(k.listed(k.whole), k.ARRAYS))),
    "shown": Word("[0]", k.optional(k.Kind(k.listed(k.whole), k.ARRAYS))),
    "positions": Word("np.ones((3, 4))", k.FORMULA),
    "points": Word("points", k.ARRAY),
    "kind": Word("'relu'", k.Kind(k.of(str), ("'Relu'", "''"))),
    "n": Word("1", k.WHOLE),
    "runs": Word("{'relu': flow}", RUNS),
    "contenders": Word("{'a': ([1, 2], [0.1, 0.2])}", k.Kind(k.named(k.listed(k.numeric)), (
        "{'a': 1}", "[1]", "{'a': ([1], [1, 2])}", "{'a': ([nan], [nan])}"))),
    "looks": Word("{'a': {'color': 'red'}}", k.optional(k.Kind(
        k.named(k.named(lambda v: True)), ("{'a': 1}", "{'b': {}}", "{'a': {'colr': 'red'}}")))),
}  # fmt: skip

# Where a name means something else.
OWN = {
    **{f"fl.GatedGraph{init}.{name}": Word("{}", GRAPH_GATES)
       for init in ("", ".init") for name in ("node_gates", "edge_gates")},
    **{f"fl.GatedGraph{init}.inputs": Word("{'in': slice(0, 4)}", SLICES)
       for init in ("", ".init")},
    **{f"fl.GatedGraph{init}.outputs": Word("{'out': slice(0, 7)}", SLICES)
       for init in ("", ".init")},
    "fl.GatedGraph.weights": Word("{('in', 'h'): w1, ('h', 'out'): w2}", GRAPH_WEIGHTS),
    "fl.GatedGraph.biases": Word("{'h': np.ones(4)}", GRAPH_BIASES),
    "fl.GatedGraph.init.nodes": Word("{'in': 4, 'out': 7}", k.Kind(k.given_by(k.count), (
        "{}", "[4, 7]", "{'in': 0, 'out': 7}", "{'in': 4}", "{'in': 4, 'out': 'a'}",
        "{'in': 4, 'out': 6}", "{'in': 4, 'out': 7, 'x': 1}", "{4: 4, 'out': 7}"))),
    "fl.GatedGraph.init.edges": Word("[('in', 'out')]", k.Kind(k.listed(k.listed(k.of(str))), (
        "[]", "'in'", "['in']", "[('in', 'x')]", "[('in', 'out'), ('in', 'out')]",
        "[('in', 'in')]", "[('in', 'out'), ('out', 'in')]", "3", "[('in', 'out', 'x')]"))),
    "fl.sweep.grid": Word("grid", k.optional(k.Kind(
        k.of(k.fl.Grid), ("{'a': [1, 2]}", "[grid]", "fl.Grid", "fl.grid(a=[1, 2, 3])", "'a'")))),
    "fl.sweep.checkpoint": Word("'sweep.csv'", k.optional(k.PATH)),
    "fl.GatedGraph.init.variance": Word("0.05", k.NOT_NEGATIVE),
    "fl.GatedGraph.init.bias": Word("True", k.Kind(
        k.either(k.flag, k.listed(k.of(str))), (*k.FLAG.near, "['out']", "['x']", "'out'")
    )),
    "fl.GatedGraph.init.task": Word("task", k.TASK_SHAPE),
    **{f"fl.{kind}.__call__.x": Word("task.x[0]", k.Kind(
        lambda v: k.numeric(v) and k.np.ndim(v) == 1, k.ARRAYS, formula=True,
    )) for kind in ("GatedGraph", "GloballyGatedNetwork")},
    "fl.GatedGraph.__call__.gates": Word("{'a': 1.0, 'b': 0.0}", k.optional(k.Kind(
        k.given_by(k.real), ("{}", "{'a': 1.0}", "{'a': 1.0, 'b': 'x'}", "(1.0, 0.0)",
                             "{'a': 1.0, 'b': np.ones(2)}")), ), given=True),
    "fl.GatedGraph.pathway_statistics.task": Word("task", k.Kind(
        k.but(k.of(k.fl.Task), "other_task", "stacked_task", "half_task"), k.TASKS, formula=True)),
    "fl.GatedModule.model": Word("held.model", k.Kind(
        lambda v: type(v).__name__ == "ForeignModel", ("rectifying", "held", "task"))),
    **{f"fl.GatedModule{how}.gates": Word("(np.ones(4),)", k.GATES) for how in ("", ".with_gates")},
    **{f"fl.GatedModule.{how}.network": Word("rectifying", k.Kind(
        k.only("rectifying"), k.NETWORKS)) for how in ("frozen", "always_on")},
    "fl.GloballyGatedNetwork.weights": Word("(np.ones((3, 4)), np.ones((7, 6)))", k.WEIGHTS),
    "fl.GloballyGatedNetwork.biases": Word("(np.ones(3), None)", k.optional(k.BIASES)),
    "fl.GloballyGatedNetwork.gates": Word("np.ones((4, 2))", GLOBAL_GATES),
    "fl.GloballyGatedNetwork.init.gates": Word("np.ones((4, 2))", k.Kind(
        k.either(GLOBAL_GATES.good, callable), (*GLOBAL_GATES.near, "halves", "len"))),
    "fl.GloballyGatedNetwork.with_gates.gates": Word("np.ones((4, 2))", GLOBAL_GATES),
    "fl.GloballyGatedNetwork.__call__.gates": Word("np.ones(2)", k.optional(k.Kind(
        lambda v: k.finite(v) and k.np.ndim(v) == 1, k.VECTORS)), given=True),
    **{f"fl.{kind}.x": Word("task.x", GRAPH_X) for kind in (
        "GatedGraph.outputs", "GatedGraph.activations", "GloballyGatedNetwork.outputs")},
    **{f"fl.{kind}.__call__.x": Word("task.x", GRAPH_X) for kind in ("HalfSpaces", "Clusters")},
    "fl.HalfSpaces.normals": Word("np.ones((2, 4))", CENTRES),
    "fl.HalfSpaces.thresholds": Word("np.ones(2)", k.optional(k.ARRAY)),
    "fl.Clusters.centres": Word("np.ones((2, 4))", CENTRES),
    "fl.rectified.flow": Word("flow", k.Kind(k.only("flow"), k.FLOW.near)),
    "fl.Rectified.graph.k": Word("0", k.Kind(lambda v: k.whole(v) and v == 0, k.COUNTS)),
    "fl.Rectified.gates.t": Word("0.5", k.Kind(lambda v: k.real(v) and 0 <= v <= 2, k.NUMBERS)),
    "fl.Rectified.overlap.times": Word("[0.1, 0.5]", k.Kind(k.times, ("[nan]", "'a'", "[9.0]"))),
    "fl.plot.overlap.times": Word("[0.1, 0.5]", k.optional(k.Kind(k.times, ("[nan]", "[9.0]")))),
    "fl.Rectified.pathways_needed.share": Word("0.9", k.Kind(
        lambda v: k.real(v) and 0 <= v < 1, (*k.NUMBERS, "1", "-0.5"))),
    "fl.plot.lifetimes.most": Word("3", k.COUNT),
    "fl.Trajectory.product.pathway": Word("pathway", PATHWAY),
    "fl.theory.race.network": Word("graph", k.Kind(k.of(k.fl.GatedGraph), k.NETWORKS)),
    "fl.theory.Race.strengths.network": Word("graph", k.Kind(k.of(k.fl.GatedGraph), k.NETWORKS)),
    "fl.theory.Race.winner.flow": Word("graph_flow", k.Kind(
        k.only("graph_flow"), k.FLOW.near)),
    "fl.theory.Race.product.flow": Word("graph_flow", k.optional(k.Kind(
        k.only("graph_flow"), k.FLOW.near))),
    "fl.RaceHits.rho": Word("0.5", k.ARRAY),
    "fl.plot.pathways.flow": Word("graph_flow", k.Kind(
        k.only("graph_flow"), k.FLOW.near)),
    **{f"fl.{name}.network": Word("relu", k.NETWORK) for name in ("theory.early_phase",
        "theory.after_linearization", "measures.kink_rates", "measures.effective_map",
    )},
    "fl.theory.early_phase.t1": Word("0.5", k.optional(k.POSITIVE), given=True),
    "fl.theory.after_linearization.always_on": Word(
        "np.ones(4, bool)", k.optional(k.ARRAY), given=True,
    ),
    "fl.theory.Solution.error.flow": Word("plain_flow", k.FLOW),
    "fl.theory.AfterLinearization.error.flow": Word("plain_flow", k.FLOW),
    "fl.theory.Lazy.error.flow": Word("plain_flow", k.FLOW),
    "fl.theory.lazy.loss": Word("fl.SquaredError()", k.Kind(
        k.of(k.fl.SquaredError), (*k.LOSS.near, "fl.CrossEntropy()"))),
    **{f"{name}.tau": Word("1.0", k.POSITIVE) for name in (
        "fl.StepClock", "fl.gradient_descent", "fl.gradient_flow", "fl.largest_learning_rate",
        "fl.stochastic_gradient_descent", "fl.measures.velocity", "fl.theory.after_linearization",
        "fl.theory.early_phase", "fl.theory.lazy", "fl.theory.solve",
    )},
    **{f"fl.distance.{name}": Word("network", k.PARAMETERS) for name in "ab"},
    **{f"fl.theory.balanced_{of}.variance": Word("1.0", k.FORMULA) for of in ("gram", "product")},
    "fl.theory.balanced_gram.balance": Word("None", k.optional(k.FORMULA)),
    "fl.theory.balanced_product.balance": Word("None", k.optional(k.FORMULA)),
    **{f"fl.theory.Mode.{name}": Word("0.1", k.FORMULA) for name in (
        "hitting_time.level", "of_weights.w1", "of_weights.w2", "start_for.level",
    )},
    "fl.ModeHits.rho": Word("0.1", k.ARRAY, given=True),
    "fl.ModeHits.share": Word("None", k.optional(k.ARRAY)),
    "fl.Trajectory.extend.t1": Word("4.0", k.POSITIVE),
    "fl.Trajectory.extend.ts": Word("[3.0, 4.0]", k.optional(k.TIMES)),
    **{f"fl.EventLog.{name}.t": Word("0.5", k.NUMBER) for name in ("sides", "component_sides")},
    **{f"fl.EventLog.{method}.name": Word("'gate'", k.Kind(
        k.among("gate"), ("'Gate'", "['gate']"),
    )) for method in ("first", "select")},
    **{f"fl.StepClock.{name}": Word("4", k.optional(k.COUNT))
       for name in ("samples", "outputs", "batch_size")},
    "fl.StepClock.time.steps": Word("10", k.FORMULA),
    "fl.configure.cache": Word("False", k.Kind(k.either(k.flag, k.PATH.good), k.PATH.near)),
    "fl.load.path": Word("file", k.PATH),
    "fl.plot.animate.path": Word("'film.gif'", k.PATH),
    "fl.tasks.teacher.samples": Word("20", k.COUNT),
    "fl.Task.weights": Word("np.ones(len(task.x))", k.optional(k.Kind(k.counts, k.MASKS))),
    "fl.Task.sharded.axis": Word("'samples'", k.optional(k.Kind(k.of(str), ("'a'", "0")))),
    "fl.theory.SlowedClock.linearization.share": Word("0.5", k.NUMBER),
    "fl.theory.LinearizedLoss.loss": Word("fl.SquaredError()", k.Kind(
        lambda v: isinstance(v, k.Loss) or (callable(v) and not isinstance(v, type)), k.LOSS.near,
    )),
    **{f"fl.{kind}.__call__.x": Word("task.x[0]", k.Kind(
        lambda v: k.finite(v) and k.np.ndim(v) == 1, k.ARRAYS,
    )) for kind in ("LinearNetwork", "ReLUNetwork", "GatedLinearNetwork")},
    # No sample in, no row out.
    **{f"fl.{kind}.{method}.x": Word("task.x", k.Kind(
        lambda v: k.finite(v) and k.np.ndim(v) == 2, k.ARRAYS,
    )) for kind in ("LinearNetwork", "ReLUNetwork", "GatedLinearNetwork")
      for method in ("outputs", "preactivations", "gates")},
    "fl.measures.variance_explained.features": Word("task.y", k.Kind(  # (P,) is one feature
        lambda v: k.numeric(v) and k.np.ndim(v) in (1, 2), k.ARRAYS, formula=True,
    )),
    **{f"fl.measures.{name}.hidden": Word("hidden", k.ROWS) for name in (
        "distance_ratio", "distances", "effective_rank_of_gram", "gram", "mds",
        "variance_explained",
    )},
    **{f"fl.measures.{name}.task": Word("task", k.SAMPLES) for name in (
        "activity", "hidden", "effective_map", "tangent_kernel",
    )},
    "fl.measures.along.task": Word("task", k.optional(k.SAMPLES)),
    **{f"fl.measures.{name}.task": Word("task", k.UNSEEN) for name in (
        "OnTask.__call__", "alignment", "conserved", "conserved_matrix", "hidden_vectors",
        "kink_positions", "norms", "on_grid",
    )},
    **{f"fl.measures.{name}.network": Word("network", k.NETWORK_ALONE) for name in (
        "conserved", "conserved_matrix", "kink_positions", "norms", "on_grid",
    )},
    **{f"fl.{name}.init.task": Word("task", k.TASK_SHAPE) for name in (
        "LinearNetwork", "ReLUNetwork",
    )},
    "fl.LinearNetwork.balanced.task": Word("task", k.TASK_SHAPE),
    **{f"fl.{name}.task": Word("task", k.TASK_ALONE) for name in (
        "theory.bias_mode", "theory.modes",
    )},
    "fl.measures.OnTask.task": Word("task", k.Kind(k.of(k.fl.Task), k.TASKS)),
    "fl.measures.effective_map.sides": Word("[np.ones((4, 4))]", k.optional(k.GATES)),
    "fl.plot.cube.values": Word("cube_values", k.ARRAY),
    "fl.plot.cube.axis": Word("0", k.optional(k.Kind(k.among(0, 1, 2), k.COUNTS)), given=True),
    "fl.plot.sweep_map.x": Word("[1.0, 2.0]", k.ARRAY),
    "fl.plot.sweep_map.y": Word("[1.0, 2.0, 3.0]", k.ARRAY),
    "fl.plot.sweep_map.names": Word("('a', 'b', 'c')", NAMES),
    "fl.plot.sweep_map.level": Word("0.5", k.optional(k.NUMBER)),
    "fl.plot.sweep_line.x": Word("[1.0, 2.0]", k.ARRAY),
    "fl.plot.kinks.ts": Word("[0.0, 1.0, 2.0]", k.ARRAY),
    "fl.plot.look.points": Word("True", k.FLAG),
    "fl.plot.modes.rho": Word("0.1", k.optional(k.ARRAY)),
    "fl.plot.modes.closed": Word("np.ones((3, 4))", k.optional(k.ARRAY)),
    "fl.plot.sides.t": Word("0.5", k.NUMBER),
}  # fmt: skip

OWN["fl.CrossEntropy.__call__.targets"] = Word("task.y", k.Kind(k.classes, k.ARRAYS))
for _loss in ("CrossEntropy", "SquaredError", "theory.LinearizedLoss"):
    OWN[f"fl.{_loss}.__call__.weights"] = Word(
        "np.ones(len(task.x))", k.optional(k.Kind(k.numeric, k.MASKS))
    )

# Instances whose methods and properties are called, a valid one and others; a method of which
# not every instance is capable has its own.
OWNERS = {
    "fl.AveragedKinks": ("fl.AveragedKinks()",),
    "fl.CrossEntropy": ("fl.CrossEntropy()",),
    "fl.EventLog": ("log", "plain_flow.events", "traced_flow.events"),
    "fl.ExactKinks": ("fl.ExactKinks()",),
    "fl.GatedLinearNetwork": ("always_gated", "gated"),
    "fl.GatedGraph": ("graph",), "fl.GatedModule": ("held",),
    "fl.Pathway": ("pathway",),
    "fl.GloballyGatedNetwork": ("global_network",),
    "fl.Grid": ("grid",),
    "fl.HalfSpaces": ("halves",),
    "fl.Clusters": ("fl.Clusters(np.ones((2, 4)))",),
    "fl.Rectified": ("rectified",),
    "fl.RectifiedPathway": ("rectified.pathways[0]",),
    "fl.Trajectory.product": ("graph_flow", "flow", "traced_flow"),
    "fl.theory.Race": ("race",),
    "fl.theory.RaceCertificate": ("race.certificate",),
    "fl.LinearNetwork": ("network", "deep", "single", "unbiased", "stacked_network", "half_network",
                         "nan_network"),
    "fl.Linearization": ("line",),
    "fl.RateCertificate": ("rates",),
    "fl.ReLUNetwork": ("relu",),
    **{f"fl.{name}": (f"fl.{name}()",) for name in (
        "IgnoreKinks", "RKC", "RecycledBDF", "SmoothKinks", "Gradient")},
    "fl.AbstractRule": ("fl.Gradient()",),
    "fl.SquaredError": ("fl.SquaredError()", "fl.SquaredError('sum')"),
    "fl.StepClock": ("step_clock",),
    "fl.Sweep": ("sweep", "fl.Sweep([])", "recorded"),
    "fl.Sweep.columns": ("recorded", "sweep"),
    "fl.Task": ("task", "stacked_task", "nan_task"),
    "fl.Trajectory": ("flow", "plain_flow", "observed_flow", "loaded", "descent", "traced_flow"),
    "fl.Trajectory.network": ("dense_flow", "flow", "loaded", "traced_flow"),
    "fl.Comparison": ("comparison",), "fl.CriticalPoint": ("critical_point",),
    "fl.RunErrors": ("flow.confirm().error",),
    "fl.measures.OnTask": ("fl.measures.OnTask(fl.measures.loss, task)",),
    "fl.theory.AfterLinearization": ("after",),
    "fl.theory.BiasMode": ("bias_mode",),
    "fl.theory.Certificate": ("solution.certificate",),
    "fl.theory.EarlyPhase": ("early",),
    "fl.theory.Lazy": ("lazy",), "fl.theory.LazyCertificate": ("lazy.certificate",),
    "fl.theory.LinearizedLoss": ("fl.theory.LinearizedLoss(fl.SquaredError())",),
    "fl.theory.Mode": ("fl.theory.Mode(0.5, 0.5, 0.01)", "fl.theory.Mode(0.5, 0.5, 0.01, 3)"),
    "fl.theory.Mode.vectors": ("fl.theory.Mode.of_weights(0.5, 0.5, 0.1, 0.2)",),
    "fl.theory.Mode.weights": ("fl.theory.Mode.of_weights(0.5, 0.5, 0.1, 0.2)",),
    "fl.theory.Modes": ("modes", "bare_modes"),
    "fl.theory.SlowedClock": ("clock",),
    "fl.theory.Solution": ("solution",),
}  # fmt: skip


def word(target: Target, parameter: str) -> Word:
    """What is known of a parameter of a callable."""
    found = _known(target, parameter)
    if found is None:
        raise KeyError(f"{target.name}.{parameter}")
    return found


def _known(target: Target, parameter: str) -> Word | None:
    own = OWN.get(f"{target.name}.{parameter}") or WORDS.get(parameter)
    text = inspect.formatannotation(target.parameters[parameter].annotation)
    return own or next((w for p, w in ANNOTATED.items() if re.search(p, text)), None)


def unknown(targets: dict[str, Target]) -> list[str]:
    """Parameters without a word, and classes without an instance."""
    missing = [
        f"{name}.{parameter}"
        for name, target in targets.items()
        for parameter in target.parameters
        if _known(target, parameter) is None
    ]
    owners = {t.owner for t in targets.values() if t.owner} - set(OWNERS)
    return missing + [f"{owner}: no instance" for owner in sorted(owners)]


def owners(target: Target) -> tuple[str, ...]:
    """Instances of which the target is a method; none for functions."""
    return OWNERS.get(target.name, OWNERS[target.owner]) if target.owner else ()


def valid(target: Target) -> dict[str, str]:
    """Expressions of a valid call: what is required, and what every call is given."""
    call = {"self": owners(target)[0]} if target.owner else {}
    for name in target.parameters:
        own = word(target, name)
        if name in target.required or own.given:
            call[name] = own.value
    return call
