"""The kinks of any Equinox module, found in the program of its call on one sample.

A ReLU is the operation `max(z, 0)` in that program, whatever the module calls it. Other kinks are
ReLUs in disguise:

$$\\max(a, b) = b + \\sigma(a - b), \\quad \\min(a, b) = a - \\sigma(a - b), \\quad
  |z| = 2 \\sigma(z) - z, \\quad \\sigma_s(z) = s z + (1 - s) \\sigma(z)$$

with $\\sigma(z) = \\max(z, 0)$ and the leaky ReLU $\\sigma_s$. A maximum of many, as in max
pooling, is one of pairs, round by round. So every kink is an entry of some z at which a $\\sigma$
stands, and the rest of the program is smooth. What is neither a kink of this kind nor smooth is
refused by its name and its place.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import Array, Float, PyTree

from flowlin._tools.files import saveable
from flowlin._tools.smooth_operations import CALLS, is_smooth_operation, programs_within
from flowlin.networks.maxima import Rectifier, clamp, fill_shape, larger, pool, reduce_by_pairs

# Functions of JAX that are smooth though their programs hold a maximum or a choice.
SMOOTH_FUNCTIONS = {
    one.__name__: one for one in (jax.nn.softplus, jax.nn.elu, jax.nn.celu, jnp.logaddexp)
}
# Operations that move numbers about, smooth where their indices do not depend on the weights.
MOVES = {"gather", "dynamic_slice", "dynamic_update_slice", "scatter-add", "split", "real", "imag"}
COMPARISONS = {"gt", "ge", "lt", "le", "eq", "ne", "and", "or", "not", "is_finite"}
NEVER_NEGATIVE = {"exp", "exp2", "logistic", "square", "abs", "sqrt"}
KEEPS_SIGN = {
    "add", "mul", "div", "max", "reduce_sum", "reduce_max", "broadcast_in_dim", "reshape",
    "squeeze", "transpose", "convert_element_type", "slice", "concatenate", "copy", "sqrt",
}  # fmt: skip
REMEDY = "write it with jax.nn.relu, jax.nn.leaky_relu, jnp.maximum, jnp.minimum, jnp.abs, jnp.clip"


@saveable()
class KinkSite(NamedTuple):
    """One operation with kinks in a module's call, of as many units as its z has entries.

    - `place`: the part of the module whose numbers it rectifies, such as `layers[0]`.
    - `operation`: its name in the program, such as `max`.
    - `shape`: of its z for one sample.
    """

    place: str
    operation: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of units."""
        return math.prod(self.shape)


class _Constant(NamedTuple):
    """A number or an array that the program holds."""

    value: Any


_Atom = int | _Constant  # the number of a value, or a constant


class _Operation(NamedTuple):
    """One operation of the flat program, from numbered values to numbered values."""

    equation: JaxprEqn
    inputs: tuple[_Atom, ...]
    outputs: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of its primitive."""
        return self.equation.primitive.name


class _Fact(NamedTuple):
    """Facts of a value: whether weights move it, its sign, and whose numbers it is of.

    - `order`: the operation at which numbers of `place` were last taken up.
    """

    depends: bool = False
    never_negative: bool = False
    order: int = -1
    place: str = ""


class _Step(NamedTuple):
    """One operation as it is evaluated: a function of the rectifier and of the inputs' values."""

    inputs: tuple[_Atom, ...]
    outputs: tuple[int, ...]
    evaluate: Callable[..., Sequence[Array]]
    operation: str
    place: str = ""


@saveable()
class ModuleKinks(NamedTuple):
    """Facts of a module's kinks: where they are, or why that cannot be told."""

    sites: tuple[KinkSite, ...] = ()
    unknown_because: str = ""


class Refusal(NamedTuple):
    """The reason why a module's kinks cannot be told."""

    reason: str


