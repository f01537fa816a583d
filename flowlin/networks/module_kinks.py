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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import Array, PyTree

from flowlin._tools.files import saveable
from flowlin._tools.smooth_operations import CALLS, is_smooth_operation, programs_within
from flowlin.networks.kink_program import Atom, Constant, KinkProgram, KinkSite, ProgramStep
from flowlin.networks.maxima import Rectifier, clamp, fill_shape, larger, pool, reduce_by_pairs
from flowlin.networks.refused_operations import REMEDY, ROOTS, say_root, say_trouble
from flowlin.networks.value_facts import (
    Definitions,
    Fact,
    Operation,
    constant_value,
    fact_of_input,
    fact_of_result,
    holds_floats,
)

# Functions of JAX that are smooth though their programs hold a maximum or a choice.
SMOOTH_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "softplus": jax.nn.softplus,
    "elu": lambda z: jax.nn.elu(z),  # of no other alpha than 1
    "celu": jax.nn.celu,
    "logaddexp": jnp.logaddexp,
    "sparse_plus": jax.nn.sparse_plus,  # continuously differentiable
    "sinc": jnp.sinc,
}


def _exponential_linear(rectify: Rectifier, z: Array, alpha: Array) -> Array:
    """Return z, below zero alpha (exp(z) - 1), whose slope jumps there from alpha to 1."""
    on, alpha = rectify(z), fill_shape(alpha.astype(z.dtype), z.shape)
    return on + alpha * jnp.expm1(z - on)


# Functions of JAX that choose between values which meet: each, and the same by a rectifier.
KINKED_FUNCTIONS: dict[str, tuple[Callable[..., Array], Callable[..., Array]]] = {
    "elu": (jax.nn.elu, _exponential_linear),  # of a given alpha
    "hard_tanh": (jax.nn.hard_tanh, lambda rectify, z: clamp(rectify, -1.0, z, 1.0)),
}
# Operations that move numbers about, smooth where their indices do not depend on the weights.
MOVES = {"gather", "dynamic_slice", "dynamic_update_slice", "scatter-add", "split", "real", "imag"}
COMPARISONS = {"gt", "ge", "lt", "le", "eq", "ne", "and", "or", "not", "is_finite"}


@saveable(in_loss=0, loss_unknown_because="")
class ModuleKinks(NamedTuple):
    """Facts of a module's kinks: where they are, or why that cannot be told.

    - `in_loss`: how many of the `sites`, the last ones, are those of the run's loss.
    - `loss_unknown_because`: why nothing is known of those of the loss, where that is so.
    """

    sites: tuple[KinkSite, ...] = ()
    unknown_because: str = ""
    in_loss: int = 0
    loss_unknown_because: str = ""


class Refusal(NamedTuple):
    """The reason why a module's kinks cannot be told."""

    reason: str


def describe_sites(sites: Sequence[KinkSite], most: int = 6) -> str:
    """Say in words where kinks are, how many in all and the first places by name."""
    names = [f"{site.operation} of {site.place or 'the input'} ({site.size})" for site in sites]
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    units = sum(site.size for site in sites)
    total = f"{units} units at {len(names)} places: " if len(names) > 1 else ""
    return total + ", ".join(names[:most]) + rest


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
    facts = {
        k: Fact(not _is_still(k, flat.operations, output), place=_place_of(path))
        for k, path in enumerate(paths)
    }
    definitions = Definitions.of(flat.operations, output)
    steps = []
    for order, operation in enumerate(flat.operations):
        own = [fact_of_input(atom, facts) for atom in operation.inputs]
        about = fact_of_result(operation, own, order, len(paths))
        facts |= dict.fromkeys(operation.outputs, about)
        step: ProgramStep | Refusal = _plain_step(operation)
        if not live.isdisjoint(operation.outputs) and any(one.depends for one in own):
            step = _step_with_kinks(operation, own, definitions)
        if isinstance(step, Refusal):
            where = f" in {about.place}" if about.place else ""
            return Refusal(step.reason.format(where=where))
        steps.append(step._replace(place=about.place))
    leaves = jax.tree.leaves((parameters, fixed, x))
    return KinkProgram(steps, output, leaves)


