r"""Time constants that depend on time, $\tau(t)\, \dot w = -\nabla L$.

With one number for all parameters this is another clock: in $s(t) = \int_0^t dt' / \tau(t')$ the
weights are those of the flow with $\tau = 1$. Runs are solved in t all the same. The velocity is
divided by $\tau(t)$, and error control sees what that costs; the clock would need an integral, its
inverse and its errors beside the run's own, and rows, events and steps would have to be translated
back. Nothing else of a solver changes: one positive factor, common to all parameters, is no part of
what decides on sides at a kink, nor of the state's path between two of a walk's events.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arguments import argument_error, describe_value, function_of, is_real
from flowlin._tools.arrays import Numbers, is_traced
from flowlin._tools.user_functions import user_function_errors

TimeConstant = Numbers | Callable[[Array], ArrayLike]  # what users pass as `tau`


def schedule_argument(name: str, value: object) -> object:
    """Check that an argument is a function of time that can be part of a compiled program."""
    function_of("t")(name, value)
    try:
        hash(eqx.partition(value, _is_array)[1])
    except TypeError:
        remedy = "wrap it: lambda t: tau(t)"
        raise argument_error(name, "a function that can be hashed", value, remedy) from None
    return value


def _is_array(leaf: object) -> bool:
    """Tell whether a leaf of a callable module is data, and not a part of the program."""
    return eqx.is_array(leaf) or isinstance(leaf, np.ndarray)


class Schedule(eqx.Module):
    """A time constant as a function of time, (t) -> a positive number.

    - `arrays`, `rest`: the user's function, a module's arrays apart, by which derivatives are taken
      and which compile no other program.
    - `name`: of the function.
    """

    arrays: PyTree
    rest: PyTree = eqx.field(static=True)
    name: str = eqx.field(static=True)

    @staticmethod
    def from_function(function: Callable[[Array], ArrayLike], like: Array) -> "Schedule":
        """Make the schedule of a user's function, for times like t = 0, `like`.

        A function that closes over a traced array, such as `lambda t: a + t` within `jax.grad`,
        becomes one of these arrays.

        **Raises:** `ValueError` where it fails, is no number, or not positive at t = 0.
        """
        inner = getattr(function, "func", function)  # a functools.partial has no name
        name = getattr(inner, "__name__", type(inner).__name__)
        with user_function_errors(f"`tau` = {name} fails at t = 0"):
            jax.eval_shape(function, like)
            value = function(like)
        if is_traced(value) and not is_traced(function):
            function = eqx.filter_closure_convert(function, like)
        if not is_real(value):
            raise ValueError(
                f"`tau` = {name} must make one real number of a time t, and makes "
                f"{describe_value(value)}; a time constant per layer is given as numbers."
            )
        arrays, rest = eqx.partition(function, _is_array)
        found = Schedule(jax.tree.map(jnp.asarray, arrays), rest, name)
        if not is_traced(value) and np.isnan(found(like)):
            raise ValueError(found.out_of_range(like))
        return found

    @property
    def function(self) -> Callable[..., ArrayLike]:
        """The user's function."""
        return eqx.combine(self.arrays, self.rest)

    def value_as_given(self, t: ArrayLike) -> Array:
        """Return what the user's function returns."""
        return jnp.asarray(self.function(t))

    def __call__(self, t: Float[Array, ""]) -> Float[Array, ""]:
        """Return the time constant at time t, NaN where it is not positive and finite.

        A step to there is then rejected, and the run ends before.
        """
        value = self.value_as_given(t).astype(jnp.result_type(t))
        return jnp.where((value > 0) & (value < jnp.inf), value, jnp.nan)

    def at_rows(self, ts: Float[Array, " T"]) -> Float[Array, " T"]:
        """Return the time constants at times (T,); those of rows that are not due, inf, are NaN.

        One by one: the user's function need not work under `vmap`.
        """
        due = jnp.isfinite(ts)
        return jnp.where(due, jax.lax.map(self, jnp.where(due, ts, 0.0)), jnp.nan)

    def trouble_after(self, t: Array, t1: Array) -> str:
        """Say that the time constant is none right after a time; empty where it is one.

        Steps shrink to nothing some way before the time at which it falls to zero.
        """
        size = jnp.maximum(t, jnp.minimum(t1, 1.0))
        eps = jnp.finfo(size.dtype).eps
        for share in (32 * eps, eps**0.75, eps**0.5, eps**0.375):
            at = jnp.minimum(t + share * size, t1)
            if jnp.isnan(self(at)):
                return self.out_of_range(at)
        return ""

    def out_of_range(self, t: ArrayLike) -> str:
        """Return in words that the time constant at time t is none."""
        return (
            f"`tau` = {self.name} must be positive and finite at all times of the run, and is "
            f"{float(self.value_as_given(t)):g} at t = {float(jnp.asarray(t)):.6g}."
        )


class ScheduledField(eqx.Module):
    """A vector field at tau = 1 that is divided by a schedule, for diffrax."""

    field: Callable[..., PyTree]
    schedule: Schedule

    def __call__(self, t: Array, state: PyTree, args: PyTree) -> PyTree:
        """Return the velocity of the state at time t."""
        tau = self.schedule(t)
        return jax.tree.map(lambda a: a / tau.astype(a.dtype), self.field(t, state, args))