class KinkProgram:
    """A module's call on one sample, with a rectifier in place of every kink.

    - `sites`: the operations with kinks, in the order in which they are evaluated.
    """

    def __init__(self, steps: list[_Step], output: _Atom, arguments: Sequence[Any]):
        self._steps, self._output = steps, output
        found: list[KinkSite] = []

        def record_kinks(*values: Array) -> Array:
            def record_at(step: _Step) -> Rectifier:
                def record_shape(z: Array) -> Array:
                    found.append(KinkSite(step.place, step.operation, z.shape))
                    return z

                return record_shape

            return self._evaluate_steps(values, record_at)

        jax.eval_shape(record_kinks, *arguments)
        self.sites: tuple[KinkSite, ...] = tuple(found)

    def evaluate(self, arguments: Sequence[Array], rectify: Rectifier) -> Float[Array, " N_out"]:
        """Return the outputs for one sample.

        **Arguments:** `arguments` are the module's leaves and the sample; `rectify` is called with
        the z of each site, in order, and returns what stands there for max(z, 0).
        """
        return self._evaluate_steps(arguments, lambda step: rectify)

    def _evaluate_steps(
        self, arguments: Sequence[Array], rectifier_at: Callable[[_Step], Rectifier]
    ) -> Array:
        """Evaluate step by step, each with its own rectifier."""
        known = dict(enumerate(arguments))

        def read(atom: _Atom) -> Any:
            return atom.value if isinstance(atom, _Constant) else known[atom]

        for step in self._steps:
            values = step.evaluate(rectifier_at(step), *map(read, step.inputs))
            known.update(zip(step.outputs, values, strict=True))
        return read(self._output)


def describe_sites(sites: Sequence[KinkSite], most: int = 6) -> str:
    """Say in words where kinks are, the first ones by name."""
    names = [f"{site.operation} of {site.place or 'the input'} ({site.size})" for site in sites]
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def find_kinks(
    call: Callable[..., Array], parameters: PyTree, fixed: PyTree, x: jax.ShapeDtypeStruct
) -> KinkProgram | Refusal:
    """Find the kinks of a module's call on one sample.

    **Arguments:** `call` takes the module's `parameters`, its `fixed` arrays and a sample like `x`.

    **Returns:** the program with its kinks, of none for a smooth module; or why they cannot be
    told.
    """
    closed = jax.make_jaxpr(call)(parameters, fixed, x)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(parameters)[0]]
    flat = _Flattener()
    arguments = flat.number(len(closed.jaxpr.invars))
    (output,) = flat.inline_closed(closed, list(arguments))
    live = _live_values(flat.operations, output)
    facts = {k: _Fact(True, place=_place_of(path)) for k, path in enumerate(paths)}
    definitions = {k: one for one in flat.operations for k in one.outputs}
    steps = []
    for order, operation in enumerate(flat.operations):
        own = [_fact_of_input(atom, facts) for atom in operation.inputs]
        about = _fact_of_result(operation, own, order, len(paths))
        facts |= dict.fromkeys(operation.outputs, about)
        step: _Step | Refusal = _plain_step(operation)
        if not live.isdisjoint(operation.outputs) and any(one.depends for one in own):
            step = _step_with_kinks(operation, own, definitions)
        if isinstance(step, Refusal):
            where = f" in {about.place}" if about.place else ""
            return Refusal(step.reason.format(where=where))
        steps.append(step._replace(place=about.place))
    leaves = jax.tree.leaves((parameters, fixed, x))
    return KinkProgram(steps, output, leaves)


def _place_of(path: Any) -> str:
    """Return the part of a module that holds an array; the array itself where it is the module."""
    own = jax.tree_util.keystr(path[:-1]) or jax.tree_util.keystr(path)
    return own.lstrip(".")


