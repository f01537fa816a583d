"""What the documentation's tests share: how a page's examples are run, as a user would."""

import os
import sys
from pathlib import Path

import jax
import jaxtyping
import pytest

# Compiled programs are kept on disk, as a user may do: each is compiled once.
CACHE = Path(__file__).resolve().parent.parent.parent / ".pytest_cache" / "compiled"
os.environ.setdefault("MPLBACKEND", "Agg")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    jax.config.update("jax_compilation_cache_dir", str(CACHE))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_enable_x64", True)


@pytest.fixture
def as_a_user(monkeypatch, tmp_path):
    """In an empty folder without data, and with the library's own errors, not the import hook's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path))
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