def _is_still(weight: int, operations: list[Operation], output: Atom) -> bool:
    """Tell whether of an array nothing but `stop_gradient` is taken: its gradient is zero then.

    Weight decay alone would move it, and then across kinks that are not watched.
    """
    taken = [one.name for one in operations if weight in one.inputs]
    return weight != output and all(name == "stop_gradient" for name in taken)


def _place_of(path: Any) -> str:
    """Return the part of a module that holds an array; the array itself where it is the module."""
    own = jax.tree_util.keystr(path[:-1]) or jax.tree_util.keystr(path)
    return own.lstrip(".")


class _Flattener:
    """Writes a program and all that it calls as one list of operations on numbered values."""

    def __init__(self):
        self.operations: list[Operation] = []
        self._numbers = itertools.count()

    def number(self, count: int) -> tuple[int, ...]:
        """Return numbers for so many new values."""
        return tuple(itertools.islice(self._numbers, count))

    def inline_closed(self, program: ClosedJaxpr, arguments: list[Atom]) -> list[Atom]:
        """Write down a program with its constants."""
        return self.inline(program.jaxpr, [Constant(c) for c in program.consts], arguments)

    def inline(self, program: Jaxpr, constants: Any, arguments: Any) -> list[Atom]:
        """Write down a program, and return where its results are."""
        known = dict(zip(program.constvars, constants, strict=True))
        known |= dict(zip(program.invars, arguments, strict=True))

        def read(variable: Any) -> Atom:
            if isinstance(variable, Literal):
                return Constant(variable.val)
            return known[variable]

        for equation in program.eqns:
            inputs = [read(variable) for variable in equation.invars]
            inner = next(_programs_with_constants(equation), None)
            chosen = _result_of_constants(equation, inputs)
            if chosen is not None:
                results: Any = [chosen]
            elif inner is None or _stays_whole(equation) or _has_own_derivative(equation):
                results = self.number(len(equation.outvars))
                self.operations.append(Operation(equation, tuple(inputs), results))
            else:
                results = self.inline(inner[0], inner[1], inputs)
            known |= dict(zip(equation.outvars, results, strict=True))
        return [read(variable) for variable in program.outvars]


def _result_of_constants(equation: JaxprEqn, inputs: list[Atom]) -> Atom | None:
    """Return what an operation makes of constants, or chooses by one; None where weights may.

    `jnp.var` is NaN of no numbers: once that choice is made, it is never negative, and so the
    `max(0, variance)` of a layer norm is no kink.
    """
    first, name = inputs[0] if inputs else None, equation.primitive.name
    if name == "select_n" and isinstance(first, Constant) and np.ndim(first.value) == 0:
        return inputs[1 + int(first.value)]
    values = [one.value for one in inputs if isinstance(one, Constant)]
    is_number = [_shape_of(variable).shape for variable in equation.outvars] == [()]
    if not inputs or len(values) < len(inputs) or not is_number or name in CALLS:
        return None
    primitive, params = equation.primitive, equation.params
    with jax.ensure_compile_time_eval():
        return Constant(primitive.bind(*values, **primitive.get_bind_params(params)))


def _programs_with_constants(
    equation: JaxprEqn,
) -> Iterator[tuple[Jaxpr, list[Constant]]]:
    """Yield the programs that a call holds, each with its constants; of a loop none."""
    if equation.primitive.name in CALLS:
        for value in equation.params.values():
            if isinstance(value, ClosedJaxpr):
                yield value.jaxpr, [Constant(c) for c in value.consts]
            elif isinstance(value, Jaxpr):
                yield value, []


def _stays_whole(equation: JaxprEqn) -> bool:
    """Tell whether a call is smooth, or one of a function whose kinks are known."""
    return _is_smooth(equation) or _function_with_kinks(equation) is not None


