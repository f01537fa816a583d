"""One layer of argument checks: every public function is decorated by `checked`.

The same word means the same thing wherever it stands, so an argument is checked by its name:
`CHECKS_BY_NAME` says what each word may be. A module that defines a class of the library adds the
word that goes with it (`CHECKS_BY_NAME["network"] = ...`). A check is called as
`check(name, value)`, raises `ValueError` (what, got, remedy) and returns the value to go on with,
still of the signature's type; what is made of it (`as_model`, `as_loss`) the body says.
"""

import difflib
import functools
import inspect
import math
import numbers as numeric
import operator
import os
from collections.abc import Callable, Iterable
from typing import Any, SupportsFloat, SupportsIndex, TypeGuard, TypeVar, overload

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from flowlin._tools.arrays import PathLike, Real, is_traced, remedy_for_kind, require_finite
from flowlin._tools.memory import require_memory

# ---- The decorator of every public function, and how its errors read.

Made = TypeVar("Made")
Check = Callable[[str, object], Made]  # of a name and a value, to the value to go on with
Routine = Callable[..., object]
Thing = TypeVar("Thing", bound=Routine)

CHECKS_BY_NAME: dict[str, Check] = {}
# By a mistaken "argument" or "function.argument": which one is meant, and why; modules add theirs
ARGUMENT_HINTS = {
    "learning_rate": (
        "modified_rate",
        "a flow has no steps. `modified_rate` asks for the flow that descent with that rate "
        "follows to second order, and fl.gradient_descent takes its steps.",
    )
}


@overload
def checked(thing: Thing, /) -> Thing: ...
@overload
def checked(**checks: Check | None) -> Callable[[Thing], Thing]: ...
def checked(thing: Routine | None = None, /, **checks: Check | None) -> Routine:
    """Decorate a function, a method or a class, so that its arguments are checked before it runs.

    Each argument is checked by its own name in `CHECKS_BY_NAME`, or by the check that is given
    here for it (None: not at all). It keeps the type of its annotation; what the function makes of
    it is for its body to say. An argument left at its default is not checked, so None passes where
    it is the default. Unknown, missing and surplus arguments raise a `TypeError` that says which
    name may have been meant.
    """
    if thing is None:
        return functools.partial(checked, **checks)
    if not inspect.isclass(thing):
        return _wrap_call(thing, checks)
    thing.__init__ = _wrap_call(thing.__init__, checks, thing.__name__)  # pyright: ignore
    return thing


def _wrap_call(function: Routine, checks: dict[str, Check | None], title: str = "") -> Routine:
    """Wrap a function so that its arguments are checked; errors call it `title`."""
    signature = inspect.signature(function)
    title = title or function.__qualname__

    @functools.wraps(function)
    def check_and_call(*args: object, **kwargs: object) -> object:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(_call_mismatch(title, signature, kwargs, error)) from None
        given = bound.arguments
        for name, value in given.items():
            check = checks[name] if name in checks else CHECKS_BY_NAME.get(name)
            if check is not None and value is not signature.parameters[name].default:
                given[name] = check(name, value)
        return function(*bound.args, **bound.kwargs)

    check_and_call.checks = checks  # pyright: ignore[reportAttributeAccessIssue]
    return check_and_call


def require_known_options(words: Iterable[str], function: Routine, *, caller: Routine) -> None:
    """Raise `TypeError` for options of one function that it cannot hand on to another."""
    names = list(inspect.signature(function).parameters)
    for word in words:
        if word not in names:
            raise TypeError(
                _unknown_argument(
                    caller.__qualname__, word, _keyword_names(inspect.signature(caller)) + names
                )
            )


def _call_mismatch(
    title: str, signature: inspect.Signature, words: Iterable[str], error: TypeError
) -> str:
    """Explain why a call does not fit a signature, and what may have been meant."""
    names = _keyword_names(signature)
    for word in words:
        if word not in signature.parameters:
            return _unknown_argument(title, word, names)
    return f"{title}(): {error}; it has {', '.join(names) or 'no arguments'}."


