"""Files: NumPy arrays and a JSON header in one `.npz` file, without pickle.

The entry `header` is UTF-8 JSON, `{"format": "flowlin", "version": 2, "written_by": {"flowlin":
version, "jax": version}, "content": node}`; every other entry is a plain array.
The section on values says what a node is. Version 1, of flowlin 0.1, is read too: it did not say
what it was written by, and knew fewer classes.
"""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import sys
import zipfile
from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree, jaxtyped

from flowlin._tools.arguments import file_path as require_path
from flowlin._tools.arrays import ENABLE_X64, PathLike
from flowlin._tools.version import __version__

# ---- Values as JSON and plain arrays, and back, without pickle.
#
# A value becomes a node, one of
#
# - `{"array": name}`: one of the arrays beside it;
# - `{"value": x}`: a number, a string, a bool or null;
# - `{"list": [node, ...]}`, `{"tuple": [node, ...]}`, `{"dict": [[node, node], ...]}`;
# - `{"object": name, "fields": {field: node}}`: one of the library's classes;
# - `{"result": name}`: how a run ended, one of `fl.RESULTS`.

Node = dict[str, object]
Kind = TypeVar("Kind", bound=type)

SAVEABLE_CLASSES: dict[str, type] = {}


# Results of runs: their type, a function to the name of one, and one from a name to the result.
RESULT_KINDS: list[tuple[type, Callable[..., str], Callable[[object], object]]] = []


LATER_FIELDS: dict[type, dict[str, object]] = {}  # fields that files of an earlier version lack
OLD_FIELD_NAMES: dict[type, dict[str, str]] = {}  # what files call fields that had another name


def saveable(old_names: dict[str, str] | None = None, **later: object) -> Callable[[Kind], Kind]:
    """Decorate a dataclass or a NamedTuple of the library, so that files may hold it, by its name.

    `later` gives values to the fields that files of an earlier version lack. `old_names` maps the
    names that all files use for some fields to the names that the class has for them. A class may
    have two methods: `_stored` turns its fields into those that are written, `_restored` back.
    """

    def register_class(kind: Kind) -> Kind:
        SAVEABLE_CLASSES[kind.__name__], LATER_FIELDS[kind], OLD_FIELD_NAMES[kind] = (
            kind,
            later,
            old_names or {},
        )
        return kind

    return register_class


def register_results(
    kind: type, name_of: Callable[..., str], of_name: Callable[[object], object]
) -> None:
    """Let files hold results of runs, instances of `kind`, by their names.

    `of_name` raises `ValueError` for what is no name.
    """
    RESULT_KINDS.append((kind, name_of, of_name))


def encode_value(value: object, arrays: dict[str, np.ndarray], where: str) -> Node:
    """Return the node of a value; its arrays go into `arrays`, named after where they belong.

    **Raises:** `ValueError` for what cannot be kept, naming it.
    """

    def encode_part(item: object, name: object) -> Node:
        return encode_value(item, arrays, f"{where}.{name}")

    for kind, name_of, _ in RESULT_KINDS:
        if isinstance(value, kind):
            return {"result": name_of(value)}
    if SAVEABLE_CLASSES.get(type(value).__name__) is type(value):
        fields = {name: getattr(value, name) for name in _field_names(type(value))}
        store = getattr(value, "_fields_to_store", None)
        fields = fields if store is None else store(fields)
        old = {new: old for old, new in OLD_FIELD_NAMES[type(value)].items()}
        nodes = {old.get(name, name): encode_part(field, name) for name, field in fields.items()}
        return {"object": type(value).__name__, "fields": nodes}
    if isinstance(value, (jax.Array, np.ndarray, np.generic)) and _is_number_dtype(value.dtype):
        arrays[where] = np.asarray(value)
        return {"array": where}
    if value is None or type(value) in (bool, int, float, str):
        return {"value": value}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return {type(value).__name__: [encode_part(item, k) for k, item in enumerate(value)]}
    if type(value) is dict:
        pairs = enumerate(value.items())
        return {
            "dict": [
                [encode_part(key, f"{k}.key"), encode_part(item, k)] for k, (key, item) in pairs
            ]
        }
    dtype = getattr(value, "dtype", None)
    kind = f"a {type(value).__name__}" if dtype is None else f"dtype {dtype}"
    raise ValueError(
        f"cannot save {kind} ({where}); let `observe` return arrays of numbers, networks, what "
        "measures return, or lists, tuples and dictionaries of them."
    )


def require_saveable(shapes: object, where: str) -> None:
    """Raise `ValueError` unless a tree of this structure, known by its shapes, can be encoded."""

    def example_leaf(leaf: object) -> object:
        if isinstance(leaf, jax.ShapeDtypeStruct) and _is_number_dtype(leaf.dtype):
            return np.zeros((), leaf.dtype)
        return leaf

    encode_value(jax.tree.map(example_leaf, shapes), {}, where)