def _is_smooth(equation: JaxprEqn) -> bool:
    """Tell whether a call is smooth, and so evaluated with the derivative that it has."""
    return is_smooth_operation(equation) or _is_smooth_function(equation)


def _function_with_kinks(equation: JaxprEqn) -> Callable[..., Array] | None:
    """Return one of the `KINKED_FUNCTIONS` by a rectifier, if a call is that; else None."""
    function, rectified = KINKED_FUNCTIONS.get(equation.params.get("name", ""), (None, None))
    if function is None or _is_smooth_function(equation) or not _is_call_of(equation, function):
        return None
    return rectified


def _has_own_derivative(equation: JaxprEqn) -> bool:
    """Tell whether a call's derivative is its author's, and not that of what it computes."""
    name = equation.primitive.name
    if name == "custom_jvp_call":
        return not any(_is_call_of(equation, one) for one in (jax.nn.relu, jax.nn.relu6))
    return name.startswith("custom_vjp")


def _is_smooth_function(equation: JaxprEqn) -> bool:
    """Tell whether a call is that of one of the `SMOOTH_FUNCTIONS` with its defaults."""
    # Of `jnp.logaddexp`, which has a derivative of its own and no name.
    function = SMOOTH_FUNCTIONS.get(equation.params.get("name", "logaddexp"))
    return function is not None and _is_call_of(equation, function)


def _is_call_of(equation: JaxprEqn, function: Callable[..., Array]) -> bool:
    """Tell whether a call is that of a function of JAX, by the program of both."""
    avals = [_shape_of(variable) for variable in equation.invars]
    try:
        (own,) = jax.make_jaxpr(function)(*avals).jaxpr.eqns
    except (TypeError, ValueError):  # other arguments than its own
        return False
    return _program_text(own) == _program_text(equation)


def _program_text(equation: JaxprEqn) -> str:
    """Return the program of a call as text, in which variables are named in order."""
    return str(equation.params.get("jaxpr", equation.params.get("call_jaxpr")))


def _live_values(operations: list[Operation], output: Atom) -> set[Atom]:
    """Return the values on which the output depends other than through `stop_gradient`.

    The maximum that a softmax subtracts is no kink: the output is the same whatever it is.
    """
    live: set[Atom] = {output}
    for operation in reversed(operations):
        if operation.name != "stop_gradient" and not live.isdisjoint(operation.outputs):
            live |= {a for a in operation.inputs if isinstance(a, int)}
    return live


def _is_maximum(atom: Atom, definitions: dict[int, Operation]) -> bool:
    """Tell whether a value is the maximum that a softmax subtracts, whatever its shape."""
    made_by = definitions.get(atom) if isinstance(atom, int) else None
    if made_by is None:
        return False
    if made_by.name in ("max", "select_n", "broadcast_in_dim", "reshape", "squeeze"):
        return any(_is_maximum(one, definitions) for one in made_by.inputs)
    return made_by.name == "reduce_max"


def _plain_step(operation: Operation) -> ProgramStep:
    """Return the operation as it is."""
    primitive, params = operation.equation.primitive, operation.equation.params

    def evaluate(rectify: Rectifier, *values: Array) -> Sequence[Array]:
        del rectify
        found = primitive.bind(*values, **primitive.get_bind_params(params))
        return found if primitive.multiple_results else [found]

    return ProgramStep(operation.inputs, operation.outputs, evaluate, operation.name)