class _Flattener:
    """Writes a program and all that it calls as one list of operations on numbered values."""

    def __init__(self):
        self.operations: list[_Operation] = []
        self._numbers = itertools.count()

    def number(self, count: int) -> tuple[int, ...]:
        """Return numbers for so many new values."""
        return tuple(itertools.islice(self._numbers, count))

    def inline_closed(self, program: ClosedJaxpr, arguments: list[_Atom]) -> list[_Atom]:
        """Write down a program with its constants."""
        return self.inline(program.jaxpr, [_Constant(c) for c in program.consts], arguments)

    def inline(self, program: Jaxpr, constants: Any, arguments: Any) -> list[_Atom]:
        """Write down a program, and return where its results are."""
        known = dict(zip(program.constvars, constants, strict=True))
        known |= dict(zip(program.invars, arguments, strict=True))

        def read(variable: Any) -> _Atom:
            if isinstance(variable, Literal):
                return _Constant(variable.val)
            return known[variable]

        for equation in program.eqns:
            inputs = [read(variable) for variable in equation.invars]
            inner = next(_programs_with_constants(equation), None)
            if inner is None or _stays_whole(equation):
                results: Any = self.number(len(equation.outvars))
                self.operations.append(_Operation(equation, tuple(inputs), results))
            else:
                results = self.inline(*inner, inputs)
            known |= dict(zip(equation.outvars, results, strict=True))
        return [read(variable) for variable in program.outvars]


def _programs_with_constants(equation: JaxprEqn) -> Any:
    """Yield the programs that a call holds, each with its constants; of a loop none."""
    if equation.primitive.name in CALLS:
        for value in equation.params.values():
            if isinstance(value, ClosedJaxpr):
                yield value.jaxpr, [_Constant(c) for c in value.consts]
            elif isinstance(value, Jaxpr):
                yield value, []


def _stays_whole(equation: JaxprEqn) -> bool:
    """Tell whether a call is smooth, and so evaluated with the derivative that it has."""
    return is_smooth_operation(equation) or _is_smooth_function(equation)


def _is_smooth_function(equation: JaxprEqn) -> bool:
    """Tell whether a call is that of one of the `SMOOTH_FUNCTIONS` with its defaults."""
    # Of `jnp.logaddexp`, which has a derivative of its own and no name.
    function = SMOOTH_FUNCTIONS.get(equation.params.get("name", "logaddexp"))
    if function is None:
        return False
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    try:
        (own,) = jax.make_jaxpr(function)(*avals).jaxpr.eqns
    except (TypeError, ValueError):  # other arguments than its own
        return False
    return _program_text(own) == _program_text(equation)


def _program_text(equation: JaxprEqn) -> str:
    """Return the program of a call as text, in which variables are named in order."""
    return str(equation.params.get("jaxpr", equation.params.get("call_jaxpr")))


def _live_values(operations: list[_Operation], output: _Atom) -> set[_Atom]:
    """Return the values on which the output depends other than through `stop_gradient`.

    The maximum that a softmax subtracts is no kink: the output is the same whatever it is.
    """
    live = {output} if isinstance(output, int) else set()
    for operation in reversed(operations):
        if operation.name != "stop_gradient" and not live.isdisjoint(operation.outputs):
            live |= {a for a in operation.inputs if isinstance(a, int)}
    return live


def _fact_of_input(atom: _Atom, facts: dict[int, _Fact]) -> _Fact:
    """Return what is known of an operation's input; of a constant, its sign."""
    if isinstance(atom, int):
        return facts.get(atom, _Fact())
    return _Fact(never_negative=bool(np.all(np.asarray(atom.value) >= 0)))


def _fact_of_result(operation: _Operation, own: list[_Fact], order: int, weights: int) -> _Fact:
    """Return what is known of an operation's results.

    A comparison of a value with itself, or with what is finite, only looks for NaN.
    """
    name = operation.name
    looks_for_nan = name == "is_finite" or (name == "ne" and len(set(operation.inputs)) == 1)
    depends = any(one.depends for one in own) and not looks_for_nan
    positive = name in NEVER_NEGATIVE or (
        name in KEEPS_SIGN and all(one.never_negative for one in own)
    )
    positive = positive or (name == "max" and any(one.never_negative for one in own))
    even = name == "integer_pow" and operation.equation.params["y"] % 2 == 0
    taken = [
        one._replace(order=order) if isinstance(atom, int) and atom < weights else one
        for atom, one in zip(operation.inputs, own, strict=True)
    ]
    last = max(taken, key=lambda one: one.order, default=_Fact())
    return _Fact(depends, positive or even, last.order, last.place)


