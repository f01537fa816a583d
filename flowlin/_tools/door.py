"""The door that every public function is entered through, and how its refusals read."""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

import jax
import jax.core
import numpy as np

Check = Callable[[str, Any], Any]
Thing = TypeVar("Thing", bound=Callable[..., Any])

WORDS: dict[str, Check] = {}
# Words that are asked for where another one is meant, or another function: that word, and why;
# of one function alone as "function.word". A module adds those of its own functions.
INSTEAD = {
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
    title = title or function.__qualname__

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

    entered.checks = checks  # pyright: ignore[reportAttributeAccessIssue]
    return entered


def require_known(options: dict[str, Any], function: Any, *, of: Any) -> None:
    """Raise `TypeError` for options of one function that it cannot hand on to another."""
    names = list(inspect.signature(function).parameters)
    for word in options:
        if word not in names:
            raise TypeError(_unknown(of.__qualname__, word, _named(inspect.signature(of)) + names))


def _unbound(
    title: str, signature: inspect.Signature, args: Any, kwargs: Any, error: TypeError
) -> str:
    """Why a call does not fit a signature, and what may have been meant."""
    names = _named(signature)
    for word in kwargs:
        if word not in signature.parameters:
            return _unknown(title, word, names)
    return f"{title}(): {error}; it has {', '.join(names) or 'no arguments'}."


def _unknown(title: str, word: str, names: list[str]) -> str:
    instead, why = INSTEAD.get(f"{title}.{word}", INSTEAD.get(word, ("", "")))
    if instead in names:
        return f"{title}() has no argument `{word}`: {why}"
    near = difflib.get_close_matches(word, names, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"it has {', '.join(names) or 'none'}."
    return f"{title}() has no argument `{word}`; {hint}"


def _named(signature: inspect.Signature) -> list[str]:
    """The arguments that can be given by name."""
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def shown(value: Any) -> str:
    """A value as messages quote it: short, and never an array's numbers."""
    if isinstance(value, jax.core.Tracer):
        return f"a traced array of shape {value.shape}"
    if isinstance(value, (jax.Array, np.ndarray)) and (value.ndim or not _plain(value)):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if isinstance(value, (str, bytes, int, float, complex, np.generic, jax.Array, type(None))):
        text = repr(value.item() if isinstance(value, (np.generic, jax.Array)) else value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return an(type(value).__name__)


def _plain(value: Any) -> bool:
    """Whether an array without axes is one number; keys of `jax.random` are none."""
    return isinstance(value.dtype, np.dtype)


def an(word: str) -> str:
    """With its article: an `EventLog`, a `Task`, and an `MLP`, which is spelt out."""
    spelt = word[:2].isupper()
    return f"{'an' if word[:1] in ('AEFHILMNORSX' if spelt else 'aeiouAEIOU') else 'a'} {word}"


def refuse(name: str, wanted: str, value: Any, remedy: str = "") -> ValueError:
    """The error for an argument: what it must be, what came, what to do."""
    return ValueError(f"`{name}` must be {wanted}, got {shown(value)}{remedy and '; '}{remedy}.")
