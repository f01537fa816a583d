"""Whether a function is made of smooth operations alone, as its program shows."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

# Operations without kinks or jumps where they are finite, and those that move numbers about. Roots
# are not among them: sqrt(z**2) is |z|. `rsqrt` has a pole where they have kinks.
SMOOTH = {
    "add", "add_any", "sub", "mul", "div", "neg", "integer_pow", "square", "rsqrt", "exp", "exp2",
    "expm1", "log", "log1p", "tanh", "logistic", "erf", "erfc", "sin", "cos", "tan", "sinh", "cosh",
    "asinh", "atan", "lgamma", "digamma", "dot_general", "conv_general_dilated", "reduce_sum",
    "reduce_window_sum", "cumsum", "fft", "broadcast_in_dim", "reshape", "transpose", "squeeze",
    "expand_dims", "concatenate", "slice", "pad", "rev", "iota", "copy", "split", "stop_gradient",
    "convert_element_type",
}  # fmt: skip
CALLS = {
    "jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2"
}  # fmt: skip


def has_only_smooth_operations(function: Callable[..., object], *arguments: object) -> bool:
    """Tell whether a function surely has no kinks, by the operations of its program.

    A maximum, a choice by a condition, a loop of unknown length or an operation that is not known
    may hide a kink: then it is False, for softplus too, which is computed by a maximum.
    """
    return all(map(is_smooth_operation, jax.make_jaxpr(function)(*arguments).jaxpr.eqns))


def is_smooth_operation(equation: JaxprEqn) -> bool:
    """Tell whether one operation, or all within it, is smooth in its real inputs."""
    name, inner = equation.primitive.name, list(programs_within(equation))
    if name in {*CALLS, "scan"} and inner:
        return all(is_smooth_operation(one) for program in inner for one in program.eqns)
    # Truth values that become numbers are jumps.
    jumps = any(getattr(var.aval, "dtype", None) == jnp.bool_ for var in equation.invars)
    return name in SMOOTH and not jumps


def programs_within(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """Yield the programs that an operation calls."""
    for value in equation.params.values():
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