def _step_with_kinks(
    operation: Operation, own: list[Fact], definitions: Definitions
) -> ProgramStep | Refusal:
    """Return the operation with a rectifier in place of its kinks, or why that is not known."""
    name, params = operation.name, operation.equation.params
    if name in COMPARISONS:
        return _plain_step(operation)
    if name == "select_n":
        return _select_step(operation, own, definitions.made_by)
    if name == "stop_gradient" and not _is_maximum(operation.inputs[0], definitions.made_by):
        return Refusal(f"`{name}`{{where}} hides how weights move what follows; leave it out")
    if name.startswith("custom_vjp") or (
        name.startswith("custom") and not _is_smooth(operation.equation)
    ):
        return Refusal(f"`{name}`{{where}} may hold a kink, and has a derivative of its own")
    if any(one.depends and not holds_floats(v) for one, v in
           zip(own, operation.equation.invars, strict=True)):  # fmt: skip
        return Refusal(say_trouble(operation, definitions))
    if rectified := _function_with_kinks(operation.equation):
        step = _kink_step(operation, rectified)
        return step._replace(operation=operation.equation.params["name"])
    if name == "abs" and not own[0].never_negative:
        return _kink_step(operation, lambda rectify, z: 2 * rectify(z) - z)
    if name in ("max", "min"):
        return _pair_step(operation, own)
    if name == "clamp" and own[1].depends:
        return _kink_step(operation, clamp)
    if name in ("reduce_max", "reduce_min"):
        way = functools.partial(reduce_by_pairs, axes=params["axes"], sign=_sign_of(name))
        return _kink_step(operation, way)
    if name in ("reduce_window_max", "reduce_window_min"):
        if any(map(any, params["padding"])) or set(params["base_dilation"]) != {1}:
            return Refusal(f"`{name}`{{where}} pads its windows; use windows without padding")
        return _kink_step(operation, functools.partial(pool, params=params, sign=_sign_of(name)))
    if root := say_root(operation, own, definitions):
        return Refusal(root)
    if name in MOVES or name in ROOTS or name == "abs" or _is_smooth(operation.equation):
        return _plain_step(operation)
    inner = list(programs_within(operation.equation))
    if inner and name == "scan" and all(map(is_smooth_operation, inner[0].eqns)):
        return _plain_step(operation)
    return Refusal(say_trouble(operation, definitions))


def _shape_of(variable: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and the type of a variable."""
    about = variable.aval
    return jax.ShapeDtypeStruct(about.shape, about.dtype, weak_type=about.weak_type)


def _sign_of(name: str) -> int:
    """Return 1 for a maximum, -1 for a minimum."""
    return 1 if name.endswith("max") else -1


def _kink_step(operation: Operation, function: Callable[..., Array]) -> ProgramStep:
    """Return a step of one result that calls the rectifier."""

    def evaluate_kinks(rectify: Rectifier, *values: Array) -> Sequence[Array]:
        return [function(rectify, *values)]

    return ProgramStep(operation.inputs, operation.outputs, evaluate_kinks, operation.name)


def _pair_step(operation: Operation, own: list[Fact]) -> ProgramStep:
    """Return the larger or the smaller one of two values, of which one may be at rest."""
    sign, shape = _sign_of(operation.name), _shape_of(operation.equation.outvars[0]).shape
    at_rest = [not one.depends for one in own]
    zeros = [isinstance(a, Constant) and not np.any(np.asarray(a.value)) for a in operation.inputs]
    never = [one.never_negative for one in own]
    ends = [isinstance(a, Constant) and np.all(np.asarray(a.value) == -sign * np.inf)
            for a in operation.inputs]  # fmt: skip
    other_wins = [end or (sign > 0 and zero and one) for end, zero, one in
                  zip(ends, zeros, reversed(never), strict=True)]  # fmt: skip
    if any(other_wins):
        kept = 1 if other_wins[0] else 0
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
    operation: Operation, own: list[Fact], definitions: dict[int, Operation]
) -> ProgramStep | Refusal:
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
    shape = _shape_of(operation.equation.outvars[0]).shape
    level = constant_value(level, definitions)
    if level is None or np.any(level) or isinstance(z, Constant):
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


def _slope_along(side: Atom, z: Atom, definitions: dict[int, Operation]) -> Atom | None:
    """Return s for a value that is s z, None for any other."""
    if side == z:
        return Constant(np.float32(1.0))
    value = constant_value(side, definitions)
    if value is not None and not np.any(value):
        return Constant(np.float32(0.0))
    made_by = definitions.get(side) if isinstance(side, int) else None
    if made_by is not None and made_by.name == "mul" and z in made_by.inputs:
        a, b = made_by.inputs
        return b if a == z else a
    return None