def _unknown_argument(title: str, word: str, names: list[str]) -> str:
    """Explain that a function has no argument `word`, and what may have been meant."""
    instead, why = ARGUMENT_HINTS.get(f"{title}.{word}", ARGUMENT_HINTS.get(word, ("", "")))
    if instead in names:
        return f"{title}() has no argument `{word}`: {why}"
    near = difflib.get_close_matches(word, names, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"it has {', '.join(names) or 'none'}."
    return f"{title}() has no argument `{word}`; {hint}"


def _keyword_names(signature: inspect.Signature) -> list[str]:
    """List the arguments that can be given by name."""
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def describe_value(value: object) -> str:
    """Describe a value as messages quote it: short, and never an array's numbers."""
    if isinstance(value, jax.core.Tracer):
        return f"a traced array of shape {value.shape}"
    if isinstance(value, (jax.Array, np.ndarray)) and (value.ndim or not _has_numpy_dtype(value)):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if isinstance(value, (str, bytes, int, float, complex, np.generic, jax.Array, type(None))):
        text = repr(value.item() if isinstance(value, (np.generic, jax.Array)) else value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return with_article(type(value).__name__)


def _has_numpy_dtype(value: jax.Array | np.ndarray) -> bool:
    """Tell whether an array without axes is one number; keys of `jax.random` are none."""
    return isinstance(value.dtype, np.dtype)


def with_article(word: str) -> str:
    """Put the article before a word: an `EventLog`, a `Task`, an `MLP` (which is spelt out)."""
    spelt = word[:2].isupper()
    return f"{'an' if word[:1] in ('AEFHILMNORSX' if spelt else 'aeiouAEIOU') else 'a'} {word}"


def argument_error(name: str, wanted: str, value: object, remedy: str = "") -> ValueError:
    """Return the error for an argument: what it must be, what came, what to do."""
    return ValueError(
        f"`{name}` must be {wanted}, got {describe_value(value)}{remedy and '; '}{remedy}."
    )


def is_real(value: object) -> TypeGuard[Real]:
    """Tell whether a value is one real number, traced or not; truth values and text are none."""
    if isinstance(value, (bool, np.bool_, str, bytes)):
        return False
    if isinstance(value, numeric.Real):
        return True
    dtype = getattr(value, "dtype", None)
    real = dtype is not None and (
        jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    )
    return real and getattr(value, "ndim", None) == 0


def _float_or_inf(value: SupportsFloat) -> float:
    """Convert a number to a `float`, infinite where it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return -math.inf if isinstance(value, numeric.Real) and value < 0 else math.inf


def number_where(wanted: str, is_valid: Callable[[float], bool], remedy: str = "") -> Check:
    """Make a check for one real number that is `fine`, in words `wanted`; a traced one passes."""

    def check_number(name: str, value: object) -> object:
        if not is_real(value):
            if shape := getattr(value, "shape", ()):
                raise ValueError(f"`{name}` must be a single number, got shape {shape}.")
            if isinstance(value, (list, tuple)):
                raise argument_error(name, "a single number", value, remedy)
            raise argument_error(name, f"a number, {wanted}", value, remedy)
        if not isinstance(value, jax.core.Tracer) and not is_valid(_float_or_inf(value)):
            raise argument_error(name, wanted, value, remedy)
        plain = isinstance(value, (int, float, np.generic, np.ndarray, jax.Array))
        return value if plain else _float_or_inf(value)  # a fraction, say, which JAX does not know

    return check_number


positive = number_where("finite and positive", lambda v: math.isfinite(v) and v > 0)
not_negative = number_where("finite and zero or positive", lambda v: math.isfinite(v) and v >= 0)
finite = number_where("finite", math.isfinite)
time_or_inf = number_where("a time, or inf for the end", lambda v: v > -math.inf)


def positive_at_run_time(name: str, value: object) -> Any:
    """Check as `positive`, and a traced number when the program runs."""
    value = positive(name, value)
    if not isinstance(value, jax.core.Tracer):
        return value
    fine = (value > 0) & (value < jnp.inf)
    return eqx.error_if(value, ~fine, f"`{name}` must be finite and positive, and was not.")


def final_time(name: str, value: object) -> Real | None:
    """Check for the positive time at which a run ends; inf, or None, leaves it to an event."""
    if value is None or (is_real(value) and not is_traced(value) and value == math.inf):
        return value
    return positive_at_run_time(name, value)


def number_in(low: float, high: float, remedy: str = "") -> Check[float]:
    """Make a check for one number in [low, high), returned as a `float`."""

    def check_interval(name: str, value: object) -> float:
        if not is_real(value) or is_traced(value) or not low <= _float_or_inf(value) < high:
            hint = f"{remedy and '; '}{remedy}"
            raise ValueError(
                f"`{name}` must lie in [{low:g}, {high:g}), got {describe_value(value)}{hint}."
            )
        return float(value)

    return check_interval


def static_value(check: Check) -> Check:
    """Make a check that no traced value passes, for what decides on a program."""

    def check_static(name: str, value: object) -> object:
        if is_traced(value):
            raise argument_error(name, "known when the program is made", value, "do not trace it")
        value = check(name, value)
        if isinstance(value, (np.generic, np.ndarray, jax.Array)) and value.ndim == 0:
            return value.item()
        return value

    return check_static


def integer_from(low: int, remedy: str = "", high: int | float = math.inf) -> Check[int]:
    """Make a check for a whole number from `low` to `high`, returned as an `int`."""
    wanted = f"a whole number of {low} or more"
    if high < math.inf:
        wanted = f"a whole number from {low} to {high}"

    def check_integer(name: str, value: object) -> int:
        if not is_real(value) or isinstance(value, jax.core.Tracer):
            raise argument_error(name, wanted, value, remedy)
        if math.isfinite(_float_or_inf(value)) and int(value) == value and low <= value <= high:
            return int(value)
        raise argument_error(name, wanted, value, remedy)

    return check_integer


LARGEST_STEP_LIMIT = 2**30  # what counters of 32 bits hold with room to spare


def step_limit(name: str, value: object) -> int | None:
    """Check for the number of steps at which a run gives up; None is the largest there is."""
    check = integer_from(1, "None is no limit", LARGEST_STEP_LIMIT)
    return None if value is None else check(name, value)


def event_limit(name: str, value: object) -> int:
    """Return the number of events that a log has room for, if so many fit into memory."""
    count = integer_from(1)(name, value)
    require_memory(name, count, 32 * count, "Lower it, or watch fewer components")
    return count


def boolean(name: str, value: object) -> bool:
    """Check for True or False, Python's or NumPy's; returned as a `bool`."""
    if not isinstance(value, (bool, np.bool_)):
        raise argument_error(name, "True or False", value)
    return bool(value)


def choice_of(*options: object) -> Check:
    """Make a check for one of a few words, or None where that is one of them."""
    *others, last = (f'"{o}"' if isinstance(o, str) else repr(o) for o in options)
    wanted = f"{', '.join(others)} or {last}" if others else last

    def check_choice(name: str, value: object) -> object:
        if not any(type(value) is type(option) and value == option for option in options):
            raise argument_error(name, wanted, value)
        return value

    return check_choice


def string(name: str, value: object) -> str:
    """Check for a string."""
    if not isinstance(value, str):
        raise argument_error(name, "a string", value)
    return value


def instance_of(
    kinds: type[Made] | tuple[type[Made], ...], wanted: str, remedy: str = ""
) -> Check[Made]:
    """Make a check for an object of a class; the class itself is answered with how to make one."""

    def check_instance(name: str, value: object) -> Made:
        if isinstance(value, kinds):
            return value
        if inspect.isclass(value) and issubclass(value, kinds):
            raise argument_error(
                name, wanted, value, f"make an object of it: {value.__name__}(...)"
            )
        raise argument_error(name, wanted, value, remedy)

    return check_instance


def sequence_of(check: Check[Made], wanted: str) -> Check[tuple[Made, ...]]:
    """Make a check for a sequence of what `check` passes, returned as a tuple; one item will do."""

    def check_items(name: str, value: object) -> tuple[Made, ...]:
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            return (check(name, value),)
        try:
            items = tuple(value)
        except TypeError:  # an array without axes
            raise argument_error(name, wanted, value) from None
        return tuple(check(f"{name}[{k}]", item) for k, item in enumerate(items))

    return check_items


def function_of(*arguments: str) -> Check:
    """Make a check for a function that can be called with these arguments by position."""
    wanted = f"a function of ({', '.join(arguments)})"

    def check_function(name: str, value: object) -> object:
        if not callable(value) or inspect.isclass(value):
            raise argument_error(name, wanted, value)
        try:
            inspect.signature(value).bind(*arguments)
        except TypeError:
            takes = inspect.signature(value)
            raise ValueError(f"`{name}` must be {wanted}, and takes {takes}.") from None
        except ValueError:  # not all built-in functions have a signature
            pass
        return value

    return check_function


def real_array(name: str, value: object) -> Any:
    """Check for real numbers of any shape, traced or not; lists are returned as arrays."""
    dtype = _numeric_dtype(name, value)
    if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        remedy = remedy_for_kind(name, value)
        raise argument_error(name, "an array of real numbers", value, remedy)
    if isinstance(value, (list, tuple)):
        return (jnp if is_traced(value) else np).asarray(value)
    return value


def _numeric_dtype(name: str, value: object) -> Any:
    """Return the dtype of what would be an array of numbers; ragged lists and objects are none."""
    if isinstance(value, np.ma.MaskedArray):
        remedy = f"leave out what is masked, or fill it in by `{name}.filled(0.0)`"
        raise argument_error(name, "an array without a mask", value, remedy)
    try:
        if isinstance(value, (jax.Array, np.ndarray, np.generic)):
            return jnp.result_type(value)
        return (jnp if is_traced(value) else np).asarray(value).dtype
    except (TypeError, ValueError):
        ragged = isinstance(value, (list, tuple))
        remedy = "rows of a list need one length and hold numbers" if ragged else ""
        raise argument_error(name, "an array of numbers", value, remedy) from None


def finite_array(name: str, value: object) -> Any:
    """Check as `array`, and that no number is NaN or infinite."""
    found = real_array(name, value)
    if np.ndim(found) == 0:
        return finite(name, found)
    require_finite(name, found if is_traced(found) else np.asarray(found))
    return found


def float_array(name: str, value: object, exact: bool = False) -> jax.Array:
    """Return numbers as an array of float32 or float64.

    Whole numbers, truth values and half precision take JAX's default float; half precision is
    refused where the precision is meant to be kept (`exact`).
    """
    dtype = _numeric_dtype(name, value)
    if not jnp.issubdtype(dtype, jnp.bool_):
        value = real_array(name, value)
    if dtype in (jnp.float32, jnp.float64):
        return jax.device_put(value) if isinstance(value, np.ndarray) else jnp.asarray(value)
    if exact and jnp.issubdtype(dtype, jnp.floating):
        raise argument_error(name, "of float32 or float64", value, "runs need one of the two")
    if isinstance(value, jax.Array) or is_traced(value):
        return jnp.asarray(value).astype(jnp.result_type(float))
    return jax.device_put(np.asarray(value, jnp.result_type(float)))


def require_float_array(name: str, value: object) -> None:
    """Raise `ValueError` unless a value is, by its dtype, an array of float32 or float64."""
    if getattr(value, "dtype", None) not in (jnp.float32, jnp.float64):
        raise argument_error(
            name, "an array of float32 or float64", value, "runs need one of the two"
        )


def require_single(name: str, axes: int, wanted: int, kind: str) -> None:
    """Raise `ValueError` for a stack of things (`kind`): more axes than the `wanted` of one."""
    if axes != wanted:
        raise ValueError(
            f"`{name}` is a stack of {kind}; take one, as in jax.tree.map(lambda a: a[0], {name}), "
            "or map over all by jax.vmap."
        )


def float_precision(name: str, value: Any) -> Any:
    """Check for float32 or float64, in any way that NumPy and JAX write them."""
    try:
        found = jnp.dtype(value)
    except TypeError:
        found = None
    if value is None or found not in (jnp.float32, jnp.float64):
        raise argument_error(name, "float32 or float64", value)
    return value


def random_key(name: str, value: object) -> object:
    """Check for a key of `jax.random`, of the new kind or the old."""
    dtype = getattr(value, "dtype", None)
    new = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if (new or dtype == jnp.uint32) and getattr(value, "shape", None) == (() if new else (2,)):
        return value
    seed = value if isinstance(value, int) and not isinstance(value, bool) else 0
    raise argument_error(name, "a key of jax.random", value, f"pass jax.random.key({seed})")


def file_path(name: str, value: object) -> PathLike:
    """Check for a path of a file, a string or a `pathlib.Path`."""
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise argument_error(name, "a path, as a string or a pathlib.Path", value)
    return value


def index_from_zero(name: str, value: object) -> int:
    """Check for a whole number of 0 or more that counts from 0, such as a layer."""
    try:
        found = -1
        if isinstance(value, SupportsIndex) and not isinstance(value, (bool, np.bool_)):
            found = operator.index(value)
    except TypeError:
        found = -1
    if found < 0:
        raise argument_error(name, "a whole number counted from 0", value)
    return found


CHECKS_BY_NAME.update(
    atol=positive,
    batch_size=integer_from(1),
    bias_strength=finite,
    checkpoint=file_path,
    dense=boolean,
    direction=choice_of(None, "up", "down"),
    dtype=float_precision,
    interpolate=boolean,
    key=random_key,
    learning_rate=positive,
    level=finite_array,
    max_events=event_limit,
    max_steps=step_limit,
    name=string,
    path=file_path,
    progress=boolean,
    quantile=number_in(0.0, 0.5),
    rtol=positive,
    save_every=integer_from(1),
    steps=integer_from(
        1, "to reach a time t1 it is round(t1 / (learning_rate * tau))", LARGEST_STEP_LIMIT
    ),
    t=real_array,
    t1=positive,
    tau=positive,
    terminate=boolean,
    throw=boolean,
    window=integer_from(2, "one step alone cannot flicker"),
)
