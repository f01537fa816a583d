"""Facts of the values of a flat program: whether weights move them, their sign, their place."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from flowlin.networks.kink_program import Atom, Constant

NEVER_NEGATIVE = {"exp", "exp2", "logistic", "square", "abs", "sqrt"}
POSITIVE = {"exp", "exp2", "logistic", "cosh", "rsqrt", "erfc"}
KEEPS_SIGN = {
    "add", "mul", "div", "max", "reduce_sum", "reduce_max", "broadcast_in_dim", "reshape",
    "squeeze", "transpose", "convert_element_type", "slice", "concatenate", "copy", "sqrt", "cbrt",
}  # fmt: skip
SPREADS = {"broadcast_in_dim", "convert_element_type", "copy", "reshape", "squeeze"}


class Operation(NamedTuple):
    """One operation of the flat program, from numbered values to numbered values."""

    equation: JaxprEqn
    inputs: tuple[Atom, ...]
    outputs: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of its primitive."""
        return self.equation.primitive.name


class Fact(NamedTuple):
    """Facts of a value: whether weights move it, its sign, and whose numbers it is of.

    - `order`: the operation at which numbers of `place` were last taken up.
    """

    depends: bool = False
    never_negative: bool = False
    positive: bool = False
    order: int = -1
    place: str = ""


def fact_of_input(atom: Atom, facts: dict[int, Fact]) -> Fact:
    """Return what is known of an operation's input; of a constant, its sign."""
    if isinstance(atom, int):
        return facts.get(atom, Fact())
    value = np.asarray(atom.value)
    return Fact(never_negative=bool(np.all(value >= 0)), positive=bool(np.all(value > 0)))


def fact_of_result(operation: Operation, own: list[Fact], order: int, weights: int) -> Fact:
    """Return what is known of an operation's results.

    A comparison of a value with itself, or with what is finite, only looks for NaN.
    """
    name = operation.name
    looks_for_nan = name == "is_finite" or (name == "ne" and _is_of_one_value(operation))
    depends = any(one.depends for one in own) and not looks_for_nan
    taken = [
        one._replace(order=order) if isinstance(atom, int) and atom < weights else one
        for atom, one in zip(operation.inputs, own, strict=True)
    ]
    last = max(taken, key=lambda one: one.order, default=Fact())
    positive = _is_positive(operation, own)
    never_negative = positive or _is_never_negative(operation, own)
    return Fact(depends, never_negative, positive, last.order, last.place)


def _is_of_one_value(operation: Operation) -> bool:
    """Tell whether an operation of two is of a value with itself."""
    a, b = operation.inputs  # constants, as arrays, have no hash
    return isinstance(a, int) and a == b


def _is_never_negative(operation: Operation, own: list[Fact]) -> bool:
    """Tell whether an operation's results are surely zero or positive, or NaN."""
    name, equation = operation.name, operation.equation
    if name in NEVER_NEGATIVE or (name in KEEPS_SIGN and all(one.never_negative for one in own)):
        return True
    if name == "max":
        return any(one.never_negative for one in own)
    if name == "integer_pow":
        return equation.params["y"] % 2 == 0
    if name == "pow":
        return own[0].never_negative
    if name in ("mul", "dot_general") and _is_of_one_value(operation):
        return name == "mul" or equation.outvars[0].aval.shape == ()  # pyright: ignore
    return False


def _is_positive(operation: Operation, own: list[Fact]) -> bool:
    """Tell whether an operation's results are surely positive: a root of these is smooth."""
    name = operation.name
    if name in POSITIVE or operation.equation.params.get("name") == "softplus":
        return True
    if name == "add":
        return any(one.positive for one in own) and all(one.never_negative for one in own)
    if name == "max":
        return any(one.positive for one in own)
    if name in ("pow", "integer_pow"):
        return own[0].positive
    # 0.5 is no more positive as a whole number.
    kept = name in KEEPS_SIGN and holds_floats(operation.equation.outvars[0])
    return kept and all(one.positive for one in own)


def constant_value(atom: Atom, definitions: dict[int, Operation]) -> np.ndarray | None:
    """Return a value that is a constant, spread and converted; None for what is none."""
    if isinstance(atom, Constant):
        return np.asarray(atom.value)
    made_by = definitions.get(atom)
    if made_by is None or made_by.name not in ("broadcast_in_dim", "convert_element_type", "copy"):
        return None
    return constant_value(made_by.inputs[0], definitions)


class Definitions(NamedTuple):
    """The operations of a program by the values that they make, and by those that they take."""

    made_by: dict[int, Operation]
    used_by: dict[int, list[Operation]]
    output: Atom

    @staticmethod
    def of(operations: list[Operation], output: Atom) -> "Definitions":
        """Sort the operations of a program by their values."""
        used: dict[int, list[Operation]] = {}
        for one in operations:
            for atom in one.inputs:
                if isinstance(atom, int):
                    used.setdefault(atom, []).append(one)
        return Definitions({k: one for one in operations for k in one.outputs}, used, output)

    def hides_zero(self, value: int) -> bool:
        """Tell whether a value is only divided by, or is not taken below a positive number.

        What is divided by has a pole at zero, where no flow comes to; there are no kinks.
        """
        used = self.used_by.get(value, [])
        return value != self.output and bool(used) and all(self._hides(one, value) for one in used)

    def _hides(self, operation: Operation, value: int) -> bool:
        """Tell whether one use of a value is blind to what it does at zero."""
        if operation.name in SPREADS:
            return self.hides_zero(operation.outputs[0])
        others = [atom for atom in operation.inputs if atom != value]
        if operation.name == "div":
            return len(others) == 1 and operation.inputs[1] == value
        levels = [constant_value(atom, self.made_by) for atom in others]
        return operation.name == "max" and all(a is not None and np.all(a > 0) for a in levels)


def holds_floats(variable: object) -> bool:
    """Tell whether a variable of a program holds floating-point numbers."""
    return jnp.issubdtype(variable.aval.dtype, jnp.floating)  # pyright: ignore
