"""What a session sets once: float64, and a folder that keeps compiled programs."""

import os
import sys
from pathlib import Path

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from flowlin._tools.arguments import argument_error, boolean, checked, file_path
from flowlin._tools.arrays import PathLike


def _flag_or_path(name: str, value: object) -> bool | PathLike:
    """Check for True, False or a path."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if not isinstance(value, (str, os.PathLike)):
        raise argument_error(name, "True, False or the path of a folder", value)
    return file_path(name, value)


@checked(x64=boolean, cache=_flag_or_path)
def configure(x64: bool = True, cache: bool | str | os.PathLike[str] = True) -> None:
    """Set JAX to float64, and keep what it compiles for the next process; call it first.

    Importing flowlin sets nothing. This sets JAX's own `jax_enable_x64`,
    `jax_compilation_cache_dir` and `jax_persistent_cache_min_compile_time_secs`, for all of the
    process: arrays that were made before keep their precision, and programs that were compiled
    before are not kept. Nothing is ever deleted from the folder, which may be removed at any time.

    - `x64`: True for float64, which exact numbers need. False leaves the precision as it is.
    - `cache`: True for the folder that JAX has already, as by the environment variable
      `JAX_COMPILATION_CACHE_DIR`, else `flowlin/compiled` in the user's cache folder
      (`~/.cache`, or what the system has for it). A path names another folder, which is made where
      it is missing. False leaves the cache as it is.

    **Raises:** `ValueError` for other values, and for a folder that cannot be written to.
    """
    known: str | None = jax.config.jax_compilation_cache_dir  # pyright: ignore
    folder = _cache_folder(cache, known)
    if x64:
        jax.config.update("jax_enable_x64", True)
    if folder is None:
        return
    if folder != known:
        # JAX opens its cache once, at the first program.
        compilation_cache.reset_cache()
        jax.config.update("jax_compilation_cache_dir", folder)
    # JAX would keep only what takes a second; a run has twenty programs that take less.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _cache_folder(cache: bool | str | os.PathLike[str], known: str | None) -> str | None:
    """Return the folder to keep programs in, made and writable; None to leave the cache alone.

    `known` is the folder that JAX has already, which may be a remote one.
    """
    if cache is False:
        return None
    if cache is True and known:
        return known
    if cache is True:
        cache = _user_cache_folder() / "flowlin" / "compiled"
    try:
        folder = Path(cache).expanduser().absolute()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise _folder_error(cache, str(error)) from None
    if not os.access(folder, os.W_OK):
        raise _folder_error(folder, "it may not be written to")
    return str(folder)


def _folder_error(folder: object, reason: str) -> ValueError:
    """Return the error for a folder that compiled programs cannot be kept in."""
    return ValueError(
        f"`cache`: no compiled programs can be kept in {str(folder)!r} ({reason}); "
        "pass the path of another folder, or `cache=False`."
    )


def _user_cache_folder() -> Path:
    """Return the folder in which the system keeps what programs of this user may lose."""
    home = Path("~").expanduser()
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