def _plain_step(operation: _Operation) -> _Step:
    """Return the operation as it is."""
    primitive, params = operation.equation.primitive, operation.equation.params

    def evaluate(rectify: Rectifier, *values: Array) -> Sequence[Array]:
        del rectify
        found = primitive.bind(*values, **primitive.get_bind_params(params))
        return found if primitive.multiple_results else [found]

    return _Step(operation.inputs, operation.outputs, evaluate, operation.name)


def _step_with_kinks(
    operation: _Operation, own: list[_Fact], definitions: dict[int, _Operation]
) -> _Step | Refusal:
    """Return the operation with a rectifier in place of its kinks, or why that is not known."""
    name, params = operation.name, operation.equation.params
    refused = Refusal(f"`{name}`{{where}} may jump or have a kink that is not known; {REMEDY}")
    first = own[0]
    if name in COMPARISONS:
        return _plain_step(operation)
    if name == "select_n":
        return _select_step(operation, own, definitions)
    if any(one.depends and not _is_real(v) for one, v in
           zip(own, operation.equation.invars, strict=True)):  # fmt: skip
        return refused
    if name == "abs" and not first.never_negative:
        return _kink_step(operation, lambda rectify, z: 2 * rectify(z) - z)
    if name in ("max", "min"):
        return _pair_step(operation, own)
    if name == "clamp":
        return _kink_step(operation, clamp) if own[1].depends else refused
    if name in ("reduce_max", "reduce_min"):
        way = functools.partial(reduce_by_pairs, axes=params["axes"], sign=_sign_of(name))
        return _kink_step(operation, way)
    if name in ("reduce_window_max", "reduce_window_min"):
        if any(map(any, params["padding"])) or set(params["base_dilation"]) != {1}:
            return Refusal(f"`{name}`{{where}} pads its windows; use windows without padding")
        return _kink_step(operation, functools.partial(pool, params=params, sign=_sign_of(name)))
    if name in MOVES or name == "abs" or _stays_whole(operation.equation):
        return _plain_step(operation)
    inner = list(programs_within(operation.equation))
    if inner and name == "scan" and all(map(is_smooth_operation, inner[0].eqns)):
        return _plain_step(operation)
    if inner:
        return Refusal(f"`{name}`{{where}} may hold a kink, and loops and branches are not entered")
    return refused


def _is_real(variable: Any) -> bool:
    """Tell whether a variable holds floating-point numbers."""
    return jnp.issubdtype(variable.aval.dtype, jnp.floating)


def _sign_of(name: str) -> int:
    """Return 1 for a maximum, -1 for a minimum."""
    return 1 if name.endswith("max") else -1


def _kink_step(operation: _Operation, function: Callable[..., Array]) -> _Step:
    """Return a step of one result that calls the rectifier."""

    def evaluate_kinks(rectify: Rectifier, *values: Array) -> Sequence[Array]:
        return [function(rectify, *values)]

    return _Step(operation.inputs, operation.outputs, evaluate_kinks, operation.name)


def _pair_step(operation: _Operation, own: list[_Fact]) -> _Step:
    """Return the larger or the smaller one of two values, of which one may be at rest."""
    sign, shape = _sign_of(operation.name), operation.equation.outvars[0].aval.shape
    at_rest = [not one.depends for one in own]
    zeros = [isinstance(a, _Constant) and not np.any(np.asarray(a.value)) for a in operation.inputs]
    never = [one.never_negative for one in own]
    if sign > 0 and ((zeros[0] and never[1]) or (zeros[1] and never[0])):
        kept = 1 if zeros[0] else 0
        step = _kink_step(operation, lambda rectify, a: fill_shape(a, shape))
        return step._replace(inputs=(operation.inputs[kept],))

    def choose_one(rectify: Rectifier, a: Array, b: Array) -> Array:
        moves, rests = (b, a) if at_rest[0] else (a, b)
        moves = fill_shape(moves, shape)
        if any(zero and rest for zero, rest in zip(zeros, at_rest, strict=True)):
            return rectify(moves) if sign > 0 else -rectify(-moves)
        return larger(rectify, moves, fill_shape(rests, shape), sign)

    return _kink_step(operation, choose_one)