def decode_node(node: object, arrays: dict[str, np.ndarray]) -> object:
    """Return the value of a node, its arrays taken from `arrays`.

    **Raises:** `ValueError` for what no node looks like, arrays that are not there, and classes
    that this version does not know. The types of fields are not checked here: see `check`.
    """
    if not isinstance(node, dict) or not node:
        raise ValueError(f"{_short_repr(node)} is no node")
    ((kind, body), *more) = node.items()
    match kind:
        case "array" if not isinstance(body, str) or body not in arrays:
            raise ValueError(f"the array {_short_repr(body)} is missing")
        case "array" if _is_number_dtype(arrays[body].dtype):
            return jax.device_put(arrays[body])
        case "array":
            raise ValueError(f"the array {body} is of dtype {arrays[body].dtype}")
        case "value" if isinstance(body, str):
            return sys.intern(body)  # Equinox knows defaults, which it leaves out, by identity
        case "value" if body is None or isinstance(body, (bool, int, float)):
            return body
        case "result":
            ((_, _, of_name),) = RESULT_KINDS
            return of_name(body)
        case "list" | "tuple" if isinstance(body, list):
            items = [decode_node(item, arrays) for item in body]
            return items if kind == "list" else tuple(items)
        case "dict" if isinstance(body, list):
            return dict(_decode_item(item, arrays) for item in body)
        case "object":
            return _decode_object(body, dict(more).get("fields"), arrays)
    raise ValueError(f"{_short_repr(node)} is no node")


def _decode_object(name: object, nodes: object, arrays: dict[str, np.ndarray]) -> object:
    """Make an object with the fields that it had, without `__init__` and its checks."""
    if not isinstance(name, str) or name not in SAVEABLE_CLASSES:
        raise ValueError(f"the class {_short_repr(name)} is not known")
    kind = SAVEABLE_CLASSES[name]
    renamed = {new: old for old, new in OLD_FIELD_NAMES[kind].items()}
    wanted = {renamed.get(name, name): name for name in _field_names(kind)}
    later = LATER_FIELDS[kind]
    if not isinstance(nodes, dict) or not set(wanted) - set(later) <= set(nodes) <= set(wanted):
        raise ValueError(f"a {name} has the fields {', '.join(wanted)}, not {_short_repr(nodes)}")
    fields = later | {wanted[field]: decode_node(node, arrays) for field, node in nodes.items()}
    fields = kind._fields_from_file(fields) if hasattr(kind, "_fields_from_file") else fields  # pyright: ignore
    if issubclass(kind, tuple):
        return kind(**fields)
    made = object.__new__(kind)
    for field, item in fields.items():
        object.__setattr__(made, field, item)
    return made


def _decode_item(item: object, arrays: dict[str, np.ndarray]) -> tuple[object, object]:
    """Return a key and its value from their two nodes."""
    if not isinstance(item, list) or len(item) != 2:
        raise ValueError(f"{_short_repr(item)} is no pair of a key and its value")
    key, value = (decode_node(part, arrays) for part in item)
    try:
        hash(key)
    except TypeError:
        raise ValueError(f"{_short_repr(item[0])} is no key") from None
    return key, value


def require_type(value: object, kind: object, where: str) -> None:
    """Raise `ValueError` unless a value is what a type annotation says, fields of objects included.

    Shapes that are named alike in one class must agree.
    """
    if not _fits_type(value, kind, where):
        raise ValueError(f"`{where}` is {_type_in_words(value)}, not {_annotation_name(kind)}")


def _fits_type(value: Any, kind: Any, where: str) -> bool:
    """Tell whether a value is what an annotation says; errors of its fields begin with `where`."""
    arguments = get_args(kind)
    match get_origin(kind):
        case None:
            if kind in (Any, object, PyTree):  # a stack of tasks or networks is none of their shape
                return True
            return _is_instance(value, kind) and _fields_fit(value, where)
        case origin if origin in (Union, UnionType):
            return any(_fits_type(value, part, where) for part in arguments)
        case origin if origin is Literal:
            return value in arguments
        case origin if not isinstance(value, origin):
            return False
        case origin if origin is dict:
            return all(
                _fits_type(part, kind, f"{where}[{key!r}]")
                for key, item in value.items()
                for part, kind in zip((key, item), arguments, strict=True)
            )
    if len(arguments) == 2 and arguments[1] is ...:
        arguments = (arguments[0],) * len(value)
    elif get_origin(kind) is list:
        arguments = arguments * len(value)
    return len(arguments) == len(value) and all(
        _fits_type(item, part, f"{where}[{k}]")
        for k, (item, part) in enumerate(zip(value, arguments, strict=True))
    )


def _is_instance(value: object, kind: type | None) -> bool:
    """Tell whether a value is of a class; an int passes for a float, a bool for no number."""
    if kind is float:
        return type(value) in (int, float)
    if kind is int:
        return type(value) is int
    return isinstance(value, NoneType if kind is None else kind)


