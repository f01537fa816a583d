"""The decorator of closed forms: it checks their arguments, and keeps NaN as NaN.

A formula is full of comparisons, and a comparison with NaN is False: the result would say, for
example, that a mode is never learnt. So each NaN is replaced by a number before a formula is worked
out, and the result is set to NaN there. Its derivative is zero, so that sums over the other
elements keep theirs.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from flowlin._tools.arguments import argument_error, checked, real_array
from flowlin._tools.arrays import is_traced, with_axes

NAN_STAND_IN = np.e  # in place of NaN while a formula is worked out; in the range of every argument


class ArgumentRange:
    """The range of an argument, in words and as a test of an array of its numbers.

    A `single` argument is one number, no array.
    """

    def __init__(self, wanted: str, fine: Callable[[np.ndarray], np.ndarray], single: bool = False):
        self.wanted, self.contains, self.single = wanted, fine, single

    def __call__(self, name: str, value: Any) -> Any:
        """Check a value where its numbers are known, and return it; NaN and tracers pass."""
        value = real_array(name, value)
        if self.single and np.ndim(value):
            raise ValueError(f"`{name}` must be a single number, got shape {np.shape(value)}.")
        if not is_traced(value):
            numbers = np.asarray(value)
            bad = numbers[~(np.asarray(self.contains(numbers)) | np.isnan(numbers))]
            if bad.size:
                raise argument_error(name, self.wanted, bad[0])
        return value


TIME_RANGE = ArgumentRange("zero or positive: it is the time since the start", lambda t: t >= 0)
SIZE_RANGE = ArgumentRange("zero or positive; flip the sign of the mode's u", lambda s: s >= 0)
START_RANGE = ArgumentRange(
    "zero or positive: no other mode is balanced; take `theory.balanced_strength`, or the form for "
    "unbalanced modes",
    lambda a0: a0 >= 0,
)
DEPTH_RANGE = ArgumentRange("1, or 2 and more: layers of weights", lambda n: (n == 1) | (n >= 2))
FRACTION_RANGE = ArgumentRange(  # a ratio of sums may be above one by rounding
    "in [0, 1]: it is the fraction of live units", lambda g: (g >= 0) & (g <= 1 + 1e-6)
)
RANGES: dict[str, ArgumentRange] = {
    "t": TIME_RANGE,
    "d": ArgumentRange(
        "zero or positive: it is the variance of the inputs along the mode", lambda d: d >= 0
    ),
    "tau": ArgumentRange("positive: it is the time constant of the flow", lambda tau: tau > 0),
    "depth": DEPTH_RANGE,
}


def closed_form(
    function: Any = None, /, *, axes: dict[str, int] | None = None, **ranges: ArgumentRange
):
    """Decorate a formula that users call: `elementwise`, with its numbers in range.

    `axes` as in `elementwise`. `ranges` are those of single arguments beside `RANGES`.

    **Raises** `ValueError` for what is no array of numbers, for known numbers out of range, and for
    shapes that do not broadcast.
    """
    if function is None:
        return functools.partial(closed_form, axes=axes, **ranges)
    names = inspect.signature(function).parameters
    words = {name: ({**RANGES, **ranges}).get(name, real_array) for name in names}
    single = tuple(name for name, word in words.items() if getattr(word, "single", False))
    return checked(_call_without_nan(function, function, axes, single), **words)


def elementwise(function: Any = None, /, *, axes: dict[str, int] | None = None) -> Any:
    """Decorate a formula of arrays that broadcast: NaN where one of its numbers is.

    `axes` are the last axes of an argument that do not broadcast, such as 1 of a vector: a NaN
    among them is one of the whole. A formula is one program for each shape, where JAX would make
    one of each of its operations.
    """
    if function is None:
        return functools.partial(elementwise, axes=axes)
    return _call_without_nan(function, jax.jit(function), axes, ())


def _call_without_nan(
    function: Any, program: Any, axes: dict[str, int] | None, single: tuple[str, ...]
) -> Any:
    """Wrap a formula, which `program` calls, as `elementwise`; `single` arguments are no arrays."""
    signature, own = inspect.signature(function), axes or {}
    several = [name for name in signature.parameters if name not in single]
    if 2 in own.values():  # a formula of matrices takes time alone as an array
        several = []

    @functools.wraps(function)
    def call_form(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        shape = broadcast_shape(given, own)
        for name in several:  # as many axes for all, so that no rank is promoted
            axes = len(shape) + own.get(name, 0) - np.ndim(given[name])
            if axes:
                given[name] = with_axes(jnp.asarray(given[name]), axes)
        bound.arguments.update(given)
        unknown = [name for name, value in given.items() if _may_be_nan(value)]
        if not unknown:
            return program(*bound.args, **bound.kwargs)
        nan = jnp.zeros(shape, bool)
        for name in unknown:
            missing = jnp.isnan(given[name])
            bound.arguments[name] = jnp.where(missing, NAN_STAND_IN, given[name])
            missing = jnp.any(missing, axis=tuple(range(-own.get(name, 0), 0)))
            nan |= jnp.broadcast_to(missing, shape)
        found = program(*bound.args, **bound.kwargs)
        return jax.tree.map(lambda one: restore_nan(nan, one), found)

    return call_form


def any_nan(*given: ArrayLike) -> Array:
    """Tell where one of the given numbers, which broadcast, is NaN."""
    found = jnp.zeros((), bool)
    for value in given:
        found |= jnp.isnan(value)
    return found


def restore_nan(nan: Array, value: Array) -> Array:
    """Return the value, NaN where `nan` is True; `nan` lacks the value's last axes."""
    return jnp.where(nan.reshape(nan.shape + (1,) * (value.ndim - nan.ndim)), jnp.nan, value)


def _may_be_nan(value: ArrayLike) -> bool:
    """Tell whether a value holds NaN; of tracers, whether it could."""
    if isinstance(value, jax.core.Tracer):
        return bool(jnp.issubdtype(value.dtype, jnp.floating))
    return bool(np.any(np.isnan(np.asarray(value))))


def broadcast_shape(given: Mapping[str, ArrayLike], axes: dict[str, int]) -> tuple[int, ...]:
    """Return the shape to which the arguments broadcast, without their own last axes."""
    shapes = {name: np.shape(value) for name, value in given.items()}
    for name, number in axes.items():
        if len(shapes[name]) < number:
            kind = ("vectors", "matrices")[number - 1]
            raise ValueError(f"`{name}` must hold {kind}, got shape {shapes[name]}.")
    outer = [shape[: len(shape) - axes.get(name, 0)] for name, shape in shapes.items()]
    try:
        return np.broadcast_shapes(*outer)
    except ValueError:
        found = ", ".join(f"`{name}` {shape}" for name, shape in shapes.items() if shape)
        raise ValueError(f"shapes do not broadcast: {found}.") from None
