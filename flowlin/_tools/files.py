"""Values as JSON and plain arrays, and back, without pickle.

A value becomes a node, one of

- `{"array": name}`: one of the arrays beside it;
- `{"value": x}`: a number, a string, a bool or null;
- `{"list": [node, ...]}`, `{"tuple": [node, ...]}`, `{"dict": [[node, node], ...]}`;
- `{"object": name, "fields": {field: node}}`: one of the library's classes;
- `{"result": name}`: how a run ended, one of `fl.RESULTS`.
"""

import dataclasses
import sys
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import jaxtyped

from flowlin._tools.result import RESULTS, named, outcome

Node = dict[str, Any]
Kind = TypeVar("Kind", bound=type)

CLASSES: dict[str, type] = {}


LATER: dict[type, dict[str, Any]] = {}  # fields that files of an earlier version lack
RENAMED: dict[type, dict[str, str]] = {}  # what files call fields that had another name


def storable(renamed: dict[str, str] | None = None, **later: Any) -> Callable[[Kind], Kind]:
    """Decorate a dataclass or a NamedTuple of the library: files may hold it, by its name.

    `later` are the fields that files of an earlier version lack, with what they then are;
    `renamed` are the names in files of fields that now have another one, by that name. A class
    with methods `_stored` and `_restored` says by them what is written for its fields, and what
    the fields are that were so written.
    """

    def decorate(kind: Kind) -> Kind:
        CLASSES[kind.__name__], LATER[kind], RENAMED[kind] = kind, later, renamed or {}
        return kind

    return decorate


def encoded(value: Any, arrays: dict[str, np.ndarray], where: str) -> Node:
    """The node of a value, its arrays put aside under names that say where they belong.

    **Raises:** `ValueError` for what cannot be kept, naming it.
    """

    def inner(item: Any, name: Any) -> Node:
        return encoded(item, arrays, f"{where}.{name}")

    if isinstance(value, type(RESULTS.successful)):
        return {"result": named(value)}
    if CLASSES.get(type(value).__name__) is type(value):
        fields = {name: getattr(value, name) for name in _fields(type(value))}
        fields = value._stored(fields) if hasattr(value, "_stored") else fields
        old = {new: old for old, new in RENAMED[type(value)].items()}
        nodes = {old.get(name, name): inner(field, name) for name, field in fields.items()}
        return {"object": type(value).__name__, "fields": nodes}
    if isinstance(value, (jax.Array, np.ndarray, np.generic)) and _is_plain(value.dtype):
        arrays[where] = np.asarray(value)
        return {"array": where}
    if value is None or type(value) in (bool, int, float, str):
        return {"value": value}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return {type(value).__name__: [inner(item, k) for k, item in enumerate(value)]}
    if type(value) is dict:
        pairs = enumerate(value.items())
        return {"dict": [[inner(key, f"{k}.key"), inner(item, k)] for k, (key, item) in pairs]}
    dtype = getattr(value, "dtype", None)
    kind = f"a {type(value).__name__}" if dtype is None else f"dtype {dtype}"
    raise ValueError(
        f"cannot save {kind} ({where}); let `observe` return arrays of numbers, networks, what "
        "measures return, or lists, tuples and dictionaries of them."
    )


def require_storable(shapes: Any, where: str) -> None:
    """Raise `ValueError` unless a tree of this structure, known by its shapes, can be encoded."""

    def example(leaf: Any) -> Any:
        known = isinstance(leaf, jax.ShapeDtypeStruct) and _is_plain(leaf.dtype)
        return np.zeros((), leaf.dtype) if known else leaf

    encoded(jax.tree.map(example, shapes), {}, where)


