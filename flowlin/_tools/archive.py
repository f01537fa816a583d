"""Files: NumPy arrays and a JSON header in one `.npz` file, without pickle.

The entry `header` is UTF-8 JSON, `{"format": "flowlin", "version": 2, "written_by": {"flowlin":
version, "jax": version}, "content": node}`; every other entry is a plain array.
`flowlin._tools.codec` says what a node is. Version 1, of flowlin 0.1, is read too: it did not say
what it was written by, and knew fewer classes.
"""

import contextlib
import io
import json
import os
import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flowlin._tools.arrays import ENABLE_X64
from flowlin._tools.checks import path as require_path
from flowlin._tools.codec import check, decoded, encoded
from flowlin._tools.types import PathLike
from flowlin._tools.version import __version__

FORMAT = 2


class Stored(NamedTuple):
    """What a file holds, the version of its format, and by which versions it was written."""

    content: Any
    format: int
    written_by: dict[str, str]


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
        "written_by": {"flowlin": __version__, "jax": jax.__version__},
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


def _damaged(name: str, path: PathLike, why: str) -> ValueError:
    why = " ".join(why.split())
    return ValueError(
        f"`{name}` = {os.fspath(path)!r} was not written by flowlin, or is damaged: {why}. Give "
        "another file, or remove it and run again."
    )


@contextlib.contextmanager
def naming(name: str, path: PathLike) -> Iterator[None]:
    """Errors within say in which file something is wrong."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise _damaged(name, path, str(error)) from None
