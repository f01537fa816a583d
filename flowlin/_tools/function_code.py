"""What tells apart two functions of one name: their code, and the values that they use."""

import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator

import equinox as eqx
import jax
import numpy as np

from flowlin._tools.arrays import is_traced

# The same source is other code in another version of Python.
PYTHON = str(sys.implementation.cache_tag)

Part = str | np.ndarray


def function_parts(function: object) -> list[Part]:
    """Return text and arrays that differ where two functions do, as far as can be known.

    Of a function they are its code, constants, the names that it uses, its defaults, and what it
    closes over or finds in its own file: numbers, strings, arrays, modules of Equinox, functions
    of that file. Of a `functools.partial` and a method they are those of what it is made of, of a
    module of Equinox those of its leaves, and of an object that can be called those of its class's
    `__call__`. Other objects, and functions of this library and of Equinox, have none.
    """
    found: list[Part] = []
    _add_parts(found, function, set())
    return found


def _add_parts(found: list[Part], value: object, seen: set[int]) -> None:
    """Add the parts of a value to those that are `found`; functions that are `seen` have theirs."""
    if isinstance(value, (bool, int, float, complex, str, bytes)):
        found.append(repr(value))
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        if not is_traced(value) and isinstance(value.dtype, np.dtype) and value.dtype != object:
            found.append(np.asarray(value))
    elif isinstance(value, types.FunctionType) and not _is_wrapped_elsewhere(value):
        if id(value) not in seen and not _is_of_library(value):
            seen.add(id(value))
            _add_code(found, value.__code__, value.__doc__)
            for part in _reachable_values(value):
                _add_parts(found, part, seen)
    else:
        for part in _parts_inside(value):
            _add_parts(found, part, seen)


def _home_module(function: Callable[..., object]) -> str:
    """Return the module in whose file a function stands, whatever it is said to be."""
    return str(getattr(function, "__globals__", {}).get("__name__", function.__module__))


def _is_of_library(function: types.FunctionType) -> bool:
    """Tell whether a function is flowlin's own or Equinox's, whatever it is wrapped in."""
    places = _home_module(function), str(function.__module__)
    return any(place.partition(".")[0] in ("flowlin", "equinox") for place in places)


def _is_wrapped_elsewhere(function: types.FunctionType) -> bool:
    """Tell whether a function wraps one of another file, as those of `jax.vmap` do."""
    return hasattr(function, "__wrapped__") and _home_module(function.__wrapped__) != _home_module(
        function
    )


def _parts_inside(value: object) -> list[object]:
    """Return what an object is made of, where its kind says it."""
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *sorted(value.keywords.items())]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, tuple):
        return list(value)
    if callable(value) and hasattr(value, "__wrapped__"):  # by `jax.jit`, say
        return [value.__wrapped__]
    inside: list[object] = []
    if isinstance(value, eqx.Module):
        inside += [leaf for leaf in jax.tree.leaves(value) if leaf is not value]
    call = type(value).__call__ if callable(value) else None
    return [*inside, call] if isinstance(call, types.FunctionType) else inside


def _add_code(found: list[Part], code: types.CodeType, doc: str | None) -> None:
    """Add what a code does: its instructions, names and constants, but for a docstring."""
    found += [code.co_code.hex(), repr(code.co_names)]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_code(found, constant, None)
        elif isinstance(constant, frozenset):  # whose order differs from process to process
            found.append(repr(sorted(map(repr, constant))))
        elif constant is None or constant != doc:
            found.append(repr(constant))


def _reachable_values(function: types.FunctionType) -> Iterator[object]:
    """Yield a function's defaults, what it closes over, and what it finds in its file.

    Functions of other files are left out, which come and go with versions of what they belong to.
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    values += [item for name, cell in cells for item in (name, *_cell_content(cell))]
    for name in sorted(_global_names(function.__code__)):
        values += [name, function.__globals__.get(name)]
    for value in values:
        inner = inspect.unwrap(value) if callable(value) else None
        if not isinstance(inner, types.FunctionType) or _home_module(inner) == _home_module(
            function
        ):
            yield value


def _cell_content(cell: types.CellType) -> tuple[object, ...]:
    """Return the content of a cell, if it has any yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _global_names(code: types.CodeType) -> set[str]:
    """Return the names that a code, or one inside it, looks up in its file."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return found.union(*map(_global_names, inner))