def decoded(node: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The value of a node.

    **Raises:** `ValueError` for what no node looks like, arrays that are not there, and classes
    that this version does not know. Fields are of any type yet: see `check`.
    """
    if not isinstance(node, dict) or not node:
        raise ValueError(f"{_short(node)} is no node")
    ((kind, body), *more) = node.items()
    match kind:
        case "array" if not isinstance(body, str) or body not in arrays:
            raise ValueError(f"the array {_short(body)} is missing")
        case "array" if _is_plain(arrays[body].dtype):
            return jnp.asarray(arrays[body])
        case "array":
            raise ValueError(f"the array {body} is of dtype {arrays[body].dtype}")
        case "value" if isinstance(body, str):
            return sys.intern(body)  # Equinox knows defaults, which it leaves out, by identity
        case "value" if body is None or isinstance(body, (bool, int, float)):
            return body
        case "result":
            return outcome(body)
        case "list" | "tuple" if isinstance(body, list):
            items = [decoded(item, arrays) for item in body]
            return items if kind == "list" else tuple(items)
        case "dict" if isinstance(body, list):
            return dict(_pair(item, arrays) for item in body)
        case "object":
            return _object(body, dict(more).get("fields"), arrays)
    raise ValueError(f"{_short(node)} is no node")


def _object(name: Any, nodes: Any, arrays: dict[str, np.ndarray]) -> Any:
    """An object as it was, so made without `__init__` and its checks."""
    if not isinstance(name, str) or name not in CLASSES:
        raise ValueError(f"the class {_short(name)} is not known")
    kind = CLASSES[name]
    renamed = {new: old for old, new in RENAMED[kind].items()}
    wanted = {renamed.get(name, name): name for name in _fields(kind)}
    later = LATER[kind]
    if not isinstance(nodes, dict) or not set(wanted) - set(later) <= set(nodes) <= set(wanted):
        raise ValueError(f"a {name} has the fields {', '.join(wanted)}, not {_short(nodes)}")
    fields = later | {wanted[field]: decoded(node, arrays) for field, node in nodes.items()}
    fields = kind._restored(fields) if hasattr(kind, "_restored") else fields  # pyright: ignore
    if issubclass(kind, tuple):
        return kind(**fields)
    made = object.__new__(kind)
    for field, item in fields.items():
        object.__setattr__(made, field, item)
    return made


def _pair(item: Any, arrays: dict[str, np.ndarray]) -> tuple[Any, Any]:
    """A key and its value."""
    if not isinstance(item, list) or len(item) != 2:
        raise ValueError(f"{_short(item)} is no pair of a key and its value")
    key, value = (decoded(part, arrays) for part in item)
    try:
        hash(key)
    except TypeError:
        raise ValueError(f"{_short(item[0])} is no key") from None
    return key, value


def check(value: Any, kind: Any, where: str) -> None:
    """Raise `ValueError` unless a value is what a type annotation says, fields of objects included.

    Shapes that are named alike in one class must agree. What stands in a field of type Any is not
    looked at.
    """
    if not _fits(value, kind, where):
        raise ValueError(f"`{where}` is {_described(value)}, not {_name(kind)}")


def _fits(value: Any, kind: Any, where: str) -> bool:
    arguments = get_args(kind)
    match get_origin(kind):
        case None:
            return kind is Any or (_is_a(value, kind) and _fits_inside(value, where))
        case origin if origin in (Union, UnionType):
            return any(_fits(value, part, where) for part in arguments)
        case origin if origin is Literal:
            return value in arguments
        case origin if not isinstance(value, origin):
            return False
        case origin if origin is dict:
            return all(
                _fits(part, kind, f"{where}[{key!r}]")
                for key, item in value.items()
                for part, kind in zip((key, item), arguments, strict=True)
            )
    if len(arguments) == 2 and arguments[1] is ...:
        arguments = (arguments[0],) * len(value)
    elif get_origin(kind) is list:
        arguments = arguments * len(value)
    return len(arguments) == len(value) and all(
        _fits(item, part, f"{where}[{k}]")
        for k, (item, part) in enumerate(zip(value, arguments, strict=True))
    )


def _is_a(value: Any, kind: Any) -> bool:
    if kind is float:
        return type(value) in (int, float)
    if kind is int:
        return type(value) is int
    return isinstance(value, NoneType if kind is None else kind)


def _fits_inside(value: Any, where: str) -> bool:
    """Whether an object's fields are what its class says; says itself which one is not."""
    if type(value) in CLASSES.values():
        hints = get_type_hints(type(value))
        with jaxtyped("context"):  # pyright: ignore
            for name in _fields(type(value)):
                check(getattr(value, name), hints[name], f"{where}.{name}")
    return True


def _fields(kind: Any) -> list[str]:
    """Names of the fields of a dataclass or a NamedTuple."""
    if issubclass(kind, tuple):
        return list(kind._fields)  # pyright: ignore
    return [field.name for field in dataclasses.fields(kind)]


def _is_plain(dtype: DTypeLike) -> bool:
    """Whether a dtype is NumPy's own, of numbers or truth values."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biufc"


def _described(value: Any) -> str:
    if isinstance(value, jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    return f"a {type(value).__name__}"


def _name(kind: Any) -> str:
    text = str(kind) if get_args(kind) else getattr(kind, "__name__", str(kind))
    return text.replace("jaxtyping.", "").replace("typing.", "")


def _short(node: Any) -> str:
    text = repr(node)
    return text if len(text) <= 60 else f"{text[:57]}..."