def _select_step(
    operation: _Operation, own: list[_Fact], definitions: dict[int, _Operation]
) -> _Step | Refusal:
    """Return a choice between values: as it is if no weight has a say, or a leaky ReLU."""
    if not own[0].depends:
        return _plain_step(operation)
    refused = Refusal(f"`where`{{where}} on what is trained may jump; {REMEDY}")
    condition = definitions.get(operation.inputs[0])  # pyright: ignore
    if condition is None or condition.name not in ("gt", "ge", "lt", "le"):
        return refused
    z, level = condition.inputs
    off, on = operation.inputs[1:]
    if condition.name in ("lt", "le"):
        off, on = on, off
    shape = operation.equation.outvars[0].aval.shape
    level = _constant_value(level, definitions)
    if level is None or np.any(level) or isinstance(z, _Constant):
        return refused
    slopes = [_slope_along(side, z, definitions) for side in (off, on)]
    if None in slopes:
        return refused
    factors = tuple(slope for slope in slopes if slope is not None)

    def leaky(rectify: Rectifier, z: Array, low: Array, high: Array) -> Array:
        z, low, high = (fill_shape(a, shape) for a in (z, low, high))
        low, high = low.astype(z.dtype), high.astype(z.dtype)
        return low * z + (high - low) * rectify(z)

    step = _kink_step(operation, leaky)
    return step._replace(inputs=(z, *factors))


def _slope_along(side: _Atom, z: _Atom, definitions: dict[int, _Operation]) -> _Atom | None:
    """Return s for a value that is s z, None for any other."""
    if side == z:
        return _Constant(np.float32(1.0))
    value = _constant_value(side, definitions)
    if value is not None and not np.any(value):
        return _Constant(np.float32(0.0))
    made_by = definitions.get(side) if isinstance(side, int) else None
    if made_by is not None and made_by.name == "mul" and z in made_by.inputs:
        a, b = made_by.inputs
        return b if a == z else a
    return None


def _constant_value(atom: _Atom, definitions: dict[int, _Operation]) -> np.ndarray | None:
    """Return a value that is a constant, spread and converted; None for what is none."""
    if isinstance(atom, _Constant):
        return np.asarray(atom.value)
    made_by = definitions.get(atom)
    if made_by is None or made_by.name not in ("broadcast_in_dim", "convert_element_type", "copy"):
        return None
    return _constant_value(made_by.inputs[0], definitions)


@jax.custom_jvp
def _gated_at_kink(z: Array, gate: Array, at_kink: Array) -> Array:
    """Return g z, of which a pair at its kink passes on positive tangents alone."""
    del at_kink
    return gate * z


@_gated_at_kink.defjvp
def _tangent_at_kink(
    values: tuple[Array, Array, Array], tangents: tuple[Array, Array, Array]
) -> tuple[Array, Array]:
    """Return g z, and the directional derivative of max(z, 0) at its kink; else g dz."""
    (z, gate, at_kink), dz = values, tangents[0]
    return gate * z, jnp.where(at_kink != 0, jnp.where(dz > 0, dz, 0.0), gate * dz)


def outputs_and_preactivations(
    program: KinkProgram,
    arguments: Sequence[Array],
    gates: Array | None,
    extra: Array | None,
    at_kink: Array | None = None,
) -> tuple[Float[Array, " N_out"], Float[Array, " H"]]:
    """Return the outputs for one sample, and the z of all kinks, of one place after another.

    **Arguments:** `gates` (H,) and `extra` (H,) make g z + e of each z; without gates it is
    max(z, 0). Where `at_kink` (H,) is not zero, a tangent of z goes on as its positive part.
    """
    found: list[Array] = []

    def rectify(z: Array) -> Array:
        start = sum(one.size for one in found)
        found.append(jnp.ravel(z))
        if gates is None or extra is None:
            return jnp.where(z > 0, z, 0.0)
        own = slice(start, start + z.size)
        gate, more = (a[own].reshape(z.shape) for a in (gates, extra))
        if at_kink is None:
            return gate * z + more
        return _gated_at_kink(z, gate, at_kink[own].reshape(z.shape)) + more

    outputs = program.evaluate(arguments, rectify)
    return outputs, jnp.concatenate(found)
