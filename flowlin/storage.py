"""Trajectories on disk: NumPy arrays and a JSON header in one `.npz` file, without pickle.

The entry `header` is UTF-8 JSON, `{"format": "flowlin", "version": 2, "written_by": {"flowlin":
version, "jax": version}, "content": node}`; every other entry is a plain array. `flowlin.codec`
says what a node is. Version 1, of flowlin 0.1, is read too: it did not say what it was written by,
and knew fewer classes.
"""

import contextlib
import io
import itertools
import json
import math
import os
import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import flowlin
from flowlin._arrays import ENABLE_X64, is_traced
from flowlin._checks import checked
from flowlin._checks import path as require_path
from flowlin.codec import check, decoded, encoded
from flowlin.eventlog import EventLog
from flowlin.loss import Loss
from flowlin.network import AbstractNetwork
from flowlin.result import RESULTS
from flowlin.trajectory import Trajectory

Path = str | os.PathLike[str]
FORMAT = 2


class Stored(NamedTuple):
    """What a file holds, the version of its format, and by which versions it was written."""

    content: Any
    format: int
    written_by: dict[str, str]


def save(flow: Trajectory, path: Path) -> None:
    """See `Trajectory.save`."""
    if is_traced(flow):
        raise ValueError("`save` writes numbers; call it outside of `jit` and `vmap`.")
    if flow.ts.ndim != 1:
        raise ValueError("`save` writes one run; take it out of its batch with `jax.tree.map`.")
    write(require_place("path", path), flow)


@checked
def load(path: Path) -> Trajectory:
    """A trajectory that `flow.save(path)` has written.

    It has everything but dense output, the task, and what `extend` needs. Reads NumPy arrays and
    JSON alone; nothing in the file is executed. Files of earlier versions of flowlin are read too.

    **Raises:** `ValueError` for another file, a damaged one, one of a later version, or one in
    float64 while JAX is set to float32; `FileNotFoundError` if there is none.
    """
    found = read("path", path).content
    if not isinstance(found, Trajectory):
        raise ValueError(
            f"`path` = {os.fspath(path)!r} holds no trajectory but a {type(found).__name__}; give "
            "a file that `flow.save` has written."
        )
    with naming("path", path):
        check_trajectory(found)
    return found


def require_place(name: str, path: Any) -> pathlib.Path:
    """Where a file can be written.

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


def write(path: pathlib.Path, content: Any) -> None:
    """Write atomically: a reader sees the old file or the new one, whatever happens meanwhile."""
    arrays: dict[str, np.ndarray] = {}
    header = {
        "format": "flowlin",
        "version": FORMAT,
        "written_by": {"flowlin": flowlin.__version__, "jax": jax.__version__},
        "content": encoded(content, arrays, "content"),
    }
    data = io.BytesIO()
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(data, header=text, **arrays)  # pyright: ignore
    # Of the same name always, so that one which a killed process has left is written over.
    temporary = path.with_name(f"{path.name}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(data.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(name: str, path: Any) -> Stored:
    """What `write` has written, by this version or an earlier one; `name` is the argument's.

    **Raises:** `ValueError` for other files, damaged ones, and those of later versions;
    `FileNotFoundError` if there is none.
    """
    place = pathlib.Path(require_path(name, path))
    if place.is_dir():
        raise ValueError(f"`{name}` = {str(place)!r} is a directory; give a file.")
    header, arrays = _entries(name, place)
    version = header.get("version")
    if type(version) is not int or version < 1:
        raise _damaged(name, place, "its header has no version")
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
    with naming(name, place):
        written_by = header.get("written_by", {"flowlin": "0.1"})
        check(written_by, dict[str, str], "written_by")
        return Stored(decoded(header.get("content"), arrays), version, written_by)


def _entries(name: str, place: pathlib.Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header of a file and its arrays."""
    if place.exists() and not zipfile.is_zipfile(place):
        raise _damaged(name, place, "it is no archive of arrays, or cut off")
    try:
        with np.load(place, allow_pickle=False) as archive:
            arrays = dict(archive)
        header = json.loads(arrays.pop("header").tobytes())
        fine = header["format"] == "flowlin"
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # NumPy, zipfile, zlib and json raise whatever they please
        raise _damaged(name, place, str(error) or type(error).__name__) from None
    if not fine:
        raise _damaged(name, place, f"its format is {header['format']!r}")
    return header, arrays