def _fields_fit(value: object, where: str) -> bool:
    """Return True if an object's fields are what its class says; else raise, naming the first."""
    if type(value) in SAVEABLE_CLASSES.values():
        hints = get_type_hints(type(value))
        with jaxtyped("context"):  # pyright: ignore
            for name in _field_names(type(value)):
                require_type(getattr(value, name), hints[name], f"{where}.{name}")
    return True


def _field_names(kind: type) -> list[str]:
    """List the names of the fields of a dataclass or a NamedTuple."""
    if issubclass(kind, tuple):
        return list(kind._fields)  # pyright: ignore
    return [field.name for field in dataclasses.fields(kind)]


def _is_number_dtype(dtype: DTypeLike) -> bool:
    """Tell whether a dtype is NumPy's own, of numbers or truth values."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biufc"


def _type_in_words(value: object) -> str:
    """Name the type of a value, and an array's shape, for messages."""
    if isinstance(value, jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    return f"a {type(value).__name__}"


def _annotation_name(kind: object) -> str:
    """Write a type annotation as messages do, without the modules of its parts."""
    text = str(kind) if get_args(kind) else getattr(kind, "__name__", str(kind))
    return text.replace("jaxtyping.", "").replace("typing.", "")


def _short_repr(node: object) -> str:
    """Quote a node in at most 60 characters."""
    text = repr(node)
    return text if len(text) <= 60 else f"{text[:57]}..."


FORMAT = 2


class FileContent(NamedTuple):
    """Content of a file, the version of its format, and the versions by which it was written."""

    content: object
    format: int
    written_by: dict[str, str]


def writable_path(name: str, path: object) -> pathlib.Path:
    """Return the path at which a file can be written.

    **Raises:** `ValueError` for anything but a path, a directory, or a folder that is not there.
    """
    place = pathlib.Path(require_path(name, path))
    if place.is_dir():
        raise ValueError(f"`{name}` = {str(place)!r} is a directory; give a file in it.")
    if not place.parent.is_dir():
        raise ValueError(
            f"`{name}` = {str(place)!r}: there is no folder {str(place.parent)!r}; make it first."
        )
    return place


def write_file(path: pathlib.Path, content: object) -> None:
    """Write atomically: a reader sees the old file or the new one, whatever happens meanwhile."""
    arrays: dict[str, np.ndarray] = {}
    header = {
        "format": "flowlin",
        "version": FORMAT,
        "written_by": {"flowlin": __version__, "jax": jax.__version__},
        "content": encode_value(content, arrays, "content"),
    }
    data = io.BytesIO()
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(data, header=text, **arrays)  # pyright: ignore
    # Always the same name, so that the next write replaces what a killed process has left.
    temporary = path.with_name(f"{path.name}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(data.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_file(name: str, path: object) -> FileContent:
    """Return what `write_file` has written, by this version or an earlier one; `name` is the
    argument's.

    **Raises:** `ValueError` for other files, damaged ones, and those of later versions;
    `FileNotFoundError` if there is none.
    """
    place = pathlib.Path(require_path(name, path))
    if place.is_dir():
        raise ValueError(f"`{name}` = {str(place)!r} is a directory; give a file.")
    header, arrays = _read_entries(name, place)
    version = header.get("version")
    if type(version) is not int or version < 1:
        raise _damage_error(name, place, "its header has no version")
    if version > FORMAT:
        raise ValueError(
            f"`{name}` = {str(place)!r} was written by a later flowlin "
            f"(format {version}, known up to {FORMAT}); update the library."
        )
    wide = any(array.dtype in (np.float64, np.complex128) for array in arrays.values())
    if wide and jnp.result_type(float) != jnp.float64:
        raise ValueError(
            f"`{name}` = {str(place)!r} holds float64; before any array is made: {ENABLE_X64}"
        )
    with file_errors(name, place):
        written_by = header.get("written_by", {"flowlin": "0.1"})
        require_type(written_by, dict[str, str], "written_by")
        return FileContent(decode_node(header.get("content"), arrays), version, written_by)


def _read_entries(name: str, place: pathlib.Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header of a file and its arrays."""
    if place.exists() and not zipfile.is_zipfile(place):
        raise _damage_error(name, place, "it is no archive of arrays, or cut off")
    try:
        with np.load(place, allow_pickle=False) as archive:
            arrays = dict(archive)
        header = json.loads(arrays.pop("header").tobytes())
        fine = header["format"] == "flowlin"
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # NumPy, zipfile, zlib and json raise whatever they please
        raise _damage_error(name, place, str(error) or type(error).__name__) from None
    if not fine:
        raise _damage_error(name, place, f"its format is {header['format']!r}")
    return header, arrays


def _damage_error(name: str, path: PathLike, why: str) -> ValueError:
    """Return the error for a file that cannot be read, which says why."""
    why = " ".join(why.split())
    return ValueError(
        f"`{name}` = {os.fspath(path)!r} was not written by flowlin, or is damaged: {why}. Give "
        "another file, or remove it and run again."
    )


@contextlib.contextmanager
def file_errors(name: str, path: PathLike) -> Iterator[None]:
    """Let errors that are raised within say which file is damaged."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise _damage_error(name, path, str(error)) from None
