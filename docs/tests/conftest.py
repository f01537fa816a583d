"""What the documentation's tests share: how a page's examples are run, as a user would."""

import importlib.metadata
import os
import sys
from pathlib import Path

# As in tests/conftest.py: small programs, compiled hastily, and each but once.
HASTY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # unknown to others, who would abort
    HASTY += " --xla_cpu_use_fusion_emitters=false"
ROOT = Path(__file__).resolve().parent.parent.parent
os.environ.setdefault("XLA_FLAGS", HASTY)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

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
