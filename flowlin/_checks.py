"""One layer of argument checks: every public function is entered through `checked`.

The same word means the same thing wherever it stands, so an argument is checked by its name:
`WORDS` says what each word may be. Plain words stand here; a module that defines a class of the
library adds the word that goes with it (`WORDS["network"] = ...`). A check is called as
`check(name, value)`, raises `ValueError` (what, got, remedy) and returns the value to go on with.
"""

import difflib
import functools
import inspect
import math
import numbers as numeric
import operator
import os
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

Check = Callable[[str, Any], Any]

WORDS: dict[str, Check] = {}


def checked(thing: Any = None, /, **checks: Check | None) -> Any:
    """Decorate a function, a method or a class: its arguments are checked before it is entered.

    Each argument is checked by its own name in `WORDS`, or by the check that is given here for it
    (None: not at all). An argument left at its default is not checked, so None passes where it is
    the default. Unknown, missing and surplus arguments are told by `TypeError`, with the name that
    may have been meant.
    """
    if thing is None:
        return functools.partial(checked, **checks)
    if not inspect.isclass(thing):
        return _entered(thing, checks)
    thing.__init__ = _entered(thing.__init__, checks, thing.__name__)
    return thing


def _entered(function: Any, checks: dict[str, Check | None], title: str = "") -> Any:
    signature = inspect.signature(function)
    title = title or function.__name__

    @functools.wraps(function)
    def entered(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(_unbound(title, signature, args, kwargs, error)) from None
        given = bound.arguments
        for name, value in given.items():
            check = checks[name] if name in checks else WORDS.get(name)
            if check is not None and value is not signature.parameters[name].default:
                given[name] = check(name, value)
        return function(*bound.args, **bound.kwargs)

    return entered


def _unbound(
    title: str, signature: inspect.Signature, args: Any, kwargs: Any, error: TypeError
) -> str:
    """Why a call does not fit a signature, and what may have been meant."""
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for word in kwargs:
        if word not in signature.parameters:
            near = difflib.get_close_matches(word, names, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"it has {', '.join(names)}."
            return f"{title}() has no argument `{word}`; {hint}"
    return f"{title}(): {error}; its arguments are {', '.join(names)}."


def shown(value: Any) -> str:
    """A value as messages quote it: short, and never an array's numbers."""
    if isinstance(value, jax.core.Tracer):
        return f"a traced array of shape {value.shape}"
    if isinstance(value, (jax.Array, np.ndarray)) and value.ndim:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if isinstance(value, (str, bytes, int, float, complex, np.generic, jax.Array, type(None))):
        text = repr(value.item() if isinstance(value, (np.generic, jax.Array)) else value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return f"{_article(type(value).__name__)} {type(value).__name__}"


def _article(word: str) -> str:
    return "an" if word[:1].lower() in "aeiou" else "a"


def refuse(name: str, wanted: str, value: Any, remedy: str = "") -> ValueError:
    """The error for an argument: what it must be, what came, what to do."""
    return ValueError(f"`{name}` must be {wanted}, got {shown(value)}{remedy and '; '}{remedy}.")


def _is_real(value: Any) -> bool:
    """Whether it is one real number, traced or not; truth values and text are none."""
    if isinstance(value, (bool, np.bool_, str, bytes)):
        return False
    if isinstance(value, numeric.Real):
        return True
    dtype = getattr(value, "dtype", None)
    real = dtype is not None and (
        jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    )
    return real and getattr(value, "ndim", None) == 0


def number(wanted: str, fine: Callable[[float], bool], remedy: str = "") -> Check:
    """A check for one real number that is `fine`, in words `wanted`; a traced one passes."""

    def check(name: str, value: Any) -> Any:
        if not _is_real(value):
            if getattr(value, "ndim", 0) or isinstance(value, (list, tuple)):
                shape = np.shape(value)
                raise ValueError(f"`{name}` must be a single number, got shape {shape}.")
            raise refuse(name, f"a number, {wanted}", value, remedy)
        if not isinstance(value, jax.core.Tracer) and not fine(float(value)):
            raise refuse(name, wanted, value, remedy)
        return value

    return check


positive = number("finite and positive", lambda v: math.isfinite(v) and v > 0)
not_negative = number("finite and zero or positive", lambda v: math.isfinite(v) and v >= 0)
finite = number("finite", math.isfinite)


def whole(low: int, remedy: str = "") -> Check:
    """A check for a whole number of at least `low`, returned as an `int`."""
    wanted = f"a whole number of {low} or more"

    def check(name: str, value: Any) -> int:
        if not _is_real(value) or isinstance(value, jax.core.Tracer):
            raise refuse(name, wanted, value, remedy)
        if math.isfinite(value) and int(value) == value and value >= low:
            return int(value)
        raise refuse(name, wanted, value, remedy)

    return check


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise refuse(name, "True or False", value)
    return bool(value)


def one_of(*options: Any) -> Check:
    """A check for one of a few words, or None where that is one of them."""
    wanted = ", ".join(f'"{o}"' if isinstance(o, str) else repr(o) for o in options[:-1])
    wanted += (" or " if wanted else "") + (
        f'"{options[-1]}"' if isinstance(options[-1], str) else repr(options[-1])
    )

    def check(name: str, value: Any) -> Any:
        if not any(type(value) is type(option) and value == option for option in options):
            raise refuse(name, wanted, value)
        return value

    return check


def text(name: str, value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise refuse(name, "a string", value)
    return value


def instance(kinds: Any, wanted: str, remedy: str = "") -> Check:
    """A check for an object of a class; a class in its place is told to be called."""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, kinds):
            return value
        if inspect.isclass(value) and issubclass(value, kinds):
            raise refuse(name, wanted, value, f"make an object of it: {value.__name__}()")
        raise refuse(name, wanted, value, remedy)

    return check


def sequence_of(check: Check, wanted: str) -> Check:
    """A check for a sequence of what `check` passes, returned as a tuple; a single one is one."""

    def checked_items(name: str, value: Any) -> tuple:
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            return (check(name, value),)
        try:
            items = tuple(value)
        except TypeError:  # an array without axes
            raise refuse(name, wanted, value) from None
        return tuple(check(f"{name}[{k}]", item) for k, item in enumerate(items))

    return checked_items


def function(name: str, value: Any) -> Any:
    """Something that can be called, and is not a class."""
    if not callable(value) or inspect.isclass(value):
        raise refuse(name, "a function", value)
    return value


def array(name: str, value: Any) -> Any:
    """Real numbers of any shape, traced or not; the value as it came."""
    try:
        dtype = jnp.result_type(value) if hasattr(value, "dtype") else np.asarray(value).dtype
    except (TypeError, ValueError):
        raise refuse(name, "an array of numbers", value) from None
    if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        raise refuse(name, "an array of real numbers", value)
    return value


def random_key(name: str, value: Any) -> Any:
    """A key of `jax.random`, of the new kind or the old."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        if jnp.issubdtype(dtype, jax.dtypes.prng_key) and value.ndim == 0:
            return value
        if dtype == jnp.uint32 and getattr(value, "shape", None) == (2,):
            return value
    seed = value if isinstance(value, int) and not isinstance(value, bool) else 0
    raise refuse(name, "a key of jax.random", value, f"pass jax.random.key({seed})")


def path(name: str, value: Any) -> Any:
    """Where a file lies."""
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise refuse(name, "a path, as a string or a pathlib.Path", value)
    return value


def index(name: str, value: Any) -> int:
    """A whole number of 0 or more that counts from 0, such as a layer."""
    try:
        found = operator.index(value) if not isinstance(value, (bool, np.bool_)) else -1
    except TypeError:
        found = -1
    if found < 0:
        raise refuse(name, "a whole number counted from 0", value)
    return found


WORDS.update(
    atol=positive,
    batch_size=whole(1),
    bias_strength=finite,
    checkpoint=path,
    dense=flag,
    interpolate=flag,
    key=random_key,
    layer=index,
    learning_rate=positive,
    max_events=whole(1),
    max_steps=whole(1),
    path=path,
    rtol=positive,
    save_every=whole(1),
    steps=whole(1, "round it, as in round(t1 / learning_rate)"),
    t1=positive,
    tau=positive,
    throw=flag,
)