def _damaged(name: str, path: Path, why: str) -> ValueError:
    why = " ".join(why.split())
    return ValueError(
        f"`{name}` = {os.fspath(path)!r} was not written by flowlin, or is damaged: {why}. Give "
        "another file, or remove it and run again."
    )


@contextlib.contextmanager
def naming(name: str, path: Path) -> Iterator[None]:
    """Errors within say in which file something is wrong."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise _damaged(name, path, str(error)) from None


def check_trajectory(flow: Trajectory) -> None:
    """Raise `ValueError` unless a trajectory that was read holds together."""
    check(flow, Trajectory, "trajectory")
    if not isinstance(flow.result, type(RESULTS.successful)):
        raise ValueError("`trajectory.result` is no result of a run")
    check(flow.counts, dict[str, jax.Array], "trajectory.counts")
    check(flow.reference.loss, Loss, "trajectory.reference")
    counts = flow.counts.values()
    numbers = all(count.ndim == 0 and count.dtype.kind in "iuf" for count in counts)
    _require("counts", "num_steps" in flow.counts and numbers)
    _require("labels", "solver" in dict(flow.labels))
    _check_network(flow.final, flow.samples)
    length = flow.ts.shape[0]
    rows = [a.shape[:1] for a in jax.tree.leaves(flow.observed) if isinstance(a, jax.Array)]
    if any(row != (length,) for row in rows):
        raise ValueError(f"`trajectory.observed` does not have a row for each of {length} times")
    if flow.saved is not None:
        wanted = [(length, *a.shape) for a in jax.tree.leaves(flow.final.parameters)]
        _require("saved", [a.shape for a in jax.tree.leaves(flow.saved)] == wanted)
    _check_events(flow.events, flow.final.hidden, flow.samples)
    for (layer, _), counts in (flow.step_counts or {}).items():
        hidden = dict(enumerate(flow.final.hidden))
        _require("step_counts", hidden.get(layer) == counts.units)


def _check_network(network: AbstractNetwork, samples: int) -> None:
    """Raise `ValueError` unless the shapes of a network chain."""
    weights, biases = network.weights, network.biases
    chain = all(w.ndim == 2 and w.size for w in weights) and all(
        w.shape[1] == v.shape[0] for v, w in itertools.pairwise(weights)
    )
    fine = len(weights) > 0 and chain and len(biases) == len(weights)
    _require("final.weights", fine)
    for w, b in zip(weights, biases, strict=True):
        _require("final.biases", b is None or b.shape == w.shape[:1])
    numbers = network.bias_strength, getattr(network, "slope", network.bias_strength)
    _require("final", not any(map(np.ndim, numbers)))
    for gate, width in zip(getattr(network, "gates_", ()), network.hidden, strict=False):
        _require("final.gates_", gate.shape in ((width,), (samples, width)))
    dtypes = {a.dtype for a in jax.tree.leaves(network)}
    _require("final", len(dtypes) == 1 and jnp.issubdtype(dtypes.pop(), jnp.floating))


def _check_events(log: EventLog, hidden: tuple[int, ...], samples: int) -> None:
    """Raise `ValueError` unless the events are of components that there are."""
    sizes = [channel.shape for channel in log.channels]
    fine = all(size >= 0 for shape in sizes for size in shape)
    fine = fine and log.initial.shape == (sum(math.prod(shape) for shape in sizes),)
    _require("events.channels", fine)
    component = np.asarray(log.component)[np.isfinite(np.asarray(log.time))]
    _require("events.component", np.all((component >= 0) & (component < log.initial.shape[0])))
    for side in ("old", "new", "initial"):
        _require(f"events.{side}", np.all(np.abs(np.asarray(getattr(log, side))) <= 1))
    for channel in log.channels:
        if channel.name == "gate":
            layer = dict(enumerate(hidden)).get(*channel.prefix) if channel.prefix else None
            _require("events.channels", channel.shape == (layer, samples))


def _require(field: str, fine: Any) -> None:
    if not fine:
        raise ValueError(f"`trajectory.{field}` does not fit the rest of the run")
