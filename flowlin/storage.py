"""Trajectories on disk: NumPy arrays and a JSON header in one `.npz` file, without pickle.

The entry `header` is UTF-8 JSON, `{"format": "flowlin", "version": 1, "content": node}`; every
other entry is a plain array. A node is one of

- `{"array": name}`: the entry of that name;
- `{"value": x}`: a number, a string, a bool or null;
- `{"list": [node, ...]}`, `{"tuple": [node, ...]}`, `{"dict": [[node, node], ...]}`;
- `{"object": name, "fields": {field: node}}`: one of the library's classes;
- `{"result": name}`: how a run ended, one of `fl.RESULTS`.
"""

import dataclasses
import io
import json
import os
import pathlib
import zipfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flowlin._arrays import ENABLE_X64, is_traced
from flowlin.eventlog import Channel, EventLog, Unresolved
from flowlin.linearization import UnitCounts
from flowlin.loss import CrossEntropy, SquaredError
from flowlin.network import GatedLinearNetwork, LinearNetwork, ReLUNetwork
from flowlin.result import RESULTS
from flowlin.trajectory import Reference, Trajectory

Path = str | os.PathLike[str]

CLASSES = {
    kind.__name__: kind
    for kind in (
        Channel, CrossEntropy, EventLog, GatedLinearNetwork, LinearNetwork, ReLUNetwork,
        SquaredError, Trajectory, UnitCounts, Unresolved,
    )
}  # fmt: skip
OUTCOMES = (
    "successful", "event_occurred", "max_steps_reached", "dt_min_reached", "event_overflow",
    "slide_overflow", "modes_unsolved", "slides_in_two_layers", "not_finite",
)  # fmt: skip


def save(flow: Trajectory, path: Path) -> None:
    """See `Trajectory.save`."""
    if is_traced(flow):
        raise ValueError("`save` writes numbers; call it outside of `jit` and `vmap`.")
    write(path, flow)


def load(path: Path) -> Trajectory:
    """A trajectory that `flow.save(path)` has written.

    It has everything but dense output, the task, and what `extend` needs. Reads NumPy arrays and
    JSON alone; nothing in the file is executed.

    **Raises:** `ValueError` for another file, or one in float64 while JAX is set to float32;
    `FileNotFoundError` if there is none.
    """
    found = read(path)
    if not isinstance(found, Trajectory):
        raise ValueError(f"`path` = {str(path)!r} holds no trajectory.")
    return found


def write(path: Path, content: Any) -> None:
    """Write atomically: a reader sees the old file or the new one, whatever happens meanwhile."""
    arrays: dict[str, np.ndarray] = {}
    header = {"format": "flowlin", "version": 1, "content": _encoded(content, arrays, "content")}
    data = io.BytesIO()
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(data, header=text, **arrays)  # pyright: ignore
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {str(path.parent)!r} to write `{path.name}` into.")
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(data.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> Any:
    """What `write` has written."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
        header = json.loads(arrays.pop("header").tobytes())
        fine = header["format"] == "flowlin"
    except (ValueError, KeyError, AttributeError, zipfile.BadZipFile, EOFError):
        fine, header, arrays = False, {}, {}
    if not fine:
        raise ValueError(f"`path` = {str(path)!r} was not written by flowlin.")
    if header["version"] != 1:
        raise ValueError(f"{str(path)!r} was written by a later flowlin; update the library.")
    wide = any(array.dtype == np.float64 for array in arrays.values())
    if wide and jnp.result_type(float) != jnp.float64:
        raise ValueError(f"{str(path)!r} holds float64; before any array is made: {ENABLE_X64}")
    return _decoded(header["content"], arrays)


def _encoded(value: Any, arrays: dict[str, np.ndarray], where: str) -> dict[str, Any]:
    """The node of a value, its arrays put aside under names that say where they belong."""

    def inner(item: Any, name: Any) -> dict[str, Any]:
        return _encoded(item, arrays, f"{where}.{name}")

    if isinstance(value, type(RESULTS.successful)):
        name = next(name for name in OUTCOMES if bool(value == getattr(RESULTS, name)))
        return {"result": name}
    if isinstance(value, Trajectory):
        value = dataclasses.replace(value, dense=None, continuation=None)
    if type(value).__name__ in CLASSES:
        fields = (field.name for field in dataclasses.fields(value))
        return {
            "object": type(value).__name__,
            "fields": {name: inner(getattr(value, name), name) for name in fields},
        }
    if isinstance(value, Reference):
        return inner(value.loss, "loss")
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        arrays[where] = np.asarray(value)
        return {"array": where}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [inner(item, k) for k, item in enumerate(value)]}
    if isinstance(value, dict):
        pairs = enumerate(value.items())
        return {"dict": [[inner(key, f"{k}.key"), inner(item, k)] for k, (key, item) in pairs]}
    raise ValueError(
        f"cannot save a {type(value).__name__} ({where}); let `observe` return arrays, networks, "
        "or lists, tuples and dictionaries of them."
    )


def _decoded(node: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """The value of a node."""
    ((kind, body), *more) = node.items()
    match kind:
        case "array":
            return jnp.asarray(arrays[body])
        case "value":
            return body
        case "result":
            return getattr(RESULTS, body)
        case "list" | "tuple":
            items = [_decoded(item, arrays) for item in body]
            return items if kind == "list" else tuple(items)
        case "dict":
            return {_decoded(key, arrays): _decoded(item, arrays) for key, item in body}
    fields = {name: _decoded(item, arrays) for name, item in dict(more)["fields"].items()}
    if body == "Trajectory":
        fields["reference"] = Reference(None, fields["reference"])
    made = object.__new__(CLASSES[body])
    for name, item in fields.items():
        object.__setattr__(made, name, item)  # as it was, so without __init__'s checks
    return made
